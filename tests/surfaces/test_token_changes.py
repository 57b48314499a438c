"""Tokens that come and go while a gateway serves: what counts in which step, whatever floods, stalls or fails."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from access.scene import rows
from interlock.access.files import AccessFailed
from interlock.access.rows import InUse, Rows
from interlock.access.tokens import Access
from interlock.app import asgi
from interlock.client.client import Client
from interlock.core.scopes import Scope
from interlock.protocol import frames
from interlock.runtime.control import Control
from interlock.surfaces import page
from interlock.surfaces.gateway import telling

from .scene import WireError
from .transport import BOUND_SECONDS, QUIET, Serving, Wire, eventually, in_loop

REVOKED = (frames.NO_TOKEN, "this token was revoked")


class Gate:
    """Holds a verb of the rows, as a disk does that does not answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
        self.entered, self._open = threading.Event(), threading.Event()
        real = getattr(Rows, verb)

        def held(rows: Rows, *arguments: Any) -> Any:
            self.entered.set()
            assert self._open.wait(BOUND_SECONDS)
            return real(rows, *arguments)

        monkeypatch.setattr(Rows, verb, held)

    def open(self) -> None:
        """Let every call through."""
        self._open.set()


def names(served: Serving) -> list[str]:
    """Return who has a row."""
    return [each.name for each in served.gateway.access.listing()]


async def bearing(served: Serving, path: str, token: str) -> int:
    """GET a path with a token; return the status."""

    def get() -> int:
        asked = http.client.HTTPConnection(served.url.partition("//")[2], timeout=BOUND_SECONDS)
        try:
            asked.request("GET", path, headers={"Authorization": f"Bearer {token}"})
            return asked.getresponse().status
        finally:
            asked.close()

    return await asyncio.to_thread(get)


@contextlib.contextmanager
def watched(served: Serving, monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[list[tuple[str, bool]]]:
    """Yield what a principal's requests ask of control, each with whether its token counted in that step."""
    asked: list[tuple[str, bool]] = []
    for way in ("ask", "listen"):
        real = getattr(Control, way)

        def noting(self: Control, what: Any, *args: Any, real: Any = real, **named: Any) -> Any:
            if named.get("by") == name:
                asked.append((type(what).__name__, name in served.gateway.access.callers))
            return real(self, what, *args, **named)

        monkeypatch.setattr(Control, way, noting)
    yield asked


@pytest.mark.parametrize("again", range(3))
def test_nothing_begins_after_a_removal_amid_a_flood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: int
) -> None:
    """Of a flood of requests none begins, and nothing is sent, from the step of the removal on (race 146)."""

    async def main(served: Serving) -> None:
        token = await served.add("late", Scope.WRITE)
        operator = await served.dial(caps=QUIET)
        wires = [await Wire.dial(served.url, token, caps=caps) for caps in (QUIET, QUIET, ())]
        boxes = [served.connection(wire).outbox for wire in wires]
        over = asyncio.Event()

        async def flood(wire: Wire, first: int) -> None:
            asked = [
                ("interlock.send", {"session": "s", "text": "say 3", "strategy": "queue"}),
                ("interlock.history", {"session": "s"}),
                ("interlock.share", {"session": "s", "with": "other"}),
                ("interlock.sessions", {}),
                ("interlock.stop", {"session": "s"}),
                ("interlock.runs", {}),
            ]
            with contextlib.suppress(Exception):
                for number in range(first, 100_000):
                    method, params = asked[number % len(asked)]
                    await wire.ask(method, **params)
                    if number % 7 == 0:
                        await asyncio.sleep(0)
                    if over.is_set():
                        return

        with watched(served, monkeypatch, "late") as begun:
            floods = [asyncio.create_task(flood(wire, at)) for at, wire in enumerate(wires)]
            await eventually(lambda: len(begun) > 100 * (again + 1), "a flood")
            await operator.request("interlock.token.remove", name="late")
            answered, popped = len(begun), [box.pop(1 << 20) for box in boxes]
            for wire in wires:
                assert (await wire.gone())[0] == frames.NO_TOKEN
            over.set()
            await asyncio.gather(*floods)
            assert len(begun) == answered, "nothing begins after the answer"
            assert all(valid for _, valid in begun), "nothing began after the removal"
            assert popped == [[]] * 3, "nothing was left to be sent"
        with pytest.raises(WireError, match="unknown here"):
            await Wire.dial(served.url, token)
        assert await bearing(served, "/metrics", token) == 401
        for wire in wires:
            await wire.vanish()
        await operator.close()

    in_loop(main, tmp_path)


