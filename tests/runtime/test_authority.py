"""Rights at work: who may stop, take over and see, and that "not yours" looks like "not found"."""

import asyncio
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from interlock import Control, Ending, MemoryStore, Message, Run, Unavailable, Unknown, open_control
from interlock.core.names import SessionId

from .scene import answers, at_once, echoes, idles, kinds, log_of, seeded, started


async def seen(control: Control, run: str, session: str, by: str) -> dict[str, Any]:
    """Return the answer of every reading verb to a caller, errors as their text without the names asked for."""

    async def tried(work: Any) -> Any:
        try:
            return await work
        except Unknown as error:
            return type(error), str(error).replace(repr(run), "X").replace(repr(session), "X")

    async def first(events: Any) -> Any:
        async with aclosing(events) as stream:
            return await anext(stream)

    outcome = await control.wait(run, by=by, timeout=1)
    return {
        "wait": outcome.ending,
        "receipt": await tried(control.receipt(run, by=by)),
        "watch run": await tried(first(control.watch(run=run, by=by))),
        "watch session": await tried(first(control.watch(session, by=by))),
        "history": await tried(control.history(session, by=by)),
        "runs": await tried(control.runs(session, by=by)),
        "all runs": await control.runs(by=by),
    }


async def stopped(control: Control, by: str, **what: str) -> tuple[Any, ...]:
    """Return the answer of a stop, without the names asked for."""
    receipt = await control.stop(**what, by=by)
    return receipt.id, receipt.runs, receipt.aborted, receipt.already, receipt.cause


@pytest.mark.parametrize("state", ["running", "ending", "ended", "forgotten"])
def test_not_yours_looks_like_not_found(state: str) -> None:
    """A stranger learns nothing from any verb: the answers are those for a name that does not exist (P7)."""

    async def agent(run: Run, message: Message) -> str | None:
        return "x" if message.text == "quick" else await idles(run, message)

    async def main() -> None:
        async with open_control(agent) as control:
            sent = await control.send("s", "quick" if state in ("ended", "forgotten") else "long", by="alice")
            if state in ("running", "ending"):
                await started(control, sent.run_id)
            if state == "ending":
                stopping = asyncio.create_task(control.stop(session="s", by="alice"))
                await asyncio.sleep(0)
            if state in ("ended", "forgotten"):
                await control.wait(sent.run_id, drained=True)
            if state == "forgotten":
                await anyio.sleep(5)
                assert control._registry.sessions == {}
            real = await seen(control, sent.run_id, "s", "mallory")
            absent = await seen(control, "r-9-9", "nowhere", "mallory")
            assert real == absent
            assert real["wait"] is Ending.UNKNOWN and real["all runs"] == []
            assert await stopped(control, "mallory", run=sent.run_id) == await stopped(control, "mallory", run="r-9-9")
            assert await stopped(control, "mallory", session="s") == await stopped(
                control, "mallory", session="nowhere"
            )
            if state == "running":
                assert (await control.wait(sent.run_id, timeout=1)).ending is Ending.PENDING
            if state == "ending":
                await stopping

    seeded(main, range(4))


@pytest.mark.parametrize("by", ["alice", "local", "root"])
def test_principal_local_and_admin_may_stop(by: str) -> None:
    """The principal of a run, the embedder and an admin may stop it, from any connection (race 101)."""

    async def main() -> None:
        async with open_control(idles, admins=["root"]) as control:
            sent = await control.send("s", "hello", by="alice")
            await started(control, sent.run_id)
            receipt = await control.stop(run=sent.run_id, by=by)
            assert receipt.aborted and receipt.by == by
            assert (await control.wait(sent.run_id, by="alice")).by == by

    seeded(main, range(3))


def test_a_stranger_cannot_stop() -> None:
    """A stop by somebody without the right changes neither the run nor the generation nor the queue (race 29)."""

    async def main() -> None:
        async with open_control(idles) as control:
            first = await control.send("s", "one", by="alice")
            second = await control.send("s", "two", by="alice", strategy="queue")
            await started(control, first.run_id)
            generation = control._registry.generations.get("s")
            log = await log_of(control, "s")
            for what in ({"session": "s"}, {"run": first.run_id}, {"run": second.run_id}):
                assert not (await control.stop(**what, by="mallory")).aborted
            assert control._registry.generations.get("s") == generation
            assert await log_of(control, "s") == log
            assert len(await control.runs("s")) == 2

    seeded(main, range(4))


