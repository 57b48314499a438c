"""The writer's thread: every decision is answered, and waiting events are bounded and dropped cheaply."""

import asyncio
import contextlib
import re
import shutil
import sqlite3
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from interlock import Ending, Message, Run, open_control
from interlock.core.decision import Decision, SessionRow
from interlock.core.events import Block, Delta, Ended, Event, MessageData
from interlock.core.names import RunId, SessionId
from interlock.core.outcome import Outcome
from interlock.runtime import control as controls
from interlock.runtime import unwritten
from interlock.runtime.unwritten import Unwritten
from interlock.stores import bounds
from interlock.stores.base import StoreFailed, Ticket, Unsure
from interlock.stores.sqlite import SqliteStore, events, writer

from .scene import (
    ALICE,
    BOUND_SECONDS,
    MALLORY,
    QUICK,
    SECONDS,
    S,
    admit,
    block,
    command,
    count,
    database,
    ended,
    event,
    locked,
    made,
    play,
    run,
    until,
)


class Switching(dict[Ticket, None]):
    """A line whose reader loses the processor as soon as it has read the whole line."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self._meanwhile = meanwhile

    def __iter__(self) -> Iterator[Ticket]:
        yield from list(super().__iter__())
        self._meanwhile()


@contextlib.contextmanager
def hanging(store: SqliteStore, text: str) -> Iterator[threading.Event]:
    """Make the writer hang in the commit of a text until the block is left; the yielded event is set when it hangs."""
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


class Walked(deque[Event]):
    """A line of events that counts how often somebody walks all of it."""

    walks = 0

    def __iter__(self) -> Iterator[Event]:
        self.walks += 1
        return super().__iter__()


def test_a_decision_that_comes_while_the_line_is_taken_is_answered(tmp_path: Path) -> None:
    """A decision that comes when the writer has read its line, and not yet emptied it, is written next."""

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
            came.wait(1)  # bounded: the writer may also keep the other thread waiting

        assert store._writer is not None
        store._writer._line = Switching(meanwhile)
        await store.decide(admit("first"))
        await until(lambda: bool(late))
        assert await late[0].within(SECONDS), "it was lost, and its sender waits for ever"
        assert {row.id for row in await store.runs(S)} == {"first", "late"}
        await store.close()

    play(main)


def test_who_sends_while_a_hanging_disk_is_closed_is_not_told_that_nothing_was_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender whose commit hangs while the server closes hears that the outcome is unknown; the message is in."""
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


def test_events_that_nobody_wants_are_passed_over_and_not_searched_for(tmp_path: Path) -> None:
    """Forgetting events below the bound walks no line; the writer skips what was forgotten and writes the rest."""

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        log = Unwritten(store)
        assert store._writer is not None
        line = store._writer.events._lasting = Walked()
        with locked(tmp_path):
            events = [block(position) for position in range(1, 101)]
            for event in events:
                log.append(event)
            for event in events[::2]:
                store._writer.events.forget([event])
            assert line.walks == 0 and store._writer.events._lasting is line
        await store.decide(admit("r"))
        with database(tmp_path) as other:
            written = [row[0] for row in other.execute("SELECT position FROM events ORDER BY position")]
        assert written == list(range(2, 101, 2))
        assert store._writer.events._forgotten == set()
        await store.close()

    play(main)


def test_what_is_forgotten_is_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store walks its lines once for all that was forgotten, when more than the bound was forgotten."""
    monkeypatch.setattr(events, "FORGOTTEN", 10)

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        log = Unwritten(store)
        assert store._writer is not None
        line = store._writer.events._lasting = Walked()
        with locked(tmp_path):
            events = [block(position) for position in range(1, 101)]
            for event in events:
                log.append(event)
            for event in events[:11]:
                store._writer.events.forget([event])
            assert line.walks == 1 and store._writer.events._forgotten == set()
            assert len(store._writer.events._lasting) == 89
        await store.close()

    play(main)


def test_room_for_events_is_made_for_many_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store drops a tenth at once when too many events wait, so that no event costs a search of its own."""
    monkeypatch.setattr(unwritten, "PENDING_EVENTS", 100)

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        log = Unwritten(store)
        with locked(tmp_path):
            for n in range(100):
                log.append(block(n + 1, SessionId(f"s{n}")))
            log.append(block(101, SessionId("last")))
            assert log._count == 91
            assert len(log._dropped) == 10 and len(log._pending) == 91
        await store.close()
        assert count(tmp_path, "events") == 91

    play(main)