def test_a_request_of_two_steps_is_not_carried_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that waits between two steps when its token is removed does not take the second (race 146)."""
    waiting, free, answered = asyncio.Event(), asyncio.Event(), []
    real, answer = Client.questions, Client.answer

    async def questions(self: Client, *args: Any, **named: Any) -> Any:
        found = await real(self, *args, **named)
        waiting.set()
        await free.wait()
        return found

    async def answering(self: Client, *args: Any, **named: Any) -> Any:
        answered.append(args)
        return await answer(self, *args, **named)

    async def main(served: Serving) -> None:
        late = await Wire.dial(served.url, await served.add("late", Scope.APPROVE), caps=QUIET)
        monkeypatch.setattr(Client, "questions", questions)
        monkeypatch.setattr(Client, "answer", answering)
        await late.ask("exec.approval.resolve", id="q-1-1", decision="deny")
        await waiting.wait()
        removing = asyncio.create_task(served.gateway.tokens.remove_token("late"))
        await asyncio.sleep(0)
        free.set()
        await removing
        assert await late.gone() == REVOKED
        await eventually(lambda: not served.connections, "its end")
        assert answered == []

    in_loop(main, tmp_path)


def test_a_token_that_is_removed_while_it_is_let_in_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection whose token is removed between its check and its first request is closed (race 147)."""
    real = telling.hello

    async def main(served: Serving) -> None:
        token = await served.add("late", Scope.WRITE)

        def hello(*given: Any, **more: Any) -> dict[str, Any]:
            served.gateway.access.revoke(served.gateway.access.own("late"))
            return real(*given, **more)

        with monkeypatch.context() as patched, watched(served, patched, "late") as begun:
            patched.setattr(telling, "hello", hello)
            late = await Wire.dial(served.url, token, caps=QUIET)
            with contextlib.suppress(Exception):
                await late.ask("interlock.send", session="s", text="say 1")
            assert await late.gone() == REVOKED
            assert begun == []
        await eventually(lambda: not served.connections, "its end")

    in_loop(main, tmp_path)


@pytest.mark.parametrize("caps", [QUIET, ()], ids=["answers", "events"])
def test_what_waits_for_a_removed_token_is_not_sent(tmp_path: Path, caps: tuple[str, ...]) -> None:
    """Events and answers that wait in the outbox of a removed token are dropped; only the close follows (race 146)."""

    async def main(served: Serving) -> None:
        late = await Wire.dial(served.url, await served.add("late", Scope.WRITE), caps=caps)
        box = served.connection(late).outbox
        run = (await late.request("interlock.send", session="s", text="x" * 20_000))["run_id"]
        await late.request("interlock.wait", run=run)
        late.stall()
        for number in range(1_000):
            if caps:
                await late.ask("interlock.history", session="s")
            else:
                await late.ask("interlock.send", session="s", text="y" * 20_000, strategy="queue", key=f"k{number}")
            await asyncio.sleep(0.005)
            if len(box._held) > 5:
                break
        assert len(box._held) > 5
        await served.gateway.tokens.remove_token("late")
        assert box.empty and box.pop(1 << 20) == []
        late.resume()
        assert await late.gone() == REVOKED

    in_loop(main, tmp_path)


