"""A probe's findings for people: progress, then a table and a line for each fault."""

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from interlock.cli.printing import draw, draw_table, line_of, milliseconds, note, print_line
from interlock.client.probe.scenes import SCENES, TOOK_OVER, WENT_ON
from interlock.client.probe.verdict import Report, Row, Take, Times

COLUMNS: Final = 110  # width if the output is no terminal
WIDE: Final = 96  # width from which columns have lines between them
FIGURES: Final = ("tries", "events\nafter ack", "ends\ntold", "words", "ack, ms\np50/max", "silence, ms\np50/max")
LEGEND: Final = """\
events after ack: what was still sent of a run after the answer that ended it
  (its terminal event apart); ends told: terminal events of a run, good is 1
words: whether chat, agent, agent.wait and chat.abort can all be true
ack: from the request to its answer (of a limit: from the limit to the end that
  was told); silence: to the last event"""


@contextmanager
def progress(scenes: list[str], times: int) -> Iterator[Callable[[str, Take], None]]:
    """Show progress: a bar on a terminal, a line for each scene elsewhere."""
    if not sys.stderr.isatty():
        yield _Lines(times)
        return
    from rich.console import Console  # noqa: PLC0415 - slow to import
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(SCENES[scenes[0]].does, total=len(scenes) * times)
        done = 0

        def heard(_: str, __: Take) -> None:
            nonlocal done
            done += 1
            bar.update(task, completed=done, description=SCENES[scenes[min(done // times, len(scenes) - 1)]].does)

        yield heard


class _Lines:
    def __init__(self, times: int) -> None:
        self._times = times
        self._takes: list[Take] = []

    def __call__(self, scene: str, take: Take) -> None:
        self._takes.append(take)
        if len(self._takes) == self._times:
            tried = [each for each in self._takes if each.not_tried is None]
            leaked = sum(each.leaked for each in tried)
            words = "nothing leaked" if tried else "not tried"
            note(f"{scene}: " + (f"leaked in {leaked} of {len(tried)} tries" if leaked else words))
            self._takes = []


def tell(report: Report) -> None:
    """Print a report."""
    _draw(report)
    for row in report.scenes:
        for line in findings(row):
            print_line(f"✗ {line_of(f'{row.does}: {line}')}")
    for row in report.scenes:
        for line in _remarks(row):
            print_line(f"– {line_of(f'{row.does}: {line}')}")
    draw(LEGEND, width=_width(), style="dim", soft_wrap=True)
    print_line(summary(report))


def _width() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else COLUMNS


def _draw(report: Report) -> None:
    from rich.box import HEAVY_HEAD  # noqa: PLC0415 - slow to import
    from rich.text import Text  # noqa: PLC0415

    rows = []
    for row in report.scenes:
        mark, colour = ("✗", "red") if row.leaked else ("✓", "green") if row.tried else ("–", "yellow")
        figures = (Text(cell, "bold red" if row.leaked else "") for cell in (str(row.tried), *_cells(row)))
        rows.append((Text.assemble((f"{mark} ", colour), row.does), *figures))
    server = f" (server {line_of(report.server)})" if report.server else ""
    look = {"box": None, "padding": (0, 1, 0, 0)} if _width() < WIDE else {"box": HEAVY_HEAD, "padding": (0, 1)}
    look |= {"title": Text(f"Ending runs at {line_of(report.url)}{server}"), "title_style": "bold"}
    draw_table(("what was done", *FIGURES), rows, right=len(FIGURES), width=_width(), **look)


def _cells(row: Row) -> tuple[str, ...]:
    if not row.tried:
        return "not tried", "", "", "", ""
    if row.courses == {WENT_ON: row.tried} and not row.terminals:
        return "went on", "", "", _times(row.ack_ms), ""
    words = "agree" if not row.disagreements else f"{row.disagreements} differ"
    endings = " or ".join(map(str, row.terminals))
    return str(_late(row)), endings, words, _times(row.ack_ms), _times(row.silence_ms)


def _times(times: Times | None) -> str:
    return "none" if times is None else f"{milliseconds(times.p50)}/{milliseconds(times.max)}"


def _late(row: Row) -> int:
    return sum(row.events_after_ack.values())


def findings(row: Row) -> list[str]:
    """Return each fault of a scene in words."""
    found = [f"{why} ({_of(count, row)})" for why, count in row.trouble.items()]
    if late := _late(row):
        kinds = ", ".join(f"{count} {name}" for name, count in row.events_after_ack.items())
        last = milliseconds(row.last_event_after_ack_ms or 0.0)
        found.append(f"{late} event{'s' * (late > 1)} after the ack ({kinds}), the last {last} ms after it")
    for count in row.terminals:
        if count != 1:
            found.append("no end was told" if not count else f"one run was told to have ended {count} times")
    if row.disagreements:
        said = "; ".join(f"{surface}: {text}" for surface, text in row.words[0].items())
        found.append(f"words disagree ({_of(row.disagreements, row)}): {said}")
    return found


def _remarks(row: Row) -> list[str]:
    said = [f"not tried {count}x: {why}" for why, count in row.not_tried.items()]
    if WENT_ON in row.courses and not row.leaked:
        count = _of(row.courses[WENT_ON], row)
        said.append(f"the first run went on ({count}): here messages queue or steer by default")
    elif TOOK_OVER in row.courses and row.scene == "takeover":
        said.append("by default a message takes over here: it ends the run before it")
    return said


def _of(count: int, row: Row) -> str:
    return f"{count} of {row.tried}"


def summary(report: Report) -> str:
    """Return the last line of a report."""
    tried = [row for row in report.scenes if row.tried]
    leaky = [row for row in tried if row.leaked]
    tries, scenes = f"tr{'y' if report.tried == 1 else 'ies'}", f"scene{'s' * (len(tried) != 1)}"
    scope = f"{report.tried} {tries} of {len(tried)} {scenes}"
    missed = len(report.scenes) - len(tried)
    rest = f"; {missed} not tried" if missed else ""
    if leaky:
        return f"Leaked in {len(leaky)} of {len(tried)} {scenes} ({scope}{rest})."
    return f"Nothing leaked ({scope}{rest})." if tried else "Nothing could be tried."
