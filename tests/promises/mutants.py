"""Does each test named in tests/races.md really catch the bug named beside it? `python tests/promises/mutants.py`

Applies every bug to a copy of the source and runs the tests of its rows against the copy: each must fail, and each must
pass on the source as it is. Takes a minute or two, so it is no part of `make test`. Names of bugs as arguments choose.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TESTS = Path(__file__).parent.parent
sys.path.insert(0, str(TESTS))
import races  # noqa: E402

SECONDS = 30  # a test that hangs has failed
JOBS = 2
TRANSPORT, OUTBOX = "surfaces/test_transport.py", "surfaces/test_outbox.py"
DESCRIPTORS, STRANGERS = "processes/test_descriptors.py", "runtime/test_strangers.py"
BESIDE = (  # bugs of rules that are no row of the table
    ("unit/stalled-reader-hoards", (TRANSPORT, "test_a_stalled_reader_holds_little_that_cannot_be_taken_back")),
    ("unit/joined-without-bound", (OUTBOX, "test_a_joined_frame_is_short")),
    ("unit/outbox-not-dropped", (TRANSPORT, "test_a_fall_drops_from_every_outbox")),
    ("unit/urgent-not-dropped", (OUTBOX, "test_a_hastened_delta_is_dropped_too")),
    ("unit/tree-killed-one-by-one", ("processes/test_bombs.py", "test_a_fork_bomb_is_ended")),
    ("unit/pipe-kept-for-a-reader", (DESCRIPTORS, "test_stops_amid_lines_that_are_not_read_leak_nothing")),
    ("unit/dropped-called-observed", (STRANGERS, "test_a_body_that_was_dropped_is_not_observed")),
    ("unit/threads-not-looked-for", (STRANGERS, "test_a_thread_that_a_library_made_is_named")),
    ("unit/stops-share-the-budget", (TRANSPORT, "test_a_stop_has_a_budget_of_its_own")),
)


def passes(test: tuple[str, str], source: Path) -> bool:
    """Run one test against a copy of the source."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", f"tests/{test[0]}::{test[1]}"],
            cwd=TESTS.parent,
            env={**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return False
    if done.returncode not in (0, 1):
        raise SystemExit(done.stdout + done.stderr)
    return done.returncode == 0


def plant(mutant: str, place: Path) -> Path | None:
    """Copy the source, apply a bug to the copy, and return where its packages are; None if it does not apply."""
    shutil.copytree(TESTS.parent / "src", place / "src", ignore=shutil.ignore_patterns("__pycache__"))
    patch = TESTS / "planted" / f"{mutant}.patch"
    applied = subprocess.run(["git", "apply", "-p1", str(patch)], cwd=place, check=False)
    return place / "src" if applied.returncode == 0 else None


def main(chosen: list[str]) -> int:
    """Judge every bug, or those chosen."""
    table = races.rows((TESTS / "races.md").read_text("utf-8"))
    named = ((mutant, test) for row in table for mutant in row.mutants for test in row.tests)
    pairs = dict.fromkeys([*named, *BESIDE])
    pairs = [(mutant, test) for mutant, test in pairs if not chosen or mutant in chosen]
    wrong = []
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(JOBS) as pool:
        copies = {
            name: plant(name, Path(place) / name.replace("/", "-")) for name in dict.fromkeys(name for name, _ in pairs)
        }
        wrong += [f"{name} does not apply" for name, copy in copies.items() if copy is None]
        judged = [(name, test, copy) for name, test in pairs if (copy := copies[name]) is not None]
        results = pool.map(lambda each: passes(each[1], each[2]), judged)
        wrong += [f"{t[0]}::{t[1]} does not catch {n}" for (n, t, _), ok in zip(judged, results, strict=True) if ok]
        sound = list(dict.fromkeys(test for _, test, _ in judged))
        results = pool.map(lambda test: passes(test, TESTS.parent / "src"), sound)
        wrong += [
            f"{t[0]}::{t[1]} fails on the source as it is" for t, ok in zip(sound, results, strict=True) if not ok
        ]
    for line in wrong:
        print(line)
    print(f"{len(copies)} bugs, {len(pairs)} pairs of bug and test, {len(wrong)} wrong")
    return min(1, len(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
