"""The stores that must keep the contract, and how to make each of them misbehave for real."""

import itertools
import os
import resource
import shutil
import sqlite3
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import pytest

from interlock import MemoryStore
from interlock.core.decision import Decision
from interlock.stores import bounds
from interlock.stores.base import Store
from interlock.stores.sqlite import SqliteStore

FOREVER_DAYS = 1e6  # rows in tests are of 1970, and must not be too old
LOCK_SECONDS = 30.0  # for the writer to release the database once


class Kit(ABC):
    """Make stores of one kind, make them misbehave, and leave nothing behind."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._directory = directory
        self._monkeypatch = monkeypatch

    @abstractmethod
    def make(self) -> Store:
        """Return a fresh store."""

    def small(self, **given: int) -> Store:
        """Return a store with small bounds."""
        for name, bound in given.items():
            self._monkeypatch.setattr(bounds, name, bound)
        return self.make()

    async def tidy(self, store: Store) -> None:
        """Apply the bounds now: memory keeps them at once, sqlite when it prunes."""
        await store.decide(Decision())  # also commits the events appended before
        await store.prune()

    @abstractmethod
    async def reopened(self, store: Store) -> Store:
        """Close a store; return the store of the next start, open."""

    @abstractmethod
    async def killed(self, store: Store) -> Store:
        """Return the store of the next start, open, as if the last had been killed at this instant."""

    @abstractmethod
    async def close(self) -> None:
        """Close and remove every store that was made."""


class MemoryKit(Kit):
    """Make stores in memory, which have switches for their faults."""

    name = "memory"

    def make(self) -> MemoryStore:
        return MemoryStore()

    async def close(self) -> None:
        """Do nothing: memory leaves nothing."""

    async def reopened(self, store: MemoryStore) -> MemoryStore:
        await store.close()
        await store.open()
        return store

    async def killed(self, store: MemoryStore) -> MemoryStore:
        await store.open()
        return store

    def stall(self, store: MemoryStore) -> None:
        """Accept decisions and reads, and answer none."""
        store.faults.stall = True

    def fail(self, store: MemoryStore) -> None:
        """Refuse every decision and read."""
        store.faults.fail = True

    def lose(self, store: MemoryStore) -> None:
        """Carry decisions out, and lose the answer.

        Memory only: this stands in for a store at the far end of a wire. SQLite's answer comes from a thread of this
        process, so nothing can lose the answer after the commit.
        """
        store.faults.lose = True

    def resume(self, store: MemoryStore) -> None:
        """Clear every fault."""
        store.resume()


class SqliteKit(Kit):
    """Make SQLite stores, stalled by another connection's lock and failed by a limit on the file's size."""

    name = "sqlite"

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(directory, monkeypatch)
        self._made: list[SqliteStore] = []
        self._count = itertools.count()
        self._others: list[sqlite3.Connection] = []
        self._limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def make(self) -> SqliteStore:
        return self._store(self._directory / f"store-{next(self._count)}")

    def _store(self, directory: Path) -> SqliteStore:
        store = SqliteStore(directory, keep_days=FOREVER_DAYS)
        self._made.append(store)
        return store

    async def reopened(self, store: SqliteStore) -> SqliteStore:
        await store.close()
        again = self._store(store.directory)
        await again.open()
        return again

    async def killed(self, store: SqliteStore) -> SqliteStore:
        """Copy the files, as a kill leaves them: the kernel has released the lock."""
        left = self._directory / f"left-{next(self._count)}"
        left.mkdir(mode=0o700)
        for suffix in ("", "-wal"):
            name = f"{store.path.name}{suffix}"
            shutil.copy(store.directory / name, left / name)
        again = self._store(left)
        await again.open()
        return again

    def stall(self, store: SqliteStore) -> None:
        """Hold the write lock in another connection: no write goes on, reads do."""
        other = sqlite3.connect(store.path, isolation_level=None, timeout=LOCK_SECONDS)
        other.execute("BEGIN IMMEDIATE")
        self._others.append(other)

    def fail(self, store: SqliteStore) -> None:
        """Keep the write-ahead log from growing: the next page is cut in the middle, the one after is refused (EFBIG).

        The limit holds for root too, and needs no mount. (It applies to every file of this process; the others are
        smaller.)
        """
        longest = store.path.with_name(f"{store.path.name}-wal").stat().st_size + 1_000
        resource.setrlimit(resource.RLIMIT_FSIZE, (longest, self._limits[1]))

    def resume(self, store: SqliteStore) -> None:
        """Clear every fault."""
        resource.setrlimit(resource.RLIMIT_FSIZE, self._limits)
        while self._others:
            self._others.pop().close()

    async def close(self) -> None:
        while self._made:
            store = self._made.pop()
            self.resume(store)
            await store.close()
            shutil.rmtree(store.directory, ignore_errors=True)  # two starts had the same directory


KITS = {kit.name: kit for kit in (MemoryKit, SqliteKit)}


@pytest.fixture
def room() -> Iterator[Path]:
    """Yield a directory for stores: in memory if the machine has such, since no test cuts the power."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as directory:
        yield Path(directory)


@pytest.fixture(params=KITS)
def kit(request: pytest.FixtureRequest, room: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kit]:
    """Yield a maker of stores of one kind."""
    yield KITS[request.param](room, monkeypatch)
    nothing_is_left()


@pytest.fixture
def kits(room: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Kit, ...]]:
    """Yield a maker of stores of each kind."""
    yield tuple(kit(room, monkeypatch) for kit in KITS.values())
    nothing_is_left()


def nothing_is_left() -> None:
    """Check that no thread of a store outlives the test that closed it."""
    for thread in threading.enumerate():
        if thread.name.startswith("interlock store"):
            thread.join(30)
            assert not thread.is_alive(), f"{thread.name} outlived its store"
