"""A model of seat, generation, takeover, child, report and hold (model.pml), searched to the end, compared with code.

1. `check` searches every order of every step within its bounds; `refute` breaks one rule, and then a check must fail.
2. A `Recorder` writes down what the real runtime decides, as facts; `replay` asks the model for a way to tell them.
3. There is one model. Its facts and its mutants are listed there and nowhere else.

python -m proofs.model                    all of it, one line for each result
python -m proofs.model --only-replay      traces of seeds only
"""

import argparse
import asyncio
import atexit
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from rich.console import Console

from interlock.core.lifecycle import Move
from interlock.core.names import REPORTS, RunKind
from interlock.core.outcome import Cause
from interlock.core.receipt import Receipt
from interlock.runtime.approvals import Approvals
from interlock.runtime.collecting import Collecting
from interlock.runtime.fall import Fall
from interlock.runtime.holds import Holds, Place
from interlock.runtime.live import LiveRun
from interlock.runtime.outlet import Outlet
from interlock.runtime.registry import Registry, StopCall
from interlock.runtime.reporting import Reporting
from interlock.runtime.run_stops import Receiving, RunStops
from interlock.runtime.session import Session
from interlock.runtime.session_stops import SessionStops
from interlock.runtime.work import Question
from interlock.testing.loop import SeededLoop
from proofs.scenarios import play

SOURCE = Path(__file__).with_suffix(".pml")
INSTALL = "apt-get install -y --no-install-recommends spin gcc libc6-dev"
SEARCH_SECONDS = 600
SEEDS = 200
DEPTH = 1_000_000  # greatest depth of the search, which takes the memory for it at its start

_NUMBERED = re.compile(r"^#define (\w+) (\d+)\s*/\* (fact|mutant): (.*) \*/$", re.MULTILINE)
_LISTED = [(name, int(number), kind, text) for name, number, kind, text in _NUMBERED.findall(SOURCE.read_text("utf-8"))]
FACTS = {name: number for name, number, kind, _ in _LISTED if kind == "fact"}
MUTANTS = {name: text for name, _, kind, text in _LISTED if kind == "mutant"}
_PLANTED = {name: number for name, number, kind, _ in _LISTED if kind == "mutant"}


class Bounds(NamedTuple):
    """The bounds of a search: runs not drained at a time, sessions that people speak to, whether every rule is in."""

    runs: int
    sessions: int
    all: bool

    @property
    def switches(self) -> tuple[str, ...]:
        """Return the switches of spin."""
        return (f"-DRUNS={self.runs}", f"-DROOTS={self.sessions}", f"-DALL={str(self.all).lower()}")

    def __str__(self) -> str:
        what = "every rule" if self.all else "without holds, questions and collecting"
        return f"{self.runs} runs at a time in {self.sessions} + {self.runs} sessions, {what}"


WHOLE, WIDE = Bounds(3, 2, True), Bounds(4, 1, False)  # at most 4 runs, 2 sessions
SMALL = (Bounds(2, 2, True), Bounds(3, 1, False))  # parts of WHOLE; every mutant shows in one of them


class Size(NamedTuple):
    """The room for a trace in the model."""

    runs: int = 60
    sessions: int = 60
    holds: int = 4
    places: int = 16  # in a line, a queue

    @property
    def switches(self) -> tuple[str, ...]:
        """Return the switches of spin."""
        sizes = (f"-DRUNS={self.runs}", f"-DSESSIONS={self.sessions}", f"-DHOLDS={self.holds}")
        return ("-DREPLAY", "-DROOTS=0", f"-DPLACES={self.places}", *sizes)


SIZE = Size()


class ToolsMissing(RuntimeError):
    """spin or a C compiler is not installed; the text says how to get them."""


class Searched(NamedTuple):
    """The result of a search. `broken` is the violated check, None if nothing was violated."""

    states: int
    complete: bool
    broken: str | None
    seconds: float


class Fact(NamedTuple):
    """A decision of the runtime: its turn of the loop, its kind, and its numbers as model.pml lists them."""

    step: int
    kind: str
    values: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.kind.lower()}({', '.join(map(str, self.values))}) in turn {self.step}"


class Trace(NamedTuple):
    """The decisions of one schedule, in order. `broken`: the oracle's words, if the schedule was broken off."""

    seed: int
    facts: tuple[Fact, ...]
    broken: str | None = None


