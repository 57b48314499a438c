"""kill -9 at random moments under load, and a judge that compares every promise with the database.

1. A server (`crashing.py`) writes everything that its clients are told to a pipe, and leaves a mark outside for
   everything that began. Both outlive the server: after each kill the judge knows what was promised and what happened.
2. The judge asks the next server through its verbs, and looks at a copy of the database with plain sqlite3.
3. The judge counts how often each check was made, because a check that was never made proves nothing.

python -m proofs.crashes --seed 7 --kills 10     play one directory here, unlimited; print JSON
"""

import argparse
import contextlib
import inspect
import os
import random
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

import interlock
from interlock.core.events import Block, Delta, Ended, Event, Gap, QuestionData, Tool
from interlock.core.names import PASSING, REPORTS, Ending, QuestionState, ToolState
from interlock.core.outcome import Outcome
from proofs.crashbook import Book, Found, Row
from proofs.crashing import LOAD_SECONDS, MARK, STUBBORN, Server, serve
from proofs.processes import children, emptied, entered, scope

OPEN_SECONDS = 0.12  # a kill that is to hit opening or recovery comes within this time
PARKED_AFTER = 3  # kills in a row with a run of the session going
CUES = {  # the line of a server after which it is killed, and within how many seconds
    "load": (b'["asked"]', LOAD_SECONDS),
    "long": (b'["asked"]', 1.5),
    "recovery": (b'["recovering"', 0.05),
    "close": (b'["closing"]', 0.08),
}
START_SECONDS = 60.0  # for a server to recover and be asked
GONE_SECONDS = 5.0


class Report(msgspec.Struct):
    """The result of some kills."""

    kills: int = 0
    seconds: float = 0.0
    checks: dict[str, int] = {}
    seen: dict[str, int] = {}  # counts of what the load did: a load that does nothing shows here
    broken: list[str] = []
    late_ms: float = 0.0  # age of the oldest text that was shown and then lost


