"""Much at once: a session of 5,000 messages, and a hundred pieces of text a second."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest
from playwright.sync_api import Browser, expect

from interlock import Message, Run, open_control
from page.scene import Person, Visit, ended, go, long_tasks, running, runs, send, serve

TURNS, BLOCKS = 500, 9  # a turn is a message and so many of the agent's
LOOKS = 3
LONGEST_SECONDS = 10.0  # on a busy machine; 0.9 s where little else ran
LONGEST_MS = 200
BUSY_MS = 1_000  # of the five seconds


async def talkative(run: Run, message: Message) -> str:
    """Answer in several messages."""
    for number in range(1, BLOCKS):
        await run.post(f"part {number} of the answer to *{message.text}*")
    return f"that was the answer to **{message.text}**"


def fill(data: Path) -> None:
    """Have a long conversation, and leave it in a store."""

    async def talk() -> None:
        async with open_control(talkative, store=f"sqlite:///{data}") as control:
            for number in range(TURNS):
                sent = await control.send("long", f"message {number}", by="operator")
                await control.wait(sent.run_id)

    # In a thread, as the browser's loop is this one's.
    thread = threading.Thread(target=lambda: asyncio.run(talk()))
    thread.start()
    thread.join()


@pytest.fixture
def old(browser: Browser, tmp_path: Path) -> Iterator[Visit]:
    """A visit to a server that has seen much."""
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


# Look back some times; return how long each look took, in milliseconds.
LOOK_BACK = """async (times) => {
    const log = document.querySelector("[role=log]"), earlier = document.getElementById("earlier"), took = [];
    const shown = () => log.querySelectorAll("article.run").length;
    while (!earlier.hidden && took.length < times) {
        const [began, before] = [performance.now(), shown()];
        log.scrollTop = 0;
        if (!earlier.disabled) earlier.click();
        while (earlier.disabled || (shown() === before && !earlier.hidden)) await new Promise(requestAnimationFrame);
        took.push(performance.now() - began);
    }
    return took;
}"""


def test_five_thousand_messages_open_scroll_back_and_stay_quick(old: Visit) -> None:
    """The end is there at once; going back shows what came before; and a new message is answered as ever."""
    page = old.open("elsewhere")
    began = monotonic()
    go(page, "#/s/long")
    expect(page.get_by_text(f"that was the answer to message {TURNS - 1}", exact=True)).to_be_visible()
    opened, first = monotonic() - began, runs(page).count()
    expect(page.get_by_role("button", name="Show earlier messages")).to_be_visible()
    assert first < TURNS  # not all of it is drawn at once
    looks = [each / 1000 for each in page.evaluate(LOOK_BACK, LOOKS)]
    said = page.locator("article.said .words").all_text_contents()
    assert len(said) == first * (LOOKS + 1)
    assert said == [f"message {number}" for number in range(TURNS - len(said), TURNS)]
    assert page.locator("article.run .text").count() == len(said) * BLOCKS
    back = long_tasks(page)
    began = monotonic()
    send(page, "and now?")
    ended(page.locator("article.run").last, "completed")
    answered = monotonic() - began
    print(
        f"{first} turns in {opened:.2f} s, {LOOKS} looks back, the slowest {max(looks):.2f} s, an answer in "
        f"{answered:.2f} s; long tasks on the way back {max(back, default=0)} ms, in the end {long_tasks(page)}"
    )
    assert max(opened, answered, *looks) < LONGEST_SECONDS


def test_a_hundred_pieces_a_second_do_not_keep_the_page_busy(visit: Visit, session: str) -> None:
    """Five seconds of it: the page goes on drawing all the time. One slow moment may be the machine's."""
    page = visit.open(session)
    long_tasks(page)
    send(page, "stream 500")
    run = running(page, "word1")
    ended(run, "completed")
    expect(run.locator(".text")).to_contain_text("word499")
    blocked = long_tasks(page)
    print(f"long tasks at 100 pieces a second for 5 s: {blocked}")
    assert sum(each > LONGEST_MS for each in blocked) <= 1
    assert sum(blocked) < BUSY_MS
