"""Tokens in a directory: which count, and what is refused."""

from __future__ import annotations

import logging
import os
import traceback
from pathlib import Path

import pytest

from interlock.access.files import AccessFailed
from interlock.access.rows import OPERATOR, InUse
from interlock.access.tokens import Access, Holder, digest_of
from interlock.core.errors import BadInput, InterlockError, Refused, Unknown
from interlock.core.scopes import Scope

from .scene import WRITE, add, change, mode, opened, operator_token


def test_the_first_start_makes_an_operators_token_for_our_eyes_only(data: Path) -> None:
    """The first start makes the directory (0700) and the operator's token (0600); a second start keeps it."""
    with opened(data) as access:
        token = operator_token(data)
        assert len(token) == 43
        assert (mode(data), {mode(path) for path in data.iterdir()}) == (0o700, {0o600})
        assert access.who(token) == Holder(OPERATOR, frozenset({Scope.ADMIN}))
        assert access.valid(digest_of(token))
        assert [(each.name, each.scopes) for each in access.listing()] == [(OPERATOR, (Scope.ADMIN,))]
    with opened(data) as access:
        assert operator_token(data) == token
        assert access.who(token) is not None


def test_a_principals_token_is_kept_as_its_hash(data: Path) -> None:
    """A principal's token is accepted, also after a restart; no file holds the token itself."""
    with opened(data) as access:
        token = add(access, "alice", [Scope.APPROVE, Scope.WRITE])
        alice = Holder("alice", frozenset({Scope.WRITE, Scope.APPROVE}))
        assert access.who(token) == access.callers["alice"] == alice
        assert not any(token.encode() in path.read_bytes() for path in data.iterdir())
        assert digest_of(token).encode() in (data / "access.db").read_bytes()
        assert [each.name for each in access.listing()] == [OPERATOR, "alice"]
    with opened(data) as access:
        assert access.who(token) == alice
        assert access.listing()[1].scopes == (Scope.WRITE, Scope.APPROVE)


@pytest.mark.parametrize("token", ["", " ", "\n", "x", "\ud800", "é", "a" * 100_000, "token\n", "null"])
def test_what_is_no_token_is_nobodys(data: Path, token: str) -> None:
    """The empty token, a wrong token, a digest and a text that is no Unicode belong to no principal."""
    with opened(data) as access:
        alice = add(access, "alice")
        assert access.who(token) is None
        assert access.who(operator_token(data) + "\n") is None
        assert access.who(digest_of(alice)) is None


def test_before_it_was_opened_nobody_comes_in(data: Path) -> None:
    """An access that was not opened yet accepts no token and no change."""
    with opened(data):
        pass
    closed = Access(data)
    assert closed.who(operator_token(data)) is None
    assert not closed.valid(digest_of(operator_token(data)))
    with pytest.raises(AccessFailed, match="try again"):
        change(closed, "rotate_token")


def test_an_admin_may_everything_and_others_what_they_were_given() -> None:
    """Admin implies every scope; no other scope implies another."""
    admin = Holder(OPERATOR, frozenset({Scope.ADMIN}))
    assert all(admin.may(scope) for scope in Scope)
    for scope in set(Scope) - {Scope.ADMIN}:
        assert [each for each in Scope if Holder("a", frozenset({scope})).may(each)] == [scope]


def test_rotate_makes_the_old_token_nobodys(data: Path) -> None:
    """After a rotation the old token is refused, also after a restart; principals keep theirs."""
    with opened(data) as access:
        alice, old = add(access, "alice"), operator_token(data)
        change(access, "rotate_token")
        assert operator_token(data) != old
        assert access.who(old) is None
        assert not access.valid(digest_of(old))
        assert access.who(operator_token(data)) is not None
        assert access.who(alice) is not None
        assert mode(data / "token") == 0o600
    with opened(data) as access:
        assert (access.who(old), access.who(alice) is None) == (None, False)


def test_remove_takes_a_token_away_and_a_name_may_come_again(data: Path) -> None:
    """A name in use is refused until its removal; the old token is never accepted again."""
    with opened(data) as access:
        old = add(access, "alice")
        with pytest.raises(Refused, match="remove alice"):
            add(access, "alice")
        change(access, "remove_token", "alice")
        assert access.who(old) is None
        with pytest.raises(Unknown):
            change(access, "remove_token", "alice")
        with pytest.raises(BadInput, match="rotate"):
            change(access, "remove_token", "operator")
        assert add(access, "alice") != old
        assert access.who(old) is None


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a" * 65,
        "operator",
        "Operator",
        "local",
        "LOCAL",
        "a b",
        "a\n",
        "é",
        "a/b",
        "\N{KELVIN SIGN}",
        "a\0",
        "../x",
    ],
)
def test_a_bad_name_is_refused(data: Path, name: str) -> None:
    """Reserved names, and names that a log or a path could confuse with another, are refused."""
    with opened(data) as access, pytest.raises(BadInput):
        add(access, name)


def test_a_principal_needs_a_scope(data: Path) -> None:
    """A principal without a scope is refused: its token would be good for nothing."""
    with opened(data) as access, pytest.raises(BadInput, match="admin, write, approve, read"):
        add(access, "alice", [])


# One process at a time


