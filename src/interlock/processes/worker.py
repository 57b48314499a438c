"""The worker: a process that runs synchronous tools, one after another, for one run.

1. Work comes in pickled, and results go out as plain values (msgpack). With `agent_user` the worker has lesser rights
   than control, and a program that unpickles gives the sender its own rights. So a dataclass comes back as a dict,
   Python's own exceptions come back as themselves, and others by name (`ToolFailed`).
2. Results leave through a pipe, not a socket. A socket can carry descriptors, and closing a descriptor that was sent to
   control may block control's loop for as long as the sender likes.
3. The output of a tool goes to the error output, where it disturbs no protocol.
4. A worker serves one run, so its whole process hears that run's notice.
"""

import contextlib
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from multiprocessing import spawn
from select import select
from typing import Any

import msgspec

from interlock.agent import notice
from interlock.processes import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket

ERROR_CHARACTERS = 2_000
ANSWER_BYTES = 4 * 1024 * 1024  # the bound is low because control decodes an answer on its loop


def serve(sock: "socket", answers: int) -> None:
    """Do the work that control sends until control hangs up."""
    while True:
        select([sock], [], [])
        try:
            packet = wire.receive_bytes(sock)
        except wire.Closed:
            return
        if packet is not None:
            answer = _work(packet[0])
            if answer is None:
                return
            if len(answer) > ANSWER_BYTES:
                answer = _failed("BadInput", f"the tool's result is longer than {ANSWER_BYTES} bytes; write a file")
            view = memoryview(len(answer).to_bytes(4, "big") + answer)
            try:
                while view:
                    view = view[os.write(answers, view) :]
            except OSError:
                # Control has closed its end.
                return


def _work(packet: bytes) -> bytes | None:
    """Do one piece of work; return the answer, or None if the run fell before the work began."""
    try:
        preparation, work, grace = pickle.loads(packet)
        if preparation is not None:
            _prepare(preparation)
        if work is None:
            return msgspec.msgpack.encode(("ready", None))
        function, arguments = pickle.loads(work)
        with _patient() if grace > 0 else contextlib.nullcontext():
            # Unpickling may have imported the tool's module, which takes long. The run may have fallen meanwhile, and
            # the tool must not begin then.
            if notice.stopping().is_set():
                return None
            value = function(**arguments)
        try:
            return msgspec.msgpack.encode(("done", value))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            return _failed("BadInput", f"the tool's result cannot be sent ({error}); return plain values")
    except BaseException as error:
        if isinstance(error, SystemExit | KeyboardInterrupt):
            return _failed("RuntimeError", f"the tool raised {type(error).__name__}")
        with contextlib.suppress(Exception):
            traceback.print_exc()
        return _failed(type(error).__name__, _text(error), builtin=type(error).__module__ == "builtins")


@contextlib.contextmanager
def _patient() -> Iterator[None]:
    """Keep TERM from ending a tool with a grace: the tool asks the notice, or has a handler of its own."""
    # A module that has set a handler of its own keeps it.
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _go_on)
    try:
        yield
    finally:
        _as_usual()


def _go_on(number: int, frame: object) -> None:
    """Do nothing on TERM: the notice was set before it, and KILL comes when the grace is over."""


def _as_usual() -> None:
    """Let TERM end this process again, unless the tool has decided otherwise."""
    if signal.getsignal(signal.SIGTERM) is _go_on:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _spare_forks() -> None:
    """Let TERM end a fork of the tool.

    TERM is blocked during the fork: one that came before the child has its default handler back would be lost.
    """
    before = threading.local()

    def hold() -> None:
        before.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    def release() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before.mask)

    def forked() -> None:
        _as_usual()
        release()

    os.register_at_fork(before=hold, after_in_parent=release, after_in_child=forked)


def _failed(kind: str, text: str, *, builtin: bool = False) -> bytes:
    clean = text.encode("utf-8", "replace").decode()[:ERROR_CHARACTERS]
    return msgspec.msgpack.encode(("failed", (kind, clean, builtin)))


def _text(error: BaseException) -> str:
    try:
        # The text of a KeyError is the repr of its key.
        if isinstance(error, KeyError) and len(error.args) == 1 and isinstance(error.args[0], str):
            return error.args[0]
        return str(error)
    except BaseException:
        return "(it cannot be described)"


_prepared: list[Any] = []


def _prepare(preparation: dict[str, Any]) -> None:
    """Take over control's path, directory and main module, once, as a process of multiprocessing does."""
    if not _prepared:
        _prepared.append(preparation)
        spawn.prepare(preparation)


def main(fd: int) -> None:
    """Be a worker. The real package `interlock` is imported when a tool's module asks for it."""
    os.environ["INTERLOCK_WORKER"] = str(os.getpid())
    del sys.modules["interlock"]
    from socket import socket as Socket  # noqa: N812, PLC0415 - the full class, imported late

    notice.heard_by_all(notice.Notice(notice.take_notice()))
    _spare_forks()
    # Processes that a tool starts do not inherit the duplicate, and find /dev/null as their standard input.
    sock = Socket(fileno=os.dup(fd))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, fd)
    os.close(nothing)
    answers = os.dup(1)
    os.dup2(2, 1)
    serve(sock, answers)
