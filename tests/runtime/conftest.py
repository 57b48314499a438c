"""What the room's tests ask for by name."""

from pathlib import Path

import pytest

from .lives import Place


@pytest.fixture(params=["memory", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A store of either kind."""
    return Place(request.param, tmp_path / "data")
