"""Workers: contained processes in which synchronous tools of inline agents run.

1. A worker has a keeper of its own, so it is ended exactly, with every process its tool started, even inside a C call.
2. A worker serves one run and dies with it. One spare is kept warm for the next run that asks.
3. Work goes in pickled. An answer is plain values, and trusted as little as any input.
4. A cut sets the notice of a tool with a grace, by a pipe. Then the keeper sends TERM, and KILL when the grace is over.
5. A worker has the embedder's own environment, since it runs the embedder's own code, as a thread would. With
   `agent_user` it has the allow-list only.

A warm worker is not moved into the leaf of the run that takes it; its leaf keeps a name (`worker-n`) and limits of its
own. With a move, work overtakes the move, directories stay behind, and if helper and keeper die between, control sees
the wrong leaf empty.
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

from interlock.agent import notice
from interlock.agent.order import SpawnFailed, SpawnOrder
from interlock.agent.tool import ToolFailed
from interlock.core.errors import BadInput
from interlock.processes import wire
from interlock.processes.base import ROOT
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


def pack(function: Callable[..., Any], arguments: dict[str, Any], name: str) -> bytes:
    """Return a call as bytes, or raise BadInput that says why it cannot leave this process."""
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
    """Raise ValueError for a function of a main module that is no file: a worker cannot import it."""
    module = getattr(function, "__module__", None)
    main = sys.modules.get("__main__")
    if module == "__main__" and getattr(main, "__spec__", None) is None:
        path = getattr(main, "__file__", None)
        if path is None or not os.path.exists(path):  # noqa: PTH110
            raise ValueError("it was typed in, not imported from a file")


def _preparation() -> dict[str, Any]:
    """Return path, directory and main module, as multiprocessing tells them, but without its authentication key."""
    data = multiprocessing.spawn.get_preparation_data("interlock worker")
    return {name: data[name] for name in LOOKS if name in data}


class Worker:
    """A worker process, and control's ends of its socket and its pipe."""

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
        # The end of the pipe is no sign of the worker's death: a child of its tool may hold the pipe for ever.
        process.on_end = self._exited
        containment.on_cut = self._cut

    @property
    def alive(self) -> bool:
        """True while the worker can be asked."""
        return self._sock.fileno() >= 0 and not self.containment.done.is_set()

    def ask(self, work: bytes | None, *, grace: float = 0.0) -> asyncio.Future[Any]:
        """Hand work over in this step; the future brings the tool's result, or raises its error."""
        preparation = None if self._prepared else _preparation()
        self._prepared = True
        self._answer = self._loop.create_future()
        # The keeper hears the grace before the worker has the work, so a tool that has begun surely has its grace.
        self.containment.allow(grace)
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
            # The worker is gone, or it broke the protocol: its answer is too long, or nothing was asked.
            self._died()
            self.containment.allow(0.0)
            self.containment.cut()
        elif len(self._data) >= 4 + size:
            answer, self._data = bytes(self._data[4 : 4 + size]), bytearray()
            self._resolve_answer(answer)

    def _resolve_answer(self, answer: bytes) -> None:
        assert self._answer is not None
        # The tool is over, so processes that it left have no grace.
        self.containment.allow(0.0)
        # Decoding makes many objects at once, and a garbage collection in the middle would delay the loop.
        collecting = gc.isenabled()
        gc.disable()
        try:
            word, said = msgspec.msgpack.decode(answer)
            if word == "failed":
                kind, text, builtin = said
                self._fail(_error(str(kind), str(text), bool(builtin)))
            else:
                self._answer.set_result(said)
        except (msgspec.DecodeError, TypeError, ValueError, RecursionError, MemoryError):
            self._fail(ToolFailed("its worker sent an answer that cannot be decoded"))
            # The tool may go on for ever, and the next call of this run would wait for it.
            self.end()
        finally:
            if collecting:
                gc.enable()

    def _exited(self) -> None:
        # Read its last answer, which may be longer than one read.
        for _ in range(ANSWER_BYTES // READ_BYTES + 1):
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
            # Mark the exception as retrieved: there may be no waiter, and asyncio would then log it as lost.
            self._answer.exception()

    def _cut(self) -> None:
        """Set the notice of a tool with a grace, and send no more work: the worker exits when the tool returns."""
        if self._sock.fileno() >= 0 and self.containment.grace > 0:
            self._process.notify()
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)

    def end(self) -> None:
        """End the worker, with every process that its tool started."""
        self.containment.cut()
        self.close()

    def close(self) -> None:
        """Close the socket and the pipe."""
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

    def claim(self, of: str) -> Worker:
        """Return a worker for a run of that name, in this step; the warm spare if there is one."""
        worker, self._spare = self._spare, None
        if worker is None or not worker.alive:
            worker = self._make(of)
        worker.containment.name = f"a worker of {of}"
        if self._warming is None or self._warming.done():
            self._warming = asyncio.get_running_loop().create_task(self._warm(), name="warm a worker")
        return worker

    async def _warm(self) -> None:
        # An error here is not raised: the next run that needs a worker meets it again, and is told.
        with contextlib.suppress(Exception):
            await self._processes.ready()
            if self._closed or self._spare is not None:
                return
            # A spare has a directory of its own, and so limits of its own.
            worker = self._make(f"worker-{next(self._numbers)}")
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
        # The worker answers on the pipe. Nothing it sends on the socket reaches control, descriptors least of all.
        mine.shutdown(socket.SHUT_RD)
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
        # Without agent_user the worker runs the embedder's own code, with the embedder's environment.
        env: dict[str, str | None] = {}
        if self._processes.confinement.agent_user is None:
            env = dict(os.environ)
        return SpawnOrder(argv=(sys.executable, "-c", BARE, ROOT, "0"), env=env, background=True)

    async def close(self) -> None:
        """End the spare."""
        self._closed = True
        if self._warming is not None:
            self._warming.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._warming
        if self._spare is not None:
            self._spare.end()


def _error(kind: str, text: str, builtin: bool) -> Exception:
    """Return a tool's error: Python's own as themselves, others as ToolFailed with their name."""
    known = getattr(builtins, kind, None)
    if builtin and isinstance(known, type) and issubclass(known, Exception) and known is not StopIteration:
        with contextlib.suppress(Exception):
            return known(text)
    if kind == "BadInput":
        return BadInput(text)
    return ToolFailed(f"{kind}: {text}")
