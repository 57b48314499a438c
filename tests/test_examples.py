"""The examples and the programs in the pages work as written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parent.parent
SECONDS = 120  # for one program, on a busy machine
JOBS = 2  # programs at once, which wait more than they work
# Other threads start programs while pytest, in its own, sets and removes PYTEST_CURRENT_TEST. If a variable goes while
# the kernel reads the environment for a new program, the kernel refuses that program: OSError, "Bad address". This copy
# never changes.
ENVIRONMENT = dict(os.environ)

EXAMPLES = {
    "approvals.py": [
        "Allow refund? True",
        "Tell the customer how? mail",
        "-> refunded 40, told by mail",
        "Allow refund? False",
        "-> tool refund was not started: denied by local; go on without it",
        "-> no answer yet",
        "-> stopped, questions void: 1",
        "Allow, too late: question q-1-",
        " is void: its run is over, and nothing was done",
    ],
    "batched.py": ["begun: 1/20 2/20 3/20 4/20; 5/20 6/20 7/20 8/20; 1/6 2/6 3/6 4/6; 5/6 6/6"],
    "durable.py": [
        "log: the last start was cut short",
        "r-1-1 lost: 'Booking.'",
        "r-1-2 completed: \"an answer to 'Is it warm?'\"",
        "key k1 is r-1-1",
        "user: Book Oslo",
        "assistant: Booking.",
        "call: book",
        "result: started, outcome unknown: the server went down while it ran; it was not run again",
        "assistant: lost",
        "user: Is it warm?",
        "assistant: an answer to 'Is it warm?'",
    ],
    "family.py": [
        "  lead: at work",
        "    worker: timed_out",
        "    worker (detached): at work",
        "    worker: at work",
        "stopped the run: r-1-1 stopped, r-1-",
        " parent_ended",
        "  lead: stopped",
        "    worker (detached): at work",
        "    worker: parent_ended",
        "stopped the session: r-1-",
        " stopped",
    ],
    "hosted.py": [
        "alice:   turn 1 of alice",
        "bob:     turn 1 of bob (meanwhile)",
        "stop:    stopped, public",
        "receipt: host killed, drain observed after",
        "alice:   turn 1 of alice (a fresh process)",
        "bob:     turn 2 of bob (still his own)",
    ],
    "mounted.py": ["operator stopped it: stopped", "You said: hello"],
    "paced.py": ["before the answer to the stop: line 1 of 20 to line", "after it: line 1 of 2, line 2 of 2, the end"],
    "processes.py": [
        "agent: it exited with 3 and wrote 'hello",
        "agent: too slow: True",
        "agent: daemon started",
        "processes ended, drain observed",
        "the diary has grown by 0 bytes since then",
    ],
    "quickstart.py": ["ending:  stopped, by alice", "said:    'Certainly.", "refused: ['1 tool']", "drain:   observed"],
    "remote.py": [
        "asked: Deploy?",
        "tool rehearse running",
        "tool rehearse finished",
        "tool rehearse running",
        "ended: stopped",
        "receipt f-1-",
        ": observed",
    ],
    "steering.py": [
        "steer:    done with Oslo and booked Oslo and by train",
        "collect:  one answer to ['Bergen', 'no, Bodø', 'in May']; 1 run",
        "rollback: forgotten, but book was begun; the model sees 1 entry",
    ],
    "takeover.py": [
        "two took over one: True",
        "three is queued, generation None",
        "four: session alice is busy",
        "bob's is queued",
        "superseded [after no turn]",
        "completed  [after superseded] my answer to 'two'",
        "completed  [after completed] my answer to 'five'",
    ],
    "tools.py": [
        "fetch: interrupted",
        "fetch: skipped",
        "word_count: finished",
        "fetch: finished",
        'result: "page 1"',
        "result: interrupted: stopped by local; its effect is unknown",
        "result: not run: stopped by local",
        "(cut: stopped)",
    ],
    "webhook.py": ["posted: 1/20 2/20 3/20 1/1"],
}


def play(*arguments: str | Path) -> str:
    """Run Python in a process of its own and return what it printed; it must exit with 0 and print no error."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def printed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[str]]]:
    """Start every program that was asked for; return what each prints."""

    def play_page(name: str, language: str, program: str) -> str:
        file = tmp_path_factory.mktemp(re.sub(r"\W", "-", name)) / f"program.{language}"
        file.write_text(program, "utf-8")
        return play(file) if language == "python" else play_in_shell(file, commands)

    commands = tmp_path_factory.mktemp("commands")
    write_commands(commands)
    tests = [item for item in request.session.items if "printed" in getattr(item, "fixturenames", ())]
    wanted = dict.fromkeys(item.callspec.params["name"] for item in tests if isinstance(item, pytest.Function))
    pages = {name: (language, program) for name, language, program, _ in PAGES}
    with ThreadPoolExecutor(JOBS) as pool:
        yield {
            name: pool.submit(play_page, name, *pages[name])
            if name in pages
            else pool.submit(play, ROOT / "examples" / name)
            for name in wanted
        }


