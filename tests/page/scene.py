"""A browser, a server and other people, for tests of the page.

1. Nothing is stubbed: Debian's Chromium reads what `interlock serve` serves.
2. A visit fails at its end if the page reported an error, broke its own policy, or asked anybody but its server.
3. Every wait is for something that is seen, with a bound.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any

from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Locator,
    Page,
    Playwright,
    Request,
    WebSocketRoute,
    expect,
)

from surfaces.scene import ROOT, WAIT_SECONDS, Served, Wire, wire

AGENT = "tests.page.agents:agent"
AXE = ROOT / "build" / "foreign" / "node_modules" / "axe-core" / "axe.min.js"
BOUND_MS = 30_000
EITHER_SEND = re.compile("^(Send|Take over)$")

expect.set_options(timeout=BOUND_MS)
keys = count(1)

# The browser records here that the page broke its policy.
WITNESS = """
addEventListener("securitypolicyviolation", (event) => {
  console.error(`policy broken: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
});
"""


def missing() -> str | None:
    """Return what the tests lack on this machine, and how to get it; None if nothing."""
    if chromium() is None:
        return "no chromium: run `make tools` as root (Debian: `apt-get install chromium-headless-shell`)"
    if not AXE.exists():
        return "no axe-core: run `make tools` (needs npm; Debian: `apt-get install npm`)"
    return None


def chromium() -> str | None:
    """Return the path of Chromium; headless, it takes a third of the processor's time."""
    return shutil.which("chromium-headless-shell") or shutil.which("chromium")


def launch(playwright: Playwright) -> Browser:
    """Start Chromium, without its sandbox for root, whom the sandbox refuses, and without a GPU, which is not there."""
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    return playwright.chromium.launch(executable_path=chromium(), args=["--disable-gpu", *root])


class Person:
    """Another person: a raw connection in a thread of its own, as Playwright's loop has this thread."""

    def __init__(self, server: Served, token: str | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._stack = AsyncExitStack()
        try:
            self.wire: Wire = self.play(self._stack.enter_async_context(wire(server.url, token or server.token)))
        except BaseException:
            self.close()
            raise

    def play(self, scene: Any) -> Any:
        """Run a coroutine in the thread of the connection."""
        return asyncio.run_coroutine_threadsafe(scene, self._loop).result(WAIT_SECONDS)

    def request(self, method: str, **params: Any) -> Any:
        """Send a request and wait for the answer."""
        return self.play(self.wire.request(method, **params))

    def send(self, session: str, text: str, **more: Any) -> str:
        """Send a message; return its run."""
        return str(self.request("interlock.send", session=session, text=text, key=f"k{next(keys)}", **more)["run_id"])

    def code(self, name: str | None = None) -> str:
        """Return a code that pairs a page."""
        return str(self.request("interlock.pair", **({"name": name} if name else {}))["code"])

    def close(self) -> None:
        """Close the connection."""
        try:
            self.play(self._stack.aclose())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(WAIT_SECONDS)
            self._loop.close()


class Relay:
    """A relay between a page and its server, which hears every frame, holds back, changes or adds some, or is cut."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []  # frames from the server
        self.asked: list[dict[str, Any]] = []  # frames from the page
        # Returns the frame for the page, or None to drop the frame.
        self.change: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda frame: frame
        self.held: list[dict[str, Any]] = []  # frames that were held back, in order
        self.swallow: set[str] = set()  # methods that never reach the server
        self.down = False  # no connection is let through
        self.dials = 0
        self._holds: Callable[[dict[str, Any]], Any] | None = None
        self._route: WebSocketRoute | None = None
        self._server: WebSocketRoute | None = None

    def begin(self, page: Page) -> None:
        """Take the place of the server, before the page dials."""
        page.route_web_socket(re.compile(".*"), self._dialled)

    def cut(self) -> None:
        """Cut the connection, and let no other through."""
        self.down = True
        assert self._route is not None and self._server is not None
        route, server, self._route = self._route, self._server, None
        server.close()
        route.close(code=1001)

    def hold(self, first: Callable[[dict[str, Any]], Any] = lambda frame: True) -> None:
        """Hold back every frame to the page from the first such frame on."""
        self._holds = first

    def release(self) -> None:
        """Send the frames that were held back, before newer ones: the page drops frames that are overtaken."""
        self._holds = None
        while self.held:
            self.add(self.held.pop(0))

    def _dialled(self, route: WebSocketRoute) -> None:
        self.dials += 1
        if self.down:
            route.close(code=1001)
            return
        self._route = route
        self._server = server = route.connect_to_server()
        server.on_message(lambda raw: self._hear(route, json.loads(raw)))
        route.on_message(lambda raw: self._ask(route, server, json.loads(raw)))

    def _ask(self, route: WebSocketRoute, server: WebSocketRoute, frame: dict[str, Any]) -> None:
        if route is not self._route:
            # The frame was on its way when the connection was cut; sent on, the browser would report an error.
            return
        self.asked.append(frame)
        if frame["method"] not in self.swallow:
            server.send(json.dumps(frame))

    def _hear(self, route: WebSocketRoute, frame: dict[str, Any]) -> None:
        if route is not self._route:
            return  # the connection was cut
        self.heard.append(frame)
        if self.held or (self._holds is not None and self._holds(frame)):
            self.held.append(frame)
        elif (changed := self.change(frame)) is not None:
            self.add(changed)

    def add(self, *frames: dict[str, Any]) -> None:
        """Send the page a frame as if the server did."""
        assert self._route is not None
        for frame in frames:
            self._route.send(json.dumps(frame))

    def requests(self, method: str) -> list[dict[str, Any]]:
        """Return the page's requests of one method, oldest first."""
        return [frame for frame in self.asked if frame["method"] == method]


def event_of(frame: dict[str, Any]) -> dict[str, Any]:
    """Return the event in a frame, or None."""
    return dict(frame["payload"].get("event") or {}) if frame.get("event") == "interlock.event" else {}


def with_event(frame: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a frame with its event changed."""
    return {**frame, "payload": {**frame["payload"], "event": {**event_of(frame), **changes}}}


class Visit:
    """Everything that one test opens in the browser, and the errors in it."""

    def __init__(self, browser: Browser, server: Served, operator: Person) -> None:
        self._browser = browser
        self.server = server
        self.operator = operator
        self._contexts: list[BrowserContext] = []
        self._troubles: list[str] = []
        self._forgiven: list[str] = []

    @property
    def base(self) -> str:
        """Return the address of the page."""
        return f"http://127.0.0.1:{self.server.port}/"

    def tab(self, beside: Page | None = None, **options: Any) -> Page:
        """Return an empty tab, in a fresh browser context or in that of another tab."""
        if beside is not None:
            return beside.context.new_page()
        usual = {"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce"}
        context = self._browser.new_context(**{**usual, **options})
        context.set_default_timeout(BOUND_MS)
        context.add_init_script(WITNESS)
        context.on("console", self._heard)
        context.on("weberror", lambda error: self._troubles.append(f"uncaught: {error.error}"))
        context.on("request", self._asked)
        context.on("page", lambda page: page.on("websocket", lambda socket: self._dialled(socket.url)))
        self._contexts.append(context)
        return context.new_page()

    def open(self, session: str, *, name: str | None = None, relay: Relay | None = None, **options: Any) -> Page:
        """Pair a new browser with the server and return its page, connected, with a session open."""
        page = self.tab(**options)
        if relay is not None:
            relay.begin(page)
        page.goto(f"{self.base}#pair={self.operator.code(name)}")
        connected(page)
        go(page, f"#/s/{session}")
        return page

    def forgive(self, text: str) -> None:
        """Expect errors whose words hold this: they do not fail the visit."""
        self._forgiven.append(text)

    def close(self) -> None:
        """Close every tab, and fail if there was an error."""
        for context in self._contexts:
            context.close()
        wrong = [each for each in self._troubles if not any(text in each for text in self._forgiven)]
        assert not wrong, "\n".join(wrong)

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._troubles.append(f"console {message.type}: {message.text} ({message.location['url']})")

    def _asked(self, request: Request) -> None:
        if not request.url.startswith((self.base, f"blob:{self.base}", "data:image/")):
            self._troubles.append(f"it asked {request.url}")

    def _dialled(self, url: str) -> None:
        if url != self.base.replace("http", "ws", 1):
            self._troubles.append(f"it dialled {url}")


# Acts of a person


def connected(page: Page) -> None:
    """Wait until the page says that it is connected."""
    expect(page.locator("#connection")).to_have_attribute("data-state", "connected")


def go(page: Page, place: str) -> None:
    """Follow a link within the page."""
    page.evaluate("(place) => { location.hash = place; }", place)


def box(page: Page) -> Locator:
    """Return the box for a message."""
    return page.get_by_role("textbox", name="Message")


def send(page: Page, text: str) -> None:
    """Write a message and send it."""
    box(page).fill(text)
    page.get_by_role("button", name=EITHER_SEND).click()


def send_as(page: Page, how: str, text: str) -> None:
    """Write a message and choose how it is sent."""
    box(page).fill(text)
    page.get_by_role("button", name="How to send").click()
    page.get_by_role("menuitemradio", name=how).click()
    if box(page).input_value():  # to choose how is one step, to send is another
        page.get_by_role("button", name=re.compile("^(Send|Take over|Steer|Queue|Roll back)$")).click()


# Elements that a person sees


def runs(page: Page) -> Locator:
    """Return the runs of the conversation, children left out."""
    return page.locator("[role=log] article.run:not(.child article.run)")


def running(page: Page, text: str = "") -> Locator:
    """Wait until the last run is running, and has said something; return that run."""
    last = runs(page).last
    expect(last).to_have_attribute("data-state", "running")
    run = page.locator(f"article.run[data-run={number_of(last)}]")  # this run, whatever run comes after
    if text:
        expect(run).to_contain_text(text)
    return run


def ended(run: Locator, ending: str) -> None:
    """Wait until a run has ended, with this ending."""
    expect(run).to_have_attribute("data-state", "ended")
    expect(run).to_have_attribute("data-ending", ending)


def number_of(run: Locator) -> str:
    """Return a run's id."""
    return run.get_attribute("data-run") or ""


def drawn(where: Locator) -> None:
    """Wait until every text is drawn: a text that no worker has parsed yet stands there unparsed."""
    expect(where.locator(".text > pre.plain")).to_have_count(0)


def still(run: Locator) -> str:
    """Return everything a run shows, once its texts are drawn and it does not change from one frame to the next."""
    drawn(run)
    return str(
        run.evaluate(
            """async (run) => {
                const frame = () => new Promise(requestAnimationFrame);
                for (let before = null; before !== run.innerHTML; await frame(), await frame()) before = run.innerHTML;
                return run.innerHTML;
            }"""
        )
    )


def until(page: Page, seen: Callable[[], Any]) -> None:
    """Wait for a condition that no element shows; a relay's frames come in meanwhile."""
    last = monotonic() + BOUND_MS / 1000
    while not seen():
        assert monotonic() < last, "it did not come in time"
        page.evaluate("() => new Promise(requestAnimationFrame)")


def thread_clock(page: Page) -> Callable[[], float]:
    """Return a clock of the seconds that the page's thread computes, which leaves out other load on the machine."""
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable")  # the clock counts from here on

    def now() -> float:
        told = {each["name"]: each["value"] for each in devtools.send("Performance.getMetrics")["metrics"]}
        return float(told["ThreadTime"])

    return now


def serve(data: Path, *options: str) -> Served:
    """Serve the agent of these tests."""
    return Served(AGENT, data, *options)


def outcome_of(visit: Visit, run: str) -> dict[str, Any] | None:
    """Return how a run ended, from the server; None while it runs."""
    outcome: dict[str, Any] | None = visit.operator.request("interlock.find", name=run)["outcome"]
    return outcome


def lost(page: Page) -> None:
    """Wait until the page says that it is not connected."""
    expect(page.locator("#connection")).not_to_have_attribute("data-state", "connected")
