"""The feed is the one fan-out: it numbers an event, logs it, and hands it to every sink in the step that admits it.

1. `publish` gives an event its position, appends it to the log and hands it to every sink, in one synchronous step.
   Positions rise in the order of publication.
2. An event travels with its source, the fence of its run. A sink that passes the event on later reads the source then:
   a passing event (delta, typing, progress) whose run was cut short is not passed on (races 9 and 10). So no buffer is
   searched at a fall. A buffer that forgets to read the source tells a delta after the ack of a stop.
3. A listening to one session may begin behind any position. Control registers it first and reads the log second: an
   event between the two comes both ways, and its position says that the sink has it already (race 99).
4. A sink without room refuses an event. Its listening then ignores what is published, and reads it from the log when
   the sink calls `resume`. No other sink waits for it. `Sink.caught_up` says where history ends and news begins.
5. Rights are asked when a listening begins and when rights change. A listening to everything hears an event if its
   principal may see it; the feed finds these principals by name (owner, sender, shares, roles), not by asking everyone.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from interlock.core.authority import Action, Authority, Whose
from interlock.core.errors import InterlockError, Unavailable, Unknown
from interlock.core.events import Data, Ended, Event, Gap, MessageData
from interlock.core.fence import Fence
from interlock.core.names import LOCAL, PASSING, EventKind, Principal, RunId, SessionId
from interlock.runtime.clock import Clock
from interlock.runtime.guards import Guard, Guards
from interlock.runtime.registry import Registry
from interlock.runtime.settings import WATCH_EVENTS
from interlock.runtime.unwritten import Unwritten
from interlock.stores.base import Page, Store, read

log = logging.getLogger("interlock")

PAGE_EVENTS = 1_024
# Remembered audiences; each is the answer to one question of rights.
AUDIENCES = 4_096
# The kinds of events that tell an approver, who may not see the run, of its questions.
ASKING = frozenset({EventKind.QUESTION, EventKind.ENDED})


class Sink:
    """Hears events in the step that publishes them. No method may wait or raise."""

    __slots__ = ()

    def take(self, event: Event, source: Fence | None) -> bool:
        """Take an event; return False if there is no room: the feed then reads the event from the log later.

        `source` is the fence of the event's run; None if the run is not in memory, or the event is the session's.
        """
        raise NotImplementedError

    def caught_up(self, position: int) -> None:
        """Note that the events up to a position were history, and the next one is news."""

    def fell(self, source: Fence) -> None:
        """Note that a run fell, in the step of its fall."""

    def close(self, error: InterlockError | None) -> None:
        """Note that no further event will come."""


class Speaker(Protocol):
    """The run that an event belongs to, alive or only stored."""

    @property
    def id(self) -> RunId:
        """The run's id."""
        ...

    @property
    def principal(self) -> Principal:
        """The principal that started the run."""
        ...

    @property
    def generation(self) -> int | None:
        """The run's generation."""
        ...


def is_over(event: Event, source: Fence | None) -> bool:
    """Return whether an event must not be told any more: it is a passing one, and its run is gone or was cut short."""
    return (
        event.kind in PASSING
        and event.run_id is not None
        and (source is None or (source.cause is not None and source.cause.early))
    )


