"""Collect: messages that come while a turn waits become its parts, in order and under the shortest deadline."""

import asyncio
from typing import Any

import anyio
import pytest

from interlock import (
    Control,
    Ending,
    KeyConflict,
    MemoryStore,
    Message,
    Part,
    QueueFull,
    Rejected,
    Run,
    Settings,
    Unavailable,
    open_control,
)
from interlock.core.names import ErrorKind
from interlock.runtime.settings import COLLECT_TIMES

from .scene import (
    Shaky,
    answers,
    at_once,
    forgotten,
    gone,
    idles,
    kinds,
    log_of,
    now,
    seeded,
    sent_or_refused,
    started,
    turns,
)

SLACK = 0.1  # the virtual clock may run ahead by its horizon
QUIET = 0.5

pytestmark = pytest.mark.usefixtures("nothing_breaks")


async def texts_waiting(control: Control) -> list[str]:
    return [run.arrival.text for run in control._registry.sessions["s"].queue or ()]


def test_the_key_of_a_message_stopped_while_it_joins() -> None:
    """A message that is stopped while it joins a turn is no part of it, and its key finds it stopped, now and later."""

    async def main() -> None:
        store, turns = MemoryStore(latency_seconds=0.05), []

        async def agent(run: Run, message: Message) -> None:
            turns.append([part.text for part in message.parts])

        async with open_control(agent, store=store, strategy="collect") as control:
            first = await control.send("s", "one", by="alice", key="k1")
            joining = asyncio.create_task(control.send("s", "two", by="alice", key="k2"))
            while not any(run.ties.joining for run in control._registry.runs.values()):
                await asyncio.sleep(0.001)
            receipt = await control.stop(message="k2", by="alice")
            assert receipt.aborted
            own = (await joining).run_id
            assert [run.id for run in receipt.runs] == [own] != [first.run_id]
            assert (await control.send("s", "two", by="alice", key="k2")).run_id == own
            assert (await control.wait(first.run_id, drained=True)).ending is Ending.COMPLETED
            await forgotten(control)
            again = await control.send("s", "two", by="alice", key="k2")
            assert again.run_id == own
            assert (await control.wait(own, by="alice")).ending is Ending.STOPPED
            assert (await control.stop(message="k2", by="alice")).already is Ending.STOPPED
            assert turns == [["one"]]

    seeded(main, jump=0.0)


@pytest.mark.parametrize("deadlines", [(None, 0.5), (0.5, None), (60, 0.5), (0.5, 60)])
def test_a_collected_turn_obeys_its_shortest_deadline(deadlines: tuple[float | None, float | None]) -> None:
    """A collected turn has the shortest deadline of its parts, whichever part brings it."""

    async def main() -> None:
        async with open_control(idles) as control:
            first, second = [
                await control.send("s", f"m{n}", strategy="collect", deadline=each) for n, each in enumerate(deadlines)
            ]
            assert first.run_id == second.run_id
            outcome = await control.wait(second.run_id, timeout=10)
            assert (outcome.ending, outcome.limit_ms) == (Ending.TIMED_OUT, 500)

    seeded(main)


def test_collected_messages_pass_no_other_of_their_author() -> None:
    """A message that joins a turn never overtakes another of its own author, but may overtake those of others."""

    async def main() -> None:
        turns: list[list[str]] = []

        async def agent(run: Run, message: Message) -> None:
            turns.append([part.text for part in message.parts])
            await answers(run, message)

        async with open_control(agent, admins=["root"]) as control:
            await control.send("s", "wait", by="root")
            await control.share("s", with_="alice")
            for text, by, strategy in (
                ("a1", "alice", "collect"),
                ("a2", "alice", "queue"),
                ("a3", "alice", "collect"),
                ("b1", "root", "queue"),
                ("a4", "alice", "collect"),
            ):
                last = await control.send("s", text, by=by, strategy=strategy)
            assert await texts_waiting(control) == ["a1", "a2", "a3", "b1"]
            seated = control._registry.sessions["s"].seat
            assert seated is not None
            await control.stop(run=seated.id, by="root")
            await control.wait(last.run_id, by="root")
            await asyncio.sleep(10)
            assert turns == [["wait"], ["a1"], ["a2"], ["a3", "a4"], ["b1"]]

    seeded(main)


def collecting(agent: Any, **options: Any) -> Any:
    """Open a control that collects."""
    settings = Settings(collect_seconds=QUIET, queue=options.pop("queue", 100))
    return open_control(agent, strategy="collect", settings=settings, **options)


class Notes:
    """An agent that records its messages and the time of each."""

    def __init__(self, *waits: str) -> None:
        # A turn whose text begins with one of these waits for `go`.
        self.waits = waits
        self.messages: list[Message] = []
        self.at: list[float] = []
        self.go = asyncio.Event()

    @property
    def texts(self) -> list[str]:
        """Return the text of each turn."""
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
    """Messages of one instant become one turn, even if none is committed when the next one comes."""

    async def main() -> None:
        agent = Notes()
        async with collecting(agent) as control:
            sent = await at_once(*(control.send("s", str(n)) for n in range(20)))
            assert len({each.run_id for each in sent}) == 1
            await control.wait(sent[0].run_id)
            assert agent.texts == ["\n\n".join(map(str, range(20)))]

    seeded(main)


