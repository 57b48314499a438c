"""The contract of a session's log, for every store: `Unwritten` over the store shows each published event once."""

from typing import Any

from tests.contracts.rows import ALICE, S, event, outcome, play

from interlock.core.events import Block, Delta, Ended, MessageData, Progress, Started, Typing
from interlock.core.names import Ending, SessionId
from interlock.runtime.unwritten import Unwritten


def test_events_come_in_order_behind_a_position(kit: Any) -> None:
    """Events are read in order, after the position `after`, at most `limit` at a time, of one session only."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        log = Unwritten(store)
        for n in range(1, 11):
            log.append(event(n, Block(text=str(n))))
        log.append(event(11, Block(text="x"), name=SessionId("other")))
        assert [each.position for each in (await log.events(S, after=0, limit=100)).events] == list(range(1, 11))
        assert [each.position for each in (await log.events(S, after=4, limit=3)).events] == [5, 6, 7]
        assert (await log.events(S, after=10, limit=3)).events == ()
        pages, after = [], 0
        while (page := await log.events(S, after=after, limit=4)).events:
            pages.append([each.position for each in page.events])
            after = page.events[-1].position
        assert pages == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]

    play(kit, main)


def test_what_was_appended_is_read_at_once(kit: Any) -> None:
    """Reads return appended events, committed or not, in the very values that were appended."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        log = Unwritten(store)
        events = [event(1, MessageData(text="hi", by=ALICE)), event(2, Started()), event(3, Delta(text="a"))]
        for each in events:
            log.append(each)
            assert (await log.events(S, after=each.position - 1, limit=1)).events == (each,)
        assert (await log.events(S, after=0, limit=9)).events == tuple(events)

    play(kit, main)


def test_deltas_leave_the_log_with_the_end(kit: Any) -> None:
    """A run's `ended` event removes its deltas, typing and progress from the log, and no other run's."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        log = Unwritten(store)
        log.append(event(1, MessageData(text="hi", by=ALICE), "a"))
        log.append(event(2, Delta(text="x"), "a"))
        log.append(event(3, Delta(text="y"), "b"))
        log.append(event(4, Typing(on=True), "a"))
        log.append(event(5, Progress(text="p"), "a"))
        log.append(event(6, Block(text="x"), "a"))
        assert [each.position for each in (await log.events(S, after=0, limit=9)).events] == [1, 2, 3, 4, 5, 6]
        assert [each.position for each in (await log.events(S, after=1, limit=3)).events] == [2, 3, 4]
        log.append(event(7, Ended(outcome=outcome("a", Ending.COMPLETED)), "a"))
        page = await log.events(S, after=0, limit=9)
        assert [each.position for each in page.events] == [1, 3, 6, 7]
        assert page.lost_to == 0

    play(kit, main)


def test_events_that_were_dropped_are_told(kit: Any) -> None:
    """A log that forgot its beginning says up to where, to readers that missed something and to no others."""

    async def main() -> None:
        store = kit.small(LOG_EVENTS=3)
        await store.open()
        log = Unwritten(store)
        for n in range(1, 8):
            log.append(event(n, Block(text=str(n))))
        await kit.tidy(store)
        page = await log.events(S, after=0, limit=9)
        assert ([each.position for each in page.events], page.lost_to) == ([5, 6, 7], 4)
        assert (await log.events(S, after=3, limit=9)).lost_to == 4
        page = await log.events(S, after=4, limit=9)
        assert ([each.position for each in page.events], page.lost_to) == ([5, 6, 7], 0)

    play(kit, main)


def test_appending_never_waits(kit: Any) -> None:
    """`append` is a plain call that works while the store stalls or fails; the events are there afterwards."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        log = Unwritten(store)
        faults = [name for name in ("stall", "fail", "lose") if hasattr(kit, name)]
        for number, fault in enumerate(faults, 1):
            getattr(kit, fault)(store)
            log.append(event(number, Block(text=fault)))
            kit.resume(store)
        assert [each.data.text for each in (await log.events(S, after=0, limit=9)).events] == faults

    play(kit, main)
