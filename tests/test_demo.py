"""The demo agent does what it says: each command, played to its end, stopped, taken over, late, asked and steered."""

from __future__ import annotations

import ast
import asyncio
import re
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from interlock import Control, Drain, Effect, Ending, Event, Outcome, QuestionState, Receipt, demo, events, open_control
from interlock.agent.bodies import DROPPED
from interlock.core.names import BodyState

T = TypeVar("T")
Seen = Callable[[Any], object]

AGENT = "interlock.demo:agent"
BOUND_SECONDS = 60.0
WATCH_SECONDS = 0.4  # the daemon writes every 0.1 s


class Scene:
    """The demo, served, with a new session for every play."""

    def __init__(self, control: Control) -> None:
        self.control = control
        self._made = 0

    async def say(self, text: str, session: str | None = None, **options: Any) -> Turn:
        """Send a message."""
        self._made += 1
        session = session or f"s{self._made}"
        sent = await self.control.send(session, text, **options)
        return Turn(self.control, session, sent.run_id)

    async def hear(self, text: str, session: str | None = None) -> str:
        """Send a message, and return the reply once it is whole."""
        outcome = await (await self.say(text, session)).outcome()
        assert outcome.ending is Ending.COMPLETED, outcome
        return outcome.text


class Turn:
    """A run of the demo."""

    def __init__(self, control: Control, session: str, run: str) -> None:
        self.control = control
        self.session = session
        self.run = run

    async def until(self, seen: Seen, times: int = 1) -> list[Any]:
        """Wait until so many of the run's events match; return their data."""
        found = []
        async with aclosing(self.control.watch(run=self.run)) as told:
            async for event in told:
                if seen(event.data):
                    found.append(event.data)
                    if len(found) == times:
                        return found
        raise AssertionError(f"it ended, and only {found} was seen")

    async def outcome(self) -> Outcome:
        """Wait for the run's end."""
        return await self.control.wait(self.run, timeout=BOUND_SECONDS)

    async def stop(self) -> Receipt:
        """Stop the run's session, and check that the run is ended and drained and that no event of it follows."""
        told = await self.control.stop(session=self.session)
        assert told.aborted
        return await self.drained(Ending.STOPPED)

    async def drained(self, ending: Ending) -> Receipt:
        """Return the receipt once nothing of the run is left."""
        outcome = await self.control.wait(self.run, drained=True, timeout=BOUND_SECONDS)
        receipt = await self.control.receipt(self.run)
        # Inline, the agent of `deaf` is dropped.
        in_doubt = [name for name in receipt.unconfirmed if not name.endswith(DROPPED)]
        assert (outcome.ending, in_doubt) == (ending, [])
        assert receipt.drain is (Drain.UNCONFIRMED if receipt.unconfirmed else Drain.OBSERVED)
        log = [event async for event in self._log()]
        assert [event.kind for event in log].count(events.Ended.kind) == 1
        assert isinstance(log[-1].data, events.Ended)
        return receipt

    async def _log(self) -> AsyncIterator[Event]:
        async with aclosing(self.control.watch(run=self.run)) as told:
            async for event in told:
                yield event


@asynccontextmanager
async def served(driver: str) -> AsyncIterator[Scene]:
    """Serve the demo as `interlock serve` does: under its own name for children too."""
    async with open_control(AGENT, agents={"agent": AGENT}, driver=driver) as control:
        yield Scene(control)


class Theatre:
    """A served demo that many tests share."""

    def __init__(self, driver: str) -> None:
        self._runner = asyncio.Runner()
        self._served: AbstractAsyncContextManager[Scene] = served(driver)
        self.scene = self._runner.run(self._served.__aenter__())

    def play(self, work: Callable[[Scene], Coroutine[Any, Any, T]]) -> T:
        """Run a test, bounded."""

        async def bounded() -> T:
            async with asyncio.timeout(BOUND_SECONDS):
                return await work(self.scene)

        return self._runner.run(bounded())

    def close(self) -> None:
        """Close the demo and its loop."""
        with self._runner:
            self._runner.run(self._served.__aexit__(None, None, None))


@pytest.fixture(scope="module")
def hosted() -> Iterator[Theatre]:
    """Serve the demo from a process of its own."""
    theatre = Theatre("host")
    yield theatre
    theatre.close()