def test_many_decisions_share_an_fsync(tmp_path: Path) -> None:
    """Hundreds of decisions at once cost a handful of fsyncs; one after another costs one each."""
    if shutil.which("strace") is None:
        pytest.skip("strace is missing: apt-get install strace")
    decides = """
        async def main():
            store = SqliteStore(sys.argv[1])
            await store.open()
            if sys.argv[2] == "together":
                other = sqlite3.connect(f"{sys.argv[1]}/interlock.db", isolation_level=None)
                other.execute("BEGIN IMMEDIATE")  # else some are written before the others are there
                tickets = [store.decide(admit(f"r{n}")) for n in range(500)]
                other.close()
                await asyncio.gather(*tickets)
            elif sys.argv[2] == "alone":
                for n in range(50):
                    await store.decide(admit(f"r{n}"))
            await store.close()
        asyncio.run(main())
    """

    def synced(how: str) -> int:
        log = tmp_path / f"{how}.log"
        traced = ["strace", "-f", "-qq", "-e", "trace=fsync,fdatasync", "-o", log]
        subprocess.run([*traced, *command(decides, tmp_path / how, how)], check=True, timeout=BOUND_SECONDS)
        return len(re.findall(r"^\d+ +(?:fsync|fdatasync)\(", log.read_text(), re.MULTILINE))

    nothing = synced("nothing")
    together, alone = synced("together") - nothing, synced("alone") - nothing
    assert 1 <= together <= 10
    assert 50 <= alone <= 55


def test_a_statement_writes_the_rows_of_many_decisions(tmp_path: Path) -> None:
    """Decisions about different sessions share their statements, and each has a verdict of its own."""

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        assert store._writer is not None
        rows = [run(f"r{n}", session=SessionId(f"s{n}"), over=True) for n in range(70)]
        stopped = Outcome(run_id=rows[5].id, ending=Ending.STOPPED)
        seen: list[str] = []
        store._writer._connection.set_trace_callback(seen.append)
        with locked(tmp_path):
            tickets = [store.decide(Decision(admissions=(replace(row, outcome=None),))) for row in rows]
        await asyncio.gather(*tickets)
        assert 1 <= sum("INTO runs" in statement for statement in seen) <= 5
        await store.decide(Decision(endings=(replace(rows[5], outcome=stopped),)))
        for decisions in ([Decision(starts=(row.id,)) for row in rows], [Decision(endings=(row,)) for row in rows]):
            with locked(tmp_path):
                tickets = [store.decide(decision) for decision in decisions]
            verdicts = await asyncio.gather(*tickets)
            found = {
                at: [each.ending for each in verdict.found] for at, verdict in enumerate(verdicts) if verdict.found
            }
            assert found == {5: [Ending.STOPPED]}
        for row in rows:
            (kept,) = await store.runs(row.session)
            assert kept.outcome is not None
            assert (kept.id, kept.started) == (row.id, row is not rows[5])
            assert kept.outcome.ending is (Ending.STOPPED if row is rows[5] else Ending.COMPLETED)
        await store.close()

    play(main)


def test_decisions_about_one_session_keep_their_order_in_a_transaction(tmp_path: Path) -> None:
    """A message that ended before its session was founded is hidden, although both are written in one transaction."""

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        founding = SessionRow(id=S, owner=ALICE, generation=1)
        with locked(tmp_path):
            first = store.decide(Decision(endings=(run("r1", by=MALLORY, text="secret", over=True),)))
            second = store.decide(Decision(sessions=(founding,), admissions=(run("r2"),)))
            third = store.decide(Decision(starts=(RunId("r2"),)))
            fourth = store.decide(Decision(endings=(run("r2", over=True),)))
        verdicts = await asyncio.gather(first, second, third, fourth)
        assert [verdict.found for verdict in verdicts] == [()] * 4
        assert [(each.text, each.started) for each in await store.runs(S)] == [("", False), ("hello", True)]
        await store.close()

    play(main)


