"""A disk that fails: kill -9 at every write, no room, no right to write, EIO, short writes, power cuts, locks, clocks.

Real faults where the machine has them (a small tmpfs, a file size limit, another connection), strace's where it has
not. What is left is read with plain sqlite3.
"""

import asyncio
import contextlib
import dataclasses
import os
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from proofs import disk, strace
from proofs.strace import Script, State, done, play, read

from interlock import Message, Run, Settings, Unavailable, open_control
from interlock.core.answers import Sent
from interlock.core.decision import Decision
from interlock.core.events import Delta, Event
from interlock.core.names import Ending, RunId, SessionId
from interlock.runtime.control import Control
from interlock.stores.base import StoreFailed, Ticket
from interlock.stores.sqlite import SqliteStore, checkpoints

pytestmark = pytest.mark.long

# For tests in which only a crash may keep the store from taking something.
PATIENT = Settings(commit_seconds=30)
QUICK = Settings(commit_seconds=0.2, retry_seconds=0.02, grace_seconds=0.5, drain_seconds=1)
# For tests in which the disk itself refuses, so that a busy machine does not look like a refusal.
FAILING = dataclasses.replace(QUICK, commit_seconds=30)
BOUND_SECONDS = 120  # for a whole test, on a busy machine


@pytest.fixture
def traceable() -> None:
    """Skip, saying what is missing, where strace cannot be used."""
    if lacks := strace.missing():
        pytest.skip(lacks)


@pytest.fixture
def shelf() -> Iterator[Path]:
    """A directory in memory where there is one: killing and rebuilding a store needs no real disk."""
    with tempfile.TemporaryDirectory(dir=disk.SHELF) as made:
        yield Path(made)


def run_main(main: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), BOUND_SECONDS))  # type: ignore[arg-type]


async def until(done: Callable[[], Awaitable[Any]]) -> None:
    """Wait for something; the test as a whole is bounded."""
    while not await done():
        await asyncio.sleep(0.005)


# Killed


@pytest.fixture(scope="module")
def verdicts() -> dict[str, disk.Verdict]:
    """The verdicts on every kind of step, killed before every single write and fsync."""
    if lacks := strace.missing():
        pytest.skip(lacks)
    return {scene: disk.crash_bare(scene) for scene in disk.BARE}


def test_a_step_of_the_store_is_whole_or_absent_wherever_it_is_killed(verdicts: dict[str, disk.Verdict]) -> None:
    """A step killed before any write or fsync is whole or absent; the database is sound and nothing acked is lost."""
    assert set(verdicts) == set(disk.BARE)
    assert [trouble for verdict in verdicts.values() for trouble in verdict.troubles] == []
    assert all(verdict.points > 1 for verdict in verdicts.values())


def test_a_torn_transaction_is_dropped_whole(verdicts: dict[str, disk.Verdict]) -> None:
    """Race 78. A takeover killed between any two writes is there whole or not at all, and what was before stays."""
    verdict = verdicts["takeover"]
    assert verdict.points > 10 and verdict.troubles == []


def serving(script: Script) -> contextlib.AbstractAsyncContextManager[Control]:
    """A control whose agent does one thing that cannot be taken back."""

    async def agent(run: Run, message: Message) -> str:
        script.effect("ran", message.text)
        await run.say("so far ")
        if message.text == "ends":
            script.ready()  # the next write is its ending
        return "done"

    return open_control(agent, store=f"sqlite:///{script.directory}", settings=PATIENT)


async def sends(script: Script) -> None:
    """Send one message; strace comes before."""
    async with serving(script) as control:
        script.ready()
        sent = await control.send("s", "hello", key="k")
        script.say("sent", sent.run_id)


async def sends_again(script: Script) -> None:
    """The next start: the message is sent again with its key, and ends."""
    async with serving(script) as control:
        sent = await control.send("s", "hello", key="k")
        script.say("sent", sent.run_id)
        script.say("ended", (await control.wait(sent.run_id)).ending)