def test_one_process_has_the_tokens(data: Path) -> None:
    """While a server has the tokens nobody else opens them; the error has its URL as soon as the server says it."""
    with opened(data) as access:
        with pytest.raises(InUse, match="--url") as caught:
            Access(data).open(patience=0)
        assert caught.value.url is None
        access.disk.tell_url("http://127.0.0.1:1")
        assert mode(data / "url") == 0o600
        with pytest.raises(InUse, match=r"at http://127\.0\.0\.1:1") as caught:
            Access(data).open()
        assert caught.value.url == "http://127.0.0.1:1"
    assert not (data / "url").exists()
    with opened(data) as access:
        assert access.who(operator_token(data)) is not None


def test_the_url_of_a_killed_server_is_not_told(data: Path) -> None:
    """The URL that a killed server left is removed by the next one, whose own may be another."""
    with opened(data) as access:
        access.disk.tell_url("http://127.0.0.1:1")
        left = (data / "url").read_bytes()
    (data / "url").write_bytes(left)
    with opened(data):
        assert not (data / "url").exists()


# Files


@pytest.mark.parametrize("bad", [b"", b"\n", b"short", b"a b" * 20, b"\xff" * 43, b"x" * 600])
def test_a_broken_operators_token_is_none(data: Path, bad: bytes) -> None:
    """An empty or short file is no token: a start refuses it, a shell finds no operator, and `rotate` repairs it."""
    with opened(data) as access:
        alice = add(access, "alice")
    (data / "token").write_bytes(bad)
    with pytest.raises(AccessFailed, match="rotate"):
        Access(data).open()
    with opened(data, make=False) as access:
        assert access.who(bad.decode("latin-1").strip()) is None
        assert [each.name for each in access.listing()] == ["alice"]
        change(access, "rotate_token")
    with opened(data) as access:
        assert access.who(operator_token(data)) is not None and access.who(alice) is not None


@pytest.mark.parametrize("bad", [b"planted-token-0123456789" * 200, b"SQLite format 3\0" + b"x" * 4_000])
def test_a_broken_database_is_refused_and_stays_as_it_is(data: Path, bad: bytes) -> None:
    """A file that is no database of ours is refused by its name and not written; the lock is given back."""
    with opened(data):
        pass
    (data / "access.db").write_bytes(bad)
    for _ in range(2):
        with pytest.raises(AccessFailed, match=r"access\.db") as caught:
            Access(data).open()
        assert "planted" not in str(caught.value)
    assert (data / "access.db").read_bytes() == bad


def test_a_later_schema_is_refused(data: Path) -> None:
    """A database of a later version is refused: this version does not know what its columns mean."""
    with opened(data) as access:
        access.disk._db.execute("PRAGMA user_version = 99")
    with pytest.raises(AccessFailed, match="upgrade"):
        Access(data).open()


def test_files_open_to_others_are_closed_and_it_is_said(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Files that others can read are closed and logged; the log does not hold the token."""
    with opened(data):
        pass
    data.chmod(0o755)
    (data / "token").chmod(0o644)
    (data / "access.db").chmod(0o640)
    with opened(data):
        assert {mode(path) for path in (data, *data.iterdir())} == {0o700, 0o600}
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    assert all(words in caplog.text for words in ("mode 755", "mode 644", "mode 640", "rotate"))
    assert operator_token(data) not in caplog.text


def test_what_belongs_to_another_user_is_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory of another user is refused: nothing in it changes, and no token is accepted."""
    with opened(data):
        pass
    data.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    for make in (True, False):
        with pytest.raises(AccessFailed, match="belongs to user"):
            Access(data).open(make=make)
    assert mode(data) == 0o755


@pytest.mark.parametrize("name", ["token", "access.db", "access.lock"])
def test_strange_places_are_refused(tmp_path: Path, name: str) -> None:
    """A shared directory, or a link, pipe or directory in a file's place, is refused with an error and never blocks."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (tmp_path / "file").write_text("")
    for place in (shared, tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(AccessFailed, match="--data"):
            Access(place).open()
    assert mode(shared) == 0o1777
    with pytest.raises(AccessFailed, match="there is no"):
        Access(tmp_path / "missing").open(make=False)
    assert not (tmp_path / "missing").exists()
    for make in (os.mkfifo, Path.mkdir, lambda path: path.symlink_to(tmp_path / "file")):
        if name == "access.lock" and make is os.mkfifo:
            continue  # a pipe can be locked, and holds nothing
        data = tmp_path / f"data{len(list(tmp_path.iterdir()))}"
        data.mkdir(mode=0o700)
        make(data / name)
        with pytest.raises(AccessFailed, match=name):
            Access(data).open()
    assert (tmp_path / "file").read_text() == ""


def test_a_token_is_in_no_repr_no_log_and_no_error(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No error shows a token, down to the traceback; no answer has one in its repr."""
    caplog.set_level(logging.DEBUG)
    with opened(data) as access:
        answer = change(access, "add_token", "alice", WRITE)
        planted = [operator_token(data), answer.token]
        said = [repr(each) for each in (access, access.listing(), access.callers, answer, access.rows)]
        said += [str(vars(access)), repr(access.who(planted[0]))]
    for path, text in (("token", " ".join(planted)), ("access.db", planted[1] * 100)):
        (data / path).write_text(text)
        try:
            Access(data).open()
        except InterlockError:
            said.append(traceback.format_exc())
    said.append(caplog.text)
    assert len(said) == 10
    assert not [token for token in planted for text in said if token in text]
