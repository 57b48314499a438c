"""What a hostile review of the durable store found, one test for each finding."""

import asyncio
import contextlib
import enum
import os
import resource
import shutil
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from interlock import BadInput, Ending, MemoryStore, Message, Run, Settings, ToolState, open_control, tool
from interlock.core.decision import Decision, KeyRow, RunRow
from interlock.core.events import Block, Event, Said, Tool
from interlock.core.names import Principal, RunId, RunKind, SessionId
from interlock.core.outcome import Outcome
from interlock.look.forgetting import forget
from interlock.runtime import control as controls
from interlock.stores import bounds
from interlock.stores.base import Store, StoreFailed, Ticket, Unsure
from interlock.stores.sqlite import SqliteStore, pruning, writer
from interlock.stores.sqlite import store as stores

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


# The line of decisions


class Switching(dict[Ticket, None]):
    """A line whose reader is switched out as soon as it has read the whole of it."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self._meanwhile = meanwhile

    def __iter__(self) -> Iterator[Ticket]:
        yield from list(super().__iter__())
        self._meanwhile()


def test_a_decision_that_comes_while_the_line_is_taken_is_answered(tmp_path: Path) -> None:
    """The writer has read its line and not yet emptied it, and another decision comes: that one is written next."""

    async def main() -> None:
        loop, came, late = asyncio.get_running_loop(), threading.Event(), list[Ticket]()
        store = made(tmp_path)
        await store.open()

        def come() -> None:
            if not late:
                late.append(store.decide(admit("late")))
            came.set()

        def meanwhile() -> None:  # in the writer's thread
            loop.call_soon_threadsafe(come)
            came.wait(1)  # not for ever: the writer may also keep the other waiting

        assert store._writer is not None
        store._writer._line = Switching(meanwhile)
        await store.decide(admit("first"))
        await until(lambda: bool(late))
        assert await late[0].within(SECONDS), "it was lost, and its sender waits for ever"
        assert {row.id for row in await store.runs(S)} == {"first", "late"}
        await store.close()

    play(main)


@contextlib.contextmanager
def hanging(store: SqliteStore, text: str) -> Iterator[threading.Event]:
    """The writer hangs in the commit of a text until this is left; what is yielded says that it does."""
    written, hangs, goes_on = threading.Event(), threading.Event(), threading.Event()

    def hang(statement: str) -> None:
        if text in statement:
            written.set()
        elif statement == "COMMIT" and written.is_set():
            hangs.set()
            goes_on.wait(SECONDS)

    assert store._writer is not None
    store._writer._connection.set_trace_callback(hang)
    try:
        yield hangs
    finally:
        goes_on.set()


def test_who_sends_while_a_hanging_disk_is_closed_is_not_told_that_nothing_was_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit of a message hangs while the server closes: its sender hears that nobody knows; and it is in."""
    monkeypatch.setattr(controls, "SLACK_SECONDS", 0.2)

    async def busy(run: Run, message: Message) -> str:
        if message.text == "long":
            await asyncio.Event().wait()
        return "done"

    async def main() -> None:
        store = made(tmp_path)
        async with contextlib.AsyncExitStack() as block:
            control = await block.enter_async_context(open_control(busy, store=store, settings=QUICK))
            await control.send("s", "long")
            hangs = block.enter_context(hanging(store, "pay-the-bill"))
            sent = asyncio.create_task(control.send("s", "pay-the-bill", key="k", strategy="queue"))
            await until(hangs.is_set)
            await control.close()
            with pytest.raises(Unsure, match="not known; send it again with the same key"):
                await sent
        await until(lambda: store._hold is None)
        async with open_control(busy, store=made(tmp_path), settings=QUICK) as control:
            again = await control.send("s", "pay-the-bill", key="k", strategy="queue")
            assert (await control.wait(again.run_id)).ending is Ending.COMPLETED
            assert len(await control.runs("s")) == 2

    play(main)


# Texts and keys


