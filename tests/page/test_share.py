"""Owners on the page: one's own `main`, sharing a session, and losing a share."""

from playwright.sync_api import Page, expect

from page.scene import Visit, connected, ended, go, runs, send, until


def listed(page: Page) -> list[str]:
    """Return the names in the list of sessions."""
    return [str(each) for each in page.locator("#session-list .name").all_inner_texts()]


def share(page: Page, who: str, may: str) -> None:
    """Share the open session in the dialog, which stays open."""
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("With whom").fill(who)
    dialog.get_by_label("They", exact=True).select_option(may)
    dialog.get_by_role("button", name="Share").click()


def test_two_people_have_a_main_of_their_own(visit: Visit) -> None:
    """The page opens a person's own `main`; own sessions are listed bare, those of others with their owner."""
    ann, bob = visit.tab(), visit.tab()
    for page, name in ((ann, "ann"), (bob, "bob")):
        page.goto(f"{visit.base}#pair={visit.operator.code(name)}")
        connected(page)
        expect(page.locator("#where")).to_have_text("main")
        send(page, f"the secret of {name}")
        ended(runs(page).last, "completed")
        expect(page.locator("#session-list")).to_contain_text("main")
        assert "main" in listed(page) and not [each for each in listed(page) if each.startswith(f"{name}/")]
    expect(bob.get_by_role("log")).not_to_contain_text("secret of ann")
    operator = visit.open("ann%2Fmain")
    expect(operator.get_by_role("log")).to_contain_text("the secret of ann")
    until(operator, lambda: {"ann/main", "bob/main"} <= set(listed(operator)))
    go(ann, "#/s/ann%2Fmain")  # her own session, written in full
    expect(ann.locator("#where")).to_have_text("main")
    expect(ann.get_by_role("log")).to_contain_text("the secret of ann")


def test_a_session_is_shared_and_taken_back(visit: Visit, session: str) -> None:
    """An owner shares a session to read or write; the other person sees at once when the share is taken back."""
    ann = visit.open(session, name="ann")
    ann.get_by_role("button", name="Share", exact=True).click()
    expect(ann.get_by_role("dialog")).to_contain_text("it begins with its first message")
    ann.keyboard.press("Escape")
    send(ann, "hello")
    ended(runs(ann).last, "completed")
    ann.get_by_role("button", name="Share", exact=True).click()
    dialog = ann.get_by_role("dialog")
    expect(dialog).to_contain_text("Shared with nobody.")
    share(ann, "ann", "write")
    expect(dialog.get_by_role("status")).to_contain_text("name somebody else")
    share(ann, "bob", "read")
    expect(dialog.get_by_role("status")).to_have_text(f"bob may read now, and finds it as ann/{session}.")
    expect(dialog.get_by_role("list")).to_contain_text("bob may read")
    bob = visit.open(f"ann%2F{session}", name="bob")
    expect(bob.get_by_role("log")).to_contain_text("hello")
    assert f"ann/{session}" in listed(bob)
    bob.get_by_role("button", name="Share", exact=True).click()
    expect(bob.get_by_role("dialog")).to_contain_text("It is ann’s, who alone can share it.")
    expect(bob.get_by_role("dialog").get_by_role("button", name="Remove")).to_have_count(0)
    bob.keyboard.press("Escape")
    send(bob, "may I?")
    expect(bob.get_by_role("alert")).to_contain_text("Not sent: no session")
    share(ann, "bob", "write")
    expect(dialog.get_by_role("list")).to_contain_text("bob may write")
    bob.locator("#message").fill("now I may")
    bob.keyboard.press("Enter")
    ended(runs(bob).last, "completed")
    dialog.get_by_role("button", name="Remove bob").click()
    expect(dialog).to_contain_text("Shared with nobody.")
    expect(bob.get_by_role("alert")).to_have_text("You no longer have access to this session.")
    expect(bob.locator("#session-list")).not_to_contain_text(session)
    ann.keyboard.press("Escape")
    send(ann, "between us")
    ended(runs(ann).last, "completed")
    expect(bob.get_by_role("log")).not_to_contain_text("between us")


def test_a_stop_that_may_not_be_says_so(visit: Visit, session: str) -> None:
    """A stop of another's run in a shared session, typed or pressed, is refused, and the page says whose run it is."""
    ann = visit.open(session, name="ann")
    send(ann, "stream")
    expect(runs(ann).last).to_have_attribute("data-state", "running")
    visit.operator.request("interlock.share", session=f"ann/{session}", **{"with": "bob", "may": "write"})
    bob = visit.open(f"ann%2F{session}", name="bob")
    expect(runs(bob).last).to_have_attribute("data-state", "running")
    alert, told = bob.get_by_role("alert"), "Not stopped: nothing of yours runs here. What runs is of ann"
    send(bob, "Do not do that")
    expect(alert).to_contain_text(told)
    send(bob, "stop")
    bob.get_by_role("button", name="Stop", exact=True).click()
    expect(alert).to_contain_text(told)
    expect(runs(ann).last).to_have_attribute("data-state", "running")
    visit.operator.request("interlock.unshare", session=f"ann/{session}", **{"with": "bob"})
    expect(alert).to_have_text("You no longer have access to this session.")
    expect(bob.get_by_role("button", name="Stop", exact=True)).to_be_disabled()
    send(ann, "stop")
    ended(runs(ann).last, "stopped")


def test_what_one_says_in_anothers_session_comes_back(visit: Visit, session: str) -> None:
    """A sender without rights to a session is told that there is none, and gets the text back."""
    visit.operator.send(session, "a secret plan")
    page = visit.open(f"operator%2F{session}", name="bob")
    send(page, "bob here")
    expect(page.get_by_role("alert")).to_contain_text("Not sent: no session")
    expect(page.locator("#message")).to_have_value("bob here")
    expect(page.get_by_role("log")).not_to_contain_text("a secret plan")
