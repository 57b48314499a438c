"""Events on their way into the database.

The loop adds events, and the writer's thread takes them inside its transactions. A lasting event is written before or
with every decision that comes after it (the oldest thousand); passing events are written between decisions.
"""

import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from interlock.core.decision import EpochRow
from interlock.core.events import Ended, Event
from interlock.core.names import PASSING, RunId, SessionId
from interlock.stores import bounds
from interlock.stores.sqlite import rows
from interlock.stores.sqlite.faults import of_disk
from interlock.stores.sqlite.schema import many, statements

log = logging.getLogger("interlock")

SQL = statements("events")
# Lasting events written in one transaction.
LASTING_EVENTS = 1_000
# The least and the most passing events written in one transaction, which a stop may have to wait for; between the two a
# fourth of those that wait.
PIECE_EVENTS = (128, 1_000)
# Rows written by one statement; SQLite bounds the parameters.
ROWS = 128
ROW = "(?, ?, ?, ?)"  # of `add_passing`
# Forgotten events may stay in the lines up to this number; then the lines are filtered.
FORGOTTEN = 50_000


@dataclass(slots=True)
class Taken:
    """What one transaction writes of the events."""

    lasting: list[Event]
    epochs: list[EpochRow]
    passing: list[Event] = field(default_factory=list)
    # Terminal events that were dropped.
    over: list[Event] = field(default_factory=list)
    dropped: dict[SessionId, int] = field(default_factory=dict)

    @property
    def events(self) -> list[Event]:
        """All of them."""
        return [*self.lasting, *self.over, *self.passing]


