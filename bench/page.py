"""The cost of a stop in the browser: from the button to its ack, beside a bare WebSocket round trip of the same page.

1. The page is the real one, in Debian's Chromium, from `interlock serve` with SQLite (FULL). The button is clicked and
   the page's own mark (`interlock.stop` in the browser's User Timing) is read: from the click to the ack.
2. The floor is an echo: a frame of the same length to an application that does nothing else, on the same uvicorn and
   sockets (`bench.floor`), sent and awaited by the same page. The page's policy forbids that; the bench lifts it.
3. A second floor is an echo that waits for the disk: as many bytes as a stop commits are appended and flushed before
   the answer. An ack waits for its ending to be on disk, so no stop can come below this one.
4. All are timed by turns, each after the same pause. Weight is what a first visit fetches, in bytes on the wire.
"""

import os
import shutil
import time
from pathlib import Path
from typing import Any

from bench.durable import directory
from bench.result import Result
from bench.sample import Samples
from bench.scale import Scale
from bench.served import Child, process, serve

STOP_GOAL, WEIGHT_KB = 3.0, 200.0
PAUSE_SECONDS = 0.05
PATIENCE_MS = 10_000
CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")

ECHO = """async (url) => {
  const sockets = (globalThis.echoes ??= {});
  const socket = (sockets[url] ??= new WebSocket(url));
  if (socket.readyState === 0) await new Promise((open) => (socket.onopen = open));
  const began = performance.now();
  const answer = new Promise((heard) => (socket.onmessage = heard));
  socket.send("x".repeat(120));
  await answer;
  return performance.now() - began;
}"""
STOP = """async () => {
  performance.clearMeasures("interlock.stop");
  const measured = new Promise((heard) => new PerformanceObserver((list, it) => {
    it.disconnect();
    heard(list.getEntriesByName("interlock.stop")[0].duration);
  }).observe({ entryTypes: ["measure"] }));
  document.getElementById("stop").click();
  return await measured;
}"""


def measure(scale: Scale) -> list[Result]:
    """Take the figures of the page."""
    if CHROMIUM is None:
        return [Result(name="stop button to ack: no chromium here (`make tools`)", value=float("nan"))]
    return [result for driver in ("inline", "host") for result in _stops(driver, scale)]


def _stops(driver: str, scale: Scale) -> list[Result]:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - the other measurements need no browser

    stops, echoes, flushed = Samples(), Samples(), Samples()
    with (
        directory() as data,
        serve(driver, Path(data), "bench.speakers:agent") as served,
        process("-m", "bench.floor", f"--disk={data}") as floor,
        sync_playwright() as play,
    ):
        echo = Child(floor).url.replace("http", "ws")
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = play.chromium.launch(executable_path=CHROMIUM, args=root)
        page = browser.new_context(bypass_csp=True).new_page()
        weight: list[int] = []
        page.on("response", lambda answer: weight.append(_size(answer)))
        page.goto(served.told["page"])
        page.locator("#connection[data-state=connected]").wait_for(timeout=PATIENCE_MS)
        for _ in range(scale.rounds(100, 15)):
            page.locator("#message").fill("park here")
            page.keyboard.press("Enter")
            page.locator(".run[data-state=running] .text").wait_for(timeout=PATIENCE_MS)
            for path, taken in (("/echo", echoes), ("/durable", flushed)):
                time.sleep(PAUSE_SECONDS)
                taken.seconds.append(page.evaluate(ECHO, echo + path) / 1000)
            time.sleep(PAUSE_SECONDS)
            stops.seconds.append(page.evaluate(STOP) / 1000)
            page.locator(".run[data-state=running]").wait_for(state="detached", timeout=PATIENCE_MS)
        fetched = sum(weight) / 1000  # includes files fetched for the first text
        browser.close()
    small = tuple(
        f"{what}: p50 {took.percentile(50) * 1000:.2f} · p95 {took.percentile(95) * 1000:.2f} ms, {len(took.seconds)} ×"
        for what, took in (
            ("stop button to ack", stops),
            ("bare echo in the same page", echoes),
            ("bare echo behind one flush of the disk", flushed),
        )
    )
    ratio, floor_ratio = (stops.percentile(50) / taken.percentile(50) for taken in (echoes, flushed))
    results = [
        Result(name=f"stop button → ack / bare echo, p50, {driver}, SQLite", value=ratio, goal=STOP_GOAL, small=small),
        Result(name=f"the same / bare echo behind one flush of the disk, {driver}", value=floor_ratio),
    ]
    if driver == "inline":
        results.append(Result(name="what a first visit fetches", value=fetched, unit="kB", goal=WEIGHT_KB))
    return results


def _size(answer: Any) -> int:
    return len(answer.body()) if answer.status == 200 else 0
