"""The gateway for the page: its files, pairing, outline, overview, a stop of everything, and a run's picture."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest

from interlock import Message, Run
from interlock.access import failures, pairing
from interlock.core.events import Ended, Event, MessageData, QuestionData, ReceiptData
from interlock.core.names import EARLY, Ending, EventKind, Principal, QuestionId, QuestionState, RunId, SessionId
from interlock.core.outcome import Outcome
from interlock.core.projection import TABLE
from interlock.protocol import frames
from interlock.surfaces import page
from interlock.surfaces.gateway.own import OUTLINE, OwnWording
from interlock.surfaces.gateway.telling import PREVIEW
from surfaces import busy
from surfaces.raw import BOUND_SECONDS, INTERLOCK, Closed, House, Talk, house

pytestmark = pytest.mark.long

AGENT = "surfaces.test_page:agent"
WRITE = "import sys, time; sys.stdout.write('é' * {} + 'end'); sys.stdout.flush(); time.sleep({})"
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types interlock dompurify"
)
ALWAYS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


async def agent(run: Run, message: Message) -> str | None:
    """Be busy, or start processes that write."""
    verb, _, rest = message.text.partition(" ")
    match verb:
        case "detach":
            await run.spawn("sleep", "600", detached=True, name="daemon")
            return "it goes on"
        case "write":
            await run.spawn(sys.executable, "-c", WRITE.format(rest, 600), background=True)
            await run.progress("begun")
            await asyncio.sleep(600)
        case "wrote":
            return str((await run.spawn(sys.executable, "-c", WRITE.format(rest, 0))).status)
    return await busy.agent(run, message)


class Answer(NamedTuple):
    """A response over HTTP."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Return the body, parsed as JSON."""
        return json.loads(self.body)


