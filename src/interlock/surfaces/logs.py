"""Logging on the error output: JSON lines, or plain lines at a terminal.

A thread writes the lines, so that a reader who does not read delays no stop. Lines beyond LINES are left out and
counted.
"""

import logging
import logging.handlers
import queue
import sys
import threading
from collections.abc import Callable

import structlog

LINES = 10_000  # waiting for the thread
FINISH_SECONDS = 1.0


class _Unblocking(logging.handlers.QueueHandler):
    """Hands lines to the writing thread without waiting."""

    def __init__(self, lines: "queue.Queue[logging.LogRecord]") -> None:
        super().__init__(lines)
        self._lines = lines
        self._left_out = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        """Queue a line, or count it as left out if the queue is full."""
        if self._left_out and not self._lines.full():
            record.msg = f'{record.msg}\n{{"event": "lines left out", "count": {self._left_out}}}'
            self._left_out = 0
        try:
            self._lines.put_nowait(record)
        except queue.Full:
            self._left_out += 1


def set_up_logging(level: str) -> Callable[[], None]:
    """Set up logging for our code and the libraries; return a function that waits for the last lines to be written."""
    shared: list[structlog.types.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    formatter = structlog.stdlib.ProcessorFormatter
    structlog.configure(
        processors=[*shared, formatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    renderer: structlog.types.Processor = structlog.processors.JSONRenderer()
    if sys.stderr.isatty():
        # Strings are written as their repr, so that escape sequences in a name cannot control the terminal.
        renderer = structlog.dev.ConsoleRenderer(
            repr_native_str=True, exception_formatter=structlog.dev.plain_traceback, pad_event_to=0
        )
    last: list[structlog.types.Processor] = [formatter.remove_processors_meta, renderer]
    lines: queue.Queue[logging.LogRecord] = queue.Queue(LINES)
    handler = _Unblocking(lines)
    handler.setFormatter(formatter(processors=last, foreign_pre_chain=shared))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    listener = logging.handlers.QueueListener(lines, logging.StreamHandler())
    listener.start()

    def finish() -> None:
        waiting = threading.Thread(target=listener.stop, name="interlock logs", daemon=True)
        waiting.start()
        waiting.join(FINISH_SECONDS)

    return finish
