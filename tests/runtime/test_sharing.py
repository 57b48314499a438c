"""A session is its owner's, an admin's, and theirs it is shared with, for as long as it is."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest

from interlock import (
    BadInput,
    Control,
    Ending,
    Event,
    MemoryStore,
    Message,
    Refused,
    Run,
    Settings,
    Unknown,
    open_control,
)
from interlock.client.watch import Watch
from interlock.core.names import May, Principal
from interlock.runtime.settings import SHARES
from interlock.stores.base import StoreFailed
from interlock.stores.sqlite import SqliteStore

from .scene import echoes, idles, seeded, started

VERBS: dict[str, Callable[[Control, str, str], Awaitable[Any]]] = {
    "send": lambda control, session, by: control.send(session, "hello", by=by),
    "send, and reject": lambda control, session, by: control.send(session, "hello", by=by, strategy="reject"),
    "roll back": lambda control, session, by: control.send(session, "hello", by=by, strategy="rollback"),
    "history": lambda control, session, by: control.history(session, by=by),
    "session": lambda control, session, by: control.session(session, by=by),
    "runs": lambda control, session, by: control.runs(session, by=by),
    "watch": lambda control, session, by: first_of(control.watch(session, by=by)),
    "strategy": lambda control, session, by: control.set_strategy(session, "queue", by=by),
    "wake": lambda control, session, by: control.wake(session, "tick", every=60, by=by),
    "wakes": lambda control, session, by: control.wakes(session, by=by),
    "reset": lambda control, session, by: control.reset(session, by=by),
    "share": lambda control, session, by: control.share(session, with_="eve", by=by),
    "unshare": lambda control, session, by: control.unshare(session, with_="eve", by=by),
}
# A writer's rollback queues, and a writer's reject is rejected.
WRITER = {"send", "history", "session", "runs", "watch"}
GUEST = WRITER - {"send"}


async def first_of(events: Any) -> Event:
    """The first event of a watch."""
    async with aclosing(events):
        return await anext(events)


async def word(asked: Awaitable[Any]) -> str:
    """Return what a caller is told: `done`, or the refusal."""
    try:
        await asked
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "done"


@pytest.mark.parametrize("verb", VERBS)
def test_a_stranger_learns_nothing(verb: str) -> None:
    """To somebody it is not shared with, a session looks exactly like one that is not there, whatever is asked."""

    async def main() -> None:
        async with open_control(idles) as control:
            await control.send("alice/main", "a secret", by="alice")
            here, nowhere = [await word(VERBS[verb](control, name, "bob")) for name in ("alice/main", "alice/none")]
            assert here.startswith("UnknownSession: ")
            assert here.replace("alice/main", "alice/none") == nowhere
            for receipt in [await control.stop(session=name, by="bob") for name in ("alice/main", "alice/none")]:
                assert (receipt.id, receipt.aborted, receipt.already, receipt.runs) == (None, False, None, ())
            assert await control.sessions(by="bob") == await control.runs(by="bob") == []

    seeded(main, range(2))


@pytest.mark.parametrize(("may", "allowed"), [("write", WRITER), ("read", GUEST)])
def test_what_a_session_is_shared_for(may: str, allowed: set[str]) -> None:
    """A writer sends (and queues) and sees, a guest sees, and neither may do what is the owner's to do."""

    async def main() -> None:
        for verb, ask in VERBS.items():
            async with open_control(idles) as control:
                sent = await control.send("s", "hello", by="alice")
                await started(control, sent.run_id)
                shared = await control.share("s", with_="bob", may=may, by="alice")
                assert (shared.owner, shared.shares, shared.durable) == ("alice", {"bob": may}, True)
                told = await word(ask(control, "s", "bob"))
                if verb == "roll back" and may == "write":
                    assert told == "done"
                elif verb == "send, and reject" and may == "write":
                    assert told.startswith("Rejected")
                else:
                    assert (told == "done") is (verb in allowed), (verb, told)
                assert not (await control.stop(session="s", by="bob")).runs or may == "write"
                assert (await control.wait(sent.run_id, timeout=0)).ending in (Ending.PENDING,)

    seeded(main, range(2))


