"""A right that goes while its reader stalls, catches up or has frames waiting: nothing of the session follows."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from interlock import Message, Run
from interlock.core.scopes import Scope
from interlock.protocol import frames
from interlock.runtime import feed
from interlock.surfaces import outbox

from .protocol import Frame
from .transport import QUIET, Serving, Wire, chat, eventually, in_loop

OUTLINE = (frames.OUTLINE,)
KINDS = {"quiet": QUIET, "outline": OUTLINE, "everything": ()}
ROUNDS = 4


async def confides(run: Run, message: Message) -> str | None:
    """Tell secrets until a stop; or ask a question."""
    if message.text == "ask":
        return "yes" if await run.ask("may I tell the secret?") else "no"
    for number in itertools.count():
        await run.say(f"secret {number} {'x' * 200}")
        if number % 5 == 0:
            await run.post(f"secret block {number}")
        await asyncio.sleep(0.0005)
    return None


class After:
    """The frames that leave an outbox after the step in which a right changed."""

    def __init__(self, served: Serving, wire: Wire) -> None:
        self.frames: list[bytes] = []
        self.changed = False
        box = served.connection(wire).outbox
        pop = box.pop

        def popped(limit: int = 0) -> list[bytes]:
            found = pop(limit)
            self.frames += found if self.changed else []
            return found

        box.pop = popped  # type: ignore[method-assign]
        # Behind the listeners of the feed and the gateway: these have taken the right away by then.
        served.control.guards.listen(self._note)

    def _note(self) -> None:
        self.changed = True

    def tells(self, *words: str) -> list[bytes]:
        """Return the frames that have one of these words."""
        return [frame for frame in self.frames if any(word.encode() in frame for word in words)]


async def shared(served: Serving) -> tuple[Wire, str, str]:
    """Let ann begin a run in a session that bob may read; return ann's connection, bob's token and the run's id."""
    ann = await Wire.dial(served.url, await served.add("ann", Scope.WRITE), caps=QUIET)
    bob = await served.add("bob", Scope.WRITE)
    run = (await chat(ann, "talk", "first"))["runId"]
    await ann.request("interlock.share", session="s", **{"with": "bob"}, may="read")
    return ann, bob, run


def over(payload: Frame) -> bool:
    """Return whether a frame of a watch is its last."""
    return bool(payload["payload"].get("over"))


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("moment", ["waiting", "full", "catching up"])
def test_a_watcher_that_loses_its_right_hears_nothing_more(
    moment: str, ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the step that takes the right on, a watcher's outbox sends nothing of the session but the end (race 143)."""
    monkeypatch.setattr(outbox, "BUFFER_BYTES", 32 * 1024)
    monkeypatch.setattr(feed, "PAGE_EVENTS", 8)

    async def once(served: Serving, ann: Wire, token: str, number: int) -> None:
        run = (await chat(ann, "talk", f"k{number}"))["runId"]
        bob = await Wire.dial(served.url, token, caps=QUIET)
        box = served.connection(bob).outbox
        await ann.request("interlock.share", session="s", **{"with": "bob"}, may="read")
        await bob.request("interlock.watch", watch=1, session="ann/s")
        await bob.wait_for(lambda each: "caught_up" in each["payload"])
        bob.stall()
        await eventually(lambda: not box.empty if moment == "waiting" else box.full, "frames that wait")
        if moment == "catching up":
            bob.resume()
            for _ in range(number * 3):
                await asyncio.sleep(0)
        if ends:
            await ann.request("chat.abort", sessionKey="s", runId=run)
        after = After(served, bob)
        await served.control.unshare("ann/s", with_="bob", by="ann")
        assert after.changed
        bob.resume()
        last = await bob.wait_for(over)
        assert last["payload"]["error"]["code"] == "NOT_FOUND"
        assert (await bob.request("health"))["ok"]
        assert after.tells("secret", run, "ann/s") == []
        await bob.close()

    async def main(served: Serving) -> None:
        ann, token, _ = await shared(served)
        for number in range(ROUNDS):
            await once(served, ann, token, number)
        await ann.close()

    in_loop(main, tmp_path, confides)


@pytest.mark.parametrize("taken", ["unshare", "appoint"])
@pytest.mark.parametrize("kind", ["outline", "everything"])
def test_a_listener_to_everything_that_loses_its_right_hears_nothing_more(
    kind: str, taken: str, tmp_path: Path
) -> None:
    """A stalled connection that is told everything, or its outline, sends nothing of a session it lost (race 143)."""

    async def main(served: Serving) -> None:
        ann, token, run = await shared(served)
        if taken == "appoint":
            token = await served.add("rita", Scope.READ)
        async with await Wire.dial(served.url, token, caps=KINDS[kind]) as wire:
            box = served.connection(wire).outbox
            wire.stall()
            others = 0
            while box._bytes < 64 * 1024:
                others += 1
                await chat(ann, "talk", f"more {others}")
                await asyncio.sleep(0.01)
            after = After(served, wire)
            if taken == "unshare":
                await served.control.unshare("ann/s", with_="bob", by="ann")
            else:
                served.control.appoint(writers=["ann"])
            assert after.changed
            await chat(ann, "talk", "last")
            wire.resume()
            health = await wire.ask("health")
            assert (await wire.answer(health))["ok"]
            assert after.tells("secret", run, "ann/s") == []
            assert after.frames
        await ann.close()

    in_loop(main, tmp_path, confides)


def test_an_approver_that_loses_its_right_hears_of_no_question(tmp_path: Path) -> None:
    """Questions that wait in the outbox of an approver whose token is removed are not sent (race 143)."""

    async def main(served: Serving) -> None:
        ann = await Wire.dial(served.url, await served.add("ann", Scope.WRITE), caps=QUIET)
        carl = await Wire.dial(served.url, await served.add("carl", Scope.APPROVE))
        box = served.connection(carl).outbox
        before = 0
        carl.stall()
        while box.empty:
            before += 1
            await chat(ann, "ask", f"k{before}", f"s{before}")
            await asyncio.sleep(0.002)
        after = After(served, carl)
        await served.gateway.tokens.remove_token("carl")
        await chat(ann, "ask", "last", "last")
        carl.resume()
        code, _ = await carl.gone()
        assert code == frames.NO_TOKEN
        assert after.changed and after.tells("secret", "approval") == []
        await ann.close()

    in_loop(main, tmp_path, confides)
