"""The oracle fails on the first broken promise: it is fed by hand, at its sinks, with one violation of each kind."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from interlock import Control, Ending, MemoryStore, Message, Outcome, Receipt, Run, Settings, ToolState, open_control
from interlock.core.decision import Decision, RunRow, SessionRow, ToolRow
from interlock.core.events import Block, Data, Delta, Ended, Event, MessageData, ReceiptData, Started, Tool
from interlock.core.names import Drain, EventKind, May, Principal, RunId, RunKind, SessionId
from interlock.core.receipt import FallenRun
from interlock.testing import Oracle, Violation, run_seeded
from interlock.testing.rights import EVERYWHERE, Act, Deed, Offer, Rights

BRIEF = Settings(grace_seconds=0.2, drain_seconds=0.3)


class Books:
    """An oracle without a real control, fed by hand."""

    def __init__(self, oracle: Oracle, store: MemoryStore) -> None:
        self.oracle = oracle
        self.store = store
        self.position = 100
        self.current: set[str] = set()  # the runs that a sink is told are current
        oracle.control.is_current = lambda run, by="local": run in self.current  # type: ignore[method-assign]

    def shows(self, data: Data, run: str | None = "r", generation: int = 1, position: int | None = None) -> None:
        """Let an event arrive."""
        self.position += 1
        self.oracle.arrived(
            Event(position=position or self.position, session="s", run_id=run, generation=generation, data=data)
        )

    def begins(self, run: str = "r", generation: int = 1) -> None:
        """Let a run be said, started and begun, as it should."""
        self.store._runs[run] = RunRow(
            id=run, session="s", principal="alice", kind=RunKind.CHAT, text=run, admitted_at=0.0, started=True
        )
        self.shows(MessageData(text=run, by="alice"), run, generation)
        self.current.add(run)
        self.shows(Started(), run, generation)
        self.oracle.begun(run, run)

    def ends(self, ending: Ending = Ending.STOPPED, text: str = "", **facts: Any) -> None:
        """Let the run's terminal event arrive."""
        self.current.discard("r")
        self.shows(Ended(outcome=Outcome(run_id="r", ending=ending, text=text, **facts)))

    def receipt(self, ending: Ending = Ending.STOPPED, drain: Drain = Drain.OBSERVED, **facts: Any) -> Receipt:
        """A receipt of the run."""
        fallen = FallenRun(id="r", outcome=Outcome(run_id="r", ending=ending, **facts))
        return Receipt(id="f", session="s", cause=ending, runs=(fallen,), fenced_at=0.0, drain=drain)

    def records(self, state: ToolState = ToolState.RUNNING) -> None:
        """Put a call on record."""
        self.store._tools["r"] = {"r.1": ToolRow(call_id="r.1", run_id="r", name="dig", arguments="{}", state=state)}


def a_story(books: Books) -> None:
    """A run as it should be: nothing to object to."""
    books.begins()
    books.shows(Delta(text="a"))
    books.shows(Block(text="a"))
    books.records()
    books.shows(Tool(call_id="r.1", name="dig", state=ToolState.PENDING))
    books.shows(Tool(call_id="r.1", name="dig", state=ToolState.RUNNING))
    books.oracle.acted("r", "dig", begins=True)
    books.shows(Tool(call_id="r.1", name="dig", state=ToolState.FINISHED))
    books.ends(text="a")
    books.oracle._over.add("r")
    books.shows(ReceiptData(receipt=books.receipt(text="a")), run=None)
    books.begins("q", generation=3)


def over(books: Books) -> None:
    books.begins()
    books.oracle._over.add("r")  # a stop was acknowledged


def late_delta(books: Books) -> None:
    over(books)
    books.shows(Delta(text="late"))


def late_tool(books: Books) -> None:
    over(books)
    books.shows(Tool(call_id="r.1", name="dig", state=ToolState.PENDING))


def after_the_terminal(books: Books) -> None:
    books.begins()
    books.ends()
    books.shows(Delta(text="late"))


def two_terminals(books: Books) -> None:
    books.begins()
    books.ends()
    books.ends()


