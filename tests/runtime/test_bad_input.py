"""Bad input is refused with a clear error that names the remedy, and changes nothing."""

import asyncio
import functools
import math
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest

from interlock import BadInput, Control, Ending, MemoryStore, Unknown, open_control

from .scene import echoes, idles, seeded, started

LONG = "x" * (1024 * 1024 + 1)

CALLS: dict[str, tuple[Callable[[Control], Any], type[Exception], str]] = {
    "no text": (lambda c: c.send("s", ""), BadInput, "the message is empty; send some text"),
    "blank text": (lambda c: c.send("s", " \n\t"), BadInput, "the message is empty; send some text"),
    "bytes": (lambda c: c.send("s", b"hello"), BadInput, "the message is text, not bytes"),
    "long text": (lambda c: c.send("s", LONG), BadInput, "send a shorter one"),
    "half a pair": (lambda c: c.send("s", "half \ud800"), BadInput, "."),
    "no session": (lambda c: c.send("", "hello"), BadInput, "session must be a name of 1 to 512 characters"),
    "blank session": (lambda c: c.send("  ", "hello"), BadInput, "session must be a name"),
    "session no text": (lambda c: c.send(7, "hello"), BadInput, "session must be a name .* not 7"),
    "long session": (lambda c: c.send("s" * 513, "hello"), BadInput, "session must be a name"),
    "no sender": (lambda c: c.send("s", "hello", by=""), BadInput, "by must be a name"),
    "sender None": (lambda c: c.send("s", "hello", by=None), BadInput, "by must be a name"),
    "empty key": (lambda c: c.send("s", "hello", key=""), BadInput, "key must be a name"),
    "key no text": (lambda c: c.send("s", "hello", key=5), BadInput, "key must be a name"),
    "long key": (lambda c: c.send("s", "hello", key="k" * 513), BadInput, "key must be a name"),
    "strategy": (
        lambda c: c.send("s", "hello", strategy="barge"),
        BadInput,
        "no strategy 'barge'; use one of interrupt, queue, reject, steer, collect, rollback",
    ),
    "a child's session": (lambda c: c.send("run:r-1-1", "hello"), BadInput, "belongs to that run alone"),
    "order no pair": (
        lambda c: c.send("s", "hello", order=7),
        BadInput,
        "order= is .channel, the channel's own number",
    ),
    "order no number": (lambda c: c.send("s", "hello", order=("chat", "9")), BadInput, "order= is .channel"),
    "order nan": (lambda c: c.send("s", "hello", order=("chat", math.nan)), BadInput, "order= is .channel"),
    "order true": (lambda c: c.send("s", "hello", order=("chat", True)), BadInput, "order= is .channel"),
    "order no channel": (lambda c: c.send("s", "hello", order=("", 9)), BadInput, "the channel must be a name"),
    "deadline": (lambda c: c.send("s", "hello", deadline=-1), BadInput, "0 or more seconds from now"),
    "stop nothing": (lambda c: c.stop(), BadInput, "stop one thing: session=, run= or message="),
    "stop two": (lambda c: c.stop(session="s", run="r"), BadInput, "stop one thing"),
    "stop three": (lambda c: c.stop(session="s", run="r", message="k"), BadInput, "stop one thing"),
    "stop empty session": (lambda c: c.stop(session=""), BadInput, "session must be a name"),
    "stop empty run": (lambda c: c.stop(run=""), BadInput, "run must be a name"),
    "stop empty key": (lambda c: c.stop(session="s", key=""), BadInput, "key must be a name"),
    "stop empty message": (lambda c: c.stop(message=""), BadInput, "message must be a name"),
    "stop no caller": (lambda c: c.stop(session="s", by=""), BadInput, "by must be a name"),
    "stop a run in order": (lambda c: c.stop(run="r", order=("chat", 1)), BadInput, "the stop of a session"),
    "stop out of order": (lambda c: c.stop(session="s", order=("chat",)), BadInput, "order= is .channel"),
    "current None": (lambda c: c.is_current(None), BadInput, "run must be a name"),
    "current for nobody": (lambda c: c.is_current("r-1-1", by=""), BadInput, "by must be a name"),
    "wait nothing": (lambda c: c.wait(""), BadInput, "run must be a name"),
    "wait None": (lambda c: c.wait(None), BadInput, "run must be a name"),
    "wait negative": (lambda c: c.wait("r", timeout=-1), BadInput, "timeout must be 0 or more seconds"),
    "wait text": (lambda c: c.wait("r", timeout="soon"), BadInput, "timeout must be 0 or more seconds"),
    "wait no caller": (lambda c: c.wait("r", by=""), BadInput, "by must be a name"),
    "receipt of nothing": (lambda c: c.receipt("f-9-9"), Unknown, "no receipt .*found by their id or a run's"),
    "receipt empty": (lambda c: c.receipt(""), BadInput, "receipt must be a name"),
    "history": (lambda c: c.history("nowhere"), Unknown, "no session 'nowhere'.*begins with its first message"),
    "history empty": (lambda c: c.history(""), BadInput, "session must be a name"),
    "runs": (lambda c: c.runs("nowhere"), Unknown, "no session 'nowhere'"),
    "watch nothing": (lambda c: first(c.watch()), BadInput, "watch one thing: a session, or run="),
    "watch two": (lambda c: first(c.watch("s", run="r")), BadInput, "watch one thing"),
    "watch nowhere": (lambda c: first(c.watch("nowhere")), Unknown, "no session 'nowhere'"),
    "watch no run": (lambda c: first(c.watch(run="r-9-9")), Unknown, "no run 'r-9-9'.*`runs` lists them"),
    "answer nothing": (lambda c: c.answer("", True), BadInput, "question must be a name"),
    "answer None": (lambda c: c.answer(None, True), BadInput, "question must be a name"),
    "answer what is not": (lambda c: c.answer("q-9-9", True), Unknown, "no question 'q-9-9'.*watch the session"),
    "answer no caller": (lambda c: c.answer("q-9-9", True, by=""), BadInput, "by must be a name"),
    "timeline nothing": (lambda c: c.timeline(""), BadInput, "run must be a name"),
    "timeline": (lambda c: c.timeline("r-9-9"), Unknown, "no run 'r-9-9'.*`runs` lists them"),
    "timeline no caller": (lambda c: c.timeline("r-9-9", by=""), BadInput, "by must be a name"),
    "wake without a time": (lambda c: c.wake("s", "hello"), BadInput, "one schedule: at=, every= or cron="),
    "wake with two": (lambda c: c.wake("s", "x", every=60, cron="* * * * *"), BadInput, "one schedule"),
    "wake in the past": (lambda c: c.wake("s", "x", at=1.0), BadInput, "at= is a time to come, not 1.0"),
    "wake at nan": (lambda c: c.wake("s", "x", at=math.nan), BadInput, "at= is a time to come"),
    "wake at last": (lambda c: c.wake("s", "x", at=math.inf), BadInput, "at= is a time to come"),
    "wake at text": (lambda c: c.wake("s", "x", at="noon"), BadInput, "at= is a time to come"),
    "wake always": (lambda c: c.wake("s", "x", every=0), BadInput, "every= is 1.0 or more seconds, not 0"),
    "wake backwards": (lambda c: c.wake("s", "x", every=-60), BadInput, "every= is 1.0 or more seconds"),
    "wake every nan": (lambda c: c.wake("s", "x", every=math.nan), BadInput, "every= is 1.0 or more seconds"),
    "wake never": (lambda c: c.wake("s", "x", every=math.inf), BadInput, "every= is"),
    "wake every true": (lambda c: c.wake("s", "x", every=True), BadInput, "every= is"),
    "wake every text": (lambda c: c.wake("s", "x", every="day"), BadInput, "every= is"),
    "wake cron": (lambda c: c.wake("s", "x", cron="at noon"), BadInput, "is not a schedule.*an example"),
    "wake empty cron": (lambda c: c.wake("s", "x", cron=""), BadInput, "is not a schedule"),
    "wake cron number": (lambda c: c.wake("s", "x", cron=5), BadInput, "is not a schedule"),
    "wake cron never": (lambda c: c.wake("s", "x", cron="0 0 30 2 *"), BadInput, "is not a schedule"),
    "wake cron bad text": (lambda c: c.wake("s", "x", cron="\ud800"), BadInput, "is not a schedule"),
    "wake nothing": (lambda c: c.wake("s", " ", every=60), BadInput, "the message is empty"),
    "wake nobody": (lambda c: c.wake("nowhere", "x", every=60), Unknown, "no session 'nowhere'"),
    "wake no session": (lambda c: c.wake("", "x", every=60), BadInput, "session must be a name"),
    "wake no caller": (lambda c: c.wake("s", "x", every=60, by=""), BadInput, "by must be a name"),
    "unwake nothing": (lambda c: c.unwake(""), BadInput, "wake must be a name"),
    "unwake what is not": (lambda c: c.unwake("w-9-9"), Unknown, "no wake 'w-9-9'.*`wakes` lists them"),
    "wakes nowhere": (lambda c: c.wakes("nowhere"), Unknown, "no session 'nowhere'"),
    "reset nothing": (lambda c: c.reset(""), BadInput, "session must be a name"),
    "reset nowhere": (lambda c: c.reset("nowhere"), Unknown, "no session 'nowhere'.*begins with its first message"),
    "reset a stranger's": (lambda c: c.reset("s", by="mallory"), Unknown, "no session 's' for mallory"),
    "reset no caller": (lambda c: c.reset("s", by=""), BadInput, "by must be a name"),
    "set strategy nowhere": (lambda c: c.set_strategy("nowhere", "queue"), Unknown, "no session 'nowhere'"),
}


