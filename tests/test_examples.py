"""What a newcomer tries first works as written: the examples, the demo, and the program at the head of the README."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SECONDS = 30

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
    "quickstart.py": ["ending:  stopped, by alice", "said:    'Certainly.", "refused: ['1 tool']", "drain:   observed"],
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
        "result: interrupted while it ran: its effect is unknown",
        "result: skipped: it was given up before it began",
        "(cut: stopped)",
    ],
}


def play(*arguments: str | Path) -> str:
    """Run Python in a process of its own and return what it printed; it must end well and complain of nothing."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=SECONDS
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


def test_every_example_is_played() -> None:
    """An example that nobody runs is not kept."""
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_does_what_it_says(name: str) -> None:
    """Each example runs by itself and prints what it is there to show, in this order."""
    at, printed = 0, play(ROOT / "examples" / name)
    for line in EXAMPLES[name]:
        assert line in printed[at:], f"{line!r} is missing (or too early) in:\n{printed}"
        at = printed.index(line, at) + len(line)
    assert "MAIL SENT" not in printed


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short(name: str) -> None:
    """An example fits on one screen."""
    assert len((ROOT / "examples" / name).read_text("utf-8").splitlines()) <= 50


def test_the_demo_plays_to_its_end() -> None:
    """Every act shows its receipt, and no run says anything after its end."""
    printed = play("-m", "interlock.demo", "--fast")
    assert printed.count("receipt ─") == 5
    for words in (
        "ending        stopped by alice",
        "book_flight interrupted (effect unknown) · mail_ticket skipped",
        "ending        superseded by r-",
        "timed out after 150 ms in phase provider",
        "refused       101 delta",
        "its code      was not resumed any more",
        "parent_ended, its code cut",
        "questions     1 void",
        "is void: its run is over, and nothing was done",
        "Pay 900 for the boat?  open",
        "7 runs ended. Events of a run after its terminal event: 0.",
    ):
        assert words in printed, f"{words!r} is missing in:\n{printed}"
    assert printed.count(" 0 events of r-") == 5


PAGES = [
    (page, number, program, told)
    for page in ("README.md", "docs/guide.md")
    for number, (program, told) in enumerate(
        re.findall(r"```python\n([^`]*?)```\n+```\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL), start=1
    )
]


def test_the_pages_have_programs() -> None:
    """The first screen of the README shows one, the guide one for nearly every section."""
    pages = [page for page, *_ in PAGES]
    assert (pages.count("README.md"), pages.count("docs/guide.md")) == (1, 7)


@pytest.mark.parametrize(("page", "number", "program", "told"), PAGES, ids=[f"{page}-{n}" for page, n, *_ in PAGES])
def test_a_program_that_a_newcomer_copies_runs(page: str, number: int, program: str, told: str) -> None:
    """A program in the pages prints what stands below it."""
    how_far = re.compile(r"(?<='Certainly\. )[^']*")  # how much it said before the stop is up to the machine
    assert how_far.sub("", play("-c", program)) == how_far.sub("", told)
