"""Old databases: one of every schema there ever was is opened by today's code and read back (see corpus/README.md)."""

import asyncio
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import interlock
from interlock.core.names import Ending, EventKind, May, Principal, QuestionState, SessionId, ToolState
from interlock.stores.base import StoreFailed
from interlock.stores.sqlite import SqliteStore, schema

CORPUS = Path(__file__).with_name("corpus")
SECONDS = 60.0
FOREVER_DAYS = 1e6  # the corpus grows old
SESSIONS = ("talk", "stopped", "tool", "question", "busy")
TABLES = (
    "facts", "sessions", "runs", "keys", "tombstones", "tools", "questions", "wakes", "marks", "receipts", "events",
    "passing", "stops", "shares", "epochs",
)  # fmt: skip


def play(main: Callable[[], Awaitable[Any]]) -> None:
    asyncio.run(asyncio.wait_for(main(), SECONDS))  # type: ignore[arg-type]


# Making the corpus: a life with every kind of row, as a kill would leave it


async def agent(run: Any, message: Any) -> str:
    async def look(what: str) -> str:
        if what == "long":
            await asyncio.sleep(3_600)
        return f"{what} \u505c"

    await run.say("hel")
    match message.text:
        case "tool":
            await run.call(look, what="short")
        case "stuck":
            await run.call(look, what="long")
        case "ask":
            await run.ask("Deploy?", choices=["staging", "the moon"])
        case "child":
            await run.delegate("helper", "help")
        case "wait":
            await asyncio.sleep(3_600)
    return f"heard {message.text}"


async def helper(run: Any, message: Any) -> str:
    return "helped"


def control_of(directory: Path) -> Any:
    return interlock.open_control(agent, agents={"helper": helper}, store=f"sqlite:///{directory}")


async def live(directory: Path, left: Path) -> None:
    """Live in a directory, and copy what a kill would have left there."""
    async with control_of(directory) as control:
        for text in ("hello", "tool", "child"):
            sent = await control.send("talk", text, by="alice", key=f"key of {text}")
            await control.wait(sent.run_id, drained=True)
        await control.send("stopped", "wait", by="bob")
        await control.stop(session="stopped", by="bob", order=("chat", 12345678901234567890))
        await control.stop(message="never came", key="a stop", by="bob")
        await control.wake("talk", "look", every=86_400, by="alice")
        await control.share("talk", with_="bob", may="read", by="alice")
        for session, text in (("tool", "stuck"), ("question", "ask"), ("busy", "wait")):
            await control.send(session, text, by="alice")
        for n in range(2):
            await control.send("busy", f"queued {n}", by="alice", strategy="queue")
        with sqlite3.connect(directory / "interlock.db") as other:
            running = "SELECT count(*) FROM passing WHERE session IN ('tool', 'question', 'busy')"
            while other.execute(running).fetchone()[0] < 3 or not all(
                other.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TABLES
            ):
                await asyncio.sleep(0.01)
        other.close()
        shutil.copytree(directory, left, ignore=shutil.ignore_patterns("*-shm", "lock"))


def make(target: Path) -> None:
    """Write a database of today's schema as SQL."""
    with tempfile.TemporaryDirectory() as room:
        play(lambda: live(Path(room) / "state", Path(room) / "left"))
        left = sqlite3.connect(Path(room) / "left" / "interlock.db")
        version = left.execute("PRAGMA user_version").fetchone()[0]
        target.write_text("\n".join([*left.iterdump(), f"PRAGMA user_version = {version};", ""]))
        left.close()


def loaded(name: str, directory: Path) -> Path:
    """Put a database of the corpus into a directory."""
    directory.mkdir(mode=0o700)
    database = sqlite3.connect(directory / "interlock.db")
    database.executescript((CORPUS / name).read_text())
    database.close()
    return directory


# Reading it


DUMPS = sorted(path.name for path in CORPUS.glob("*.sql"))
NEWEST = int(DUMPS[-1][:4])


def test_every_schema_is_in_the_corpus() -> None:
    """The corpus has a database of every schema: without one, a migration would never be tried on that schema."""
    assert [f"{number:04}.sql" for number, _ in schema.migrations()] == DUMPS


