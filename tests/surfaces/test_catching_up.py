"""A watcher on the wire that is too slow reads on in the log: nothing twice, nothing missing, history marked."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from random import Random

import pytest

from interlock import Message, Run
from interlock.runtime import following
from interlock.runtime.feed import whole_log
from interlock.surfaces import outbox

from .protocol import Frame
from .transport import QUIET, Serving, Wire, chat, endings, in_loop

TRIALS = 24
AT_ONCE = 4
TURNS = 4


async def talks(run: Run, message: Message) -> str | None:
    """Say numbers and post blocks, as many as the message says, or until a stop."""
    for number in itertools.count() if message.text == "talk" else range(int(message.text)):
        await run.say(f"{number} {'x' * 300} ")
        if number % 7 == 0:
            await run.post(f"block {number}")
        await asyncio.sleep(0.0005)
    return None


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every buffer small, so that a short stall is enough to fall behind."""
    monkeypatch.setattr(outbox, "BUFFER_BYTES", 16 * 1024)
    monkeypatch.setattr(following, "WATCH_EVENTS", 4)
    monkeypatch.setattr(following, "PAGE_EVENTS", 16)


class Listener:
    """A quiet connection that watches one session, and every frame that it is sent, in order."""

    def __init__(self, served: Serving, wire: Wire, session: str) -> None:
        self.wire, self.session, self.frames = wire, session, list[Frame]()
        self.stops: list[tuple[str, str]] = []  # the stops that were answered, each with its run
        self.box = served.connection(wire).outbox
        read = wire.conversation.server

        def server(raw: str | bytes) -> Frame:
            self.frames.append(read(raw))
            return self.frames[-1]

        wire.conversation.server = server  # type: ignore[method-assign]

    @property
    def told(self) -> list[Frame]:
        """Return the payloads of the watch."""
        return [each["payload"] for each in self.frames if each.get("event") == "interlock.event"]

    @property
    def events(self) -> list[Frame]:
        """Return the events of the watch."""
        return [each["event"] for each in self.told if each.get("event")]

    async def fall_behind(self, most: float) -> None:
        """Read nothing until the outbox is full, or for some time."""
        self.wire.stall()
        end = asyncio.get_running_loop().time() + most
        while not self.box.full and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.001)


def check_marks(told: list[Frame]) -> int:
    """Assert that news follows `caught_up` and history is marked; return how often the watcher fell behind."""
    news, last, behind = False, 0, 0
    for each in told:
        if (caught_up := each.get("caught_up")) is not None:
            assert caught_up >= last
            news, last = True, caught_up
        elif each.get("event"):
            position = each["event"]["position"]
            assert position > last, "an event was told twice, or out of order"
            last = position
            if each.get("replay"):
                behind += news
                news = False
            else:
                assert news, "an event was told as news before `caught_up`"
    return behind


def check_text(events: list[Frame]) -> None:
    """Assert that no piece of text was told twice."""
    for run, of_run in itertools.groupby(events, key=lambda each: each["run_id"]):
        said = [each["data"]["text"].split() for each in of_run if each["data"]["type"] == "delta"]
        numbers = [int(word) for words in said for word in words if word.isdecimal()]
        assert numbers == sorted(set(numbers)), run


def check_ack(frames: list[Frame], ack: str, run: str) -> None:
    """Assert that nothing of a run is told as news behind the answer to its stop."""
    at = next(n for n, each in enumerate(frames) if each["type"] == "res" and each["id"] == ack)
    late = [each["payload"] for each in frames[at:] if each.get("event") == "interlock.event"]
    of_run = [each for each in late if each.get("event") and each["event"]["run_id"] == run]
    assert all(each.get("replay") for each in of_run), "an older event was told as news"


@pytest.mark.parametrize("store", ["memory://", "sqlite:///{}/store"])
def test_a_stalled_watcher_catches_up(store: str, tmp_path: Path) -> None:
    """Stalled watchers get each lasting event once, history marked, and no news of a run after its ack (race 142)."""
    behind: list[int] = []

    async def turn(listener: Listener, number: int, random: Random) -> None:
        wire, session = listener.wire, listener.session
        ends = random.choice(("stop", "takeover", "completion"))
        text = "60" if ends == "completion" else "talk"
        run = (await chat(wire, text, f"{session} {number}", session))["runId"]
        for _ in range(random.randrange(3)):
            await listener.fall_behind(random.choice((0.01, 0.1, 0.5)))
            if random.random() < 0.5:
                wire.resume()
                await asyncio.sleep(random.random() * 0.01)
        if ends == "stop":
            ack = await wire.ask("chat.abort", sessionKey=session)
            await asyncio.sleep(random.random() * 0.02)
            wire.resume()
            assert (await wire.answer(ack))["runIds"] == [run]
            listener.stops.append((ack, run))
        wire.resume()

    async def trial(served: Serving, seed: int) -> None:
        random, session = Random(seed), f"s{seed}"
        async with await served.dial(caps=QUIET) as wire:
            listener = Listener(served, wire, session)
            first = (await chat(wire, "10", f"{session} first", session))["runId"]
            await wire.request("interlock.watch", watch=1, session=session)
            for number in range(TURNS):
                await turn(listener, number, random)
            last = (await chat(wire, "3", f"{session} last", session))["runId"]
            await wire.until(lambda: any(each["run_id"] == last for each in listener.events if endings([each])))
            log = await whole_log(served.control.feed.log, f"{served.connection(wire).by}/{session}")
            until = listener.events[-1]["position"]
            lasting = [each.position for each in log if each.position <= until and each.kind.value != "delta"]
            events = listener.events
            assert [each["position"] for each in events if each["data"]["type"] != "delta"] == lasting
            assert first == events[0]["run_id"]
            check_text(events)
            behind.append(check_marks(listener.told))
            for ack, run in listener.stops:
                check_ack(listener.frames, ack, run)

    async def main(served: Serving) -> None:
        for begin in range(0, TRIALS, AT_ONCE):
            await asyncio.gather(*(trial(served, begin + at) for at in range(AT_ONCE)))
        assert sum(behind) > TRIALS / 2, "hardly a watcher fell behind"

    in_loop(main, tmp_path, talks, store=store.format(tmp_path))
