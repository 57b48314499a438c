"""The client against a real server: every verb, and every way a connection can end."""

import asyncio
import contextlib
import inspect
import random
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest

from client.scene import Road, Served, play, until
from interlock import (
    BadInput,
    Control,
    Ending,
    InterlockError,
    KeyConflict,
    Outcome,
    QuestionClosed,
    Refused,
    Rejected,
    Unavailable,
    Unknown,
    events,
)
from interlock.client import Client, connect
from interlock.client.caller import Caller
from interlock.client.listening import Seen
from interlock.core.lifecycle import State
from interlock.core.names import Drain, Principal, QuestionState, RunId, SessionId


def text_of(told: list[events.Event]) -> str:
    """Return the joined deltas of a reply."""
    return "".join(event.data.text for event in told if isinstance(event.data, events.Delta))


def in_order(told: list[events.Event]) -> bool:
    """Return whether positions rise and every run has at most one ending."""
    ends = [event.run_id for event in told if isinstance(event.data, events.Ended)]
    return all(a.position < b.position for a, b in pairwise(told)) and len(ends) == len(set(ends))


# Verbs


def test_the_client_has_controls_verbs(served: Served) -> None:
    """Each verb is one function for control and client; a client refuses to speak for another principal."""
    verbs = {name for name, each in vars(Caller).items() if inspect.isfunction(each)} - {"ask", "listen"}
    assert {"send", "stop", "wait", "watch", "share", "wake"} < verbs
    for verb in verbs:
        assert getattr(Control, verb) is getattr(Client, verb), verb

    async def scene() -> None:
        async with connect(served.url, served.token) as client:
            for asking in (client.send("s", "hello", by="bob"), anext(client.watch("s", by="bob"))):
                with pytest.raises(BadInput, match="one principal"):
                    await asking

    play(scene())


def test_a_message_and_everything_about_it(served: Served) -> None:
    """A message can be watched to its end, and every verb that reads finds it."""

    async def scene() -> None:
        async with connect(served.url, served.token) as client:
            sent = await client.send("verbs", "use words", key="verbs-1")
            told = [event async for event in client.watch(run=sent.run_id)]
            assert in_order(told) and isinstance(told[-1].data, events.Ended)
            outcome = await client.wait(sent.run_id, drained=True)
            assert outcome.ending is Ending.COMPLETED and outcome.text == "found words" and outcome.drained
            found = await client.find("verbs-1")
            assert found is not None and found.id == sent.run_id and found.state is State.ENDED
            assert await client.find("nothing") is None
            assert [run.id for run in await client.runs("verbs")] == [sent.run_id]
            assert sent.run_id in [run.id for run in await client.runs(latest=100)]
            assert "operator/verbs" in [each.session.id for each in await client.sessions()]
            assert [entry.role for entry in await client.history("verbs")] == ["user", "call", "result", "assistant"]
            receipt = await client.receipt(sent.run_id)
            assert receipt.drain is Drain.OBSERVED and await client.receipt(str(receipt.id)) == receipt
            assert [moment.what for moment in await client.timeline(sent.run_id)][-2:] == ["ended", "drained"]
            again = await client.send("verbs", "use words", key="verbs-1")
            assert again.run_id == sent.run_id

    play(scene())


def test_stopping_by_session_run_and_key(served: Served) -> None:
    """A stop returns its receipt; a key may be stopped before its message comes."""

    async def scene() -> None:
        async with connect(served.url, data=served.data) as client:
            first = await client.send("stops", "hang")
            assert (await client.wait(first.run_id, timeout=0.05)).ending is Ending.PENDING
            receipt = await client.stop(session="stops")
            assert receipt.aborted and [run.id for run in receipt.runs] == [first.run_id]
            assert (await client.wait(first.run_id, drained=True)).ending is Ending.STOPPED
            second = await client.send("stops", "spawn")
            await until(lambda: _some(client.processes("stops")))
            assert (await client.stop(run=second.run_id)).aborted
            third = await client.send("stops", "hang", key="stops-3")
            assert (await client.stop(message="stops-3")).runs[0].id == third.run_id
            assert not (await client.stop(message="stops-4")).aborted
            fourth = await client.send("stops", "hang", key="stops-4")
            assert (await client.wait(fourth.run_id)).ending is Ending.STOPPED
            reset = await client.reset("stops")
            assert not reset.aborted and await client.history("stops") == []
            assert (await client.wait("r-0-0")).ending is Ending.UNKNOWN

    play(scene())


