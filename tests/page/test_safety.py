"""Text of agents, tools and people stays text; the page asks only its server; a pairing code works once."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from playwright.sync_api import Page, WebSocket, expect

from page.agents import EVIL
from page.scene import Visit, connected, ended, go, number_of, running, runs, send
from surfaces.protocol import Conversation, Wrong
from surfaces.scene import Served

# Elements that must not be in a conversation, whatever the text was.
FORBIDDEN = """() => {
    const log = document.querySelector("[role=log]").parentNode;
    const bad = [...log.querySelectorAll("script, iframe, object, embed, style, base, meta, link, form form")];
    const script = /^(javascript|data:text|vbscript):/i;
    for (const node of document.querySelectorAll("body *")) {
        for (const { name, value } of node.attributes) {
            if (/^(on.*|style|srcdoc|action)$/.test(name)) bad.push(node);
            if (/^(href|src)$/.test(name) && script.test(value.trim())) bad.push(node);
            if (name === "src" && !value.startsWith("blob:")) bad.push(node);
        }
    }
    for (const id of ["stop", "connection"]) bad.push(...[...document.querySelectorAll(`#${id}`)].slice(1));
    return bad.map((node) => node.outerHTML.slice(0, 200));
}"""


def harmless(page: Page) -> None:
    """Check that nothing was executed, that nothing executable is there, and that the page is as before."""
    assert page.evaluate("() => window.owned ?? null") is None
    assert page.evaluate(FORBIDDEN) == []
    expect(page.locator("body")).to_be_visible()
    connected(page)


def test_what_an_agent_writes_stays_text(visit: Visit, session: str) -> None:
    """Text in deltas, blocks, arguments, results, errors, progress and a program's output is drawn, never executed."""
    page = visit.open(session)
    send(page, "evil")
    ended(runs(page), "completed")
    for card in page.locator("details").all():
        card.evaluate("(node) => { node.open = true; }")
    expect(page.locator(".process .tail")).to_contain_text(EVIL[0])
    expect(page.locator(".tool pre.result").first).to_contain_text(EVIL[0])
    expect(runs(page)).to_contain_text("<img src=x onerror=")
    harmless(page)
    for link in runs(page).get_by_role("link").all():
        assert (link.get_attribute("href") or "").startswith(("http:", "https:", "mailto:", "#/"))


def test_errors_and_questions_stay_text(visit: Visit, session: str) -> None:
    """An error, a question and its choices stay text."""
    page = visit.open(session)
    send(page, "evil error")
    ended(runs(page), "failed")
    expect(runs(page).locator(".ending")).to_contain_text(EVIL[0])
    harmless(page)
    send(page, "evil ask")
    expect(page.locator(".question")).to_contain_text(EVIL[0])
    harmless(page)
    page.locator(".question").get_by_role("button").nth(1).click()
    expect(page.locator(".question")).to_have_attribute("data-state", "answered")
    harmless(page)


def test_messages_and_names_of_sessions_stay_text(visit: Visit, session: str) -> None:
    """A person's message and a session's name stay text, in the list, the title and the address, also another's."""
    visit.forgive("404")  # such a run has no picture
    page = visit.open(session)
    send(page, "\n\n".join(EVIL))
    ended(runs(page), "completed")
    expect(page.locator("article.said")).to_contain_text(EVIL[1])
    for name in (EVIL[0], EVIL[1], "../../x?y=1#z", "a/b %2e %", "</title><script>owned=1</script>"):
        visit.operator.send(f"operator/{name}", "hello")  # an own session whose name has a slash is written in full
        named = page.get_by_role("navigation", name="Sessions").get_by_text(name)
        expect(named.first).to_be_visible()
        named.first.click()
        ended(runs(page), "completed")
        expect(runs(page)).to_contain_text("hello")
        harmless(page)
    go(page, "#/run/<img src=x onerror=owned=1>")
    go(page, "#/s/%E0%A4%A")
    go(page, f"#/s/{session}")
    ended(runs(page), "completed")
    harmless(page)


def test_the_overview_and_the_timeline_stay_text(visit: Visit, session: str) -> None:
    """A hostile session name stays text, in the table of live runs and in the timeline."""
    page = visit.open(session)
    name = EVIL[1]
    run = visit.operator.send(name, "evil ask")
    go(page, "#/overview")
    row = page.get_by_role("row").filter(has_text=run).or_(page.get_by_role("row").filter(has_text=name)).first
    expect(row).to_be_visible()
    harmless(page)
    visit.operator.request("interlock.stop", session=name)
    go(page, f"#/run/{run}")
    expect(page.locator("main img[src^='blob:'], main svg").first).to_be_visible()
    harmless(page)


# Pairing


def test_the_code_is_gone_from_the_address_bar_and_the_history(visit: Visit) -> None:
    """A code is exchanged once; neither the address bar, nor the history, nor the page's storage still holds it."""
    code = visit.operator.code()
    page = visit.tab()
    page.goto(f"{visit.base}#pair={code}")
    connected(page)
    assert code not in page.url
    assert code not in page.evaluate("() => JSON.stringify({ ...localStorage, ...sessionStorage }) + document.cookie")
    assert code not in page.content()
    before = page.evaluate("() => history.length")
    page.reload()
    connected(page)
    assert page.evaluate("() => history.length") == before
    page.go_back()
    assert code not in page.url


