"""Fixtures of the tests of access."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory that is not there yet."""
    return tmp_path / "data"