def one_run(directory: Path) -> dict[str, Any]:
    """Return the one run that a database holds, and which its key names."""
    state = read(directory)
    (run,), (key,) = state["runs"], state["keys"]
    assert key["run_id"] == run["id"] and [row["id"] for row in state["sessions"]] == ["s"]
    return run


@pytest.mark.usefixtures("traceable")
@pytest.mark.parametrize("call", ["pwrite64", "fdatasync"])
def test_a_kill_before_the_fsync_leaves_the_retry_safe(tmp_path: Path, call: str) -> None:
    """Race 75. A message whose sender had no ack runs once when it is sent again with its key, and is one run."""
    directory = tmp_path / "store"
    killed = play(sends, directory, fails=(call, "signal=SIGKILL:when=1"))
    assert killed.killed and killed.said == [] and done(directory) == []
    again = play(sends_again, directory).said
    run = one_run(directory)
    assert again == [f"sent {run['id']}", "ended completed"]
    assert done(directory) == ["ran hello"] and run["ending"] == "completed"


@pytest.mark.usefixtures("traceable")
def test_a_kill_between_fsync_and_ack_leaves_one_run(tmp_path: Path) -> None:
    """Race 76. The message is in and the sender does not know; sent again with its key it is the same run, run once."""
    directory = tmp_path / "store"

    def kill(pid: int) -> None:
        strace.until(lambda: read(directory).get("runs"), "the commit")
        os.kill(pid, signal.SIGKILL)

    killed = play(sends, directory, fails=("fdatasync", "delay_exit=60s:when=1"), meanwhile=kill)
    first = one_run(directory)
    assert killed.killed and killed.said == [] and done(directory) == [] and first["ending"] is None
    again = play(sends_again, directory).said
    assert again == [f"sent {first['id']}", "ended completed"]
    assert done(directory) == ["ran hello"] and one_run(directory)["ending"] == "completed"


@pytest.mark.usefixtures("traceable")
def test_a_kill_between_the_ending_and_its_telling_tells_the_same_ending(tmp_path: Path) -> None:
    """Race 77. An ending that is stored and not yet told is told once by the next start, with the whole reply."""
    directory = tmp_path / "store"

    async def ends(script: Script) -> None:
        async with serving(script) as control:
            sent = await control.send("s", "ends", key="k")
            script.say("told", (await control.wait(sent.run_id)).ending)

    def kill(pid: int) -> None:
        strace.until(lambda: read(directory)["runs"][0]["ending"], "the commit")
        os.kill(pid, signal.SIGKILL)

    async def looks(script: Script) -> None:
        async with serving(script) as control:
            sent = await control.send("s", "ends", key="k")
            outcome = await control.wait(sent.run_id, drained=True)
            script.say(repr((str(outcome.ending), outcome.text, outcome.durable)))
            script.say(repr([(entry.role, entry.text) for entry in await control.history("s")]))

    assert play(ends, directory, fails=("fdatasync", "delay_exit=60s"), meanwhile=kill).said == []
    stored = one_run(directory)["outcome"]
    assert not [row for row in read(directory)["events"] if '"ended"' in row["data"]]
    said = play(looks, directory).said
    assert said[0] == repr(("completed", "so far \n\ndone", True))
    assert said[1] == repr([("user", "ends"), ("assistant", "so far \n\ndone")])
    told = [row for row in read(directory)["events"] if '"type":"ended"' in row["data"]]
    assert len(told) == 1 and one_run(directory)["outcome"] == stored and done(directory) == ["ran ends"]


def decision(n: int) -> Decision:
    """A message, as the bare store takes it."""
    return msgspec.convert({"sessions": disk._session(n), **disk._message(f"r{n}")}, Decision)


def names(state: State) -> set[str]:
    return {row["id"] for row in state["runs"]}


def copied(directory: Path, to: Path, **changed: bytes) -> Path:
    """Copy a database as it is on the disk now, without what only the living share."""
    to.mkdir()
    for name in ("interlock.db", "interlock.db-wal"):
        shutil.copy(directory / name, to)
    return to


