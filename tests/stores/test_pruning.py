"""Pruning: each principal keeps its keys, sessions go by age, and a shortened log changes no ending."""

import asyncio
import itertools
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from interlock import Ending, MemoryStore, Message, Run, ToolState, open_control
from interlock.core.decision import Decision, KeyRow, SessionRow, ToolRow, WakeRow
from interlock.core.events import Block, Json, MessageData, Tool
from interlock.core.names import CallId, Principal, RunId, SessionId, WakeId
from interlock.runtime.unwritten import Unwritten
from interlock.stores import bounds
from interlock.stores.base import Store, StoreFailed
from interlock.stores.sqlite import SqliteStore, checkpoints, pruning

from .scene import (
    ALICE,
    FOREVER_DAYS,
    MALLORY,
    QUICK,
    S,
    admit,
    block,
    count,
    database,
    echo,
    event,
    made,
    play,
    run,
    until,
)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_nobody_pushes_out_another_s_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """The newest keys of each principal are kept, and that of a message that has not ended, however old."""
    monkeypatch.setattr(bounds, "KEYS_KEPT", 3)

    async def main() -> None:
        store: Store = made(tmp_path) if kind == "sqlite" else MemoryStore()
        await store.open()

        async def use(name: str, by: Principal, *, over: bool) -> None:
            key = KeyRow(principal=by, key=name, method="send", digest="d", run_id=RunId(name))
            row = run(name, by=by, over=over)
            ended = (row,) if over else ()
            await store.decide(Decision(admissions=(row,), endings=ended, keys=(key,)))

        async def kept(by: Principal, *names: str) -> list[str]:
            return [name for name in names if (await store.load(S, principal=by, key=name)).key is not None]

        await use("paid", ALICE, over=True)
        await use("waits", MALLORY, over=False)
        for n in range(9):
            await use(f"m{n}", MALLORY, over=True)
        await store.prune()
        assert await kept(ALICE, "paid") == ["paid"]
        assert await kept(MALLORY, "waits", *(f"m{n}" for n in range(6))) == ["waits"]
        assert {"m7", "m8"} <= set(await kept(MALLORY, "m6", "m7", "m8"))
        await store.close()

    play(main)


def test_a_session_is_a_child_s_by_its_exact_name_only(tmp_path: Path) -> None:
    """`Run:x` is a session like any other: the store lists it, and forgets it when it is old."""

    async def main() -> None:
        store = made(tmp_path)
        async with open_control(echo, store=store) as control:
            for name in ("Run:x", "other"):
                await control.wait((await control.send(name, "hello")).run_id, drained=True)
            await until(lambda: control.feed.log._count == 0)
            assert {info.session.id for info in await store.sessions(limit=10)} == {"Run:x", "other"}
            assert (await store.prune(before=time.time() + 60)).sessions == 2
            assert await store.sessions(limit=10) == ()

    play(main)


def test_a_run_s_own_session_is_forgotten_when_it_is_old(tmp_path: Path) -> None:
    """A run that was sent to no session is in no list of sessions, and goes by age; a child's goes with its home."""

    async def agent(run: Run, message: Message) -> None:
        await run.delegate("other", "hello")

    async def main() -> None:
        store = made(tmp_path)
        async with open_control(agent, agents={"other": echo}, store=store) as control:
            for name in (None, "s"):
                await control.wait((await control.send(name, "hello", kind="agent")).run_id, drained=True)
            await until(lambda: control.feed.log._count == 0)
            known = {row.session for row in await store.runs(None)}
            assert len(known) == 4 and [info.session.id for info in await store.sessions(limit=10)] == ["s"]
            assert (await store.prune(before=0.0)).sessions == 0
            assert (await store.prune(before=time.time() + 60)).sessions == 2
            assert await store.runs(None) == () == await store.sessions(limit=10)
            assert [await store.session(name) for name in known] == [None] * 4

    play(main)


