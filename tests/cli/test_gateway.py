"""The shell's verbs against a real server: their output and exit codes."""

import json
import os
import signal
import subprocess
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from client.scene import BOUND_SECONDS, Served, play, until
from interlock.access.changes import Changes
from interlock.access.tokens import Access
from interlock.cli.app import command_line
from interlock.client import connect
from interlock.core.errors import Unavailable
from interlock.core.scopes import Scope

YES = "yes"


class Said(NamedTuple):
    """The output of a command, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Return the JSON document."""
        return json.loads(self.out)


class Shell:
    """The `interlock` command in this process, with a server's address in its environment."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> Said:
        """Run a command."""
        self._capsys.readouterr()
        code = command_line(words[0])(list(words), prog_name="interlock", standalone_mode=False)
        out, err = self._capsys.readouterr()
        return Said(code if isinstance(code, int) else 0, out, err)


@pytest.fixture
def shell(served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell whose environment names the server."""
    monkeypatch.setenv("INTERLOCK_URL", served.url)
    monkeypatch.setenv("INTERLOCK_DATA", str(served.data))
    monkeypatch.delenv("INTERLOCK_TOKEN", raising=False)
    return Shell(capsys)


# Messages that stop


@pytest.mark.parametrize("strategy", [None, "queue", "steer", "collect", "reject", "rollback"])
def test_what_is_typed_in_a_hurry_stops(shell: Shell, strategy: str | None) -> None:
    """A stop word stops the session under every strategy; `--literal` sends it as a message."""
    name, more = f"hurry-{strategy}", () if strategy is None else ("--strategy", strategy)
    for text in ("Do not do that", "Stop don't do anything", "STOP INTERLOCK"):
        run = shell("send", "--session", name, "hang").out.strip()
        stopped = shell("send", "--session", name, "--json", *more, text)
        assert (stopped.code, stopped.json["aborted"], stopped.json["runs"][0]["id"]) == (0, True, run)
        assert shell("wait", run).code == 130
    again = shell("send", "--session", name, "--json", "stop")
    assert (again.code, again.json["aborted"]) == (0, False)
    said = shell("send", "--session", name, "--literal", "stop")
    assert said.code == 0 and said.out.startswith("r-")


# Sending and endings


def test_send_prints_the_runs_id(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """`send` prints the run id alone, so that a script can use it; the text may come from the input."""
    sent = shell("send", "--session", "ids", "hello", "there")
    assert sent.code == 0 and sent.out.startswith("r-") and sent.err == ""
    done = shell("wait", sent.out.strip())
    assert done == Said(0, "completed\n", "")
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(b"from the input")))
    read = shell("send", "--json", "--session", "ids", "--strategy", "queue", "-")
    assert (read.json["session"], read.json["owner"]) == ("operator/ids", "operator")
    assert shell("wait", "--json", read.json["run_id"]).json["text"] == "from the input"