def test_sharing_is_the_owner_s_to_do() -> None:
    """Only the owner and an admin share; nobody is shared with twice or beyond the bound; words are checked."""

    async def main() -> None:
        async with open_control(echoes, admins=["root"]) as control:
            await control.wait((await control.send("s", "hello", by="alice")).run_id)
            for by in ("bob", "eve"):
                with pytest.raises(Unknown):
                    await control.share("s", with_="eve", by=by)
            await control.share("s", with_="bob", by="root")
            with pytest.raises(Unknown):  # a writer does not share what is not theirs
                await control.share("s", with_="eve", by="bob")
            for wrong in ("alice", "local"):
                with pytest.raises(BadInput, match="name somebody else"):
                    await control.share("s", with_=wrong, by="alice")
            with pytest.raises(BadInput, match="may= is write or read"):
                await control.share("s", with_="eve", may="own", by="alice")
            assert (await control.unshare("s", with_="nobody", by="alice")).shares == {"bob": May.WRITE}
            for n in range(SHARES - 1):
                await control.share("s", with_=f"p{n}", by="alice")
            with pytest.raises(Refused, match="unshare one"):
                await control.share("s", with_="one more", by="alice")
            assert (await control.share("s", with_="bob", may="read", by="alice")).shares[Principal("bob")] is May.READ

    seeded(main, range(2))


@pytest.mark.parametrize("change", ["unshare", "appoint", "read only"])
def test_a_watch_ends_in_the_step_that_takes_the_right(change: str) -> None:
    """A watcher hears nothing after the step that takes their right; a guest who may still read goes on."""

    async def agent(run: Run, message: Message) -> None:
        for n in range(1_000_000):
            await run.say(str(n))
            await asyncio.sleep(0.01)

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "hello", by="alice")
            await started(control, sent.run_id)
            await control.share("s", with_="bob", by="alice")
            control.appoint(readers=["eve"])
            who, gone = ("eve", asyncio.Event()) if change == "appoint" else ("bob", asyncio.Event())
            after: list[Event] = []
            refused: list[str] = []

            async def watch(**what: Any) -> None:
                try:
                    async with aclosing(control.watch(by=who, **what)) as events:
                        async for event in events:
                            if gone.is_set():
                                after.append(event)
                except Unknown as error:
                    refused.append(str(error))

            watches = [asyncio.create_task(watch(**what)) for what in ({"session": "s"}, {"run": sent.run_id})]
            await asyncio.sleep(0.1)
            if change == "appoint":
                control.appoint()
                gone.set()
            elif change == "unshare":
                taking = asyncio.create_task(control.unshare("s", with_="bob", by="alice"))
                while control._registry.sessions["s"].shares:
                    await asyncio.sleep(0)
                gone.set()
                await taking
            else:
                await control.share("s", with_="bob", may="read", by="alice")
                gone.set()
                await asyncio.sleep(1)
                assert len(after) > 10 and not refused
                await control.unshare("s", with_="bob", by="alice")
                after.clear()
            await asyncio.wait_for(asyncio.gather(*watches), 5)
            assert (after, len(refused)) == ([], 2)
            assert all("may not see this any more" in each for each in refused)

    seeded(main)


def test_a_wait_ends_in_the_step_that_takes_the_right() -> None:
    """A waiter who loses the right to see a run is told `unknown` at once, not how it ends."""

    async def main() -> None:
        async with open_control(idles) as control:
            sent = await control.send("s", "hello", by="alice")
            await control.share("s", with_="bob", by="alice")
            queued = await control.send("s", "me too", by="bob")
            waits = [asyncio.create_task(control.wait(run, by="bob")) for run in (sent.run_id, queued.run_id)]
            bounded = asyncio.create_task(control.wait(sent.run_id, by="bob", timeout=3600))
            await asyncio.sleep(0.1)
            await control.unshare("s", with_="bob", by="alice")
            for outcome in await asyncio.wait_for(asyncio.gather(*waits, bounded), 1):
                assert outcome.ending is Ending.UNKNOWN
            assert not (await control.stop(run=queued.run_id, by="bob")).aborted, "what was theirs there is gone too"
            assert (await control.wait(sent.run_id, by="alice", timeout=0)).ending is Ending.PENDING

    seeded(main)


