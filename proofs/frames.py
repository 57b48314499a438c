"""Frames that are almost right: the gateway reads each, refuses it with a reason, or closes with a code.

1. An input is a valid frame, changed a few times where its structure is: fields dropped, added, doubled, renamed, of
   another type, exchanged with another frame's, nested, cut, or with bits flipped in its bytes.
2. In process: nothing but BadFrame and BadInput escapes, reasons fit into a close frame, answers name their request.
3. Over the wire: a served gateway answers or closes with one of its codes, answers health after every few inputs,
   writes no traceback and does not grow.

python -m proofs frames --inputs 1000000 [--wire 5000] [--seed N]     a seed plays the same inputs again
"""

import argparse
import asyncio
import copy
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from interlock import Message, Run
from interlock.core.errors import BadInput, InterlockError
from interlock.protocol import frames
from proofs.schedules import progress_bar

CHUNK = 10_000
BATCH = 20  # inputs between two health requests; fewer than may be in flight
WAIT_SECONDS = 30.0
REASON_BYTES = 123  # limit of the reason in a close frame, by RFC 6455
GROWTH_BYTES = 64 * 1024 * 1024
CODES = {1002, 1003, 1007, 1008, 1009, 4001}
TRACES = ("Traceback", "request failed", "Exception in ASGI", "could not be told", "never retrieved")
CLIENT = {"id": "test", "version": "1", "platform": "linux", "mode": "test"}

Json = Any
Frame = dict[str, Json]


async def agent(run: Run, message: Message) -> str:
    """Answer every message at once."""
    return message.text[:100]


# Inputs

PARAMS: dict[str, Frame] = {
    "connect": {"minProtocol": 4, "maxProtocol": 4, "client": CLIENT, "role": "operator", "scopes": [], "caps": []},
    "health": {"probe": True},
    "chat.send": {"sessionKey": "s", "message": "hello", "idempotencyKey": "k", "queueMode": "steer", "timeoutMs": 9},
    "chat.abort": {"sessionKey": "s", "runId": "r-1-1"},
    "chat.history": {"sessionKey": "s", "limit": 5, "offset": 1, "maxChars": 99},
    "agent": {"message": "hello", "idempotencyKey": "a", "sessionKey": "s", "timeout": 5, "extraSystemPrompt": "x"},
    "agent.wait": {"runId": "r-1-1", "timeoutMs": 1},
    "sessions.abort": {"key": "s", "clearQueued": True},
    "sessions.list": {"limit": 5, "offset": 0, "search": "s"},
    "sessions.describe": {"key": "s"},
    "sessions.reset": {"key": "s", "reason": "new"},
    "tasks.list": {"status": ["running"], "sessionKey": "s", "limit": 5, "cursor": "0"},
    "tasks.get": {"taskId": "r-1-1"},
    "tasks.cancel": {"taskId": "r-1-1", "reason": "enough"},
    "exec.approval.list": {},
    "exec.approval.resolve": {"id": "q-1-1", "decision": "deny"},
    "receipts.get": {"runId": "r-1-1"},
    "runs.timeline": {"runId": "r-1-1"},
    "interlock.chat": {"sessionKey": "s", "message": "hello", "idempotencyKey": "c", "queueMode": "rollback"},
    "interlock.send": {
        "session": "s",
        "text": "hi",
        "key": "o",
        "strategy": "queue",
        "deadline": 1.5,
        "order": ["c", 1],
    },
    "interlock.stop": {"session": "s", "order": ["c", 2.5], "typed": True},
    "interlock.reset": {"session": "s", "key": "k"},
    "interlock.wait": {"run": "r-1-1", "timeout": 0.01, "drained": True},
    "interlock.watch": {"watch": 1, "session": "s", "after": 0},
    "interlock.unwatch": {"watch": 1},
    "interlock.answer": {"question": "q-1-1", "answer": True},
    "interlock.questions": {"session": "s"},
    "interlock.runs": {"session": "s", "tree": True, "latest": 1},
    "interlock.find": {"name": "k"},
    "interlock.session": {"session": "s"},
    "interlock.receipt": {"of": "f-1-1"},
    "interlock.timeline": {"run": "r-1-1"},
    "interlock.sessions": {"limit": 3},
    "interlock.processes": {},
    "interlock.history": {"session": "s"},
    "interlock.strategy": {"session": "s", "strategy": "collect"},
    "interlock.share": {"session": "s", "with": "ann", "may": "read"},
    "interlock.unshare": {"session": "s", "with": "ann"},
    "interlock.wake": {"session": "s", "text": "hi", "at": 4102444800.0},
    "interlock.unwake": {"wake": "w-1-1"},
    "interlock.wakes": {"session": "s"},
    "interlock.pair": {"name": "ann"},
    "interlock.tokens": {},
    "interlock.token.add": {"name": "ann", "scopes": ["write", "read"]},
    "interlock.token.remove": {"name": "ann"},
    "interlock.token.rotate": {},
    "interlock.overview": {},
    "interlock.stopall": {"of": "ann"},
}
STRANGE: tuple[Json, ...] = (
    *(None, True, False, 0, -1, 1.5, -0.0, 1e308, 2**31, 2**53, 2**53 + 1, 2**63, -(2**63), 2**64, 10**40, 10**400),
    *(
        "",
        " ",
        "\0",
        "\x7f",
        "\n",
        "s",
        "0",
        "r-1-1",
        "__proto__",
        "constructor",
        "\u20ac" * 99,
        "\U0010ffff",
        "\ud800",
    ),
    *("x" * 513, "x" * 5_000, "stop", "/new", "\u202e", "\ufeff", "%s{}", "null"),
    *([], {}, [[]], [None] * 40, {"": {}}, {"a": {"b": {"c": []}}}),
)


