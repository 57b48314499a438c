"""Memory and sqlite are twins: the same steps leave the same state, pruned or not."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.contracts.rows import (
    ALICE,
    BOB,
    S,
    child,
    ended,
    event,
    key,
    mark,
    outcome,
    play,
    question,
    receipt,
    row,
    session,
    tool_row,
    wake,
)

from interlock.core.decision import (
    Decision,
    EpochRow,
    KeyRow,
    QuestionRow,
    RunRow,
    SessionRow,
    StopKey,
    StopMark,
    Tombstone,
    ToolRow,
    Writer,
)
from interlock.core.events import Block, Data, Delta, Ended, Json, MessageData, Started, Typing
from interlock.core.names import (
    ENDINGS,
    CallId,
    Drain,
    Ending,
    QuestionId,
    QuestionState,
    ReceiptId,
    RunId,
    RunKind,
    SessionId,
    Strategy,
    ToolState,
    WakeId,
)
from interlock.core.receipt import FallenRun, Receipt
from interlock.runtime.unwritten import Unwritten
from interlock.stores.base import Loaded, Log, Pruned, Store, Ticket

pytestmark = pytest.mark.long


async def everything(store: Store, log: Log | None = None) -> dict[str, Any]:
    """Return all that the port tells of the names used here.

    With a log over the store, the store may not have written everything: told marks and epochs are left out.
    """
    asked: dict[Any, Awaitable[Any]] = {
        "wakes": store.wakes(),
        "stops": store.stops(),
        "unsettled": store.unsettled(),
        "pending": store.pending_receipts(),
        "sessions": store.sessions(limit=9),
        "two sessions": store.sessions(limit=2),
        "no sessions": store.sessions(limit=0),
        "latest": store.runs(None),
        "latest two": store.runs(None, limit=2),
        "none of the latest": store.runs(None, limit=0),
    }
    for who in (ALICE, BOB):
        asked["sessions of", who] = store.sessions(limit=9, of=who)
        asked["latest of", who] = store.runs(None, limit=3, of=who)
    for name in SESSIONS:
        asked["load", name] = store.load(name, principal=ALICE, key=None)
        asked["session", name] = store.session(name)
        asked["runs", name] = store.runs(name)
        asked["tree", name] = store.runs(name, tree=True)
        asked["events", name] = (log or store).events(name, after=0, limit=1_000)
        asked["later events", name] = (log or store).events(name, after=3, limit=2)
        asked["unsettled", name] = store.unsettled_runs(name)
    for by in (ALICE, BOB):
        asked |= {("key", by, wanted): store.load(S, principal=by, key=wanted) for wanted in "klt"}
    for run_id in map(RunId, "abcder"):
        asked["run", run_id] = store.run(run_id)
        asked["tools", run_id] = store.tools(run_id)
        asked["questions", run_id] = store.questions(run_id)
        asked["parts", run_id] = store.parts(run_id)
    asked |= {("receipt", wanted): store.receipt(ReceiptId(wanted)) for wanted in "fghabcde"}
    asked |= {("question", wanted): store.question(QuestionId(wanted)) for wanted in "qpo"}
    found = dict(zip(asked, await asyncio.gather(*asked.values()), strict=True))
    found["wakes"] = sorted(found["wakes"], key=lambda each: each.id)  # wakes have no order
    found["stops"] = sorted(found["stops"], key=repr)  # stops of several principals have no order
    for what, value in found.items():
        if isinstance(value, Loaded):
            # Marks have no order.
            found[what] = msgspec.structs.replace(value, marks=tuple(sorted(value.marks, key=repr)))
    if log is not None:
        return {what: untold(value) for what, value in found.items() if "unsettled" not in what}
    return found


def untold(value: Any) -> Any:
    if isinstance(value, RunRow):
        return msgspec.structs.replace(value, told=False)
    if isinstance(value, Loaded):
        return msgspec.structs.replace(value, epoch=0)
    return tuple(map(untold, value)) if isinstance(value, tuple) else value


SESSIONS = (S, SessionId("other"), SessionId("run:d"))


HOMES = {"a": S, "b": S, "e": S, "c": SessionId("other"), "d": SessionId("run:d")}  # the session of each run


SEATS = {"a": 1, "b": 2, "e": 4, "c": 2, "d": 1}  # no two runs of a session have the same seat


Drawn = st.DrawFn


def some(what: st.SearchStrategy[Any], most: int = 2) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.one_of(st.just(()), st.lists(what, max_size=most).map(tuple))


names = st.sampled_from("abcde")


people = st.sampled_from([ALICE, BOB])


keys_ = st.sampled_from("klt")


whatever = st.text(alphabet="x\x00\u00df\U0001f6d1'", max_size=3)


outcomes = st.builds(
    outcome,
    names,
    st.sampled_from(ENDINGS),
    text=whatever,
    error=st.none() | whatever,
    drained=st.booleans(),
    typed=st.booleans(),
)


@st.composite
def run_rows(draw: Drawn, *, over: bool) -> RunRow:
    name = draw(names)
    told = draw(outcomes)
    return RunRow(
        id=RunId(name),
        session=HOMES[name],
        principal=draw(people),
        kind=RunKind.CHILD if name == "d" else RunKind.CHAT,
        text=draw(whatever),
        admitted_at=draw(st.floats(0, 1e10)),
        key=draw(st.none() | keys_),
        deadline=draw(st.none() | st.floats(0, 1e10)),
        parent=RunId("a") if name == "d" else None,
        home=S if name == "d" else None,
        alias=draw(st.sampled_from([None, None, RunId("a")])) if name in "be" else None,
        generation=draw(st.sampled_from([None, SEATS[name]])),
        started=draw(st.booleans()),
        outcome=msgspec.structs.replace(told, run_id=RunId(name)) if over else None,
        cut=draw(whatever) if over else "",
        instructions=draw(st.none() | whatever),
    )


@st.composite
def session_rows(draw: Drawn) -> SessionRow:
    generation = draw(st.integers(0, 5))
    return SessionRow(
        id=draw(st.sampled_from(SESSIONS)),
        owner=draw(people),
        generation=generation,
        strategy=draw(st.none() | st.sampled_from(Strategy)),
        since=draw(st.integers(0, 9)),
        renewed=draw(st.integers(0, generation)),
        crashes=draw(st.integers(0, 3)),
    )


@st.composite
def receipts_(draw: Drawn) -> Receipt:
    name = draw(st.sampled_from("fgh"))
    fallen = tuple(
        FallenRun(id=RunId(run), outcome=outcome(run, Ending.STOPPED, drained=draw(st.booleans())))
        for run in {"f": "ab", "g": "c", "h": ""}[name]
    )
    drain = draw(st.sampled_from(Drain))
    return Receipt(id=ReceiptId(name), session=S, cause=Ending.STOPPED, runs=fallen, fenced_at=1.0, drain=drain)


@st.composite
def questions_(draw: Drawn) -> QuestionRow:
    name, state = draw(st.sampled_from("qpo")), draw(st.sampled_from(QuestionState))
    answer = draw(st.booleans() | whatever) if state is QuestionState.ANSWERED else None
    by = draw(people) if state is QuestionState.ANSWERED else None
    return question(state, name=name, run={"q": "a", "p": "a", "o": "c"}[name], answer=answer, by=by)


@st.composite
def tools_(draw: Drawn) -> ToolRow:
    run = draw(names)
    call = CallId(f"{run}.{draw(st.integers(1, 2))}")
    state = draw(st.sampled_from(ToolState))
    return ToolRow(call_id=call, run_id=RunId(run), name="t", arguments=Json("{}"), state=state)


places = st.integers(-3, 3) | st.integers() | st.floats(allow_nan=False, allow_infinity=False)


marks_ = st.builds(
    StopMark, session=st.sampled_from(SESSIONS), channel=st.sampled_from(["chat", "mail"]), by=people, at=places,
    stopped_at=st.sampled_from([0.0, 100.0, 3_600.0, 5_000.0]),
)  # fmt: skip


stops_ = st.builds(
    StopKey, principal=people, key=keys_, method=st.sampled_from(["stop", "reset"]), digest=whatever,
    at=st.floats(0, 9),
    receipt=st.none() | st.sampled_from("fg").map(ReceiptId), aborted=st.booleans(),
    already=st.none() | st.sampled_from(Ending),
)  # fmt: skip


decisions = st.builds(
    Decision,
    writer=st.none() | st.builds(Writer, st.sampled_from(SESSIONS), st.integers(0, 6)),
    sessions=some(session_rows()),
    admissions=some(run_rows(over=False)),
    endings=some(run_rows(over=True)),
    keys=some(
        st.builds(
            KeyRow,
            principal=people,
            key=keys_,
            method=st.just("send"),
            digest=whatever,
            run_id=names.map(RunId),
            generation=st.none() | st.integers(0, 9),
            superseded=st.none() | names.map(RunId),
        )
    ),
    tombstones=some(st.builds(Tombstone, principal=people, key=keys_)),
    starts=some(names.map(RunId)),
    tools=some(tools_()),
    receipts=some(receipts_()),
    aliases=some(st.tuples(st.sampled_from("be").map(RunId), st.sampled_from("ac").map(RunId))),
    questions=some(questions_()),
    wakes=some(st.builds(wake, st.sampled_from("vw"), every=st.floats(1, 9))),
    unwakes=some(st.sampled_from("vw").map(WakeId)),
    marks=some(marks_),
    stops=some(stops_),
    rises=some(st.sampled_from(SESSIONS)),
    epochs=some(st.builds(EpochRow, session=st.sampled_from(SESSIONS), epoch=st.integers(1, 9))),
    told=some(names.map(RunId), 1),
)


tellings = st.tuples(
    names,
    st.one_of(
        st.builds(Delta, text=whatever),
        st.builds(Typing, on=st.booleans()),
        st.builds(Block, text=whatever),
        st.just(Started()),
        st.builds(Ended, outcome=outcomes, cut=whatever),
    ),
)


steps = st.lists(st.one_of(decisions, decisions, tellings, st.just("reopen")), max_size=12)


class Twins:
    """Two stores that get the same steps."""

    def __init__(self, kits: tuple[Any, ...]) -> None:
        self.kits = kits
        self.stores = [each.make() for each in kits]
        self.logs = list(map(Unwritten, self.stores))
        self.tickets: list[list[Ticket]] = []
        self.position = 0
        self.over: set[str] = set()
        # Runs that spoke since the last start: only recovery marks an end as told, of runs before that start.
        self.spoken: set[str] = set()

    async def do(self, step: Any) -> None:
        """Do the same step with both stores."""
        if step == "reopen":
            await self.compare(self.logs)
            self.stores = [await kit.reopened(store) for kit, store in zip(self.kits, self.stores, strict=True)]
            self.logs = list(map(Unwritten, self.stores))
            await self.compare([None, None])
            self.spoken.clear()
        elif isinstance(step, Decision):
            told = tuple(run for run in step.told if run not in self.spoken)
            step = msgspec.structs.replace(step, told=told)
            self.tickets.append([store.decide(step) for store in self.stores])
        else:
            await self.tell(*step)

    async def tell(self, run: str, data: Data) -> None:
        """Append as an outlet does: nothing after a run's end, the end once, and only once the run is stored."""
        if self.tickets:
            await asyncio.gather(self.tickets[-1][0], return_exceptions=True)  # the other store may be behind
        if run in self.over or await self.stores[0].run(RunId(run)) is None:
            return
        if isinstance(data, Ended):
            self.over.add(run)
        self.position += 1
        self.spoken.add(run)
        epoch = EpochRow(session=HOMES[run], epoch=self.position) if self.position % 3 == 0 else None
        for log in self.logs:
            log.append(event(self.position, data, run, HOMES[run]), epoch)

    async def compare(self, logs: Sequence[Log | None]) -> None:
        """Check that both stores have answered the same, and that every read is the same."""
        for each in self.tickets:
            answers = await asyncio.gather(*each, return_exceptions=True)
            assert repr(answers[0]) == repr(answers[1])
        self.tickets.clear()
        one, other = [await everything(store, log) for store, log in zip(self.stores, logs, strict=True)]
        differing = {what: (one[what], other[what]) for what in one if one[what] != other[what]}
        assert differing == {} and one.keys() == other.keys()