async def first(events: Any) -> Any:
    """Return the first event of a stream."""
    async with aclosing(events) as stream:
        return await anext(stream)


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_a_bad_call_changes_nothing(call: str, busy: bool) -> None:
    """A bad call is refused with its remedy; sessions, runs, generations, keys, log and store stay as they were."""
    make, error, words = CALLS[call]

    async def main() -> None:
        store = MemoryStore()
        async with open_control(idles, store=store) as control:
            sent = None
            if busy:
                sent = await control.send("s", "running")
                await started(control, sent.run_id)
            known = control._registry

            def picture() -> Any:
                return (
                    list(known.sessions),
                    list(known.runs),
                    list(known.keys),
                    known.generations.get("s"),
                    dict(store._runs),
                    dict(store._sessions),
                    store._tombstones,
                    dict(store._questions),
                    dict(store._wakes),
                    dict(store._marks),
                    dict(control._wakes._armed),
                    dict(known.questions),
                    [task for task in control._crew.tasks if not task.done()],
                    {name: list(log.lasting) for name, log in store._logs.items()},
                )

            before = picture()
            with pytest.raises(error, match=words):
                await make(control)
            await asyncio.sleep(0.001)  # a task of control's own that has answered ends
            assert picture() == before
            if sent is not None:
                assert (await control.wait(sent.run_id, timeout=0.1)).ending is Ending.PENDING

    seeded(main, range(1))