def test_others_queue() -> None:
    """A message of somebody who may not stop the run in the seat is queued, whatever its strategy, and not refused."""

    async def main() -> None:
        async with open_control(idles) as control:
            first = await control.send("s", "one", by="alice")
            await started(control, first.run_id)
            await control.share("s", with_="bob")
            other = await control.send("s", "two", by="bob")
            assert (other.generation, other.superseded, other.state) == (None, None, "queued")
            assert (await control.wait(first.run_id, timeout=1)).ending is Ending.PENDING
            await control.stop(run=first.run_id, by="alice")
            await started(control, other.run_id)
            assert (await control.wait(other.run_id, by="bob", timeout=1)).ending is Ending.PENDING

    seeded(main)


def test_the_owner_may_stop_what_others_run() -> None:
    """The session's owner may stop and take over every run in it; a guest may stop only their own runs."""

    async def main() -> None:
        async with open_control(echoes) as control:
            await control.wait((await control.send("s", "first", by="alice")).run_id, drained=True)
        store = MemoryStore()
        async with open_control(idles, store=store) as control:
            await control.stop(run=(await control.send("s", "x", by="alice")).run_id)
            await control.share("s", with_="bob")
            await anyio.sleep(5)
            guest = await control.send("s", "one", by="bob")
            await started(control, guest.run_id)
            taking = await control.send("s", "two", by="alice")
            assert taking.superseded == guest.run_id
            await started(control, taking.run_id)
            assert not (await control.stop(run=taking.run_id, by="bob")).aborted
            waiting = await control.send("s", "three", by="bob")
            assert waiting.generation is None
            assert (await control.stop(run=waiting.run_id, by="bob")).aborted
            again = await control.send("s", "four", by="bob")
            receipt = await control.stop(session="s", by="alice")
            assert {run.id for run in receipt.runs} == {taking.run_id, again.run_id}

    seeded(main, range(4))


def test_a_refused_message_does_not_take_a_session_from_its_founder() -> None:
    """The sender of a first message that was stopped before its commit owns the session; a refused sender does not."""

    async def main() -> None:
        store = MemoryStore(latency_seconds=0.05)
        async with open_control(idles, store=store, admins=["alice"]) as control:
            first = asyncio.create_task(control.send("s", "a secret", by="bob"))
            await anyio.sleep(0.02)
            store.faults.fail = True
            assert (await control.stop(session="s", by="bob")).aborted
            assert (await first).state == "ended"
            with pytest.raises(Unavailable):
                await control.send("s", "mine?", by="alice")
            store.resume()
            await control.wait((await first).run_id, drained=True)
            other = await control.send("s", "mine now?", by="alice")
            assert (await control.stop(session="s", by="bob")).runs[0].id == other.run_id
            row = await store.session(SessionId("s"))
            assert row is not None and row.owner == "bob"

    seeded(main, jump=0.0)


def test_a_session_stop_ends_only_what_the_caller_may() -> None:
    """A guest's stop of the session ends the guest's waiting messages and lists them; the other runs go on."""

    async def main() -> None:
        async with open_control(idles) as control:
            running = await control.send("s", "one", by="alice")
            await started(control, running.run_id)
            await control.share("s", with_="bob")
            await control.share("s", with_="carol")
            bobs = [await control.send("s", text, by="bob") for text in "ab"]
            carols = await control.send("s", "c", by="carol")
            receipt = await control.stop(session="s", by="bob")
            assert [run.id for run in receipt.runs] == [each.run_id for each in bobs]
            assert receipt.queued == 2 and receipt.by == "bob"
            assert (await control.wait(running.run_id, timeout=1)).ending is Ending.PENDING
            await control.stop(run=running.run_id, by="alice")
            await started(control, carols.run_id)

    seeded(main, range(4))


def test_a_takeover_leaves_the_messages_of_others() -> None:
    """A guest's takeover of their own run ends their own waiting messages and leaves those of others."""

    async def main() -> None:
        async with open_control(idles) as control:
            await control.stop(run=(await control.send("s", "x", by="alice")).run_id)
            await control.share("s", with_="bob")
            await control.share("s", with_="carol")
            running = await control.send("s", "one", by="bob")
            await started(control, running.run_id)
            mine = await control.send("s", "mine", by="bob", strategy="queue")
            carols = await control.send("s", "hers", by="carol")
            new = await control.send("s", "two", by="bob")
            assert new.superseded == running.run_id
            assert (await control.wait(mine.run_id)).ending is Ending.SUPERSEDED
            assert (await control.wait(carols.run_id, timeout=1)).ending is Ending.PENDING
            await control.stop(run=new.run_id, by="bob")
            await started(control, carols.run_id)

    seeded(main, range(4))