def ask(server: House, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
    """Send a request with this exact path: nothing normalizes it."""
    asked = http.client.HTTPConnection("127.0.0.1", server.port, timeout=BOUND_SECONDS)
    try:
        asked.request(method, path, body, headers)
        answer = asked.getresponse()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    finally:
        asked.close()


def pair(server: House, code: str) -> Answer:
    """Send a pairing code."""
    return ask(server, "POST", "/pair", json.dumps({"code": code}).encode())


def code_in(url: str) -> str:
    """Return the code of a page's URL."""
    return url.partition("/#pair=")[2]


def bear(server: House, method: str, path: str, token: str) -> Answer:
    """Send a request with a token."""
    return ask(server, method, path, Authorization=f"Bearer {token}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A server for the tests that do not change tokens."""
    with house(tmp_path_factory.mktemp("page") / "data", AGENT, "--driver", "inline") as made:
        yield made
        assert made.healthy()


@pytest.fixture(scope="module")
def tokens(server: House) -> dict[str, str]:
    """The tokens of principals with every kind of scope."""
    scopes = {"ann": "write", "bob": "write", "eve": "read", "joe": "approve"}
    return {name: server.add(name, scope) for name, scope in scopes.items()}


@contextmanager
def alone(path: Path, *options: str) -> Iterator[House]:
    """Serve for one test."""
    with house(path / "data", AGENT, "--driver", "inline", *options) as made:
        yield made


def send(talk: Talk, session: str, text: str, **more: Any) -> str:
    """Send a message; return its run id."""
    key = f"{session} {time.monotonic_ns()}"
    return str(talk.request("chat.send", sessionKey=session, message=text, idempotencyKey=key, **more)["runId"])


# Files


def test_the_page_and_its_files_are_served_with_their_types(server: House) -> None:
    """Each file of the package's directory is served unchanged with its type; the page itself is at /."""
    types = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
    files = [path for path in page.WEB.iterdir() if path.suffix in page.TYPES]
    assert {"index.html", "marked.js", "purify.js"} <= {path.name for path in files}
    for path in files:
        answer = ask(server, "GET", f"/web/{path.name}")
        assert (answer.status, answer.body) == (200, path.read_bytes()), path
        kind = types.get(path.suffix, "text/plain")
        assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
    assert ask(server, "GET", "/").body == (page.WEB / "index.html").read_bytes()
    assert ask(server, "HEAD", "/").headers["content-length"] == str((page.WEB / "index.html").stat().st_size)


def test_a_file_that_is_known_is_not_sent_again(server: House) -> None:
    """A browser asks for a file every time (no-cache), and gets 304 as long as the file is the same."""
    for path in ("/", "/web/marked.js", "/web/endings.js"):
        first = ask(server, "GET", path)
        assert first.headers["cache-control"] == "no-cache"
        again = ask(server, "GET", path, **{"If-None-Match": f'W/"x", {first.headers["etag"]}'})
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", first.headers["etag"])
        assert ask(server, "GET", path, **{"If-None-Match": '"other"'}).status == 200


def test_the_words_of_endings_are_the_tables(server: House) -> None:
    """The page fills the same templates as every other client, and holds no list of endings of its own."""
    text = ask(server, "GET", "/web/endings.js").body.decode()
    tables = {
        name: json.loads(table) for name, table in re.findall(r"^export const (\w+) = (.*);$", text, re.MULTILINE)
    }
    assert tables["ENDINGS"] == {ending.value: row.client for ending, row in TABLE.items()}
    assert set(tables["EARLY"]) == EARLY
    listed = re.compile(r"[\"'](parent_ended|timed_out)[\"']")
    assert [path.name for path in page.WEB.glob("*.js") if listed.search(path.read_text())] == []
    assert set(re.findall(r"\.ending-(\w+) {", (page.WEB / "style.css").read_text())) == set(TABLE)


def test_every_answer_of_the_page_carries_the_headers(server: House) -> None:
    """Files, missing files, pairings, refusals and pictures all carry the security headers."""
    for method, path in (
        ("GET", "/"), ("GET", "/web/endings.js"), ("GET", "/web/nothing.js"), ("POST", "/pair"), ("DELETE", "/pair"),
        ("GET", "/timeline/r-1-1.svg"),
    ):  # fmt: skip
        headers = ask(server, method, path).headers
        assert ALWAYS.items() <= headers.items(), path
    known = ask(server, "GET", "/web/endings.js")
    assert ALWAYS.items() <= ask(server, "GET", "/", **{"If-None-Match": known.headers["etag"]}).headers.items()


@pytest.mark.parametrize(
    "path",
    [
        "/web/../page.py", "/web/..%2fpage.py", "/web/%2e%2e/page.py", "/web/..%5cpage.py", "/web//etc/passwd",
        "/web/%2fetc%2fpasswd", "/web/./index.html", "/web/web/index.html", "/web/", "/web", "/web/index.html/",
        "/web/index.html%00.js", "/web/INDEX.HTML", "/web/__init__.py", "/../src/interlock/app.py", "/index.html",
        "/web/token", "/token", "/web/%252e%252e/page.py", "/web/file:///etc/passwd",
    ],
)  # fmt: skip
def test_nothing_but_the_table_is_served(server: House, path: str) -> None:
    """A path is looked up unchanged: a path that would mean a file only after decoding or joining is not found."""
    answer = ask(server, "GET", path)
    assert answer.status in (307, 404), answer
    assert b"root:" not in answer.body and b"import" not in answer.body
    # The redirect adds a missing slash; the new path is not found either.
    if answer.status == 307:
        assert ask(server, "GET", answer.headers["location"].partition(str(server.port))[2]).status == 404


def test_only_plain_files_get_into_the_table(tmp_path: Path) -> None:
    """Links, directories and files of other kinds are not served; without the directory only endings.js is."""
    (tmp_path / "secret.js").write_text("secret")
    web = tmp_path / "web"
    web.mkdir()
    (web / "a.js").write_text("a")
    (web / "link.js").symlink_to(tmp_path / "secret.js")
    (web / "folder.js").mkdir()
    (web / "b.py").write_text("b")
    os.mkfifo(web / "pipe.js")
    assert set(page.read_files(web)) == {"a.js", "endings.js"}
    assert set(page.read_files(tmp_path / "nowhere")) == {"endings.js"}


def test_the_page_is_light_and_its_own() -> None:
    """A visit fetches at most 200 kB, libraries included, and every file that the page asks for is its own."""
    files = page.read_files()
    modules = {name: file.data.decode() for name, file in files.items() if name.endswith((".js", ".html", ".css"))}
    later = {name for text in modules.values() for name in re.findall(r'import\("\./([^"]+)"\)', text)}
    assert later == {"others.js", "overview.js"}
    assert sum(len(file.data) for name, file in files.items() if name not in {"LICENSES.txt", *later}) <= 200_000
    for name, text in modules.items():
        asked = re.findall(r'(?:from|import) "([^"]+)"|(?:src|href)="([^"#$]+)"|url\(([^)]+)\)', text)
        found = {next(filter(None, each)).removeprefix("./").removeprefix("web/") for each in asked}
        assert name in ("marked.js", "purify.js") or found <= files.keys(), name


# Pairing


def test_a_code_works_once(tmp_path: Path) -> None:
    """A code gives one token with its principal's rights; a used or wrong code gives none; of many at once one wins."""
    with alone(tmp_path) as server:
        code = code_in(server.ready["page"])
        assert server.ready["page"] == f"{server.ready['url']}/#pair={code}" and len(code) >= 22
        told = pair(server, code)
        assert told.status == 200 and told.headers["cache-control"] == "no-store"
        assert {**told.json, "token": ""} == {"token": "", "name": "operator", "scopes": ["admin"]}
        for wrong in (code, code[:-1], code.swapcase(), "", told.json["token"]):
            refused = pair(server, wrong)
            assert refused.status == 403 and "interlock pair" in refused.json["error"], wrong
        with server.connect(told.json["token"]) as talk:
            assert "operator.admin" in talk.hello["auth"]["scopes"]
        assert server.noted(kind="paired", by="operator", address="127.0.0.1")
        with server.connect() as talk, ThreadPoolExecutor(4) as many:
            code = talk.request("interlock.pair")["code"]
            answers = list(many.map(lambda _: pair(server, code), range(4)))
        assert sorted(each.status for each in answers) == [200, 403, 403, 403]
        with closing(sqlite3.connect(f"file:{server.data / 'access.db'}?mode=ro", uri=True)) as rows:
            assert rows.execute("SELECT count(*) FROM tokens").fetchone() == (2,)


def test_wrong_codes_are_counted_like_wrong_tokens(tmp_path: Path) -> None:
    """Wrong codes count with wrong tokens towards the wait; a right code still works."""
    with alone(tmp_path) as server:
        for _ in range(failures.FAILURES // 2):
            assert pair(server, "wrong").status == 403
            assert bear(server, "GET", "/timeline/r-1-1.svg", "wrong").status == 401
        assert pair(server, "wrong").status == 429
        for method, path in (("DELETE", "/pair"), ("GET", "/timeline/r-1-1.svg"), ("GET", "/metrics")):
            assert bear(server, method, path, "wrong").status == 429
        assert pair(server, code_in(server.ready["page"])).status == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400), (b"{}", 400), (b"[]", 400), (b'{"code":1}', 400), (b'{"code":"x","more":1}', 400), (b"\xff", 400),
        (b'{"code":"x"}' + b" " * 2_000, 413), (b"[" * 1_000, 400), (b'{"code":"' + b"x" * 900 + b'"}', 403),
        (b'{"code":"\\ud800"}', 400),
    ],
)  # fmt: skip
def test_what_is_no_code_is_refused_in_words(server: House, body: bytes, status: int) -> None:
    """A body that is no code is refused with a text, and changes nothing."""
    answer = ask(server, "POST", "/pair", body)
    assert answer.status == status and answer.json["error"]


