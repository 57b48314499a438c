"""The audit: real files, floods and full disks."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.access import audit as module
from interlock.access.audit import REFUSED, Audit

from .scene import file_bytes, mode


@pytest.fixture
def audit(tmp_path: Path) -> Iterator[Audit]:
    """An audit that is closed after the test."""
    audit = Audit(tmp_path / "audit.jsonl")
    yield audit
    audit.close()


def lines(audit: Audit) -> list[dict[str, Any]]:
    """Return the lines of the audit, each parsed by itself."""
    return [json.loads(line) for line in audit.path.read_bytes().split(b"\n") if line]


def test_a_line_tells_who_what_when_and_from_where(audit: Audit) -> None:
    """Each entry is one JSON object on a line, in a file of mode 0600, appended to the lines before."""
    audit.note("stop", by="alice", address="127.0.0.1", run="r-1", aborted=True, after=0.5, count=3, receipt=None)
    Audit(audit.path).note("answer", by="bob", address="::1", question="q-1")
    first, second = lines(audit)
    when = first.pop("time")
    assert time.strptime(when, "%Y-%m-%dT%H:%M:%S." + when[20:23] + "Z")
    assert list(first.items()) == [
        ("kind", "stop"), ("by", "alice"), ("address", "127.0.0.1"),
        ("run", "r-1"), ("aborted", True), ("after", 0.5), ("count", 3), ("receipt", None),
    ]  # fmt: skip
    assert (second["kind"], second["question"]) == ("answer", "q-1")
    assert mode(audit.path) == 0o600


class Unspeakable:
    """A value whose str() raises."""

    def __str__(self) -> str:
        """Raise."""
        raise RuntimeError


@pytest.mark.parametrize(
    "value",
    [
        "\x1b[2J\r\n\x00\x7f\x9b\u2028",
        "\ud800x\udfff",
        "é漢😀",
        'a"b\\',
        float("nan"),
        10**5000,
        2**64,
        b"\xff",
        Unspeakable(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_is_noted_is_one_line_of_plain_ascii(audit: Audit, value: object) -> None:
    """Control characters and lone surrogates reach no terminal and break no line; no value makes the audit raise."""
    audit.note("stop", by=str(value)[:50] if isinstance(value, str) else "x", address="a", fact=value, time="mine")
    data = audit.path.read_bytes()
    assert data.count(b"\n") == 1
    assert all(32 <= byte < 127 for byte in data[:-1])
    (line,) = lines(audit)
    assert line["kind"] == "stop"
    assert line["time"] != "mine"
    json.dumps(line, ensure_ascii=False, allow_nan=False).encode()  # no lone surrogate is left


@given(value=st.text(st.characters(), max_size=40), key=st.integers(0, 3))
def test_any_text_comes_back_or_is_told_escaped(tmp_path_factory: pytest.TempPathFactory, value: str, key: int) -> None:
    """A text is stored as it was, or escaped."""
    audit = Audit(tmp_path_factory.getbasetemp() / f"any-{key}.jsonl")
    audit.note("stop", by=value, address=value, fact=value)
    audit.close()
    assert {lines(audit)[-1][name] for name in ("by", "address", "fact")} == {value}


@pytest.mark.parametrize("value", ["x" * 10**6, "\ud800" * 1000, ["y" * 10**6]])
def test_every_value_is_cut(audit: Audit, value: object) -> None:
    """A value of any length is cut to the bound."""
    audit.note("stop", by="b" * 10**6, address="a" * 10**6, fact=value)
    (line,) = lines(audit)
    assert [len(line[name]) for name in ("by", "address", "fact")] == [500] * 3


def test_a_flood_of_refusals_is_limited_and_counted(audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most twenty lines a second tell of refusals, then a count; stops and answers are always written."""
    now = 1000.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    for n in range(5_000):
        now = 1000.0 + n / 1000
        audit.note(REFUSED, by="", address="10.0.0.1", at=now)
        if n % 100 == 0:
            audit.note("stop", by="alice", address="127.0.0.1", n=n)
    kinds = [line["kind"] for line in lines(audit)]
    assert kinds.count("stop") == 50
    assert (kinds.count(REFUSED), kinds.count("left_out")) == (96, 4)
    at = [line["at"] for line in lines(audit) if line["kind"] == REFUSED]
    assert all(later - earlier >= 1 for earlier, later in zip(at, at[20:], strict=False))
    audit.tell_left_out()  # within the same second
    now += 1
    audit.tell_left_out()
    audit.tell_left_out()
    told = lines(audit)
    assert told[-1]["kind"] == "left_out"
    assert sum(line["refused"] for line in told if line["kind"] == "left_out") == 5_000 - kinds.count(REFUSED)


def test_closing_tells_what_was_left_out(tmp_path: Path) -> None:
    """Closing writes the count of omitted lines, also within the same second."""
    audit = Audit(tmp_path / "audit.jsonl")
    for _ in range(30):
        audit.note(REFUSED, by="", address="")
    audit.close()
    assert [line["kind"] for line in lines(audit)] == [REFUSED] * 20 + ["left_out"]
    assert lines(audit)[-1]["refused"] == 10


def test_a_full_disk_is_logged_once_a_minute_and_nothing_is_raised(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop whose audit line meets a full disk (/dev/full) succeeds; the fault is logged once a minute."""
    now, before = 1000.0, os.stat("/dev/full").st_mode
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    audit = Audit(Path("/dev/full"))
    for later in (0.0, 0.1, 59.0, 60.0, 61.0):
        now = 1000.0 + later
        audit.note("stop", by="alice", address="127.0.0.1")
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert "No space left" in caplog.text
    audit.close()
    assert os.stat("/dev/full").st_mode == before


def test_a_line_the_disk_took_half_of_stays_alone(audit: Audit) -> None:
    """After a half-written line the next line begins on its own, and the count of missing lines is written."""
    audit.note("stop", by="alice", address="a", n=1)
    with file_bytes(audit.path.stat().st_size + 20):
        audit.note("stop", by="alice", address="a", n=2)
        audit.note("stop", by="alice", address="a", n=3)
    audit.note("stop", by="alice", address="a", n=4)
    whole = []
    for line in audit.path.read_text().splitlines():
        try:
            whole.append(json.loads(line))
        except ValueError:
            assert line.startswith('{"time"')
    assert [(line["kind"], line.get("n"), line.get("unwritten")) for line in whole] == [
        ("stop", 1, None), ("left_out", None, 2), ("stop", 4, None)
    ]  # fmt: skip


def test_a_missing_place_a_pipe_or_a_link_costs_the_caller_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The audit blocks on no pipe and follows no link; lines are written again once the directory is back."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("pipe", "link", "missing/audit.jsonl"):
        audit = Audit(tmp_path / name)
        for _ in range(200):
            audit.note("stop", by="x" * 500, address="y" * 500)
        audit.close()
    assert not (tmp_path / "elsewhere").exists()
    assert len(caplog.records) == 3
    (tmp_path / "missing").mkdir()
    audit.note("stop", by="alice", address="a")
    audit.path.unlink()
    audit.note("stop", by="bob", address="a")
    audit.close()
    assert [line["by"] for line in lines(audit)] == ["bob"]
