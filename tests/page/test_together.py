"""Several views of the same: two tabs, two people, and one page before and after a crash."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from page.scene import Person, Visit, connected, drawn, ended, go, number_of, running, runs, send, serve, until


def shown(page: Page) -> list[list[str | None]]:
    """Return what the conversation says, without what depends on the time of the look."""
    found: list[list[str | None]] = page.evaluate(
        """() => [...document.querySelectorAll("[role=log] article")].map((each) =>
            [each.dataset.run, each.dataset.state, each.dataset.ending, each.className,
             ...[...each.querySelectorAll(".text, .ending, .words")].map((part) => part.textContent.trim())])"""
    )
    return found


def same(one: Page, two: Page) -> None:
    """Wait until two pages say the same; each draws its texts when it has parsed them."""
    drawn(one.get_by_role("log"))
    drawn(two.get_by_role("log"))
    until(one, lambda: shown(one) == shown(two))


def test_two_tabs_see_the_same(visit: Visit, session: str) -> None:
    """Words sent in one tab are seen in the other while they come; a stop in one is a stop in both."""
    one = visit.open(session)
    two = visit.tab(beside=one)
    two.goto(f"{visit.base}#/s/{session}")
    connected(two)
    send(one, "stream")
    number = number_of(running(one, "word5"))
    run = running(two, "word5")
    assert number_of(run) == number
    expect(two.locator("#stop")).to_be_enabled()
    two.locator("#stop").click()
    ended(run, "stopped")
    ended(runs(one), "stopped")
    expect(one.locator("#stop")).to_be_disabled()
    for page in (one, two):
        expect(page.locator("details.receipt")).to_have_attribute("data-drain", "observed")
    same(one, two)


def test_two_people_see_the_same_and_each_is_named(visit: Visit, session: str) -> None:
    """An operator's page follows what another person's page does, question and answer included."""
    ann = visit.open(session, name="ann")
    send(ann, "ask Shall we?")
    operator = visit.open(f"ann%2F{session}")
    expect(operator.locator("article.said")).to_contain_text("ann")
    operator.locator(".question").get_by_role("button", name="Yes").click()
    for page in (ann, operator):
        expect(page.locator(".question")).to_have_attribute("data-state", "answered")
        expect(page.locator(".question")).to_contain_text("by operator")
        ended(runs(page), "completed")
    send(operator, "stream")
    run = running(ann, "word5")
    operator.keyboard.press("Escape")
    ended(run, "stopped")
    expect(run.locator(".ending")).to_contain_text("stopped by operator")
    same(ann, operator)


def test_what_is_not_mine_is_not_shown(visit: Visit, session: str) -> None:
    """A session of somebody else is neither listed nor opened for a person who may not see it."""
    visit.operator.send(session, "a secret plan")
    page = visit.open("bobs-own", name="bob")
    send(page, "hello")
    ended(runs(page), "completed")
    expect(page.get_by_role("navigation", name="Sessions")).not_to_contain_text(session)
    for name in (session, f"operator%2F{session}"):
        go(page, f"#/s/{name}")
        expect(page.locator("#empty")).to_have_text("Nothing has been said here yet.")
        expect(page.get_by_role("log")).not_to_contain_text("a secret plan")


def test_messages_of_another_surface_appear(visit: Visit, session: str) -> None:
    """A message that somebody sends over the wire is seen at once, also in the list of sessions."""
    page = visit.open("elsewhere")
    visit.operator.send(session, "from the wire")
    mine = page.get_by_role("navigation", name="Sessions").get_by_text(session).first
    expect(mine).to_be_visible()
    mine.click()
    ended(runs(page), "completed")
    expect(runs(page)).to_contain_text("from the wire")


@pytest.fixture
def mortal(browser: Browser, tmp_path: Path) -> Iterator[Visit]:
    """Yield a visit to a server that may be killed."""
    serving = serve(tmp_path / "data")
    operator = Person(serving)
    visiting = Visit(browser, serving, operator)
    try:
        yield visiting
        visiting.close()
    finally:
        visiting.operator.close()
        visiting.server.close()


def test_a_crash_is_told_as_one(mortal: Visit, session: str) -> None:
    """The page shows that a server was killed in a run, reconnects by itself, and doubles or makes up nothing."""
    mortal.forgive("WebSocket connection")
    mortal.forgive("ERR_CONNECTION_REFUSED")
    page = mortal.open(session)
    send(page, "before")
    ended(runs(page), "completed")
    drawn(runs(page))  # the page asks nothing more of the server
    send(page, "stream")
    number = number_of(running(page, "word5"))
    mortal.operator.close()
    mortal.server.kill()
    expect(page.locator("#connection")).to_have_attribute("data-state", "lost")
    mortal.server.close()
    mortal.server = serve(mortal.server.data, "--port", str(mortal.server.port))
    mortal.operator = Person(mortal.server)
    connected(page)
    run = page.locator(f"article.run[data-run={number}]")
    ended(run, "lost")
    expect(run.locator(".ending")).to_contain_text("lost in a crash")
    expect(page.locator("#stop")).to_be_disabled()
    send(page, "after")
    ended(runs(page).last, "completed")
    expect(runs(page)).to_have_count(3)
    expect(page.locator("article.said")).to_have_count(3)
    first, _, last = shown(page), page.reload(), None
    connected(page)
    expect(runs(page)).to_have_count(3)
    ended(runs(page).last, "completed")
    last = shown(page)
    assert [each[0] for each in last] == [each[0] for each in first]


def test_a_message_sent_while_the_server_is_away_arrives_once(mortal: Visit, session: str) -> None:
    """A message sent while the server is away is kept, sent when the server is back, and answered once."""
    mortal.forgive("WebSocket connection")
    mortal.forgive("ERR_CONNECTION_REFUSED")
    page = mortal.open(session)
    send(page, "first")
    ended(runs(page), "completed")
    drawn(runs(page))  # the page asks nothing more of the server
    mortal.operator.close()
    mortal.server.kill()
    expect(page.locator("#connection")).to_have_attribute("data-state", "lost")
    send(page, "second")
    mortal.server.close()
    mortal.server = serve(mortal.server.data, "--port", str(mortal.server.port))
    mortal.operator = Person(mortal.server)
    connected(page)
    ended(runs(page).last, "completed")
    expect(runs(page).last).to_contain_text("second")
    expect(runs(page)).to_have_count(2)
    assert len(mortal.operator.request("interlock.runs", session=session)) == 2
