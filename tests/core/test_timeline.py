"""A run's timeline, computed from its events and its receipt."""

from collections.abc import Iterable

from interlock.core.events import (
    Block,
    ChildData,
    Data,
    Delta,
    Ended,
    Event,
    MessageData,
    Phase,
    Progress,
    QuestionData,
    ReceiptData,
    Started,
    Tool,
    Typing,
)
from interlock.core.names import Drain, Effect, Ending, QuestionState, ToolState
from interlock.core.outcome import Outcome
from interlock.core.receipt import FallenRun, Receipt
from interlock.core.timeline import Moment, timeline


def events(*told: Data, run: str = "r", begin: float = 100.0) -> list[Event]:
    """A run's log, one event a second."""
    return [
        Event(position=n, at=begin + n, session="s", run_id=run, generation=1, data=data) for n, data in enumerate(told)
    ]


def lines(moments: Iterable[Moment]) -> list[tuple[float, str, str, str]]:
    """Return the moments as a surface draws them."""
    return [(moment.at, moment.what, moment.name, str(moment.state)) for moment in moments]


def proof(outcome: Outcome, **facts: object) -> Receipt:
    """A receipt of one run."""
    return Receipt(
        id="f",
        session="s",
        cause=outcome.ending,
        runs=(FallenRun(id=outcome.run_id, outcome=outcome),),
        fenced_at=outcome.ended_at or 0.0,
        **facts,  # type: ignore[arg-type]
    )


def test_a_whole_life() -> None:
    """The timeline has each kind of moment, in order, with the time it happened at."""
    outcome = Outcome(run_id="r", ending=Ending.STOPPED, by="alice", ended_at=112.5)
    log = events(
        MessageData(text="work", by="alice"),
        Started(),
        Phase(name="provider"),
        Phase(name=None),
        MessageData(text="more", by="bob", of="r2"),
        Tool(call_id="c", name="search", state=ToolState.PENDING, arguments="{}"),
        Tool(call_id="c", name="search", state=ToolState.RUNNING),
        Tool(call_id="c", name="search", state=ToolState.FINISHED, result="1"),
        QuestionData(question_id="q", text="Deploy?", state=QuestionState.OPEN),
        QuestionData(question_id="q", text="Deploy?", state=QuestionState.ANSWERED, answer=True, by="alice"),
        ChildData(child="k", session="run:k", agent="deployer"),
        ChildData(child="k", session="run:k", agent="deployer", outcome=Outcome(run_id="k", ending=Ending.COMPLETED)),
        Tool(call_id="d", name="deploy", state=ToolState.RUNNING),
        Ended(outcome=outcome, tools=(Tool(call_id="d", name="deploy", state=ToolState.INTERRUPTED),)),
    )
    receipt = proof(outcome, drain=Drain.OBSERVED, drained_at=116.0)
    assert lines(timeline("r", log, receipt)) == [
        (100.0, "admitted", "alice", ""),
        (101.0, "started", "", ""),
        (102.0, "phase", "provider", ""),
        (103.0, "phase", "", "left"),
        (104.0, "joined", "bob", ""),
        (105.0, "tool", "search", "pending"),
        (106.0, "tool", "search", "running"),
        (107.0, "tool", "search", "finished"),
        (108.0, "question", "Deploy?", "open"),
        (109.0, "question", "Deploy?", "answered"),
        (110.0, "child", "deployer", "begun"),
        (111.0, "child", "deployer", "completed"),
        (112.0, "tool", "deploy", "running"),
        (112.5, "fell", "alice", "stopped"),
        (112.5, "tool", "deploy", "interrupted"),
        (113.0, "ended", "", "stopped"),
        (116.0, "drained", "", "observed"),
    ]


def test_a_question_that_went_void() -> None:
    """A question that went void is told with the fall, in the words with which it was asked."""
    outcome = Outcome(run_id="r", ending=Ending.STOPPED, ended_at=100.5)
    log = events(
        QuestionData(question_id="q", text="Sure?", state=QuestionState.OPEN), Ended(outcome=outcome, void=("q",))
    )
    assert lines(timeline("r", log)) == [
        (100.0, "question", "Sure?", "open"),
        (100.5, "fell", "", "stopped"),
        (100.5, "question", "Sure?", "void"),
        (101.0, "ended", "", "stopped"),
    ]


