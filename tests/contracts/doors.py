"""The doors that must keep the contract, a house with things to ask about, and the table of every verb.

1. `open_house` serves a control in this loop. Alice has a run that ended, one that goes on, a question, a schedule
   and a share; bob has the same, and neither may see the other's.
2. `CASES` has a row for each verb: how it is asked in that house, with what it is refused, and how it names what is
   bob's. A verb without a wire method is asked in process only.
3. Two houses are built alike, so the same verb gives the same answer in both, but for times (`plain`).
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import msgspec

from client.scene import Road
from interlock import Control, InterlockError, MemoryStore, Message, Run, Settings, Unavailable
from interlock.client import Client, connect
from interlock.client.door import Asked, Door
from interlock.core import verbs
from interlock.core.scopes import Scope
from interlock.core.verbs import SessionName, Verb
from surfaces.transport import Serving, eventually, serving

BOUND_SECONDS = 30.0
SETTINGS = Settings(commit_seconds=0.1, grace_seconds=0.2, drain_seconds=1.0, retry_seconds=0.05)
ALICE, BOB, ADMIN = "alice", "bob", "root"


class Agent:
    """Does what a message says: hang, ask, post or stream a count of words, or reply."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def __call__(self, run: Run, message: Message) -> str | None:
        """Answer a message."""
        verb, _, count = message.text.partition(" ")
        if verb == "hang":
            await run.say("begun")
            await anyio.sleep_forever()
        if verb == "ask":
            await run.ask("May I?")
        if verb == "post":
            for number in range(int(count)):
                await run.post(f"{number}")
        # Stream when the test says so, then wait for ever.
        if verb == "talk":
            await self.go_on.wait()
            for number in range(int(count)):
                await run.say(f"{number} ")
                await asyncio.sleep(0.01)
            await anyio.sleep_forever()
        return message.text


class Things(NamedTuple):
    """What a principal has in a house, by name: it exists, or it never did."""

    owner: str
    done: str = "r-7-77"
    hangs: str = "r-7-78"
    question: str = "q-7-79"
    wake: str = "w-7-80"
    key: str = "never-sent"

    def at(self, name: str) -> SessionName:
        """Return the id of a session of this owner's."""
        return SessionName(f"{self.owner}/{name}")


NEVER = Things("nobody")


class House:
    """A served control, and the doors to it. `go_on` lets a run that talks begin to."""

    go_on: asyncio.Event

    def __init__(self, served: Serving, tokens: dict[str, str], store: MemoryStore, alice: Things, bob: Things) -> None:
        self.control: Control = served.control
        self.served, self.tokens, self.store, self.alice, self.bob = served, tokens, store, alice, bob

    @asynccontextmanager
    async def door(self, kind: str, by: str) -> AsyncIterator[Door]:
        """Open a door of a kind for a principal."""
        if kind == "inside":
            yield self.control.door(by)
        else:
            async with connect(self.served.url, self.tokens[by]) as client:
                yield client._socket

    async def state(self, of: str = ALICE) -> Any:
        """Return everything of a principal's that verbs change, without times."""
        look = self.control.client(of)
        names = [SessionName(f"{of}/{name}") for name in ("main", "busy", "asks")]
        runs, said = [await look.runs(name) for name in names], [await look.history(name) for name in names]
        return plain([runs, said, await look.sessions(), await look.wakes(names[0]), await look.questions()])

    async def settled(self) -> None:
        """Wait until all that ended is drained, and a message that waits for nobody has ended."""
        for run in await self.control.runs(latest=100):
            goes_on = run.text == "hang" or any(each.run_id == run.id for each in await self.control.questions())
            if run.state == "ended" or not goes_on:
                await self.control.wait(run.id, drained=True)


@asynccontextmanager
async def open_house(data: Path) -> AsyncIterator[House]:
    """Serve a control in which alice and bob have the same things."""
    store = MemoryStore()
    scopes = {ALICE: Scope.WRITE, BOB: Scope.WRITE, ADMIN: Scope.ADMIN}
    agent = Agent()
    async with serving(data, agent, store=store, settings=SETTINGS) as served:
        try:
            tokens = {name: await served.add(name, scope) for name, scope in scopes.items()}
            alice, bob = await furnish(served.control, ALICE), await furnish(served.control, BOB)
            house = House(served, tokens, store, alice, bob)
            house.go_on = agent.go_on
            yield house
        finally:
            store.resume()


async def furnish(control: Control, by: str) -> Things:
    """Give a principal what the table asks about."""
    client, things = control.client(by), Things(by, key=f"{by}-key")
    done = await client.send(things.at("main"), "hello", key=things.key)
    await client.wait(done.run_id, drained=True)
    wake = await client.wake(things.at("main"), "later", every=3600.0)
    await client.share(things.at("main"), with_="carol", may="read")
    hangs = await client.send(things.at("busy"), "hang")
    async for event in client.watch(run=hangs.run_id):
        if event.kind == "delta":
            break
    await client.send(things.at("asks"), "ask")
    async with asyncio.timeout(BOUND_SECONDS):
        while not (questions := await client.questions(things.at("asks"))):
            await asyncio.sleep(0)
    return things._replace(done=done.run_id, hangs=hangs.run_id, question=questions[0].id, wake=wake.id)


