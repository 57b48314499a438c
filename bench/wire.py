"""A WebSocket client that costs next to nothing, so that the figures are the server's.

1. Frames are cut apart and counted, not decoded; an answer or an event is found by its bytes.
2. Frames of ours are masked with zeros, which the protocol allows and which costs nothing.
3. Pings are answered: a client that reads is never taken for a dead one.

`python -m bench.wire` is a crowd of such clients in a process of its own, told by lines of JSON what to do.
"""

import contextlib
import json
import resource
import select
import socket
import sys
import time
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from bench.speakers import MARK

CHUNK = 256 * 1024
PATIENCE_SECONDS = 30.0
TIMES = 5  # tries of a request that may be sent again
CLIENT = {"id": "test", "version": "1", "platform": "linux", "mode": "test"}
# What this version declares, and the one before it.
QUIET = ("interlock.quiet.2", "interlock.quiet")
# Longer than any joined deltas: a longer text is that of a whole reply, told once more at its end.
WHOLE_BYTES = 8192
PING, CLOSE, PONG = 0x89, 0x88, 0x8A
_MARK = MARK.encode()


class Lost(Exception):
    """The server closed the connection, or did not say what was waited for."""


class Wire:
    """A client that the gateway has let in."""

    def __init__(self, url: str, token: str = "", *, caps: tuple[str, ...] = (), path: str = "/") -> None:
        where = urlsplit(url)
        self.socket = socket.create_connection((where.hostname, where.port), PATIENCE_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.frames = self.deltas = self.bytes = 0
        self.closed = False
        self._rest = b""
        self._asked = -1
        upgrade = f"GET {path} HTTP/1.1\r\nHost: {where.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        upgrade += "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        self.socket.sendall(upgrade.encode())
        while b"\r\n\r\n" not in self._rest:
            self._rest += self._receive()
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise Lost(head.decode())
        params = {"minProtocol": 4, "maxProtocol": 4, "client": CLIENT, "caps": list(caps), "auth": {"token": token}}
        self.request("connect", **params)

    def ask(self, method: str, **params: Any) -> bytes:
        """Send a request; return the bytes by which its answer is found."""
        self._asked += 1
        name = str(self._asked)
        self.send(json.dumps({"type": "req", "id": name, "method": method, "params": params}).encode())
        return b'"type":"res","id":"%b"' % name.encode()

    def request(self, method: str, **params: Any) -> bytes:
        """Send a request and wait for its answer; return what came until then. A busy disk is asked again."""
        for _ in range(TIMES):
            answer = self.ask(method, **params)
            came = self.until(answer)
            if answer + b',"ok":true' in came:
                return came
            told = came[came.index(answer) :][:500].decode(errors="replace")
            if '"retryable":true' not in told:
                break
        raise Lost(told)

    def send(self, payload: bytes, kind: int = 0x81) -> None:
        """Send a frame."""
        size = len(payload)
        head = bytes((kind, 0x80 | size)) if size < 126 else bytes((kind, 0xFE)) + size.to_bytes(2, "big")
        self.socket.sendall(head + b"\0\0\0\0" + payload)

    def until(self, *needles: bytes, seconds: float = PATIENCE_SECONDS) -> bytes:
        """Read until all of these have come; return everything since the last call."""
        came, end, left = b"", time.monotonic() + seconds, [*needles]
        while left:
            if time.monotonic() > end:
                raise Lost(f"waited {seconds} s for {left}; the last was {came[-500:]!r}")
            new = self.read()
            came = came + new if came else new
            if new:  # whole frames: no needle spans two
                left = [needle for needle in left if needle not in new]
        return came

    def read(self) -> bytes:
        """Read what there is; return the whole frames in it, heads and all."""
        data = self._rest + self._receive() if self._rest else self._receive()
        end = self._cut(data)
        self._rest = data[end:]
        whole = data[:end] if self._rest else data
        self.bytes += end
        self.deltas += whole.count(_MARK)
        return whole

    def _receive(self) -> bytes:
        data = self.socket.recv(CHUNK)
        if not data:
            self.closed = True
            raise Lost("the server hung up")
        return data

    def _cut(self, data: bytes) -> int:
        """Return where the last whole frame ends; count frames, answer pings."""
        at, have = 0, len(data)
        while have - at >= 2:
            size, head = data[at + 1], 2
            if size == 126:
                size, head = int.from_bytes(data[at + 2 : at + 4], "big"), 4
            elif size == 127:
                size, head = int.from_bytes(data[at + 2 : at + 10], "big"), 10
            if at + head + size > have:
                break
            if data[at] == PING:
                self.send(data[at + head : at + head + size], PONG)
            elif data[at] == CLOSE:
                self.closed = True
                raise Lost(f"closed: {data[at + head + 2 : at + head + size].decode(errors='replace')}")
            elif size > WHOLE_BYTES:
                self.deltas -= data.count(_MARK, at, at + head + size)
            at += head + size
            self.frames += 1
        return at

    def close(self) -> None:
        """Close the socket without a close frame."""
        self.socket.close()


def answered(mouth: Wire, ear: Wire, asked: Iterable[bytes]) -> tuple[bytes, int]:
    """Wait for answers while another client reads on; return what that client heard, and how many were refused."""
    left, heard, refused = set(asked), b"", 0
    while left:
        for ready in select.select((ear.socket, mouth.socket), (), ())[0]:
            if ready is ear.socket:
                heard += ear.read()
                continue
            came = mouth.read()
            refused += came.count(b'"ok":false')
            left = {answer for answer in left if answer not in came}
    return heard, refused


def read_for(wires: list[Wire], seconds: float) -> None:
    """Read from all of them for so long."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        for ready in select.select([wire.socket for wire in wires], (), (), left)[0]:
            next(wire for wire in wires if wire.socket is ready).read()


class Crowd:
    """Many clients that only read."""

    def __init__(self) -> None:
        self._ready = select.epoll()
        self._wires: dict[int, Wire] = {}
        self.lost: list[str] = []

    def dial(self, count: int, url: str, token: str = "", caps: tuple[str, ...] = ()) -> None:
        """Connect so many more clients."""
        for _ in range(count):
            wire = Wire(url, token, caps=caps)
            self._wires[wire.socket.fileno()] = wire
            self._ready.register(wire.socket, select.EPOLLIN)

    def leave(self) -> None:
        """Hang up, all of them."""
        for wire in self._wires.values():
            wire.close()  # leaves the epoll too
        self._wires.clear()

    def watch(self, number: int, session: str) -> None:
        """Have all of them watch a session."""
        for wire in self._wires.values():
            wire.request("interlock.watch", watch=number, session=session)

    def read(self, seconds: float, other: int = -1) -> bool:
        """Read for so long, or until another descriptor has something."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            for fd, _ in self._ready.poll(left):
                if fd == other:
                    return True
                try:
                    self._wires[fd].read()
                except (Lost, OSError) as why:
                    self.lost.append(str(why))
                    self._ready.unregister(fd)
        return False

    def count(self, seconds: float) -> dict[str, Any]:
        """Read for so long and say what came."""
        wires, began, cpu = list(self._wires.values()), time.monotonic(), _cpu()
        before = [(wire.deltas, wire.frames, wire.bytes) for wire in wires]
        self.read(seconds)
        took = time.monotonic() - began
        came = [(w.deltas - d, w.frames - f, w.bytes - b) for w, (d, f, b) in zip(wires, before, strict=True)]
        deltas, frames, size = (sum(each) / took for each in zip(*came, strict=True))
        told = {"deltas": deltas, "frames": frames, "bytes": size, "cpu": (_cpu() - cpu) / took, "lost": self.lost}
        return {**told, "seconds": took}

    def serve(self) -> None:
        """Do what lines of JSON on the standard input say, and answer each; read on meanwhile."""
        self._ready.register(0, select.EPOLLIN)
        while True:
            self.read(3600, other=0)
            line = sys.stdin.readline()
            if not line:
                return
            self._ready.unregister(0)
            verb, given = json.loads(line)
            print(json.dumps(getattr(self, verb)(**given)), flush=True)
            self._ready.register(0, select.EPOLLIN)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        Crowd().serve()