def test_what_cannot_be_written_spoils_no_neighbour(tmp_path: Path) -> None:
    """A decision that no file can hold is refused alone out of one transaction; the order and the rest stay."""

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        log = Unwritten(store)
        with locked(tmp_path):
            names = [f"r{n}" for n in range(20)]
            log.append(event(1, MessageData(text="hi", by=ALICE)))
            tickets = [store.decide(admit(name, text="\ud800" if name == "r7" else "fine")) for name in names]
        answers = await asyncio.gather(*tickets, return_exceptions=True)
        assert [name for name, answer in zip(names, answers, strict=True) if isinstance(answer, StoreFailed)] == ["r7"]
        assert [each.id for each in await store.runs(S)] == [name for name in names if name != "r7"]
        assert [each.position for each in (await log.events(S, after=0, limit=9)).events] == [1]
        await store.close()

    play(main)


def test_an_event_that_cannot_be_written_holds_up_no_other(tmp_path: Path) -> None:
    """An event that no file can hold is left out; those before and after it are written."""

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        log = Unwritten(store)
        log.append(event(1, Block(text="one")))
        log.append(event(2, Block(text="\ud800")))
        log.append(event(3, Block(text="three")))
        await store.decide(admit("r"))
        await store.close()
        assert count(tmp_path, "events") == 2

    play(main)


def test_deltas_never_delay_a_decision(tmp_path: Path) -> None:
    """With 50,000 deltas waiting a decision is answered before they are all written, and they come after it."""

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        log = Unwritten(store)
        deltas = 50_000
        for n in range(1, deltas + 1):
            log.append(event(n, Delta(text="x")))
        store._flush_now()
        await until(lambda: count(tmp_path, "passing") > 0 or log._count < deltas)
        await store.decide(admit("r"))
        assert count(tmp_path, "passing") < deltas
        await until(lambda: log._count == 0)
        assert bounds.PASSING_EVENTS <= count(tmp_path, "passing") <= 2 * bounds.PASSING_EVENTS
        await store.close()

    play(main)


def test_a_decision_waits_for_one_piece_of_deltas_and_is_synced(tmp_path: Path) -> None:
    """Amid a flood a decision is written after the piece under way, in a transaction that waits for its fsync."""
    told: list[str] = []
    hangs, goes_on = threading.Event(), threading.Event()

    def trace(statement: str) -> None:
        told.append(statement.split("(", maxsplit=1)[0].replace(" OR FAIL", "").strip())
        if statement == "COMMIT" and not hangs.is_set():
            hangs.set()
            goes_on.wait(SECONDS)

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        assert store._writer is not None
        log = Unwritten(store)
        for n in range(1, 2_001):
            log.append(event(n, Delta(text="x")))
        store._writer._connection.set_trace_callback(trace)
        store._flush_now()
        await until(hangs.is_set)
        ticket = store.decide(admit("r"))
        goes_on.set()
        await ticket
        await until(lambda: log._count == 0)
        await store.close()

    play(main)
    first, second = told.index("INSERT INTO passing"), told.index("INSERT INTO runs")
    assert told[first : second + 2] == [
        *("INSERT INTO passing", "COMMIT", "PRAGMA synchronous = FULL", "BEGIN IMMEDIATE", "INSERT INTO runs", "COMMIT")
    ]
    assert told.count("INSERT INTO passing") > 2


def test_deltas_are_bounded_while_their_run_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that never ends keeps its newest deltas, at most twice the bound, and none is told as lost."""

    async def main() -> None:
        monkeypatch.setattr(bounds, "PASSING_EVENTS", 50)
        store = made(tmp_path)
        await store.open()
        log = Unwritten(store)
        for n in range(1, 1_001):
            log.append(event(n, Delta(text="x")))
            if n % 100 == 0:
                store._flush_now()
                await until(lambda: log._count == 0)
                assert count(tmp_path, "passing") <= 100
        page = await log.events(S, after=0, limit=1_000)
        positions = [each.position for each in page.events]
        assert page.lost_to == 0 and len(positions) >= 50
        assert positions == list(range(1_001 - len(positions), 1_001))
        await store.close()

    play(main)


def test_the_line_is_bounded_and_an_ending_is_always_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message beyond the bound of waiting decisions is refused at once; a stop's write has room (race 89)."""

    async def main() -> None:
        monkeypatch.setattr(writer, "LINE", 5)
        store = made(tmp_path)
        await store.open()
        with locked(tmp_path):
            waiting = [store.decide(admit(f"r{n}")) for n in range(5)]
            beyond = store.decide(admit("beyond"))
            with pytest.raises(StoreFailed, match="5 writes wait for the disk; nothing was kept"):
                await beyond
            ending = store.decide(Decision(endings=(run("stopped", over=True),)))
            assert not any(ticket.answered for ticket in (*waiting, ending))
        await asyncio.gather(*waiting, ending)
        assert [each.id for each in await store.runs(S)] == ["r0", "r1", "r2", "r3", "r4", "stopped"]
        await store.close()

    play(main)


