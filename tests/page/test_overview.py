"""The operators' overview: live runs, stop latencies, endings; and stops of a run, a session or everything."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from page.scene import Visit, ended, go, number_of, running, runs, send


@pytest.fixture(autouse=True)
def quiet(visit: Visit) -> None:
    """End whatever still runs before each test."""
    visit.operator.request("interlock.stopall")


def row(page: Page, run: str) -> Locator:
    """Return the row of a live run."""
    return page.get_by_role("row").and_(page.locator(f"[data-run={run}]"))  # r-1-1 must not match r-1-18


def test_live_runs_are_listed_and_stopped_from_there(visit: Visit, session: str) -> None:
    """A stop of one run, or of a session with its queue, works from the overview and leaves its receipt there."""
    page = visit.open(session)
    go(page, "#/overview")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    one = visit.operator.send(f"{session}-1", "stream")
    two = visit.operator.send(f"{session}-2", "ask May I?")
    waiting = visit.operator.send(f"{session}-2", "then this", strategy="queue")
    expect(row(page, waiting)).to_contain_text("queued")
    row(page, one).get_by_role("button", name=re.compile("^Stop run")).click()
    expect(row(page, one)).to_have_count(0)
    expect(page.locator("#overview details.receipt summary").first).to_contain_text("stopped in")
    row(page, two).get_by_role("button", name=re.compile("^Stop session")).click()
    expect(row(page, two)).to_have_count(0)
    expect(row(page, waiting)).to_have_count(0)
    expect(page.locator("#overview details.receipt")).to_have_count(2)
    expect(page.locator("#overview details.receipt summary").first).to_contain_text("1 question withdrawn")
    for run in (one, two, waiting):
        assert visit.operator.request("interlock.find", name=run)["outcome"]["ending"] == "stopped"


def test_everything_is_stopped_once_it_is_confirmed(visit: Visit, session: str) -> None:
    """A dialog asks before everything is stopped, and Esc closes it without harm; then every session has a receipt."""
    sent = [visit.operator.send(f"{session}-{number}", "stream") for number in range(3)]
    page = visit.open(session)
    go(page, "#/overview")
    for run in sent:
        expect(row(page, run)).to_be_visible()
    button = page.get_by_role("button", name="Stop everything", exact=True)
    button.click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert visit.operator.request("interlock.find", name=sent[0])["outcome"] is None
    button.click()
    page.get_by_role("dialog").get_by_role("button", name="Stop everything now").click()
    expect(page.locator("#overview details.receipt")).to_have_count(3)
    expect(page.locator("#overview tbody tr")).to_have_count(0)
    for run in sent:
        assert visit.operator.request("interlock.find", name=run)["outcome"]["ending"] == "stopped"


def test_the_charts_say_what_they_show(visit: Visit, session: str) -> None:
    """Stop latencies and endings are pictures with a text for people who do not see them; the grade is named."""
    page = visit.open(session)
    send(page, "stream")
    running(page, "word2")
    page.locator("#stop").click()
    ended(runs(page), "stopped")
    go(page, "#/overview")
    charts = page.locator("#overview").get_by_role("img")
    expect(charts.first).to_have_attribute("aria-label", re.compile("[Ss]top latency: fenced [1-9]"))
    expect(charts.nth(1)).to_have_attribute("aria-label", re.compile("[1-9][0-9]* stopped"))
    expect(page.locator("#overview")).to_contain_text("containment grade")


def test_the_overview_is_for_operators(visit: Visit, session: str) -> None:
    """A person who may not see everything is offered no overview, and the page says so at its address."""
    page = visit.open(session, name="bob")
    expect(page.get_by_role("link", name="Overview")).to_be_hidden()
    go(page, "#/overview")
    expect(page.locator("#overview")).to_contain_text(re.compile("admin|may not"))
    expect(page.get_by_role("button", name="Stop everything")).not_to_be_enabled()


def test_the_timeline_is_linked_drawn_and_saved(visit: Visit, session: str) -> None:
    """A run's details lead to its timeline: the picture that the shell writes, also as a list, and as a file."""
    page = visit.open(session)
    send(page, "batch")
    run = running(page)
    expect(run.locator(".tool").first).to_have_attribute("data-state", "running")
    number = number_of(run)
    page.locator("#stop").click()
    expect(page.locator("details.receipt")).to_have_attribute("data-drain", "observed")
    run.get_by_role("button", name=re.compile("^Details")).click()
    details = page.get_by_role("complementary", name="Details")
    expect(details).to_contain_text(number)
    with page.expect_download() as saved:
        details.get_by_role("link", name="Save as SVG").click()
    assert saved.value.suggested_filename == f"{number}.svg"
    written = saved.value.path().read_text("utf-8")
    assert written.startswith("<svg")
    for mark in ("fenced", "ended", "drained", "wait_for_ever"):
        assert mark in written
    details.get_by_role("link", name="Timeline").click()
    expect(page).to_have_url(re.compile(f"#/run/{number}$"))
    picture = page.locator("#timeline-picture img")
    expect(picture).to_have_attribute("alt", re.compile(f"{number}.*stopped by operator"))
    assert picture.evaluate("(image) => image.naturalWidth") > 300
    page.get_by_text("The same as a list").click()
    expect(page.locator("#timeline-moments")).to_contain_text("wait_for_ever")
    page.reload()
    expect(picture).to_be_visible()
    page.get_by_role("link", name="Back to the conversation").click()
    expect(runs(page)).to_have_count(1)


@pytest.mark.parametrize("key", [True, False])
def test_a_run_is_stopped_from_its_timeline(visit: Visit, session: str, key: bool) -> None:
    """A person at the timeline of a run at work has Stop and Esc there too; then the button is gone."""
    page = visit.open(session)
    send(page, "stream")
    run = number_of(running(page, "word5"))
    go(page, f"#/run/{run}")
    stop = page.locator("#timeline-stop")
    expect(stop).to_be_visible()
    page.keyboard.press("Escape") if key else stop.click()
    expect(stop).to_be_hidden()
    assert visit.operator.request("interlock.find", name=run)["outcome"]["ending"] == "stopped"


def test_what_is_left_detached_is_stopped_with_everything(visit: Visit, session: str, tmp_path: Path) -> None:
    """Stop everything works on detached processes too, though no run is alive and the table has no row."""
    page = visit.open(session)
    send(page, f"detach {tmp_path / 'never'}")
    ended(runs(page), "completed")
    go(page, "#/overview")
    expect(page.locator("#overview tbody tr")).to_have_count(0)
    page.get_by_role("button", name="Stop everything", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Stop everything now").click()
    expect(page.locator("#overview details.receipt")).to_have_count(1)
    assert visit.operator.request("interlock.processes", session=session) == []


def test_the_timeline_of_nothing_says_so(visit: Visit) -> None:
    """An unknown run has no picture; the page says so in words."""
    visit.forgive("404")
    page = visit.open("x")
    go(page, "#/run/r-7f-1")
    expect(page.locator("#timeline-picture")).to_contain_text(re.compile("no .*run|no timeline"))
