"""The verdict on one try of a scene, and the sum of all tries. No I/O: frames in, figures out.

1. An event is late if it came after the answer that said the run was over. The terminal event is never late.
2. A run has exactly one terminal event. `chat` and `agent` tell it once each; the larger of the two counts is judged.
3. Words disagree if no kind of end fits all of them and the request that ended the run.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from interlock.client.probe.wire import Told
from interlock.client.probe.words import TERMINAL_PHASES, TERMINAL_STATES, Kind, Kinds, of_chat, of_lifecycle

EVERY: Final[Kinds] = frozenset(Kind)


class Take(msgspec.Struct, frozen=True, kw_only=True):
    """One try of a scene; times in milliseconds from the request, or from the limit that had been set."""

    not_tried: str | None = None  # why the scene did not come to its point
    ack_ms: float | None = None  # None: there was no answer
    silence_ms: float | None = None  # to the last event of the run
    late: dict[str, int] = {}  # events after the ack, by kind
    late_ms: float | None = None  # from the ack to the last of them
    terminals: int | None = None  # None: no run had to end here
    words: dict[str, str] = {}  # by surface
    disagree: bool = False
    trouble: str | None = None
    course: str | None = None  # what a second message did to the first run

    @property
    def leaked(self) -> bool:
        """True if the try found a fault."""
        return bool(self.late or self.disagree or self.trouble) or self.terminals not in (1, None)


class Times(msgspec.Struct, frozen=True):
    """Median and maximum of all tries, in milliseconds."""

    p50: float
    max: float


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """All tries of a scene."""

    scene: str
    does: str
    tried: int
    leaked: int  # tries that leaked
    not_tried: dict[str, int]  # why, and how often
    events_after_ack: dict[str, int]
    last_event_after_ack_ms: float | None
    terminals: list[int]  # the different counts of terminal events per run; [1] is right
    disagreements: int
    words: list[dict[str, str]]  # the different words for an end, by surface
    ack_ms: Times | None
    silence_ms: Times | None
    trouble: dict[str, int]
    courses: dict[str, int]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `interlock probe --json`."""

    url: str
    server: str | None  # the version that the gateway names
    protocol: int
    times: int
    listen_s: float
    leaked: bool
    tried: int
    broken: str | None  # why the campaign ended early
    scenes: list[Row]


# The events of one run


class Course(msgspec.Struct, frozen=True):
    """A run's events in order, and apart from them its terminal events."""

    events: list[tuple[Told, str]]  # each with its kind
    chat_ends: list[Told]
    agent_ends: list[Told]

    @property
    def ends(self) -> list[Told]:
        """Its terminal events on both streams, in order."""
        return sorted((*self.chat_ends, *self.agent_ends), key=lambda told: told.place)


def course_of(told: Sequence[Told]) -> Course:
    """Return the events of one run as a course."""
    course = Course([], [], [])
    for each in told:
        if each.event == "chat":
            state = str(each.payload.get("state"))
            if state in TERMINAL_STATES:
                course.chat_ends.append(each)
            else:
                course.events.append((each, f"chat {state[:40]}"))
            continue
        stream, phase = str(each.payload.get("stream")), str(_data(each).get("phase"))
        if stream == "lifecycle" and phase in TERMINAL_PHASES:
            course.agent_ends.append(each)
        else:
            course.events.append((each, f"agent {stream[:40]}"))
    return course


def _data(told: Told) -> dict[str, Any]:
    data = told.payload.get("data")
    return data if isinstance(data, dict) else {}


def speaks(told: Told) -> bool:
    """Return whether an event is a piece of a reply."""
    if told.event == "chat":
        text = told.payload.get("deltaText") or told.payload.get("message")
        return told.payload.get("state") == "delta" and bool(text)
    return told.event == "agent" and told.payload.get("stream") == "assistant"


def works(told: Told) -> bool:
    """Return whether an event says that a tool or a process of a run began."""
    if told.event != "agent" or told.payload.get("stream") not in ("tool", "command_output"):
        return False
    return _data(told).get("phase") in ("start", "update")


def told_words(course: Course) -> list[tuple[str, str, Kinds]]:
    """Return for each terminal event the surface, its words, and the kinds of end that they fit."""
    found = [("chat", *of_chat(each.payload)) for each in course.chat_ends]
    return [*found, *(("agent", *of_lifecycle(_data(each))) for each in course.agent_ends)]


def agreement(words: Iterable[tuple[str, str, Kinds]]) -> tuple[dict[str, str], bool]:
    """Return the words by surface, and whether one kind of end fits all of them. A surface without words agrees."""
    shown: dict[str, list[str]] = {}
    fits = EVERY
    for surface, text, kinds in words:
        if text:
            shown.setdefault(surface, []).append(text)
        fits &= kinds or EVERY
    return {surface: ", then ".join(texts) for surface, texts in shown.items()}, bool(fits)


def late_of(course: Course, place: int, at: float) -> tuple[dict[str, int], float | None]:
    """Return how many events of each kind came behind a frame, and how many milliseconds later the last one came."""
    late = [(told, name) for told, name in course.events if told.place > place]
    counts = Counter(name for _, name in late)
    return dict(sorted(counts.items())), None if not late else _ms(late[-1][0].at - at)


def silence_of(course: Course, at: float) -> float:
    """Return how long after a moment the last event of a run came, in milliseconds; 0 if all came before."""
    events = [*course.ends, *(told for told, _ in course.events)]
    return _ms(max((0.0, *(told.at - at for told in events))))


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


# The sum of all tries


def row_of(scene: str, does: str, takes: Sequence[Take]) -> Row:
    """Sum up the tries of a scene."""
    tried = [take for take in takes if take.not_tried is None]
    late: Counter[str] = Counter()
    for take in tried:
        late.update(take.late)
    words: list[dict[str, str]] = []
    for take in sorted(tried, key=lambda take: not take.disagree):
        if take.words and take.words not in words:
            words.append(take.words)
    return Row(
        scene=scene,
        does=does,
        tried=len(tried),
        leaked=sum(take.leaked for take in tried),
        not_tried=dict(Counter(take.not_tried for take in takes if take.not_tried is not None)),
        events_after_ack=dict(sorted(late.items())),
        last_event_after_ack_ms=max((take.late_ms for take in tried if take.late_ms is not None), default=None),
        terminals=sorted({take.terminals for take in tried if take.terminals is not None}),
        disagreements=sum(take.disagree for take in tried),
        words=words,
        ack_ms=_times(take.ack_ms for take in tried),
        silence_ms=_times(take.silence_ms for take in tried),
        trouble=dict(Counter(take.trouble for take in tried if take.trouble is not None)),
        courses=dict(Counter(take.course for take in tried if take.course is not None)),
    )


def _times(figures: Iterable[float | None]) -> Times | None:
    known = sorted(figure for figure in figures if figure is not None)
    return Times(known[(len(known) - 1) // 2], known[-1]) if known else None
