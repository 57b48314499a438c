"""What three reviewers of the page found, one test for each: none of it comes back."""

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Page, expect

from interlock.core.names import Ending, LimitOf, Principal, RunId
from interlock.core.outcome import Outcome
from interlock.core.projection import TABLE, client_words
from page.agents import HOSTILE, SCREENFUL
from page.scene import (
    Relay,
    Visit,
    box,
    connected,
    drawn,
    ended,
    event_of,
    go,
    number_of,
    running,
    runs,
    send,
    thread_clock,
    until,
)

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
STOP_SECONDS = 1.0


@pytest.fixture(autouse=True)
def quiet(visit: Visit) -> Iterator[None]:
    """Nothing of a test runs on behind it."""
    yield
    visit.operator.request("interlock.stopall")


def outcome_of(visit: Visit, run: str) -> dict[str, Any] | None:
    """Return how a run ended, as the server has it; None while it runs."""
    outcome: dict[str, Any] | None = visit.operator.request("interlock.find", name=run)["outcome"]
    return outcome


def lost(page: Page) -> None:
    """Wait until the page says that it is not connected."""
    expect(page.locator("#connection")).not_to_have_attribute("data-state", "connected")


# Stopping


def test_hostile_text_keeps_neither_stop_nor_the_end_away(visit: Visit, session: str) -> None:
    """Text that a parser recurses in, or takes seconds for, delays no stop by a second, hides no end and no receipt."""
    page = visit.open(session)
    now = thread_clock(page)
    for number, kind in enumerate(HOSTILE, 1):
        send(page, f"hostile {kind}")
        expect(runs(page)).to_have_count(number)
        run = running(page, HOSTILE[kind][-50:])
        before = now()
        page.keyboard.press("Escape")
        ended(run, "stopped")
        assert now() - before < STOP_SECONDS, kind  # what a stop waits for is this thread
        expect(run).to_contain_text(HOSTILE[kind][:100])
        expect(page.locator("[role=log] details.receipt")).to_have_count(number)
        expect(page.locator("#stop")).to_be_disabled()
    send(page, "**done**")
    expect(runs(page).last.locator("strong")).to_have_text("done")


def test_a_childs_process_is_drawn_once_inside_its_parent(visit: Visit, session: str) -> None:
    """What a child's process writes is seen in the child's card; the child is no turn of its own, also when stopped."""
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


def test_stop_right_behind_send_ends_that_message(visit: Visit, session: str) -> None:
    """Nothing has come back of the message yet: Stop is there all the same, and ends it."""
    relay = Relay()
    page = visit.open(session, relay=relay)
    send(page, "hello")
    ended(runs(page), "completed")
    relay.hold()  # nothing comes through
    send(page, "stream")
    page.locator("#stop").click()
    until(page, lambda: len(relay.requests("interlock.stop")) == 1)
    relay.release()
    expect(runs(page)).to_have_count(2)
    ended(runs(page).last, "stopped")
    expect(page.locator("#stop")).to_be_disabled()


@pytest.mark.parametrize("half_open", [False, True], ids=["lost", "half-open"])
def test_a_stop_without_connection_stops_what_ran_then(visit: Visit, session: str, half_open: bool) -> None:
    """Stop works while the connection is lost, or dead unnoticed; a message sent after it is not meant, and runs."""
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
    until(page, lambda: stop.inner_text() == "Stop")  # it has been answered
    assert [frame["params"] for frame in relay.requests("interlock.stop")] == [{"run": number_of(first)}]
    assert outcome_of(visit, number_of(second)) is None


def test_a_stop_that_is_not_answered_holds_up_no_other_session(visit: Visit, session: str) -> None:
    """While the answer for one session is awaited, Stop in another stops that one."""
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


def test_a_detached_process_that_ends_is_told_and_a_stop_of_it_leaves_a_receipt(
    visit: Visit, session: str, tmp_path: Path
) -> None:
    """It keeps Stop on while it is there and no longer; stopped, it leaves a receipt though no run was stopped."""
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
    """Its parent had completed; the card is completed when the child is gone, and stands there after a reload."""
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
    """Nobody wrote that message."""
    page = visit.open(session)
    send(page, "report back")
    expect(runs(page)).to_have_count(2)
    ended(runs(page).last, "completed")
    details = page.locator("#details")
    for number, words in ((0, "by"), (1, "announces")):
        runs(page).nth(number).get_by_role("button", name="Details of run").last.click()  # behind a child's
        expect(details.locator("dl").first.locator("dt").nth(1)).to_have_text(words)
    expect(details.locator("dl").first.locator("dd").nth(1)).to_have_text(re.compile("^child r-"))


def test_escape_closes_a_drawer_before_it_stops(visit: Visit, session: str) -> None:
    """On a phone a drawer lies over the conversation: the key closes that first, and stops when it is pressed again."""
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


