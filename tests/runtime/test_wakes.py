"""Wakes: they yield to everyone, outlive stops and restarts, and a stale one does nothing."""

import asyncio
import math
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import anyio
import pytest

from interlock import (
    BadInput,
    Control,
    Ending,
    MemoryStore,
    Message,
    Refused,
    Run,
    Settings,
    Unavailable,
    Unknown,
    Wake,
    open_control,
)
from interlock.core.decision import WakeRow
from interlock.runtime.wakes import next_time

from .scene import at_once, echoes, now, seeded, started

pytestmark = pytest.mark.usefixtures("nothing_breaks")

BERLIN = ZoneInfo("Europe/Berlin")
SLACK = 0.2  # timers on the virtual clock may come a little early or late


class Sleeper:
    """An agent that writes down when which text began; those it is told to hold go on until they are ended."""

    def __init__(self, *holds: str) -> None:
        self.holds = holds
        self.began: list[tuple[str, float]] = []
        self.runs: list[str] = []

    @property
    def texts(self) -> list[str]:
        """The texts that began, in order."""
        return [text for text, _ in self.began]

    def times(self, text: str) -> list[float]:
        """When a text began."""
        return [at for begun, at in self.began if begun == text]

    async def __call__(self, run: Run, message: Message) -> str:
        self.began.append((message.text, now()))
        self.runs.append(run.id)
        if message.text in self.holds:
            await anyio.sleep_forever()
        return "done"


def wall() -> float:
    """The virtual loop's time as people read it."""
    return asyncio.get_running_loop().wall()  # type: ignore[attr-defined, no-any-return]


async def founded(control: Control, by: str = "local") -> None:
    """Make a session and let it come to rest."""
    sent = await control.send("s", "hello", by=by)
    await control.wait(sent.run_id, drained=True)


async def began(agent: Sleeper, text: str, count: int = 1) -> str:
    """Wait until a text has begun so many times; return the last run's id."""
    with anyio.fail_after(300):
        while agent.texts.count(text) < count:
            await anyio.sleep(0.1)
    return agent.runs[len(agent.texts) - 1 - agent.texts[::-1].index(text)]


async def only(control: Control) -> Wake:
    """The session's one schedule."""
    [wake] = await control.wakes("s")
    return wake


# Firing


def test_a_heartbeat() -> None:
    """A schedule sends its message again and again, each time as a run of its own that anyone may ask for."""

    async def main() -> None:
        agent = Sleeper()
        async with open_control(agent) as control:
            await founded(control, "alice")
            made = now()
            wake = await control.wake("s", "tick", every=10, by="alice")
            assert (wake.session, wake.text, wake.by, wake.every, wake.skipped) == ("s", "tick", "alice", 10, 0)
            assert wake.next_at is not None and abs(wake.next_at - wall() - 10) < SLACK
            await anyio.sleep(35)
            assert len(agent.times("tick")) == 3
            for n, at in enumerate(agent.times("tick")):
                assert abs(at - made - 10 * (n + 1)) < SLACK
            wakes = [info for info in await control.runs("s", by="alice") if info.kind == "wake"]
            assert [info.outcome and info.outcome.ending for info in wakes] == [Ending.COMPLETED] * 3
            assert {info.principal for info in wakes} == {"alice"}
            texts = [entry.text for entry in await control.history("s") if entry.role == "user"]
            assert texts == ["hello", "tick", "tick", "tick"]
            assert (await only(control)).skipped == 0

    seeded(main)


@pytest.mark.parametrize("form", ["seconds", "utc", "berlin"])
def test_an_alarm_rings_once(form: str) -> None:
    """`at` fires once, then its schedule is gone, here and in the store."""

    async def main() -> None:
        store, agent = MemoryStore(), Sleeper()
        async with open_control(agent, store=store) as control:
            await founded(control)
            due = wall() + 20
            zone = {"utc": UTC, "berlin": BERLIN}.get(form)
            wake = await control.wake("s", "ring", at=due if zone is None else datetime.fromtimestamp(due, zone))
            assert wake.at is not None and abs(wake.at - due) < 0.001
            made = now()
            await anyio.sleep(60)
            [at] = agent.times("ring")
            assert abs(at - made - 20) < SLACK
            assert await control.wakes("s") == [] and await store.wakes() == ()

    seeded(main, range(3))


