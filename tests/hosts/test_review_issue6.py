"""What a review of issue 6 found: what a permit is for, a stop right behind a return, hosts that are not kept."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from interlock import Control, Drain, Ending, Event, EventKind, Grade, Message, Run, open_control
from interlock.hosts.driver import HostDriver
from interlock.hosts.forked import ForkedHosts
from interlock.processes import kernel
from interlock.processes.base import Confinement
from interlock.runtime.settings import OPEN_CALLS

from .test_hogs import PATIENT, unhurried

BOUND_SECONDS = 60.0
both_grades = pytest.mark.parametrize("grade", [Grade.CGROUP, Grade.KEEPER], ids=str)


async def waits() -> None:
    """A tool that takes its time."""
    await asyncio.sleep(60)


async def first() -> str:
    """Say who ran."""
    return "first"


async def second() -> str:
    """Say who ran."""
    return "second"


class Cycle:
    """Acts when it is collected, which nothing but the collector does."""

    def __init__(self, path: str) -> None:
        self.me = self
        self.path = path

    def __del__(self) -> None:
        Path(self.path).write_text("late")


async def agent(run: Run, message: Message) -> str:
    """Play what the message names."""
    if message.text == "interrupts":
        raise KeyboardInterrupt
    if message.text == "answers":
        return "here"
    if message.text.startswith("cycles "):
        Cycle(message.text.removeprefix("cycles "))
        await run.say("made")
        await asyncio.sleep(60)
    if message.text == "leaves":
        child = subprocess.Popen(["sleep", "60"])
        await run.say(str(child.pid))
        return ""
    if message.text == "lingers":
        await run.spawn("sleep", "60", background=True)
        await run.say("spawned")
        time.sleep(60)
    if message.text == "delegates":
        return (await run.delegate("other", "leaves")).text
    if message.text == "reads":
        async with run.spawn("sleep", "60") as process:
            await run.say("reading")
            await run.say(process.output)
            await asyncio.sleep(60)
    waiting = [asyncio.create_task(run.call(waits)) for _ in range(OPEN_CALLS)]
    await asyncio.sleep(0.2)
    refused = ""
    try:
        await run.call(first)
    except Exception as error:
        refused = type(error).__name__
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    results = await run.batch([(first, {}), (second, {})])
    return " ".join([refused, *(str(result.value) for result in results)])


@asynccontextmanager
async def opened(grade: Grade | None = None) -> AsyncIterator[Control]:
    """Open a control with these agents in hosts."""
    name = f"{__name__}:agent"
    confinement = Confinement(grade=grade)
    options = {"driver": "host", "confinement": confinement, "settings": PATIENT}
    async with asyncio.timeout(2 * BOUND_SECONDS):
        async with open_control(name, agents={"other": name}, **options) as control:
            yield control


async def seen(control: Control, run: str, kind: EventKind) -> Event:
    """Return the first event of a kind."""
    async with aclosing(control.watch(run=run)) as events:
        async for event in events:
            if event.kind is kind:
                return event
    raise AssertionError(f"no {kind}")


def lives(pid: int) -> bool:
    """Return whether a process is there and not dead."""
    status = kernel.stat(pid)
    return status is not None and status[0] not in "ZX"


def test_a_permit_is_for_the_call_it_names_also_behind_one_that_was_refused() -> None:
    """A call too many is refused as inline; what is recorded after it is permitted, run and told under its own name."""

    async def main() -> None:
        async with opened() as control:
            run = (await control.send("s", "refused")).run_id
            assert (await control.wait(run, timeout=BOUND_SECONDS)).text == "Refused first second"
            async with aclosing(control.watch(run=run)) as events:
                told = {
                    e.data.name: str(e.data.result) async for e in events if e.kind is EventKind.TOOL and e.data.result
                }
            assert told == {"first": '"first"', "second": '"second"'}

    asyncio.run(main())


@both_grades
def test_a_stop_right_behind_a_return_leaves_nothing(grade: Grade) -> None:
    """Whoever stops on the last word of a reply may come between the return and the end: what it left goes too."""

    async def main() -> None:
        stopped = 0
        async with opened(grade) as control:
            for number in range(20):
                run = (await control.send(f"s{number}", "leaves")).run_id
                pid = int((await seen(control, run, EventKind.DELTA)).data.text)
                await control.stop(session=f"s{number}")
                outcome = await control.wait(run, drained=True, timeout=BOUND_SECONDS)
                stopped += outcome.ending is Ending.STOPPED
                assert not (outcome.ending is Ending.STOPPED and lives(pid))
        assert stopped

    asyncio.run(main())


@both_grades
def test_a_childs_host_is_seen_gone_before_the_child_is_drained(grade: Grade) -> None:
    """A child's host is not kept: when its receipt says drained, nothing that was in it is there."""

    async def main() -> None:
        async with opened(grade) as control:
            for number in range(5):
                run = (await control.send(f"s{number}", "delegates")).run_id
                child = (await seen(control, run, EventKind.CHILD)).data.child
                outcome = await control.wait(child, drained=True, timeout=BOUND_SECONDS)
                assert not lives(int(outcome.text))
                receipt = await control.receipt(child)
                assert (receipt.host, receipt.drain, receipt.processes.ended) == ("killed", Drain.OBSERVED, 1)

    asyncio.run(main())


