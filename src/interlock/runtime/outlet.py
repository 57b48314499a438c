"""The one way out for the events of a run.

1. Every event of a run goes through its Outlet. One synchronous step tests the fence, gives the event its position,
   appends it to the store's log and puts it into every subscriber's buffer.
2. `seal` publishes the terminal event: the run's last, and exactly one.
3. Positions rise in the order of publication.
4. Deltas, typing and progress (`PASSING`) count only while their run goes on. On an early end they leave every
   subscriber's buffer at t0 (`Feed.drop`), and when the run's end is published they leave the log. Their text stands in
   the block that closed them, or in `cut` of the terminal event. So a replay is short and tells the same conversation.

Were the test of the fence and the publication two steps, a stop could be acknowledged between them, and a delta, a
typing sign or a tool result of the old run would follow the ack (races 10, 11, 34 and 37). Were there a second way out,
an event could follow the terminal event (race 100). `tell_again` is the one exception: with it, recovery publishes the
end of a run that is only in the store.
"""

import logging
from collections.abc import Iterable
from typing import Protocol

from interlock.core.decision import RunRow
from interlock.core.errors import BadInput
from interlock.core.events import Block, Data, Delta, Ended, Event, MessageData
from interlock.core.names import REPORTS, Effect, RunId, SessionId
from interlock.runtime.clock import Clock
from interlock.runtime.live import LiveRun
from interlock.runtime.registry import Registry
from interlock.runtime.settings import REPLY_BYTES
from interlock.runtime.unwritten import Unwritten
from interlock.runtime.values import need_utf8
from interlock.stores.base import Store

log = logging.getLogger("interlock")


class Subscriber(Protocol):
    """Hears a session's events in the step that publishes them. No method may wait or raise."""

    def put(self, event: Event) -> None:
        """Take an event."""
        ...

    def drop(self, run_id: RunId) -> None:
        """Forget those passing events of a cut run that were not passed on yet."""
        ...

    def close(self) -> None:
        """Note that no further event will come."""
        ...


class Speaker(Protocol):
    """The run that an event belongs to, alive or only stored."""

    @property
    def id(self) -> RunId:
        """Its id."""
        ...

    @property
    def generation(self) -> int | None:
        """Its generation."""
        ...


class Feed:
    """Publishes events: numbered, logged, and handed to every subscriber in one step."""

    def __init__(self, registry: Registry, store: Store, clock: Clock) -> None:
        self._registry = registry
        self.log = Unwritten(store, registry.positions.keep)
        self._clock = clock
        self._subscribers: dict[SessionId | None, list[Subscriber]] = {}  # under None: those of every session
        self._closed = False

    def subscribe(self, session: SessionId | None, subscriber: Subscriber) -> None:
        """Give a subscriber every event of a session, or of all sessions (None), from this step on."""
        self._subscribers.setdefault(session, []).append(subscriber)
        if self._closed:
            subscriber.close()

    def unsubscribe(self, session: SessionId | None, subscriber: Subscriber) -> None:
        """Give a subscriber no further events."""
        subscribers = self._subscribers.get(session, [])
        if subscriber in subscribers:
            subscribers.remove(subscriber)
        if not subscribers:
            self._subscribers.pop(session, None)

    def publish(self, session: SessionId, run: Speaker | None, data: Data) -> Event:
        """Give an event its position, log it, and give it to every subscriber. Events of runs come from an Outlet."""
        count = self._registry.count(session)
        event = Event(
            position=count.next(),
            at=self._clock.wall(),
            session=session,
            run_id=None if run is None else run.id,
            generation=None if run is None else run.generation,
            data=data,
        )
        self.log.append(event, count.tell())
        for subscriber in self._listening(session):
            try:
                subscriber.put(event)
            except Exception:
                self._let_go(session, subscriber)
        return event

    def drop(self, run: LiveRun) -> None:
        """Take a cut run's passing events out of every subscriber's buffer."""
        for subscriber in self._listening(run.session.id):
            try:
                subscriber.drop(run.id)
            except Exception:
                self._let_go(run.session.id, subscriber)

    def _listening(self, session: SessionId) -> tuple[Subscriber, ...]:
        """Return the subscribers of a session, then those of all sessions."""
        return (*self._subscribers.get(session, ()), *self._subscribers.get(None, ()))

    def _let_go(self, session: SessionId, subscriber: Subscriber) -> None:
        """Remove a subscriber that failed: the others must still get the event, and a fall must still happen."""
        log.exception("a subscriber of session %s failed and is let go", session)
        self.unsubscribe(session, subscriber)
        self.unsubscribe(None, subscriber)

    def close(self) -> None:
        """Close every subscriber, and those that come later."""
        self._closed = True
        for subscribers in list(self._subscribers.values()):
            for subscriber in list(subscribers):
                subscriber.close()