def test_a_page_survives_what_its_server_does_not(tmp_path: Path) -> None:
    """A page's token is valid after an orderly restart and after kill -9; unused codes are not."""
    with alone(tmp_path) as server:
        token = pair(server, code_in(server.ready["page"])).json["token"]
        with server.connect() as talk:
            waiting = talk.request("interlock.pair")["code"]
        assert (server.data / "access.db").stat().st_mode & 0o777 == 0o600
        assert token.encode() not in (server.data / "access.db").read_bytes()
    with alone(tmp_path) as server:
        with server.connect(token) as talk:
            assert talk.request("interlock.overview")["connections"] == 1
        assert pair(server, waiting).status == 403
        second = pair(server, code_in(server.ready["page"])).json["token"]
        server.kill()
    with alone(tmp_path) as server:
        for each in (token, second):
            server.connect(each).close()


def closed(talk: Talk) -> Closed:
    """Return the code and reason with which a connection was closed."""
    with talk:
        return talk.closed()


def test_a_new_token_forgets_the_pages_of_the_old(tmp_path: Path) -> None:
    """A rotation or removal closes the sockets of a principal's pages and voids its codes, also for a reused name."""
    with alone(tmp_path) as server:
        server.add("ann", "write")
        with server.connect() as talk:
            codes = {name: talk.request("interlock.pair", name=name)["code"] for name in ("operator", "ann")}
            late = {name: talk.request("interlock.pair", name=name)["code"] for name in ("operator", "ann")}
        tokens = {name: pair(server, code).json["token"] for name, code in codes.items()}
        talks = {name: server.connect(token) for name, token in tokens.items()}
        server.tokens("rotate")
        assert closed(talks["operator"]).code == frames.NO_TOKEN
        assert talks["ann"].request("health")["ok"]
        server.tokens("remove", "ann")
        assert closed(talks["ann"]).code == frames.NO_TOKEN
        server.add("ann", "admin")
        for name in codes:
            assert pair(server, late[name]).status == 403
            assert server.refused(tokens[name])[1].code == frames.NO_TOKEN
            assert bear(server, "GET", "/timeline/r-1-1.svg", tokens[name]).status in (401, 429)


