"""The two pictures of docs/design.md, drawn from the code (`make pictures`): the one path, and the rooms.

1. Every name in a picture is read from the code: the lifecycle table, the enums, `Run`, the import contracts of
   pyproject.toml, the packages on disk and the sentence at the head of each.
2. The place of a name on the paper is kept here. A name without a place, or a place without a name, raises Misplaced:
   a state, an effect, a verb or a room that is added or removed cannot be left out of a picture.
3. The same code gives the same picture, to the byte. tests/test_pictures.py compares it with the one in docs/images.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
import tomllib
from collections.abc import Collection, Iterator, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from interlock.agent.run import Run
from interlock.core.lifecycle import MOVES, Move, State
from interlock.core.names import EARLY, ENDINGS, Drain, Effect, RunKind
from interlock.core.receipt import Receipt
from interlock.runtime.fall import Fall

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "interlock"
PATH, ROOMS = ROOT / "docs" / "images" / "path.svg", ROOT / "docs" / "images" / "rooms.svg"
WIDTH, EDGE, SMALL, LINE = 1000, 30, 15, 19  # pixels
LETTER = 0.55  # width of a letter in a wide font, as part of its size

# Colours by day and by night: ink, dim ink, paper, panel, border, line, way through, cut short, soft red.
DAY = ("#1f2328", "#59636e", "#ffffff", "#f6f8fa", "#d1d9e0", "#8c959f", "#0969da", "#cf222e", "#ffebe9")
NIGHT = ("#e6edf3", "#9198a1", "#0d1117", "#161b22", "#30363d", "#6e7681", "#4493f8", "#f85149", "#2d1618")
LOOK = """
text{{font:15px system-ui,sans-serif;fill:{0}}}.head{{font-size:19px;font-weight:600}}.name{{font-weight:600}}
.dim{{fill:{1}}}.code{{font:15px ui-monospace,monospace}}
.move{{fill:{6}}}.mid{{text-anchor:middle}}.rightmost{{text-anchor:end}}.paper{{fill:{2}}}
.box{{fill:{3};stroke:{4}}}.line,.way,.end,.bar{{fill:none;stroke:{5};stroke-width:1.5}}.way{{stroke:{6};stroke-width:2}}
.end{{stroke:{7}}}.bar{{stroke:{7};stroke-width:5}}.red{{fill:{7}}}.fall{{fill:{8};stroke:{7}}}
.pill{{fill:none;stroke:{6}}}.part{{stroke-dasharray:4 3}}.h-line{{fill:{5}}}.h-way{{fill:{6}}}.h-end{{fill:{7}}}
"""
STYLE = f"{LOOK.format(*DAY)}@media(prefers-color-scheme:dark){{{LOOK.format(*NIGHT)}}}".replace("\n", "")


class Misplaced(Exception):
    """The code has a name that a picture has no place for, or a picture has a place for a name that is gone."""


def _same(what: str, placed: Collection[str], found: Collection[str]) -> None:
    if set(placed) != set(found):
        new, gone = (", ".join(sorted(names)) for names in (set(found) - set(placed), set(placed) - set(found)))
        raise Misplaced(f"tests/pictures.py has no place for these {what}: {new or '-'}; these are gone: {gone or '-'}")


# The one path

COLUMNS = (State.ARRIVING, State.QUEUED, State.SEATED, State.STARTED)  # in a row, from left to right
# Lines above the row: their height, where in a box they begin, and their look. Two looks keep crossing lines apart.
RAILS = {State.ALIASED: (108, 40, "line part"), State.WITHDRAWN: (206, 66, "line")}
# A state's width, its distance to the next, its top; the place of the fence from the left, the fall's from the top.
BOX, STEP, TOP, FENCE, FALL = 112, 164, 286, 816, 496
OUT = (  # verbs of the agent, and the effects that the fence lets out
    (("say",), (Effect.DELTA,)),
    (("post",), (Effect.BLOCK,)),
    (("typing",), (Effect.TYPING,)),
    (("progress",), (Effect.PROGRESS,)),
    (("phase",), (Effect.PHASE,)),
    (("call", "batch"), (Effect.TOOL, Effect.RESULT)),
    (("spawn",), (Effect.SPAWN,)),
    (("ask",), (Effect.QUESTION,)),
    (("delegate",), (Effect.CHILD,)),
    (("hold",), (Effect.HOLD,)),
    (("return",), (Effect.FINAL,)),
)
READS = ("check", "current", "history")  # verbs without an effect
INSTANTS = {  # per field of a receipt: the instant in docs/design.md, and what is true from then on
    "fenced_at": ("t0", "no effect passes the fence"),
    "ended_at": ("t1", "the terminal event is published, and stop returns the receipt"),
    "drained_at": ("t3", f"the cleanup is over: drain is {Drain.OBSERVED}, or {Drain.UNCONFIRMED} with names"),
}
LEGEND = (
    ("way", "the way of a message and its effects"),
    ("end", "the fall"),
    ("line", "leaves without a run of its own"),
)


def path() -> str:
    """Return the picture of the one path: a message in, effects out, every ending."""
    _same("states", (*COLUMNS, *RAILS, State.ENDED), tuple(State))
    _same("effects", [effect for _, effects in OUT for effect in effects], tuple(Effect))
    verbs = [name for name, value in vars(Run).items() if inspect.isfunction(value) or isinstance(value, property)]
    acts = [name for name in verbs if not name.startswith("_") and name not in READS]
    _same("verbs", [verb for names, _ in OUT for verb in names], [*acts, "return"])
    _same("instants", INSTANTS, [name for name in Receipt.__struct_fields__ if name.endswith("_at")])
    body = [_text(EDGE, 40, "Message in", "head"), _text(EDGE, 64, f"kinds of message: {', '.join(RunKind)}", "dim")]
    body += [*_states(), *_effects(), *_endings()]
    return _svg("The one path: a message in, effects out, every ending", FALL + 312, body)


def _states() -> Iterator[str]:
    where = {state: EDGE + STEP * n for n, state in enumerate(COLUMNS)}
    said = comments(State)
    yield _arrow([(where[State.ARRIVING] + 14, 76), (where[State.ARRIVING] + 14, TOP)], "way")
    for state, (y, inset, look) in RAILS.items():
        x = where[State.STARTED] - 52
        sources = [each for each in COLUMNS if state in MOVES[each].values()]
        yield _arrow([(where[sources[0]] + inset, TOP), (where[sources[0]] + inset, y), (x, y)], look)
        for source in sources[1:]:
            yield _line([(where[source] + inset, TOP), (where[source] + inset, y)], look)
        yield _text(x - 40, y - 6, _move(sources[0], state), "dim mid")
        yield from _box(x, y - 24, 178, state, _wrapped(said[state], 168))
    jumps = [(one, two) for n, one in enumerate(COLUMNS) for two in COLUMNS[n + 2 :] if two in MOVES[one].values()]
    for before, after in jumps:
        x, to, y = where[before] + BOX - 14, where[after] + 16, TOP - 26
        yield _arrow([(x, TOP), (x, y), (to, y), (to, TOP)], "way")
        yield _text(to - 30, y - 6, _move(before, after), "move mid")
    for before, after in pairwise(COLUMNS):
        yield from _step(before, after, where)
    drawn = {*pairwise(COLUMNS), *jumps}
    for state, after in ((one, two) for one in State for two in MOVES[one].values()):
        if (state, after) not in drawn and after not in (*RAILS, State.ENDED):
            raise Misplaced(f"a run may go from {state} to {after}, for which tests/pictures.py has no line")
    lines = {state: _wrapped(said[state], BOX - 18) for state in COLUMNS}
    most = max(map(len, lines.values()))
    for state in COLUMNS:
        yield from _box(where[state], TOP, BOX, state, lines[state], most)
        if State.ENDED in MOVES[state].values():
            middle = where[state] + BOX / 2
            yield _arrow([(middle, TOP + 32 + LINE * most), (middle, FALL)], "end")
            yield _text(middle + 8, FALL - 16, _move(state, State.ENDED), "red")


def _step(before: State, after: State, where: dict[State, int]) -> Iterator[str]:
    x, y = where[before] + BOX, TOP + 24
    yield _arrow([(x, y), (where[after], y)], "way")
    yield _text((x + where[after]) / 2, y - 7, _move(before, after), "move mid")


def _move(before: State, after: State) -> Move:
    return next(move for move, state in MOVES[before].items() if state is after)


def _effects() -> Iterator[str]:
    first, row = 104, 29
    yield _text(FENCE - 140, 40, "Effects out", "head")
    yield _text(FENCE - 24, 78, "the agent's verb", "dim rightmost")
    yield _text(FENCE, 58, "fence", "name red mid")
    yield _text(FENCE + 30, 78, "the effect", "dim")
    started = EDGE + STEP * 3 + BOX
    trunk, last = FENCE - 140, first + row * (len(OUT) - 1)
    yield _line([(started, TOP + 24), (trunk, TOP + 24)], "way")
    yield _line([(trunk, first), (trunk, last)], "way")
    for n, (verbs, effects) in enumerate(OUT):
        y = first + row * n
        yield _line([(trunk, y), (trunk + 10, y)], "way")
        yield _text(FENCE - 24, y + 5, ", ".join(verbs), "code rightmost")
        yield _arrow([(FENCE - 17, y), (FENCE + 24, y)], "way")
        yield _text(FENCE + 30, y + 5, ", ".join(effects), "name")
    yield _line([(FENCE, 68), (FENCE, FALL)], "bar")
    yield _text(FENCE - 12, FALL - 16, "the fall closes it", "red rightmost")
    ends = WIDTH - EDGE - 20
    yield _arrow([(FENCE + 74, last), (ends, last), (ends, FALL)], "end")
    yield _text(ends - 8, FALL - 16, "return falls too", "red rightmost")


def _endings() -> Iterator[str]:
    module = Path(inspect.getfile(Fall)).relative_to(PACKAGE)
    yield _rect(EDGE, FALL, WIDTH - 2 * EDGE, 60, "fall")
    yield _text(EDGE + 16, FALL + 23, f"The fall: one step of {module} settles the ending", "name")
    yield _text(
        EDGE + 16, FALL + 46, "It closes the fence, frees the seat, cuts the code; the children fall too.", "dim"
    )
    wide, y = (WIDTH - 2 * EDGE - 7 * (len(ENDINGS) - 1)) / len(ENDINGS), FALL + 106
    own = [ending for ending in ENDINGS if ending not in EARLY]
    for n, ending in enumerate(sorted(ENDINGS, key=lambda ending: ending in EARLY)):
        x = EDGE + n * (wide + 7)
        yield _rect(x, y, wide, 34, "box" if ending in own else "fall")
        yield _text(x + wide / 2, y + 22, ending, "mid")
    yield _text(EDGE, y - 12, "by the agent itself", "dim")
    yield _text(EDGE + len(own) * (wide + 7), y - 12, "cut short", "red")
    y += 76
    marks = [EDGE + 6 + n * (WIDTH - 2 * EDGE) / len(INSTANTS) for n in range(len(INSTANTS))]
    yield _arrow([(EDGE, y), (WIDTH - EDGE, y)], "line")
    for x, (name, (instant, what)) in zip(marks, INSTANTS.items(), strict=True):
        yield f'<circle class="h-end" cx="{_n(x)}" cy="{y}" r="5"/>'
        yield _text(x - 6, y + 26, f"{instant}  {name}", "code")
        for k, line in enumerate(_wrapped(what, 296)):
            yield _text(x - 6, y + 47 + LINE * k, line, "dim")
    x = EDGE
    for look, what in LEGEND:
        yield _line([(x, y + 106), (x + 34, y + 106)], look)
        yield _text(x + 42, y + 111, what, "dim")
        x += 62 + int(len(what) * SMALL * LETTER)


def comments(enum: type[State]) -> dict[str, str]:
    """Return the source's comment on each member, behind it or in the lines above it."""
    lines = inspect.getsource(enum).splitlines()
    found, above = dict[str, str](), list[str]()
    for line in map(str.strip, lines):
        if line.startswith("#"):
            above.append(line.lstrip("# "))
            continue
        name, equals, _ = line.partition(" = ")
        behind = line.partition("  # ")[2]
        if equals and name in enum.__members__:
            found[enum[name]] = behind or " ".join(above)
        above = []
    return found