def test_a_cron_line() -> None:
    """A cron line fires at the minutes it names."""

    async def main() -> None:
        agent = Sleeper()
        async with open_control(agent) as control:
            await founded(control)
            wake = await control.wake("s", "tick", cron="*/2 * * * *")
            assert wake.cron == "*/2 * * * *" and wake.next_at is not None
            assert wake.next_at % 120 == 0 and 0 < wake.next_at - wall() <= 120
            shift = wall() - now()
            await anyio.sleep(360)
            rang = [at + shift for at in agent.times("tick")]
            assert len(rang) == 3 and all(abs(at - round(at / 120) * 120) < SLACK for at in rang)

    seeded(main, range(3))


def test_a_timedelta() -> None:
    """`every` may be said as a timedelta."""

    async def main() -> None:
        agent = Sleeper()
        async with open_control(agent) as control:
            await founded(control)
            assert (await control.wake("s", "tick", every=timedelta(minutes=1))).every == 60
            await anyio.sleep(90)
            assert agent.texts.count("tick") == 1

    seeded(main, range(2))


# Yielding


@pytest.mark.parametrize("busy", ["seat", "collected", "strangers"])
def test_a_wake_is_skipped_while_the_session_is_busy(busy: str) -> None:
    """While anyone has the seat or waits for it the wake is skipped, counted, and not made up."""

    async def main() -> None:
        agent = Sleeper("long")
        async with open_control(agent, settings=Settings(collect_seconds=4)) as control:
            await founded(control, "alice")
            await control.share("s", with_="bob")
            await control.wake("s", "tick", every=10, by="alice")
            if busy == "collected":
                await anyio.sleep(8)
                for _ in range(8):
                    # The collected messages wait over the 10th, the 20th and the 30th second.
                    await control.send("s", "more", strategy="collect", by="alice")
                    await anyio.sleep(3)
            else:
                long = await control.send("s", "long", by="bob" if busy == "strangers" else "alice")
                await anyio.sleep(32)
                assert (await control.wait(long.run_id, timeout=1)).ending is Ending.PENDING
            assert "tick" not in agent.texts
            assert (await only(control)).skipped == 3
            await control.stop(session="s")
            await anyio.sleep(3)
            assert "tick" not in agent.texts  # not made up
            await began(agent, "tick")
            assert (await only(control)).skipped == 3
            assert [info.kind for info in await control.runs("s")].count("wake") == 1

    seeded(main, range(4))


@pytest.mark.parametrize("strategy", ["interrupt", "rollback", "queue", "reject", "steer", "collect"])
@pytest.mark.parametrize("by", ["alice", "bob"])
def test_any_message_takes_a_wake_over(strategy: str, by: str) -> None:
    """A person's message goes first, whatever the strategy and whoever sends it."""

    async def main() -> None:
        agent = Sleeper("tick")
        async with open_control(agent) as control:
            await founded(control, "alice")
            await control.share("s", with_="bob")
            await control.wake("s", "tick", every=10, by="alice")
            woken = await began(agent, "tick")
            sent = await control.send("s", "now", by=by, strategy=strategy)
            assert (sent.state, sent.superseded) == ("seated", woken)
            outcome = await control.wait(woken)
            assert (outcome.ending, outcome.superseded_by) == (Ending.SUPERSEDED, sent.run_id)
            assert (await control.wait(sent.run_id)).text == "done"

    seeded(main, range(3))


