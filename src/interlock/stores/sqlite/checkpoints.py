"""The write-ahead log is kept short: a thread beside the writer copies it, and the writer only starts it anew."""

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

from interlock.stores.sqlite.schema import connect

# Each time that the write-ahead log has grown by this length, a thread beside the writer copies it into the database. A
# copy has its own fsyncs, which a commit at the same time waits for.
CHECKPOINT_BYTES = 16 * 1024 * 1024
# From this length on the writer itself starts the write-ahead log anew, but only when fewer than RESTART_PAGES are left
# to copy: callers wait while it does.
RESTART_BYTES = 64 * 1024 * 1024
RESTART_PAGES = 2_000
# One frame of the write-ahead log: a header and a page.
FRAME_BYTES = 24 + 4096


class Checkpoints:
    """Copies the write-ahead log into the database. The writer's thread calls the public methods."""

    def __init__(self, path: Path, failed: Callable[[Exception], None]) -> None:
        self._path = path
        self._wal = path.with_name(f"{path.name}-wal")
        self._failed = failed
        # The length at the last copy, and the pages of it that the copy left behind. A copy that leaves none lets the
        # next commit start the write-ahead log anew.
        self._length = self._backlog = 0
        self._copying: threading.Thread | None = None

    def copy_if_long(self, connection: sqlite3.Connection) -> None:
        """Start a copy of a long write-ahead log, or start a copied one anew."""
        with contextlib.suppress(OSError, sqlite3.Error):
            if self._copying is not None and self._copying.is_alive():
                return
            long = self._length >= RESTART_BYTES and self._reaches(RESTART_BYTES)
            if long and self._backlog < RESTART_PAGES:
                self._checkpoint(connection, "RESTART")
            elif long or self._reaches(min(self._length + CHECKPOINT_BYTES, RESTART_BYTES)):
                self._copying = threading.Thread(target=self._copy, name="interlock store copies", daemon=True)
                self._copying.start()

    def join(self) -> None:
        """Wait for a copy that is under way."""
        if self._copying is not None:
            self._copying.join()

    def _reaches(self, size: int) -> bool:
        """Whether the write-ahead log has reached a size.

        Its file never shrinks, so the file's length says nothing. Each frame of the present log repeats the salts of
        the log's header: a frame at that size with the same salts belongs to the present log.
        """
        with self._wal.open("rb", buffering=0) as wal:
            salts = wal.read(32)[16:24]
            wal.seek(32 + size // FRAME_BYTES * FRAME_BYTES)
            return wal.read(16)[8:16] == salts

    def _checkpoint(self, connection: sqlite3.Connection, how: str) -> None:
        try:
            _, pages, copied = connection.execute(f"PRAGMA wal_checkpoint({how})").fetchone()
            self._backlog = pages - copied if how == "PASSIVE" else 0
            self._length = pages * FRAME_BYTES if self._backlog else 0
        # Pages that cannot be copied stay in the write-ahead log, and are lost only if the disk's content is unknown.
        except sqlite3.Error as error:
            self._failed(error)

    def _copy(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            beside = connect(self._path, writes=True)
            try:
                self._checkpoint(beside, "PASSIVE")
            finally:
                beside.close()
