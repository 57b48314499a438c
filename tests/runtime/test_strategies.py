"""Strategies at work: steer, collect, rollback; said by the server, a session or a message."""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from interlock import (
    BadInput,
    Control,
    Ending,
    Event,
    KeyConflict,
    MemoryStore,
    Message,
    Outcome,
    Part,
    QueueFull,
    Rejected,
    Run,
    Sent,
    Settings,
    Unavailable,
    Unknown,
    open_control,
)
from interlock.core.decision import Decision
from interlock.core.names import ErrorKind, EventKind
from interlock.runtime.settings import COLLECT_TIMES
from interlock.stores.base import Ticket

from .scene import at_once, echoes, idles, kinds, log_of, mumbles, seeded, started, told

SLACK = 0.1  # the virtual clock may run ahead by its horizon
QUIET = 0.5


@pytest.fixture(autouse=True)
def nothing_breaks(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No task of control may end with an error of its own."""
    yield
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


class Shaky(MemoryStore):
    """A memory store that begins to misbehave with the next decision, not with the reads before it."""

    next_fault: str | None = None
    skip = 0  # decisions before that

    def decide(self, decision: Decision) -> Ticket:
        self.skip -= 1
        if self.next_fault is not None and self.skip < 0:
            setattr(self.faults, self.next_fault, True)
            self.next_fault = None
        return super().decide(decision)

    def mend(self) -> None:
        """Behave again."""
        self.next_fault = None
        self.faults.fail = self.faults.lose = False
        self.resume()


class Listener:
    """An agent that works until it is let go, takes steered messages in when told to, and writes down all it saw."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts  # who waits to be let go; nobody named: everyone
        self.seen: list[str] = []
        self.taken: list[Message] = []
        self.messages: list[Message] = []
        self.look = asyncio.Event()
        self.looked = asyncio.Event()
        self.go = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self, run: Run, message: Message) -> str:
        self.messages.append(message)
        self.seen += [part.text for part in message.parts]
        if self.texts and message.text not in self.texts:
            return f"answer to {message.text}"
        await run.say(f"about {message.text}")
        while True:
            await self.look.wait()
            self.look.clear()
            if self.go.is_set():
                break
            taken = await run.check()
            self.taken += taken
            self.seen += [each.text for each in taken]
            self.looked.set()
        if self.error is not None:
            raise self.error
        return f"answer to {message.text}"

    async def checks(self) -> None:
        """Let the run look for steered messages once."""
        self.looked.clear()
        self.look.set()
        await self.looked.wait()

    def finish(self) -> None:
        """Let the run return without another look."""
        self.go.set()
        self.look.set()


async def gone(control: Control) -> None:
    """Wait until nothing is in memory any more."""
    while control._registry.runs:
        await anyio.sleep(1)
    assert control._registry.sessions == {}


def now() -> float:
    """The loop's clock."""
    return asyncio.get_running_loop().time()


async def turns(count: int) -> None:
    """Let the loop go round some times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def events_of(control: Control, run: str) -> list[Event]:
    """Everything a watcher of a run is told, up to its end."""
    async with aclosing(control.watch(run=run)) as events:
        return [event async for event in events]


async def taken_in(agent: Listener, control: Control, *texts: str) -> tuple[Sent, list[Sent]]:
    """Begin a run and let it take steered messages in."""
    sent = await control.send("s", "work")
    await told(control, sent.run_id, EventKind.DELTA)
    steers = [await control.send("s", text, strategy="steer") for text in texts]
    await agent.checks()
    return sent, steers


# Steer


def test_a_steer_waits_with_an_id_of_its_own() -> None:
    """A steered message ends nobody; it has its own run id and waits until the run asks for it."""

    async def main() -> None:
        agent = Listener()
        async with open_control(agent, strategy="steer") as control:
            sent = await control.send("s", "work")
            await told(control, sent.run_id, EventKind.DELTA)
            steer = await control.send("s", "more")
            assert (steer.state, steer.generation, steer.superseded) == ("queued", None, None)
            assert steer.run_id != sent.run_id
            assert (await control.wait(steer.run_id, timeout=1)).ending is Ending.PENDING
            assert [(info.id, info.state) for info in await control.runs("s")] == [
                (sent.run_id, "started"),
                (steer.run_id, "queued"),
            ]
            assert agent.seen == ["work"]

    seeded(main)


def test_a_taken_steer_is_part_of_the_run() -> None:
    """`check` returns the message whole and once; whoever waits for it is answered by the run that took it."""

    async def main() -> None:
        agent = Listener()
        async with open_control(agent, admins=["root"]) as control:
            sent = await control.send("s", "work", by="alice")
            await told(control, sent.run_id, EventKind.DELTA)
            mine = await control.send("s", "mine", by="alice", strategy="steer")
            roots = await control.send("s", "root's", by="root", strategy="steer")
            waiting = asyncio.create_task(control.wait(mine.run_id, by="alice"))
            await anyio.sleep(1)
            await agent.checks()
            assert [(each.text, each.by, each.run_id, each.session) for each in agent.taken] == [
                ("mine", "alice", mine.run_id, "s"),
                ("root's", "root", roots.run_id, "s"),
            ]
            await agent.checks()
            assert len(agent.taken) == 2
            assert (await control.wait(mine.run_id, timeout=1)).ending is Ending.PENDING
            agent.finish()
            ended = [await waiting, *[await control.wait(each.run_id) for each in (mine, roots)]]
            assert [(each.run_id, each.ending, each.text) for each in ended] == [
                (sent.run_id, Ending.COMPLETED, "about work\n\nanswer to work")
            ] * 3
            assert agent.seen == ["work", "mine", "root's"]

    seeded(main)


@pytest.mark.parametrize("where", ["memory", "store", "second control"])
@pytest.mark.parametrize("verb", ["wait", "stop", "watch", "receipt", "timeline"])
def test_every_verb_follows_a_taken_steer(verb: str, where: str) -> None:
    """Asked for a taken message, each verb answers with the run that took it, as long as anyone remembers it."""

    async def ask(control: Control, run: str) -> Any:
        match verb:
            case "wait":
                return (await control.wait(run, drained=True)).run_id
            case "stop":
                receipt = await control.stop(run=run)
                return receipt.id, receipt.already, receipt.aborted
            case "watch":
                return [event.position for event in await events_of(control, run)]
            case "receipt":
                return await control.receipt(run)
        return await control.timeline(run)

    async def main() -> None:
        store, agent = MemoryStore(), Listener()
        async with open_control(agent, store=store) as control:
            sent, [steer] = await taken_in(agent, control, "more")
            agent.finish()
            await control.wait(sent.run_id, drained=True)
            if where == "memory":
                assert steer.run_id in control._registry.runs
                assert await ask(control, steer.run_id) == await ask(control, sent.run_id)
            await gone(control)
            if where == "store":
                assert await ask(control, steer.run_id) == await ask(control, sent.run_id)
        if where == "second control":
            async with open_control(agent, store=store) as control:
                assert await ask(control, steer.run_id) == await ask(control, sent.run_id)

    seeded(main, range(2))


def test_a_stop_of_a_taken_steer_ends_the_run() -> None:
    """A stop by the taken message's id ends the run it is part of, with one receipt."""

    async def main() -> None:
        agent = Listener()
        async with open_control(agent) as control:
            sent, [steer] = await taken_in(agent, control, "more")
            receipt = await control.stop(run=steer.run_id)
            assert receipt.aborted and [run.id for run in receipt.runs] == [sent.run_id]
            assert (await control.wait(steer.run_id)).ending is Ending.STOPPED

    seeded(main)