@pytest.mark.parametrize("strategy", ["interrupt", "rollback", "queue", "steer", "collect"])
def test_a_wake_never_takes_over(strategy: str) -> None:
    """A wake ends nobody, joins nothing, waits for nothing and is not steered in, whatever the server's strategy."""
    taken: list[Message] = []

    async def agent(run: Run, message: Message) -> str:
        for _ in range(30):
            taken.extend(await run.check())
            await anyio.sleep(1)
        return "done"

    async def main() -> None:
        taken.clear()
        async with open_control(agent, strategy=strategy, settings=Settings(collect_seconds=1)) as control:
            long = await control.send("s", "long", by="alice")
            while (await control.runs("s"))[0].state != "started":
                await anyio.sleep(0.1)
            # This wake is an admin's, who might stop the run.
            await control.wake("s", "tick", every=5)
            assert (await control.wait(long.run_id)).ending is Ending.COMPLETED
            assert taken == []
            assert [info.kind for info in await control.runs("s")] == ["chat"]
            assert (await only(control)).skipped >= 5

    seeded(main, range(2))


def test_a_wake_and_a_message_at_once() -> None:
    """A message is answered, and no person's message is ended by a wake, whichever comes first."""

    async def main() -> None:
        agent = Sleeper()
        async with open_control(agent) as control:
            await founded(control)
            await control.wake("s", "tick", every=10)
            due = (await only(control)).next_at
            assert due is not None
            await anyio.sleep(due - wall() - 0.02)
            outcomes = []
            for n in range(8):
                sent = await control.send("s", str(n))
                await anyio.sleep(0.005)
                outcomes.append(await control.wait(sent.run_id))
            assert [each.ending for each in outcomes] == [Ending.COMPLETED] * 8

    seeded(main, range(12))


@pytest.mark.parametrize("how", ["session", "run", "takeover"])
def test_a_stop_ends_the_run_not_its_schedule(how: str) -> None:
    """The wake's run is over at once; the next time comes all the same."""

    async def main() -> None:
        agent = Sleeper("tick")
        async with open_control(agent) as control:
            await founded(control)
            await control.wake("s", "tick", every=10)
            woken = await began(agent, "tick")
            match how:
                case "session":
                    receipt = await control.stop(session="s")
                    assert receipt.aborted and receipt.runs[0].id == woken
                case "run":
                    assert (await control.stop(run=woken)).aborted
                case _:
                    await control.send("s", "now")
            assert (await control.wait(woken)).ending in (Ending.STOPPED, Ending.SUPERSEDED)
            assert await began(agent, "tick", 2) != woken
            first, second = agent.times("tick")
            assert abs(second - first - 10) < SLACK

    seeded(main, range(4))


def test_a_slow_wake_skips_its_own_next() -> None:
    """A wake that is still running is busy too: it does not pile up."""

    async def main() -> None:
        agent = Sleeper("tick")
        async with open_control(agent) as control:
            await founded(control)
            await control.wake("s", "tick", every=10)
            await anyio.sleep(45)
            assert agent.texts.count("tick") == 1
            assert (await only(control)).skipped == 3

    seeded(main, range(3))


# Stale


def test_a_removed_schedule_is_silent() -> None:
    """After `unwake` nothing fires, not even a timer that was on its way."""

    async def main() -> None:
        store, agent = MemoryStore(), Sleeper()
        async with open_control(agent, store=store) as control:
            await founded(control)
            wake = await control.wake("s", "tick", every=10)
            await began(agent, "tick")
            armed = control._wakes._armed[wake.id]
            await control.unwake(wake.id)
            await anyio.sleep(15)
            control._wakes._fire(armed)  # a handler that was ready when its schedule went
            await anyio.sleep(30)
            assert agent.texts.count("tick") == 1
            assert await control.wakes("s") == [] and await store.wakes() == ()
            with pytest.raises(Unknown):
                await control.unwake(wake.id)

    seeded(main, range(4))


