"""The two pictures of docs/design.md, drawn from the code (`make pictures`): the one path, and the rooms.

1. Every name in a picture is read from the code: the lifecycle table, the enums, `Run`, the import contracts of
   pyproject.toml, the packages on disk and the sentence at the head of each.
2. Where a name stands on the paper is kept here. A name without a place, or a place without a name, raises Misplaced:
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

from interlock.core.lifecycle import MOVES, Move, State
from interlock.core.names import EARLY, ENDINGS, Drain, Effect, RunKind
from interlock.core.receipt import Receipt
from interlock.runtime.fall import Fall
from interlock.runtime.run import Run

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "interlock"
PATH, ROOMS = ROOT / "docs" / "images" / "path.svg", ROOT / "docs" / "images" / "rooms.svg"
WIDTH, EDGE = 1000, 30  # pixels
LETTER = 0.6  # width of a letter, as part of its size: that of a wide font

# Colours by day and by night: ink, dim ink, paper, panel, border, line, way through, cut short, soft red.
DAY = ("#1f2328", "#59636e", "#ffffff", "#f6f8fa", "#d1d9e0", "#8c959f", "#0969da", "#cf222e", "#ffebe9")
NIGHT = ("#e6edf3", "#9198a1", "#0d1117", "#161b22", "#30363d", "#6e7681", "#4493f8", "#f85149", "#2d1618")
LOOK = """text{{font:13px system-ui,sans-serif;fill:{0}}}.dim{{fill:{1};font-size:12px}}.mid{{text-anchor:middle}}
.head{{font-size:16px;font-weight:600}}.name{{font-weight:600}}.code{{font-family:ui-monospace,monospace;font-size:12px}}
.paper{{fill:{2}}}.box{{fill:{3};stroke:{4}}}.line,.way,.end,.bar{{fill:none;stroke:{5};stroke-width:1.5}}
.way{{stroke:{6};stroke-width:2}}.end{{stroke:{7}}}.bar{{stroke:{7};stroke-width:5}}.move{{fill:{6};font-size:12px}}
.red{{fill:{7}}}.fall{{fill:{8};stroke:{7}}}.h-line{{fill:{5}}}.h-way{{fill:{6}}}.h-end{{fill:{7}}}"""
STYLE = f"{LOOK.format(*DAY)}@media(prefers-color-scheme:dark){{{LOOK.format(*NIGHT)}}}".replace("\n", "")


class Misplaced(Exception):
    """The code has a name that a picture has no place for, or a picture has a place for a name that is gone."""


def _same(what: str, placed: Collection[str], found: Collection[str]) -> None:
    if set(placed) != set(found):
        new, gone = sorted(set(found) - set(placed)), sorted(set(placed) - set(found))
        raise Misplaced(f"{what}: tests/pictures.py has no place for {new}, and has one for {gone}, which are gone")


# The one path

COLUMNS = (State.ARRIVING, State.QUEUED, State.SEATED, State.STARTED)  # in a row, from left to right
RAILS = {State.ALIASED: 112, State.WITHDRAWN: 176}  # above the row: at which height
BOX, STEP, TALL, TOP = 122, 160, 84, 256  # of a state: width, distance, height, height on the paper
FENCE, FALL = 812, 444
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
INSTANTS = {  # of a receipt: what is true from then on
    "fenced_at": "no effect passes the fence",
    "ended_at": "the terminal event is published, the receipt returned",
    "drained_at": "nothing of the run is left",
}


def path() -> str:
    """Return the picture of the one path: a message in, effects out, every ending."""
    _same("states", (*COLUMNS, *RAILS, State.ENDED), tuple(State))
    _same("effects", [effect for _, effects in OUT for effect in effects], tuple(Effect))
    verbs = [name for name, value in vars(Run).items() if inspect.isfunction(value) or isinstance(value, property)]
    acts = [name for name in verbs if not name.startswith("_") and name not in READS]
    _same("verbs", [verb for names, _ in OUT for verb in names], [*acts, "return"])
    _same("instants", INSTANTS, [name for name in Receipt.__struct_fields__ if name.endswith("_at")])
    body = [_text(EDGE, 40, "Message in", "head"), _text(EDGE, 62, " · ".join(RunKind), "dim")]
    body += [*_states(), *_effects(), *_endings()]
    return _svg("The one path: a message in, effects out, every ending", 690, body)


def _states() -> Iterator[str]:
    where = {state: EDGE + STEP * n for n, state in enumerate(COLUMNS)}
    said = comments(State)
    arrived = where[COLUMNS[0]] + 20
    yield _arrow([(arrived, 74), (arrived, TOP)], "way")
    for state, y in RAILS.items():
        x = where[State.STARTED] - 20
        sources = [each for each in COLUMNS if state in MOVES[each].values()]
        move = next(move for move, after in MOVES[sources[0]].items() if after is state)
        for source in sources:
            drop = where[source] + (50 if state is State.ALIASED else 76)
            yield _arrow([(drop, TOP), (drop, y), (x, y)], "line")
        yield _text(x - 46, y - 6, move, "dim mid")
        yield from _box(x, y - 24, 178, 48, state, said.get(state, ""))
    for before, after in pairwise(COLUMNS):
        yield from _step(before, after, where)
    jumps = [(one, two) for n, one in enumerate(COLUMNS) for two in COLUMNS[n + 2 :] if two in MOVES[one].values()]
    for before, after in jumps:
        x, to, y = where[before] + BOX - 16, where[after] + 16, TOP - 32
        yield _arrow([(x, TOP), (x, y), (to, y), (to, TOP)], "way")
        yield _text((x + to) / 2 + 20, y - 6, _move(before, after), "move mid")
    drawn = {*pairwise(COLUMNS), *jumps}
    for state, after in ((one, two) for one in COLUMNS for two in MOVES[one].values()):
        if (state, after) not in drawn and after not in (*RAILS, State.ENDED):
            raise Misplaced(f"a run may go from {state} to {after}, for which tests/pictures.py has no line")
    for state in COLUMNS:
        yield from _box(where[state], TOP, BOX, TALL, state, said.get(state, ""))
        if State.ENDED in MOVES[state].values():
            yield _arrow([(where[state] + BOX / 2, TOP + TALL), (where[state] + BOX / 2, FALL)], "end")
            yield _text(where[state] + BOX / 2 + 8, FALL - 40, _move(state, State.ENDED), "red dim")


def _step(before: State, after: State, where: dict[State, int]) -> Iterator[str]:
    x, y = where[before] + BOX, TOP + 24
    yield _arrow([(x, y), (where[after], y)], "way")
    yield _text((x + where[after]) / 2 - 2, y - 7, _move(before, after), "move mid")


def _move(before: State, after: State) -> Move:
    return next(move for move, state in MOVES[before].items() if state is after)


def _effects() -> Iterator[str]:
    first, row = 104, 27
    yield _text(FENCE + 30, 40, "Effects out", "head")
    yield _text(FENCE - 24, 78, "the agent's verb", "dim rightmost")
    yield _text(FENCE, 58, "fence", "name red mid")
    yield _text(FENCE + 30, 78, "the effect", "dim")
    started = EDGE + STEP * 3 + BOX
    trunk, last = FENCE - 132, first + row * (len(OUT) - 1)
    yield _line([(started, TOP + 24), (trunk, TOP + 24)], "way")
    yield _line([(trunk, first), (trunk, last)], "way")
    for n, (verbs, effects) in enumerate(OUT):
        y = first + row * n
        yield _line([(trunk, y), (trunk + 10, y)], "way")
        yield _text(FENCE - 24, y + 4, ", ".join(verbs), "code rightmost")
        yield _arrow([(FENCE - 17, y), (FENCE + 24, y)], "way")
        yield _text(FENCE + 30, y + 4, ", ".join(effects), "name")
    yield _line([(FENCE, 68), (FENCE, FALL)], "bar")
    yield _text(FENCE + 12, FALL - 16, "the fall closes it", "red dim")


def _endings() -> Iterator[str]:
    module = Path(inspect.getfile(Fall)).relative_to(PACKAGE)
    yield _rect(EDGE, FALL, WIDTH - 2 * EDGE, 54, "fall")
    yield _text(EDGE + 16, FALL + 23, f"The fall: one step of {module} settles the ending", "name")
    yield _text(EDGE + 16, FALL + 42, "It closes the fence, frees the seat, cuts the code and takes the children.", "dim")
    wide, y = (WIDTH - 2 * EDGE - 7 * (len(ENDINGS) - 1)) / len(ENDINGS), FALL + 96
    own = [ending for ending in ENDINGS if ending not in EARLY]
    for n, ending in enumerate(sorted(ENDINGS, key=lambda ending: ending in EARLY)):
        x = EDGE + n * (wide + 7)
        yield _rect(x, y, wide, 34, "box" if ending in own else "fall")
        yield _text(x + wide / 2, y + 22, ending, "name mid")
    yield _text(EDGE, y - 12, "by the agent itself", "dim")
    yield _text(EDGE + len(own) * (wide + 7), y - 12, "cut short", "red dim")
    y += 74
    marks = [EDGE + 6 + n * (WIDTH - 2 * EDGE) / len(INSTANTS) for n in range(len(INSTANTS))]
    yield _arrow([(EDGE, y), (WIDTH - EDGE, y)], "line")
    for x, (name, what) in zip(marks, INSTANTS.items(), strict=True):
        yield f'<circle class="h-end" cx="{_n(x)}" cy="{y}" r="5"/>'
        yield _text(x - 6, y + 24, name, "code")
        if name == "drained_at":
            what += f": {Drain.OBSERVED}, or {Drain.UNCONFIRMED}"
        for k, line in enumerate(_wrapped(what, 288, 12)):
            yield _text(x - 6, y + 42 + 16 * k, line, "dim")


def comments(enum: type[State]) -> dict[str, str]:
    """Return what the source says of each member, behind it or in the lines above it."""
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
    """Rooms of one height; `apart`: they may not import each other."""

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
    """Return what each room may import of the others: rooms, and files of rooms it may not import as a whole."""
    stack = layers(root)
    rooms = [name for layer in stack for name in layer.rooms]
    allowed: dict[str, set[str]] = {}
    for n, layer in enumerate(stack):
        for room in layer.rooms:
            beside = () if layer.apart else layer.rooms
            allowed[room] = {*beside, *(name for lower in stack[n + 1 :] for name in lower.rooms)} - {room}
    for contract in _contracts(root, "layers", "forbidden", "acyclic_siblings"):
        if contract["type"] == "forbidden":
            for source in map(_room, contract["source_modules"]):
                allowed[source] -= {name for each in contract["forbidden_modules"] for name in _rooms(each, rooms)}
        for source, _, target in (each.partition(" -> ") for each in contract.get("ignore_imports", ())):
            allowed[_room(source)].add(target.removeprefix("interlock."))
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
    """Return the rooms a forbidden name means; `interlock.*` is all of them, `interlock.stores.*` that one."""
    if not module.startswith("interlock."):
        return ()
    return rooms if module == "interlock.*" else [_room(module)]


def _head_of(room: str, root: Path = ROOT) -> Path:
    package = root / "src" / "interlock"
    return package / room / "__init__.py" if (package / room).is_dir() else package / f"{room}.py"


def sentence(room: str) -> str:
    """Return the first sentence at the head of a room, without what follows a colon's list."""
    head = ast.get_docstring(ast.parse(_head_of(room).read_text("utf-8")))
    if not head:
        raise Misplaced(f"{_head_of(room).relative_to(ROOT)} has no head: say in one sentence what the room does")
    first = " ".join(head.partition("\n\n")[0].split()).replace("`", "")
    return first.partition(". ")[0].rstrip(".") + "."


