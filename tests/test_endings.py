"""docs/endings.md shows the projection table, and the changelog names every changed cell."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import endings
from interlock.cli.run import run_command
from interlock.core.names import ENDINGS, Ending
from interlock.core.outcome import Outcome
from interlock.core.projection import TABLE, Projection

PAGE = endings.PAGE.read_text("utf-8")
CHANGELOG = endings.CHANGELOG.read_text("utf-8")
CONTRACT = json.loads(endings.CONTRACT.read_text("utf-8"))
NAMES = [cell for cell, _ in endings._flat(TABLE[Ending.COMPLETED])]


def test_the_page_is_drawn_from_the_table() -> None:
    """Every drawn table stands in the page as it would be drawn now, each in its place."""
    assert endings.drawn(PAGE) == PAGE, "run `make endings`"
    assert sorted(place[1] for place in endings.PLACE.findall(PAGE)) == sorted(endings.blocks())


def replaced(told: Projection, cell: str, word: object) -> Projection:
    """Return a projection with another word in one cell."""
    column, _, name = cell.partition(".")
    if not name:
        return msgspec.structs.replace(told, **{column: word})
    words = msgspec.structs.replace(getattr(told, column), **{name: word})
    return msgspec.structs.replace(told, **{column: words})


@pytest.mark.parametrize("cell", NAMES)
@pytest.mark.parametrize("ending", ENDINGS)
def test_every_cell_is_in_the_page(cell: str, ending: Ending, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of any cell of the table makes the page differ from the one that is drawn."""
    found = endings.cases()
    found[ending] = replaced(found[ending], cell, 99 if cell == "exit_code" else "99")
    monkeypatch.setattr(endings, "cases", lambda: found)
    assert endings.drawn(PAGE) != PAGE
    assert "99" in endings.drawn(PAGE)


def test_the_endings_are_explained() -> None:
    """The page says of every ending what happened and who decides it, and explains nothing else."""
    table = PAGE.partition("## The eight endings")[2].partition("\n\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \| .+ \| .+ \|$", table, re.MULTILINE) == [ending.value for ending in ENDINGS]


def test_every_field_of_an_outcome_is_explained() -> None:
    """The page has the fields of `Outcome`, in order, each with its comment in the source."""
    rows = re.findall(r"^\| `(\w+)` \| `.+?` \| .*? \| (.*) \|$", endings.blocks()["fields"], re.MULTILINE)
    assert [name for name, _ in rows] == list(Outcome.__struct_fields__)
    assert not [name for name, words in rows if not words], "say in a comment at the field what it is"


def test_a_command_s_help_has_the_codes_of_its_early_ends() -> None:
    """`interlock run --help` and containment.md name the exit codes of the three endings that cut a command short."""
    codes = {str(TABLE[ending].exit_code) for ending in (Ending.TIMED_OUT, Ending.STOPPED, Ending.SHUTDOWN)}
    page = (endings.ROOT / "docs" / "containment.md").read_text("utf-8")
    for text in (run_command.__doc__ or "", page.partition("| exit status |")[2].partition("\n\n")[0]):
        assert codes <= set(re.findall(r"\b\d{3}\b", text))


def test_the_changelog_owes_no_line() -> None:
    """Each cell that differs from the latest release is named in the unreleased part of CHANGELOG.md."""
    assert endings.faults(CONTRACT, endings.cells(), CHANGELOG) == []


# The check itself


@pytest.fixture
def contract() -> endings.Cells:
    """Return the cells of a release, the same as the cells now."""
    return endings.cells()


def faults(contract: endings.Cells, *lines: str, heading: str = "## [0.2.0] - unreleased") -> list[str]:
    """Return the faults of a changelog that has these lines since 0.1.0."""
    text = "\n".join(
        ["# Changelog", heading, "### Changed", *lines, "", "## [0.1.0] - 2027-01-01", "- Ending `x`: new."]
    )
    return endings.faults({"released": "0.1.0", "cells": contract}, endings.cells(), text)


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch, contract: endings.Cells) -> Iterator[endings.Cells]:
    """Change two exit codes, while the contract stays as it was."""
    for ending in (Ending.STOPPED, Ending.SUPERSEDED):
        monkeypatch.setitem(TABLE, ending, msgspec.structs.replace(TABLE[ending], exit_code=131))
    yield contract


def test_an_unchanged_table_owes_nothing(contract: endings.Cells) -> None:
    """A table that did not change needs no line, and lines of older releases do not count."""
    assert faults(contract) == []


def test_a_changed_cell_without_a_line_fails(changed: endings.Cells) -> None:
    """Every changed cell is named, as the line that is missing, and the page must be drawn anew."""
    assert faults(changed) == [
        "add to the unreleased part of CHANGELOG.md: - Ending `stopped` on `exit_code`: `130` → `131`.",
        "add to the unreleased part of CHANGELOG.md: - Ending `superseded` on `exit_code`: `130` → `131`.",
    ]
    assert endings.drawn(PAGE) != PAGE


