"""The feed is the one fan-out: it numbers an event, logs it, and hands it to every sink in the step that admits it.

1. `publish` gives an event its position, appends it to the log and hands it to every sink, in one synchronous step.
   Positions rise in the order of publication.
2. An event travels with its source, the fence of its run. A sink that passes the event on later reads the source then:
   a passing event (delta, typing, progress) whose run was cut short is not passed on (races 9 and 10). So no buffer is
   searched at a fall. A buffer that forgets to read the source tells a delta after the ack of a stop.
3. A sink without room reads the log later (`following.py`); no other sink waits for it.
4. Rights are asked when a listening begins and when rights change. A listening to everything hears an event if its
   principal may see it; the feed finds these principals by name (owner, sender, shares, roles), not by asking everyone.
"""

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Protocol

from interlock.client.door import Sink
from interlock.core.authority import Action, Authority, Whose
from interlock.core.errors import InterlockError, Unavailable
from interlock.core.events import Data, Event, Gap
from interlock.core.fence import Fence
from interlock.core.names import LOCAL, EventKind, Principal, RunId, SessionId
from interlock.runtime.clock import Clock
from interlock.runtime.following import PAGE_EVENTS, Everything, Listening
from interlock.runtime.guards import Guards
from interlock.runtime.registry import Registry
from interlock.runtime.unwritten import Unwritten
from interlock.stores.base import Log, Store, read

logger = logging.getLogger("interlock")

# Remembered audiences; each is the answer to one question of rights.
AUDIENCES = 4_096
# The kinds of events that tell an approver, who may not see the run, of its questions.
ASKING = frozenset({EventKind.QUESTION, EventKind.ENDED})


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
        # Control has lapsed: nothing is published.
        self._mute = False
        # Tuples, replaced when a listening comes or goes: `publish` walks them while sinks come and go.
        self._following: dict[SessionId, tuple[Listening, ...]] = {}
        self._everything: dict[Principal, tuple[Everything, ...]] = {}
        # By session, sender and kind: whose session it was when the question was asked, and who hears the event.
        self._audiences: dict[tuple[SessionId, Principal | None, EventKind], tuple[Whose, tuple[Take, ...]]] = {}
        guards.listen(self._reconsider)

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
        if self._mute:
            return event
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
        logger.exception("a sink of session %s failed and is let go", listening.session)
        with contextlib.suppress(Exception):
            listening.close(Unavailable("this watch failed and is over; watch again"))

    def _remove_from_all(self, take: Take) -> None:
        """Remove a listening to everything that failed."""
        logger.exception("a sink of every session failed and is let go")
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
        everything.saw_all = self._authority.may(Action.SEE_SESSION, by)
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

    def lapse(self, error: InterlockError) -> None:
        """Publish nothing more, and end every listening with an error."""
        self._mute = True
        for listening in [each for following in self._following.values() for each in following]:
            listening.close(error)
        self.close()

    # Who may hear

    def sees(self, by: Principal, session: SessionId, principal: Principal | None, *, question: bool = False) -> bool:
        """Return whether `by` may see an event of a session, or of its run that `principal` started."""
        whose = self._registry.whose(session)
        action = Action.ANSWER if question else Action.SEE_RUN
        return self._authority.may(Action.SEE_SESSION, by, whose=whose) or self._authority.may(
            action, by, whose=whose, principal=principal
        )

    def _reconsider(self) -> None:
        """Ask again who may hear: rights have changed. A sink takes back what waits in it and its principal lost."""
        self._audiences.clear()
        for each in [each for those in self._everything.values() for each in those]:
            each.saw_all = each.saw_all or self._authority.may(Action.SEE_SESSION, each.by)
            # Both sinks of a listening put into the same place.
            if (sink := each.sink or each.approver) is not None:
                sink.take_back(partial(self._still_sees, each))

    def _still_sees(self, each: Everything, session: SessionId, run_id: RunId | None, question: bool) -> bool:
        if question and self._authority.approves(each.by):
            return True
        if self._registry.whose(session).owner is None and not each.saw_all:
            # Memory does not know the session, and memory holds every change of a session's sharing. So there was
            # none: the principal might see this event when the sink took it, and still may.
            return True
        run = None if run_id is None else self._registry.runs.get(run_id)
        return self.sees(each.by, session, None if run is None else run.principal, question=question)

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
        return run_id if run is None else run.absorber_or_self.id

    def is_silent(self, run_id: RunId) -> bool:
        """Return whether a run will publish nothing more: it is not in memory, or its terminal event is published.

        Without this a listening would wait for ever for a terminal event that the log has dropped.
        """
        run = self._registry.runs.get(self.absorber_of(run_id))
        return run is None or run.end_published


async def whole_log(log: Log, session: SessionId, *, after: int = 0) -> list[Event]:
    """Return all events of a session's log after a position, read page by page."""
    events: list[Event] = []
    while True:
        page = await read(log.events(session, after=after, limit=PAGE_EVENTS))
        events.extend(page.events)
        if len(page.events) < PAGE_EVENTS:
            return events
        after = page.events[-1].position
