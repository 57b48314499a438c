"""A session that is not settled yet takes nothing new, and keeps no other session waiting."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from interlock import Control, Ending, Message, Run, Unavailable
from interlock.runtime import recovery
from interlock.stores.base import StoreFailed

from .lives import Place, until
from .scene import kinds, log_of, raises, started


class SlowLog:
    """Reads of one session's log wait until `go`, and fail then if `fails`."""

    def __init__(self, session: str, *, fails: bool = False) -> None:
        self.session, self.fails = session, fails
        self.go: asyncio.Event | None = None

    def __call__(self, store: Any) -> None:
        real, self.go = store.events, asyncio.Event()

        async def events(session: str, **named: Any) -> Any:
            if session == self.session and not self.go.is_set():
                await self.go.wait()
                if self.fails:
                    raise StoreFailed("the log cannot be read")
            return await real(session, **named)

        store.events = events


@pytest.fixture(autouse=True)
def _opened_at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(recovery, "START_SECONDS", 0.0)
    yield


@pytest.fixture(autouse=True)
def _clean(place: Place) -> Iterator[None]:
    yield
    if place.kind == "memory":
        vars(place._memory).pop("events", None)


def crashed(place: Place) -> dict[str, tuple[str, str]]:
    """Play a life that dies with a run that had begun and a message that waits, in two sessions."""

    async def idle(run: Run, message: Message) -> None:
        await asyncio.Event().wait()

    async def scene(control: Control) -> None:
        runs = {}
        for session in ("slow", "quick"):
            lost = await control.send(session, "running", key=f"{session} 1")
            await started(control, lost.run_id)
            waits = await control.send(session, "waits", strategy="queue", key=f"{session} 2")
            runs[session] = lost.run_id, waits.run_id
        place.die(runs)

    runs: dict[str, tuple[str, str]] = place.killed(scene, idle)
    return runs