def test_a_watcher_of_a_steer_goes_over_to_the_run() -> None:
    """Whoever watched a steered message before it was taken is told the run's end too."""

    async def main() -> None:
        agent = Listener()
        async with open_control(agent) as control:
            sent = await control.send("s", "work")
            await told(control, sent.run_id, EventKind.DELTA)
            steer = await control.send("s", "more", strategy="steer")
            watching = asyncio.create_task(events_of(control, steer.run_id))
            await anyio.sleep(1)
            await agent.checks()
            agent.finish()
            await control.wait(sent.run_id, drained=True)
            with anyio.fail_after(60):
                events = await watching
            assert (events[-1].kind, events[-1].run_id) == (EventKind.ENDED, sent.run_id)

    seeded(main, range(3))


@pytest.mark.parametrize("how", ["session", "run", "takeover", "reset"])
def test_a_steer_that_was_not_taken_ends_with_its_run(how: str) -> None:
    """Stops and takeovers end the waiting steer in the same step; it is never seen by an agent."""

    async def main() -> None:
        agent = Listener("work")
        async with open_control(agent) as control:
            sent = await control.send("s", "work")
            await told(control, sent.run_id, EventKind.DELTA)
            steer = await control.send("s", "more", strategy="steer")
            match how:
                case "session":
                    await control.stop(session="s")
                case "run":
                    await control.stop(run=sent.run_id)
                case "takeover":
                    await control.send("s", "other")
                case _:
                    await control.reset("s")
            outcomes = [await control.wait(each.run_id) for each in (sent, steer)]
            expected = Ending.SUPERSEDED if how == "takeover" else Ending.STOPPED
            assert [(each.run_id, each.ending) for each in outcomes] == [
                (sent.run_id, expected),
                (steer.run_id, expected),
            ]
            receipt = await control.receipt(steer.run_id)
            assert [run.id for run in receipt.runs] == [sent.run_id, steer.run_id]
            assert receipt.queued == 1
            await anyio.sleep(10)
        assert "more" not in agent.seen

    seeded(main)


@pytest.mark.parametrize("how", ["completed", "failed", "timed_out"])
def test_a_steer_that_was_not_taken_becomes_a_turn(how: str) -> None:
    """When the run ends by itself the waiting steers are turns of their own, in order, and none is lost."""

    async def main() -> None:
        agent = Listener("work")
        async with open_control(agent) as control:
            sent = await control.send("s", "work", deadline=5)
            await told(control, sent.run_id, EventKind.DELTA)
            steers = [await control.send("s", text, strategy="steer") for text in ("more", "and more")]
            if how != "timed_out":
                agent.error = RuntimeError("broken") if how == "failed" else None
                agent.finish()
            outcome = await control.wait(sent.run_id)
            assert outcome.ending == how
            for each, text in zip(steers, ("more", "and more"), strict=True):
                outcome = await control.wait(each.run_id)
                assert (outcome.run_id, outcome.text) == (each.run_id, f"answer to {text}")
            assert agent.seen == ["work", "more", "and more"]

    seeded(main)


def test_a_steer_is_held_while_the_run_asks() -> None:
    """A question comes first: the steer neither answers nor voids it, and is taken once it is answered."""

    async def agent(run: Run, message: Message) -> str:
        asked = asyncio.create_task(run.ask("Deploy?"))
        await asyncio.sleep(2)  # the steer is there, and so is the question
        early = await run.check()
        answer = await asked
        late = await run.check()
        return f"{len(early)} {answer} {[each.text for each in late]}"

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "work")
            question = (await told(control, sent.run_id, EventKind.QUESTION)).data.question_id
            steer = await control.send("s", "yes", strategy="steer")
            await anyio.sleep(3)
            assert (await control.wait(steer.run_id, timeout=1)).ending is Ending.PENDING
            info = await control.answer(question, True)
            assert info.answer is True
            assert (await control.wait(steer.run_id)).text == "0 True ['yes']"

    seeded(main)


def test_without_the_right_to_stop_a_steer_queues() -> None:
    """A stranger's steer is never taken in by a run it may not stop; it gets a turn of its own."""

    async def main() -> None:
        agent = Listener("work")
        async with open_control(agent) as control:
            sent = await control.send("s", "work", by="alice")
            await told(control, sent.run_id, EventKind.DELTA)
            await control.share("s", with_="bob")
            steer = await control.send("s", "a stranger's", by="bob", strategy="steer")
            assert (steer.state, steer.superseded) == ("queued", None)
            await agent.checks()
            agent.finish()
            assert (await control.wait(steer.run_id, by="bob")).text == "answer to a stranger's"
            assert agent.taken == [] and agent.seen == ["work", "a stranger's"]

    seeded(main)


