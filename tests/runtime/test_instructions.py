"""A message may name, besides its text, the agent that answers it and instructions for that agent."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from interlock import Control, Ending, KeyConflict, Message, Run, Settings, open_control
from interlock.core.errors import BadInput
from interlock.core.values import INSTRUCTION_BYTES

from .lives import Place
from .scene import seeded, started

SETTINGS = Settings(collect_seconds=0.5)


class Told:
    """An agent that records its messages, and at `wait` waits for a steered message."""

    def __init__(self, name: str = "served") -> None:
        self.name = name
        self.messages: list[tuple[str, str | None]] = []

    async def __call__(self, run: Run, message: Message) -> str:
        self.messages.append((message.text, message.instructions))
        while message.text == "wait":
            for steered in await run.check():
                self.messages.append((steered.text, steered.instructions))
                message = steered
            await asyncio.sleep(0.01)
        return self.name


def test_the_named_agent_answers_with_its_instructions() -> None:
    """A message without an agent's name goes to the served agent; one with an unknown name is refused and not sent."""

    async def main() -> None:
        served, other = Told(), Told("other")
        async with open_control(served, agents={"other": other}) as control:
            assert control.agents == ("other",)
            for agent, text in ((None, "served"), ("other", "other")):
                sent = await control.send("s", f"to {text}", agent=agent, instructions=f"be {text}")
                assert (await control.wait(sent.run_id)).text == text
            assert (served.messages, other.messages) == ([("to served", "be served")], [("to other", "be other")])
            with pytest.raises(BadInput, match=r"no agent 'nobody' here; .* other$"):
                await control.send("t", "hello", agent="nobody")
            assert [info.agent for info in await control.runs("s")] == [None, "other"]
            assert [info.session.id for info in await control.sessions()] == ["s"]

    seeded(main)


@pytest.mark.parametrize("wrong", [3, b"bytes", " ", "x" * (INSTRUCTION_BYTES + 1), "half \ud83d"])
def test_instructions_are_text_of_a_reasonable_length(wrong: Any) -> None:
    """Instructions that are no valid text, blank or too long are refused by name."""

    async def main() -> None:
        async with open_control(Told()) as control:
            with pytest.raises(BadInput, match="instructions"):
                await control.send("s", "hello", instructions=wrong)

    seeded(main, seeds=[0])


def test_a_key_stands_for_all_that_was_sent_with_it() -> None:
    """A key is refused with the same text and other instructions or another agent: that is another message."""

    async def main() -> None:
        async with open_control(Told(), agents={"other": Told()}) as control:
            sent = await control.send("s", "hello", key="k", instructions="one")
            again = await control.send("s", "hello", key="k", instructions="one")
            assert again.run_id == sent.run_id
            for more in ({}, {"instructions": "two"}, {"instructions": "one", "agent": "other"}):
                with pytest.raises(KeyConflict):
                    await control.send("s", "hello", key="k", **more)

    seeded(main)


def test_messages_that_want_different_things_are_not_one_turn() -> None:
    """Only messages with the same agent and the same instructions are collected into one turn."""

    async def main() -> None:
        served, other = Told(), Told("other")
        async with open_control(served, agents={"other": other}, strategy="collect", settings=SETTINGS) as control:
            wants: list[dict[str, Any]] = [{"instructions": "one"}, {"instructions": "one"}, {}, {"agent": "other"}]
            sent = [await control.send("s", str(n), **want) for n, want in enumerate(wants)]
            assert len({each.run_id for each in sent}) == 3
            for each in sent:
                await control.wait(each.run_id)
            assert served.messages == [("0\n\n1", "one"), ("2", None)]
            assert other.messages == [("3", None)]

    seeded(main)


def test_a_run_takes_in_what_is_for_its_own_agent() -> None:
    """A run absorbs a steered message with its instructions; a message for another agent waits for the seat."""

    async def main() -> None:
        served, other = Told(), Told("other")
        async with open_control(served, agents={"other": other}, strategy="steer") as control:
            run = await control.send("s", "wait")
            await started(control, run.run_id)
            elsewhere = await control.send("s", "hello", agent="other")
            steered = await control.send("s", "go on", instructions="and quickly")
            assert (await control.wait(run.run_id)).text == "served"
            assert (await control.wait(elsewhere.run_id)).text == "other"
            assert (await control.wait(steered.run_id)).run_id == run.run_id
            assert served.messages == [("wait", None), ("go on", "and quickly")]
            assert other.messages == [("hello", None)]

    seeded(main)


@pytest.fixture(params=["memory", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Return a store of either kind."""
    return Place(request.param, tmp_path / "data")


async def _dies_with_one_waiting(place: Place, control: Control) -> None:
    begun = await control.send("s", "wait")
    await started(control, begun.run_id)
    sent = await control.send("s", "later", key="k", strategy="queue", agent="other", instructions="as was said")
    place.die(sent.run_id)


def test_a_message_that_waits_over_a_crash_keeps_agent_and_instructions(place: Place) -> None:
    """The next start runs a waiting message with its agent and instructions, and its key still stands for all of it."""

    async def after(control: Control) -> None:
        assert (await control.wait(waiting)).text == "other"
        assert other.messages == [("later", "as was said")]
        again = await control.send("s", "later", key="k", strategy="queue", agent="other", instructions="as was said")
        assert again.run_id == waiting
        with pytest.raises(KeyConflict):
            await control.send("s", "later", key="k", strategy="queue", agent="other", instructions="otherwise")

    other = Told("other")
    waiting = place.killed(lambda control: _dies_with_one_waiting(place, control), Told(), agents={"other": Told()})
    place.life(after, Told(), agents={"other": other})


def test_an_agent_that_the_next_start_does_not_know_fails_its_message(place: Place) -> None:
    """A message whose agent the next start does not know fails with that reason and is answered by no other agent."""

    async def after(control: Control) -> None:
        outcome = await control.wait(waiting)
        assert outcome.ending is Ending.FAILED
        assert "agent 'other' is not served any more" in (outcome.error or "")
        assert served.messages == []

    served = Told()
    waiting = place.killed(lambda control: _dies_with_one_waiting(place, control), Told(), agents={"other": Told()})
    place.life(after, served)
