"""A run's timeline as a picture: one self-contained SVG with a light and a dark look.

1. The same moments give the same picture, to the byte.
2. No text of a run can become markup: text is cut, made printable and escaped, in this order.
3. A picture is bounded; it says how many bars were left out.
4. If a run ended early and its fall is short beside its life, the fall is drawn a second time, enlarged.
5. The picture claims no more than the log holds. The log says when a text was whole, not when it began; it began after
   whatever closed the text before it. So a text is a thin bar that ends in a mark. Refused effects came at an unknown
   instant between fall and drain, and are drawn over all of that time.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from interlock.core.names import EARLY
from interlock.core.projection import TABLE
from interlock.core.timeline import Moment

ROWS, BARS = 200, 2_000
LEFT, PLOT, GAP, WIDTH, TOP, ROW = 236, 572, 24, 1032, 132, 20  # pixels
ENLARGED = 0.15  # a fall shorter than this part of the run's life is drawn a second time
STEPS = [n * 10.0**e for e in range(-4, 1) for n in (1, 2, 5)] + [10.0, 30.0, 60.0, 120.0, 300.0, 600.0]
STEPS += [1_800.0, 3_600.0, 7_200.0, 21_600.0, 43_200.0, 86_400.0, 604_800.0]  # between two marks of an axis
BEGINS = {"phase": "", "tool": "pending", "process": "running", "question": "open", "child": "begun"}
LANES = ("run", "phase", "tool", "process", "output", "question", "child", "joined", "refused")
# Moments that close an open text: the next text begins after them.
CLOSES = {"started", "joined", "output said", "tool pending", "process running", "question open"}
MARKS = (("fell", "fenced", "1 0"), ("ended", "ended", "5 3"), ("drained", "drained", "1 3"))
KINDS = {  # by class of bar: words in the legend, light colour, dark colour, and the states drawn so
    "phase": ("phase", "#8b9dc3", "#6f83ad", ("left",)),
    "live": ("running", "#3b82f6", "#5b9bff", ("", "running", "pending", "open", "begun", "ran")),
    "good": ("done", "#2f9e58", "#46b872", ("finished", "exited", "answered", "completed", "said")),
    "cut": ("cut short", "#e08a1e", "#f0a545", ("interrupted", "abandoned", "cut", *EARLY)),
    "bad": ("failed", "#d1373f", "#f0666c", ("failed", "expired", "timed_out", "lost")),
    "gone": ("ended with the run", "#8757c9", "#a981e8", ("ended", "drained")),
    "none": ("waited, never ran", "#b3b8c0", "#6b727d", ("skipped", "void", "waited", "joined")),
    "hollow": ("refused", "none;stroke:#d1373f", "none;stroke:#f0666c", ("refused",)),
}
KIND = {state: kind for kind, (_, _, _, states) in KINDS.items() for state in states}
LOOK = """text{{font:12px system-ui,sans-serif;fill:{0}}}.dim{{fill:{1}}}.title{{font-size:16px;font-weight:600}}
.end{{text-anchor:end}}.thin{{opacity:.45}}.tick{{text-anchor:middle;fill:{1}}}.paper{{fill:{2}}}
.panel{{fill:{3}}}.grid{{stroke:{4}}}.line{{stroke:{0}}}"""  # ink, dim ink, paper, panel, grid
DAY = LOOK.format("#1f2328", "#656d76", "#ffffff", "#f6f8fa", "#dde1e6")
NIGHT = LOOK.format("#e6edf3", "#9198a1", "#0d1117", "#161b22", "#2d333b")
STYLE = DAY + "".join(f".{kind}{{fill:{day}}}" for kind, (_, day, _, _) in KINDS.items())
STYLE += f"@media(prefers-color-scheme:dark){{{NIGHT}"
STYLE += "".join(f".{kind}{{fill:{night}}}" for kind, (_, _, night, _) in KINDS.items()) + "}"


@dataclass(slots=True, eq=False)
class Bar:
    """One thing of a run that took time: a phase, a tool call, a process, a question."""

    lane: str
    name: str
    start: float
    end: float
    state: str
    detail: str = ""

    @property
    def kind(self) -> str:
        """The class in KINDS by which the bar is drawn."""
        return "bad" if self.state == "exited" and self.detail not in ("", "0") else KIND.get(self.state, "none")


class Panel(NamedTuple):
    """A span of time and its place in the picture; its axis counts from `zero`."""

    x: float
    width: float
    start: float
    end: float
    zero: float

    def at(self, time: float) -> float:
        """Return the x of an instant, clamped to the panel."""
        return self.x + self.width * min(1.0, max(0.0, (time - self.start) / (self.end - self.start)))


def draw(moments: Sequence[Moment], *, title: str) -> str:
    """Return one run's timeline as an SVG document."""
    moments = [moment for moment in moments if abs(moment.at) < 1e12]  # drops NaN too
    when = {moment.what: moment for moment in reversed(moments)}
    bars = _bars(moments, when) if moments else []
    rows = _rows(bars)
    bottom, left_out = TOP + ROW * len(rows), len(bars) - sum(map(len, rows))
    body = [_text(24, 30, title, 100, "title"), _text(24, 52, _summary(moments, when), 160, "dim")]
    for n, row in enumerate(rows):
        body.append(_text(88, TOP + ROW * n + 14, row[0].name, 22))
        if n == 0 or rows[n - 1][0].lane != row[0].lane:
            body.append(_text(24, TOP + ROW * n + 14, row[0].lane, 12, "dim"))
    panels = _panels(moments, when) if moments else []
    # Panels are drawn after the names, and so over them: a name of wide letters may reach into a panel.
    body += [part for panel in panels for part in _paper(panel, bottom)]
    body += [part for n, row in enumerate(rows) for part in _row(row, TOP + ROW * n, panels)]
    for panel in panels:
        body += _marks(panel, when, bottom, whole=panel is panels[0], alone=len(panels) == 1)
    used, x = {bar.kind for row in rows for bar in row}, 24
    for kind in (kind for kind in KINDS if kind in used):
        body.append(f'<rect class="{kind}" x="{x}" y="{bottom + 40}" width="12" height="12" rx="2"/>')
        body.append(_text(x + 18, bottom + 50, KINDS[kind][0], 40, "dim"))
        x += 44 + 7 * len(KINDS[kind][0])
    body.append(_text(24, bottom + 76, f"and {left_out:,} more, not drawn", 80, "dim") if left_out else "")
    size = f'width="{WIDTH}" height="{bottom + 92}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 92}" {size} role="img">'
    head += f'<title>{_clean(title, 100)}</title><style>{STYLE}</style><rect class="paper" {size}/>'
    return "\n".join([head, *filter(None, body), "</svg>\n"])


