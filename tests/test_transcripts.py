"""The shell sessions in the pages (```console) are played: each `$ command`, and its output. So is the JavaScript.

1. The blocks of a page are one session, in a home directory of its own, with a server beside it: the one that the page
   starts, or else one of the demo agent.
2. The pages speak of port 8719 and of /root; the session has another port and another home. Ids, times, the grade and
   the number of ended processes differ from machine to machine, and `…` stands for anything.
"""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from foreign.client import NODE, PARTS, missing

pytestmark = pytest.mark.long

ROOT = Path(__file__).parent.parent
SECONDS = 60  # for one command, on a busy machine
ELSEWHERE = ("probe.md",)  # played by client/test_probe.py
VARIES = (
    (re.compile(r"(?<=\S) --url http://127\.0\.0\.1:8719"), ""),
    (re.compile(r"\b([a-z])-\d+-[0-9a-f]+\b"), r"\1-1-1"),
    (re.compile(r"(?<=processes: )\w+"), "grade"),
    (re.compile(r"; \d+ process(es)? ended, grade \w+"), ""),
    (re.compile(r"\d+\.\d+ s\b"), "0.0 s"),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "when"),
)


class Step(NamedTuple):
    """A command, and the output that the page shows below it."""

    command: str
    told: str


def steps(page: Path) -> list[Step]:
    """Return the commands of a page, in order; a here-document belongs to its command."""
    found: list[list[str]] = []
    inside = False
    for block in re.findall(r"^```console\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        for line in block.splitlines(keepends=True):
            if line.startswith("$ "):
                found.append([line[2:], ""])
                inside = "<<'END'" in line
            else:
                found[-1][0 if inside else 1] += line
                inside = inside and line != "END\n"
    return [Step(*each) for each in found]


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


class Shell:
    """A person at a terminal, at home in a directory of their own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._port = free_port()
        self._server: subprocess.Popen[str] | None = None
        commands = home / "bin"
        commands.mkdir()
        for name, options in (("interlock", "-m interlock.cli "), ("python", "")):
            (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {options}"$@"\n', "utf-8")
            (commands / name).chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("INTERLOCK_", "XDG_"))}
        self._environment = kept | {
            "HOME": str(home),
            "PATH": f"{commands}:{kept['PATH']}",
            "INTERLOCK_PORT": str(self._port),
            "INTERLOCK_URL": f"http://127.0.0.1:{self._port}",
        }

    def type(self, step: Step) -> str:
        """Type a command and return what it prints; a server is left running once it has printed its lines."""
        command = step.command.replace(":8719", f":{self._port}")
        if command.startswith("interlock serve"):
            return self._serve(command, lines=step.told.count("\n"))
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            env=self._environment,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=SECONDS,
        )
        return self._as_in_the_pages(done.stdout)

    def _serve(self, command: str, *, lines: int) -> str:
        with (self.home / "log").open("w") as log:
            self._server = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                env=self._environment,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        out = self._server.stdout
        assert out is not None
        assert select.select([out], [], [], SECONDS)[0], (self.home / "log").read_text()
        return self._as_in_the_pages("".join(out.readline() for _ in range(lines)))

    def _as_in_the_pages(self, text: str) -> str:
        text = text.replace(str(self.home), "/root").replace(f":{self._port}", ":8719")
        return re.sub(r"\S*/interlock (?=pair)", "`interlock ", text)

    def close(self) -> None:
        """End the server in order."""
        if self._server is not None:
            self._server.send_signal(signal.SIGTERM)
            self._server.communicate(timeout=SECONDS)


def steady(text: str) -> str:
    """Leave out the parts that differ from machine to machine."""
    for varying, same in VARIES:
        text = varying.sub(same, text)
    return text


PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if page.name not in ELSEWHERE and steps(page)
]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Yield a shell whose server ends with the test."""
    made = Shell(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_shell_session_in_a_page_prints_what_stands_there(page: Path, shell: Shell) -> None:
    """A command that a page shows prints what the page shows."""
    typed = steps(page)
    if not any(step.command.startswith("interlock serve") for step in typed):
        shell.type(Step("interlock serve", "\n"))
    for step in typed:
        said = steady(shell.type(step))
        told = ".*".join(re.escape(part) for part in steady(step.told).split("…"))
        assert re.fullmatch(told, said, re.DOTALL), f"{step.command}shows:\n{step.told}but prints:\n{said}"


def test_the_program_for_npm_s_client_streams_and_stops(shell: Shell) -> None:
    """The program in client.md, unchanged, gets deltas of the demo's story, and `aborted` last."""
    if (absent := missing()) is not None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(absent)
    page = (ROOT / "docs" / "client.md").read_text("utf-8")
    (program,) = re.findall(r"^```js\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    shell.type(Step("interlock serve", "\n"))
    (shell.home / "node_modules").symlink_to(PARTS / "node_modules")
    token = "INTERLOCK_TOKEN=$(cat ~/.local/state/interlock/token)"
    said = shell.type(Step(f"cat > stop.mjs <<'END'\n{program}END\n{token} {NODE} stop.mjs\n", ""))
    states = [line.split()[0] for line in said.splitlines() if line.strip()]
    assert states[-1] == "aborted", said
    assert set(states[:-1]) == {"delta"}, said
