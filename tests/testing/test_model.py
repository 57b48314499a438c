"""The model is searched to its end, each of its mutants is refuted, and the real runtime follows it, turn by turn.

`make prove` searches further and replays more; here is as much as shows that each of these can fail.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from proofs import model
from proofs.model import FACTS, MUTANTS, SIZE, SMALL, Bounds, Fact, Recorder, Size, Trace, check, record, refute, replay
from proofs.scenarios import play

from interlock.core.fence import Generations
from interlock.core.names import REPORTS, Ending
from interlock.core.outcome import Cause
from interlock.runtime import inbox, session_stops
from interlock.runtime.fall import Fall
from interlock.runtime.holds import Holds
from interlock.runtime.live import LiveRun
from interlock.runtime.registry import Registry
from interlock.runtime.reporting import Reporting

pytestmark = pytest.mark.long

SEEDS = range(150)
TRIES, AT_A_TIME = 3_000, 100  # seeds in which a planted bug is looked for


@pytest.fixture(autouse=True)
def tools() -> None:
    """Skip if the model's tools are missing; only in CI that is a failure."""
    absent = model.missing()
    if absent is not None and os.environ.get("CI"):
        pytest.fail(absent)
    if absent is not None:
        pytest.skip(absent)


@pytest.fixture(scope="module")
def traces() -> list[Trace]:
    """The decisions of the real runtime in some schedules."""
    return [record(seed) for seed in SEEDS]


@pytest.mark.parametrize("bounds", SMALL, ids=str)
def test_nothing_is_broken_within_the_bounds(bounds: Bounds) -> None:
    """Every order of every step of two or three runs at a time was searched."""
    found = check(bounds)
    assert found.complete and found.broken is None, found
    assert found.states > 1_000


def test_every_mutant_is_refuted() -> None:
    """A check fails for each rule that is broken: each rule is needed, and the checks see it."""
    found = {name: refute(name) for name in MUTANTS}
    assert len(found) >= 27
    assert [name for name, searched in found.items() if "assertion violated" not in (searched.broken or "")] == []


def test_the_runtime_follows_the_model(traces: list[Trace]) -> None:
    """The model accepts what the runtime decided in every schedule, and the schedules tell facts of every kind."""
    assert [trace for trace in traces if trace.broken is not None] == []
    assert [str(verdict) for verdict in replay(traces) if not verdict.accepted] == []
    told = {fact.kind for trace in traces for fact in trace.facts}
    assert set(FACTS) - told <= {"END", "FORGO", "CLOSE"}


# Tampering: (trace, place of a fact) -> the facts as they must not be, None where it does not fit


def without(kind: str) -> Callable[[tuple[Fact, ...], int], tuple[Fact, ...] | None]:
    """Drop a fact that others follow."""

    def tamper(facts: tuple[Fact, ...], at: int) -> tuple[Fact, ...] | None:
        if facts[at].kind != kind:
            return None
        run = facts[at].values[0]
        later = any(
            fact.kind in ("START", "FALL", "DRAIN", "TAKE") and fact.values[0] == run for fact in facts[at + 1 :]
        )
        return facts[:at] + facts[at + 1 :] if later else None

    return tamper


def swapped(facts: tuple[Fact, ...], at: int) -> tuple[Fact, ...] | None:
    """Let a run start before it has the seat."""
    starts = [i for i, fact in enumerate(facts) if fact.kind == "START" and fact.values[0] == facts[at].values[:1][0]]
    if facts[at].kind != "SEAT" or not starts:
        return None
    changed = list(facts)
    changed[at], changed[starts[0]] = changed[starts[0]], changed[at]
    return tuple(changed)


def generation_given_twice(facts: tuple[Fact, ...], at: int) -> tuple[Fact, ...] | None:
    """Give the generation of an earlier seat again."""
    if facts[at].kind != "SEAT":
        return None
    run, session, _ = facts[at].values
    earlier = [fact.values[2] for fact in facts[:at] if fact.kind == "SEAT" and fact.values[1] == session]
    return (*facts[:at], facts[at]._replace(values=(run, session, earlier[-1])), *facts[at + 1 :]) if earlier else None


