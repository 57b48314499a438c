"""Control's end of one host: its link, its containment, and the KILL that reaches it at once.

1. What is read is taken in small bursts, so that a host that floods gets a share of the loop, not the loop.
2. Its death is told when its link was read to the end: a complete return counts.
3. Garbage, or words out of order, end the host with a clear ending; control goes on.
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

from interlock.hosts import link
from interlock.hosts.turn import HostTurn, Violation
from interlock.processes import kernel
from interlock.processes.base import SpawnFailed
from interlock.processes.containment import LocalContainment, LocalProcess
from interlock.runtime.tool import ERROR_CHARACTERS

log = logging.getLogger("interlock")

BURST_BYTES = 1024  # read in one go, some twenty small messages: a stop waits for no more than that of each host
HEARD_BURSTS = 32  # read in one step before a limit ends a run
LONG_BYTES = 256 * 1024  # of a message that is that long
UNREAD_BYTES = 64 * 1024 * 1024  # said to a host that does not read
NAMED = 16  # processes kept with a host that a receipt names
STATUS_SECONDS = 1.0  # to learn how it ended once its link is closed


class HostProcess:
    """A host process and our ends of its link: a socket that we only write to, and a pipe."""

    def __init__(self, containment: LocalContainment, process: LocalProcess, sock: socket.socket, said: int) -> None:
        self.containment = containment
        self.process = process
        self.turns = 0
        self.renewed = 0  # when its session was last reset, as it was when it took its first turn
        self.hello: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.turn: HostTurn | None = None
        self.heard = 0.0  # when all that it had said was read: what is read later was said later
        self._sock = sock  # what we say
        self._said = said  # what it says
        self._loop = asyncio.get_running_loop()
        self._frames = link.Frames(link.Said, link.FRAME_BYTES)
        self._out = bytearray()
        self._pidfd = -1
        self._killed = False
        self._trouble: str | None = None
        self._left: int | None = None  # bytes in its link when its process died: the last that count
        self._burying: asyncio.Task[None] | None = None
        self._before: dict[tuple[int, int], tuple[int, int, str]] | None = None  # what was here before the turn
        os.set_blocking(said, False)
        self._loop.add_reader(said, self._readable)
        process.on_end = self._exited

    @property
    def pid(self) -> int | None:
        """Its process id."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """True while it can take a turn."""
        gone = self._killed or self._sock.fileno() < 0 or self.process.exited.is_set()
        return not gone and not self.containment.done.is_set() and self.containment.helper.alive  # (it goes with it)

    def watch_death(self) -> None:
        """Get hold of the process itself, so that a KILL needs nobody's help; only if it is our keeper's child."""
        pid = self.process.pid
        if pid is None or not hasattr(os, "pidfd_open"):
            return
        with contextlib.suppress(OSError):
            self._pidfd = os.pidfd_open(pid)
            status = kernel.stat(pid)
            if status is None or status[1] != self.containment.keeper:
                self._close_pidfd()

    def remember(self) -> None:
        """A turn is about to begin. One that was alone when it came to rest need not be looked at again."""
        if self._before is None or self._before:
            self.rest()
        self.turns += 1
        self.heard = self._loop.time()  # nothing of the turn is said before it begins

    def rest(self) -> None:
        """See what is here between turns: the next one did not begin it."""
        self._before = self._company()

    def look(self) -> tuple[str, ...] | None:
        """Name what was here before the turn and has not run since; None if anything else is, besides the host.

        The host's main thread runs whenever we speak with it, so of that one the host's own word must do.
        """
        before, now = self._before, self._company()
        if before is None or now is None:
            return None
        for task, trace in now.items():
            _, _, state = trace
            if state == "R" or before.get(task) != trace:
                return None
        return _named(sorted({pid for pid, _ in now} - {self.process.pid}))

    def _company(self) -> dict[tuple[int, int], tuple[int, int, str]] | None:
        try:
            return self.containment.company(self.process.pid or 0)
        except OSError:
            return None

    # Saying

    def send(self, word: link.Word) -> None:
        """Say something in this step, or as soon as there is room."""
        if self._sock.fileno() < 0:
            return
        waiting = len(self._out)
        if waiting > UNREAD_BYTES:  # this word is not counted: a long answer may come to one that reads
            self.fail("it did not read what it was told")
            return
        self._out += link.frame(word)
        if not waiting:
            self._flush()

    def notify(self) -> None:
        """Tell code that asks `stopping()` there; each time comes with one word `Fallen`, by which the host counts."""
        self.process.notify()

    def _flush(self) -> None:
        try:
            while self._out:
                del self._out[: self._sock.send(self._out)]
        except (BlockingIOError, InterruptedError):
            self._loop.add_writer(self._sock.fileno(), self._writable)
            return
        except OSError:  # its end: whoever reads sees it
            self._out.clear()

    def _writable(self) -> None:
        self._loop.remove_writer(self._sock.fileno())
        self._flush()

    # Hearing

    def hear_out(self) -> None:
        """Take what it has said and nobody has read yet, in this step: until its agent has returned, and bounded."""
        for _ in range(HEARD_BURSTS):
            if not self._burst() or self.turn is None or self.turn.run.returned is not None:
                return

    def _readable(self) -> None:
        self._burst()

    def _burst(self) -> bool:
        """Take a burst of what it says; True if there may be more."""
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
            log.exception("a message of a host could not be taken")
            self.fail("it said something that could not be taken")
            return False
        if self._left is not None and self._left <= 0:
            self._ended()
        more = len(data) == wanted
        if not more and self._frames.empty:
            self.heard = began  # not sooner: what came in one burst was all said before it was read
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
            case link.OfTurn(turn) if 0 < turn <= self.turns:
                pass  # something the last turn left behind: that run is over and sealed
            case _:
                raise Violation(f"it said {type(word).__name__} without a turn")

    # Its end

    def kill(self) -> None:
        """End it and all it has started, in this step."""
        if not self._killed:
            self._killed = True
            self.containment.cut()  # first: its keeper is then to count it as one that was ended
            if self._pidfd >= 0:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            self._close()

    def fail(self, why: str) -> None:
        """Kill it because of what it did."""
        self._trouble = self._trouble or why
        turn, ours = self.turn, not self.process.exited.is_set()
        self.kill()
        self._tell(why, turn, ours=ours)

    def _exited(self) -> None:
        """Its keeper has seen it die. What it said still counts; whoever holds its link, and may talk on, is ended."""
        if self._sock.fileno() >= 0:
            self.containment.cut()
            self._left = int.from_bytes(fcntl.ioctl(self._said, termios.FIONREAD, bytes(4)), sys.byteorder)
            if not self._left:  # else when that much was read, in bursts
                self._ended()

    def _ended(self) -> None:
        """Its link is at its end. Hear how it died, then tell."""
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
    """Name processes for a receipt: whoever chose a name may have put anything into it."""
    names = []
    for pid in pids[:NAMED]:
        status = kernel.stat(pid)
        command = "gone" if status is None else "".join(c if c.isprintable() else "?" for c in status[3])
        names.append(f"{command} ({pid})")
    return (*names, f"and {len(pids) - NAMED} more") if len(pids) > NAMED else tuple(names)


def _death(status: int | None) -> str:
    """Say how a host died."""
    if status is None:
        return "hung up"
    if status >= 0:
        return f"exited with status {status}; its agent, or something it used, ended the process"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-status).name
        hint = "; out of memory, or killed from outside" if -status == signal.SIGKILL else ""
        return f"died of {name}{hint}"
    return f"died of signal {-status}"
