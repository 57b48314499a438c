"""A small gateway of the published protocol that keeps its promises, except for the faults it is given.

1. The gateway runs in a thread of its own, on a real socket. The published schema checks every request, so a client
   that sends anything unpublished fails there.
2. A fault does one thing wrong, an exact number of times, so that a test can assert what a probe says of it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Callable
from typing import Any, Self

import websockets
from websockets.asyncio.server import Server, ServerConnection, serve

from surfaces.protocol import PARAMS, check_frame

PAUSE_SECONDS = 0.02  # pause between two pieces of a reply
LATE = 3  # events that a fault sends too late
BOUND_SECONDS = 30.0
METHODS = ["connect", "chat.send", "chat.abort", "agent", "agent.wait"]

Frame = dict[str, Any]
NONSENSE: list[Any] = [
    None,
    [],
    "?",
    {"runId": ["x"]},
    {"stream": [], "data": []},
    {"data": {"phase": [], "status": 7}},
]


class Run:
    """A run: its request, and how it ended."""

    def __init__(self, id_: str, session: str, request: str | None) -> None:
        self.id, self.session, self.request = id_, session, request
        self.seq = itertools.count(1)
        self.task: asyncio.Task[None] | None = None
        self.ending: str | None = None  # stopped, timeout, completed


WAIT = {
    None: {"status": "pending"},
    "stopped": {"status": "error", "stopReason": "rpc", "endedAt": 1},
    "timeout": {"status": "timeout", "timeoutPhase": "provider", "endedAt": 1},
    "completed": {"status": "ok", "endedAt": 1},
}
CHAT: dict[str, Frame] = {
    "stopped": {"state": "aborted", "stopReason": "rpc"},
    "timeout": {"state": "error", "errorKind": "timeout", "errorMessage": "timed out"},
    "completed": {"state": "final"},
}
LIFECYCLE: dict[str, Frame] = {
    "stopped": {"phase": "end", "status": "cancelled"},
    "timeout": {"phase": "error", "status": "timeout"},
    "completed": {"phase": "end"},
}


class Connection:
    """A client's connection, and its runs."""

    def __init__(self, gateway: Leaky, socket: ServerConnection) -> None:
        self.gateway, self.socket = gateway, socket
        self.runs: dict[str, Run] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    def has(self, fault: str) -> bool:
        """Return whether the gateway has this fault."""
        return fault in self.gateway.faults

    async def serve(self) -> None:
        """Serve the client until it hangs up."""
        await self.event("connect.challenge", {"nonce": "n", "ts": 1})
        try:
            async for raw in self.socket:
                frame = check_frame(raw, sent_by_client=True)
                assert frame["method"] in PARAMS, f"not published: {frame['method']}"
                self.gateway.asked.append(frame)
                await getattr(self, "on_" + frame["method"].replace(".", "_"))(frame["id"], frame["params"])
        except websockets.ConnectionClosed:
            pass
        except AssertionError as wrong:
            self.gateway.wrong.append(str(wrong))
            raise
        finally:
            for task in self.tasks:
                task.cancel()

    async def event(self, name: str, payload: Frame | None) -> None:
        """Send an event."""
        await self.socket.send(json.dumps({"type": "event", "event": name, "payload": payload}))

    async def answer(self, number: str, payload: Frame) -> None:
        """Answer a request."""
        await self.socket.send(json.dumps({"type": "res", "id": number, "ok": True, "payload": payload}))

    async def refuse(self, number: str, code: str, message: str) -> None:
        """Answer a request with an error."""
        error = {"code": code, "message": message}
        await self.socket.send(json.dumps({"type": "res", "id": number, "ok": False, "error": error}))

    async def chat(self, run: Run, **payload: Any) -> None:
        """Send a chat event of a run."""
        await self.event("chat", {"runId": run.id, "sessionKey": run.session, "seq": next(run.seq), **payload})

    async def agent(self, run: Run, stream: str, **data: Any) -> None:
        """Send an agent event of a run."""
        await self.event("agent", {"runId": run.id, "seq": next(run.seq), "stream": stream, "ts": 1, "data": data})

    async def piece(self, run: Run) -> None:
        """Send a piece of a reply, on both streams."""
        await self.chat(run, state="delta", deltaText="word ")
        await self.agent(run, "assistant", delta="word ")

    # Requests

    async def on_connect(self, number: str, params: Frame) -> None:
        """Answer connect with a hello."""
        assert params["client"]["id"] == "gateway-client" and params["auth"]["token"]
        if self.has("wants a device key"):
            return await self.refuse(number, "NOT_PAIRED", "pairing required")
        hello = {
            "type": "hello-ok",
            "protocol": 3 if self.has("speaks another version") else 4,
            "server": {"version": "leaky 1", "connId": "c"},
            "features": {"methods": METHODS, "events": ["chat", "agent"]},
            "snapshot": {"presence": [], "health": {}, "stateVersion": {"presence": 0, "health": 0}, "uptimeMs": 1},
            "auth": {"role": "operator", "scopes": [] if self.has("grants nothing") else params["scopes"]},
            "policy": {"maxPayload": 1 << 20, "maxBufferedBytes": 1 << 20, "tickIntervalMs": 15_000},
        }
        return await self.answer(number, hello)

    async def on_chat_send(self, number: str, params: Frame) -> None:
        """Start a run for a person; it takes over the session's earlier runs."""
        mode = params.get("queueMode")
        if self.has("grants nothing"):
            return await self.refuse(number, "FORBIDDEN", "missing scope: operator.write")
        if self.has("knows no interrupt") and mode is not None:
            return await self.refuse(number, "INVALID_REQUEST", f"queueMode {mode} is not known")
        goes_on = self.has("queues by default") if mode is None else self.has("ignores the takeover")
        if not goes_on:
            for old in [run for run in self.runs.values() if run.session == params["sessionKey"]]:
                await self.end(old, "stopped")
        if self.has("registers late"):
            self.tasks.add(asyncio.create_task(self.register(number, params)))
        else:
            await self.register(number, params, wait=0)
        return None

    async def register(self, number: str, params: Frame, wait: float = 0.2) -> None:
        """Begin a run and answer its request."""
        await asyncio.sleep(wait)
        run = self.begin(params, None)
        await self.answer(number, {"runId": run.id, "status": "started"})

    async def on_agent(self, number: str, params: Frame) -> None:
        """Start a run for a program."""
        run = self.begin(params, number)
        await self.answer(number, {"runId": run.id, "status": "accepted", "acceptedAt": 1})

    def begin(self, params: Frame, request: str | None) -> Run:
        """Begin a run in its own task."""
        run = Run(params["idempotencyKey"], params["sessionKey"], request)
        limit = params["timeoutMs"] / 1000 if params.get("timeoutMs") else params.get("timeout")
        self.runs[run.id] = run
        run.task = asyncio.create_task(self.perform(run, params["message"], limit))
        self.tasks.add(run.task)
        return run

    async def perform(self, run: Run, text: str, limit: float | None) -> None:
        """Stream text, or use a tool, until the run is ended."""
        begun = time.monotonic()
        if self.has("says nothing"):
            await asyncio.sleep(BOUND_SECONDS)
        await self.agent(run, "lifecycle", phase="start")
        for payload in NONSENSE if self.has("talks nonsense beside it") else ():
            await self.event("agent", payload)
            await self.event("chat", payload)
            await self.event("agent", {"runId": run.id, **(payload if isinstance(payload, dict) else {})})
        if text.startswith("tool"):
            await self.agent(run, "tool", phase="start", name="sleep", toolCallId="t")
            await asyncio.sleep(BOUND_SECONDS)
        while limit is None or time.monotonic() - begun < limit or self.has("ignores the limit"):
            await self.piece(run)
            if self.has("ends by itself"):
                return await self.end(run, "completed")
            await asyncio.sleep(PAUSE_SECONDS)
        run.task = None
        await self.end(run, "completed" if self.has("a limit is told as ok") else "timeout")
        if self.has("speaks after the limit"):
            await self.piece(run)
        return None

    async def end(self, run: Run, ending: str) -> None:
        """End a run, and send its terminal events."""
        if run.ending is not None:
            return
        run.ending = ending
        if run.task is not None and run.task is not asyncio.current_task():
            run.task.cancel()
        await self.chat(run, **CHAT[ending])
        if self.has("tells two endings"):
            await self.chat(run, **CHAT[ending])
        await self.agent(run, "lifecycle", **LIFECYCLE[ending])
        if run.request is not None:
            await self.answer(run.request, {"runId": run.id, **WAIT[ending]})

    async def on_chat_abort(self, number: str, params: Frame) -> None:
        """Stop a run, or all runs of a session."""
        if self.has("hangs up at a stop") or (
            self.has("hangs up at the first stop") and len(self.gateway.stops()) == 1
        ):
            return await self.socket.close(1011, "oops")
        if self.has("never answers a stop"):
            return None
        if self.has("refuses stops"):
            return await self.refuse(number, "INVALID_REQUEST", "not allowed to stop")
        found = [run for run in self.runs.values() if run.session == params["sessionKey"] and run.ending is None]
        if "runId" in params:
            found = [run for run in found if run.id == params["runId"]]
        for run in found:
            await self.end(run, "completed" if self.has("ends as the stop comes") else "stopped")
        found = [run for run in found if run.ending == "stopped"]
        ids = [run.id for run in found]
        await self.answer(number, {"ok": True, "aborted": bool(found), "runIds": ids})
        for run in found if "runId" in params else ():
            for _ in range(LATE):
                if self.has("streams on after the ack"):
                    await self.piece(run)
                if self.has("tells tools after the ack"):
                    await self.agent(run, "tool", phase="update", name="sleep", toolCallId="t")
        return None

    async def on_agent_wait(self, number: str, params: Frame) -> None:
        """Answer how a run ended."""
        run = self.runs[params["runId"]]
        words = WAIT["completed" if self.has("a wait says ok") and run.ending == "stopped" else run.ending]
        await self.answer(number, {"runId": run.id, **words})


class Leaky:
    """The gateway, for the length of a block."""

    def __init__(self, *faults: str) -> None:
        self.faults = set(faults)
        self.asked: list[Frame] = []
        self.wrong: list[str] = []
        self.url = ""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="leaky gateway")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with serve(self._meet, "127.0.0.1", 0) as server:
            self.url = _url(server)
            self._ready.set()
            await self._over.wait()

    async def _meet(self, socket: ServerConnection) -> None:
        await Connection(self, socket).serve()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(BOUND_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None and self._over is not None
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(BOUND_SECONDS)
        assert not self._thread.is_alive()
        assert self.wrong == []

    def stops(self) -> list[Frame]:
        """Return the params of the stops received."""
        return [frame["params"] for frame in self.asked if frame["method"] == "chat.abort"]

    def sessions(self) -> set[str]:
        """Return the sessions that got messages."""
        return {frame["params"]["sessionKey"] for frame in self.asked if frame["method"] in ("chat.send", "agent")}


def _url(server: Server) -> str:
    return f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that another thread meets."""
    deadline = time.monotonic() + BOUND_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