def in_two_turns(facts: tuple[Fact, ...], at: int) -> tuple[Fact, ...] | None:
    """Give the run that takes over the seat only in a later turn than the fall that freed it."""
    if not (at and facts[at].kind == "SEAT" and facts[at - 1].kind == "FALL"):
        return None
    if facts[at - 1].values[3] != facts[at].values[0]:
        return None
    return facts[:at] + tuple(fact._replace(step=fact.step + 1) for fact in facts[at:])


def effect_after_the_fall(facts: tuple[Fact, ...], at: int) -> tuple[Fact, ...] | None:
    """Admit an effect of a run that has fallen."""
    fell = facts[at].kind == "FALL"
    return (*facts[: at + 1], Fact(facts[at].step, "EFFECT", facts[at].values[:1]), *facts[at + 1 :]) if fell else None


def token_that_falls(facts: tuple[Fact, ...], at: int) -> tuple[Fact, ...] | None:
    """Grant a hold with a token that is not higher than the last."""
    if facts[at].kind != "GRANT" or not any(fact.kind == "GRANT" for fact in facts[:at]):
        return None
    return (*facts[:at], facts[at]._replace(values=(*facts[at].values[:2], 1)), *facts[at + 1 :])


def not_due(facts: tuple[Fact, ...], at: int) -> tuple[Fact, ...] | None:
    """Give a report the seat before what it tells is public."""
    seated = [fact.values[0] for fact in facts[at + 1 :] if fact.kind == "SEAT"]
    return facts[:at] + facts[at + 1 :] if facts[at].kind == "DUE" and facts[at].values[0] in seated else None


def reported_later(facts: tuple[Fact, ...], at: int) -> tuple[Fact, ...] | None:
    """Let a child's report wait at home only in a later turn than its fall."""
    if facts[at].kind != "REPORT":
        return None
    return facts[:at] + tuple(fact._replace(step=fact.step + 1) for fact in facts[at:])


def reported_twice(facts: tuple[Fact, ...], at: int) -> tuple[Fact, ...] | None:
    """Report the same end once more."""
    if facts[at].kind != "REPORT":
        return None
    again = [fact._replace(values=(SIZE.runs, *fact.values[1:])) for fact in facts[at : at + 2]]
    return (*facts[: at + 2], *again, *facts[at + 2 :])


@pytest.mark.parametrize(
    "tamper",
    [
        pytest.param(without("FALL"), id="a fall is missing"),
        pytest.param(without("SEAT"), id="a seat is missing"),
        pytest.param(without("GRANT"), id="a grant is missing"),
        pytest.param(without("REPORT"), id="a report is missing"),
        swapped,
        generation_given_twice,
        in_two_turns,
        effect_after_the_fall,
        token_that_falls,
        not_due,
        reported_later,
        reported_twice,
    ],
)
def test_a_trace_that_was_tampered_with_is_refused(
    tamper: Callable[[tuple[Fact, ...], int], tuple[Fact, ...] | None], traces: list[Trace]
) -> None:
    """Each tampering is refused in every trace it fits, and not before the place that was changed."""
    changed: list[tuple[int, Trace]] = []
    for trace in traces:
        for at in range(len(trace.facts)):
            facts = tamper(trace.facts, at)
            if facts is not None:
                changed.append((at, trace._replace(facts=facts)))
                break
    assert changed, "no trace has what this tampers with"
    for (at, _), verdict in zip(changed, replay([trace for _, trace in changed]), strict=True):
        assert not verdict.accepted, verdict
        assert verdict.reached >= at - 1, verdict
        assert "is refused after" in str(verdict)


# Planted bugs


def child_outlives_parent(patch: pytest.MonkeyPatch) -> None:
    """Children do not fall with their parent."""
    patch.setattr(Fall, "_take_along", lambda *_: None)


def grant_is_lost(patch: pytest.MonkeyPatch) -> None:
    """A run that falls does not leave the lines it stands in."""
    patch.setattr(Holds, "fall", lambda *_: 0)


def queue_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """An ending does not seat the next waiting run."""
    patch.setattr(Fall, "seat_next", lambda *_: None)


def generation_stands_still(patch: pytest.MonkeyPatch) -> None:
    """The generation rises with every second step only."""
    rise = Generations.rise
    patch.setattr(Generations, "rise", lambda self, name: self.get(name) if self.get(name) % 2 else rise(self, name))