def position_back(books: Books) -> None:
    books.begins()
    books.shows(Delta(text="a"), position=books.position)


def other_text(books: Books) -> None:
    books.begins()
    books.shows(Delta(text="shown"))
    books.ends(text="told")


def two_stories(books: Books) -> None:
    books.begins()
    books.ends(Ending.STOPPED, by="alice")
    books.shows(ReceiptData(receipt=books.receipt(Ending.COMPLETED)), run=None)


def started_twice(books: Books) -> None:
    books.begins()
    books.shows(Started())


def generation_kept(books: Books) -> None:
    books.begins()
    books.ends(Ending.COMPLETED)
    books.begins("q", generation=2)


def run_twice(books: Books) -> None:
    books.begins()
    books.oracle.begun("r", "r")


def refused_and_run(books: Books) -> None:
    books.oracle._refused.add("r")
    books.begins()


def begun_after_the_end(books: Books) -> None:
    books.oracle._over.add("q")
    books.store._runs["q"] = RunRow(
        id="q", session="s", principal="alice", kind=RunKind.CHAT, text="q", admitted_at=0.0, started=True
    )
    books.oracle.begun("q", "q")


def begun_off_record(books: Books) -> None:
    books.oracle.begun("q", "q")


def body_off_record(books: Books) -> None:
    books.begins()
    books.oracle.acted("r", "dig", begins=True)


def body_after_the_end(books: Books) -> None:
    over(books)
    books.records()
    books.oracle.acted("r", "dig", begins=True)


def act_after_the_drain(books: Books) -> None:
    books.begins()
    books.records()
    books.ends()
    books.shows(ReceiptData(receipt=books.receipt()), run=None)
    books.oracle.acted("r", "dig")


def call_goes_back(books: Books) -> None:
    books.begins()
    books.shows(Tool(call_id="r.1", name="dig", state=ToolState.INTERRUPTED))
    books.shows(Tool(call_id="r.1", name="dig", state=ToolState.FINISHED))


def deadline_passed(books: Books) -> None:
    books.begins()
    books.oracle._deadlines["r"] = 1e-9
    books.oracle._started["r"] -= 1
    books.oracle.returned("r")
    books.ends(Ending.COMPLETED)


def watcher_late(books: Books) -> None:
    over(books)
    books.oracle._told["r"] = Outcome(run_id="r", ending=Ending.STOPPED)
    event = Event(position=1, session="s", run_id="r", generation=1, data=Delta(text="late"))
    books.oracle._watched(event, set())


def watcher_after_the_terminal(books: Books) -> None:
    event = Event(position=1, session="s", run_id="r", generation=1, data=Block(text="late"))
    books.oracle._watched(event, {"r"})


def stale_speaker(books: Books) -> None:
    books.begins()
    books.current.clear()
    books.shows(Delta(text="a"))


def current_at_the_fall(books: Books) -> None:
    books.begins()
    row = msgspec.structs.replace(books.store._runs[RunId("r")], outcome=Outcome(run_id="r", ending=Ending.STOPPED))
    books.store.decide(Decision(endings=(row,)))


def current_at_the_ack(books: Books) -> None:
    books.begins()
    books.oracle._mark_over(RunId("r"))


VIOLATIONS: dict[Callable[[Books], None], str] = {
    late_delta: "P1: delta of r arrived after its end",
    late_tool: "P1: tool of r arrived after its end",
    other_text: "P1: r was told with 'told', but 'shown' was shown",
    generation_kept: "P1: q started in generation 2",
    begun_after_the_end: "P1: q began after its end",
    body_after_the_end: "P1: dig of r began after its end",
    act_after_the_drain: "P1: dig of r acted after the receipt said drained",
    watcher_late: "P1: a watcher was given a delta of r after its end",
    after_the_terminal: "P2: delta of r after its terminal event",
    two_terminals: "P2: ended of r after its terminal event",
    position_back: "P2: position",
    watcher_after_the_terminal: "P2: a watcher was given block of r after",
    two_stories: "P4: a receipt tells",
    deadline_passed: "P4: r returned after its deadline",
    started_twice: "P5: r started twice",
    run_twice: "P5: message 'r' was run twice",
    refused_and_run: "P5: message 'r' was refused and runs",
    begun_off_record: "P5: q began before its started mark",
    body_off_record: "P5: dig of r began before its start was on record",
    call_goes_back: "P5: call r.1 of r went from interrupted to finished",
    stale_speaker: "P1: r is at work, and a sink that asks is told that it is not current",
    current_at_the_fall: "P1: a sink that asks is told that r is current, and its end was handed to the store",
    current_at_the_ack: "P1: a sink that asks is told that r is current, and its end was acknowledged",
}