def test_a_reader_sees_and_changes_nothing() -> None:
    """A reader may use every reading verb on everything, and no verb that changes anything."""

    async def main() -> None:
        async with open_control(idles, readers=["eve"]) as control:
            sent = await control.send("s", "hello", by="alice")
            await started(control, sent.run_id)
            assert not (await control.stop(session="s", by="eve")).aborted
            assert not (await control.stop(run=sent.run_id, by="eve")).aborted
            with pytest.raises(Unknown, match="no session 's' for eve"):
                await control.send("s", "me too", by="eve")
            with pytest.raises(Unknown, match="no session 'new' for eve"):
                await control.send("new", "me too", by="eve")
            assert [info.id for info in await control.runs("s", by="eve")] == [sent.run_id]
            assert (await control.wait(sent.run_id, by="eve", timeout=1)).ending is Ending.PENDING
            await control.stop(run=sent.run_id, by="alice")
            assert (await control.wait(sent.run_id, by="eve")).ending is Ending.STOPPED
            assert (await control.receipt(sent.run_id, by="eve")).id
            assert len(await control.history("s", by="eve")) == 2
            assert kinds([event async for event in control.watch(run=sent.run_id, by="eve")])[-1] == "ended"
            with pytest.raises(Unknown):
                await control.history("new")

    seeded(main, range(4))


def test_a_refused_sender_owns_nothing() -> None:
    """A sender whose message was refused for want of a right does not become the owner of the session."""

    async def main() -> None:
        async with open_control(echoes, readers=["eve"]) as control:

            async def reader() -> None:
                with pytest.raises(Unknown):
                    await control.send("s", "hello", by="eve")

            _, sent = await at_once(reader(), control.send("s", "hello", by="alice"))
            await control.wait(sent.run_id, by="alice")
            assert len(await control.history("s", by="alice")) == 2

    seeded(main, range(4))


def test_the_owner_s_stop_reaches_an_arrival_in_a_session_not_loaded() -> None:
    """The owner's stop ends a guest's message that arrives in a session which control is still loading (P6)."""
    began: list[str] = []

    async def agent(run: Run, message: Message) -> None:
        began.append(message.text)
        if message.text == "guest":
            await anyio.sleep_forever()

    async def main() -> None:
        began.clear()
        store = MemoryStore()
        async with open_control(agent, store=store) as control:
            await control.wait((await control.send("s", "first", by="alice")).run_id, drained=True)
            await control.share("s", with_="bob")
            await anyio.sleep(5)
            assert control._registry.sessions == {}
            store.faults.stall = True
            sending = asyncio.create_task(control.send("s", "guest", by="bob"))
            while not await control.runs():
                await asyncio.sleep(0)
            stopping = asyncio.create_task(control.stop(session="s", by="alice"))
            await anyio.sleep(0.1)
            store.resume()
            await stopping
            sent = await sending
            await anyio.sleep(1)
            assert (await control.wait(sent.run_id, timeout=1)).ending is Ending.STOPPED
        assert began == ["first"]

    seeded(main, range(3))


def test_a_guest_s_arrival_is_the_guest_s_to_stop() -> None:
    """While a session is being loaded, the sender can stop an arrival and a stranger cannot."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(idles, store=store) as control:
            store.faults.stall = True
            sending = asyncio.create_task(control.send("s", "hello", by="bob"))
            while not await control.runs():
                await asyncio.sleep(0)
            strangers = asyncio.create_task(control.stop(session="s", by="mallory"))
            await asyncio.sleep(0.1)
            assert [run.outcome for run in await control.runs()] == [None]
            stopping = asyncio.create_task(control.stop(session="s", by="bob"))
            await asyncio.sleep(0.1)
            store.resume()
            assert (await stopping).aborted and not (await strangers).aborted
            assert (await control.wait((await sending).run_id)).by == "bob"

    seeded(main, range(3))


def test_keys_are_the_principal_s() -> None:
    """A stop by key ends only the caller's own message; the same key of another principal is another key."""

    async def main() -> None:
        async with open_control(idles) as control:
            alices = await control.send("a", "hello", by="alice", key="k")
            bobs = await control.send("b", "hello", by="bob", key="k")
            assert alices.run_id != bobs.run_id
            await control.stop(message="k", by="bob")
            assert (await control.wait(bobs.run_id)).ending is Ending.STOPPED
            assert (await control.wait(alices.run_id, timeout=1)).ending is Ending.PENDING

    seeded(main, range(3))


def test_a_stranger_cannot_tell_a_wake_from_none() -> None:
    """A stranger gets the same refusal for another's schedule as for one that does not exist."""

    async def main() -> None:
        async with open_control(answers) as control:
            await control.wait((await control.send("s", "one", by="alice")).run_id)
            wake = await control.wake("s", "look", every=1000, by="alice")
            said = []
            for wanted in (wake.id, "w-1-999"):
                with pytest.raises(Unknown) as refused:
                    await control.unwake(wanted, by="mallory")
                said.append(str(refused.value).replace(wanted, "?"))
            assert said[0] == said[1]
            assert [each.id for each in await control.wakes("s", by="alice")] == [wake.id]

    seeded(main)