class Verdict(NamedTuple):
    """The model's answer to a trace."""

    trace: Trace
    reached: int  # the most facts that a way through the model tells

    @property
    def accepted(self) -> bool:
        """True if the model can tell the whole trace."""
        return self.reached == len(self.trace.facts)

    def __str__(self) -> str:
        if self.accepted:
            return f"seed {self.trace.seed}: {self.reached} facts, accepted"
        before = ", ".join(str(fact) for fact in self.trace.facts[max(0, self.reached - 5) : self.reached])
        fact = self.trace.facts[self.reached]
        return f"seed {self.trace.seed}: fact {self.reached}, {fact}, is refused after {before or 'nothing'}"


# The model


def missing() -> str | None:
    """Return what must be installed for the model to run, None if nothing is missing."""
    absent = [tool for tool in ("spin", "gcc") if shutil.which(tool) is None]
    return f"{' and '.join(absent)} not found; as root: apt-get update && {INSTALL}" if absent else None


@functools.cache
def _compiled(*switches: str, level: int = 0) -> Path:
    """Return the search program for some bounds, made once in this process; a higher level pays for long searches."""
    if (absent := missing()) is not None:
        raise ToolsMissing(absent)
    place = Path(tempfile.mkdtemp(prefix="interlock-model-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    compiler = ["gcc", f"-O{level}", "-w", "-DSAFETY", "-DNOREDUCE", "-DVECTORSZ=16384", "-DMEMLIM=8192"]
    for command in (["spin", *switches, "-a", str(SOURCE)], [*compiler, "-o", "pan", "pan.c"]):
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False, timeout=SEARCH_SECONDS)
        if done.returncode != 0:
            raise RuntimeError(f"{command[0]} cannot make the model:\n{done.stdout}{done.stderr}")
    return place / "pan"


def _run(program: Path, *options: str, **environment: str) -> str:
    with tempfile.TemporaryDirectory(prefix="interlock-search-") as place:  # spin leaves a trail file where it runs
        command = [str(program), f"-m{DEPTH}", "-n", *options]  # -n: do not list states that were not reached
        known = {**os.environ, **environment}
        done = subprocess.run(
            command, cwd=place, env=known, capture_output=True, text=True, check=False, timeout=SEARCH_SECONDS
        )
    return done.stdout + done.stderr


def check(bounds: Bounds = WHOLE, mutant: str | None = None) -> Searched:
    """Search everything within the bounds, with one rule broken if a mutant is named."""
    program = _compiled(*bounds.switches, level=int(bounds in (WHOLE, WIDE)))
    began = time.perf_counter()
    said = _run(program, "-w22", **({} if mutant is None else {"PLANTED": str(_PLANTED[mutant])}))
    seconds = time.perf_counter() - began
    states, errors = re.search(r"(\d+) states, stored", said), re.search(r"errors: (\d+)", said)
    if states is None or errors is None:
        raise RuntimeError(f"the search did not finish:\n{said[-2000:]}")
    broken = re.search(r"^pan:\d+: (.*)$", said, re.MULTILINE)
    complete = errors[1] == "0" and "max search depth too small" not in said and "Search not completed" not in said
    return Searched(int(states[1]), complete, None if broken is None else broken[1], seconds)


def refute(mutant: str) -> Searched:
    """Search with one rule broken until a check fails; if none does, the checks are too weak."""
    for bounds in SMALL:
        found = check(bounds, mutant)
        if found.broken is not None:
            break
    return found


# The code


_WHOLE: ContextVar[bool] = ContextVar("whole", default=False)  # True while a stop ends a whole session


class Recorder:
    """Writes down what the runtime decides inside its block; for one control, on the seeded loop.

    The recorder wraps the few methods in which the decisive steps happen, and puts them back. A hook that does not fit
    the runtime any more fails at once: then the steps have changed, and the model must be asked whether it allows them.
    """

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self._runs: dict[LiveRun, int] = {}
        self._sessions: dict[str, int] = {}
        self._holds: dict[str, int] = {}
        self._generations: dict[str, int] = {}  # as last told
        self._places: set[Place] = set()  # told as waiting in a hold's line
        self._falling: list[LiveRun] = []
        self._registry: Registry | None = None
        self._closed = False
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> Self:
        for owner, name, hook in (
            (Registry, "register", self._register),
            (Registry, "seat", self._seat),
            (LiveRun, "move", self._move),
            (Fall, "add", self._add),
            (SessionStops, "session", self._whole),
            (SessionStops, "reset", self._whole),
            (RunStops, "_end_all", self._end_all),
            (Collecting, "merge", self._merge),
            (Collecting, "_quiet_elapsed", self._quiet_elapsed),
            (Reporting, "_offer", self._offer),
            (Outlet, "emit", self._effect),
            (Outlet, "delta", self._effect),
            (Outlet, "block", self._effect),
            (Approvals, "open", self._open),
            (Question, "close", self._close),
            (Holds, "_grant", self._grant),
            (Holds, "take", self._take_hold),
            (Holds, "leave", self._leave),
            (Holds, "drained", self._drained),
        ):
            self._put(owner, name, hook)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        while self._undo:
            self._undo.pop()()

    def _put(self, owner: type, name: str, hook: Callable[..., Any]) -> None:
        original = owner.__dict__[name]

        @functools.wraps(original)
        def wrapped(*values: Any, **options: Any) -> Any:
            return hook(original, *values, **options)

        setattr(owner, name, wrapped)
        self._undo.append(lambda: setattr(owner, name, original))

    # Facts

    def _fact(self, kind: str, *values: int) -> Fact:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SeededLoop), "only the seeded loop tells its turns apart"
        return Fact(loop.steps, kind, values)

    def _tell(self, kind: str, *values: int) -> None:
        if self._registry is not None and self._registry.closing and not self._closed:
            self._closed = True
            self.facts.append(self._fact("CLOSE"))
        self.facts.append(self._fact(kind, *values))

    def _session(self, session: Session) -> int:
        return self._sessions.setdefault(session.id, len(self._sessions))

    def _look(self, registry: Registry) -> None:
        """Tell the generations that rose with neither a seat nor a fall; called where a step begins."""
        if self._falling:
            return
        for session in registry.sessions.values():
            generation = registry.generations.get(session.id)
            if session.id in self._sessions and generation != self._generations.get(session.id, 0):
                self._generations[session.id] = generation
                self._tell("RISE", self._session(session), generation)

    # Messages and runs

    def _register(self, original: Callable[..., None], registry: Registry, run: LiveRun) -> None:
        original(registry, run)
        self._registry = registry
        number = self._runs[run] = len(self._runs) + 1
        if run.arrival.kind in REPORTS:
            child = next(number for other, number in self._runs.items() if other.id == run.arrival.key)
            self._tell("REPORT", number, self._session(run.session), child, int(run.arrival.kind is RunKind.ANNOUNCE))
        elif run.ties.parent is None:
            self._tell("ARRIVE", number, self._session(run.session))
        else:
            self._tell("CHILD", number, self._session(run.session), self._runs[run.ties.parent], int(run.ties.detached))

    def _seat(self, original: Callable[..., None], registry: Registry, run: LiveRun) -> None:
        self._look(registry)
        original(registry, run)
        assert run.generation is not None
        self._generations[run.session.id] = run.generation
        self._tell("SEAT", self._runs[run], self._session(run.session), run.generation)

    def _move(self, original: Callable[..., None], run: LiveRun, move: Move) -> None:
        original(run, move)
        if run not in self._runs:
            return
        match move:
            case Move.QUEUE:
                self._tell("QUEUE", self._runs[run], int(run.ties.collection is not None))
            case Move.START:
                self._tell("START", self._runs[run])
            case Move.WITHDRAW | Move.ALIAS:
                assert self._registry is not None
                self._look(self._registry)
                self._tell("LEAVE", self._runs[run])
            case _:  # other hooks tell these, as SEAT and FALL
                pass

    def _add(self, original: Callable[..., None], fall: Fall, run: LiveRun, cause: Cause, **options: Any) -> None:
        if run.fallen or run not in self._runs:
            original(fall, run, cause, **options)
            return
        registry = fall._registry
        self._look(registry)
        self._tell("FALL", self._runs[run])
        place = len(self.facts) - 1
        with self._as_part(run):
            original(fall, run, cause, **options)
        generation, seat = registry.generations.get(run.session.id), run.session.seat
        self._generations[run.session.id] = generation
        by = next((number for other, number in self._runs.items() if other.id == cause.superseded_by), 0)
        told = (self._runs[run], generation, 0 if seat is None else self._runs[seat], by)
        # The fact keeps its place, where the fall began, but tells the numbers from after the fall.
        self.facts[place] = self.facts[place]._replace(values=told)

    def _whole(self, original: Callable[..., Receiving], *values: Any, **options: Any) -> Receiving:
        before = _WHOLE.set(True)
        try:
            answering = original(*values, **options)
        finally:
            _WHOLE.reset(before)

        async def told() -> Receipt:
            before = _WHOLE.set(True)
            try:
                return await answering()
            finally:
                _WHOLE.reset(before)

        return told

    def _end_all(
        self,
        original: Callable[..., Any],
        stopping: SessionStops,
        session: Session,
        targets: list[LiveRun],
        call: StopCall,
        **options: Any,
    ) -> Any:
        """Tell a stop by someone who may end the whole session as one fact: the model must end all of the session."""
        self._look(stopping._registry)
        everyone = [run for run in self._runs if session in (run.session, run.ties.home) and _alive(run)]
        if (
            _WHOLE.get()
            and everyone
            and (options.get("resets") or all(stopping._may(call.by, run) for run in everyone))
        ):
            self._tell("STOP", self._session(session))
        return original(stopping, session, targets, call, **options)

    def _merge(self, original: Callable[..., Any], collecting: Collecting, run: LiveRun, into: LiveRun) -> Any:
        self._tell("JOIN", self._runs[run], self._runs[into])
        return original(collecting, run, into)

    def _quiet_elapsed(self, original: Callable[..., None], collecting: Collecting, run: LiveRun) -> None:
        self._look(collecting._registry)
        place, ripe = len(self.facts), run.ties.collection is not None and run.ties.collection.quiet_over
        original(collecting, run)
        if run.ties.collection is not None and run.ties.collection.quiet_over and not ripe:
            self.facts.insert(place, self._fact("RIPEN", self._runs[run]))

    def _offer(self, original: Callable[..., None], reporting: Reporting, run: LiveRun) -> None:
        self._look(reporting._registry)
        self._tell("DUE", self._runs[run])
        original(reporting, run)

    # Effects and questions

    def _effect(self, original: Callable[..., None], outlet: Outlet, *values: Any) -> None:
        original(outlet, *values)
        run = (self._runs[outlet._run],)
        if self.facts[-1][1:] != ("EFFECT", run):  # many in a row are told as one
            self._tell("EFFECT", *run)

    def _open(
        self, original: Callable[..., Question], approvals: Approvals, run: LiveRun, *values: Any, **options: Any
    ) -> Question:
        question = original(approvals, run, *values, **options)
        self._tell("QUESTION", self._runs[run])
        return question

    def _close(self, original: Callable[..., None], question: Question, *values: Any) -> None:
        original(question, *values)
        # A question that closes because its run falls is part of the fall.
        if question.run not in self._falling:
            self._tell("ANSWER", self._runs[question.run])

    # Holds

    def _hold(self, name: str) -> int:
        return self._holds.setdefault(name, len(self._holds))

    def _grant(self, original: Callable[..., None], holds: Holds, name: str, line: Any) -> None:
        for place in line.waiting:
            if place not in self._places:
                self._places.add(place)
                self._tell("WANT", self._runs[place.run], self._hold(name))
        before = line.holder
        original(holds, name, line)
        if line.holder is not before:
            token = line.holder.granted & 0xFFFF_FFFF  # the lower bits, without the boot
            self._tell("GRANT", self._runs[line.holder.run], self._hold(name), token)

    def _take_hold(self, original: Callable[..., Any], holds: Holds, place: Place) -> Any:
        self._tell("TAKE", self._runs[place.run], self._hold(place.name))
        return original(holds, place)

    def _leave(self, original: Callable[..., None], holds: Holds, place: Place, **options: Any) -> None:
        mine = (place.run.work.holds or {}).get(place.name) is place
        # A place that is left because its run falls or drains is part of the fall or the drain.
        if mine and place.run not in self._falling:
            self._tell("RELEASE" if place.taken else "FORGO", self._runs[place.run], self._hold(place.name))
        original(holds, place, **options)

    def _drained(self, original: Callable[..., None], holds: Holds, run: LiveRun, **options: Any) -> None:
        self._tell("DRAIN", self._runs[run])
        with self._as_part(run):
            original(holds, run, **options)

    @contextmanager
    def _as_part(self, run: LiveRun) -> Iterator[None]:
        self._falling.append(run)
        try:
            yield
        finally:
            self._falling.pop()