async def not_reached(*arguments: Any, **options: Any) -> None:
    """Fail if a control opens with these arguments."""
    async with open_control(*arguments, **options):
        raise AssertionError("it opened")


def plain(run: object, message: object) -> str:
    """Return an empty text; this function is not async, so it is no agent."""
    return ""


async def generates(run: object, message: object) -> Any:
    """Yield an empty text; an async generator is no agent."""
    yield ""


OPENINGS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "sync agent": ({"agent": plain}, BadInput, "an agent is one async callable"),
    "no agent": ({"agent": None}, BadInput, "async def agent"),
    "generator": ({"agent": generates}, BadInput, "an agent is one async callable"),
    "text": ({"agent": "assistant"}, BadInput, "an agent is one async callable"),
    "sync partial": ({"agent": functools.partial(plain)}, BadInput, "an agent is one async callable"),
    "sync child": ({"agent": echoes, "agents": {"other": plain}}, BadInput, "an agent is one async callable"),
    "a list of children": ({"agent": echoes, "agents": [echoes]}, BadInput, "agents= takes names and agents"),
    "nameless child": ({"agent": echoes, "agents": {"": echoes}}, BadInput, "an agent's name must be a name"),
    "approval": ({"agent": echoes, "approval": "always"}, BadInput, "approval= is 'never', 'ask' or a list of tools"),
    "no approval": ({"agent": echoes, "approval": 5}, BadInput, "approval= is 'never', 'ask' or a list of tools"),
    "store": ({"agent": echoes, "store": "redis://"}, BadInput, "no store 'redis://'; use memory://"),
    "strategy": (
        {"agent": echoes, "strategy": "barge"},
        BadInput,
        "use one of interrupt, queue, reject, steer, collect, rollback",
    ),
    "deadline": ({"agent": echoes, "deadline": -1}, BadInput, "deadline must be 0 or more"),
    "idle": ({"agent": echoes, "idle_limit": "long"}, BadInput, "idle_limit must be 0 or more"),
    "queue": ({"agent": echoes, "queue_limit": float("nan")}, BadInput, "queue_limit must be 0 or more"),
    "admins": ({"agent": echoes, "admins": "root"}, BadInput, "take a list of names, not one text"),
    "readers": ({"agent": echoes, "readers": "eve"}, BadInput, "take a list of names, not one text"),
}