class Says:
    """An agent that notes the messages it was given."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    async def __call__(self, run: Run, message: Message) -> str:
        self.heard.append(f"{message.session}: {message.text}")
        return message.text


def test_other_sessions_go_on_while_one_is_not_settled(place: Place) -> None:
    """Of the other sessions all is settled and runs; the message of the slow one waits for the end of its lost run."""
    runs, slow, agent = crashed(place), SlowLog("slow"), Says()

    async def after(control: Control) -> None:
        assert (await control.wait(runs["quick"][0])).ending is Ending.LOST
        assert (await control.wait(runs["quick"][1])).text == "waits"
        sent = await control.send("quick", "new")
        assert (await control.wait(sent.run_id)).text == "new"
        new = asyncio.create_task(control.send("slow", "new", strategy="queue"))
        waiting = asyncio.create_task(control.wait(runs["slow"][0]))
        listed = asyncio.create_task(control.runs())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not new.done() and not waiting.done() and not listed.done()
        assert agent.heard == ["quick: waits", "quick: new"]
        assert slow.go is not None
        slow.go.set()
        assert (await waiting).ending is Ending.LOST
        assert not [info for info in await listed if info.id == runs["slow"][0] and info.outcome is None]
        assert (await control.wait((await new).run_id)).text == "new"
        assert agent.heard[2:] == ["slow: waits", "slow: new"]
        log = await log_of(control, "slow")
        assert kinds(log).index("gap") < kinds(log).index("ended")
        assert not control._registry.recovering

    place.life(after, agent, before=slow)
    assert place.look(lambda store: store.unsettled()) == ()


def test_nobody_needs_to_ask_for_a_session_to_be_settled(place: Place) -> None:
    """Messages that waited run after the start, although no verb names their session."""
    crashed(place)
    agent = Says()

    async def after(control: Control) -> None:
        await until(lambda: sorted(agent.heard) == ["quick: waits", "slow: waits"])

    place.life(after, agent)


@pytest.mark.parametrize("what", ["session", "run", "message", "all", "reset"])
def test_a_stop_reaches_what_is_not_settled(place: Place, what: str) -> None:
    """A stop of a session that is not settled ends what waits there when it is settled, and spares a later message."""
    runs, slow, agent = crashed(place), SlowLog("slow"), Says()

    async def after(control: Control) -> None:
        before = asyncio.create_task(control.send("slow", "before", strategy="queue"))
        await until(lambda: control._registry.sessions.get("slow") is not None)
        stop = {
            "session": lambda: control.stop(session="slow"),
            "run": lambda: control.stop(run=runs["slow"][1]),
            "message": lambda: control.stop(message="slow 2"),
            "all": lambda: control.client().stop_all(),
            "reset": lambda: control.reset("slow"),
        }[what]
        stopped = asyncio.ensure_future(stop())
        await asyncio.sleep(0)
        later = asyncio.create_task(control.send("slow", "later", strategy="queue"))
        await asyncio.sleep(0)
        assert slow.go is not None and "slow: waits" not in agent.heard
        slow.go.set()
        await stopped
        assert (await control.wait(runs["slow"][1])).ending is Ending.STOPPED
        assert (await control.wait(runs["slow"][0])).ending is Ending.LOST
        assert (await control.wait((await later).run_id)).text == "later"
        ended = (await control.wait((await before).run_id)).ending
        assert ended is (Ending.COMPLETED if what in ("run", "message") else Ending.STOPPED)
        assert "slow: waits" not in agent.heard

    place.life(after, agent, before=slow)


@pytest.mark.parametrize("what", ["session", "run", "message", "all", "of"])
def test_a_stop_waits_for_no_other_session(place: Place, what: str) -> None:
    """A stop is decided in each session before anything of it begins, although another one is not settled yet."""
    runs, slow, never, agent = crashed(place), SlowLog("slow"), SlowLog("quick"), Says()

    def both(store: Any) -> None:
        slow(store)
        never(store)

    async def after(control: Control) -> None:
        assert slow.go is not None and never.go is not None
        stop = {
            "session": lambda: control.stop(session="slow"),
            "run": lambda: control.stop(run=runs["slow"][1]),
            "message": lambda: control.stop(message="slow 2"),
            "all": lambda: control.client().stop_all(),
            "of": lambda: control.client().stop_all(of="local"),
        }[what]
        stopped = asyncio.ensure_future(stop())
        await asyncio.sleep(0)
        slow.go.set()
        assert (await control.wait(runs["slow"][1])).ending is Ending.STOPPED
        assert set(control._registry.recovering) == {"quick"}
        never.go.set()
        await stopped
        ended = (await control.wait(runs["quick"][1])).ending
        assert ended is (Ending.STOPPED if what in ("all", "of") else Ending.COMPLETED)
        assert "slow: waits" not in agent.heard

    place.life(after, agent, before=both)


@pytest.mark.parametrize("what", ["session", "all"])
def test_nothing_begins_between_the_gate_and_the_stop(place: Place, what: str) -> None:
    """While a stop that waited for the gate reads, neither what waited there nor an arrival before it begins."""
    runs, slow, agent = crashed(place), SlowLog("slow"), Says()

    async def after(control: Control) -> None:
        assert slow.go is not None
        real, reads, go = control._store.load, [], asyncio.Event()

        async def load(session: Any, **named: Any) -> Any:
            if session == "slow" and "slow" not in control._registry.recovering:
                reads.append(session)
                await go.wait()
            return await real(session, **named)

        control._store.load = load  # type: ignore[method-assign]
        before = asyncio.create_task(control.send("slow", "before", strategy="queue"))
        await until(lambda: control._registry.sessions.get("slow") is not None)
        stopped = asyncio.ensure_future(
            control.stop(session="slow") if what == "session" else control.client().stop_all()
        )
        await asyncio.sleep(0)
        slow.go.set()
        await until(lambda: bool(reads))
        for _ in range(50):
            await asyncio.sleep(0.002)
        assert not [each for each in agent.heard if each.startswith("slow")]
        go.set()
        await stopped
        assert (await control.wait(runs["slow"][1])).ending is Ending.STOPPED
        assert (await control.wait((await before).run_id)).ending is Ending.STOPPED
        assert not [each for each in agent.heard if each.startswith("slow")]
        assert (await control.wait((await control.send("slow", "new")).run_id)).text == "new"
        del control._store.load  # type: ignore[attr-defined]

    place.life(after, agent, before=slow)


def test_a_stop_that_may_end_nothing_lets_the_waiting_message_begin(place: Place) -> None:
    """A stop by somebody else, which waited for the gate, does not keep the session from going on."""
    runs, slow, agent = crashed(place), SlowLog("slow"), Says()

    async def after(control: Control) -> None:
        assert slow.go is not None
        stopped = asyncio.ensure_future(control.stop(session="slow", by="mallory"))
        await asyncio.sleep(0)
        slow.go.set()
        assert not (await stopped).aborted
        assert (await control.wait(runs["slow"][1])).text == "waits"

    place.life(after, agent, before=slow)


def test_an_answer_waits_for_no_session_that_is_not_settled(place: Place) -> None:
    """A question of a run at work can be answered while another session is not settled."""
    crashed(place)
    slow = SlowLog("slow")

    async def asks(run: Run, message: Message) -> str:
        return str(await run.ask("go on?")) if message.text == "ask" else message.text

    async def after(control: Control) -> None:
        assert slow.go is not None
        sent = await control.send("quick", "ask")
        await until(lambda: bool(control._registry.questions))
        [question] = control._registry.questions
        await control.answer(question, True)
        assert (await control.wait(sent.run_id)).text == "True"
        assert "slow" in control._registry.recovering
        slow.go.set()

    place.life(after, asks, before=slow)


def test_a_key_that_was_used_is_found_behind_the_gate(place: Place) -> None:
    """The second delivery of a message that waits behind the gate is the same message."""
    runs, slow, agent = crashed(place), SlowLog("slow"), Says()

    async def after(control: Control) -> None:
        again = asyncio.create_task(control.send("slow", "waits", strategy="queue", key="slow 2"))
        await until(lambda: control._registry.sessions.get("slow") is not None)
        assert slow.go is not None
        slow.go.set()
        assert (await again).run_id == runs["slow"][1]
        assert (await control.wait(runs["slow"][1])).text == "waits"
        await until(lambda: len(agent.heard) == 2)
        assert sorted(agent.heard) == ["quick: waits", "slow: waits"]

    place.life(after, agent, before=slow)


def test_a_close_before_a_session_is_settled_leaves_it_to_the_next_start(place: Place) -> None:
    """A close does not wait for a session that is not settled, whose sender is told, and the next start settles it."""
    runs, slow, agent = crashed(place), SlowLog("slow"), Says()

    async def closes(control: Control) -> None:
        await control.wait(runs["quick"][1])
        sending.append(asyncio.create_task(control.send("slow", "never")))
        await until(lambda: control._registry.sessions.get("slow") is not None)
        await control.close()
        with raises(Unavailable, "closing"):
            await sending[0]

    async def after(control: Control) -> None:
        assert (await control.wait(runs["slow"][0])).ending is Ending.LOST
        assert (await control.wait(runs["slow"][1])).text == "waits"
        assert "gap" in kinds(await log_of(control, "slow"))

    sending: list[Any] = []
    place.life(closes, agent, before=slow)
    _clean_hooks(place)
    place.life(after, agent)
    assert sorted(agent.heard) == ["quick: waits", "slow: waits"]


def test_a_session_that_cannot_be_settled_is_closed_and_no_other(place: Place) -> None:
    """A session whose log cannot be read takes nothing until the next start, which settles it."""
    runs, slow, agent = crashed(place), SlowLog("slow", fails=True), Says()

    async def after(control: Control) -> None:
        assert slow.go is not None
        slow.go.set()
        for asked in (control.send("slow", "no"), control.runs("slow"), control.history("slow")):
            with raises(Unavailable, "could not be settled"):
                await asked
        assert (await control.wait(runs["quick"][1])).text == "waits"
        assert (await control.wait((await control.send("quick", "new")).run_id)).text == "new"

    async def at_last(control: Control) -> None:
        assert (await control.wait(runs["slow"][0])).ending is Ending.LOST
        assert (await control.wait(runs["slow"][1])).text == "waits"

    place.life(after, agent, before=slow)
    _clean_hooks(place)
    place.life(at_last, agent)
    assert sorted(agent.heard) == ["quick: new", "quick: waits", "slow: waits"]


def _clean_hooks(place: Place) -> None:
    if place.kind == "memory":
        vars(place._memory).pop("events", None)
