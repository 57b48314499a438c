"""`interlock run`: a command, and the end of everything that it started.

1. The command's input and output are the shell's own descriptors; no byte passes through this process.
2. `interlock run` exits when the receipt is drained, with the command's own status if it ended by itself.
3. An early end is told in one line on the error output, in the words and exit codes of core/projection.
"""

import asyncio
import contextlib
import errno
import os
import re
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from interlock.agent.bodies import Leash
from interlock.agent.message import Message
from interlock.agent.order import SpawnFailed, SpawnOrder
from interlock.agent.verbs import StartProcess, WaitProcess
from interlock.app import open_control
from interlock.cli.printing import TROUBLE, facts_of, fail, milliseconds
from interlock.config import seconds
from interlock.core.answers import HostsInfo
from interlock.core.errors import BadInput, InterlockError
from interlock.core.names import Drain, Ending
from interlock.core.outcome import Outcome
from interlock.core.projection import client_words, row
from interlock.core.receipt import Receipt
from interlock.processes.base import UNSEEN, Confinement, Grade
from interlock.processes.local import LocalProcesses
from interlock.runtime.control import Control
from interlock.runtime.handlers import Acting, start_process, wait_process
from interlock.runtime.settings import Settings
from interlock.runtime.spawning import command_of

NOT_EXECUTABLE, NOT_FOUND = 126, 127  # as env, nice and timeout exit
SESSION = "shell"
NUMBER = 1  # of the one process
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
UNITS_OF_SIZE = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
USER_NAMES = ("HOME", "USER", "LOGNAME", "SHELL")  # set anew with --user

commands = typer.Typer()


class Command:
    """The driver of one command, with the shell's own input and output. Its background children end with it."""

    names: tuple[str, ...] = ()
    info: HostsInfo | None = None

    def __init__(self, order: SpawnOrder, processes: LocalProcesses) -> None:
        self.order = order
        self.status: int | None = None
        self._processes = processes

    async def open(self) -> None:
        """Do nothing: the command begins with its run."""

    async def drive(self, acting: Acting, message: Message) -> str:
        """Run the command on a leash; return how it exited."""
        leash = Leash(self._run(acting), name=f"command of {acting.run.id}")
        acting.run.work.run_bodies([leash])
        said: str = await leash
        return said

    async def _run(self, acting: Acting) -> str:
        try:
            await start_process(acting, StartProcess.of(NUMBER, self.order))
            finished = await wait_process(acting, WaitProcess(NUMBER))
        except SpawnFailed as failure:
            self.status = _status_of(failure)
            raise
        lost = acting.process(NUMBER).lost
        killed = "keeper" if lost else "helper" if not self._helped() else None
        # A KILL while the keeper or the helper is dead came from what ended the tree, not from the command.
        if finished.status == -signal.SIGKILL and killed is not None:
            self.status = TROUBLE
            raise SpawnFailed(errno.EIO, f"{self.order.argv[0]!r:.100} was ended: its {killed} was killed")
        self.status = finished.status if finished.status >= 0 else 128 - finished.status
        return _exit_words(finished.status)

    async def close(self) -> None:
        """Do nothing: the command ends with its run."""

    def _helped(self) -> bool:
        helper = self._processes._helper
        return helper is not None and helper.alive


def _status_of(failure: SpawnFailed) -> int:
    """Return a shell's exit status for a command that could not be started."""
    if "its directory" in str(failure):
        return TROUBLE
    if failure.errno == errno.ENOENT:
        return NOT_FOUND
    return NOT_EXECUTABLE if failure.errno in (errno.EACCES, errno.ENOEXEC, errno.EPERM) else TROUBLE


def _exit_words(status: int) -> str:
    if status >= 0:
        return f"exited with {status}"
    with contextlib.suppress(ValueError):
        return f"ended by {signal.Signals(-status).name}"
    return f"ended by signal {-status}"


