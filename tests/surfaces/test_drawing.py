"""The picture of a run is sound and bounded, and says what the timeline says."""

import asyncio
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence

import pytest

from interlock import Message, Moment, Run, open_control
from interlock.core.names import ENDINGS, EventKind
from interlock.core.projection import TABLE
from interlock.protocol.drawing import BARS, LANES, ROWS, draw

SVG = "{http://www.w3.org/2000/svg}"
HOURS = 3 * 3600.0


class Picture:
    """A drawing, parsed."""

    def __init__(self, moments: Sequence[Moment], title: str = "run r-1-1") -> None:
        self.source = draw(moments, title=title)
        self.root = ET.fromstring(self.source)
        self.texts = [element.text or "" for element in self.root.iter(f"{SVG}text")]
        self.bars = [element for element in self.root.iter(f"{SVG}rect") if "bar" in element.get("class", "").split()]
        self.kinds = Counter(bar.get("class", "").split()[0] for bar in self.bars)
        self.panels = [element for element in self.root.iter(f"{SVG}rect") if element.get("class") == "panel"]
        self.thin = [element for element in self.root.iter(f"{SVG}rect") if "thin" in element.get("class", "").split()]
        self.lines = [element for element in self.root.iter(f"{SVG}path") if element.get("class") == "line"]

    def told(self, words: str) -> bool:
        """Return whether one of the texts is `words`."""
        return words in self.texts


def edges(element: ET.Element) -> tuple[float, float]:
    """Return where an element begins and ends on paper, in pixels."""
    x = float(element.get("x", "0"))
    return x, x + float(element.get("width", "0"))


def moment(at: float, what: str, name: str = "", state: str = "", detail: str = "", count: int = 1) -> Moment:
    """Return a moment of a timeline."""
    return Moment(at=at, what=what, name=name, state=state, detail=detail, count=count)


def over(at: float, ending: str = "stopped", by: str = "alice", drained: float = 0.04) -> list[Moment]:
    """Return the moments of a run's end."""
    return [
        moment(at, "fell", by, ending),
        moment(at + 0.001, "ended", "", ending),
        moment(at + drained, "drained", "", "observed"),
    ]


def begun(*more: Moment) -> list[Moment]:
    """Return the moments of a run's beginning, and more."""
    return [moment(0.0, "admitted", "alice"), moment(0.5, "started"), *more]


def call(name: str, start: float, end: float, state: str = "finished") -> list[Moment]:
    """Return the moments of one tool call."""
    return [
        moment(start, "tool", name, "pending"),
        moment(start, "tool", name, "running"),
        moment(end, "tool", name, state),
    ]


async def search(query: str) -> str:
    """Return at once."""
    return query


async def endless() -> None:
    """Never return."""
    await asyncio.sleep(3600)


async def helper(run: Run, message: Message) -> str:
    """Reply as a child."""
    return "helped"


async def agent(run: Run, message: Message) -> str:
    """Do a little of everything, and then wait in a tool while a daemon runs."""
    async with run.phase("provider"):
        await run.say("hello")
    await run.call(search, query="a")
    await run.call(search, query="b")
    await run.spawn("sh", "-c", "sleep 600 & exit 3")
    await run.delegate("helper", "work")
    if message.text == "wait":
        await run.call(endless)
    return "done"