def feed(hand: Callable[[Books], None]) -> Oracle:
    """Feed a fresh oracle by hand."""

    async def agent(run: Run, message: Message) -> None:
        await asyncio.sleep(60)

    async def main() -> Oracle:
        store = MemoryStore()
        async with open_control(agent, store=store, settings=BRIEF) as control:
            oracle = Oracle(control, store)
            oracle.judging = None
            hand(Books(oracle, store))
        return oracle

    return run_seeded(main, 0)


def test_it_has_nothing_against_a_run_as_it_should_be() -> None:
    """A run that keeps every promise passes, and its books list what was seen."""
    oracle = feed(a_story)
    assert oracle.violation is None
    assert ("begun", 0) in oracle.trace


@pytest.mark.parametrize("hand", VIOLATIONS, ids=lambda hand: hand.__name__)
def test_it_fails_on_each_violation(hand: Callable[[Books], None]) -> None:
    """The oracle raises a violation seen at a sink at once, names it by its clause, and keeps it as the first."""
    kept: list[Oracle] = []

    def fed(books: Books) -> None:
        kept.append(books.oracle)
        hand(books)

    with pytest.raises(Violation, match="^" + VIOLATIONS[hand].replace("(", r"\(")):
        feed(fed)
    assert kept[0].violation is not None and VIOLATIONS[hand] in str(kept[0].violation)


def test_the_first_violation_stands() -> None:
    """A later violation does not replace the first, even if someone above swallowed the first."""

    def hand(books: Books) -> None:
        for bad in (late_delta, position_back):
            with pytest.raises(Violation):
                bad(books)
        assert "P1: delta" in str(books.oracle.violation)

    feed(hand)


class Stub:
    """A control that answers what it is told to, for the verbs the oracle judges by their answers."""

    def __init__(self, answer: Any = None, seconds: float = 0.0) -> None:
        self.settings = BRIEF
        self.answer = answer
        self.seconds = seconds

    def is_current(self, run: str, by: str = "local") -> bool:
        return False

    async def stop(self, **what: Any) -> Any:
        await asyncio.sleep(self.seconds)
        return self.answer

    async def wait(self, run_id: str, **options: Any) -> Any:
        return self.answer

    async def watch(self, session: str, **options: Any) -> Any:
        for event in self.answer:
            yield event


def told(answer: Any, ask: Callable[[Oracle], Any], seconds: float = 0.0) -> None:
    """Let the oracle ask a control that lies."""

    async def main() -> None:
        oracle = Oracle(Stub(answer, seconds), MemoryStore())  # type: ignore[arg-type]
        oracle.judging = None
        oracle._principals["r"], oracle._accepted["r"], oracle._home["r"] = "alice", "s", "s"
        await ask(oracle)

    run_seeded(main, 0)


def _receipt(ending: Ending, **facts: Any) -> Receipt:
    fallen = FallenRun(id="r", outcome=Outcome(run_id="r", ending=ending, by=facts.pop("by", None)))
    return Receipt(id="f", session="s", cause=ending, runs=(fallen,), fenced_at=0.0, **facts)


def _event(position: int) -> Event:
    return Event(position=position, session="s", run_id="r", generation=1, data=Block(text="x"))