def _bytes(text: str | None) -> int | None:
    """Read a size: 1048576, 512M, 2G, 2GiB."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    size = 0 if found is None else int(float(found[1]) * UNITS_OF_SIZE[found[2].upper()])
    if size < 1:
        raise BadInput(f"{text!r} is no size; write 1048576, 512M or 2G")
    return size


@commands.command(
    "run",
    short_help="Run a command and end everything it started.",
    context_settings={"allow_interspersed_args": False},
)
def run_command(
    command: Annotated[list[str], typer.Argument(help="The command and its arguments, best after --.")],
    deadline: Annotated[
        str, typer.Option(metavar="TIME", show_default=False, help="End it after this time: 90, 1.5s, 2m, 1h.")
    ] = "0",
    grace: Annotated[
        str, typer.Option(metavar="TIME", show_default=False, help="Send TERM first, and KILL after this time.")
    ] = "0",
    pids: Annotated[
        int, typer.Option(min=0, metavar="N", help="Most processes it may have at once; 0 is no limit.")
    ] = 4096,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Most memory it may use: 512M, 2G.")] = None,
    user: Annotated[str | None, typer.Option(metavar="NAME", help="Run it as this user (needs root).")] = None,
    cwd: Annotated[Path | None, typer.Option(metavar="DIR", help="Run it in this directory.")] = None,
    grade: Annotated[
        Grade | None, typer.Option(help="Hold its processes in this way; refused where the machine cannot.")
    ] = None,
    receipt: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the receipt there as JSON; - is the error output.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing of an early end.")] = False,
) -> int:
    """Run a command; when it ends or is ended, everything it started ends too, daemons included.

    Ctrl-C stops it. The command has a session of its own, without a controlling terminal.

    Exit status: the command's own (128+n if signal n ended it), 124 after the deadline, 130 stopped by Ctrl-C,
    143 after TERM or HUP, 125 if interlock itself failed, 126 not executable, 127 not found.
    """
    asked = Asked()
    try:
        env: dict[str, str | None] = {n: v for n, v in os.environ.items() if user is None or n not in USER_NAMES}
        confinement = Confinement(grade=grade, pids=pids or None, memory=_bytes(memory), agent_user=user, apart=False)
        processes = LocalProcesses(confinement, subreaper=True)
        order = SpawnOrder(
            argv=tuple(command), cwd=None if cwd is None else str(cwd), env=env, grace=seconds(grace), inherit=True
        )
        paper = None if receipt is None else _open_receipt(receipt)
        agent, limit = Command(order, processes), seconds(deadline)
        return asyncio.run(_run(agent, processes, asked, deadline=limit, paper=paper, quiet=quiet))
    except InterlockError as error:
        return fail(error)
    finally:
        asked.close()


class Asked:
    """Holds the first signal that asks for the end; later ones change nothing, also while control closes."""

    def __init__(self) -> None:
        self.number: signal.Signals | None = None
        self._wake: Callable[[], object] | None = None
        for number in STOPPING:
            if signal.getsignal(number) is not signal.SIG_IGN:  # a signal that nohup or & ignores stays ignored
                signal.signal(number, self._take)

    def _take(self, number: int, _: object) -> None:
        if self.number is None:
            self.number = signal.Signals(number)
            if self._wake is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed, and the status decided
                    self._wake()

    @staticmethod
    def close() -> None:
        """Ignore signals while the interpreter exits, so that none of them changes the exit status."""
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)

    async def wait(self) -> None:
        """Wait for the first signal."""
        loop, heard = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(heard.set)
        if self.number is None:
            await heard.wait()


async def _run(
    command: Command, processes: LocalProcesses, asked: Asked, *, deadline: float, paper: int | None, quiet: bool
) -> int:
    settings = Settings(drain_seconds=Settings().drain_seconds + command.order.grace)
    async with open_control("command", driver=command, settings=settings, processes=processes) as control:
        machine = await processes.ready()
        wanted = processes.confinement.grade
        if wanted is not None and machine.grade is not wanted:
            raise BadInput(f"no grade {wanted} here: {machine.why}; interlock doctor says what to change")
        sent = await control.send(SESSION, command_of(command.order), deadline=deadline)
        over = asyncio.create_task(_over(control, sent.run_id))
        signalled = asyncio.create_task(asked.wait())
        await asyncio.wait((over, signalled), return_when=asyncio.FIRST_COMPLETED)
        if not over.done():
            await (control.stop(run=sent.run_id) if asked.number is signal.SIGINT else control.close())
        outcome, receipt = await over
        signalled.cancel()
    if paper is not None:
        _write_receipt(paper, receipt)
    return _conclude(command, outcome, receipt, signalled=asked.number, quiet=quiet)


async def _over(control: Control, run_id: str) -> tuple[Outcome, Receipt]:
    """Return a run's outcome and receipt once it is drained."""
    outcome = await control.wait(run_id, drained=True)
    return outcome, await control.receipt(run_id)


def _conclude(
    command: Command, outcome: Outcome, receipt: Receipt, *, signalled: signal.Signals | None, quiet: bool
) -> int:
    """Print the line about an early end, and return the exit status."""
    if outcome.ending is Ending.COMPLETED:
        if receipt.drain is not Drain.OBSERVED and not quiet:
            fail(f"{outcome.text}: {_proof(receipt)}")
        return TROUBLE if command.status is None else command.status
    if outcome.ending is Ending.FAILED:
        fail(_reason(outcome.error or "it failed") + (f": {_proof(receipt)}" if receipt.processes.ended else ""))
        return command.status or TROUBLE
    if not quiet:
        # A command has one phase, one limit and one caller, so the line does not name them.
        alone = msgspec.structs.replace(outcome, by=None, phase=None, limit_of=None)
        words = client_words(alone)
        if outcome.ending is Ending.SHUTDOWN and signalled is not None:
            words = f"interrupted by {signalled.name}"
        fail(f"{words}: {_proof(receipt)}")
    return row(outcome).exit_code


def _proof(receipt: Receipt) -> str:
    """Return a receipt in one line, without the names of the one run and its caller."""
    if receipt.grade not in list(Grade):
        return "nothing had been started"
    (ended, _, _, left), took = facts_of(receipt), receipt.fence_to_drained_ms
    if receipt.drain is Drain.OBSERVED and took is not None:
        left = f"drained in {milliseconds(took)} ms"
    said = (ended or f"0 processes ended, grade {receipt.grade}", left)
    missed = [unseen for unseen in receipt.unseen if unseen not in UNSEEN[Grade.CGROUP]]
    return ", ".join(said) + (f"; out of reach: {'; '.join(missed)}" if missed else "")


def _reason(error: str) -> str:
    """Return an error's text without its class and number, which the receipt has."""
    return re.sub(r"^\w+: (\[Errno \d+\] )?", "", error)


def _open_receipt(path: str) -> int:
    """Open the receipt's file before the command starts, readable by its user alone."""
    if path == "-":
        return 2
    try:
        # O_NONBLOCK: opening a named pipe must not wait for its reader.
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK, 0o600)
        os.set_blocking(fd, True)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            os.fchmod(fd, 0o600)
    except OSError as error:
        raise BadInput(f"the receipt cannot be written to {path}: {error.strerror}") from None
    return fd


def _write_receipt(fd: int, receipt: Receipt) -> None:
    data = msgspec.json.format(msgspec.json.encode(receipt)) + b"\n"
    try:
        with open(fd, "wb", closefd=fd != 2) as file:
            file.write(data)
    except OSError as error:
        fail(f"the receipt could not be written: {error.strerror}")
