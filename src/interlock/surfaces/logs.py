"""Logging on the error output: JSON lines, or plain lines at a terminal.

1. A thread renders and writes the lines, so that neither costs a step of the loop, and a reader who does not read
   delays no stop. The thread wakes PAUSE_SECONDS after a line, and at once for a warning or worse.
2. At most LINES wait for the thread. Further lines are left out, and a line says how many.
3. A line is dated, and its text is made, when it is logged: what it tells of may change before the thread renders it.
"""

import json
import logging
import re
import sys
import threading
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

LINES: Final = 10_000  # waiting for the thread
PAUSE_SECONDS: Final = 0.05  # for more lines, before the thread writes
FINISH_SECONDS: Final = 1.0
USUAL: Final = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}  # of every record


class _Thread(logging.Handler):
    """Hands records to a thread, which hands them to another handler."""

    def __init__(self, out: logging.Handler) -> None:
        super().__init__()
        self._out = out
        self._records: deque[logging.LogRecord] = deque()
        self._left_out = 0
        self._some, self._urgent = threading.Event(), threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._write, name="interlock logs", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record, or count it as left out if there are too many."""
        if len(self._records) >= LINES:
            self._left_out += 1
            return
        try:
            if record.args:
                record.msg, record.args = record.getMessage(), None
        except Exception:
            self.handleError(record)
            return
        self._records.append(record)
        if not self._some.is_set():
            self._some.set()
        if record.levelno >= logging.WARNING:
            self._urgent.set()

    def _write(self) -> None:
        told = 0
        while self._records or not self._closing:
            self._some.wait()
            self._urgent.wait(PAUSE_SECONDS)
            # Clear before reading the queue: a record that is queued in between sets the event again.
            self._some.clear()
            self._urgent.clear()
            while self._records:
                self._out.handle(self._records.popleft())
            if (left_out := self._left_out - told) > 0:
                told += left_out
                facts = {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING", "count": left_out}
                self._out.handle(logging.makeLogRecord({"msg": "lines left out", **facts}))

    def finish(self) -> None:
        """Wait until all lines are written, at most FINISH_SECONDS."""
        self._closing = True
        self._some.set()
        self._urgent.set()
        self._thread.join(FINISH_SECONDS)


class _Lines(logging.Formatter):
    """Renders a record: as JSON, or as a plain line in which nothing can control the terminal."""

    def __init__(self, *, plain: bool) -> None:
        super().__init__()
        self._plain = plain

    def format(self, record: logging.LogRecord) -> str:
        """Return a record's line, with everything that its `extra` holds."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        event, level, logger = record.getMessage(), record.levelname.lower(), record.name
        extra = {name: value for name, value in vars(record).items() if name not in USUAL}
        trace = {"exception": self.formatException(record.exc_info)} if record.exc_info else {}
        trace |= {"stack_info": record.stack_info} if record.stack_info else {}
        if not self._plain:
            facts = {"event": event, "level": level, "logger": logger, **extra, "timestamp": at, **trace}
            return json.dumps(facts, default=repr)
        said = f"{event} [{logger}]" + "".join(f" {name}={value!r}" for name, value in extra.items())
        lines = (said, *(line for text in trace.values() for line in text.splitlines()))
        return f"{at} [{level:<8}] " + "\n".join(re.sub(r"[^\x20-\x7e]", _escaped, line) for line in lines)


def _escaped(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else repr(found[0])[1:-1]


def set_up_logging(level: str) -> Callable[[], None]:
    """Set up logging for our code and the libraries; return a function that waits for the last lines to be written."""
    out = logging.StreamHandler()
    out.setFormatter(_Lines(plain=sys.stderr.isatty()))
    # No line tells where in the code it was logged, and a record that need not know costs half.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    thread = _Thread(out)
    logging.basicConfig(level=level.upper(), handlers=[thread], force=True)
    return thread.finish