class Judge:
    """Starts servers on one directory, kills them, and compares what they tell."""

    def __init__(self, place: Path, seed: int) -> None:
        self._place = place
        self._chance = random.Random(seed)
        self.mark = f"{os.getpid()}-{time.monotonic_ns():x}"
        self._book = Book(seed, self.mark)
        self._killed: list[float] = []  # the time of each kill
        # True if the last kill took the keepers too: then only the next start can end the processes that were left.
        self._orphans = False
        self._over: set[str] = set()  # runs that this start told as ended
        self._now: set[int] = set()  # positions that this start told
        self._effects: Counter[str] = Counter()  # tools that were seen to begin
        self._checks: Counter[str] = Counter()
        self._seen: Counter[str] = Counter()
        self.report = Report()

    def check(self, what: str, holds: object, detail: object = "") -> None:
        """Count a check; note it if it does not hold."""
        self._checks[what] += 1
        if not holds and len(self.report.broken) < 20:
            self.report.broken.append(f"seed {self._book.seed}, start {self._book.start}: {what}: {detail}")

    def play(self, kills: int) -> Report:
        """Kill so many times, then let one server finish in peace."""
        began = time.perf_counter()
        while self.report.kills < kills and not self.report.broken:
            self._one(self._chance.choices(("load", "long", "recovery", "open", "close"), (57, 3, 20, 10, 10))[0])
        if not self.report.broken:
            self._one("last")
        self.report.checks, self.report.seen = dict(self._checks), dict(self._seen)
        self.report.seconds = time.perf_counter() - began
        return self.report

    def _one(self, moment: str) -> None:
        book = self._book
        book.start, book.began = book.start + 1, time.time()
        self._over.clear()
        self._now.clear()
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            serve(Server(self._place, book, writing, closes=moment == "close", last=moment == "last"))
        os.close(writing)
        try:
            lines = self._listen(pid, reading, moment)
        finally:
            os.close(reading)
        self._read(lines)
        self._look(last=moment == "last")
        # Otherwise the next start is checked: after a kill of all keepers only that start can end the processes.
        if moment == "last" or (not self._orphans and self._chance.random() < 0.5):
            self.look_for_processes(book.start, GONE_SECONDS)

    def _listen(self, pid: int, reading: int, moment: str) -> list[bytes]:
        """Read the lines of a server, and kill it when its time has come."""
        at = time.monotonic() + (self._chance.uniform(0, OPEN_SECONDS) if moment == "open" else START_SECONDS)
        cue, within = CUES.get(moment, (b"", 0.0))
        heard, cued, killed = b"", False, False
        while True:
            ready, _, _ = select.select([reading], [], [], max(0.0, at - time.monotonic()))
            if not ready:
                self.check("a server is ready in time", moment == "open" or cued, heard[-2000:])
                self._kill(pid, leaves=b'["recovering","cgroup"]' in heard)
                killed = True
            piece = os.read(reading, 1 << 20)
            if not piece:
                break
            if b'["ready"]\n' in piece:
                self.look_for_processes(self._book.start - 1, 0.0)
            heard += piece
            if killed or (cue and not cued and cue in heard):
                cued, at = True, time.monotonic() + (START_SECONDS if killed else self._chance.uniform(0, within))
        _, status = os.waitpid(pid, 0)
        self.report.kills += os.WIFSIGNALED(status)
        self.check("a server ends only when killed or done", killed or b'["closed"]' in heard, heard[-2000:])
        return heard.split(b"\n")[:-1]

    def _kill(self, pid: int, *, leaves: bool) -> None:
        """Kill control, sometimes its helper too, and, where leaves show which process belongs to whom, all keepers."""
        helpers = [one.pid for one in children(pid)] if self._chance.random() < 0.2 else []
        all_of_them = leaves and self._chance.random() < 0.5
        keepers = [one.pid for helper in helpers for one in children(helper)] if all_of_them else []
        self._killed.append(time.monotonic())
        for each in (pid, *helpers, *keepers):
            with contextlib.suppress(OSError):
                os.kill(each, signal.SIGKILL)
        self._orphans = bool(keepers)
        self._seen["helpers killed too"] += len(helpers)
        self._seen["keepers killed too"] += len(keepers)

    def look_for_processes(self, start: int, seconds: float) -> None:
        """Check that no process is alive that this start or an earlier one began."""
        marks = [f"{MARK}={self.mark}-{n}\0".encode() for n in range(1, start + 1)]
        until = time.monotonic() + seconds
        while left := [name for name in os.listdir("/proc") if name.isdigit() and _carries(name, marks)]:  # noqa: PTH208
            if time.monotonic() >= until:
                break
            time.sleep(0.005)
        self.check("no process is left", not left, [_words(pid) for pid in left])

    # Lines of a server

    def _read(self, lines: list[bytes]) -> None:
        book, before = self._book, set(self._book.endings)
        for line in lines:
            kind, *given = msgspec.json.decode(line)
            self._seen[kind] += 1
            getattr(self, "_on_" + kind.replace(" ", "_"), lambda *_: None)(*given)
        book.fresh = [run for run in book.endings if run not in before]

    def _on_broken(self, what: str) -> None:
        self.report.broken.append(f"seed {self._book.seed}, start {self._book.start}: {what}")

    def _on_sending(self, asked: dict[str, Any]) -> None:
        self._book.sent[asked["text"]] = asked
        if asked["session"] not in self._book.sessions:
            self._book.sessions.append(asked["session"])

    def _on_ack(self, text: str, run: str) -> None:
        self._book.acked[text], self._book.taken[text] = run, self._book.start
        self._seen[f"sent {self._book.sent[text]['strategy']}"] += 1

    def _on_turned_away(self, text: str, error: str) -> None:
        self._book.turned_away.add(text)
        self._book.sent.pop(text)
        self._seen[f"turned away {error}"] += 1

    def _on_conflict(self, text: str) -> None:
        self.check("a used key takes no other message", True)

    def _on_void(self, question: str) -> None:
        self.check("a question of a dead run is closed", True)

    def _on_answered(self, question: str, state: str) -> None:
        self._book.answered.add(question)

    def _on_buried(self, key: str) -> None:
        self._book.buried.add(key)

    def _on_pruning(self) -> None:
        self._book.pruned = self._book.start

    def _on_again(self, text: str, run: str) -> None:
        if text in self._book.acked:
            self.check("a used key gets the answer it got", run == self._book.acked[text], (text, run))
        else:  # the sender never got the first answer
            taken = [(row.id, row.alias) for row in self._book.rows.values() if row.text == text]
            self.check("a message sent again is the one taken", all(run in each for each in taken), (text, run, taken))
            # A run id of an earlier boot means that the message was taken then, even if the run's row is gone.
            new = _boot(run) > max(map(_boot, self._book.rows), default=0)
            self._book.acked[text] = run
            self._book.taken[text] = self._book.start if new else int(text.partition(".")[0])

    def _on_outcome(self, run: str, outcome: object) -> None:
        told = msgspec.convert(outcome, Outcome)
        self._ends(told.run_id, told)

    def _on_receipt(self, receipt: dict[str, Any]) -> None:
        for fallen in receipt["runs"]:
            self._ends(fallen["id"], msgspec.convert(fallen["outcome"], Outcome))

    def _on_parked(self, session: str) -> None:
        ends = [
            (event.position >> 32, event.data.outcome)
            for event in self._book.events.get(session, {}).values()
            if isinstance(event.data, Ended) and event.generation is not None
        ]
        lately = {boot for boot, outcome in ends[-PARKED_AFTER:] if outcome.ending is Ending.LOST}
        self.check(
            "only what crashed three times is parked", len(lately) >= PARKED_AFTER, (session, ends[-PARKED_AFTER:])
        )

    def _ends(self, run: str, outcome: Outcome) -> None:
        """Compare an ending with the one told before; an ending that was told as durable must never change."""
        if not outcome.ended:
            return
        told = self._book.endings.get(run)
        if told is not None:
            self.check("an ending told stays the same", told.same_story(outcome), (told, outcome))
        if outcome.durable:
            self._book.endings[run] = outcome
        self._seen[f"ended {outcome.ending}"] += told is None

    def _on_event(self, told: object, at: float) -> None:
        event = msgspec.convert(told, Event)
        known = self._book.events.setdefault(event.session, {})
        self.check("positions rise", event.position > self._book.last(event.session), event)
        known[event.position] = event
        self._now.add(event.position)
        run = event.run_id
        if run is None:
            return
        self.check("nothing of a run follows its end", run not in self._over, event)
        match event.data:
            case Ended(outcome=outcome):
                self._over.add(run)
                self._ends(run, outcome)
            case QuestionData(question_id=question, state=QuestionState.OPEN):
                self._book.questions.append(question)
            case Delta(text=text):
                self._book.shown[run].append((text, at))
            case Block(text=text):
                pieces = self._book.shown[run]
                shown = "".join(piece for piece, _ in pieces)
                rest = text if not text.startswith(_open(shown)) or not _open(shown) else text[len(_open(shown)) :]
                pieces.append((rest + "\n\n", at))

    def _on_replay(self, session: str, told: list[object]) -> None:
        events = [msgspec.convert(event, Event) for event in told]
        positions = [event.position for event in events]
        self.check("a replay rises", positions == sorted(set(positions)), session)
        have = dict(zip(positions, events, strict=True))
        live = self._book.events.get(session, {})
        lasting = [event.position for event in events if event.kind not in PASSING]
        gaps = [(event.position, event.data.after) for event in events if isinstance(event.data, Gap)]
        for position, event in live.items():
            if position in have:
                self.check("a position has one event", have[position] == event, (have[position], event))
            elif position in self._now or event.kind in PASSING:
                # The event was published after the replay was read, or is a passing event, which counts only while its
                # run is current.
                continue
            elif not (self._book.pruned and position < min(positions, default=0)):
                kept = [each for each in lasting if each >> 32 == position >> 32 and each > position]
                self.check("only the tail of a log is lost", not kept, (event, kept[:3]))
                self.check("what is lost leaves a gap", any(after < position < gap for gap, after in gaps), event)
        self._one_end(events, {gap >> 32 for gap, _ in gaps})

    def _one_end(self, events: list[Event], crashed: set[int]) -> None:
        over: set[str] = set()
        calls: dict[str, list[ToolState]] = {}
        whose: dict[str, str] = {}
        names: dict[str, str] = {}
        for event in events:
            run, data = event.run_id, event.data
            if run is None:
                continue
            self.check("one end in a replay, and nothing behind it", run not in over, event)
            for tool in (data,) if isinstance(data, Tool) else data.tools if isinstance(data, Ended) else ():
                calls.setdefault(tool.call_id, []).append(tool.state)
                whose[tool.call_id] = run
                if tool.arguments is not None:
                    names[tool.call_id] = msgspec.json.decode(tool.arguments)["name"]
            if isinstance(data, Ended):
                over.add(run)
                self._ends(run, data.outcome)
                if data.outcome.ending is Ending.LOST:
                    self.check("a lost run is behind a gap", event.position >> 32 in crashed, event)
                    self._kept_text(run, data.outcome.text)
        for call, states in calls.items():
            closed = sum(state not in (ToolState.PENDING, ToolState.RUNNING) for state in states)
            self.check("a call has one result", closed == 1 or whose[call] not in over, (call, states))
            if self._effects[names.get(call, "")]:
                self.check("what began is not called skipped", ToolState.SKIPPED not in states, (call, states))

    def _kept_text(self, run: str, text: str) -> None:
        """Check that the text a watcher saw of a lost run is kept, except for the last moments before the kill."""
        shown = "".join(piece for piece, _ in self._book.shown.get(run, ())).removesuffix("\n\n")
        missing = len(shown) - len(text)
        self.check("text shown is kept", shown.startswith(text) or text.startswith(shown), (run, shown, text))
        self.check("text written is kept", text == self._book.said.get(run, ""), (run, self._book.said.get(run), text))
        if missing > 0:
            at = 0
            for piece, when in self._book.shown[run]:
                at += len(piece)
                if at > len(text):
                    late = min((kill for kill in self._killed if kill > when), default=when) - when
                    self.report.late_ms = max(self.report.late_ms, late * 1000)
                    break

    def _on_says(self, run: str, said: dict[str, Any]) -> None:
        """Check that every surface tells the same ending."""
        told = self._book.endings.get(run)
        waited = msgspec.convert(said["wait"], Outcome)
        if told is not None and waited.ending is not Ending.UNKNOWN:
            self.check("an ending outlives a kill", told.same_story(waited), (told, waited))
        if not waited.ended or waited.run_id != run:
            return
        self._ends(run, waited)
        for surface in ("runs", "receipt"):
            other = msgspec.convert(said.get(surface), Outcome | None)
            agree = other is not None and waited.same_story(other)
            self.check(f"{surface} and wait agree", agree, (waited, other))
        self.check("timeline and wait agree", said.get("timeline") == [waited.ending], (said.get("timeline"), waited))
        if said.get("history") is not None:
            self.check("history and wait agree", said["history"] == waited.ending, (said["history"], waited))

    # The database and the marks

    def _look(self, *, last: bool) -> None:
        """Compare what was told with the database and with the marks in the world."""
        book, found = self._book, Found(self._place)
        texts = {row.text: row for row in found.rows.values() if not _stopped_again(row, book.acked.get(row.text))}
        for text, run in book.acked.items():
            row = found.rows.get(run)
            if row is not None and not row.text and row.outcome is not None:
                # The run ended before its session had an owner, so the store kept no text.
                texts[text] = row
        self.check("integrity", found.integrity == "ok", found.integrity)
        self._forget(texts)
        for text, run in book.acked.items():
            self.check("an acked message is there", text in texts, (text, run))
        for text in book.turned_away:
            # A message that was stopped while it arrived has a row, although its sender was turned away.
            row = texts.get(text)
            ended = row is not None and row.outcome is not None and row.outcome.ending is Ending.STOPPED
            self.check("a message turned away never runs", not found.times[text] and (row is None or ended), text)
        for text, asked in book.sent.items():
            if asked["key"] in book.buried:
                self.check("what was stopped before it was seen never runs", not found.times[text], text)
        for question in book.answered & found.questions.keys():
            self.check("an answer is kept", found.questions[question] in ("answered", "void"), question)
        for run, told in book.endings.items():
            if (kept := found.rows.get(run)) is not None:
                self.check(
                    "an ending told is in the store", kept.outcome and kept.outcome.same_story(told), (told, kept)
                )
        self._look_outside(found)
        for row in found.rows.values():
            self._look_at(row, book.rows.get(row.id), found)
        book.rows, self._effects = found.rows, found.effects
        book.said |= found.said
        if last:
            self._look_at_rest(found)

    def _look_outside(self, found: Found) -> None:
        for text, count in found.times.items():
            self.check("nothing runs twice", count == 1, (text, count))
        for run, _ in found.begun:
            if run in found.rows:
                self.check("a start is on record first", found.rows[run].started, found.rows[run])
        for name, count in found.effects.items():
            self.check("no tool runs twice", count == 1, (name, count))
            if name.split("/")[0] in found.rows:
                self.check("a tool's start is on record first", found.tools.get(name, "pending") != "pending", name)
        waited = [row.text for row in found.rows.values() if row.session == STUBBORN and row.kind not in REPORTS]
        began = [texts[0] for run, texts in found.begun if texts[0] in waited]
        self.check("what waits begins in order", began == sorted(began, key=waited.index), began)

    def _look_at(self, row: Row, before: Row | None, found: Found) -> None:
        outcome = row.outcome
        if before is not None and before.outcome is not None:
            stands = outcome is not None and outcome.same_story(before.outcome)
            self.check("an ending in the store stands", stands, (before, row))
        if outcome is not None and outcome.ending is Ending.LOST:
            self.check("only what had begun is lost", row.started or row.parent is not None, row)
        # An announcement that never started is a note, or one too many in a row.
        a_turn = row.kind not in REPORTS or row.started
        if outcome is not None and outcome.ending is Ending.COMPLETED and a_turn:
            self.check("what completed had begun", found.times[row.text] == 1, row)
        if row.announce is not None and outcome is not None:
            self.check("nothing is announced twice", found.reports[row.id] <= 1, row)
            # A stop may have ended the child together with its home session, and then nothing is announced.
            if outcome.ending is not Ending.STOPPED:
                self.check("what ended is announced", found.reports[row.id] == 1, row)

    def _look_at_rest(self, found: Found) -> None:
        """Check that every run has come to its end."""
        for row in found.rows.values():
            itself = row
            while itself.outcome is None and itself.alias is not None:
                itself = found.rows[itself.alias]
            self.check("every run has an ending", itself.outcome is not None, itself)
        for question, state in found.questions.items():
            self.check("no question stays open", state != "open", question)
        self.check("every receipt is complete", found.pending == 0, found.pending)
        self.check("deltas do not stay", found.passing == 0, found.passing)

    def _forget(self, texts: dict[str, Row]) -> None:
        """Forget messages of pruned sessions; a session is pruned as a whole, up to some message, or not at all."""
        book = self._book
        for session in book.sessions:
            mine = {text: book.taken[text] for text in book.acked if book.sent[text]["session"] == session}
            mine = {text: start for text, start in mine.items() if start < book.pruned}
            gone = [text for text in mine if text not in texts]
            if gone:
                kept = min((start for text, start in mine.items() if text in texts), default=book.pruned)
                self.check("a session is forgotten whole", max(mine[text] for text in gone) < kept, (session, gone))
            for text in gone:
                self._seen["forgotten"] += 1
                self._book.acked.pop(text)
                self._book.sent.pop(text)


