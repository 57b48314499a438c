"""Mounted: the gateway inside a web application of your own, and a client that talks to it and stops a run."""

import asyncio
import socket
import tempfile
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from interlock import Message, Run, asgi, open_control
from interlock.client import connect


async def assistant(run: Run, message: Message) -> str:
    while message.text == "sing":
        await run.say("la ")
        await asyncio.sleep(0.02)
    return f"You said: {message.text}"


async def talk(url: str, data: Path) -> None:
    """Talk as another program would; from another machine, with token=."""
    async with connect(url, data=data) as client:
        sent = await client.send("alice", "sing")
        await anext(client.watch(run=sent.run_id))  # until the run has begun
        receipt = await client.stop(session="alice")
        print(f"{receipt.by} stopped it: {(await client.wait(sent.run_id)).ending}")
        print((await client.wait((await client.send("alice", "hello")).run_id)).text)


async def main(data: Path) -> None:
    async with open_control(assistant, store=f"sqlite:///{data}") as control:
        gateway = asgi(control, data=data)  # `data` holds the gateway's tokens and its audit
        page = Route("/", lambda request: PlainTextResponse("a page of your own"))
        app = Starlette(routes=[page, Mount("/agents", gateway)])
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="websockets-sansio"))
        serving = asyncio.create_task(server.serve([listener]))
        await talk(f"http://127.0.0.1:{listener.getsockname()[1]}/agents/", data)
        server.should_exit = True
        await serving


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        asyncio.run(main(Path(place) / "data"))
