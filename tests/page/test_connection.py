"""Each stop, each message and each event counts once on a connection that is lost, dead or slow to answer."""

from collections import Counter
from typing import Any

import pytest
from playwright.sync_api import expect

from page.scene import Relay, Visit, box, connected, ended, event_of, go, number_of, running, runs, send, until

from .scene import lost, outcome_of


@pytest.mark.parametrize("half_open", [False, True], ids=["lost", "half-open"])
def test_a_stop_without_connection_stops_what_ran_then(visit: Visit, session: str, half_open: bool) -> None:
    """Stop works while the connection is lost, or dead unnoticed; a message sent after the stop runs."""
    relay = Relay()
    page = visit.open(session, relay=relay)
    send(page, "stream")
    first = running(page, "word2")
    stop = page.locator("#stop")
    if half_open:
        relay.swallow = {"interlock.stop", "chat.send"}
    else:
        relay.cut()
        lost(page)
    expect(stop).to_be_enabled()
    stop.click()
    expect(stop).to_have_text("Stopping…")
    send(page, "stream")
    if half_open:
        until(page, lambda: len(relay.requests("chat.send")) == 2)
        relay.cut()
        lost(page)
        relay.swallow = set()
    relay.asked.clear()
    relay.down = False
    connected(page)
    expect(first).to_have_attribute("data-state", "ended")
    expect(runs(page)).to_have_count(2)
    second = running(page, "word5")
    until(page, lambda: stop.inner_text() == "Stop")  # the stop has been answered
    assert [frame["params"] for frame in relay.requests("interlock.stop")] == [{"run": number_of(first)}]
    assert outcome_of(visit, number_of(second)) is None


def test_a_stop_that_is_not_answered_holds_up_no_other_session(visit: Visit, session: str) -> None:
    """A stop that waits for its answer in one session does not hold up a stop in another."""
    relay = Relay()
    page = visit.open(session, relay=relay)
    send(page, "stream")
    one = number_of(running(page, "word2"))
    relay.swallow = {"interlock.stop"}
    page.locator("#stop").click()
    until(page, lambda: relay.requests("interlock.stop"))
    relay.swallow = set()
    other = visit.operator.send(f"{session}-b", "stream")
    go(page, f"#/s/{session}-b")
    run = page.locator(f"article.run[data-run={other}]")
    expect(run).to_contain_text("word2")
    page.locator("#stop").click()
    ended(run, "stopped")
    assert outcome_of(visit, one) is None


def test_a_message_that_could_not_be_kept_is_sent_again(visit: Visit, session: str) -> None:
    """The page sends a message again, with its key, when the refusal is retryable; a stop ends the retries."""
    relay = Relay()
    page = visit.open(session, relay=relay)
    error = {"code": "UNAVAILABLE", "message": "not now", "retryable": True}
    relay.swallow = {"chat.send"}
    send(page, "hello")
    until(page, lambda: relay.requests("chat.send"))
    (first,) = relay.requests("chat.send")
    relay.add({"type": "res", "id": first["id"], "ok": False, "error": error})
    until(page, lambda: len(relay.requests("chat.send")) == 2)
    second = relay.requests("chat.send")[1]
    assert second["params"] == first["params"]
    page.keyboard.press("Escape")
    until(page, lambda: relay.requests("interlock.stop"))
    relay.add({"type": "res", "id": second["id"], "ok": False, "error": error})
    expect(page.get_by_role("alert")).to_contain_text("not now")
    expect(box(page)).to_have_value("hello")
    assert len(relay.requests("chat.send")) == 2


def test_the_overview_asks_once_after_a_reconnect(visit: Visit, session: str) -> None:
    """The overview asks the server once after a reconnect, however many attempts failed before."""
    relay = Relay()
    page = visit.open(session, relay=relay)
    go(page, "#/overview")
    expect(page.locator("#overview")).to_contain_text("containment grade")
    relay.cut()
    lost(page)
    before = relay.dials
    for tries in (1, 2, 3):  # the page dials at once when the network is back
        until(page, lambda tries=tries: relay.dials >= before + tries)
        expect(page.locator("#connection")).to_have_attribute("data-state", "lost")
        page.evaluate("() => dispatchEvent(new Event('online'))")
    relay.asked.clear()

    def answers(frame: dict[str, Any]) -> bool:
        return frame.get("id") in {each["id"] for each in relay.requests("interlock.overview")}

    relay.hold(answers)  # the page asks again two seconds after an answer, as it should
    relay.down = False
    page.evaluate("() => dispatchEvent(new Event('online'))")
    connected(page)
    until(page, lambda: relay.held)
    assert len(relay.requests("interlock.overview")) == 1
    relay.release()


def test_an_event_that_was_told_is_not_told_again(visit: Visit, session: str) -> None:
    """Frames at or below a watch's position are dropped: words that come twice while a run goes on are drawn once."""
    relay = Relay()
    page = visit.open(session, relay=relay)
    send(page, "stream")
    run = running(page, "word5")
    told = [frame for frame in relay.heard if event_of(frame).get("data", {}).get("type") == "delta"]
    relay.add(*told, told[-1])
    expect(run).to_contain_text(f"word{len(told) + 20}")
    words = Counter(run.locator(".text").inner_text().split())
    assert set(words.values()) == {1}
    expect(run).to_have_attribute("data-state", "running")
