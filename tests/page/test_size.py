"""Large amounts: a session of 5,000 messages, and a hundred pieces of text a second."""

import asyncio
import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from interlock import Message, Run, open_control
from page.scene import BOUND_MS, Person, Visit, ended, go, runs, send, serve, thread_clock

TURNS, BLOCKS = 500, 9  # a turn is a message and so many blocks of the agent
LOOKS = 3
# All limits are of the time that the page's thread computes, since a machine may be busy with other things.
LONGEST_SECONDS = 10.0  # on a busy machine; 0.9 where little else ran
LONG_MS, LONGEST_MS = 50, 200
BUSY_MS = 1_000  # in the five seconds


async def talkative(run: Run, message: Message) -> str:
    """Answer in several messages."""
    for number in range(1, BLOCKS):
        await run.post(f"part {number} of the answer to *{message.text}*")
    return f"that was the answer to **{message.text}**"


def fill(data: Path) -> None:
    """Hold a long conversation, and leave it in a store."""

    async def talk() -> None:
        async with open_control(talkative, store=f"sqlite:///{data}") as control:
            for number in range(TURNS):
                sent = await control.send("operator/long", f"message {number}", by="operator")
                await control.wait(sent.run_id)

    # A thread is needed, as the browser's loop has this one.
    thread = threading.Thread(target=lambda: asyncio.run(talk()))
    thread.start()
    thread.join()


@pytest.fixture
def old(browser: Browser, tmp_path: Path) -> Iterator[Visit]:
    """Yield a visit to a server with a long conversation."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    fill(data)
    serving = serve(data)
    operator = Person(serving)
    visiting = Visit(browser, serving, operator)
    try:
        yield visiting
        visiting.close()
    finally:
        operator.close()
        serving.close()


# Scroll back some times; return how often there was something to be seen.
LOOK_BACK = """async (times) => {
    const log = document.querySelector("[role=log]"), earlier = document.getElementById("earlier");
    const shown = () => log.querySelectorAll("article.run").length;
    let looks = 0;
    for (; !earlier.hidden && looks < times; looks++) {
        const before = shown();
        log.scrollTop = 0;
        if (!earlier.disabled) earlier.click();
        while (earlier.disabled || (shown() === before && !earlier.hidden)) await new Promise(requestAnimationFrame);
    }
    return looks;
}"""


def test_five_thousand_messages_open_scroll_back_and_stay_quick(old: Visit) -> None:
    """A session of 5,000 messages opens at its end at once, scrolls back, and answers a new message as ever."""
    page = old.open("elsewhere")
    now = thread_clock(page)
    at = [now()]
    go(page, "#/s/long")
    last = page.get_by_text(f"that was the answer to message {TURNS - 1}", exact=True)
    expect(last).to_be_visible(timeout=2 * BOUND_MS)  # a worker parses some hundred texts before
    at.append(now())
    first = runs(page).count()
    expect(page.get_by_role("button", name="Show earlier messages")).to_be_visible()
    assert first < TURNS  # the page does not draw all turns at once
    assert page.evaluate(LOOK_BACK, LOOKS) == LOOKS
    at.append(now())
    said = page.locator("article.said .words").all_text_contents()
    assert len(said) == first * (LOOKS + 1)
    assert said == [f"message {number}" for number in range(TURNS - len(said), TURNS)]
    assert page.locator("article.run .text").count() == len(said) * BLOCKS
    send(page, "and now?")
    expect(page.locator("article.run").last).to_contain_text("and now?")
    ended(page.locator("article.run").last, "completed")
    at.append(now())
    opened, looked, answered = (after - before for before, after in itertools.pairwise(at))
    print(f"{first} turns in {opened:.2f} s, {LOOKS} looks back in {looked:.2f} s, an answer in {answered:.2f} s")
    assert max(opened, looked / LOOKS, answered) < LONGEST_SECONDS


def test_a_hundred_pieces_a_second_do_not_keep_the_page_busy(browser: Browser, visit: Visit, session: str) -> None:
    """The page goes on drawing during five seconds of such a stream. (A slow moment may be the machine's.)"""
    page = visit.open(session)
    browser.start_tracing(page=page, categories=["disabled-by-default-devtools.timeline"])
    try:
        send(page, "stream 500")
        ended(runs(page), "completed")
        expect(runs(page).locator(".text")).to_contain_text("word499")
    finally:
        traced = json.loads(browser.stop_tracing())["traceEvents"]
    threads = {(each["pid"], each["tid"]) for each in traced if each["args"].get("name") == "CrRendererMain"}
    tasks = [each for each in traced if each["name"] == "RunTask" and (each["pid"], each["tid"]) in threads]
    # Chromium may leave the processor's time out of a task that was cut by the beginning or the end of the trace.
    spent = [each["tdur"] / 1000 for each in tasks if "tdur" in each]
    assert len(spent) > 100 and len(spent) > 0.95 * len(tasks)
    blocked = [round(each) for each in spent if each > LONG_MS]
    print(f"{len(tasks)} tasks at 100 pieces a second for 5 s; long ones: {blocked}")
    assert sum(each > LONGEST_MS for each in blocked) <= 1
    assert sum(blocked) < BUSY_MS