# The rooms


class Layer(NamedTuple):
    """Rooms of one height; if `apart`, they may not import each other."""

    rooms: tuple[str, ...]
    apart: bool


def layers(root: Path = ROOT) -> list[Layer]:
    """Return the rooms that exist, by their layers, the highest first."""
    found = []
    for line in _contracts(root, "layers")[0]["layers"]:
        apart = "|" in line
        names = [name.strip(" ()") for name in line.split("|" if apart else ":")]
        there = tuple(name for name in names if _head_of(name, root).exists())
        found += [Layer(there, apart)] if there else []
    package = root / "src" / "interlock"
    on_disk = [path.stem for path in package.glob("*.py") if path.stem != "__init__"]
    on_disk += [path.parent.name for path in package.glob("*/__init__.py")]
    _same("rooms", [name for layer in found for name in layer.rooms], on_disk)
    return found


def may_import(root: Path = ROOT) -> dict[str, list[str]]:
    """Return what each room may import: other rooms, and single files of rooms that it may not import as a whole."""
    stack = layers(root)
    rooms = [name for layer in stack for name in layer.rooms]
    allowed: dict[str, set[str]] = {}
    shut: dict[tuple[str, str], set[str]] = {}
    for n, layer in enumerate(stack):
        for room in layer.rooms:
            beside = () if layer.apart else layer.rooms
            allowed[room] = {*beside, *(name for lower in stack[n + 1 :] for name in lower.rooms)} - {room}
    for contract in _contracts(root, "layers", "forbidden", "acyclic_siblings"):
        if contract["type"] == "forbidden":
            # A contract of single files binds a part of their room only.
            for source in map(_room, (each for each in contract["source_modules"] if each.count(".") == 1)):
                allowed[source] -= {name for each in contract["forbidden_modules"] for name in _rooms(each, rooms)}
                for each in contract["forbidden_modules"]:
                    room, _, file = each.removeprefix("interlock.").partition(".")
                    if room in rooms and file:
                        shut.setdefault((source, room), set()).add(file)
    # A room of which only some files are forbidden: the others are named one by one.
    for (source, room), files in shut.items():
        here = {path.stem for path in (root / "src" / "interlock" / room).iterdir() if path.stem[0] != "_"}
        allowed[source] = (allowed[source] - {room}) | {f"{room}.{file}" for file in here - files}
    order = {name: n for n, name in enumerate(rooms)}
    return {room: sorted(allowed[room], key=lambda name: (order[name.partition(".")[0]], name)) for room in rooms}


