"""The store's directory: found where it was opened, freed by every failed start, and never written unseen."""

import asyncio
import contextlib
import hashlib
import os
import re
import resource
import shutil
import signal
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import interlock
from interlock import BadInput, open_control
from interlock.cli.prune import forget
from interlock.core.names import RunId
from interlock.runtime import control as controls
from interlock.runtime.unwritten import Unwritten
from interlock.stores.base import StoreFailed, Unsure
from interlock.stores.sqlite import locking, reader

from .scene import SECONDS, S, admit, block, count, echo, heard, made, opens, play, process, run, until


@contextlib.contextmanager
def no_room() -> Iterator[None]:
    """No file of this process can become longer, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_whoever_changes_directory_later_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store in a relative directory stays where it was opened: it is written, read and pruned there."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        store = made("data")
        await store.open()
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert store.path == tmp_path / "data" / "interlock.db"
        await store.decide(admit("r"))
        await store.prune()
        assert await store.run(RunId("r")) == run("r")
        await store.close()
        assert list((tmp_path / "elsewhere").iterdir()) == []
        assert count(tmp_path / "data", "runs") == 1

    play(main)


@pytest.mark.parametrize("how", ["removed", "moved", "replaced"])
def test_nothing_is_acknowledged_into_a_file_that_nobody_will_find(tmp_path: Path, how: str) -> None:
    """A message sent when the directory is gone is not acknowledged, and the store takes nothing more."""
    state = tmp_path / "state"

    async def main() -> None:
        store = made(state)
        await store.open()
        await store.decide(admit("r"))
        if how == "removed":
            shutil.rmtree(state)
        else:
            state.rename(tmp_path / "moved")
        if how == "replaced":
            await opens(state)
        for name in ("lost", "refused"):
            with pytest.raises(Unsure, match="removed or replaced"):
                await store.decide(admit(name))
        await store.close()
        if how == "replaced":
            assert count(state, "runs") == 0

    play(main)


def test_nor_by_a_second_try(tmp_path: Path) -> None:
    """A decision that did not fit together with the waiting events is tried alone, and into the same file."""
    state, commits = tmp_path / "state", list[str]()

    async def main() -> None:
        store = made(state)
        await store.open()
        log = Unwritten(store)
        assert store._writer is not None
        connection = store._writer._connection

        def fail_once(statement: str) -> None:
            if statement == "COMMIT":
                commits.append(statement)
                if len(commits) == 1:
                    connection.interrupt()

        connection.set_trace_callback(fail_once)
        shutil.rmtree(state)
        log.append(block(1))
        with pytest.raises(Unsure, match="removed or replaced"):
            await store.decide(admit("lost"))
        assert len(commits) == 2
        await store.close()

    play(main)


def test_a_start_on_a_full_disk_lets_go_of_the_directory(tmp_path: Path) -> None:
    """A start that has the lock but cannot write its file frees the lock: the same process can try again."""

    async def main() -> None:
        for _ in range(2):
            store = made(tmp_path)
            with no_room(), pytest.raises(StoreFailed, match=r"cannot be opened: .*too large"):
                await store.open()
        await opens(tmp_path)

    play(main)


@pytest.mark.parametrize("times", [1, 2])
def test_a_cancelled_start_lets_go_of_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """A start is cancelled while its thread waits for the lock: the thread gives the lock back when it gets it."""
    monkeypatch.setattr(locking, "HOLD_TRIES", 1_000)

    def handles() -> int:
        return sum(os.path.realpath(each) == str(tmp_path / "lock") for each in Path("/proc/self/fd").iterdir())

    async def main() -> None:
        holder, store = made(tmp_path), made(tmp_path)
        await holder.open()
        opening = asyncio.create_task(store.open())
        await until(lambda: handles() == 2)
        for _ in range(times):
            opening.cancel()
            for _ in range(3):
                await asyncio.sleep(0)  # the start hears of the cancel before the lock is free
        await holder.close()
        with pytest.raises(asyncio.CancelledError):
            await opening

    play(main)  # the thread of the cancelled start is done as well
    assert handles() == 0
    play(lambda: opens(tmp_path))


def test_a_slow_read_does_not_keep_the_directory(tmp_path: Path) -> None:
    """A read that takes longer than a close may: the writer is closed all the same, and the directory free."""
    assert 2 * reader.LAST_READ_SECONDS < controls.SLACK_SECONDS, "the close is given up before the writer hears of it"
    reads, goes_on = threading.Event(), threading.Event()

    def slow(db: sqlite3.Connection) -> bool:
        reads.set()
        return goes_on.wait(SECONDS)

    async def main() -> None:
        store = made(tmp_path)
        async with open_control(echo, store=store):
            reading = store._ask(slow)
            await until(reads.is_set)
        await until(lambda: store._hold is None)
        await opens(tmp_path)
        assert not reading.done()
        goes_on.set()
        assert await reading

    try:
        play(main)
    finally:
        goes_on.set()


@pytest.mark.parametrize("bad", [{"admins": 5}, {"readers": 5}, {"confinement": 5}], ids=str)
def test_a_bad_argument_lets_go_of_the_directory(tmp_path: Path, bad: dict[str, Any]) -> None:
    """A bad argument that is found after the store was opened closes the store again."""

    async def main() -> None:
        with pytest.raises(Exception, match=r".") as found:
            async with open_control(echo, store=made(tmp_path), **bad):
                pass
        assert not isinstance(found.value, StoreFailed)
        await opens(tmp_path)

    play(main)


def test_pruning_from_outside_lets_go_of_the_directory(tmp_path: Path) -> None:
    """After `interlock prune` no lock is counted as held: a fork would close whatever has its number by then."""

    async def main() -> None:
        await opens(tmp_path)
        held = set(locking._HELD)
        await forget(tmp_path, 0.0, dry_run=False)
        assert held == locking._HELD
        await opens(tmp_path)

    play(main)


@pytest.mark.parametrize(
    ("name", "error"), [("~nobody-of-this-name/x", BadInput), ("nul\0byte", StoreFailed)], ids=["home", "nul"]
)
def test_a_directory_that_cannot_be_is_refused(name: str, error: type[Exception]) -> None:
    """A home of no user and a name that no file can have are refused with an error of our own."""

    async def main() -> None:
        with pytest.raises(error, match=r"is no directory for a store|cannot be opened"):
            async with open_control(echo, store=f"sqlite:///{name}"):
                pass

    play(main)


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
    """A second store of this process is told that this process is the holder, and opens after a close."""

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
    """A lock file's number says nothing, of a live process or a dead one: only the kernel's lock counts (race 83)."""

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
    """A link in the place of the lock is refused: opening the lock would truncate the file that it names."""

    async def main() -> None:
        (tmp_path / "state").mkdir()
        (tmp_path / "precious").write_bytes(b"precious")
        (tmp_path / "state" / "lock").symlink_to(tmp_path / "precious")
        await refused(tmp_path / "state", "cannot be opened")
        assert (tmp_path / "precious").read_bytes() == b"precious"

    play(main)


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_database_of_a_later_schema_is_refused(tmp_path: Path, journal: str) -> None:
    """A database of a later schema is named, with what to do, and not touched (race 94: downgrade)."""

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
    """A database that cannot be read is named and left as it is, so that somebody can repair it."""

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
    """A user who may not write in the directory is told so at once, not at the first message."""
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
    """A second control in the same process, after the first has closed, knows what the first was told."""

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
    """A process that forgot to close its store still ends."""
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