async def _some(listing: object) -> bool:
    return bool(await listing)  # type: ignore[misc]


def test_questions_schedules_and_strategies(served: Served) -> None:
    """A client answers questions, makes and removes schedules, and sets strategies."""

    async def scene() -> None:
        async with connect(served.url, served.token) as client:
            sent = await client.send("asks", "ask")
            await until(lambda: _some(client.questions("asks")))
            (question,) = await client.questions("asks")
            assert (await client.answer(question.id, True)).state is QuestionState.ANSWERED
            assert (await client.answer(question.id, True)).answer is True, "the same answer again is no error"
            with pytest.raises(QuestionClosed):
                await client.answer(question.id, False)
            assert (await client.wait(sent.run_id)).text == "answered True"
            wake = await client.wake("asks", "hello", every=3600.0)
            assert [each.id for each in await client.wakes("asks")] == [wake.id]
            await client.unwake(wake.id)
            assert await client.wakes("asks") == []
            await client.set_strategy("asks", "reject")
            busy = await client.send("asks", "hang")
            with pytest.raises(Rejected):
                await client.send("asks", "me too")
            await client.stop(run=busy.run_id)

    play(scene())


def test_errors_are_the_same_classes(served: Served) -> None:
    """The client raises the class that control raised, and refuses itself what cannot be sent."""

    async def scene() -> None:
        async with connect(served.url, served.token) as client:
            with pytest.raises(Unknown):
                await client.history("nobody was here")
            with pytest.raises(Unknown):
                [event async for event in client.watch(run="r-0-0")]
            with pytest.raises(BadInput):
                [event async for event in client.watch()]
            with pytest.raises(BadInput):
                await client.send("errors", "hello", strategy="hurry")
            with pytest.raises(BadInput):
                await client.send("errors", "hello", deadline=float("nan"))
            with pytest.raises(BadInput):
                await client.send("errors", "x" * 2_000_000)
            with pytest.raises(BadInput):
                await client.send("errors", "\ud800")
            await client.send("errors", "hello", key="errors-1")
            with pytest.raises(KeyConflict):
                await client.send("errors", "something else", key="errors-1")
        with pytest.raises(BadInput, match="closed"):
            await client.runs()

    play(scene())


# Connecting


@pytest.mark.parametrize(
    ("url", "kind", "words"),
    [
        ("http://127.0.0.1:9", Unavailable, "interlock serve"),
        ("http://user:planted@127.0.0.1:1", BadInput, "no user, token"),
        ("ws://127.0.0.1:1/?token=planted", BadInput, "no user, token"),
        ("ftp://127.0.0.1", BadInput, "no URL"),
        ("http://", BadInput, "no URL"),
        ("http://[::1", BadInput, "no URL"),
        ("nonsense", BadInput, "no URL"),
        (f"http://{'a' * 70}.invalid", Unavailable, "URL"),
    ],
)
def test_a_wrong_url_is_told_at_once(url: str, kind: type[InterlockError], words: str) -> None:
    """A wrong URL, or one without a server, raises at once, and no error repeats a secret."""

    async def scene() -> None:
        with pytest.raises(kind, match=words) as refused:
            async with connect(url, "a token"):
                pass
        assert "planted" not in str(refused.value)

    began = time.monotonic()
    play(scene())
    assert time.monotonic() - began < 10


