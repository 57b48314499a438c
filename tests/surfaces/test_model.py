"""The page's model of a session tells every history as core/story.py does."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.histories import histories
from core.vectors import told, vectors
from foreign.client import NODE
from interlock.core.events import Event
from interlock.surfaces.page import WEB

BOUND_SECONDS = 60.0
DRIVER = Path(__file__).with_name("model.mjs")


@pytest.fixture(scope="module")
def node() -> str:
    """Return a node: the one that `make tools` installs, or the system's. Fail in CI, and skip elsewhere, without."""
    found = str(NODE) if NODE.exists() else shutil.which("node")
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("node is not installed: run `make tools`")
    return found


def page(node: str, told: dict[str, Any]) -> dict[str, Any]:
    """Return what the page's model makes of these histories."""
    command = [node, str(DRIVER), (WEB / "model.js").as_uri()]
    done = subprocess.run(
        command, input=msgspec.json.encode(told), capture_output=True, timeout=BOUND_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    made: dict[str, Any] = msgspec.json.decode(done.stdout)
    return made


def test_the_page_tells_the_shared_vectors(node: str) -> None:
    """The page's model makes of each shared vector what the vector says."""
    made = page(node, {name: vector["events"] for name, vector in vectors().items()})
    for name, vector in vectors().items():
        assert made[name] == {key: vector[key] for key in ("told", "runs", "order")}, name


@given(st.lists(histories(), min_size=20, max_size=20))
@settings(
    max_examples=10,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_the_page_tells_random_histories_as_everybody_does(node: str, found: list[list[Event]]) -> None:
    """The page's model and core/story.py make the same of random histories."""
    named = {str(number): events for number, events in enumerate(found)}
    made = page(node, named)
    for name, events in named.items():
        assert made[name] == msgspec.to_builtins(told(events))
