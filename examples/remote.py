"""Remote: a gateway, and another process that follows a run, answers what it asks and stops it."""

import asyncio
import json
import subprocess
import sys
import tempfile

from interlock import Event, QuestionState, events
from interlock.client import connect


def words(event: Event) -> str:
    match event.data:
        case events.QuestionData(text=text, state=QuestionState.OPEN):
            return f"asked: {text}"
        case events.Tool(name=name, state="running" | "finished" | "interrupted" as state):
            return f"tool {name} {state}"
        case events.Ended(outcome=outcome):
            return f"ended: {outcome.ending}"
    return ""


async def talk(url: str, data: str) -> None:
    """Print a run's events; say yes to its question, and stop it at its second tool."""
    async with connect(url, data=data) as client:  # from another machine: connect(url, token)
        sent, begun = await client.send("alice", "deploy", key="k1"), 0  # the same key again would be the same run
        async for event in client.watch(run=sent.run_id):  # after a lost connection, goes on where it was
            print(words(event), end="\n" if words(event) else "")
            if isinstance(event.data, events.QuestionData) and event.data.state is QuestionState.OPEN:
                await client.answer(event.data.question_id, True)
            begun += words(event) == "tool rehearse running"
            if begun == 2:
                begun, receipt = 3, await client.stop(run=sent.run_id)
        await client.wait(sent.run_id, drained=True)
        print(f"receipt {receipt.id}: {(await client.receipt(receipt.id)).drain}")


def main(data: str) -> None:
    interlock = [sys.executable, "-m", "interlock.cli"]
    options = ["--json", "--port=0", f"--data={data}", "--log-level=error"]
    with subprocess.Popen([*interlock, "serve", *options], stdout=subprocess.PIPE, text=True) as server:  # the demo
        asyncio.run(talk(json.loads(server.stdout.readline())["url"], data))
        server.terminate()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(place)
