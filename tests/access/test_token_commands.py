"""The commands of `interlock token`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from interlock.access.rows import InUse
from interlock.cli import asking, tokens
from interlock.cli.app import command_line
from interlock.core.errors import InterlockError, Unavailable
from surfaces.raw import house

from .scene import WRITE, interlock, mode, opened, operator_token


def called(*arguments: str, data: Path) -> None:
    """Call `interlock token` in this process."""
    command_line("token")(["token", *arguments, "--data", str(data)], standalone_mode=False)


def test_the_command_makes_lists_and_takes_away(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`token add` prints the token alone on the output, once, and the hint on the error output; --json one document."""
    added = interlock("add", "bob", "--scope", "approve, write", "--scope", "read", data=data)
    token = added.stdout.removesuffix("\n")
    assert len(token) == 43
    assert "bob (write, approve, read)" in added.stderr
    assert token not in added.stderr
    with opened(data):
        pass
    called("list", "--json", data=data)
    listed = capsys.readouterr().out
    assert [(each["name"], each["scopes"]) for each in json.loads(listed)["principals"]] == [
        ("operator", ["admin"]), ("bob", ["write", "approve", "read"])
    ]  # fmt: skip
    assert token not in listed
    called("remove", "bob", data=data)
    assert "what bob runs goes on: `interlock token remove bob --stop` ends it" in capsys.readouterr().err
    called("list", data=data)
    assert capsys.readouterr() == ("operator  admin\n", "")


def test_the_command_rotates_and_tells_the_place(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`token rotate` prints the path and never the token; a principal added without --scope may write."""
    with opened(data):
        old = operator_token(data)
    called("rotate", data=data)
    called("path", data=data)
    assert capsys.readouterr() == (f"{data / 'token'}\n" * 2, "")
    assert operator_token(data) != old
    called("add", "alice", data=data)
    with opened(data) as access:
        assert access.callers["alice"].scopes == WRITE


def test_the_command_refuses_in_one_line(data: Path) -> None:
    """A refusal of `interlock token` is one line, as of every command."""
    done = interlock("rotate", data=data, good=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"interlock: there is no {data}; name the gateway's directory with --data\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rotate",), "there is no"),
        (("path",), "interlock serve"),
        (("list",), "there is no"),
        (("remove", "x"), "there is no"),
        (("add", "x", "--scope", "root"), "admin, write, approve, read"),
        (("add", "x", "--scope", "write,"), "admin, write, approve, read"),
        (("add", "operator"), "choose another"),
    ],
)
def test_a_command_that_is_refused_makes_nothing(data: Path, arguments: tuple[str, ...], words: str) -> None:
    """A refused command creates nothing, so that a mistyped directory does not pass for a rotated token."""
    with pytest.raises(InterlockError, match=words):
        called(*arguments, data=data)
    assert not data.exists()


def test_the_shell_asks_the_server_that_has_the_directory(tmp_path: Path) -> None:
    """While a server runs the commands ask it and count at once; after kill -9 they change the rows themselves."""
    with house(tmp_path / "data", "surfaces.busy:agent", "--driver", "inline") as server:
        assert (server.data / "url").read_text() == f"{server.ready['url']}\n" and mode(server.data / "url") == 0o600
        ann, bob = (interlock("add", name, data=server.data).stdout.strip() for name in ("ann", "bob"))
        listed = interlock("list", data=server.data).stdout
        assert [line.split()[0] for line in listed.splitlines()] == ["operator", "ann", "bob"]
        talk, old = server.connect(ann), server.operator_token
        assert "already" in interlock("add", "ann", data=server.data, good=False).stderr
        interlock("remove", "ann", data=server.data)
        assert talk.closed().code == 4001 and server.refused(ann)[1].code == 4001
        assert "no principal" in interlock("remove", "ann", data=server.data, good=False).stderr
        done = interlock("rotate", data=server.data)
        assert (done.stdout, done.stderr) == (f"{server.data / 'token'}\n", "")
        assert server.refused(old)[1].code == 4001
        assert {line["name"] for line in server.noted(kind="token", by="operator") if "name" in line} == {"ann", "bob"}
        server.kill()
        cat = interlock("add", "cat", data=server.data).stdout.strip()
        interlock("remove", "bob", data=server.data)
        interlock("rotate", data=server.data)
        rotated = server.operator_token
    with house(tmp_path / "data", "surfaces.busy:agent", "--driver", "inline") as server:
        for token in (rotated, cat):
            server.connect(token).close()
        for token in (ann, bob, old):
            assert server.refused(token)[1].code == 4001
        secrets = [each.encode() for each in (ann, bob, cat, old)]
        kept = [server.log_path, *(path for path in server.data.rglob("*") if path.is_file())]
        assert not [path for path in kept for secret in secrets if secret in path.read_bytes()]
    assert not (tmp_path / "data" / "url").exists()


def test_pair_asks_the_server_that_has_the_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pair` and the other verbs find the server of --data; after kill -9 they say that nobody answers."""
    monkeypatch.setattr(asking, "HERE", "http://127.0.0.1:9")

    def told(*words: str) -> tuple[int | None, str, str]:
        code = command_line(words[0])([*words, "--data", str(tmp_path / "data")], standalone_mode=False)
        return code, *capsys.readouterr()

    with house(tmp_path / "data", "surfaces.busy:agent", "--driver", "inline") as server:
        code, out, _ = told("pair")
        assert code == 0 and out.startswith(f"{server.ready['url']}/#pair=")
        code, out, _ = told("questions", "--json")
        assert (code, json.loads(out)) == (0, {"questions": []})
        server.kill()
        assert (server.data / "url").exists()
        for verb in ("pair", "questions"):
            code, out, err = told(verb)
            assert (code, out) == (125, "") and "127.0.0.1:9: nobody listens there; start `interlock serve`" in err


def test_a_server_that_does_not_say_where_it_is_is_named(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that another program mounts has the tokens but no URL of its own: the shell asks for one."""
    monkeypatch.setattr(tokens, "LOCK_SECONDS", 0.0)
    with opened(data), pytest.raises(InUse, match="name it with --url"):
        called("list", data=data)
    with opened(data), pytest.raises(Unavailable, match=r"127\.0\.0\.1:9"):
        called("list", "--url", "http://127.0.0.1:9", data=data)
