"""Children and detached processes stand on the page inside the turn that began them, until they are gone."""

import re
from pathlib import Path

from playwright.sync_api import expect

from page.scene import Visit, connected, ended, number_of, running, runs, send


def test_a_childs_process_is_drawn_once_inside_its_parent(visit: Visit, session: str) -> None:
    """The page shows the output of a child's process in the child's card, and never draws the child as a turn."""
    page = visit.open(session)
    send(page, "team build")
    run = running(page)
    expect(run.locator(".child .process .tail")).to_contain_text("compiling")
    child = number_of(page.locator(".child article.run"))
    for _ in ("while it runs", "when it has ended"):
        expect(page.locator(f"article.run[data-run={child}]")).to_have_count(1)
        expect(runs(page)).to_have_count(1)
        page.keyboard.press("Escape")
        ended(run, "stopped")
        expect(page.locator(".child article.run")).to_have_attribute("data-state", "ended")
        expect(page.locator(".child .process")).to_have_attribute("data-state", "ended")


def test_a_detached_process_that_ends_is_told_and_a_stop_of_it_leaves_a_receipt(
    visit: Visit, session: str, tmp_path: Path
) -> None:
    """A detached process keeps Stop enabled while it lives; a stop that ends only the process leaves a receipt."""
    page = visit.open(session)
    stop = page.locator("#stop")
    for number, end in enumerate((tmp_path.joinpath("end").touch, stop.click)):
        send(page, f"detach {tmp_path / ('end' if not number else 'never')}")
        expect(runs(page)).to_have_count(number + 1)
        run = runs(page).last
        ended(run, "completed")
        expect(run.locator(".process")).to_contain_text("detached, running")
        expect(stop).to_be_enabled()
        end()
        expect(run.locator(".process")).to_contain_text("detached, ended")
        expect(stop).to_be_disabled()
        expect(page.locator("[role=log] details.receipt")).to_have_count(number)
    expect(page.locator("[role=log] details.receipt")).to_contain_text(re.compile(r"\d process(es)? ended"))


def test_the_receipt_of_a_stop_that_ended_only_a_detached_child_grows_and_is_kept(visit: Visit, session: str) -> None:
    """The receipt of a stop that ended a completed run's detached child grows until the child is gone, and stays."""
    page = visit.open(session)
    send(page, "leave tidy")
    run = runs(page).last
    ended(run, "completed")
    expect(page.locator("[role=log] .tool")).to_have_attribute("data-state", "running")
    page.locator("#stop").click()
    receipts = page.locator("[role=log] .turns > details.receipt")
    for _ in range(2):
        expect(receipts).to_have_count(1)
        expect(receipts).to_have_attribute("data-drain", "observed")
        expect(receipts).to_contain_text("1 tool interrupted, effect unknown")
        page.reload()
        connected(page)
        ended(runs(page).last, "completed")


def test_the_details_of_what_a_child_announces_name_no_person(visit: Visit, session: str) -> None:
    """An announcement has no author: its details name the child that it is about."""
    page = visit.open(session)
    send(page, "report back")
    expect(runs(page)).to_have_count(2)
    ended(runs(page).last, "completed")
    details = page.locator("#details")
    for number, words in ((0, "by"), (1, "announces")):
        # The first buttons are those of children.
        runs(page).nth(number).get_by_role("button", name="Details of run").last.click()
        expect(details.locator("dl").first.locator("dt").nth(1)).to_have_text(words)
    expect(details.locator("dl").first.locator("dd").nth(1)).to_have_text(re.compile("^child r-"))