# Coming in, saying, reading


def test_a_code_in_a_paired_browser_asks_first(visit: Visit, session: str) -> None:
    """Somebody's link changes nobody's name unasked: refused, the old token stays and the code is not used."""
    page = visit.open(session)
    kept = "() => localStorage.getItem('interlock.token')"
    token, code = page.evaluate(kept), visit.operator.code("ann")
    dialog = page.get_by_role("dialog")
    for answer, name in (("Not now", "operator"), ("Pair anew", "ann")):
        go(page, f"#pair={code}")
        expect(dialog).to_contain_text("paired as operator already")
        assert code not in page.url
        assert page.evaluate(kept) == token
        with page.expect_event("load") if name == "ann" else nullcontext():  # then nothing of before is left
            dialog.get_by_role("button", name=answer).click()
        expect(page.locator("#person-name")).to_have_text(name)
        connected(page)
        assert (page.evaluate(kept) == token) == (name == "operator")


def test_what_one_says_in_anothers_session_comes_back(visit: Visit, session: str) -> None:
    """Somebody without rights to a session is told that there is none, and has what they typed again."""
    visit.operator.send(session, "a secret plan")
    page = visit.open(f"operator%2F{session}", name="bob")
    send(page, "bob here")
    expect(page.get_by_role("alert")).to_contain_text("Not sent: no session")
    expect(page.locator("#message")).to_have_value("bob here")
    expect(page.get_by_role("log")).not_to_contain_text("a secret plan")


def test_whoever_scrolled_up_is_not_moved(visit: Visit, session: str) -> None:
    """New text moves only those who read at the end; a button leads back there; a question at the end is in view."""
    page = visit.open(session)
    log, newest = page.get_by_role("log"), page.get_by_role("button", name="Newest")
    send(page, "lines")
    run = running(page, f"line{SCREENFUL}")
    drawn(run)  # until then it is shorter
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
    """What was typed waits where it was typed; a message that was refused comes back there, not where one is now."""
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


def test_a_message_that_could_not_be_kept_is_sent_again(visit: Visit, session: str) -> None:
    """A refusal that says so is no news for a person: the same key goes out again; a stop means that message too."""
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


# The connection


def test_the_overview_asks_once_after_a_reconnect(visit: Visit, session: str) -> None:
    """However often it was tried meanwhile: one question, not one for each try."""
    relay = Relay()
    page = visit.open(session, relay=relay)
    go(page, "#/overview")
    expect(page.locator("#overview")).to_contain_text("containment grade")
    relay.cut()
    lost(page)
    before = relay.dials
    for tries in (1, 2, 3):  # told of a network, it tries at once
        until(page, lambda tries=tries: relay.dials >= before + tries)
        expect(page.locator("#connection")).to_have_attribute("data-state", "lost")
        page.evaluate("() => dispatchEvent(new Event('online'))")
    relay.asked.clear()

    def answers(frame: dict[str, Any]) -> bool:
        return frame.get("id") in {each["id"] for each in relay.requests("interlock.overview")}

    relay.hold(answers)  # two seconds after an answer it asks again, as it should
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


# The modules, each by itself

MODEL = """async () => {
    const { Conversation } = await import("/web/model.js");
    let position = 0;
    const event = (run_id, type, data = {}) => ({ run_id, at: ++position, position, data: { type, ...data } });
    const heard = (model, ...told) => model.take(event(...told)).map((run) => run.id);
    const receipt = (drain, ...ids) => ({ receipt: { drain, cause: "stopped", runs: ids.map((id) => ({ id })) } });
    const outcome = (run_id, ending) => ({ outcome: { run_id, ending } });
    const turn = (model, id) => {
        heard(model, id, "message", { text: id, by: "ann" });
        heard(model, id, "started");
        heard(model, id, "ended", outcome(id, "completed"));
    };
    const seen = {};

    const model = new Conversation("s");
    seen.unknown = [];
    const strangers = ["delta", "block", "tool", "process", "question", "child", "typing", "progress", "phase"];
    for (const kind of strangers) seen.unknown.push(...heard(model, "r-1-1", kind, { text: "boo" }));
    seen.unknown.push(...heard(model, "r-1-1", "ended", outcome("r-1-1", "completed")));
    seen.unknown.push(...heard(model, null, "receipt", receipt("pending", "r-1-1")));
    seen.unknown.push(...heard(model, null, "correction", outcome("r-1-1", "lost")), ...model.runs.keys());

    heard(model, "r-1-2", "message", { text: "go", by: "ann" });
    heard(model, "r-1-2", "started");
    heard(model, "r-1-2", "delta", { text: "so far" });
    heard(model, "r-1-2", "ended", { ...outcome("r-1-2", "stopped"), cut: "so far" });
    const run = model.runs.get("r-1-2");
    const before = JSON.stringify(run);
    seen.late = ["message", "started", ...strangers].flatMap((kind) => heard(model, "r-1-2", kind, { text: "late" }));
    seen.late.push(...heard(model, "r-1-2", "ended", outcome("r-1-2", "completed")));
    seen.sealed = JSON.stringify(run) === before && !model.busy;

    seen.proved = heard(model, null, "receipt", receipt("pending", "r-1-2"));
    seen.grown = heard(model, null, "receipt", receipt("observed", "r-1-2"));
    seen.drain = run.receipt.drain;
    seen.corrected = heard(model, null, "correction", outcome("r-1-2", "lost"));
    seen.ending = [run.outcome.ending, run.corrected, run.state];

    const long = new Conversation("s"), older = new Conversation("s");
    const ids = Array.from({ length: 6 }, (_, index) => `r-2-${index + 1}`);
    for (const id of ids) turn(long, id);
    seen.gone = long.forget(4).map((each) => each.id);
    seen.kept = [...long.order];
    seen.forgotten = heard(long, ids[0], "delta", { text: "late" });
    for (const id of ids.slice(1, 5)) turn(older, id); // one of them is shown still
    seen.back = long.precede(older).map((each) => each.id);
    seen.order = [...long.order];
    seen.shown = long.order.every((id) => long.shows(id) && long.runs.get(id).said[0].text === id);
    return seen;
}"""