def test_a_torn_tail_is_dropped_and_what_was_before_is_intact(shelf: Path) -> None:
    """Race 78. A last record that is cut or spoiled anywhere is not there, and everything before it is."""

    async def main() -> None:
        rng, store = Random(78), SqliteStore(shelf / "live")
        boot = await store.open()
        for n in range(1, 6):
            await store.decide(decision(n))
        wal = shelf / "live" / "interlock.db-wal"
        before = wal.stat().st_size
        await store.decide(decision(6))
        whole = wal.read_bytes()
        assert len(whole) > before
        assert names(read(shelf / "live")) == {f"r{n}" for n in range(1, 7)}
        for n in range(40):
            torn = copied(shelf / "live", shelf / f"torn-{n}")
            at = rng.randrange(before, len(whole))
            spoiled = whole[:at] if n % 2 else whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]
            (torn / wal.name).write_bytes(spoiled)
            assert names(read(torn)) == {f"r{n}" for n in range(1, 6)}, at
            again = SqliteStore(torn)
            assert await again.open() == boot + 1 and not again.clean
            assert len(await again.runs(SessionId("s"))) == 5
            await again.close()
        await store.close()

    run_main(main)


# Refused


class Worker:
    """An agent that works until it is told not to."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.working: set[str] = set()

    async def __call__(self, run: Run, message: Message) -> str:
        self.begun.append(message.text)
        self.working.add(message.text)
        try:
            await run.say("so far")
            if message.text.startswith("long"):
                await asyncio.Event().wait()
        finally:
            self.working.discard(message.text)
        return "done"


async def sent_in_the_end(control: Control, session: str, text: str, key: str) -> Sent:
    """Send with the same key until the message is in, as a refusal advises: a disk that is only slow may refuse."""
    while True:
        with contextlib.suppress(Unavailable):
            return await control.send(session, text, key=key)


async def refused_and_healed(directory: Path, broken: contextlib.AbstractContextManager[object], why: str) -> None:
    """While the disk takes nothing a stop works and says so, and nothing is taken; afterwards all becomes durable."""
    agent = Worker()
    async with open_control(agent, store=f"sqlite:///{directory}", settings=FAILING) as control:
        first = await control.send("a", "long one", key="one")
        await until(lambda: asyncio.sleep(0, agent.working))
        with broken:
            with pytest.raises(Unavailable, match="nothing was kept") as refused:
                await control.send("b", "two", key="two")
            assert refused.value.retryable
            receipt = await control.stop(session="a")
            assert (receipt.cause, receipt.durable, receipt.aborted) == (Ending.STOPPED, False, True)
            outcome = await control.wait(first.run_id, drained=True)
            assert (outcome.ending, outcome.durable) == (Ending.STOPPED, False) and not agent.working
            assert [entry.text for entry in await control.history("a")] == ["long one", "so far"]
            with pytest.raises(Unavailable):
                await control.send("a", "three", key="three")
            assert one_run_of(read(directory))["ending"] is None, why
        assert receipt.id is not None

        async def durable() -> bool:
            return (await control.receipt(receipt.id)).durable

        await until(durable)
        for text in ("two", "three"):
            sent = await control.send("b", text, key=text)
            assert (await control.wait(sent.run_id)).ending is Ending.COMPLETED
        assert agent.begun == ["long one", "two", "three"]
    state = read(directory)
    assert {row["key"]: row["ending"] for row in state["runs"]} == {
        "one": "stopped", "two": "completed", "three": "completed"
    }  # fmt: skip
    assert len(state["keys"]) == 3 and all(row["told"] for row in state["runs"])


def one_run_of(state: State) -> dict[str, Any]:
    (run,) = state["runs"]
    return run


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of half a megabyte."""
    if os.getuid() != 0:
        pytest.skip("a small disk is a tmpfs of its own, which root alone can mount")
    place = tmp_path / "small"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", place], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        pytest.skip(f"a small disk is a tmpfs of its own, and that cannot be mounted here: {made.stderr.strip()}")
    # The pipe is closed however this process ends, and the shell then unmounts the disk.
    ends = subprocess.Popen(["sh", "-c", 'cat; umount --lazy "$0"', place], stdin=subprocess.PIPE)
    try:
        yield place
    finally:
        ends.communicate()
    assert ends.returncode == 0