def test_a_right_is_gone_whatever_the_store_does() -> None:
    """Taking a right away counts at once and is written as soon as the store can; giving one counts once it is kept."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(idles, store=store, settings=Settings(commit_seconds=0.2)) as control:
            sent = await control.send("s", "hello", by="alice")
            await control.share("s", with_="bob", by="alice")
            store.faults.stall = True
            with pytest.raises(StoreFailed, match="nothing more was shared"):
                await control.share("s", with_="eve", by="alice")
            assert (await control.wait(sent.run_id, by="eve", timeout=0)).ending is Ending.UNKNOWN
            shared = await control.share("s", with_="bob", may="read", by="alice")
            assert (shared.shares, shared.durable) == ({"bob": May.READ}, False)
            with pytest.raises(Unknown):
                await control.send("s", "me too", by="bob")
            shared = await control.unshare("s", with_="bob", by="alice")
            assert (shared.shares, shared.durable) == ({}, False)
            assert (await control.wait(sent.run_id, by="bob", timeout=0)).ending is Ending.UNKNOWN
            store.resume()
            await asyncio.sleep(2)
            row = await store.session("s")  # type: ignore[arg-type]
            assert row is not None and row.shares == {}

    seeded(main)


def test_the_later_word_stands() -> None:
    """A right that is taken away while it is still being given is not given."""

    async def main() -> None:
        store = MemoryStore(latency_seconds=0.1)
        async with open_control(idles, store=store) as control:
            await control.send("s", "hello", by="alice")
            giving = asyncio.create_task(control.share("s", with_="bob", by="alice"))
            await asyncio.sleep(0.05)
            await control.unshare("s", with_="bob", by="alice")
            await giving
            with pytest.raises(Unknown):
                await control.history("s", by="bob")
            row = await store.session("s")  # type: ignore[arg-type]
            assert row is not None and row.shares == {}

    seeded(main)


@pytest.mark.parametrize("place", ["memory", "sqlite"])
def test_sharing_outlives_a_restart(place: str, tmp_path: Any) -> None:
    """Shares, and those taken back, are so after a restart; a session's children are shared as it is."""

    async def child(run: Run, message: Message) -> str:
        return "helped"

    async def agent(run: Run, message: Message) -> str:
        return (await run.delegate("child", "help")).run_id

    memory = MemoryStore()

    def store() -> Any:
        return memory if place == "memory" else SqliteStore(tmp_path / "state")

    async def main() -> None:
        async with open_control(agent, agents={"child": child}, store=store()) as control:
            sent = await control.send("s", "hello", by="alice")
            made = (await control.wait(sent.run_id)).text
            for who in ("bob", "carol"):
                await control.share("s", with_=who, may="read", by="alice")
            await control.unshare("s", with_="carol", by="alice")
        for _ in range(2):
            async with open_control(agent, agents={"child": child}, store=store()) as control:
                for run in (sent.run_id, made):
                    assert (await control.wait(run, by="bob")).ending is Ending.COMPLETED
                    assert (await control.wait(run, by="carol")).ending is Ending.UNKNOWN
                assert [info.session.id for info in await control.sessions(by="bob")] == ["s"]
                assert {info.id for info in await control.runs(latest=9, by="bob")} == {sent.run_id, made}
                assert await control.sessions(by="carol") == await control.runs(latest=9, by="carol") == []
                assert [info.session.shares for info in await control.sessions()] == [{"bob": May.READ}]

    asyncio.run(main())


def test_a_stop_by_one_who_loses_the_right_meanwhile_still_has_its_receipt() -> None:
    """A stop that was decided is answered with its receipt, though its caller loses the right before it is public."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(idles, store=store, settings=Settings(commit_seconds=0.2)) as control:
            await control.stop(run=(await control.send("s", "x", by="alice")).run_id)
            await control.share("s", with_="bob", by="alice")
            sent = await control.send("s", "mine", by="bob")
            await started(control, sent.run_id)
            store.faults.stall = True
            stopping = asyncio.create_task(control.stop(run=sent.run_id, by="bob"))
            await asyncio.sleep(0.05)
            await control.unshare("s", with_="bob", by="alice")
            receipt = await stopping
            assert receipt.aborted and [run.id for run in receipt.runs] == [sent.run_id]
            store.resume()
            await anyio.sleep(2)

    seeded(main, range(3))


def test_the_ack_says_whose_session_it_is() -> None:
    """The first sender owns the session, and the ack of every other sender names that owner."""

    async def main() -> None:
        async with open_control(echoes) as control:
            assert (await control.send("s", "one", by="alice")).owner == "alice"
            await control.share("s", with_="bob", by="alice")
            for _ in range(2):
                assert (await control.send("s", "two", by="bob", key="k")).owner == "alice"
            assert (await control.send(None, "three", by="bob")).owner == "bob"

    seeded(main, range(3))


@pytest.mark.parametrize("last", [1, 2])
def test_a_right_that_goes_while_it_is_read_is_not_used(last: int) -> None:
    """A watch whose right was read from the store, and then taken away, is not begun by the old answer."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(echoes, store=store) as control:
            await control.wait((await control.send("s", "hello", by="alice")).run_id, drained=True)
            await control.share("s", with_="bob", by="alice")
            await asyncio.sleep(5)
            assert not control._registry.sessions
            real, reads, slow = store.session, [], asyncio.Event()

            async def session(name: Any) -> Any:
                reads.append(row := await real(name))
                if len(reads) == last:
                    await slow.wait()
                return row

            store.session = session  # type: ignore[method-assign]
            watching = asyncio.create_task(first_of(control.watch("s", by="bob")))
            while len(reads) < last:
                await asyncio.sleep(0.001)
            await control.unshare("s", with_="bob", by="alice")
            slow.set()
            with pytest.raises(Unknown):
                await watching

    seeded(main)


