"""The pictures of docs/design.md are what the code draws, and what they say is true."""

from __future__ import annotations

import ast
import asyncio
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import pytest

import pictures
from interlock import Message, Run, Stale, open_control
from interlock.core.lifecycle import MOVES, Move, State
from interlock.core.names import Effect


@pytest.mark.parametrize(("place", "draw"), [(pictures.PATH, pictures.path), (pictures.ROOMS, pictures.rooms)])
def test_a_picture_is_what_the_code_draws(place: Path, draw: Callable[[], str]) -> None:
    """The committed picture is the drawn one, and a page shows it."""
    assert place.read_text("utf-8") == draw(), "run `make pictures`"
    assert f"](images/{place.name})" in (pictures.ROOT / "docs" / "design.md").read_text("utf-8")


# The one path


def test_a_state_without_a_place_cannot_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing place, or one too many, is refused."""
    monkeypatch.setattr(pictures, "COLUMNS", pictures.COLUMNS[:-1])
    with pytest.raises(pictures.Misplaced, match="these states: started"):
        pictures.path()


def test_a_new_effect_cannot_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """An effect that the fence knows must be drawn."""
    monkeypatch.setattr(pictures, "Effect", StrEnum("Effect", [*Effect.__members__, "EMAIL"]))
    with pytest.raises(pictures.Misplaced, match="email"):
        pictures.path()


def test_a_new_verb_cannot_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verb that an agent is given must be drawn, or named as one that only reads."""
    monkeypatch.setattr(Run, "paint", lambda self: None, raising=False)
    with pytest.raises(pictures.Misplaced, match="paint"):
        pictures.path()


def test_a_new_move_changes_the_picture_or_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A move to an end adds a line to the picture; a move that goes back has no line and is refused."""
    before = pictures.path()
    monkeypatch.setitem(MOVES, State.SEATED, {**MOVES[State.SEATED], Move.ALIAS: State.ALIASED})
    assert pictures.path() != before
    monkeypatch.setitem(MOVES, State.STARTED, {**MOVES[State.STARTED], Move.QUEUE: State.QUEUED})
    with pytest.raises(pictures.Misplaced, match="from started to queued"):
        pictures.path()


async def a_tool() -> None:
    """Do nothing."""


async def enter(block: object) -> None:
    """Enter a block of the run's, and leave it."""
    async with block:  # type: ignore[attr-defined]
        pass


VERBS: dict[str, Callable[[Run], Awaitable[object]]] = {
    "say": lambda run: run.say("a"),
    "post": lambda run: run.post("a"),
    "typing": lambda run: run.typing(),
    "progress": lambda run: run.progress("a"),
    "phase": lambda run: enter(run.phase("a")),
    "call": lambda run: run.call(a_tool),
    "batch": lambda run: run.batch([(a_tool, {})]),
    "spawn": lambda run: run.spawn("true"),  # type: ignore[dict-item, return-value]
    "ask": lambda run: run.ask("a?"),
    "delegate": lambda run: run.delegate("other", "a"),
    "hold": lambda run: enter(run.hold("a")),
}


@pytest.mark.parametrize(("verbs", "effects"), pictures.OUT)
def test_a_verb_is_refused_as_the_effect_that_stands_beside_it(
    verbs: tuple[str, ...], effects: tuple[Effect, ...]
) -> None:
    """A verb after the fall is counted in the receipt as the effect that the picture names first."""

    async def refused(verb: str) -> dict[Effect, int]:
        begun = asyncio.Event()

        async def agent(run: Run, message: Message) -> str:
            try:
                begun.set()
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if verb in VERBS:
                    with suppress(Stale):
                        await VERBS[verb](run)
                    raise
            return "late"

        async with open_control(agent, agents={"other": agent}) as control:
            sent = await control.send("a", "go")
            await begun.wait()
            await control.stop(session="a")
            await control.wait(sent.run_id, drained=True)
            return (await control.receipt(sent.run_id)).refused

    for verb in verbs:
        assert asyncio.run(refused(verb)) == {effects[0]: 1}, verb


# The rooms


def test_what_the_rooms_import_is_what_they_may() -> None:
    """The picture's reading of the contracts allows every import that the sources have."""
    may = pictures.may_import()
    for path in pictures.PACKAGE.rglob("*.py"):
        room = path.relative_to(pictures.PACKAGE).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            named = [f"{node.module}.{each.name}" for each in node.names] if isinstance(node, ast.ImportFrom) else []
            named += [each.name for each in node.names] if isinstance(node, ast.Import) else []
            for name in (name.split(".")[1:] for name in named if name.startswith("interlock.")):
                if room != "__init__" and name[0] in may and name[0] != room:
                    assert {name[0], ".".join(name[:2])} & set(may[room]), f"{path} imports {'.'.join(name)}"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of the sources and their contracts, to change."""
    shutil.copytree(pictures.ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(pictures.ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_a_room_without_a_layer_cannot_be_left_out(copy: Path) -> None:
    """A package that no layer names is refused."""
    (copy / "src" / "interlock" / "planted").mkdir()
    (copy / "src" / "interlock" / "planted" / "__init__.py").touch()
    with pytest.raises(pictures.Misplaced, match="planted"):
        pictures.layers(copy)


@pytest.mark.parametrize(
    ("contract", "room", "gains"),
    [
        ('"interlock.runtime", "interlock.stores", "interlock.processes", "interlock.hosts"]', "surfaces", {"runtime"}),
        ('    "interlock.stores.sqlite",\n', "runtime", {"stores.sqlite"}),
    ],
)
def test_a_contract_that_is_loosened_changes_the_picture(copy: Path, contract: str, room: str, gains: set[str]) -> None:
    """A loosened contract adds a room to what the picture says may be imported."""
    text = (copy / "pyproject.toml").read_text("utf-8")
    assert contract in text
    loose = "" if room == "runtime" else contract.replace('"interlock.runtime", ', "")
    (copy / "pyproject.toml").write_text(text.replace(contract, loose), "utf-8")
    assert set(pictures.may_import(copy)[room]) - set(pictures.may_import()[room]) == gains


def test_an_unknown_kind_of_contract_is_refused(copy: Path) -> None:
    """A kind of contract that the picture cannot show is refused."""
    text = (copy / "pyproject.toml").read_text("utf-8")
    (copy / "pyproject.toml").write_text(text.replace('"acyclic_siblings"', '"protected"'), "utf-8")
    with pytest.raises(pictures.Misplaced, match="protected"):
        pictures.may_import(copy)