def test_a_long_log_is_shortened_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each piece the writer is free: a decision is answered while most of the log is yet to go."""
    monkeypatch.setattr(bounds, "LOG_EVENTS", 10)
    monkeypatch.setattr(pruning, "PIECE_EVENTS", 20)

    async def main() -> None:
        store, left = made(tmp_path), list[int]()
        await store.open()
        log = Unwritten(store)
        for position in range(1, 101):
            log.append(block(position))
        await store.decide(admit("r"))
        assert count(tmp_path, "events") == 100

        async def write(work: Callable[[sqlite3.Connection], Any], /) -> Any:
            assert store._writer is not None
            done = await store._writer.chore(work)
            await store.decide(admit(f"r{len(left)}"))
            left.append(count(tmp_path, "events"))
            return done

        gone = await pruning.prune(store._ask, write, before=0.0, keep_days=FOREVER_DAYS)
        assert gone.events == 90 and left[-1] == 10
        assert max(before - after for before, after in zip([100, *left], left, strict=False)) <= 21
        assert (await log.events(S, after=0, limit=100)).lost_to == 90
        await store.close()

    play(main)


def test_a_tool_that_was_done_stays_done_when_its_log_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long run's log was shortened before the crash: its finished calls are not told as interrupted by the next."""
    monkeypatch.setattr(bounds, "LOG_EVENTS", 12)
    (tmp_path / "after").mkdir()

    async def main() -> None:
        done = asyncio.Event()

        async def works(run: Run, message: Message) -> str:
            async def step(n: int) -> int:
                return n

            for n in range(10):
                await run.call(step, n=n)
            done.set()
            return await asyncio.Event().wait() and ""

        store = made(tmp_path / "before")
        async with open_control(works, store=store, settings=QUICK) as control:
            sent = await control.send("s", "go")
            await done.wait()
            await until(lambda: control.feed.log._count == 0)
            assert (await store.prune()).events > 10
            with database(tmp_path / "before") as live, database(tmp_path / "after") as copy:
                live.backup(copy)  # the copy holds what a kill -9 would leave
        async with open_control(works, store=made(tmp_path / "after"), settings=QUICK) as control:
            outcome = await control.wait(sent.run_id)
            assert outcome.ending is Ending.LOST
            assert [each.state for each in await control._store.tools(sent.run_id)] == [ToolState.FINISHED] * 10
            receipt = await control.receipt(sent.run_id)
            assert [each for each in receipt.tools if each.state is not ToolState.FINISHED] == []
            page = await control.feed.log.events(S, after=0, limit=1_000)
            told = [each.data.state for each in page.events if isinstance(each.data, Tool)]
            assert set(told) <= {ToolState.PENDING, ToolState.RUNNING, ToolState.FINISHED}
            assert not [each for each in page.events if isinstance(each.data, MessageData)], (
                "the message was told again"
            )

    play(main)


def sizes(directory: Path) -> tuple[int, int]:
    database = directory / "interlock.db"
    return database.stat().st_size, database.with_name("interlock.db-wal").stat().st_size