def tell_again(feed: Feed, row: RunRow, terminal: Ended, *, said: bool, blocks: Iterable[str]) -> None:
    """Publish the end of a run that an earlier start decided and did not publish, as `Outlet.seal` would have done."""
    if not said:
        child = RunId(row.key) if row.kind in REPORTS and row.key is not None else None
        feed.publish(row.session, row, MessageData(text=row.text, by=row.principal, child=child))
    for text in blocks:
        feed.publish(row.session, row, Block(text=text))
    feed.publish(row.session, row, terminal)


class Outlet:
    """The way out of one run."""

    __slots__ = ("_feed", "_run")

    def __init__(self, run: LiveRun, feed: Feed) -> None:
        self._run = run
        self._feed = feed

    def emit(self, effect: Effect, data: Data) -> None:
        """Publish an effect of a current run, or raise Stale.

        The test and the publication are one step: between them there is no await in which a stop could be acknowledged.
        """
        self._run.fence.check(effect)
        self._feed.publish(self._run.session.id, self._run, data)

    def delta(self, text: str) -> None:
        """Publish a piece of the reply."""
        run = self._run
        # Read the fence's mark directly: a call of `Fence.check` for every delta would cost too much.
        if run.fence.cause is not None:
            raise run.fence.refuse(Effect.DELTA)
        if not text:
            return
        self.measure(text)
        run.reply.add(text)
        self._feed.publish(run.session.id, run, Delta(text=text))

    def block(self, text: str) -> None:
        """Publish a whole block; the open deltas before it become a block of their own."""
        self._run.fence.check(Effect.BLOCK)
        if not text:
            return
        self.measure(text)
        self.close_block(Effect.BLOCK)
        self._run.reply.close(text)
        self._feed.publish(self._run.session.id, self._run, Block(text=text))

    def close_block(self, effect: Effect) -> None:
        """Close the open block of deltas, if there is one."""
        self._run.fence.check(effect)
        if text := self._run.reply.open:
            self._run.reply.close(text)
            self._feed.publish(self._run.session.id, self._run, Block(text=text))

    def measure(self, text: str) -> None:
        """Raise BadInput for text that is not valid UTF-8, or would make the reply too long."""
        need_utf8(text, "the reply")
        if self._run.reply.bytes + len(text) > REPLY_BYTES:
            raise BadInput(
                f"this run has said {REPLY_BYTES} bytes, the most one reply may hold; end it or write a file"
            )

    def introduce(self) -> None:
        """Publish the message that began the run, once, before any other event of it.

        Its text is left out if the session had no owner when the message ended: a later owner must not read it.
        """
        run = self._run
        if not run.said:
            run.said = True
            nobodys = run.generation is None and not run.session.stored
            text = "" if run.withheld or nobodys else run.text
            self._feed.publish(run.session.id, run, MessageData(text=text, by=run.principal, child=_announced(run)))
            for part in run.collection.parts if run.collection is not None else ():
                self.introduce_part(part)

    def introduce_part(self, part: LiveRun) -> None:
        """Publish a message that this run has absorbed; the run's terminal event must not be published yet."""
        assert not self._run.sealed, "nothing follows a run's terminal event"
        told = MessageData(text=part.text, by=part.principal, of=part.id, child=_announced(part))
        self._feed.publish(self._run.session.id, self._run, told)

    def seal(self, terminal: Ended, closing: tuple[str, ...]) -> None:
        """Publish the blocks that close the reply and then the terminal event, in one step."""
        assert self._run.fallen, "a run is sealed after it fell"
        assert not self._run.sealed, f"run {self._run.id} was told as ended twice"
        self.introduce()
        self._run.sealed = True
        for text in closing:
            self._feed.publish(self._run.session.id, self._run, Block(text=text))
        self._feed.publish(self._run.session.id, self._run, terminal)


def _announced(run: LiveRun) -> RunId | None:
    """Return the child whose ending a message announces, or None."""
    return None if run.announces is None else run.announces.run_id
