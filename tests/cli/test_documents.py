"""The commands tell people and programs what control said, and the names in their documents stay."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

from interlock import Control
from interlock.cli.documents import Runs, Sessions, Shown
from interlock.core.answers import RunInfo
from interlock.core.names import RunKind

from .scene import PYTHON_HERE, Filled, document, line_of, serve, told


def test_the_commands_say_what_control_said(filled: Filled) -> None:
    """Outcomes, receipts, timelines and trees are the same from the shell, while a server had the store and after."""
    data, run_ids, control_said = filled
    lists = document(Runs, "runs", data=data)
    assert not lists.in_use
    assert [run.id for run in lists.runs] == run_ids
    assert [run.outcome for run in lists.runs] == control_said["outcomes"]
    shown = [document(Shown, "show", run_id, data=data) for run_id in run_ids]
    assert [each.run for each in shown] == list(lists.runs)
    assert [each.receipt for each in shown] == control_said["receipts"]
    assert [list(each.timeline) for each in shown] == control_said["timelines"]
    assert [each.reply for each in shown] == [outcome.text for outcome in control_said["outcomes"]]
    for name, infos in control_said["listed"].items():
        tree = document(Runs, "runs", "--session", name, "--tree", data=data).runs
        assert [(run.id, run.depth, run.state, run.outcome) for run in tree] == [
            (info.id, info.depth, info.state, info.outcome) for info in infos
        ]


def test_people_are_told_the_same_facts(filled: Filled) -> None:
    """People are told who, when, how it ended in the projection's words, and what a run did; no escapes in a pipe."""
    data, run_ids, _ = filled
    runs = told("runs", data=data)
    words = ("completed", "completed", "failed: ValueError: no such luck", f"superseded by {run_ids[4]}")
    late = r"timed out after 10 ms in phase (start|agent) \(its caller's limit\)"
    for run_id, ending in zip(run_ids, (*words, "stopped by carol", late), strict=True):
        assert re.search(f"  {ending}  ", line_of(runs, run_id))
    sessions = told("sessions", data=data)
    assert [line.split()[0] for line in sessions.splitlines()[1:]] == ["carol", "bob", "alice"]
    assert re.fullmatch(r"carol +carol +3 +0 +(\d+ (s|min) ago|just now)", line_of(sessions, "carol"))
    work = told("show", run_ids[1], data=data)
    for fact in (
        f"{run_ids[1]} of session alice, by alice, ",
        "so far status 3",
        'finished: look_up({"word":"oslo"})',
        "answered True by alice: Is that all?",
        "exited with 3: sh -c ",
        "ended with its run: sleep 600 (server)",
        "1 process ended, grade ",
        "drain observed after ",
    ):
        assert fact in work, work
    assert next(line.split()[2] for line in work.splitlines() if line.startswith("+")) == "admitted"
    assert "\x1b" not in runs + sessions + work
    child = told("runs", "--tree", "--session", "alice", data=data).splitlines()[-1]
    assert child.startswith("  r-"), child
    assert " helper " in child


def test_what_nobody_wrote_is_not_told_as_somebodys(tmp_path: Path) -> None:
    """A run that announces a child names the child, in the list and by itself; a detached child says so."""
    data = tmp_path / "data"

    async def use(control: Control) -> dict[RunKind, RunInfo]:
        await control.send("alice", "leave", by="alice")
        while True:
            runs = await control.runs("alice", by="alice", tree=True)
            found = {run.kind: run for run in runs}
            if {RunKind.ANNOUNCE, RunKind.NOTE} <= found.keys() and all(run.outcome for run in runs):
                return found
            await asyncio.sleep(0.01)

    found = serve(data, use)
    listed = told("runs", data=data)
    for kind, beside, words in (
        (RunKind.ANNOUNCE, "", "announces the end of child"),
        (RunKind.NOTE, r" \(note\)", "a note of the end of child"),
    ):
        report = found[kind]
        assert re.search(rf"  child {report.key}{beside}  ", line_of(listed, report.id)), listed
        shown = told("show", report.id, data=data)
        assert "has ended: ok. It said: helped with" in shown
        assert f"{report.id} of session alice, {words} {report.key}, " in shown and "by alice" not in shown
        child = told("show", str(report.key), data=data)
        assert re.search(r"child +of r-\S+, by agent helper, detached\n", child), child
    assert "helper, detached" in told("runs", "--tree", data=data)


