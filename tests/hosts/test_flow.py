"""Flow: a host's output, and a host that does not read, cost control a bounded amount, and other sessions nothing.

Every host here is a real process. Where a test needs a host that ignores the limits of the protocol, its agent takes
the socket of that host and writes to it.
"""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median

import pytest

from interlock import Control, Ending, Outcome, open_control
from interlock.core.names import ErrorKind, EventKind

pytestmark = pytest.mark.long

BOUND_SECONDS = 120.0
FLOOD_SECONDS = 1.0
# Another session may wait so long on a loaded machine; a flood goes on for far longer.
STALL_SECONDS = 15.0
MIB = 1024 * 1024

AGENT = '''
"""Agents that say too much, or listen too little."""

import os
import time

from interlock import BadInput, SpawnFailed, tool
from interlock.agent import verbs
from interlock.hosts import link

LIFE_SECONDS = 300
plays = {}


def play(function):
    plays[function.__name__] = function
    return function


async def agent(run, message):
    name, _, rest = message.text.partition(" ")
    return await plays[name](run, rest)


def bytes_of(run, word):
    """Put words on the link that nobody holds back, for a while."""
    port, until = run._port, time.monotonic() + LIFE_SECONDS
    os.set_blocking(port._link._saying, True)
    data = link.frame(word(port.turn.number)) * 1_000
    while time.monotonic() < until:
        os.write(port._link._saying, data)


@play
async def echo(run, rest):
    return rest


@play
async def says(run, rest):
    while True:
        await run.say("")
        await run.progress("x" * 1_000)


@play
async def pours(run, rest):
    bytes_of(run, lambda turn: link.Tell(turn, verbs.SetProgress("x" * 1_000, None, None)))


@play
async def drips(run, rest):
    bytes_of(run, lambda turn: link.Tell(turn, verbs.SetTyping(True)))


@play
async def lingers(run, rest):
    bytes_of(run, lambda turn: link.Tell(turn - 1, verbs.Say("of a turn that is over")))


@play
async def deaf(run, rest):
    """Ask for a long text again and again, and read no answer."""
    process = await run.spawn("sh", "-c", "head -c 1000000 /dev/zero | tr '\\\\0' x", background=True)
    await process.wait()
    port = run._port
    os.set_blocking(port._link._saying, True)
    for number in range(1, 1_000):
        number += port.turn.number << 33
        os.write(port._link._saying, link.frame(link.Ask(port.turn.number, number, verbs.ReadOutput(process._number))))
    time.sleep(LIFE_SECONDS)


@play
async def counts(run, rest):
    for number in range(int(rest)):
        await run.say(f"{number} ")


@play
async def posts(run, rest):
    character, size = rest.split()
    await run.post(character * int(size))


@play
async def feeds(run, rest):
    done = await run.spawn("wc", "-c", input=b"x" * int(rest))
    return done.output.strip()


@play
async def reads(run, rest):
    return str(sum(len(entry.text) for entry in await run.history()))


@tool
async def long(text: str) -> int:
    return len(text)


@tool
async def returns(size: int) -> str:
    return "x" * size


@play
async def calls(run, rest):
    """Hand over more than a message may hold, in each way there is; all but a note of progress, which is cut."""
    size, refused = 40 * 1024 * 1024, []
    for attempt in (
        lambda: run.call(long, text="x" * size),
        lambda: run.call(returns, size=size),
        lambda: run.progress("x" * size),
        lambda: run.spawn("true", "x" * size),
    ):
        try:
            await attempt()
        except (BadInput, SpawnFailed) as error:
            refused.append(str(error))
    return f"{len(refused)} refused, then {await run.call(long, text='x')}"
'''


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write the agents where a zygote can import them; return their name."""
    (tmp_path / "talkers.py").write_text(AGENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "talkers:agent"


def flows(main: Callable[[Control], Awaitable[None]], agent: str) -> None:
    """Run a test with a control whose agents are in hosts."""

    async def bounded() -> None:
        async with asyncio.timeout(BOUND_SECONDS), open_control(agent, driver="host") as control:
            await main(control)

    asyncio.run(bounded())


async def ended(control: Control, session: str, text: str) -> Outcome:
    """Send a message and wait for the end of its run."""
    return await control.wait((await control.send(session, text)).run_id)


def resident() -> int:
    """Return how many bytes of this process are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@contextmanager
def growth(limit: int) -> Iterator[Callable[[], None]]:
    """Check that the block makes this process no bigger than that; yield a function that looks in between."""
    gc.collect()
    before, most = resident(), 0

    def look() -> None:
        nonlocal most
        most = max(most, resident() - before)

    yield look
    look()
    assert most < limit, f"control grew by {most / MIB:.0f} MiB"


@asynccontextmanager
async def beside(control: Control, session: str = "beside") -> AsyncIterator[list[float]]:
    """Send one message after another in a session; yield how long each took."""
    times: list[float] = []
    assert (await ended(control, session, "echo first")).text == "first"  # the session has its host from here on

    async def sends() -> None:
        while True:
            at = time.monotonic()
            outcome = await ended(control, session, "echo again")
            assert outcome.text == "again", outcome
            times.append(time.monotonic() - at)

    task = asyncio.create_task(sends())
    try:
        yield times
    finally:
        alive = not task.done()
        task.cancel()
        await asyncio.wait([task])
        assert alive, task.exception()