class Listening:
    """A sink's listening to a session, or to one run in it."""

    __slots__ = ("_behind", "_feed", "_guard", "_held", "_only", "_over", "_task", "seen", "session", "sink")

    def __init__(self, feed: "Feed", session: SessionId, sink: Sink, seen: int | None, only: RunId | None) -> None:
        self._feed = feed
        self.session = session
        self.sink = sink
        # The position of the last event that the sink took.
        self.seen = seen or 0
        self._only = only  # the run that the sink hears; None for the whole session
        self._guard: Guard | None = None
        # The sink must be given what the log has before it hears what is published.
        self._behind = seen is not None
        # While the log is read: the events published meanwhile, with their sources.
        self._held: deque[tuple[Event, Fence | None]] | None = None
        self._task: asyncio.Task[None] | None = None
        self._over = False

    @property
    def is_behind(self) -> bool:
        """True while the sink must be given what the log has before it hears what is published."""
        return self._behind

    # What the feed calls

    def hear(self, event: Event, source: Fence | None) -> None:
        """Hand an event to the sink, or leave it to the log."""
        if not self._behind:
            self._give(event, source)
        elif self._held is not None:
            # Beyond this bound nothing is held: the log is read once more.
            if len(self._held) >= WATCH_EVENTS:
                self._held = None
            else:
                self._held.append((event, source))

    def fell(self, source: Fence) -> None:
        """Tell the sink of a fall."""
        if self._only is None or self._only == source.run_id:
            self.sink.fell(source)

    def guarded(self, guard: Guard) -> None:
        """Hear only as long as a right lasts."""
        self._guard = guard
        self._feed.guards.hold(guard)

    def forbid(self) -> None:
        """End without another event: the right to hear is gone."""
        by = "" if self._guard is None else f"{self._guard.by} "
        self.close(Unknown(f"{by}may not see this any more; the watch is over"))

    # What the sink's user calls

    def resume(self) -> None:
        """Begin to read from the log what the sink lacks: after `follow`, and whenever the sink has room again."""
        if self._behind and self._task is None and not self._over:
            self._task = asyncio.get_running_loop().create_task(self._catch_up(), name=f"catch up in {self.session}")

    def close(self, error: InterlockError | None = None) -> None:
        """Hear nothing more; a second call does nothing."""
        if self._over:
            return
        self._over = True
        self._feed.unfollow(self)
        if self._guard is not None:
            self._feed.guards.release(self._guard)
        if self._task is not None and self._task is not _current_task():
            self._task.cancel()
        self.sink.close(error)

    # Catching up

    async def _catch_up(self) -> None:
        try:
            while await self._read_page():
                pass
        except InterlockError as error:
            self.close(None if self._feed.closed else error)
        finally:
            self._held = None
            self._task = None

    async def _read_page(self) -> bool:
        """Give the sink one page of the log; return whether there is more to read, and room for it."""
        self._held = deque()
        page = await read(self._feed.log.events(self.session, after=self.seen, limit=PAGE_EVENTS))
        for event in self._with_gap(page):
            source = self._feed.source_of(event.run_id)
            # A delta in the log may be older than the end of its run.
            if is_over(event, source):
                self.seen = event.position
            elif self._over or not self._give(event, source):
                return False
        held = self._held
        # The page may have been full, or more was published meanwhile than is held here: read on.
        if len(page.events) == PAGE_EVENTS or held is None:
            return True
        for event, source in held:
            if self._over or (event.position > self.seen and not self._give(event, source)):
                return False
        self._behind = False
        self.sink.caught_up(self.seen)
        if self._feed.closed or (self._only is not None and self._feed.is_silent(self._only)):
            self.close()
        return False

    def _with_gap(self, page: Page) -> Sequence[Event]:
        """Return the events of a page with the gap of the log in its place.

        A disk that refused writes for long leaves events before the gap. Told before them, the gap would have the
        higher position, and a reader who goes on behind it would never get them.
        """
        before = [event for event in page.events if event.position < page.lost_to]
        if self._only is not None or page.lost_to <= self.seen or len(before) == PAGE_EVENTS:
            return page.events
        gap = self._feed.gap(self.session, self.seen, page.lost_to)
        return [*before, gap, *(event for event in page.events if event.position > page.lost_to)]

    def _give(self, event: Event, source: Fence | None) -> bool:
        """Give the sink an event that is for it; return False if there is no room, or nothing more to hear."""
        if self._only is not None and not self._is_about(event):
            self.seen = event.position
            return True
        if not self.sink.take(event, source):
            self._behind = True
            return False
        self.seen = event.position
        if self._only is not None and isinstance(event.data, Ended):
            self.close()
            return False
        return True

    def _is_about(self, event: Event) -> bool:
        """Return whether an event belongs to the run that is listened to, or to the run that absorbed it."""
        assert self._only is not None
        if isinstance(event.data, MessageData) and event.data.of == self._only and event.run_id is not None:
            self._only = event.run_id
        self._only = self._feed.absorber_of(self._only)
        return event.run_id == self._only