def test_a_page_that_leaves_is_forgotten(server: House) -> None:
    """A page that unpairs loses its sockets, other pages keep theirs; a principal's own token cannot be unpaired."""
    with server.connect() as talk:
        tokens = [pair(server, talk.request("interlock.pair")["code"]).json["token"] for _ in range(2)]
    talks = [server.connect(token) for token in tokens]
    assert bear(server, "DELETE", "/pair", tokens[0]).status == 204
    assert closed(talks[0]).code == frames.NO_TOKEN
    assert bear(server, "DELETE", "/pair", tokens[0]).status == 401
    assert bear(server, "DELETE", "/pair", server.token).status == 403
    assert talks[1].request("health")["ok"]
    talks[1].close()
    server.connect().close()
    assert server.noted(kind="unpaired", by="operator")


def test_a_page_is_its_principals_and_no_more(server: House, tokens: dict[str, str]) -> None:
    """A page has its principal's scopes; only an admin pairs for another principal, who must have a token."""
    with server.connect(tokens["ann"]) as talk:
        assert "admin" in talk.refused("interlock.pair", name="bob")["message"]
        assert "admin" in talk.refused("interlock.pair", name="nobody")["message"]
        told = pair(server, talk.request("interlock.pair", name="ann")["code"]).json
        assert (told["name"], told["scopes"]) == ("ann", ["write"])
    with server.connect(told["token"]) as talk:
        assert talk.hello["auth"]["scopes"] == ["operator.write"]
        assert pair(server, talk.request("interlock.pair")["code"]).json["name"] == "ann"
    with server.connect() as talk:
        assert talk.request("interlock.pair", name="bob")["seconds"] == pairing.CODE_SECONDS
        assert talk.refused("interlock.pair", name="nobody")["code"] == "NOT_FOUND"


def test_a_page_that_cannot_be_kept_is_not_let_in(tmp_path: Path) -> None:
    """A pairing whose row cannot be written fails with 503; open connections stay, and a later pairing works."""
    with alone(tmp_path) as server:
        token = pair(server, code_in(server.ready["page"])).json["token"]
        with server.connect(token) as talk, closing(sqlite3.connect(server.data / "access.db")) as other:
            code = talk.request("interlock.pair")["code"]
            other.execute("BEGIN IMMEDIATE")  # a backup that holds the database
            assert pair(server, code).status == 503
            assert talk.request("health")["ok"]
            server.connect(token).close()
            assert "access.db could not be written" in server.log()
            other.execute("ROLLBACK")
            assert pair(server, talk.request("interlock.pair")["code"]).status == 200


