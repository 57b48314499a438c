"""Tools and the gate: a batch is stopped halfway; a synchronous tool runs in a thread."""

import asyncio
import time

from interlock import Message, Run, open_control, tool
from interlock.core.events import Tool


async def fetch(page: int) -> str:
    """Fetch a page; an async tool is a plain function."""
    await asyncio.sleep(0.05 if page == 1 else 30)
    return f"page {page}"


@tool(name="word_count", thread=True)
def count(text: str) -> int:
    """Count words in a thread, as declared: its effects are fenced, but nobody can end it."""
    time.sleep(0.01)
    return len(text.split())


async def assistant(run: Run, message: Message) -> str:
    """Count words in a thread, then fetch three pages one after the other."""
    words = await run.call(count, text=message.text)
    await run.post(f"You said {words} words.")
    results = await run.batch([(fetch, {"page": page}) for page in (1, 2, 3)])
    return ", ".join(str(result.value) for result in results)


async def main() -> None:
    """Stop the run while the second page is being fetched."""
    async with open_control(assistant) as control:
        sent = await control.send("alice", "fetch three pages")
        second_page = f"{sent.run_id}.3"  # numbered within the run; count was the first call
        async for event in control.watch(run=sent.run_id):
            if isinstance(event.data, Tool) and (event.data.call_id, event.data.state) == (second_page, "running"):
                break
        receipt = await control.stop(run=sent.run_id)
        for call in receipt.tools:
            print(f"{call.name}: {call.state}")
        print("-- what the next turn's model reads --")
        for entry in await control.history("alice"):
            mark = f" (cut: {entry.ending})" if entry.cut else ""
            print(f"{entry.role}: {entry.text or entry.arguments or ''}{mark}")


if __name__ == "__main__":
    asyncio.run(main())