def test_a_wrong_token_is_refused_and_not_repeated(served: Served, tmp_path: Path) -> None:
    """A wrong token, and a directory without a token, raise at once with what to do."""

    async def scene() -> None:
        with pytest.raises(Refused, match="does not know this token") as refused:
            async with connect(served.url, "planted-secret"):
                pass
        assert "planted-secret" not in str(refused.value)
        with pytest.raises(BadInput, match="no token in"):
            async with connect(served.url, data=tmp_path):
                pass
        with pytest.raises(BadInput, match="one of"):
            async with connect(served.url):
                pass
        async with connect(served.url, served.token) as client:
            assert served.token not in repr(vars(client))

    play(scene())


def test_what_is_no_gateway_is_told_so() -> None:
    """The client gives up on a server of another kind at once, and follows no redirect with a token."""

    async def scene() -> None:
        answers = [
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi",
            b"HTTP/1.1 307 Moved\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n",
            b"SSH-2.0-other\r\n",
        ]

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answers.pop())
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as other:
            for left in (2, 1, 0):
                with pytest.raises(Unavailable, match="no gateway"):
                    async with connect(f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}", "a token"):
                        pass
                assert len(answers) == left

    play(scene())


# Connections that drop


def test_a_watch_survives_cuts_without_gap_or_duplicate(served: Served) -> None:
    """A watcher is told everything once, however often the connection is cut while a run streams."""

    async def scene() -> None:
        dice = random.Random(7)
        async with Road(served.port) as road, connect(road.url, served.token) as client:

            async def cutting() -> None:
                for _ in range(6):
                    aim = road.passed + dice.randrange(300, 9_000)
                    while road.passed < aim:
                        await asyncio.sleep(0.001)
                    road.cut()

            sent = await client.send("cuts", "count 400")
            cuts = asyncio.create_task(cutting())
            told = [event async for event in client.watch(run=sent.run_id)]
            cuts.cancel()
            assert road.cuts >= 4
        whole = "".join(f"{number} " for number in range(400))
        assert in_order(told) and isinstance(told[-1].data, events.Ended)
        assert [event.data.text for event in told if isinstance(event.data, events.Block)] == [whole]
        assert text_of(told) == whole

    play(scene())


def test_a_watch_of_a_run_ends_though_it_ended_meanwhile(served: Served) -> None:
    """An ending that came while the connection was down is told on the next connection."""

    async def scene() -> None:
        async with Road(served.port) as road, connect(road.url, served.token) as client:
            sent = await client.send("meanwhile", "hang")
            told: list[events.Event] = []
            async for event in client.watch(run=sent.run_id):
                told.append(event)
                if isinstance(event.data, events.Delta):
                    road.lost_down = road.lost_up = True
                    async with connect(served.url, served.token) as other:
                        await other.stop(run=sent.run_id)
                    road.cut()
            assert in_order(told) and isinstance(told[-1].data, events.Ended)
            assert told[-1].data.outcome.ending is Ending.STOPPED

    play(scene())


def test_a_message_whose_answer_was_lost_runs_once(served: Served) -> None:
    """A message whose answer was lost is sent again under the client's own key, and runs once."""

    async def scene() -> None:
        async with Road(served.port) as road, connect(road.url, served.token) as client:
            road.lost_down = True
            sending = asyncio.create_task(client.send("once", "hello"))
            async with connect(served.url, served.token) as other:
                await until(lambda: _ended(other, "once"))
            road.cut()
            sent = await sending
            assert [run.id for run in await client.runs("once")] == [sent.run_id]

    play(scene())


async def _true(fact: bool) -> bool:
    return fact


async def _ended(client: Client, session: str) -> bool:
    with contextlib.suppress(Unknown):
        return any(run.state is State.ENDED for run in await client.runs(session))
    return False


