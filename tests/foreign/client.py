"""A server of ours and a foreign client, each in a process of its own, with every frame between them checked.

1. The client is npm's `@openclaw/gateway-client`, unmodified, on the node it asks for (`make tools` installs both into
   build/foreign). `driver.mjs` obeys commands and reports; the expectations are in Python.
2. Every frame of every connection goes through a `Conversation`; the first that breaks a rule fails the waiting test.
3. Every wait has a bound; when it passes, the error says what came instead.
"""

import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

from surfaces.protocol import Conversation, Wrong

ROOT = Path(__file__).parent.parent.parent
PARTS = ROOT / "build" / "foreign"
MACHINE = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), "?")
# Older versions of npm make no link to node in .bin.
NODE = PARTS / "node_modules" / f"node-linux-{MACHINE}" / "bin" / "node"
PACKAGE = PARTS / "node_modules" / "@openclaw" / "gateway-protocol"
BOUND_SECONDS = 40.0
TICK_SECONDS = 1.5

# The server is the real command, only with faster ticks: the default would make a test wait for half a minute.
SERVE = f"""
from interlock.protocol import frames
frames.TICK_SECONDS = {TICK_SECONDS}
from interlock.cli import main
main()
"""

T = TypeVar("T")
Line = dict[str, Any]


def missing() -> str | None:
    """Return what the tests lack here, and how to get it; None if they lack nothing."""
    if NODE.exists() and PACKAGE.exists():
        return None
    return "npm's gateway client is not installed: run `make tools` (needs npm; Debian: `apt-get install npm`)"


