"""Questions to people, and who may answer them.

1. A question is open from the step that passes the fence until an answer, its own timeout or its run's fall.
2. An answer counts once it is in the store. `answer` hands the claim to the store and closes the question when the
   store has it; a second answerer waits for that and is told which answer stands (race 56). If the store does not take
   the claim in time, the question stays open and can be answered again.
3. A run that falls before the answer is stored makes the question void, whatever the store says later: the fall comes
   after the claim in store order and overwrites it.
4. The run that waits for an answer reads the fence again: an Allow in the tick of a fall permits nothing (race 52).
5. A question whose timeout passes while an answer is being stored waits for the store.
"""

import asyncio
from collections.abc import Collection

import msgspec

from interlock.agent.flag import Flag
from interlock.core.answers import QuestionInfo
from interlock.core.authority import Action
from interlock.core.decision import Decision, QuestionRow
from interlock.core.errors import BadInput, QuestionClosed, Refused, Unavailable, Unknown
from interlock.core.events import Json, QuestionData
from interlock.core.names import Effect, KnownPhase, Principal, QuestionId, QuestionState, SessionId
from interlock.runtime.inside import Inner, Inside
from interlock.runtime.live import LiveRun
from interlock.runtime.outlet import Outlet
from interlock.runtime.settings import QUESTIONS
from interlock.runtime.work import Question
from interlock.stores.base import Ticket, is_committed, read

NEVER, ASK = "never", "ask"


class Policy:
    """Which tools a person must allow before they run.

    The operator's word beats a tool's own mark. `"ask"` asks for every tool, a list asks for all that are not on it,
    and `"never"` asks for none. Marks on tools count only where the operator says nothing.
    """

    __slots__ = ("_allowed", "_always")

    def __init__(self, approval: str | Collection[str] | None = None) -> None:
        known = approval in (NEVER, ASK) if isinstance(approval, str) else isinstance(approval, Collection | None)
        if not known:
            raise BadInput(f"approval= is 'never', 'ask' or a list of tools that need none, not {approval!r}")
        self._always = None if approval is None else approval == ASK
        self._allowed = None if approval is None or isinstance(approval, str) else frozenset(approval)

    def asks(self, tool: str, *, marked: bool) -> bool:
        """Return whether a tool must be allowed; `marked` if the tool carries approval="ask"."""
        if self._allowed is not None:
            return tool not in self._allowed
        return marked if self._always is None else self._always


