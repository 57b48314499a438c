"""The processes of a measurement on the wire: the server that is measured, bare servers beside it, crowds of clients.

1. The server is the real command, `interlock serve`, with SQLite (FULL). `tree` names the source tree that it is served
   from: this one, or an earlier commit's. Its helper, keepers, zygote and hosts load the package from the same tree.
2. Principals are made by the tree's own `interlock token add`, so a bench never writes another version's files.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, Self

from bench.wire import QUIET, Wire

ROOT = Path(__file__).parent.parent
REST_SECONDS = 0.05
PATIENCE_SECONDS = 60.0
COMMAND = "import sys; from interlock.cli import main; sys.exit(main())"
MAKE_PRINCIPALS = """
import contextlib, sys
from interlock.cli import main
data, count = sys.argv[1:]
for n in range(int(count)):
    sys.argv[1:] = ["token", "add", f"person-{n}", f"--data={data}"]
    with contextlib.suppress(SystemExit):
        main()
"""


class Server:
    """A process, and the processor time that it has used."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    @property
    def cpu(self) -> float:
        """Return the seconds of the first thread, which is the loop's."""
        return int(Path(f"/proc/{self.process.pid}/schedstat").read_text().split()[0]) / 1e9

    def rest(self) -> None:
        """Wait until the process's loop is idle."""
        end = perf_counter() + PATIENCE_SECONDS
        while perf_counter() < end:
            before = self.cpu
            time.sleep(REST_SECONDS)
            if self.cpu - before < REST_SECONDS / 10:
                return

    @property
    def all_cpu(self) -> float:
        """Return the seconds of all threads of the process: the loop's, the store's, the log's."""
        used = 0
        for thread in Path(f"/proc/{self.process.pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # the thread has ended
                used += int(thread.read_text().split()[0])
        return used / 1e9


class Child(Server):
    """A process that says where it serves."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        super().__init__(process)
        self.told = json.loads(self.line())
        self.url = self.told.get("url", "")

    def line(self) -> str:
        """Read a line of the process's output."""
        assert self.process.stdout is not None
        if line := self.process.stdout.readline():
            return line
        raise RuntimeError(f"{self.process.args!r:.200} ended: {self.process.wait()}")


class Served(Child):
    """`interlock serve`, ready."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        super().__init__(process)
        self.token = Path(self.told["tokenFile"]).read_text("utf-8").strip()

    def dial(self, *, quiet: bool = False, token: str | None = None) -> Wire:
        """Return a client: a listener, or a quiet one that hears only answers."""
        return Wire(self.url, token or self.token, caps=QUIET if quiet else ())


@contextlib.contextmanager
def process(*command: str, tree: Path = ROOT, log: int = subprocess.DEVNULL) -> "Iterator[subprocess.Popen[str]]":
    """Run a Python program with the package of this tree and the bench of ours; end it afterwards."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
    with subprocess.Popen([sys.executable, *command], env=environment(tree), text=True, **pipes) as it:
        try:
            yield it
        finally:
            with contextlib.suppress(OSError):
                it.stdin.close()  # type: ignore[union-attr]
            it.send_signal(signal.SIGTERM)
            try:
                it.wait(PATIENCE_SECONDS)
            finally:
                it.kill()


def environment(tree: Path) -> dict[str, str]:
    """Return the environment of a program with the package of this tree and the bench of ours."""
    # The package of the tree stands before the one that is installed in the environment.
    paths = [str(tree / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    # What is compiled is kept, as it is where a package is installed.
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**own, "PYTHONPATH": os.pathsep.join(paths)}


@contextlib.contextmanager
def serve(driver: str, data: Path, agent: str = "bench.speakers:agent", *, tree: Path = ROOT) -> Iterator[Served]:
    """Serve an agent from a source tree, with a data directory."""
    options = ("--json", "--port=0", f"--data={data}", f"--driver={driver}", "--drain-seconds=2")
    with (
        (data / "serve.log").open("ab") as log,
        process("-c", COMMAND, "serve", agent, *options, tree=tree, log=log.fileno()) as it,
    ):
        yield Served(it)


def principals(data: Path, count: int, *, tree: Path = ROOT) -> list[str]:
    """Make principals in a data directory that is not served yet; return their tokens."""
    command, env = [sys.executable, "-c", MAKE_PRINCIPALS, str(data), str(count)], environment(tree)
    return subprocess.check_output(command, env=env, stderr=subprocess.DEVNULL, text=True).split()


def tree_at(revision: str) -> Path:
    """Return the source tree of a commit, unpacked in build/; raise CalledProcessError if git does not have it."""
    git = ("git", "-C", str(ROOT))
    commit = subprocess.check_output([*git, "rev-parse", "--short=12", f"{revision}^{{commit}}"], text=True).strip()
    tree = ROOT / "build" / f"before-{commit}"
    if not tree.exists():
        packed = subprocess.check_output([*git, "archive", commit, "src"])
        partial = tree.with_suffix(".partial")
        partial.mkdir(parents=True, exist_ok=True)
        subprocess.run(["tar", "-x", "-C", str(partial)], input=packed, check=True)
        partial.rename(tree)
    return tree


class Readers:
    """A crowd of clients in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    @classmethod
    @contextlib.contextmanager
    def ready(cls) -> Iterator[Self]:
        """Start a crowd."""
        with process("-m", "bench.wire") as it:
            yield cls(it)

    def begin(self, verb: str, **given: Any) -> None:
        """Tell the crowd to do something."""
        assert self._process.stdin is not None
        print(json.dumps([verb, given]), file=self._process.stdin, flush=True)

    def done(self) -> Any:
        """Wait for the crowd's answer."""
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def tell(self, verb: str, **given: Any) -> Any:
        """Tell the crowd to do something, and wait for its answer."""
        self.begin(verb, **given)
        return self.done()