@pytest.mark.parametrize("when", ["before it came", "while it came"])
def test_what_ended_before_its_session_was_anybody_s_leaves_no_text_after_a_crash(tmp_path: Path, when: str) -> None:
    """Alice's message was stopped, then Bob founds the session: the next start does not tell him what it said."""

    async def main() -> None:
        async with open_control(echo, store=made(tmp_path)) as control:
            if when == "before it came":
                await control.stop(message="k", by="alice")
            first = asyncio.create_task(control.send("s", "ALICE-SECRET", by="alice", key="k"))
            await asyncio.sleep(0)  # hers is the first in the session's line
            if when == "while it came":
                await control.stop(message="k", by="alice")
            second = await control.send("s", "hello", by="bob")
            ended = await control.wait((await first).run_id)
            await control.wait(second.run_id, by="bob", drained=True)
            assert ended.ending is Ending.STOPPED
        with database(tmp_path) as other:  # as if it had been killed before these were written
            gone = other.execute("DELETE FROM events WHERE run_id = ?", (ended.run_id,)).rowcount
            other.execute("UPDATE runs SET told = 0 WHERE id = ?", (ended.run_id,))
            assert gone > 0
        async with open_control(echo, store=made(tmp_path)) as control:
            page = await control._store.events(S, after=0, limit=1_000)
            told = {each.data.by: each.data.text for each in page.events if isinstance(each.data, Said)}
            assert told == {"alice": "", "bob": "hello"}
            assert "ALICE-SECRET" not in repr(page)
            assert "ALICE-SECRET" not in repr(
                [*await control.history("s", by="bob"), *await control.runs("s", by="bob")]
            )

    play(main)


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


# Events that wait for the disk


class Walked(deque[Event]):
    """A line of events that counts how often somebody walks all of it."""

    walks = 0

    def __iter__(self) -> Iterator[Event]:
        self.walks += 1
        return super().__iter__()


def test_events_that_nobody_wants_are_passed_over_and_not_searched_for(tmp_path: Path) -> None:
    """To forget events walks no line below the bound, however often; what is forgotten is not written, the rest is."""

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        assert store._writer is not None
        line = store._writer._lasting = Walked()
        with locked(tmp_path):
            events = [block(position) for position in range(1, 101)]
            for event in events:
                store.append(event)
            for event in events[::2]:
                store._writer.forget([event])
            assert line.walks == 0 and store._writer._lasting is line
        await store.decide(admit("r"))
        with database(tmp_path) as other:
            written = [row[0] for row in other.execute("SELECT position FROM events ORDER BY position")]
        assert written == list(range(2, 101, 2))
        assert store._writer._forgotten == set()
        await store.close()

    play(main)


def test_what_is_forgotten_is_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound the lines are walked once, for all that was forgotten until then."""
    monkeypatch.setattr(writer, "FORGOTTEN", 10)

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        assert store._writer is not None
        line = store._writer._lasting = Walked()
        with locked(tmp_path):
            events = [block(position) for position in range(1, 101)]
            for event in events:
                store.append(event)
            for event in events[:11]:
                store._writer.forget([event])
            assert line.walks == 1 and store._writer._forgotten == set()
            assert len(store._writer._lasting) == 89
        await store.close()

    play(main)


def test_room_for_events_is_made_for_many_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When too many wait, a tenth goes at once, also where each session has but one: not a search for each event."""
    monkeypatch.setattr(stores, "PENDING_EVENTS", 100)

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        with locked(tmp_path):
            for n in range(100):
                store.append(block(n + 1, SessionId(f"s{n}")))
            store.append(block(101, SessionId("last")))
            assert store._pending_count == 91
            assert len(store._dropped) == 10 and len(store._pending) == 91
        await store.close()
        assert count(tmp_path, "events") == 91

    play(main)


# The directory


def test_whoever_changes_directory_later_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store in a relative directory stays where it was opened: it is written, read and pruned there."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        store = made("data")
        await store.open()
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert store.path == tmp_path / "data" / "interlock.db"
        await store.decide(admit("r"))
        await store.prune()
        assert await store.run(RunId("r")) == run("r")
        await store.close()
        assert list((tmp_path / "elsewhere").iterdir()) == []
        assert count(tmp_path / "data", "runs") == 1

    play(main)