class Approvals(Inner):
    """Opens questions and accepts answers."""

    def __init__(self, inside: Inside) -> None:
        super().__init__(inside)
        self._loop = asyncio.get_running_loop()

    # Asking

    def open(
        self,
        run: LiveRun,
        text: str,
        choices: tuple[str, ...] | None,
        seconds: float | None,
        *,
        tool: str | None = None,
        arguments: Json | None = None,
    ) -> Question:
        """Open a question of a current run, or raise Stale; one synchronous step."""
        run.fence.check(Effect.QUESTION)
        if len(run.work.questions or ()) >= QUESTIONS:
            raise Refused(f"this run has asked {QUESTIONS} questions, the most it may; end it and begin another")
        question_id = QuestionId(self._registry.new_id("q"))
        question = Question(question_id, run, text, choices, tool=tool, arguments=arguments)
        run.work.ask(question)
        self._registry.questions[question_id] = question
        patience = seconds or self._settings.ask_seconds
        question.timer = self._loop.call_later(patience, self._expire, question)
        question.asked_at = self._clock.wall()
        question.expires_at = question.asked_at + patience
        # Not awaited: an answer is handed to the store later, so it follows the question in store order.
        self._store.decide(Decision(questions=(question.row(),)))
        self._tell(question)
        return question

    async def answered(self, question: Question) -> bool | str:
        """Wait until a question is closed and return the answer, False if it expired; raise Stale if the run fell."""
        run = question.run
        with run.limits.rest(self._clock.now, question, KnownPhase.APPROVAL, asks=True):
            await question.done.wait()
        run.fence.check(Effect.QUESTION)
        return question.answer if question.answer is not None else False

    def _expire(self, question: Question) -> None:
        if question.state is not QuestionState.OPEN:
            return
        # The answer came in time and is being stored: look again later.
        if question.answering is not None:
            question.timer = self._loop.call_later(self._settings.commit_seconds, self._expire, question)
            return
        self.close(question, QuestionState.EXPIRED)

    def close(self, question: Question, state: QuestionState) -> None:
        """Close an open question of a current run without an answer."""
        if question.state is QuestionState.OPEN:
            self._close(question, state)
            self._store.decide(Decision(questions=(question.row(),)))

    def _close(self, question: Question, state: QuestionState) -> None:
        question.close(state)
        self._tell(question)

    def _tell(self, question: Question) -> None:
        told = QuestionData(
            question_id=question.id,
            text=question.text,
            state=question.state,
            choices=question.choices,
            tool=question.tool,
            arguments=question.arguments,
            answer=question.answer,
            by=question.by,
        )
        Outlet(question.run, self._feed).emit(Effect.QUESTION, told)

    def opened(self, session: SessionId | None, by: Principal) -> list[QuestionInfo]:
        """List open questions that the caller may answer; with a session, those of its runs and their children."""
        return [
            _open_info(question)
            for question in self._registry.questions.values()
            if question.state is QuestionState.OPEN
            and session in (None, question.run.session.id, question.run.ties.home.id)
            and self._may_answer(by, question)
        ]

    def _may_answer(self, by: Principal, question: Question) -> bool:
        run = question.run
        return self._authority.may(Action.ANSWER, by, whose=run.session.whose, principal=run.principal)

    # Answering

    async def answer(self, question_id: QuestionId, answer: object, by: Principal) -> QuestionInfo:
        """Answer an open question. The same answer again by the same principal is no error; any other one is."""
        question = self._registry.questions.get(question_id)
        if question is None:
            return await self._answer_again(question_id, answer, by)
        if not self._may_answer(by, question):
            raise _unknown(question_id, by)
        # A closed question is reported as closed before the answer is checked against its choices.
        if question.state is not QuestionState.OPEN and isinstance(answer, bool | str):
            return self._closed(question, answer, by)
        value = _value(answer, question.choices)
        while (answering := question.answering) is not None:
            await answering.wait()
        # Ask again after the wait: the right may have been taken away.
        if not self._may_answer(by, question):
            raise _unknown(question_id, by)
        if question.state is not QuestionState.OPEN:
            return self._closed(question, value, by)
        answering = question.answering = Flag()
        claimed = msgspec.structs.replace(question.row(), state=QuestionState.ANSWERED, answer=value, by=by)
        ticket = self._store.decide(Decision(questions=(claimed,)))
        task = self._crew.start(self._conclude(question, ticket, claimed), name=f"answer {question_id}")
        if task is None:
            self._answered(question)
        else:
            # Not in the task itself: one that is cancelled before its first step runs nothing.
            task.add_done_callback(lambda _: self._answered(question))
        await answering.wait()
        if question.state is QuestionState.OPEN:
            raise Unavailable("the answer could not be kept in time; the question is still open, answer it again")
        return self._closed(question, value, by)

    @staticmethod
    def _closed(question: Question, value: bool | str, by: Principal) -> QuestionInfo:
        if question.state is QuestionState.VOID and not question.run.fallen:
            raise QuestionClosed(
                f"question {question.id} is void: its run no longer waits for an answer, and nothing was done"
            )
        return _same_or_closed(info_of_question(question.row()), value, by)

    async def _conclude(self, question: Question, ticket: Ticket, claimed: QuestionRow) -> None:
        """Close a question with an answer once the store has it, unless the question went void first."""
        inside = await is_committed(self._store, ticket, self._settings.commit_seconds)
        if inside and question.state is QuestionState.OPEN:
            question.answer, question.by = claimed.answer, claimed.by
            self._close(question, QuestionState.ANSWERED)

    @staticmethod
    def _answered(question: Question) -> None:
        answering, question.answering = question.answering, None
        if answering is not None:
            answering.set()

    async def _answer_again(self, question_id: QuestionId, answer: object, by: Principal) -> QuestionInfo:
        """Return or raise the result of a question whose run is no longer in memory."""
        row = await read(self._store.question(question_id))
        if row is None or not await read(self._sight.may_answer_row(by, row)):
            raise _unknown(question_id, by)
        # The run is not in memory, so no agent waits for the answer.
        if row.state is QuestionState.OPEN:
            row = msgspec.structs.replace(row, state=QuestionState.VOID)
        return _same_or_closed(info_of_question(row), _value(answer, row.choices), by)


def _unknown(question_id: QuestionId, by: Principal) -> Unknown:
    return Unknown(f"no question {question_id!r} that {by} may answer; watch the session for its questions")


def _value(answer: object, choices: tuple[str, ...] | None) -> bool | str:
    if choices is None:
        if not isinstance(answer, bool):
            raise BadInput(f"this is a yes-or-no question: answer True or False, not {answer!r:.40}")
        return answer
    if not isinstance(answer, str) or answer not in choices:
        raise BadInput(f"answer with one of {', '.join(map(repr, choices))}, not {answer!r:.40}")
    return answer


def _same_or_closed(info: QuestionInfo, value: bool | str, by: Principal) -> QuestionInfo:
    if info.state is QuestionState.ANSWERED and (info.answer, info.by) == (value, by):
        return info
    if info.state is QuestionState.ANSWERED:
        raise QuestionClosed(
            f"question {info.id} was answered before, {info.answer!r} by {info.by}; that answer stands"
        )
    if info.state is QuestionState.EXPIRED:
        raise QuestionClosed(f"question {info.id} has expired; the run went on without an answer")
    raise QuestionClosed(f"question {info.id} is void: its run is over, and nothing was done")


def _open_info(question: Question) -> QuestionInfo:
    return msgspec.structs.replace(
        info_of_question(question.row()),
        tool=question.tool,
        arguments=question.arguments,
        asked_at=question.asked_at,
        expires_at=question.expires_at,
    )


def info_of_question(row: QuestionRow) -> QuestionInfo:
    """Return a stored question as a list shows it."""
    return QuestionInfo(
        id=row.id,
        run_id=row.run_id,
        session=row.session,
        text=row.text,
        state=row.state,
        choices=row.choices,
        answer=row.answer,
        by=row.by,
    )
