"""`python -m bench.floor [--plain] [--disk DIR]`: the floor of the gateway's figures, a bare broadcast.

The uvicorn, protocol classes and sockets are ours (`--plain`: uvicorn as it comes). The application only sends the
frames it was given (at `/echo`, those it is sent; at `/durable` too, each after an append to a file in DIR and an
fdatasync in a thread). Over `/control` a bench says which frames, and when to
begin and to stop; each round sends every frame to every client, then lets the loop go round once, as an agent's `say`
does.
"""

import argparse
import asyncio
import json
import os
import socket
from pathlib import Path
from typing import Any

import uvicorn

from interlock.surfaces import server

GREETING = '{"type":"event","event":"connect.challenge"}'
FLUSHED = bytes(7 * 4096)  # as many pages as a stop adds to SQLite's write-ahead log
LET_IN = '{"type":"res","id":"0","ok":true}'


class Broadcast:
    """An ASGI application that sends every client the same frames."""

    def __init__(self, disk: Path | None = None) -> None:
        self._disk = disk
        self._clients: list[Any] = []
        self._speaking: asyncio.Task[None] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one connection."""
        await receive()
        await send({"type": "websocket.accept"})
        if scope["path"] in ("/echo", "/durable"):  # for a page, which expects no welcome
            while (message := await receive())["type"] == "websocket.receive":
                scope.get("state", {}).get("welcome", bool)()
                if scope["path"] == "/durable":
                    await asyncio.to_thread(self._flush)
                await send({"type": "websocket.send", "text": message["text"]})
            return
        await send({"type": "websocket.send", "text": GREETING})
        await receive()
        await send({"type": "websocket.send", "text": LET_IN})
        if "welcome" in scope.get("state", {}):
            scope["state"]["welcome"]()
        if scope["path"] == "/control":
            while (message := await receive())["type"] == "websocket.receive":
                told = json.loads(message["text"])
                await self._speak(told["params"]["frames"])
                await send({"type": "websocket.send", "text": f'{{"type":"res","id":"{told["id"]}","ok":true}}'})
            return
        self._clients.append(send)
        while (await receive())["type"] == "websocket.receive":
            pass
        self._clients.remove(send)

    def _flush(self) -> None:
        assert self._disk is not None
        with (self._disk / "flushed").open("ab", buffering=0) as file:
            file.write(FLUSHED)
            os.fdatasync(file)

    async def _speak(self, frames: list[str]) -> None:
        if self._speaking is not None:
            self._speaking.cancel()
            await asyncio.wait((self._speaking,))
        self._speaking = asyncio.create_task(self._flood(frames)) if frames else None

    async def _flood(self, frames: list[str]) -> None:
        while True:
            for send in self._clients:
                for frame in frames:
                    await send({"type": "websocket.send", "text": frame})
            await asyncio.sleep(0)


async def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--disk", type=Path)
    asked = parser.parse_args()
    application: Any = Broadcast(asked.disk)
    if asked.plain:
        listener = socket.create_server(("127.0.0.1", 0))
        serving = uvicorn.Server(uvicorn.Config(application, log_level="error", lifespan="off"))
    else:
        listener = server.listen("127.0.0.1", 0)
        serving = server.Server(application)
    print(json.dumps({"url": server.url_of(listener)}), flush=True)
    await serving.serve(sockets=[listener])


if __name__ == "__main__":
    import uvloop

    uvloop.run(main())