def test_a_stop_of_the_run_leaves_a_strangers_message() -> None:
    """Whoever stops their own run does not end what they may not stop, steered or not."""

    async def main() -> None:
        agent = Listener("work")
        async with open_control(agent) as control:
            first = await control.send("s", "hello", by="alice")
            await control.wait(first.run_id)
            await control.share("s", with_="bob")
            sent = await control.send("s", "work", by="bob")
            await told(control, sent.run_id, EventKind.DELTA)
            steer = await control.send("s", "the owner's", by="alice", strategy="steer")
            receipt = await control.stop(run=sent.run_id, by="bob")
            assert [run.id for run in receipt.runs] == [sent.run_id]
            assert (await control.wait(steer.run_id)).text == "answer to the owner's"

    seeded(main)


def test_a_steer_into_an_idle_session_is_seated() -> None:
    """Where nobody has the seat there is nothing to steer."""

    async def main() -> None:
        async with open_control(echoes, strategy="steer") as control:
            sent = await control.send("s", "hello")
            assert (sent.state, sent.generation) == ("seated", 1)
            assert (await control.wait(sent.run_id)).text == "hello"

    seeded(main)


def test_a_steer_stands_where_it_was_taken() -> None:
    """In the transcript the message follows what had been said by then, not where it was sent."""
    seen: list[list[tuple[str, str]]] = []

    async def agent(run: Run, message: Message) -> str:
        if message.text == "work":
            await run.say("one")
            await asyncio.sleep(2)
            await run.say(" two")
            [taken] = await run.check()
            await run.say(f"three, {taken.text}")
        seen.append([(entry.role, entry.text) for entry in await run.history()])
        return "done"

    async def main() -> None:
        seen.clear()
        async with open_control(agent) as control:
            sent = await control.send("s", "work")
            await started(control, sent.run_id)
            await control.send("s", "more", strategy="steer")
            await control.wait(sent.run_id)
            last = await control.send("s", "again")
            await control.wait(last.run_id)
            expected = [
                ("user", "work"),
                ("assistant", "one two"),
                ("user", "more"),
                ("assistant", "three, more"),
                ("assistant", "done"),
                ("user", "again"),
            ]
            assert seen[-1] == expected
            entries = await control.history("s")
            assert [(entry.role, entry.text) for entry in entries] == [*expected, ("assistant", "done")]
            assert {entry.run_id for entry in entries[:5]} == {sent.run_id}

    seeded(main)


class Brief:
    """An agent that looks a few times for steered messages and returns; it counts every text it was given."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def __call__(self, run: Run, message: Message) -> str:
        self.seen += [part.text for part in message.parts]
        for _ in range(3):
            self.seen += [taken.text for taken in await run.check()]
            await asyncio.sleep(0.002)
        self.seen += [taken.text for taken in await run.check()]
        return message.text


@pytest.mark.parametrize("late", range(0, 24, 3))
def test_a_steer_around_the_end_is_handled_once(late: int) -> None:
    """Whenever a steer comes in the life of a run, an agent is given it exactly once."""

    async def main() -> None:
        agent = Brief()
        async with open_control(agent, strategy="steer") as control:
            first = await control.send("s", "first")
            await asyncio.sleep(0.001 * (late % 12))
            await turns(late)
            sent = await at_once(control.send("s", "a"), control.send("s", "b"))
            outcomes = [await control.wait(each.run_id) for each in (first, *sent)]
            assert [each.ending for each in outcomes] == [Ending.COMPLETED] * 3
            assert sorted(agent.seen) == ["a", "b", "first"]
            await anyio.sleep(10)
            assert sorted(agent.seen) == ["a", "b", "first"]

    seeded(main, range(late, late + 12))


@pytest.mark.parametrize("fault", ["fail", "stall", "lose"])
def test_a_steer_in_trouble_is_handled_once_or_refused(fault: str) -> None:
    """With a store in trouble a steer is refused and seen by nobody, or accepted and seen once, or told as failed."""
    answers: list[str] = []

    async def main() -> None:
        for late in range(8):
            store = Shaky()
            agent = Brief()
            async with open_control(agent, store=store, strategy="steer") as control:
                first = await control.send("s", "first")
                await asyncio.sleep(0.001 * late)
                store.skip, store.next_fault = late % 3, fault
                sending = asyncio.create_task(_sent_or_refused(control, "a"))
                await asyncio.sleep(0.3 * (late % 4))
                store.mend()
                sent = await sending
                await control.wait(first.run_id)
                outcome = None if sent is None else await control.wait(sent.run_id)
                await anyio.sleep(10)
                answers.append("refused" if outcome is None else outcome.ending)
                _seen_as_told(agent.seen, "a", outcome)
                assert agent.seen.count("first") <= 1

    seeded(main, range(6))
    assert len(set(answers)) > 1 or fault == "lose"  # (there the store says in the end that it is in)


async def _sent_or_refused(control: Control, text: str, key: str | None = None) -> Sent | None:
    try:
        return await control.send("s", text, key=key)
    except Unavailable:
        return None


def _seen_as_told(seen: list[str], text: str, outcome: Outcome | None) -> None:
    """An agent was given a text as often as its sender must think."""
    if outcome is not None and outcome.ending is Ending.FAILED:
        assert outcome.error_kind is ErrorKind.STORE and outcome.started_at is None
    assert seen.count(text) == (outcome is not None and outcome.started_at is not None)


@pytest.mark.parametrize("fault", ["fail", "stall", "lose"])
def test_what_a_run_took_is_kept_with_its_ending(fault: str) -> None:
    """Once the run's end is durable so is what it took in: a crash after that cannot bring the message back."""

    async def main() -> None:
        store, agent = Shaky(), Listener()
        async with open_control(agent, store=store) as control:
            sent = await control.send("s", "work")
            await told(control, sent.run_id, EventKind.DELTA)
            steer = await control.send("s", "more", strategy="steer")
            store.next_fault = fault
            await agent.checks()
            await turns(5)
            store.mend()
            agent.finish()
            assert (await control.wait(sent.run_id)).durable
            row = await store.run(steer.run_id)
            assert row is not None and row.alias == sent.run_id

    seeded(main, range(4))


