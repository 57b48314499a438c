"""Settings for every test: no deadline on a busy machine, and the same examples in every run of `make test`."""

import gc
import os
from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from interlock import app
from interlock.agent.bodies import Threads
from interlock.agent.run import Agent
from interlock.hosts.driver import HostDriver

settings.register_profile("test", deadline=None, derandomize=True)
settings.load_profile("test")


PAGE = "tests/page/"


class Scheduler(LoadScopeScheduling):
    """Hands whole files to the workers of pytest-xdist, and the files of the page together: they share one browser."""

    def _split_scope(self, nodeid: str) -> str:
        return PAGE if nodeid.startswith(PAGE) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduler:
    """Let xdist ask us which tests stay together."""
    return Scheduler(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the page and the tests that are marked `long`: one that began last would be waited for alone."""
    items.sort(key=lambda item: (not item.nodeid.startswith(PAGE), item.get_closest_marker("long") is None))


def pytest_collection_finish() -> None:
    """Hide the collected tests from the garbage collector: there are thousands, and they live to the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def hosted(monkeypatch: pytest.MonkeyPatch) -> None:
    """INTERLOCK_TEST_DRIVER=virtual: every test that asks for the inline driver gets hosts, played in its own loop."""
    if os.environ.get("INTERLOCK_TEST_DRIVER") == "virtual":
        monkeypatch.setattr(app, "InlineDriver", virtual_driver)


def virtual_driver(agent: Agent, agents: Mapping[str, Agent], threads: Threads | None) -> HostDriver:
    """Return hosts for agents that are closures of a test: the real link and its two ends, and no process."""
    from proofs.hosts import VirtualHosts  # noqa: PLC0415 - only `python -m pytest` finds the proofs

    random = Random(int(os.environ.get("INTERLOCK_TEST_SEED", "1")))
    return HostDriver(VirtualHosts(agent, agents, random, threads, untidy=0))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the tests of the schedules recorded: in parallel they run in processes that print nothing."""
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    lines = [line for report in reports for name, line in report.user_properties if name == "explored"]
    if lines:
        terminalreporter.write_sep("=", "schedules explored and planted bugs found")
    for line in sorted(lines):
        terminalreporter.write_line(line)