@contextlib.contextmanager
def full(place: Path) -> Iterator[None]:
    """Fill a disk to the last byte."""
    filler = os.open(place / "filler", os.O_CREAT | os.O_WRONLY)
    try:
        for size in (65536, 4096, 1):
            with contextlib.suppress(OSError):
                while os.write(filler, bytes(size)):
                    pass
        yield
    finally:
        os.close(filler)
        (place / "filler").unlink()


def test_a_full_disk_refuses_messages_and_stops_runs(small_disk: Path) -> None:
    """Race 84. A full disk refuses messages; a stop works, says it is not durable, and becomes durable by itself."""
    run_main(lambda: refused_and_healed(small_disk / "store", full(small_disk), "full"))


@pytest.mark.usefixtures("traceable")
@pytest.mark.parametrize("error", ["EROFS", "EDQUOT", "EACCES"])
def test_a_disk_that_may_not_be_written_is_like_a_full_one(tmp_path: Path, error: str) -> None:
    """Race 88. A disk that is read-only, over quota or forbidden is like a full one, and well again when it is."""
    calls = "pwrite64,ftruncate,fallocate"
    broken = strace.fault(calls, f"error={error}", tmp_path / "store")
    run_main(lambda: refused_and_healed(tmp_path / "store", broken, error))


@contextlib.contextmanager
def short(wal: Path, more: int) -> Iterator[None]:
    """Let a file grow by so many bytes and no more: the write that crosses that line is short, the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (wal.stat().st_size + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_short_write_is_no_record(tmp_path: Path) -> None:
    """Race 86. A record that the disk cuts short anywhere is not kept at all; handed in again it is."""

    async def main() -> None:
        store = SqliteStore(tmp_path / "store")
        await store.open()
        await store.decide(decision(1))
        wal, kept = tmp_path / "store" / "interlock.db-wal", {"r1"}
        for n, more in enumerate((0, 1, 23, 24, 25, 1000, 4119, 4120, 4121, 8240, 10_000, 20_000), start=2):
            with short(wal, more):
                ticket = store.decide(decision(n))
                assert not await taken(ticket), more
                assert names(read(tmp_path / "store")) == kept, more
            assert await taken(store.decide(decision(n)))
            kept.add(f"r{n}")
            assert names(read(tmp_path / "store")) == kept, more
        await store.close()

    run_main(main)


async def taken(ticket: Ticket) -> bool:
    await ticket.within(None)
    return ticket.inside


@pytest.mark.usefixtures("traceable")
def test_an_interrupted_write_is_made_again(tmp_path: Path) -> None:
    """Race 86. A signal that interrupts a write is no failure."""

    async def main() -> None:
        store = SqliteStore(tmp_path)
        await store.open()
        with strace.fault("pwrite64", "error=EINTR:when=1+2", tmp_path):
            for n in range(1, 6):
                assert await taken(store.decide(decision(n)))
        await store.close()
        assert names(read(tmp_path)) == {f"r{n}" for n in range(1, 6)}

    run_main(main)


@pytest.mark.usefixtures("traceable")
def test_a_failed_fsync_is_the_end_of_the_store(shelf: Path) -> None:
    """Race 85. After a failed fsync the disk's content is unknown: stops work, nothing is taken until a restart."""
    agent = Worker()

    async def main() -> None:
        async with open_control(agent, store=f"sqlite:///{shelf}", settings=QUICK) as control:
            first = await sent_in_the_end(control, "a", "long one", key="one")
            await until(lambda: asyncio.sleep(0, agent.working))
            with strace.fault("fdatasync,fsync", "error=EIO", shelf):
                why = "nothing was kept"
                while "nothing was kept" in why:
                    # A busy machine may refuse before the disk was asked at all.
                    with pytest.raises(Unavailable) as unsure:
                        await control.send("b", "two", key="two")
                    why = str(unsure.value)
            with pytest.raises(Unavailable, match="restart") as dead:  # though the disk is well again
                await control.send("b", "three", key="three")
            receipt = await control.stop(session="a")
            assert (receipt.cause, receipt.durable) == (Ending.STOPPED, False)
            assert (await control.wait(first.run_id, drained=True)).ending is Ending.STOPPED and not agent.working
            assert "same key" in why
            assert dead.value.retryable
        assert names_of_keys(read(shelf)) - {"two"} == {"one"}
        async with open_control(agent, store=f"sqlite:///{shelf}", settings=PATIENT) as control:
            assert (await control.wait(first.run_id)).ending in (Ending.LOST, Ending.STOPPED)
            for text in ("two", "three"):
                sent = await control.send("b", text, key=text)
                assert (await control.wait(sent.run_id)).ending is Ending.COMPLETED
        assert sorted(agent.begun) == ["long one", "three", "two"]
        assert names_of_keys(read(shelf)) == {"one", "two", "three"}

    run_main(main)