def test_a_sessions_stop_is_not_repeated_behind_a_newer_message(served: Served) -> None:
    """A session's stop whose answer was lost is not repeated after a newer message, which it would end."""

    async def scene() -> None:
        async with Road(served.port) as road, connect(road.url, served.token) as client:
            old = await client.send("newer", "hang")
            road.lost_up = True
            stopping = asyncio.create_task(client.stop(session="newer"))
            await until(lambda: _true(road.lost > 0))
            before = road.lost
            sending = asyncio.create_task(client.send("newer", "hang"))
            await until(lambda: _true(road.lost > before))
            road.cut()
            with pytest.raises(Unavailable, match="may have happened"):
                await stopping
            new = await sending
            assert (await client.wait(old.run_id)).superseded_by == new.run_id
            assert (await client.wait(new.run_id, timeout=0.1)).ending is Ending.PENDING
            road.lost_down = True
            again = asyncio.create_task(client.stop(session="newer"))
            async with connect(served.url, served.token) as other:
                assert (await other.wait(new.run_id)).ending is Ending.STOPPED
            road.cut()
            assert (await again).again, "asked again, since nothing newer was sent: told what came of it"

    play(scene())


def test_patience_ends(served: Served) -> None:
    """A verb without a connection gives up after its patience; a schedule is not made twice."""

    async def scene() -> None:
        async with Road(served.port) as road, connect(road.url, served.token, patience=0.5) as client:
            await client.send("patience", "hello")
            road.lost_down = True
            making = asyncio.create_task(client.wake("patience", "hello", every=3600.0))
            async with connect(served.url, served.token) as other:
                await until(lambda: _some(other.wakes("patience")))
                road.cut()
                with pytest.raises(Unavailable, match="may have happened"):
                    await making
                assert len(await other.wakes("patience")) == 1
            road.close()
            began = time.monotonic()
            with pytest.raises(Unavailable, match="no connection"):
                # The first call may still find the connection that is about to close.
                while True:
                    await client.runs()
            assert 0.4 < time.monotonic() - began < 15

    play(scene())


def test_a_cancelled_waiter_leaves_the_run_alone(served: Served) -> None:
    """A cancelled wait stops nothing, and `close` does not wait for open waits."""

    async def scene() -> None:
        async with Road(served.port) as road, connect(road.url, served.token) as client:
            sent = await client.send("waiters", "hang")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.wait(sent.run_id), 0.05)
            assert (await client.wait(sent.run_id, timeout=0)).ending is Ending.PENDING
            waiting = asyncio.create_task(client.wait(sent.run_id))
            watching = asyncio.create_task(_last(client, sent.run_id))
            await asyncio.sleep(0.05)
            road.lost_down = road.lost_up = True
            began = time.monotonic()
            await client.close()
            for task in (waiting, watching):
                with pytest.raises(BadInput, match="closed"):
                    await task
            assert time.monotonic() - began < 15
        async with connect(served.url, served.token) as other:
            assert (await other.stop(run=sent.run_id)).aborted

    play(scene())


def test_more_may_wait_than_the_gateway_takes_at_once(served: Served) -> None:
    """A hundred waits on one connection take turns; other verbs are not delayed."""

    async def scene() -> None:
        async with connect(served.url, served.token) as client:
            sent = await client.send("crowd", "hang")
            crowd = [asyncio.create_task(client.wait(sent.run_id)) for _ in range(100)]
            for _ in range(10):
                assert (await client.wait(sent.run_id, timeout=0)).ending is Ending.PENDING
            assert (await client.stop(session="crowd")).aborted
            assert {outcome.ending for outcome in await asyncio.gather(*crowd)} == {Ending.STOPPED}

    play(scene())


async def _last(client: Client, run_id: str) -> events.Event:
    return [event async for event in client.watch(run=run_id)][-1]


