"""The `interlock` command: `run`, `doctor`, `serve`, `token` and the others.

The commands of client/shell, client/probe and look/ are added to it. For `interlock run`:

1. The command's input and output are the shell's own descriptors; no byte passes through this process.
2. `interlock run` exits when the receipt is drained, with the command's own status if it ended by itself.
3. An early end is told in one line on the error output, in the words and exit codes of core/projection.
"""

import asyncio
import contextlib
import errno
import os
import re
import shutil
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec

from interlock.app import Ready, open_control, serve
from interlock.config import DEFAULT_PORT, Config, data_directory, seconds
from interlock.config import read as read_config
from interlock.core.errors import BadInput, InterlockError, Unknown
from interlock.core.names import Drain, Ending
from interlock.core.outcome import Outcome
from interlock.core.projection import TABLE, client_words, row
from interlock.core.receipt import Receipt
from interlock.hosts.doctor import examine_agent
from interlock.processes import doctor as processes_doctor
from interlock.processes.base import UNSEEN, Confinement, Grade, SpawnFailed, SpawnOrder
from interlock.processes.local import LocalProcesses
from interlock.runtime.control import Control
from interlock.runtime.run import Message, Run
from interlock.runtime.settings import Settings
from interlock.runtime.spawning import command_of
from interlock.surfaces.access import Access, AccessFailed, Listed, Scope

try:
    import typer

    from interlock import look
    from interlock.client import probe, shell
    from interlock.look.commands import AsJson, Data
except ModuleNotFoundError as missing:
    extra = "serve" if sys.argv[1:2] == ["serve"] else "cli"
    sys.stderr.write(f"interlock: this command needs {missing.name}; install it: pip install 'interlock[{extra}]'\n")
    raise SystemExit(125) from None

TROUBLE, NOT_EXECUTABLE, NOT_FOUND = 125, 126, 127  # as env, nice and timeout exit
NOTHING_TO_SEE = 1  # the directory cannot be read, or the run is not there
SESSION = "shell"
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
UNITS_OF_SIZE = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
USER_NAMES = ("HOME", "USER", "LOGNAME", "SHELL")  # set anew with --user

app = typer.Typer(
    name="interlock",
    help="Agents that really stop.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def _interlock() -> None:
    pass


# interlock run


class Command:
    """The agent: one command, with the shell's own input and output. Its background children end with it."""

    def __init__(self, order: SpawnOrder, processes: LocalProcesses) -> None:
        self.order = order
        self.status: int | None = None
        self._processes = processes

    async def __call__(self, run: Run, message: Message) -> str:
        try:
            running = await run._port.spawn(self.order)
            finished = await running.wait()
        except SpawnFailed as failure:
            self.status = _status_of(failure)
            raise
        killed = "keeper" if running._process.lost else "helper" if not self._helped() else None
        # A KILL while the keeper or the helper is dead came from what ended the tree, not from the command.
        if finished.status == -signal.SIGKILL and killed is not None:
            self.status = TROUBLE
            raise SpawnFailed(errno.EIO, f"{self.order.argv[0]!r:.100} was ended: its {killed} was killed")
        self.status = finished.status if finished.status >= 0 else 128 - finished.status
        return _exit_words(finished.status)

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


@app.command(
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
        env: dict[str, str | None] = dict(os.environ)
        for name in USER_NAMES if user is not None else ():
            env.pop(name, None)
        most = _bytes(memory)
        confinement = Confinement(grade=grade, pids=pids or None, memory=most, agent_user=user, apart=False)
        processes = LocalProcesses(confinement, subreaper=True)
        order = SpawnOrder(
            argv=tuple(command), cwd=None if cwd is None else str(cwd), env=env, grace=seconds(grace), inherit=True
        )
        paper = None if receipt is None else _open_receipt(receipt)
        agent, limit = Command(order, processes), seconds(deadline)
        return asyncio.run(_run(agent, processes, asked, deadline=limit, paper=paper, quiet=quiet))
    except InterlockError as error:
        _say(_text(error))
        return TROUBLE
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
    async with open_control(command, settings=settings, processes=processes) as control:
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
            _say(f"{outcome.text}: {_proof(receipt)}")
        return TROUBLE if command.status is None else command.status
    if outcome.ending is Ending.FAILED:
        _say(_reason(outcome.error or "it failed") + (f": {_proof(receipt)}" if receipt.processes.ended else ""))
        return command.status or TROUBLE
    if not quiet:
        # A command has one phase, one limit and one caller, so the line does not name them.
        alone = msgspec.structs.replace(outcome, by=None, phase=None, limit_of=None)
        words = client_words(alone)
        if outcome.ending is Ending.SHUTDOWN and signalled is not None:
            words = f"interrupted by {signalled.name}"
        _say(f"{words}: {_proof(receipt)}")
    return row(outcome).exit_code


def _milliseconds(figure: float) -> str:
    """Return milliseconds as a person reads them: 2.4, 31, 1,710."""
    return f"{figure:.1f}" if figure < 10 else f"{figure:,.0f}"


def _proof(receipt: Receipt) -> str:
    """Return a receipt in one line."""
    if receipt.grade not in list(Grade):
        return "nothing had been started"
    ended = receipt.processes.ended
    said = [f"{ended} process{'' if ended == 1 else 'es'} ended", f"grade {receipt.grade}"]
    if receipt.drain is Drain.OBSERVED and receipt.fence_to_drained_ms is not None:
        said.append(f"drained in {_milliseconds(receipt.fence_to_drained_ms)} ms")
    else:
        said.append(f"not seen gone: {', '.join(receipt.unconfirmed)}")
    missed = [unseen for unseen in receipt.unseen if unseen not in UNSEEN[Grade.CGROUP]]
    return ", ".join(said) + (f"; out of reach: {'; '.join(missed)}" if missed else "")


def _reason(error: str) -> str:
    """Return an error's text without its class and number, which the receipt has."""
    return re.sub(r"^\w+: (\[Errno \d+\] )?", "", error)


def _text(error: InterlockError) -> str:
    return str(error.strerror or error) if isinstance(error, SpawnFailed) else str(error)


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
        _say(f"the receipt could not be written: {error.strerror}")


# interlock doctor


@app.command("doctor", short_help="Say what this machine allows and what to change.")
def doctor_command(
    agent: Annotated[
        str | None, typer.Argument(help="An agent, module:name, to try in a host.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the facts as JSON.")] = False,
) -> int:
    """Try how surely processes can be ended on this machine, and say what would make it better.

    With an agent, its module is imported in a process of its own and a host is started for it.
    """
    report = asyncio.run(processes_doctor.examine())
    if agent is not None:
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - where its module is, as a rule
        report = msgspec.structs.replace(report, facts=(*report.facts, *asyncio.run(examine_agent(agent))))
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(report)).decode() + "\n")
    else:
        _draw(report)
    broken = any(fact.name == "agent" and fact.good is False for fact in report.facts)
    return 0 if report.grade is not None and not broken else 1


