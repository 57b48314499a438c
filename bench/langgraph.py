"""LangGraph's in-memory server beside ours: an environment of its own, and clients that create a run and wait for it.

1. The packages are those of PyPI, pinned, in `build/langgraph`; the first measurement installs them. The server needs
   no licence and calls nobody: it has no key, no tracing and no version check (`bench.langgraph_server`).
2. A client is a raw socket that keeps its connection and sends `POST /runs/wait`, the cheapest way to have a run and
   its end: one request, no thread, nothing streamed. Answers are found by their bytes, as ours are.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.served import PATIENCE_SECONDS, ROOT, Server

PLACE = ROOT / "build" / "langgraph"
PACKAGES = ("langgraph-api==0.16.7", "langgraph-runtime-inmem==0.36.7", "langgraph==1.2.22")
BODY = json.dumps({"assistant_id": "nothing", "input": {"text": ""}}).encode()
REQUEST = (
    b"POST /runs/wait HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
)
END = b"\r\n0\r\n\r\n"  # of a chunked answer
CHUNK = 64 * 1024
POLL_SECONDS = 0.2
# The server's queue sleeps half a second whenever it finds no run pending; fewer jobs make that rarer. By turns on
# a busy machine (five rounds, 64 clients) 1, 2 and 4 jobs had 202, 204 and 195 runs/s in the median round, and 125, 114
# and 156 in the worst; 10, the default of its command, 171 and 72; 20 jobs 110 and 60.
JOBS = 4


class Caller:
    """A client that has one run at a time."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.refused = 0
        self._came = b""

    def begin(self) -> None:
        """Send the next run."""
        self._came = b""
        self.socket.sendall(REQUEST)

    def over(self) -> bool:
        """Read what there is; return whether the end of the run has come."""
        new = self.socket.recv(CHUNK)
        if not new:
            raise ConnectionError("LangGraph's server hung up")
        self._came += new
        if not self._came.startswith(b"HTTP/1.1 200"):
            raise ConnectionError(f"LangGraph's server refused a run: {self._came[:300]!r}")
        return self._came.endswith(END)


@contextlib.contextmanager
def served(clients: int, jobs: int = JOBS) -> Iterator[tuple[Server, list[Caller]]]:
    """Serve the graph and connect so many clients; raise OSError or SubprocessError if that cannot be had here."""
    python = _environment()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [str(python), "-m", "bench.langgraph_server", str(port), str(jobs)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (
        (PLACE / "server.log").open("wb") as log,
        subprocess.Popen(command, env=env, stdout=log, stderr=log, text=True) as it,
    ):
        try:
            _wait_for(port, it)
            yield Server(it), [Caller(port) for _ in range(clients)]
        finally:
            it.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                it.wait(PATIENCE_SECONDS / 6)
            it.kill()


def _environment() -> Path:
    """Return the Python that has the packages; install them if that was not done."""
    python, ready = PLACE / "bin" / "python", PLACE / ".ready"
    if not (ready.exists() and ready.read_text() == " ".join(PACKAGES)):
        shutil.rmtree(PLACE, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(PLACE)], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([str(python), "-m", "pip", "install", "-qq", *PACKAGES], check=True, stdout=subprocess.DEVNULL)
        ready.write_text(" ".join(PACKAGES))
    return python


def _wait_for(port: int, server: "subprocess.Popen[str]") -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while server.poll() is None and time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), POLL_SECONDS):
            return
        time.sleep(POLL_SECONDS)
    raise OSError(f"LangGraph's server did not start: see {PLACE / 'server.log'}")