def test_real_runs() -> None:
    """The timelines of a stopped and of a completed run with tools, a process and a child can be drawn."""

    async def main() -> None:
        async with open_control(agent, agents={"helper": helper}) as control:
            sent = await control.send("s", "wait", by="alice")
            async for event in control.watch("s"):
                if event.kind is EventKind.TOOL and event.data.name == "endless" and event.data.state == "running":
                    break
            await control.stop(run=sent.run_id, by="alice")
            await control.wait(sent.run_id, drained=True)
            stopped = Picture(await control.timeline(sent.run_id))
            assert stopped.texts[1].startswith("stopped by alice after ")
            assert all(stopped.told(name) for name in ("provider", "search", "endless", "helper", "drained"))
            assert stopped.told("fenced") and stopped.told("said 5 characters")
            assert stopped.kinds["cut"] >= 1 and stopped.kinds["good"] >= 3 and stopped.kinds["bad"] >= 1
            sent = await control.send("s", "go")
            await control.wait(sent.run_id, drained=True)
            done = Picture(await control.timeline(sent.run_id))
            assert done.texts[1].startswith("completed after ") and len(done.panels) == 1
            assert done.kinds["cut"] == 0 and not done.told("endless")

    asyncio.run(asyncio.wait_for(main(), 30))


def test_what_is_in_the_picture() -> None:
    """Each thing that took a while is a bar in the colour of its ending, with its time next to it."""
    moments = begun(
        moment(0.5, "phase", "provider"),
        moment(0.8, "output", "", "said", "12 characters"),
        moment(1.0, "phase", "", "left"),
        *call("search", 1.0, 1.25),
        *call("search", 1.5, 2.0),
        *call("write", 2.0, 2.1, "failed"),
        moment(2.2, "process", "make", "running"),
        moment(2.4, "process", "make", "exited", "2"),
        moment(2.5, "process", "sleepd", "running"),
        moment(2.5, "question", "Deploy?", "open"),
        moment(2.8, "question", "Deploy?", "answered", "True by bob"),
        moment(2.9, "child", "tester", "begun"),
        moment(3.0, "joined", "bob"),
        moment(3.0, "tool", "late", "pending"),
        moment(3.1, "question", "Sure?", "open"),
        *over(4.0)[:1],
        moment(4.0, "output", "", "cut", "7 characters"),
        moment(4.0, "tool", "late", "skipped"),
        moment(4.0, "question", "Sure?", "void"),
        moment(4.0, "child", "tester", "parent_ended"),
        moment(4.001, "refused", "delta", count=1_234),
        *over(4.0, drained=1.0)[1:],
    )
    picture = Picture(moments)
    assert len(picture.panels) == 1  # the stop took a fifth of the time, enough to see
    assert picture.kinds == {"none": 4, "live": 1, "gone": 2, "phase": 1, "good": 4, "bad": 2, "cut": 2, "hollow": 1}
    assert picture.texts[:2] == [
        "run r-1-1",
        "stopped by alice after 4 s · drained 1 s later (observed) · 1,234 refused",
    ]
    for words in ("750 ms · 2 × finished", "100 ms · failed", "200 ms · exited 2", "2.5 s · ended", "1 s · skipped"):
        assert picture.told(words), words
    for words in (
        "300 ms · answered True by bob",
        "900 ms · void",
        "1.1 s · parent ended",
        "refused ×1,234",
        "said, cut",
    ):
        assert picture.told(words), words
    assert (
        picture.told("fenced")
        and picture.told("ended +1 ms")
        and picture.told("drained +1 s")
        and len(picture.lines) == 3
    )
    assert list(dict.fromkeys(text for text in picture.texts if text in LANES)) == list(LANES)


def test_output_claims_no_more_than_is_known() -> None:
    """A thin bar runs from the close of the text before (a tool's start, not its end) to a mark at the whole text."""
    picture = Picture(
        begun(
            moment(1.0, "output", "", "said", "2 characters"),
            *call("search", 2.0, 3.0),
            moment(3.5, "output", "", "said", "3 characters"),
            *over(4.0, drained=4.0)[:1],
            moment(4.0, "output", "", "cut", "1 characters"),
            *over(4.0, drained=4.0)[1:],
        )
    )
    panel = edges(picture.panels[0])
    second = (panel[1] - panel[0]) / 8
    spans = [((start - panel[0]) / second, (end - panel[0]) / second) for start, end in map(edges, picture.thin)]
    assert spans == [pytest.approx(span, abs=0.01) for span in ((0.5, 1.0), (2.0, 3.5), (3.5, 4.0))]
    marks = [edges(bar)[1] for bar in picture.bars if (bar[0].text or "").startswith("text: ")]
    assert marks == pytest.approx([edges(thin)[1] for thin in picture.thin], abs=0.2)
    assert "text: said 3 characters, within 1.5 s" in picture.source and picture.told("2 × said, cut")
    assert Picture(begun(moment(1.0, "output", "", "said", "2 characters"))).told("said 2 characters")


