"""A verb of a caller: by a client in process beside control's own method, and over the wire beside a commit before.

1. Both sides of a ratio take turns, in rounds; a ratio is the median of the ratios of the rounds. Times are the
   processor's.
2. In process both sides ask the same control, with a store in memory, of a session with one run that has ended.
3. Over the wire the figure is the processor time of the server's loop for one request. Ours and the commit before
   (`--before`) are served from their own source trees; one connection sends one request after another.
"""

import asyncio
import contextlib
import statistics
import subprocess
from collections.abc import Awaitable, Callable
from time import process_time
from typing import Any

from bench.durable import directory
from bench.noops import FINAL
from bench.result import Result, absent
from bench.scale import Scale
from bench.served import Served, serve, tree_at
from bench.speakers import agent
from interlock import Control, open_control
from interlock.client import Client

BY = "alice"
CALLS, REQUESTS = 200, 40  # of one verb in one turn
CLIENT_GOAL, WIRE_GOAL = 1.1, 1.05
# By verb: the client's call, and control's own.
Both = tuple[Callable[[Client], Awaitable[Any]], Callable[[Control], Awaitable[Any]]]


def measure(scale: Scale) -> list[Result]:
    """Ask every verb by turns."""
    results = [asyncio.run(_in_process(scale.rounds(25, 5)))]
    name = f"loop time of a verb over the wire / {scale.before}"
    try:
        return [*results, _over_wires(name, scale)]
    except subprocess.CalledProcessError as error:
        return [*results, absent(name, f"git does not have it: {error}")]


# In process


async def _in_process(rounds: int) -> Result:
    async with open_control(agent) as control:
        run = (await control.send("s", "nothing", by=BY)).run_id
        await control.wait(run, drained=True, by=BY)
        verbs: dict[str, Both] = {
            "stop": (lambda client: client.stop(session="s"), lambda own: own.stop(session="s", by=BY)),
            "wait": (lambda client: client.wait(run), lambda own: own.wait(run, by=BY)),
            "find": (lambda client: client.find(run), lambda own: own.find(run, by=BY)),
            "runs": (lambda client: client.runs(), lambda own: own.runs(by=BY)),
            "questions": (lambda client: client.questions(), lambda own: own.questions(by=BY)),
            "receipt": (lambda client: client.receipt(run), lambda own: own.receipt(run, by=BY)),
            "send": (lambda client: client.send("s", "nothing"), lambda own: own.send("s", "nothing", by=BY)),
        }
        ratios: dict[str, float] = {}
        client = control.client(BY)
        for name, (through, bare) in verbs.items():
            found = []
            for number in range(rounds + 1):
                sides = [await _seconds(through, client), await _seconds(bare, control)]
                if number:  # the first round warms up
                    found.append(sides[0] / sides[1])
            ratios[name] = statistics.median(found)
    return _worst("a verb through control.client(by) / control's own", ratios, CLIENT_GOAL, f"{rounds} rounds")


async def _seconds(ask: Callable[[Any], Awaitable[Any]], asked: Any) -> float:
    began = process_time()
    for _ in range(CALLS):
        await ask(asked)
    return process_time() - began


# Over the wire


class _Side:
    """A server, a connection to it, and the loop's seconds for each verb, in each round."""

    def __init__(self, served: Served) -> None:
        self._served, self._wire = served, served.dial(quiet=True)
        self.seconds: dict[str, list[float]] = {}
        listener = served.dial()
        listener.ask("chat.send", sessionKey="s", message="nothing", idempotencyKey="first")
        told = listener.until(FINAL).decode(errors="replace")
        listener.close()
        self._run = told[told.index('"runId":"') + 9 :].partition('"')[0]
        self._keys = 0

    def params(self, verb: str) -> dict[str, Any]:
        """Return what a verb is asked with."""
        self._keys += 1
        key, run = f"k{self._keys}", self._run
        return {
            "send": {"session": "s", "text": "nothing", "key": key},
            "stop": {"session": "s", "key": key},
            "reset": {"session": "s", "key": key},
            "wait": {"run": run, "timeout": 1.0},
            "questions": {},
            "runs": {},
            "find": {"name": run},
            "sessions": {"limit": 10},
            "processes": {},
            "history": {"session": "s"},
            "strategy": {"session": "s", "strategy": "queue"},
            "share": {"session": "s", "with": "bob"},
            "unshare": {"session": "s", "with": "bob"},
            "wakes": {"session": "s"},
        }[verb]

    def take(self, verb: str, calls: int) -> None:
        """Ask a verb so often, one request after another."""
        began = self._served.cpu
        for _ in range(calls):
            self._wire.request(f"interlock.{verb}", **self.params(verb))
        self.seconds.setdefault(verb, []).append((self._served.cpu - began) / calls)

    @property
    def verbs(self) -> tuple[str, ...]:
        """The verbs that both sides have by these names."""
        looks = ("wait", "questions", "runs", "find", "sessions", "processes", "history", "wakes")
        return (*looks, "strategy", "share", "unshare", "stop", "reset", "send")


def _over_wires(name: str, scale: Scale) -> Result:
    tree = tree_at(scale.before)
    rounds = scale.rounds(25, 5)
    with contextlib.ExitStack() as stack:
        data = [stack.enter_context(directory()) for _ in range(2)]
        ours = _Side(stack.enter_context(serve("inline", data[0])))
        before = _Side(stack.enter_context(serve("inline", data[1], tree=tree)))
        for verb in ours.verbs:
            for _ in range(rounds + 1):
                for side in (ours, before):
                    side.take(verb, REQUESTS)
    ratios, small = {}, []
    for verb in ours.verbs:
        mine, theirs = ours.seconds[verb][1:], before.seconds[verb][1:]  # the first round warms up
        ratios[verb] = statistics.median(one / other for one, other in zip(mine, theirs, strict=True))
        small.append(f"{verb} {statistics.median(mine) * 1e6:.0f} us ({statistics.median(theirs) * 1e6:.0f})")
    return _worst(name, ratios, WIRE_GOAL, f"{rounds} rounds of {REQUESTS}; ours (before): {', '.join(small)}")


def _worst(name: str, ratios: dict[str, float], goal: float, how: str) -> Result:
    """Return the highest ratio as the figure, and all of them below it."""
    each = ", ".join(f"{verb} {ratio:.2f}" for verb, ratio in ratios.items())
    return Result(name=f"{name}, the slowest", value=max(ratios.values()), goal=goal, small=(each, how))
