"""A gateway over a store in memory: `python -m surfaces.lasting AGENT --json --data DIR --port 0`.

The store outlives the gateway: a line on the input closes control and gateway in order and opens them anew over the
same store, on the same port.
"""

import argparse
import asyncio
import sys

from interlock import open_control
from interlock.app import Ready, asgi
from interlock.protocol.frames import encode
from interlock.runtime.settings import Settings
from interlock.stores.memory import MemoryStore
from interlock.surfaces import server
from interlock.surfaces.listener import listen, url_of


async def serve(agent: str, data: str) -> None:
    """Serve until the input ends."""
    store, port, loop = MemoryStore(), 0, asyncio.get_running_loop()
    while True:
        listener = listen("127.0.0.1", port)
        port = listener.getsockname()[1]
        settings = Settings(drain_seconds=1.0, grace_seconds=1.0)
        async with open_control(agent, driver="inline", store=store, settings=settings) as control:
            gateway = asgi(control, data=data, allow_hosts=(f"127.0.0.1:{port}",))
            ready = Ready(url=url_of(listener), page="", token_file=str(gateway.access.token), grade="")
            over = asyncio.Event()

            def tell(ready: Ready = ready) -> None:
                sys.stdout.write(encode(ready).decode() + "\n")
                sys.stdout.flush()

            serving = loop.create_task(server.serve(gateway, listener, tell, over))
            line = await loop.run_in_executor(None, sys.stdin.readline)
            await control.close()
            await gateway.shut()
            over.set()
            await serving
        if not line:
            return


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("agent")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--data")
    parser.add_argument("--port")
    asked = parser.parse_args()
    asyncio.run(serve(asked.agent, asked.data))