def test_a_removal_leaves_the_run() -> None:
    """A run that a wake has begun goes on when its schedule is removed."""

    async def main() -> None:
        agent = Sleeper("tick")
        async with open_control(agent) as control:
            await founded(control)
            wake = await control.wake("s", "tick", every=10)
            woken = await began(agent, "tick")
            await control.unwake(wake.id)
            assert (await control.wait(woken, timeout=20)).ending is Ending.PENDING
            assert (await control.stop(run=woken)).aborted

    seeded(main, range(2))


def test_a_closed_control_is_silent() -> None:
    """A closed control's timers do nothing; its schedules stay in the store."""

    async def main() -> None:
        store, agent = MemoryStore(), Sleeper()
        async with open_control(agent, store=store) as control:
            await founded(control)
            wake = await control.wake("s", "tick", every=10)
            armed = control._wakes._armed[wake.id]
        await anyio.sleep(15)
        control._wakes._fire(armed)
        await anyio.sleep(30)
        assert "tick" not in agent.texts
        assert [row.id for row in await store.wakes()] == [wake.id]

    seeded(main, range(4))


def test_the_next_control_takes_schedules_up() -> None:
    """The same schedule goes on by the same clock, once each time, and can be removed for good."""

    async def main() -> None:
        store, agent = MemoryStore(), Sleeper()
        async with open_control(agent, store=store) as control:
            await founded(control, "alice")
            wake = await control.wake("s", "tick", every=10, by="alice")
            since = now()
            await began(agent, "tick")
        async with open_control(agent, store=store) as control:
            [again] = await control.wakes("s", by="alice")
            assert (again.id, again.every, again.by, again.text) == (wake.id, 10, "alice", "tick")
            await began(agent, "tick", 3)
            for n, at in enumerate(agent.times("tick")):
                assert abs(at - since - 10 * (n + 1)) < SLACK
            await control.unwake(wake.id, by="alice")
        async with open_control(agent, store=store) as control:
            assert await control.wakes("s") == []
            await anyio.sleep(20)
        assert agent.texts.count("tick") == 3

    seeded(main, range(4))


def test_what_was_due_while_nobody_served_is_not_made_up() -> None:
    """An alarm that has passed is dropped; a heartbeat begins with its next time."""

    async def main() -> None:
        store, agent = MemoryStore(), Sleeper()
        async with open_control(agent, store=store) as control:
            await founded(control)
            await control.wake("s", "ring", at=wall() + 15)
            await control.wake("s", "tick", every=10)
            since = now()
        await anyio.sleep(33)
        async with open_control(agent, store=store) as control:
            assert [wake.text for wake in await control.wakes("s")] == ["tick"]
            await anyio.sleep(5)
            assert agent.texts == ["hello"]
            await began(agent, "tick")
            assert abs(agent.times("tick")[0] - since - 40) < SLACK
        assert "ring" not in agent.texts

    seeded(main, range(4))


# The clock


@pytest.mark.parametrize("jump", [3600.0, 86_400.0 * 30])
def test_a_clock_set_forward_fires_once(jump: float) -> None:
    """A clock set forward over many times gives one firing for them all, and the next is in the future."""

    async def main() -> None:
        agent = Sleeper()
        async with open_control(agent) as control:
            await founded(control)
            await control.wake("s", "tick", every=10)
            control._clock.wall = lambda: wall() + jump
            await anyio.sleep(25)
            assert 2 <= len(agent.times("tick")) <= 3
            due = (await only(control)).next_at
            assert due is not None and 0 < due - (wall() + jump) <= 10

    seeded(main, range(3))


def test_a_clock_set_back_does_not_fire_twice() -> None:
    """A time that has come does not come again because the clock was set back over it."""

    async def main() -> None:
        agent = Sleeper()
        async with open_control(agent) as control:
            await founded(control)
            await control.wake("s", "tick", every=60)
            await control.wake("s", "ring", at=wall() + 90)
            await began(agent, "tick")
            control._clock.wall = lambda: wall() - 45
            await anyio.sleep(50)
            assert agent.texts.count("tick") == 1 and "ring" not in agent.texts
            await began(agent, "ring")
            await anyio.sleep(120)
            assert agent.texts.count("ring") == 1

    seeded(main, range(3))


