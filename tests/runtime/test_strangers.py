"""A thread or body that an inline run may have left at work is named; one that was seen idle or gone is not."""

import _thread
import asyncio
import contextlib
import gc
import linecache
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import anyio.to_thread
import pytest

from interlock import Control, Drain, Message, Receipt, Run, Settings, open_control
from interlock.agent import pools
from interlock.core.names import BodyState

BOUND_SECONDS = 30.0
SHORT = Settings(grace_seconds=0.05, drain_seconds=0.2)
PATIENT = Settings(grace_seconds=BOUND_SECONDS, drain_seconds=BOUND_SECONDS)

Agent = Callable[[Run, Message], Awaitable[str | None]]


def play(main: Callable[[], Awaitable[None]]) -> None:
    """Run a test on a real loop, bounded."""

    async def bounded() -> None:
        async with asyncio.timeout(3 * BOUND_SECONDS):
            await main()

    asyncio.run(bounded())


async def over(control: Control, run_id: str) -> Receipt:
    """Wait until a run is drained; return its receipt."""
    await control.wait(run_id, drained=True)
    return await control.receipt(run_id)


class Library:
    """Something that makes threads of its own, and lets go of them when it is told to."""

    def __init__(self) -> None:
        self.works = threading.Event()
        self.enough = threading.Event()

    def work(self) -> None:
        """Be busy until it is enough."""
        self.works.set()
        self.enough.wait(3 * BOUND_SECONDS)

    def start(self, name: str) -> threading.Thread:
        """Be busy in a thread."""
        thread = threading.Thread(target=self.work, name=name, daemon=True)
        thread.start()
        return thread


@contextlib.asynccontextmanager
async def opened(agent: Agent, library: Library, settings: Settings) -> AsyncIterator[Control]:
    """Open a control whose agent uses a library; its threads go before the control does."""
    async with open_control(agent, settings=settings) as control:
        try:
            yield control
        finally:
            library.enough.set()


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "completed"])
def test_a_thread_that_a_library_made_is_named(stopped: bool) -> None:
    """A thread that is there after the run, and was not before, is no proof that nothing acts: `unconfirmed`, named."""
    library = Library()

    async def agent(run: Run, message: Message) -> None:
        library.start("poller of a library")
        if stopped:
            await asyncio.sleep(3600)

    async def main() -> None:
        async with opened(agent, library, SHORT) as control:
            sent = await control.send("s", "go")
            await asyncio.to_thread(library.works.wait)
            if stopped:
                await control.stop(session="s")
            receipt = await over(control, sent.run_id)
            assert receipt.drain is Drain.UNCONFIRMED
            [named] = receipt.unconfirmed
            assert named.startswith(f"threads of {sent.run_id}") and "poller of a library" in named
            assert receipt.runs[0].body is (BodyState.CUT if stopped else BodyState.RETURNED)

    play(main)


def test_a_thread_without_a_name_is_named_all_the_same() -> None:
    """A thread that a library started without `threading` runs Python: it is seen."""
    library = Library()

    async def agent(run: Run, message: Message) -> None:
        _thread.start_new_thread(library.work, ())
        await asyncio.sleep(3600)

    async def main() -> None:
        async with opened(agent, library, SHORT) as control:
            sent = await control.send("s", "go")
            await asyncio.to_thread(library.works.wait)
            await control.stop(session="s")
            receipt = await over(control, sent.run_id)
            assert receipt.drain is Drain.UNCONFIRMED
            assert "a thread without a name" in receipt.unconfirmed[0]

    play(main)


def test_a_thread_that_ends_within_the_bound_is_waited_for() -> None:
    """The drain waits for the thread, and says `observed` once it is gone."""
    library = Library()

    async def agent(run: Run, message: Message) -> None:
        library.start("poller of a library")

    async def main() -> None:
        async with opened(agent, library, PATIENT) as control:
            sent = await control.send("s", "go")
            await control.wait(sent.run_id)
            assert (await control.receipt(sent.run_id)).drain is Drain.PENDING
            library.enough.set()
            receipt = await over(control, sent.run_id)
            assert (receipt.drain, receipt.unconfirmed) == (Drain.OBSERVED, ())

    play(main)


def test_threads_that_were_there_before_are_not_the_run_s() -> None:
    """A thread that the embedder had before a run is not charged to the run."""
    library = Library()

    async def agent(run: Run, message: Message) -> str:
        return "done"

    async def main() -> None:
        library.start("embedder")
        async with opened(agent, library, SHORT) as control:
            sent = await control.send("s", "go")
            receipt = await over(control, sent.run_id)
            assert (receipt.drain, receipt.unconfirmed) == (Drain.OBSERVED, ())

    play(main)