def _contracts(root: Path, *types: str) -> list[dict[str, Any]]:
    every = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    known = {"layers", "forbidden", "acyclic_siblings"}
    if unknown := {contract["type"] for contract in every} - known:
        raise Misplaced(f"tests/pictures.py does not know contracts of type {sorted(unknown)}")
    return [contract for contract in every if contract["type"] in types]


def _room(module: str) -> str:
    return module.removeprefix("interlock.").partition(".")[0]


def _rooms(module: str, rooms: Sequence[str]) -> Collection[str]:
    """Return the rooms that a forbidden name means; `interlock.*` means all rooms, `interlock.stores.*` that one."""
    if not module.startswith("interlock."):
        return ()
    return rooms if module == "interlock.*" else [_room(module)]


def _head_of(room: str, root: Path = ROOT) -> Path:
    package = root / "src" / "interlock"
    return package / room / "__init__.py" if (package / room).is_dir() else package / f"{room}.py"


def sentence(room: str) -> str:
    """Return the first sentence at the head of a room, without a list after its colon."""
    head = ast.get_docstring(ast.parse(_head_of(room).read_text("utf-8")))
    if not head:
        raise Misplaced(f"{_head_of(room).relative_to(ROOT)} has no head: say in one sentence what the room does")
    first = " ".join(head.partition("\n\n")[0].split()).replace("`", "")
    return first.partition(". ")[0].rstrip(".") + "."


