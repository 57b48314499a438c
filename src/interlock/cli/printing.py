"""How any command prints a line, a table or JSON to the output, and notes and errors to the error output.

1. No text that somebody else wrote can control the terminal: control characters are replaced.
2. A terminal gets tables drawn by rich, a pipe plain columns.
3. Every line is flushed here, where callers handle a reader that is gone (`| head`), not when Python exits.
"""

import contextlib
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from interlock.core.receipt import Receipt

if TYPE_CHECKING:
    from rich.text import Text

TROUBLE = 125  # the command itself failed: as env, nice and timeout exit
CELL_CHARACTERS = 60  # of a text in a table
LINE_CHARACTERS = 200  # of a text that has a line to itself
ERROR_CHARACTERS = 1_000


# Texts


def shown(text: str) -> str:
    """Return a text without control characters other than newlines and tabs."""
    return re.sub(r"[^\x20-\x7e\n\t]", lambda found: found[0] if found[0].isprintable() else "\ufffd", text)


def line_of(text: str, characters: int = LINE_CHARACTERS) -> str:
    """Return a text as one line without control characters, at most so many characters."""
    line = shown(" ".join(text[: 4 * characters].split()))
    return line if len(line) <= characters else line[: characters - 1] + "…"


def count(number: int, noun: str) -> str:
    """Return a number of things: 1 process, 2 processes."""
    return f"{number} {noun}{'' if number == 1 else 'es' if noun.endswith(('s', 'sh')) else 's'}"


def milliseconds(figure: float) -> str:
    """Return milliseconds as a person reads them: 2.4, 31, 1,710."""
    return f"{figure:.1f}" if figure < 10 else f"{figure:,.0f}"


# Lines


def write(text: str) -> None:
    """Print a part of a line to the output."""
    sys.stdout.write(shown(text))
    sys.stdout.flush()


def print_line(line: str) -> None:
    """Print a line to the output."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def print_json(document: object, *, indent: int = 2) -> None:
    """Print a document to the output as JSON, in UTF-8 whatever the terminal's encoding is."""
    data = msgspec.json.encode(document)
    sys.stdout.buffer.write((msgspec.json.format(data, indent=indent) if indent else data) + b"\n")
    sys.stdout.flush()


def note(text: str, mark: str = "· ") -> None:
    """Print a line to the error output."""
    sys.stderr.write(f"{mark}{line_of(text)}\n")
    sys.stderr.flush()


def fail(error: object, status: int = TROUBLE) -> int:
    """Print what went wrong, in one line of the error output, and return the exit code."""
    words = str(getattr(error, "strerror", None) or error)  # of an error of the system: without its number
    with contextlib.suppress(OSError, ValueError, AttributeError):  # the error output may be closed
        sys.stderr.write(f"interlock: {line_of(words, ERROR_CHARACTERS)}\n")
        sys.stderr.flush()
    return status


# Tables


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str = "") -> None:
    """Print rows of texts, each as one line: drawn in a terminal, in plain columns elsewhere."""
    lines = [tuple(_cell(text) for text in row) for row in rows]
    if not lines:
        print_line(empty)
    elif sys.stdout.isatty():
        draw_table(heads, lines, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    else:
        widths = [max(map(len, column)) for column in zip(heads, *lines, strict=True)]
        for row in (heads, *lines):
            print_line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _cell(text: str) -> str:
    indent = len(text) - len(text.lstrip(" "))
    return " " * indent + line_of(text, CELL_CHARACTERS)


def draw_table(
    heads: Sequence[str],
    rows: Sequence[Sequence["str | Text"]],
    *,
    width: int | None = None,
    right: int = 0,
    **look: Any,
) -> None:
    """Draw a table, also where the output is no terminal; the last `right` columns hold figures."""
    from rich.table import Table  # noqa: PLC0415 - slow to import, and a pipe does not need it
    from rich.text import Text  # noqa: PLC0415

    table = Table(title_justify="left", **look)
    for left, head in zip(range(len(heads), 0, -1), heads, strict=True):
        table.add_column(head, overflow="fold", justify="right" if left <= right else "left")
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    draw(table, width=width)


def draw(drawn: object, *, width: int | None = None, **how: Any) -> None:
    """Draw with rich and print it ourselves: rich exits with 1 if the reader is gone, which would mean a leak."""
    from rich.console import Console  # noqa: PLC0415

    console = Console(highlight=False, markup=False, width=width)
    with console.capture() as held:
        console.print(drawn, **how)
    print_line(held.get().removesuffix("\n"))


# Receipts


def facts_of(receipt: Receipt) -> tuple[str, str, str, str]:
    """Return in words what was ended, refused, kept with the host, and not seen gone; "" where there is nothing."""
    processes, refused = receipt.processes.ended, ", ".join(f"{n} {kind}" for kind, n in receipt.refused.items())
    return (
        f"{count(processes, 'process')} ended, grade {receipt.grade}" if processes else "",
        f"refused {refused}" if refused else "",
        f"kept with its host: {', '.join(receipt.kept)}" if receipt.kept else "",
        f"not seen gone: {', '.join(receipt.unconfirmed)}" if receipt.unconfirmed else "",
    )


def proof(receipt: Receipt) -> str:
    """Return a receipt in one line."""
    already = f" it had ended already, {receipt.already}" if receipt.already else ""
    if receipt.id is None:
        return f"nothing to stop{already and ':'}{already}"
    runs, took = ", ".join(run.id for run in receipt.runs), receipt.fence_to_drained_ms
    head = f"{receipt.id}: {runs} {receipt.cause}" + (f" by {receipt.by}" if receipt.by else "")
    ended, refused, kept, left = facts_of(receipt)
    killed = "its host killed" if receipt.host == "killed" else ""
    drained = "not drained yet" if took is None else f"drained after {took / 1000:.3f} s"
    said = (head, already.strip(), ended, refused, killed, kept, drained, left)
    return line_of("; ".join(filter(None, said)))