@pytest.mark.parametrize("play", ["says", "pours", "drips", "lingers"])
def test_a_host_that_floods_costs_a_share_of_the_loop_and_no_memory(agent: str, play: str) -> None:
    """Other sessions go on during any flood; a stop of the flood is acknowledged at once, and the next is served."""

    async def main(control: Control) -> None:
        await ended(control, "flood", "echo first")
        async with beside(control) as times:
            await until(lambda: len(times) >= 5)
            with growth(96 * MIB) as look:  # the store keeps the last 10,000 events of a run
                sent = await control.send("flood", play)
                quiet, over = len(times), time.monotonic() + FLOOD_SECONDS
                async with asyncio.timeout(BOUND_SECONDS / 2):  # other sessions get ten answers in this time
                    while time.monotonic() < over or len(times) - quiet < 10:
                        await asyncio.sleep(0.02)
                        look()
                assert median(times[quiet:]) < 0.5
                assert max(times[quiet:]) < STALL_SECONDS
            assert not (await control.wait(sent.run_id, timeout=0)).ended
            at = time.monotonic()
            await control.stop(session="flood")
            assert time.monotonic() - at < STALL_SECONDS
            outcome = await control.wait(sent.run_id, drained=True)
            assert outcome.ending is Ending.STOPPED
            assert (await ended(control, "flood", "echo on")).text == "on"

    flows(main, agent)


async def until(seen: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(BOUND_SECONDS / 2):
        while not seen():
            await asyncio.sleep(0.002)


def test_a_host_that_reads_no_answers_is_ended(agent: str) -> None:
    """Control bounds what waits for a host that does not read, and fails its run; other sessions feel nothing."""

    async def main(control: Control) -> None:
        async with beside(control) as times:
            with growth(64 * MIB + 64 * MIB):
                outcome = await ended(control, "deaf", "deaf")
            assert (outcome.ending, outcome.error_kind) == (Ending.FAILED, ErrorKind.HOST)
            assert outcome.error == "the host was ended: it did not read what it was told"
            assert median(times) < 0.5
            assert max(times) < STALL_SECONDS, max(times)
            assert (await ended(control, "deaf", "echo on")).text == "on"

    flows(main, agent)


def test_nothing_is_lost_when_control_is_held_up(agent: str) -> None:
    """An embedder blocks control's loop for a second while a host streams: every piece arrives, in order."""
    count = 30_000

    async def main(control: Control) -> None:
        sent = await control.send("s", f"counts {count}")
        told = 0
        async with aclosing(control.watch(run=sent.run_id)) as events:
            async for event in events:
                told += event.kind is EventKind.DELTA
                if told == 100:
                    time.sleep(1)
        outcome = await control.wait(sent.run_id)
        assert outcome.ending is Ending.COMPLETED, outcome
        assert outcome.text == "".join(f"{number} " for number in range(count))

    flows(main, agent)


def test_a_slow_watcher_slows_nobody(agent: str) -> None:
    """A watcher that does not read holds up neither the run nor another watcher of that run."""
    count = 10_000

    async def main(control: Control) -> None:
        resume, slow, quick = asyncio.Event(), list[EventKind](), list[EventKind]()

        async def watch(run: str, kinds: list[EventKind], *, waits: bool) -> None:
            async with aclosing(control.watch(run=run)) as events:
                async for event in events:
                    kinds.append(event.kind)
                    if waits:
                        await resume.wait()

        sent = await control.send("s", f"counts {count}")
        async with asyncio.TaskGroup() as watchers:
            watchers.create_task(watch(sent.run_id, slow, waits=True))
            watchers.create_task(watch(sent.run_id, quick, waits=False))
            outcome = await control.wait(sent.run_id)
            assert outcome.ending is Ending.COMPLETED
            await until(lambda: EventKind.ENDED in quick)
            assert len(slow) == 1
            resume.set()
        assert quick[-1] is slow[-1] is EventKind.ENDED
        assert EventKind.BLOCK in slow  # a block holds the text of every delta that the watcher missed

    flows(main, agent)


def test_long_messages_are_carried_whole(agent: str) -> None:
    """The link carries a post of the greatest length in narrow and wide characters, 8 MiB of input, a long history."""

    async def main(control: Control) -> None:
        for character, width in (("x", 1), ("é", 2), ("😀", 4)):
            outcome = await ended(control, "s", f"posts {character} {4 * MIB}")
            assert outcome.ending is Ending.COMPLETED, (character, outcome.error)
            assert len(outcome.text.encode()) == 4 * MIB * width
        outcome = await ended(control, "other", f"feeds {8 * MIB}")
        assert outcome.text == str(8 * MIB), outcome
        outcome = await ended(control, "s", "reads")
        assert outcome.ending is Ending.COMPLETED, outcome.error
        assert int(outcome.text) > 12 * MIB
        receipt = await control.receipt(outcome.run_id)
        assert receipt.host == "reused"  # one host carried all of them

    flows(main, agent)


def test_a_message_that_is_too_long_is_refused_where_it_was_tried(agent: str) -> None:
    """Arguments, results and texts that are too long raise in the agent, which goes on; the host is not ended."""

    async def main(control: Control) -> None:
        outcome = await ended(control, "s", "calls")
        assert (outcome.ending, outcome.text) == (Ending.COMPLETED, "3 refused, then 1"), outcome

    flows(main, agent)