def rooms() -> str:
    """Return the picture of the rooms: each layer may import the layers below it."""
    may, left, top = may_import(), EDGE + 26, 128
    body = [_text(EDGE, 40, "The rooms, and who may import whom", "head")]
    body += [
        _text(
            EDGE,
            66,
            "A room is a package or a module. Imports go down: a room may import what its blue frames name.",
            "dim",
        )
    ]
    body += [*_pills(EDGE, 80, ["stores"]), _text(EDGE + 78, 96, "all of that room", "dim")]
    body += [*_pills(EDGE + 220, 80, ["stores.base"]), _text(EDGE + 344, 96, "one module of it alone", "dim")]
    y = top
    for layer in layers():
        wide = (WIDTH - EDGE - left - 12 * (len(layer.rooms) - 1)) / len(layer.rooms)
        said = {room: _wrapped(sentence(room), wide - 28) for room in layer.rooms}
        named = {room: _rows(_names(room, may), wide - 28) for room in layer.rooms}
        lines, rows = max(map(len, said.values())), max(map(len, named.values()))
        tall = 44 + LINE * lines + 28 * rows
        for n, room in enumerate(layer.rooms):
            x = left + n * (wide + 12)
            body += [_rect(x, y, wide, tall, "box"), _text(x + 14, y + 25, room, "name")]
            body += [_text(x + 14, y + 47 + LINE * k, line, "dim") for k, line in enumerate(said[room])]
            for k, names in enumerate(named[room]):
                body += _pills(x + 14, y + 38 + LINE * lines + 28 * k, names)
        y += tall + 12
    body.append(_arrow([(EDGE + 6, top), (EDGE + 6, y - 12)], "way"))
    return _svg("The rooms, and who may import whom", y + 14, body)