def _alive(run: LiveRun) -> bool:
    return not run.fallen and not (run.state.withdrawn or run.state.aliased)


def record(seed: int) -> Trace:
    """Play a seed and return what the runtime decided, up to the broken promise if there is one."""
    with Recorder() as recorder:
        try:
            play(seed, deaths=False)  # the model knows one life of a server only
        except Exception as error:
            return Trace(seed, tuple(recorder.facts), f"{type(error).__name__}: {error}")
    return Trace(seed, tuple(recorder.facts))


def replay(traces: Sequence[Trace], size: Size = SIZE) -> list[Verdict]:
    """Ask the model for a way to tell each trace."""
    facts = [fact for trace in traces for fact in (*trace.facts, Fact(0, "END", ()))]
    for trace in traces:
        _fits(trace, size)
    lines = [f"{len(traces)} {len(facts)}", *map(_line, facts)]
    with tempfile.NamedTemporaryFile("w", prefix="interlock-traces-", suffix=".txt") as file:
        file.write("\n".join(lines))
        file.flush()
        said = _run(_compiled(*size.switches), "-E", "-w20", TRACES=file.name)
    reached = dict(re.findall(r"^trace (\d+) reached (\d+)$", said, re.MULTILINE))
    if len(reached) != len(traces) or "errors: 0" not in said or "max search depth too small" in said:
        raise RuntimeError(f"the traces were not replayed to the end:\n{said[-2000:]}")
    return [Verdict(trace, int(reached[str(number)])) for number, trace in enumerate(traces)]


