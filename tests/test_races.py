"""The race table is true: the tests and planted bugs it names exist, and the tests name their races."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def races(tests: Path) -> subprocess.CompletedProcess[str]:
    """Run tests/races.py, as `make races` does, over a directory of tests."""
    command = [sys.executable, str(TESTS / "races.py"), str(tests)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a directory of tests with one row done, one open and one waiting."""
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "fence-off.patch").touch()
    (tmp_path / "test_stop.py").write_text('def test_stop():\n    """A stop stops; races 1, 2."""\n')
    (tmp_path / "races.md").write_text(
        "| # | race | correct behaviour | tech | test | mutant |\n"
        "|---|---|---|---|---|---|\n"
        "| 1 | one | none | S | `test_stop.py::test_stop` | `fence-off` |\n"
        "| 2 | two | none | S | | |\n"
        "| 3 | three | none | P | waits for channels | |\n"
    )
    return tmp_path


def test_the_table_agrees_with_the_tests_and_the_planted_bugs() -> None:
    """Every test and planted bug named in tests/races.md exists, and all 145 rows are there."""
    result = races(TESTS)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1].startswith("147 races: ")


def test_an_open_row_is_listed_and_is_no_fault(tree: Path) -> None:
    """A row without a test is printed, with the test that claims it; a waiting row is not."""
    result = races(tree)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "open         2  two  <- test_stop.py::test_stop" in result.stdout
    assert "three" not in result.stdout
    assert "3 races: 1 done, 0 without a mutant, 1 open, 1 wait for a part that is not built, 0 wrong" in result.stdout


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("::test_stop`", "::test_gone`", "names test_stop.py::test_gone, which does not exist"),
        ("`fence-off`", "`fence-gone`", "there is no planted/fence-gone.patch"),
        ("waits for channels", "`test_stop.py::test_stop`", "whose docstring does not say `race 3`"),
        ("| 2 | two |", "| 4 | two |", "says `race 2`, which is not in the table"),
        ("| 2 | two |", "| 3 | two |", "race 3 stands 2 times"),
        ("| S | | |", "| S | | `fence-off` |", "names a planted bug and no test that catches it"),
    ],
)
def test_a_false_row_is_a_fault(tree: Path, old: str, new: str, fault: str) -> None:
    """A row that names a missing test or bug makes the check fail, and the fault says where."""
    table = tree / "races.md"
    assert old in table.read_text()
    table.write_text(table.read_text().replace(old, new))
    result = races(tree)
    assert result.returncode == 1
    assert fault in result.stdout


def test_every_way_to_write_the_numbers_is_read(tree: Path) -> None:
    """A docstring may name races in lists, in ranges and with "and"."""
    (tree / "test_stop.py").write_text(
        'def test_stop():\n    """Race 1."""\n\n\nasync def test_more():\n    """races 1-2 and 3."""\n'
    )
    table = tree / "races.md"
    table.write_text(table.read_text().replace("| S | | |", "| S | `test_stop.py::test_more` | `fence-off` |"))
    result = races(tree)
    assert result.returncode == 0, result.stdout
    assert "2 done" in result.stdout
