"""A stop or takeover on the page is one key away and seen at once; a receipt stays, and nothing more of the old run."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from page.agents import HOSTILE
from page.scene import (
    Relay,
    Visit,
    box,
    ended,
    event_of,
    number_of,
    running,
    runs,
    send,
    send_as,
    still,
    thread_clock,
    until,
    with_event,
)

STOP_SECONDS = 1.0

Stop = Callable[[Page], None]


def by_button(page: Page) -> None:
    """Click the button."""
    page.locator("#stop").click()


def by_escape(page: Page) -> None:
    """Press Esc in the box for a message."""
    box(page).press("Escape")


def by_escape_anywhere(page: Page) -> None:
    """Press Esc with nothing in focus."""
    page.evaluate("() => document.activeElement.blur()")
    page.keyboard.press("Escape")


def receipt_of(page: Page) -> Locator:
    """Return the last receipt."""
    return page.locator("[role=log] details.receipt").last


@pytest.mark.parametrize("stop", [by_button, by_escape])
def test_stop_in_the_middle_of_a_stream(visit: Visit, session: str, stop: Stop) -> None:
    """A stop cuts the text where it was; the ending and the receipt say what happened, and nothing is added."""
    page = visit.open(session)
    send(page, "stream")
    run = running(page, "word5")
    expect(page.locator("#stop")).to_be_enabled()
    stop(page)
    ended(run, "stopped")
    expect(run.locator(".ending")).to_contain_text("stopped by operator")
    receipt = receipt_of(page)
    expect(receipt).to_have_attribute("data-drain", "observed")
    expect(receipt.locator("summary")).to_contain_text(re.compile(r"stopped in [\d.]+ m?s"))
    expect(receipt.locator("summary")).to_contain_text("0 effects after")
    expect(page.locator("#stop")).to_be_disabled()
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    shown = still(run)
    send(page, "and now?")
    ended(runs(page).last, "completed")
    assert still(run) == shown


@pytest.mark.parametrize("stop", [by_button, by_escape_anywhere])
def test_stop_in_the_middle_of_a_tool(visit: Visit, session: str, stop: Stop) -> None:
    """A stop interrupts the call that ran and skips those that did not; the card and the receipt tell them apart."""
    page = visit.open(session)
    send(page, "batch")
    run = running(page)
    tools = run.locator(".tool")
    expect(tools).to_have_count(3)
    expect(tools.first).to_have_attribute("data-state", "running")
    stop(page)
    ended(run, "stopped")
    expect(tools.first).to_have_attribute("data-state", "interrupted")
    for number in (1, 2):
        expect(tools.nth(number)).to_have_attribute("data-state", "skipped")
    line = receipt_of(page).locator("summary")
    expect(line).to_contain_text("2 tools skipped")
    expect(line).to_contain_text("1 tool interrupted, effect unknown")


def test_the_stop_is_seen_before_the_answer_comes(visit: Visit, session: str) -> None:
    """The page shows a stop in one frame, though the server has not answered yet."""
    relay = Relay()
    page = visit.open(session, relay=relay)
    send(page, "tool")
    run = running(page, "I begin")
    relay.hold()  # no frame comes through
    button = page.locator("#stop")
    before = button.inner_text()
    after = button.evaluate(
        "async (button) => { button.click(); await new Promise(requestAnimationFrame); return button.innerText; }"
    )
    assert after != before
    expect(run).to_have_attribute("data-state", "running")
    relay.release()
    ended(run, "stopped")
    expect(button).to_have_text(before)


def test_the_receipt_unfolds_and_grows_until_nothing_is_left(visit: Visit, session: str) -> None:
    """A receipt says that a cleanup goes on while it does, then that nothing is left, and how long that took."""
    relay = Relay()
    page = visit.open(session, relay=relay)
    send(page, "tidy")
    run = running(page)
    expect(run.locator(".tool")).to_have_attribute("data-state", "running")
    relay.hold(drained)  # keeps the receipt as it is before drained, for a slow test
    page.locator("#stop").click()
    receipt = receipt_of(page)
    expect(receipt).to_have_attribute("data-drain", "pending")
    receipt.locator("summary").click()
    expect(receipt).to_contain_text("not yet")
    until(page, lambda: relay.held)
    relay.release()
    expect(receipt).to_have_attribute("data-drain", "observed")
    expect(receipt).to_have_attribute("open", "")
    expect(receipt).to_contain_text(re.compile(r"drained\s*[\d.]+ m?s later"))
    expect(receipt).to_contain_text(number_of(run))
    assert len(receipt.evaluate("(node) => node.querySelector('dl').children")) > 8


def test_processes_are_counted_in_the_receipt(visit: Visit, session: str) -> None:
    """A receipt says how many processes of the run were ended, and how fast."""
    page = visit.open(session)
    send(page, "build")
    expect(running(page).locator(".process .tail")).to_contain_text("compiling")
    page.keyboard.press("Escape")
    expect(receipt_of(page).locator("summary")).to_contain_text(re.compile(r"1 process ended in [\d.]+ m?s"))


def test_what_was_tried_after_the_end_is_counted(visit: Visit, session: str) -> None:
    """A run that goes on after its end is refused: the page does not draw its words, and the receipt counts them."""
    page = visit.open(session)
    send(page, "deaf")
    run = running(page, "la la")
    page.locator("#stop").click()
    ended(run, "stopped")
    expect(receipt_of(page)).to_have_attribute("data-drain", re.compile("observed|unconfirmed"))
    shown = still(run)
    send(page, "hello")
    ended(runs(page).last, "completed")
    assert still(run) == shown


def test_a_question_goes_void_with_its_run(visit: Visit, session: str) -> None:
    """A void question stays to be read, offers no button, and is counted in the receipt."""
    page = visit.open(session)
    send(page, "ask Deploy now?")
    question = page.locator(".question")
    expect(question).to_have_attribute("data-state", "open")
    page.locator("#stop").click()
    expect(question).to_have_attribute("data-state", "void")
    expect(question.get_by_role("button", disabled=False)).to_have_count(0)
    expect(receipt_of(page).locator("summary")).to_contain_text("1 question withdrawn")


def test_typing_takes_over(visit: Visit, session: str) -> None:
    """The button says what sending does while a run is at work; the new message is answered, the old run superseded."""
    page = visit.open(session)
    send(page, "stream")
    first = running(page, "word5")
    expect(page.get_by_role("button", name="Take over")).to_be_visible()
    send(page, "rather this")
    ended(first, "superseded")
    ended(runs(page).last, "completed")
    expect(runs(page).last).to_contain_text("rather this")
    expect(first.locator(".ending")).to_contain_text("superseded")
    expect(runs(page)).to_have_count(2)
    expect(page.locator("[role=log] details.receipt summary").first).to_contain_text("superseded in")


def test_a_stop_word_stops(visit: Visit, session: str) -> None:
    """Typing `stop` is a stop, not a message."""
    page = visit.open(session)
    send(page, "stream")
    run = running(page, "word5")
    send(page, "stop")
    ended(run, "stopped")
    expect(runs(page)).to_have_count(1)


@pytest.mark.parametrize(
    "text", ["Do not do that", "Stop don't do anything", "STOP OPENCLAW"], ids=["that", "all", "name"]
)
@pytest.mark.parametrize("how", [None, "Steer", "Queue", "Roll back"])
def test_what_is_typed_in_a_hurry_stops_however_it_is_sent(
    visit: Visit, session: str, how: str | None, text: str
) -> None:
    """A stop word stops, whatever strategy the menu beside the button says."""
    page = visit.open(session)
    send(page, "stream")
    run = running(page, "word5")
    send(page, text) if how is None else send_as(page, how, text)
    ended(run, "stopped")
    expect(runs(page)).to_have_count(1)


def test_steer_is_taken_in(visit: Visit, session: str) -> None:
    """A steered message stands where the run absorbed it, and the run goes on."""
    page = visit.open(session)
    send(page, "listen")
    run = running(page, "I listen.")
    send_as(page, "Steer", "left a bit")
    expect(run).to_contain_text("heard left a bit.")
    expect(run).to_have_attribute("data-state", "running")
    expect(runs(page)).to_have_count(1)
    expect(page.locator("article.said")).to_have_count(2)
    page.locator("#stop").click()
    ended(run, "stopped")


def test_queue_waits_its_turn(visit: Visit, session: str) -> None:
    """A queued message is seen waiting, and runs when the run before has ended."""
    page = visit.open(session)
    send(page, "ask first?")
    run = running(page)
    send_as(page, "Queue", "then this")
    waiting = page.locator("article.run[data-state=queued]")
    expect(waiting).to_have_count(1)
    expect(run).to_have_attribute("data-state", "running")
    page.locator(".question").get_by_role("button", name="No").click()
    expect(waiting).to_have_count(0)
    ended(runs(page).last, "completed")
    expect(runs(page).last).to_contain_text("then this")
    ended(runs(page).first, "completed")


def test_stop_ends_what_waits_as_well(visit: Visit, session: str) -> None:
    """A stop ends what runs and what waits in the session; the receipt counts the waiting message."""
    page = visit.open(session)
    send(page, "stream")
    running(page, "word5")
    send_as(page, "Queue", "then this")
    expect(page.locator("article.run[data-state=queued]")).to_have_count(1)
    page.locator("#stop").click()
    expect(page.locator("article.run[data-ending=stopped]")).to_have_count(2)
    expect(page.locator("details.receipt summary").first).to_contain_text("1 waiting message ended")
    expect(page.locator("#stop")).to_be_disabled()


def test_rollback_hides_the_old_turn_from_the_agent(visit: Visit, session: str) -> None:
    """The old turn stays to be read, marked as rolled back; the new one is answered."""
    page = visit.open(session)
    send(page, "stream")
    old = running(page, "word5")
    send_as(page, "Roll back", "forget that")
    ended(old, "superseded")
    expect(old).to_contain_text("rolled back")
    ended(runs(page).last, "completed")
    expect(runs(page).last).to_contain_text("forget that")


def test_choosing_how_to_send_is_for_one_message(visit: Visit, session: str) -> None:
    """A message after a queued one takes over again, as the button says: the choice was for one message."""
    page = visit.open(session)
    send(page, "stream")
    running(page, "word5")
    send_as(page, "Queue", "later")
    expect(page.locator("article.run[data-state=queued]")).to_have_count(1)
    expect(page.get_by_role("button", name="Take over")).to_be_visible()
    page.locator("#stop").click()
    expect(page.locator("#stop")).to_be_disabled()


def test_late_frames_of_an_ended_run_are_not_drawn(visit: Visit, session: str) -> None:
    """Frames of a run that come after its terminal event, with their own or with newer positions, change nothing."""
    relay = Relay()
    page = visit.open(session, relay=relay)
    said = (("type", "mixing"), ("stream", "word5"), ("batch", "wait_for_ever"), ("ask", "Shall I?"))
    for number, (text, seen) in enumerate(said, 1):
        send(page, text)
        run = running(page, seen)
        page.locator("#stop").click()
        ended(run, "stopped")
        expect(page.locator("[role=log] details.receipt")).to_have_count(number)  # the last receipt is this run's
        expect(receipt_of(page)).to_have_attribute("data-drain", "observed")
    expect(page.locator("#stop")).to_be_disabled()
    shown = still(page.get_by_role("log"))
    late = [frame for frame in relay.heard if event_of(frame).get("run_id") and kind_of(frame) != "ended"]
    assert {"delta", "typing", "progress", "tool", "question", "started"} <= {kind_of(frame) for frame in late}
    newest = max(event_of(frame)["position"] for frame in late)
    relay.add(*late, *(with_event(frame, position=newest + 1 + place) for place, frame in enumerate(late)))
    page.evaluate("() => new Promise(requestAnimationFrame)")
    assert still(page.get_by_role("log")) == shown
    expect(page.locator("#stop")).to_be_disabled()
    expect(page.locator("nav [aria-current]")).not_to_contain_text("running")


def kind_of(frame: dict[str, Any]) -> str:
    """Return what sort of event a frame tells."""
    return str(event_of(frame).get("data", {}).get("type", ""))


def drained(frame: dict[str, Any]) -> bool:
    """Return whether a frame holds a receipt that is drained."""
    return kind_of(frame) == "receipt" and event_of(frame)["data"]["receipt"]["drain"] != "pending"


def test_the_receipt_is_honest_where_something_is_not_sure(visit: Visit, session: str) -> None:
    """A receipt sets apart what is in flight, unconfirmed, abandoned or not on disk, and does not say drained then."""
    doubts = {
        "drain": "unconfirmed",
        "drained_at": None,
        "unconfirmed": ["process 4711"],
        "durable": False,
        "in_flight": 2,
        "processes": {"ended": 2, "stuck": 1, "detached": 0},
    }
    relay = Relay()

    def doubt(frame: dict[str, Any]) -> dict[str, Any]:
        if kind_of(frame) != "receipt":
            return frame
        receipt = event_of(frame)["data"]["receipt"]
        tools = [{**each, "state": "abandoned"} for each in receipt["tools"]]
        return with_event(frame, data={"type": "receipt", "receipt": {**receipt, **doubts, "tools": tools}})

    relay.change = doubt
    page = visit.open(session, relay=relay)
    send(page, "tool")
    run = running(page, "I begin")
    expect(run.locator(".tool")).to_have_attribute("data-state", "running")
    page.locator("#stop").click()
    receipt = receipt_of(page)
    expect(receipt).to_have_attribute("data-drain", "unconfirmed")
    for words in ("process 4711", "1 tool abandoned", "2 sends", "1 process stuck", "not yet on disk"):
        expect(receipt.locator("summary .warning").filter(has_text=words)).to_have_count(1)
    expect(receipt).not_to_contain_text("0 effects after")


def test_a_correction_is_told(visit: Visit, session: str) -> None:
    """The page says so if the store holds another ending than the one published, and which one is true."""
    relay = Relay()
    page = visit.open(session, relay=relay)
    send(page, "stream")
    run = running(page, "word2")
    page.locator("#stop").click()
    ended(run, "stopped")
    told = next(frame for frame in relay.heard if kind_of(frame) == "ended" and frame["payload"]["watch"])
    outcome = {**event_of(told)["data"]["outcome"], "ending": "lost", "by": None}
    position = event_of(told)["position"] + 1_000
    relay.add(with_event(told, position=position, data={"type": "correction", "outcome": outcome}))
    ended(run, "lost")
    expect(run.locator(".ending")).to_contain_text("lost in a crash · corrected")


def test_hostile_text_keeps_neither_stop_nor_the_end_away(visit: Visit, session: str) -> None:
    """Text that a parser recurses in, or takes seconds for, delays no stop by a second, hides no end or receipt."""
    page = visit.open(session)
    now = thread_clock(page)
    for number, kind in enumerate(HOSTILE, 1):
        send(page, f"hostile {kind}")
        expect(runs(page)).to_have_count(number)
        run = running(page, HOSTILE[kind][-50:])
        before = now()
        page.keyboard.press("Escape")
        ended(run, "stopped")
        assert now() - before < STOP_SECONDS, kind  # a stop waits for this thread
        expect(run).to_contain_text(HOSTILE[kind][:100])
        expect(page.locator("[role=log] details.receipt")).to_have_count(number)
        expect(page.locator("#stop")).to_be_disabled()
    send(page, "**done**")
    expect(runs(page).last.locator("strong")).to_have_text("done")


def test_stop_right_behind_send_ends_that_message(visit: Visit, session: str) -> None:
    """A stop right after a send ends the message that the server has not answered yet."""
    relay = Relay()
    page = visit.open(session, relay=relay)
    send(page, "hello")
    ended(runs(page), "completed")
    relay.hold()  # no frame comes through
    send(page, "stream")
    page.locator("#stop").click()
    until(page, lambda: len(relay.requests("interlock.stop")) == 1)
    relay.release()
    expect(runs(page)).to_have_count(2)
    ended(runs(page).last, "stopped")
    expect(page.locator("#stop")).to_be_disabled()
