"""Warm workers: processes that wait, contained, for a synchronous tool.

1. A worker has a keeper of its own, so it is ended exactly, with what its tool started, even inside a C call.
2. It serves one run, and dies with it. A spare is kept warm for the next run that asks.
3. Work goes in pickled; what comes out is plain values, and trusted as little as any input.
4. A tool with a grace hears first, by a pipe, that it is cut. Then its keeper sends TERM, and KILL after the grace.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import errno
import gc
import itertools
import multiprocessing.spawn
import os
import pickle
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from interlock.core.errors import BadInput, InterlockError
from interlock.processes import notice, wire
from interlock.processes.base import ROOT, SpawnFailed, SpawnOrder
from interlock.processes.containment import ERRORS
from interlock.processes.worker import ANSWER_BYTES

if TYPE_CHECKING:
    from interlock.processes.containment import LocalContainment, LocalProcess
    from interlock.processes.local import LocalProcesses

BARE = (
    "import sys, types; package = types.ModuleType('interlock'); package.__path__ = [sys.argv[1]]; "
    "sys.modules['interlock'] = package; "
    "from interlock.processes.worker import main; main(int(sys.argv[2]))"
)


READ_BYTES = 64 * 1024
LOOKS = ("sys_path", "sys_argv", "orig_dir", "dir", "init_main_from_name", "init_main_from_path")


class ToolFailed(InterlockError):
    """A tool raised, in its worker, an error of a kind that is not Python's own; the text begins with its name."""


def pack(function: Callable[..., Any], arguments: dict[str, Any], name: str) -> bytes:
    """Return a call as bytes, or say why it cannot leave this process."""
    try:
        work = pickle.dumps((function, arguments))
        _need_import(function)
    except Exception as error:  # pickling runs the objects' own code
        raise BadInput(
            f"tool {name} is synchronous and runs in a process of its own, but cannot be sent there ({error}); "
            "define it at the top of a module and give it plain arguments, make it async, "
            "or declare @interlock.tool(thread=True) (a thread is fenced but cannot be ended)"
        ) from None
    return work


def _need_import(function: Callable[..., Any]) -> None:
    """A function of the main module can be found again only if that is a file or a module."""
    module = getattr(function, "__module__", None)
    main = sys.modules.get("__main__")
    if module == "__main__" and getattr(main, "__spec__", None) is None:
        path = getattr(main, "__file__", None)
        if path is None or not os.path.exists(path):  # noqa: PTH110
            raise ValueError("it was typed in, not imported from a file")


def _preparation() -> dict[str, Any]:
    """Say how this process looks, as multiprocessing would to a process of its own; its secret is not for a worker."""
    data = multiprocessing.spawn.get_preparation_data("interlock worker")
    return {name: data[name] for name in LOOKS if name in data}


class Worker:
    """A worker process and our end of its socket."""

    def __init__(self, containment: LocalContainment, process: LocalProcess, sock: socket.socket, answers: int) -> None:
        self.containment = containment
        self._process = process
        self._sock = sock
        self._answers = answers
        self._data = bytearray()
        self._loop = asyncio.get_running_loop()
        self._prepared = False
        self._answer: asyncio.Future[Any] | None = None
        os.set_blocking(answers, False)
        self._loop.add_reader(answers, self._readable)
        process.on_end = self._exited  # a child of its tool may hold the socket for ever
        containment.on_cut = self._cut

    @property
    def alive(self) -> bool:
        """True while it can be asked."""
        return self._sock.fileno() >= 0 and not self.containment.done.is_set()

    def ask(self, work: bytes | None, *, grace: float = 0.0) -> asyncio.Future[Any]:
        """Hand work over in this step; the future brings the result, or raises what the tool raised."""
        preparation = None if self._prepared else _preparation()
        self._prepared = True
        self._answer = self._loop.create_future()
        self.containment.allow(grace)  # before the work: a tool that has begun has its grace
        try:
            wire.send_bytes(self._sock, pickle.dumps((preparation, work, grace)))
        except OSError as error:
            long = error.errno == errno.E2BIG
            why = "its arguments are too long; write a file" if long else "the worker is gone; call the tool again"
            self._fail(SpawnFailed(error.errno or errno.EIO, why))
        return self._answer

    def _readable(self) -> None:
        try:
            piece = os.read(self._answers, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        self._data += piece
        size = int.from_bytes(self._data[:4], "big")
        if not piece or size > ANSWER_BYTES or (self._data and (self._answer is None or self._answer.done())):
            self._died()  # or it says what nobody asked for
            self.containment.allow(0.0)
            self.containment.cut()
        elif len(self._data) >= 4 + size:
            answer, self._data = bytes(self._data[4 : 4 + size]), bytearray()
            self._take(answer)

    def _take(self, answer: bytes) -> None:
        assert self._answer is not None
        self.containment.allow(0.0)  # the tool is over: whatever it left has no time to ask for
        collecting = gc.isenabled()
        gc.disable()  # (a great many small things are made at once)
        try:
            word, said = msgspec.msgpack.decode(answer)
            if word == "failed":
                kind, text, builtin = said
                self._fail(_error(str(kind), str(text), bool(builtin)))
            else:
                self._answer.set_result(said)
        except (msgspec.DecodeError, TypeError, ValueError, RecursionError, MemoryError):
            self._fail(ToolFailed("its worker answered something that is no answer"))
            self.end()  # its tool may go on for ever, and nobody else is to wait for that
        finally:
            if collecting:
                gc.enable()

    def _exited(self) -> None:
        for _ in range(ANSWER_BYTES // READ_BYTES + 1):  # its last answer
            if self._sock.fileno() < 0 or self._answer is None or self._answer.done():
                break
            before = len(self._data)
            self._readable()
            if len(self._data) == before:
                break
        self._died()

    def _died(self) -> None:
        if self._sock.fileno() >= 0:
            self._fail(ToolFailed("its worker died while it ran (it exited, or was ended by the system)"))
            self.close()

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
            self._answer.exception()  # whoever waits is told; nobody need wait

    def _cut(self) -> None:
        """Tell its tool, if that has a grace, and let nothing more come: it exits when the tool returns."""
        if self._sock.fileno() >= 0 and self.containment.grace > 0:
            self._process.notify()
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)

    def end(self) -> None:
        """End it, with what its tool started."""
        self.containment.cut()
        self.close()

    def close(self) -> None:
        """Hang up."""
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._answers)
            os.close(self._answers)
            self._sock.close()


