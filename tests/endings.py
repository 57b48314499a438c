"""The contract of endings: draws the tables of docs/endings.md, and says what the changelog owes (`make endings`).

1. A cell is what `project` answers for a case on a surface. The page shows every cell; no table is written by hand.
2. tests/endings.json has the cells of the latest release; before the first release, those of the version to come. A
   cell that differs from it needs a line in the unreleased part of CHANGELOG.md, and a line there must be a difference:
   - Ending `stopped`, `superseded` on `responses.http`: `200` → `422`.
   - Endings on `irc`: new.
3. At a release, when its heading has a date, `python tests/endings.py release` stores the cells of that day.
The exit status is 1 if the changelog owes a line, or has a line that is not true.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from interlock.cli import asking, printing, verbs
from interlock.core import outcome as outcomes
from interlock.core.names import ENDINGS, Ending, ErrorKind, LimitOf, Principal, RunId
from interlock.core.outcome import Outcome
from interlock.core.projection import Native, Projection, project

ROOT = Path(__file__).parent.parent
PAGE, CHANGELOG, CONTRACT = ROOT / "docs" / "endings.md", ROOT / "CHANGELOG.md", ROOT / "tests" / "endings.json"
NONE = "none"
Cells = dict[str, dict[str, str]]  # case → cell → its word

# A case is an ending, or (in brackets) an ending with a fact that changes one of its words.
FACTS: dict[Ending, dict[str, Any]] = {
    Ending.COMPLETED: {"text": "the reply"},
    Ending.FAILED: {"error": "no such model", "error_kind": ErrorKind.AGENT},
    Ending.STOPPED: {"by": Principal("ann")},
    Ending.SUPERSEDED: {"by": Principal("ann"), "superseded_by": RunId("r-1-8")},
    Ending.TIMED_OUT: {"phase": "provider", "limit_ms": 120_000},
    Ending.PARENT_ENDED: {},
    Ending.SHUTDOWN: {},
    Ending.LOST: {},
}
VARIANTS: dict[str, tuple[Ending, dict[str, Any]]] = {
    "failed (in the provider)": (Ending.FAILED, {"error_kind": ErrorKind.PROVIDER}),
    "stopped (typed)": (Ending.STOPPED, {"typed": True}),
    "stopped (before it came)": (Ending.STOPPED, {"born_stopped": True, "started_at": None}),
    "superseded (not kept)": (Ending.SUPERSEDED, {"superseded_by": None, "unkept": True}),
    "superseded (steered)": (Ending.SUPERSEDED, {}),
    "timed_out (in the queue)": (Ending.TIMED_OUT, {"phase": "queue", "started_at": None}),
    "timed_out (a limit of the caller)": (Ending.TIMED_OUT, {"limit_of": LimitOf.CALLER}),
    "timed_out (a limit of the operator)": (Ending.TIMED_OUT, {"limit_of": LimitOf.OPERATOR}),
    "timed_out (a limit of its agent)": (Ending.TIMED_OUT, {"limit_of": LimitOf.AGENT}),
    "parent_ended (a limit of the parent)": (Ending.PARENT_ENDED, {"limit_of": LimitOf.PARENT}),
}


def outcome(ending: Ending, **facts: Any) -> Outcome:
    """Return the outcome of a run that ended so."""
    return Outcome(
        run_id=RunId("r-1-7"), ending=ending, **({"started_at": 1.0, "ended_at": 2.0} | FACTS[ending] | facts)
    )


def cases() -> dict[str, Projection]:
    """Return the words of every surface, case by case; a case in brackets follows its ending."""
    found = {}
    for ending in ENDINGS:
        found[ending.value] = project(outcome(ending))
        for name, (of, facts) in VARIANTS.items():
            if of is ending:
                found[name] = project(outcome(ending, **facts), steered="steered" in name)
    return found


def cells() -> Cells:
    """Return the cells of the contract: one for each word of a surface; of a case in brackets those that differ."""
    found = {name: dict(_flat(told)) for name, told in cases().items()}
    for name, (ending, _) in VARIANTS.items():
        found[name] = {cell: word for cell, word in found[name].items() if word != found[ending][cell]}
    return found


def _flat(told: Projection) -> Iterable[tuple[str, str]]:
    for column in told.__struct_fields__:
        value = getattr(told, column)
        if isinstance(value, msgspec.Struct):
            for field in msgspec.structs.fields(value):
                yield f"{column}.{field.name}", _word(getattr(value, field.name))
        else:
            yield column, _word(value)


def _word(value: object) -> str:
    return NONE if value is None else str(value).lower() if isinstance(value, bool) else str(value)


# The changelog


def changes(before: Cells, now: Cells) -> set[str]:
    """Return the lines that the difference needs, cell by cell; a new surface or case needs one line."""
    told, both = set(), _surfaces(before) & _surfaces(now)
    for kind, old, new in (("Endings on", _surfaces(before), _surfaces(now)), ("Ending", set(before), set(now))):
        told |= {f"{kind} `{name}`: new" for name in new - old} | {f"{kind} `{name}`: gone" for name in old - new}
    for case in before.keys() & now.keys():
        for cell in (before[case].keys() | now[case].keys()) & both:
            was, is_ = _read(before, case, cell), _read(now, case, cell)
            told |= {f"Ending `{case}` on `{cell}`: `{was}` → `{is_}`"} if was != is_ else set()
    return told


def _surfaces(of: Cells) -> set[str]:
    return {cell for words in of.values() for cell in words}


def _read(of: Cells, case: str, cell: str) -> str:
    return of[case].get(cell) or of[case.partition(" (")[0]][cell]


LINE = re.compile(
    r"- (Endings?(?: on)?) ((?:`[^`]+`(?:, | and )?)+)((?: on `[^`]+`)?: (?:new|gone|`[^`]*` → `[^`]*`))\."
)


def said(changelog: str) -> set[str]:
    """Return the lines on cells in the unreleased part of the changelog, each cell by itself."""
    heading = re.search(r"^## .*unreleased.*$", changelog, re.MULTILINE | re.IGNORECASE)
    part = changelog[heading.end() :].partition("\n## ")[0] if heading else ""
    lines = (LINE.fullmatch(line.strip()) for line in part.splitlines())
    return {f"{line[1]} `{name}`{line[3]}" for line in lines if line for name in re.findall(r"`([^`]+)`", line[2])}


def latest(changelog: str) -> str | None:
    """Return the version of the latest release: the first heading with a date."""
    found = re.search(r"^## \[(.+?)\] - \d{4}-\d\d-\d\d", changelog, re.MULTILINE)
    return found[1] if found else None


def faults(contract: dict[str, Any], now: Cells, changelog: str) -> list[str]:
    """Return the faults between the contract, the table and the changelog, each with what to do."""
    if contract["released"] != latest(changelog):
        return [f"tests/endings.json is of {contract['released']}: run `python tests/endings.py release`"]
    owed, told = changes(contract["cells"], now), said(changelog)
    return [f"add to the unreleased part of CHANGELOG.md: - {line}." for line in sorted(owed - told)] + [
        f"CHANGELOG.md says what is not so; change or remove: - {line}." for line in sorted(told - owed)
    ]


# The page


def blocks() -> dict[str, str]:
    """Return the drawn tables, by the name of their place in the page."""
    return {
        "gateway": _by_ending(
            ["`agent.wait`", "`chat` event", "`agent` lifecycle", "`tasks.*`", "session row"],
            lambda told: [*map(_struct, (told.wait, told.chat, told.lifecycle)), _code(told.task), _code(told.session)],
        ),
        "people": _by_ending(
            ["client, page, shell", "a chat channel (not built)"],
            lambda told: [told.client, told.channel or "*nothing*"],
        ),
        "agents": _by_ending(
            ["the parent of a child run", "a tool call without a result"],
            lambda told: [told.parent or "*nothing: it has itself ended*", f"not run: {told.tool}"],
        ),
        "exits": _exits(),
        "responses": _by_ending(
            ["HTTP", "`error.code`", "`status`", "last event of a stream", "`incomplete_details.reason`"],
            lambda told: [
                str(told.responses.http),
                *_codes(told.responses, "error_code status last_event incomplete_reason"),
            ],
        ),
        "others": _by_ending(
            ["chat completion: `finish_reason`", "or `error.code`", "ACP: stop reason", "or `error.code`"],
            lambda told: [
                *_codes(told.completions, "finish_reason error_code"),
                *_codes(told.acp, "stop_reason error_code"),
            ],
        ),
        "variants": _variants(),
        "fields": _fields(),
    }


def _by_ending(head: list[str], words: Callable[[Projection], list[str]]) -> str:
    found = cases()
    return _table(["ending", *head], ([_code(ending.value), *words(found[ending])] for ending in ENDINGS))


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    first, *others = (f"| {' | '.join(line)} |" for line in (head, *rows))
    return "\n".join([first, "|---" * len(head) + "|", *others])


def _code(value: object) -> str:
    return "" if value is None else f"`{value}`"


def _codes(words: msgspec.Struct, names: str) -> list[str]:
    return [_code(getattr(words, name)) for name in names.split()]


def _struct(words: msgspec.Struct) -> str:
    """Return the first word as it stands, the others with their names."""
    told = [(field.encode_name, getattr(words, field.name)) for field in msgspec.structs.fields(words)]
    (_, first), *others = told
    return ", ".join([_code(first), *(f"{name} {_code(_word(word))}" for name, word in others if word is not None)])


def _exits() -> str:
    found, codes = cases(), dict[int, list[str]]()
    for ending in ENDINGS:
        codes.setdefault(found[ending].exit_code, []).append(_code(ending.value))
    told = {code: ", ".join(names) for code, names in codes.items()}
    told |= {verbs.NOT_YET: "it has not ended: `wait --timeout` ran out"}
    told |= {printing.TROUBLE: "there is no such run, or `interlock` itself failed: the error output says why"}
    told |= {asking.UNREAD: "whoever read the output was gone before all of it was printed"}
    return _table(["exit status", "the run"], ([str(code), told[code]] for code in sorted(told)))


def _variants() -> str:
    found = cells()
    rows = [
        [_code(name), _code(cell), _code(found[ending][cell]), _code(word)]
        for name, (ending, _) in VARIANTS.items()
        for cell, word in found[name].items()
    ]
    return _table(["case", "cell", "otherwise", "here"], rows)


def _fields() -> str:
    """Return the fields of `Outcome` as its source has them, each with its comment there."""
    source = Path(outcomes.__file__).read_text("utf-8")
    (struct,) = [each for each in ast.parse(source).body if isinstance(each, ast.ClassDef) and each.name == "Outcome"]
    wire = {field.name: field.encode_name for field in msgspec.structs.fields(Native)}
    rows = []
    for field in struct.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            comment = source.splitlines()[(field.end_lineno or field.lineno) - 1].partition("  # ")[2]
            type_ = ast.unparse(field.annotation).replace("|", "\\|")
            rows.append([f"`{field.target.id}`", f"`{type_}`", _code(wire.get(field.target.id)), comment])
    return _table(["field", "type", "on the wire", "what it says"], rows)


PLACE = re.compile(r"(<!-- drawn: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def drawn(page: str) -> str:
    """Return the page with every table drawn anew."""
    tables = blocks()
    return PLACE.sub(lambda place: f"{place[1]}{tables[place[2]]}\n{place[4]}", page)


def main(words: list[str]) -> int:
    """Draw the page; or, at a release, store the contract."""
    contract, changelog = json.loads(CONTRACT.read_text("utf-8")), CHANGELOG.read_text("utf-8")
    if words == ["release"]:
        if contract["released"] == latest(changelog):
            print(f"{latest(changelog) or 'no version'} is the latest release, and its cells are kept already: give "
                  "the heading of the new one its date first")  # fmt: skip
            return 1
        contract = {"released": latest(changelog), "cells": cells()}
        CONTRACT.write_text(json.dumps(contract, indent=1, ensure_ascii=False) + "\n", "utf-8")
    PAGE.write_text(drawn(PAGE.read_text("utf-8")), "utf-8")
    found = faults(contract, cells(), changelog)
    print("\n".join(found) or "docs/endings.md is drawn; the changelog owes nothing")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