def _names(room: str, may: dict[str, list[str]]) -> list[str]:
    others = len(set(may[room]) & set(may)) == len(may) - 1
    return ["all other rooms"] if others else may[room] or ["no other room"]


def _wide(name: str) -> float:
    return len(name) * SMALL * LETTER + 16


def _rows(names: Sequence[str], wide: float) -> list[list[str]]:
    """Return the names in rows, none wider than the room they stand in."""
    rows: list[list[str]] = [[]]
    for name in names:
        if sum(_wide(each) + 6 for each in [*rows[-1], name]) > wide + 6:
            rows.append([])
        rows[-1].append(name)
    return rows


def _pills(x: float, y: float, names: Sequence[str]) -> Iterator[str]:
    """Draw what a room may import; a single module of another room has a broken frame."""
    for name in names:
        wide = _wide(name)
        yield _rect(x, y, wide, 23, "pill part" if "." in name else "pill")
        yield _text(x + wide / 2, y + 16, name, "move mid")
        x += wide + 6


# The paper


def _svg(title: str, tall: float, body: Sequence[str]) -> str:
    size = f'width="{WIDTH}" height="{_n(tall)}"'
    heads = "".join(
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path class="h-{name}" d="M0 0L8 4L0 8z"/></marker>'
        for name in ("line", "way", "end")
    )
    top = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {_n(tall)}" {size} role="img">'
    top += f"<title>{escape(title)}</title><style>{STYLE}</style><defs>{heads}</defs>"
    return "\n".join([top, f'<rect class="paper" {size} rx="8"/>', *body, "</svg>\n"])


def _box(x: float, y: float, wide: float, name: str, said: Sequence[str], lines: int = 0) -> Iterator[str]:
    yield _rect(x, y, wide, 32 + LINE * max(lines, len(said)), "box")
    yield _text(x + 10, y + 22, name, "name")
    for n, line in enumerate(said):
        yield _text(x + 10, y + 43 + LINE * n, line, "dim")


def _wrapped(text: str, wide: float) -> list[str]:
    """Return the lines of a small text."""
    return textwrap.wrap(text, int(wide / (SMALL * LETTER)), break_long_words=False)


def _text(x: float, y: float, text: str, look: str = "") -> str:
    return f'<text class="{look}" x="{_n(x)}" y="{_n(y)}">{escape(text)}</text>'


def _rect(x: float, y: float, wide: float, tall: float, look: str) -> str:
    return f'<rect class="{look}" x="{_n(x)}" y="{_n(y)}" width="{_n(wide)}" height="{_n(tall)}" rx="6"/>'


def _line(points: Sequence[tuple[float, float]], look: str) -> str:
    return f'<polyline class="{look}" points="{" ".join(f"{_n(x)},{_n(y)}" for x, y in points)}"/>'


def _arrow(points: Sequence[tuple[float, float]], look: str) -> str:
    return _line(points, look).replace("/>", f' marker-end="url(#{look.split(maxsplit=1)[0]})"/>')


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def main() -> int:
    """Draw both pictures into docs/images."""
    for place, drawn in ((PATH, path()), (ROOMS, rooms())):
        place.write_text(drawn, "utf-8")
        print(f"{place.relative_to(ROOT)} is drawn")
    return 0


if __name__ == "__main__":
    sys.exit(main())