class Server:
    """`interlock serve`, ready."""

    def __init__(self, data: Path, *, port: int = 0) -> None:
        command = [sys.executable, "-c", SERVE, "serve", "foreign.agents:agent", "--json", f"--port={port}"]
        self._log = (data / "serve.log").open("ab")
        self._process = subprocess.Popen(
            [*command, f"--data={data / 'data'}"],
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}:{os.environ.get('PYTHONPATH', '')}"},
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        assert self._process.stdout is not None
        self._out = self._process.stdout
        line = self._out.readline()
        if not line:
            self.end(signal.SIGKILL)
            raise AssertionError(f"the server did not start: {(data / 'serve.log').read_text('utf-8')[-3000:]}")
        ready = json.loads(line)
        self.url = ready["url"].replace("http", "ws", 1)
        self.port = int(ready["url"].rpartition(":")[2].rstrip("/"))
        self.token = Path(ready["tokenFile"]).read_text("utf-8").strip()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End the server and return its exit status."""
        self._process.send_signal(number)
        try:
            return self._process.wait(BOUND_SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
            self._out.close()
            self._log.close()


class Node:
    """A node process that holds the foreign clients."""

    def __init__(self, **tokens: str) -> None:
        program = Path(__file__).with_name("driver.mjs").read_text("utf-8")
        self._process = subprocess.Popen(
            # Node resolves an evaluated module's packages from the working directory.
            [NODE, "--input-type=module", "--eval", program],
            cwd=PARTS,
            env={"PATH": os.environ["PATH"], **tokens},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: list[Line] = []
        self._news = threading.Condition()
        self._asked = 0
        self.conversations: dict[int, Conversation] = {}
        self.wrong: list[Exception] = []
        self.on_purpose: set[str] = set()  # methods that a test calls wrongly on purpose
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(BOUND_SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
            self._reader.join(BOUND_SECONDS)
            self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            line = json.loads(raw)
            with self._news:
                if "socket" in line:
                    try:
                        self._watch(line)
                    except (Wrong, KeyError, ValueError) as wrong:
                        self.wrong.append(wrong)
                else:
                    self._lines.append(line)
                self._news.notify_all()

    def _watch(self, line: Line) -> None:
        conversation = self.conversations.setdefault(line["socket"], Conversation())
        if "server" in line:
            conversation.server(line["server"])
        else:
            lenient = json.loads(line["client"])["method"] in self.on_purpose
            conversation.client(line["client"], lenient=lenient)

    def tell(self, **command: Any) -> None:
        """Send a command to the driver."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def number(self) -> int:
        """Return a number for a request."""
        self._asked += 1
        return self._asked

    def lines(self) -> list[Line]:
        """Return the reports so far."""
        with self._news:
            return list(self._lines)

    def until(self, found: Callable[[list[Line]], T | None], what: str) -> T:
        """Wait until `found` finds something in the reports; return it."""
        deadline = time.monotonic() + BOUND_SECONDS
        with self._news:
            while True:
                if self.wrong:
                    raise self.wrong[0]
                value = found(self._lines)
                if value is not None:
                    return value
                if not self._news.wait(max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                    came = "\n".join(json.dumps(line)[:300] for line in self._lines[-12:])
                    raise AssertionError(f"{what} did not come; this did:\n{came}")


class Refused(Exception):
    """An error that the foreign client raised for a request."""

    def __init__(self, error: Line) -> None:
        super().__init__(f"{error.get('code')}: {error['message']}")
        self.code: str = error.get("code", "")
        self.details: Line = error.get("details") or {}
        self.message: str = error["message"]


class Client:
    """A foreign client of the node process."""

    def __init__(self, node: Node, name: str) -> None:
        self.node = node
        self.name = name

    def open(self, url: str, *, token: str = "TOKEN", **options: Any) -> Any:
        """Dial, and return the hello."""
        self.dial(url, token=token, **options)
        return self.reported("hello")

    def dial(self, url: str, *, token: str = "TOKEN", **options: Any) -> None:
        """Start to connect."""
        self.node.tell(do="open", **{"as": self.name}, url=url, token=token, options=options)

    def close(self) -> None:
        """Close the connection."""
        self.node.tell(do="close", **{"as": self.name})
        self.reported("gone")

    def reported(self, what: str, *, times: int = 1) -> Any:
        """Wait for this many reports of a kind; return the latest."""

        def found(lines: list[Line]) -> Any:
            values = [line[what] for line in lines if line.get("as") == self.name and what in line]
            return values[-1] if len(values) >= times else None

        return self.node.until(found, f"{what} of {self.name}, {times} times")

    def count(self, what: str) -> int:
        """Return how many reports of a kind there are."""
        return sum(line.get("as") == self.name and what in line for line in self.node.lines())

    def begin(self, method: str, *, final: bool = False, **params: Any) -> int:
        """Send a request; return its number, which finds the answer."""
        number = self.node.number()
        self.node.tell(do="ask", **{"as": self.name}, n=number, method=method, params=params, final=final)
        return number

    def accepted(self, number: int) -> Any:
        """Return the first of a request's two answers."""
        return self.node.until(
            lambda lines: next(
                (line["accepted"] for line in lines if line.get("n") == number and "accepted" in line), None
            ),
            "the first answer",
        )

    def answer(self, number: int) -> Any:
        """Return the answer, or raise Refused."""
        line = self.node.until(
            lambda lines: next((line for line in lines if line.get("n") == number and "accepted" not in line), None),
            f"the answer to request {number}",
        )
        if "error" in line:
            raise Refused(line["error"])
        return line["payload"]

    def ask(self, method: str, **params: Any) -> Any:
        """Ask and return the answer, or raise Refused."""
        return self.answer(self.begin(method, **params))

    def event(self, name: str, wanted: Callable[[Line], object]) -> Line:
        """Wait for the first event that is wanted; return its payload."""
        return self.node.until(
            lambda lines: next((each for each in self._payloads(lines, name) if wanted(each)), None), f"an event {name}"
        )

    def events(self, name: str, run: str) -> list[Line]:
        """Return the payloads of a run's events so far."""
        return [each for each in self._payloads(self.node.lines(), name) if each.get("runId") == run]

    def shown(self, run: str) -> Line:
        """Return how the foreign client's own projection of the events shows a run."""
        runs = [line["shown"] for line in self.node.lines() if line.get("as") == self.name and line.get("run") == run]
        return runs[-1]

    def _payloads(self, lines: list[Line], name: str) -> list[Line]:
        events = [line["event"] for line in lines if line.get("as") == self.name and "event" in line]
        return [event["payload"] for event in events if event["event"] == name]