def test_no_code_and_no_token_is_written_down(tmp_path: Path) -> None:
    """The log, the audit and the files hold no code or token but as a digest, even if sent in a wrong place."""
    with alone(tmp_path, "--log-level", "debug") as server:
        with server.connect() as talk:
            codes = [code_in(server.ready["page"]), *(talk.request("interlock.pair")["code"] for _ in range(3))]
        tokens = [pair(server, code).json["token"] for code in codes[:3]]
        pair(server, codes[0])
        ask(server, "GET", f"/?pair={codes[3]}")
        ask(server, "POST", f"/pair?code={codes[3]}", b"{}")
        ask(server, "GET", f"/web/{codes[3]}", Cookie=f"token={tokens[1]}")
        with server.connect(tokens[0]) as talk:
            assert talk.refused("interlock.pair", name=tokens[1])["code"] == "NOT_FOUND"
            assert talk.request("interlock.find", name="nothing") is None
        bear(server, "DELETE", "/pair", tokens[0])
    kept = {path: path.read_bytes() for path in [server.log_path, *server.data.rglob("*")] if path.is_file()}
    assert {"audit.jsonl", "access.db", "data.log"} <= {path.name for path in kept}
    for path, data in kept.items():
        for secret in (*codes, *tokens):
            assert secret.encode() not in data, path


def test_the_shell_prints_a_page(server: House, tokens: dict[str, str], tmp_path: Path) -> None:
    """`interlock pair` prints a URL that works once, for the caller or by name; `serve` prints one to people, too."""
    command = [str(INTERLOCK), "pair", "--url", server.ready["url"], "--data", str(server.data)]

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *more], capture_output=True, text=True, timeout=BOUND_SECONDS, check=False)

    mine, eves, nobody = run(), run("eve", "--json"), run("nobody")
    assert pair(server, code_in(mine.stdout.strip())).json["name"] == "operator"
    assert mine.stdout.startswith(f"{server.ready['url']}/#pair=")
    assert pair(server, code_in(json.loads(eves.stdout)["page"])).json["scopes"] == ["read"]
    assert nobody.returncode == 125 and "interlock token list" in nobody.stderr
    serve = [str(INTERLOCK), "serve", "--port", "0", "--data", str(tmp_path / "other")]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as people:
        assert people.stdout is not None
        lines = [people.stdout.readline(), people.stdout.readline()]
        people.terminate()
    assert lines[0].startswith("interlock serves interlock.demo:agent at http://127.0.0.1:")
    assert re.search(r"http://127\.0\.0\.1:\d+/#pair=[\w-]{22} .*once", lines[1])


# The outline


def outlined(talk: Talk, run: str | None = None) -> list[dict[str, Any]]:
    """Return the events that an outline was told so far."""
    told = [each["payload"] for each in talk.events if each["event"] == "interlock.event"]
    mine = [each["event"] for each in told if each["watch"] == 0]
    return [each for each in mine if run in (None, each["run_id"])]


def until_told(talk: Talk, run: str, kind: str) -> list[dict[str, Any]]:
    """Read until an outline has told this kind of event of a run; return the run's events."""
    talk.until(lambda: any(each["data"]["type"] == kind for each in outlined(talk, run)), f"{kind} of {run}")
    return outlined(talk, run)


