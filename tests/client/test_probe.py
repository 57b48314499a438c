"""`interlock probe` against our own server, against gateways that leak on purpose, and against other servers."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.server import ServerConnection, serve

from client.leaky import BOUND_SECONDS, LATE, Leaky, until
from interlock.cli.app import command_line
from interlock.client import connection
from interlock.client.probe import scenes
from interlock.client.probe.scenes import SCENES, TOOK_OVER, WENT_ON
from interlock.client.probe.verdict import Take, row_of
from interlock.client.probe.words import KIND_OF, Kind, of_abort, of_chat, of_lifecycle, of_wait
from interlock.client.socket import connect
from interlock.core.projection import TABLE
from surfaces.scene import Served, served

pytestmark = pytest.mark.long

PAGE = Path(__file__).parent.parent.parent / "docs" / "probe.md"


class Said:
    """The output of a probe, and its exit code."""

    def __init__(self, code: object, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def report(self) -> Any:
        """Return the JSON document."""
        return json.loads(self.out)

    def row(self, scene: str) -> Any:
        """Return a scene's row of the document."""
        return next(row for row in self.report["scenes"] if row["scene"] == scene)


class Probe:
    """`interlock probe` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, url: str, *words: str) -> Said:
        """Probe once."""
        self._capsys.readouterr()
        code = command_line("probe")(["probe", url, *words], prog_name="interlock", standalone_mode=False)
        return Said(code, *self._capsys.readouterr())

    def leaky(self, *faults: str, scenes: tuple[str, ...] = (), times: int = 2, more: tuple[str, ...] = ()) -> Said:
        """Probe a gateway with these faults."""
        wanted = [word for scene in scenes for word in ("--scene", scene)]
        with Leaky(*faults) as gateway:
            return self(gateway.url, *QUICK, "--times", str(times), "--json", *wanted, *more)


QUICK = ("--say", "talk", "--tool-say", "tool", "--listen", "500ms", "--limit", "1")


@pytest.fixture
def probe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Probe:
    """A probe with a token, and with little patience for silent gateways."""
    monkeypatch.setenv("INTERLOCK_TOKEN", "a-token")
    monkeypatch.setattr(scenes, "CLEAN_SECONDS", 0.5)
    return Probe(capsys)


def good(row: Any) -> bool:
    """Return whether a scene was tried and nothing leaked."""
    return bool(
        row["tried"]
        and not row["leaked"]
        and not row["events_after_ack"]
        and row["terminals"] == [1]
        and not row["disagreements"]
        and not row["trouble"]
        and row["ack_ms"]["p50"] <= row["ack_ms"]["max"]
        and row["silence_ms"]["p50"] <= row["silence_ms"]["max"]
    )


# A gateway without a fault, and one fault after the other


def test_a_gateway_that_keeps_its_promises_leaks_nothing(probe: Probe) -> None:
    """Every scene is tried and leaks nothing; the sessions are the probe's own, and each is stopped at the end."""
    with Leaky() as gateway:
        said = probe(gateway.url, *QUICK, "--times", "2", "--json")
    assert said.code == 0, said.out
    report = said.report
    assert (report["leaked"], report["tried"], report["broken"]) == (False, 2 * len(SCENES), None)
    assert (report["url"], report["server"], report["protocol"]) == (gateway.url, "leaky 1", 4)
    assert [row["scene"] for row in report["scenes"]] == list(SCENES)
    assert all(good(row) for row in report["scenes"]), report
    assert said.row("takeover")["courses"] == said.row("interrupt")["courses"] == {TOOK_OVER: 2}
    sessions = gateway.sessions()
    assert len(sessions) == 2 * len(SCENES) and all(re.match(r"probe-[0-9a-f]{8}-", each) for each in sessions)
    assert {stop["sessionKey"] for stop in gateway.stops() if "runId" not in stop} == sessions
    assert {frame["method"] for frame in gateway.asked} <= {"connect", "chat.send", "chat.abort", "agent", "agent.wait"}
    begun, sends, *scenes_told = said.err.splitlines()
    assert begun == f"· probing {gateway.url}: 8 scenes, 2 times each, about 20 s"
    assert sends.startswith("· it sends 20 messages to the agent, in sessions probe-") and "cost model tokens" in sends
    assert scenes_told == [f"· {scene}: nothing leaked" for scene in SCENES]


