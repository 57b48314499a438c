"""Prints the open rows of tests/races.md, and checks that the table is true (`make races`).

A row is done when it names a test whose docstring says `race N` and the planted bug which that test catches.
`waits for X` leaves a row to a part X that is not built; `then X` says that X widens a row that has a test.
The exit status is 1 when the table and the files disagree, 0 otherwise, open rows or not.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MENTION = re.compile(r"\braces?\s+(\d+(?:(?:\s*,\s*and\s+|\s*,\s*|\s+and\s+|\s*[-–]\s*)\d+)*)", re.IGNORECASE)
SPAN = re.compile(r"(\d+)(?:\s*[-–]\s*(\d+))?")
NAMED_TEST = re.compile(r"([\w./-]+\.py)(?:::\w+)*::(\w+)")


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    number: int
    race: str
    test: str
    mutant: str

    @property
    def tests(self) -> list[tuple[str, str]]:
        """Return the (path below tests/, function) pairs this row names."""
        return [(path.removeprefix("tests/"), name) for path, name in NAMED_TEST.findall(self.test)]

    @property
    def mutants(self) -> list[str]:
        """Return the planted bugs this row names."""
        return [name for part in self.mutant.split(",") if (name := part.strip(" `"))]

    @property
    def waits(self) -> bool:
        """Return whether the part this row is about is not built."""
        return "waits for" in self.test


def rows(table: str) -> list[Row]:
    """Return the rows of the table, in order."""
    found = []
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if cells[0].isdecimal() and len(cells) == 6:
            number, race, _behaviour, _tech, test, mutant = cells
            found.append(Row(int(number), race, test, mutant))
        elif cells[0].isdecimal():
            raise SystemExit(f"race {cells[0]}: a row has six cells, this one has {len(cells)}")
    return found


def numbers(docstring: str) -> Iterator[int]:
    """Yield the races a docstring names: "race 17", "races 14, 128", "races 59-61"."""
    for mention in MENTION.findall(docstring):
        for first, last in SPAN.findall(mention):
            yield from range(int(first), int(last or first) + 1)


def mentions(tests: Path) -> dict[tuple[str, str], set[int]]:
    """Return every test function under `tests`, as (path, name), with the races its docstring names."""
    found: dict[tuple[str, str], set[int]] = {}
    for path in sorted(tests.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
                named = found.setdefault((path.relative_to(tests).as_posix(), node.name), set())
                named.update(numbers(ast.get_docstring(node) or ""))
    return found


def faults(table: list[Row], tests: dict[tuple[str, str], set[int]], planted: set[str]) -> list[str]:
    """Return the points where the table and the files disagree."""
    found = [
        f"race {n} stands {times} times in the table"
        for n, times in Counter(r.number for r in table).items()
        if times > 1
    ]
    known = {row.number for row in table}
    found += [f"race {n} is missing from the table" for n in sorted(set(range(1, max(known, default=1) + 1)) - known)]
    for row in table:
        for path, name in row.tests:
            if (path, name) not in tests:
                found.append(f"race {row.number} names {path}::{name}, which does not exist")
            elif row.number not in tests[path, name]:
                found.append(
                    f"race {row.number} names {path}::{name}, whose docstring does not say `race {row.number}`"
                )
        found += [
            f"race {row.number} names the planted bug {name}, but there is no planted/{name}.patch"
            for name in row.mutants
            if name not in planted
        ]
        if row.mutants and not row.tests:
            found.append(f"race {row.number} names a planted bug and no test that catches it")
    for (path, name), named in tests.items():
        found += [f"{path}::{name} says `race {n}`, which is not in the table" for n in sorted(named - known)]
    return found


def main(root: Path) -> int:
    """Print the open rows and the faults under `root`, the tests' directory."""
    table = rows((root / "races.md").read_text("utf-8"))
    tests = mentions(root)
    planted = {
        path.relative_to(root / "planted").with_suffix("").as_posix() for path in root.glob("planted/**/*.patch")
    }
    wrong = faults(table, tests, planted)

    unnamed = [row for row in table if not row.tests and not row.waits]
    unplanted = [row for row in table if row.tests and not row.mutants]
    for row in unnamed:
        said = [f"{path}::{name}" for (path, name), named in tests.items() if row.number in named]
        hint = f"  <- {', '.join(said)} says so; name it in the row" if said else ""
        print(f"open       {row.number:>3}  {row.race}{hint}")
    for row in unplanted:
        print(f"no mutant  {row.number:>3}  {row.race}")
    for fault in wrong:
        print(f"wrong      {fault}")
    done = sum(1 for row in table if row.tests and row.mutants)
    waiting = sum(1 for row in table if row.waits and not row.tests)
    print(
        f"{len(table)} races: {done} done, {len(unplanted)} without a mutant, "
        f"{len(unnamed)} open, {waiting} wait for a part that is not built, {len(wrong)} wrong"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent))
