"""The fence's mark and the generations by themselves, without a runtime or a store."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from interlock import Generations
from interlock.core.errors import Stale
from interlock.core.fence import Fence, StoredGenerations, describe
from interlock.core.names import Effect, Ending, Principal, RunId, SessionId
from interlock.core.outcome import Cause

RUN = RunId("r-7")
STOPPED = Cause(ending=Ending.STOPPED, by=Principal("alice"))
SUPERSEDED = Cause(ending=Ending.SUPERSEDED, superseded_by=RunId("r-8"))
NAMES = [SessionId("a"), SessionId("b"), SessionId("c")]
sessions = st.sampled_from(NAMES)


@pytest.mark.parametrize("effect", Effect)
def test_a_current_run_passes(effect: Effect) -> None:
    """Every effect of a run that has not fallen passes, and nothing is counted."""
    fence = Fence(RUN)
    fence.check(effect)
    assert fence.cause is None
    assert not fence.refused


@pytest.mark.parametrize("effect", Effect)
def test_a_fallen_run_is_refused(effect: Effect) -> None:
    """No effect of a fallen run passes, whatever its kind, and the refusal names it."""
    fence = Fence(RUN)
    fence.fall(STOPPED)
    with pytest.raises(Stale, match=f"{effect} refused: run r-7"):
        fence.check(effect)
    assert fence.refused == {effect: 1}


def test_the_first_cause_stands() -> None:
    """A second fall is a defect that is raised, and leaves the first cause as it was."""
    fence = Fence(RUN)
    fence.fall(STOPPED)
    with pytest.raises(AssertionError, match="r-7 fell twice"):
        fence.fall(SUPERSEDED)
    assert fence.cause is STOPPED


@given(st.lists(st.sampled_from(Effect)))
def test_refusals_are_counted_by_kind(tried: list[Effect]) -> None:
    """The fence counts each refused effect under its own kind, none lost and none added."""
    fence = Fence(RUN)
    fence.fall(STOPPED)
    for effect in tried:
        with pytest.raises(Stale):
            fence.check(effect)
    assert (fence.refused or {}) == {effect: tried.count(effect) for effect in set(tried)}


def test_stale_passes_through_except_exception() -> None:
    """A tool's `except Exception` cannot swallow Stale and go on."""
    assert issubclass(Stale, BaseException)
    assert not issubclass(Stale, Exception)
    fence = Fence(RUN)
    fence.fall(STOPPED)
    with pytest.raises(Stale):
        try:
            fence.check(Effect.TOOL)
        except Exception:
            pytest.fail("a tool swallowed Stale")


def test_the_message_says_what_to_watch() -> None:
    """A refusal names the successor where there is one, and otherwise how and by whom the run ended."""
    assert describe(RUN, SUPERSEDED, Effect.DELTA) == (
        "delta refused: run r-7 was superseded by r-8; watch that one instead"
    )
    assert (
        describe(RUN, STOPPED, Effect.TOOL) == "tool refused: run r-7 has ended (stopped by alice); do not catch Stale"
    )
    assert "(lost)" in describe(RUN, Cause(ending=Ending.LOST), Effect.FINAL)


class GenerationsModel(RuleBasedStateMachine):
    """Generations against the plainest model: the highest number each session was given, as its store would keep it."""

    def __init__(self) -> None:
        super().__init__()
        self.real = StoredGenerations()
        self.given = dict.fromkeys(NAMES, 0)
        self.seen = dict.fromkeys(NAMES, 0)
        self.known: set[SessionId] = set()

    @rule(session=sessions)
    def rise(self, session: SessionId) -> None:
        raised = self.real.rise(session)
        assert raised > self.given[session], "a number was given twice"
        self.given[session] = raised
        self.known.add(session)

    @rule(session=sessions)
    def forget(self, session: SessionId) -> None:
        self.real.forget(session)
        self.known.discard(session)

    @rule(session=sessions, behind=st.integers(0, 5))
    def restore_what_the_store_has(self, session: SessionId, behind: int) -> None:
        self.real.restore(session, max(0, self.given[session] - behind))
        self.known.add(session)

    @rule()
    def restart(self) -> None:
        self.real = StoredGenerations()
        for session, stored in self.given.items():
            self.real.restore(session, stored)
        # The floor is only in memory, so a restart may lower a number that a session stood at and was never given.
        self.seen = dict(self.given)
        self.known = set(NAMES)

    @invariant()
    def never_goes_back(self) -> None:
        for session in NAMES:
            assert self.real.get(session) >= max(self.seen[session], self.given[session])
            self.seen[session] = self.real.get(session)

    @invariant()
    def only_the_present_one_is_current(self) -> None:
        for session in NAMES:
            now = self.real.get(session)
            assert self.real.is_current(session, now) is (session in self.known)
            assert not any(self.real.is_current(session, other) for other in range(now))
            assert not self.real.is_current(session, now + 1)


