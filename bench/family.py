"""From `run.delegate` to the child's first word, against a top-level send's: the same way in, a new session in both.

The clock runs from the call to the moment a coroutine that waits for the word has it, in both.
"""

import asyncio
import gc

from bench.result import Result
from bench.sample import Samples, still
from bench.scale import Scale
from interlock import Message, Run, open_control

PER_ROUND = 50
GOAL = 3.0


class Words:
    """Wakes the coroutine that waits for the next word."""

    def __init__(self) -> None:
        self.heard = asyncio.Event()
        self.taken = Samples()
        self.rounds = 1

    async def child(self, run: Run, message: Message) -> None:
        """Say one word and return."""
        await run.say("word")
        self.heard.set()

    async def parent(self, run: Run, message: Message) -> None:
        """Delegate again and again, timing each."""
        taken, rounds = self.taken, self.rounds
        with still():
            for _ in range(rounds):
                for _ in range(PER_ROUND):
                    self.heard.clear()
                    with taken.clock():
                        work = asyncio.ensure_future(run.delegate("child", "go"))
                        await self.heard.wait()
                    await work
                    await asyncio.sleep(0.001)
                gc.collect()


def measure(scale: Scale) -> list[Result]:
    """Return p50 of a child's first word over a top-level send's."""
    return asyncio.run(_measure(scale))


async def _measure(scale: Scale) -> list[Result]:
    words, rounds = Words(), scale.rounds(20, 4)
    sent, delegated, number = Samples(), Samples(), 0
    async with open_control(words.child) as plain, open_control(words.parent, agents={"child": words.child}) as family:
        for round_ in range(2):  # the first round warms up and is not counted
            words.taken, words.rounds = (delegated if round_ else Samples()), (rounds if round_ else 1)
            await family.wait((await family.send("parent", "go")).run_id)
            with still():
                for _ in range(words.rounds):
                    for _ in range(PER_ROUND):
                        number += 1
                        words.heard.clear()
                        with (sent if round_ else Samples()).clock():
                            work = asyncio.ensure_future(plain.send(f"session {number}", "go"))
                            await words.heard.wait()
                        await work
                        await asyncio.sleep(0.001)
                    gc.collect()
    small = (f"delegate {delegated.spread()}", f"send     {sent.spread()}")
    value = delegated.percentile(50) / sent.percentile(50)
    return [
        Result(name="delegate to the child's first output / a top-level send's", value=value, goal=GOAL, small=small)
    ]