CHECKS = tuple(dict.fromkeys(re.findall(r'\.check\(\s*"([^"]+)"', inspect.getsource(Judge))))
"""What is checked, in words; after enough kills each must have been."""


def _stopped_again(row: Row, acked: str | None) -> bool:
    """Return whether a row is of a message that was sent again with its key, and was stopped while it arrived."""
    return acked is not None and row.id != acked and row.alias is None and not row.started and row.outcome is not None


def _boot(run: str) -> int:
    return int(run.split("-")[1], 16)


def _open(shown: str) -> str:
    return shown.rpartition("\n\n")[2]


def _carries(pid: str, marks: list[bytes]) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return any(mark in environment for mark in marks)


def _words(pid: str) -> str:
    with contextlib.suppress(OSError):
        return f"{pid} {Path(f'/proc/{pid}/cmdline').read_bytes()!r} {Path(f'/proc/{pid}/stat').read_text()[:40]}"
    return f"{pid} just gone"


# A directory in a process of its own, limited


def play(seed: int, kills: int) -> Report:
    """Play one directory here."""
    with tempfile.TemporaryDirectory(prefix="interlock-crashes-") as directory:
        return Judge(Path(directory), seed).play(kills)


def play_apart(seed: int, kills: int, *, source: Path = Path(interlock.__file__).parent.parent) -> Report:
    """Play one directory in a process of its own, limited; the kernel counts the processes that are left there."""
    argv = [sys.executable, "-m", "proofs.crashes", f"--seed={seed}", f"--kills={kills}"]
    env = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "LANG") if name in os.environ}
    env |= {"PYTHONPATH": f"{source}{os.pathsep}{Path(__file__).parent.parent}", "PYTHONDONTWRITEBYTECODE": "1"}
    with scope() as directory:
        done = subprocess.run(
            entered(argv, directory), env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False,
            timeout=60 + 10 * kills,
        )  # fmt: skip
        left = emptied(directory) if directory is not None else []
    if done.returncode != 0:
        raise RuntimeError(f"seed {seed} ended with {done.returncode}:\n{done.stderr.decode(errors='replace')[-4000:]}")
    report = msgspec.json.decode(done.stdout, type=Report)
    # A broken run stops in the middle, and its processes are still there.
    if not report.broken:
        report.broken += [f"seed {seed}: {what}" for what in left]
    return report


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog=__name__)
    parser.add_argument("--seed", type=int, default=0, help="which moments")
    parser.add_argument("--kills", type=int, default=10, help="how many")
    asked = parser.parse_args(arguments)
    report = play(asked.seed, asked.kills)
    sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