class HoldersModel(RuleBasedStateMachine):
    """The public counter against a list of every number given: only the last one given may be current."""

    def __init__(self) -> None:
        super().__init__()
        self.real: Generations[SessionId] = Generations()
        self.given: dict[SessionId, list[int]] = {name: [] for name in NAMES}
        self.present: dict[SessionId, int | None] = dict.fromkeys(NAMES)

    @rule(session=sessions)
    def rise(self, session: SessionId) -> None:
        number = self.real.rise(session)
        assert number not in self.given[session]
        assert number == self.real.get(session)
        self.given[session].append(number)
        self.present[session] = number

    @rule(session=sessions)
    def forget(self, session: SessionId) -> None:
        self.real.forget(session)
        self.present[session] = None

    @invariant()
    def only_the_last_number_is_current(self) -> None:
        for session in NAMES:
            held = [number for number in self.given[session] if self.real.is_current(session, number)]
            assert held == ([] if self.present[session] is None else [self.present[session]])
            assert self.given[session] == sorted(self.given[session])

    @invariant()
    def what_was_forgotten_takes_no_room(self) -> None:
        assert len(self.real._now) == sum(present is not None for present in self.present.values())


def test_an_old_number_is_never_current_again() -> None:
    """No order of rising and forgetting, of this key and others, makes a holder of an old number current (race 43)."""
    run_state_machine_as_test(HoldersModel, settings=settings(max_examples=200, stateful_step_count=30))


def test_generations_never_go_back() -> None:
    """No order of rising, forgetting, restoring and restarting gives a number twice (race 42, race 43)."""
    run_state_machine_as_test(GenerationsModel, settings=settings(max_examples=200, stateful_step_count=30))


def test_a_forgotten_session_does_not_begin_at_zero() -> None:
    """A session evicted while a run of it lives comes back above that run's generation (race 43)."""
    generations: Generations[SessionId] = Generations()
    held = max(generations.rise(NAMES[0]) for _ in range(5))
    generations.forget(NAMES[0])
    assert not generations.is_current(NAMES[0], held)
    assert generations.rise(NAMES[0]) > held
    assert not generations.is_current(NAMES[0], held)


def test_a_restarted_process_goes_on_from_the_store() -> None:
    """After a restart a session goes on from its stored number, also past 32 bits, and not from 0 (race 42)."""
    generations = StoredGenerations()
    generations.restore(NAMES[0], 2**40)
    assert generations.rise(NAMES[0]) == 2**40 + 1
    generations.restore(NAMES[0], 3)
    assert generations.get(NAMES[0]) == 2**40 + 1


def test_sessions_rise_by_themselves() -> None:
    """A rise of one session's generation leaves another session's as it is."""
    generations: Generations[SessionId] = Generations()
    generations.rise(NAMES[0])
    generations.rise(NAMES[1])
    generations.rise(NAMES[0])
    assert (generations.get(NAMES[0]), generations.get(NAMES[1]), generations.get(NAMES[2])) == (2, 1, 0)


def test_forgetting_a_stranger_changes_nothing() -> None:
    """Forgetting an unknown session raises no error and changes no other session's number."""
    generations: Generations[SessionId] = Generations()
    generations.forget(NAMES[0])
    assert generations.get(NAMES[0]) == 0
    assert generations.rise(NAMES[0]) == 1


def test_nobody_s_number_is_not_current() -> None:
    """The value of a key before any number was given is not current, nor is None, for a known key or not."""
    generations: Generations[str] = Generations()
    assert not generations.is_current("a", generations.get("a"))
    assert not generations.is_current("a", None)
    generations.rise("a")
    assert not generations.is_current("a", None)
    generations.forget("a")
    assert not generations.is_current("a", generations.get("a"))


def test_what_merely_equals_a_number_is_not_current() -> None:
    """True and 1.0 equal the first number and are not current: a number that was given is an int."""
    generations: Generations[str] = Generations()
    held = generations.rise("a")
    assert generations.is_current("a", held)
    for other in (True, 1.0, "1"):
        assert not generations.is_current("a", other)  # type: ignore[arg-type]


def test_any_key_can_be_counted() -> None:
    """A pipeline may count by any key that it has: a pair of names, or a number."""
    generations: Generations[tuple[str, int]] = Generations()
    held = generations.rise(("chat", 7))
    assert generations.is_current(("chat", 7), held)
    assert not generations.is_current(("chat", 8), held)


def test_forgotten_keys_leave_one_number_behind() -> None:
    """Forgotten keys leave one number in memory, however many there were."""
    generations: Generations[int] = Generations()
    for key in range(100_000):
        generations.rise(key)
        generations.forget(key)
    assert generations._now == {}
    assert generations.rise(0) == generations._floor + 1
