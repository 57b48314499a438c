"""`python -m tests.page.screenshots`: the pictures of the page in docs/images, of the demo agent, as it is served.

After a change of the page, run this and look at the pictures before they are committed.
"""

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect, sync_playwright

sys.path.insert(0, str(Path(__file__).parent.parent))  # as pytest does

from page.scene import ROOT, Person, Visit, ended, go, launch, number_of, running, runs, send
from surfaces.scene import served

IMAGES = ROOT / "docs" / "images"
MOST_BYTES = 200_000
DESK: dict[str, Any] = {"viewport": {"width": 1200, "height": 760}}
PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}


def main() -> None:
    """Take all pictures."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as directory,
        served("interlock.demo:agent", Path(directory) / "data") as server,
        sync_playwright() as playwright,
    ):
        browser, operator = launch(playwright), Person(server)
        visit = Visit(browser, server, operator)
        try:
            desk(visit)
            visit.close()
        finally:
            operator.close()
            browser.close()


def desk(visit: Visit) -> None:
    """Take a picture of a morning's work, seen from several sides."""
    for session, text in (("release notes", "last"), ("nightly build", "build 1")):
        operator_says(visit, session, text)
    page = visit.open("research", **DESK)
    send(page, "work json")
    ended(runs(page).last, "completed")
    send(page, "deploy")
    expect(page.locator(".question")).to_have_attribute("data-state", "open")
    take(page, "chat")
    page.locator("#stop").click()
    expect(page.locator("details.receipt")).to_have_attribute("data-drain", "observed")
    receipt(visit)
    overview(visit, page)
    timeline(page)
    dark(visit)
    phone(visit)


def operator_says(visit: Visit, session: str, text: str) -> None:
    """Send a message from elsewhere."""
    run = visit.operator.send(session, text)
    visit.operator.request("interlock.wait", run=run, timeout=20.0)


def receipt(visit: Visit) -> None:
    """Take a picture of a stop in the middle of a tool and of programs, with its receipt unfolded."""
    page = visit.open("daemons", **DESK)
    send(page, "team json file")
    first = running(page)
    expect(page.locator(".child .tool[data-state=running]").first).to_be_visible()
    send(page, "daemon")
    ended(first, "superseded")
    run = running(page, "ten times a second")
    page.locator("#stop").click()
    ended(run, "stopped")
    last = page.locator("details.receipt").last
    expect(last).to_have_attribute("data-drain", "observed")
    last.locator("summary").click()
    last.scroll_into_view_if_needed()
    take(page, "receipt")


def overview(visit: Visit, page: Page) -> None:
    """Take a picture of several sessions at work, with what happened before."""
    for number in range(6):
        run = visit.operator.send(f"batch {number}", ("story", "deaf", "work json")[number % 3])
        if number < 3:
            visit.operator.request("interlock.stop", run=run)
    visit.operator.send("batch 5", "then this", strategy="queue")
    go(page, "#/overview")
    expect(page.get_by_role("row").filter(has_text="queued")).to_have_count(1)
    expect(page.locator("#overview").get_by_role("img").first).to_have_attribute(
        "aria-label", re.compile("fenced [1-9]")
    )
    page.set_viewport_size({"width": 1200, "height": 900})
    take(page, "overview")
    page.set_viewport_size(DESK["viewport"])
    visit.operator.request("interlock.stopall")


def timeline(page: Page) -> None:
    """Take a picture of a run that was stopped in the middle of its third tool."""
    go(page, "#/s/timeline")
    send(page, "work trace")
    run = running(page)
    expect(run.locator(".tool")).to_have_count(3)
    page.locator("#stop").click()
    ended(run, "stopped")
    expect(page.locator("details.receipt").last).to_have_attribute("data-drain", "observed")
    go(page, f"#/run/{number_of(run)}")
    expect(page.locator("#timeline-picture img")).to_be_visible()
    take(page, "timeline")


def dark(visit: Visit) -> None:
    """Take a picture of a takeover, in dark colours."""
    page = visit.open("at night", color_scheme="dark", **DESK)
    send(page, "story")
    first = running(page, ".")
    send(page, "work trace")
    ended(first, "superseded")
    run = running(page)
    expect(run.locator(".tool[data-state=finished]").nth(1)).to_be_attached()
    take(page, "dark")
    page.locator("#stop").click()
    ended(run, "stopped")


def phone(visit: Visit) -> None:
    """Take a picture on a phone."""
    page = visit.open("on the way", **PHONE)
    send(page, "work trace")
    ended(runs(page).last, "completed")
    send(page, "story")
    run = running(page, ".")
    page.locator("#stop").click()
    ended(run, "stopped")
    expect(page.locator("details.receipt")).to_have_attribute("data-drain", "observed")
    take(page, "phone")


def take(page: Page, name: str) -> None:
    """Write a picture, and refuse one that is too heavy for a repository."""
    page.evaluate("() => document.fonts.ready")
    size = len(page.screenshot(path=IMAGES / f"{name}.png", animations="disabled", caret="hide"))
    print(f"docs/images/{name}.png  {size // 1000} KB")
    if size > MOST_BYTES:
        raise SystemExit(f"{name}.png has {size} bytes; {MOST_BYTES} are enough")


if __name__ == "__main__":
    main()