def _objects(value: Json) -> Iterator[Frame]:
    rest = [value]
    while rest:
        here = rest.pop()
        if isinstance(here, dict):
            yield here
            rest.extend(here.values())
        elif isinstance(here, list):
            rest.extend(here)


def _change(dice: random.Random, frame: Frame) -> None:
    """Change a frame at one place."""
    inside = isinstance(frame.get("params"), dict) and dice.random() < 0.8
    here = dice.choice(list(_objects(frame["params"] if inside else frame)))
    name = dice.choice(list(here)) if here else ""
    match dice.randrange(7):
        case 0:
            here.pop(name, None)
        case 1:
            here[dice.choice([word for word in STRANGE if isinstance(word, str)])] = copy.deepcopy(dice.choice(STRANGE))
        case 2 | 3:
            here[name] = copy.deepcopy(dice.choice(STRANGE))
        case 4:
            here[dice.choice([*NAMES, name.swapcase(), f"{name} "])] = here.pop(name, None)
        case 5:
            here[name] = copy.deepcopy(dice.choice(VALUES))
        case _:
            levels, inner = dice.choice((1, 30, 31, 32, 33, 200)), here.get(name)
            for _ in range(levels):
                inner = [inner] if dice.random() < 0.5 else {"a": inner}
            here[name] = inner


def _damage(dice: random.Random, raw: bytes) -> bytes:
    """Change the bytes of a frame."""
    at = dice.randrange(len(raw) + 1)
    match dice.randrange(7):
        case 0:
            return raw[:at]
        case 1:
            return raw[:at] + raw[dice.randrange(len(raw) + 1) :]
        case 2 | 3:
            flipped = bytearray(raw)
            for _ in range(dice.randrange(1, 4)):
                flipped[dice.randrange(len(flipped))] ^= 1 << dice.randrange(8)
            return bytes(flipped)
        case 4:
            return raw[:at] + dice.choice(TOKENS) + raw[at:]
        case 5:  # a field twice
            return b'{"type":"req","method":"health",' + raw[1:]
        case _:
            return dice.choice((b"[", b'{"a":')) * dice.choice((10, 100, 20_000)) + raw


VALUES = [value for params in PARAMS.values() for value in params.values()]
NAMES = sorted({name for params in PARAMS.values() for name in params})
TOKENS = (
    b"NaN",
    b"1e999",
    b"-",
    b"\\u0000",
    b"\\ud800",
    b"\\udc00",
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b'"',
    b",",
    b"}",
)


def inputs(seed: int, count: int, *, methods: tuple[str, ...] = tuple(PARAMS)) -> Iterator[bytes]:
    """Return changed frames, the same for the same seed."""
    dice = random.Random(seed)
    for number in range(count):
        method = dice.choice(methods)
        frame: Frame = {"type": "req", "id": f"f{seed}-{number}", "method": method}
        frame["params"] = copy.deepcopy(PARAMS[method])
        for _ in range(dice.choice((0, 1, 1, 1, 2, 3))):
            _change(dice, frame)
        raw = json.dumps(frame, ensure_ascii=dice.random() < 0.5).encode("utf-8", "surrogatepass")
        yield _damage(dice, raw) if raw and dice.random() < 0.3 else raw


