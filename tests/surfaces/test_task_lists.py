"""Lists of tasks: a session's list has all that its runs delegated, at any depth, each with its parent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from surfaces.raw import House, Talk, house

from .scene import wire

OPTIONS = ("surfaces.agents:agent", "--driver=inline", "--drain-seconds=1")
Task = dict[str, Any]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data directory of a server."""
    return tmp_path / "data"


@pytest.fixture
def server(data: Path) -> Iterator[House]:
    """A gateway that serves an agent which delegates to itself."""
    with house(data, *OPTIONS) as server:
        yield server
        assert server.healthy()


def send(talk: Talk, session: str, message: str, **more: Any) -> str:
    """Send a message and return its run."""
    return str(
        talk.request("chat.send", sessionKey=session, message=message, idempotencyKey=f"{session} {message}", **more)[
            "runId"
        ]
    )


def listed(talk: Talk, session: str, **more: Any) -> list[Task]:
    """Return the tasks in a session's list."""
    tasks: list[Task] = talk.request("tasks.list", sessionKey=session, **more)["tasks"]
    return tasks


def family(talk: Talk, session: str, count: int, status: str = "running") -> list[Task]:
    """Wait until this many tasks of a session have a status; return all its tasks, the oldest first."""
    talk.until(
        lambda: len([task for task in listed(talk, session) if task["status"] == status]) == count,
        f"{count} tasks of {session} that are {status}",
    )
    return listed(talk, session)[::-1]


def parents(tasks: list[Task]) -> list[str | None]:
    """Return the parent of each task."""
    return [task.get("parentTaskId") for task in tasks]


def test_a_session_s_list_has_every_generation(server: House) -> None:
    """A list has children and grandchildren, attached and detached, live and ended, each with its parent, no others."""
    with server.connect() as talk:
        send(talk, "other", "delegate sleep")
        first = send(talk, "s", "delegate delegate sleep")
        tasks = family(talk, "s", 3)
        root, child, leaf = (task["id"] for task in tasks)
        assert root == first and parents(tasks) == [None, root, child]
        assert [task["sessionKey"] for task in tasks] == ["s"] * 3
        assert [task.get("childSessionKey") for task in tasks] == [None, f"run:{child}", f"run:{leaf}"]
        released = send(talk, "s", "release delegate sleep", queueMode="interrupt")
        talk.request("agent.wait", runId=released, timeoutMs=30_000)
        tasks = family(talk, "s", 2)
        assert parents(tasks) == [None, root, child, None, released, tasks[4]["id"]]
        assert [task["status"] for task in tasks] == ["cancelled"] * 3 + ["completed", "running", "running"]
        assert [task["id"] for task in listed(talk, "s", status="running")] == [tasks[5]["id"], tasks[4]["id"]]
        assert {task["id"] for task in listed(talk, "s", agentId="agent")} == {tasks[at]["id"] for at in (1, 2, 4, 5)}
        for task in tasks:
            assert talk.request("tasks.get", taskId=task["id"])["task"].get("parentTaskId") == task.get("parentTaskId")


def test_pages_of_a_list_have_each_task_once(server: House) -> None:
    """Pages of a list hold each task once, the latest first, in any number of pages."""
    with server.connect() as talk:
        send(talk, "s", "delegate delegate sleep")
        family(talk, "s", 3)
        send(talk, "s", "delegate sleep", queueMode="interrupt")
        whole = family(talk, "s", 2)
        found: list[Task] = []
        cursor: dict[str, str] = {}
        while True:
            page = talk.request("tasks.list", sessionKey="s", limit=2, **cursor)
            found += page["tasks"]
            if "nextCursor" not in page:
                break
            cursor = {"cursor": page["nextCursor"]}
        assert [task["id"] for task in found] == [task["id"] for task in whole[::-1]]
        assert parents(whole) == [None, whole[0]["id"], whole[1]["id"], None, whole[3]["id"]]


def test_whoever_sees_the_session_sees_all_below_it(server: House) -> None:
    """A guest of the session sees its children too; a stranger, and a guest whose share ended, find nothing."""
    owner, guest, other = (server.add(name, "write") for name in ("owner", "guest", "other"))
    with server.connect(owner) as talk, server.connect(guest) as visitor, server.connect(other) as stranger:
        send(talk, "s", "delegate sleep")
        tasks = family(talk, "s", 2)
        for session in ("s", "owner/s", f"run:{tasks[1]['id']}"):
            assert listed(visitor, session) == listed(stranger, session) == []
        talk.request("interlock.share", session="s", may="read", **{"with": "guest"})
        shared = listed(visitor, "owner/s")[::-1]
        assert parents(shared) == parents(tasks) and [task["id"] for task in shared] == [task["id"] for task in tasks]
        assert {task["sessionKey"] for task in shared} == {"owner/s"}
        assert listed(stranger, "owner/s") == []
        talk.request("interlock.unshare", session="s", **{"with": "guest"})
        assert listed(visitor, "owner/s") == []


def test_the_next_server_lists_what_the_last_one_left(data: Path) -> None:
    """The next server lists ended and crashed children with their parents, to their owner alone."""
    with house(data, *OPTIONS) as server:
        owner, other = server.add("owner", "write"), server.add("other", "write")
        with server.connect(owner) as talk:
            for message in ("delegate count 1", "release sleep"):
                done = talk.request("agent.wait", runId=send(talk, "s", message), timeoutMs=30_000)
                assert done["status"] == "ok"
            send(talk, "s", "delegate delegate sleep")
            before = family(talk, "s", 4)
            server.kill()
    with house(data, *OPTIONS) as server, server.connect(owner) as talk, server.connect(other) as stranger:
        after = family(talk, "s", 0)
        assert [task["id"] for task in after] == [task["id"] for task in before]
        assert parents(after) == parents(before)
        assert [task["status"] for task in after] == ["completed"] * 3 + ["failed"] * 2 + ["cancelled"] * 2
        assert listed(stranger, "s") == listed(stranger, "owner/s") == []


def test_lists_hold_the_beginning_of_a_reply_and_one_run_the_whole(server: House) -> None:
    """A list holds the beginning of a large reply, so that it stays readable; the task itself holds all of it."""

    async def play() -> None:
        async with wire(server.url, server.token) as on:
            large = {"sessionKey": "large", "message": "fill 100000", "idempotencyKey": "large"}
            run = (await on.request("chat.send", **large))["runId"]
            whole = (await on.ended(run))["message"]["content"][0]["text"]
            assert len(whole) > 500_000
            for method in ("tasks.list", "interlock.runs"):
                name = "sessionKey" if method == "tasks.list" else "session"
                asked = await on.ask(method, **{name: "large"})
                await on.answer(asked)
                frame = next(frame for frame in on.heard if frame.get("id") == asked)
                assert len(str(frame)) < 5_000
            assert (await on.request("tasks.get", taskId=run))["task"]["result"] == whole
            assert (await on.request("interlock.find", name=run))["outcome"]["text"] == whole

    asyncio.run(play())
