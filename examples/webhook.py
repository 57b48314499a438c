"""A sink that posts to a web hook: it asks after it has connected, in the step that writes the request."""

import asyncio
from contextlib import closing

from interlock import Control, Ending, Message, Run, events, open_control


async def webhook(control: Control, session: str, *, port: int) -> None:
    """Post each block of a session to a hook on this machine, one after the other."""
    async for event in control.watch(session):
        if (run := event.run_id) is not None and isinstance(event.data, events.Block):
            body = event.data.text.encode()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)  # before the question: this takes time
            with closing(writer):
                if control.is_current(run) or (await control.wait(run)).ending is Ending.COMPLETED:
                    writer.write(b"POST /hook HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                    await reader.read()


async def assistant(run: Run, message: Message) -> None:
    """Say so many lines at once; with many, go on thinking."""
    for number in range(int(message.text)):
        await run.post(f"{number + 1}/{message.text}")
    await asyncio.sleep(60 if message.text == "20" else 0)


async def main() -> None:
    """Serve a hook, stop a long answer that is being posted to it, then let a short one pass."""
    posted: asyncio.Queue[str] = asyncio.Queue()

    async def hook(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if request := await reader.read(4096):  # empty if the run fell while its connection was made
            posted.put_nowait(request.decode().partition("\r\n\r\n")[2])
            if b"3/20" in request:  # a person says stop while this request is under way
                await control.stop(session="alice")
                await control.send("alice", "1")
            writer.write(b"HTTP/1.0 204 No Content\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(hook, "127.0.0.1", 0) as server, open_control(assistant) as control:
        await control.send("alice", "20")
        sink = asyncio.create_task(webhook(control, "alice", port=server.sockets[0].getsockname()[1]))
        print("posted:", *[await posted.get() for _ in range(4)])
    await sink  # the watch ends with its control


if __name__ == "__main__":
    asyncio.run(main())