@pytest.mark.parametrize(
    ("answer", "ask", "seconds", "words"),
    [
        (_receipt(Ending.STOPPED), lambda oracle: oracle.stop(session="s"), 5.0, "P6: stop took 5"),
        (_receipt(Ending.COMPLETED, aborted=True), lambda oracle: oracle.stop(run="r"), 0.0, "P1: the receipt says"),
        (_receipt(Ending.STOPPED, by="mallory"), lambda oracle: oracle.stop(run="r", by="mallory"), 0.0, "P7: mallory"),
        (Outcome(run_id="r", ending=Ending.UNKNOWN), lambda oracle: oracle.wait("r"), 0.0, "P5: r was accepted and is"),
        ([_event(2), _event(2)], lambda oracle: oracle.watch("s"), 0.0, "P2: a watcher was given position 2"),
    ],
    ids=["late stop", "aborted nothing", "not theirs", "lost", "told twice"],
)
def test_it_judges_what_callers_are_told(answer: Any, ask: Callable[[Oracle], Any], seconds: float, words: str) -> None:
    """A stop that takes too long, claims what it did not do or ends another's run, a lost message, a repeated event."""
    with pytest.raises(Violation, match="^" + words):
        told(answer, ask, seconds)


def test_it_judges_the_end() -> None:
    """A message accepted and never told as ended, and a store that holds another ending, fail at the finish."""

    async def agent(run: Run, message: Message) -> str:
        return "reply"

    async def main(spoil: Callable[[Oracle, MemoryStore, str], None]) -> None:
        store = MemoryStore()
        async with open_control(agent, store=store, settings=BRIEF) as control:
            oracle = Oracle(control, store)
            oracle.judging = None
            sent = await oracle.send("s", "hello", by="alice")
            assert sent is not None
            await oracle.wait(sent.run_id)
            oracle._begun["hello"] = 1
            spoil(oracle, store, sent.run_id)
            await oracle.finish()

    def rewrite(oracle: Oracle, store: MemoryStore, run_id: str) -> None:
        row = store._runs[run_id]
        lost = Outcome(run_id=run_id, ending=Ending.LOST)
        store._runs[run_id] = msgspec.structs.replace(row, outcome=lost)

    def untold(oracle: Oracle, store: MemoryStore, run_id: str) -> None:
        del oracle._terminal[run_id]

    def unrun(oracle: Oracle, store: MemoryStore, run_id: str) -> None:
        oracle._begun.clear()

    def stillborn(oracle: Oracle, store: MemoryStore, run_id: str) -> None:
        oracle._stillborn.add(run_id)

    def open_call(oracle: Oracle, store: MemoryStore, run_id: str) -> None:
        call = Tool(call_id="c", name="dig", state=ToolState.PENDING, arguments="{}")
        store.append(Event(position=1 << 40, session="s", run_id="another", generation=1, data=call))

    run_seeded(lambda: main(lambda *_: None), 0)
    for spoil, words in (
        (rewrite, "P4: (wait|the store) tells"),
        (untold, "P2: .* had no terminal event"),
        (unrun, "P5: .* completed, and .hello. was seen 0 times"),
        (stillborn, "P1: the key of .* was stopped before it was seen"),
        (open_call, "P1: call c has 0 results"),
    ):
        with pytest.raises(Violation, match=words):
            run_seeded(lambda spoil=spoil: main(spoil), 0)  # type: ignore[misc]


def judged(play: Callable[[Control, Oracle, MemoryStore], Any], *, latency: float = 0.0) -> Oracle:
    """Let people act, then let the oracle judge the result; only what a test makes up is not real."""

    async def agent(run: Run, message: Message) -> str:
        oracle.begun(run.id, message.text)
        if "stay" in message.text:
            await asyncio.sleep(60)
        return "reply"

    async def main() -> None:
        nonlocal oracle
        store = MemoryStore(latency_seconds=latency)
        async with open_control(agent, store=store, settings=BRIEF) as control:
            oracle = Oracle(control, store)
            oracle.judging = None
            await play(control, oracle, store)
            await oracle.stop(session="s")
            await oracle.finish()

    oracle: Oracle
    run_seeded(main, 0, jump=0.0)
    return oracle