# The store


@pytest.mark.parametrize("fault", ["fail", "stall"])
def test_a_schedule_that_cannot_be_kept_is_refused(fault: str) -> None:
    """The caller is told, and nothing fires."""

    async def main() -> None:
        store, agent = MemoryStore(), Sleeper("long")
        async with open_control(agent, store=store) as control:
            long = await control.send("s", "long")
            await started(control, long.run_id)
            setattr(store.faults, fault, True)
            with pytest.raises(Unavailable, match="nothing was kept, try again"):
                await control.wake("s", "tick", every=10)
            store.faults.fail = False
            store.resume()
            await control.stop(session="s")
            assert await control.wakes("s") == [] and await store.wakes() == ()
            await anyio.sleep(30)
            assert agent.texts == ["long"]

    seeded(main, range(3))


def test_a_wake_that_cannot_be_kept_is_skipped() -> None:
    """While the store is in trouble wakes come to nothing and are counted; then they go on."""

    async def main() -> None:
        store, agent = MemoryStore(), Sleeper()
        async with open_control(agent, store=store) as control:
            await founded(control)
            await control.wake("s", "tick", every=10)
            await anyio.sleep(5)
            store.faults.fail = True
            await anyio.sleep(20)
            store.faults.fail = False
            assert "tick" not in agent.texts and (await only(control)).skipped == 2
            await anyio.sleep(10)
            assert agent.texts.count("tick") == 1

    seeded(main, range(3))


def test_a_removal_is_kept_although_the_store_was_in_trouble() -> None:
    """`unwake` counts at once and is tried again until it is in."""

    async def main() -> None:
        store, agent = MemoryStore(), Sleeper("long")
        async with open_control(agent, store=store) as control:
            long = await control.send("s", "long")
            await started(control, long.run_id)
            wake = await control.wake("s", "tick", every=10)
            store.faults.fail = True
            await control.unwake(wake.id)
            await anyio.sleep(2)
            store.faults.fail = False
            await anyio.sleep(2)
            assert await store.wakes() == ()

    seeded(main, range(3))


# Rights and refusals


def test_whose_wakes_they_are() -> None:
    """The session's owner and admins make, list and remove them; to others there is no such session or wake."""

    async def main() -> None:
        async with open_control(Sleeper(), admins=["root"], readers=["rita"]) as control:
            await founded(control, "alice")
            wakes = [await control.wake("s", "tick", every=100, by=by) for by in ("alice", "root", "local")]
            for by in ("bob", "rita"):
                with pytest.raises(Unknown):
                    await control.wake("s", "mine", every=10, by=by)
                with pytest.raises(Unknown):
                    await control.wakes("s", by=by)
                with pytest.raises(Unknown):
                    await control.unwake(wakes[0].id, by=by)
            with pytest.raises(Unknown):
                await control.wake("nowhere", "tick", every=10)
            with pytest.raises(Unknown):
                await control.unwake("w-9-9")
            assert [wake.id for wake in await control.wakes("s", by="alice")] == [wake.id for wake in wakes]
            await control.unwake(wakes[2].id, by="alice")
            await control.unwake(wakes[0].id, by="root")
            assert [wake.id for wake in await control.wakes("s", by="root")] == [wakes[1].id]

    seeded(main, range(2))


