"""What people type: over a client that only notes it, and over a control that carries it out."""

import asyncio
import warnings
from typing import Any

import anyio
import pytest

from interlock import Control, Ending, Message, Run, Unavailable, Unknown, open_control
from interlock.client import Client
from interlock.client.chat import Chat, Handled
from interlock.client.door import Asked
from interlock.core.verbs import Reset, Send, SessionName, Stop, Verb

S = SessionName("s")
CHAT = Chat(names=["Marvin"], stop_words=["basta così"])


class Noting:
    """A door that notes what is asked, and answers with what the test says."""

    def __init__(self, answer: object = None) -> None:
        self.asked: list[Verb[Any]] = []
        self.answer = answer

    def ask(self, verb: Verb[Any]) -> Asked[Any]:
        """Note a verb."""
        self.asked.append(verb)

        async def answer() -> Any:
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

        return Asked(answer)

    async def listen(self, *_: object, **__: object) -> None:
        """Give no events."""

    def is_current(self, run: str) -> bool:
        """Return False: there are no runs."""
        return False


def asked(text: str, **how: Any) -> Verb[Any]:
    """Return the one verb that a text asks, in the step that handles it; the answer is never awaited."""
    door = Noting()
    CHAT.handle(Client(door), "s", text, key="k", **how)
    (verb,) = door.asked
    return verb


STOP, RESET = Stop(session=S, key="k", typed=True), Reset(session=S, key="k")


@pytest.mark.parametrize(
    ("text", "how", "expected"),
    [
        ("stop", {}, STOP),
        ("STOP!", {}, STOP),
        ("stop Marvin", {}, STOP),
        ("/stop@marvin", {}, STOP),
        ("Basta così.", {}, STOP),
        ("@bot stop", {"mention": "@bot"}, STOP),
        ("@Bot, stop", {"mention": "@bot"}, STOP),
        ("stop", {"order": ("chat", 7)}, Stop(session=S, key="k", order=("chat", 7), typed=True)),
        ("/new", {}, RESET),
        ("/Reset", {}, RESET),
        ("@bot /new", {"mention": "@bot"}, RESET),
        ("@Bot /new", {"mention": "@bot"}, RESET),
        ("/new @bot", {"mention": "@bot"}, RESET),
        ("/new", {"mention": ""}, RESET),
        ("stop", {"mention": ""}, STOP),
    ],
)
def test_a_command(text: str, how: dict[str, Any], expected: Verb[Any]) -> None:
    """A stop word stops and `/new` begins anew, under the text's own key, by every name and mention of the agent."""
    assert asked(text, **how) == expected


@pytest.mark.parametrize(
    ("text", "how"),
    [
        ("do not stop", {}),
        ("stop Trillian", {}),
        ("@bot stop", {}),
        ("@bots stop", {"mention": "@bot"}),
        ("stop", {"forwarded": True}),
        ("/new", {"forwarded": True}),
        ("/new plan: buy bread", {}),
        ("@bot hello", {"mention": "@bot"}),
    ],
)
def test_a_message(text: str, how: dict[str, Any]) -> None:
    """Any other text, and a forwarded one whatever it says, is sent as it was typed."""
    assert asked(text, **how) == Send(session=S, text=text, key="k")


def test_what_a_message_carries() -> None:
    """The channel's order and the further fields of a message are passed on."""
    more = {"deadline": 3.0, "agent": "other", "instructions": "be brief", "kind": "agent"}
    assert asked("hello", order=("chat", 7.5), **more) == Send(
        session=S, text="hello", key="k", order=("chat", 7.5), deadline=3.0, agent="other", instructions="be brief",
        kind="agent",
    )  # fmt: skip


def test_answers_and_errors_are_passed_on() -> None:
    """A text's answer says what became of it; only a reset of an unknown session is no error."""

    async def main() -> None:
        async def handled(answer: object, text: str) -> Handled:
            return await CHAT.handle(Client(Noting(answer)), "s", text, key="k")

        answer: Any = object()
        assert await handled(answer, "hello") == Handled(sent=answer)
        assert await handled(answer, "stop") == Handled(receipt=answer)
        assert await handled(answer, "/new") == Handled(receipt=answer, reset=True)
        assert await handled(Unknown("none"), "/new") == Handled(reset=True)
        for text, error in (("hello", Unknown("none")), ("stop", Unknown("none")), ("/new", Unavailable("later"))):
            with pytest.raises(type(error)) as raised:
                await handled(error, text)
            assert raised.value is error

    asyncio.run(main())