def test_a_host_that_waits_for_output_hears_of_the_end() -> None:
    """Reading a process's output blocks the host's loop for a moment; a stop in that moment does not cost the host."""

    async def main() -> None:
        async with opened() as control:
            fates = []
            for _ in range(10):
                run = (await control.send("s", "reads")).run_id
                await seen(control, run, EventKind.DELTA)
                await control.stop(session="s")
                await control.wait(run, drained=True, timeout=BOUND_SECONDS)
                fates.append((await control.receipt(run)).host)
            assert fates.count("reused") > 5, fates

    with unhurried():
        asyncio.run(main())


def test_a_dead_zygote_that_nobody_has_heard_of_costs_no_run() -> None:
    """The loop was busy while the zygote died: attempts are made when that was heard of, not all in one step."""

    async def main() -> None:
        async with opened() as control:
            driver = control._driver
            assert isinstance(driver, HostDriver)
            assert isinstance(driver._hosts, ForkedHosts)
            assert driver._hosts._zygote is not None
            pid = driver._hosts._zygote.process.pid
            os.kill(pid, 9)
            until = time.monotonic() + BOUND_SECONDS
            while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
                time.sleep(0.001)
            host = await driver._start()
            assert host.alive
            host.kill()

    asyncio.run(main())


def test_an_agent_that_raises_keyboard_interrupt_does_not_take_the_next_message_along() -> None:
    """Its run fails, and its host goes on, as behind any other error."""

    async def main() -> None:
        async with opened() as control:
            for _ in range(5):
                broken = await control.send("s", "interrupts")
                assert (await control.wait(broken.run_id, drained=True)).error == "KeyboardInterrupt"
                assert (await control.wait((await control.send("s", "answers")).run_id)).text == "here"

    asyncio.run(main())


def test_what_a_stopped_turn_left_to_the_collector_is_collected_before_it_is_drained(tmp_path: Path) -> None:
    """A finalizer is code of the turn; in a host that is used again it has run by then."""
    mark = tmp_path / "mark"

    async def main() -> None:
        async with opened() as control:
            sent = await control.send("s", f"cycles {mark}")
            await seen(control, sent.run_id, EventKind.DELTA)
            await control.stop(session="s")
            await control.wait(sent.run_id, drained=True)
            assert (await control.receipt(sent.run_id)).host == "reused"
            assert mark.exists()

    with unhurried():
        asyncio.run(main())


@both_grades
def test_the_receipt_counts_what_ended_before_the_host_was_killed(grade: Grade) -> None:
    """A process is gone long before its host, which does not settle: it is still among what the stop ended."""

    async def main() -> None:
        async with opened(grade) as control:
            run = (await control.send("s", "lingers")).run_id
            await seen(control, run, EventKind.DELTA)
            await control.stop(session="s")
            await control.wait(run, drained=True, timeout=BOUND_SECONDS)
            receipt = await control.receipt(run)
            assert (receipt.host, receipt.processes.ended, receipt.grade) == ("killed", 1, grade)

    asyncio.run(main())