@pytest.mark.parametrize("stuck", ["remove", "add"])
def test_a_token_ends_though_the_disk_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stuck: str
) -> None:
    """A removal counts at once, also behind another change that the disk holds; its answer waits for the disk."""

    async def main(served: Serving) -> None:
        token = await served.add("late", Scope.WRITE)
        late, operator = await Wire.dial(served.url, token, caps=QUIET), await served.dial(caps=QUIET)
        gate = Gate(monkeypatch, stuck)
        first = await operator.ask("interlock.token.add", name="other") if stuck == "add" else None
        removal = await operator.ask("interlock.token.remove", name="late")
        assert await late.gone() == REVOKED
        await asyncio.to_thread(gate.entered.wait, BOUND_SECONDS)
        with pytest.raises(WireError):
            await Wire.dial(served.url, token)
        assert "late" in names(served) and operator._asked[removal].empty()
        assert (await operator.request("health"))["ok"]
        gate.open()
        await operator.answer(removal)
        assert names(served) == ["operator"] + (["other"] if first else [])
        if first is not None:
            assert (await operator.answer(first))["name"] == "other"
        await operator.close()

    in_loop(main, tmp_path)


def test_a_removal_that_could_not_be_kept_is_told_and_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removal that the disk refuses ends the token and is told as failed; asked again, it takes the row."""

    def full(self: Rows, *_: object) -> None:
        raise AccessFailed("access.db could not be written: disk full; make room and try again")

    async def main(served: Serving) -> None:
        token = await served.add("late", Scope.WRITE)
        operator = await served.dial(caps=QUIET)
        with monkeypatch.context() as patched:
            for verb in ("add", "remove", "rotate"):
                patched.setattr(Rows, verb, full)
            for verb, params in (("add", {"name": "new"}), ("remove", {"name": "late"}), ("rotate", {})):
                with pytest.raises(WireError, match="make room") as caught:
                    await operator.request(f"interlock.token.{verb}", **params)
                assert (caught.value.error["code"], caught.value.error["retryable"]) == ("UNAVAILABLE", True)
        assert names(served) == ["operator", "late"]
        with pytest.raises(WireError):
            await Wire.dial(served.url, token)
        await operator.request("interlock.token.remove", name="late")
        assert names(served) == ["operator"]
        await operator.close()

    in_loop(main, tmp_path)


def test_a_caller_that_leaves_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change whose caller leaves while the disk writes is made all the same, in memory as on the disk."""

    async def main(served: Serving) -> None:
        operator = await served.dial(caps=QUIET)
        gate = Gate(monkeypatch, "add")
        await operator.ask("interlock.token.add", name="ann")
        await asyncio.to_thread(gate.entered.wait, BOUND_SECONDS)
        await operator.vanish()
        await eventually(lambda: not served.connections, "its end")
        gate.open()
        await eventually(lambda: "ann" in names(served), "the change")
        assert rows(tmp_path) == ["ann"]

    in_loop(main, tmp_path)


def test_a_rotation_is_answered_and_ends_the_old_token(tmp_path: Path) -> None:
    """The caller with the old token has its answer and is closed; so are all others with it, and the pages on it."""

    async def main(served: Serving) -> None:
        operator, other = await served.dial(caps=QUIET), await served.dial()
        own = served.gateway.access.own("operator")
        assert own is not None
        paired = await served.gateway.tokens.add_page(own.name, own.digest)
        page_wire = await Wire.dial(served.url, paired, caps=QUIET)
        ann = await Wire.dial(served.url, await served.add("ann", Scope.WRITE), caps=QUIET)
        assert await operator.answer(await operator.ask("interlock.token.rotate")) is None
        for wire in (operator, other, page_wire):
            assert await wire.gone() == REVOKED
        for old in (served.token, paired):
            with pytest.raises(WireError):
                await Wire.dial(served.url, old)
            assert await bearing(served, "/metrics", old) == 401
        assert (await ann.request("health"))["ok"]
        new = (tmp_path / "token").read_text("utf-8").strip()
        assert new != served.token and await bearing(served, "/metrics", new) == 200
        audit = (tmp_path / "audit.jsonl").read_text("utf-8")
        assert '"kind": "token", "by": "operator"' in audit and "interlock.token.rotate" in audit
        assert new not in audit and served.token not in audit
        await ann.close()

    in_loop(main, tmp_path)


