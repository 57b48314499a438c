"""Reads of the durable store: each sees one instant, whole pages, and leaves the store free to close and open."""

import asyncio
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from interlock.core.decision import Decision, RunRow, SessionRow, StopMark
from interlock.core.events import Block, Delta
from interlock.core.names import RunId, RunKind, SessionId
from interlock.runtime.unwritten import Unwritten
from interlock.stores.sqlite import store as stores

from .scene import ALICE, SECONDS, S, admit, count, ended, event, locked, made, play, run, until


def test_pages_are_full_though_deltas_are_left_out(tmp_path: Path) -> None:
    """The deltas of a run that has just ended are no part of a page, and a page is not shorter for them."""

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        log = Unwritten(store)
        for n in range(1, 2_001):
            log.append(event(n, Block(text="x") if n % 4 == 0 else Delta(text="x")))
        store._flush_now()
        await until(lambda: log._count == 0)
        with locked(tmp_path):
            # The end cannot be written, so the deltas are still in the database.
            log.append(ended(2_001))
            assert count(tmp_path, "passing") == 1_500
            pages, after = [], 0
            while (page := await log.events(S, after=after, limit=256)).events:
                pages.append([each.position for each in page.events])
                after = page.events[-1].position
        assert [len(each) for each in pages] == [256, 245]
        assert [position for each in pages for position in each] == [*range(4, 2_001, 4), 2_001]
        await store.close()

    play(main)


def test_a_page_leaves_out_nothing_that_comes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that goes on after a page's last position has seen all before it, also what came during the read."""

    async def main() -> None:
        # Only decisions write then, and they leave waiting deltas unwritten.
        monkeypatch.setattr(stores, "FLUSH_SECONDS", 3_600.0)
        store = made(tmp_path)
        await store.open()
        log = Unwritten(store)
        busy = threading.Event()
        waits = store._ask(lambda db: busy.wait(SECONDS))
        await asyncio.sleep(0)
        reading = asyncio.create_task(log.events(S, after=0, limit=9))
        await asyncio.sleep(0)
        log.append(event(1, Delta(text="he")))
        log.append(event(2, Block(text="hello")))
        await store.decide(admit("r"))
        busy.set()
        await waits
        seen = [each.position for each in (await reading).events]
        later = (await log.events(S, after=seen[-1] if seen else 0, limit=9)).events
        assert seen + [each.position for each in later] == [1, 2]
        await store.close()

    play(main)


@pytest.mark.parametrize("read", ["load", "tree"])
def test_a_read_sees_one_instant(tmp_path: Path, read: str) -> None:
    """A read of several parts that a commit comes between tells all of before or all of after."""

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        child = RunRow(
            id=RunId("c"), session=SessionId("run:c"), principal=ALICE, kind=RunKind.CHILD, text="", admitted_at=1.0,
            parent=RunId("r"), home=S,
        )  # fmt: skip
        decision = Decision(
            sessions=(SessionRow(id=S, owner=ALICE, generation=1),),
            admissions=(run("r"), child),
            marks=(StopMark(session=S, channel="c", by=ALICE, at=1, stopped_at=1.0),),
        )
        begun, go_on = threading.Event(), threading.Event()
        last = "FROM marks" if read == "load" else "WHERE home ="

        def look(statement: str) -> None:
            if last in statement:
                begun.set()
                go_on.wait(SECONDS)

        await store._ask(lambda db: db.set_trace_callback(look))
        asking = store.load(S, principal=ALICE, key="k") if read == "load" else store.runs(S, tree=True)
        reading = asyncio.create_task(asking)  # type: ignore[arg-type]
        await asyncio.to_thread(begun.wait, SECONDS)
        await store.decide(decision)
        go_on.set()
        found: Any = await reading
        if read == "load":
            assert (found.session is None) == (found.marks == ())
        else:
            assert found in ((), decision.admissions)
        await store._ask(lambda db: db.set_trace_callback(None))
        await store.close()

    play(main)


def test_a_store_is_opened_again_while_a_read_of_before_goes_on(tmp_path: Path) -> None:
    """Closing waits for the reader: the next opening has one of its own, and every read is answered."""

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        busy = threading.Event()
        waits = store._ask(lambda db: busy.wait(0.5))
        await asyncio.sleep(0)
        await store.close()
        await store.open()
        assert await asyncio.gather(*(store.run(RunId("r")) for _ in range(10))) == [None] * 10
        await waits
        assert await store.run(RunId("r")) is None
        await store.close()

    play(main)


def test_a_full_thread_pool_keeps_nobody_from_opening_or_closing(tmp_path: Path) -> None:
    """A store opens and closes without the loop's own threads, which are the embedder's and may all be busy."""

    async def main() -> None:
        busy = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            asyncio.get_running_loop().set_default_executor(pool)
            waits = asyncio.get_running_loop().run_in_executor(None, busy.wait)
            try:
                for _ in range(2):
                    store = made(tmp_path)
                    await store.open()
                    await store.decide(admit("r"))
                    await store.close()
            finally:
                busy.set()
            await waits

    play(main)


def test_a_store_that_is_opened_again_writes_by_itself(tmp_path: Path) -> None:
    """After a close and an opening of the same object events are written soon, though no decision takes them along."""

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        log = Unwritten(store)
        log.append(event(1, Block(text="one")))
        await store.close()
        await store.open()
        log.append(event(2, Block(text="two")))
        await until(lambda: count(tmp_path, "events") == 2)
        await store.close()

    play(main)


def test_deltas_of_a_run_whose_end_is_in_the_log_are_not(tmp_path: Path) -> None:
    """The log holds no deltas of a run whose end a decision took along into the store, also after a kill just then."""

    async def main() -> None:
        store = made(tmp_path / "store")
        await store.open()
        log = Unwritten(store)
        await store.decide(admit("r"))
        log.append(event(1, Delta(text="he")))
        store._flush_now()
        await until(lambda: log._count == 0)
        log.append(event(2, Block(text="hello")))
        log.append(ended(3))
        await store.decide(Decision(endings=(run("r", over=True),)))
        left = tmp_path / "left"
        shutil.copytree(tmp_path / "store", left, ignore=shutil.ignore_patterns("*-shm", "lock"))
        await store.close()
        store = made(left)
        await store.open()
        assert not store.clean
        told = [each.position for each in (await store.events(S, after=0, limit=9)).events]
        kept = await store.run(RunId("r"))
        assert kept is not None
        assert told == [2, 3] and kept.told
        await store.close()

    play(main)