def test_an_outline_tells_what_begins_ends_and_is_asked(server: House) -> None:
    """An outline tells beginnings, endings and questions in Control's words and order, with short texts.

    Other events come only to a connection that watches the session besides.
    """
    long = "say " + "x" * 500
    with server.connect() as talk, server.connect(caps=[frames.OUTLINE]) as told:
        assert frames.OUTLINE in told.hello["features"]["capabilities"]
        run = send(talk, "outline", long)
        events = until_told(told, run, "ended")
        assert [each["data"]["type"] for each in events] == ["message", "started", "ended"]
        assert events[0]["data"]["text"] == long[: PREVIEW - 1] + "…"
        assert len(events[2]["data"]["outcome"]["text"]) <= PREVIEW
        busy = send(talk, "outline", "busy")
        asked = until_told(told, busy, "question")[-1]["data"]
        assert asked["state"] == "open"
        receipt = talk.request("interlock.stop", run=busy)
        ended = until_told(told, busy, "ended")[-1]["data"]
        assert asked["question_id"] in ended["void"]
        talk.request("interlock.wait", run=busy, drained=True)
        told.until(
            lambda: any(
                each["data"].get("receipt", {}).get("id") == receipt["id"]
                and each["data"]["receipt"]["drain"] == "observed"
                for each in outlined(told)
            ),
            "the receipt",
        )
        assert {each["event"] for each in told.events} - {"tick"} == {"connect.challenge", "interlock.event"}
        assert {each["data"]["type"] for each in outlined(told)} <= set(OUTLINE)
        positions = [each["position"] for each in outlined(told)]
        assert positions == sorted(positions)
        assert "taken" in told.refused("interlock.watch", watch=0, session="outline")["message"]
        told.request("interlock.watch", watch=1, session="outline")
        told.event("interlock.event", lambda each: each["watch"] == 1)


def test_an_outline_is_of_what_its_principal_may_see(server: House, tokens: dict[str, str]) -> None:
    """An outline tells an owner only their own sessions, a reader all, and an approver questions alone."""
    talks = {name: server.connect(token, caps=[frames.OUTLINE]) for name, token in tokens.items()}
    busy = send(talks["ann"], "anns", "busy")
    question = until_told(talks["ann"], busy, "question")[-1]["data"]["question_id"]
    own = send(talks["bob"], "bobs", "say my secret")
    until_told(talks["bob"], own, "ended")
    talks["ann"].request("interlock.stop", run=busy)
    for name in ("ann", "eve"):
        kinds = [each["data"]["type"] for each in until_told(talks[name], busy, "ended")]
        assert kinds[:2] == ["message", "started"] and kinds[-1] == "ended"
    talks["joe"].until(lambda: len(outlined(talks["joe"])) >= 2, "the question and its end")
    for talk in talks.values():
        talk.request("health")  # events told before have arrived with this answer
    states = [(each["data"]["question_id"], each["data"]["state"]) for each in outlined(talks["joe"])]
    assert states == [(question, "open"), (question, "void")]
    assert {each["session"] for each in outlined(talks["bob"])} == {"bob/bobs"}
    assert {each["session"] for each in outlined(talks["ann"])} == {"ann/anns"}
    assert {each["session"] for each in outlined(talks["eve"])} == {"ann/anns", "bob/bobs"}
    for talk in talks.values():
        talk.close()


def test_an_outline_cuts_every_text_and_no_name() -> None:
    """An outline cuts nested texts too, and never a session's name: a cut name could be another session's."""
    session, long = SessionId("s" * 500), "x" * 1_000
    outcome = Outcome(run_id=RunId("r-1-1"), ending=Ending.FAILED, text=long, error=long)

    def told(data: Any) -> Any:
        event = Event(position=1, session=session, run_id=RunId("r-1-1"), generation=1, data=data)
        (item,) = OwnWording().outline(event, None)
        payload = json.loads(item.body + b"}")["payload"]
        assert frames.encode(payload) and payload["event"]["session"] == session
        return payload["event"]["data"]

    assert len(told(MessageData(text=long, by=Principal("p" * 300)))["text"]) == PREVIEW
    ended = told(Ended(outcome=outcome, cut=long))
    assert {len(ended["cut"]), len(ended["outcome"]["text"]), len(ended["outcome"]["error"])} == {PREVIEW}
    asked = told(QuestionData(question_id=QuestionId("q"), text=long, state=QuestionState.OPEN, choices=(long,)))
    assert len(asked["text"]) == PREVIEW and asked["choices"] == [long]  # an answer must repeat a choice exactly
    assert EventKind.RECEIPT in OUTLINE and ReceiptData.kind in OUTLINE


# Operators