def test_the_latest_runs_are_listed_unless_all_are_wanted(tmp_path: Path) -> None:
    """The command lists the latest twenty runs in order, and says how to see the rest."""
    data = tmp_path / "data"

    async def fill(control: Control) -> list[str]:
        sent = [await control.send("alice", f"message {number}", strategy="queue") for number in range(25)]
        for each in sent:
            await control.wait(each.run_id, drained=True)
        return [each.run_id for each in sent]

    run_ids = serve(data, fill)
    for options in ((), ("--session", "alice"), ("--tree",)):
        some = document(Runs, "runs", *options, data=data)
        assert ([run.id for run in some.runs], some.more) == (run_ids[-20:], True)
    every = document(Runs, "runs", "--all", "--session", "alice", data=data)
    assert ([run.id for run in every.runs], every.more) == (run_ids, False)
    assert told("runs", data=data).splitlines()[-1] == "these are the latest; --all lists every run"


def test_a_store_where_nobody_wrote_is_empty(tmp_path: Path) -> None:
    """An empty store is no error: empty lists, and a sentence for people."""
    data = tmp_path / "data"

    async def nothing(control: Control) -> None:
        assert await control.runs() == []

    serve(data, nothing)
    assert document(Runs, "runs", data=data).runs == ()
    assert document(Sessions, "sessions", data=data).sessions == ()
    assert told("runs", data=data) == f"no runs in {data}\n"
    assert told("sessions", data=data) == f"no sessions in {data}\n"


def test_json_names_do_not_change(filled: Filled) -> None:
    """Programs rely on these names: every field is there, also where it holds nothing."""
    data, run_ids, _ = filled
    sessions = json.loads(told("sessions", "--json", data=data, env=PYTHON_HERE))
    runs = json.loads(told("runs", "--json", data=data, env=PYTHON_HERE))
    shown = json.loads(told("show", run_ids[1], "--json", data=data, env=PYTHON_HERE))
    pruned = json.loads(told("prune", "--dry-run", "--json", data=data, env=PYTHON_HERE))
    session = {"id", "owner", "shares", "generation", "strategy", "runs", "open", "latest_at", "crashes", "parked"}
    run = {
        "id", "session", "principal", "kind", "state", "unsettled", "outcome", "text", "admitted_at", "started",
        "generation", "key", "deadline", "parent", "agent", "detached", "alias", "depth",
    }  # fmt: skip
    parts = {"run", "reply", "tools", "questions", "processes", "receipt", "timeline", "parked"}
    assert set(sessions) == {"data", "in_use", "sessions"}
    assert all(set(each) == session for each in sessions["sessions"])
    assert set(runs) == {"data", "in_use", "runs", "more"}
    assert all(set(each) == run for each in runs["runs"])
    assert set(shown) == {"data", "in_use"} | parts
    assert set(shown["run"]) == run
    process = {"command", "state", "name", "pid", "status", "background", "detached"}
    assert all(set(each) == process for each in shown["processes"])
    assert [each["state"] for each in shown["processes"]] == ["exited", "ended"]
    assert set(shown["tools"][0]) == {"call_id", "run_id", "name", "arguments", "state"}
    assert set(shown["timeline"][0]) == {"at", "what", "name", "state", "detail", "count"}
    assert set(pruned) == {"data", "dry_run", "older_than_seconds", "forgotten"}
    assert sessions["data"] == runs["data"] == shown["data"] == pruned["data"] == str(data)
