"""One Chromium and one server for all tests of the page; a browser context of its own for each."""

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from interlock.surfaces.access import Access, Scope
from page.scene import Person, Visit, launch, missing, serve
from surfaces.scene import Served


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """A real browser; on a machine of one's own its absence is no failure.

    It ends with the package: while it is there, its loop is this thread's, and nobody else can run one.
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
    """A served agent, for all tests that leave it alive; ann and bob have tokens of their own."""
    data = tmp_path_factory.mktemp("page") / "data"
    for name in ("ann", "bob"):
        Access(data).add(name, [Scope.WRITE, Scope.APPROVE])
    serving = serve(data, "--name", "OpenClaw")
    yield serving
    serving.close()


@pytest.fixture(scope="package")
def operator(server: Served) -> Iterator[Person]:
    """Whoever holds the server's own token."""
    person = Person(server)
    yield person
    person.close()


@pytest.fixture
def visit(browser: Browser, server: Served, operator: Person) -> Iterator[Visit]:
    """What a test opens in the browser; nothing may go wrong in it unseen, and nothing that it began runs on."""
    visiting = Visit(browser, server, operator)
    yield visiting
    operator.request("interlock.stopall")
    visiting.close()


@pytest.fixture
def session(request: pytest.FixtureRequest) -> str:
    """A session of the test's own."""
    return str(request.node.name).removeprefix("test_").replace("_", "-")[-60:]