def rooms() -> str:
    """Return the picture of the rooms: each layer may import the layers below it."""
    may, stack, body, y = may_import(), layers(), list[str](), 96
    body += [_text(EDGE, 40, "The rooms, and who may import whom", "head")]
    body += [_text(EDGE, 62, "A room imports the rooms named behind its arrow, and no other. Checked: make check.", "dim")]
    for n, layer in enumerate(stack):
        wide = (WIDTH - 2 * EDGE - 14 * (len(layer.rooms) - 1)) / len(layer.rooms)
        every = [name for lower in stack[n + 1 :] for name in lower.rooms]
        texts = [_room_text(room, may[room], every, wide) for room in layer.rooms]
        tall = 34 + 16 * max(len(said) + len(goes) for said, goes in texts) + 8
        for k, (room, (said, goes)) in enumerate(zip(layer.rooms, texts, strict=True)):
            x = EDGE + k * (wide + 14)
            body.append(_rect(x, y, wide, tall, "box"))
            body.append(_text(x + 14, y + 24, room, "name"))
            body += [_text(x + 14, y + 43 + 16 * i, line, "dim") for i, line in enumerate(said)]
            low = y + tall - 12 - 16 * (len(goes) - 1)
            body += [_text(x + 14, low + 16 * i, line, "move") for i, line in enumerate(goes)]
        y += tall + 14
    return _svg("The rooms, and who may import whom", y + 10, body)


