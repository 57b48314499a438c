"""The one thread that reads.

1. Reads have a connection and a thread of their own, so no read waits for a write.
2. Pages of a log (`bulk`) are read after everything else: a message must not wait for watchers that replay.
3. `sqlite3` gives the interpreter's lock away at each statement and waits to have it back. So a read is one statement
   where it can be, and several answers go to the loop together.
4. Blocking work runs in threads of the store's own, never in the loop's thread pool: an embedder may have filled that,
   and a stop and a close must not wait for it.
"""

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from interlock.stores.base import StoreFailed
from interlock.stores.sqlite.schema import connect

T = TypeVar("T")
Answer = tuple["asyncio.Future[Any]", Any, BaseException | None]

# Reads that may wait for the thread.
READS = 10_000
# Answers that may wait for the reads behind them.
ANSWERS = 32
# `stop` waits this long for the thread.
LAST_READ_SECONDS = 0.3
# A thread without work checks this often whether its event loop was closed.
ORPHAN_SECONDS = 1.0


class Asked(NamedTuple):
    """A read, and the future that waits for its answer."""

    work: Callable[[sqlite3.Connection], Any]
    answer: "asyncio.Future[Any]"
    # The work has several statements, which must see the same state of the database.
    whole: bool


class Reader:
    """A thread that reads a database. The loop calls the public methods, the thread the others."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._first: deque[Asked] = deque()
        self._bulk: deque[Asked] = deque()
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._stopping = False
        self._answers: list[Answer] = []
        self._connection: sqlite3.Connection | None = None
        self._thread = threading.Thread(target=self._work, name="interlock store reads", daemon=True)
        self._thread.start()

    def ask(
        self, work: Callable[[sqlite3.Connection], T], *, bulk: bool = False, whole: bool = False
    ) -> "asyncio.Future[T]":
        """Run a function with the connection; with `whole` in one transaction, with `bulk` after the other reads."""
        if self._stopping or not self._thread.is_alive():
            raise StoreFailed("the store is not open")
        if len(self._first) + len(self._bulk) >= READS:
            raise StoreFailed(f"{READS} reads wait for the disk; try again later")
        answer: asyncio.Future[T] = self._loop.create_future()
        (self._bulk if bulk else self._first).append(Asked(work, answer, whole))
        wake(self._wakeups)
        return answer

    async def stop(self) -> None:
        """Answer the reads that were asked, then end the thread."""
        self._stopping = True
        wake(self._wakeups)
        await in_thread(lambda: self._thread.join(LAST_READ_SECONDS))

    def _work(self) -> None:
        while wait_for_work(self._wakeups, self._loop):
            while self._first or self._bulk:
                # No answer waits for a page of a log.
                if not self._first or len(self._answers) >= ANSWERS:
                    self._send_answers()
                self._read((self._first or self._bulk).popleft())
            self._send_answers()
            if self._stopping and not (self._first or self._bulk):
                break
        if self._connection is not None:
            self._connection.close()

    def _read(self, asked: Asked) -> None:
        result, failure = None, None
        try:
            db = self._connection = self._connection or connect(self._path, writes=False)
            result = _at_one_instant(db, asked.work) if asked.whole else asked.work(db)
        except Exception as error:
            failure = StoreFailed(f"the store cannot be read ({type(error).__name__}: {error}); try again later")
        self._answers.append((asked.answer, result, failure))

    def _send_answers(self) -> None:
        if self._answers:
            answers, self._answers = self._answers, []
            # RuntimeError: the loop is closed, so no caller waits any more.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(answer_all, answers)


def wake(wakeups: queue.SimpleQueue[None]) -> None:
    """Wake a thread that waits for work; one wake-up is enough, however much work there is when the thread takes it."""
    if wakeups.empty():
        wakeups.put(None)


def wait_for_work(wakeups: queue.SimpleQueue[None], loop: asyncio.AbstractEventLoop) -> bool:
    """Wait until there is work; return False if the event loop was closed."""
    while True:
        with contextlib.suppress(queue.Empty):
            wakeups.get(timeout=ORPHAN_SECONDS)
            return True
        if loop.is_closed():
            return False


def in_thread(work: Callable[[], T]) -> "asyncio.Future[T]":
    """Run blocking work in a thread of its own (rule 4)."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:
            failure = error
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(answer_all, [(answer, result, failure)])

    threading.Thread(target=run, name="interlock store", daemon=True).start()
    return answer


def _at_one_instant(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    """Run several queries in one transaction, so that all see the same state of the database."""
    connection.execute("BEGIN")
    try:
        return work(connection)
    finally:
        connection.execute("COMMIT")


def answer_all(answers: list[Answer]) -> None:
    """In the loop: set the results, or the failures, of futures that still wait."""
    for answer, result, failure in answers:
        if not answer.done():
            if failure is None:
                answer.set_result(result)
            else:
                answer.set_exception(failure)
