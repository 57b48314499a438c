"""Looking into a store's directory from the shell: `sessions`, `runs`, `show`; and `prune`.

1. Looking changes nothing and keeps nobody waiting; a server may be writing meanwhile.
2. States are told in the words of the lifecycle, endings in those of core/projection.
3. Where no server has the directory nothing is told as running: what has no ending is unsettled, and the next start
   sees to it.
4. For people: tables in a terminal, plain columns in a pipe, texts in one line and without control characters. For
   programs: `--json`, one document with every field in it.
"""

import asyncio
import contextlib
import fcntl
import os
import re
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import typer

from interlock.core.decision import QuestionRow, RunRow, SessionRow, ToolRow
from interlock.core.errors import BadInput, Unknown
from interlock.core.events import Event, Spawned
from interlock.core.lifecycle import State
from interlock.core.names import Ending, Principal, ProcessState, RunId, RunKind, SessionId, Strategy, ToolState
from interlock.core.outcome import Outcome
from interlock.core.projection import client_words
from interlock.core.receipt import Receipt
from interlock.core.timeline import Moment, timeline
from interlock.runtime.listing import as_tree, info_of_row
from interlock.runtime.recovery import Story
from interlock.runtime.settings import CRASHES
from interlock.stores.base import Pruned, SessionInfo, StoreFailed
from interlock.stores.sqlite import pruning
from interlock.stores.sqlite.schema import connect, migrations
from interlock.stores.sqlite.store import KEEP_DAYS, Look, hold

T = TypeVar("T")

LATEST = 20  # runs listed without --all
READ_FOR_LATEST = 500  # children may be among them
PAGE_EVENTS = 1_000
LOOKS = 5  # at a run that goes on while it is looked at
BUSY_MS = 5_000  # a server that starts may have the database locked for a moment
LINE_CHARACTERS = 60  # of a text in a table
TEXT_CHARACTERS = 200  # of a text that has a line to itself
UNITS_OF_AGE = {"h": 3_600.0, "d": 86_400.0, "w": 7 * 86_400.0}
AGES = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))

commands = typer.Typer()


def data_directory() -> Path:
    """Return where a store is looked for unless --data or INTERLOCK_DATA says otherwise."""
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if state.startswith("/") else Path("~/.local/state")) / "interlock"


