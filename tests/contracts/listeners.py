"""Agents and tools that ask `interlock.stopping()` in every way. Imported by name, here or in a host.

A message names a part and a file: the part notes down in the file what it heard, a line each.
"""

import asyncio
import contextvars
import multiprocessing
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import interlock
from interlock import Message, Run, stopping, tool
from interlock.agent.verbs import Permit

LONG_SECONDS = 45.0  # the grace of a tool that is done far sooner
SHORT_SECONDS = 0.4  # the grace of a tool that uses all of it
FOREVER_SECONDS = 3600.0


def note(path: str, word: object) -> None:
    """Append a word to the notes, at once and whole."""
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"{word}\n")


# Synchronous tools: in a worker, or blocking a host's loop


@tool(grace=LONG_SECONDS)
def waits(path: str) -> str:
    """Wait for the notice, then clean up, which takes a moment."""
    note(path, f"began {os.getpid()}")
    heard = stopping().wait()
    time.sleep(0.05)
    note(path, f"cleaned {heard}")
    return "late"


@tool(grace=LONG_SECONDS)
def polls(path: str) -> None:
    """Ask for the notice now and then."""
    note(path, "began")
    while not stopping().is_set():
        time.sleep(0.002)
    note(path, "cleaned True")


@tool(grace=LONG_SECONDS)
def waits_in_turns(path: str) -> None:
    """Wait for the notice a little, again and again."""
    note(path, "began")
    while not stopping().wait(0.002):
        pass
    note(path, "cleaned True")


@tool(grace=LONG_SECONDS)
def selects(path: str) -> None:
    """Wait for the notice with `select`, among other descriptors."""
    note(path, "began")
    reading, writing = os.pipe()
    readable, _, _ = select.select([reading, stopping()], [], [], FOREVER_SECONDS)
    os.close(reading)
    os.close(writing)
    note(path, f"cleaned {readable == [stopping()]}")


@tool(grace=LONG_SECONDS)
def awaits_elsewhere(path: str) -> None:
    """Await the notice in another loop, in a thread."""

    async def hears() -> None:
        note(path, "began")
        await asyncio.gather(stopping(), stopping(), _hears())
        note(path, "cleaned True")

    async def _hears() -> None:
        await stopping()

    thread = threading.Thread(target=contextvars.copy_context().run, args=(asyncio.run, hears()))
    thread.start()
    thread.join()


@tool(grace=LONG_SECONDS)
def crowds(path: str) -> None:
    """Wait for the notice in many threads at once: each hears."""
    heard: list[bool] = []
    threads = [
        threading.Thread(target=contextvars.copy_context().run, args=(lambda: heard.append(stopping().wait()),))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    note(path, "began")
    for thread in threads:
        thread.join()
    note(path, f"cleaned {heard == [True] * 8}")


@tool(grace=LONG_SECONDS)
def runs_a_program(path: str) -> None:
    """Wait for a program, which TERM ends; TERM also ends a fork of this tool."""
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(FOREVER_SECONDS,))
    child.start()
    child.terminate()
    child.join()
    program = subprocess.Popen(["sleep", str(FOREVER_SECONDS)])
    note(path, "began")
    program.wait()
    note(path, f"cleaned {stopping().is_set()} {child.exitcode} {program.returncode}")


@tool(grace=LONG_SECONDS)
def handles_term(path: str) -> None:
    """Handle TERM: the handler asks for the notice, and the tool returns once it was called."""
    called: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: called.append(stopping().is_set()))
    note(path, "began")
    while not called:
        time.sleep(0.002)
    note(path, f"cleaned {called}")


@tool(grace=SHORT_SECONDS)
def ignores(path: str) -> None:
    """Hear the notice, note it down, and go on for ever."""
    signal.signal(signal.SIGTERM, lambda *_: note(path, "term"))
    note(path, f"began {os.getpid()}")
    stopping().wait()
    note(path, "heard")
    while True:
        time.sleep(0.01)


@tool(grace=SHORT_SECONDS)
def lost_in_c(path: str) -> None:
    """Stay in a C call that hears no signal and asks for nothing."""
    note(path, f"began {os.getpid()}")
    re.match(r"(a+)+$", "a" * 64 + "b")


def without_grace(path: str) -> None:
    """Ask for the notice without a declared grace."""
    note(path, f"began {os.getpid()}")
    stopping().wait()
    note(path, "heard")


@tool(grace=LONG_SECONDS)
def quick(path: str) -> bool:
    """Return at once, with a declared grace."""
    return stopping().wait(0)