class Workers:
    """Makes workers, and keeps a spare one warm."""

    def __init__(self, processes: LocalProcesses) -> None:
        self._processes = processes
        self._spare: Worker | None = None
        self._warming: asyncio.Task[None] | None = None
        self._closed = False
        self._numbers = itertools.count(1)

    def take(self, of: str) -> Worker:
        """Return a worker for a run of that name, in this step; warm if there is one."""
        worker, self._spare = self._spare, None
        if worker is None or not worker.alive:
            worker = self._make(of)
        worker.containment.name = f"a worker of {of}"
        if self._warming is None or self._warming.done():
            self._warming = asyncio.get_running_loop().create_task(self._warm(), name="warm a worker")
        return worker

    async def _warm(self) -> None:
        with contextlib.suppress(Exception):  # whoever needs one is told then
            await self._processes.ready()
            if self._closed or self._spare is not None:
                return
            worker = self._make(f"worker-{next(self._numbers)}")  # a directory, and so limits, of its own
            try:
                await asyncio.wait_for(asyncio.shield(worker.ask(None)), 30.0)
            except BaseException:
                worker.end()
                raise
            if self._closed:
                worker.end()
            else:
                self._spare = worker

    def _make(self, of: str) -> Worker:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mine.setblocking(False)
        mine.shutdown(socket.SHUT_RD)  # nothing it sends there can reach us, descriptors least of all
        reading, writing = os.pipe()
        hears = tells = -1
        containment = None
        try:
            hears, tells = notice.pipe()
            containment = self._processes.contain(of, once=True)
            process = containment.spawn(self._order(), stdio=(theirs.fileno(), writing, ERRORS, hears))
        except BaseException:
            mine.close()
            wire.close_all([reading, tells])
            if containment is not None:
                containment.cut()
            raise
        finally:
            theirs.close()
            wire.close_all([writing, hears])
        process.tells = tells
        return Worker(containment, process, mine, reading)

    def _order(self) -> SpawnOrder:
        env: dict[str, str | None] = {}
        if self._processes.confinement.agent_user is None:  # the embedder's own code, with its own environment
            env = dict(os.environ)
        return SpawnOrder(argv=(sys.executable, "-c", BARE, ROOT, "0"), env=env, background=True)

    async def close(self) -> None:
        """Let the spare go."""
        self._closed = True
        if self._warming is not None:
            self._warming.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._warming
        if self._spare is not None:
            self._spare.end()


def _error(kind: str, text: str, builtin: bool) -> Exception:
    """Return Python's own errors as what they are; others by name."""
    known = getattr(builtins, kind, None)
    if builtin and isinstance(known, type) and issubclass(known, Exception) and known is not StopIteration:
        with contextlib.suppress(Exception):
            return known(text)
    if kind == "BadInput":
        return BadInput(text)
    return ToolFailed(f"{kind}: {text}")
