"""The private parts of other people's code that Interlock uses are where they were.

A row of PARTS is one name, the file that uses it, and a look at the installed library. A row that fails says what moved
and where it is used. Third-party libraries have an upper bound in pyproject.toml: raise it when every row holds.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import thread as futures_thread
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from multiprocessing import spawn
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvicorn
from anyio._backends import _asyncio as anyio_backend
from packaging.requirements import Requirement
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.asyncio.client import connect
from websockets.server import ServerProtocol

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src" / "interlock"
SERVER, HOST, POOLS, LOOP = "surfaces/server.py", "hosts/host.py", "agent/pools.py", "testing/loop.py"
WORKERS, WORKER, CLIENT = "processes/workers.py", "processes/worker.py", "client/connection.py"
WIRE, HELPER, KEEPER = "processes/wire.py", "processes/helper.py", "processes/keeper.py"


class Part(NamedTuple):
    """A private part of other people's code that Interlock takes for granted."""

    library: str  # a name on PyPI, or "python"
    name: str  # as the file writes it
    used_in: str  # below src/interlock
    holds: Callable[[], object]

    def __str__(self) -> str:
        return f"{self.library}: {self.name} in {self.used_in}"


def _uses(function: Any, name: str) -> bool:
    """Return whether a function of a library uses this name, so that an override of it is called."""
    return name in function.__code__.co_names


def _takes(function: Any, *names: str) -> bool:
    """Return whether a function takes these parameters, by position."""
    return [*inspect.signature(function).parameters] == [*names]


# uvicorn


@cache
def _protocol(kind: type[Any]) -> Any:
    """Return a protocol of uvicorn as it stands before its first byte."""
    config = uvicorn.Config(lambda: None, ws="none", lifespan="off", log_config=None)
    config.load()
    loop = asyncio.new_event_loop()
    try:
        return kind(config=config, server_state=ServerState(), app_state={}, _loop=loop)
    finally:
        loop.close()


def _of_uvicorn() -> Iterator[Part]:
    http, websocket = HttpToolsProtocol, WebSocketsSansIOProtocol
    overridden: list[tuple[Any, str, tuple[str, ...]]] = [
        (http, "connection_made", ("self", "transport")),
        (http, "data_received", ("self", "data")),
        (http, "on_message_begin", ("self",)),
        (http, "on_message_complete", ("self",)),
        (http, "handle_websocket_upgrade", ("self",)),
        (http, "connection_lost", ("self", "exc")),
        (websocket, "connection_made", ("self", "transport")),
        (websocket, "handle_connect", ("self", "event")),
        (websocket, "data_received", ("self", "data")),
        (websocket, "handle_parser_exception", ("self",)),
        (websocket, "send", ("self", "message")),
        (websocket, "keepalive_timeout", ("self",)),
        (websocket, "connection_lost", ("self", "exc")),
        (uvicorn.Server, "capture_signals", ("self",)),
    ]
    for kind, name, takes in overridden:
        yield Part("uvicorn", name, SERVER, lambda kind=kind, name=name, takes=takes: _takes(vars(kind)[name], *takes))
    calls: list[tuple[Any, str, str]] = [
        (http, "data_received", "handle_websocket_upgrade"),
        (websocket, "data_received", "handle_parser_exception"),
        (websocket, "handle_events", "handle_connect"),
        (websocket, "send_keepalive_ping", "keepalive_timeout"),
        (websocket, "pause_writing", "writable"),
        (websocket, "receive", "read_paused"),
        (websocket, "handle_close", "close_timer"),
        (uvicorn.Server, "serve", "capture_signals"),
    ]
    for kind, caller, name in calls:
        yield Part("uvicorn", name, SERVER, lambda kind=kind, at=caller, name=name: _uses(vars(kind)[at], name))
    for name in ("loop", "parser", "transport"):
        yield Part("uvicorn", name, SERVER, lambda name=name: hasattr(_protocol(http), name))
    fields = "loop transport conn queue writable read_paused close_sent close_timer disconnected"
    for name in fields.split():
        yield Part("uvicorn", name, SERVER, lambda name=name: hasattr(_protocol(websocket), name))
    for name in ("response", "scope"):
        yield Part("uvicorn", name, SERVER, lambda name=name: _uses(websocket.handle_connect, name))
    for name in ("started", "should_exit"):
        yield Part("uvicorn", name, SERVER, lambda name=name: _uses(uvicorn.Server.__init__, name))
    logged = inspect.getsource(inspect.getmodule(websocket))  # type: ignore[arg-type]
    yield Part("uvicorn", "Invalid UTF-8", SERVER, lambda: '"Invalid UTF-8' in logged)


