"""Sending: a message stands in its session's arrivals in the step that takes it; the ack comes when it is stored."""

import hashlib
from functools import partial

import msgspec

from interlock.client.door import Answering
from interlock.core.answers import Sent
from interlock.core.authority import Action
from interlock.core.errors import BadInput, Unavailable, UnknownSession
from interlock.core.lifecycle import State
from interlock.core.names import Principal, RunId, RunKind, SessionId
from interlock.core.values import instructions_of, kind_of, name_of, order_of, seconds_of, strategy_of, text_of
from interlock.core.verbs import Send
from interlock.runtime.arrival import Arrival
from interlock.runtime.driver import Driver
from interlock.runtime.inside import Inner, Inside
from interlock.runtime.live import RUN_SESSION, LiveRun, own_session
from interlock.runtime.naming import Anothers
from interlock.runtime.settings import FALLS
from interlock.runtime.stage import Stage
from interlock.stores.base import WITHDRAW_SECONDS, Ticket, Unsure


class Sending(Inner):
    """Takes messages."""

    def __init__(self, inside: Inside, *, stage: Stage, driver: Driver) -> None:
        super().__init__(inside)
        self._stage = stage
        self._driver = driver

    def send(self, asked: Send, by: Principal) -> Answering[Sent]:
        """Register a message and start its task, in this step; return what waits for the ack.

        From this step on a stop finds the message, although nothing of it was loaded or stored yet (races 1 and 24).
        """
        session = None if asked.session is None else session_name(asked.session)
        text, kind = text_of(asked.text), kind_of(asked.kind)
        key = None if asked.key is None else name_of(asked.key, "key")
        strategy, order = strategy_of(asked.strategy), order_of(asked.order)
        deadline = None if asked.deadline is None else seconds_of(asked.deadline, "deadline", None) or 0.0
        agent, instructions = self.agent(asked.agent), instructions_of(asked.instructions)
        if self._registry.closing:
            raise Unavailable("this control is closing; nothing was kept, send the message again after the restart")
        if not self._authority.may(Action.FOUND, by):
            raise UnknownSession(SessionId(session or "of its own"), by)
        if len(self._registry.falls) >= FALLS:
            raise Unavailable("too many endings wait for the store; nothing was taken, send it again later")
        run_id = RunId(self._registry.new_id("r"))
        # The digest of a key holds the deadline that counts. Stored keys were made so: a change here would refuse
        # retries of messages that an earlier start accepted.
        limit = (self._settings.deadline if deadline is None else deadline) or None
        run = LiveRun(
            run_id,
            self._registry.session(own_session(run_id) if session is None else SessionId(session)),
            Arrival(
                principal=by,
                text=text,
                kind=kind,
                method="send" if kind is RunKind.CHAT else kind,
                key=key,
                digest="" if key is None else digest(session, text, strategy, limit, *_beside(agent, instructions)),
                strategy=strategy,
                deadline=deadline,
                admitted_at=self._clock.wall(),
                order=order,
                agent=agent,
                instructions=instructions,
                begins=not isinstance(asked.session, Anothers),
            ),
        )
        run = self._stage.begin(run)
        # An acked run means that the key was used before. If that run is over, the answer says `ended`, as it would
        # after a restart.
        return partial(self._sent, run, run.admittance.acked.is_set())

    async def _sent(self, run: LiveRun, again: bool) -> Sent:
        await self._acked(run)
        if run.admittance.problem is not None:
            raise run.admittance.problem.with_traceback(None)
        # The message ended before it was seated: answer when its ending is public.
        if run.fall is not None and run.generation is None:
            await run.fall.ended.wait()
        assert run.admittance.sent is not None
        # An aliased run ends when the run that absorbed it ends.
        over = again and run.absorber_or_self.ended.is_set()
        return msgspec.structs.replace(run.admittance.sent, state=State.ENDED) if over else run.admittance.sent

    async def _acked(self, run: LiveRun) -> None:
        """Wait for the ack; raise Unsure if the store does not say whether it has the message.

        The message itself goes on: it runs if the store has it, and is withdrawn if the store never will.
        """
        asked: Ticket | None = None
        while not await run.admittance.acked.within(self._settings.commit_seconds + WITHDRAW_SECONDS):
            if asked is not None and run.admittance.ticket is asked and not asked.answered:
                raise Unsure("the store does not say whether it has the message; send it again with the same key")
            asked = run.admittance.ticket

    def agent(self, name: str | None) -> str | None:
        """Return an agent's name, or raise if no agent has it; None names the agent that control serves."""
        if name is None or name_of(name, "agent") in self._driver.names:
            return name
        known = ", ".join(self._driver.names) or "none"
        raise BadInput(
            f"no agent {name!r:.80} here; leave agent= out for the agent that control serves; the others are: {known}"
        )


def session_name(value: object) -> str:
    """Return a session's id that messages may be sent to."""
    name = name_of(value, "session")
    if name.startswith(RUN_SESSION):
        raise BadInput(f"session {name!r:.80} belongs to that run alone; send to the session it came from, or stop it")
    return name


def _beside(agent: str | None, instructions: str | None) -> tuple[object, ...]:
    """Return the further parts of a key's digest; none for a plain message, so that older stored keys still match."""
    return () if agent is None and instructions is None else (agent, instructions)


def digest(*parts: object) -> str:
    """Return the digest of what is sent or stopped under a key."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()
