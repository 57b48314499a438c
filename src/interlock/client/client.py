"""The verbs of a caller, over a door: the same in process, over a socket, and through another node.

A client speaks for one principal. Control decides what that principal may; a session or run that it may not see is
answered like one that does not exist.
"""

from collections.abc import AsyncGenerator
from datetime import datetime, timedelta
from typing import Literal, TypeVar

from interlock.client.door import Asked, Door, Listening, Sink
from interlock.client.watch import Watch
from interlock.core import verbs
from interlock.core.answers import ProcessInfo, QuestionInfo, RunInfo, Sent, SessionInfo, Shared, Wake
from interlock.core.events import Entry, Event
from interlock.core.outcome import Outcome
from interlock.core.receipt import Receipt
from interlock.core.timeline import Moment
from interlock.core.values import may_of, seconds_every, strategy_of, time_of
from interlock.core.verbs import SessionName, Verb

T = TypeVar("T")


class Client:
    """Sends, stops, watches and answers for one principal."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def ask(self, verb: Verb[T]) -> Asked[T]:
        """Ask a verb; sends and stops begin in this step, whether or not the answer is awaited."""
        return self._door.ask(verb)

    # Sending

    async def send(
        self,
        session: str | None,
        text: str,
        *,
        key: str | None = None,
        strategy: str | None = None,
        deadline: float | None = None,
        order: tuple[str, float] | None = None,
        kind: Literal["chat", "agent"] = "chat",
        agent: str | None = None,
        instructions: str | None = None,
    ) -> Sent:
        """Send a message; return once the store has it. By default the message takes over the run in the session."""
        return await self.ask(
            verbs.Send(
                session=None if session is None else SessionName(session), text=text, key=key,
                strategy=strategy_of(strategy), deadline=deadline, order=order, kind=kind, agent=agent,
                instructions=instructions,
            )
        )  # fmt: skip

    # Stopping

    async def stop(
        self,
        *,
        session: str | None = None,
        run: str | None = None,
        message: str | None = None,
        key: str | None = None,
        order: tuple[str, float] | None = None,
        typed: bool = False,
    ) -> Receipt:
        """Stop a session's runs, one run, or the message under a key, also one that has not arrived yet.

        `key` is the stop's own: a second delivery gets the same receipt and ends nothing newer.
        """
        named = None if session is None else SessionName(session)
        return await self.ask(
            verbs.Stop(session=named, run=run, message=message, key=key, order=order, typed=bool(typed))
        )

    async def reset(self, session: str, *, key: str | None = None) -> Receipt:
        """End everything of a session, detached children too, and begin a fresh transcript. Its schedules stay."""
        return await self.ask(verbs.Reset(session=SessionName(session), key=key))

    async def stop_all(self, *, of: str | None = None) -> list[Receipt]:
        """Stop every run, or those that one principal started and those in its sessions. Only an admin may."""
        return await self.ask(verbs.StopAll(of=of))

    # Questions

    async def answer(self, question: str, answer: bool | str) -> QuestionInfo:
        """Answer a question: True or False, or one of its choices. Raise QuestionClosed if it is not open any more."""
        return await self.ask(verbs.Answer(question=question, answer=answer))

    async def questions(self, session: str | None = None) -> list[QuestionInfo]:
        """List the open questions that the caller may answer, also those of children below a session."""
        return await self.ask(verbs.Questions(session=None if session is None else SessionName(session)))

    # Sessions

    async def sessions(self, *, limit: int = 100) -> list[SessionInfo]:
        """List the sessions that the caller may see, the latest first."""
        return await self.ask(verbs.Sessions(limit=limit))

    async def session(self, session: str) -> SessionInfo:
        """Return a session as a list shows it."""
        return await self.ask(verbs.Describe(session=SessionName(session)))

    async def share(self, session: str, *, with_: str, may: str = "write") -> Shared:
        """Let another principal see a session and write in it, or with may="read" only see it. Only its owner may."""
        return await self.ask(verbs.Share(session=SessionName(session), with_=with_, may=may_of(may)))

    async def unshare(self, session: str, *, with_: str) -> Shared:
        """Take a share back."""
        return await self.ask(verbs.Unshare(session=SessionName(session), with_=with_))

    async def set_strategy(self, session: str, strategy: str | None) -> None:
        """Set the strategy of messages to a session that is busy; None for the server's own."""
        await self.ask(verbs.SetStrategy(session=SessionName(session), strategy=strategy_of(strategy)))

    async def wake(
        self,
        session: str,
        text: str,
        *,
        at: datetime | float | None = None,
        every: timedelta | float | None = None,
        cron: str | None = None,
    ) -> Wake:
        """Schedule a message, once or repeatedly. If the connection drops this raises; `wakes` lists what was made."""
        asked = verbs.Schedule(
            session=SessionName(session), text=text, at=time_of(at), every=seconds_every(every), cron=cron
        )
        return await self.ask(asked)

    async def unwake(self, wake: str) -> None:
        """Remove a schedule; a run that it has started goes on. If the connection drops this raises."""
        await self.ask(verbs.Unschedule(wake=wake))

    async def wakes(self, session: str) -> list[Wake]:
        """List a session's schedules."""
        return await self.ask(verbs.Wakes(session=SessionName(session)))

    # Looking

    async def wait(self, run: str, *, timeout: float | None = None, drained: bool = False) -> Outcome:
        """Return how a run ended; `pending` if `timeout` passed first, `unknown` if the caller may see no such run."""
        return await self.ask(verbs.Wait(run=run, timeout=timeout, drained=drained))

    async def runs(self, session: str | None = None, *, tree: bool = False, latest: int = 0) -> list[RunInfo]:
        """List live runs; with a session its ended ones too; with `latest` that many from the store."""
        named = None if session is None else SessionName(session)
        return await self.ask(verbs.Runs(session=named, tree=tree, latest=latest))

    async def find(self, name: str) -> RunInfo | None:
        """Find a run by its id or a key of the caller's; None if there is none."""
        return await self.ask(verbs.Find(name=name))

    async def processes(self, session: str | None = None) -> list[ProcessInfo]:
        """List live processes of runs the caller may see, and detached ones the caller may stop."""
        return await self.ask(verbs.Processes(session=None if session is None else SessionName(session)))

    async def history(self, session: str) -> list[Entry]:
        """Return a session's transcript."""
        return await self.ask(verbs.History(session=SessionName(session)))

    async def receipt(self, wanted: str) -> Receipt:
        """Return a receipt by its own id, or a run's id or key, as it stands now."""
        return await self.ask(verbs.GetReceipt(of=wanted))

    async def timeline(self, run: str) -> list[Moment]:
        """Return the moments of a run, in order."""
        return await self.ask(verbs.Timeline(run=run))

    def is_current(self, run: str) -> bool:
        """Return whether a run has not fallen. A sink asks this where it begins a delivery; the call never waits.

        Over a socket the answer is later than the fall by the way of one frame, which overtakes everything else. There
        a run that this client does not watch, or while there is no connection, is not current.
        """
        return self._door.is_current(run)

    async def listen(
        self,
        sink: Sink,
        session: str | None = None,
        *,
        run: str | None = None,
        after: int = 0,
        begin: str | None = None,
    ) -> Listening | None:
        """Give a sink what `watch` yields; None if the run was withdrawn. `resume` on the answer begins the reading."""
        return await self._door.listen(sink, session, run=run, after=after, begin=begin)

    async def watch(
        self, session: str | None = None, *, run: str | None = None, after: int = 0
    ) -> AsyncGenerator[Event, None]:
        """Replay a session's events behind a position, then follow; with run=, that run's, up to its end."""
        watch = Watch()
        watch.listening = listening = await self.listen(watch, session, run=run, after=after)
        if listening is None:
            return
        try:
            while (event := await watch.next()) is not None:
                yield event
        finally:
            listening.close()
