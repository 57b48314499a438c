"""The worker: a process that runs synchronous tools, one after another, for one run.

Its other side trusts nothing it says: work comes in pickled, results go out as plain values (msgpack). What a tool
prints goes to the error output, where it disturbs no protocol. It serves one run, so all of it hears that run's notice.
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

from interlock.processes import notice, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket

ERROR_CHARACTERS = 2_000
ANSWER_BYTES = 4 * 1024 * 1024


def serve(sock: "socket", answers: int) -> None:
    """Do what is asked for until nobody asks any more."""
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
                answer = _failed(
                    "BadInput", f"what the tool returned is longer than {ANSWER_BYTES} bytes; write a file"
                )
            view = memoryview(len(answer).to_bytes(4, "big") + answer)
            try:
                while view:
                    view = view[os.write(answers, view) :]
            except OSError:
                return  # nobody asks any more


def _work(packet: bytes) -> bytes | None:
    """Do one piece of work; return the answer, or None if it was cut before it began: then nobody asks any more."""
    try:
        preparation, work, grace = pickle.loads(packet)
        if preparation is not None:
            _prepare(preparation)
        if work is None:
            return msgspec.msgpack.encode(("ready", None))
        function, arguments = pickle.loads(work)
        with _patient() if grace > 0 else contextlib.nullcontext():
            if notice.stopping().is_set():  # to find the function may have taken long: its module was imported
                return None
            value = function(**arguments)
        try:
            return msgspec.msgpack.encode(("done", value))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            return _failed("BadInput", f"what the tool returned cannot be sent ({error}); return plain values")
    except BaseException as error:
        if isinstance(error, SystemExit | KeyboardInterrupt):
            return _failed("RuntimeError", f"the tool raised {type(error).__name__}")
        with contextlib.suppress(Exception):
            traceback.print_exc()
        return _failed(type(error).__name__, _text(error), builtin=type(error).__module__ == "builtins")


@contextlib.contextmanager
def _patient() -> Iterator[None]:
    """While a tool with a grace runs, a TERM alone ends nothing: it hears the notice, or has a handler of its own."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # else its module has one
        signal.signal(signal.SIGTERM, _go_on)
    try:
        yield
    finally:
        _as_usual()


def _go_on(number: int, frame: object) -> None:
    """TERM came, and the notice before it; KILL comes when the grace is over."""


def _as_usual() -> None:
    """Let TERM end this process again, unless the tool has decided otherwise."""
    if signal.getsignal(signal.SIGTERM) is _go_on:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _spare_forks() -> None:
    """Let TERM end a fork of the tool, as ever. It is held back meanwhile: one that came at once would be lost."""
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
        if isinstance(error, KeyError) and len(error.args) == 1 and isinstance(error.args[0], str):
            return error.args[0]  # (its text is a repr)
        return str(error)
    except BaseException:
        return "(it cannot be described)"


_prepared: list[Any] = []


def _prepare(preparation: dict[str, Any]) -> None:
    """Look as the parent does (path, directory, main module), once, as a process of multiprocessing would."""
    if not _prepared:
        _prepared.append(preparation)
        spawn.prepare(preparation)


def main(fd: int) -> None:
    """Be a worker; the package itself is imported for real when a tool's module wants it."""
    os.environ["INTERLOCK_WORKER"] = str(os.getpid())
    del sys.modules["interlock"]
    from socket import socket as Socket  # noqa: N812, PLC0415 - the real one, now that there is time

    notice.heard_by_all(notice.Notice(notice.take_notice()))
    _spare_forks()
    sock = Socket(fileno=os.dup(fd))  # not inherited by what a tool starts; nor read by it:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, fd)
    os.close(nothing)
    answers = os.dup(1)  # a pipe: unlike a socket it carries no descriptors to control
    os.dup2(2, 1)
    serve(sock, answers)
