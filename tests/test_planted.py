"""The proof is proved: the real source survives 20,000 schedules, and each planted bug is found within 1,000.

A planted bug is a small patch to the real source, kept in tests/planted: what the bug is, a blank line, the diff. It is
applied to a copy of `src` and the same exploration is played against that copy, in a process of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from proofs.scenarios import play
from proofs.schedules import explore

ROOT = Path(__file__).parent.parent
PATCHES = {path.stem: path for path in sorted((ROOT / "tests" / "planted").glob("*.patch"))}

LAST_SEEDS = dict(
    line.split() for line in (ROOT / "tests" / "planted" / "seeds.txt").read_text("utf-8").splitlines()[1:]
)

SEEDS = 1_000  # within which a planted bug must be found
SCHEDULES = 20_000
CHUNK_SEEDS = 2_000  # in a process of its own: bodies that were never resumed stay in memory for good
DISTINCT_TRACES = 1_000
REPLAYED = range(0, 2_000, 20)
JOBS = 2
SEARCH_SECONDS = 120  # for one planted bug
ENVIRONMENT = dict(os.environ)  # other threads start processes while pytest changes a variable: a copy holds still

FOUND = re.compile(r"^seed (\d+): (.*)$", re.MULTILINE)
TRACES = "from proofs.scenarios import play\nfor seed in {seeds}: print(seed, play(seed).trace, play(seed).steps)"


class Search(NamedTuple):
    """What the exploration of a planted bug came to."""

    seed: int | None
    said: str
    seconds: float


class Told:
    """Lines that pytest prints at its end, however its output is captured."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_sep("=", "schedules explored and planted bugs found")
        for line in self.lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="module")
def told(request: pytest.FixtureRequest) -> Told:
    """What the end of the test run says of this module."""
    summary = Told()
    request.config.pluginmanager.register(summary)
    return summary


def in_copy(source: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python with a copy of the source in the place of ours."""
    known = {
        **ENVIRONMENT,
        "PYTHONPATH": f"{source}{os.pathsep}{ROOT}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "NO_COLOR": "1",
        **environment,
    }
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=known, cwd=source, capture_output=True, text=True, check=False, timeout=SEARCH_SECONDS
    )


def apply(patch: Path, place: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Apply a patch to the source in a place, whatever repository that place may be in."""
    return subprocess.run(
        ["git", "apply", "-p1", *options, str(patch)],
        cwd=place,
        env={**ENVIRONMENT, "GIT_CEILING_DIRECTORIES": str(place.parent)},
        capture_output=True,
        text=True,
        check=False,
    )


def plant(patch: Path, place: Path) -> Path:
    """Copy the source, apply a patch to the copy, and return where its packages are."""
    shutil.copytree(ROOT / "src", place / "src")  # with what is compiled: only what the patch changes is read anew
    applied = apply(patch, place)
    assert applied.returncode == 0, f"{patch.name} does not apply any more; renew it:\n{applied.stderr}"
    for name in re.findall(r"^\+\+\+ b/(.*)$", patch.read_text("utf-8"), re.MULTILINE):
        for compiled in (place / name).parent.glob(f"__pycache__/{Path(name).stem}.*"):
            compiled.unlink()
    return place / "src"


def search(patch: Path, place: Path) -> Search:
    """Look for a planted bug among the first seeds, and there first where it was found last."""
    source = plant(patch, place)
    began = time.perf_counter()
    for first, count in ((LAST_SEEDS.get(patch.stem, "0"), "1"), ("0", str(SEEDS))):
        done = in_copy(source, "-m", "proofs.schedules", "--first", first, "--seeds", count, "--until-found")
        found = FOUND.search(done.stdout)
        if done.returncode == 1 and found is not None:
            return Search(int(found[1]), found[2], time.perf_counter() - began)
    return Search(None, done.stdout + done.stderr, time.perf_counter() - began)


@pytest.fixture(scope="module")
def searches(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Search]]]:
    """The searches of every planted bug that was asked for, a few at a time."""
    calls = [item.callspec for item in request.session.items if hasattr(item, "callspec")]
    wanted = dict.fromkeys(call.params["name"] for call in calls if call.params.get("name") in PATCHES)
    with ThreadPoolExecutor(JOBS) as pool:
        yield {name: pool.submit(search, PATCHES[name], tmp_path_factory.mktemp(name)) for name in wanted}