MARKS = {True: "[green]✓[/]", False: "[yellow]✗[/]", None: " "}


def _draw(report: processes_doctor.Report) -> None:
    from rich.console import Console  # noqa: PLC0415 - slow to import, and `run` does not need it
    from rich.table import Table  # noqa: PLC0415

    console = Console(highlight=False)
    grade = report.grade or "none"
    console.print(f"Grade: [bold]{grade}[/]" + (f"  [dim](not better, {_plain(report.why)})[/]" if report.why else ""))
    grades = Table(title="How processes are held and ended, best first", title_justify="left")
    for head in ("", "grade", "tried", "cannot reach"):
        grades.add_column(head)
    for trial in report.trials:
        tried = (
            f"two processes gone in {_milliseconds(trial.gone_ms)} ms"
            if trial.gone_ms is not None
            else _plain(trial.why)
        )
        grades.add_row(MARKS[trial.works], trial.grade, tried, _plain("\n".join(trial.unseen)))
    console.print(grades)
    facts = Table(title="What was found", title_justify="left")
    for head in ("", "what", "here", "to make it better"):
        facts.add_column(head, overflow="fold")
    for fact in report.facts:
        facts.add_row(MARKS[fact.good], fact.name, _plain(fact.found), _plain(fact.change))
    console.print(facts)


def _plain(text: str) -> str:
    return text.replace("[", "\\[")


# interlock sessions, runs, show, prune

app.add_typer(look.commands)


# interlock send, stop, wait, watch, answer, questions, receipt, timeline, pair

app.add_typer(shell.commands)


# interlock probe

app.add_typer(probe.commands)


# interlock serve