@tool(grace=LONG_SECONDS)
def effects(path: str, given: object = None) -> None:
    """Note down an effect."""
    note(path, "effect")


class Slow(msgspec.Struct):
    """An argument that a worker unpacks only when the run is over."""

    path: str

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpacked, (self.path,)


def _unpacked(path: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: None)  # as a module may do that is imported for its tool
    note(path, "began")
    stopping().wait()


# Tools in the agent's process


@tool(thread=True, grace=LONG_SECONDS)
def threaded(path: str) -> None:
    """Wait for the notice in a thread of the agent's process."""
    note(path, f"began {os.getpid()}")
    heard = stopping().wait()
    note(path, f"cleaned {heard}")


@tool(grace=LONG_SECONDS)
async def beside(path: str) -> None:
    """Be cut, as an async tool with a thread and a task that both hear."""
    thread = asyncio.create_task(asyncio.to_thread(stopping().wait))
    task = asyncio.create_task(_note_when_set(path))
    await asyncio.sleep(0)
    note(path, "began")
    try:
        await asyncio.sleep(FOREVER_SECONDS)
    finally:
        note(path, f"set {stopping().is_set()}")
        note(path, f"thread {await thread}")
        await task


async def _note_when_set(path: str) -> None:
    await stopping()
    note(path, "task True")


@tool(grace=LONG_SECONDS)
async def hears(path: str) -> None:
    """Be cut while a task of the tool's own hears."""
    task = asyncio.create_task(_note_when_set(path))
    note(path, "began")
    try:
        await asyncio.sleep(FOREVER_SECONDS)
    finally:
        await task


TOOLS: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        waits, polls, waits_in_turns, selects, awaits_elsewhere, crowds, runs_a_program, handles_term, ignores,
        lost_in_c, without_grace, threaded, beside, hears,
    )
}  # fmt: skip


async def agent(run: Run, message: Message) -> str | None:
    """Do what the message names, and note down what the code hears."""
    part, path = message.text.split()
    if part in TOOLS:
        await run.call(TOOLS[part], path=path)
        note(path, "went on")
    elif part.startswith("batch:"):  # one tool of a batch, in a task of its own
        await run.batch([(TOOLS[part.removeprefix("batch:")], {"path": path})], parallel=True)
        note(path, "went on")
    elif part == "gathers":  # two tools at once, of which the first blocks a host's loop
        _permit_both(run)
        await asyncio.gather(run.call(waits, path=path), run.call(effects, path=path))
    elif part == "batches":
        _permit_both(run)
        await run.batch([(waits, {"path": path}), (effects, {"path": path})], parallel=True)
    elif part == "unpacks":
        await run.call(effects, path=path, given=Slow(path))
    elif part == "asks":  # ends by itself
        note(path, f"set {stopping().is_set()} {await run.call(quick, path=path)}")
        await run.call(quick, path=path)
        return str(os.getpid())
    elif part == "parks":
        note(path, f"began {stopping().is_set()}")
        try:
            await asyncio.sleep(FOREVER_SECONDS)
        except asyncio.CancelledError:
            note(path, f"cut {stopping().is_set()}")
            raise
    elif part == "leaves_thread":  # the thread outlives the turn, and hears that the turn is over
        threading.Thread(target=contextvars.copy_context().run, args=(_note_after, path), daemon=True).start()
        return "done"
    elif part == "gives_up":  # gives a call up, and goes on
        call = asyncio.create_task(run.call(waits, path=path))
        while not Path(path).exists():
            await asyncio.sleep(0.002)
        call.cancel()
        await asyncio.wait([call])
        note(path, f"gave up {stopping().is_set()}")
        return str(await run.call(quick, path=path))
    elif part == "blocks":
        try:
            stopping().wait()
        except interlock.BadInput as refused:
            return str(refused)
    return None


def _permit_both(run: Run) -> None:
    """Let the first of two tools begin when both are permitted, and the second in the loop's next round."""
    port: Any = run._port
    ask, turns = port.ask, iter((True, False))
    permitted, begins = asyncio.Event(), asyncio.Event()

    async def in_order(verb: Any) -> Any:
        answer = await ask(verb)
        if isinstance(verb, Permit):
            if next(turns):
                await permitted.wait()
                begins.set()
            else:
                permitted.set()
                await begins.wait()
        return answer

    port.ask = in_order


def _note_after(path: str) -> None:
    note(path, f"set {stopping().is_set()}")
    note(path, f"heard {stopping().wait()}")


if __name__ == "__main__":  # outside of a run
    sys.stdout.write(f"{stopping().is_set()} {stopping().wait(0.01)}\n")
