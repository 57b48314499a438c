"""The one way out.

1. Every effect a run shows goes through its Outlet: the fence is tested and the event is in the log and in every
   subscriber's buffer in one synchronous step.
2. `seal` publishes the terminal event; it is the run's last, and there is exactly one.
3. Positions rise in the order of publication.
"""

import logging
from collections.abc import Iterable
from typing import Protocol

from interlock.core.decision import RunRow
from interlock.core.errors import BadInput
from interlock.core.events import Block, Data, Delta, Ended, Event, Said
from interlock.core.names import REPORTS, Effect, RunId, SessionId
from interlock.runtime.clock import Clock
from interlock.runtime.live import LiveRun
from interlock.runtime.registry import Registry
from interlock.runtime.settings import REPLY_BYTES
from interlock.runtime.values import need_utf8
from interlock.stores.base import Store

log = logging.getLogger("interlock")


class Subscriber(Protocol):
    """Someone who is told of a session's events as they happen. Neither method may wait or raise."""

    def put(self, event: Event) -> None:
        """Take an event."""
        ...

    def drop(self, run_id: RunId) -> None:
        """Forget the deltas of a run that was cut and that have not been passed on yet."""
        ...

    def close(self) -> None:
        """Nothing more will come."""
        ...


class Speaker(Protocol):
    """Whose event it is: a run, alive or only stored."""

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
        self._store = store
        self._clock = clock
        self._subscribers: dict[SessionId | None, list[Subscriber]] = {}  # None: of every session
        self._closed = False

    def subscribe(self, session: SessionId | None, subscriber: Subscriber) -> None:
        """Tell a subscriber everything that happens in a session, or in all of them (None), from now on."""
        self._subscribers.setdefault(session, []).append(subscriber)
        if self._closed:
            subscriber.close()

    def unsubscribe(self, session: SessionId | None, subscriber: Subscriber) -> None:
        """Stop telling it."""
        subscribers = self._subscribers.get(session, [])
        if subscriber in subscribers:
            subscribers.remove(subscriber)
        if not subscribers:
            self._subscribers.pop(session, None)

    def publish(self, session: SessionId, run: Speaker | None, data: Data) -> Event:
        """Number an event, log it and hand it on. Effects of runs come here only through an Outlet."""
        event = Event(
            position=self._registry.position(),
            at=self._clock.wall(),
            session=session,
            run_id=None if run is None else run.id,
            generation=None if run is None else run.generation,
            data=data,
        )
        self._store.append(event)
        for subscriber in self._listening(session):
            try:
                subscriber.put(event)
            except Exception:
                self._let_go(session, subscriber)
        return event

    def drop(self, run: LiveRun) -> None:
        """Take a cut run's deltas out of every buffer."""
        for subscriber in self._listening(run.session.id):
            try:
                subscriber.drop(run.id)
            except Exception:
                self._let_go(run.session.id, subscriber)

    def _listening(self, session: SessionId) -> tuple[Subscriber, ...]:
        """Those of a session, then those of all."""
        return (*self._subscribers.get(session, ()), *self._subscribers.get(None, ()))

    def _let_go(self, session: SessionId, subscriber: Subscriber) -> None:
        """One that fails must not keep the others, or a fall, from happening."""
        log.exception("a subscriber of session %s failed and is let go", session)
        self.unsubscribe(session, subscriber)
        self.unsubscribe(None, subscriber)

    def close(self) -> None:
        """Let every subscriber go."""
        self._closed = True
        for subscribers in list(self._subscribers.values()):
            for subscriber in list(subscribers):
                subscriber.close()


def tell_again(feed: Feed, row: RunRow, terminal: Ended, *, said: bool, blocks: Iterable[str]) -> None:
    """Publish the end of a run that an earlier start decided and did not tell: its last, as `Outlet.seal` is."""
    if not said:
        child = RunId(row.key) if row.kind in REPORTS and row.key is not None else None
        feed.publish(row.session, row, Said(text=row.text, by=row.principal, child=child))
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
        """Publish an effect of a current run, or raise Stale."""
        self._run.fence.check(effect)
        self._feed.publish(self._run.session.id, self._run, data)

    def delta(self, text: str) -> None:
        """Say a piece of the reply."""
        run = self._run
        if run.fence.cause is not None:  # the mark itself: the check of every delta costs no call
            raise run.fence.refuse(Effect.DELTA)
        if not text:
            return
        self.measure(text)
        run.reply.add(text)
        self._feed.publish(run.session.id, run, Delta(text=text))

    def block(self, text: str) -> None:
        """Say a whole block; deltas said before it become a block of their own."""
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
        """Refuse text that no reply can hold."""
        need_utf8(text, "the reply")
        if self._run.reply.bytes + len(text) > REPLY_BYTES:
            raise BadInput(
                f"this run has said {REPLY_BYTES} bytes, the most one reply may hold; end it or write a file"
            )

    def introduce(self) -> None:
        """Publish the message that began the run, once, before anything else of it."""
        run = self._run
        if not run.said:
            run.said = True
            nobodys = run.generation is None and not run.session.stored
            text = "" if run.withheld or nobodys else run.text
            self._feed.publish(run.session.id, run, Said(text=text, by=run.principal, child=_announced(run)))
            for part in run.collection.parts if run.collection is not None else ():
                self.introduce_part(part)

    def introduce_part(self, part: LiveRun) -> None:
        """Publish a message that this run has taken in; the run must be current, or it is not for the run to say."""
        assert not self._run.sealed, "nothing follows a run's terminal event"
        told = Said(text=part.text, by=part.principal, of=part.id, child=_announced(part))
        self._feed.publish(self._run.session.id, self._run, told)

    def seal(self, terminal: Ended, closing: tuple[str, ...]) -> None:
        """Publish what closes the reply and the terminal event: the run's last, in one step."""
        assert self._run.fallen, "a run is sealed after it fell"
        assert not self._run.sealed, f"run {self._run.id} was told as ended twice"
        self.introduce()
        self._run.sealed = True
        for text in closing:
            self._feed.publish(self._run.session.id, self._run, Block(text=text))
        self._feed.publish(self._run.session.id, self._run, terminal)


def _announced(run: LiveRun) -> RunId | None:
    """Return the child whose ending a message announces."""
    return None if run.announces is None else run.announces.run_id