def test_withdrawing_is_conclusive_while_the_database_is_locked(tmp_path: Path) -> None:
    """A decision that waits for somebody else's lock is withdrawn at once, and never comes (race 89)."""

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        with locked(tmp_path):
            first, second, third = (store.decide(admit(name)) for name in "abc")
            # By this time the writer has seen the decision and waits for the lock.
            assert not await first.within(0.1)
            assert await store.withdraw(second) is False
            assert second.answered and not first.answered and not third.answered
        await asyncio.gather(first, third)
        assert [each.id for each in await store.runs(S)] == ["a", "c"]
        await store.close()

    play(main)


def test_withdrawing_is_conclusive_while_a_neighbour_is_refused(tmp_path: Path) -> None:
    """A decision whose batch another one spoils can be withdrawn, also if somebody takes the lock meanwhile."""

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        with locked(tmp_path):
            texts = {f"r{n}": "\ud800" if n == 199 else "fine" for n in range(200)}
            tickets = {name: store.decide(admit(name, text=text)) for name, text in texts.items()}
        await tickets["r0"]
        other = await asyncio.to_thread(grabbed)
        async with asyncio.timeout(SECONDS):
            inside = [name for name, ticket in tickets.items() if await store.withdraw(ticket)]
        other.close()
        assert all(ticket.answered for ticket in tickets.values())
        assert "r199" not in inside
        assert [each.id for each in await store.runs(S)] == inside
        await store.close()

    def grabbed() -> sqlite3.Connection:
        """Take the write lock at the first instant that it is free."""
        other = sqlite3.connect(tmp_path / "interlock.db", isolation_level=None, timeout=0, check_same_thread=False)
        while True:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                continue
            return other

    play(main)


def test_events_are_bounded_while_the_database_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that cannot be written are bounded to the newest; the loss is told, then and after a restart (race 89)."""

    async def main() -> None:
        monkeypatch.setattr(unwritten, "PENDING_EVENTS", 100)
        store = made(tmp_path)
        await store.open()
        log = Unwritten(store)
        with locked(tmp_path):
            for n in range(1, 1_001):
                log.append(event(n, Block(text=str(n))))
                assert log._count <= 101
            page = await log.events(S, after=0, limit=2_000)
            held = [each.position for each in page.events]
            assert held == list(range(page.lost_to + 1, 1_001)) and 50 <= len(held) <= 101
            assert (await log.events(S, after=page.lost_to, limit=1)).lost_to == 0
        await store.close()
        store = made(tmp_path)
        await store.open()
        assert await store.events(S, after=0, limit=2_000) == page
        await store.close()

    play(main)


def test_no_session_loses_another_s_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store counts positions per session, so one run's end never drops another session's events."""

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        log = Unwritten(store)
        other = SessionId("other")
        log.append(event(1, Delta(text="x")))
        log.append(event(1, Block(text="kept"), session=other))
        log.append(event(2, Delta(text="kept"), session=other))
        log.append(event(3, Delta(text="x")))
        log.append(ended(4))
        await store.close()
        store = made(tmp_path)
        await store.open()
        assert [each.position for each in (await store.events(S, after=0, limit=9)).events] == [4]
        assert [each.position for each in (await store.events(other, after=0, limit=9)).events] == [1, 2]
        await store.close()

    play(main)


def test_a_page_that_is_read_while_a_run_ends_has_no_hole(tmp_path: Path) -> None:
    """Deltas that their run's end takes out of a page make room for the events behind them, not for later ones."""

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        log = Unwritten(store)
        for position in range(1, 5):
            log.append(event(position, Delta(text="x"), "speaks"))
        for position in range(5, 9):
            log.append(event(position, Block(text="x"), "other"))
        while log._count:
            await asyncio.sleep(0.01)
        with locked(tmp_path):
            log.append(event(9, Block(text="not written"), "other"))
            reading = asyncio.create_task(log.events(S, after=0, limit=4))
            await asyncio.sleep(0)
            log.append(event(10, Ended(outcome=Outcome(run_id=RunId("speaks"), ending=Ending.STOPPED)), "speaks"))
            page = await reading
        assert [each.position for each in page.events] == [5, 6, 7, 8]
        await store.close()

    play(main)
