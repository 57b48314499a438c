"""The audit: who did what, when and from where.

1. The audit never raises and never waits for fsync: a full disk must not delay or refuse a stop.
2. A flood of refusals cannot fill it; lines that are left out are counted.
3. Values are cut, and every line is plain ASCII: no caller can forge a line, or make one that a reader cannot parse.
"""

import contextlib
import json
import logging
import math
import os
import stat
import time
from collections import deque
from datetime import UTC, datetime
from pathlib import Path

log = logging.getLogger("interlock")

REFUSED = "refused"  # the kind of line that the audit limits
REFUSALS_PER_SECOND = 20
VALUE_CHARACTERS = 500
COMPLAINT_SECONDS = 60.0


def now() -> str:
    """Return the time of day as it is written."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Audit:
    """The file of stops, answers, shares and refusals, by whom and from where: JSON lines, only ever appended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._refusals: deque[float] = deque(maxlen=REFUSALS_PER_SECOND)
        self._left_out = 0  # refusals beyond REFUSALS_PER_SECOND
        self._unwritten = 0  # lines that could not be written
        self._told_at = -math.inf
        self._complained_at = -math.inf

    def note(self, kind: str, *, by: str, address: str, **facts: object) -> None:
        """Write a line; at most REFUSALS_PER_SECOND of kind `refused`, and later how many were left out."""
        now = time.monotonic()
        self.tell_left_out()
        if kind == REFUSED:
            if not self._room(now):
                self._left_out += 1
                return
            self._refusals.append(now)
        if not self._put(kind, {"by": by, "address": address}, facts):
            self._unwritten += 1

    def tell_left_out(self, *, at_once: bool = False) -> None:
        """Write how many lines are missing, at most once a second. The gateway's clock calls this too."""
        now = time.monotonic()
        if not (self._left_out or self._unwritten) or not (at_once or (self._room(now) and now - self._told_at >= 1)):
            return
        if self._put("left_out", {}, {"refused": self._left_out, "unwritten": self._unwritten}):
            self._left_out = self._unwritten = 0
            self._told_at = now
            self._refusals.append(now)

    def close(self) -> None:
        """Write how many lines are missing, and close the file."""
        self.tell_left_out(at_once=True)
        self._let_go()

    def _room(self, now: float) -> bool:
        return len(self._refusals) < REFUSALS_PER_SECOND or now - self._refusals[0] >= 1

    def _put(self, kind: str, head: dict[str, str], facts: dict[str, object]) -> bool:
        own: dict[str, object] = {"time": now(), "kind": kind, **head}
        plain = {_told(key): _told(value) for key, value in (own | facts | own).items()}
        line = json.dumps(plain).encode() + b"\n"
        try:
            if self._fd is None or os.fstat(self._fd).st_nlink == 0:
                self._let_go()
                self._fd = self._open()
            if os.write(self._fd, line) != len(line):
                raise OSError("only a part of a line was written")
        except OSError as error:
            self._let_go()  # opened again, the file gets a newline behind a torn line
            if time.monotonic() - self._complained_at >= COMPLAINT_SECONDS:
                self._complained_at = time.monotonic()
                log.error("the audit %s cannot be written: %s", self.path, error.strerror or error)
            return False
        return True

    def _open(self) -> int:
        fd = os.open(
            self.path,
            os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY,
            0o600,
        )
        try:
            facts = os.fstat(fd)
            if stat.S_ISREG(facts.st_mode):
                os.fchmod(fd, 0o600)
                if facts.st_size and os.pread(fd, 1, facts.st_size - 1) != b"\n":
                    os.write(fd, b"\n")  # behind a line that a crash or a full disk tore
        except OSError:
            os.close(fd)
            raise
        return fd

    def _let_go(self) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = None


def _told(value: object) -> str | int | float | None:
    """Return a value for the audit: short, and valid JSON for every reader."""
    if value is None or isinstance(value, bool) or (isinstance(value, int) and -(2**63) <= value < 2**63):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    try:
        text = str(value)
    except Exception:  # such as an integer with too many digits
        text = f"({type(value).__name__})"
    return text[:VALUE_CHARACTERS].encode("utf-8", "backslashreplace").decode()[:VALUE_CHARACTERS]
