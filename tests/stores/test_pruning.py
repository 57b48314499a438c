"""Pruning: each principal keeps its keys, sessions go by age, and a shortened log changes no ending."""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from interlock import Ending, MemoryStore, Message, Run, ToolState, open_control
from interlock.core.decision import Decision, KeyRow
from interlock.core.events import Said, Tool
from interlock.core.names import Principal, RunId
from interlock.stores import bounds
from interlock.stores.base import Store
from interlock.stores.sqlite import pruning

from .scene import ALICE, FOREVER_DAYS, MALLORY, QUICK, S, admit, block, count, database, echo, made, play, run, until


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
    """`Run:x` is anybody's session: it is listed, and forgotten when it is old."""

    async def main() -> None:
        store = made(tmp_path)
        async with open_control(echo, store=store) as control:
            for name in ("Run:x", "other"):
                await control.wait((await control.send(name, "hello")).run_id, drained=True)
            await until(lambda: store._pending_count == 0)
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
            await until(lambda: store._pending_count == 0)
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
        for position in range(1, 101):
            store.append(block(position))
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
        assert (await store.events(S, after=0, limit=100)).lost_to == 90
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
            await until(lambda: store._pending_count == 0)
            assert (await store.prune()).events > 10
            with database(tmp_path / "before") as live, database(tmp_path / "after") as copy:
                live.backup(copy)  # what a kill -9 would leave here
        async with open_control(works, store=made(tmp_path / "after"), settings=QUICK) as control:
            outcome = await control.wait(sent.run_id)
            assert outcome.ending is Ending.LOST
            assert [each.state for each in await control._store.tools(sent.run_id)] == [ToolState.FINISHED] * 10
            receipt = await control.receipt(sent.run_id)
            assert [each for each in receipt.tools if each.state is not ToolState.FINISHED] == []
            page = await control._store.events(S, after=0, limit=1_000)
            told = [each.data.state for each in page.events if isinstance(each.data, Tool)]
            assert set(told) <= {ToolState.PENDING, ToolState.RUNNING, ToolState.FINISHED}
            assert not [each for each in page.events if isinstance(each.data, Said)], "the message was told again"

    play(main)