@pytest.mark.parametrize("what", ["decisions", "events"])
def test_the_write_ahead_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Under constant writing the log's pages go into the database and its room is used again."""
    checkpoint = checkpoints.Checkpoints._checkpoint

    def while_somebody_writes(self: Any, connection: sqlite3.Connection, how: str) -> None:
        with closing(sqlite3.connect(self._path, isolation_level=None)) as before:
            if how == "PASSIVE":
                # A passive checkpoint cannot copy what is written while this reader's snapshot is open.
                before.execute("BEGIN").execute("SELECT count(*) FROM sqlite_master").fetchone()
                asyncio.run_coroutine_threadsafe(decided(), loops[0]).result(30)
            checkpoint(self, connection, how)

    async def decided() -> None:
        with suppress(StoreFailed):  # the store may be closing
            await stores[0].decide(Decision(sessions=(SessionRow(id=S, owner=ALICE, generation=next(rising)),)))

    async def main() -> None:
        monkeypatch.setattr(checkpoints, "CHECKPOINT_BYTES", 300_000)
        monkeypatch.setattr(checkpoints, "RESTART_BYTES", 1_000_000)
        monkeypatch.setattr(checkpoints.Checkpoints, "_checkpoint", while_somebody_writes)
        store = made(tmp_path)
        stores.append(store)
        loops.append(asyncio.get_running_loop())
        await store.open()
        log = Unwritten(store)
        for n in range(1, 401):
            if what == "decisions":
                await store.decide(Decision(wakes=(wake(n),)))
            else:
                log.append(event(n, Block(text="x" * 10_000)))
            if n % 10 == 0:
                # Without this wait the disk's speed would decide how much is written between two looks.
                store._flush_now()
                await until(lambda: looked(store._writer))
            assert sizes(tmp_path)[1] <= 1_300_000
        await store.close()

    def looked(at: Any) -> bool:
        copying = at._checkpoints._copying
        return not at._due and not at.events._lasting and (copying is None or not copying.is_alive())

    def wake(n: int) -> WakeRow:
        return WakeRow(id=WakeId(f"w{n % 5}"), session=S, principal=ALICE, text="x" * 10_000, since=float(n))

    stores: list[SqliteStore] = []
    loops: list[asyncio.AbstractEventLoop] = []
    rising = itertools.count(1)
    play(main)


def test_closing_leaves_one_file(tmp_path: Path) -> None:
    """After a close everything is in the database: no log beside it, so that one file can be copied away."""

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        log = Unwritten(store)
        await store.decide(admit("r"))
        log.append(event(1, MessageData(text="hi", by=ALICE)))
        assert await store.run(RunId("r")) is not None
        await store.close()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["interlock.db", "lock"]

    play(main)


def test_sessions_are_forgotten_by_age(tmp_path: Path) -> None:
    """A session in which nobody wrote for long goes with all it has; one that lives, waits or is scheduled stays."""

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        log = Unwritten(store)
        sessions = [SessionId(name) for name in ("old", "alive", "due", "young")]
        rows = tuple(SessionRow(id=name, owner=ALICE, generation=1) for name in sessions)
        done = tuple(
            run(f"r-{name}", over=name != "alive", session=name, at=9_000.0 if name == "young" else 10.0)
            for name in sessions
        )
        schedule = WakeRow(id=WakeId("w"), session=SessionId("due"), principal=ALICE, text="look", since=1.0)
        tools = tuple(
            ToolRow(
                call_id=CallId(f"{row.id}.1"), run_id=row.id, name="t", arguments=Json("{}"), state=ToolState.FINISHED
            )
            for row in done
        )
        for n, name in enumerate(sessions, 1):
            log.append(event(n, MessageData(text="hi", by=ALICE), f"r-{name}", name))
        admitted = tuple(row for row in done if row.outcome is None)
        over = tuple(row for row in done if row.outcome is not None)
        await store.decide(Decision(sessions=rows, admissions=admitted, endings=over, wakes=(schedule,), tools=tools))
        pruned = await store.prune(before=5_000.0)
        assert (pruned.sessions, pruned.runs) == (1, 1)
        for name in sessions:
            kept = name != "old"
            assert (await store.session(name) is not None) is kept
            assert bool(await store.runs(name)) is kept
            assert bool(await store.tools(RunId(f"r-{name}"))) is kept
            assert bool((await log.events(name, after=0, limit=9)).events) is kept
        assert (await store.prune(before=5_000.0)).sessions == 0
        await store.close()

    play(main)


def test_a_new_session_without_runs_is_not_old(tmp_path: Path) -> None:
    """A session that was only configured or reset is not forgotten an hour later: its owner, generation, strategy."""

    async def main() -> None:
        store = SqliteStore(tmp_path)  # with the age that people have
        await store.open()
        row = SessionRow(id=S, owner=ALICE, generation=3)
        await store.decide(Decision(sessions=(row,)))
        await store.prune()
        assert await store.session(S) == row
        await store.close()

    play(main)