def _line(fact: Fact) -> str:
    return " ".join(map(str, (fact.step, FACTS[fact.kind], *(*fact.values, 0, 0, 0, 0)[:4])))


def _fits(trace: Trace, size: Size) -> None:
    born = [fact.values for fact in trace.facts if fact.kind in ("ARRIVE", "CHILD", "REPORT")]
    held = [fact.values for fact in trace.facts if fact.kind == "WANT"]
    if (
        max((run for run, *_ in born), default=0) > size.runs
        or max((session for _, session, *_ in born), default=0) >= size.sessions
        or max((hold for _, hold in held), default=0) >= size.holds
    ):
        raise ValueError(f"the trace of seed {trace.seed} is larger than {size}; replay it with a larger one")


# The command line


def _searches(console: Console) -> int:
    surprises = 0
    for bounds in (WHOLE, WIDE):
        found = check(bounds)
        good = found.complete and found.broken is None
        surprises += not good
        told = "nothing broken" if good else f"BROKEN: {found.broken or 'the search is not complete'}"
        console.print(f"model of {bounds}: {found.states} states, {told} ({found.seconds:.1f} s)")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for (name, rule), found in zip(MUTANTS.items(), pool.map(refute, MUTANTS), strict=True):
            surprises += found.broken is None
            told = "refuted" if found.broken is not None else "NOT REFUTED"
            console.print(f"mutant {name:18} {told} after {found.states} states ({found.seconds:.1f} s): {rule}")
    return surprises