def test_the_overview_is_the_figures_of_everybody_else(tmp_path: Path) -> None:
    """The overview tells endings by kind and minute, the times of stops, what waits, and how processes are held."""
    with alone(tmp_path) as server, server.connect() as talk:
        before = talk.request("interlock.overview")
        assert before["stops"]["fenced"]["count"] == 0 and before["endings"] == {} and before["minutes"] == []
        for _ in range(2):
            talk.request("agent.wait", runId=send(talk, "one", "say"))
        busy = send(talk, "two", "busy")
        talk.event("exec.approval.requested", lambda each: each["runId"] == busy)
        send(talk, "two", "say", queueMode="followup")
        assert talk.request("interlock.overview")["queued"] == 1
        talk.request("interlock.stop", session="two")
        talk.request("interlock.wait", run=busy, drained=True)
        now = talk.request("interlock.overview")
        assert (now["grade"], now["connections"], now["queued"], now["hosts"]) == (server.ready["grade"], 1, 0, None)
        assert now["endings"] == {"completed": 2, "stopped": 2}
        minutes = {at["at"]: at["endings"] for at in now["minutes"]}
        assert all(at % 60 == 0 and abs(at - time.time()) < 180 for at in minutes)
        totals = {kind: sum(each.get(kind, 0) for each in minutes.values()) for kind in now["endings"]}
        assert totals == now["endings"]
        for mark in ("fenced", "ended", "drained"):
            spread = now["stops"][mark]
            assert spread["count"] == 1 == sum(spread["counts"]) and spread["total_seconds"] >= 0, mark
            assert len(spread["counts"]) == len(spread["limits"]) + 1
        assert now["uptime_seconds"] > before["uptime_seconds"] > 0
        assert now["processes"] == {server.ready["grade"]: 1} and now["corrections"] == 0


def test_hosts_stand_in_the_overview_where_there_are_some(tmp_path: Path) -> None:
    """The overview counts hosts and what became of them, on the host driver."""
    with house(tmp_path / "data", AGENT, "--driver", "host") as server, server.connect() as talk:
        talk.request("agent.wait", runId=send(talk, "one", "say"))
        assert talk.request("interlock.overview")["hosts"]["started"] >= 1


def test_a_stop_of_everything_is_an_admins_and_gives_receipts(tmp_path: Path) -> None:
    """Only an admin may stop everything: runs, queues and children end, and each session has an audited receipt."""
    with alone(tmp_path) as server, server.connect() as admin:
        ann = server.connect(server.add("ann", "write"))
        runs = {name: send(ann, name, "sleep") for name in ("a", "b")}
        waiting = send(ann, "a", "say", queueMode="followup")
        parent = send(admin, "c", "delegate sleep")
        told = admin.event("agent", lambda each: each["runId"] == parent and each["stream"] == "child")
        child = told["data"]["runId"]
        for method in ("interlock.stopall", "interlock.overview"):
            assert ann.refused(method)["details"]["missingScope"] == "operator.admin"
        receipts = admin.request("interlock.stopall")
        assert sorted(each["session"] for each in receipts) == ["ann/a", "ann/b", "operator/c"]
        fallen = {run["id"] for each in receipts for run in each["runs"]}
        assert fallen == {*runs.values(), waiting, parent, child}
        assert all(each["aborted"] and each["cause"] == "stopped" for each in receipts)
        for run in fallen:
            outcome = admin.request("interlock.wait", run=run, drained=True)
            assert outcome["ending"] in ("stopped", "parent_ended")
        noted = server.noted(kind="stop", method="interlock.stopall", by="operator")
        assert {line["receipt"] for line in noted} == {each["id"] for each in receipts}
        assert admin.request("interlock.stopall") == []
        assert admin.request("interlock.overview")["stops"]["fenced"]["count"] == 3
        ann.close()


def test_a_stop_of_everything_reaches_what_is_detached(tmp_path: Path) -> None:
    """A stop of everything also ends a detached process that outlived its run."""
    with alone(tmp_path) as server, server.connect() as talk:
        run = send(talk, "daemons", "detach")
        talk.request("agent.wait", runId=run)
        (process,) = talk.request("interlock.processes")
        assert (process["session"], process["detached"], process["run_id"]) == ("operator/daemons", True, run)
        (receipt,) = talk.request("interlock.stopall")
        end = time.monotonic() + BOUND_SECONDS
        while receipt["drain"] == "pending":
            assert time.monotonic() < end, receipt
            receipt = talk.request("receipts.get", receiptId=receipt["id"])["receipt"]
        assert (receipt["session"], receipt["drain"]) == ("operator/daemons", "observed")
        assert receipt["processes"]["ended"] == 1
        assert talk.request("interlock.processes") == []