async def falls_first(oracle: Oracle) -> None:
    """A message of bob's that is stopped before it founds anything, and one of alice's that does."""
    await oracle.stop(message="k", by="bob")
    sent = await oracle.send("s", "never", by="bob", key="k")
    assert sent is not None and sent.state == "ended"
    assert await oracle.send("s", "stay", by="alice") is not None


def test_a_message_that_fell_before_it_founded_anything_makes_nobody_an_owner() -> None:
    """A fallen message is shown first, but the sender of the first message taken owns the session and may stop all."""

    async def play(control: Control, oracle: Oracle, store: MemoryStore) -> None:
        await falls_first(oracle)
        await oracle.share("s", "bob", "write", by="alice")
        assert await oracle.send("s", "guest", by="bob", strategy="queue") is not None
        receipt = await oracle.stop(session="s", by="alice")
        assert len(receipt.runs) == 2

    oracle = judged(play)
    assert oracle.violation is None and oracle.rights.owner("s") == "alice"


def test_who_only_seems_to_be_the_owner_may_not_stop() -> None:
    """The oracle finds that an author whose message fell before it founded anything ends somebody else's run."""

    async def play(control: Control, oracle: Oracle, store: MemoryStore) -> None:
        await falls_first(oracle)
        control._registry.sessions[SessionId("s")].owner = Principal("bob")
        await oracle.stop(session="s", by="bob")

    with pytest.raises(Violation, match=r"^P7: bob stopped .* of alice"):
        judged(play)


def test_a_withdrawn_message_makes_nobody_an_owner() -> None:
    """A message that the store refused founds nothing; the oracle finds a store that keeps its author as the owner."""

    async def play(control: Control, oracle: Oracle, store: MemoryStore) -> None:
        store.faults.fail = True
        assert await oracle.send("s", "refused", by="bob") is None
        store.resume()
        assert await oracle.send("s", "taken", by="alice") is not None
        assert oracle.rights.owner("s") == "alice"

    async def wrongly(control: Control, oracle: Oracle, store: MemoryStore) -> None:
        await play(control, oracle, store)
        store._sessions[SessionId("s")] = msgspec.structs.replace(store._sessions[SessionId("s")], owner="bob")

    assert judged(play, latency=0.01).violation is None
    with pytest.raises(Violation, match=r"^P7: session s is kept as bob's; it was founded by a message of alice"):
        judged(wrongly, latency=0.01)


def test_a_message_that_fell_while_the_store_refused_it_founds_its_session() -> None:
    """A sender told that their message was stopped, not that it was refused, owns the session, whoever comes next."""

    async def play(control: Control, oracle: Oracle, store: MemoryStore) -> None:
        first = asyncio.ensure_future(oracle.send("s", "one", by="bob"))
        await asyncio.sleep(0.005)
        store.faults.stall = True
        await oracle.stop(session="s", by="bob")
        assert await first is not None
        store.resume()
        assert await oracle.send("s", "two", by="alice") is None
        assert await oracle.send("s", "three", by="bob") is not None

    oracle = judged(play, latency=0.01)
    assert oracle.violation is None and oracle.rights.owner("s") == "bob"


def test_a_session_that_is_nobody_s_is_there_for_everybody() -> None:
    """The oracle finds a refusal that stands on an owner whose message was withdrawn."""

    async def play(control: Control, oracle: Oracle, store: MemoryStore) -> None:
        store.faults.fail = True
        assert await oracle.send("s", "refused", by="bob") is None
        store.resume()
        with control._registry.pinned(SessionId("s")) as session:
            session.loaded, session.owner = True, Principal("bob")
            assert await oracle.send("s", "mine", by="alice") is None

    with pytest.raises(
        Violation, match=r"^P7: alice was told that session s is not there for them, and it was nobody's"
    ):
        judged(play, latency=0.01)