def _replays(first: int, seeds: int, console: Console) -> int:
    began = time.perf_counter()
    traces = [record(seed) for seed in range(first, first + seeds)]
    recorded = time.perf_counter()
    verdicts = replay(traces)
    refused = [verdict for verdict in verdicts if not verdict.accepted]
    broken = [trace for trace in traces if trace.broken is not None]
    for verdict in refused:
        console.print(f"REFUSED {verdict}")
    for trace in broken:
        console.print(f"BROKEN seed {trace.seed}: {trace.broken}")
    count = sum(verdict.accepted for verdict in verdicts)
    facts = sum(len(trace.facts) for trace in traces)
    console.print(
        f"traces of seeds {first} to {first + seeds - 1}: {facts} facts, {count} of {seeds} accepted "
        f"({recorded - began:.1f} s to record, {time.perf_counter() - recorded:.1f} s to replay)"
    )
    return seeds - count + len(broken)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="proofs.model", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many schedules to replay")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--only-replay", action="store_true", help="do not search, only replay")
    asked = parser.parse_args(arguments)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if (absent := missing()) is not None:
        console.print(absent)
        return 2
    surprises = 0 if asked.only_replay else _searches(console)
    surprises += _replays(asked.first, asked.seeds, console)
    return min(1, surprises)


if __name__ == "__main__":
    sys.exit(main())
