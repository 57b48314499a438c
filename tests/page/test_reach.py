"""The page works on a phone, by keyboard, for a screen reader, and in light and dark colours."""

import re

import pytest
from playwright.sync_api import Page, expect

from page.scene import AXE, Visit, box, ended, go, number_of, running, runs, send

from .scene import outcome_of

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}
WIDE = "x" * 400


def test_a_phone_shows_all_of_it(visit: Visit, session: str) -> None:
    """A phone shows nothing wider than its screen, whatever was written; Stop fits a thumb, and works."""
    page = visit.open(session, **PHONE)
    send(
        page,
        f"{WIDE}\n\n`{WIDE}`\n\n| {' | '.join('abcdefghijkl')} |\n|{'---|' * 12}\n| {' | '.join('abcdefghijkl')} |",
    )
    ended(runs(page), "completed")
    send(page, f"use {WIDE}")
    expect(runs(page)).to_have_count(2)  # the last is the one just sent
    ended(runs(page).last, "completed")
    fits(page)
    send(page, "stream")
    run = running(page, "word5")
    stop = page.locator("#stop")
    where = stop.bounding_box()
    assert where is not None
    assert where["x"] >= 0 and where["x"] + where["width"] <= 390 and where["y"] + where["height"] <= 844
    assert where["height"] >= 40 and where["width"] >= 44
    stop.tap()
    ended(run, "stopped")
    page.locator("details.receipt summary").tap()
    fits(page)
    go(page, "#/overview")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    fits(page)
    go(page, f"#/run/{number_of(run)}")
    expect(page.locator("#timeline-picture img")).to_be_visible()
    fits(page)


def test_the_sessions_are_reached_on_a_phone(visit: Visit, session: str) -> None:
    """A button opens the list of sessions on a phone; choosing a session closes the list again."""
    visit.operator.send(f"{session}-2", "hello")
    page = visit.open(session, **PHONE)
    page.get_by_role("button", name="Sessions").tap()
    other = page.get_by_role("navigation", name="Sessions").get_by_text(f"{session}-2")
    expect(other).to_be_visible()
    other.tap()
    ended(runs(page), "completed")
    expect(other).to_be_hidden()


def fits(page: Page) -> None:
    """Check that nothing of the page lies to the right of the screen."""
    assert page.evaluate("() => document.documentElement.scrollWidth") <= page.viewport_size["width"]
    assert page.evaluate("() => document.body.scrollWidth") <= page.viewport_size["width"]


def test_everything_is_done_by_the_keyboard(visit: Visit, session: str) -> None:
    """A person without a pointer can write, send, choose how, answer, stop and unfold; the focus is always seen."""
    page = visit.open(session)
    expect(box(page)).to_be_focused()
    page.keyboard.type("ask Shall I?")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("A second line.")
    page.keyboard.press("Enter")
    run = running(page, "Shall I?")
    expect(box(page)).to_be_focused()
    tab_to(page, "Yes", back=True)
    page.keyboard.press("Enter")
    ended(run, "completed")
    box(page).focus()
    page.keyboard.type("listen")
    page.keyboard.press("Enter")
    run = running(page, "I listen")
    tab_to(page, "How to send")
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("menuitemradio", name="Steer")).to_be_focused()
    page.keyboard.press("Enter")
    expect(box(page)).to_be_focused()
    page.keyboard.type("to the left")
    page.keyboard.press("Enter")
    expect(run).to_contain_text("heard to the left.")
    page.keyboard.press("Escape")
    ended(run, "stopped")
    expect(page.locator("details.receipt")).to_have_attribute("data-drain", "observed")
    page.locator("details.receipt summary").focus()
    page.keyboard.press("Enter")
    expect(page.locator("details.receipt")).to_have_attribute("open", "")


