"""A client that may send wrong frames on purpose, and a server that tests examine afterwards.

1. Every frame that the client reads goes through a `Conversation`; a frame that it sends may be wrong on purpose.
2. Every wait has a bound; when it passes, the error says what came instead.
3. `House` knows every place where a server writes, so that a test can search all of them.
"""

import base64
import http.client
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from interlock.protocol.frames import QUIET
from surfaces.protocol import Conversation, Frame
from surfaces.scene import AGAIN, ROOT, Served, WireError

BOUND_SECONDS = 30.0
CLIENT = {"id": "test", "version": "1", "platform": "linux", "mode": "test"}
TRACES = ("Traceback", "request failed", "Exception in ASGI", "could not be told", "never retrieved")
INTERLOCK = Path(sys.executable).with_name("interlock")

Headers = tuple[tuple[str, str], ...]


class Closed(Exception):
    """The server closed the connection: the code and reason of its close frame."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"closed: {code} {reason}")
        self.code, self.reason = code, reason


def greeting(token: str | None, **more: Any) -> dict[str, Any]:
    """Return connect's params."""
    auth = {} if token is None else {"auth": {"token": token}}
    return {"minProtocol": 4, "maxProtocol": 4, "client": CLIENT, **auth, **more}


class Talk:
    """A connection that has read its challenge."""

    def __init__(self, url: str, **options: Any) -> None:
        self.conversation = Conversation()
        self.events: list[Frame] = []
        self.answers: dict[str, list[Frame]] = {}
        self.hello: Frame = {}
        self._number = 0
        options = {
            "compression": None,
            "proxy": None,
            "ping_interval": None,
            "max_size": None,
            "max_queue": None,
        } | options
        # Newer versions of websockets want the connection to be entered.
        self.socket: ClientConnection = connect(url, **options).__enter__()
        self.read()

    def ask(self, method: str, /, **params: Any) -> str:
        """Send a request; return its id."""
        self._number += 1
        return self.send(json.dumps({"type": "req", "id": f"q{self._number}", "method": method, "params": params}))

    def send(self, raw: str) -> str:
        """Send a request as it is; return its id."""
        frame = self.conversation.client(raw, lenient=True)
        self.socket.send(raw)
        return str(frame["id"])

    def answer(self, asked: str, *, times: int = 1, seconds: float = BOUND_SECONDS) -> Any:
        """Wait for the n-th answer to a request and return its payload, or raise the refusal."""
        self.until(lambda: len(self.answers.get(asked, ())) >= times, f"answer {times} to {asked}", seconds)
        frame = self.answers[asked][times - 1]
        if not frame["ok"]:
            raise WireError(frame["error"])
        return frame["payload"]

    def request(self, method: str, /, **params: Any) -> Any:
        """Send a request and wait for its answer; send again if the error is retryable."""
        for _ in range(AGAIN):
            try:
                return self.answer(self.ask(method, **params))
            except WireError as refused:
                if not refused.again:
                    raise
        return self.answer(self.ask(method, **params))

    def refused(self, method: str, /, **params: Any) -> Frame:
        """Send a request that must be refused; return the error."""
        try:
            payload = self.request(method, **params)
        except WireError as refused:
            return refused.error
        raise AssertionError(f"{method} was not refused: {payload}")

    def event(self, name: str, met: Callable[[Frame], bool] = lambda _: True) -> Frame:
        """Wait for an event, among those already read too; return its payload."""

        def found() -> Frame | None:
            return next((e["payload"] for e in self.events if e["event"] == name and met(e["payload"])), None)

        self.until(lambda: found() is not None, name)
        return found() or {}

    def until(self, met: Callable[[], bool], what: str, seconds: float = BOUND_SECONDS) -> None:
        """Read frames until a condition is met."""
        end = time.monotonic() + seconds
        while not met():
            left = end - time.monotonic()
            if left <= 0:
                raise AssertionError(f"no {what} within {seconds} s; the last events: {self.events[-5:]}")
            try:
                self.read(left)
            except TimeoutError:
                continue

    def read(self, seconds: float = BOUND_SECONDS) -> Frame:
        """Read a frame."""
        try:
            raw = self.socket.recv(seconds)
        except ConnectionClosed as closed:
            told = closed.rcvd
            raise Closed(told.code if told else 1006, told.reason if told else "") from None
        frame = self.conversation.server(raw)
        if frame["type"] == "event":
            self.events.append(frame)
        else:
            self.answers.setdefault(frame["id"], []).append(frame)
        return frame

    def closed(self) -> Closed:
        """Read until the server closes; return the code and reason of the close."""
        try:
            self.until(lambda: False, "close")
        except Closed as closed:
            return closed
        raise AssertionError

    def close(self) -> None:
        """Leave."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class House(Served):
    """A server, and what a test can ask about it from outside."""

    _judged = 0

    def connect(self, token: str | None = None, *, url: str | None = None, **more: Any) -> Talk:
        """Return a connection that the server let in; `more` goes into connect's params."""
        talk = Talk(url or self.url)
        try:
            talk.hello = talk.request("connect", **greeting(token or self.token, **more))
        except BaseException:
            talk.close()
            raise
        return talk

    def refused(self, token: str | None, **more: Any) -> tuple[Frame, Closed]:
        """Connect with a token or params that must be refused; return the error and the close."""
        with Talk(self.url) as talk:
            return talk.refused("connect", **greeting(token, **more)), talk.closed()

    def tokens(self, *arguments: str) -> str:
        """Run `interlock token`; return what it printed."""
        command = [str(INTERLOCK), "token", *arguments, "--data", str(self.data)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_SECONDS, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    @property
    def operator_token(self) -> str:
        """The operator's token as it is now."""
        return (self.data / "token").read_text("utf-8").strip()

    def add(self, name: str, *scopes: str) -> str:
        """Make a principal, as `interlock token add` does; return its token."""
        with self.connect(self.operator_token, caps=[QUIET]) as operator:
            return str(operator.request("interlock.token.add", name=name, scopes=scopes)["token"])

    def remove(self, name: str) -> None:
        """Take a principal's token away."""
        with self.connect(self.operator_token, caps=[QUIET]) as operator:
            operator.request("interlock.token.remove", name=name)

    def get(self, path: str, headers: Headers = (), *, host: bool = True) -> tuple[int, str]:
        """GET a path; return status and body. With `host=False` only `headers` may carry a Host."""
        asked = http.client.HTTPConnection("127.0.0.1", self.port, timeout=BOUND_SECONDS)
        try:
            asked.putrequest("GET", path, skip_host=not host, skip_accept_encoding=True)
            for name, value in headers:
                asked.putheader(name, value)
            asked.endheaders()
            answer = asked.getresponse()
            return answer.status, answer.read().decode("utf-8", "replace")
        finally:
            asked.close()

    def healthy(self) -> bool:
        """Return whether the server answers /health; raise if its log holds a trace of a fault."""
        assert self.process.poll() is None, self.log()[-4000:]
        log = self.log()
        wrong = [line for line in log[self._judged :].splitlines() if any(word in line for word in TRACES)]
        # Remember how far the log was judged, so that only the test that caused a fault fails for it.
        self._judged = len(log)
        assert not wrong, wrong[0][:2000]
        return self.get("/health") == (200, '{"ok":true}')

    @property
    def audit(self) -> list[Frame]:
        """Return the lines of the audit."""
        path = self.data / "audit.jsonl"
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []

    def noted(self, **facts: Any) -> list[Frame]:
        """Return the audit's lines with these facts."""
        return [line for line in self.audit if facts.items() <= line.items()]


@contextmanager
def house(data: Path, agent: str = "surfaces.busy:agent", *options: str) -> Iterator[House]:
    """Serve an agent of the tests for the length of a block."""
    server = House(
        agent,
        data,
        *options,
        env={"PYTHONPATH": os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT / "tests")])},
    )
    try:
        yield server
    finally:
        server.close()