def test_a_steers_key() -> None:
    """The same key gets the same answer while it waits, once it was taken, and from the next control; nobody twice."""

    async def main() -> None:
        store, agent = MemoryStore(), Listener("work")
        async with open_control(agent, store=store) as control:
            sent = await control.send("s", "work")
            await told(control, sent.run_id, EventKind.DELTA)
            first, again = await at_once(
                *(control.send("s", "more", strategy="steer", key="k", by="local") for _ in range(2))
            )
            assert first == again
            await agent.checks()
            assert (await control.send("s", "more", strategy="steer", key="k")).run_id == first.run_id
            with pytest.raises(KeyConflict):
                await control.send("s", "other", strategy="steer", key="k")
            agent.finish()
            await control.wait(sent.run_id, drained=True)
            await gone(control)
            assert (await control.send("s", "more", strategy="steer", key="k")).run_id == first.run_id
        async with open_control(agent, store=store) as control:
            late = await control.send("s", "more", strategy="steer", key="k")
            assert late.run_id == first.run_id
            assert (await control.wait(late.run_id)).run_id == sent.run_id
        assert agent.seen == ["work", "more"]

    seeded(main)


def test_a_stop_by_key_ends_the_run_that_took_it() -> None:
    """The key of a taken steer names the run that took it."""

    async def main() -> None:
        agent = Listener()
        async with open_control(agent) as control:
            sent = await control.send("s", "work")
            await told(control, sent.run_id, EventKind.DELTA)
            await control.send("s", "more", strategy="steer", key="k")
            await agent.checks()
            receipt = await control.stop(message="k")
            assert receipt.aborted and [run.id for run in receipt.runs] == [sent.run_id]

    seeded(main)


def test_a_waiting_steer_can_be_stopped_alone() -> None:
    """A stop by the waiting steer's id ends it and not the run; it is not taken afterwards."""

    async def main() -> None:
        agent = Listener()
        async with open_control(agent) as control:
            sent = await control.send("s", "work")
            await told(control, sent.run_id, EventKind.DELTA)
            steer = await control.send("s", "more", strategy="steer")
            receipt = await control.stop(run=steer.run_id)
            assert [run.id for run in receipt.runs] == [steer.run_id]
            await agent.checks()
            agent.finish()
            assert (await control.wait(sent.run_id)).ending is Ending.COMPLETED
            assert agent.seen == ["work"]

    seeded(main)


def test_closing_keeps_a_waiting_steer() -> None:
    """A shutdown ends the run and keeps what waits, like any queued message."""

    async def main() -> None:
        store, agent = MemoryStore(), Listener()
        async with open_control(agent, store=store) as control:
            sent = await control.send("s", "work")
            await told(control, sent.run_id, EventKind.DELTA)
            steer = await control.send("s", "more", strategy="steer")
            waiting = asyncio.create_task(control.wait(steer.run_id))
            await turns(3)
        assert (await waiting).ending is Ending.PENDING
        row = await store.run(steer.run_id)
        assert row is not None and (row.outcome, row.alias, row.started) == (None, None, False)
        assert agent.seen == ["work"]

    seeded(main)


# Collect


def collecting(agent: Any, **options: Any) -> Any:
    """A control that collects."""
    settings = Settings(collect_seconds=QUIET, queue=options.pop("queue", 100))
    return open_control(agent, strategy="collect", settings=settings, **options)


class Notes:
    """An agent that writes down what it was given, and when."""

    def __init__(self, *waits: str) -> None:
        self.waits = waits  # whoever begins with one of these waits to be let go
        self.messages: list[Message] = []
        self.at: list[float] = []
        self.go = asyncio.Event()

    @property
    def texts(self) -> list[str]:
        """What each turn was told."""
        return [message.text for message in self.messages]

    async def __call__(self, run: Run, message: Message) -> str:
        self.messages.append(message)
        self.at.append(now())
        if message.text.startswith(self.waits or ("\0",)):
            await self.go.wait()
        return "done"


def test_collected_messages_are_one_turn() -> None:
    """All merged sends return one run id; the agent is told one text and the parts in order."""

    async def main() -> None:
        agent = Notes()
        async with collecting(agent) as control:
            sent = [await control.send("s", text) for text in ("a", "b", "c")]
            assert [(each.run_id, each.state, each.generation) for each in sent] == [
                (sent[0].run_id, "queued", None)
            ] * 3
            assert (await control.wait(sent[2].run_id)).text == "done"
            [message] = agent.messages
            assert (message.text, message.run_id) == ("a\n\nb\n\nc", sent[0].run_id)
            assert message.parts == tuple(Part(text=text, by="local") for text in "abc")
            assert [(entry.role, entry.text) for entry in await control.history("s")] == [
                ("user", "a"),
                ("user", "b"),
                ("user", "c"),
                ("assistant", "done"),
            ]

    seeded(main)


def test_messages_of_one_instant_are_one_turn() -> None:
    """Also where none of them is committed yet when the next one comes."""

    async def main() -> None:
        agent = Notes()
        async with collecting(agent) as control:
            sent = await at_once(*(control.send("s", str(n)) for n in range(20)))
            assert len({each.run_id for each in sent}) == 1
            await control.wait(sent[0].run_id)
            assert agent.texts == ["\n\n".join(map(str, range(20)))]

    seeded(main)


def test_authors_are_named_where_there_are_several() -> None:
    """Where the authors differ the one text says who said what."""

    async def main() -> None:
        agent = Notes()
        async with collecting(agent, admins=["root"]) as control:
            first = await control.send("s", "a", by="alice")
            second = await control.send("s", "b", by="root")
            assert first.run_id == second.run_id
            await control.wait(first.run_id)
            [message] = agent.messages
            assert (message.text, message.by) == ("alice: a\n\nroot: b", "alice")
            assert message.parts == (Part(text="a", by="alice"), Part(text="b", by="root"))
            assert [entry.by for entry in await control.history("s", by="alice")][:2] == ["alice", "root"]

    seeded(main)


def test_a_turn_begins_when_it_is_quiet() -> None:
    """Each message renews the quiet time; the turn begins when it has passed."""

    async def main() -> None:
        agent = Notes()
        async with collecting(agent) as control:
            for n in range(3):
                last = now()
                sent = await control.send("s", str(n))
                await asyncio.sleep(QUIET / 2)
            await control.wait(sent.run_id)
            assert agent.texts == ["0\n\n1\n\n2"]
            assert QUIET - SLACK <= agent.at[0] - last <= QUIET + SLACK

    seeded(main)


