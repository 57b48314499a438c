"""P7. Only those with the right can stop, take over, answer or see a run; the right belongs to the principal, not to
the connection. Stopping is easier than starting: its own limits, never starved.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest

from interlock import (
    Control,
    Ending,
    InterlockError,
    MemoryStore,
    Message,
    QueueFull,
    Run,
    Settings,
    Strategy,
    Unknown,
    open_control,
)
from interlock.core import verbs
from interlock.core.authority import RIGHTS, Action, Authority, Relation, may
from interlock.core.names import EventKind
from interlock.runtime.registry import TOMBSTONES
from interlock.runtime.settings import ARRIVALS
from runtime.scene import Sink

from .scene import seeded

BRIEF = Settings(grace_seconds=0.2, drain_seconds=0.3, queue=3)

MAY_STOP = {"owner": True, "principal": True, "admin": True, "local": True, "reader": False, "stranger": False}
MAY_SEE_RUN = {**MAY_STOP, "reader": True}
MAY_SEE_SESSION = MAY_SEE_RUN


async def idles(run: Run, message: Message) -> None:
    """Wait for ever."""
    await run.say("part")
    await asyncio.sleep(3600)


def scene(act: Callable[[Control, str], Awaitable[Any]]) -> None:
    """A session that `owner` made, in which a message of `principal` runs."""

    async def main() -> None:
        kept = MemoryStore()
        async with open_control(idles, store=kept, settings=BRIEF, admins=["admin"], readers=["reader"]) as control:
            first = await control.send("s", "mine", by="owner")
            await control.stop(run=first.run_id, by="owner")
            await control.share("s", with_="principal")
            sent = await control.send("s", "hello", by="principal")
            sink = Sink(control)
            await sink.until(sent.run_id, EventKind.DELTA)
            await act(control, sent.run_id)

    seeded(main, range(3))


@pytest.mark.parametrize("by", MAY_STOP)
@pytest.mark.parametrize("scope", ["run", "session"])
def test_who_may_stop(scope: str, by: str) -> None:
    """A stop without the right ends nothing and tells nothing; with the right it ends the run in the caller's name."""

    async def act(control: Control, run_id: str) -> None:
        generation = control._registry.generations.get("s")
        receipt = await control.stop(by=by, **({"run": run_id} if scope == "run" else {"session": "s"}))
        outcome = await control.wait(run_id, timeout=1)
        if MAY_STOP[by]:
            assert receipt.aborted and (outcome.ending, outcome.by) == (Ending.STOPPED, by)
        else:
            assert (receipt.aborted, receipt.already, receipt.runs, receipt.id) == (False, None, (), None)
            assert outcome.ending is Ending.PENDING
            assert control._registry.generations.get("s") == generation

    scene(act)


@pytest.mark.parametrize("by", MAY_STOP)
def test_who_may_take_over(by: str) -> None:
    """A message takes over only what its sender may stop; a stranger's and a reader's find no session."""

    async def act(control: Control, run_id: str) -> None:
        if by in ("reader", "stranger"):
            with pytest.raises(Unknown):
                await control.send("s", "new", by=by)
            assert (await control.wait(run_id, timeout=1)).ending is Ending.PENDING
            return
        sent = await control.send("s", "new", by=by)
        assert (sent.superseded, sent.generation is None) == ((run_id, False) if MAY_STOP[by] else (None, True))
        expected = Ending.SUPERSEDED if MAY_STOP[by] else Ending.PENDING
        assert (await control.wait(run_id, timeout=1)).ending is expected

    scene(act)


@pytest.mark.parametrize("by", MAY_STOP)
def test_who_may_see(by: str) -> None:
    """A run or session that a caller may not see looks in every verb exactly like one that is not there."""

    async def outcome_of(asked: Awaitable[Any]) -> str:
        try:
            await asked
        except InterlockError as error:
            return f"{type(error).__name__}: {error}"
        return "seen"

    async def first_of(events: Any) -> object:
        async with aclosing(events):
            return await anext(events)

    async def act(control: Control, run_id: str) -> None:
        seen = (await control.wait(run_id, timeout=0, by=by)).ending is Ending.PENDING
        assert seen is MAY_SEE_RUN[by]
        assert (run_id in [info.id for info in await control.runs(by=by)]) is MAY_SEE_RUN[by]
        for ask, allowed in (
            (lambda s, r: first_of(control.watch(run=r, by=by)), MAY_SEE_RUN),
            (lambda s, r: first_of(control.watch(s, by=by)), MAY_SEE_SESSION),
            (lambda s, r: control.history(s, by=by), MAY_SEE_SESSION),
        ):
            here, nowhere = await outcome_of(ask("s", run_id)), await outcome_of(ask("no-s", "no-r"))
            assert nowhere.startswith("Unknown")
            assert here == "seen" if allowed[by] else here == nowhere.replace("no-s", "s").replace("no-r", run_id)
        await control.stop(run=run_id)
        here, nowhere = [await outcome_of(control.receipt(wanted, by=by)) for wanted in (run_id, "no-r")]
        assert here == "seen" if MAY_SEE_RUN[by] else here == nowhere.replace("no-r", run_id)

    scene(act)