@pytest.mark.parametrize("how", ["removed", "moved", "replaced"])
def test_nothing_is_acknowledged_into_a_file_that_nobody_will_find(tmp_path: Path, how: str) -> None:
    """The directory goes away under a store: what is sent then is not acknowledged, and nothing more is taken."""
    state = tmp_path / "state"

    async def main() -> None:
        store = made(state)
        await store.open()
        await store.decide(admit("r"))
        if how == "removed":
            shutil.rmtree(state)
        else:
            state.rename(tmp_path / "moved")
        if how == "replaced":
            await opens(state)
        for name in ("lost", "refused"):
            with pytest.raises(Unsure, match="removed or replaced"):
                await store.decide(admit(name))
        await store.close()
        if how == "replaced":
            assert count(state, "runs") == 0

    play(main)


def test_nor_by_a_second_try(tmp_path: Path) -> None:
    """A decision that did not fit with the events that waited is tried alone, and into the same file."""
    state, commits = tmp_path / "state", list[str]()

    async def main() -> None:
        store = made(state)
        await store.open()
        assert store._writer is not None
        connection = store._writer._connection

        def fail_once(statement: str) -> None:
            if statement == "COMMIT":
                commits.append(statement)
                if len(commits) == 1:
                    connection.interrupt()

        connection.set_trace_callback(fail_once)
        shutil.rmtree(state)
        store.append(block(1))
        with pytest.raises(Unsure, match="removed or replaced"):
            await store.decide(admit("lost"))
        assert len(commits) == 2
        await store.close()

    play(main)


@contextlib.contextmanager
def no_room() -> Iterator[None]:
    """No file of this process can become longer, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_start_on_a_full_disk_lets_go_of_the_directory(tmp_path: Path) -> None:
    """The lock is had and its file cannot be written: the same process can try again, and comes in with room."""

    async def main() -> None:
        for _ in range(2):
            store = made(tmp_path)
            with no_room(), pytest.raises(StoreFailed, match=r"cannot be opened: .*too large"):
                await store.open()
        await opens(tmp_path)

    play(main)


@pytest.mark.parametrize("times", [1, 2])
def test_a_cancelled_start_lets_go_of_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Cancelled while its thread waits for the lock, which that has only afterwards: it is given back."""
    monkeypatch.setattr(stores, "HOLD_TRIES", 1_000)

    def handles() -> int:
        return sum(os.path.realpath(each) == str(tmp_path / "lock") for each in Path("/proc/self/fd").iterdir())

    async def main() -> None:
        holder, store = made(tmp_path), made(tmp_path)
        await holder.open()
        opening = asyncio.create_task(store.open())
        await until(lambda: handles() == 2)
        for _ in range(times):
            opening.cancel()
            for _ in range(3):
                await asyncio.sleep(0)  # it has heard of that before the lock is free
        await holder.close()
        with pytest.raises(asyncio.CancelledError):
            await opening

    play(main)  # and its thread is done
    assert handles() == 0
    play(lambda: opens(tmp_path))


def test_a_slow_read_does_not_keep_the_directory(tmp_path: Path) -> None:
    """A read that takes longer than a close may: the writer is closed all the same, and the directory free."""
    assert 2 * stores.LAST_READ_SECONDS < controls.SLACK_SECONDS, "the close is given up before the writer hears of it"
    reads, goes_on = threading.Event(), threading.Event()

    def slow(db: sqlite3.Connection) -> bool:
        reads.set()
        return goes_on.wait(SECONDS)

    async def main() -> None:
        store = made(tmp_path)
        async with open_control(echo, store=store):
            reading = asyncio.create_task(store._ask(slow))
            await until(reads.is_set)
        await until(lambda: store._hold is None)
        await opens(tmp_path)
        assert not reading.done()
        goes_on.set()
        assert await reading

    try:
        play(main)
    finally:
        goes_on.set()