# websockets


def _of_websockets() -> Iterator[Part]:
    for name in ("max_message_size", "close_sent", "state", "data_to_send"):
        yield Part("websockets", name, SERVER, lambda name=name: hasattr(ServerProtocol(), name))
    yield Part("websockets", "process_redirect", CLIENT, lambda: _takes(connect.process_redirect, "self", "exc"))
    yield Part(
        "websockets",
        "process_redirect",
        CLIENT,
        lambda: any(callable(each) and hasattr(each, "__code__") and _uses(each, "process_redirect")
                    for each in vars(connect).values()),
    )  # fmt: skip


# anyio


def _makes_its_sets_by_name() -> bool:
    """Return whether a cancel scope and a task group make their sets by the module's name `set`."""

    async def build() -> bool:
        scope = anyio_backend.CancelScope()
        group = anyio_backend.TaskGroup()
        return all(type(each) is marked for each in (scope._child_scopes, scope._tasks, group._tasks))

    class marked(dict[Any, None]):  # noqa: N801
        """A set that can be told from another."""

    names = vars(anyio_backend)
    assert "set" not in names
    names["set"] = marked
    try:
        return asyncio.run(build())
    finally:
        del names["set"]


def _of_anyio() -> Iterator[Part]:
    yield Part("anyio", "_threadpool_idle_workers", POOLS, lambda: anyio_backend._threadpool_idle_workers.get)
    yield Part("anyio", "WorkerThread", LOOP, lambda: issubclass(anyio_backend.WorkerThread, threading.Thread))
    yield Part("anyio", '"set"', LOOP, _makes_its_sets_by_name)
    yield Part("anyio", "_run_until_complete_cb", LOOP, lambda: anyio_backend._run_until_complete_cb)


# The standard library


@contextmanager
def _idle_pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        yield pool


def _is_known_by_its_queue() -> bool:
    with _idle_pool() as pool:
        (worker,) = pool._threads
        queue = futures_thread._threads_queues[worker]  # type: ignore[index]
        return worker._args[0]() is pool and queue is pool._work_queue  # type: ignore[attr-defined]


def _counts_its_idle_threads() -> bool:
    with _idle_pool() as pool:
        return isinstance(pool._idle_semaphore._value, int) and len(pool._threads) == 1


def _waits_in_its_worker() -> bool:
    """Return whether the innermost Python frame of an idle thread is `_worker` itself: its queue waits in C."""
    with _idle_pool() as pool:
        (worker,) = pool._threads
        for _ in range(1000):
            frame = sys._current_frames()[worker.ident or 0]
            if frame.f_code is futures_thread._worker.__code__:
                return True
            threading.Event().wait(0.001)
    return False


def _of_futures() -> Iterator[Part]:
    yield Part("python", "_threads_queues", POOLS, _is_known_by_its_queue)
    yield Part("python", "_args", POOLS, _is_known_by_its_queue)
    yield Part("python", "_idle_semaphore", POOLS, _counts_its_idle_threads)
    yield Part("python", "_worker", POOLS, _waits_in_its_worker)
    yield Part("python", "_current_frames", POOLS, lambda: sys._current_frames)


def _in_a_loop(look: Callable[[Any, asyncio.Task[Any], asyncio.Handle], object]) -> object:
    """Look in a running loop, with a task that waits and a callback that is queued."""

    async def ask() -> object:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(asyncio.Event().wait())
        await asyncio.sleep(0)
        handle = loop.call_soon(int)
        try:
            return look(loop, task, handle)
        finally:
            task.cancel()

    return asyncio.run(ask())


def _names_its_steps() -> bool:
    """Return whether a task's first step is known by its type, and a later one by its name and owner."""

    async def nothing() -> None:
        waits = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(waits.set_result, None)
        await waits

    async def ask() -> list[Any]:
        loop, found = asyncio.get_running_loop(), []
        plain = loop.call_soon

        def spy(callback: Any, *args: Any, **options: Any) -> asyncio.Handle:
            found.append(callback)
            return plain(callback, *args, **options)

        loop.call_soon = spy  # type: ignore[method-assign]
        await asyncio.ensure_future(nothing())
        return found

    from interlock.testing.loop import _is_step  # noqa: PLC0415 - the rule itself

    queued = asyncio.run(ask())
    return len([each for each in queued if _is_step(each)]) >= 2


