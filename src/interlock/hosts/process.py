"""Control's end of one host: its link, its containment, and the KILL that reaches it at once.

1. Control reads a host in small bursts, so that a host that floods gets a share of the loop, not the loop. A host whose
   pipe is full waits in its next verb. A host that does not read what it is told is ended at UNREAD_BYTES.
2. A host's death is told when its link was read to the end: a return that is complete there counts.
3. Garbage, a message that is too long, and messages out of order end the host, and its run fails with words. Control
   goes on.
4. KILL needs no other process. Control holds a pidfd of the host and signals it in the step of the fall.
5. A host is kept after an early end only if the kernel shows that nothing else in its containment has run since the
   turn began (`look`).

`look` compares context switches, not CPU time, which the kernel tells in hundredths of a second. A thread that sleeps
now, and slept at the first look with the same count of switches, has not run between the two. Whether an idle thread
waits for its pool or over work that the turn gave it cannot be seen from outside, and the view from inside can be a
lie. So a turn that used a thread pool and is then stopped loses its host: that is the price.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import socket
import sys
import termios

from interlock.agent.order import SpawnFailed
from interlock.agent.tool import ERROR_CHARACTERS
from interlock.hosts import link
from interlock.hosts.turn import HostTurn
from interlock.processes import kernel
from interlock.processes.containment import LocalContainment, LocalProcess
from interlock.runtime.handlers import Violation

log = logging.getLogger("interlock")

# Bytes read from a host at a time, some twenty small messages. A stop waits for no more than that of each host.
BURST_BYTES = 1024
HEARD_BURSTS = 32  # read in one step before a limit ends a run
LONG_BYTES = 256 * 1024  # read at a time of a message that is longer than BURST_BYTES
UNREAD_BYTES = 64 * 1024 * 1024  # waiting for a host that does not read
NAMED = 16  # processes kept with a host that a receipt names
STATUS_SECONDS = 1.0  # the wait for a host's exit status once its link is closed


class HostProcess:
    """A host process, and control's ends of its link: a socket that control only writes to, and a pipe it reads."""

    def __init__(self, containment: LocalContainment, process: LocalProcess, sock: socket.socket, said: int) -> None:
        self.containment = containment
        self.process = process
        self.turns = 0
        self.renewed = 0  # the session's generation at its last reset before the host's first turn
        self.hello: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.turn: HostTurn | None = None
        # The time at which control had read all that the host had said; a message read later was said later.
        self.heard = 0.0
        self._sock = sock  # control writes
        self._said = said  # the host writes
        self._loop = asyncio.get_running_loop()
        self._frames = link.Frames(link.Said, link.FRAME_BYTES)
        self._out = bytearray()
        self._pidfd = -1
        self._killed = False
        self._trouble: str | None = None
        self._left: int | None = None  # bytes in its link when its process died: the last that count
        self._burying: asyncio.Task[None] | None = None
        # The baseline: traces of all other threads and processes before the turn. None if they could not be read.
        self._before: dict[tuple[int, int], tuple[int, int, str]] | None = None
        os.set_blocking(said, False)
        self._loop.add_reader(said, self._readable)
        process.on_end = self._exited

    @property
    def pid(self) -> int | None:
        """The host's process id."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """True while the host can take a turn. A host ends with the helper (the zygote) that made its warden."""
        gone = self._killed or self._sock.fileno() < 0 or self.process.exited.is_set()
        return not gone and not self.containment.done.is_set() and self.containment.helper.alive

    def watch_death(self) -> None:
        """Open a pidfd of the host, so that a KILL needs no other process.

        A pid alone proves nothing, so the pidfd is kept only if its process is a child of the host's keeper.
        """
        pid = self.process.pid
        if pid is None or not hasattr(os, "pidfd_open"):
            return
        with contextlib.suppress(OSError):
            self._pidfd = os.pidfd_open(pid)
            status = kernel.stat(pid)
            if status is None or status[1] != self.containment.keeper:
                self._close_pidfd()

    def remember(self) -> None:
        """Take the baseline of a turn that is about to begin, unless the host was alone when it came to rest.

        A thread that runs between the baseline and the turn counts against the host, which may cost a host but never
        the promise.
        """
        if self._before is None or self._before:
            self.rest()
        self.turns += 1
        self.heard = self._loop.time()  # the turn says nothing before it begins

    def rest(self) -> None:
        """Take a baseline of threads and processes between two turns: the next turn has not begun them."""
        try:
            self._before = self.containment.glimpse(self.process.pid or 0)
        except OSError:
            self._before = None

    def look(self) -> tuple[str, ...] | None:
        """Name the processes of the baseline if nothing but them is there and none has run since; else None.

        The host's main thread runs whenever control speaks with it, so for that thread the host's own word must do.
        """
        before = self._before
        try:
            now = self.containment.company(self.process.pid or 0)
        except OSError:
            return None
        if before is None:
            return None
        for task, trace in now.items():
            _, _, state = trace
            if state == "R" or before.get(task) != trace:
                return None
        return _named(sorted({pid for pid, _ in now} - {self.process.pid}))

    # Saying

    def send(self, word: link.Word) -> None:
        """Send a message in this step, or as soon as there is room."""
        if self._sock.fileno() < 0:
            return
        waiting = len(self._out)
        # The new message does not count: a host that reads may be sent an answer longer than the bound.
        if waiting > UNREAD_BYTES:
            self.fail("it did not read what it was told")
            return
        self._out += link.frame(word)
        if not waiting:
            self._flush()

    def notify(self) -> None:
        """Set the notice in the host. Each call goes with one `Fallen`: by these the host counts the pipe's bytes."""
        self.process.notify()

    def _flush(self) -> None:
        try:
            while self._out:
                del self._out[: self._sock.send(self._out)]
        except (BlockingIOError, InterruptedError):
            self._loop.add_writer(self._sock.fileno(), self._writable)
            return
        except OSError:
            # The host is gone; `_burst` sees the end of its pipe.
            self._out.clear()

    def _writable(self) -> None:
        self._loop.remove_writer(self._sock.fileno())
        self._flush()

    # Hearing

    def hear_out(self) -> None:
        """Read the messages that the host has sent already, in this step: until its agent has returned, and bounded."""
        # A late loop may come to a host's link and to the timer of a limit together, in either order, long after both
        # were due. The timer therefore reads the link first and decides then. Otherwise an agent that returned in time
        # would be told as timed out.
        for _ in range(HEARD_BURSTS):
            if not self._burst() or self.turn is None or self.turn.run.limits.returned is not None:
                return

    def _readable(self) -> None:
        self._burst()

    def _burst(self) -> bool:
        """Read and handle one burst; return True if there may be more."""
        if self._sock.fileno() < 0:
            return False
        began = self._loop.time()
        wanted = min(max(self._frames.missing, BURST_BYTES), LONG_BYTES)
        try:
            data = os.read(self._said, wanted)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        if not data:
            self._ended()
            return False
        if self._left is not None:
            self._left -= len(data)
        self._frames.feed(data)
        try:
            for word in self._frames:
                self._hear(word)
                if self._sock.fileno() < 0:
                    return False
        except (link.Garbage, Violation) as error:
            self.fail(f"it broke the protocol: {error}")
            return False
        except Exception:
            log.exception("a message of a host could not be handled")
            self.fail("control could not handle one of its messages")
            return False
        if self._left is not None and self._left <= 0:
            self._ended()
        more = len(data) == wanted
        # Everything in one burst was said before the burst was read, so `heard` is the beginning of the read.
        if not more and self._frames.empty:
            self.heard = began
        return more

    def _hear(self, word: link.Said) -> None:
        match word:
            case link.Hello(version, _):
                if version != link.VERSION or self.hello.done():
                    raise Violation(
                        f"it greeted with version {version}" if not self.hello.done() else "it greeted twice"
                    )
                self.hello.set_result(None)
            case link.Broken(why) if not self.hello.done():
                self._trouble = why[:ERROR_CHARACTERS]
            case link.OfTurn() if self.turn is not None:
                self.turn.hear(word)
            # Code that the last turn left behind has sent this. The run of that turn is over and sealed.
            case link.OfTurn(turn) if 0 < turn <= self.turns:
                pass
            case _:
                raise Violation(f"it said {type(word).__name__} without a turn")

    # Its end

    def kill(self) -> None:
        """End the host and every process it has started, in this step."""
        # The KILL of a host's cut (`HostTurn.cut`). The hang-up comes first, so that the warden counts the host as
        # ended by the cut, and then kills and reaps whatever else is there. The signal through the pidfd ends the host
        # at once. With the hang-up alone the agent's code would run on until the warden is scheduled, which a stopped
        # or starved warden never is. Neither call waits.
        if not self._killed:
            self._killed = True
            self.containment.cut()
            if self._pidfd >= 0:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            self._close()

    def fail(self, why: str) -> None:
        """Kill the host because of something it did, and fail its turn with `why`."""
        self._trouble = self._trouble or why
        turn, ours = self.turn, not self.process.exited.is_set()
        self.kill()
        self._tell(why, turn, ours=ours)

    def _exited(self) -> None:
        """Read the rest of its link: the keeper has seen the host die.

        Bytes that are in the link now still count. A process that inherited the link and could write on is ended.
        """
        if self._sock.fileno() >= 0:
            self.containment.cut()
            self._left = int.from_bytes(fcntl.ioctl(self._said, termios.FIONREAD, bytes(4)), sys.byteorder)
            # If bytes are left, `_burst` comes here when they were read.
            if not self._left:
                self._ended()

    def _ended(self) -> None:
        """Close the link, which was read to its end, and learn how the host died before telling it."""
        if self._sock.fileno() >= 0:
            self._close()
            self._burying = self._loop.create_task(self._bury(), name="bury a host")

    async def _bury(self) -> None:
        if not self.process.exited.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STATUS_SECONDS):
                    await self.process.exited.wait()
        turn = self.turn
        dead = self.process.exited.is_set()
        why = self._trouble or _death(self.process.status if dead else None)
        self.kill()
        self._tell(why, turn, ours=not dead)

    def _tell(self, why: str, turn: HostTurn | None, *, ours: bool) -> None:
        if not self.hello.done():
            self.hello.set_exception(SpawnFailed(5, f"the host was not started: {why}"))
            self.hello.exception()
        if turn is not None:
            died = why.startswith(("died", "exited", "hung"))
            turn.lost(f"the host {why}" if died else f"the host was ended: {why}", ours=ours)

    def _close(self) -> None:
        self._close_pidfd()
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._said)
            self._loop.remove_writer(self._sock.fileno())
            os.close(self._said)
            self._sock.close()

    def _close_pidfd(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def _named(pids: list[int]) -> tuple[str, ...]:
    """Name processes for a receipt. A process chooses its own name, so unprintable characters are replaced."""
    names = []
    for pid in pids[:NAMED]:
        status = kernel.stat(pid)
        command = "gone" if status is None else "".join(c if c.isprintable() else "?" for c in status[3])
        names.append(f"{command} ({pid})")
    return (*names, f"and {len(pids) - NAMED} more") if len(pids) > NAMED else tuple(names)


def _death(status: int | None) -> str:
    """Return how a host died, as the end of a sentence."""
    if status is None:
        return "hung up"
    if status >= 0:
        return f"exited with status {status}; its agent, or something it used, ended the process"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-status).name
        hint = "; out of memory, or killed from outside" if -status == signal.SIGKILL else ""
        return f"died of {name}{hint}"
    return f"died of signal {-status}"
