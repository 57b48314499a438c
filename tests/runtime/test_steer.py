"""Steer: a message goes into the run that is at work, and every question about the message is answered by that run."""

import asyncio
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from interlock import Control, Ending, Event, KeyConflict, MemoryStore, Message, Outcome, Run, Sent, open_control
from interlock.agent.verbs import Check, Took
from interlock.core.names import ErrorKind, EventKind

from .scene import Shaky, answered, at_once, echoes, gone, seeded, sent_or_refused, started, told, turns

pytestmark = pytest.mark.usefixtures("nothing_breaks")


@pytest.mark.parametrize("slow", [0.0, 2.0])
def test_the_watcher_of_a_steered_message_is_told_the_end(slow: float) -> None:
    """A watcher of a steered message sees the end of the run that absorbed it, also when the watcher reads late."""

    async def agent(run: Run, message: Message) -> str:
        while not (taken := await run.check()):
            await asyncio.sleep(0.1)
        await run.post("a")
        await run.post("b")
        return "took " + taken[0].text

    async def main() -> None:
        async with open_control(agent) as control:
            first = await control.send("s", "one", by="alice")
            await asyncio.sleep(0.25)
            steered = await control.send("s", "two", by="alice", strategy="steer")
            seen: list[Event] = []

            async def watch() -> None:
                async for event in control.watch(run=steered.run_id, by="alice"):
                    seen.append(event)
                    await asyncio.sleep(slow)

            await answered(asyncio.create_task(watch()))
            assert (seen[-1].kind, seen[-1].run_id) == (EventKind.ENDED, first.run_id)
            assert [event.kind for event in seen].count(EventKind.ENDED) == 1

    seeded(main)


def test_a_message_that_the_agent_has_is_part_of_the_run_also_while_it_asks() -> None:
    """A message that was handed over when the run began to ask is absorbed, and has no turn of its own."""

    async def main() -> None:
        opened = asyncio.Event()

        async def agent(run: Run, message: Message) -> str:
            # What `run.check` does in a host, with a question of another task between its two messages.
            while not (taken := await run._port.ask(Check(1_000))):
                assert message.text == "one"
                await asyncio.sleep(0.1)
            asking = asyncio.create_task(run.ask("go on?"))
            await opened.wait()
            run._port.tell(Took(1_000))
            await asking
            return "took " + taken[0].text

        async with open_control(agent) as control:
            first = await control.send("s", "one")
            steered = await control.send("s", "two", strategy="steer")
            while not (questions := await control.questions()):
                await asyncio.sleep(0.1)
            opened.set()
            await asyncio.sleep(1)
            await control.answer(questions[0].id, True)
            assert (await control.wait(first.run_id)).text == "took two"
            assert (await control.wait(steered.run_id)).run_id == first.run_id

    seeded(main)


def test_a_tool_call_carries_what_was_steered_before_it() -> None:
    """A tool never begins under a message that the store does not know to be part of the run."""

    async def main() -> None:
        store, rows = MemoryStore(), []

        async def pays() -> None:
            rows.append(await store.run(steered.run_id))

        async def agent(run: Run, message: Message) -> None:
            await asyncio.sleep(0.2)
            store.faults.fail = True
            assert len(await run.check()) == 1
            # The alias is refused, and is tried again only later.
            await asyncio.sleep(0.01)
            store.faults.fail = False
            await run.call(pays)
            await asyncio.sleep(3600)

        async with open_control(agent, store=store) as control:
            first = await control.send("s", "one")
            steered = await control.send("s", "pay bob", strategy="steer")
            await asyncio.sleep(0.3)
            assert [row and row.alias for row in rows] == [first.run_id]

    seeded(main, jump=0.0)


class Listener:
    """An agent that works until it is let go, absorbs steered messages when told to, and writes down all it saw."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts  # the texts that wait to be let go; all, if none is given
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


async def events_of(control: Control, run: str) -> list[Event]:
    """Everything a watcher of a run is told, up to its end."""
    async with aclosing(control.watch(run=run)) as events:
        return [event async for event in events]


async def taken_in(agent: Listener, control: Control, *texts: str) -> tuple[Sent, list[Sent]]:
    """Begin a run and let it absorb steered messages."""
    sent = await control.send("s", "work")
    await told(control, sent.run_id, EventKind.DELTA)
    steers = [await control.send("s", text, strategy="steer") for text in texts]
    await agent.checks()
    return sent, steers


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
    """`check` returns the message whole and once; a waiter for it is answered by the run that absorbed it."""

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
    """Every verb answers for an absorbed message with the run that absorbed it, as long as anyone remembers it."""

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
    """A stop by the absorbed message's id ends the run it is part of, with one receipt."""

    async def main() -> None:
        agent = Listener()
        async with open_control(agent) as control:
            sent, [steer] = await taken_in(agent, control, "more")
            receipt = await control.stop(run=steer.run_id)
            assert receipt.aborted and [run.id for run in receipt.runs] == [sent.run_id]
            assert (await control.wait(steer.run_id)).ending is Ending.STOPPED

    seeded(main)


def test_a_watcher_of_a_steer_goes_over_to_the_run() -> None:
    """A watcher of a steered message, from before it was absorbed, is told the run's end too."""

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
    """A stranger's steer is never absorbed by a run it may not stop; it gets a turn of its own."""

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
    """A principal who stops their own run does not end a stranger's message, steered or not."""

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
    """A steer into an idle session is seated: there is no run to steer."""

    async def main() -> None:
        async with open_control(echoes, strategy="steer") as control:
            sent = await control.send("s", "hello")
            assert (sent.state, sent.generation) == ("seated", 1)
            assert (await control.wait(sent.run_id)).text == "hello"

    seeded(main)


def test_a_steer_stands_where_it_was_taken() -> None:
    """The transcript has a steered message at the place where it was absorbed, not where it was sent."""
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
    """A steer at any instant in the life of a run is given to an agent exactly once."""

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
                sending = asyncio.create_task(sent_or_refused(control, "a"))
                await asyncio.sleep(0.3 * (late % 4))
                store.mend()
                sent = await sending
                await control.wait(first.run_id)
                outcome = None if sent is None else await control.wait(sent.run_id)
                await anyio.sleep(10)
                answers.append("refused" if outcome is None else outcome.ending)
                seen_as_told(agent.seen, "a", outcome)
                assert agent.seen.count("first") <= 1

    seeded(main, range(6))
    # A store that loses its answers says in the end that the message is in.
    assert len(set(answers)) > 1 or fault == "lose"


def seen_as_told(seen: list[str], text: str, outcome: Outcome | None) -> None:
    """Check that an agent was given a text exactly as often as its sender was told."""
    if outcome is not None and outcome.ending is Ending.FAILED:
        assert outcome.error_kind is ErrorKind.STORE and outcome.started_at is None
    assert seen.count(text) == (outcome is not None and outcome.started_at is not None)


@pytest.mark.parametrize("fault", ["fail", "stall", "lose"])
def test_what_a_run_took_is_kept_with_its_ending(fault: str) -> None:
    """A message that a run absorbed is durable with the run's end: a crash after that cannot bring the message back."""

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
    """The same key gets the same answer while the message waits, once absorbed, and from the next control."""

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
    """A stop by the key of an absorbed steer ends the run that absorbed it."""

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
