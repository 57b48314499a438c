"""Chromium and a server that all tests of the page share; each test has a browser context of its own."""

import os
import subprocess
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from page.scene import Person, Visit, launch, missing, serve
from surfaces.raw import INTERLOCK
from surfaces.scene import Served


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Yield a real browser; skip without one, except under CI, where its absence is a failure.

    The browser ends with the package: while it lives, its loop is this thread's, and no other loop can run in it.
    """
    absent = missing()
    if absent is not None and os.environ.get("CI"):
        pytest.fail(absent)
    if absent is not None:
        pytest.skip(absent)
    with sync_playwright() as playwright:
        chromium = launch(playwright)
        yield chromium
        chromium.close()


@pytest.fixture(scope="package")
def server(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Yield a server for all tests that leave it alive; ann and bob have tokens of their own."""
    data = tmp_path_factory.mktemp("page") / "data"
    for name in ("ann", "bob"):
        words = [str(INTERLOCK), "token", "add", name, "--scope", "write,approve", "--data", str(data)]
        subprocess.run(words, check=True, capture_output=True)
    serving = serve(data, "--name", "OpenClaw")
    yield serving
    serving.close()


@pytest.fixture(scope="package")
def operator(server: Served) -> Iterator[Person]:
    """Yield the person who holds the server's own token."""
    person = Person(server)
    yield person
    person.close()


@pytest.fixture
def visit(browser: Browser, server: Served, operator: Person) -> Iterator[Visit]:
    """Yield what a test opens in the browser; fail on an unseen error, and stop every run that the test began."""
    visiting = Visit(browser, server, operator)
    yield visiting
    operator.request("interlock.stopall")
    visiting.close()


@pytest.fixture
def session(request: pytest.FixtureRequest) -> str:
    """Return a session name of the test's own."""
    return str(request.node.name).removeprefix("test_").replace("_", "-")[-60:]