@pytest.mark.parametrize(
    "schedule",
    [
        {},
        {"every": 10, "cron": "* * * * *"},
        {"every": 10, "at": 4e9},
        {"every": 0},
        {"every": 0.5},
        {"every": -1},
        {"every": math.nan},
        {"every": math.inf},
        {"every": True},
        {"every": "10"},
        {"every": timedelta(0)},
        {"every": 10**400},
        {"at": 0},
        {"at": 1_700_000_000},
        {"at": math.inf},
        {"at": math.nan},
        {"at": "tomorrow"},
        {"at": datetime(2020, 1, 1, tzinfo=UTC)},
        {"at": datetime.max},
        {"at": datetime.min},
        {"cron": ""},
        {"cron": "every day"},
        {"cron": "61 * * * *"},
        {"cron": "0 0 30 2 *"},
        {"cron": "* * * *"},
        {"cron": 5},
    ],
    ids=repr,
)
def test_bad_schedules_are_named(schedule: dict[str, Any]) -> None:
    """A schedule that is none, or never comes, is refused at the door; nothing is kept."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(echoes, store=store) as control:
            await founded(control)
            with pytest.raises(BadInput, match=r"a wake has one schedule|is not a schedule|every= is|at= is"):
                await control.wake("s", "tick", **schedule)
            assert await store.wakes() == () and await control.wakes("s") == []

    seeded(main, range(1))


def test_a_run_s_own_session_has_no_wakes() -> None:
    """A run's own session takes no schedule: a child's session belongs to that run alone."""

    async def agent(run: Run, message: Message) -> str:
        return (await run.delegate("echoes", "work")).run_id

    async def main() -> None:
        async with open_control(agent, agents={"echoes": echoes}) as control:
            sent = await control.send("s", "hello")
            child = (await control.wait(sent.run_id)).text
            with pytest.raises(BadInput, match="belongs to that run alone"):
                await control.wake(f"run:{child}", "tick", every=10)

    seeded(main, range(1))


def test_bad_texts_are_named() -> None:
    """A wake without a text is refused when it is made, not at its time."""

    async def main() -> None:
        async with open_control(echoes) as control:
            await founded(control)
            for text in ("", "  ", 5):
                with pytest.raises(BadInput, match="the message"):
                    await control.wake("s", text, every=10)

    seeded(main, range(1))


def test_a_session_has_so_many_wakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wake beyond the session's bound is refused with the remedy; other sessions have their own bound."""
    monkeypatch.setattr("interlock.runtime.wakes.WAKES", 3)

    async def main() -> None:
        async with open_control(echoes) as control:
            await founded(control)
            wakes = [await control.wake("s", "tick", every=100) for _ in range(3)]
            with pytest.raises(Refused, match="the most it may have; remove one first"):
                await control.wake("s", "tick", every=100)
            await control.wait((await control.send("other", "hello")).run_id)
            await control.wake("other", "tick", every=100)
            await control.unwake(wakes[0].id)
            await control.wake("s", "tick", every=100)

    seeded(main, range(2))


