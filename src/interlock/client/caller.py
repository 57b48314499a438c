"""The verbs of a caller, as methods: each builds its verb (core/verbs.py) and asks it.

1. Control and every client have these methods. `by` says for whom control is asked. A client speaks for one principal,
   and refuses another.
2. A session or run that the caller may not see raises the same error as one that does not exist, so an error gives
   nothing away.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from datetime import datetime, timedelta
from typing import Literal, TypeVar

from interlock.client.door import Asked, Listening, Sink
from interlock.client.watch import Watch
from interlock.core import verbs
from interlock.core.answers import ProcessInfo, QuestionInfo, Remaining, RunInfo, Sent, SessionInfo, Shared, Wake
from interlock.core.events import Entry, Event
from interlock.core.names import LOCAL
from interlock.core.outcome import Outcome
from interlock.core.receipt import Receipt
from interlock.core.timeline import Moment
from interlock.core.values import may_of, seconds_every, strategy_of, time_of
from interlock.core.verbs import SessionName, Verb

T = TypeVar("T")


class Caller(ABC):
    """Sends, stops, watches and answers for a principal."""

    @abstractmethod
    def ask(self, verb: Verb[T], *, by: str = LOCAL) -> Asked[T]:
        """Ask a verb. A message is taken and a stop takes effect in this step, whether or not the answer is awaited."""

    @abstractmethod
    async def listen(
        self,
        sink: Sink,
        session: str | None = None,
        *,
        run: str | None = None,
        after: int = 0,
        begin: str | None = None,
        by: str = LOCAL,
    ) -> Listening | None:
        """Give a sink what `watch` yields, each event in the step that publishes it; None if the run was withdrawn.

        `begin` names a run: events of the session before that run's first are left out, as those up to `after` are.
        The log is read once `resume` is called on what this returns.
        """

    # Sending

    async def send(
        self,
        session: str | None,
        text: str,
        *,
        by: str = LOCAL,
        key: str | None = None,
        strategy: str | None = None,
        deadline: float | None = None,
        order: tuple[str, float] | None = None,
        kind: Literal["chat", "agent"] = "chat",
        agent: str | None = None,
        instructions: str | None = None,
    ) -> Sent:
        """Send a message; return once the store has it. By default the message takes over the run in the session.

        Without a session (None) the run has a session of its own. `kind` is chat, or agent for a program's message,
        which queues unless it names a strategy itself. `agent` names the agent of open_control(agents=...) that
        answers; `instructions` reach the agent together with the message. `order` is (channel, the channel's own number
        or time). A message that was written before a stop in the same channel, and arrives after it, is stopped too.
        """
        return await self.ask(
            verbs.Send(
                session=_name(session), text=text, key=key, strategy=strategy_of(strategy), deadline=deadline,
                order=order, kind=kind, agent=agent, instructions=instructions,
            ),
            by=by,
        )  # fmt: skip

    # Stopping

    async def stop(
        self,
        *,
        session: str | None = None,
        run: str | None = None,
        message: str | None = None,
        key: str | None = None,
        by: str = LOCAL,
        order: tuple[str, float] | None = None,
        typed: bool = False,
    ) -> Receipt:
        """Stop a session's runs, one run, or the message sent under a key (also before that message arrives).

        `key` is the stop's own: a second delivery gets the same receipt and ends nothing newer. `order` is the stop's
        own place in its channel: messages of the session that were written before it, and arrive within an hour after
        it, are stopped as well; messages that were written after it are spared. `typed` says that a person typed the
        stop as a message to the session; the outcome carries that on.
        """
        asked = verbs.Stop(session=_name(session), run=run, message=message, key=key, order=order, typed=typed)
        return await self.ask(asked, by=by)

    async def reset(self, session: str, *, key: str | None = None, by: str = LOCAL) -> Receipt:
        """End everything of a session, detached children and processes too, and begin a new transcript.

        The log and the schedules stay.
        """
        return await self.ask(verbs.Reset(session=SessionName(session), key=key), by=by)

    async def stop_all(self, *, of: str | None = None, by: str = LOCAL) -> list[Receipt]:
        """Stop every run, or those that one principal started and those in its sessions. Only an admin may."""
        return await self.ask(verbs.StopAll(of=of), by=by)

    async def remaining(self, session: str, *, by: str = LOCAL) -> Remaining:
        """Return what the caller may still stop in a session, from memory alone. A gateway has no such method."""
        return await self.ask(verbs.Left(session=SessionName(session)), by=by)

    # Questions

    async def answer(self, question: str, answer: bool | str, *, by: str = LOCAL) -> QuestionInfo:
        """Answer a question with True or False, or one of its choices. Raise QuestionClosed if it is not open."""
        return await self.ask(verbs.Answer(question=question, answer=answer), by=by)

    async def questions(self, session: str | None = None, *, by: str = LOCAL) -> list[QuestionInfo]:
        """List the open questions that the caller may answer; with a session, also those of the children below it."""
        return await self.ask(verbs.Questions(session=_name(session)), by=by)

    # Sessions

    async def sessions(self, *, limit: int = 100, by: str = LOCAL) -> list[SessionInfo]:
        """List the sessions that the caller may see, the latest first, without sessions of single runs."""
        return await self.ask(verbs.Sessions(limit=limit), by=by)

    async def session(self, session: str, *, by: str = LOCAL) -> SessionInfo:
        """Return a session as a list shows it."""
        return await self.ask(verbs.Describe(session=SessionName(session)), by=by)

    async def share(self, session: str, *, with_: str, may: str = "write", by: str = LOCAL) -> Shared:
        """Let another principal see a session and write in it, or (may="read") only see it; for owners and admins."""
        return await self.ask(verbs.Share(session=SessionName(session), with_=with_, may=may_of(may)), by=by)

    async def unshare(self, session: str, *, with_: str, by: str = LOCAL) -> Shared:
        """Take a share away. From this step on, watches and waits that used it show nothing more."""
        return await self.ask(verbs.Unshare(session=SessionName(session), with_=with_), by=by)

    async def set_strategy(self, session: str, strategy: str | None, *, by: str = LOCAL) -> None:
        """Set what messages do while a session is busy; None is the server's setting. A message may override it."""
        await self.ask(verbs.SetStrategy(session=SessionName(session), strategy=strategy_of(strategy)), by=by)

    async def wake(
        self,
        session: str,
        text: str,
        *,
        at: datetime | float | None = None,
        every: timedelta | float | None = None,
        cron: str | None = None,
        by: str = LOCAL,
    ) -> Wake:
        """Schedule a message, once or repeatedly. A wake that finds the session busy is skipped and not made up for.

        Over a socket this raises if the connection drops; `wakes` lists what was made. So does `unwake`.
        """
        asked = verbs.Schedule(
            session=SessionName(session), text=text, at=time_of(at), every=seconds_every(every), cron=cron
        )
        return await self.ask(asked, by=by)

    async def unwake(self, wake: str, *, by: str = LOCAL) -> None:
        """Remove a schedule; a run that it began goes on."""
        await self.ask(verbs.Unschedule(wake=wake), by=by)

    async def wakes(self, session: str, *, by: str = LOCAL) -> list[Wake]:
        """List a session's schedules."""
        return await self.ask(verbs.Wakes(session=SessionName(session)), by=by)

    # Looking

    async def wait(self, run: str, *, timeout: float | None = None, drained: bool = False, by: str = LOCAL) -> Outcome:
        """Return how a run ended; `pending` if the timeout passed first, `unknown` if the caller sees no such run."""
        return await self.ask(verbs.Wait(run=run, timeout=timeout, drained=drained), by=by)

    async def receipt(self, wanted: str, *, by: str = LOCAL) -> Receipt:
        """Return a receipt, by its own id or a run's id or key, as it stands now, with the runs the caller may see."""
        return await self.ask(verbs.GetReceipt(of=wanted), by=by)

    async def find(self, name: str, *, by: str = LOCAL) -> RunInfo | None:
        """Return a run the caller may see, by its id or by a key of the caller's; None if there is none."""
        return await self.ask(verbs.Find(name=name), by=by)

    async def runs(
        self, session: str | None = None, *, tree: bool = False, latest: int = 0, by: str = LOCAL
    ) -> list[RunInfo]:
        """List live runs the caller may see; with a session, its ended ones too, and with tree=True their children.

        Without a session, `latest` adds that many of the latest stored runs.
        """
        return await self.ask(verbs.Runs(session=_name(session), tree=tree, latest=latest), by=by)

    async def processes(self, session: str | None = None, *, by: str = LOCAL) -> list[ProcessInfo]:
        """List live processes of runs the caller may see, and detached ones the caller may stop."""
        return await self.ask(verbs.Processes(session=_name(session)), by=by)

    async def history(self, session: str, *, by: str = LOCAL) -> list[Entry]:
        """Return a session's conversation."""
        return await self.ask(verbs.History(session=SessionName(session)), by=by)

    async def timeline(self, run: str, *, by: str = LOCAL) -> list[Moment]:
        """Return what happened in a run, in order, as a few moments that a surface can draw."""
        return await self.ask(verbs.Timeline(run=run), by=by)

    async def watch(
        self, session: str | None = None, *, run: str | None = None, after: int = 0, by: str = LOCAL
    ) -> AsyncGenerator[Event, None]:
        """Replay a session's events after a position, then follow; with run=, that run's, up to its terminal event."""
        watch = Watch()
        watch.listening = listening = await self.listen(watch, session, run=run, after=after, by=by)
        if listening is None:
            return
        try:
            while (event := await watch.next()) is not None:
                yield event
        finally:
            listening.close()


def _name(session: str | None) -> SessionName | None:
    return None if session is None else SessionName(session)