# Over a control


async def agent(run: Run, message: Message) -> str:
    """Wait for ever, or reply."""
    if message.text == "wait":
        await anyio.sleep_forever()
    return message.text


def play(main: Any) -> None:
    """Run a test on a control; a warning, as of a coroutine that nobody awaited, is an error."""

    async def scene() -> None:
        async with asyncio.timeout(60), open_control(agent) as control:
            await main(control)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(scene())


async def sent(client: Client, text: str, key: str, **how: Any) -> str:
    """Type a message; return the id of its run."""
    handled = await CHAT.handle(client, "s", text, key=key, **how)
    assert handled.sent is not None
    return handled.sent.run_id


@pytest.mark.parametrize("word", ["stop", "/new"])
def test_a_command_counts_in_the_step_that_handles_it(word: str) -> None:
    """A typed stop or reset ends the run, and a message right before it, before anything is awaited."""

    async def main(control: Control) -> None:
        client = control.client("alice")
        run = await sent(client, "wait", "1")
        assert client.is_current(run)
        message = CHAT.handle(client, "s", "wait", key="2", strategy="queue")
        CHAT.handle(client, "s", word, key="3")
        assert not client.is_current(run)
        handled = await message
        assert handled.sent is not None
        for each in (run, handled.sent.run_id):
            assert (await client.wait(each)).ending is Ending.STOPPED

    play(main)


@pytest.mark.parametrize("word", ["stop", "/new"])
def test_a_command_that_comes_twice_ends_nothing_newer(word: str) -> None:
    """A second delivery under the same key gets the first receipt, and a run that began since goes on."""

    async def main(control: Control) -> None:
        client = control.client("alice")
        old = await sent(client, "wait", "1")
        first = await CHAT.handle(client, "s", word, key="2")
        assert first.receipt is not None and first.receipt.aborted and first.reset is (word == "/new")
        assert [run.id for run in first.receipt.runs] == [old]
        new = await sent(client, "wait", "3")
        again = await CHAT.handle(client, "s", word, key="2")
        assert again.receipt is not None and again.receipt.again and again.receipt.id == first.receipt.id
        assert client.is_current(new)
        assert await sent(client, "wait", "3") == new

    play(main)


def test_a_reset_of_a_session_that_nobody_wrote_in() -> None:
    """A reset finds nothing, founds nothing, and looks the same if the session is another's."""

    async def main(control: Control) -> None:
        theirs = await control.send("theirs", "wait", by="bob")
        for session in ("s", "theirs"):
            handled = await CHAT.handle(control.client("alice"), session, "/new", key=f"k-{session}")
            assert handled == Handled(reset=True)
        assert control.is_current(theirs.run_id, by="bob")
        assert await control.sessions(by="alice") == []

    play(main)


def test_a_stop_in_a_channel_means_what_was_written_before_it() -> None:
    """The channel's order is passed on: a message that was written before the stop and comes after it never runs."""

    async def main(control: Control) -> None:
        client = control.client("alice")
        await sent(client, "hello", "1", order=("chat", 1))
        await CHAT.handle(client, "s", "stop", key="3", order=("chat", 3))
        late, newer = (
            await sent(client, "late", "2", order=("chat", 2)),
            await sent(client, "new", "4", order=("chat", 4)),
        )
        assert (await client.wait(late)).ending is Ending.STOPPED
        assert (await client.wait(newer)).ending is Ending.COMPLETED

    play(main)


def test_a_verb_counts_although_its_answer_is_never_awaited() -> None:
    """Control takes a message and carries out a stop in the step that asks, and no coroutine is left unawaited."""

    async def main(control: Control) -> None:
        client = control.client("alice")
        client.ask(Send(session=S, text="wait", key="1"))
        control.ask(Stop(message="1"), by="alice")
        client.ask(Send(session=S, text="wait", key="2"))
        while (found := await client.find("2")) is None:
            await asyncio.sleep(0)
        assert client.is_current(found.id)
        control.ask(Stop(run=found.id), by="alice")
        assert not client.is_current(found.id)
        assert {(await client.wait(key)).ending for key in ("1", "2")} == {Ending.STOPPED}

    play(main)
