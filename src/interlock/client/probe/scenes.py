"""The scenes of a probe, each played in a session of its own, and the campaign that plays them.

1. A scene brings a run to the point at which it is ended, or raises NotTried with what to do about it.
2. The scene ends the run by a stop, a takeover or a limit, listens whatever the answer was, and then asks `agent.wait`
   how the run ended.
3. Every scene stops its session before it returns or raises.
"""

import math
import secrets
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Final, NamedTuple

import msgspec

from interlock.client.probe.verdict import (
    Course,
    Report,
    Row,
    Take,
    agreement,
    course_of,
    late_of,
    row_of,
    silence_of,
    speaks,
    told_words,
    works,
)
from interlock.client.probe.wire import WRITE, Answer, Request, Told, Wire
from interlock.client.probe.words import STOPPED, TIMEOUT, Kind, Kinds, of_abort, of_wait
from interlock.core.errors import InterlockError, Refused
from interlock.protocol.frames import PROTOCOL

ANSWER_SECONDS: Final = 10.0  # for the answer to a stop or a second message, and for an end after its limit
CLEAN_SECONDS: Final = 3.0  # for the last stop of a session
WAIT_MS: Final = 500  # for `agent.wait`

LONGER: Final = "give a --say that makes the agent talk for longer"
TOO_SHORT: Final = "the run ended by itself before it could be stopped; give a --say or --tool-say that takes longer"
SILENT: Final = f"nothing was said; {LONGER}"
IDLE: Final = "no tool began; give a --tool-say that makes the agent run something long"
TOOK_OVER: Final = "the first was ended"
WENT_ON: Final = "the first went on"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to say, how often, and how long to wait, in seconds."""

    say: str
    tool_say: str
    times: int
    listen: float
    patience: float
    limit: int


class NotTried(Exception):
    """The point of a scene was not reached; its text says why."""


class Run:
    """A run that was asked for; its key stands for its id until the answer names one."""

    def __init__(self, request: Request, key: str) -> None:
        self.request, self.key = request, key

    @property
    def id(self) -> str:
        """The id by which the run is stopped and waited for."""
        given = self.request.answer.payload.get("runId") if self.request.answer is not None else None
        return given if isinstance(given, str) and given else self.key

    @property
    def names(self) -> set[str]:
        """Every id that the run's events may carry."""
        return {self.key, self.id}


