"""Lives of a control on one store: one life is killed at an exact point, and the next starts on the same store.

On sqlite a killed life is a process of its own and dies of SIGKILL. On memory it is a thread that is never resumed: no
line of it runs after that point, and writes that its store had not carried out by then are dropped.
"""

import asyncio
import os
import pickle
import queue
import select
import signal
import sqlite3
import threading
import time
import traceback
import warnings
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from random import Random
from typing import Any, NoReturn

from interlock import Control, Drain, EventKind, MemoryStore, Settings, open_control
from interlock.agent.run import Agent
from interlock.core.decision import Decision
from interlock.core.events import Ended
from interlock.core.lifecycle import State
from interlock.stores.memory import Faults
from interlock.stores.sqlite import SqliteStore
from interlock.stores.sqlite.reads import Look
from interlock.testing.processes import VirtualProcesses

from .scene import kinds, log_of, story

LIFE_SECONDS = 120.0
PATIENT = Settings(commit_seconds=10.0, grace_seconds=0.05, drain_seconds=0.2, retry_seconds=0.05)
"""The store has time, also on a busy disk; cleaning up has little."""

Scene = Callable[[Control], Awaitable[Any]]
Before = Callable[[Any], None]
AnyStore = MemoryStore | SqliteStore


class Place:
    """A store that outlives the controls that use it."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.directory = directory
        self._memory = MemoryStore()
        self.store: Any = None  # the store of the current life
        self.control: Any = None
        self._parked: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._pipe: int | None = None

    def life(self, scene: Scene, agent: Agent, *, before: Before | None = None, **options: Any) -> Any:
        """Play a scene, close control in good order, and return the scene's result."""
        return asyncio.run(self._play(scene, agent, before, options))

    def killed(self, scene: Scene, agent: Agent, *, before: Before | None = None, **options: Any) -> Any:
        """Play a scene in which somebody calls `die`, and return the value that was given to `die`."""

        def play() -> None:
            asyncio.run(self._play(scene, agent, before, options))

        how, told = self._in_a_thread(play) if self.kind == "memory" else self._in_a_process(play)
        assert how == "died", told
        return told

    def die(self, told: object = None, *, written: bool = True) -> NoReturn:
        """End this life here: no line of it runs after this one. Everything given to the store is first carried out.

        If `written` is False, the store is left as it happens to be at that moment.
        """
        if written:
            carried_out(self.store)
        if self._pipe is None:
            self._parked.put(("died", told))
            threading.Event().wait()
        else:
            os.write(self._pipe, pickle.dumps(("died", told)))
            os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("there is no life behind this")

    async def _play(self, scene: Scene, agent: Agent, before: Before | None, options: dict[str, Any]) -> Any:
        store = self.store = self._memory if self.kind == "memory" else SqliteStore(self.directory)
        if before is not None:
            before(store)
        given: dict[str, Any] = {"settings": PATIENT, "processes": VirtualProcesses(Random(0)), **options}
        async with asyncio.timeout(LIFE_SECONDS), open_control(agent, store=store, **given) as control:
            self.control = control
            return await scene(control)

    def _in_a_thread(self, play: Callable[[], None]) -> tuple[str, Any]:
        def live() -> None:
            try:
                play()
                self._parked.put(("outlived", "the scene ended and nobody had died"))
            except BaseException:
                self._parked.put(("failed", traceback.format_exc()))

        threading.Thread(target=live, name="a life", daemon=True).start()
        told = self._parked.get(timeout=2 * LIFE_SECONDS)
        store = self._memory
        store._line.clear()
        store._lost.clear()
        store._flushing = False
        store.faults = Faults()
        for hooked in ("decide", "append", "_flush"):
            vars(store).pop(hooked, None)
        return told

    def _in_a_process(self, play: Callable[[], None]) -> tuple[str, Any]:
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            # Python warns of a fork in a process with threads; here the other threads are lives that are parked for
            # good.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            try:
                os.close(reader)
                self._pipe = writer
                play()
                told = ("outlived", "the scene ended and nobody had died")
            except BaseException:
                told = ("failed", traceback.format_exc())
            os.write(writer, pickle.dumps(told))
            os._exit(1)
        os.close(writer)
        said = _all_of(reader)
        if not said:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        return pickle.loads(said) if said else ("hung", f"nothing was heard of it, status {status}")

    def look(self, question: Callable[[Any], Awaitable[Any]]) -> Any:
        """Ask the store something while no control uses it."""

        async def ask() -> Any:
            if self.kind == "memory":
                return await question(self._memory)
            async with Look(self.directory) as store:
                return await question(store)

        return asyncio.run(ask())