def test_the_longest_wait_is_bounded() -> None:
    """Whoever goes on talking does not put the turn off for ever."""

    async def main() -> None:
        agent = Notes()
        async with collecting(agent) as control:
            began = now()
            first = await control.send("s", "first")
            while not agent.at:
                await asyncio.sleep(QUIET / 2)
                await control.send("s", "more")
                assert now() - began < 10 * COLLECT_TIMES * QUIET
            assert abs(agent.at[0] - began - COLLECT_TIMES * QUIET) <= QUIET
            assert (await control.wait(first.run_id)).ending is Ending.COMPLETED
            assert agent.messages[0].parts[0].text == "first" and len(agent.messages[0].parts) > COLLECT_TIMES

    seeded(main, range(3))


def test_a_busy_session_collects() -> None:
    """While a run has the seat messages are collected behind it, and begin at once when it is free."""

    async def main() -> None:
        agent = Notes("long")
        async with collecting(agent) as control:
            long = await control.send("s", "long", strategy="interrupt")
            await started(control, long.run_id)
            sent = []
            for text in "abc":
                sent.append(await control.send("s", text))
                await asyncio.sleep(3 * QUIET)
            assert len({each.run_id for each in sent}) == 1 and agent.texts == ["long"]
            freed = now()
            agent.go.set()
            await control.wait(sent[0].run_id)
            assert agent.texts == ["long", "a\n\nb\n\nc"] and agent.at[1] - freed < SLACK

    seeded(main)


def test_the_quiet_time_goes_on_when_the_seat_is_free() -> None:
    """A message just sent when the run ends is given its quiet time all the same."""

    async def main() -> None:
        agent = Notes("long")
        async with collecting(agent) as control:
            long = await control.send("s", "long", strategy="interrupt")
            await started(control, long.run_id)
            first = await control.send("s", "a")
            agent.go.set()
            await control.wait(long.run_id)
            second = await control.send("s", "b")
            assert first.run_id == second.run_id
            await control.wait(first.run_id)
            assert agent.texts == ["long", "a\n\nb"]

    seeded(main)


@pytest.mark.parametrize("how", ["session", "run", "key", "reset"])
def test_a_stop_ends_what_is_collected_whole(how: str) -> None:
    """A stop while the messages are collected ends them as one; no part of them is ever dispatched."""

    async def main() -> None:
        agent = Notes()
        async with collecting(agent) as control:
            before = await control.send("s", "before", strategy="interrupt")
            await control.wait(before.run_id)
            sent = [await control.send("s", text, key=text) for text in "abc"]
            match how:
                case "session":
                    receipt = await control.stop(session="s")
                case "run":
                    receipt = await control.stop(run=sent[2].run_id)
                case "key":
                    receipt = await control.stop(message="b")
                case _:
                    receipt = await control.reset("s")
            assert [run.id for run in receipt.runs] == [sent[0].run_id]
            assert (await control.wait(sent[1].run_id)).ending is Ending.STOPPED
            await anyio.sleep(20)
            assert agent.texts == ["before"]

    seeded(main)


def test_an_interrupt_during_the_quiet_time_takes_over() -> None:
    """The dominant message ends what was being collected; that is told as superseded."""

    async def main() -> None:
        agent = Notes()
        async with collecting(agent) as control:
            sent = [await control.send("s", text) for text in "ab"]
            last = await control.send("s", "now", strategy="interrupt")
            assert last.state == "seated"
            outcome = await control.wait(sent[1].run_id)
            assert (outcome.ending, outcome.superseded_by) == (Ending.SUPERSEDED, last.run_id)
            await control.wait(last.run_id)
            await anyio.sleep(20)
            assert agent.texts == ["now"]

    seeded(main)


def test_authors_without_mutual_rights_are_not_merged() -> None:
    """Nobody's message becomes part of a turn that another could stop alone."""

    async def main() -> None:
        agent = Notes()
        async with collecting(agent) as control:
            alice = [await control.send("s", "a", by="alice")]
            await control.share("s", with_="bob")
            await control.share("s", with_="carol")
            bob = [await control.send("s", text, by="bob") for text in "xy"]
            alice.append(await control.send("s", "b", by="alice"))
            carol = await control.send("s", "c", by="carol")
            assert len({each.run_id for each in alice}) == len({each.run_id for each in bob}) == 1
            assert len({alice[0].run_id, bob[0].run_id, carol.run_id}) == 3
            await control.wait(carol.run_id)
            assert agent.texts == ["a\n\nb", "x\n\ny", "c"]
            bobs = await control.send("s", "z", by="bob")
            owners = await control.send("s", "d", by="alice")  # who may stop bob's, as bob may not stop this
            assert owners.run_id != bobs.run_id
            await control.wait(owners.run_id)
            assert agent.texts[3:] == ["z", "d"]

    seeded(main)


@pytest.mark.parametrize("fault", ["fail", "stall"])
def test_refused_text_is_not_in_the_turn(fault: str) -> None:
    """A message whose commit failed is refused and no part of the turn; those before and after it are."""

    async def main() -> None:
        store, agent = Shaky(), Notes()
        async with collecting(agent, store=store) as control:
            sent = [await control.send("s", "a")]
            store.next_fault = fault
            with pytest.raises(Unavailable, match="send it again"):
                await control.send("s", "refused", key="k")
            store.mend()
            sent.append(await control.send("s", "b"))
            sent.append(await control.send("s", "refused again", key="k"))
            assert len({each.run_id for each in sent}) == 1
            await control.wait(sent[0].run_id)
            assert agent.texts == ["a\n\nb\n\nrefused again"]

    seeded(main)


def test_text_whose_answer_was_lost_is_in_the_turn() -> None:
    """A commit whose answer was lost counts once the store says so; it is neither lost nor there twice."""

    async def main() -> None:
        store, agent = Shaky(), Notes()
        async with collecting(agent, store=store) as control:
            first = await control.send("s", "a")
            store.next_fault = "lose"
            second = await control.send("s", "b")
            store.mend()
            assert first.run_id == second.run_id
            await control.wait(first.run_id)
            assert agent.texts == ["a\n\nb"]

    seeded(main)