def test_watching_prints_the_reply_and_notes_apart(shell: Shell, served: Served) -> None:
    """The output is the reply alone; tools and progress are lines of the error output."""
    with subprocess.Popen(
        [sys.executable, "-m", "interlock.cli", "send", "--watch", "--session", "tools", "work", "words"],
        env={**os.environ, "INTERLOCK_URL": served.url, "INTERLOCK_DATA": str(served.data)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        notes = [process.stderr.readline()]
        # A watch is told only the progress after its beginning, so read on until it comes.
        while notes[-1] and "· half 1/2\n" not in notes:
            notes.append(process.stderr.readline())
        assert shell("send", "--session", "tools", "--strategy", "steer", "go on").code == 0
        out, err = process.communicate(timeout=BOUND_SECONDS)
    assert process.returncode == 0 and out == "found words\n"
    assert notes[0].startswith("· run r-") and "· half 1/2\n" in notes and "· tool look_up finished" in err.splitlines()
    assert shell("send", "--watch", "--session", "tools", "count", "3").out == "0 1 2 \n"


def test_each_ending_has_its_exit_code(shell: Shell) -> None:
    """Each ending exits with its code (surfaces.md, section 1, last column); a live run has another code."""
    failed = shell("send", "--watch", "--session", "codes", "fail")
    assert failed.code == 1 and "the kettle is empty" in failed.err
    for limit in ("200 ms", "3 s", "20 s"):  # the run needs to say its first word within one of these limits
        late = shell("send", "--watch", "--session", "codes", "--deadline", limit.replace(" ", ""), "hang")
        assert late.code == 124 and f"timed out after {limit}" in late.err
        if late.out:
            break
    assert late.out == "begun\n"
    first = shell("send", "--session", "codes", "hang").out.strip()
    pending = shell("wait", first, "--timeout", "50ms")
    assert pending == Said(75, "still running\n", "")
    second = shell("send", "--session", "codes", "hang").out.strip()
    assert shell("wait", first) == Said(130, f"superseded by {second}\n", "")
    stopped = shell("stop", "--session", "codes", "--wait")
    assert stopped.code == 0 and f"{second} stopped by operator; drained after" in stopped.out
    assert shell("watch", second).code == 130
    assert (nobody := shell("wait", "r-0-0"))[:2] == (125, "") and "no run or key 'r-0-0'" in nobody.err


def test_stop_by_run_and_by_key(shell: Shell) -> None:
    """`stop` takes a run's id or key; for an ended run it says how that ended."""
    run = shell("send", "--session", "keys", "--key", "my-key", "spawn").out.strip()
    stopped = shell("stop", "my-key", "--wait", "--json")
    assert stopped.json["runs"][0]["id"] == run and stopped.json["drain"] == "observed" and stopped.json["aborted"]
    again = shell("stop", run)
    assert again.code == 0 and "it had ended already, stopped" in again.out
    assert shell("stop", "--session", "nobody was here") == Said(0, "nothing to stop\n", "")
    both = shell("stop", run, "--session", "keys")
    assert both.code == 125 and "name one thing" in both.err
    receipt = shell("receipt", stopped.json["id"])
    assert receipt.code == 0 and receipt.out.startswith(stopped.json["id"]) and run in receipt.out
    assert shell("receipt", run, "--json").json["id"] == stopped.json["id"]
    assert shell("receipt", "my-key", "--json").json["id"] == stopped.json["id"]


def test_questions_are_listed_and_answered(shell: Shell) -> None:
    """A question without choices takes yes and no; a question with choices takes those."""
    for word, answer, reply in (
        ("ask", YES, "answered True"),
        ("choose", YES, "chosen yes"),
        ("ask", "no", "answered False"),
    ):
        run = shell("send", "--session", "questions", word).out.strip()
        found: list[Any] = []
        for _ in range(500):
            found = shell("questions", "--session", "questions", "--json").json["questions"]
            if found:
                break
        listed = shell("questions", "--session", "questions")
        assert found[0]["id"] in listed.out and ("(red|yes)" if word == "choose" else "(yes|no)") in listed.out
        assert shell("answer", found[0]["id"], answer) == Said(0, f"answered: {answer}\n", "")
        assert shell("wait", run, "--json").json["text"] == reply
    closed = shell("answer", found[0]["id"], YES)
    assert closed.code == 125 and closed.err.startswith("interlock: ")


def test_an_end_is_told_with_what_it_closes(shell: Shell) -> None:
    """A question that goes void with its run is told before the run's end, so that nobody is left with an open one."""
    run = shell("send", "--session", "closed", "ask").out.strip()
    question = ""
    while not question:  # until the run has asked
        question = shell("questions", "--session", "closed").out.partition(" ")[0]
    assert shell("stop", run).code == 0
    lines = shell("watch", run).err.splitlines()
    assert lines[-2:] == [f"· question {question} void", f"· {run} stopped by operator"]


def test_a_terminal_obeys_nothing_that_a_run_says(shell: Shell) -> None:
    """Control characters of a reply are replaced, so that a terminal obeys none; its newlines stay."""
    said = shell("send", "--watch", "--session", "paint", "paint")
    assert said.code == 0 and said.out == "\ufffd[31mred\ufffd[0m\ufffd\n\nsecond\ufffd part\n"
    followed = shell(
        "watch",
        json.loads(shell("runs", "--url", os.environ["INTERLOCK_URL"], "--session", "paint", "--json").out)["runs"][0][
            "id"
        ],
        "--json",
    )
    kinds = [json.loads(line)["data"]["type"] for line in followed.out.splitlines()]
    assert kinds[0] == "message" and kinds[-1] == "ended" and "\x1b" not in followed.out


def test_runs_and_show_over_the_gateway(shell: Shell, served: Served, tmp_path: Path) -> None:
    """`runs` and `show` print the same words from a gateway as from a store."""
    run = shell("send", "--session", "listed", "hello").out.strip()
    shell("wait", run, "--drained")
    listed = shell("runs", "--url", served.url, "--session", "listed", "--json").json
    assert [(each["id"], each["state"], each["started"]) for each in listed["runs"]] == [(run, "ended", True)]
    shown = shell("show", run, "--url", served.url)
    assert shown.code == 0 and "reply     hello" in shown.out and "drain observed" in shown.out
    asked = shell("show", run, "--url", served.url, "--json").json["timeline"]
    for _ in range(500):  # the store learns of the drain a moment later
        if (kept := shell("show", run, "--json").json["timeline"]) == asked:
            break
    assert kept == asked
    told = shell("timeline", run)
    assert "started" in told.out and "ended completed" in told.out
    assert shell("timeline", run, "--json").json["moments"][-1]["what"] == "drained"
    assert shell("timeline", run, "-o", str(tmp_path / "run.svg")).code == 0
    assert (tmp_path / "run.svg").read_text("utf-8").startswith("<svg")


def test_trouble_is_told_in_a_line(
    shell: Shell, served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No server, no token, a wrong token and a wrong time each exit with 125 and say what to do."""
    assert shell("wait", "r-1-1", "--url", "http://127.0.0.1:9").err.endswith(
        "start `interlock serve`, or name its URL\n"
    )
    assert shell("questions", "--data", str(tmp_path)).code == 125
    assert "no time" in shell("send", "--deadline", "soon", "hello").err
    monkeypatch.setenv("INTERLOCK_TOKEN", "planted-token")
    wrong = shell("questions")
    assert wrong.code == 125 and "planted" not in wrong.err
    assert "does not know this token; unset or change INTERLOCK_TOKEN" in wrong.err
    monkeypatch.setenv("INTERLOCK_TOKEN", served.add("reader", "read"))
    told = shell("send", "hello").err
    assert "`interlock token add NAME --scope write` makes one" in told and "interlock.chat" not in told
    monkeypatch.delenv("INTERLOCK_TOKEN")
    for verb in ("wait", "watch", "receipt", "timeline"):
        nowhere, nothing = shell(verb, "nope"), shell(verb, "")
        assert (nowhere.code, nowhere.out, nothing.code, nothing.out) == (125, "", 125, "")
        assert "'nope'" in nowhere.err and "run" in nowhere.err
        assert "name the run, by its id or its key" in nothing.err
    assert "if it is a session, write --session" in shell("watch", "main").err
    assert shell("wait", "nope", "--json").json["ending"] == "unknown"
    assert shell("stop", "--session", "").code == 125, "an empty name is not the main session"


def test_a_reader_that_is_gone_is_not_told_as_a_failed_run(served: Served) -> None:
    """A verb whose output nobody reads exits as SIGPIPE ends a program: exit code 1 would mean a failed run."""
    done = subprocess.run(
        ["bash", "-c", '"$0" -m interlock.cli questions --json | true; exit ${PIPESTATUS[0]}', sys.executable],
        env={**os.environ, "INTERLOCK_URL": served.url, "INTERLOCK_DATA": str(served.data)},
        capture_output=True, text=True, timeout=BOUND_SECONDS, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (141, "", "")


# Ctrl-C


def test_a_session_is_followed_until_one_leaves(served: Served, shell: Shell) -> None:
    """`watch` prints a session's events as lines; leaving it stops nothing."""
    run = shell("send", "--session", "followed", "hang").out.strip()
    process = subprocess.Popen(
        [sys.executable, "-m", "interlock.cli", "watch", "--session", "followed", "--json"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    kinds = [json.loads(process.stdout.readline())["data"]["type"] for _ in range(3)]
    assert kinds == ["message", "started", "delta"]
    process.send_signal(signal.SIGINT)
    assert process.wait(BOUND_SECONDS) == 130
    process.stdout.close()
    assert shell("wait", run, "--timeout", "0").code == 75
    assert shell("stop", run).code == 0


def test_ctrl_c_stops_the_run_and_tells_the_receipt(served: Served) -> None:
    """The first Ctrl-C stops the run; the exit code is the ending's."""
    following = _follow(served, "ctrl-c", "hang")
    following.send_signal(signal.SIGINT)
    out, err = following.communicate(timeout=BOUND_SECONDS)
    assert following.returncode == 130, err
    assert out == "begun\n" and "stopping; again to leave at once" in err and "stopped by operator" in err
    assert "f-" in err


def test_a_second_ctrl_c_leaves_at_once(served: Served, tmp_path: Path) -> None:
    """The second Ctrl-C leaves at once, even if the server does not answer."""
    server = Served(tmp_path / "data")
    try:
        following = _follow(server, "twice", "hang")
        server.send(signal.SIGSTOP)
        following.send_signal(signal.SIGINT)
        assert following.stderr is not None
        while "stopping" not in following.stderr.readline():
            assert following.poll() is None
        following.send_signal(signal.SIGINT)
        assert following.wait(BOUND_SECONDS) == 130
        following.communicate()
    finally:
        server.send(signal.SIGCONT)
        server.end()


def _follow(server: Served, session: str, text: str) -> "subprocess.Popen[str]":
    """Start `send --watch` and return when its reply has begun."""
    process = subprocess.Popen(
        [sys.executable, "-m", "interlock.cli", "send", "--watch", "--session", session, text],
        env={**os.environ, "INTERLOCK_URL": server.url, "INTERLOCK_DATA": str(server.data)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("· run ")

    async def begun() -> None:
        async with connect(server.url, data=server.data) as client:
            await until(lambda: _said(client, session))

    play(begun())
    return process


async def _said(client: Any, session: str) -> bool:
    (run,) = await client.runs(session)
    async for event in client.watch(run=run.id):
        if event.kind == "delta":
            return True
    return False


# Owners of sessions


def test_two_peoples_main_are_two_sessions(shell: Shell, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default session is the caller's own; another's is found under its owner's name once shared, not before."""
    mine = shell("send", "--json", "my salary is 4711").json
    assert (mine["session"], mine["owner"]) == ("operator/main", "operator")
    assert shell("wait", mine["run_id"]).code == 0
    monkeypatch.setenv("INTERLOCK_TOKEN", served.add("second", "write"))
    theirs = shell("send", "--json", "what did we talk about?").json
    assert (theirs["session"], theirs["owner"]) == ("second/main", "second")
    unknown = shell("send", "--session", "operator/main", "hello")
    nothing = shell("send", "--session", "operator/none", "hello")
    assert (unknown.code, unknown.out) == (125, "") and "no session" in unknown.err
    assert unknown.err.replace("operator/main", "X") == nothing.err.replace("operator/none", "X")
    monkeypatch.delenv("INTERLOCK_TOKEN")
    given = shell("share", "main", "--with", "second", "--read")
    assert given == Said(0, "operator/main of operator: second may read\n", "")
    assert shell("share", "main", "--with", "second", "--json").json["shares"] == {"second": "write"}
    refused = shell("share", "main", "--with", "operator")
    assert refused.code == 125 and "name somebody else" in refused.err
    listed = shell("sessions", "--data", str(served.data))
    (line,) = [line.split() for line in listed.out.splitlines() if line.startswith("operator/main ")]
    assert line[1:4] == ["operator", "second", "(write)"]
    taken = shell("unshare", "operator/main", "--with", "second")
    assert taken == Said(0, "operator/main of operator: shared with nobody\n", "")
    gone = shell("share", "nothing-here", "--with", "second")
    assert gone.code == 125 and "no session 'operator/nothing-here'" in gone.err


def test_a_removed_principals_runs_go_on_or_are_stopped(shell: Shell, served: Served, tmp_path: Path) -> None:
    """`token remove` says that runs go on; with --stop each has its receipt, even if the token is gone already."""
    token = served.add("leaver", "write")

    async def begin() -> str:
        async with connect(served.url, token) as client:
            return (await client.send("main", "hang")).run_id

    run = play(begin())
    said = shell("token", "remove", "leaver")
    assert said.out == "" and "`interlock token remove leaver --stop` ends it" in said.err
    assert shell("wait", "--timeout", "0", run).code == 75
    stopped = shell("token", "remove", "leaver", "--stop")
    assert stopped.code == 0 and run in stopped.out and "stopped by operator" in stopped.out
    assert shell("wait", run).out == "stopped by operator\n"
    assert "nothing of leaver ran" in shell("token", "remove", "leaver", "--stop").err


def test_nothing_runs_where_nobody_serves(shell: Shell, tmp_path: Path) -> None:
    """`token remove --stop` in a directory without a server removes the token and says that nothing runs."""
    access = Access(tmp_path / "idle")
    access.open()
    play(Changes(access).add_token("leaver", [Scope.WRITE]))
    access.close()
    said = shell("token", "remove", "leaver", "--stop", "--data", str(access.directory), "--url", "http://127.0.0.1:9")
    assert said.code == 0 and f"no server has {access.directory}: nothing of leaver runs" in said.err
    access.open()
    assert [each.name for each in access.listing()] == ["operator"]
    access.close()


def test_a_server_that_is_not_reached_is_not_taken_for_none(shell: Shell, served: Served) -> None:
    """A server that has the directory but does not answer at the URL is told: nothing was removed or stopped."""
    served.add("leaver2", "write")
    with pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:9: nobody listens there"):
        shell("token", "remove", "leaver2", "--stop", "--url", "http://127.0.0.1:9")
    assert "leaver2" in shell("token", "list").out