# In process


class Played(NamedTuple):
    """The results of some inputs."""

    seen: Counter[str]
    broken: list[str]


def play(seed: int, count: int) -> Played:
    """Read inputs in this process."""
    seen: Counter[str] = Counter()
    broken: list[str] = []
    for raw in inputs(seed, count):
        try:
            seen[read(raw)] += 1
        except Exception as error:
            seen["broken"] += 1
            broken.append(f"seed {seed}: {type(error).__name__}: {error}: {raw[:300]!r}")
    return Played(seen, broken)


def read(raw: bytes) -> str:
    """Read a frame as the gateway does; return the result in one word."""
    try:
        text = raw.decode()
    # The server closes a connection on such bytes. Read them all the same, in case a server let them through.
    except UnicodeDecodeError:
        text = raw.decode("utf-8", "surrogateescape")
    try:
        request = frames.read_request(text)
    except frames.BadFrame as bad:
        assert bad.code in CODES, bad.code
        assert len(str(bad).encode()) <= REASON_BYTES, "a reason that fits into no close frame"
        return "closed"
    method = frames.METHODS.get(request.method)
    if method is None:
        return "no method"
    try:
        params = frames.read_params(request, method).params
    except BadInput as wrong:
        answer = json.loads(frames.refusal(request.id, frames.error_of(wrong)))
        assert (answer["id"], answer["ok"]) == (request.id, False)
        assert 0 < len(answer["error"]["message"]) <= 1_000, "an error that nobody reads"
        return "refused"
    except InterlockError as error:
        raise AssertionError("params are wrong, or they are not") from error
    assert isinstance(params, method.params)
    assert json.loads(frames.response(request.id, {}))["id"] == request.id
    return "read"


def _play(work: tuple[int, int]) -> Played:
    return play(*work)


# Over the wire


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