@pytest.mark.parametrize("name", DUMPS)
def test_a_released_migration_is_not_changed(name: str, tmp_path: Path) -> None:
    """The migrations up to a number make the very schema that the corpus has of that number."""

    def shape(database: sqlite3.Connection) -> set[str]:
        return {row[0] for row in database.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL")}

    fresh, old = sqlite3.connect(":memory:"), sqlite3.connect(":memory:")
    for number, script in schema.migrations():
        if number <= int(name[:4]):
            fresh.executescript(script)
    old.executescript((CORPUS / name).read_text())
    assert shape(fresh) == shape(old)
    fresh.close(), old.close()


@pytest.mark.parametrize("name", DUMPS)
def test_an_old_database_is_read_by_today_s_store(name: str, tmp_path: Path) -> None:
    """Every row that an earlier version left is there, of every kind; the store is not clean after a kill (race 94)."""

    async def main() -> None:
        store = SqliteStore(loaded(name, tmp_path / "state"), keep_days=FOREVER_DAYS)
        assert await store.open() == 2
        assert not store.clean
        talk = await store.runs(SessionId("talk"))
        assert [each.text for each in talk] == ["hello", "tool", "child"]
        replies = [each.outcome.text for each in talk if each.outcome is not None]
        assert replies == [f"hel\n\nheard {text}" for text in ("hello", "tool", "child")]
        child = (await store.runs(SessionId("talk"), tree=True))[-1]
        assert (child.parent, child.home, child.agent) == (talk[2].id, "talk", "helper")
        first = await store.load(SessionId("talk"), principal=Principal("alice"), key="key of hello")
        assert first.key is not None and first.key.run_id == talk[0].id and first.previous == talk[2].outcome
        assert first.session is not None and first.session.owner == "alice"
        bobs = await store.load(SessionId("stopped"), principal=Principal("bob"), key="never came")
        assert bobs.buried and [each.at for each in bobs.marks] == [12345678901234567890]
        (stopped,) = await store.runs(SessionId("stopped"))
        proof = await store.receipt(stopped.id)
        assert proof is not None and proof.cause is Ending.STOPPED and proof.runs[0].id == stopped.id
        assert stopped.outcome is not None and stopped.outcome.by == "bob"
        (stuck,) = await store.runs(SessionId("tool"))
        assert [(each.name, each.state) for each in await store.tools(stuck.id)] == [("look", ToolState.RUNNING)]
        (asking,) = await store.runs(SessionId("question"))
        (asked,) = await store.questions(asking.id)
        assert (asked.text, asked.choices, asked.state) == ("Deploy?", ("staging", "the moon"), QuestionState.OPEN)
        assert [each.text for each in await store.wakes()] == ["look"]
        kept = [(each.principal, each.key, each.receipt) for each in await store.stops()]
        assert kept == ([] if name == "0001.sql" else [("bob", "a stop", None)])
        assert all(each.stands(time.time()) for each in bobs.marks) or name != "0001.sql"
        named = {(owner, session) for owner, session in await store.plain_sessions()}
        people = {("bob" if session == "stopped" else "alice", session) for session in SESSIONS}
        assert named == (people if name == "0001.sql" else set()), "ids that do not say whose they are, and bare names"
        assert first.session.shares == ({} if name == "0001.sql" else {"bob": May.READ})
        assert [each.started for each in await store.runs(SessionId("busy"))] == [True, False, False]
        assert set(await store.unsettled()) == {"tool", "question", "busy"}
        for session in SESSIONS:
            assert (await store.events(SessionId(session), after=0, limit=999)).events
        await store.close()

    play(main)


@pytest.mark.parametrize("name", DUMPS)
def test_positions_rise_over_an_upgrade(name: str, tmp_path: Path) -> None:
    """A watcher that comes back with a position of an earlier version sees what follows, and only that."""

    async def main() -> None:
        directory = loaded(name, tmp_path / "state")
        with sqlite3.connect(directory / "interlock.db") as other:
            last = dict(other.execute("SELECT session, max(position) FROM events GROUP BY session"))
        other.close()
        async with control_of(directory) as control:
            for session in SESSIONS:
                by = "bob" if session == "stopped" else "alice"
                sent = await control.send(session, "later", by=by, strategy="queue")
                seen = []
                async for event in control.watch(session, after=last[session], by=by):
                    seen.append(event)
                    if event.run_id == sent.run_id and event.kind is EventKind.ENDED:
                        break
                positions = [event.position for event in seen]
                assert positions == sorted(set(positions)) and min(positions) > last[session]
                assert [event.data.text for event in seen if event.kind is EventKind.MESSAGE][-1] == "later"

    play(main)


@pytest.mark.parametrize("name", DUMPS)
def test_what_an_old_version_left_is_settled_by_today_s_control(name: str, tmp_path: Path) -> None:
    """An upgrade in the middle of runs: those are lost and say so, what waited runs, keys still answer (race 94)."""

    async def main() -> None:
        async with control_of(loaded(name, tmp_path / "state")) as control:
            for session in ("tool", "question", "busy"):
                lost, *queued = await control.runs(session)
                assert (await control.wait(lost.id)).ending is Ending.LOST
                replies = [(await control.wait(each.id)).text for each in queued]
                assert replies == [f"hel\n\nheard queued {n}" for n in range(2 if session == "busy" else 0)]
            again = await control.send("talk", "hello", by="alice", key="key of hello")
            assert again.run_id == (await control.runs("talk"))[0].id
            history = [(entry.role, entry.text) for entry in await control.history("talk")]
            assert ("user", "hello") in history and ("assistant", "heard tool") in history
            watched = []
            async for event in control.watch("talk", after=0):
                watched.append(event.position)
                if len(watched) == 5:
                    break
            assert watched == sorted(set(watched))
        store = SqliteStore(tmp_path / "state", keep_days=FOREVER_DAYS)
        await store.open()
        assert store.clean and await store.unsettled() == ()
        await store.close()

    play(main)


# The mechanism, with migrations that do not exist yet

GOOD = (9001, "ALTER TABLE runs ADD COLUMN mood TEXT;\nUPDATE runs SET mood = 'fine';")
BAD = (9002, "CREATE TABLE moods (name TEXT);\nINSERT INTO moods VALUES ('fine');\nINSERT INTO nowhere VALUES (1);")
MENDED = (9002, "CREATE TABLE moods (name TEXT);\nINSERT INTO moods VALUES ('fine');")
ENDLESS = (
    9002,
    "CREATE TABLE moods (name TEXT);\n"
    "INSERT INTO moods WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n;",
)


def with_more(monkeypatch: pytest.MonkeyPatch, *more: tuple[int, str]) -> None:
    real = schema.migrations()
    monkeypatch.setattr(schema, "migrations", lambda: (*real, *more))


def look(directory: Path) -> tuple[int, set[str], list[str]]:
    """The schema's number, its tables, and how runs are."""
    database = sqlite3.connect(directory / "interlock.db")
    try:
        version = database.execute("PRAGMA user_version").fetchone()[0]
        tables = {row[0] for row in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        columns = {row[1] for row in database.execute("PRAGMA table_info(runs)")}
        moods = [row[0] for row in database.execute("SELECT mood FROM runs")] if "mood" in columns else []
        assert database.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    finally:
        database.close()
    return version, tables & {"moods"}, sorted(set(moods))


async def opened(directory: Path) -> int:
    store = SqliteStore(directory, keep_days=FOREVER_DAYS)
    boot = await store.open()
    assert len(await store.runs(SessionId("talk"))) == 3
    await store.close()
    return boot


def test_migrations_are_applied_in_order_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing migrations are applied in order from the database's number on, and none is done again (race 94)."""

    async def main() -> None:
        state = loaded(DUMPS[-1], tmp_path / "state")
        with_more(monkeypatch, GOOD)
        assert [await opened(state) for _ in range(2)] == [2, 3]
        assert look(state) == (9001, set(), ["fine"])
        with_more(monkeypatch, MENDED)
        assert await opened(state) == 4
        assert look(state) == (9002, {"moods"}, ["fine"])
        new = SqliteStore(tmp_path / "new")
        assert await new.open() == 1
        await new.close()
        assert look(tmp_path / "new") == (9002, {"moods"}, [])

    play(main)


def test_a_migration_that_fails_leaves_the_old_schema_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing migrations are one transaction: if one fails none of them stands, and the reason is told (race 94)."""

    async def main() -> None:
        state = loaded(DUMPS[-1], tmp_path / "state")
        with monkeypatch.context() as patch:
            with_more(patch, GOOD, BAD)
            for _ in range(2):
                with pytest.raises(StoreFailed, match=r"cannot be opened: .*nowhere"):
                    await SqliteStore(state).open()
                assert look(state) == (NEWEST, set(), [])
        with_more(monkeypatch, GOOD, MENDED)
        assert await opened(state) == 2
        assert look(state) == (9002, {"moods"}, ["fine"])

    play(main)


def test_a_migration_that_is_killed_leaves_the_old_schema_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A migration killed with -9 in the middle leaves the old schema, and the next start does it again (race 94)."""
    state = loaded(DUMPS[-1], tmp_path / "state")
    program = """
import asyncio, sys
from interlock.stores.sqlite import SqliteStore, schema
real = schema.migrations()
schema.migrations = lambda: (*real, *eval(sys.argv[2]))
asyncio.run(SqliteStore(sys.argv[1]).open())
"""
    started = subprocess.Popen([sys.executable, "-c", program, state, repr((GOOD, ENDLESS))])
    try:
        wait_until_it_migrates(state)
    finally:
        started.kill()
        started.wait()
    assert look(state) == (NEWEST, set(), [])
    with_more(monkeypatch, GOOD, MENDED)
    play(lambda: opened(state))
    assert look(state) == (9002, {"moods"}, ["fine"])


def wait_until_it_migrates(directory: Path) -> None:
    """Wait until a migration is under way: the write lock stays taken, and the number is the old one."""
    until = time.monotonic() + SECONDS
    other = sqlite3.connect(directory / "interlock.db", isolation_level=None, timeout=0)
    while time.monotonic() < until:
        number = 0
        try:
            number = other.execute("PRAGMA user_version").fetchone()[0]
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
        except sqlite3.OperationalError:
            if number == NEWEST:
                other.close()
                return
        time.sleep(0.01)
    raise AssertionError("no migration began")


if __name__ == "__main__":
    make(CORPUS / sys.argv[1])
