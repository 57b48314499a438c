"""Output, input and terminals of a process arrive whole, and control keeps none longer than the process."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from interlock.processes.base import LINE_BYTES
from interlock.processes.containment import LocalContainment

from .test_spawn import BOUND_SECONDS, ended, order, play, python, room, until


def test_nothing_is_kept_of_a_process_whose_pipe_was_held(tmp_path: Path) -> None:
    """Control forgets an exited process and its output when the last holder of the process's pipe is gone."""

    async def exits(containment: LocalContainment) -> weakref.ref[Any]:
        code = '(while [ ! -e "$0" ]; do sleep 0.01; done) & echo out'
        process = containment.spawn(order("sh", "-c", code, str(tmp_path / "go")))
        assert await ended(process) == "out\n"
        return weakref.ref(process)

    async def main() -> None:
        async with room() as processes:
            containment = processes.contain("run r-1.g1")
            kept = [await exits(containment) for _ in range(3)]
            (tmp_path / "go").touch()
            await until(lambda: gc.collect() >= 0 and not [each for each in kept if each() is not None], "nothing kept")
            assert not containment.done.is_set()

    play(main())


def test_a_process_that_closes_its_terminal_keeps_its_status(tmp_path: Path) -> None:
    """A process that closes its terminal and works on gets no HUP: it ends with its own exit status."""

    async def main() -> None:
        async with room() as processes:
            containment = processes.contain("run r-1.g1")
            code = 'echo out; exec <&- >&- 2>&-; : > "$0/closed"; while [ ! -e "$0/go" ]; do sleep 0.01; done; exit 7'
            process = containment.spawn(order("sh", "-c", code, str(tmp_path), pty=True))
            await process.started()
            await until((tmp_path / "closed").exists, "a closed terminal")
            # The loop looks at its descriptors in each round, so it has seen the closed terminal after these.
            for _ in range(10):
                await asyncio.sleep(0)
            (tmp_path / "go").touch()
            assert await ended(process) == "out\r\n"
            assert process.status == 7

    play(main())


@pytest.mark.parametrize("given", [b"abc", b"abc\n", b""], ids=["a part of a line", "a line", "nothing"])
def test_input_to_a_terminal_ends(given: bytes) -> None:
    """A reader of a terminal sees the end of its input, also of input without a newline at the end."""

    async def main() -> None:
        async with room() as processes:
            containment = processes.contain("run r-1.g1")
            process = containment.spawn(order("cat", pty=True, input=given))
            async with asyncio.timeout(BOUND_SECONDS):
                output = await ended(process)
            assert process.status == 0
            assert given.decode().strip() in output

    play(main())


def test_a_carriage_return_where_a_long_line_is_cut_is_kept() -> None:
    """A line that is too long comes in pieces that lose nothing; only the end of the line is taken off."""
    before = LINE_BYTES - 1
    code = "import sys; sys.stdout.write('x' * int(sys.argv[1]) + '\\ry\\r\\nz\\r\\n')"

    async def main() -> None:
        async with room() as processes:
            containment = processes.contain("run r-1.g1", once=True)
            process = containment.spawn(python(code, str(before), streamed=True))
            lines = []
            while (line := await process.line()) is not None:
                lines.append(line)
            assert lines == [b"x" * before + b"\r", b"y", b"z"]

    play(main())