def test_every_example_is_played() -> None:
    """Every file in examples/ is run by a test."""
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_does_what_it_says(name: str, printed: dict[str, Future[str]]) -> None:
    """Each example runs by itself and prints what it is there to show, in this order."""
    at, text = 0, printed[name].result()
    for line in EXAMPLES[name]:
        assert line in text[at:], f"{line!r} is missing (or too early) in:\n{text}"
        at = text.index(line, at) + len(line)
    assert "MAIL SENT" not in text


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short(name: str) -> None:
    """An example fits on one screen."""
    assert len((ROOT / "examples" / name).read_text("utf-8").splitlines()) <= 50


FENCED = re.compile(r"^```(\w*)\n(.*?)^```$\n*", re.MULTILINE | re.DOTALL)


def programs(page: Path) -> Iterator[tuple[str, str, str, str | None]]:
    """Each program of a page: its name here, its language, its text, and the output shown right below it, if any."""
    blocks = list(FENCED.finditer(page.read_text("utf-8")))
    outputs = {block.start(): block[2] for block in blocks if not block[1]}
    for number, block in enumerate(blocks, start=1):
        if block[1] in ("python", "sh"):
            yield f"{page.relative_to(ROOT)}-{number}", block[1], block[2], outputs.get(block.end())


SHOWN = [program for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) for program in programs(page)]
PAGES = [(name, language, text, told) for name, language, text, told in SHOWN if told is not None]
FRAGMENTS = {name: text for name, _, text, told in SHOWN if told is None}
VARIES = (  # parts that differ with the machine and the version of Python
    (re.compile(r"(?<=distinct courses of events: )\d+"), "n"),
    (re.compile(r"(?<='Certainly\. )[^']*"), ""),  # the words before the stop
    (re.compile(r"grade \w+, drained in [\d.]+ ms"), "grade, drained"),
    (re.compile(r" +(\d+ (s|min) ago|just now) *"), " just now "),  # the width of the column follows
    (re.compile(r"admitted +"), "admitted "),
    (re.compile(r"\d+\.\d{3} s"), "0.000 s"),
    (re.compile(r"^(when|\+0\.000 s) +", re.MULTILINE), r"\1 "),  # as wide as the longest of them
    (re.compile(r"^.*Killed.*$", re.MULTILINE), "Killed"),  # each shell has its own line
)


def steady(text: str) -> str:
    """Leave out the parts that differ from machine to machine."""
    for varying, same in VARIES:
        text = varying.sub(same, text)
    return text


def test_the_pages_have_programs() -> None:
    """The README and the pages that say how to write and embed an agent each show a program."""
    pages = {name.rpartition("-")[0] for name, *_ in PAGES}
    told = ("quickstart", "tools", "questions", "children", "processes", "hosts", "messages", "memory", "testing")
    assert pages >= {"README.md", *(f"docs/{page}.md" for page in told)}


@pytest.mark.parametrize("name", FRAGMENTS)
def test_a_program_without_output_is_part_of_an_example_or_runs(name: str, tmp_path: Path) -> None:
    """A fragment in the pages stands in an example, or runs by itself and prints nothing."""
    examples = "".join(path.read_text("utf-8") for path in (ROOT / "examples").glob("*.py"))
    if FRAGMENTS[name].strip() not in examples:
        program = tmp_path / "fragment.py"
        program.write_text(FRAGMENTS[name], "utf-8")
        assert play(program) == ""


@pytest.mark.parametrize("name", ["paced", "batched", "webhook"])
def test_a_sink_in_the_page_is_the_one_that_is_tried(name: str) -> None:
    """The page shows each sink as its example has it, to the letter."""
    shown = re.findall(
        rf"```python\n(async def {name}\(.*?)```", (ROOT / "docs" / "sinks.md").read_text("utf-8"), re.DOTALL
    )
    assert len(shown) == 1
    assert shown[0] in (ROOT / "examples" / f"{name}.py").read_text("utf-8")


@pytest.mark.parametrize(
    ("name", "told"), [(name, told) for name, _, _, told in PAGES], ids=[page[0] for page in PAGES]
)
def test_a_program_that_a_newcomer_copies_runs(name: str, told: str, printed: dict[str, Future[str]]) -> None:
    """A program in the pages, copied into a file, prints what stands below it."""
    assert steady(printed[name].result()) == steady(told)


def write_commands(place: Path) -> None:
    """Make this Python and its `interlock` command, for a shell's path.

    Call this while no other thread starts a process: for a moment a new process inherits every open file, and a file
    that some process may still write to cannot be executed ("Text file busy").
    """
    for name, options in (("interlock", "-m interlock.cli "), ("python", "")):
        command = place / name
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" {options}"$@"\n', "utf-8")
        command.chmod(0o755)


def play_in_shell(file: Path, commands: Path) -> str:
    """Run a script with these commands; return everything it printed, errors too."""
    done = subprocess.run(
        ["/bin/sh", file],
        env={**ENVIRONMENT, "PATH": f"{commands}:{ENVIRONMENT['PATH']}"},
        cwd=file.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
