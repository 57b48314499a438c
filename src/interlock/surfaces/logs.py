"""What is logged, on the error output: JSON lines, or for somebody at a terminal plain ones.

Nobody waits for whoever reads them: a thread writes, and what it cannot keep up with is counted and left out.
"""

import logging
import logging.handlers
import queue
import sys
import threading
from collections.abc import Callable

import structlog

LINES = 10_000  # that may wait for the reader
FINISH_SECONDS = 1.0


class _Unblocking(logging.handlers.QueueHandler):
    """Hands lines to the thread that writes."""

    def __init__(self, lines: "queue.Queue[logging.LogRecord]") -> None:
        super().__init__(lines)
        self._lines = lines
        self._left_out = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        """Take a line, or count it as left out."""
        if self._left_out and not self._lines.full():
            record.msg = f'{record.msg}\n{{"event": "lines left out", "count": {self._left_out}}}'
            self._left_out = 0
        try:
            self._lines.put_nowait(record)
        except queue.Full:
            self._left_out += 1


def set_up_logging(level: str) -> Callable[[], None]:
    """Log in lines, here and in libraries, with the facts bound to them; return what waits for the last lines."""
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
    if sys.stderr.isatty():  # which must not obey what is in a name
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
