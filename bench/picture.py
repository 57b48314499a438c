"""A picture of two figures as one SVG: how long a tree takes to go, and who leaves processes behind."""

from html import escape
from pathlib import Path

from bench.result import Result

WIDTH, ROW, BAR, LEFT = 860, 24, 14, 230
COLOURS = {
    "cgroup": "#2f6f4f",
    "keeper": "#7fb069",
    "left": "#c0392b",
    "none": "#d9ead3",
    "ink": "#222",
    "line": "#999",
}
LONGEST = 3.2  # the end of the axis, in multiples of the floor


def draw(results: list[Result], path: Path) -> None:
    """Write the picture of those of its figures that were measured."""
    trees: dict[str, float] = {}
    survivors: dict[str, float] = {}
    for result in results:
        if result.drawn is not None:
            (trees if result.drawn[0] == "trees" else survivors).update(result.drawn[1])
    shapes, below = _trees(trees, 40)
    more, below = _survivors(survivors, below + 40)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {below + 10}" font-family="sans-serif">'
    ground = f'<rect width="{WIDTH}" height="{below + 10}" fill="white"/>'
    path.write_text("\n".join([head, ground, *shapes, *more, "</svg>\n"]))


def _trees(data: dict[str, float], top: int) -> tuple[list[str], int]:
    shapes = [_text(10, top - 16, "From a stop until every process is gone, as a multiple of one killpg", size=15)]
    bars = [name for name in data if not name.startswith("goal")]
    scale = (WIDTH - LEFT - 70) / LONGEST
    for number, name in enumerate(bars):
        grade, size = name.split()
        y = top + number * ROW
        width = min(data[name], LONGEST) * scale
        goal = LEFT + data[f"goal {name}"] * scale
        shapes += [
            _text(LEFT - 8, y + 12, f"{size} process{'es' if size != '1' else ''}, {grade} grade", anchor="end"),
            f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{COLOURS[grade]}"/>',
            f'<line x1="{goal:.1f}" y1="{y - 3}" x2="{goal:.1f}" y2="{y + BAR + 3}" stroke="{COLOURS["left"]}"/>',
            _text(max(LEFT + width, goal) + 6, y + 12, f"{data[name]:.2f} ×"),
        ]
    below = top + len(bars) * ROW
    one, line = LEFT + scale, COLOURS["line"]
    shapes.append(
        f'<line x1="{one:.1f}" y1="{top - 6}" x2="{one:.1f}" y2="{below}" stroke="{line}" stroke-dasharray="3"/>'
    )
    return [
        *shapes,
        _text(one, below + 12, "killpg", anchor="middle"),
        _text(WIDTH - 10, below + 12, "| goal", anchor="end"),
    ], below + 20


def _survivors(data: dict[str, float], top: int) -> tuple[list[str], int]:
    shapes = [_text(10, top - 16, "Stops that left a process behind, by what the process did", size=15)]
    people = list(dict.fromkeys(name.rsplit(" ", 1)[0] for name in data))
    cases = list(dict.fromkeys(name.rsplit(" ", 1)[1] for name in data))
    cell = (WIDTH - LEFT - 10) / max(len(cases), 1)
    for column, case in enumerate(cases):
        shapes.append(_text(LEFT + (column + 0.5) * cell, top + 4, case, anchor="middle", size=10))
    for row, who in enumerate(people):
        y = top + 12 + row * (ROW + 6)
        shapes.append(_text(LEFT - 8, y + 18, who, anchor="end"))
        for column, case in enumerate(cases):
            share = data[f"{who} {case}"]
            colour = COLOURS["left"] if share else COLOURS["none"]
            x = LEFT + column * cell
            shapes.append(f'<rect x="{x + 1:.1f}" y="{y}" width="{cell - 2:.1f}" height="{ROW}" fill="{colour}"/>')
            shapes.append(_text(x + cell / 2, y + 16, f"{share:.0%}", anchor="middle", size=10))
    return shapes, top + 12 + len(people) * (ROW + 6) + 10


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    ink = COLOURS["ink"]
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{ink}">{escape(text)}</text>'