def tab_to(page: Page, name: str, *, back: bool = False) -> None:
    """Press Tab until an element of that name has the focus; check that each focus on the way can be seen."""
    for _ in range(40):
        page.keyboard.press("Shift+Tab" if back else "Tab")
        told = page.evaluate(
            """() => {
                const node = document.activeElement, look = getComputedStyle(node);
                const ring = look.outlineStyle !== "none" || look.boxShadow !== "none";
                return [node.getAttribute("aria-label") ?? node.textContent.trim(), ring, node.outerHTML.slice(0, 120)];
            }"""
        )
        assert told[1], f"no focus is seen on {told[2]}"
        if told[0] == name:
            return
    raise AssertionError(f"{name} is not reached by Tab")


def test_the_menu_closes_before_a_stop(visit: Visit, session: str) -> None:
    """Esc with the menu open closes the menu while the run goes on; the next Esc stops the run."""
    page = visit.open(session)
    send(page, "stream")
    run = running(page, "word2")
    page.get_by_role("button", name="How to send").click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("menu")).to_be_hidden()
    expect(run).to_have_attribute("data-state", "running")
    page.keyboard.press("Escape")
    ended(run, "stopped")


@pytest.mark.parametrize("scene", ["chat", "question", "overview", "timeline", "pairing", "share"])
def test_axe_finds_nothing_serious(visit: Visit, session: str, scene: str) -> None:
    """The checker axe-core finds nothing serious, in light and in dark; colours are judged twice, the rest once."""
    if scene == "pairing":
        page = visit.tab()
        page.goto(visit.base)
    else:
        page = visit.open(session)
        compose(page, scene)
    page.evaluate(AXE.read_text("utf-8") + ";0")
    found = judge(page, {})
    page.emulate_media(color_scheme="dark")
    found += judge(page, {"runOnly": ["color-contrast"]})
    assert not found, "\n".join(found)


def compose(page: Page, scene: str) -> None:
    """Fill the page with everything that is judged."""
    send(page, "use kettle")
    ended(runs(page), "completed")
    if scene == "share":
        page.get_by_role("button", name="Share", exact=True).click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("With whom").fill("bob")
        dialog.get_by_role("button", name="Share").click()
        expect(dialog.get_by_role("button", name="Remove bob")).to_be_visible()
        return
    if scene == "question":
        send(page, "ask Shall I?")
        expect(page.locator(".question")).to_have_attribute("data-state", "open")
        return
    send(page, "batch")
    run = running(page)
    expect(run.locator(".tool").first).to_have_attribute("data-state", "running")
    page.locator("#stop").click()
    receipt = page.locator("details.receipt")
    expect(receipt).to_have_attribute("data-drain", "observed")
    receipt.locator("summary").click()
    run.get_by_role("button", name=re.compile("^Details")).click()
    if scene == "overview":
        go(page, "#/overview")
        expect(page.locator("#overview").get_by_role("img").first).to_be_visible()
    if scene == "timeline":
        go(page, f"#/run/{number_of(run)}")
        expect(page.locator("#timeline-picture img")).to_be_visible()


def judge(page: Page, options: dict[str, object]) -> list[str]:
    """Return the findings that axe-core calls serious or critical."""
    result = page.evaluate("(options) => axe.run(document, { resultTypes: ['violations'], ...options })", options)
    return [
        f"{each['impact']} {each['id']}: {each['help']}: {[node['html'][:160] for node in each['nodes'][:5]]}"
        for each in result["violations"]
        if each["impact"] in ("serious", "critical")
    ]


def test_escape_closes_a_drawer_before_it_stops(visit: Visit, session: str) -> None:
    """Esc closes a drawer that lies over the conversation on a phone, and stops only when pressed again."""
    page = visit.open(session, **PHONE)
    send(page, "stream")
    run = running(page, "word2")
    for name in ("Sessions", "Details"):
        drawer = page.get_by_role("button", name=name, exact=True)
        drawer.click()
        expect(drawer).to_have_attribute("aria-expanded", "true")
        page.keyboard.press("Escape")
        expect(drawer).to_have_attribute("aria-expanded", "false")
        expect(page.locator("#stop")).to_have_text("Stop")
        assert outcome_of(visit, number_of(run)) is None
    page.keyboard.press("Escape")
    ended(run, "stopped")