@app.command("serve", short_help="Serve an agent over WebSocket.")
def serve_command(
    agent: Annotated[str | None, typer.Argument(help="The agent, module:callable. [interlock.demo:agent]")] = None,
    agents: Annotated[
        list[str] | None,
        typer.Option(
            "--agent", metavar="NAME=MODULE:CALLABLE", help="An agent that runs may delegate to; may be repeated."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="What people call the agent, as in STOP NAME. [its callable]")
    ] = None,
    host: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Where to listen. [127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(metavar="N", help="Which port; 0 takes a free one. [8719]")] = None,
    public: Annotated[
        bool | None, typer.Option("--public", help="Allow an address that others can reach.", show_default=False)
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Store, tokens and audit. [~/.local/state/interlock]")
    ] = None,
    strategy: Annotated[str | None, typer.Option(metavar="NAME", help="What a message does to a busy session.")] = None,
    deadline: Annotated[str | None, typer.Option(metavar="TIME", help="The longest a run may take. [48h]")] = None,
    child_deadline: Annotated[str | None, typer.Option(metavar="TIME", help="The longest a child may take.")] = None,
    agent_deadlines: Annotated[
        list[str] | None,
        typer.Option("--agent-deadline", metavar="NAME=TIME", help="The longest a run of this agent may take."),
    ] = None,
    idle_limit: Annotated[str | None, typer.Option(metavar="TIME", help="The longest a run may be silent.")] = None,
    queue_limit: Annotated[str | None, typer.Option(metavar="TIME", help="The longest a message may wait.")] = None,
    driver: Annotated[
        str | None, typer.Option(metavar="host|inline", help="Where the agent's code runs. [host]")
    ] = None,
    agent_user: Annotated[str | None, typer.Option(metavar="NAME", help="Run agent and tools as this user.")] = None,
    environment: Annotated[
        list[str] | None,
        typer.Option(
            "--env", metavar="NAME", help="A variable of ours that the agent sees too, by its name. Repeatable."
        ),
    ] = None,
    approval: Annotated[
        str | None, typer.Option(metavar="TOOLS", help="ask, never, or the tools that need no asking.")
    ] = None,
    stop_words: Annotated[
        list[str] | None,
        typer.Option("--stop-word", metavar="WORD", help="A message that stops, too. Repeatable."),
    ] = None,
    drain_seconds: Annotated[str | None, typer.Option(metavar="TIME", help="For an orderly end. [5]")] = None,
    allow_hosts: Annotated[
        list[str] | None, typer.Option("--allow-host", metavar="HOST", help="Also this Host.")
    ] = None,
    allow_origins: Annotated[
        list[str] | None, typer.Option("--allow-origin", metavar="HOST", help="Also pages from there.")
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="Read settings here. [interlock.toml]")] = None,
    log_level: Annotated[str | None, typer.Option(metavar="LEVEL", help="debug, info, warning, error. [info]")] = None,
    as_json: Annotated[bool | None, typer.Option("--json", help="Print one line of JSON when it serves.")] = None,
) -> int:
    """Serve an agent over WebSocket; without one, the demo that needs no key.

    Every option may stand in interlock.toml, or in the environment as INTERLOCK_PORT and the like. The first TERM or
    Ctrl-C ends what runs as `shutdown` and waits --drain-seconds; a second one ends at once.
    """
    flags = {name: value for name, value in locals().items() if name != "as_json"} | {"json": as_json}
    try:
        settings = read_config(flags, os.environ, Path.cwd())
        import uvloop  # noqa: PLC0415 - `interlock run` does not need it

        from interlock.surfaces.logs import set_up_logging  # noqa: PLC0415

        # This is the shell user's own token; the served agent must not have it.
        os.environ.pop("INTERLOCK_TOKEN", None)
        finish = set_up_logging(settings.log_level)
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - where the agent's module is, as a rule
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve(settings, lambda ready: _tell_ready(ready, settings)))
        finally:
            finish()
    except ModuleNotFoundError as missing:
        if missing.name not in ("uvloop", "uvicorn", "starlette", "structlog", "prometheus_client", "httptools"):
            raise
        _say(f"serving needs {missing.name}; install it: pip install 'interlock[serve]'")
        return TROUBLE
    except InterlockError as error:
        _say(_text(error))
        return TROUBLE
    return 0


def _tell_ready(ready: Ready, config: Config) -> None:
    if config.json:
        _print(msgspec.json.encode(ready).decode())
        return
    where = "" if config.port == DEFAULT_PORT else f" --url {ready.url}"
    where += "" if config.data == data_directory(os.environ).expanduser() else f" --data {config.data}"
    _print(f"interlock serves {config.agent} at {ready.url} (processes: {ready.grade}; token: {ready.token_file})")
    me = _typed()
    _print(f"Open {ready.page} in a browser (works once, within the hour; `{me} pair{where}` prints another)")
    if config.agent == "interlock.demo:agent":
        _print("Try, in another terminal:")
        _print(f"  {me} send --watch{where} help")
        _print(f"  {me} send --watch{where} story     # and Ctrl-C: it really stops")
        _print(f"  {me} send{where} daemon && {me} stop{where} --wait")


def _typed() -> str:
    """Return what a user types to run this command: its name if the shell finds it, else its path from here."""
    mine, found = Path(sys.executable).with_name("interlock"), shutil.which("interlock")
    if not mine.exists() or (found is not None and mine.samefile(found)):
        return "interlock"
    return str(mine.relative_to(Path.cwd()) if mine.is_relative_to(Path.cwd()) else mine)


# interlock token

tokens = typer.Typer(help="Say who may use a gateway: make, list and take away tokens.")
app.add_typer(tokens, name="token")


