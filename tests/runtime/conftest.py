"""Fixtures that the runtime's tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .lives import Place


@pytest.fixture(params=["memory", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Return a store of either kind."""
    return Place(request.param, tmp_path / "data")


@pytest.fixture
def nothing_breaks(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No task of control may end with an error of its own."""
    yield
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
