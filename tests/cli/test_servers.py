"""Looking at and pruning the directory of a server that was killed, that is parked, or that is at work."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from interlock import Control, InterlockError, events
from interlock.cli.documents import Runs, Sessions, Shown
from interlock.cli.prune import Forgotten, age
from interlock.stores.base import Pruned

from .scene import BOUND, PYTHON_HERE, document, everything, line_of, refused, serve, told, until

CRASH = textwrap.dedent(
    """
    import asyncio, json, os, signal, sys
    from interlock import events, open_control

    async def slow(to: str) -> None:
        await asyncio.sleep(600)

    async def assistant(run, message):
        await run.say("so far ")
        if message.text == "call":
            await run.call(slow, to="bob")
        if message.text == "ask":
            await run.ask("Really?")
        if message.text == "spawn":
            await run.spawn("sleep", "600")
        return "done"

    async def main():
        async with open_control(assistant, store="sqlite:///" + sys.argv[1]) as control:
            runs = {}
            for text, kind in (("call", "tool"), ("ask", "question"), ("spawn", "process")):
                runs[text] = (await control.send(text, text)).run_id
                async for event in control.watch(run=runs[text]):
                    if event.kind == kind and event.data.state in ("running", "open"):
                        break
            runs["queued"] = (await control.send("call", "later", strategy="queue")).run_id
            while control.feed.log._count:  # what was told so far is to be found in the store
                await asyncio.sleep(0.01)
            print(json.dumps(runs), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(asyncio.wait_for(main(), 50))
    """
)


def crash(data: Path) -> dict[str, str]:
    """Let a server be killed with three runs going and one message waiting; return the runs."""
    done = subprocess.run(
        [sys.executable, "-c", CRASH, data], capture_output=True, text=True, check=False, timeout=BOUND, env=PYTHON_HERE
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    runs: dict[str, str] = json.loads(done.stdout)
    return runs


async def said_of(control: Control, run_ids: list[str]) -> dict[str, Any]:
    """Return what control says of runs."""
    return {
        "outcomes": [await control.wait(run_id, drained=True) for run_id in run_ids],
        "receipts": [await control.receipt(run_id) for run_id in run_ids],
        "timelines": [await control.timeline(run_id) for run_id in run_ids],
    }


async def replay(control: Control, run_id: str, session: str) -> list[events.Event]:
    """Return a session's events up to a receipt that is told after a run's end."""
    found: list[events.Event] = []
    async for event in control.watch(session):
        found.append(event)
        if event.kind == "receipt" and any(each.run_id == run_id and each.kind == "ended" for each in found):
            break
    return found


async def chatter(control: Control, stop: asyncio.Event) -> int:
    """Send and complete until told to stop; return how many."""
    count = 0
    while not stop.is_set():
        sent = await control.send("bob", f"message {count}")
        await control.wait(sent.run_id, drained=True)
        count += 1
    return count


def test_what_a_killed_server_left_is_told_as_unsettled(tmp_path: Path) -> None:
    """A killed server's runs are told as unsettled, never as running, until the next start settles them."""
    data = tmp_path / "data"
    runs = crash(data)
    lists = document(Runs, "runs", data=data)
    assert not lists.in_use
    assert {run.id: (run.state, run.unsettled, run.outcome) for run in lists.runs} == {
        runs["call"]: ("started", True, None),
        runs["ask"]: ("started", True, None),
        runs["spawn"]: ("started", True, None),
        runs["queued"]: ("queued", True, None),
    }
    text = told("runs", data=data)
    assert "unsettled: the next start settles it" in line_of(text, runs["call"])
    assert "queued: the next start takes it up" in line_of(text, runs["queued"])
    assert line_of(told("sessions", data=data), "ask").endswith("unsettled: the next start settles it")
    call = told("show", runs["call"], data=data)
    assert 'started, outcome unknown: slow({"to":"bob"})' in call
    assert line_of(call, "reply").split() == ["reply", "so", "far"]
    assert "open: Really?" in told("show", runs["ask"], data=data)
    assert "ended with the server: sleep 600" in told("show", runs["spawn"], data=data)


def test_looking_and_pruning_leave_the_settling_to_the_next_start(tmp_path: Path) -> None:
    """After a look and a prune the next start still finds the crash: lost runs, a gap, the waiting message served."""
    data = tmp_path / "data"
    runs = crash(data)
    told("runs", data=data)
    assert document(Forgotten, "prune", "--older-than", "0h", data=data).forgotten.runs == 0

    async def settled(control: Control) -> dict[str, Any]:
        assert (await control.wait(runs["queued"], drained=True)).ending == "completed"
        return {
            **await said_of(control, list(runs.values())),
            "kinds": {event.kind for event in await replay(control, runs["call"], "call")},
        }

    control_said = serve(data, settled)
    assert "gap" in control_said["kinds"]
    shown = [document(Shown, "show", run_id, data=data) for run_id in runs.values()]
    assert [each.run.outcome for each in shown] == control_said["outcomes"]
    assert [each.receipt for each in shown] == control_said["receipts"]
    assert [list(each.timeline) for each in shown] == control_said["timelines"]
    assert not any(each.run.unsettled for each in shown)
    text = told("runs", data=data)
    assert "  lost in a crash  " in line_of(text, runs["call"])
    assert "  completed  " in line_of(text, runs["queued"])
    assert 'interrupted: slow({"to":"bob"})' in told("show", runs["call"], data=data)


def test_a_parked_session_says_what_to_do(tmp_path: Path) -> None:
    """A session with a run going in three crashes in a row is told as parked until it is reset."""
    data = tmp_path / "data"
    for _ in range(3):
        runs = crash(data)
    assert not any(session.parked for session in document(Sessions, "sessions", data=data).sessions)

    async def refusal(control: Control) -> str:
        with pytest.raises(InterlockError) as raised:
            await control.send("ask", "again")
        return str(raised.value)

    assert "is parked" in serve(data, refusal)
    found = {session.id: session for session in document(Sessions, "sessions", data=data).sessions}
    assert (found["ask"].parked, found["ask"].crashes, found["ask"].open) == (True, 3, 0)
    assert "parked after 3 crashes in a row: reset it to go on" in line_of(told("sessions", data=data), "ask")
    assert "parked: it takes no message until it is reset" in told("show", runs["ask"], data=data)
    serve(data, lambda control: control.reset("ask"))
    assert "parked" not in line_of(told("sessions", data=data), "ask")


def test_a_live_server_is_looked_at_while_it_writes(tmp_path: Path) -> None:
    """A run that goes on is told as started, with what it said so far; every look is whole while others come and go."""
    data = tmp_path / "data"

    async def use(control: Control) -> None:
        going = await control.send("alice", "wait")
        await until(control, going.run_id, events.Delta)
        stop = asyncio.Event()
        work = asyncio.create_task(chatter(control, stop))
        seen = 0
        while seen < 3:
            lists = await asyncio.to_thread(document, Runs, "runs", "--all", data=data)
            assert lists.in_use
            assert not any(run.unsettled for run in lists.runs)
            seen += any(run.session == "bob" for run in lists.runs)
            shown = await asyncio.to_thread(document, Shown, "show", lists.runs[-1].id, data=data)
            assert (shown.run.outcome is None) or shown.run.outcome.text == shown.reply
        stop.set()
        assert await work >= 1
        while not (shown := await asyncio.to_thread(document, Shown, "show", going.run_id, data=data)).reply:
            await asyncio.sleep(0.01)
        assert (shown.run.state, shown.run.unsettled, shown.run.outcome) == ("started", False, None)
        assert shown.reply == "so far "
        assert "  started  " in line_of(await asyncio.to_thread(told, "runs", "--all", data=data), going.run_id)

    serve(data, use)


def test_a_directory_in_use_is_not_pruned(tmp_path: Path) -> None:
    """A prune of a directory in use says that its server prunes by itself; it forgets and disturbs nothing."""
    data = tmp_path / "data"

    async def use(control: Control) -> None:
        sent = await control.send("alice", "greet")
        await control.wait(sent.run_id, drained=True)
        sentence = await asyncio.to_thread(refused, "prune", "--older-than", "0h", "--data", data)
        assert f"{data} is in use by a server, which prunes it every hour" in sentence
        assert (await control.send("alice", "again")).run_id
        assert len(await control.runs("alice")) == 2

    serve(data, use)


def test_prune_forgets_what_is_old_and_says_how_much(tmp_path: Path) -> None:
    """A dry run says the same and forgets nothing; what is young, waits or is scheduled stays."""
    data = tmp_path / "data"

    async def fill(control: Control) -> None:
        await everything(control)
        await control.send("wakes", "greet", by="dora")
        await control.wake("wakes", "hello", every=3600, by="dora")

    serve(data, fill)
    before = document(Runs, "runs", "--all", "--tree", data=data)
    assert document(Forgotten, "prune", data=data).forgotten == Pruned()
    tried = document(Forgotten, "prune", "--older-than", "0h", "--dry-run", data=data)
    assert (tried.forgotten.sessions, tried.forgotten.runs, tried.dry_run) == (3, 7, True)
    assert document(Runs, "runs", "--all", "--tree", data=data) == before
    assert told("prune", "--older-than", "0h", data=data) == "forgotten: 3 sessions, 7 runs, 0 events\n"
    assert [each.id for each in document(Sessions, "sessions", data=data).sessions] == ["wakes"]
    assert {run.session for run in document(Runs, "runs", "--all", data=data).runs} == {"wakes"}
    with sqlite3.connect(data / "interlock.db") as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_ages_are_read_as_people_write_them() -> None:
    """Ages are read in hours, days and weeks; a bare number could be anything and is refused with an example."""
    assert [age(text) for text in ("12h", "30d", " 1.5 d ", "8w")] == [43_200, 2_592_000, 129_600, 4_838_400]
    for text in ("30", "", "-1d", "1m", "d", "inf d"):
        with pytest.raises(InterlockError, match="write 12h, 30d or 8w"):
            age(text)