def test_the_right_is_the_principal_s() -> None:
    """A principal has the same rights from another task, from another connection, and after a restart."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(idles, store=store, settings=BRIEF) as control:
            sent = await control.send("s", "hello", by="alice")
            elsewhere = asyncio.create_task(control.stop(run=sent.run_id, by="mallory"))
            assert not (await elsewhere).aborted
            elsewhere = asyncio.create_task(control.stop(run=sent.run_id, by="alice"))
            assert (await elsewhere).aborted
        async with open_control(idles, store=store, settings=BRIEF) as control:
            assert (await control.wait(sent.run_id, by="alice")).ending is Ending.STOPPED
            assert (await control.wait(sent.run_id, by="mallory")).ending is Ending.UNKNOWN
            with pytest.raises(Unknown):
                await control.send("s", "again", by="mallory")
            await control.share("s", with_="mallory", by="alice")
            new = await control.send("s", "again", by="mallory")
            assert (await control.stop(session="s", by="alice")).runs[0].id == new.run_id, "alice made the session"

    seeded(main)


def test_a_session_stop_ends_what_the_caller_may() -> None:
    """In a shared session a stop ends the caller's own messages, lists them, and leaves those of others to go on."""

    async def main() -> None:
        async with open_control(idles, strategy="queue", settings=BRIEF) as control:
            owner = await control.send("s", "of owner", by="owner")
            for guest in ("bob", "carol"):
                await control.share("s", with_=guest, by="owner")
            bob, carol = [await control.send("s", f"of {by}", by=by) for by in ("bob", "carol")]
            receipt = await control.stop(session="s", by="bob")
            assert [run.id for run in receipt.runs] == [bob.run_id]
            assert (await control.wait(owner.run_id, timeout=1)).ending is Ending.PENDING
            receipt = await control.stop(session="s", by="owner")
            assert {run.id for run in receipt.runs} == {owner.run_id, carol.run_id}

    seeded(main)


def test_a_key_belongs_to_its_principal() -> None:
    """A stop by key ends only the caller's own message of that key, before and after it was seen."""

    async def main() -> None:
        async with open_control(idles, settings=BRIEF) as control:
            sent = await control.send("s", "hello", by="alice", key="k")
            assert not (await control.stop(message="k", by="mallory")).aborted
            assert (await control.wait(sent.run_id, timeout=1)).ending is Ending.PENDING
            assert (await control.stop(message="k", by="alice")).aborted
            assert not (await control.stop(message="next", by="mallory")).aborted
            unharmed = await control.send("s", "hello", by="alice", key="next")
            assert (await control.wait(unharmed.run_id, timeout=1)).ending is Ending.PENDING

    seeded(main)


def test_stopping_works_where_starting_is_refused() -> None:
    """With the queue full, the store gone and thousands of messages undecided, a stop still ends everything."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(idles, store=store, settings=BRIEF, strategy="queue") as control:
            sent = [await control.send("s", str(n), by="alice") for n in range(4)]
            with pytest.raises(QueueFull):
                await control.send("s", "one too many", by="alice")
            store.faults.stall = True
            for _ in range(ARRIVALS):
                control.ask(verbs.Send(session="t", text="text", strategy=Strategy.QUEUE), by="alice")
            with pytest.raises(QueueFull):
                await control.send("t", "text", by="alice")
            undecided = await control.stop(session="t", by="alice")
            queued = await control.stop(session="s", by="alice")
            assert (len(undecided.runs), len(queued.runs)) == (ARRIVALS, len(sent))
            store.resume()
            await asyncio.sleep(2)

    seeded(main, (1,))


def test_nobody_can_push_out_another_s_stop() -> None:
    """A principal's stops of unseen keys, however many, never push out another's tombstone."""

    async def main() -> None:
        async with open_control(idles, settings=BRIEF) as control:
            await control.stop(message="mine", by="alice")
            for n in range(TOMBSTONES + 10):
                await control.stop(message=f"k{n}", by="mallory")
            sent = await control.send("s", "hello", by="alice", key="mine")
            assert (await control.wait(sent.run_id)).ending is Ending.STOPPED

    seeded(main, (1,))


def test_what_is_not_in_the_table_is_denied() -> None:
    """An action without an entry is denied to everyone, and a relation not named in an entry to those in it."""
    everyone = list(Relation)
    assert not may("demolish", everyone)  # type: ignore[arg-type]
    assert set(RIGHTS) == set(Action)
    for action, allowed in RIGHTS.items():
        assert all(may(action, [relation]) is (relation in allowed) for relation in everyone)
        assert not may(action, [])
        assert Relation.READER not in allowed or action in (Action.SEE_RUN, Action.SEE_SESSION)
    assert not Authority().may(Action.STOP, "mallory", principal=None)  # type: ignore[arg-type]