def test_a_slow_watcher_holds_up_nobody(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watcher that does not read delays no verb and holds little; once it reads, it gets every event."""
    monkeypatch.setattr("interlock.client.watch.WATCH_EVENTS", 8)

    async def scene() -> None:
        async with connect(served.url, served.token) as client:
            sent = await client.send("slow", "flood 3000")
            slow = client.watch("slow")
            told = [await anext(slow)]
            heard: list[events.Event] = []
            async for event in client.watch(run=sent.run_id):
                heard.append(event)
                if isinstance(event.data, events.Block) and event.data.text == "that was the flood":
                    break
            began = time.monotonic()
            assert (await client.stop(run=sent.run_id)).aborted
            assert time.monotonic() - began < 15, "it waited for one who reads later"
            while not isinstance(told[-1].data, events.Ended):
                told.append(await anext(slow))
            await slow.aclose()
            assert in_order(told) and in_order(heard)
            blocks = [event.data.text for event in told if isinstance(event.data, events.Block)]
            assert blocks == ["".join(f"{number} " for number in range(3000)), "that was the flood"]
            deltas = sum(event.kind == "delta" for event in told)
            assert deltas <= 8, "what it had no room for was read again, when the deltas were stale"

    play(scene())


@pytest.mark.parametrize("other", ["operator/alias", "alias"])
def test_a_session_by_another_name_counts_as_newer(served: Served, other: str) -> None:
    """`alias` and `operator/alias` are one session: a message to either protects its run from the older stop."""
    stopped = {"alias": "operator/alias", "operator/alias": "alias"}[other]

    async def scene() -> None:
        async with Road(served.port) as road, connect(road.url, served.token) as client:
            old = await client.send("alias", "hang")
            road.lost_up = True
            stopping = asyncio.create_task(client.stop(session=stopped))
            await until(lambda: _true(road.lost > 0))
            before = road.lost
            sending = asyncio.create_task(client.send(other, "hang"))
            await until(lambda: _true(road.lost > before))
            road.cut()
            with pytest.raises(Unavailable, match="may have happened"):
                await stopping
            sent = await sending
            assert sent.superseded == old.run_id
            assert (await client.wait(sent.run_id, timeout=0)).ending is Ending.PENDING
            assert (await client.stop(session=other)).aborted

    play(scene())


def test_a_session_is_shared_and_taken_back(served: Served) -> None:
    """A guest reads or writes by the owner's name for the session; a watch and a wait end with the share."""
    token = served.add("guest", "write")

    async def scene() -> None:
        async with connect(served.url, served.token) as owner, connect(served.url, token) as guest:
            sent = await owner.send("shared", "hang")
            assert (sent.session, sent.owner) == ("operator/shared", "operator")
            for verb in (guest.history("operator/shared"), guest.history("nobody/shared")):
                with pytest.raises(Unknown, match="no session"):
                    await verb
            given = await owner.share("shared", with_="guest", may="read")
            # A repeated share gets the same answer.
            assert given == await owner.share("operator/shared", with_="guest", may="read")
            assert (given.session, given.owner, given.shares) == ("operator/shared", "operator", {"guest": "read"})
            assert [each.session.shares for each in await guest.sessions()] == [{"guest": "read"}]
            with pytest.raises(Unknown):
                await guest.send("operator/shared", "hello")
            assert (await owner.share("shared", with_="guest")).shares == {"guest": "write"}
            mine = await guest.send("operator/shared", "hello")
            assert (mine.owner, mine.state) == ("operator", State.QUEUED)
            waiting = asyncio.create_task(guest.wait(mine.run_id))
            watching = guest.watch("operator/shared")
            assert (await anext(watching)).session == "operator/shared"
            assert (await owner.unshare("shared", with_="guest")).shares == {}
            assert (await waiting).ending is Ending.UNKNOWN
            with pytest.raises(Unknown):
                async for _ in watching:
                    pass
            with pytest.raises(Unknown):
                await guest.share("operator/shared", with_="guest")
            assert await guest.sessions() == []
            with pytest.raises(Refused):
                await guest.stop_all(of="operator")
            receipts = await owner.stop_all(of="operator")
            assert {run.id for each in receipts for run in each.runs} >= {sent.run_id, mine.run_id}

    play(scene())


def test_nothing_of_an_older_run_comes_behind_a_newer_one(served: Served) -> None:
    """After a takeover, no delta of the old run is told once the new run has begun."""

    async def scene() -> None:
        async with connect(served.url, served.token) as client:
            first = await client.send("takeover", "flood 2000")
            watch = client.watch("takeover")
            told = [await anext(watch)]
            second = await client.send("takeover", "count 5")
            while not (told[-1].run_id == second.run_id and isinstance(told[-1].data, events.Ended)):
                told.append(await anext(watch))
            await watch.aclose()
            begun = next(
                at for at, event in enumerate(told)
                if event.run_id == second.run_id and isinstance(event.data, events.Started)
            )  # fmt: skip
            assert not [event for event in told[begun:] if event.run_id == first.run_id and event.kind == "delta"]

    play(scene())


def test_stale_and_repeated_events_are_dropped() -> None:
    """The client drops events of an older run after a newer start, events after an ending, and repeated events."""

    def event(position: int, generation: int, data: events.Data) -> events.Event:
        return events.Event(
            position=position, session=SessionId("s"), run_id=RunId(f"r-{generation}"), generation=generation, data=data
        )

    end = events.Ended(outcome=Outcome(run_id=RunId("r-2"), ending=Ending.LOST))
    seen = Seen(4)
    story = [
        (event(4, 1, events.Started()), False),
        (event(5, 1, events.Started()), True),
        (event(6, 1, events.Delta(text="a")), True),
        (event(6, 1, events.Delta(text="a")), False),
        (event(7, 2, events.Started()), True),
        (event(8, 1, events.Delta(text="late")), False),
        (event(9, 2, events.Delta(text="b")), True),
        (event(10, 2, end), True),
        (event(11, 2, events.Typing(on=True)), False),
        (event(12, 2, end), False),
        (event(13, 3, events.MessageData(text="c", by=Principal("p"))), True),
    ]
    assert [seen.passes(each) for each, _ in story] == [news for _, news in story]
    assert seen.position == 13


# Servers that end


def test_a_server_that_was_killed_and_came_back(tmp_path: Path) -> None:
    """After kill -9 the watch tells the run as `lost`, its key names the same run, and a rotated token is found."""
    server = Served(tmp_path / "data")
    port = server.port

    async def scene() -> None:
        nonlocal server
        async with connect(server.url, data=server.data) as client:
            sent = await client.send("killed", "hang so far", key="killed-1")
            told: list[events.Event] = []
            async for event in client.watch("killed"):
                told.append(event)
                if isinstance(event.data, events.Delta):
                    await asyncio.to_thread(server.end, signal.SIGKILL)
                    server = await asyncio.to_thread(Served, server.data, port=port)
                if isinstance(event.data, events.Ended):
                    break
            assert in_order(told) and isinstance(told[-1].data, events.Ended)
            assert told[-1].data.outcome.ending is Ending.LOST
            await client.rotate_token()
            assert events.Gap in {type(event.data) for event in told}, "what was said and not kept is a gap"
            assert (await client.wait(sent.run_id)).ending is Ending.LOST
            assert (await client.send("killed", "hang so far", key="killed-1")).run_id == sent.run_id
            async with connect(server.url, data=server.data) as other:  # the rotated token works for both clients
                assert await other.runs("killed") == await client.runs("killed")
            queued = await client.send("killed", "hang")
            later = await client.send("killed", "late", strategy="queue")
            waiting = asyncio.create_task(client.wait(later.run_id))
            watching = asyncio.create_task(_last(client, later.run_id))
            await asyncio.sleep(0.1)
            await asyncio.to_thread(server.end)
            server = await asyncio.to_thread(Served, server.data, port=port)
            assert (await waiting).text == "late", "a message that waited is kept, and so is who waits for it"
            assert isinstance((await watching).data, events.Ended)
            assert (await client.wait(queued.run_id)).ending is Ending.SHUTDOWN

    try:
        play(scene())
    finally:
        server.end()
