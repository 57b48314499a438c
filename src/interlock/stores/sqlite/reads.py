"""Every read of the store's port, and `Look`, a store that is only read.

Looking is not starting. `Look` opens the database read-only and takes no boot number, and `interlock prune` takes the
lock without a boot: as a start it would end cleanly and hide from the next start that the server was killed.
"""

import asyncio
import os
import sqlite3
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from interlock.core.answers import SessionInfo
from interlock.core.decision import QuestionRow, RunRow, SessionRow, StopKey, ToolRow, WakeRow
from interlock.core.errors import BadInput
from interlock.core.names import Principal, QuestionId, ReceiptId, RunId, SessionId
from interlock.core.receipt import Receipt
from interlock.stores.base import Loaded, Page, StoreFailed
from interlock.stores.sqlite import rows
from interlock.stores.sqlite.reader import Reader
from interlock.stores.sqlite.schema import statements

T = TypeVar("T")

DATABASE = "interlock.db"
SQL = statements("reads")


class Reads:
    """The reads of the store's port, through the reading thread."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        try:
            # Absolute, so that a later change of the working directory does not move the store.
            self.directory = Path(directory).expanduser().absolute()
        except (RuntimeError, TypeError) as error:
            raise BadInput(f"{directory!r:.100} is no directory for a store: {error}") from None
        self.path = self.directory / DATABASE
        self._reader: Reader | None = None

    def start_reading(self) -> None:
        """Start the reading thread."""
        self._reader = Reader(self.path)

    async def stop_reading(self) -> None:
        """Answer the reads that were asked, then end the reading thread."""
        if self._reader is not None:
            await self._reader.stop()

    def _ask(
        self, work: Callable[[sqlite3.Connection], T], *, bulk: bool = False, whole: bool = False
    ) -> "asyncio.Future[T]":
        if self._reader is None:
            raise StoreFailed("the store is not open")
        return self._reader.ask(work, bulk=bulk, whole=whole)

    async def _one(self, name: str, *given: object) -> rows.Row | None:
        found: rows.Row | None = await self._ask(lambda db: db.execute(SQL[name], given).fetchone())
        return found

    async def _all(self, name: str, *given: object) -> list[rows.Row]:
        return await self._ask(lambda db: db.execute(SQL[name], given).fetchall())

    # The port's questions

    async def load(self, session: SessionId, *, principal: Principal, key: str | None) -> Loaded:
        given = (session, principal, key)
        return await self._ask(lambda db: rows.loaded_of(session, db.execute(SQL["load"], given).fetchall()))

    async def session(self, session: SessionId) -> SessionRow | None:
        found = await self._one("session", session)
        return None if found is None else rows.session_of(found)

    async def sessions(self, *, limit: int, of: Principal | None = None) -> tuple[SessionInfo, ...]:
        return tuple(
            SessionInfo(session=rows.session_of(row[:9]), runs=row[9], open=row[10] or 0, latest_at=row[11])
            for row in await self._all("sessions", limit, of)
        )

    async def plain_sessions(self) -> tuple[tuple[Principal, SessionId], ...]:
        found = await self._all("plain_sessions")
        return tuple((Principal(owner), SessionId(session)) for owner, session in found)

    async def run(self, run_id: RunId) -> RunRow | None:
        found = await self._one("run", run_id)
        return None if found is None else rows.run_of(found)

    async def runs(
        self, session: SessionId | None, *, tree: bool = False, limit: int = 1_000, of: Principal | None = None
    ) -> tuple[RunRow, ...]:
        if session is None:
            return tuple(map(rows.run_of, reversed(await self._all("latest_runs", limit, of))))
        names = ("runs", "children") if tree else ("runs",)
        found = await self._ask(
            lambda db: [row for name in names for row in db.execute(SQL[name], (session,))], whole=tree
        )
        return tuple(map(rows.run_of, found))

    async def open_runs(self, *, of: Principal | None = None) -> tuple[RunRow, ...]:
        return tuple(map(rows.run_of, await self._all("open_runs", of)))

    async def open_questions(self) -> tuple[QuestionRow, ...]:
        return tuple(map(rows.question_of, await self._all("open_questions")))

    async def unsettled(self) -> tuple[SessionId, ...]:
        return tuple(SessionId(row[0]) for row in await self._all("unsettled"))

    async def unsettled_runs(self, session: SessionId) -> tuple[RunRow, ...]:
        return tuple(map(rows.run_of, await self._all("unsettled_runs", session)))

    async def parts(self, run_id: RunId) -> tuple[RunRow, ...]:
        return tuple(map(rows.run_of, await self._all("parts", run_id)))

    async def question(self, question_id: QuestionId) -> QuestionRow | None:
        found = await self._one("question", question_id)
        return None if found is None else rows.question_of(found)

    async def questions(self, run_id: RunId) -> tuple[QuestionRow, ...]:
        return tuple(map(rows.question_of, await self._all("questions", run_id)))

    async def wakes(self) -> tuple[WakeRow, ...]:
        return tuple(map(rows.wake_of, await self._all("wakes")))

    async def stops(self) -> tuple[StopKey, ...]:
        return tuple(map(rows.stop_of, await self._all("stops")))

    async def tools(self, run_id: RunId) -> tuple[ToolRow, ...]:
        return tuple(map(rows.tool_of, await self._all("tools", run_id)))

    async def receipt(self, wanted: ReceiptId | RunId) -> Receipt | None:
        found = await self._one("receipt", wanted)
        return None if found is None else rows.receipt_of(found)

    async def pending_receipts(self) -> tuple[Receipt, ...]:
        return tuple(map(rows.receipt_of, await self._all("pending_receipts")))

    async def events(self, session: SessionId, *, after: int, limit: int) -> Page:
        def look(db: sqlite3.Connection) -> Page:
            dropped = db.execute(SQL["dropped"], (session,)).fetchone()
            events = rows.events_of(session, db.execute(SQL["events"], (session, after, limit)))
            passing = rows.passing_of(session, after, db.execute(SQL["passing"], (session, after, limit)))
            if passing:
                events = sorted(events + passing, key=attrgetter("position"))[:limit]
            return Page(
                events=tuple(events),
                lost_to=dropped[0] if dropped is not None and dropped[0] > after else 0,
            )

        return await self._ask(look, bulk=True, whole=True)

    async def began(self, session: SessionId, run_id: RunId) -> int:
        found = await self._one("began", session, run_id)
        return 0 if found is None else int(found[0])


class Look(Reads):
    """A store that is only read, while a server may be writing it: `async with Look(DIR) as store`."""

    async def __aenter__(self) -> Self:
        if not self.path.exists():
            raise StoreFailed(f"{self.directory} holds no interlock store; name its directory with --data")
        self.start_reading()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop_reading()