@pytest.mark.parametrize("fault", ["fail", "stall", "lose"])
def test_accepted_text_is_in_a_turn_and_refused_text_is_not(fault: str) -> None:
    """With trouble at any instant, the turns hold exactly the texts whose senders were told yes."""

    async def main() -> None:
        for late in range(6):
            store, agent = Shaky(), Notes()
            async with collecting(agent, store=store) as control:
                sending = [asyncio.create_task(_sent_or_refused(control, str(n))) for n in range(5)]
                await turns(late * 3)
                store.next_fault = fault
                await asyncio.sleep(0.3 * (late % 3))
                store.mend()
                sent = [await each for each in sending]
                outcomes = [None if each is None else await control.wait(each.run_id) for each in sent]
                await anyio.sleep(10)
                accepted = [
                    str(n)
                    for n, outcome in enumerate(outcomes)
                    if outcome is not None and outcome.started_at is not None
                ]
                given = [part.text for message in agent.messages for part in message.parts]
                assert sorted(given) == accepted
                failed = [each for each in outcomes if each is not None and each.ending is Ending.FAILED]
                assert all(each.error_kind is ErrorKind.STORE for each in failed)

    seeded(main, range(4))


@pytest.mark.parametrize("fault", [None, "fail", "stall", "lose"])
def test_a_stop_while_merging(fault: str | None) -> None:
    """A stop that meets a message being added ends it too: its sender is told, and nothing begins later."""

    async def main() -> None:
        for late in range(5):
            store, agent = Shaky(), Notes()
            async with collecting(agent, store=store) as control:
                first = await control.send("s", "a")
                store.next_fault = fault
                calls = _sent_or_refused(control, "b", key="k"), stop_and_mend(control, store, late)
                second, _ = await at_once(*calls)
                assert (await control.wait(first.run_id)).ending is Ending.STOPPED
                if second is not None:  # else it was refused before the stop
                    assert (await control.wait(second.run_id)).ending is Ending.STOPPED
                    again = await control.send("s", "b", key="k")
                    assert (await control.wait(again.run_id)).ending is Ending.STOPPED
                assert second is not None or fault == "fail"
                await anyio.sleep(10)
                assert agent.messages == []

    seeded(main, range(4))


def test_a_stop_by_id_while_merging() -> None:
    """It ends the message that is being added with the one it joins; one that comes later is a turn of its own."""
    ends: set[Ending] = set()

    async def main() -> None:
        for late in range(8):
            agent = Notes()
            async with collecting(agent, store=MemoryStore(latency_seconds=0.001)) as control:
                first = await control.send("s", "a")
                sending = asyncio.create_task(control.send("s", "b"))
                await asyncio.sleep(0.0003 * late)
                receipt = await control.stop(run=first.run_id)
                second = await sending
                outcome = await control.wait(second.run_id)
                assert receipt.aborted and (await control.wait(first.run_id)).ending is Ending.STOPPED
                assert agent.texts == (["b"] if outcome.ending is Ending.COMPLETED else [])
                ends.add(outcome.ending)

    seeded(main)
    assert ends == {Ending.STOPPED, Ending.COMPLETED}


async def stop_and_mend(control: Control, store: Shaky, late: int) -> None:
    """Stop a session a few turns later; then the store behaves again."""
    await turns(late)
    assert (await control.stop(session="s")).aborted
    store.mend()


def test_collected_keys() -> None:
    """Each of the merged keys is answered with the one run, in memory, later, and by the next control."""

    async def main() -> None:
        store, agent = MemoryStore(), Notes()
        async with collecting(agent, store=store) as control:
            sent = [await control.send("s", text, key=text) for text in "abb"]
            assert len({each.run_id for each in sent}) == 1
            with pytest.raises(KeyConflict):
                await control.send("s", "other", key="b")
            await control.wait(sent[0].run_id, drained=True)
            await gone(control)
            assert (await control.send("s", "b", key="b")).run_id == sent[0].run_id
        async with collecting(agent, store=store) as control:
            assert (await control.send("s", "b", key="b")).run_id == sent[0].run_id
        assert agent.texts == ["a\n\nb"]

    seeded(main)


def test_closing_while_collecting() -> None:
    """What is collected stays in the store's queue, whole; whoever waits is told that it is pending."""

    async def main() -> None:
        store, agent = MemoryStore(), Notes()
        async with collecting(agent, store=store) as control:
            sent = [await control.send("s", text) for text in "ab"]
            waiting = asyncio.create_task(control.wait(sent[1].run_id))
            await turns(3)
        assert (await waiting).ending is Ending.PENDING
        assert [(row.text, row.outcome, row.alias) for row in await store.runs("s")] == [
            ("a", None, None),
            ("b", None, sent[0].run_id),
        ]
        assert agent.messages == []

    seeded(main)


def test_closing_while_merging() -> None:
    """A sender whose message is being added when control closes is told the truth: in the store, or not taken."""

    async def main() -> None:
        for late in range(8):
            store = MemoryStore()
            async with collecting(Notes(), store=store) as control:
                await control.send("s", "a")
                sending = asyncio.create_task(_sent_or_refused(control, "b"))
                await turns(late)
            sent = await sending
            kept = [row.text for row in await store.runs("s")]
            assert kept == (["a"] if sent is None else ["a", "b"])

    seeded(main)


def test_one_turn_holds_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """COLLECTED messages may become one turn; the next one begins another."""
    monkeypatch.setattr("interlock.runtime.inbox.COLLECTED", 3)

    async def main() -> None:
        agent = Notes()
        async with collecting(agent) as control:
            sent = [await control.send("s", str(n)) for n in range(5)]
            assert len({each.run_id for each in sent[:3]}) == len({each.run_id for each in sent[3:]}) == 1
            await control.wait(sent[4].run_id)
            assert agent.texts == ["0\n\n1\n\n2", "3\n\n4"]

    seeded(main, range(3))


def test_a_full_queue_still_merges() -> None:
    """Room is counted in turns: what joins one that waits needs none, another author's does."""

    async def main() -> None:
        agent = Notes("long")
        async with collecting(agent, queue=1) as control:
            long = await control.send("s", "long", by="alice", strategy="interrupt")
            await started(control, long.run_id)
            sent = [await control.send("s", text, by="alice") for text in "abc"]
            assert len({each.run_id for each in sent}) == 1
            await control.share("s", with_="bob")
            with pytest.raises(QueueFull):
                await control.send("s", "x", by="bob")

    seeded(main)


