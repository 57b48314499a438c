"""What is sqlite's own: the directory and its lock, one fsync for many, bounds while it is locked, the log file."""

import asyncio
import hashlib
import itertools
import os
import re
import select
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import interlock
from interlock.core.decision import Decision, RunRow, SessionRow, StopMark, ToolRow, WakeRow
from interlock.core.events import Block, Data, Delta, Ended, Event, Json, Said
from interlock.core.names import CallId, Ending, Principal, RunId, RunKind, SessionId, ToolState, WakeId
from interlock.core.outcome import Outcome
from interlock.stores import bounds
from interlock.stores.base import StoreFailed
from interlock.stores.sqlite import SqliteStore, writer
from interlock.stores.sqlite import store as stores

ALICE = Principal("alice")
S = SessionId("s")
FOREVER_DAYS = 1e6  # rows here are of 1970
SECONDS = 30.0  # for anything that must happen at all
BOUND_SECONDS = 120.0  # for a whole test, on a busy machine


def play(main: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), BOUND_SECONDS))  # type: ignore[arg-type]


def made(directory: Path) -> SqliteStore:
    return SqliteStore(directory, keep_days=FOREVER_DAYS)


def run(name: str, *, text: str = "hello", over: bool = False, session: SessionId = S, at: float = 1.0) -> RunRow:
    outcome = Outcome(run_id=RunId(name), ending=Ending.COMPLETED) if over else None
    return RunRow(
        id=RunId(name), session=session, principal=ALICE, kind=RunKind.CHAT, text=text, admitted_at=at, outcome=outcome
    )


def admit(name: str, **more: Any) -> Decision:
    return Decision(admissions=(run(name, **more),))


def event(position: int, data: Data, name: str | None = "r", session: SessionId = S) -> Event:
    run_id = None if name is None else RunId(name)
    return Event(position=position, session=session, run_id=run_id, generation=1, data=data)


def ended(position: int, name: str = "r") -> Event:
    return event(position, Ended(outcome=Outcome(run_id=RunId(name), ending=Ending.COMPLETED)), name)


def count(directory: Path, table: str) -> int:
    """How many rows (of deltas: how many of them) are in the database for everyone to see."""
    with sqlite3.connect(f"file:{directory}/interlock.db?mode=ro", uri=True) as other:
        what = "coalesce(sum(json_array_length(events)), 0)" if table == "passing" else "count(*)"
        found: int = other.execute(f"SELECT {what} FROM {table}").fetchone()[0]
    other.close()
    return found


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Another connection has the write lock."""
    other = sqlite3.connect(directory / "interlock.db", isolation_level=None, timeout=SECONDS)
    try:
        other.execute("BEGIN IMMEDIATE")
        yield
    finally:
        other.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def command(code: str, *given: object) -> list[str]:
    """Return the command that runs Python code; `say(x)` sends a line back and `hear()` waits for one."""
    helpers = """
        import asyncio, os, sqlite3, sys, threading
        from interlock.core.decision import Decision, RunRow
        from interlock.stores.base import StoreFailed
        from interlock.stores.sqlite import SqliteStore
        def say(what): print(what, flush=True)
        def hear(): return sys.stdin.readline()
        def admit(name):
            row = RunRow(id=name, session="s", principal="alice", kind="chat", text="hello", admitted_at=1.0)
            return Decision(admissions=(row,))
    """
    program = textwrap.dedent(helpers) + textwrap.dedent(code)
    return [sys.executable, "-c", program, *map(str, given)]


@contextmanager
def process(code: str, *given: object) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(command(code, *given), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def heard(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    assert select.select([started.stdout], [], [], SECONDS)[0], "nothing was said"
    return started.stdout.readline().strip()


HOLDER = """
    async def main():
        store = SqliteStore(sys.argv[1])
        await store.open()
        await store.decide(admit("r"))
        say("open")
        await asyncio.to_thread(hear)
        await store.close()
    asyncio.run(main())
