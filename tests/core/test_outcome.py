"""How a run ends when several signals want to end it: every order, every instant."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.fence import Fence
from interlock.core.names import EARLY, ENDINGS, Ending, ErrorKind, LimitOf, Principal, RunId
from interlock.core.outcome import Cause, Limit, Outcome, cause_of, returned_at, settle

RUN = RunId("r-7")
COMPLETED = Cause(ending=Ending.COMPLETED)
FAILED = Cause(ending=Ending.FAILED, error="why", error_kind=ErrorKind.AGENT)
STOPPED = Cause(ending=Ending.STOPPED, by=Principal("alice"))
SUPERSEDED = Cause(ending=Ending.SUPERSEDED, superseded_by=RunId("r-8"))
PARENT_ENDED = Cause(ending=Ending.PARENT_ENDED)
SHUTDOWN = Cause(ending=Ending.SHUTDOWN)
LOST = Cause(ending=Ending.LOST)
# The deadline's own timer calls with this cause; `settle` says which limit has passed.
DEADLINE = Cause(ending=Ending.TIMED_OUT)
CAUSES = [COMPLETED, FAILED, STOPPED, SUPERSEDED, DEADLINE, PARENT_ENDED, SHUTDOWN, LOST]

Signal = tuple[float, Cause]
PHASE = "provider"  # the phase the simulated run is in
instants = st.integers(0, 10).map(float)  # few instants, so that ties are common
limit_lists = st.lists(
    st.builds(
        Limit,
        instants,
        st.integers(1, 90).map(float),
        st.sampled_from([None, "queue", "idle"]),
        st.sampled_from(LimitOf),
    )
)
signal_lists = st.lists(st.tuples(instants, st.sampled_from(CAUSES)), min_size=1).map(
    lambda signals: sorted(signals, key=lambda signal: signal[0])  # a stable sort: ties keep their drawn order
)


def simulate(signals: list[Signal], limits: list[Limit]) -> Cause:
    """Return the cause of a run that gets these signals in this order, deciding as the runtime does."""
    fence = Fence(RUN)
    for now, cause in signals:
        if fence.cause is None:
            fence.fall(settle(cause, now=now, limits=limits, phase=PHASE))
    assert fence.cause is not None
    return fence.cause


def expected(signals: list[Signal], limits: list[Limit]) -> Cause:
    """Return the cause that should stand, by the rule's own words rather than by settle."""
    now, cause = signals[0]
    for limit in sorted(limits, key=lambda limit: limit.at):
        if limit.at <= now:
            limit_ms, phase = round(limit.seconds * 1000), limit.phase or PHASE
            return Cause(ending=Ending.TIMED_OUT, phase=phase, limit_ms=limit_ms, limit_of=limit.of)
    return cause


def test_the_causes_are_all_the_endings() -> None:
    """The simulations below signal every ending there is."""
    assert {cause.ending for cause in CAUSES} == set(ENDINGS)


@given(signal_lists, limit_lists)
def test_any_signals_any_limits(signals: list[Signal], limits: list[Limit]) -> None:
    """For any signals at any instants the first decides, unless the earliest passed limit does (race 125)."""
    assert simulate(signals, limits) == expected(signals, limits)


@given(signal_lists, signal_lists, limit_lists)
def test_later_signals_change_nothing(signals: list[Signal], later: list[Signal], limits: list[Limit]) -> None:
    """Signals after the decision, in any number and order, leave the cause as it was (race 17, race 18)."""
    assert simulate(signals[:1] + later, limits) == simulate(signals[:1], limits)


@given(st.permutations(CAUSES), instants, limit_lists)
def test_ties_go_to_the_first_caller(order: list[Cause], now: float, limits: list[Limit]) -> None:
    """All endings in one instant: each order gives its first caller's cause, or each the same timeout (race 125)."""
    decided = simulate([(now, cause) for cause in order], limits)
    if any(limit.at <= now for limit in limits):
        assert decided == simulate([(now, COMPLETED)], limits)
        assert decided.ending is Ending.TIMED_OUT
    else:
        assert decided is order[0]


@pytest.mark.parametrize("now", [4.0, 5.0, 6.0])
def test_every_order_of_the_five(now: float) -> None:
    """Every permutation of complete, fail, stop, timeout and crash, around a deadline at 5 (race 125)."""
    limits = [Limit(5.0, 5.0)]
    timeout = Cause(ending=Ending.TIMED_OUT, phase=PHASE, limit_ms=5000, limit_of=LimitOf.OPERATOR)
    for order in itertools.permutations([COMPLETED, FAILED, STOPPED, DEADLINE, LOST]):
        assert simulate([(now, cause) for cause in order], limits) == (order[0] if now < 5.0 else timeout)


@given(st.lists(st.sampled_from(CAUSES), min_size=1), instants)
def test_without_limits_the_first_caller_decides(order: list[Cause], now: float) -> None:
    """A run without limits is never found to have timed out: the first caller's own cause is returned as it is."""
    assert simulate([(now, cause) for cause in order], []) is order[0]