def test_a_right_that_goes_while_the_beginning_is_looked_for_is_not_used() -> None:
    """A watch from a run's beginning whose right is taken away while the log is read for that is not begun."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(echoes, store=store) as control:
            sent = await control.send("s", "hello", by="alice")
            await control.wait(sent.run_id, drained=True)
            await control.share("s", with_="bob", by="alice")
            real, asked, slow = store.began, asyncio.Event(), asyncio.Event()

            async def began(session: Any, run: Any) -> Any:
                asked.set()
                await slow.wait()
                return await real(session, run)

            store.began = began  # type: ignore[method-assign]
            watch = Watch()
            listening = asyncio.create_task(control.listen(watch, "s", begin=sent.run_id, by="bob"))
            await asked.wait()
            await control.unshare("s", with_="bob", by="alice")
            slow.set()
            watch.listening = await listening
            with pytest.raises(Unknown):
                await watch.next()

    seeded(main)


def test_a_right_that_is_gone_does_not_come_back_from_the_store(tmp_path: Path) -> None:
    """A share that was taken away while nothing can be written stays away, though the store still has it.

    The session left memory before; a message of the one who had the right would load it as the store knows it.
    """

    async def main() -> None:
        settings = Settings(commit_seconds=0.5)
        async with open_control(echoes, store=SqliteStore(tmp_path / "data"), settings=settings) as control:
            await control.wait((await control.send("s", "hello", by="alice")).run_id, drained=True)
            await control.share("s", with_="bob", by="alice")
            while control._registry.sessions:
                await asyncio.sleep(0.01)
            other = sqlite3.connect(tmp_path / "data" / "interlock.db", isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            shared = await control.share("s", with_="bob", may="read", by="alice")
            assert (shared.shares, shared.durable) == ({"bob": May.READ}, False)
            with pytest.raises(Unknown):
                await control.send("s", "me too", by="bob")
            shared = await control.unshare("s", with_="bob", by="alice")
            assert (shared.shares, shared.durable) == ({}, False)
            assert await control.sessions(by="bob") == []
            sending = asyncio.create_task(word(control.send("s", "late", by="bob", key="late")))
            await asyncio.sleep(0.2)  # the message may be loading the session
            with pytest.raises(Unknown):
                await control.history("s", by="bob")
            other.execute("ROLLBACK")
            other.close()
            assert "no session" in await sending
            with pytest.raises(Unknown):
                await control.send("s", "later", by="bob")
            assert (await control.session("s", by="alice")).session.shares == {}

    asyncio.run(main())


@pytest.mark.parametrize("verb", ["history", "runs", "session", "timeline", "wait"])
@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_what_is_read_while_a_right_goes_is_not_told(verb: str, number: int) -> None:
    """A read whose right is taken away before it ends tells nothing, nor what came since."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(echoes, store=store) as control:
            sent = await control.send("s", "before", by="alice")
            await control.wait(sent.run_id, drained=True)
            await control.share("s", with_="bob", by="alice")
            await asyncio.sleep(5)
            slow, reads = asyncio.Event(), 0

            def slowed(ask: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
                async def asked(*args: Any, **named: Any) -> Any:
                    nonlocal reads
                    reads += 1
                    if reads == number:
                        await slow.wait()
                    return await ask(*args, **named)

                return asked

            names = ("session", "runs", "run", "receipt", "events")
            whole = {name: getattr(store, name) for name in names}
            for name, ask in whole.items():
                setattr(store, name, slowed(ask))
            about = "s" if verb in ("history", "runs", "session") else sent.run_id
            asking = asyncio.create_task(getattr(control, verb)(about, by="bob"))
            await asyncio.sleep(1)
            for name, ask in whole.items():
                setattr(store, name, ask)
            if reads < number:
                # The verb reads less often, and is answered.
                await asking
                return
            await control.unshare("s", with_="bob", by="alice")
            await control.wait((await control.send("s", "after", by="alice")).run_id, drained=True)
            slow.set()
            if verb == "wait":
                assert (await asking).ending is Ending.UNKNOWN
            else:
                with pytest.raises(Unknown):
                    await asking

    seeded(main, range(3))
