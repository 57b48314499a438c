"""Shared parts of the tests of the durable store: rows, a second connection to its database, a bound for each test."""

import asyncio
import contextlib
import select
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from interlock import Ending, Message, Run, Settings
from interlock.core.decision import Decision, RunRow
from interlock.core.events import Block, Data, Ended, Event
from interlock.core.names import Principal, RunId, RunKind, SessionId
from interlock.core.outcome import Outcome
from interlock.stores.sqlite import SqliteStore

ALICE, MALLORY = Principal("alice"), Principal("mallory")
S = SessionId("s")
SECONDS = 30.0  # for anything that must happen at all
BOUND_SECONDS = 120.0  # for a whole test, on a busy machine
FOREVER_DAYS = 1e6  # rows here are of 1970
QUICK = Settings(commit_seconds=1, grace_seconds=0.1, drain_seconds=0.1)


def play(main: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), BOUND_SECONDS))  # type: ignore[arg-type]


def made(directory: str | Path) -> SqliteStore:
    return SqliteStore(directory, keep_days=FOREVER_DAYS)


def run(
    name: str,
    *,
    by: Principal = ALICE,
    text: str = "hello",
    over: bool = False,
    session: SessionId = S,
    at: float = 1.0,
) -> RunRow:
    outcome = Outcome(run_id=RunId(name), ending=Ending.COMPLETED) if over else None
    return RunRow(
        id=RunId(name), session=session, principal=by, kind=RunKind.CHAT, text=text, admitted_at=at, outcome=outcome
    )


def admit(name: str, **more: Any) -> Decision:
    return Decision(admissions=(run(name, **more),))


def block(position: int, session: SessionId = S) -> Event:
    return Event(position=position, session=session, run_id=RunId("r"), generation=1, data=Block(text="so far"))


@contextlib.contextmanager
def database(directory: Path) -> Iterator[sqlite3.Connection]:
    """Another connection to a store's database."""
    with contextlib.closing(
        sqlite3.connect(directory / "interlock.db", isolation_level=None, timeout=SECONDS)
    ) as other:
        yield other


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the write lock by another connection."""
    with database(directory) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


def count(directory: Path, table: str) -> int:
    """Return how many rows (of deltas: how many deltas) are in the database for everyone to see."""
    what = "coalesce(sum(json_array_length(events)), 0)" if table == "passing" else "count(*)"
    with database(directory) as other:
        found: int = other.execute(f"SELECT {what} FROM {table}").fetchone()[0]
    return found


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def opens(directory: Path) -> None:
    """Check that nobody has the directory: a store can be opened in it at once."""
    store = made(directory)
    await store.open()
    await store.close()


async def echo(run: Run, message: Message) -> str:
    return message.text


def event(position: int, data: Data, name: str | None = "r", session: SessionId = S) -> Event:
    run_id = None if name is None else RunId(name)
    return Event(position=position, session=session, run_id=run_id, generation=1, data=data)


def ended(position: int, name: str = "r") -> Event:
    return event(position, Ended(outcome=Outcome(run_id=RunId(name), ending=Ending.COMPLETED)), name)


def command(code: str, *given: object) -> list[str]:
    """Return the command that runs Python code; `say(x)` sends a line back and `hear()` waits for one."""
    helpers = """
        import asyncio, os, sqlite3, sys, threading
        from interlock.core.decision import Decision, RunRow
        from interlock.core.names import RunKind
        from interlock.stores.base import StoreFailed
        from interlock.stores.sqlite import SqliteStore
        def say(what): print(what, flush=True)
        def hear(): return sys.stdin.readline()
        def admit(name):
            row = RunRow(id=name, session="s", principal="alice", kind=RunKind.CHAT, text="hello", admitted_at=1.0)
            return Decision(admissions=(row,))
    """
    program = textwrap.dedent(helpers) + textwrap.dedent(code)
    return [sys.executable, "-c", program, *map(str, given)]


@contextmanager
def process(code: str, *given: object) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(command(code, *given), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def heard(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    assert select.select([started.stdout], [], [], SECONDS)[0], "nothing was said"
    return started.stdout.readline().strip()