def test_a_stream_that_goes_on_is_counted(probe: Probe) -> None:
    """Pieces after the ack are counted by kind, with the time from the ack to the last of them."""
    said = probe.leaky("streams on after the ack", scenes=("mid-stream",))
    row = said.row("mid-stream")
    assert (said.code, row["tried"], row["leaked"]) == (1, 2, 2)
    assert row["events_after_ack"] == {"agent assistant": 2 * LATE, "chat delta": 2 * LATE}
    assert row["last_event_after_ack_ms"] >= 0
    assert (row["terminals"], row["disagreements"], row["trouble"]) == ([1], 0, {})


def test_a_tool_that_goes_on_is_counted(probe: Probe) -> None:
    """Tool events after the ack are a leak of their own; tool events before it are none."""
    said = probe.leaky("tells tools after the ack", scenes=("mid-tool",))
    row = said.row("mid-tool")
    assert (said.code, row["leaked"], row["events_after_ack"]) == (1, 2, {"agent tool": 2 * LATE})
    assert (row["terminals"], row["disagreements"]) == ([1], 0)


def test_two_endings_of_one_run_are_told(probe: Probe) -> None:
    """A second terminal event of a run is told as a second ending, not as an event after the ack."""
    said = probe.leaky("tells two endings", scenes=("mid-stream", "agent", "timeout"))
    assert said.code == 1
    for row in said.report["scenes"]:
        assert (row["leaked"], row["terminals"], row["events_after_ack"], row["disagreements"]) == (2, [2], {}, 0)


def test_surfaces_that_contradict_each_other_are_told(probe: Probe) -> None:
    """`aborted` on chat and `ok` from agent.wait contradict each other; the words of every surface are shown."""
    said = probe.leaky("a wait says ok", scenes=("mid-stream", "timeout"))
    row = said.row("mid-stream")
    assert (said.code, row["leaked"], row["disagreements"]) == (1, 2, 2)
    assert row["words"] == [
        {"chat.abort": "aborted", "chat": "aborted rpc", "agent": "end cancelled", "agent.wait": "ok"}
    ]
    assert (row["terminals"], row["events_after_ack"]) == ([1], {})
    assert good(said.row("timeout"))


def test_a_takeover_that_is_ignored_is_a_leak_where_it_was_asked_for(probe: Probe) -> None:
    """With queueMode interrupt a first run that goes on is a leak; by default that is told, and no leak."""
    said = probe.leaky("ignores the takeover", scenes=("takeover", "interrupt"))
    row = said.row("interrupt")
    assert (said.code, row["leaked"], row["courses"], row["terminals"]) == (1, 2, {WENT_ON: 2}, [0])
    assert set(row["events_after_ack"]) == {"agent assistant", "chat delta"} and row["disagreements"] == 2
    assert row["words"] == [{"asked": "to take over", "agent.wait": "pending"}]
    assert good(said.row("takeover"))

    queues = probe.leaky("queues by default", scenes=("takeover", "interrupt"))
    row = queues.row("takeover")
    assert (queues.code, row["tried"], row["leaked"]) == (0, 2, 0)
    assert (row["courses"], row["terminals"], row["events_after_ack"]) == ({WENT_ON: 2}, [], {})
    assert good(queues.row("interrupt"))


def test_a_limit_that_is_told_as_a_reply_is_told(probe: Probe) -> None:
    """Surfaces that all say `completed` of a run over its limit agree with each other, but not with the request."""
    said = probe.leaky("a limit is told as ok", scenes=("timeout", "agent-timeout"))
    assert said.code == 1
    for row in said.report["scenes"]:
        assert (row["leaked"], row["disagreements"], row["terminals"], row["events_after_ack"]) == (2, 2, [1], {})
    ends = {"asked": "a time limit", "chat": "final", "agent": "end", "agent.wait": "ok"}
    assert said.row("timeout")["words"] == [ends]
    assert said.row("agent-timeout")["words"] == [ends | {"agent's answer": "ok"}]


def test_what_comes_behind_a_limit_is_counted(probe: Probe) -> None:
    """The terminal event counts as the ack of a limit; a piece after it is late."""
    said = probe.leaky("speaks after the limit", scenes=("timeout",))
    row = said.row("timeout")
    assert (said.code, row["events_after_ack"]) == (1, {"agent assistant": 2, "chat delta": 2})