def _room_text(room: str, may: Sequence[str], below: Sequence[str], wide: float) -> tuple[list[str], list[str]]:
    """Return the lines of a room: what it says, and what it may import."""
    goes = "→ every room" if set(below) < set(may) else f"→ {' · '.join(may)}" if may else "→ no room"
    return _wrapped(sentence(room), wide - 28, 12), _wrapped(goes, wide - 28, 12)


# The paper


def _svg(title: str, tall: float, body: Sequence[str]) -> str:
    size = f'width="{WIDTH}" height="{_n(tall)}"'
    heads = "".join(
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path class="h-{name}" d="M0 0L8 4L0 8z"/></marker>'
        for name in ("line", "way", "end")
    )
    top = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {_n(tall)}" {size} role="img">'
    top += f"<title>{escape(title)}</title><style>{STYLE}.rightmost{{text-anchor:end}}</style><defs>{heads}</defs>"
    return "\n".join([top, f'<rect class="paper" {size} rx="8"/>', *body, "</svg>\n"])


def _box(x: float, y: float, wide: float, tall: float, name: str, said: str) -> Iterator[str]:
    yield _rect(x, y, wide, tall, "box")
    yield _text(x + 12, y + 20, name, "name")
    for n, line in enumerate(_wrapped(said, wide - 16, 11)):
        yield _text(x + 12, y + 38 + 15 * n, line, "dim small")


def _wrapped(text: str, wide: float, size: int) -> list[str]:
    return textwrap.wrap(text, int(wide / (size * LETTER)), break_long_words=False)


def _text(x: float, y: float, text: str, look: str = "") -> str:
    return f'<text class="{look}" x="{_n(x)}" y="{_n(y)}">{escape(text)}</text>'


def _rect(x: float, y: float, wide: float, tall: float, look: str) -> str:
    return f'<rect class="{look}" x="{_n(x)}" y="{_n(y)}" width="{_n(wide)}" height="{_n(tall)}" rx="6"/>'


def _line(points: Sequence[tuple[float, float]], look: str) -> str:
    return f'<polyline class="{look}" points="{" ".join(f"{_n(x)},{_n(y)}" for x, y in points)}"/>'


def _arrow(points: Sequence[tuple[float, float]], look: str) -> str:
    return _line(points, look).replace("/>", f' marker-end="url(#{look})"/>')


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