# Below the WebSocket


class Bytes:
    """A bare TCP connection, upgraded unless told otherwise; it reads frames and checks nothing."""

    def __init__(self, port: int, *, upgrade: bool = True, extra: str = "", unread_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        self.socket.settimeout(BOUND_SECONDS)
        # The kernel takes this many bytes while the connection does not read.
        if unread_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, unread_bytes)
        self.socket.connect(("127.0.0.1", port))
        self._read = b""
        if upgrade:
            key = base64.b64encode(os.urandom(16)).decode()
            self.socket.sendall(
                f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n{extra}\r\n".encode()
            )
            self.head = self.until(b"\r\n\r\n")

    def until(self, end: bytes) -> bytes:
        """Read up to these bytes, or to the end of the connection."""
        while end not in self._read and (more := self.socket.recv(65_536)):
            self._read += more
        found, between, self._read = self._read.partition(end)
        return found + between

    def send(self, first: int, payload: bytes, *, masked: bool = True) -> None:
        """Send a frame with this first byte (final, reserved, opcode)."""
        size = len(payload)
        mask = 0x80 if masked else 0
        head = bytes([first, mask | size]) if size < 126 else b""
        head = head or bytes([first, mask | (126 if size < 65_536 else 127)])
        if size >= 126:
            head += struct.pack("!H" if size < 65_536 else "!Q", size)
        # The server may cut the connection before the whole frame is sent.
        with suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(head + (bytes(4) if masked else b"") + payload)  # a mask of zeroes changes nothing

    def frame(self) -> tuple[int, bytes]:
        """Read a frame: its opcode and payload; (-1, b"") at the end."""
        try:
            while True:
                if len(self._read) >= 2:
                    size, at = self._read[1] & 0x7F, 2
                    if size >= 126:
                        at = 4 if size == 126 else 10
                        size = int.from_bytes(self._read[2:at], "big") if len(self._read) >= at else 1 << 40
                    if len(self._read) >= at + size:
                        found = self._read[0] & 15, self._read[at : at + size]
                        self._read = self._read[at + size :]
                        return found
                if not (more := self.socket.recv(65_536)):
                    return -1, b""
                self._read += more
        except ConnectionResetError:
            return -1, b""

    def closed(self) -> int:
        """Read until the close frame; return its code, 1006 if there was none."""
        while True:
            opcode, payload = self.frame()
            if opcode == 8:
                return int.from_bytes(payload[:2], "big") if payload else 1005
            if opcode == -1:
                return 1006

    def let_in(self, token: str) -> None:
        """Send connect and read the hello."""
        asked = {"type": "req", "id": "hello", "method": "connect", "params": greeting(token, caps=[QUIET])}
        self.frame()
        self.send(0x81, json.dumps(asked).encode())
        assert b"hello-ok" in self.frame()[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
