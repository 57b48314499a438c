"""A store that keeps nothing: the memory that is left with it is the runtime's own."""

import asyncio

from interlock.core.decision import Decision, QuestionRow, RunRow, SessionRow, ToolRow, Verdict, WakeRow
from interlock.core.events import Event
from interlock.core.names import Principal, QuestionId, ReceiptId, RunId, SessionId
from interlock.core.receipt import Receipt
from interlock.stores.base import Loaded, Page, Ticket


class ForgetfulStore:
    """Says yes to every decision, one loop cycle later, and remembers none."""

    async def open(self) -> int:
        return 1

    async def close(self) -> None:
        pass

    def decide(self, decision: Decision) -> Ticket:
        ticket = Ticket(decision)
        asyncio.get_running_loop().call_soon(ticket.accept, Verdict())
        return ticket

    async def withdraw(self, ticket: Ticket) -> bool:
        return True

    def append(self, event: Event) -> None:
        pass

    async def load(self, session: SessionId, *, principal: Principal, key: str | None) -> Loaded:
        return Loaded()

    async def session(self, session: SessionId) -> SessionRow | None:
        return None

    async def run(self, run_id: RunId) -> RunRow | None:
        return None

    async def runs(self, session: SessionId, *, tree: bool = False) -> tuple[RunRow, ...]:
        return ()

    async def tools(self, run_id: RunId) -> tuple[ToolRow, ...]:
        return ()

    async def receipt(self, wanted: ReceiptId | RunId) -> Receipt | None:
        return None

    async def events(self, session: SessionId, *, after: int, limit: int) -> Page:
        return Page()

    async def question(self, question_id: QuestionId) -> QuestionRow | None:
        return None

    async def wakes(self) -> tuple[WakeRow, ...]:
        return ()