class Stage:
    """One try of a scene: its session, the requests in it, and the events that came."""

    def __init__(self, wire: Wire, plan: Plan, session: str) -> None:
        self.wire, self.plan, self.session = wire, plan, session
        wire.forget()

    async def send(self, text: str, method: str = "chat.send", **more: Any) -> Run:
        """Send a message as a person does; with the method `agent`, as a program does."""
        key = secrets.token_hex(16)
        params = {"sessionKey": self.session, "message": text, "idempotencyKey": key} | more
        return Run(await self.wire.ask(method, **params), key)

    async def stop(self, run: Run) -> Request:
        """Request a run's stop as published clients do, by the session and the run."""
        return await self.wire.ask("chat.abort", sessionKey=self.session, runId=run.id)

    async def admitted(self, run: Run) -> None:
        """Wait until the gateway has accepted a message."""
        answer = await self.wire.until(lambda: run.request.answer, self.plan.patience)
        if answer is None:
            raise NotTried(f"{run.request.method} was not answered within {self.plan.patience:g} s")
        if not answer.ok:
            words = f"{run.request.method} was refused: {_words_of(answer)}"
            if answer.payload.get("code") == "FORBIDDEN":
                raise Refused(f"{self.wire.url}: {words}; {WRITE}")
            raise NotTried(words)

    async def begun(self, run: Run, sign: Callable[[Told], bool], *, lacks: str) -> None:
        """Wait for an event that shows the run at work; raise NotTried with `lacks` if none comes."""
        await self.admitted(run)

        def seen() -> bool:
            return any(map(sign, self.wire.told(run.names)))

        def over() -> bool:
            return bool(self.course(run).ends)

        if await self.wire.until(lambda: seen() or over() or None, self.plan.patience) is None:
            raise NotTried(f"within {self.plan.patience:g} s {lacks}")
        if over():
            raise NotTried(TOO_SHORT if seen() else f"the run ended by itself, and {lacks}")

    def course(self, run: Run) -> Course:
        """Return the events of a run so far."""
        return course_of(self.wire.told(run.names))

    async def stopped(self, run: Run, stop: Request) -> Take:
        """Wait for a stop's answer, listen, and judge."""
        answer = await self.wire.until(lambda: stop.answer, ANSWER_SECONDS)
        await self.admitted(run)
        await self.wire.listen(self.plan.listen)
        if answer is None:
            return await self._judge(run, stop, None, trouble=f"the stop was not answered within {ANSWER_SECONDS:g} s")
        if not answer.ok:
            return await self._judge(run, stop, None, trouble=f"the stop was refused: {_words_of(answer)}")
        ends = self.course(run).ends
        if answer.payload.get("aborted") is not True and ends and ends[0].place < answer.place:
            raise NotTried(TOO_SHORT)
        missed = None if answer.payload.get("aborted") is True else "the stop was told that there was nothing to stop"
        return await self._judge(run, stop, answer, words=[("chat.abort", *of_abort(answer.payload))], trouble=missed)

    async def taken_over(self, run: Run, second: Run, *, must: bool) -> Take:
        """Wait for a second message's answer, listen, and judge the first run, which may go on unless it `must` end."""
        await self.admitted(second)
        answer = second.request.answer
        assert answer is not None
        await self.wire.listen(self.plan.listen)
        ended = self._fits(run, STOPPED) or answer.payload.get("interruptedActiveRun") is True
        if not ended and any(end.place < answer.place for end in self.course(run).ends):
            raise NotTried(TOO_SHORT)
        if not must and not ended:
            return Take(ack_ms=_ms(answer.at - second.request.sent_at), course=WENT_ON)
        take = await self._judge(run, second.request, answer, words=[("asked", "to take over", STOPPED)])
        return msgspec.structs.replace(take, course=TOOK_OVER if ended else WENT_ON)

    async def timed_out(self, run: Run) -> Take:
        """Wait for a run's limit to end it, listen, and judge; times count from the limit."""
        due = run.request.sent_at + self.plan.limit
        first = await self.wire.until(
            lambda: next(iter(self.course(run).ends), None), due + ANSWER_SECONDS - monotonic()
        )
        if first is not None and first.at < due and not self._fits(run, TIMEOUT):
            raise NotTried(f"the run ended by itself before its limit of {self.plan.limit} s; {LONGER}")
        await self.wire.listen(self.plan.listen)
        late = None if first is not None else f"no end was told within {ANSWER_SECONDS:g} s of its limit"
        return await self._judge(run, due, first, words=[("asked", "a time limit", TIMEOUT)], trouble=late)

    def _fits(self, run: Run, kinds: Kinds) -> bool:
        return any(fits & kinds for _, _, fits in told_words(self.course(run)))

    async def _judge(
        self,
        run: Run,
        since: Request | float,
        ack: Answer | Told | None,
        *,
        words: list[tuple[str, str, Kinds]] | None = None,
        trouble: str | None = None,
    ) -> Take:
        course, begun = self.course(run), since if isinstance(since, float) else since.sent_at
        late, late_ms = ({}, None) if ack is None else late_of(course, ack.place, ack.at)
        told = [*(words or []), *told_words(course), *await self._others(run)]
        shown, agree = agreement(told)
        terminals = max(len(course.chat_ends), len(course.agent_ends))
        if terminals == 0 and self._never_ran(run, course):
            terminals = 1  # the answer to the message was its end
        return Take(
            ack_ms=None if ack is None else _ms(max(0.0, ack.at - begun)),
            silence_ms=silence_of(course, begun),
            late=late, late_ms=late_ms, terminals=terminals, words=shown, disagree=not agree, trouble=trouble,
        )  # fmt: skip

    async def _others(self, run: Run) -> list[tuple[str, str, Kinds]]:
        """Return what `agent.wait`, and the second answer to `agent`, say about the end."""
        asked = await self.wire.ask("agent.wait", runId=run.id, timeoutMs=WAIT_MS)
        answer = await self.wire.until(lambda: asked.answer, ANSWER_SECONDS)
        found = [] if answer is None or not answer.ok else [("agent.wait", *of_wait(answer.payload))]
        seconds = run.request.answers[1:2] if run.request.method == "agent" else []
        return found + [("agent's answer", *of_wait(each.payload)) for each in seconds if each.ok]

    @staticmethod
    def _never_ran(run: Run, course: Course) -> bool:
        """Return whether the message was answered with its end and its run has no events."""
        answer = run.request.answer
        kinds = of_wait(answer.payload)[1] if answer is not None and answer.ok else frozenset()
        return not course.events and Kind.STOPPED in kinds

    async def clean(self) -> None:
        """Stop every run that is left in the session."""
        await clean(self.wire, self.session)


async def clean(wire: Wire, session: str) -> None:
    """Stop every run that is left in a session; a gateway that does not answer in time is left alone."""
    asked = await wire.ask("chat.abort", sessionKey=session)
    await wire.until(lambda: asked.answer, CLEAN_SECONDS)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


def _words_of(answer: Answer) -> str:
    return str(answer.payload.get("message") or answer.payload.get("code") or "without a reason")[:200]


# The scenes