"""


# The directory


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077], ids=oct)
def test_nobody_else_can_read_what_is_kept(tmp_path: Path, umask: int) -> None:
    """The directory is made 0700 and every file in it 0600, whatever the process allows others by default."""

    async def main() -> None:
        store = made(tmp_path / "state")
        await store.open()
        await store.decide(admit("r"))
        assert await store.run(RunId("r")) is not None
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "state").iterdir()}
        assert modes == dict.fromkeys(("interlock.db", "interlock.db-wal", "interlock.db-shm", "lock"), 0o600)
        assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
        await store.close()

    before = os.umask(umask)
    try:
        play(main)
    finally:
        os.umask(before)


def test_a_directory_is_one_store_s_at_a_time(tmp_path: Path) -> None:
    """A second store of this process is told that it is itself the holder, and comes in after a close."""

    async def main() -> None:
        first, second = made(tmp_path), made(tmp_path)
        await first.open()
        with pytest.raises(StoreFailed, match="in use by this process; stop that one, or use another directory"):
            await second.open()
        await first.decide(admit("r"))
        await first.close()
        assert await second.open() == 2
        assert second.clean and await second.run(RunId("r")) == run("r")
        await second.close()

    play(main)


def test_a_directory_is_one_process_s_until_it_is_killed(tmp_path: Path) -> None:
    """Another process has it: refused by its number. Killed with -9: it is ours at once, and not clean (race 83)."""

    async def main() -> None:
        with process(HOLDER, tmp_path) as holder:
            assert heard(holder) == "open"
            with pytest.raises(StoreFailed, match=rf"process {holder.pid}\).*stop that one, or use another"):
                await made(tmp_path).open()
            holder.kill()
            holder.wait()
            store = made(tmp_path)
            assert await store.open() == 2
            assert not store.clean and await store.run(RunId("r")) == run("r")
            await store.close()

    play(main)


@pytest.mark.parametrize("left", ["", "1\n", f"{os.getppid()}\n", "999999999\n", "not a number", "\0" * 100])
def test_a_lock_file_that_was_left_says_nothing(tmp_path: Path, left: str) -> None:
    """Whatever number is in a lock file, of a process that lives or not: only the kernel's lock counts (race 83)."""

    async def main() -> None:
        (tmp_path / "lock").write_text(left)
        store = made(tmp_path)
        assert await store.open() == 1
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
        await store.close()

    play(main)


def test_a_process_that_was_forked_off_keeps_nobody_out(tmp_path: Path) -> None:
    """A child of a fork that never heard of the store does not hold its directory when the holder is killed."""
    forks = """
        async def main():
            store = SqliteStore(sys.argv[1])
            await store.open()
            await store.decide(admit("r"))
            child = os.fork()
            if child == 0:
                while True:
                    signal.pause()
            say(child)
            await asyncio.to_thread(hear)
        import signal
        asyncio.run(main())
    """

    async def main() -> None:
        with process(forks, tmp_path) as holder:
            child = int(heard(holder))
            try:
                holder.kill()
                holder.wait()
                store = made(tmp_path)
                await store.open()
                assert await store.run(RunId("r")) == run("r")
                await store.close()
            finally:
                os.kill(child, signal.SIGKILL)

    play(main)


def test_a_fork_corrupts_nothing(tmp_path: Path) -> None:
    """A forked child that closes what it inherited, as a destructor would, leaves its parent's database alone."""
    forks = """
        async def main():
            store = SqliteStore(sys.argv[1])
            await store.open()
            for n in range(20):
                child = os.fork()
                if child == 0:
                    store._writer._connection.close()
                    os._exit(0)
                await store.decide(admit(f"r{n}"))
                os.waitpid(child, 0)
            try:
                await SqliteStore(sys.argv[1]).open()
            except StoreFailed as failure:
                say("held" if "in use by this process" in str(failure) else failure)
            await store.close()
            say("closed")
        asyncio.run(main())
    """

    async def main() -> None:
        with process(forks, tmp_path) as parent:
            assert (heard(parent), heard(parent)) == ("held", "closed")
        store = made(tmp_path)
        await store.open()
        assert store.clean and len(await store.runs(S)) == 20
        assert await store._ask(lambda db: db.execute("PRAGMA integrity_check").fetchone()[0]) == "ok"
        await store.close()

    play(main)


def files(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir() if path.is_file()}


