"""The stores that must keep the contract."""

from collections.abc import Callable

import pytest

from interlock import MemoryStore
from interlock.stores import bounds
from interlock.stores.sqlite import SqliteStore


class MemoryKit:
    """Makes memory stores; small ones forget after a handful."""

    name = "memory"

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def make(self) -> MemoryStore:
        """Return a fresh store."""
        return MemoryStore()

    def small(self, **given: int) -> MemoryStore:
        """Return a store with small bounds."""
        for name, bound in given.items():
            self._monkeypatch.setattr(bounds, name, bound)
        return MemoryStore()


class SqliteKit(MemoryKit):
    """Makes stores in directories."""

    name = "sqlite"

    def make(self):
        import tempfile
        return SqliteStore(tempfile.mkdtemp())

    def small(self, **given):
        super().small(**given)
        return self.make()


KITS = [MemoryKit, SqliteKit]


@pytest.fixture(params=KITS, ids=lambda kit: kit.name)
def kit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> MemoryKit:
    """A maker of stores of one kind."""
    return request.param(monkeypatch)