def test_pruning_spares_what_is_within_the_bounds(kit: Any) -> None:
    """A store within its bounds and ages forgets nothing, and says so."""

    async def main() -> None:
        store = kit.make()
        await store.open()
        store.append(event(1, MessageData(text="hi", by=ALICE)))
        decision = Decision(
            sessions=(session(1),),
            admissions=(row("r"), child("c")),
            endings=(ended("old", Ending.STOPPED),),
            keys=(key("k", "r"),),
            tombstones=(Tombstone(principal=ALICE, key="t"),),
            receipts=(receipt("f", "old"), receipt("g")),
            tools=(tool_row(),),
            questions=(question(),),
            wakes=(wake("w"),),
            marks=(mark(1.0),),
        )
        await store.decide(decision)
        before = await everything(store)
        assert await store.prune() == Pruned()
        assert await everything(store) == before

    play(kit, main)


def test_runless_receipts_are_bounded(kit: Any) -> None:
    """Receipts of stops that ended only detached processes are forgotten by count, and no others."""

    async def main() -> None:
        store = kit.small(RUNLESS_KEPT=2)
        await store.open()
        await store.decide(Decision(endings=(ended("a", Ending.STOPPED),), receipts=(receipt("f", "a"),)))
        for n in range(4):
            await store.decide(Decision(receipts=(receipt(f"g{n}"),)))
        await kit.tidy(store)
        found = [await store.receipt(ReceiptId(name)) is not None for name in ("f", "g0", "g1", "g2", "g3")]
        assert found == [True, False, False, True, True]

    play(kit, main)


@given(script=steps)
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_memory_and_sqlite_are_twins(kits: tuple[Any, Any], script: list[Any]) -> None:
    """Both stores return the same, whatever is decided and appended, in whatever order and over whatever restarts."""

    async def main() -> None:
        twins = Twins(kits)
        for store in twins.stores:
            await store.open()
        for step in [*script, "reopen"]:
            await twins.do(step)

    play(kits[1], main)
