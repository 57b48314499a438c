"""The proof is proved: the real source survives 20,000 schedules, and each planted bug is found within 1,000.

A planted bug is a small patch to the real source, kept in tests/planted: what the bug is, a blank line, the diff. The
patch is applied to a copy of `src` and the same exploration is played against that copy, in a process of its own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from proofs.scenarios import play

ROOT = Path(__file__).parent.parent
PATCHES = {path.stem: path for path in sorted((ROOT / "tests" / "planted").glob("*.patch"))}

pytestmark = pytest.mark.long

LAST_SEEDS = dict(
    line.split() for line in (ROOT / "tests" / "planted" / "seeds.txt").read_text("utf-8").splitlines()[1:]
)

SEEDS = 1_000  # bound within which a planted bug must be found
SCHEDULES = 20_000
CHUNK_SEEDS = 2_000  # in a process of its own, because bodies that were never resumed stay in memory for good
DISTINCT_TRACES = 1_000
REPLAYED = range(0, 2_000, 20)
SEARCH_SECONDS = 120  # for one planted bug
# Other threads start processes while pytest changes a variable; a copy of the environment does not change.
ENVIRONMENT = dict(os.environ)

FOUND = re.compile(r"^seed (\d+): (.*)$", re.MULTILINE)
TRACES = "from proofs.scenarios import play\nfor seed in {seeds}: print(seed, play(seed).trace, play(seed).steps)"


Record = Callable[[str, object], None]

EXPLORED = """
import json
from proofs.schedules import explore
done = explore({first}, {count})
print(json.dumps([done.seeds, len(done.traces), done.seconds, done.broken]))
"""


class Search(NamedTuple):
    """The result of the search for a planted bug."""

    seed: int | None
    said: str


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
    # Copy compiled files too: then Python compiles only the files that the patch changes.
    shutil.copytree(ROOT / "src", place / "src")
    applied = apply(patch, place)
    assert applied.returncode == 0, f"{patch.name} does not apply any more; renew it:\n{applied.stderr}"
    for name in re.findall(r"^\+\+\+ b/(.*)$", patch.read_text("utf-8"), re.MULTILINE):
        for compiled in (place / name).parent.glob(f"__pycache__/{Path(name).stem}.*"):
            compiled.unlink()
    return place / "src"


def search(patch: Path, place: Path) -> Search:
    """Look for a planted bug among the first seeds, beginning with the seed that found it last."""
    source = plant(patch, place)
    for first, count in ((LAST_SEEDS.get(patch.stem, "0"), "1"), ("0", str(SEEDS))):
        done = in_copy(source, "-m", "proofs.schedules", "--first", first, "--seeds", count, "--until-found")
        found = FOUND.search(done.stdout)
        if done.returncode == 1 and found is not None:
            return Search(int(found[1]), found[2])
    return Search(None, done.stdout + done.stderr)


@pytest.mark.parametrize("first", range(0, SCHEDULES, CHUNK_SEEDS))
def test_the_source_survives_every_schedule(first: int, record_property: Record) -> None:
    """20,000 schedules of the real source break no promise, and nearly all of their traces differ."""
    played = in_copy(ROOT / "src", "-c", EXPLORED.format(first=first, count=CHUNK_SEEDS))
    assert played.returncode == 0, played.stderr
    seeds, traces, seconds, broken = json.loads(played.stdout)
    record_property(
        "explored",
        f"{seeds} schedules from seed {first:>5}, {seeds / seconds:.0f}/s: {traces} distinct traces, "
        f"{len(broken)} broken",
    )
    assert not broken, "\n".join([*map(str, broken[:20]), "replay one with: make prove SEED=n"])
    assert seeds == CHUNK_SEEDS
    assert traces >= DISTINCT_TRACES


def test_a_seed_plays_the_same_in_another_process() -> None:
    """100 seeds replay step by step in processes with other hash seeds, in another order, and here."""
    seeds = list(REPLAYED)
    here = {f"{seed} {played.trace} {played.steps}" for seed in seeds for played in (play(seed),)}
    with ThreadPoolExecutor(2) as pool:
        asked = [
            pool.submit(in_copy, ROOT / "src", "-c", TRACES.format(seeds=order), PYTHONHASHSEED=hashing)
            for order, hashing in ((seeds, "1"), (seeds[::-1], "4711"))
        ]
    for other in (future.result() for future in asked):
        assert other.returncode == 0, other.stderr
        assert set(other.stdout.splitlines()) == here
    assert len(here) == len(seeds) == 100


@pytest.mark.parametrize("name", PATCHES)
def test_a_planted_bug_is_found(name: str, tmp_path: Path, record_property: Record) -> None:
    """The exploration finds the bug within 1,000 seeds, and names the broken promise and the seed."""
    found = search(PATCHES[name], tmp_path)
    assert found.seed is not None, f"{name} was not found within {SEEDS} seeds:\n{found.said[-2000:]}"
    assert found.seed < SEEDS
    record_property("explored", f"{name:32} seed {found.seed:>4}  {found.said[:110]}")


def test_the_planted_bugs_say_what_they_are() -> None:
    """At least 12 planted bugs exist; each says in its first line what it breaks, and changes only the source."""
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