def _all_of(reader: int) -> bytes:
    said, until = b"", time.monotonic() + 2 * LIFE_SECONDS
    while select.select([reader], [], [], max(0.0, until - time.monotonic()))[0]:
        piece = os.read(reader, 65_536)
        if not piece:
            break
        said += piece
    os.close(reader)
    return said


def carried_out(store: AnyStore) -> None:
    """Block until the store has carried out everything it was given, without telling anybody who waits for it."""
    if isinstance(store, MemoryStore):
        store._flush()
        return
    done = threading.Event()
    assert store._writer is not None
    store._writer.flush()
    store._writer.chore(lambda _: done.set())
    assert done.wait(LIFE_SECONDS), "the disk took nothing"


def kept_out(store: AnyStore) -> Callable[[], None]:
    """Keep the store from carrying anything out, though reads still work; call the returned function to release it."""
    if isinstance(store, MemoryStore):
        vars(store)["_flush"] = lambda: None

        def let_in() -> None:
            del vars(store)["_flush"]
            store._flush()

        return let_in
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    return other.close


def behind(
    store: AnyStore, method: str, then: Callable[[], None], *, when: Callable[[Any], bool] = lambda _: True
) -> None:
    """Call `then` right after each call of a store's method that `when` picks, in the same step."""
    real = getattr(store, method)

    def hooked(given: Any, *more: Any) -> Any:
        result = real(given, *more)
        if when(given):
            then()
        return result

    setattr(store, method, hooked)


def ends(ending: str) -> Callable[[Decision], bool]:
    """Return a test that picks the decisions which end a run with this ending."""
    return lambda decision: any(row.outcome is not None and row.outcome.ending == ending for row in decision.endings)


async def until(true: Callable[[], Any]) -> Any:
    """Wait for a condition. LIFE_SECONDS bounds the wait, as it bounds the whole life."""
    while not (found := true()):
        await asyncio.sleep(0.001)
    return found


async def began(control: Control, run: str) -> None:
    """Wait until a run's agent has begun."""
    await until(lambda: control._registry.runs[run].state is State.STARTED)


async def for_ever() -> None:
    """Wait for ever: the scene ends when somebody else ends this life."""
    await asyncio.Event().wait()


def sends(session: str, text: str, **options: Any) -> Callable[[Control], Awaitable[None]]:
    """Return a scene that sends one message and then waits for ever, so that the agent decides when the life ends."""

    async def scene(control: Control) -> None:
        await control.send(session, text, **options)
        await for_ever()

    return scene


async def quiet(control: Control) -> None:
    """Wait until no session is in memory, and assert that no run, key or fall is either."""
    await until(lambda: not control._registry.sessions)
    assert control._registry.runs == {} and control._registry.keys == {} and control._registry.falls == {}


async def terminal(control: Control, session: str, run: str) -> Ended:
    """Return a run's terminal event, after asserting that it is the only one and the run's last event."""
    own = [event for event in await log_of(control, session) if event.run_id == run]
    assert kinds(own).count("ended") == 1, kinds(own)
    assert own[-1].kind is EventKind.ENDED, kinds(own)
    return own[-1].data


async def agreed(control: Control, session: str, run: str) -> tuple[Any, ...]:
    """Return the story of a run's ending, after asserting that every surface tells the same one."""
    outcome = await control.wait(run, drained=True)
    [listed] = [info for info in await control.runs(session) if info.id == run]
    receipt = await control.receipt(run)
    [fallen] = [each for each in receipt.runs if each.id == run]
    async with aclosing(control.watch(run=run)) as events:
        replayed = [event async for event in events]
    ended = (await terminal(control, session, run)).outcome
    assert listed.state is State.ENDED and listed.outcome is not None
    for other in (listed.outcome, fallen.outcome, ended, replayed[-1].data.outcome):
        assert story(other) == story(outcome)
        assert other.same_story(outcome)
    told_at_last = [entry for entry in await control.history(session) if entry.run_id == run and entry.ending]
    assert [entry.ending for entry in told_at_last] == [outcome.ending]
    assert [m.state for m in await control.timeline(run) if m.what == "ended"] == [outcome.ending]
    assert receipt.drain is Drain.OBSERVED and outcome.drained and outcome.durable
    return story(outcome)