async def refused(directory: Path, match: str) -> None:
    """A directory that cannot be used is refused with a reason, twice alike, and nothing of it is held or changed."""
    before = files(directory) if directory.is_dir() else {}
    for _ in range(2):
        with pytest.raises(StoreFailed, match=match):
            await made(directory).open()
    after = files(directory) if directory.is_dir() else {}
    assert {name: after.get(name) for name in before} == before


def test_a_database_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """A link in the place of the database is not followed: what it names may be anyone's."""

    async def main() -> None:
        (tmp_path / "state").mkdir()
        (tmp_path / "precious").write_bytes(b"")
        (tmp_path / "state" / "interlock.db").symlink_to(tmp_path / "precious")
        await refused(tmp_path / "state", "cannot be opened")
        assert (tmp_path / "precious").read_bytes() == b""

    play(main)


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """Nor is a link in the place of the lock, which would be cut to nothing."""

    async def main() -> None:
        (tmp_path / "state").mkdir()
        (tmp_path / "precious").write_bytes(b"precious")
        (tmp_path / "state" / "lock").symlink_to(tmp_path / "precious")
        await refused(tmp_path / "state", "cannot be opened")
        assert (tmp_path / "precious").read_bytes() == b"precious"

    play(main)


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_database_of_a_later_schema_is_refused(tmp_path: Path, journal: str) -> None:
    """What wrote it knows more than we do: it is named, with what to do, and not touched (race 94: downgrade)."""

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        await store.decide(admit("r"))
        await store.close()
        with sqlite3.connect(tmp_path / "interlock.db") as other:
            other.execute("PRAGMA user_version = 7001")
            other.execute("ALTER TABLE runs ADD COLUMN mood TEXT")
            other.execute(f"PRAGMA journal_mode = {journal}")
        other.close()
        (tmp_path / "lock").unlink()
        before = files(tmp_path)
        await refused(tmp_path, r"schema 7001, this version knows \d+; upgrade interlock, or use another directory")
        after = files(tmp_path)
        assert {name: after[name] for name in before} == before

    play(main)


def test_a_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """A file in the place of the directory, or of one above it, stays what it is."""

    async def main() -> None:
        (tmp_path / "file").write_text("precious")
        await refused(tmp_path / "file", "cannot be opened")
        await refused(tmp_path / "file" / "below", "cannot be opened")
        assert (tmp_path / "file").read_text() == "precious"

    play(main)