# What there is to draw


def _bars(moments: Sequence[Moment], when: Mapping[str, Moment]) -> list[Bar]:
    """Return a bar for everything that took time, with its start, its end and its state."""
    first, last = _ends(moments)
    fell = when["fell"].at if "fell" in when else last
    started = when["started"].at if "started" in when else fell
    bars = [Bar("run", "waited", first, started, "waited"), Bar("run", "ran", started, fell, "ran")]
    bars += [Bar("run", "drained", fell, when["drained"].at, "drained")] if "drained" in when else []
    going: list[Bar] = []
    since = first
    for moment in moments:
        match moment.what:
            case "output":
                bars.append(Bar("output", "text", min(since, moment.at), moment.at, moment.state, moment.detail))
            case "refused":
                bars.append(Bar("refused", moment.name, fell, last, "refused", f"×{moment.count:,}"))
            case "joined":
                bars.append(Bar("joined", moment.name, moment.at, moment.at, "joined"))
            case lane if lane in BEGINS:
                _move(moment, bars, going)
        since = moment.at if f"{moment.what} {moment.state}".strip() in CLOSES else since
    # No moment closed these bars. A phase ends with the fall; a process, a tool or a question is gone by the drain.
    for bar in going:
        bar.end = fell if bar.lane == "phase" else last
        cut = "ended" if bar.lane == "process" else "interrupted" if when.get("fell", bar).state in EARLY else "left"
        bar.state = cut if "fell" in when else bar.state or "running"
    return bars