Data = Annotated[
    Path,
    typer.Option(
        "--data",
        metavar="DIR",
        envvar="INTERLOCK_DATA",
        default_factory=data_directory,
        show_default="~/.local/state/interlock",
        help="The store's directory.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


# What is printed as JSON


class SessionLine(msgspec.Struct, frozen=True, kw_only=True):
    """A session in a list. `open` counts runs without an ending."""

    id: SessionId
    owner: Principal
    generation: int
    strategy: Strategy | None
    runs: int
    open: int
    latest_at: float | None
    crashes: int
    parked: bool


class RunLine(msgspec.Struct, frozen=True, kw_only=True):
    """A run in a list. `unsettled`: no server has the directory, and the next one has to see to this run."""

    id: RunId
    session: SessionId
    principal: Principal
    kind: RunKind
    state: State
    unsettled: bool
    outcome: Outcome | None
    text: str
    admitted_at: float
    started: bool
    generation: int | None
    key: str | None
    deadline: float | None
    parent: RunId | None
    agent: str | None
    detached: bool
    alias: RunId | None
    depth: int


class ProcessLine(msgspec.Struct, frozen=True, kw_only=True):
    """A process that a run started. `state` is `ended` if it went with its run, or with the server."""

    command: str
    state: str
    name: str | None
    pid: int | None
    status: int | None
    background: bool
    detached: bool


class Sessions(msgspec.Struct, frozen=True, kw_only=True):
    """What `interlock sessions --json` prints."""

    data: str
    in_use: bool
    sessions: tuple[SessionLine, ...]


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    """What `interlock runs --json` prints."""

    data: str
    in_use: bool
    runs: tuple[RunLine, ...]
    more: bool


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What `interlock show RUN --json` prints. `reply` is what was said so far."""

    data: str
    in_use: bool
    parked: bool
    run: RunLine
    reply: str
    tools: tuple[ToolRow, ...]
    questions: tuple[QuestionRow, ...]
    processes: tuple[ProcessLine, ...]
    receipt: Receipt | None
    timeline: tuple[Moment, ...]


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    """What `interlock prune --json` prints."""

    data: str
    dry_run: bool
    older_than_seconds: float
    forgotten: Pruned


# The commands


@commands.command("sessions", short_help="List the sessions of a store.")
def sessions_command(data: Data, as_json: AsJson = False) -> None:
    """List the sessions of a store, the latest first; also while a server writes it."""
    found = _look(data, _sessions)
    if as_json:
        _print_json(found)
        return
    _print_table(
        ("session", "owner", "runs", "open", "last message", ""),
        [
            (each.id, each.owner, str(each.runs), str(each.open), _ago(each.latest_at), _session_words(each, found))
            for each in found.sessions
        ],
        empty=f"no sessions in {found.data}",
    )


@commands.command("runs", short_help="List the runs of a store.")
def runs_command(
    data: Data,
    session: Annotated[str | None, typer.Option(metavar="NAME", help="Only this session's.")] = None,
    tree: Annotated[bool, typer.Option("--tree", help="With child runs, each below its parent.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help=f"Every run that is kept, not the latest {LATEST}.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List runs in the order they were admitted, and how they ended; also while a server writes."""
    found = _look(
        data, lambda store: _runs(store, None if session is None else SessionId(session), tree=tree, all_=everything)
    )
    if as_json:
        _print_json(found)
        return
    _print_table(
        ("run", "session", "by", "admitted", "how it stands", "message"),
        [
            (
                "  " * run.depth + run.id,
                run.session,
                run.principal if run.agent is None else run.agent,
                _ago(run.admitted_at),
                _run_words(run),
                run.text,
            )
            for run in found.runs
        ],
        empty=f"no runs in {found.data}",
    )
    if found.more:
        _print(f"(the latest {LATEST}; --all lists every run)")


@commands.command("show", short_help="Show one run: how it ended, what it did, its receipt.")
def show_command(
    run: Annotated[str, typer.Argument(help="The run's id, as `interlock runs` lists it.")],
    data: Data,
    as_json: AsJson = False,
) -> None:
    """Show a run: outcome, tools, processes, receipt and timeline; also while it runs."""
    found = _look(data, lambda store: _show(store, RunId(run)))
    if as_json:
        _print_json(found)
    else:
        _print_run(found)


@commands.command("prune", short_help="Forget what is too old or too much.")
def prune_command(
    data: Data,
    older_than: Annotated[
        str, typer.Option(metavar="AGE", help="Forget sessions in which nobody wrote for so long: 12h, 30d, 8w.")
    ] = f"{KEEP_DAYS:.0f}d",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be forgotten, and forget nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Forget old sessions, and of others what is beyond the bounds; never what lives, waits or is scheduled.

    A server does this by itself every hour, so this is for a directory that no server has.
    """
    age = _age(older_than)
    gone = asyncio.run(_prune(_readable(data), age, dry_run=dry_run))
    if as_json:
        _print_json(Forgotten(data=str(data), dry_run=dry_run, older_than_seconds=age, forgotten=gone))
        return
    verb = "would be forgotten" if dry_run else "forgotten"
    _print(f"{verb}: {gone.sessions} sessions, {gone.runs} runs, {gone.events} events of long logs")


# Reading


def _look(directory: Path, ask: Callable[[Look], Awaitable[T]]) -> T:
    """Ask a store something, whoever has it."""

    async def look() -> T:
        async with Look(_readable(directory)) as store:
            return await ask(store)

    return asyncio.run(look())


def _readable(directory: Path) -> Path:
    """Return the directory of a store that this version can read; otherwise say what it is."""
    directory = directory.expanduser()
    try:
        file = Look(directory).path
        if not file.exists():
            raise StoreFailed(f"{directory} holds no interlock store; name its directory with --data")
        with contextlib.closing(connect(file, writes=False)) as db:
            db.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
            schema = db.execute("PRAGMA user_version").fetchone()[0]
            ours = db.execute("SELECT count(*) FROM sqlite_master WHERE name IN ('facts', 'sessions', 'runs')")
            if schema == 0 or ours.fetchone()[0] != 3:
                raise StoreFailed(f"{file} is no interlock store; name its directory with --data")
    except OSError as error:
        raise StoreFailed(f"{directory} cannot be read: {error.strerror}") from None
    except sqlite3.DatabaseError as error:
        raise StoreFailed(f"{file} cannot be read: {error}") from None
    newest = migrations()[-1][0]
    if schema > newest:
        raise StoreFailed(f"{file} has schema {schema}, this version knows {newest}; upgrade interlock")
    if schema < newest:
        raise StoreFailed(f"{file} has schema {schema}, this version {newest}; the next start of a server upgrades it")
    return directory


def _in_use(directory: Path) -> bool:
    """Whether a server has the directory. The kernel is asked by a lock of our own, shared, for this instant."""
    try:
        handle = os.open(directory / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


async def _sessions(store: Look) -> Sessions:
    found = await store.sessions(limit=-1)
    return Sessions(
        data=str(store.directory), in_use=_in_use(store.directory), sessions=tuple(map(_session_line, found))
    )


def _session_line(info: SessionInfo) -> SessionLine:
    row = info.session
    return SessionLine(
        id=row.id,
        owner=row.owner,
        generation=row.generation,
        strategy=row.strategy,
        runs=info.runs,
        open=info.open,
        latest_at=info.latest_at,
        crashes=row.crashes,
        parked=_parked(row),
    )


def _parked(row: SessionRow | None) -> bool:
    return row is not None and row.crashes >= CRASHES


async def _runs(store: Look, session: SessionId | None, *, tree: bool, all_: bool) -> Runs:
    in_use = _in_use(store.directory)
    limit = -1 if all_ else READ_FOR_LATEST
    rows = await store.runs(session, tree=tree, limit=limit)
    if session is not None and not rows and await store.session(session) is None:
        raise Unknown(f"no session {session!r} in {store.directory}; `interlock sessions` lists them")
    more = session is None and len(rows) == limit
    if session is None and not tree:
        rows = tuple(row for row in rows if row.parent is None)
    known = {row.id: row for row in rows}
    infos = [info_of_row(row) for row in rows]
    ordered = as_tree(infos) if tree else infos
    lines = [_run_line(known[info.id], in_use=in_use, depth=info.depth) for info in ordered]
    tops = [at for at, line in enumerate(lines) if line.depth == 0]
    if not all_ and len(tops) > LATEST:
        lines, more = lines[tops[-LATEST] :], True
    return Runs(data=str(store.directory), in_use=in_use, runs=tuple(lines), more=more)


def _run_line(row: RunRow, *, in_use: bool, depth: int = 0) -> RunLine:
    return RunLine(
        id=row.id,
        session=row.session,
        principal=row.principal,
        kind=row.kind,
        state=info_of_row(row).state,
        unsettled=not in_use and not row.told and (row.alias is None or row.outcome is not None),
        outcome=row.outcome,
        text=row.text,
        admitted_at=row.admitted_at,
        started=row.started,
        generation=row.generation,
        key=row.key,
        deadline=row.deadline,
        parent=row.parent,
        agent=row.agent,
        detached=row.detached,
        alias=row.alias,
        depth=depth,
    )


async def _show(store: Look, run_id: RunId) -> Shown:
    for _ in range(LOOKS):
        row = await store.run(run_id)
        if row is None:
            raise Unknown(f"no run {run_id!r} in {store.directory}; `interlock runs` lists them")
        in_use = _in_use(store.directory)
        events = [event for event in await _log(store, row.session) if event.run_id == row.id]
        receipt = await store.receipt(row.id)
        shown = Shown(
            data=str(store.directory),
            in_use=in_use,
            parked=_parked(await store.session(row.session)),
            run=_run_line(row, in_use=in_use),
            reply=_reply(events) if row.outcome is None else row.outcome.text,
            tools=await store.tools(row.id),
            questions=await store.questions(row.id),
            processes=tuple(_processes(events, over=row.outcome is not None, in_use=in_use)),
            receipt=receipt,
            timeline=tuple(timeline(row.id, events, receipt)),
        )
        if row == await store.run(run_id):  # else it went on meanwhile, and the parts may not fit together
            break
    return shown


async def _log(store: Look, session: SessionId) -> list[Event]:
    events: list[Event] = []
    while page := (await store.events(session, after=events[-1].position if events else 0, limit=PAGE_EVENTS)).events:
        events.extend(page)
    return events


def _reply(events: Iterable[Event]) -> str:
    """What a run that has not ended has said so far."""
    story = Story()
    for event in events:
        story.add(event)
    return "\n\n".join(text for text in (*story.blocks, "".join(story.open)) if text)


def _processes(events: Iterable[Event], *, over: bool, in_use: bool) -> list[ProcessLine]:
    """What the log tells of a run's processes; those that went with their run have no line of their own there."""
    latest: dict[tuple[int | None, str], Spawned] = {}
    for event in events:
        if isinstance(event.data, Spawned):
            latest[event.data.pid, event.data.command] = event.data
    lines = []
    for told in latest.values():
        gone = told.state is ProcessState.RUNNING and (not in_use or (over and not told.detached))
        lines.append(
            ProcessLine(
                command=told.command,
                state="ended" if gone else told.state,
                name=told.name,
                pid=told.pid,
                status=told.status,
                background=told.background,
                detached=told.detached,
            )
        )
    return lines


# Forgetting


def _age(text: str) -> float:
    """Read an age: 12h, 30d, 8w."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([hdw])", text.strip())
    if found is None:
        raise BadInput(f"{text!r} is no age; write 12h, 30d or 8w")
    return float(found[1]) * UNITS_OF_AGE[found[2]]


async def _prune(directory: Path, age: float, *, dry_run: bool) -> Pruned:
    """Forget, as a server would, but without a start of one: what a killed server left stays for the next to settle."""
    try:
        held = hold(directory)
    except OSError as error:
        raise StoreFailed(f"{directory} cannot be taken: {error.strerror}") from None
    except StoreFailed:
        raise StoreFailed(
            f"{directory} is in use by a server, which prunes it by itself every hour; nothing was done"
        ) from None
    try:
        with contextlib.closing(connect(Look(directory).path, writes=True)) as db:
            return await _prune_database(db, time.time() - age, dry_run=dry_run)
    except sqlite3.Error as error:
        raise StoreFailed(f"{directory} cannot be written: {error}") from None
    finally:
        os.close(held)


async def _prune_database(db: sqlite3.Connection, before: float, *, dry_run: bool) -> Pruned:
    async def look(work: Callable[[sqlite3.Connection], T], /) -> T:
        return work(db)

    async def change(work: Callable[[sqlite3.Connection], T], /) -> T:
        if dry_run:
            return work(db)  # in the one transaction that is never committed
        db.execute("BEGIN IMMEDIATE")
        try:
            done = work(db)
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")
        return done

    db.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    db.execute("CREATE TEMP TABLE doomed (id TEXT PRIMARY KEY) WITHOUT ROWID")
    if dry_run:
        db.execute("BEGIN IMMEDIATE")
    try:
        return await pruning.prune(look, change, before=before, keep_days=KEEP_DAYS)
    finally:
        if dry_run:
            db.execute("ROLLBACK")


# Words


def _session_words(session: SessionLine, found: Sessions) -> str:
    if session.parked:
        return f"parked: the server went down {session.crashes} times in a row with it; reset it to go on"
    if session.open and not found.in_use:
        return "unsettled: the next start settles it"
    return ""


def _run_words(run: RunLine) -> str:
    """How a run stands, in a few words."""
    if run.outcome is not None:
        return client_words(run.outcome)
    if run.state is State.ALIASED:
        return f"part of {run.alias}"
    if not run.unsettled:
        return run.state
    if run.started or run.parent is not None:
        return "unsettled: the next start settles it"
    return "queued: the next start takes it up"


def _tool_words(tool: ToolRow, found: Shown) -> str:
    if tool.state is ToolState.RUNNING and found.run.unsettled:
        return "started, outcome unknown"
    return tool.state


def _ago(at: float | None) -> str:
    """A time as a person reads it: 3 min ago."""
    if at is None:
        return "never"
    passed = time.time() - at
    for seconds, unit in AGES:
        if passed >= seconds:
            return f"{passed / seconds:.0f} {unit} ago" if seconds == 1 else f"{passed // seconds:.0f} {unit} ago"
    return "just now"


def _line(text: str, characters: int) -> str:
    """A text in one line, without what a terminal would obey, and not too long."""
    line = re.sub(r"\s+", " ", text[: 4 * characters]).strip()
    line = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in line)
    return line if len(line) <= characters else line[: characters - 1] + "…"


def _receipt_words(receipt: Receipt) -> str:
    said = [f"{receipt.id}", f"drain {receipt.drain}"]
    if receipt.fence_to_drained_ms is not None:
        said[-1] += f" after {receipt.fence_to_drained_ms / 1000:.3f} s"
    ended = receipt.processes
    said += [f"{ended.ended} processes ended (grade {receipt.grade})"] if ended.ended else []
    said += [f"{ended.stuck} stuck"] if ended.stuck else []
    said += [f"{ended.detached} detached"] if ended.detached else []
    said += [f"refused: {', '.join(f'{n} {kind}' for kind, n in receipt.refused.items())}"] if receipt.refused else []
    said += [f"not seen gone: {', '.join(receipt.unconfirmed)}"] if receipt.unconfirmed else []
    return " · ".join(said)


def _process_words(process: ProcessLine) -> str:
    state = process.state if process.status is None else f"{process.state} with {process.status}"
    state = "ended with its run" if process.state == "ended" else state
    return f"{process.name + ': ' if process.name else ''}{process.command}  {state}"


def _question_words(question: QuestionRow) -> str:
    answer = "" if question.answer is None else f": {question.answer} by {question.by}"
    return f"{question.text}  {question.state}{answer}"


# Printing


def _print_run(found: Shown) -> None:
    run = found.run
    facts = [
        ("run", f"{run.id} of session {run.session}, by {run.principal}, {_ago(run.admitted_at)}"),
        ("message", run.text),
        ("outcome", _run_words(run)),
    ]
    if found.parked:
        facts.append(("session", f"parked after {CRASHES} crashes in a row; reset it to go on"))
    facts.append(("reply", found.reply + (" (cut)" if _cut(run) else "")))
    facts += [("tool", f"{tool.name}({tool.arguments})  {_tool_words(tool, found)}") for tool in found.tools]
    facts += [("question", _question_words(question)) for question in found.questions]
    facts += [("process", _process_words(process)) for process in found.processes]
    if found.receipt is not None:
        facts.append(("receipt", _receipt_words(found.receipt)))
    for name, value in facts:
        if value:
            _print(f"{name:9} {_line(value, TEXT_CHARACTERS)}")
    if found.timeline:
        _print("")
        began = found.timeline[0].at
        moments = [
            (f"+{max(0.0, each.at - began):.3f} s", each.what, each.name, each.state, each.detail or _times(each))
            for each in found.timeline
        ]
        _print_table(("when", "what", "", "", ""), moments)


def _cut(run: RunLine) -> bool:
    return run.outcome is not None and bool(run.outcome.text) and run.outcome.ending is not Ending.COMPLETED


def _times(moment: Moment) -> str:
    return f"{moment.count} times" if moment.count > 1 else ""


def _print_json(document: msgspec.Struct) -> None:
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
    sys.stdout.flush()


def _print(line: str) -> None:
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal that cannot show it all
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()  # here, where whoever closed the pipe (`| head`) is no surprise


def _print_table(heads: Sequence[str], table: Sequence[Sequence[str]], *, empty: str = "") -> None:
    lines = [tuple(_indented(cell) for cell in row) for row in table]
    if not lines:
        _print(empty)
    elif sys.stdout.isatty():
        _draw(heads, lines)
    else:
        widths = [max(map(len, column)) for column in zip(heads, *lines, strict=True)]
        for row in (heads, *lines):
            _print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _indented(cell: str) -> str:
    return " " * (len(cell) - len(cell.lstrip(" "))) + _line(cell, LINE_CHARACTERS)


def _draw(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    from rich.console import Console  # noqa: PLC0415 - a pipe need not wait for it
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    drawn = Table(box=None, pad_edge=False)
    for head in heads:
        drawn.add_column(head, overflow="fold")
    for row in lines:
        drawn.add_row(*map(Text, row))
    Console(highlight=False).print(drawn)
