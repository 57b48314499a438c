"""The repository keeps its own rules: rooms, heads of files, budgets, the pages a newcomer reads first."""

from __future__ import annotations

import ast
import io
import os
import shutil
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "interlock"
SOURCES = sorted(PACKAGE.rglob("*.py"))
CORE_LINES = 1_950  # lines of code, as cloc counts: no blank, comment or docstring, nor the tables of words
TABLES = PACKAGE / "core" / "vocabulary.py"
SOURCE_LINES = 26_700
CONTRIBUTING_LINES = 80


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """Check the import contracts of the tree at `root`, not of the installed package."""
    return subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root / "src"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of the sources and their contracts, to spoil."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_rooms_import_only_what_they_may() -> None:
    """The import contracts of pyproject.toml hold."""
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("place", "code", "contract"),
    [
        ("core", "import asyncio", "The core is pure"),
        ("core", "def late() -> None:\n    import time", "The core is pure"),
        ("core", "from interlock.runtime import __name__", "Rooms import only the rooms below them"),
        ("stores", "import interlock.runtime", "Rooms import only the rooms below them"),
        ("runtime", "import interlock.testing", "Rooms import only the rooms below them"),
        ("runtime", "import interlock.stores.memory", "The runtime knows the store's port"),
    ],
)
def test_a_bad_import_breaks_a_contract(copy: Path, place: str, code: str, contract: str) -> None:
    """A module that reaches out of its room breaks the contract meant for it."""
    (copy / "src" / "interlock" / place / "planted.py").write_text(f"{code}\n")
    result = lint_imports(copy)
    assert result.returncode == 1, result.stdout + result.stderr
    broken = [line for line in result.stdout.splitlines() if " BROKEN" in line]
    assert any(line.startswith(contract) for line in broken), result.stdout


def test_a_room_that_is_not_on_the_list_breaks_the_contract(copy: Path) -> None:
    """A new room must be on the list of layers before it can be used."""
    room = copy / "src" / "interlock" / "planted"
    room.mkdir()
    (room / "__init__.py").touch()
    result = lint_imports(copy)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "planted" in result.stdout


def test_the_core_needs_only_msgspec() -> None:
    """The core imports only msgspec and the standard library."""
    allowed = {"interlock", "msgspec", *sys.stdlib_module_names}
    for path in SOURCES:
        if path.is_relative_to(PACKAGE / "core"):
            assert imported(path) <= allowed, path


def imported(path: Path) -> set[str]:
    """Return the top-level names a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_every_file_says_the_rule_it_keeps(path: Path) -> None:
    """A file with code in it starts with a docstring."""
    tree = ast.parse(path.read_text("utf-8"))
    assert not tree.body or ast.get_docstring(tree), f"{path}: say at its head, in a sentence, what it is for"


def test_the_sources_stay_small() -> None:
    """The core and the whole source stay below their bounds: the core can be read in an hour."""
    lines = {path: lines_of_code(path.read_text("utf-8")) for path in SOURCES if path != TABLES}
    assert sum(n for path, n in lines.items() if path.is_relative_to(PACKAGE / "core")) <= CORE_LINES
    assert sum(lines.values()) <= SOURCE_LINES


def lines_of_code(source: str) -> int:
    """Count the lines that hold code."""
    ignored = (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    )
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type not in ignored]
    lines = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(source)):
        told = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if told and ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            lines -= set(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return len(lines)


def test_the_readme_names_the_two_commands() -> None:
    """The README names the command that runs Interlock and the one that tests it."""
    readme = (ROOT / "README.md").read_text("utf-8")
    assert "make run" in readme
    assert "make test" in readme


def test_the_contributor_page_is_short() -> None:
    """CONTRIBUTING.md stays short, so that it is read to the end."""
    assert len((ROOT / "CONTRIBUTING.md").read_text("utf-8").splitlines()) < CONTRIBUTING_LINES


def test_ci_runs_make_test_and_nothing_hidden() -> None:
    """CI runs what a contributor runs."""
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK), "chmod +x .ci/run"
    lines = [line for line in script.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    assert lines == ["set -euo pipefail", 'cd "$(dirname "$0")/.."', "make test"]