def _ends(moments: Sequence[Moment]) -> tuple[float, float]:
    first = min(moment.at for moment in moments)
    return first, max(first + 0.001, *(moment.at for moment in moments))


def _move(moment: Moment, bars: list[Bar], going: list[Bar]) -> None:
    """Add a bar for a moment that begins something, or change or end the open bar that the moment is about."""
    bar = None if moment.state == BEGINS[moment.what] else _begun(going, moment)
    if bar is None:
        bar = Bar(moment.what, moment.name, moment.at, moment.at, "")
        bars.append(bar)
        going.append(bar)
    bar.state, bar.detail, bar.end = moment.state, moment.detail, moment.at
    if bar.kind != "live":
        going.remove(bar)


def _begun(going: list[Bar], moment: Moment) -> Bar | None:
    """Return the open bar that a moment is about.

    Concurrent calls of one tool have the same name, so the state that the moment must follow chooses among them.
    """
    found = [bar for bar in going if bar.lane == moment.what and (bar.name == moment.name or bar.lane == "phase")]
    wanted = "pending" if moment.state in ("running", "skipped") else "running"
    return next((bar for bar in found if bar.state == wanted), found[-1] if found else None)


def _rows(bars: list[Bar]) -> list[list[Bar]]:
    """Return at most BARS bars in at most ROWS rows; bars of one name share a row unless they overlap."""
    rows: list[list[Bar]] = []
    named: dict[tuple[str, str], list[list[Bar]]] = {}
    for bar in sorted(bars, key=lambda bar: LANES.index(bar.lane))[:BARS]:
        same = named.setdefault((bar.lane, bar.name), [])
        row = next((row for row in same if row[-1].end <= bar.start), None)
        if row is not None:
            row.append(bar)
        elif len(rows) < ROWS:
            rows.append([bar])
            same.append(rows[-1])
    return rows


def _panels(moments: Sequence[Moment], when: Mapping[str, Moment]) -> list[Panel]:
    """Return a panel of the whole life, and one of the fall if that would be too small to see."""
    first, last = _ends(moments)
    fell = when.get("fell")
    if fell is None or fell.state not in EARLY or last - fell.at > ENLARGED * (last - first):
        return [Panel(LEFT, PLOT, first, last, first)]
    half, took = (PLOT - GAP) / 2, max(last - fell.at, 0.001)
    fall = Panel(LEFT + half + GAP, half, fell.at - took / 4, fell.at + took * 1.1, fell.at)
    return [Panel(LEFT, half, first, last, first), fall]


def _summary(moments: Sequence[Moment], when: Mapping[str, Moment]) -> str:
    if "fell" not in when:
        return f"not over after {_time(moments[-1].at - moments[0].at)}" if moments else "nothing has happened yet"
    fell, drained = when["fell"], when.get("drained")
    refused = sum(moment.count for moment in moments if moment.what == "refused")
    words = next((row.client.partition("{")[0] for ending, row in TABLE.items() if ending == fell.state), fell.state)
    said = f"{words}{f' by {fell.name}' if fell.name else ''} after {_time(fell.at - moments[0].at)}"
    said += f" · drained {_time(drained.at - fell.at)} later ({drained.state})" if drained else " · not drained yet"
    return said + (f" · {refused:,} refused" if refused else "")


# How it is drawn