def frees_anothers_seat(patch: pytest.MonkeyPatch) -> None:
    """A run that leaves the queue frees the seat as well."""

    def dequeue(registry: Registry, run: model.LiveRun) -> None:
        if run in (run.session.queue or ()):
            run.session.queue.remove(run)
            run.session.seat = None

    patch.setattr(Registry, "dequeue", dequeue)


def takeover_ends_reports(patch: pytest.MonkeyPatch) -> None:
    """A message that takes over ends the reports that wait, too."""
    patch.setattr(inbox, "REPORTS", frozenset())


def report_goes_first(patch: pytest.MonkeyPatch) -> None:
    """A report stands ahead of what people sent."""
    patch.setattr(inbox, "place", lambda kind, waiting: 0 if kind in REPORTS else len(waiting))


def report_is_early(patch: pytest.MonkeyPatch) -> None:
    """A report may have the seat before what it tells is public."""
    queue = Reporting._queue

    def early(self: Reporting, report: LiveRun) -> None:
        queue(self, report)
        report.admittance.due = True

    patch.setattr(Reporting, "_queue", early)


def report_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Control gives no seat when a report becomes due."""
    patch.setattr(Reporting, "_offer", lambda self, report: setattr(report.admittance, "due", True))


def report_takes_over(patch: pytest.MonkeyPatch) -> None:
    """A report ends the run that has the seat."""
    offer = Reporting._offer

    def dominant(self: Reporting, report: LiveRun) -> None:
        if report.session.seat is not None:
            cause = Cause(ending=Ending.SUPERSEDED, by=report.principal, superseded_by=report.id)
            self._endings.end(report.session.seat, cause)
        offer(self, report)

    patch.setattr(Reporting, "_offer", dominant)


def stop_passes_over_reports(patch: pytest.MonkeyPatch) -> None:
    """A stop of the session leaves the reports that wait."""
    everyone = session_stops._everyone
    patch.setattr(
        session_stops,
        "_everyone",
        lambda session: [run for run in everyone(session) if run.arrival.kind not in REPORTS],
    )


@pytest.mark.parametrize(
    "plant",
    [
        child_outlives_parent,
        grant_is_lost,
        queue_is_forgotten,
        generation_stands_still,
        frees_anothers_seat,
        takeover_ends_reports,
        report_goes_first,
        report_is_early,
        report_is_forgotten,
        report_takes_over,
        stop_passes_over_reports,
    ],
)
def test_a_bug_in_the_runtime_is_refused(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runtime that breaks a rule of the model tells a trace that the model refuses; without the bug it does not."""
    with monkeypatch.context() as patch:
        plant(patch)
        refused = next(filter(None, map(refused_from, range(0, TRIES, AT_A_TIME))), [])
    assert refused
    assert [str(verdict) for verdict in replay([record(seed) for seed in refused]) if not verdict.accepted] == []


def refused_from(first: int) -> list[int]:
    """Return the seeds, of some, whose traces the model refuses."""
    traces = [record(seed) for seed in range(first, first + AT_A_TIME)]
    return [verdict.trace.seed for verdict in replay(traces) if not verdict.accepted]


def test_recording_changes_nothing() -> None:
    """A schedule plays the same while it is recorded, and every method is put back."""
    methods = [(Registry, "seat"), (Fall, "add"), (Holds, "_grant"), (model.SessionStops, "session")]
    before = [owner.__dict__[name] for owner, name in methods]
    played = [play(seed) for seed in range(5)]
    for seed in range(5):
        with Recorder() as recorder:
            assert play(seed) == played[seed]
        assert recorder.facts
    assert [owner.__dict__[name] for owner, name in methods] == before


def test_a_trace_that_is_too_large_is_told(traces: list[Trace]) -> None:
    """The bounds of a replay are not passed in silence."""
    with pytest.raises(ValueError, match=r"the trace of seed \d+ is larger than Size\(runs=1,"):
        replay(traces, Size(runs=1))


def test_the_command_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The command says what was replayed; where a tool is missing it says what to install."""
    assert model.main(["--only-replay", "--seeds", "5"]) == 0
    assert "5 of 5 accepted" in capsys.readouterr().out
    with monkeypatch.context() as patch:
        patch.setattr(model.shutil, "which", lambda _: None)
        assert model.main([]) == 2
    assert "apt-get install -y --no-install-recommends spin gcc" in capsys.readouterr().out