@pytest.mark.usefixtures("traceable")
@pytest.mark.parametrize("work", ["prune", "checkpoint"])
def test_a_failed_fsync_behind_the_scenes_is_the_end_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    """Race 85. A failed fsync of tidying up or of copying the log ends the store too: nothing more is taken."""

    async def main() -> None:
        store = SqliteStore(tmp_path)
        await store.open()
        assert await taken(store.decide(decision(1)))
        assert await taken(store.decide(msgspec.convert(disk._ended("r1", "completed"), Decision)))
        with strace.fault("fdatasync,fsync", "error=EIO", tmp_path):
            if work == "prune":
                with pytest.raises(StoreFailed, match="restart"):
                    await store.prune(before=2e10)
            else:
                monkeypatch.setattr(checkpoints, "RESTART_BYTES", 0)
                monkeypatch.setattr(
                    store._writer._checkpoints, "_backlog", 0
                )  # as if all of it had been copied already
                position = 2**32 + 1
                data = Delta(text="hel")
                store.append(
                    Event(position=position, session=SessionId("s"), run_id=RunId("r1"), generation=1, data=data)
                )
                await until(lambda: on_record(tmp_path, position))
                with contextlib.suppress(StoreFailed):
                    await store.prune()  # `prune` waits for the writer
        ticket = store.decide(decision(2))  # though the disk is well again
        assert not await taken(ticket)
        with pytest.raises(StoreFailed, match="restart"):
            await ticket
        await store.close()
        assert "damaged" not in read(tmp_path)

    run_main(main)


async def on_record(directory: Path, position: int) -> bool:
    """Whether a passing event is in the database."""
    return any(row["position"] == position for row in read(directory)["passing"])


def names_of_keys(state: State) -> set[str]:
    assert len(state["keys"]) == len(state["runs"])
    return {row["key"] for row in state["keys"]}


