"""`interlock doctor` says what the machine allows, to people and to programs."""

from __future__ import annotations

import json
import os

import pytest

from .scene import dropped
from .scene import fresh as interlock


@pytest.mark.parametrize("user", ["ours", "dropped"])
def test_the_doctor_says_what_there_is(user: str) -> None:
    """The doctor names the best grade that worked, every trial, and for each weakness what to change."""
    prefix = dropped() if user == "dropped" else ()
    done = interlock("doctor", "--json", prefix=prefix, cwd="/")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    trials = {trial["grade"]: trial for trial in report["trials"]}
    assert list(trials) == ["cgroup", "keeper", "group"]
    assert report["grade"] == next(grade for grade, trial in trials.items() if trial["works"])
    assert all(trial["works"] == (trial["gone_ms"] is not None) == (not trial["why"]) for trial in trials.values())
    assert any("setsid" in unseen for unseen in trials["group"]["unseen"])
    assert trials["keeper"]["works"]
    facts = {fact["name"]: fact for fact in report["facts"]}
    assert all(fact["change"] for fact in facts.values() if fact["good"] is False)
    assert {"system", "cgroup v2", "subreaper", "pidfd", "limit of processes", "limit of memory", "user"} <= set(facts)
    if report["grade"] == "cgroup":
        steps = facts["steps into a cgroup"]
        assert steps["good"] or "waits for the kernel" in steps["found"]
    if user == "dropped":
        assert report["grade"] == "keeper"
        assert report["why"].startswith("cgroup: ")
        assert facts["another user"]["found"] == "not possible"
        assert "uid 0" not in facts["user"]["found"]


def test_the_doctor_draws_a_table() -> None:
    """The doctor's table for people has the grade first, then every trial and its result."""
    done = interlock("doctor", env={**os.environ, "COLUMNS": "160"})
    assert done.returncode == 0
    assert done.stdout.startswith("Grade: ")
    assert "two processes gone in" in done.stdout
    assert "limit of memory" in done.stdout