# Answers, as values that can be compared


def plain(value: Any) -> Any:
    """Return a value as plain data, with every time as 0.0."""
    return _timeless(msgspec.to_builtins(value, str_keys=True))


def _timeless(value: Any) -> Any:
    if isinstance(value, float):
        return 0.0
    if isinstance(value, dict):
        return {key: _timeless(each) for key, each in value.items()}
    return [_timeless(each) for each in value] if isinstance(value, list | tuple) else value


async def told(asking: Awaitable[Any]) -> tuple[str, Any]:
    """Return what a caller is told: the answer as plain data, or the error's class and words."""
    try:
        async with asyncio.timeout(BOUND_SECONDS):
            return "answer", plain(await asking)
    except InterlockError as error:
        # A wire has no word for the errors of stores.
        return "Unavailable" if isinstance(error, Unavailable) else type(error).__name__, str(error)


def unnamed(said: tuple[str, Any], things: Things) -> tuple[str, Any]:
    """Return what a caller was told without the names that it asked about itself."""
    names = "|".join(re.escape(name) for name in (*things[1:], f"{things.owner}/"))
    return said[0], msgspec.json.decode(re.sub(names, "X", msgspec.json.encode(said[1]).decode()))


# The table


class Case(NamedTuple):
    """How one verb is asked.

    fine: what alice asks about her things. bad: what is refused as BadInput; None if no value is wrong.
    another: what alice asks about what is not hers; None if the verb names nothing.
    method: the same as `fine` by the client's own method; None if the client has none. by: who asks.
    """

    fine: Callable[[Things], Verb[Any]]
    bad: Callable[[Things], Verb[Any]] | None
    another: Callable[[Things], Verb[Any]] | None
    method: Callable[[Client, Things], Awaitable[Any]] | None
    by: str = ALICE


