"""Each ending of a real run reads the same on the gateway, in the shell and on the page, in the table's words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Browser, expect

from interlock import Ending, Outcome, Projection, project
from interlock.core.names import ENDINGS
from page.scene import Person, Visit, connected, go
from surfaces.scene import Served

AGENT = "tests.surfaces.agents:agent"
SECONDS = 60
INTERLOCK = str(Path(sys.executable).with_name("interlock"))


class Story:
    """A run, the cause of its end, and the terminal events that a connection got."""

    def __init__(self, ending: Ending, session: str, run: str, *, text: str = "") -> None:
        self.ending, self.session, self.run, self.text = ending, session, run, text
        self.chat: dict[str, Any] | None = None
        self.lifecycle: dict[str, Any] | None = None

    def hear(self, person: Person) -> Story:
        """Wait for the run's terminal events on a connection."""
        chat = person.play(person.wire.ended(self.run))
        told = [each for each in person.wire.events("agent", self.run) if each["stream"] == "lifecycle"]
        self.chat, self.lifecycle = chat, told[-1]["data"]
        return self


def begin(person: Person, session: str, text: str, **options: Any) -> str:
    """Send a message under a key that is its session's name; return the run's id once the run is at work."""
    sent = person.request("chat.send", sessionKey=session, message=text, idempotencyKey=session, **options)
    run = str(sent["runId"])
    person.play(person.wire.event("agent", lambda e: e["runId"] == run and e["stream"] == "lifecycle"))
    return run


def first_life(person: Person) -> list[Story]:
    """Play every ending that a run can have while its server lives."""
    stories = [
        Story(Ending.COMPLETED, "completed", begin(person, "completed", "count 3"), text="count 3"),
        Story(Ending.FAILED, "failed", begin(person, "failed", "fail"), text="fail"),
        Story(Ending.TIMED_OUT, "timed", begin(person, "timed", "sleep", timeoutMs=300), text="sleep"),
        Story(Ending.STOPPED, "stopped", begin(person, "stopped", "sleep"), text="sleep"),
        Story(Ending.STOPPED, "typed", begin(person, "typed", "sleep"), text="sleep"),
        Story(Ending.SUPERSEDED, "superseded", begin(person, "superseded", "sleep"), text="sleep"),
    ]
    person.request("chat.abort", sessionKey="stopped")
    person.request("chat.send", sessionKey="typed", message="stop", idempotencyKey="a stop")
    person.request("chat.send", sessionKey="superseded", message="hello", idempotencyKey="a newer message")
    parent = begin(person, "parent", "delegate sleep")
    person.play(person.wire.event("agent", lambda e: e["runId"] == parent and e["stream"] == "child"))
    (child,) = [run for run in person.request("interlock.runs", tree=True) if run["parent"] == parent]
    stories.append(Story(Ending.PARENT_ENDED, "parent", child["id"]))
    person.request("chat.abort", sessionKey="parent")
    return [story.hear(person) for story in stories]


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Any:
    """Serve one store four times: the second is shut down and the third killed, each with a run; yield the fourth."""
    data = tmp_path_factory.mktemp("endings") / "data"
    stories: list[Story] = []
    for end in ("live", "term", "kill"):
        server = Served(AGENT, data)
        person = Person(server)
        try:
            if end == "live":
                stories += first_life(person)
            else:
                ending = Ending.SHUTDOWN if end == "term" else Ending.LOST
                stories.append(Story(ending, end, begin(person, end, "sleep"), text="sleep"))
            if end == "term":
                server.process.terminate()
                stories[-1].hear(person)
            if end == "kill":
                server.kill()
        finally:
            person.close()
            server.close()
    server = Served(AGENT, data)
    person = Person(server)
    yield server, person, stories
    person.close()
    server.close()
    assert "Traceback" not in server.log()


def told(person: Person, story: Story) -> tuple[Outcome, Projection]:
    """Return a run's outcome, and what every surface must say of it."""
    outcome = msgspec.convert(person.request("interlock.wait", run=story.run), Outcome)
    return outcome, project(outcome)


def test_there_is_a_run_of_every_ending(lives: Any) -> None:
    """The servers below have a run of every ending."""
    _, person, stories = lives
    assert {story.ending for story in stories} == set(ENDINGS)
    for story in stories:
        assert told(person, story)[0].ending is story.ending, story.session


def test_the_gateway_tells_the_words_of_the_table(lives: Any) -> None:
    """A client that waits, lists, watches or sends the key again gets the table's words, three servers later too."""
    _, person, stories = lives
    for story in stories:
        outcome, words = told(person, story)
        wait = msgspec.to_builtins(words.wait)
        answers = [person.request("agent.wait", runId=story.run)]
        if story.text:
            options = {"timeoutMs": 300} if story.ending is Ending.TIMED_OUT else {}
            again = {"sessionKey": story.session, "message": story.text, "idempotencyKey": story.session}
            answers.append(person.request("chat.send", **again, **options))
        for answer in answers:
            names = ("status", "stopReason", "timeoutPhase", "providerStarted")
            assert {name: answer[name] for name in names if name in answer} == wait, story.session
            assert (answer["runId"], answer["summary"]) == (story.run, words.client)
        assert person.request("tasks.get", taskId=story.run)["task"]["status"] == words.task
        row = person.request("sessions.describe", key=story.session)["session"]
        assert row["lastRunId"] != story.run or row["status"] == words.session
        if story.chat is not None and story.lifecycle is not None:
            chat = {name: story.chat[name] for name in ("state", "stopReason", "errorKind") if name in story.chat}
            assert chat == msgspec.to_builtins(words.chat), story.session
            life = {name: story.lifecycle[name] for name in ("phase", "status") if name in story.lifecycle}
            assert life == msgspec.to_builtins(words.lifecycle), story.session
            assert story.chat["message"]["outcome"]["ending"] == outcome.ending


def test_the_shell_exits_and_speaks_as_the_table_says(lives: Any) -> None:
    """The shell exits and speaks as the table says, through the gateway and from the store."""
    server, person, stories = lives

    def shell(*words: str) -> tuple[int, str]:
        command = [INTERLOCK, *words, "--data", str(server.data)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
        return done.returncode, done.stdout

    for story in stories:
        _, words = told(person, story)
        assert shell("wait", story.run, "--url", server.ready["url"]) == (words.exit_code, f"{words.client}\n")
        code, shown = shell("show", story.run)
        assert code == 0 and words.client in [line.partition(" ")[2].strip() for line in shown.splitlines()]


def test_the_page_says_what_the_table_says(lives: Any, browser: Browser) -> None:
    """A completed run shows its reply alone, any other its ending; a child stands in its parent's turn."""
    server, person, stories = lives
    visit = Visit(browser, server, person)
    try:
        page = visit.open("completed")
        for story in stories:
            _, words = told(person, story)
            go(page, f"#/s/{story.session}")
            connected(page)
            if story.ending is Ending.PARENT_ENDED:
                expect(page.locator("details.child > summary .state")).to_have_text(words.client)
                continue
            run = page.locator(f"article.run[data-run={story.run}]")
            expect(run).to_have_attribute("data-ending", story.ending)
            expect(run.locator("footer .ending")).to_have_text("" if story.ending is Ending.COMPLETED else words.client)
    finally:
        visit.close()