@pytest.mark.parametrize("broken", ["garbage", "head", "schema", "short"])
def test_a_broken_database_is_refused_and_kept(tmp_path: Path, broken: str) -> None:
    """What cannot be read is named and left as it is, for whoever can repair it."""

    async def main() -> None:
        path = tmp_path / "interlock.db"
        store = made(tmp_path)
        await store.open()
        await store.decide(admit("r", text="x" * 100_000))
        await store.close()
        whole = path.read_bytes()
        path.write_bytes(
            {
                "garbage": b"this is no database at all, " * 1000,
                "head": b"\0" * 100 + whole[100:],
                "schema": whole[:100] + b"\xff" * 8092 + whole[8192:],
                "short": whole[: len(whole) // 3 + 7],
            }[broken]
        )
        await refused(tmp_path, "cannot be opened")

    play(main)


def test_a_directory_without_the_right_to_write_is_refused(tmp_path: Path) -> None:
    """Who may not write in the directory is told so at once, not at the first message."""
    if os.geteuid() != 0:
        pytest.skip("only root can become someone else: run the tests as root")
    opens = """
        import concurrent.futures.thread  # nobody may not read where Python is: all that is needed is read before
        from interlock.stores.sqlite import schema
        schema.migrations()
        os.setgroups([]), os.setgid(65534), os.setuid(65534)
        async def main():
            try:
                await SqliteStore(sys.argv[1]).open()
            except StoreFailed as failure:
                say(failure)
            say("over")
        asyncio.run(main())
    """
    state = tmp_path / "state"

    async def main() -> None:
        store = made(state)
        await store.open()
        await store.decide(admit("r"))
        await store.close()

    play(main)
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_uid == 0 and path != Path("/") and "pytest" in path.name:
            path.chmod(0o755)
    state.chmod(0o755)
    before = files(state)
    for child in (state, state / "below"):
        with process(opens, child) as other:
            assert re.search(r"cannot be opened: .*(Permission denied|unable to open)", heard(other))
            assert heard(other) == "over"
    assert files(state) == before


def test_a_second_control_follows_the_first(tmp_path: Path) -> None:
    """In one process, one after another: what the first was told the second knows."""

    async def agent(run: Any, message: Any) -> str:
        return f"heard {message.text}"

    async def main() -> None:
        for n in range(3):
            async with interlock.open_control(agent, store=f"sqlite:///{tmp_path}/state") as control:
                sent = await control.send("s", f"m{n}", key=f"k{n}")
                assert (await control.wait(sent.run_id)).text == f"heard m{n}"
                assert [each.outcome.text for each in await control.runs("s")] == [f"heard m{m}" for m in range(n + 1)]
                assert (await control.send("s", "m0", key="k0")).run_id == (await control.runs("s"))[0].id

    play(main)


def test_a_store_whose_loop_is_gone_lets_go(tmp_path: Path) -> None:
    """A loop that was closed with a store open leaves no thread and no lock: nobody can close that store any more."""

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        await store.decide(admit("r"))

    async def again() -> None:
        store = made(tmp_path)
        await store.open()
        assert not store.clean and await store.run(RunId("r")) == run("r")
        await store.close()

    play(main)
    until_then = time.monotonic() + SECONDS
    while any(thread.name.startswith("interlock store") for thread in threading.enumerate()):
        assert time.monotonic() < until_then, "a thread of the store is left"
        time.sleep(0.01)
    play(again)


def test_a_process_ends_though_its_store_is_open(tmp_path: Path) -> None:
    """Nothing of the store keeps a process from ending that forgot to close it."""
    forgets = """
        async def main():
            store = SqliteStore(sys.argv[1])
            await store.open()
            await store.decide(admit("r"))
            say("over")
        asyncio.run(main())
    """
    with process(forgets, tmp_path) as other:
        assert heard(other) == "over"
        assert other.wait(SECONDS) == 0


# One transaction, one fsync


def test_many_decisions_share_an_fsync(tmp_path: Path) -> None:
    """Hundreds of decisions at once cost a handful of fsyncs; one after another costs one each."""
    if shutil.which("strace") is None:
        pytest.skip("strace is missing: apt-get install strace")
    decides = """
        async def main():
            store = SqliteStore(sys.argv[1])
            await store.open()
            if sys.argv[2] == "together":
                other = sqlite3.connect(f"{sys.argv[1]}/interlock.db", isolation_level=None)
                other.execute("BEGIN IMMEDIATE")  # else some are written before the others are there
                tickets = [store.decide(admit(f"r{n}")) for n in range(500)]
                other.close()
                await asyncio.gather(*tickets)
            elif sys.argv[2] == "alone":
                for n in range(50):
                    await store.decide(admit(f"r{n}"))
            await store.close()
        asyncio.run(main())
    """

    def synced(how: str) -> int:
        log = tmp_path / f"{how}.log"
        traced = ["strace", "-f", "-qq", "-e", "trace=fsync,fdatasync", "-o", log]
        subprocess.run([*traced, *command(decides, tmp_path / how, how)], check=True, timeout=BOUND_SECONDS)
        return len(re.findall(r"^\d+ +(?:fsync|fdatasync)\(", log.read_text(), re.MULTILINE))

    nothing = synced("nothing")
    together, alone = synced("together") - nothing, synced("alone") - nothing
    assert 1 <= together <= 10
    assert 50 <= alone <= 55


def test_what_cannot_be_written_spoils_no_neighbour(tmp_path: Path) -> None:
    """Of many decisions in one transaction the one that no file can hold is refused alone; order and rest stay."""

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        with locked(tmp_path):
            names = [f"r{n}" for n in range(20)]
            store.append(event(1, Said(text="hi", by=ALICE)))
            tickets = [store.decide(admit(name, text="\ud800" if name == "r7" else "fine")) for name in names]
        answers = await asyncio.gather(*tickets, return_exceptions=True)
        assert [name for name, answer in zip(names, answers, strict=True) if isinstance(answer, StoreFailed)] == ["r7"]
        assert [each.id for each in await store.runs(S)] == [name for name in names if name != "r7"]
        assert [each.position for each in (await store.events(S, after=0, limit=9)).events] == [1]
        await store.close()

    play(main)


def test_an_event_that_cannot_be_written_holds_up_no_other(tmp_path: Path) -> None:
    """An event that no file can hold is left out; those before and after it are written."""

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        store.append(event(1, Block(text="one")))
        store.append(event(2, Block(text="\ud800")))
        store.append(event(3, Block(text="three")))
        await store.decide(admit("r"))
        await store.close()
        assert count(tmp_path, "events") == 2

    play(main)


# Never in the way of a decision


def test_deltas_never_delay_a_decision(tmp_path: Path) -> None:
    """With 50,000 deltas waiting a decision is answered before they are all written, and they come after it."""

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        deltas = 50_000
        for n in range(1, deltas + 1):
            store.append(event(n, Delta(text="x")))
        store._flush_now()
        await until(lambda: count(tmp_path, "passing") > 0 or store._pending_count < deltas)
        await store.decide(admit("r"))
        assert count(tmp_path, "passing") < deltas
        await until(lambda: store._pending_count == 0)
        assert bounds.PASSING_EVENTS <= count(tmp_path, "passing") <= 2 * bounds.PASSING_EVENTS
        await store.close()

    play(main)


def test_deltas_are_bounded_while_their_run_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run that never ends the newest deltas are kept, at most twice the bound, and none is told as lost."""

    async def main() -> None:
        monkeypatch.setattr(bounds, "PASSING_EVENTS", 50)
        store = made(tmp_path)
        await store.open()
        for n in range(1, 1_001):
            store.append(event(n, Delta(text="x")))
            if n % 100 == 0:
                store._flush_now()
                await until(lambda: store._pending_count == 0)
                assert count(tmp_path, "passing") <= 100
        page = await store.events(S, after=0, limit=1_000)
        positions = [each.position for each in page.events]
        assert page.lost_to == 0 and len(positions) >= 50
        assert positions == list(range(1_001 - len(positions), 1_001))
        await store.close()

    play(main)


def test_the_line_is_bounded_and_an_ending_is_always_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond so many that wait a message is refused at once; a stop's write has room (race 89)."""

    async def main() -> None:
        monkeypatch.setattr(writer, "LINE", 5)
        store = made(tmp_path)
        await store.open()
        with locked(tmp_path):
            waiting = [store.decide(admit(f"r{n}")) for n in range(5)]
            beyond = store.decide(admit("beyond"))
            with pytest.raises(StoreFailed, match="5 writes wait for the disk; nothing was kept"):
                await beyond
            ending = store.decide(Decision(endings=(run("stopped", over=True),)))
            assert not any(ticket.answered for ticket in (*waiting, ending))
        await asyncio.gather(*waiting, ending)
        assert [each.id for each in await store.runs(S)] == ["r0", "r1", "r2", "r3", "r4", "stopped"]
        await store.close()

    play(main)


def test_withdrawing_is_conclusive_while_the_database_is_locked(tmp_path: Path) -> None:
    """What waits for somebody else's lock is taken back at once, and never comes (race 89)."""

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        with locked(tmp_path):
            first, second, third = (store.decide(admit(name)) for name in "abc")
            assert not await first.within(0.1)  # the writer has seen it by now and waits for the lock
            assert await store.withdraw(second) is False
            assert second.answered and not first.answered and not third.answered
        await asyncio.gather(first, third)
        assert [each.id for each in await store.runs(S)] == ["a", "c"]
        await store.close()

    play(main)


def test_withdrawing_is_conclusive_while_a_neighbour_is_refused(tmp_path: Path) -> None:
    """Where one spoils a batch, nobody who takes the lock meanwhile keeps the others waiting without a way back."""

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        with locked(tmp_path):
            texts = {f"r{n}": "\ud800" if n == 199 else "fine" for n in range(200)}
            tickets = {name: store.decide(admit(name, text=text)) for name, text in texts.items()}
        await tickets["r0"]
        other = await asyncio.to_thread(grabbed)
        async with asyncio.timeout(SECONDS):
            inside = [name for name, ticket in tickets.items() if await store.withdraw(ticket)]
        other.close()
        assert all(ticket.answered for ticket in tickets.values())
        assert "r199" not in inside
        assert [each.id for each in await store.runs(S)] == inside
        await store.close()

    def grabbed() -> sqlite3.Connection:
        """Take the write lock at the first instant that it is free."""
        other = sqlite3.connect(tmp_path / "interlock.db", isolation_level=None, timeout=0, check_same_thread=False)
        while True:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                continue
            return other

    play(main)


def test_events_are_bounded_while_the_database_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what cannot be written the newest is held, and what was lost is told, then and after a restart (race 89)."""

    async def main() -> None:
        monkeypatch.setattr(stores, "PENDING_EVENTS", 100)
        store = made(tmp_path)
        await store.open()
        with locked(tmp_path):
            for n in range(1, 1_001):
                store.append(event(n, Block(text=str(n))))
                assert store._pending_count <= 101
            page = await store.events(S, after=0, limit=2_000)
            held = [each.position for each in page.events]
            assert held == list(range(page.lost_to + 1, 1_001)) and 50 <= len(held) <= 101
            assert (await store.events(S, after=page.lost_to, limit=1)).lost_to == 0
        await store.close()
        store = made(tmp_path)
        await store.open()
        assert await store.events(S, after=0, limit=2_000) == page
        await store.close()

    play(main)


def test_no_session_loses_another_s_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions are a session's own to the store: what one run's end drops is nobody else's event."""

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        other = SessionId("other")
        store.append(event(1, Delta(text="x")))
        store.append(event(1, Block(text="kept"), session=other))
        store.append(event(2, Delta(text="kept"), session=other))
        store.append(event(3, Delta(text="x")))
        store.append(ended(4))
        await store.close()
        store = made(tmp_path)
        await store.open()
        assert [each.position for each in (await store.events(S, after=0, limit=9)).events] == [4]
        assert [each.position for each in (await store.events(other, after=0, limit=9)).events] == [1, 2]
        await store.close()

    play(main)


# Reading


def test_pages_are_full_though_deltas_are_left_out(tmp_path: Path) -> None:
    """The deltas of a run that has just ended are no part of a page, and a page is not shorter for them."""

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        for n in range(1, 2_001):
            store.append(event(n, Block(text="x") if n % 4 == 0 else Delta(text="x")))
        store._flush_now()
        await until(lambda: store._pending_count == 0)
        with locked(tmp_path):
            store.append(ended(2_001))  # cannot be written: the deltas are in the database still
            assert count(tmp_path, "passing") == 1_500
            pages, after = [], 0
            while (page := await store.events(S, after=after, limit=256)).events:
                pages.append([each.position for each in page.events])
                after = page.events[-1].position
        assert [len(each) for each in pages] == [256, 245]
        assert [position for each in pages for position in each] == [*range(4, 2_001, 4), 2_001]
        await store.close()

    play(main)


def test_a_page_leaves_out_nothing_that_comes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads on behind the last position of a page has seen all before it, also what came during the read."""

    async def main() -> None:
        monkeypatch.setattr(stores, "FLUSH_SECONDS", 3_600.0)  # only decisions write, and they leave deltas behind
        store = made(tmp_path)
        await store.open()
        busy = threading.Event()
        waits = asyncio.create_task(store._ask(lambda db: busy.wait(SECONDS)))
        await asyncio.sleep(0)
        reading = asyncio.create_task(store.events(S, after=0, limit=9))
        await asyncio.sleep(0)
        store.append(event(1, Delta(text="he")))
        store.append(event(2, Block(text="hello")))
        await store.decide(admit("r"))
        busy.set()
        await waits
        seen = [each.position for each in (await reading).events]
        later = (await store.events(S, after=seen[-1] if seen else 0, limit=9)).events
        assert seen + [each.position for each in later] == [1, 2]
        await store.close()

    play(main)


@pytest.mark.parametrize("read", ["load", "tree"])
def test_a_read_sees_one_instant(tmp_path: Path, read: str) -> None:
    """A read of several parts that a commit comes between tells all of before or all of after."""

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        child = RunRow(
            id=RunId("c"), session=SessionId("run:c"), principal=ALICE, kind=RunKind.CHILD, text="", admitted_at=1.0,
            parent=RunId("r"), home=S,
        )  # fmt: skip
        decision = Decision(
            sessions=(SessionRow(id=S, owner=ALICE, generation=1),),
            admissions=(run("r"), child),
            marks=(StopMark(session=S, channel="c", by=ALICE, at=1, stopped_at=1.0),),
        )
        begun, go_on = threading.Event(), threading.Event()
        last = "FROM marks" if read == "load" else "WHERE home ="

        def look(statement: str) -> None:
            if last in statement:
                begun.set()
                go_on.wait(SECONDS)

        await store._ask(lambda db: db.set_trace_callback(look))
        asking = store.load(S, principal=ALICE, key="k") if read == "load" else store.runs(S, tree=True)
        reading = asyncio.create_task(asking)  # type: ignore[arg-type]
        await asyncio.to_thread(begun.wait, SECONDS)
        await store.decide(decision)
        go_on.set()
        found: Any = await reading
        if read == "load":
            assert (found.session is None) == (found.marks == ())
        else:
            assert found in ((), decision.admissions)
        await store._ask(lambda db: db.set_trace_callback(None))
        await store.close()

    play(main)


def test_a_store_is_opened_again_while_a_read_of_before_goes_on(tmp_path: Path) -> None:
    """Closing waits for the reader: the next opening has one of its own, and every read is answered."""

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        busy = threading.Event()
        waits = asyncio.create_task(store._ask(lambda db: busy.wait(0.5)))
        await asyncio.sleep(0)
        await store.close()
        await store.open()
        assert await asyncio.gather(*(store.run(RunId("r")) for _ in range(10))) == [None] * 10
        await waits
        assert await store.run(RunId("r")) is None
        await store.close()

    play(main)


def test_a_full_thread_pool_keeps_nobody_from_opening_or_closing(tmp_path: Path) -> None:
    """The loop's own threads are the embedder's: a store needs none of them, and lets go of its directory."""

    async def main() -> None:
        busy = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            asyncio.get_running_loop().set_default_executor(pool)
            waits = asyncio.get_running_loop().run_in_executor(None, busy.wait)
            try:
                for _ in range(2):
                    store = made(tmp_path)
                    await store.open()
                    await store.decide(admit("r"))
                    await store.close()
            finally:
                busy.set()
            await waits

    play(main)


def test_a_store_that_is_opened_again_writes_by_itself(tmp_path: Path) -> None:
    """After a close and an opening of the same object events are written soon, though no decision takes them along."""

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        store.append(event(1, Block(text="one")))
        await store.close()
        await store.open()
        store.append(event(2, Block(text="two")))
        await until(lambda: count(tmp_path, "events") == 2)
        await store.close()

    play(main)


# After a kill


def test_deltas_of_a_run_whose_end_is_in_the_log_are_not(tmp_path: Path) -> None:
    """A decision takes a run's end along into the store; killed just then, the log holds no deltas beside it."""

    async def main() -> None:
        store = made(tmp_path / "store")
        await store.open()
        await store.decide(admit("r"))
        store.append(event(1, Delta(text="he")))
        store._flush_now()
        await until(lambda: store._pending_count == 0)
        store.append(event(2, Block(text="hello")))
        store.append(ended(3))
        await store.decide(Decision(endings=(run("r", over=True),)))
        left = tmp_path / "left"
        shutil.copytree(tmp_path / "store", left, ignore=shutil.ignore_patterns("*-shm", "lock"))
        await store.close()
        store = made(left)
        await store.open()
        assert not store.clean
        told = [each.position for each in (await store.events(S, after=0, limit=9)).events]
        kept = await store.run(RunId("r"))
        assert kept is not None
        assert told == [2, 3] and kept.told
        await store.close()

    play(main)


# Keeping it small


def sizes(directory: Path) -> tuple[int, int]:
    database = directory / "interlock.db"
    return database.stat().st_size, database.with_name("interlock.db-wal").stat().st_size


@pytest.mark.parametrize("what", ["decisions", "events"])
def test_the_write_ahead_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Under constant writing the log's pages go into the database and its room is used again."""
    checkpoint = writer.Writer._checkpoint

    def while_somebody_writes(self: Any, connection: sqlite3.Connection, how: str) -> None:
        with closing(sqlite3.connect(self._path, isolation_level=None)) as before:
            if how == "PASSIVE":  # what is written meanwhile cannot be copied by it
                before.execute("BEGIN").execute("SELECT count(*) FROM sqlite_master").fetchone()
                asyncio.run_coroutine_threadsafe(decided(), self._loop).result(30)
            checkpoint(self, connection, how)

    async def decided() -> None:
        with suppress(StoreFailed):  # (it is being closed)
            await stores[0].decide(Decision(sessions=(SessionRow(id=S, owner=ALICE, generation=next(rising)),)))

    async def main() -> None:
        monkeypatch.setattr(writer, "CHECKPOINT_BYTES", 300_000)
        monkeypatch.setattr(writer, "RESTART_BYTES", 1_000_000)
        monkeypatch.setattr(writer.Writer, "_checkpoint", while_somebody_writes)
        store = made(tmp_path)
        stores.append(store)
        await store.open()
        for n in range(1, 401):
            if what == "decisions":
                await store.decide(Decision(wakes=(wake(n),)))
            else:
                store.append(event(n, Block(text="x" * 10_000)))
            if n % 10 == 0:  # else how much comes between two looks is a matter of the disk's speed
                store._flush_now()
                await until(lambda: looked(store._writer))
            assert sizes(tmp_path)[1] <= 1_300_000
        await store.close()

    def looked(at: Any) -> bool:
        return not at._due and not at._lasting and (at._copying is None or not at._copying.is_alive())

    def wake(n: int) -> WakeRow:
        return WakeRow(id=WakeId(f"w{n % 5}"), session=S, principal=ALICE, text="x" * 10_000, since=float(n))

    stores: list[SqliteStore] = []
    rising = itertools.count(1)
    play(main)


def test_closing_leaves_one_file(tmp_path: Path) -> None:
    """After a close everything is in the database: no log beside it, so that one file can be copied away."""

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        await store.decide(admit("r"))
        store.append(event(1, Said(text="hi", by=ALICE)))
        assert await store.run(RunId("r")) is not None
        await store.close()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["interlock.db", "lock"]

    play(main)


def test_sessions_are_forgotten_by_age(tmp_path: Path) -> None:
    """A session in which nobody wrote for long goes with all it has; one that lives, waits or is scheduled stays."""

    async def main() -> None:
        store = made(tmp_path)
        await store.open()
        sessions = [SessionId(name) for name in ("old", "alive", "due", "young")]
        rows = tuple(SessionRow(id=name, owner=ALICE, generation=1) for name in sessions)
        done = tuple(
            run(f"r-{name}", over=name != "alive", session=name, at=9_000.0 if name == "young" else 10.0)
            for name in sessions
        )
        schedule = WakeRow(id=WakeId("w"), session=SessionId("due"), principal=ALICE, text="look", since=1.0)
        tools = tuple(
            ToolRow(
                call_id=CallId(f"{row.id}.1"), run_id=row.id, name="t", arguments=Json("{}"), state=ToolState.FINISHED
            )
            for row in done
        )
        for n, name in enumerate(sessions, 1):
            store.append(event(n, Said(text="hi", by=ALICE), f"r-{name}", name))
        admitted = tuple(row for row in done if row.outcome is None)
        over = tuple(row for row in done if row.outcome is not None)
        await store.decide(Decision(sessions=rows, admissions=admitted, endings=over, wakes=(schedule,), tools=tools))
        pruned = await store.prune(before=5_000.0)
        assert (pruned.sessions, pruned.runs) == (1, 1)
        for name in sessions:
            kept = name != "old"
            assert (await store.session(name) is not None) is kept
            assert bool(await store.runs(name)) is kept
            assert bool(await store.tools(RunId(f"r-{name}"))) is kept
            assert bool((await store.events(name, after=0, limit=9)).events) is kept
        assert (await store.prune(before=5_000.0)).sessions == 0
        await store.close()

    play(main)


def test_a_new_session_without_runs_is_not_old(tmp_path: Path) -> None:
    """A session that was only configured or reset is not forgotten an hour later: its owner, generation, strategy."""

    async def main() -> None:
        store = SqliteStore(tmp_path)  # with the age that people have
        await store.open()
        row = SessionRow(id=S, owner=ALICE, generation=3)
        await store.decide(Decision(sessions=(row,)))
        await store.prune()
        assert await store.session(S) == row
        await store.close()

    play(main)