def test_the_model_seals_forgets_and_corrects(visit: Visit) -> None:
    """Unknown runs and late events change nothing; what was let go comes back whole; receipts grow, endings change."""
    page = visit.tab()
    page.goto(visit.base)
    seen = page.evaluate(MODEL)
    assert seen["unknown"] == []
    assert seen["late"] == []
    assert seen["sealed"]
    assert (seen["proved"], seen["grown"], seen["drain"]) == (["r-1-2"], ["r-1-2"], "observed")
    assert seen["corrected"] == ["r-1-2"]
    assert seen["ending"] == ["lost", True, "ended"]
    turns = [f"r-2-{number}" for number in range(1, 7)]
    assert (seen["gone"], seen["kept"]) == (turns[:4], turns[4:])
    assert seen["forgotten"] == []
    assert (seen["back"], seen["order"]) == (turns[1:4], turns[1:])
    assert seen["shown"]


LIMITS = (None, 0, 1, 999, 1_000, 1_001, 1_500, 60_000, 61_000, 90_500, 3_600_000, 86_400_000)
ERRORS = (
    *(None, "", " ", "\n", "short", "first\nsecond", "first\r\nsecond", "one\rtwo", "\n\n  late\nlater", "an end \t "),
    *(
        "page\x0cbreak",
        "v\x0bt",
        "unit\x1cseparator",
        "next\x85line",
        "line\u2028end",
        "no\u00a0break",
        "{by} {why} $& $1",
    ),
    *("x" * 199, "x" * 200, "x" * 201, "x" * 5_000, "x" * 199 + " y", "x" * 200 + "\ny"),
    *("😀" * 199, "😀" * 200, "😀" * 300, "x" + "😀" * 300),
)


def test_the_page_has_the_words_that_everybody_has(visit: Visit) -> None:
    """Every ending with every fact that its words may hold reads as core/projection writes it."""
    outcomes = [
        Outcome(
            run_id=RunId("r-1-1"),
            ending=ending,
            by=Principal(by) if by is not None else None,
            superseded_by=RunId(successor) if successor else None,
            phase=phase,
            limit_ms=limit,
            limit_of=whose,
            error=error,
        )
        for ending, by, successor, phase, whose, (limit, error) in itertools.product(
            TABLE,
            (None, "", "ann"),
            (None, "r-1-2"),
            (None, "", "provider"),
            (None, *LimitOf),
            itertools.zip_longest(LIMITS, ERRORS),
        )
    ]
    outcomes += [
        Outcome(run_id=RunId("r-1-1"), ending=Ending.STOPPED, by=Principal("ann"), born_stopped=True),
        Outcome(run_id=RunId("r-1-1"), ending=Ending.SUPERSEDED, by=Principal("ann"), unkept=True),
    ]
    assert {outcome.ending for outcome in outcomes} == set(Ending) - {Ending.PENDING, Ending.UNKNOWN}
    page = visit.tab()
    page.goto(visit.base)
    said = page.evaluate(
        """async (outcomes) => {
            const { ending } = await import("/web/words.js");
            return JSON.stringify(JSON.parse(outcomes).map(ending));
        }""",
        json.dumps(msgspec.to_builtins(outcomes)),
    )
    for outcome, words in zip(outcomes, json.loads(said), strict=True):
        assert words == client_words(outcome), outcome