@pytest.mark.parametrize(
    "lines",
    [
        ("- Ending `stopped`, `superseded` on `exit_code`: `130` → `131`.",),
        ("- Ending `superseded` and `stopped` on `exit_code`: `130` → `131`.",),
        (
            "- Something else.",
            "- Ending `stopped` on `exit_code`: `130` → `131`.",
            "- Ending `superseded` on `exit_code`: `130` → `131`.",
        ),
    ],
)
def test_a_changed_cell_with_its_line_passes(changed: endings.Cells, lines: tuple[str, ...]) -> None:
    """A line for each changed cell passes, and so does one line for all that change alike."""
    assert faults(changed, *lines) == []


@pytest.mark.parametrize(
    "line",
    [
        "- Ending `stopped`, `superseded` on `exit_code`: `130` → `132`.",
        "- Ending `stopped`, `superseded` on `exit_code`: `0` → `131`.",
        "- Ending `stopped`, `superseded` on `task`: `130` → `131`.",
    ],
)
def test_a_line_that_is_not_so_fails(changed: endings.Cells, line: str) -> None:
    """A line with another cell, or another word before or after, is a false one and does not count."""
    told = faults(changed, line)
    assert [each.partition(":")[0] for each in told] == ["add to the unreleased part of CHANGELOG.md"] * 2 + [
        "CHANGELOG.md says what is not so; change or remove"
    ] * 2


def test_a_line_without_a_change_fails(contract: endings.Cells) -> None:
    """A line for a change that was taken back is a fault."""
    line = "- Ending `stopped` on `exit_code`: `130` → `131`."
    assert faults(contract, line) == [f"CHANGELOG.md says what is not so; change or remove: {line}"]


def test_a_line_in_another_part_does_not_count(changed: endings.Cells) -> None:
    """A line in a part that is not the unreleased one does not count."""
    line = "- Ending `stopped`, `superseded` on `exit_code`: `130` → `131`."
    assert len(faults(changed, line, heading="## Ideas")) == 2


def test_a_case_follows_its_ending_or_is_named(contract: endings.Cells) -> None:
    """A typed stop has the words of a stop where it has none of its own, and those need no second line."""
    contract["stopped"]["task"] = "killed"
    contract["stopped (typed)"]["wait.stop_reason"] = "typed"
    assert faults(
        contract,
        "- Ending `stopped` on `task`: `killed` → `cancelled`.",
        "- Ending `stopped (typed)` on `wait.stop_reason`: `typed` → `stop`.",
    ) == []  # fmt: skip
    contract["stopped (typed)"]["exit_code"] = "2"  # a word that the case had for itself, and has no longer
    assert any("`stopped (typed)` on `exit_code`: `2` → `130`" in fault for fault in faults(contract))


def test_a_new_surface_or_ending_is_said_once(contract: endings.Cells) -> None:
    """A new surface or ending needs one line, not one for each cell."""
    for words in contract.values():
        words.pop("exit_code", None)
        words["irc"] = "PART"
    del contract["lost"]
    assert (
        faults(contract, "- Endings on `exit_code`: new.", "- Endings on `irc`: gone.", "- Ending `lost`: new.") == []
    )
    assert len(faults(contract)) == 3


def test_a_release_keeps_the_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once the heading has its date the old contract is refused and stored anew; without a date nothing is stored."""
    kept, changelog, page = tmp_path / "endings.json", tmp_path / "CHANGELOG.md", tmp_path / "endings.md"
    for name, path in (("CONTRACT", kept), ("CHANGELOG", changelog), ("PAGE", page)):
        path.write_text(getattr(endings, name).read_text("utf-8"), "utf-8")
        monkeypatch.setattr(endings, name, path)
    before = kept.read_text("utf-8")
    assert endings.main(["release"]) == 1 and kept.read_text("utf-8") == before
    assert "date" in capsys.readouterr().out

    changelog.write_text(CHANGELOG.replace("- unreleased", "- 2027-02-03", 1), "utf-8")
    assert endings.main([]) == 1 and "release" in capsys.readouterr().out
    assert endings.main(["release"]) == 0
    assert json.loads(kept.read_text("utf-8")) == {"released": "0.1.0", "cells": endings.cells()}
    assert endings.main([]) == 0


def test_the_page_is_drawn_by_its_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make endings` corrects a table that was changed by hand, and leaves the words around it."""
    page = tmp_path / "endings.md"
    page.write_text(PAGE.replace("| 130 |", "| 131 |").replace("A run ends once", "A run ends"), "utf-8")
    monkeypatch.setattr(endings, "PAGE", page)
    assert endings.main([]) == 0
    assert page.read_text("utf-8") == PAGE.replace("A run ends once", "A run ends")
