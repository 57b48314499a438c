"""The stores that must keep the contract."""

from collections.abc import Callable

import pytest

from interlock import MemoryStore
from interlock.stores import memory


class MemoryKit:
    """Makes memory stores; small ones forget after a handful."""

    name = "memory"

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def make(self) -> MemoryStore:
        """Return a fresh store."""
        return MemoryStore()

    def small(self, **bounds: int) -> MemoryStore:
        """Return a store with small bounds."""
        for name, bound in bounds.items():
            self._monkeypatch.setattr(memory, name, bound)
        return MemoryStore()


KITS: list[Callable[[pytest.MonkeyPatch], MemoryKit]] = [MemoryKit]  # sqlite and postgres join here


@pytest.fixture(params=KITS, ids=lambda kit: kit.name)
def kit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> MemoryKit:
    """A maker of stores of one kind."""
    return request.param(monkeypatch)