def _of_asyncio() -> Iterator[Part]:
    yield Part("python", "_scheduled", HOST, lambda: _in_a_loop(lambda loop, task, handle: loop._scheduled == []))
    yield Part("python", "_ready", HOST, lambda: _in_a_loop(lambda loop, task, handle: handle in loop._ready))
    yield Part("python", "_selector", HOST, lambda: _in_a_loop(lambda loop, task, handle: [*loop._selector.get_map()]))
    yield Part("python", "_fut_waiter", HOST, lambda: _in_a_loop(lambda loop, task, handle: task._fut_waiter))
    yield Part("python", "_callback", HOST, lambda: _in_a_loop(lambda loop, task, handle: handle._callback is int))
    yield Part("python", "_read_from_self", HOST, lambda: _in_a_loop(_reads_from_itself))
    yield Part("python", "_cancelled", LOOP, lambda: _in_a_loop(lambda loop, task, handle: handle._cancelled is False))
    yield Part("python", "_run", LOOP, lambda: asyncio.Handle._run)
    for name in ("_context", "_loop", "_callback", "_args", "_cancelled", "_repr", "_source_traceback"):
        yield Part("python", name, LOOP, lambda name=name: name in asyncio.Handle.__slots__)
    cancel = asyncio.TimerHandle.cancel
    yield Part("python", "_timer_handle_cancelled", LOOP, lambda: _uses(cancel, "_timer_handle_cancelled"))
    for name in ("_log_traceback", "_log_destroy_pending"):
        yield Part("python", name, LOOP, lambda name=name: hasattr(asyncio.Task, name))
    yield Part("python", "_PyTask", LOOP, lambda: asyncio.tasks._PyTask)  # type: ignore[attr-defined]
    yield Part("python", "TaskStepMethWrapper", LOOP, _names_its_steps)
    yield Part("python", "task_wakeup", LOOP, _names_its_steps)
    for name in ("_get_running_loop", "_set_running_loop"):
        yield Part("python", name, LOOP, lambda name=name: hasattr(asyncio.events, name))
    known = asyncio.base_events
    yield Part("python", "_run_until_complete_cb", LOOP, lambda: known._run_until_complete_cb)  # type: ignore[attr-defined]


def _reads_from_itself(loop: Any, task: asyncio.Task[Any], handle: asyncio.Handle) -> bool:
    watched = [each for key in loop._selector.get_map().values() for each in key.data if each is not None]
    return [each._callback.__name__ for each in watched] == ["_read_from_self"]


def _of_the_rest() -> Iterator[Part]:
    yield Part("python", "get_preparation_data", WORKERS, lambda: spawn.get_preparation_data("x")["sys_path"])
    yield Part("python", "spawn.prepare", WORKER, lambda: _takes(spawn.prepare, "data"))
    for file in (WIRE, HELPER, KEEPER):
        yield Part("python", "_socket", file, lambda: importlib.import_module("_socket").socket)


PARTS = [*_of_uvicorn(), *_of_websockets(), *_of_anyio(), *_of_futures(), *_of_asyncio(), *_of_the_rest()]


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_a_private_part_is_where_it_was(part: Part) -> None:
    """The library has the name, and it means what Interlock takes it to mean."""
    try:
        why = "" if part.holds() else "it is not what it was"
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    installed = sys.version.split()[0] if part.library == "python" else version(part.library)
    assert not why, (
        f"`{part.name}` of {part.library} {installed} has moved ({why}); src/interlock/{part.used_in} leans on it: "
        "follow it there, or keep that version out in pyproject.toml"
    )


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_a_row_names_what_its_file_uses(part: Part) -> None:
    """A row whose use is gone from its file must go too."""
    assert part.name in (SOURCES / part.used_in).read_text("utf-8"), f"{part}: not used there any more"


@pytest.mark.parametrize("library", sorted({part.library for part in PARTS} - {"python"}))
def test_a_library_with_private_parts_has_an_upper_bound(library: str) -> None:
    """A library with private parts has an upper bound, so that nobody installs a version in which no row was tried."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = [each for name, extra in project["optional-dependencies"].items() if name != "dev" for each in extra]
    wanted = [each for each in map(Requirement, project["dependencies"] + extras) if each.name == library]
    assert wanted and all(any(limit.operator == "<" for limit in each.specifier) for each in wanted)
    assert all(each.specifier.contains(version(library)) for each in wanted)
