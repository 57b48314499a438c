"""What the tests of the durable store share: rows, a second connection to its database, and a bound for each test."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from interlock import Ending, Message, Run, Settings
from interlock.core.decision import Decision, RunRow
from interlock.core.events import Block, Event
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


def run(name: str, *, by: Principal = ALICE, over: bool = False) -> RunRow:
    outcome = Outcome(run_id=RunId(name), ending=Ending.COMPLETED) if over else None
    return RunRow(
        id=RunId(name), session=S, principal=by, kind=RunKind.CHAT, text="hello", admitted_at=1.0, outcome=outcome
    )


def admit(name: str) -> Decision:
    return Decision(admissions=(run(name),))


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
    """Another connection has the write lock."""
    with database(directory) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


def count(directory: Path, table: str) -> int:
    with database(directory) as other:
        found: int = other.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    return found


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def opens(directory: Path) -> None:
    """Nobody has the directory: a store can be opened in it, at once."""
    store = made(directory)
    await store.open()
    await store.close()


async def echo(run: Run, message: Message) -> str:
    return message.text