NO_NAME = SessionName(" ")
V = verbs
CASES: dict[type[Verb[Any]], Case] = {
    V.Send: Case(
        lambda has: V.Send(session=has.at("main"), text="more", key="k", order=("c", 1)),
        lambda has: V.Send(session=has.at("main"), text=" "),
        lambda has: V.Send(session=has.at("main"), text="more"),
        lambda client, has: client.send(has.at("main"), "more", key="k", order=("c", 1)),
    ),
    V.Stop: Case(
        lambda has: V.Stop(session=has.at("busy"), key="k", order=("c", 1), typed=True),
        lambda has: V.Stop(session=has.at("busy"), run=has.hangs),
        lambda has: V.Stop(run=has.hangs),
        lambda client, has: client.stop(session=has.at("busy"), key="k", order=("c", 1), typed=True),
    ),
    V.Reset: Case(
        lambda has: V.Reset(session=has.at("busy"), key="k"),
        lambda has: V.Reset(session=NO_NAME),
        lambda has: V.Reset(session=has.at("busy")),
        lambda client, has: client.reset(has.at("busy"), key="k"),
    ),
    V.StopAll: Case(
        lambda has: V.StopAll(of=has.owner),
        None,  # a stop is never refused
        None,
        lambda client, has: client.stop_all(of=has.owner),
        by=ADMIN,
    ),
    V.Left: Case(
        lambda has: V.Left(session=has.at("busy")),
        lambda has: V.Left(session=NO_NAME),
        lambda has: V.Left(session=has.at("busy")),
        None,
    ),
    V.Answer: Case(
        lambda has: V.Answer(question=has.question, answer=True),
        lambda has: V.Answer(question=has.question, answer="perhaps"),
        lambda has: V.Answer(question=has.question, answer=True),
        lambda client, has: client.answer(has.question, True),
    ),
    V.Questions: Case(
        lambda has: V.Questions(session=has.at("asks")),
        lambda has: V.Questions(session=NO_NAME),
        lambda has: V.Questions(session=has.at("asks")),
        lambda client, has: client.questions(has.at("asks")),
    ),
    V.Wait: Case(
        lambda has: V.Wait(run=has.done, timeout=9.0, drained=True),
        lambda has: V.Wait(run=has.done, timeout=-1.0),
        lambda has: V.Wait(run=has.done),
        lambda client, has: client.wait(has.done, timeout=9.0, drained=True),
    ),
    V.GetReceipt: Case(
        lambda has: V.GetReceipt(of=has.done),
        lambda has: V.GetReceipt(of=" "),
        lambda has: V.GetReceipt(of=has.done),
        lambda client, has: client.receipt(has.done),
    ),
    V.Timeline: Case(
        lambda has: V.Timeline(run=has.done),
        lambda has: V.Timeline(run=" "),
        lambda has: V.Timeline(run=has.done),
        lambda client, has: client.timeline(has.done),
    ),
    V.History: Case(
        lambda has: V.History(session=has.at("main")),
        lambda has: V.History(session=NO_NAME),
        lambda has: V.History(session=has.at("main")),
        lambda client, has: client.history(has.at("main")),
    ),
    V.Runs: Case(
        lambda has: V.Runs(session=has.at("busy"), tree=True),
        lambda has: V.Runs(latest=-1),
        lambda has: V.Runs(session=has.at("busy")),
        lambda client, has: client.runs(has.at("busy"), tree=True),
    ),
    V.Find: Case(
        lambda has: V.Find(name=has.key),
        lambda has: V.Find(name=" "),
        lambda has: V.Find(name=has.done),
        lambda client, has: client.find(has.key),
    ),
    V.Sessions: Case(
        lambda has: V.Sessions(limit=9),
        lambda has: V.Sessions(limit=-1),
        None,
        lambda client, has: client.sessions(limit=9),
    ),
    V.Describe: Case(
        lambda has: V.Describe(session=has.at("main")),
        lambda has: V.Describe(session=NO_NAME),
        lambda has: V.Describe(session=has.at("main")),
        lambda client, has: client.session(has.at("main")),
    ),
    V.Processes: Case(
        lambda has: V.Processes(session=has.at("busy")),
        lambda has: V.Processes(session=NO_NAME),
        lambda has: V.Processes(session=has.at("busy")),
        lambda client, has: client.processes(has.at("busy")),
    ),
    V.SetStrategy: Case(
        lambda has: V.SetStrategy(session=has.at("busy"), strategy=verbs.Strategy.REJECT),
        lambda has: V.SetStrategy(session=has.at("busy"), strategy="hurry"),  # type: ignore[arg-type]
        lambda has: V.SetStrategy(session=has.at("busy"), strategy=None),
        lambda client, has: client.set_strategy(has.at("busy"), "reject"),
    ),
    V.Share: Case(
        lambda has: V.Share(session=has.at("main"), with_="dan", may=verbs.May.READ),
        lambda has: V.Share(session=has.at("main"), with_=" "),
        lambda has: V.Share(session=has.at("main"), with_="dan"),
        lambda client, has: client.share(has.at("main"), with_="dan", may="read"),
    ),
    V.Unshare: Case(
        lambda has: V.Unshare(session=has.at("main"), with_="carol"),
        lambda has: V.Unshare(session=has.at("main"), with_=" "),
        lambda has: V.Unshare(session=has.at("main"), with_="carol"),
        lambda client, has: client.unshare(has.at("main"), with_="carol"),
    ),
    V.Schedule: Case(
        lambda has: V.Schedule(session=has.at("main"), text="tick", every=7200.0),
        lambda has: V.Schedule(session=has.at("main"), text="tick"),
        lambda has: V.Schedule(session=has.at("main"), text="tick", every=7200.0),
        lambda client, has: client.wake(has.at("main"), "tick", every=7200.0),
    ),
    V.Unschedule: Case(
        lambda has: V.Unschedule(wake=has.wake),
        lambda has: V.Unschedule(wake=" "),
        lambda has: V.Unschedule(wake=has.wake),
        lambda client, has: client.unwake(has.wake),
    ),
    V.Wakes: Case(
        lambda has: V.Wakes(session=has.at("main")),
        lambda has: V.Wakes(session=NO_NAME),
        lambda has: V.Wakes(session=has.at("main")),
        lambda client, has: client.wakes(has.at("main")),
    ),
    V.Measure: Case(lambda has: V.Measure(), None, None, None, by=ADMIN),
}


class ScriptedDoor:
    """A door that notes what is asked, and answers with a value or an error."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.asked: list[Verb[Any]] = []

    def ask(self, verb: Verb[Any]) -> Asked[Any]:
        """Note a verb; its answer is the script's."""
        self.asked.append(verb)

        async def answer() -> Any:
            if isinstance(self.answer, BaseException):
                raise self.answer
            return self.answer

        return Asked(answer)

    async def listen(self, *_: object, **__: object) -> None:
        """Give no events."""

    def is_current(self, run: str) -> bool:
        """Return False: a script has no runs."""
        return False


@asynccontextmanager
async def cut_off(
    house: House, by: str
) -> AsyncIterator[tuple[Door, Callable[[Asked[Any]], Awaitable[tuple[str, Any]]]]]:
    """Open a door over a road; yield it, and what asks over it so that the first answer is lost with the connection."""
    port = int(house.served.url.rpartition(":")[2])
    async with Road(port) as road, connect(road.url, house.tokens[by]) as client:

        async def lose(asking: Asked[Any]) -> tuple[str, Any]:
            road.lost_down = True
            task = asyncio.ensure_future(told(asking))
            await eventually(lambda: road.lost > 0, "the answer of the server")
            road.cut()
            return await task

        yield client._socket, lose