def test_the_source_survives_every_schedule(told: Told) -> None:
    """20,000 schedules of the real source break no promise, and more than 1,000 of their traces differ."""
    starts = range(0, SCHEDULES, CHUNK_SEEDS)
    began = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(JOBS, maxtasksperchild=1) as pool:
        chunks = pool.starmap(explore, [(start, CHUNK_SEEDS) for start in starts], chunksize=1)
    wall, busy = time.perf_counter() - began, sum(chunk.seconds for chunk in chunks)
    played, traces = sum(chunk.seeds for chunk in chunks), frozenset().union(*(chunk.traces for chunk in chunks))
    broken = [f"seed {seed}: {what}" for chunk in chunks for seed, what in chunk.broken]
    told.lines.append(
        f"{played} schedules (seeds 0 to {SCHEDULES - 1}) in {wall:.1f} s, {played / busy:.0f}/s per core: "
        f"{len(traces)} distinct traces, {len(broken)} broken"
    )
    assert not broken, "\n".join([*broken[:20], "replay one with: make prove SEED=n"])
    assert played == SCHEDULES
    assert len(traces) >= DISTINCT_TRACES


def test_a_seed_plays_the_same_in_another_process() -> None:
    """100 seeds replay step by step in processes with other hash seeds, in another order, and here."""
    seeds = list(REPLAYED)
    here = {f"{seed} {played.trace} {played.steps}" for seed in seeds for played in (play(seed),)}
    with ThreadPoolExecutor(JOBS) as pool:
        asked = [
            pool.submit(in_copy, ROOT / "src", "-c", TRACES.format(seeds=order), PYTHONHASHSEED=hashing)
            for order, hashing in ((seeds, "1"), (seeds[::-1], "4711"))
        ]
    for other in (future.result() for future in asked):
        assert other.returncode == 0, other.stderr
        assert set(other.stdout.splitlines()) == here
    assert len(here) == len(seeds) == 100


@pytest.mark.parametrize("name", PATCHES)
def test_a_planted_bug_is_found(name: str, searches: dict[str, Future[Search]], told: Told) -> None:
    """The exploration finds the bug within 1,000 seeds, and names the broken promise and the seed."""
    found = searches[name].result()
    assert found.seed is not None, f"{name} was not found within {SEEDS} seeds:\n{found.said[-2000:]}"
    assert found.seed < SEEDS
    told.lines.append(f"{name:32} seed {found.seed:>4}  {found.said[:110]}")


def test_the_planted_bugs_say_what_they_are() -> None:
    """There are at least 12, each begins with one line that says what it breaks, and each changes only the source."""
    assert len(PATCHES) >= 12
    for name, path in PATCHES.items():
        first, blank, *rest = path.read_text("utf-8").splitlines()
        assert first and not first.startswith(("-", "+", "diff")), name
        assert blank == "", name
        changed = [line for line in rest if line.startswith("+++ ")]
        assert changed and all(line.startswith("+++ b/src/interlock/") for line in changed), name


@pytest.mark.parametrize("patch", sorted((ROOT / "tests" / "planted" / "unit").glob("*.patch")), ids=lambda p: p.stem)
def test_a_bug_that_only_a_unit_test_sees_still_applies(patch: Path) -> None:
    """The bugs that races.md pairs with a single test fit the source; promises/mutants.py plays the pairs."""
    applied = apply(patch, ROOT, "--check")
    assert applied.returncode == 0, f"{patch.name} does not apply any more; renew it:\n{applied.stderr}"