class Wire:
    """A served gateway, fed inputs on one connection after another."""

    def __init__(self, url: str, token: str, pid: int) -> None:
        self._url, self._token, self._pid = url, token, pid
        self.seen: Counter[str] = Counter()
        self.broken: list[str] = []

    async def feed(self, batch: list[bytes], *, stranger: bool) -> None:
        """Send some inputs, instead of connect or after it, then check that the server is well."""
        async with self._open() as socket:
            try:
                await self._next(socket)
                if not stranger:
                    await self._ask(socket, "connect", PARAMS["connect"] | {"auth": {"token": self._token}})
                for raw in batch:
                    await socket.send(raw, text=True)
                    self.seen["sent"] += 1
                await self._ask(socket, "health", {})
                self.seen["answered"] += 1
            except TimeoutError:
                self.broken.append(f"no answer after {batch!r:.2000}")
            except ConnectionClosed as closed:
                code = closed.rcvd.code if closed.rcvd is not None else 1006
                self.seen[f"closed with {code}"] += 1
                # On bytes that are not UTF-8 uvicorn drops the connection at once, without a close frame.
                cut = code == 1006 and not all(map(_is_text, batch))
                if code not in CODES and not cut:
                    self.broken.append(f"closed with {code} after one of {batch!r:.2000}")
        await self._well()

    def _open(self) -> connect:
        return connect(self._url, compression=None, proxy=None, ping_interval=None, max_size=None)

    async def _next(self, socket: ClientConnection) -> Frame:
        async with asyncio.timeout(WAIT_SECONDS):
            frame: Frame = json.loads(await socket.recv())
            return frame

    async def _ask(self, socket: ClientConnection, method: str, params: Frame) -> None:
        """Ask, and read until the answer; everything else that comes must be a frame."""
        await socket.send(json.dumps({"type": "req", "id": f"own {method}", "method": method, "params": params}))
        while True:
            frame = await self._next(socket)
            if frame.get("id") == f"own {method}":
                assert frame["ok"], frame
                return
            if frame["type"] == "res":
                self.seen["ok" if frame["ok"] else frame["error"]["code"]] += 1

    async def _well(self) -> None:
        async with self._open() as socket:
            await self._next(socket)
            await self._ask(socket, "connect", PARAMS["connect"] | {"auth": {"token": self._token}})

    def memory(self) -> int:
        """Return the server's memory in bytes."""
        pages = Path(f"/proc/{self._pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def served() -> Iterator[tuple[Wire, Path]]:
    """Serve in a process of its own for the length of a block; yield the file it logs to, too."""
    with tempfile.TemporaryDirectory() as made:
        log, data = Path(made) / "log", Path(made) / "data"
        interlock = [sys.executable, "-m", "interlock.cli"]
        command = [*interlock, "serve", "proofs.frames:agent", "--json", "--driver", "inline"]
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [*command, "--port", "0", "--data", str(data), "--log-level", "warning"],
                stdout=subprocess.PIPE,
                stderr=sink,
                cwd=Path(__file__).parent.parent,
            )
        assert process.stdout is not None
        try:
            ready = json.loads(process.stdout.readline() or "{}")
            if not ready:
                raise RuntimeError(f"it did not serve: {log.read_text()[-2000:]}")
            # A principal of its own: an input may well rotate the operator's token.
            words = [*interlock, "token", "add", "the-fuzzer", "--scope", "admin", "--data", str(data)]
            token = subprocess.run(words, capture_output=True, check=True, text=True).stdout.strip()
            yield Wire(ready["url"].replace("http", "ws", 1), token, process.pid), log
        finally:
            process.terminate()
            try:
                process.wait(WAIT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(WAIT_SECONDS)
            process.stdout.close()


def over_the_wire(seed: int, count: int, advance: Callable[[int], object] = lambda _: None) -> tuple[Played, int]:
    """Feed inputs to a server; return the results and by how many bytes the server grew."""
    with served() as (wire, log):
        grown = asyncio.run(_over_the_wire(wire, seed, count, advance))
        lines = [line for line in log.read_text("utf-8", "replace").splitlines() if any(t in line for t in TRACES)]
    broken = wire.broken + [f"in the log: {line[:1500]}" for line in lines[:5]]
    if grown > GROWTH_BYTES:
        broken.append(f"it grew by {grown} bytes")
    return Played(wire.seen, broken), grown


async def _over_the_wire(wire: Wire, seed: int, count: int, advance: Callable[[int], object]) -> int:
    # Leave out connect: after ten wrong tokens the gateway makes every stranger wait.
    methods = tuple(name for name in PARAMS if name != "connect")
    before = 0
    for number, first in enumerate(range(0, count, BATCH)):
        batch = list(inputs(seed + number, min(BATCH, count - first), methods=methods))
        for part in [[raw] for raw in batch] if number % 2 else [batch]:  # each alone, or all in a row
            await wire.feed(part, stranger=number % 5 == 4)
        before = before or wire.memory()
        advance(len(batch))
    return wire.memory() - before


def prove(seed: int, count: int, wire: int, jobs: int, console: Console) -> int:
    """Play all inputs with a progress bar; return how many things were broken."""
    work = [(seed + number, min(CHUNK, count - first)) for number, first in enumerate(range(0, count, CHUNK))]
    seen: Counter[str] = Counter()
    broken: list[str] = []
    began = time.perf_counter()
    with progress_bar(console) as progress:
        bar = progress.add_task("frames read", total=count)
        with multiprocessing.get_context("spawn").Pool(jobs) as pool:
            for (_, size), played in zip(work, pool.imap(_play, work), strict=True):
                seen.update(played.seen)
                broken += played.broken
                progress.advance(bar, size)
        wall = time.perf_counter() - began
        bar = progress.add_task("frames sent", total=wire)
        began = time.perf_counter()
        sent, grown = over_the_wire(seed, wire, lambda size: progress.advance(bar, size))
        wire_wall = time.perf_counter() - began
    for what in (broken + sent.broken)[:20]:
        console.print(what, markup=False, highlight=False)
    told = ", ".join(f"{times} {word}" for word, times in sorted(seen.items()))
    console.print(
        f"{count} frames (seed {seed}) in {wall:.1f} s: {count / wall:.0f}/s on {jobs} cores; {told}", highlight=False
    )
    told = ", ".join(f"{times} {word}" for word, times in sorted(sent.seen.items()))
    console.print(
        f"{wire} over the wire in {wire_wall:.1f} s: {wire / wire_wall:.0f}/s; {told}; "
        f"the server grew by {grown / 2**20:.1f} MiB; {len(broken) + len(sent.broken)} broken",
        highlight=False,
    )
    return len(broken) + len(sent.broken)


def main(arguments: list[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m proofs frames", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="how many frames to read in process")
    parser.add_argument("--wire", type=int, default=5_000, help="how many to send to a server besides")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    asked = parser.parse_args(arguments)
    return min(1, prove(asked.seed, asked.inputs, asked.wire, asked.jobs, Console()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
