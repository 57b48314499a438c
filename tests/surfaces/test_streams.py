"""Around every ending, each stream of every kind tells one terminal event of a run, and nothing of it later."""

import asyncio
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from interlock import Message, Run
from interlock.core.names import Principal
from interlock.core.scopes import Scope
from interlock.core.verbs import Stop
from interlock.protocol import frames
from interlock.runtime.feed import Feed
from interlock.surfaces.gateway.connection import Connection
from interlock.surfaces.outbox import Outbox

from .protocol import TERMINAL_STATES
from .transport import QUIET, Serving, Wire, chat, in_loop

SESSIONS, TURNS = 8, 5
WATCHERS, SESSION_WATCHES, RUN_WATCHES = 14, 8, 33  # connections, and watches of each: 574 streams
TOLD_ALL = 13  # connections that are told everything, and as many that are told the outline: 26 streams


async def words(run: Run, message: Message) -> str:
    """Say and post a little, with typing."""
    await run.typing()
    for number in range(12):
        await run.say(f"{number} ")
        if number % 4 == 0:
            await run.post(f"block {number}")
        await asyncio.sleep(0.001)
    if message.text == "wait":
        await asyncio.sleep(600)
    return "done"


def endings(wire: Wire) -> Counter[tuple[Any, str]]:
    """Count the terminal events of each run, by stream."""
    found: Counter[tuple[Any, str]] = Counter()
    for event in wire.events:
        payload = event["payload"]
        if event["event"] == "chat" and payload["state"] in TERMINAL_STATES:
            found["chat", payload["runId"]] += 1
        elif event["event"] == "interlock.event" and (told := payload.get("event")) and told["data"]["type"] == "ended":
            found[payload["watch"], told["run_id"]] += 1
    return found


def test_six_hundred_streams_tell_one_end_of_each_run(tmp_path: Path) -> None:
    """Watches, run watches, broadcasts and outlines each tell one end per run, and nothing of it behind (race 100)."""
    random, runs = Random(3), list[tuple[str, str]]()

    async def turn(wire: Wire, session: str, number: int) -> None:
        ends = random.choice(("stop", "takeover", "completion"))
        text = "say" if ends == "completion" else "wait"
        run = (await chat(wire, text, f"{session} {number}", session))["runId"]
        runs.append((session, run))
        await asyncio.sleep(random.random() * 0.05)
        if ends == "stop":
            await wire.request("chat.abort", sessionKey=session, runId=run)
        elif ends == "completion":
            await wire.request("agent.wait", runId=run)

    async def watch(wire: Wire, names: list[str]) -> dict[int, tuple[str, str]]:
        """Watch sessions, and runs around their ends; return what each watch is of."""
        of: dict[int, tuple[str, str]] = {}
        for number in range(SESSION_WATCHES + RUN_WATCHES):
            of[number] = ("session", names[number]) if number < SESSION_WATCHES else ("run", random.choice(runs)[1])
            kind, name = of[number]
            await wire.request("interlock.watch", watch=number, **{kind: name})
            await asyncio.sleep(random.random() * 0.01)
        return of

    async def main(served: Serving) -> None:
        names = [f"s{number}" for number in range(SESSIONS)]
        async with await served.dial(caps=QUIET) as talker:
            told = [await served.dial() for _ in range(TOLD_ALL)]
            told += [await served.dial(caps=(frames.OUTLINE,)) for _ in range(TOLD_ALL)]
            watchers = [await served.dial(caps=QUIET) for _ in range(WATCHERS)]
            await asyncio.gather(*(turn(talker, name, -1) for name in names))

            async def talk(name: str) -> None:
                for number in range(TURNS):
                    await turn(talker, name, number)
                await talker.request("chat.abort", sessionKey=name)

            *of, _ = await asyncio.gather(
                *(watch(wire, names) for wire in watchers), asyncio.gather(*(talk(name) for name in names))
            )
            for wire, watches in zip(watchers, of, strict=True):
                wanted = {(number, run) for number, what in watches.items() for session, run in runs
                          if what in (("session", session), ("run", run))}  # fmt: skip
                await wire.until(lambda wire=wire, wanted=wanted: wanted <= set(endings(wire)), "every end")
            for wire in told:
                stream = 0 if wire in told[TOLD_ALL:] else "chat"
                wanted = {(stream, run) for _, run in runs}
                await wire.until(lambda wire=wire, wanted=wanted: wanted <= set(endings(wire)), "every end")
            # A frame behind everything that was told: nothing of an ended run may stand before it.
            for wire in (*watchers, *told):
                assert (await wire.request("health"))["ok"]
                assert set(endings(wire).values()) == {1}
                await wire.close()
        assert len({run for _, run in runs}) == SESSIONS * (TURNS + 1)

    in_loop(main, tmp_path, words)


def test_a_fall_does_nothing_for_connections_of_others(tmp_path: Path, monkeypatch: Any) -> None:
    """With a thousand connections of others a fall touches no outbox of theirs and asks no right."""
    count, touched = 1_000, list[str]()

    async def main(served: Serving) -> None:
        async def nothing(*_: Any) -> Any:
            raise AssertionError("these connections neither read nor write")

        others = []
        for number in range(count):
            other = Connection(served.gateway, "127.0.0.1", nothing, nothing)
            other.by, other.scopes = Principal(f"other {number}"), frozenset({Scope.WRITE})
            other.door = served.control.door(other.by)
            served.gateway.enter(other)
            other._everything = other._follow_all()
            others.append(other)
        try:
            async with await served.dial(caps=QUIET) as wire:
                run = (await chat(wire, "wait", "k"))["runId"]
                await wire.request("interlock.watch", watch=1, session="s")
                await wire.wait_for(lambda each: "caught_up" in each["payload"])
                mine = served.connection(wire).outbox
                with monkeypatch.context() as patch:
                    for owner, name in (
                        (Outbox, "put"),
                        (Outbox, "answer"),
                        (Outbox, "keep"),
                        (Outbox, "pop"),
                        (Feed, "sees"),
                    ):
                        note(patch, owner, name, touched, mine)
                    stop = served.control.ask(Stop(run=run), by=served.connection(wire).by)
                    assert touched == ["mine"], "the `fell` frame of the watcher, and nothing else"
                assert (await stop).aborted
        finally:
            for other in others:
                other._everything.close()
                served.gateway.leave(other)

    in_loop(main, tmp_path, words)


def note(patch: Any, owner: type, name: str, touched: list[str], mine: Outbox) -> None:
    """Note whose outbox a method is called on; the method does what it did."""
    method = getattr(owner, name)

    def call(self: Any, *given: Any, **named: Any) -> Any:
        touched.append("mine" if self is mine else name)
        return method(self, *given, **named)

    patch.setattr(owner, name, call)
