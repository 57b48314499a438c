"""The knowledge of the crash campaign's judge: what clients were told, and what the database and the marks hold."""

import contextlib
import json
import shutil
import sqlite3
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import msgspec

from interlock.core.events import Event
from interlock.core.names import REPORTS
from interlock.core.outcome import Outcome

SAID = """
SELECT e.position, e.run_id, e.data FROM events e JOIN runs r ON r.id = e.run_id WHERE r.ending IS NULL
UNION ALL
SELECT e.value ->> 0, p.run_id, e.value -> 3 FROM passing p JOIN runs r ON r.id = p.run_id, json_each(p.events) e
WHERE r.ending IS NULL
ORDER BY 1
"""
RUNS = "SELECT id, session, text, started, alias, parent, outcome, kind, key, announce FROM runs ORDER BY serial"


class Row(msgspec.Struct):
    """A run as the database has it."""

    id: str
    session: str
    text: str
    started: bool
    alias: str | None
    parent: str | None
    outcome: Outcome | None
    kind: str
    key: str | None
    announce: str | None


class Book:
    """The judge's knowledge of earlier starts. A server is forked with a copy, and so knows what to answer for."""

    def __init__(self, seed: int, mark: str) -> None:
        self.seed, self.mark, self.start, self.began = seed, mark, 0, time.time()
        self.acked: dict[str, str] = {}  # text: run
        self.taken: dict[str, int] = {}  # text: the start that acked it
        self.sent: dict[str, dict[str, Any]] = {}  # text: how it was sent
        self.turned_away: set[str] = set()
        self.buried: set[str] = set()  # stopped before the message was seen
        self.answered: set[str] = set()  # questions
        self.pruned = 0  # the last start that pruned anything
        self.events: dict[str, dict[int, Event]] = {}  # as live watchers were told
        self.endings: dict[str, Outcome] = {}  # told as durable
        self.shown: dict[str, list[tuple[str, float]]] = defaultdict(list)  # run: pieces of text, each with its time
        self.said: dict[str, str] = {}  # run: the text that the log had when its server was killed
        self.questions: list[str] = []
        self.rows: dict[str, Row] = {}  # as the last look at the database found them
        self.fresh: list[str] = []  # runs of the last start
        self.sessions: list[str] = []

    @property
    def to_ask(self) -> list[str]:
        """Return the runs whose ending is in the database, or was told."""
        return [run for run, row in self.rows.items() if row.outcome is not None or run in self.endings]

    def last(self, session: str) -> int:
        """Return the last position that a watcher was told."""
        return max(self.events.get(session, {}), default=0)

    def by_session(self, runs: list[str]) -> dict[str, list[str]]:
        """Group runs by their sessions."""
        found: dict[str, list[str]] = {}
        for run in dict.fromkeys(runs):
            if run in self.rows:
                found.setdefault(self.rows[run].session, []).append(run)
        return found


class Found:
    """The rows of a copy of the database, read with plain sqlite3, and the marks that agents and tools left outside."""

    def __init__(self, place: Path) -> None:
        marks = [json.loads(line) for line in _lines(place / "witness")]
        self.begun: list[tuple[str, list[str]]] = [(run, texts) for kind, run, *texts in marks if kind == "begin"]
        self.times = Counter(text for _, texts in self.begun for text in texts)
        self.effects = Counter(name for kind, name, *_ in marks if kind == "effect")
        self.rows: dict[str, Row] = {}
        self.reports: Counter[str | None] = Counter()  # announcements, by child
        self.tools: dict[str, str] = {}  # the state of each call, by the name in its arguments
        self.questions: dict[str, str] = {}
        self.said: dict[str, str] = {}  # run: the text in the log, of runs that have not ended
        self.integrity = "ok"
        self.pending = self.passing = 0
        with contextlib.closing(sqlite3.connect(_copied(place / "data", place / "copy"))) as db:
            if db.execute("PRAGMA user_version").fetchone()[0]:
                self._read(db)

    def _read(self, db: sqlite3.Connection) -> None:
        self.integrity = "\n".join(row[0] for row in db.execute("PRAGMA integrity_check"))
        for run, session, text, started, alias, parent, outcome, *rest in db.execute(RUNS):
            ended = None if outcome is None else msgspec.json.decode(outcome, type=Outcome)
            self.rows[run] = Row(run, session, text, bool(started), alias, parent, ended, *rest)
        self.reports = Counter(row.key for row in self.rows.values() if row.kind in REPORTS)
        for arguments, state in db.execute("SELECT arguments, state FROM tools"):
            self.tools[json.loads(arguments)["name"]] = state
        blocks: dict[str, list[str]] = {}
        for _, run, data in db.execute(SAID):
            told, parts = json.loads(data), blocks.setdefault(run, [""])
            if told["type"] == "delta":
                parts[-1] += told["text"]
            elif told["type"] == "block":
                parts[-1:] = [told["text"], ""]
        self.said = {run: "\n\n".join(part for part in parts if part) for run, parts in blocks.items()}
        self.questions = dict(db.execute("SELECT id, state FROM questions"))
        self.pending = db.execute("SELECT count(*) FROM receipts WHERE pending = 1").fetchone()[0]
        self.passing = db.execute("SELECT count(*) FROM passing").fetchone()[0]


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines() if path.exists() else []


def _copied(source: Path, copy: Path) -> Path:
    """Copy the database as it is, with its write-ahead log."""
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    for name in ("interlock.db", "interlock.db-wal"):
        if (source / name).exists():
            shutil.copy(source / name, copy / name)
    return copy / "interlock.db"