@pytest.mark.parametrize("bad", [{"admins": 5}, {"readers": 5}, {"confinement": 5}], ids=str)
def test_a_bad_argument_lets_go_of_the_directory(tmp_path: Path, bad: dict[str, Any]) -> None:
    """What is wrong with how a control was opened may be found when its store is open: that is closed again."""

    async def main() -> None:
        with pytest.raises(Exception, match=r".") as found:
            async with open_control(echo, store=made(tmp_path), **bad):
                pass
        assert not isinstance(found.value, StoreFailed)
        await opens(tmp_path)

    play(main)


def test_pruning_from_outside_lets_go_of_the_directory(tmp_path: Path) -> None:
    """After `interlock prune` no lock is counted as held: a fork would close whatever has its number by then."""

    async def main() -> None:
        await opens(tmp_path)
        held = set(stores._HELD)
        await forget(tmp_path, 0.0, dry_run=False)
        assert held == stores._HELD
        await opens(tmp_path)

    play(main)


@pytest.mark.parametrize(
    ("name", "error"), [("~nobody-of-this-name/x", BadInput), ("nul\0byte", StoreFailed)], ids=["home", "nul"]
)
def test_a_directory_that_cannot_be_is_refused(name: str, error: type[Exception]) -> None:
    """A home of nobody and a name that no file can have are refused in our own words."""

    async def main() -> None:
        with pytest.raises(error, match=r"is no directory for a store|cannot be opened"):
            async with open_control(echo, store=f"sqlite:///{name}"):
                pass

    play(main)


# What comes in at the door


class Seconds(float):
    """As numpy's are: a number that shows itself otherwise."""

    def __repr__(self) -> str:
        return f"Seconds({float(self)})"


class Level(enum.IntEnum):
    FIVE = 5


@pytest.mark.parametrize("at", [Seconds(5), Level.FIVE], ids=["float", "int"])
def test_a_place_in_a_channel_may_be_of_a_kind_of_number(tmp_path: Path, at: float) -> None:
    """It is kept as the plain number, so that the session can be loaded again, and still counts after a restart."""

    async def main() -> None:
        async with open_control(echo, store=made(tmp_path)) as control:
            await control.wait((await control.send("s", "hello")).run_id)
            await control.stop(session="s", order=("chat", at))
        async with open_control(echo, store=made(tmp_path)) as control:
            (mark,) = (await control._store.load(S, principal=ALICE, key=None)).marks
            assert mark.at == 5 and type(mark.at) in (int, float)
            before = await control.send("s", "before it", order=("chat", 4))
            behind = await control.send("s", "behind it", order=("chat", 6))
            assert (await control.wait(before.run_id)).ending is Ending.STOPPED
            assert (await control.wait(behind.run_id)).ending is Ending.COMPLETED

    play(main)


def test_a_tool_s_name_is_checked_at_the_door(tmp_path: Path) -> None:
    """A name that no store could hold is refused where it is given, and the run has a durable end."""

    async def plain() -> str:
        return "done"

    with pytest.raises(BadInput, match="a tool's name"):
        tool(name="t\ud800")(plain)

    async def calls(run: Run, message: Message) -> str:
        async def named() -> str:
            return "done"

        named.__name__ = message.text * 1_000_000
        with pytest.raises(BadInput, match="a tool's name"):
            await run.call(named)
        return "refused"

    async def main() -> None:
        async with open_control(calls, store=made(tmp_path)) as control:
            outcome = await control.wait((await control.send("s", "x")).run_id, drained=True)
            assert (outcome.ending, outcome.text, outcome.durable) == (Ending.COMPLETED, "refused", True)

    play(main)


@pytest.mark.parametrize("after", [2**63, 2**200, -1])
def test_a_position_that_no_event_can_have_is_refused(tmp_path: Path, after: int) -> None:
    """A number that the database cannot hold is the caller's mistake, and not the store's failure."""

    async def main() -> None:
        async with open_control(echo, store=made(tmp_path)) as control:
            await control.wait((await control.send("s", "hello")).run_id)
            with pytest.raises(BadInput, match="an event's position"):
                await anext(control.watch("s", after=after))

    play(main)


# Forgetting


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