def test_output_is_told_when_it_is_whole() -> None:
    """The timeline has one moment per whole text with its size, one at the fall for a cut text, and never the text."""
    outcome = Outcome(run_id="r", ending=Ending.STOPPED, ended_at=102.5)
    log = events(Delta(text="secret"), Block(text="secret"), Delta(text="cu"), Ended(outcome=outcome, cut="cu" * 600))
    moments = timeline("r", log)
    assert lines(moments) == [
        (101.0, "output", "", "said"),
        (102.5, "fell", "", "stopped"),
        (102.5, "output", "", "cut"),
        (103.0, "ended", "", "stopped"),
    ]
    assert [moment.detail for moment in moments] == ["6 characters", "", "1,200 characters", ""]


def test_what_is_said_with_the_end_came_at_the_fall() -> None:
    """A reply is published after the fall that decided it, but no moment of a run is dated after its fall."""
    outcome = Outcome(run_id="r", ending=Ending.COMPLETED, ended_at=100.5)
    log = events(Started(), Block(text="done"), Ended(outcome=outcome))
    assert lines(timeline("r", log)) == [
        (100.0, "started", "", ""),
        (100.5, "output", "", "said"),
        (100.5, "fell", "", "completed"),
        (102.0, "ended", "", "completed"),
    ]


def test_what_passes_is_no_moment() -> None:
    """Deltas, typing, progress, the session's own events and other runs give no moment."""
    outcome = Outcome(run_id="r", ending=Ending.COMPLETED)
    log = events(Delta(text="a"), Typing(on=True), Progress(text="half"), ReceiptData(receipt=proof(outcome)))
    assert timeline("r", log) == []
    assert timeline("other", events(MessageData(text="work", by="alice"), Started())) == []


def test_a_run_that_goes_on() -> None:
    """A run without an end has neither a fall nor a drain in its timeline."""
    log = events(MessageData(text="work", by="alice"), Started())
    assert [moment.what for moment in timeline("r", log)] == ["admitted", "started"]
    assert timeline("r", []) == []


def test_drained_is_told_when_it_is() -> None:
    """A receipt that is still growing tells of no drain; an unconfirmed one says so."""
    outcome = Outcome(run_id="r", ending=Ending.STOPPED, ended_at=101.0)
    log = events(MessageData(text="work", by="alice"), Ended(outcome=outcome))
    assert [moment.what for moment in timeline("r", log, proof(outcome))][-1] == "ended"
    grown = proof(outcome, drain=Drain.UNCONFIRMED, drained_at=105.0)
    assert lines(timeline("r", log, grown))[-1] == (105.0, "drained", "", "unconfirmed")


def test_an_ending_without_its_instant() -> None:
    """An ending that does not say when it was decided is dated when it was told."""
    log = events(Ended(outcome=Outcome(run_id="r", ending=Ending.LOST)))
    assert lines(timeline("r", log)) == [(100.0, "fell", "", "lost"), (100.0, "ended", "", "lost")]


def test_only_this_runs_refusals() -> None:
    """A receipt of several runs counts what all of them tried; a run that never began tried nothing."""
    outcome = Outcome(run_id="r", ending=Ending.STOPPED, ended_at=101.0)
    waited = Outcome(run_id="r2", ending=Ending.STOPPED, ended_at=101.0)
    receipt = Receipt(
        id="f",
        session="s",
        cause=Ending.STOPPED,
        runs=(FallenRun(id="r", outcome=outcome), FallenRun(id="r2", outcome=waited)),
        fenced_at=101.0,
        refused={Effect.DELTA: 3},
    )
    log = events(MessageData(text="waits", by="alice"), Ended(outcome=waited), run="r2")
    assert [moment.what for moment in timeline("r2", log, receipt)] == ["admitted", "fell", "ended"]


def test_moments_are_in_the_order_of_time() -> None:
    """The moments are in the order of time, so that a surface can draw the list as it is."""
    outcome = Outcome(run_id="r", ending=Ending.COMPLETED, ended_at=101.5)
    receipt = proof(outcome, drain=Drain.OBSERVED, drained_at=102.5)
    moments = timeline("r", events(MessageData(text="work", by="a"), Started(), Ended(outcome=outcome)), receipt)
    assert [moment.at for moment in moments] == sorted(moment.at for moment in moments)
