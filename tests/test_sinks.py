"""The sinks in examples/ deliver nothing of a run after its stop was answered; without asking first they would."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from interlock import Control, Message, Run, Settings, open_control

pytestmark = pytest.mark.long

EXAMPLES = Path(__file__).parent.parent / "examples"
QUESTION = "control.is_current(run)"
STOPS = 200
SPOILED_STOPS = 10  # for a sink that does not ask; every stop shows it
BLOCKS = 12
SECONDS = 60  # for one stop, on a busy machine
LAST = "the last word"


def load(name: str, place: Path, *changes: tuple[str, str]) -> Any:
    """Return an example as a module, its text changed if so asked."""
    source = (EXAMPLES / f"{name}.py").read_text("utf-8")
    for old, new in changes:
        assert source.count(old) == 1, f"{name} asks {old!r} {source.count(old)} times"
        source = source.replace(old, new)
    (place / f"{name}.py").write_text(source, "utf-8")
    spec = importlib.util.spec_from_file_location(f"example_{name}", place / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def chatty(run: Run, message: Message) -> str:
    """Say many blocks at once and never end; or say one thing and complete."""
    if message.text == LAST:
        return LAST
    for number in range(BLOCKS):
        await run.post(f"{message.text}.{number}")
    await asyncio.sleep(3600)
    return "never"


class Hook:
    """A web server on the loopback that answers everything posted to it."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.port = 0
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Hook:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(
            asyncio.IncompleteReadError, ConnectionError
        ):  # a connection that was not used, or not used to its end
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            self.requests.append((await reader.readexactly(length)).decode())
            writer.write(b"HTTP/1.0 204 No Content\r\n\r\n")
            await writer.drain()
        writer.close()


class Scene:
    """A control, one kind of sink, and the deliveries that began, in order."""

    def __init__(self, control: Control, sink: Callable[[Scene, str], Awaitable[None]]) -> None:
        self.control = control
        self.begun: list[str] = []
        self._sink = sink
        self._news = asyncio.Event()

    def begin(self, text: str) -> None:
        """Write down that a delivery begins."""
        self.begun.append(text)
        self._news.set()

    async def until(self, seen: Callable[[], bool]) -> None:
        """Wait until a delivery has begun."""
        async with asyncio.timeout(SECONDS):
            while not seen():
                self._news.clear()
                await self._news.wait()

    async def round(self, number: int) -> tuple[int, int]:
        """Stop a run that is being delivered; return how many deliveries began before the answer, and after it.

        The next message completes. Once it is delivered, the sink has gone past everything that the stopped run said.
        """
        session, control = f"session {number}", self.control
        before = len(self.begun)
        await control.send(session, f"{number}")
        sink = asyncio.ensure_future(self._sink(self, session))
        await self.until(lambda: len(self.begun) > before + number % 3)
        for _ in range(number % 7):  # the stop comes at another point of the sink's work each time
            await asyncio.sleep(0)
        receipt = await control.stop(session=session)
        acked = len(self.begun)
        assert receipt.aborted
        await control.send(session, LAST)
        await self.until(lambda: self.begun[-1] == LAST)
        sink.cancel()
        await asyncio.wait([sink])
        return acked - before, len(self.begun) - acked - 1


async def paced(module: Any, scene: Scene, session: str) -> None:
    """Run the paced sink of the examples."""
    await module.paced(scene.control, session, scene.begin, seconds=0.001)


async def batched(module: Any, scene: Scene, session: str) -> None:
    """Run the batcher of the examples."""

    async def deliver(lines: str) -> None:
        scene.begin(lines)
        await asyncio.sleep(0.001)

    await module.batched(scene.control, session, deliver, size=2)


SINKS = {"paced": paced, "batched": batched}


