"""A conversation on the page: what was said, what was done, what was asked, and how each turn ended."""

import re
from pathlib import Path

from playwright.sync_api import expect

from page.agents import SCREENFUL
from page.scene import Relay, Visit, box, drawn, ended, go, running, runs, send, until


def test_a_message_is_answered(visit: Visit, session: str) -> None:
    """A person's message stands on the page, and its answer below; a completed turn says no more."""
    page = visit.open(session)
    send(page, "good morning")
    expect(page.locator("article.said")).to_contain_text("good morning")
    ended(runs(page), "completed")
    expect(runs(page).locator(".text")).to_have_text("good morning")
    expect(box(page)).to_have_value("")
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    expect(page.locator("#stop")).to_be_disabled()


def test_the_session_is_in_the_list_and_can_be_read_again(visit: Visit, session: str) -> None:
    """A session is in the list by its name, and an ended one reads as before."""
    page = visit.open(session)
    send(page, "remember the milk")
    ended(runs(page), "completed")
    sessions = page.get_by_role("navigation", name="Sessions")
    mine = sessions.get_by_role("button").filter(has=page.get_by_text(session, exact=True))
    expect(mine).to_have_attribute("aria-current", re.compile("true|page"))
    page.get_by_role("button", name="New session").click()
    page.get_by_role("dialog").get_by_role("textbox", name="Name").fill(f"{session}-2")
    page.get_by_role("dialog").get_by_role("button", name="Open").click()
    expect(page).to_have_url(re.compile(f"#/s/{session}-2$"))
    expect(runs(page)).to_have_count(0)
    send(page, "something else")
    ended(runs(page), "completed")
    mine.click()
    expect(runs(page)).to_have_count(1)
    expect(runs(page).locator(".text")).to_have_text("remember the milk")
    page.reload()
    expect(runs(page).locator(".text")).to_have_text("remember the milk")


def test_markdown_is_drawn_and_code_stays_as_it_was_written(visit: Visit, session: str) -> None:
    """Lists, emphasis, tables and links are drawn; a fenced block keeps every character."""
    page = visit.open(session)
    code = "if a < b && c:\n    print('<b>')"
    table = "| a | b |\n|---|---|\n| 1 | 2 |"
    send(page, f"# Plan\n\n1. **first**\n2. [docs](https://docs.example/x)\n\n{table}\n\n```py\n{code}\n```")
    ended(runs(page), "completed")
    text = runs(page).locator(".text")
    expect(text.locator("li strong")).to_have_text("first")
    expect(text.locator("td")).to_have_text(["1", "2"])
    expect(text.locator("pre code")).to_have_text(code)
    expect(text.locator("a")).to_have_attribute("rel", re.compile("noopener"))


def test_words_are_drawn_as_they_come(visit: Visit, session: str, tmp_path: Path) -> None:
    """A text grows while its run runs, and stays when the run has ended."""
    page = visit.open(session)
    send(page, f"stream 60 {tmp_path / 'go on'}")
    run = running(page, "word3")
    expect(run.locator(".text")).not_to_contain_text("word59")
    tmp_path.joinpath("go on").touch()
    ended(run, "completed")
    expect(run.locator(".text")).to_have_text(" ".join(f"word{number}" for number in range(60)))


def test_a_tool_call_is_a_card(visit: Visit, session: str) -> None:
    """A tool call's card shows its name, arguments and result; a failed call's card says why."""
    page = visit.open(session)
    send(page, "use kettle")
    ended(runs(page), "completed")
    card = page.locator(".tool")
    expect(card).to_have_attribute("data-state", "finished")
    expect(card).to_contain_text("look_up")
    expect(card).to_contain_text("kettle")
    expect(card).to_contain_text("found kettle")
    send(page, "break")
    ended(runs(page).last, "failed")
    broken = runs(page).last.locator(".tool")
    expect(broken).to_have_attribute("data-state", "failed")
    expect(broken).to_contain_text("the handle came off")


def test_a_process_is_a_card_with_what_it_wrote(visit: Visit, session: str) -> None:
    """A process's card shows its output so far while it runs, then its last lines and its status."""
    page = visit.open(session)
    send(page, "print")
    ended(runs(page), "completed")
    card = page.locator(".process")
    expect(card).to_have_attribute("data-state", "exited")
    expect(card).to_contain_text("exit 3")
    expect(card.locator(".tail")).to_contain_text("line 1\nline 2\nline 3")
    send(page, "build")
    live = runs(page).last.locator(".process")
    expect(live).to_have_attribute("data-state", "running")
    expect(live.locator(".tail")).to_contain_text("compiling")
    page.locator("#stop").click()
    expect(live).to_have_attribute("data-state", "ended")


def test_typing_and_progress_are_shown_while_they_are_so(visit: Visit, session: str) -> None:
    """Typing and progress are shown while they last, and are gone with the end of the run."""
    page = visit.open(session)
    send(page, "type")
    run = running(page)
    expect(run.locator(".typing")).to_be_visible()
    expect(run.locator("progress")).to_have_attribute("value", "1")
    expect(run.locator("progress")).to_have_attribute("max", "4")
    expect(run).to_contain_text("mixing")
    page.locator("#stop").click()
    ended(run, "stopped")
    expect(run.locator(".typing")).to_be_hidden()
    expect(run.locator("progress")).to_be_hidden()