# Output of processes


def _state_of(told: dict[str, Any]) -> str | None:
    return told.get("event", {}).get("data", {}).get("state")  # type: ignore[no-any-return]


def test_what_a_process_wrote_last_is_told(server: House) -> None:
    """The list, and the event of the exit, hold the end of a process's output: whole characters, bounded."""
    with server.connect() as talk:
        run = send(talk, "tails", "write 5000")
        talk.event("agent", lambda each: each["runId"] == run and each["stream"] == "progress")
        end = time.monotonic() + BOUND_SECONDS
        while not (tail := talk.request("interlock.processes", session="tails")[0]["tail"]).endswith("end"):
            assert time.monotonic() < end
        assert len(tail) == 2_000 and set(tail) <= set("é\nend"), tail[-20:]
        talk.request("interlock.stop", run=run)
        run = send(talk, "tails", "wrote 5000")
        talk.request("agent.wait", runId=run)
        talk.request("interlock.watch", watch=7, run=run)
        told = talk.event("interlock.event", lambda each: each["watch"] == 7 and _state_of(each) == "exited")
        assert len(told["event"]["data"]["tail"]) == 1_000 and told["event"]["data"]["tail"].endswith("éend")
        began = talk.event("interlock.event", lambda each: _state_of(each) == "running")
        assert began["event"]["data"]["tail"] == ""


def test_a_message_may_roll_back(server: House) -> None:
    """`rollback` is no published queueMode; through `interlock.chat` it hides the turn that it takes over."""
    with server.connect() as talk:
        first = send(talk, "rolled", "sleep")
        message = {"sessionKey": "rolled", "message": "say", "idempotencyKey": "rolled", "queueMode": "rollback"}
        assert talk.refused("chat.send", **message)["code"] == "INVALID_REQUEST"
        talk.request("interlock.chat", **message)
        outcome = talk.request("interlock.wait", run=first)
        assert (outcome["ending"], outcome["hidden"]) == ("superseded", True)


# The picture


def test_a_picture_is_for_those_who_may_see_the_run(server: House, tokens: dict[str, str]) -> None:
    """The gateway draws what `interlock timeline` draws; another's run looks like one that never was."""
    with server.connect(tokens["ann"]) as talk:
        run = send(talk, "drawn", "<b>&say")
        talk.request("agent.wait", runId=run)
    for name in ("ann", "eve"):
        answer = bear(server, "GET", f"/timeline/{run}.svg", tokens[name])
        assert answer.status == 200 and answer.headers["content-type"].startswith("image/svg+xml")
        assert ElementTree.fromstring(answer.body).tag == "{http://www.w3.org/2000/svg}svg"
    command = [str(INTERLOCK), "timeline", run, "--url", server.ready["url"], "-o", "-"]
    drawn = subprocess.run(
        command, env={**os.environ, "INTERLOCK_TOKEN": tokens["ann"]}, capture_output=True, timeout=BOUND_SECONDS
    )
    assert drawn.stdout.strip() == answer.body.strip()
    nothing = bear(server, "GET", "/timeline/r-1-ffff.svg", tokens["bob"])
    others = bear(server, "GET", f"/timeline/{run}.svg", tokens["bob"])
    assert nothing.status == others.status == 404 and nothing.body == others.body
    assert bear(server, "GET", f"/timeline/{run}.svg", tokens["joe"]).status == 403
    assert ask(server, "GET", f"/timeline/{run}.svg").status == 401
    assert ask(server, "GET", f"/timeline/{run}.svg?token={tokens['ann']}").status == 401
    for odd in ("%2e%2e", "%00", "r-1-1%2f..", "x" * 2_000):
        assert bear(server, "GET", f"/timeline/{odd}.svg", tokens["ann"]).status == 404