def test_stop_and_completion_tie() -> None:
    """The first to settle of a stop and a completion in one instant stands; the other is a no-op (race 17)."""
    assert simulate([(1.0, STOPPED), (1.0, COMPLETED)], []) is STOPPED
    assert simulate([(1.0, COMPLETED), (1.0, STOPPED)], []) is COMPLETED


def test_deadline_and_completion_tie() -> None:
    """A completion before the deadline stays one; at the deadline or later it is a timeout for good (race 18)."""
    limits = [Limit(5.0, 5.0)]
    assert simulate([(4.999, COMPLETED), (5.0, DEADLINE)], limits) is COMPLETED
    for signals in ([(5.0, COMPLETED), (5.0, DEADLINE)], [(5.0, DEADLINE), (5.0, COMPLETED)], [(6.0, COMPLETED)]):
        assert simulate(signals, limits).ending is Ending.TIMED_OUT


def test_deadline_and_stop_tie() -> None:
    """A stop at or after the deadline is told as the timeout that passed before it, whoever calls first (race 19)."""
    limits = [Limit(5.0, 5.0, of=LimitOf.CALLER)]
    assert simulate([(4.999, STOPPED), (5.0, DEADLINE)], limits) is STOPPED
    for signals in ([(5.0, STOPPED), (5.0, DEADLINE)], [(5.0, DEADLINE), (5.0, STOPPED)], [(7.0, STOPPED)]):
        decided = simulate(signals, limits)
        assert decided == Cause(ending=Ending.TIMED_OUT, phase=PHASE, limit_ms=5000, limit_of=LimitOf.CALLER)
        assert decided.by is None


def test_a_typed_stop_that_came_too_late_is_a_timeout() -> None:
    """A typed stop that comes after the deadline is told as a timeout, without the word that it was typed."""
    typed = msgspec.structs.replace(STOPPED, typed=True)
    assert settle(typed, now=1.0, limits=[Limit(5.0, 5.0)]) is typed
    assert not settle(typed, now=5.0, limits=[Limit(5.0, 5.0)]).typed


def test_a_cause_is_found_again_in_its_outcome() -> None:
    """A stored outcome gives back the whole cause, also that a person typed the stop."""
    told = Outcome(run_id=RUN, ending=Ending.STOPPED, by=Principal("alice"), typed=True)
    assert cause_of(told) == msgspec.structs.replace(STOPPED, typed=True)


def test_the_earliest_limit_is_told() -> None:
    """The first of several limits to pass is the one told: its phase, its length and whose it was."""
    limits = [Limit(9.0, 9.0, of=LimitOf.CALLER), Limit(3.0, 1.5, "queue", LimitOf.AGENT), Limit(20.0, 20.0)]
    assert settle(STOPPED, now=10.0, limits=limits, phase=PHASE) == Cause(
        ending=Ending.TIMED_OUT, phase="queue", limit_ms=1500, limit_of=LimitOf.AGENT
    )


@pytest.mark.parametrize("cause", CAUSES)
def test_early(cause: Cause) -> None:
    """Only completed and failed runs finished by themselves; every other ending cut them short."""
    assert cause.early is (cause not in (COMPLETED, FAILED))
    assert cause.early is (cause.ending in EARLY)


@pytest.mark.parametrize("ending", Ending)
def test_ended(ending: Ending) -> None:
    """Every answer is an ending except pending and unknown."""
    assert Outcome(run_id=RUN, ending=ending).ended is (ending not in (Ending.PENDING, Ending.UNKNOWN))


def test_same_story() -> None:
    """Two outcomes are the same story whatever their drained and durable, and not if any other fact differs."""
    told = Outcome(run_id=RUN, ending=Ending.STOPPED, by=Principal("alice"))
    assert told.same_story(msgspec.structs.replace(told, drained=True, durable=False))
    changes = {
        "run_id": RunId("r-9"),
        "ending": Ending.LOST,
        "text": "part",
        "by": Principal("bob"),
        "superseded_by": RunId("r-8"),
        "phase": "queue",
        "limit_ms": 1,
        "limit_of": LimitOf.AGENT,
        "error": "why",
        "error_kind": ErrorKind.STORE,
        "hidden": True,
        "typed": True,
        "born_stopped": True,
        "unkept": True,
        "tools": ("search",),
        "started_at": 1.0,
        "ended_at": 2.0,
    }
    assert changes.keys() | {"drained", "durable"} == set(Outcome.__struct_fields__)
    for name, value in changes.items():
        assert not told.same_story(msgspec.structs.replace(told, **{name: value})), name


def test_facts_are_frozen() -> None:
    """Neither a cause nor an outcome can be changed once it is told."""
    for fact in (STOPPED, Outcome(run_id=RUN, ending=Ending.LOST), Limit(1.0, 1.0)):
        with pytest.raises(AttributeError):
            setattr(fact, fact.__struct_fields__[0], None)


@given(told=st.floats(), heard=instants, late=instants)
def test_an_instant_is_believed_between_the_last_word_and_now(told: float, heard: float, late: float) -> None:
    """Control moves an instant that a host tells into the range from the last instant it read to now."""
    now = heard + late
    believed = returned_at(told, heard=heard, now=now)
    assert heard <= believed <= now
    assert believed == (told if heard <= told <= now else now)