class Events:
    """The lines of events. The loop adds to them, the writer's thread takes from them."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._lasting: deque[Event] = deque()
        self._passing: deque[Event] = deque()
        # Events that still stand in one of the two lines above and must not be written.
        self._forgotten: set[tuple[SessionId, int]] = set()
        self._dropped: dict[SessionId, int] = {}
        # Terminal events that were dropped: their runs are told as ended all the same.
        self._over: deque[Event] = deque()
        # Epochs that are to be written with the next events.
        self._epochs: dict[SessionId, int] = {}
        # The runs with passing events in the database, and how many this start has written of each.
        self._passing_written: dict[RunId | None, int] = dict.fromkeys(
            (RunId(row[0]) for row in connection.execute(SQL["runs_with_passing"])), 0
        )

    # The loop's side

    def add(self, event: Event, epoch: EpochRow | None = None) -> None:
        """Add an event to its line; its epoch is written with it or before it."""
        if epoch is not None:
            self._epochs[epoch.session] = epoch.epoch
        passing = event.kind in PASSING and event.run_id is not None
        (self._passing if passing else self._lasting).append(event)

    def forget(self, events: Sequence[Event]) -> None:
        """Do not write these events, although they were added."""
        with self._lock:
            self._forgotten.update((event.session, event.position) for event in events)
            # Only a disk that has refused events for long lets this set grow: `_pop` removes what it meets.
            if len(self._forgotten) > FORGOTTEN:
                self._lasting = deque(self._wanted(self._lasting))
                self._passing = deque(self._wanted(self._passing))
                self._forgotten.clear()

    def _wanted(self, events: Iterable[Event]) -> Iterable[Event]:
        return (event for event in events if (event.session, event.position) not in self._forgotten)

    def drop(self, session: SessionId, events: Sequence[Event]) -> None:
        """Forget the oldest events of a session, and note that its log has a gap there; an ended run stays ended."""
        self.forget(events)
        self._dropped[session] = events[-1].position
        self._over.extend(event for event in events if isinstance(event.data, Ended))

    @property
    def waiting(self) -> bool:
        """Whether something waits to be written."""
        return bool(self._lasting or self._passing or self._over or self._dropped or self._epochs)

    # The thread's side

    def take(self) -> Taken:
        """Take the oldest lasting events, to be written with decisions."""
        lasting = self._pop(LASTING_EVENTS)
        # After the events: the epoch of each of them was added before it.
        return Taken(lasting, [EpochRow(session=each, epoch=epoch) for each, epoch in dict(self._epochs).items()])

    def take_all(self) -> Taken:
        """Take the oldest lasting events, and what is to be noted about dropped ones."""
        over, dropped = [self._over.popleft() for _ in range(len(self._over))], dict(self._dropped)
        taken = self.take()
        taken.over, taken.dropped = over, dropped
        return taken

    def _pop(self, most: int, *, passing: bool = False) -> list[Event]:
        """Remove the oldest events from a line while the loop goes on to fill it; leave out the forgotten ones."""
        with self._lock:
            line = self._passing if passing else self._lasting
            if not self._forgotten:
                return [line.popleft() for _ in range(min(most, len(line)))]
            taken: list[Event] = []
            while line and len(taken) < most:
                event = line.popleft()
                if (event.session, event.position) in self._forgotten:
                    self._forgotten.discard((event.session, event.position))
                else:
                    taken.append(event)
            return taken

    def put_back(self, taken: Taken) -> None:
        """Put events that could not be written back into their lines."""
        with self._lock:
            self._lasting.extendleft(reversed(taken.lasting))
            self._passing.extendleft(reversed(taken.passing))
        self._over.extendleft(reversed(taken.over))

    def write(self, taken: Taken) -> None:
        """Add the lasting events and the epochs, and note what was dropped."""
        for row in taken.epochs:
            self._connection.execute(SQL["keep_epoch"], (row.session, row.epoch))
        self._connection.executemany(SQL["remember_dropped"], taken.dropped.items())
        try:
            many(self._connection, SQL["add_event"], [rows.of_event(event) for event in taken.lasting])
        except Exception as error:
            if of_disk(error):
                raise
            for event in taken.lasting:
                self._write_one(event)

    def _write_one(self, event: Event) -> None:
        try:
            self._connection.execute(SQL["add_event"], rows.of_event(event))
        # No event that passed the outlet should fail here; one that does is left out and must not stop the others.
        except Exception as error:
            if of_disk(error):
                raise
            log.exception("an event of session %s cannot be written", event.session)

    def tell_ended(self, taken: Taken) -> None:
        """Note that runs' terminal events are in the log, and drop those runs' passing events.

        None of these passing events can be written later: the loop forgets them before it adds the terminal event.
        """
        ended = [event for event in (*taken.lasting, *taken.over) if isinstance(event.data, Ended)]
        many(self._connection, SQL["tell_run"], [(event.run_id,) for event in ended])
        for event in ended:
            if event.run_id in self._passing_written:
                self._connection.execute(SQL["drop_passing"], (event.session, event.run_id))

    def write_passing(self, taken: Taken) -> None:
        """Add a piece of the passing events, one row for those of each run."""
        least, most = PIECE_EVENTS
        taken.passing = self._pop(min(most, max(least, len(self._passing) // 4)), passing=True)
        said: dict[tuple[SessionId, RunId | None], list[Event]] = {}
        for event in taken.passing:
            said.setdefault((event.session, event.run_id), []).append(event)
        # Several rows in one statement: `sqlite3` gives the interpreter's lock away at each statement and waits to have
        # it back, and a decision may wait for this piece.
        kept = [rows.of_passing(events) for events in said.values()]
        for at in range(0, len(kept), ROWS):
            some = kept[at : at + ROWS]
            sql = SQL["add_passing"].replace(ROW, ", ".join([ROW] * len(some)))
            self._connection.execute(sql, [value for row in some for value in row])
        for (session, run_id), events in said.items():
            count = self._passing_written[run_id] = self._passing_written.get(run_id, 0) + len(events)
            # Keep a long run's passing events within their bound.
            if count > 2 * bounds.PASSING_EVENTS:
                self._connection.execute(SQL["trim_passing"], (session, run_id))
                self._passing_written[run_id] = count // 2

    def note_written(self, taken: Taken) -> None:
        """Note that the transaction is committed."""
        for event in (*taken.lasting, *taken.over):
            if isinstance(event.data, Ended):
                self._passing_written.pop(event.run_id, None)
        for row in taken.epochs:
            if self._epochs.get(row.session) == row.epoch:
                del self._epochs[row.session]
        for session, position in taken.dropped.items():
            if self._dropped.get(session) == position:
                del self._dropped[session]