def test_nobody_owns_what_the_store_does_not_have() -> None:
    """A sender who is only about to own a session has no right to what others send there."""

    async def play(control: Control, oracle: Oracle, store: MemoryStore) -> None:
        first = asyncio.ensure_future(oracle.send("s", "one", by="alice"))
        await asyncio.sleep(0.005)
        store.faults.stall = True
        second = asyncio.ensure_future(oracle.send("s", "two", by="bob"))
        await asyncio.sleep(0.005)
        session = control._registry.sessions[SessionId("s")]
        # Without these bob's message would be turned away.
        session.stored, session.shares = True, {Principal("bob"): May.WRITE}
        await oracle.stop(session="s", by="alice")
        store.resume()
        await asyncio.gather(first, second)

    with pytest.raises(Violation, match=r"^P7: alice stopped .* of bob"):
        judged(play, latency=0.01)


def rights() -> Rights:
    """A book in which alice owns session s, and bob has a run there."""
    store = MemoryStore()
    book = Rights(store, admins=("admin",))
    for run, by in (("r-1", "alice"), ("r-2", "bob")):
        row = RunRow(id=run, session="s", principal=by, kind=RunKind.CHAT, text=run, admitted_at=0.0)
        book._offers.setdefault("s", {})[RunId(run)] = Offer(RunId(run), by, run)
        store._runs[RunId(run)] = row
    store._sessions[SessionId("s")] = SessionRow(id="s", owner="alice", generation=1)
    return book


def wrongs(book: Rights, by: str, *, at: float = 5.0) -> set[Deed]:
    """Return what somebody may not do in session s at an instant; a run that they would end is bob's."""
    acts = [Act(deed, by, "s", at, at, "no", RunId("r-2"), "bob") for deed in Deed]
    return {act.deed for act in acts if book.wrong(act) is not None}


def test_the_book_of_rights() -> None:
    """Owner and admins may all; others what was shared with them, while it is; a run's author ends it if they write."""
    book = rights()
    everything = set(Deed)
    assert wrongs(book, "alice") == wrongs(book, "admin") == wrongs(book, "local") == set()
    assert wrongs(book, "mallory") == wrongs(book, "bob") == everything
    book.say("s", "bob", "write", 1.0).acknowledge(2.0)
    assert wrongs(book, "bob") == {Deed.OWN}
    book.say("s", "bob", "read", 6.0).acknowledge(7.0)
    assert wrongs(book, "bob", at=6.5) == {Deed.OWN}
    book.say(EVERYWHERE, "rita", "read", 1.0).acknowledge(1.0)
    assert wrongs(book, "rita") == {Deed.SEND, Deed.END, Deed.OWN}
    book.say(EVERYWHERE, "rita", None, 3.0).acknowledge(3.0)
    assert wrongs(book, "rita") == everything
    assert wrongs(book, "bob", at=8.0) == {Deed.SEND, Deed.END, Deed.OWN}
    book.say("s", "bob", "write", 9.0).refuse()
    assert wrongs(book, "bob", at=9.5) == {Deed.SEND, Deed.END, Deed.OWN}
    gone = book.say("s", "bob", None, 10.0)
    back = book.say("s", "bob", "write", 10.5)
    gone.acknowledge(11.0)
    back.acknowledge(12.0)
    assert wrongs(book, "bob", at=13.0) == {Deed.OWN}
    book.say("s", "bob", None, 14.0).acknowledge(15.0)
    assert wrongs(book, "bob", at=14.5) == {Deed.OWN}
    assert wrongs(book, "bob", at=15.5) == everything


def test_it_looks_at_the_sinks_and_not_at_the_fence() -> None:
    """An effect that gets past a fence that is none is seen where it arrives, and the oracle says so."""

    async def agent(run: Run, message: Message) -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        store = MemoryStore()
        async with open_control(agent, store=store, settings=BRIEF) as control:
            oracle = Oracle(control, store)
            oracle.judging = None
            sent = await oracle.send("s", "hello")
            assert sent is not None
            run = control._registry.runs[sent.run_id]
            await oracle.stop(session="s")
            with contextlib.suppress(Violation):
                control.feed.publish("s", run, Delta(text="around the fence"))  # type: ignore[arg-type]
            assert str(oracle.violation).startswith("P2: delta")
            assert [event[0] for event in oracle.trace][-1] == EventKind.DELTA

    run_seeded(main, 0)
