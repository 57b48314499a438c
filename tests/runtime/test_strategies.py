"""Which strategy holds: the server, a session or a message says it, the nearest wins, and it is kept."""

import anyio
import pytest

from interlock import (
    BadInput,
    Control,
    MemoryStore,
    Rejected,
    Unavailable,
    Unknown,
    open_control,
)

from .scene import Shaky, at_once, echoes, gone, idles, seeded, started

pytestmark = pytest.mark.usefixtures("nothing_breaks")


@pytest.mark.parametrize(
    ("strategy", "state", "superseded"),
    [
        ("interrupt", "seated", True),
        ("rollback", "seated", True),
        ("steer", "queued", False),
        ("queue", "queued", False),
        ("collect", "queued", False),
    ],
)
@pytest.mark.parametrize("level", ["server", "session", "message"])
def test_the_server_the_session_and_the_message_say_a_strategy(
    level: str, strategy: str, state: str, superseded: bool
) -> None:
    """The message's own goes before its session's, and that before the server's."""

    async def main() -> None:
        async with open_control(idles, strategy=strategy if level == "server" else "reject") as control:
            first = await control.send("s", "one", strategy="interrupt")
            await started(control, first.run_id)
            if level == "session":
                await control.set_strategy("s", strategy)
            if level == "message":
                await control.set_strategy("s", "reject")
            second = await control.send("s", "two", strategy=strategy if level == "message" else None)
            assert (second.state, second.superseded) == (state, first.run_id if superseded else None)
            if level == "session":
                await control.set_strategy("s", None)
                with pytest.raises(Rejected):
                    await control.send("s", "three")

    seeded(main, range(2))


def test_a_sessions_strategy_is_kept() -> None:
    """A session's strategy outlives memory and the control that was told; other sessions are not touched."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(echoes, store=store) as control:
            sent = await control.send("s", "one")
            await control.set_strategy("s", "reject")
            await control.wait(sent.run_id, drained=True)
            await gone(control)
        async with open_control(idles, store=store) as control:
            await control.send("s", "two")
            with pytest.raises(Rejected):
                await control.send("s", "three")
            first = await control.send("other", "one")
            assert (await control.send("other", "two")).superseded == first.run_id
            await control.stop(session="s")
            await gone_session(control, "s")
            await control.set_strategy("s", "queue")  # the session is not in memory
            await control.send("s", "four")
            assert (await control.send("s", "five")).state == "queued"

    seeded(main)


async def gone_session(control: Control, session: str) -> None:
    """Wait until nothing of a session is in memory."""
    while session in control._registry.sessions:
        await anyio.sleep(1)


def test_who_may_set_a_strategy() -> None:
    """The owner and admins may set a strategy; to others there is no such session. A wrong word is named."""

    async def main() -> None:
        async with open_control(idles, admins=["root"], readers=["rita"]) as control:
            await control.send("s", "one", by="alice")
            for by in ("alice", "root", "local"):
                await control.set_strategy("s", "queue", by=by)
            for by in ("bob", "rita"):
                with pytest.raises(Unknown):
                    await control.set_strategy("s", "reject", by=by)
            with pytest.raises(Unknown):
                await control.set_strategy("nowhere", "reject")
            with pytest.raises(BadInput, match="no strategy 'later'; use one of"):
                await control.set_strategy("s", "later", by="alice")
            assert (await control.send("s", "two", by="alice")).state == "queued"

    seeded(main, range(2))


def test_a_strategy_set_while_a_message_arrives_is_kept() -> None:
    """A strategy that was said to be kept counts, whatever message arrived at the same time."""

    async def main() -> None:
        store = MemoryStore()
        async with open_control(idles, store=store) as control:
            sent = await control.send("s", "one")
            await control.stop(run=sent.run_id)
            await gone(control)
            store.latency_seconds = 0.02
            await at_once(control.set_strategy("s", "reject"), control.send("s", "two"))
            with pytest.raises(Rejected):
                await control.send("s", "three")
            row = await store.session("s")
            assert row is not None and row.strategy == "reject"

    seeded(main, range(4))


def test_a_strategy_that_could_not_be_kept_does_not_count() -> None:
    """A strategy that could not be kept does not count, and its caller is told so."""

    async def main() -> None:
        store = Shaky()
        async with open_control(idles, store=store) as control:
            first = await control.send("s", "one")
            await started(control, first.run_id)
            store.next_fault = "fail"
            with pytest.raises(Unavailable, match="nothing was kept, try again"):
                await control.set_strategy("s", "reject")
            store.mend()
            assert (await control.send("s", "two")).superseded == first.run_id

    seeded(main, range(2))