class Everything:
    """A principal's listening to all that it may see."""

    __slots__ = ("_feed", "approver", "by", "kinds", "sink")

    def __init__(
        self, feed: "Feed", by: Principal, sink: Sink | None, approver: Sink | None, kinds: Collection[EventKind] | None
    ) -> None:
        self._feed = feed
        self.by = by
        self.sink = sink
        # Hears events with questions that the principal may answer in runs that it may not see.
        self.approver = approver
        self.kinds = kinds

    def close(self) -> None:
        """Hear nothing more."""
        self._feed.unfollow_all(self)


Take = Callable[[Event, Fence | None], bool]


class Feed:
    """Publishes events: numbered, logged, and handed to every sink in one step."""

    def __init__(self, registry: Registry, *, store: Store, clock: Clock, authority: Authority, guards: Guards) -> None:
        self._registry = registry
        self._clock = clock
        self._authority = authority
        self.guards = guards
        # The log: what the store has written, and what it has not written yet.
        self.log = Unwritten(store, registry.positions.keep)
        self.closed = False
        # Tuples, replaced when a listening comes or goes: `publish` walks them while sinks come and go.
        self._following: dict[SessionId, tuple[Listening, ...]] = {}
        self._everything: dict[Principal, tuple[Everything, ...]] = {}
        # By session, sender and kind: whose session it was when the question was asked, and who hears the event.
        self._audiences: dict[tuple[SessionId, Principal | None, EventKind], tuple[Whose, tuple[Take, ...]]] = {}
        guards.listen(self._audiences.clear)

    # Publishing

    def publish(self, session: SessionId, run: Speaker | None, data: Data, source: Fence | None = None) -> Event:
        """Give an event its position, log it, and give it to every sink. Events of live runs come from an Outlet."""
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
        for listening in self._following.get(session, ()):
            try:
                listening.hear(event, source)
            except Exception:
                self._remove(listening)
        if self._everything:
            for take in self._audience(session, None if run is None else run.principal, data.kind):
                try:
                    take(event, source)
                except Exception:
                    self._remove_from_all(take)
        return event

    def fell(self, session: SessionId, source: Fence) -> None:
        """Tell the sinks that follow a session of a fall, in its step."""
        for listening in self._following.get(session, ()):
            try:
                listening.fell(source)
            except Exception:
                self._remove(listening)

    def _remove(self, listening: Listening) -> None:
        """Remove a listening that failed: the others must still get the event, and a fall must still happen."""
        log.exception("a sink of session %s failed and is let go", listening.session)
        with contextlib.suppress(Exception):
            listening.close(Unavailable("this watch failed and is over; watch again"))

    def _remove_from_all(self, take: Take) -> None:
        """Remove a listening to everything that failed."""
        log.exception("a sink of every session failed and is let go")
        for each in [each for those in self._everything.values() for each in those]:
            if take in (each.sink and each.sink.take, each.approver and each.approver.take):
                self.unfollow_all(each)

    def gap(self, session: SessionId, after: int, lost_to: int) -> Event:
        """Return the event that tells one sink of events that the log no longer has."""
        at = self._clock.wall()
        return Event(position=lost_to, at=at, session=session, run_id=None, generation=None, data=Gap(after=after))

    # Listening

    def follow(
        self, session: SessionId, sink: Sink, *, after: int | None = None, only: RunId | None = None
    ) -> Listening:
        """Give a sink the events of a session, or of one run; with `after`, the log's events behind that first.

        Call `resume` on what this returns to begin the reading of the log.
        """
        listening = Listening(self, session, sink, after, only)
        self._following[session] = (*self._following.get(session, ()), listening)
        if self.closed and after is None:
            listening.close()
        return listening

    def unfollow(self, listening: Listening) -> None:
        """Give a listening no further events."""
        rest = tuple(each for each in self._following.get(listening.session, ()) if each is not listening)
        if rest:
            self._following[listening.session] = rest
        else:
            self._following.pop(listening.session, None)

    def follow_all(
        self,
        sink: Sink | None,
        by: Principal = LOCAL,
        *,
        approver: Sink | None = None,
        kinds: Collection[EventKind] | None = None,
    ) -> Everything:
        """Give a sink every event that a principal may see, from this step on; with `kinds`, only those.

        `approver` hears the events whose questions the principal may answer, if it may not see their runs.
        """
        everything = Everything(self, by, sink, approver, kinds)
        self._everything[by] = (*self._everything.get(by, ()), everything)
        self._audiences.clear()
        return everything

    def unfollow_all(self, everything: Everything) -> None:
        """Give a listening to everything no further events."""
        rest = tuple(each for each in self._everything.get(everything.by, ()) if each is not everything)
        if rest:
            self._everything[everything.by] = rest
        else:
            self._everything.pop(everything.by, None)
        self._audiences.clear()

    def close(self) -> None:
        """End every listening; one that reads the log ends when it has caught up."""
        self.closed = True
        # Surfaces first: a surface closes its lines, and their readers go on at the next server. A reader that is told
        # that its watch is over would take that for the end of the run.
        for everything in [each for those in self._everything.values() for each in those]:
            if everything.sink is not None:
                everything.sink.close(None)
        for listening in [each for following in self._following.values() for each in following]:
            if not listening.is_behind:
                listening.close()

    # Who may hear

    def sees(self, by: Principal, session: SessionId, principal: Principal | None, *, question: bool = False) -> bool:
        """Return whether `by` may see an event of a session, or of its run that `principal` started."""
        whose = self._registry.whose(session)
        action = Action.ANSWER if question else Action.SEE_RUN
        return self._authority.may(Action.SEE_SESSION, by, whose=whose) or self._authority.may(
            action, by, whose=whose, principal=principal
        )

    def _audience(self, session: SessionId, principal: Principal | None, kind: EventKind) -> Iterable[Take]:
        """Return `take` of each sink that hears everything its principal may see, and may hear this event."""
        whose = self._registry.whose(session)
        key = session, principal, kind
        known = self._audiences.get(key)
        if known is not None and known[0] == whose:
            return known[1]
        names = (whose.owner, principal, *whose.shares, *self._authority.appointed)
        hear = tuple(
            take
            for by in dict.fromkeys(names)
            if by is not None
            for each in self._everything.get(by, ())
            if (take := self._take_of(each, session, principal, kind)) is not None
        )
        if len(self._audiences) >= AUDIENCES:
            self._audiences.clear()
        self._audiences[key] = whose, hear
        return hear

    def _take_of(
        self, each: Everything, session: SessionId, principal: Principal | None, kind: EventKind
    ) -> Take | None:
        if each.kinds is not None and kind not in each.kinds:
            return None
        sees = self.sees(each.by, session, principal, question=kind is EventKind.QUESTION)
        if sees and each.sink is not None:
            return each.sink.take
        if each.approver is None or kind not in ASKING:
            return None
        return each.approver.take if sees or self._authority.approves(each.by) else None

    # Runs

    def source_of(self, run_id: RunId | None) -> Fence | None:
        """Return the fence of a run; None if the run is not in memory."""
        run = None if run_id is None else self._registry.runs.get(run_id)
        return None if run is None else run.fence

    def absorber_of(self, run_id: RunId) -> RunId:
        """Return the id of a run, or of the run that absorbed it."""
        run = self._registry.runs.get(run_id)
        return run_id if run is None else run.itself.id

    def is_silent(self, run_id: RunId) -> bool:
        """Return whether a run will publish nothing more: it is not in memory, or its terminal event is published.

        Without this a listening would wait for ever for a terminal event that the log has dropped.
        """
        run = self._registry.runs.get(self.absorber_of(run_id))
        return run is None or run.sealed


def _current_task() -> "asyncio.Task[object] | None":
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
