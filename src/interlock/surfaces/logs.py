"""Logging on the error output: JSON lines, or plain lines at a terminal.

1. A thread renders and writes the lines, so that neither costs a step of the loop, and a reader who does not read
   delays no stop. The thread wakes PAUSE_SECONDS after a line, and at once for a warning or worse.
2. At most LINES wait for the thread. Further lines are left out, and a line says how many.
3. A line is dated, and its text is made, when it is logged: what it tells of may change before the thread renders it.
"""

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import structlog
from structlog.processors import JSONRenderer, TimeStamper, format_exc_info

LINES: Final = 10_000  # waiting for the thread
PAUSE_SECONDS: Final = 0.05  # for more lines, before the thread writes
FINISH_SECONDS: Final = 1.0


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


def _add_time(_: object, __: str, event: structlog.types.EventDict) -> structlog.types.EventDict:
    """Add the time at which a record was made."""
    made = datetime.fromtimestamp(event["_record"].created, UTC)
    event["timestamp"] = made.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return event


def set_up_logging(level: str) -> Callable[[], None]:
    """Set up logging for our code and the libraries; return a function that waits for the last lines to be written."""
    add_names = (structlog.stdlib.add_log_level, structlog.stdlib.add_logger_name)
    formatter = structlog.stdlib.ProcessorFormatter
    # The agent's own code may log by structlog; the rest of this process logs by the standard library.
    structlog.configure(
        processors=[*add_names, TimeStamper(fmt="iso", utc=True), format_exc_info, formatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    renderer: structlog.types.Processor = JSONRenderer()
    if sys.stderr.isatty():
        # Strings are written as their repr, so that escape sequences in a name cannot control the terminal.
        renderer = structlog.dev.ConsoleRenderer(
            repr_native_str=True, exception_formatter=structlog.dev.plain_traceback, pad_event_to=0
        )
    out = logging.StreamHandler()
    last = [formatter.remove_processors_meta, renderer]
    first: list[structlog.types.Processor] = [*add_names, structlog.stdlib.ExtraAdder(), _add_time, format_exc_info]
    out.setFormatter(formatter(processors=last, foreign_pre_chain=first))
    thread = _Thread(out)
    logging.basicConfig(level=level.upper(), handlers=[thread], force=True)
    return thread.finish
