"""Processes left after a stop, case by case: ours, pydantic-ai's workspace, and a plain asyncio subprocess with killpg.

All contestants run the same hostile programs and are stopped a moment after these have become hostile. Then the witness
looks for processes that still carry the trial's token, counts the trial, and ends them.
"""

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from proofs.processes import CASES, Case, Witness, bearers
from pydantic_ai.workspaces.local import LocalWorkspaceBackend

from bench.result import Result
from bench.scale import Scale
from interlock import Message, Run, open_control
from interlock.processes.base import Confinement

DYING_SECONDS = 0.2  # given to all contestants after the stop has returned
LATE_SECONDS = 0.1  # a process that lives would beat within this time
Stop = Callable[[], Awaitable[None]]
Start = Callable[[tuple[str, ...], bytes | None], Awaitable[Stop]]


def measure(scale: Scale) -> list[Result]:
    """Count survivors per case and contestant."""
    return asyncio.run(_measure(scale.rounds(10, 3)))


async def _measure(trials: int) -> list[Result]:
    left: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory(prefix="interlock-bench-") as directory:
        witness = Witness(Path(directory))
        async with open_control(_agent, confinement=Confinement(pids=256)) as control:

            async def ours(argv: tuple[str, ...], given: bytes | None) -> Stop:
                _wanted.append((argv, given))
                sent = await control.send("s", "run it")

                async def stop() -> None:
                    await control.stop(run=sent.run_id)
                    await control.wait(sent.run_id, drained=True)

                return stop

            for who, start in (("interlock", ours), ("pydantic-ai", _workspace), ("asyncio + killpg", _plain)):
                for case in CASES.values():
                    for number in range(trials):
                        token = witness.token(f"{case.name}-{who.split()[0]}-{number}")
                        survived = await _try(case, witness, token, start)
                        left.setdefault(who, {}).setdefault(case.name, 0)
                        left[who][case.name] += survived
    return [
        Result(
            name=f"stops that left a process behind, of {trials * len(CASES)}: {who}",
            value=sum(cases.values()),
            unit="",
            goal=0 if who == "interlock" else None,
            drawn=("survivors", {f"{who} {name}": count / trials for name, count in cases.items()}),
            small=tuple(f"{name}: {count} of {trials}" for name, count in cases.items() if count),
        )
        for who, cases in left.items()
    ]


async def _try(case: Case, witness: Witness, token: str, start: Start) -> bool:
    """Start a case, stop it when it is hostile, and return whether a process is left."""
    order = case.order(token, witness.sink(token))
    stop = await start(order.argv, order.input)
    async with asyncio.timeout(10):
        while not witness.reached(case, token):
            await asyncio.sleep(0.002)
    await stop()
    await asyncio.sleep(DYING_SECONDS)
    witness.ended(token)
    await asyncio.sleep(LATE_SECONDS)
    survived = bool(bearers(token)) or token in witness.late()  # a hopper is seldom seen, but it beats
    witness.release(token)
    return survived


_wanted: list[tuple[tuple[str, ...], bytes | None]] = []


async def _agent(run: Run, message: Message) -> None:
    argv, given = _wanted.pop()
    await run.spawn(*argv, cwd="/", input=given)
    await asyncio.Event().wait()  # waits even if the shell has exited and left its work


async def _workspace(argv: tuple[str, ...], given: bytes | None) -> Stop:
    """Start a program in pydantic-ai's own workspace: a cancelled `run` ends the process group."""
    workspace = LocalWorkspaceBackend("/tmp")
    task = asyncio.create_task(workspace.run(list(argv)))

    async def stop() -> None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task

    return stop


async def _plain(argv: tuple[str, ...], given: bytes | None) -> Stop:
    """Start a program as people write it by hand: a session of its own, and killpg."""
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, start_new_session=True
    )

    async def stop() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

    return stop