def test_collected_before_an_earlier_end_was_told() -> None:
    """Messages collected while an earlier ending is not public yet can be stopped, and are told whole."""

    async def main() -> None:
        store = Shaky()
        async with collecting(idles, store=store) as control:
            long = await control.send("s", "long", strategy="interrupt")
            await started(control, long.run_id)
            store.next_fault = "lose"
            stopping = asyncio.create_task(control.stop(run=long.run_id))
            await turns(6)
            store.faults.lose = False
            sending = [asyncio.create_task(control.send("s", text)) for text in "ab"]
            await asyncio.sleep(0.1)
            assert not stopping.done()
            receipt = await control.stop(session="s")
            sent = [await each for each in sending]
            assert receipt.aborted and sent[0].run_id == sent[1].run_id
            with anyio.fail_after(10):
                assert (await control.wait(sent[0].run_id)).ending is Ending.STOPPED
            log = await log_of(control, "s")
            assert kinds(log, sent[0].run_id) == ["message", "message", "ended"]

    seeded(main, range(4))


def test_other_strategies_while_collecting() -> None:
    """A queued message waits behind what is collected; a rejecting one finds the session busy."""

    async def main() -> None:
        agent = Notes()
        async with collecting(agent) as control:
            first = await control.send("s", "a")
            with pytest.raises(Rejected):
                await control.send("s", "x", strategy="reject")
            queued = await control.send("s", "q", strategy="queue")
            second = await control.send("s", "b")
            third = await control.send("s", "c")
            assert second.run_id == third.run_id  # not the first: nothing is put before what its author said since
            assert len({first.run_id, queued.run_id, second.run_id}) == 3
            await control.wait(third.run_id)
            assert agent.texts == ["a", "q", "b\n\nc"]

    seeded(main)


# Rollback


async def lookup(what: str) -> str:
    """A tool."""
    return f"found {what}"


async def endless() -> None:
    """A tool that never returns."""
    await asyncio.sleep(3600)


class Doer:
    """An agent that calls tools by what it is told: `do` one that returns, `hang` one that does not."""

    def __init__(self) -> None:
        self.previous: dict[str, Outcome | None] = {}
        self.history: dict[str, list[tuple[str, str]]] = {}

    async def __call__(self, run: Run, message: Message) -> str:
        self.previous[message.text] = message.previous
        self.history[message.text] = [(entry.role, entry.text) for entry in await run.history()]
        if message.text.startswith("do"):
            await run.call(lookup, what="it")
            await run.say("so far")
            await asyncio.sleep(3600)
        if message.text.startswith("hang"):
            await run.call(endless)
        return "done"


async def tool_of(control: Control, run: str, state: str) -> None:
    """Wait until a tool call of a run stands so."""
    async with aclosing(control.watch(run=run)) as events:
        async for event in events:
            if event.kind is EventKind.TOOL and event.data.state == state:
                return


def test_a_rollback_hides_the_turn() -> None:
    """The old run ends superseded and hidden: gone from the model's context, marked for people, whole in the log."""

    async def main() -> None:
        agent = Doer()
        async with open_control(agent) as control:
            kept = await control.send("s", "hello")
            await control.wait(kept.run_id)
            old = await control.send("s", "do it")
            await told(control, old.run_id, EventKind.DELTA)
            log = await log_of(control, "s")
            new = await control.send("s", "rather this", strategy="rollback")
            assert new.superseded == old.run_id
            outcome = await control.wait(old.run_id)
            assert (outcome.ending, outcome.hidden, outcome.superseded_by) == (Ending.SUPERSEDED, True, new.run_id)
            assert outcome.text == "so far" and outcome.tools == ("lookup",)
            await control.wait(new.run_id)
            assert agent.history["rather this"] == [
                ("user", "hello"),
                ("assistant", "done"),
                ("user", "rather this"),
            ]
            entries = await control.history("s")
            assert {entry.run_id for entry in entries if entry.hidden} == {old.run_id}
            assert [entry.role for entry in entries if entry.hidden] == ["user", "call", "result", "assistant"]
            after = await log_of(control, "s")
            lasting = [event for event in log if event.kind is not EventKind.DELTA]
            assert [event for event in after if event in lasting] == lasting

    seeded(main)


def test_started_tools_are_named_to_the_next_turn() -> None:
    """Their effects remain: the next turn is told which tools began, over a chain of rollbacks too."""

    async def main() -> None:
        agent = Doer()
        async with open_control(agent, strategy="rollback") as control:
            first = await control.send("s", "do it")
            await told(control, first.run_id, EventKind.DELTA)
            second = await control.send("s", "hang on")
            await tool_of(control, second.run_id, "running")
            third = await control.send("s", "fine")
            await control.wait(third.run_id)
            fourth = await control.send("s", "next")
            await control.wait(fourth.run_id)
            told_of = {text: outcome and (outcome.hidden, outcome.tools) for text, outcome in agent.previous.items()}
            assert told_of == {
                "do it": None,
                "hang on": (True, ("lookup",)),
                "fine": (True, ("lookup", "endless")),
                "next": (False, ()),
            }

    seeded(main)


