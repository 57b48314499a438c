"""The command, imported once, a store with every sort of run, and the server of the client's tests."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest

from client.conftest import served
from interlock import Control
from interlock.cli.documents import Runs

from .scene import READY_MADE, Filled, ReadyMade, document, everything, said, serve

__all__ = ["served"]


@pytest.fixture(scope="package", autouse=True)
def ready_made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Import the command once."""
    command = [sys.executable, "-c", READY_MADE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        ReadyMade.process, ReadyMade.place = process, tmp_path_factory.mktemp("outputs")
        yield


@pytest.fixture(scope="package")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """A store that tests only look at; the command also looked at it while it was served."""
    data = tmp_path_factory.mktemp("filled") / "data"

    async def use(control: Control) -> Filled:
        run_ids = await everything(control)
        filled = Filled(data, run_ids, await said(control, run_ids))
        lists = await asyncio.to_thread(document, Runs, "runs", data=data)
        assert lists.in_use
        for run, outcome in zip(lists.runs, filled.control_said["outcomes"], strict=True):
            assert run.outcome is not None
            # The store may learn a moment later that the run is drained, so that is not compared.
            assert run.outcome.same_story(outcome)
        return filled

    return serve(data, use)