def stopped(module: Any, rounds: int, patch: pytest.MonkeyPatch, store: str = "memory://") -> list[tuple[int, int]]:
    """Stop deliveries so many times; return for each how many deliveries began before and after the answer."""
    name = module.__name__.removeprefix("example_")

    async def main() -> list[tuple[int, int]]:
        async with Hook() as hook, open_control(chatty, store=store, settings=Settings(grace_seconds=0.05)) as control:

            async def sink(scene: Scene, session: str) -> None:
                if name in SINKS:
                    await SINKS[name](module, scene, session)
                else:
                    await module.webhook(control, session, port=hook.port)

            scene = Scene(control, sink)
            listen_to_writes(patch, scene)
            counted = [await scene.round(number) for number in range(rounds)]
            if name == "webhook":
                assert set(scene.begun) >= set(hook.requests) and len(hook.requests) >= rounds
            return counted

    return asyncio.run(main())


def listen_to_writes(patch: pytest.MonkeyPatch, scene: Scene) -> None:
    """Write down every request in the step in which its bytes are handed over."""
    write = asyncio.StreamWriter.write

    def written(self: asyncio.StreamWriter, data: bytes) -> None:
        if data.startswith(b"POST"):
            scene.begin(bytes(data).partition(b"\r\n\r\n")[2].decode())
        write(self, data)

    patch.setattr(asyncio.StreamWriter, "write", written)


@pytest.mark.parametrize("kept", [False, True], ids=["in memory", "on disk"])
@pytest.mark.parametrize("name", ["paced", "batched", "webhook"])
def test_a_sink_begins_nothing_after_the_answer_to_a_stop(
    name: str, kept: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each sink, stopped 200 times amid its deliveries, begins some before the answer and none after it; race 135."""
    store = f"sqlite:///{tmp_path}/data" if kept else "memory://"
    counted = stopped(load(name, tmp_path), STOPS, monkeypatch, store)
    assert len(counted) == STOPS
    assert all(before > 0 for before, _ in counted)
    assert sum(after for _, after in counted) == 0


@pytest.mark.parametrize("name", ["paced", "batched", "webhook"])
def test_a_sink_that_does_not_ask_goes_on(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A sink that does not ask goes on delivering after every stop: the count of 0 comes from asking."""
    counted = stopped(load(name, tmp_path, (QUESTION, "True")), SPOILED_STOPS, monkeypatch)
    assert all(after > 0 for _, after in counted), counted


CONNECT = "reader, writer = await asyncio.open_connection"
TOO_EARLY = ((QUESTION, "asked"), (CONNECT, f"asked = {QUESTION}\n            {CONNECT}"))


@pytest.mark.parametrize(("changes", "late"), [((), 0), (TOO_EARLY, 1)], ids=["behind it", "before it"])
def test_the_question_stands_behind_the_connection(
    changes: tuple[tuple[str, str], ...], late: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A sink that asks after it has connected hears a stop during the connect; a sink that asked before would not."""
    module, connect = load("webhook", tmp_path, *changes), asyncio.open_connection

    async def main() -> tuple[int, int]:
        async with Hook() as hook, open_control(chatty, settings=Settings(grace_seconds=0.05)) as control:
            scene = Scene(control, lambda _, session: module.webhook(control, session, port=hook.port))
            acked: list[int] = []

            async def slow(*where: Any) -> Any:
                made = await connect(*where)
                if len(scene.begun) == 2 and not acked:
                    await control.stop(session="s")
                    acked.append(len(scene.begun))
                return made

            listen_to_writes(monkeypatch, scene)
            monkeypatch.setattr(asyncio, "open_connection", slow)
            await control.send("s", "long")
            sink = asyncio.create_task(module.webhook(control, "s", port=hook.port))
            while not acked:
                await asyncio.sleep(0.001)
            await control.send("s", LAST)
            await scene.until(lambda: LAST in scene.begun)
            sink.cancel()
            await asyncio.wait([sink])
            return acked[0], len(scene.begun) - acked[0] - 1

    assert asyncio.run(main()) == (2, late)