class Principals(msgspec.Struct, frozen=True):
    """The document of `token list`."""

    data: str
    principals: tuple[Listed, ...]


@tokens.command("path", short_help="Print where the operator's token is.")
def token_path_command(data: Data) -> None:
    """Print the path of the operator's token; `cat` shows it."""
    path = Access(data).token
    if not path.exists():
        raise AccessFailed(f"there is no {path}; `interlock serve` makes one at its first start")
    _print(str(path))


@tokens.command("rotate", short_help="Make a new operator's token.")
def token_rotate_command(data: Data) -> None:
    """Make a new operator's token and print where it is; a running gateway closes connections with the old one."""
    _print(str(Access(data).rotate()))


@tokens.command("add", short_help="Make a principal and print its token, once.")
def token_add_command(
    name: Annotated[str, typer.Argument(help="Its name: 1 to 64 of A-Z a-z 0-9 . _ @ -")],
    data: Data,
    scope: Annotated[
        list[str] | None,
        typer.Option(metavar="SCOPE", help=f"One of {', '.join(Scope)}; again, or with commas, for more. [write]"),
    ] = None,
) -> None:
    """Make a principal and print its token, this once: only its hash is kept.

    A name that was used before gets the sessions that its earlier holder owned.
    """
    scopes = _scopes(scope or [Scope.WRITE])
    _print(Access(data).add(name, scopes))
    _say(f"this is the token of {name} ({', '.join(scopes)}); it is not shown again")


@tokens.command("remove", short_help="Take a principal's token away.")
def token_remove_command(
    name: Annotated[str, typer.Argument(help="Its name.")],
    data: Data,
    url: shell.Url = shell.HERE,
    stop: Annotated[bool, typer.Option("--stop", help="And stop what it runs, through the gateway at --url.")] = False,
) -> int:
    """Take a principal's token away; a running gateway closes its connections. Its runs go on unless --stop is given.

    With --stop every run in its sessions, whoever sent it, and every run that it started in others' sessions is
    stopped, and the receipts are printed.
    """
    access = Access(data)
    try:
        access.remove(name)
    except Unknown as error:
        if not stop:
            raise
        # The token was removed earlier, but runs of the principal may still go on.
        _say(str(error))
    if stop:
        return shell.stop_all_of(name, url, access.directory, served=look.in_use(access.directory))
    _say(f"{name} has no token any more; what {name} runs goes on: `interlock token remove {name} --stop` ends it")
    return 0


@tokens.command("list", short_help="List who has a token.")
def token_list_command(data: Data, as_json: AsJson = False) -> None:
    """List who has a token, and its scopes."""
    access = Access(data)
    access.open(make=False)
    found = Principals(str(access.directory), access.listing())
    if as_json:
        _print(msgspec.json.format(msgspec.json.encode(found)).decode())
        return
    wide = max((len(each.name) for each in found.principals), default=0)
    for each in found.principals:
        _print(f"{each.name:<{wide}}  {','.join(each.scopes):<24}  {each.created_at or ''}".rstrip())


def _scopes(given: list[str]) -> list[Scope]:
    wanted = {word.strip() for text in given for word in text.split(",")}
    for word in sorted(wanted - set(Scope)):
        raise BadInput(f"{word[:80]!r} is no scope; write {', '.join(Scope)}")
    return [scope for scope in Scope if scope in wanted]


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


# The entry point


def _say(line: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # the error output may be closed
        sys.stderr.write(f"interlock: {line}\n")
        sys.stderr.flush()


def _open_descriptors() -> None:
    """Open 0, 1 and 2 if they are closed: a file opened later would otherwise become the command's input or output."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != fd:
                os.dup2(opened, fd)
                os.close(opened)
            os.set_inheritable(fd, True)
    sys.stdout = sys.stdout or os.fdopen(1, "w")  # None if descriptor 1 was closed when Python started


def main() -> None:
    """Run the `interlock` command."""
    _open_descriptors()
    try:
        status = app(sys.argv[1:] or ["--help"], prog_name="interlock", standalone_mode=False)
    except typer.TyperException as wrong:  # wrong usage
        words = "" if wrong.format_message().startswith("No such command") else f" {sys.argv[1]}"
        _say(f"{wrong.format_message().rstrip('.')}; interlock{words} --help tells more")
        status = probe.BAD_USAGE if sys.argv[1:2] == ["probe"] else TROUBLE
    except InterlockError as error:
        _say(str(error))
        status = NOTHING_TO_SEE
    except KeyboardInterrupt:  # before a run was started
        status = TABLE[Ending.STOPPED].exit_code
    except OSError as error:  # the output cannot be written; discard the rest of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if not isinstance(error, BrokenPipeError):
            _say(": ".join(str(each) for each in (error.filename, error.strerror or error) if each))
        status = TROUBLE
    sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
