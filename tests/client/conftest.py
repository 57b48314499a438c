"""A server for all tests that leave it alive."""

from collections.abc import Iterator

import pytest

from client.scene import Served


@pytest.fixture(scope="package")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A served agent, in a process of its own."""
    server = Served(tmp_path_factory.mktemp("client") / "data")
    yield server
    server.end()
