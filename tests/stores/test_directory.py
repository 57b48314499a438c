"""The store's directory: found where it was opened, let go of by every failed start, and never written unseen."""

import asyncio
import contextlib
import os
import resource
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interlock import BadInput, open_control
from interlock.core.names import RunId
from interlock.look.forgetting import forget
from interlock.runtime import control as controls
from interlock.stores.base import StoreFailed, Unsure
from interlock.stores.sqlite import store as stores

from .scene import SECONDS, admit, block, count, echo, made, opens, play, run, until


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
    """The directory goes away under a store: what is sent then is not acknowledged, and nothing more is taken."""
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
    """A decision that did not fit with the events that waited is tried alone, and into the same file."""
    state, commits = tmp_path / "state", list[str]()

    async def main() -> None:
        store = made(state)
        await store.open()
        assert store._writer is not None
        connection = store._writer._connection

        def fail_once(statement: str) -> None:
            if statement == "COMMIT":
                commits.append(statement)
                if len(commits) == 1:
                    connection.interrupt()

        connection.set_trace_callback(fail_once)
        shutil.rmtree(state)
        store.append(block(1))
        with pytest.raises(Unsure, match="removed or replaced"):
            await store.decide(admit("lost"))
        assert len(commits) == 2
        await store.close()

    play(main)


def test_a_start_on_a_full_disk_lets_go_of_the_directory(tmp_path: Path) -> None:
    """The lock is had and its file cannot be written: the same process can try again, and comes in with room."""

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
    """Cancelled while its thread waits for the lock, which that has only afterwards: it is given back."""
    monkeypatch.setattr(stores, "HOLD_TRIES", 1_000)

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
                await asyncio.sleep(0)  # it has heard of that before the lock is free
        await holder.close()
        with pytest.raises(asyncio.CancelledError):
            await opening

    play(main)  # and its thread is done
    assert handles() == 0
    play(lambda: opens(tmp_path))


def test_a_slow_read_does_not_keep_the_directory(tmp_path: Path) -> None:
    """A read that takes longer than a close may: the writer is closed all the same, and the directory free."""
    assert 2 * stores.LAST_READ_SECONDS < controls.SLACK_SECONDS, "the close is given up before the writer hears of it"
    reads, goes_on = threading.Event(), threading.Event()

    def slow(db: sqlite3.Connection) -> bool:
        reads.set()
        return goes_on.wait(SECONDS)

    async def main() -> None:
        store = made(tmp_path)
        async with open_control(echo, store=store):
            reading = asyncio.create_task(store._ask(slow))
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
    """What is wrong with how a control was opened may be found when its store is open: that is closed again."""

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
        held = set(stores._HELD)
        await forget(tmp_path, 0.0, dry_run=False)
        assert held == stores._HELD
        await opens(tmp_path)

    play(main)


@pytest.mark.parametrize(
    ("name", "error"), [("~nobody-of-this-name/x", BadInput), ("nul\0byte", StoreFailed)], ids=["home", "nul"]
)
def test_a_directory_that_cannot_be_is_refused(name: str, error: type[Exception]) -> None:
    """A home of nobody and a name that no file can have are refused in our own words."""

    async def main() -> None:
        with pytest.raises(error, match=r"is no directory for a store|cannot be opened"):
            async with open_control(echo, store=f"sqlite:///{name}"):
                pass

    play(main)