def _paper(panel: Panel, bottom: int) -> Iterator[str]:
    """Draw a panel's background and its axis."""
    yield f'<rect class="panel" x="{panel.x:.1f}" y="{TOP}" width="{panel.width:.1f}" height="{bottom - TOP}"/>'
    span, before = panel.end - panel.start, panel.start - panel.zero
    step = next((step for step in STEPS if span / step <= panel.width / 60), span)
    for n in range(math.ceil(before / step), math.floor((before + span) / step) + 1):
        x = panel.at(panel.zero + n * step)
        yield f'<path class="grid" d="M{x:.1f} {TOP}V{bottom + 4}"/>'
        yield _text(x, bottom + 18, _time(n * step), 20, "tick")


def _row(row: list[Bar], y: int, panels: Sequence[Panel]) -> Iterator[str]:
    """Draw the bars of one row, and behind them how long they took and how they ended."""
    output = row[0].lane == "output"
    for bar in row:
        told = f"{_clean(bar.name, 200)}: {_clean(f'{bar.state} {bar.detail}'.strip(), 200)}"
        told += f"{', within' if output else ','} {_time(bar.end - bar.start)}"
        for panel in panels:
            if bar.start <= panel.end and bar.end >= panel.start:
                x = min(panel.at(bar.start), panel.x + panel.width - 3)
                width = max(3.0, panel.at(bar.end) - x)
                if output:
                    yield f'<rect class="{bar.kind} thin" x="{x:.1f}" y="{y + 8}" width="{width:.1f}" height="4"/>'
                    x, width = x + width - 3, 3.0
                place = f'x="{x:.1f}" y="{y + 4}" width="{width:.1f}" height="12"'
                yield f'<rect class="{bar.kind} bar" {place} rx="2"><title>{told}</title></rect>'
    short = output and len(row) > 1  # the sizes of several texts would not fit
    states = Counter(bar.state if short else f"{bar.state} {bar.detail}"[:40].strip() for bar in row)
    words = ", ".join(f"{n} × {state}" if n > 1 else state for state, n in states.items()).replace("_", " ")
    took = _time(sum(max(0.0, bar.end - bar.start) for bar in row))
    said = took if row[0].lane == "run" else words if row[0].lane not in BEGINS else f"{took} · {words}"
    yield _text(LEFT + PLOT + 12, y + 14, said, 34, "dim")


def _marks(panel: Panel, when: Mapping[str, Moment], bottom: int, *, whole: bool, alone: bool) -> Iterator[str]:
    """Draw lines where the run fell, ended and drained; the whole life beside an enlarged fall shows only the first."""
    if not whole:
        yield _text(panel.x, 78, "the fall, enlarged", 40, "dim")
    for n, (what, name, dashes) in enumerate(MARKS):
        if {what, "fell"} <= when.keys() and (n == 0 or alone or not whole):
            x, y = panel.at(when[what].at), 94 + 14 * n
            words = f"{name} +{_time(when[what].at - when['fell'].at)}" if n else name
            yield f'<path class="line" stroke-dasharray="{dashes}" d="M{x:.1f} {y - 10}V{bottom}"/>'
            yield _text(x - 5, y, words, 40, "end") if whole and not alone else _text(x + 5, y, words, 30)


def _text(x: float, y: float, text: str, most: int, kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y}">{_clean(text, most)}</text>'


def _clean(text: str, most: int) -> str:
    """Return a text fit for the picture: cut, printable, escaped."""
    text = text if len(text) <= most else text[: most - 1] + "…"
    return escape("".join(letter if letter.isprintable() else "\ufffd" for letter in text))


def _time(seconds: float) -> str:
    """Return a duration in words: 0.4 ms, 41 ms, 1.5 s, 2.5 min, 3 h."""
    least = ((7_200, 3_600, "h"), (120, 60, "min"), (1, 1, "s"), (0, 0.001, "ms"))
    size, unit = next((size, unit) for most, size, unit in least if abs(seconds) >= most)
    return f"{round(seconds / size, 1 if abs(seconds / size) < 100 else None):,} {unit}".replace(".0 ", " ")