@pytest.mark.parametrize("between", ["rollback", "interrupt", "stop"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_started_tools_are_named_to_the_first_turn_that_begins(between: str, count: int) -> None:
    """Turns that never began were told nothing; whoever begins next is told."""

    async def main() -> None:
        agent = Doer()
        store = MemoryStore()
        async with open_control(agent, store=store) as control:
            first = await control.send("s", "do it")
            await told(control, first.run_id, EventKind.DELTA)
            store.latency_seconds = 0.05  # so that hardly anybody begins before the next one comes
            rolling = await control.send("s", "rolls back", strategy="rollback")
            assert rolling.superseded == first.run_id
            for _ in range(count):
                if between == "stop":
                    await control.stop(session="s")
                await control.send("s", "in vain", strategy=between if between != "stop" else None)
            store.latency_seconds = 0.0
            last = await control.send("s", "last")
            await control.wait(last.run_id)
            begun = next(text for text in agent.previous if text != "do it")
            previous = agent.previous[begun]
            assert previous is not None and previous.tools == ("lookup",)

    seeded(main)


def test_started_tools_are_named_after_a_restart() -> None:
    """The next control knows of the hidden turn's tools, and hides the turn."""

    async def main() -> None:
        store, agent = MemoryStore(), Doer()
        async with open_control(agent, store=store) as control:
            first = await control.send("s", "do it")
            await told(control, first.run_id, EventKind.DELTA)
            store.latency_seconds = 0.05
            second = await control.send("s", "rolls back", strategy="rollback")
            await control.stop(run=second.run_id)
            assert "rolls back" not in agent.previous
            store.latency_seconds = 0.0
        async with open_control(agent, store=store) as control:
            third = await control.send("s", "hello")
            await control.wait(third.run_id)
            previous = agent.previous["hello"]
            assert previous is not None and previous.tools == ("lookup",)
            assert ("user", "do it") not in agent.history["hello"]

    seeded(main, range(4))


def test_a_rollback_hides_what_was_steered_in() -> None:
    """A message that the hidden turn took in is hidden with it."""

    async def main() -> None:
        agent = Listener("work")
        async with open_control(agent) as control:
            await taken_in(agent, control, "more")
            new = await control.send("s", "again", strategy="rollback")
            await control.wait(new.run_id)
            shown = [(entry.text, entry.hidden) for entry in await control.history("s") if entry.role == "user"]
            assert shown == [("work", True), ("more", True), ("again", False)]

    seeded(main)


def test_a_rollback_of_an_idle_session_is_a_message() -> None:
    """What has ended is not undone."""

    async def main() -> None:
        async with open_control(echoes, strategy="rollback") as control:
            first = await control.send("s", "one")
            await control.wait(first.run_id)
            second = await control.send("s", "two")
            assert (second.state, second.superseded) == ("seated", None)
            await control.wait(second.run_id)
            assert not any(entry.hidden for entry in await control.history("s"))
            assert not (await control.wait(first.run_id)).hidden

    seeded(main)


def test_without_the_right_to_stop_a_rollback_queues() -> None:
    """A stranger hides nothing of another's."""

    async def main() -> None:
        async with open_control(mumbles) as control:
            first = await control.send("s", "one", by="alice")
            await started(control, first.run_id)
            await control.share("s", with_="bob")
            second = await control.send("s", "two", by="bob", strategy="rollback")
            assert (second.state, second.superseded) == ("queued", None)
            await control.stop(run=first.run_id, by="alice")
            outcome = await control.wait(first.run_id)
            assert (outcome.ending, outcome.hidden) == (Ending.STOPPED, False)
            await started(control, second.run_id)

    seeded(main)


# Who says which


@pytest.mark.parametrize(
    ("strategy", "state", "superseded"),
    [
        ("interrupt", "seated", True),
        ("rollback", "seated", True),
        ("steer", "queued", False),
        ("queue", "queued", False),
        ("collect", "queued", False),
    ],
)
@pytest.mark.parametrize("level", ["server", "session", "message"])
def test_the_server_the_session_and_the_message_say_a_strategy(
    level: str, strategy: str, state: str, superseded: bool
) -> None:
    """The message's own goes before its session's, and that before the server's."""

    async def main() -> None:
        async with open_control(idles, strategy=strategy if level == "server" else "reject") as control:
            first = await control.send("s", "one", strategy="interrupt")
            await started(control, first.run_id)
            if level == "session":
                await control.set_strategy("s", strategy)
            if level == "message":
                await control.set_strategy("s", "reject")
            second = await control.send("s", "two", strategy=strategy if level == "message" else None)
            assert (second.state, second.superseded) == (state, first.run_id if superseded else None)
            if level == "session":
                await control.set_strategy("s", None)
                with pytest.raises(Rejected):
                    await control.send("s", "three")

    seeded(main, range(2))


def test_a_sessions_strategy_is_kept() -> None:
    """It outlives memory and the control that was told; other sessions are not touched."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(echoes, store=store) as control:
            sent = await control.send("s", "one")
            await control.set_strategy("s", "reject")
            await control.wait(sent.run_id, drained=True)
            await gone(control)
        async with open_control(idles, store=store) as control:
            await control.send("s", "two")
            with pytest.raises(Rejected):
                await control.send("s", "three")
            first = await control.send("other", "one")
            assert (await control.send("other", "two")).superseded == first.run_id
            await control.stop(session="s")
            await gone_session(control, "s")
            await control.set_strategy("s", "queue")  # where nobody has it in memory
            await control.send("s", "four")
            assert (await control.send("s", "five")).state == "queued"

    seeded(main)


async def gone_session(control: Control, session: str) -> None:
    """Wait until nothing of a session is in memory."""
    while session in control._registry.sessions:
        await anyio.sleep(1)


def test_who_may_set_a_strategy() -> None:
    """The session's owner and admins; to others there is no such session. A wrong word is named."""

    async def main() -> None:
        async with open_control(idles, admins=["root"], readers=["rita"]) as control:
            await control.send("s", "one", by="alice")
            for by in ("alice", "root", "local"):
                await control.set_strategy("s", "queue", by=by)
            for by in ("bob", "rita"):
                with pytest.raises(Unknown):
                    await control.set_strategy("s", "reject", by=by)
            with pytest.raises(Unknown):
                await control.set_strategy("nowhere", "reject")
            with pytest.raises(BadInput, match="no strategy 'later'; use one of"):
                await control.set_strategy("s", "later", by="alice")
            assert (await control.send("s", "two", by="alice")).state == "queued"

    seeded(main, range(2))


def test_a_strategy_set_while_a_message_arrives_is_kept() -> None:
    """Once it was said to be kept it counts, whatever came in at the same time."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(idles, store=store) as control:
            sent = await control.send("s", "one")
            await control.stop(run=sent.run_id)
            await gone(control)
            store.latency_seconds = 0.02
            await at_once(control.set_strategy("s", "reject"), control.send("s", "two"))
            with pytest.raises(Rejected):
                await control.send("s", "three")
            row = await store.session("s")
            assert row is not None and row.strategy == "reject"

    seeded(main, range(4))


def test_a_strategy_that_could_not_be_kept_does_not_count() -> None:
    """The caller is told that nothing was kept, and that is so."""

    async def main() -> None:
        store = Shaky()
        async with open_control(idles, store=store) as control:
            first = await control.send("s", "one")
            await started(control, first.run_id)
            store.next_fault = "fail"
            with pytest.raises(Unavailable, match="nothing was kept, try again"):
                await control.set_strategy("s", "reject")
            store.mend()
            assert (await control.send("s", "two")).superseded == first.run_id

    seeded(main, range(2))