async def mid_stream(stage: Stage, method: str = "chat.send") -> Take:
    """Stop a run that speaks."""
    run = await stage.send(stage.plan.say, method)
    await stage.begun(run, speaks, lacks=SILENT)
    return await stage.stopped(run, await stage.stop(run))


async def mid_tool(stage: Stage) -> Take:
    """Stop a run whose tool is at work."""
    run = await stage.send(stage.plan.tool_say)
    await stage.begun(run, works, lacks=IDLE)
    return await stage.stopped(run, await stage.stop(run))


async def ack_gap(stage: Stage) -> Take:
    """Send a message and stop it before it is answered."""
    run = await stage.send(stage.plan.say)
    return await stage.stopped(run, await stage.stop(run))


async def takeover(stage: Stage, **more: Any) -> Take:
    """Send a second message: with the gateway's default strategy, or one that is to end the first."""
    run = await stage.send(stage.plan.say)
    await stage.begun(run, speaks, lacks=SILENT)
    second = await stage.send(stage.plan.say, **more)
    return await stage.taken_over(run, second, must=bool(more))


async def time_limit(stage: Stage, method: str, **limit: int) -> Take:
    """Let a run reach its time limit."""
    run = await stage.send(stage.plan.say, method, **limit)
    await stage.admitted(run)
    return await stage.timed_out(run)


class Scene(NamedTuple):
    """A scene, its name in the table, and how many messages it sends."""

    does: str
    play: Callable[[Stage], Awaitable[Take]]
    messages: int = 1


SCENES: Final = {
    "mid-stream": Scene("stop while it speaks", mid_stream),
    "mid-tool": Scene("stop while a tool runs", mid_tool),
    "ack-gap": Scene("stop right behind the send", ack_gap),
    "agent": Scene("stop what `agent` started", lambda stage: mid_stream(stage, "agent")),
    "takeover": Scene("second message, as it is", takeover, 2),
    "interrupt": Scene("second message, interrupt", lambda stage: takeover(stage, queueMode="interrupt"), 2),
    "timeout": Scene(
        "time limit of `chat.send`",
        lambda stage: time_limit(stage, "chat.send", timeoutMs=stage.plan.limit * 1000),
    ),
    "agent-timeout": Scene("time limit of `agent`", lambda stage: time_limit(stage, "agent", timeout=stage.plan.limit)),
}


# The campaign


class Campaign:
    """Plays scenes one after the other over one connection."""

    def __init__(self, wire: Wire, plan: Plan, scenes: list[str]) -> None:
        self.name = f"probe-{secrets.token_hex(4)}"  # the prefix of its sessions' names
        self._wire, self._plan, self._scenes = wire, plan, scenes
        self._takes: dict[str, list[Take]] = {scene: [] for scene in scenes}
        self.broken: str | None = None
        self.left: str | None = None  # a session that could not be stopped on this connection

    async def play(self, heard: Callable[[str, Take], None]) -> None:
        """Play every scene and report each try to `heard`.

        An error after the first try ends the campaign and is kept in `broken`; one before it is raised.
        """
        for scene in self._scenes:
            for number in range(self._plan.times):
                try:
                    take = await self._take(scene, f"{self.name}-{scene}-{number + 1}")
                except InterlockError as error:
                    if not any(self._takes.values()):
                        raise
                    self.broken = str(error)
                    return
                self._takes[scene].append(take)
                heard(scene, take)

    async def _take(self, scene: str, session: str) -> Take:
        stage = Stage(self._wire, self._plan, session)
        try:
            return await SCENES[scene].play(stage)
        except NotTried as why:
            return Take(not_tried=str(why))
        finally:
            try:
                await stage.clean()
            except InterlockError:  # the connection is gone, which ends the campaign
                self.left = session

    def rows(self) -> list[Row]:
        """Return a row for each scene, of the tries so far."""
        return [row_of(scene, SCENES[scene].does, takes) for scene, takes in self._takes.items()]

    def report(self) -> Report:
        """Return the report of the tries so far."""
        server, rows = self._wire.hello.get("server"), self.rows()
        return Report(
            url=self._wire.url,
            server=str(server.get("version"))[:80] if isinstance(server, dict) else None,
            protocol=PROTOCOL,
            times=self._plan.times,
            listen_s=self._plan.listen,
            leaked=any(row.leaked for row in rows),
            tried=sum(row.tried for row in rows),
            broken=self.broken,
            scenes=rows,
        )


def lasts(plan: Plan, scenes: list[str]) -> int:
    """Return about how many seconds a campaign takes with an agent that begins at once."""
    limits = sum(scene in ("timeout", "agent-timeout") for scene in scenes)
    return math.ceil(plan.times * (len(scenes) * (plan.listen + 0.5) + limits * plan.limit))