def test_a_code_works_once_and_says_so(visit: Visit) -> None:
    """The second browser that brings a code is told in words what to do, and gets no token."""
    visit.forgive("403")
    code = visit.operator.code()
    first, second = visit.tab(), visit.tab()
    first.goto(f"{visit.base}#pair={code}")
    connected(first)
    second.goto(f"{visit.base}#pair={code}")
    expect(second.locator("#connection")).to_have_attribute("data-state", "denied")
    expect(second.locator("body")).to_contain_text("interlock pair")
    assert code not in second.url
    connected(first)


def test_a_browser_that_is_not_paired_is_told_how(visit: Visit) -> None:
    """A browser without a token shows only how to get one."""
    page = visit.tab()
    page.goto(visit.base)
    expect(page.locator("#connection")).to_have_attribute("data-state", "denied")
    expect(page.locator("body")).to_contain_text("interlock pair")
    expect(page.get_by_role("textbox", name="Message")).to_be_hidden()


def test_the_code_that_serve_prints_pairs(visit: Visit, server: Served) -> None:
    """The line of `interlock serve` names this page, with a pairing code in the fragment."""
    page = visit.tab()
    assert server.ready["page"].startswith(f"{visit.base}#pair=")
    page.goto(server.ready["page"])
    connected(page)


def test_what_the_page_says_and_hears_keeps_to_the_schemas(visit: Visit, session: str) -> None:
    """Every frame in both directions keeps to the published schemas, and to ours for our own methods."""
    page, wrong = visit.tab(), list[str]()

    def dialled(socket: WebSocket) -> None:
        talk = Conversation()

        def judge(side: Callable[[str | bytes], object], raw: str | bytes) -> None:
            try:
                side(raw)
            except Wrong as why:
                wrong.append(str(why))

        socket.on("framesent", lambda raw: judge(talk.client, raw))
        socket.on("framereceived", lambda raw: judge(talk.server, raw))

    page.on("websocket", dialled)
    page.goto(f"{visit.base}#pair={visit.operator.code()}")
    connected(page)
    go(page, f"#/s/{session}")
    send(page, "stream")
    run = running(page, "word5")
    send(page, "ask May I?")
    ended(run, "superseded")
    page.get_by_role("button", name="Yes").click()
    ended(runs(page).last, "completed")
    go(page, f"#/run/{number_of(run)}")
    expect(page.locator("#timeline-picture img")).to_be_visible()
    go(page, "#/overview")
    expect(page.locator("#overview figure")).to_have_count(2)
    assert not wrong, wrong


def test_no_endpoint_is_taken_from_the_address(visit: Visit) -> None:
    """The page dials the server it came from, whatever the address says."""
    page = visit.open("x")
    for where in ("?gatewayUrl={}&url={}", "#gatewayUrl={}&pair=CODE", "?ws={}#/s/x?gateway={}", "#pair=CODE&url={}"):
        page.goto("about:blank")
        page.goto(visit.base + where.replace("{}", "ws://127.0.0.1:1/").replace("CODE", visit.operator.code()))
        # The visit fails if the page dialled or asked any other server.
        connected(page)


def test_a_forgotten_token_closes_the_page(visit: Visit) -> None:
    """Leaving forgets the token: the page says how to pair, also after a reload."""
    page = visit.open("leaving")
    page.get_by_role("button", name="Unpair this browser").click()
    page.get_by_role("dialog").get_by_role("button", name="Unpair").click()
    expect(page.locator("#connection")).to_have_attribute("data-state", "denied")
    page.reload()
    expect(page.locator("#connection")).to_have_attribute("data-state", "denied")


def test_nothing_secret_is_logged(visit: Visit, server: Served) -> None:
    """The server's log and audit hold neither a code nor the token that a page got for it."""
    code = visit.operator.code()
    page = visit.tab()
    page.goto(f"{visit.base}#pair={code}")
    connected(page)
    kept = page.evaluate("() => Object.values({ ...localStorage, ...sessionStorage })")
    secrets = [code, *(part for value in kept for part in _texts(value) if len(part) > 30)]
    assert len(secrets) > 1
    written = server.log() + Path(server.data, "audit.jsonl").read_text()
    assert not [secret for secret in secrets if secret in written]


def _texts(value: str) -> list[str]:
    try:
        kept = json.loads(value)
    except ValueError:
        return [value]
    return [str(each) for each in kept.values()] if isinstance(kept, dict) else [str(kept)]


def test_a_run_of_a_child_is_named_safely(visit: Visit, session: str) -> None:
    """A child's text is cleaned like any other."""
    page = visit.open(session)
    send(page, "team evil error")
    ended(runs(page), "completed")
    page.locator(".child > summary").click()
    expect(page.locator(".child article.run .ending")).to_contain_text(EVIL[0])
    assert number_of(runs(page))
    harmless(page)


def test_a_code_in_a_paired_browser_asks_first(visit: Visit, session: str) -> None:
    """A pairing link in a paired browser asks first: after a no, the old token stays and the code is unused."""
    page = visit.open(session)
    kept = "() => localStorage.getItem('interlock.token')"
    token, code = page.evaluate(kept), visit.operator.code("ann")
    dialog = page.get_by_role("dialog")
    for answer, name in (("Not now", "operator"), ("Pair anew", "ann")):
        go(page, f"#pair={code}")
        expect(dialog).to_contain_text("paired as operator already")
        assert code not in page.url
        assert page.evaluate(kept) == token
        with page.expect_event("load") if name == "ann" else nullcontext():  # the new page holds nothing of before
            dialog.get_by_role("button", name=answer).click()
        expect(page.locator("#person-name")).to_have_text(name)
        connected(page)
        assert (page.evaluate(kept) == token) == (name == "operator")
