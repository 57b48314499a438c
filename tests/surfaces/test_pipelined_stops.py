"""Stops that come in one write: each takes effect in the step that reads its frame, however many are in flight."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from interlock.client.door import Sink
from interlock.core.fence import Fence
from interlock.core.names import SessionId
from interlock.surfaces.gateway import connection

from .scene import WireError
from .transport import QUIET, Serving, Wire, chat, eventually, in_loop

RUNS = 150
ROUNDS = 20


class Notes(Sink):
    """Writes down which runs fell, in the step of the fall."""

    def __init__(self, notes: list[str]) -> None:
        self._notes = notes

    def take(self, event: Any, source: Fence | None) -> bool:
        return True

    def fell(self, source: Fence) -> None:
        self._notes.append(f"fell {source.run_id}")


async def batch(wire: Wire, *requests: tuple[str, dict[str, Any]]) -> list[str]:
    """Send several frames in one write; return their ids."""
    ids, protocol = [], wire.socket.protocol
    for method, params in requests:
        wire._number += 1
        ids.append(str(wire._number))
        frame = json.dumps({"type": "req", "id": ids[-1], "method": method, "params": params})
        wire.conversation.client(frame)
        wire._asked[ids[-1]] = asyncio.Queue()
        protocol.send_text(frame.encode())
    wire.socket.transport.write(b"".join(protocol.data_to_send()))
    return ids


def message(session: str, text: str, key: str) -> tuple[str, dict[str, Any]]:
    """Return a request that sends a message."""
    return "chat.send", {"sessionKey": session, "message": text, "idempotencyKey": key}


def note_down(served: Serving, wire: Wire, notes: list[str]) -> None:
    """Write down each answer in the step that puts it into the outbox, and each fall."""
    outbox = served.connection(wire).outbox
    put = outbox.answer

    def answer(frame: bytes, **how: Any) -> None:
        told = json.loads(frame)
        if told["type"] == "res":
            notes.append(f"answer {told['id']}")
        put(frame, **how)

    outbox.answer = answer  # type: ignore[method-assign]


async def running(served: Serving, wire: Wire, notes: list[str]) -> list[str]:
    """Begin RUNS runs in as many sessions; return their ids."""
    by = served.connection(wire).by
    runs = [(await chat(wire, "wait", f"k{number}", f"s{number}"))["runId"] for number in range(RUNS)]
    for number in range(RUNS):
        served.control.feed.follow(SessionId(f"{by}/s{number}"), Notes(notes))
    return runs


@pytest.mark.parametrize("by_run", [True, False])
def test_every_stop_of_a_batch_ends_its_run(by_run: bool, tmp_path: Path) -> None:
    """Of 150 stops in one write each ends its run, with the fence set before the next frame is answered (race 141)."""

    async def main(served: Serving) -> None:
        notes: list[str] = []
        async with await served.dial(caps=QUIET) as wire:
            runs = await running(served, wire, notes)
            note_down(served, wire, notes)
            stops = [{"sessionKey": f"s{n}"} | ({"runId": run} if by_run else {}) for n, run in enumerate(runs)]
            ids = await batch(wire, *(("chat.abort", stop) for stop in stops))
            answers = [await wire.answer(each) for each in ids]
            assert [each["runIds"] for each in answers] == [[run] for run in runs]
            assert all(each["aborted"] for each in answers)
            fenced = [each["receipt"]["fenced_at"] for each in answers]
            assert fenced == sorted(fenced)
            for run, behind in zip(runs, ids[1:], strict=False):
                assert notes.index(f"fell {run}") < notes.index(f"answer {behind}")
            assert await served.control.runs() == []

    in_loop(main, tmp_path)


def test_a_stop_whose_answer_is_refused_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound on answers in flight a stop is refused its answer, not its effect: no run goes on (race 141)."""
    monkeypatch.setattr(connection, "STOP_ANSWERS", 8)

    async def main(served: Serving) -> None:
        async with await served.dial(caps=QUIET) as wire:
            runs = await running(served, wire, [])
            ids = await batch(wire, *(("chat.abort", {"sessionKey": "s", "runId": run}) for run in runs))
            refused = 0
            for each in ids:
                try:
                    assert (await wire.answer(each))["aborted"]
                except WireError as error:
                    refused += 1
                    assert "the stop counts" in error.error["message"]
            assert refused > 0
            for run in runs:
                outcome = await wire.request("interlock.wait", run=run, timeout=30)
                assert outcome["ending"] == "stopped"

    in_loop(main, tmp_path)


def test_a_stop_that_clears_the_queue_does_so_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop of a run that clears its queue ends both in one step, though its answer is refused (race 141)."""
    monkeypatch.setattr(connection, "STOP_ANSWERS", 0)

    async def main(served: Serving) -> None:
        async with await served.dial(caps=QUIET) as wire:
            first = (await chat(wire, "wait", "first"))["runId"]
            queued = await wire.request("interlock.send", session="s", text="wait", strategy="queue")
            asked = await wire.ask("sessions.abort", runId=first, clearQueued=True)
            with pytest.raises(WireError, match="the stop counts"):
                await wire.answer(asked)
            await eventually(lambda: not served.control._registry.runs, "the end of what waited")
            outcome = await wire.request("interlock.wait", run=queued["run_id"], timeout=30)
            assert (outcome["ending"], outcome.get("started_at")) == ("stopped", None)

    in_loop(main, tmp_path)


def test_a_message_a_stop_and_a_message_in_one_batch(tmp_path: Path) -> None:
    """In one write the stop ends the message before it, which never begins; the message behind it runs (race 24)."""

    async def main(served: Serving) -> None:
        async with await served.dial(caps=QUIET) as wire:
            for number in range(ROUNDS):
                session = f"s{number}"
                before, stop, behind = await batch(
                    wire,
                    message(session, "wait", f"{session} before"),
                    ("chat.abort", {"sessionKey": session}),
                    message(session, "hello", f"{session} behind"),
                )
                answer = await wire.answer(stop)
                first, second = await wire.answer(before), await wire.answer(behind)
                assert answer["aborted"] and answer["runIds"] == [first["runId"]]
                old = await wire.request("interlock.wait", run=first["runId"])
                new = await wire.request("interlock.wait", run=second["runId"])
                assert (old["ending"], old.get("started_at")) == ("stopped", None)
                assert (new["ending"], new["text"]) == ("completed", "hello")

    in_loop(main, tmp_path)


def test_a_stop_behind_a_message_of_the_same_batch_finds_it_by_its_key(tmp_path: Path) -> None:
    """A stop right behind a message names it by the message's key, and ends it before it begins (race 24)."""

    async def main(served: Serving) -> None:
        async with await served.dial(caps=QUIET) as wire:
            for number in range(ROUNDS):
                session, key = f"s{number}", f"k{number}"
                stop = ("chat.abort", {"sessionKey": session, "runId": key})
                sent, stopped = await batch(wire, message(session, "wait", key), stop)
                answer, told = await wire.answer(stopped), await wire.answer(sent)
                assert answer["aborted"] and answer["runIds"] == [told["runId"]]
                outcome = await wire.request("interlock.wait", run=told["runId"])
                assert (outcome["ending"], outcome.get("started_at")) == ("stopped", None)

    in_loop(main, tmp_path)