def test_a_child_run_stands_inside_its_parent(visit: Visit, session: str) -> None:
    """A child's words stand inside its parent's turn; a stop of the parent ends the child too, and the page says so."""
    page = visit.open(session)
    send(page, "team stream")
    run = running(page)
    child = run.locator(".child article.run")
    expect(child).to_have_attribute("data-state", "running")
    expect(child).to_contain_text("word5")
    page.locator("#stop").click()
    ended(run, "stopped")
    ended(child, "parent_ended")
    expect(run.locator(".child").first).to_contain_text("ended with its parent")


def test_a_question_is_answered_by_a_button(visit: Visit, session: str) -> None:
    """A question has buttons for yes and no, or the choices; once answered, its card says what and by whom."""
    page = visit.open(session)
    send(page, "ask Deploy now?")
    question = page.locator(".question")
    expect(question).to_have_attribute("data-state", "open")
    expect(question).to_contain_text("Deploy now?")
    question.get_by_role("button", name="Yes").click()
    expect(question).to_have_attribute("data-state", "answered")
    ended(runs(page), "completed")
    expect(runs(page)).to_contain_text("you said True")
    expect(question.get_by_role("button", disabled=False)).to_have_count(0)
    send(page, "choose")
    chosen = runs(page).last
    chosen.get_by_role("button", name="blue").click()
    ended(chosen, "completed")
    expect(chosen).to_contain_text("you chose blue")


def test_a_timeout_is_told_as_a_timeout(visit: Visit, session: str) -> None:
    """A timeout is shown with its seconds and its phase, in the words that every surface uses."""
    page = visit.open(session)
    for seconds in (0.3, 3, 20):  # until one is long enough for the phase to begin
        run = visit.operator.send(session, "slow", deadline=seconds)
        if visit.operator.request("interlock.wait", run=run).get("phase") == "provider":
            break
    words = f"{seconds} s" if seconds > 1 else "300 ms"
    ended(runs(page).last, "timed_out")
    expect(runs(page).last.locator(".ending")).to_contain_text(f"timed out after {words} in phase provider")


def test_a_failure_says_why(visit: Visit, session: str) -> None:
    """A failure keeps the text before it, and names the error."""
    page = visit.open(session)
    send(page, "fail")
    run = runs(page)
    ended(run, "failed")
    expect(run.locator(".text")).to_have_text("so far")
    expect(run.locator(".ending")).to_contain_text(re.compile("failed: .*the kettle is empty"))
    expect(page.locator("details.receipt")).to_have_count(0)


def test_whoever_scrolled_up_is_not_moved(visit: Visit, session: str) -> None:
    """New text moves only a reader at the end; a button leads back there; a question at the end is in view."""
    page = visit.open(session)
    log, newest = page.get_by_role("log"), page.get_by_role("button", name="Newest")
    send(page, "lines")
    run = running(page, f"line{SCREENFUL}")
    drawn(run)  # the run is shorter until its texts are drawn
    expect(newest).to_be_hidden()
    log.hover()
    page.mouse.wheel(0, -300)
    expect(newest).to_be_visible()
    place = log.evaluate(
        """async (log) => {
            const frames = async (count) => { while (count--) await new Promise(requestAnimationFrame); };
            for (let before = null; before !== log.scrollTop; await frames(10)) before = log.scrollTop;
            return log.scrollTop;
        }"""
    )
    seen = run.locator(".text p").count()
    expect(run).to_contain_text(f"line{seen + 20}")
    assert log.evaluate("(log) => log.scrollTop") == place
    newest.click()
    expect(newest).to_be_hidden()
    until(page, lambda: log.evaluate("(log) => log.scrollHeight - log.scrollTop - log.clientHeight") < 2)
    page.keyboard.press("Escape")
    ended(run, "stopped")
    send(page, "ask Shall I?")
    expect(page.locator(".question").get_by_role("button", name="Yes")).to_be_in_viewport(ratio=1)


def test_drafts_stay_with_their_session(visit: Visit, session: str) -> None:
    """A draft stays with its session, and a refused message comes back to the session it was typed in."""
    relay = Relay()
    page = visit.open(session, relay=relay)
    other = f"#/s/{session}-b"
    box(page).fill("half a thought")
    go(page, other)
    expect(box(page)).to_have_value("")
    box(page).fill("something else")
    go(page, f"#/s/{session}")
    expect(box(page)).to_have_value("half a thought")
    relay.swallow = {"chat.send"}
    send(page, "a whole thought")
    until(page, lambda: relay.requests("chat.send"))
    go(page, other)
    expect(box(page)).to_have_value("something else")
    (asked,) = relay.requests("chat.send")
    error = {"code": "INVALID_REQUEST", "message": "not now"}
    relay.add({"type": "res", "id": asked["id"], "ok": False, "error": error})
    expect(page.get_by_role("alert")).to_contain_text("not now")
    expect(box(page)).to_have_value("something else")
    go(page, f"#/s/{session}")
    expect(box(page)).to_have_value("a whole thought")