async def in_the_loop_s_pool(work: Callable[[], None]) -> None:
    """Use asyncio's own pool."""
    await asyncio.to_thread(work)


async def in_anyio_s_pool(work: Callable[[], None]) -> None:
    """Use anyio's pool."""
    await anyio.to_thread.run_sync(work, abandon_on_cancel=True)


async def in_a_pool_of_its_own(work: Callable[[], None]) -> None:
    """Use an executor that is left as it is."""
    await asyncio.get_running_loop().run_in_executor(ThreadPoolExecutor(1), work)


POOLS = [in_the_loop_s_pool, in_anyio_s_pool, in_a_pool_of_its_own]


@pytest.mark.parametrize("pool", POOLS)
def test_a_thread_of_a_pool_that_waits_for_work_is_seen_idle(pool: Callable[..., Awaitable[None]]) -> None:
    """A polite agent that used a thread pool has `observed`: its threads are there, and are seen to be idle."""

    async def agent(run: Run, message: Message) -> None:
        await pool(lambda: None)

    async def main() -> None:
        async with open_control(agent, settings=PATIENT) as control:
            sent = await control.send("s", "go")
            receipt = await over(control, sent.run_id)
            assert (receipt.drain, receipt.unconfirmed) == (Drain.OBSERVED, ())

    play(main)


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("warm", [False, True], ids=["new", "there before"])
def test_a_thread_of_a_pool_that_is_at_work_is_named(pool: Callable[..., Awaitable[None]], warm: bool) -> None:
    """Work that a stopped agent left in a pool goes on; a thread that was idle before the run is named as well."""
    library = Library()

    async def agent(run: Run, message: Message) -> None:
        await pool(library.work)

    async def main() -> None:
        if warm:
            await pool(lambda: None)
        async with opened(agent, library, SHORT) as control:
            sent = await control.send("s", "go")
            while not library.works.is_set():
                await asyncio.sleep(0.002)
            await control.stop(session="s")
            receipt = await over(control, sent.run_id)
            assert receipt.drain is Drain.UNCONFIRMED
            assert [name.startswith(f"threads of {sent.run_id}") for name in receipt.unconfirmed] == [True]

    play(main)


def test_a_thread_is_charged_to_every_run_that_ran_when_it_began() -> None:
    """A thread that began while two runs ran is charged to both: nobody can say for which of them it acts."""
    library = Library()
    waits, made = asyncio.Event(), asyncio.Event()

    async def agent(run: Run, message: Message) -> None:
        if message.text == "makes":
            library.start("whose?")
            made.set()
        else:
            waits.set()
            await made.wait()

    async def main() -> None:
        async with opened(agent, library, SHORT) as control:
            looks_on = await control.send("a", "looks on")
            await waits.wait()
            makes = await control.send("b", "makes")
            for sent in (looks_on, makes):
                receipt = await over(control, sent.run_id)
                assert receipt.drain is Drain.UNCONFIRMED
                assert "whose?" in receipt.unconfirmed[0]
            library.enough.set()
            later = await over(control, (await control.send("a", "looks on")).run_id)
            assert (later.drain, later.unconfirmed) == (Drain.OBSERVED, ())

    play(main)


def test_a_body_that_was_dropped_is_not_observed() -> None:
    """An agent that swallows its cancel is never resumed after its grace: the receipt says that nobody saw its end."""
    began = asyncio.Event()

    async def agent(run: Run, message: Message) -> None:
        began.set()
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)

    async def main() -> None:
        async with open_control(agent, settings=SHORT) as control:
            sent = await control.send("s", "go")
            await began.wait()
            await control.stop(session="s")
            receipt = await over(control, sent.run_id)
            assert (receipt.drain, receipt.runs[0].body) == (Drain.UNCONFIRMED, BodyState.ABANDONED)
            assert receipt.unconfirmed == (f"agent of {sent.run_id} (never resumed)",)

    play(main)


def test_nothing_is_collected_while_threads_are_looked_at() -> None:
    """No garbage collection runs inside sys._current_frames, where CPython 3.11 could wait for itself for ever."""
    found: list[bool] = []

    def collecting(phase: str, _info: dict[str, int]) -> None:
        where = sys._getframe(1)
        line = linecache.getline(pools.__file__, where.f_lineno)
        found.append(where.f_code is pools._frames.__code__ and "_current_frames" in line)

    before, enabled = gc.get_threshold(), gc.isenabled()
    gc.enable()
    gc.callbacks.append(collecting)
    gc.set_threshold(1)
    try:
        for _ in range(20):
            pools._frames()
            [[] for _ in range(10)]
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(collecting)
        if not enabled:
            gc.disable()
    assert found and not any(found)