@pytest.mark.parametrize("drained", [0.04, 4.0], ids=["enlarged", "alone"])
def test_what_was_refused_is_hollow_and_right_of_the_fall(drained: float) -> None:
    """A refused effect is an outline from fall to drain in each panel with the fall; a failed call is filled."""
    fall = over(4.0, drained=drained)
    moments = [*call("bad", 1.0, 2.0, "failed"), fall[0], moment(4.001, "refused", "delta", count=3), *fall[1:]]
    picture = Picture(begun(*moments))
    hollow = [edges(bar) for bar in picture.bars if bar.get("class") == "hollow bar"]
    assert hollow == [edges(bar) for bar in picture.bars if bar.get("class") == "gone bar"]  # from fall to drain
    lines = [line for line in picture.lines if line.get("stroke-dasharray") == "1 0"]
    assert len(hollow) == len(lines) == len(picture.panels)
    for (start, _), line in zip(hollow, lines, strict=True):
        assert start >= float((line.get("d") or "")[1:].split()[0]) - 3  # a bar is at least 3 pixels wide
    assert ".hollow{fill:none;stroke:" in picture.source and picture.kinds["bad"] == 1 and picture.told("refused ×3")


def test_a_stop_after_three_hours() -> None:
    """After a long run a second panel draws the fall large: 40 ms take most of it."""
    moments = begun(moment(1.0, "process", "daemon", "running"), *over(HOURS, drained=0.04))
    picture = Picture(moments)
    whole, stop = picture.panels
    assert picture.told("the fall, enlarged") and len(picture.lines) == 1 + 3
    drained = [
        bar for bar in picture.bars if bar.get("class") == "gone bar" and bar[0].text == "drained: drained, 40 ms"
    ]
    width = [float(bar.get("width", "0")) for bar in drained]
    assert width[0] < 5 and width[1] > 0.6 * float(stop.get("width", "0"))
    assert float(whole.get("x", "0")) + float(whole.get("width", "0")) < float(stop.get("x", "0"))
    assert {"2 h", "20 ms", "40 ms"} <= set(picture.texts)


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_ending_in_its_words(ending: str) -> None:
    """The picture tells each ending in the words of every other surface, and names who caused it."""
    words = TABLE[ending].client.partition("{")[0]
    assert Picture(begun(*over(2.0, ending, by=""))).texts[1].startswith(f"{words} after 2 s")
    assert Picture(begun(*over(2.0, ending, by="bob"))).texts[1].startswith(f"{words} by bob after 2 s")


def test_a_run_without_an_end_and_one_without_a_beginning() -> None:
    """A live run is drawn up to now, one that never began as waiting; a run without moments is told so in words."""
    running = Picture(
        begun(moment(0.6, "phase", "provider"), *call("search", 1.0, 2.0)[:2], moment(2.0, "joined", "b"))
    )
    assert running.texts[1] == "not over after 2 s" and running.told("1 s · running") and running.lines == []
    assert Picture([moment(0.0, "admitted"), *over(1.0)]).texts[1].startswith("stopped by alice after 1 s")
    empty = Picture([])
    assert empty.texts == ["run r-1-1", "nothing has happened yet"] and empty.bars == empty.panels == []
    assert Picture([moment(5.0, "admitted")]).texts[1] == "not over after 0 ms"
    assert Picture([moment(5.0, "drained", "", "observed"), moment(5.0, "ended")]).lines == []