def test_authors_are_named_where_there_are_several() -> None:
    """The text of a turn with several authors names the author of each part."""

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
    """Each message renews the quiet time, and the turn begins when that time has passed."""

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
    """A sender who goes on writing cannot put the turn off for longer than COLLECT_TIMES quiet times."""

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
    """Messages to a busy session are collected while a run has the seat, and begin at once when it is free."""

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
    """A message sent just before the run ends still gets its quiet time."""

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
    """A stop of messages that are being collected ends them as one, and no part is ever dispatched."""

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
    """An interrupting message ends a turn that is being collected, which is told as superseded."""

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
    """A message never becomes part of a turn that somebody could stop who may not stop that message."""

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
            # The owner may stop bob's message, but bob may not stop the owner's.
            owners = await control.send("s", "d", by="alice")
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
    """A message whose commit was stored but whose answer was lost is in the turn exactly once."""

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
    """With a failing store at any instant, the turns hold exactly the texts whose sends were accepted."""

    async def main() -> None:
        for late in range(6):
            store, agent = Shaky(), Notes()
            async with collecting(agent, store=store) as control:
                sending = [asyncio.create_task(sent_or_refused(control, str(n))) for n in range(5)]
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
    """A stop that meets a message being merged ends it too: its sender is told, and no agent begins later."""

    async def main() -> None:
        for late in range(5):
            store, agent = Shaky(), Notes()
            async with collecting(agent, store=store) as control:
                first = await control.send("s", "a")
                store.next_fault = fault
                calls = sent_or_refused(control, "b", key="k"), stop_and_mend(control, store, late)
                second, _ = await at_once(*calls)
                assert (await control.wait(first.run_id)).ending is Ending.STOPPED
                # None means that the send was refused before the stop.
                if second is not None:
                    assert (await control.wait(second.run_id)).ending is Ending.STOPPED
                    again = await control.send("s", "b", key="k")
                    assert (await control.wait(again.run_id)).ending is Ending.STOPPED
                assert second is not None or fault == "fail"
                await anyio.sleep(10)
                assert agent.messages == []

    seeded(main, range(4))


def test_a_stop_by_id_while_merging() -> None:
    """A stop by id ends the message being merged with the one it joins; a message that comes later has its own turn."""
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
    """Stop the session after this many turns of the loop, then end the store's fault."""
    await turns(late)
    assert (await control.stop(session="s")).aborted
    store.mend()


def test_collected_keys() -> None:
    """Each of the merged keys finds the one run: in memory, after control has forgotten it, and on the next control."""

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
    """A close leaves collected messages in the store's queue, all of them, and waiters are told `pending`."""

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
    """A sender whose message is being merged when control closes is told the truth: stored, or refused."""

    async def main() -> None:
        for late in range(8):
            store = MemoryStore()
            async with collecting(Notes(), store=store) as control:
                await control.send("s", "a")
                sending = asyncio.create_task(sent_or_refused(control, "b"))
                await turns(late)
            sent = await sending
            kept = [row.text for row in await store.runs("s")]
            assert kept == (["a"] if sent is None else ["a", "b"])

    seeded(main)


def test_one_turn_holds_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most COLLECTED messages become one turn; the next message begins another."""
    monkeypatch.setattr("interlock.runtime.collecting.COLLECTED", 3)

    async def main() -> None:
        agent = Notes()
        async with collecting(agent) as control:
            sent = [await control.send("s", str(n)) for n in range(5)]
            assert len({each.run_id for each in sent[:3]}) == len({each.run_id for each in sent[3:]}) == 1
            await control.wait(sent[4].run_id)
            assert agent.texts == ["0\n\n1\n\n2", "3\n\n4"]

    seeded(main, range(3))


def test_a_full_queue_still_merges() -> None:
    """A message that joins a waiting turn needs no room in a full queue; another author's message does."""

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
    """Messages collected while an earlier ending is unpublished can be stopped, and their log is complete."""

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
    """A queued message waits until the collected turn is over; a rejecting one finds the session busy."""

    async def main() -> None:
        agent = Notes()
        async with collecting(agent) as control:
            first = await control.send("s", "a")
            with pytest.raises(Rejected):
                await control.send("s", "x", strategy="reject")
            queued = await control.send("s", "q", strategy="queue")
            second = await control.send("s", "b")
            third = await control.send("s", "c")
            # A message does not join the first turn, since that would put it before a message its author sent since.
            assert second.run_id == third.run_id
            assert len({first.run_id, queued.run_id, second.run_id}) == 3
            await control.wait(third.run_id)
            assert agent.texts == ["a", "q", "b\n\nc"]

    seeded(main)