def test_so_many_wakes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound holds for schedules that are made in one instant too."""
    monkeypatch.setattr("interlock.runtime.wakes.WAKES", 3)

    async def main() -> None:
        async with open_control(echoes) as control:
            await founded(control)
            await at_once(*(_made(control) for _ in range(6)))
            assert len(await control.wakes("s")) == 3

    async def _made(control: Control) -> Wake | None:
        try:
            return await control.wake("s", "tick", every=100)
        except Refused:
            return None

    seeded(main, range(2))


# next_time, a pure function


def row(**schedule: Any) -> WakeRow:
    """A schedule for `next_time`."""
    return WakeRow(id="w", session="s", principal="local", text="tick", **{"since": 1000.0, **schedule})


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the machine in Berlin."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def local(*parts: int, fold: int = 0) -> float:
    """A time in Berlin as a number."""
    return datetime(*parts, tzinfo=BERLIN, fold=fold).timestamp()  # type: ignore[arg-type, misc]


def shown(at: float | None) -> str:
    """A number as a time in Berlin."""
    assert at is not None
    return datetime.fromtimestamp(at, BERLIN).strftime("%m-%d %H:%M %Z")


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (1000.0, 1010.0),
        (1000.001, 1010.0),
        (1009.999, 1010.0),
        (1010.0, 1020.0),
        (1000.0 + 1e6, 1010.0 + 1e6),
        (999.0, 1000.0),
    ],
)
def test_every_is_counted_from_its_beginning(after: float, expected: float) -> None:
    """The next time is on the grid that began with the schedule, whatever was jumped over."""
    assert next_time(row(every=10.0), after) == expected


def test_every_goes_forward_always() -> None:
    """The next time lies one interval after the last, for any interval and beginning; never the same again."""
    for every in (1.0, 1.1, 1.7, 3.3, 60.0, 86_400.1):
        for since in (1_800_001_000.000_003, 1_763_257_140.123_456, 1_763_257_140.7):
            schedule, at = row(every=every, since=since), since
            for _ in range(2_000):
                later = next_time(schedule, at)
                assert later is not None and every * 0.999 < later - at < every * 1.001
                at = later


def test_at_comes_once() -> None:
    """An alarm is due until its time, and never again."""
    assert next_time(row(at=2000.0), 1000.0) == 2000.0
    assert next_time(row(at=2000.0), 1999.999) == 2000.0
    assert next_time(row(at=2000.0), 2000.0) is None
    assert next_time(row(at=2000.0), 9000.0) is None


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (local(2026, 1, 10, 8, 59), "01-10 09:00 CET"),
        (local(2026, 1, 10, 9, 0), "01-11 09:00 CET"),
        (local(2026, 7, 10, 12, 0), "07-11 09:00 CEST"),
        (local(2026, 3, 28, 12, 0), "03-29 09:00 CEST"),  # the clocks went forward in between
        (local(2026, 10, 24, 12, 0), "10-25 09:00 CET"),  # the clocks went back in between
    ],
    ids=["before", "at", "summer", "into summer", "into winter"],
)
def test_cron_means_the_local_clock(after: float, expected: str) -> None:
    """A line that says nine means nine by the clock on the wall, also over the change to summer time and back."""
    assert shown(next_time(row(cron="0 9 * * *"), after)) == expected


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize("start", [local(2026, 3, 27, 12, 0), local(2026, 10, 23, 12, 0)], ids=["spring", "autumn"])
def test_cron_comes_once_a_day(start: float) -> None:
    """A time that is skipped or comes twice on the day the clocks change fires at most once a day, and goes forward."""
    at, days = start, []
    for _ in range(4):
        later = next_time(row(cron="30 2 * * *"), at)
        assert later is not None and later > at
        days.append(datetime.fromtimestamp(later, BERLIN).date())
        at = later
    assert len(set(days)) == 4
    assert shown(at).split()[1] == "02:30"


@pytest.mark.usefixtures("berlin")
def test_cron_goes_forward_through_the_hour_that_comes_twice() -> None:
    """Cron's next time from any instant of that hour is a later one, at most an hour and a bit away."""
    for minute in range(0, 180, 7):
        after = local(2026, 10, 25, 1, 30) + 60 * minute
        later = next_time(row(cron="*/30 * * * *"), after)
        assert later is not None and after < later <= after + 5_400


# Callers that vanish


def test_a_wake_whose_caller_vanished_is_none() -> None:
    """A caller that vanishes before the answer leaves no schedule: not in memory, in the store or after a restart."""

    async def main() -> None:
        store, ran = MemoryStore(latency_seconds=0.05), []

        async def agent(run: Run, message: Message) -> None:
            ran.append(message.text)

        async with open_control(agent, store=store) as control:
            await control.wait((await control.send("s", "one", by="alice")).run_id)
            asking = asyncio.create_task(control.wake("s", "ghost", every=5, by="alice"))
            await asyncio.sleep(0.02)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await asyncio.sleep(20)
            assert await control.wakes("s", by="alice") == []
            assert await store.wakes() == ()
        async with open_control(agent, store=store):
            await asyncio.sleep(20)
        assert ran == ["one"]

    seeded(main, jump=0.0)
