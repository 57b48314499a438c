"""A client of the version before: told to reload, never told an event, and its stops work."""

from pathlib import Path

import pytest

from interlock.protocol import frames

from .scene import WireError
from .transport import Serving, chat, in_loop


@pytest.mark.parametrize(
    "caps", [("interlock.quiet",), ("interlock.outline",), ("interlock.quiet", "interlock.outline")]
)
def test_an_outdated_client_can_only_stop(caps: tuple[str, ...], tmp_path: Path) -> None:
    """Everything but a stop is refused with words that say to reload; the stop ends its run; no event is told."""

    async def main(served: Serving) -> None:
        async with await served.dial() as wire, await served.dial(caps=caps) as old:
            for number, stop in enumerate(("chat.abort", "interlock.stop", "typed")):
                run = (await chat(wire, "wait", f"k{number}"))["runId"]
                refused = {
                    "interlock.watch": {"watch": 1, "session": "s"},
                    "interlock.history": {"session": "s"},
                    "interlock.send": {"session": "s", "text": "more"},
                    "chat.send": {"sessionKey": "s", "message": "more", "idempotencyKey": "more"},
                }
                for method, params in refused.items():
                    with pytest.raises(WireError) as error:
                        await old.answer(await old.ask(method, **params))
                    assert error.value.error["message"] == frames.RELOAD and "reload" in frames.RELOAD
                if stop == "typed":
                    await chat(old, "stop", "typed stop")
                elif stop == "chat.abort":
                    assert (await old.request(stop, sessionKey="s"))["runIds"] == [run]
                else:
                    assert (await old.request(stop, session="s"))["aborted"]
                outcome = (await wire.request("agent.wait", runId=run))["outcome"]
                assert outcome["ending"] == "stopped"
            assert old.events[1:] == [] and old.events[0]["event"] == "connect.challenge"

    in_loop(main, tmp_path)


def test_a_client_of_this_version_is_served(tmp_path: Path) -> None:
    """A client that declares the capabilities of both versions is served as one of this version."""

    async def main(served: Serving) -> None:
        async with await served.dial(caps=("interlock.quiet", frames.QUIET)) as wire:
            sent = await wire.request("interlock.send", session="s", text="hello")
            assert (await wire.request("interlock.wait", run=sent["run_id"]))["text"] == "hello"

    in_loop(main, tmp_path)