@pytest.fixture(scope="module")
def inline() -> Iterator[Theatre]:
    """Serve the demo from the loop of the test."""
    theatre = Theatre("inline")
    yield theatre
    theatre.close()


@pytest.fixture(params=["hosted", "inline"])
def either(request: pytest.FixtureRequest) -> Theatre:
    """Serve the demo by each driver."""
    theatre: Theatre = request.getfixturevalue(request.param)
    return theatre


def delta(data: object) -> bool:
    """Return whether an event is a delta."""
    return isinstance(data, events.Delta)


def block(data: object) -> bool:
    """Return whether an event is a block."""
    return isinstance(data, events.Block)


def running(name: str) -> Seen:
    """Return a test for the event that a tool is at work."""
    return lambda data: isinstance(data, events.Tool) and (data.name, data.state) == (name, "running")


def there(pid: int) -> bool:
    """Return whether a process exists."""
    return Path(f"/proc/{pid}").exists()


# The agent itself


def test_it_needs_only_what_every_agent_has(hosted: Theatre) -> None:
    """The demo imports the public names and the standard library only, and can be forked warm."""
    tree = ast.parse(Path(demo.__file__).read_text("utf-8"))
    modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules += [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    assert {name for name in modules if name not in sys.stdlib_module_names} == {"interlock", "collections.abc"}
    assert hosted.scene.control.hosts is not None and hosted.scene.control.hosts.warm


def test_it_says_what_can_be_typed(hosted: Theatre) -> None:
    """`help` lists every command in a line; any other text gets a kind word and the same list."""

    async def main(scene: Scene) -> None:
        told = await scene.hear("help")
        for name, (typed, does, _) in demo.commands.items():
            assert f"\n- `{typed}`: {does}\n" in told, name
        assert max(map(len, told.splitlines())) <= 120
        assert await scene.hear(" /HELP! ") == told
        for text in ("What is this?", "\n\nx" * 1000, "__class__", "é" * 10_000):
            assert (await scene.hear(text)).startswith("I am only a demo, and do not know ")
            assert (await scene.hear(text)).endswith(told)
        assert await scene.hear("please stop") == "Nothing else runs in this session."

    hosted.play(main)


def test_numbers_that_are_none_are_taken_kindly() -> None:
    """A word that is no number of seconds means the usual number; a number that is too large is cut."""
    typed = ["", "5", " 7 please", "x", "-1", "1e3", "nan", "9" * 9000, "٣"]
    assert [demo.seconds(rest, 60) for rest in typed] == [60, 5, 7, 60, 60, 60, 60, 9999, 3]


# Played to the end


SHORT = {  # the message, and the end of the reply
    "story 0": "The end.",
    "listen 0": "I have listened long enough.",
    "last": "This is our first turn. Try `story`, stop it, and ask me again.",
    "work wave": "What I found:\n  - wave: Stuff to parse WAVE files.",
    "work no-such": "No module has 'no-such' in its name.",
    "team wave no-such": "\nwave: wave: Stuff to parse WAVE files.\nno-such: nothing",
    "research wave": "wave: Stuff to parse WAVE files.",
    "build 1": "The script exited with 0.",
    "daemon 1": "and its file is deleted.",
    "slow 0": "I have waited 0 s, and no deadline came.",
    "deaf 0": "Nobody stopped me.",
    "hog 0": "Nobody stopped me.",
}


def test_every_command_comes_to_its_end(hosted: Theatre) -> None:
    """Every command says its words if no stop comes; `deploy` goes by the answer, and `fail` stands below."""

    async def main(scene: Scene) -> None:
        asked = (deployed(scene, True), deployed(scene, False))
        yes, no, *told = await asyncio.gather(*asked, *(scene.hear(text) for text in SHORT))
        assert yes.endswith("\nYou said yes. check: played, upload: played, switch over: played.")
        assert no.endswith("\nNot deployed: the answer was no, or nobody answered for 120 s.")
        for text, reply in zip(SHORT, told, strict=True):
            assert SHORT[text] in reply, (text, reply)
        daemon = told[list(SHORT).index("daemon 1")]
        assert not diary_of(daemon).parent.exists() and not there(daemon_of(daemon))

    assert {text.split()[0] for text in SHORT} | {"help", "deploy", "fail"} == set(demo.commands)
    hosted.play(main)


def diary_of(text: str) -> Path:
    """Return the file that a daemon writes."""
    found = re.search(r"writes to (\S+)", text)
    assert found
    return Path(found[1])


def daemon_of(text: str) -> int:
    """Return the process that writes the file."""
    found = re.search(r"Daemon (\d+)", text)
    assert found
    return int(found[1])


# Stopped


def test_a_story_is_stopped_and_remembered(either: Theatre) -> None:
    """A stopped story says no further word, and the next turn is told of the stop."""

    async def main(scene: Scene) -> None:
        turn = await scene.say("story")
        await turn.until(lambda data: isinstance(data, events.Typing) and data.on)
        await turn.until(delta, 3)
        receipt = await turn.stop()
        assert (receipt.refused, receipt.runs[0].body) == ({}, BodyState.CUT)
        told = (await scene.hear("last", turn.session)).splitlines()
        assert told[:2] == ["My last turn ended as stopped, by local. What I remember:", "  user: 'story'"]
        assert told[2].startswith("  assistant: ") and told[2].endswith("(cut: stopped)")

    either.play(main)


def test_work_is_stopped_with_a_tool_running(hosted: Theatre) -> None:
    """A stop cuts a blocking tool in a host, and the receipt names the tool."""

    async def main(scene: Scene) -> None:
        turn = await scene.say("work")
        await turn.until(running("read"))
        receipt = await turn.stop()
        assert [(tool.name, tool.state) for tool in receipt.tools] == [("read", "interrupted"), ("search", "finished")]
        assert (await turn.outcome()).text == "I look for 'file' in Python's own library."

    hosted.play(main)


def test_a_build_is_stopped_with_its_script(hosted: Theatre) -> None:
    """A stop ends the script that said a line a moment ago."""

    async def main(scene: Scene) -> None:
        turn = await scene.say("build")
        [line] = await turn.until(delta)
        found = re.fullmatch(r"step 1 of 10, by process (\d+)\n", line.text)
        assert found and there(int(found[1]))
        receipt = await turn.stop()
        assert receipt.processes.ended >= 1 and not there(int(found[1]))

    hosted.play(main)


def test_a_daemon_is_found_and_ended(either: Theatre) -> None:
    """A daemon that ignores TERM, orphaned in its own session, is gone after `drained`, and its file grows no more."""

    async def main(scene: Scene) -> None:
        turn = await scene.say("daemon")
        [said] = await turn.until(block)
        diary, pid = diary_of(said.text), daemon_of(said.text)
        try:
            await turn.until(lambda data: isinstance(data, events.Progress) and not data.text.endswith(" 0 bytes"))
            stat = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
            ignored = int(re.findall(r"SigIgn:\s*(\w+)", Path(f"/proc/{pid}/status").read_text("utf-8"))[0], 16)
            # The daemon does not lead its session, and ignores TERM.
            assert int(stat[3]) != pid != int(stat[2]) and ignored >> 14 & 1
            receipt = await turn.stop()
            assert receipt.processes.ended >= 1 and not there(pid)
            size = diary.stat().st_size
            await asyncio.sleep(WATCH_SECONDS)
            assert diary.stat().st_size == size > 0
        finally:
            shutil.rmtree(diary.parent)

    either.play(main)


def test_a_team_falls_together(either: Theatre) -> None:
    """The three children end with their parent, in one receipt."""

    async def main(scene: Scene) -> None:
        turn = await scene.say("team")
        begun = await turn.until(lambda data: isinstance(data, events.ChildData), 3)
        children = [Turn(scene.control, child.session, child.child) for child in begun]
        await asyncio.gather(*(child.until(running("search")) for child in children))
        receipt = await turn.stop()
        endings = sorted(run.outcome.ending for run in receipt.runs)
        assert endings == [*[Ending.PARENT_ENDED] * 3, Ending.STOPPED]
        for child in children:
            assert (await child.drained(Ending.PARENT_ENDED)).id == receipt.id

    either.play(main)


def test_the_deaf_is_refused(either: Theatre) -> None:
    """An agent that swallows the cancel and goes on has its words, tools and programs refused and counted."""

    async def main(scene: Scene) -> None:
        turn = await scene.say("deaf")
        await turn.until(delta)
        receipt = await turn.stop()
        assert {Effect.DELTA, Effect.TOOL, Effect.SPAWN} <= set(receipt.refused)
        assert receipt.tools == ()
        said = (await turn.outcome()).text
        assert said == "La la la. " * said.count("La la la. ")

    either.play(main)


def test_a_hog_is_killed(hosted: Theatre) -> None:
    """A stop of an agent that hears nothing is acknowledged at once, and its process is ended."""

    async def main(scene: Scene) -> None:
        turn = await scene.say("hog")
        [found] = await turn.until(lambda data: isinstance(data, events.Tool) and data.state == "finished")
        await turn.until(block)
        receipt = await turn.stop()
        assert (receipt.host, receipt.runs[0].body) == ("killed", BodyState.KILLED)
        assert not there(int(found.result))
        assert await scene.hear("last", turn.session)  # the session goes on

    hosted.play(main)


def test_a_hog_declines_where_it_would_hold_up_the_server(inline: Theatre) -> None:
    """In the server's own loop the hog declines, and says so."""

    async def main(scene: Scene) -> None:
        begun = time.monotonic()
        assert "Serve me by `host`." in await scene.hear("hog 15")
        assert time.monotonic() - begun < 10

    inline.play(main)


# Asked, late, failed, taken over, queued, steered


async def deployed(scene: Scene, answer: bool) -> str:
    """Answer what `deploy` asks; return its reply."""
    turn = await scene.say("deploy")
    [question] = await turn.until(lambda data: isinstance(data, events.QuestionData))
    await scene.control.answer(question.question_id, answer)
    receipt = await turn.drained(Ending.COMPLETED)
    assert [tool.state for tool in receipt.tools] == ["finished"] * 3 * answer
    return (await turn.outcome()).text


def test_a_stop_voids_the_question_and_skips_the_rest(hosted: Theatre) -> None:
    """A stop during a question voids it. A stop after the yes skips every step that had not begun."""

    async def main(scene: Scene) -> None:
        turn = await scene.say("deploy")
        await turn.until(lambda data: isinstance(data, events.QuestionData))
        assert (await turn.stop()).questions == 1
        turn = await scene.say("deploy", turn.session)
        [question] = await turn.until(
            lambda data: isinstance(data, events.QuestionData) and data.state is QuestionState.OPEN
        )
        await scene.control.answer(question.question_id, True)
        await turn.until(running("rehearse"))
        receipt = await turn.stop()
        assert [tool.state for tool in receipt.tools] == ["interrupted", "skipped", "skipped"]

    hosted.play(main)


def test_a_deadline_and_a_failure_tell_where_and_why(hosted: Theatre) -> None:
    """`slow` times out in its phase, `fail` fails, and the next turn is told of both."""

    async def main(scene: Scene) -> None:
        for seconds in (0.1, 2, 15):  # the first in which it reaches its phase
            late = await scene.say("slow", deadline=seconds)
            await late.drained(Ending.TIMED_OUT)
            if (await late.outcome()).phase == "provider":
                break
        assert "My last turn ended as timed_out, in phase provider." in await scene.hear("last", late.session)
        failed = await scene.say("fail", late.session)
        outcome = await failed.outcome()
        assert (outcome.ending, outcome.error) == (Ending.FAILED, "RuntimeError: you asked me to fail, and I did")
        assert "My last turn ended as failed." in await scene.hear("last", late.session)

    hosted.play(main)


def test_something_else_takes_over_or_waits(hosted: Theatre) -> None:
    """A plain message takes over from the story; a queued message waits for its end."""

    async def main(scene: Scene) -> None:
        old = await scene.say("story")
        await old.until(delta)
        told = await scene.hear("last", old.session)
        assert told.startswith("My last turn ended as superseded")
        await old.drained(Ending.SUPERSEDED)
        first = await scene.say("story 0", old.session)
        second = await scene.say("last", old.session, strategy="queue")
        assert (await second.outcome()).text.startswith("My last turn ended as completed")
        assert (await first.outcome()).ending is Ending.COMPLETED

    hosted.play(main)


def test_what_is_steered_is_heard(either: Theatre) -> None:
    """A run that listens absorbs a steered message, and `done` ends the run."""

    async def main(scene: Scene) -> None:
        turn = await scene.say("listen")
        await turn.until(block)
        await scene.say("Hello there", turn.session, strategy="steer")
        await turn.until(lambda data: block(data) and data.text == "I heard 'Hello there'.")
        await scene.say("done", turn.session, strategy="steer")
        assert (await turn.outcome()).text.endswith("Thank you, I am done.")

    either.play(main)