def test_calls_of_one_tool_at_once() -> None:
    """Calls of one tool at once share a name, not a row; the pending one is skipped and the running ones are cut."""
    moments = begun(*(moment(1.0, "tool", "t", "pending") for _ in range(3)))
    moments += [moment(1.0, "tool", "t", "running"), moment(1.0, "tool", "t", "running"), *over(2.0)[:1]]
    states = ("skipped", "interrupted", "interrupted")
    moments += [*(moment(2.0, "tool", "t", state) for state in states), *over(2.0, drained=2.0)[1:]]
    picture = Picture(moments)
    assert [picture.texts.count(f"1 s · {state}") for state in states] == [1, 2, 2]


HOSTILE = (
    "</text><script>alert(1)</script>",
    "<!--",
    "]]>&lt;&#0;",
    '" onload="x',
    "\x00\x1b[31m\ud800\ufffe\u202e",
    "x" * 1_000_000,
    "<" * 1_000_000,
)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_text_is_only_text(text: str) -> None:
    """A text in any place is cut, printable and no markup; the picture stays small."""
    plain = Picture(hostile("x"), "x")
    picture = Picture(hostile(text), text)
    assert Counter(each.tag for each in picture.root.iter()) == Counter(each.tag for each in plain.root.iter())
    assert len(picture.source) < 40_000
    assert all(letter.isprintable() or letter == "\n" for letter in picture.source)
    assert {name for each in picture.root.iter() for name in each.attrib} <= {
        "class", "x", "y", "width", "height", "rx", "d", "stroke-dasharray", "viewBox", "role"
    }  # fmt: skip
    picture.source.encode()


def hostile(text: str) -> list[Moment]:
    """Return the moments of a run in which every name is this text."""
    return begun(
        *call(text, 1.0, 1.1),
        moment(1.0, "process", text, "running"),
        moment(1.1, "question", text, "open"),
        moment(1.2, "question", text, "answered", text),
        moment(1.2, "joined", text),
        moment(1.3, "phase", text),
        moment(1.3, "output", text, text, text),
        moment(1.4, "child", text, "begun"),
        *over(2.0, by=text, drained=2.0),
        moment(2.0, "child", text, text),
        moment(2.0, "refused", text),
    )


def test_nothing_from_elsewhere() -> None:
    """The picture has no link, script, font or image, so that it can be read offline and mailed."""
    source = draw(hostile("x"), title="x").replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not any(word in source for word in ("http", "href", "url(", "@import", "<script", "<image", "foreignObject"))
    assert "prefers-color-scheme:dark" in source


def test_it_is_bounded() -> None:
    """The picture has a bounded number of rows and bars, and counts those that it leaves out."""
    names = Picture(begun(*(each for n in range(300) for each in call(f"tool {n}", 1.0 + n, 2.0 + n)), *over(400.0)))
    assert len({bar.get("y") for bar in names.bars}) == ROWS
    assert names.told("and 103 more, not drawn")
    times = Picture(begun(*(each for n in range(30_000) for each in call("t", 1.0 + n, 2.0 + n)), *over(40_000.0)))
    assert len(times.bars) < 2 * BARS and len(times.source) < 600_000
    assert times.told("and 28,003 more, not drawn")


@pytest.mark.parametrize("at", [float("nan"), float("inf"), -float("inf"), 1e300])
def test_times_that_are_none(at: float) -> None:
    """Moments without a real time are left out; a clock that goes back draws no negative width."""
    picture = Picture(begun(moment(at, "tool", "t", "pending"), *call("u", 3.0, 1.0), *over(2.0)))
    assert not picture.told("t") and picture.told("u")
    assert all(float(bar.get("width", "0")) > 0 for bar in picture.bars)


def test_the_same_again() -> None:
    """The same moments give the same picture."""
    assert draw(hostile("x"), title="t") == draw(hostile("x"), title="t")