def test_another_admins_rotation_leaves_its_own_connection(tmp_path: Path) -> None:
    """An admin who rotates the operator's token is answered once and served on; one who removes itself is closed."""

    async def main(served: Serving) -> None:
        root = await Wire.dial(served.url, await served.add("root", Scope.ADMIN), caps=QUIET)
        operator = await served.dial(caps=QUIET)
        assert await root.request("interlock.token.rotate") is None
        assert await operator.gone() == REVOKED
        listed = await root.request("interlock.tokens")
        assert [(each["name"], each["scopes"]) for each in listed] == [("operator", ["admin"]), ("root", ["admin"])]
        added = await root.request("interlock.token.add", name="ann", scopes=["approve", "read"])
        assert (added["name"], added["scopes"]) == ("ann", ["approve", "read"])
        with pytest.raises(WireError, match="already"):
            await root.request("interlock.token.add", name="ann")
        await root.ask("interlock.token.remove", name="root")
        assert await root.gone() == REVOKED
        await eventually(lambda: names(served) == ["operator", "ann"], "the removal")
        lines = (tmp_path / "audit.jsonl").read_text("utf-8")
        assert '"name": "ann", "scopes": "approve,read"' in lines and added["token"] not in lines

    in_loop(main, tmp_path)


def test_a_picture_for_a_removed_token_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timeline that was being drawn when its caller's token was removed is refused (race 146)."""
    drawing, free = threading.Event(), threading.Event()
    real = page.draw

    def draw(*args: Any, **named: Any) -> str:
        drawing.set()
        assert free.wait(BOUND_SECONDS)
        return real(*args, **named)

    async def main(served: Serving) -> None:
        token = await served.add("late", Scope.WRITE)
        late = await Wire.dial(served.url, token, caps=QUIET)
        run = (await late.request("interlock.send", session="s", text="say 3"))["run_id"]
        await late.request("interlock.wait", run=run)
        assert await bearing(served, f"/timeline/{run}.svg", token) == 200
        monkeypatch.setattr(page, "draw", draw)
        asking = asyncio.create_task(bearing(served, f"/timeline/{run}.svg", token))
        await asyncio.to_thread(drawing.wait, BOUND_SECONDS)
        await served.gateway.tokens.remove_token("late")
        free.set()
        assert await asking == 401
        assert await late.gone() == REVOKED

    in_loop(main, tmp_path)


def test_a_gateway_has_its_tokens_until_it_closes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody opens the tokens of a gateway that serves; closed, it gives them back behind the change in flight."""

    async def main(served: Serving) -> None:
        with pytest.raises(InUse):
            Access(tmp_path).open(patience=0)
        served.gateway.access.disk.tell_url(served.url)
        with pytest.raises(InUse, match=served.url):
            asgi(served.control, data=tmp_path)
        gate = Gate(monkeypatch, "add")
        operator = await served.dial(caps=QUIET)
        await operator.ask("interlock.token.add", name="ann")
        await asyncio.to_thread(gate.entered.wait, BOUND_SECONDS)
        served.gateway.close()
        with pytest.raises(InUse):
            Access(tmp_path).open(patience=0)
        assert await bearing(served, "/metrics", served.token) == 503
        gate.open()
        await eventually(lambda: served.gateway.access._disk is None, "the end of the change")
        access = Access(tmp_path)
        access.open(patience=0)
        assert "ann" in access.callers
        access.close()

    in_loop(main, tmp_path)
    access = Access(tmp_path)
    access.open(patience=0)
    access.close()