def test_a_locked_database_keeps_nobody_from_stopping(shelf: Path) -> None:
    """Race 89. While someone else has the lock a stop works, reads answer, and a message is refused for good."""
    agent = Worker()

    async def main() -> None:
        async with open_control(agent, store=f"sqlite:///{shelf}", settings=QUICK) as control:
            first = await sent_in_the_end(control, "a", "long one", key="one")
            await until(lambda: asyncio.sleep(0, agent.working))
            with contextlib.closing(sqlite3.connect(shelf / "interlock.db", isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                with pytest.raises(Unavailable, match="nothing was kept") as refused:
                    await control.send("b", "two", key="two")
                assert refused.value.retryable
                receipt = await control.stop(session="a")
                assert (receipt.cause, receipt.durable) == (Ending.STOPPED, False)
                assert (await control.wait(first.run_id, drained=True)).ending is Ending.STOPPED and not agent.working
                told = [event.data async for event in control.watch(run=first.run_id)]
                assert getattr(told[-1], "outcome", None) is not None
                assert [entry.text for entry in await control.history("a")] == ["long one", "so far"]
                other.execute("ROLLBACK")
            assert receipt.id is not None

            async def durable() -> bool:
                return (await control.receipt(receipt.id)).durable

            await until(durable)
            assert names_of_keys(read(shelf)) == {"one"}  # the refused message did not come in later
            sent = await sent_in_the_end(control, "b", "two", key="two")
            assert (await control.wait(sent.run_id)).ending is Ending.COMPLETED
            assert agent.begun == ["long one", "two"]

    run_main(main)


# Power cuts

CALL = re.compile(r'\d+ +(\w+)\((?:\d+<([^>]*)>|"([^"]*)")(?:, "([^"]*)", \d+)?(?:, (\d+))?')
SECTOR = 512


def plain(escaped: str) -> bytes:
    """Return what strace's -xx wrote."""
    return bytes.fromhex(escaped.replace("\\x", ""))


class Platter:
    """A disk's content, as strace saw it written: what was synced, and what may or may not have got there since."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.synced: dict[str, bytes] = {}
        self.since: dict[str, list[tuple[str, int, bytes]]] = {}

    def take(self, call: str, path: Path, data: bytes, number: int) -> None:
        """Take one call."""
        if call in ("fsync", "fdatasync") and path == self.directory:
            for name, calls in self.since.items():
                # A sync of the directory decides which names are gone.
                gone = max((at + 1 for at, each in enumerate(calls) if each[0] == "unlink"), default=0)
                self.synced[name], self.since[name] = b"" if gone else self.synced.get(name, b""), calls[gone:]
        elif path.parent != self.directory:
            return
        elif call in ("fsync", "fdatasync"):
            self.synced[path.name] = self.kept(path.name, lambda _: True)
            self.since[path.name] = []
        elif call in ("pwrite64", "ftruncate", "unlink"):
            self.since.setdefault(path.name, []).append((call, number, data))
        else:
            assert call in ("write", "sendto"), call

    def kept(self, name: str, chance: Callable[[int], bool]) -> bytes:
        """Return what a file holds if only some of what came since the last sync got there."""
        held = bytearray(self.synced.get(name, b""))
        for call, number, data in self.since.get(name, []):
            if call == "unlink":
                if not chance(0):
                    break  # the writes that follow went to another file of that name
                held.clear()
            elif call == "ftruncate" and chance(0):
                del held[number:]
            for at in range(0, len(data), SECTOR):
                piece = data[at : at + SECTOR]
                if chance(at):
                    held.extend(bytes(max(0, number + at + len(piece) - len(held))))
                    held[number + at : number + at + len(piece)] = piece
        return bytes(held)

    def cut(self, to: Path, chance: Callable[[int], bool]) -> Path:
        """Write down what the disk holds after a power cut."""
        to.mkdir()
        for name in ("interlock.db", "interlock.db-wal", "interlock.db-journal"):
            if held := self.kept(name, chance):
                (to / name).write_bytes(held)
        return to


def calls_of(log: Path) -> Iterator[tuple[str, Path, bytes, int]]:
    """Read strace's log; a sync counts when it is over."""
    waiting: dict[str, tuple[str, Path, bytes, int]] = {}
    for line in log.read_text().splitlines():
        thread = line.split()[0]
        if " resumed>" in line and thread in waiting:
            yield waiting.pop(thread)
        elif (found := CALL.match(line)) is not None:
            call, handle, path, data, number = found.groups()
            read_as = (call, Path(plain(handle or path).decode()), plain(data or ""), int(number or 0))
            if "sync" in call and "<unfinished" in line:
                waiting[thread] = read_as
            else:
                yield read_as


@pytest.mark.usefixtures("traceable")
def test_a_power_cut_loses_nothing_that_was_acknowledged(shelf: Path) -> None:
    """Race 87. A power cut at any sync or ack, with any part of what was not synced, loses nothing acknowledged."""

    async def works(script: Script) -> None:
        script.ready()
        for start in (0, 6):
            store = SqliteStore(script.directory)
            boot = await store.open()
            for n in range(start + 1, start + 7):
                await store.decide(decision(n))
                script.say("sent", f"r{n}")
                if n % 3 == 0:  # the log is copied into the database, and begins again
                    checkpoints.RESTART_BYTES = 0
                    data, at = Delta(text="hel"), boot << 32 | n
                    store.append(
                        Event(position=at, session=SessionId("s"), run_id=RunId("r1"), generation=1, data=data)
                    )
                    await until(lambda at=at: on_record(script.directory, at))  # type: ignore[misc]
                    await store.prune()
            await store.close()

    async def main() -> None:
        rng, platter, acked, cuts = Random(87), Platter(shelf / "store"), set(), 0
        for call, path, data, number in calls_of(shelf / "log"):
            platter.take(call, path, data, number)
            if data.startswith(b"sent "):
                acked.add(data.decode().split()[1])
            elif "sync" not in call:
                continue
            cuts += 1
            for kind, chance in enumerate((lambda _: False, lambda _: True, *[lambda _: rng.random() < 0.5] * 2)):
                left = platter.cut(shelf / f"{cuts}-{kind}", chance)
                state = read(left)
                assert "damaged" not in state, (cuts, kind)
                assert acked <= names(state) if acked else True, (cuts, kind)
                store = SqliteStore(left)
                await store.open()
                assert acked <= {run.id for run in await store.runs(SessionId("s"))}
                await store.close()
                shutil.rmtree(left)
        assert acked == {f"r{n}" for n in range(1, 13)} and cuts > 30

    assert len(play(works, shelf / "store", log=shelf / "log").said) == 12
    run_main(main)


# Clocks

CLOCKS = """
import asyncio, sys, time
from pathlib import Path
from interlock import open_control

async def agent(run, message):
    await asyncio.Event().wait()

async def main(directory, clock):
    async with open_control(agent, store=f"sqlite:///{directory}") as control:
        began, wall = time.monotonic(), time.time()
        asked = (("soon", 0.7), ("late", 3000))
        runs = [await control.send(name, "hello", deadline=seconds) for name, seconds in asked]
        for jump in (3600, -3600, 7200):
            clock.write_text(f"{jump:+}")
            assert abs(time.time() - wall - jump) < 600, "the clock on the wall did not jump"
            assert (await control.wait(runs[1].run_id, timeout=0.05)).ending == "pending"
        outcome = await control.wait(runs[0].run_id)
        assert (outcome.ending, time.monotonic() - began >= 0.7) == ("timed_out", True), outcome
        assert (await control.wait(runs[1].run_id, timeout=0)).ending == "pending"
        assert (await control.stop(session="late")).durable

asyncio.run(asyncio.wait_for(main(Path(sys.argv[1]) / "store", Path(sys.argv[1]) / "clock"), 60))
"""


def test_a_clock_that_jumps_ends_nothing_early(tmp_path: Path) -> None:
    """Race 90. The machine's clock goes an hour on, two back, three on: deadlines pass when they are due."""
    library = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)
    if library is None:
        pytest.skip("this needs libfaketime (Debian: `apt-get install faketime`, or `make tools` as root)")
    (tmp_path / "clock").write_text("+0")
    told = {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(tmp_path / "clock"),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    played = subprocess.run(
        [sys.executable, "-c", CLOCKS, str(tmp_path)],
        env={**os.environ, **told}, capture_output=True, text=True, check=False, timeout=90,
    )  # fmt: skip
    assert played.returncode == 0, played.stderr