@pytest.mark.parametrize("opening", OPENINGS)
def test_a_control_that_cannot_open(opening: str) -> None:
    """A wrong argument of `open_control` is refused with the remedy before the store is opened."""
    options, error, words = OPENINGS[opening]

    async def main() -> None:
        options_here = dict(options)
        store = MemoryStore()
        options_here.setdefault("store", store)
        with pytest.raises(error, match=words):
            await not_reached(options_here.pop("agent"), **options_here)
        assert await store.open() == 1

    seeded(main, range(1))


def test_a_strategy_that_is_none_does_not_count() -> None:
    """A session keeps its strategy when a wrong one is named, or when the caller may not set it."""

    async def main() -> None:
        async with open_control(idles) as control:
            sent = await control.send("s", "running")
            await control.set_strategy("s", "queue")
            with pytest.raises(BadInput, match="no strategy 'barge'"):
                await control.set_strategy("s", "barge")
            with pytest.raises(Unknown, match="no session 's' for mallory"):
                await control.set_strategy("s", "reject", by="mallory")
            assert (await control.send("s", "waits")).generation is None
            assert (await control.wait(sent.run_id, timeout=1)).ending is Ending.PENDING

    seeded(main, range(2))


def test_an_async_partial_is_an_agent() -> None:
    """A partial of an async function is accepted as an agent."""

    async def main() -> None:
        async with open_control(functools.partial(echoes)) as control:
            sent = await control.send("s", "hello")
            assert (await control.wait(sent.run_id)).text == "hello"

    seeded(main, range(1))


def test_names_may_be_anything_readable() -> None:
    """Names and texts in any script, with spaces and signs, are accepted unchanged."""

    async def main() -> None:
        async with open_control(echoes) as control:
            for name in ("#general", "ünï cødé", "会話", "a b?c=d", "💬", "x" * 512):
                sent = await control.send(name, name, by=name, key=name)
                assert (await control.wait(sent.run_id, by=name)).text == name
                assert (await control.history(name, by=name))[0].text == name

    seeded(main, range(1))