def test_a_limit_that_ends_nothing_is_told(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that goes on after its limit is told as trouble, and the probe stops it."""
    monkeypatch.setattr(scenes, "ANSWER_SECONDS", 0.5)
    said = probe.leaky("ignores the limit", scenes=("timeout",), times=1)
    row = said.row("timeout")
    assert (said.code, row["trouble"]) == (1, {"no end was told within 0.5 s of its limit": 1})
    assert (row["terminals"], row["ack_ms"]) == ([0], None)


def test_a_stop_that_is_never_answered_is_told(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop without an ack has no time to the ack; the document also tells that the run goes on."""
    monkeypatch.setattr(scenes, "ANSWER_SECONDS", 0.5)
    said = probe.leaky("never answers a stop", scenes=("mid-stream",), times=1)
    row = said.row("mid-stream")
    assert (said.code, row["leaked"], row["ack_ms"], row["terminals"]) == (1, 1, None, [0])
    assert row["trouble"] == {"the stop was not answered within 0.5 s": 1}
    assert row["silence_ms"]["max"] > 0


def test_a_stop_that_is_refused_is_told(probe: Probe) -> None:
    """A refused stop is told in the gateway's own words."""
    row = probe.leaky("refuses stops", scenes=("mid-stream",), times=1).row("mid-stream")
    assert (row["leaked"], row["trouble"]) == (1, {"the stop was refused: not allowed to stop": 1})


def test_a_stop_that_was_too_early_for_the_gateway_is_a_leak(probe: Probe) -> None:
    """A stop right after its message that finds nothing is a leak: it leaves a run that nobody wants."""
    said = probe.leaky("registers late", scenes=("mid-stream", "ack-gap"))
    row = said.row("ack-gap")
    assert (said.code, row["tried"], row["leaked"], row["terminals"]) == (1, 2, 2, [0])
    assert {"agent lifecycle", "chat delta"} <= set(row["events_after_ack"])
    assert row["words"] == [{"chat.abort": "nothing aborted", "agent.wait": "pending"}]
    assert row["trouble"] == {"the stop was told that there was nothing to stop": 2}
    assert good(said.row("mid-stream"))


def test_nonsense_beside_it_changes_nothing(probe: Probe) -> None:
    """Frames outside the protocol are ignored, and the run is judged as without them."""
    said = probe.leaky("talks nonsense beside it", scenes=("mid-stream",), times=1)
    assert said.code == 0 and good(said.row("mid-stream"))


# Scenes that cannot be tried


@pytest.mark.parametrize(
    ("fault", "scene", "words"),
    [
        ("says nothing", "mid-stream", "within 0.5 s nothing was said; give a --say"),
        ("says nothing", "mid-tool", "within 0.5 s no tool began; give a --tool-say"),
        ("ends by itself", "mid-stream", "the run ended by itself before it could be stopped; give a --say"),
        ("ends as the stop comes", "mid-stream", "the run ended by itself before it could be stopped; give a --say"),
        ("ends by itself", "interrupt", "the run ended by itself before it could be stopped; give a --say"),
        ("ends by itself", "timeout", "the run ended by itself before its limit of 1 s; give a --say"),
        ("knows no interrupt", "interrupt", "chat.send was refused: queueMode interrupt is not known"),
    ],
)
def test_what_was_not_reached_was_not_tried(probe: Probe, fault: str, scene: str, words: str) -> None:
    """A scene that was not tried is never told as good but with the reason; a probe without any try exits with 2."""
    said = probe.leaky(fault, scenes=(scene,), more=("--patience", "500ms"), times=1)
    row = said.row(scene)
    (why,) = row["not_tried"]
    assert (said.code, row["tried"], row["leaked"], row["terminals"], row["ack_ms"]) == (2, 0, 0, [], None)
    assert why.startswith(words)


def test_a_scene_that_was_not_tried_spoils_no_other(probe: Probe) -> None:
    """A scene that cannot be tried does not change the others, and the table says that it is missing."""
    with Leaky() as gateway:
        said = probe(gateway.url, *QUICK, "--tool-say", "talk", "--times", "1", "--patience", "500ms",
                     "--scene", "mid-tool", "--scene", "mid-stream")  # fmt: skip
    assert said.code == 0
    assert "Nothing leaked (1 try of 1 scene; 1 not tried)." in said.out
    assert "– stop while a tool runs: not tried 1x: within 0.5 s no tool began" in said.out


# The table


def test_the_table_says_what_leaked(probe: Probe) -> None:
    """The table has a line for each fault, in words that need no knowledge of this project."""
    faults = ("streams on after the ack", "tells two endings", "a wait says ok")
    with Leaky(*faults) as gateway:
        said = probe(gateway.url, *QUICK, "--times", "2", "--scene", "mid-stream")
    assert said.code == 1
    told = [line for line in said.out.splitlines() if line.startswith("✗")]
    assert re.fullmatch(
        r"✗ stop while it speaks: 12 events after the ack \(6 agent assistant, 6 chat delta\), "
        r"the last [\d.,]+ ms after it",
        told[0],
    )
    assert told[1:] == [
        "✗ stop while it speaks: one run was told to have ended 2 times",
        "✗ stop while it speaks: words disagree (2 of 2): chat.abort: aborted; "
        "chat: aborted rpc, then aborted rpc; agent: end cancelled; agent.wait: ok",
    ]
    assert said.out.splitlines()[-1] == "Leaked in 1 of 1 scene (2 tries of 1 scene)."


# Our own server


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The demo agent, served by `interlock serve`."""
    with served("interlock.demo:agent", tmp_path_factory.mktemp("probe") / "data") as server:
        yield server


@pytest.fixture
def at_demo(demo: Served, probe: Probe, monkeypatch: pytest.MonkeyPatch) -> Probe:
    """A probe that finds the demo's token by its directory."""
    monkeypatch.delenv("INTERLOCK_TOKEN")
    monkeypatch.setenv("INTERLOCK_DATA", str(demo.data))
    return probe


def test_our_own_server_leaks_nothing(demo: Served, at_demo: Probe) -> None:
    """Every scene is tried with the probe's own texts, and none leaks."""
    said = at_demo(demo.url, "--times", "1", "--listen", "1s", "--json")
    assert said.code == 0, said.out
    for row in said.report["scenes"]:
        assert row["tried"] == 1 and good(row), row
    assert said.row("takeover")["courses"] == {TOOK_OVER: 1}
    stopped = {"chat.abort": "aborted", "chat": "aborted rpc", "agent": "end cancelled", "agent.wait": "error rpc"}
    assert said.row("mid-stream")["words"] == said.row("ack-gap")["words"] == [stopped]
    assert said.row("agent")["words"] == [stopped | {"agent's answer": "error rpc"}]


def test_the_page_shows_what_our_own_server_does(demo: Served, at_demo: Probe) -> None:
    """The first command in docs/probe.md, with shorter waits, prints what the page shows, figures and address apart."""
    words, shown = _shown(0)
    said = at_demo(demo.url, *words, "--times", "2", "--listen", "300ms", "--limit", "1")
    assert said.code == 0
    assert _bare(said.err + said.out) == _bare(shown)


def test_the_page_shows_what_a_gateway_that_leaks_does(probe: Probe) -> None:
    """The second command in docs/probe.md prints what the page shows, figures and address apart."""
    words, shown = _shown(1)
    faults = ("streams on after the ack", "tells two endings", "a wait says ok", "queues by default", "registers late")
    with Leaky(*faults) as gateway:
        said = probe(gateway.url, *words[1:], "--times", "2")
    assert said.code == 1
    assert _bare(said.err + said.out) == _bare(shown)


def _shown(number: int) -> tuple[list[str], str]:
    """Return a command of the page, and the output below it."""
    found = re.findall(r"```console\n\$ interlock probe ([^\n]*)\n(.*?)\n```", PAGE.read_text("utf-8"), re.DOTALL)
    return found[number][0].split(), found[number][1]


def _bare(text: str) -> list[str]:
    """Return the text's words, without figures and lines of a table."""
    text = re.sub(r"http://[\w.:]+|probe-[0-9a-f]+|\(server [^)]*\)", "", text)
    return re.findall(r"[^\s\d.,│┃┡┩┏┓┗┛└┘├┤┬┴┼━─╇╈┳]+", text)


def add(server: Served, name: str, scope: str) -> str:
    """Make a principal; return its token."""

    async def adding() -> str:
        async with connect(server.ready["url"], server.token) as operator:
            return (await operator.add_token(name, [scope])).token

    return asyncio.run(adding())


def test_a_token_that_only_reads_is_refused_in_a_line(
    demo: Served, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token that may only read is refused in one line; a token that may write is enough."""
    monkeypatch.setenv("INTERLOCK_TOKEN", add(demo, "reader", "read"))
    said = probe(demo.url, "--scene", "ack-gap", "--times", "1")
    assert (said.code, said.out, len(said.err.splitlines())) == (2, "", 1)
    assert "this token may not send messages (it has operator.read); set INTERLOCK_TOKEN to one that may" in said.err
    monkeypatch.setenv("INTERLOCK_TOKEN", add(demo, "approver", "approve"))
    said = probe(demo.url, "--scene", "ack-gap", "--times", "1")
    assert (said.code, said.out, len(said.err.splitlines())) == (2, "", 1)
    monkeypatch.setenv("INTERLOCK_TOKEN", add(demo, "writer", "write"))
    said = probe(demo.url, "--scene", "ack-gap", "--times", "1", "--listen", "200ms", "--json")
    assert said.code == 0 and good(said.row("ack-gap"))
    monkeypatch.setenv("INTERLOCK_TOKEN", "wrong-token")
    said = probe(demo.url)
    assert (said.code, len(said.err.splitlines())) == (2, 1)
    assert "the gateway does not know this token; unset or change INTERLOCK_TOKEN" in said.err
    assert "wrong-token" not in said.err


def hears_ctrl_c() -> None:
    """Reset SIGINT to its default: a shell that runs tests in the background ignores it, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_probe_stops_what_it_started(number: signal.Signals, status: int) -> None:
    """A signal in the middle stops the session; the error output ends with a line about it, and no table is printed."""
    with Leaky() as gateway:
        with subprocess.Popen(
            [sys.executable, "-m", "interlock.cli", "probe", gateway.url, "--say", "talk", "--scene", "timeout",
             "--limit", "600"],
            env={**os.environ, "INTERLOCK_TOKEN": "a-token"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=hears_ctrl_c,
        ) as process:  # fmt: skip
            try:
                until(lambda: bool(gateway.sessions()))
                process.send_signal(number)
                out, err = process.communicate(timeout=BOUND_SECONDS)
            finally:
                process.kill()
        assert (process.returncode, out) == (status, "")
        assert err.endswith("; what was started is stopped\n") and "Traceback" not in err
        assert gateway.stops() == [{"sessionKey": each} for each in gateway.sessions()]


@pytest.mark.parametrize("streams", ["2>/dev/null", "--json 2>/dev/null", "2>&1"])
def test_a_reader_that_is_gone_is_not_told_as_a_leak(streams: str) -> None:
    """A probe whose output nobody reads exits as SIGPIPE ends a program, and stops its runs."""
    with Leaky() as gateway:
        line = (
            f'"$0" -m interlock.cli probe "$1" --say talk --scene mid-stream --times 1 --listen 50ms {streams} | true'
        )
        done = subprocess.run(
            ["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}", sys.executable, gateway.url],
            env={**os.environ, "INTERLOCK_TOKEN": "a-token"},
            capture_output=True, text=True, timeout=BOUND_SECONDS, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout, done.stderr) == (141, "", "")
        assert {each["sessionKey"] for each in gateway.stops()} == set(gateway.sessions())


# Other servers


class NoGateway(BaseHTTPRequestHandler):
    """A web server that is no gateway."""

    def do_GET(self) -> None:
        """Answer with a page."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def web() -> Iterator[str]:
    """A web server that is no gateway."""
    server = HTTPServer(("127.0.0.1", 0), NoGateway)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def refused(said: Said, words: str) -> None:
    """Assert that a probe could not begin: exit code 2 and one line that says what to do."""
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1), said.err
    assert said.err.startswith("interlock: ") and words in said.err and "Traceback" not in said.err, said.err


def test_a_web_server_is_no_gateway(probe: Probe, web: str) -> None:
    """A web server that is no gateway is told as such."""
    refused(probe(web), f"{web}: what answers is no gateway; check the URL")


def test_a_closed_port_is_told(probe: Probe) -> None:
    """A closed port is told, with the command that would start a server."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        refused(probe(url), f"{url}: nobody listens there; start `interlock serve`, or name its URL")


def test_a_name_that_leads_nowhere_is_told(probe: Probe) -> None:
    """A host that cannot be found is told in one line."""
    refused(probe("http://no-such-host.invalid"), "check the URL")


def test_a_server_that_never_answers_is_given_up(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that never answers is given up after a bound, which the line names."""
    monkeypatch.setattr(connection, "OPEN_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        refused(probe(f"http://127.0.0.1:{silent.getsockname()[1]}"), "no answer within 0.3 s; check the URL")


@pytest.mark.parametrize("garbage", ["this is no JSON", '["neither", "this"]', b"\x00\xff", '{"type": 7}'])
def test_a_socket_that_speaks_garbage_is_told(probe: Probe, garbage: str | bytes) -> None:
    """A WebSocket that does not speak the protocol is told as such."""

    def speak(peer: ServerConnection) -> None:
        peer.send(garbage)
        peer.send(garbage)
        for _ in peer:
            pass

    with serve(speak, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        refused(probe(url), "no gateway could be talked to (")
        server.shutdown()
        thread.join()


def test_another_version_is_told(probe: Probe) -> None:
    """A gateway that answers with another version than requested is not probed."""
    with Leaky("speaks another version") as gateway:
        refused(probe(gateway.url), "the gateway speaks protocol 3, and a probe only 4")


def test_a_gateway_that_wants_a_device_key_is_told(probe: Probe) -> None:
    """A gateway that wants a device key is told in one line: a probe has only a token."""
    with Leaky("wants a device key") as gateway:
        refused(
            probe(gateway.url), f"{gateway.url}: pairing required: it asks for a device key, and there is none here"
        )


def test_a_gateway_that_lets_in_and_grants_nothing_is_told(probe: Probe) -> None:
    """A token without scopes is refused before the probe announces or sends anything."""
    with Leaky("grants nothing") as gateway:
        said = probe(gateway.url, *QUICK)
    assert (said.code, said.out, len(said.err.splitlines())) == (2, "", 1)
    assert "this token may not send messages (it has no scope); set INTERLOCK_TOKEN to" in said.err


def test_a_connection_that_is_lost_ends_the_probe(probe: Probe) -> None:
    """A lost connection prints the findings so far and a line with the reason, and exits with 2."""
    with Leaky("hangs up at a stop") as gateway:
        said = probe(gateway.url, *QUICK, "--scene", "mid-stream", "--times", "1")
        assert (said.code, said.out) == (2, "") and "the connection was lost: received 1011" in said.err
        assert f"what runs in session {gateway.sessions().pop()} could not be stopped; stop it there" in said.err
        said = probe(gateway.url, *QUICK, "--scene", "timeout", "--scene", "agent-timeout", "--times", "1")
    assert (said.code, said.out.splitlines()[-1]) == (2, "Nothing leaked (1 try of 1 scene; 1 not tried).")
    assert "the connection was lost" in said.err.splitlines()[-1] and "Traceback" not in said.err


def test_a_session_is_stopped_though_its_connection_was_lost(probe: Probe) -> None:
    """A second connection stops the run that the lost connection left."""
    with Leaky("hangs up at the first stop") as gateway:
        said = probe(gateway.url, *QUICK, "--scene", "mid-stream", "--times", "1")
    assert said.code == 2 and "the connection was lost" in said.err and "could not be stopped" not in said.err
    (session,) = gateway.sessions()
    assert gateway.stops()[-1] == {"sessionKey": session}
    assert [frame["method"] for frame in gateway.asked][-2:] == ["connect", "chat.abort"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--times", "0"), "--times: '0' will not do; write a whole number from 1 to 1,000"),
        (("--times", "many"), "--times: 'many' will not do"),
        (("--times", "-1"), "--times: '-1' will not do"),
        (("--times", "9" * 40), "--times:"),
        (("--listen", "0"), "--listen: '0' is out of bounds; write more than 0"),
        (("--listen", "soon"), "--listen: 'soon' is no time; write 90, 1.5s"),
        (("--patience", "2h"), "--patience: '2h' is out of bounds"),
        (("--limit", "1.5"), "--limit: '1.5' will not do; write a whole number"),
        (("--say", " "), "--say: say something"),
        (("--scene", "mid-stram"), "--scene: there is no 'mid-stram'; write one of mid-stream, mid-tool"),
    ],
)
def test_bad_numbers_are_told_before_anything_is_sent(probe: Probe, words: tuple[str, ...], told: str) -> None:
    """A bad value is refused in one line that names the flag, before any request."""
    with Leaky() as gateway:
        refused(probe(gateway.url, *words), told)
    assert gateway.asked == []


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("gateway", "this is no URL of a gateway; write http://127.0.0.1:8719"),
        ("ftp://127.0.0.1", "this is no URL of a gateway"),
        ("http://127.0.0.1:8719/?token=secret", "a gateway's URL holds no user, token or query"),
        ("http://me:secret@127.0.0.1:8719", "a gateway's URL holds no user, token or query"),
        ("http://127.0.0.1:8719/#token=secret", "a gateway's URL holds no user, token or query"),
    ],
)
def test_a_bad_url_is_told_without_what_may_be_secret(probe: Probe, url: str, told: str) -> None:
    """A token in a URL is refused, and the error does not repeat it."""
    said = probe(url)
    refused(said, told)
    assert "secret" not in said.err


def test_this_machines_token_stays_on_this_machine(
    probe: Probe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A remote gateway never gets this machine's token, only one that the caller or a named directory gives."""
    monkeypatch.delenv("INTERLOCK_TOKEN")
    monkeypatch.delenv("INTERLOCK_DATA", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    refused(probe("https://gateway.invalid"), "no token for https://gateway.invalid: set INTERLOCK_TOKEN to one of its")
    refused(probe("http://127.0.0.1:1"), f"no token in {tmp_path}/interlock/token")
    (tmp_path / "token").write_text("a-token")
    refused(probe("https://gateway.invalid", "--data", str(tmp_path)), "check the URL")


def test_a_wrong_flag_exits_as_the_rest_does() -> None:
    """An unknown flag exits with 2, in one line."""
    done = subprocess.run(
        [sys.executable, "-m", "interlock.cli", "probe", "--tiems", "3"],
        capture_output=True, text=True, timeout=BOUND_SECONDS, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "interlock probe --help tells more" in done.stderr


# Words and figures


def test_the_published_words_of_an_ending_agree_with_each_other() -> None:
    """The words in every row of the projection table, read back, mean the row's ending on every surface."""
    for ending, row in TABLE.items():
        chat, life, wait = row.chat, row.lifecycle, row.wait
        kinds = (
            of_chat({"state": chat.state, "stopReason": chat.stop_reason, "errorKind": chat.error_kind})[1]
            & of_lifecycle({"phase": life.phase, "status": life.status})[1]
            & of_wait({"status": wait.status, "stopReason": wait.stop_reason, "endedAt": 1})[1]
        )
        assert kinds == {KIND_OF[ending]}, ending


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        (of_chat({"state": "aborted"}), {Kind.STOPPED}),
        (of_chat({"state": "aborted", "stopReason": "timeout"}), {Kind.TIMEOUT}),
        (of_chat({"state": "error", "errorMessage": "oops"}), {Kind.FAILED, Kind.TIMEOUT}),
        (of_lifecycle({"phase": "end", "aborted": True}), {Kind.STOPPED}),
        (of_lifecycle({"phase": "end", "stopReason": "stop"}), {Kind.COMPLETED, Kind.STOPPED}),
        (of_wait({"status": "ok", "stopReason": "end_turn"}), {Kind.COMPLETED}),
        (of_wait({"status": "error", "stopReason": "aborted"}), {Kind.STOPPED}),
        (of_wait({"status": "error"}), {Kind.FAILED}),
        (of_wait({"status": "timeout", "stopReason": "rpc"}), {Kind.TIMEOUT}),
        (of_wait({"status": "timeout"}), {Kind.TIMEOUT, Kind.RUNNING}),
        (of_wait({"status": "pending"}), {Kind.RUNNING}),
        (of_wait({"status": "unknown"}), set()),
        (of_wait({"status": ["?"]}), set()),
        (of_abort({"aborted": True}), {Kind.STOPPED}),
        (of_abort({}), set(Kind) - {Kind.STOPPED}),
    ],
)
def test_other_peoples_words_are_taken_for_what_they_say(words: tuple[str, frozenset[Kind]], kinds: set[Kind]) -> None:
    """A word with two meanings agrees with both kinds; an unknown word agrees with all."""
    assert words[1] == kinds


def test_figures_are_those_of_the_tries() -> None:
    """p50 is the middle figure, the lower of two; tries that were not made do not count."""
    takes = [Take(ack_ms=float(ms), silence_ms=ms * 2.0, terminals=1) for ms in (4, 1, 3, 2)]
    row = row_of("mid-stream", "", [*takes, Take(not_tried="asleep")])
    assert (row.tried, row.not_tried, row.leaked) == (4, {"asleep": 1}, 0)
    assert row.ack_ms is not None and (row.ack_ms.p50, row.ack_ms.max) == (2.0, 4.0)
    assert row.silence_ms is not None and (row.silence_ms.p50, row.silence_ms.max) == (4.0, 8.0)
