"""Tokens, hosts, origins, failures and the audit: real files, real processes, and kill -9 at every step of a write."""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import resource
import stat
import string
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock import cli
from interlock.core.errors import BadInput, InterlockError, Refused, Unknown
from interlock.surfaces import access as module
from interlock.surfaces.access import (
    ADDRESSES,
    FAILURES,
    LOOPBACK,
    OPERATOR,
    REFUSED,
    Access,
    AccessFailed,
    Audit,
    AuthFailures,
    Caller,
    Scope,
    allowed_host,
    allowed_origin,
    digest_of,
    fold,
    sites,
)

BOUND = 30.0  # seconds for any command on a busy machine
INTERLOCK = (sys.executable, "-m", "interlock.cli")
WRITE = frozenset({Scope.WRITE})


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory that is not there yet."""
    return tmp_path / "data"


def opened(data: Path) -> Access:
    """Return the access of a gateway after its start."""
    access = Access(data)
    access.open()
    return access


def mode(path: Path) -> int:
    """Return a file's mode."""
    return stat.S_IMODE(path.stat().st_mode)


def operator_token(data: Path) -> str:
    """Return the token that the shell on this machine reads."""
    return (data / "token").read_text().strip()


@contextmanager
def file_bytes(limit: int) -> Iterator[None]:
    """Forbid files to grow beyond a limit: the kernel's own stand-in for a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# Tokens


def test_the_first_start_makes_an_operators_token_for_our_eyes_only(data: Path) -> None:
    """The first start makes a long token, directory 0700 and files 0600 under any umask; a second start keeps them."""
    before = os.umask(0)
    try:
        access = opened(data)
        access.add("alice", WRITE)
    finally:
        os.umask(before)
    assert mode(data) == 0o700
    assert {path.name: mode(path) for path in data.iterdir()} == {
        "token": 0o600, "principals.json": 0o600, "access.lock": 0o600
    }  # fmt: skip
    token = operator_token(data)
    assert len(token) == 43
    assert access.who(token) == Caller(OPERATOR, frozenset({Scope.ADMIN}))
    assert opened(data).who(token) == access.who(token)


def test_a_principals_token_is_kept_as_its_hash(data: Path) -> None:
    """The token that `add` returns is accepted; no file holds it."""
    access = opened(data)
    token = access.add("alice", [Scope.APPROVE, Scope.WRITE])
    assert access.who(token) == Caller("alice", frozenset({Scope.WRITE, Scope.APPROVE}))
    assert opened(data).who(token) == access.who(token)
    assert not any(token in path.read_text() for path in data.iterdir())
    kept = json.loads((data / "principals.json").read_text())["alice"]
    assert (kept["hash"], kept["scopes"]) == (digest_of(token), ["write", "approve"])
    assert [each.name for each in access.listing()] == [OPERATOR, "alice"]


@pytest.mark.parametrize("token", ["", " ", "\n", "x", "\ud800", "é", "a" * 100_000, "token\n", "null"])
def test_what_is_no_token_is_nobodys(data: Path, token: str) -> None:
    """The empty token, a wrong token and a text that is no Unicode belong to no principal."""
    access = opened(data)
    access.add("alice", WRITE)
    assert access.who(token) is None
    assert access.who(operator_token(data) + "\n") is None


def test_before_it_was_opened_nobody_comes_in(data: Path) -> None:
    """An access that was not opened yet accepts no token."""
    opened(data)
    closed = Access(data)
    assert closed.who(operator_token(data)) is None
    assert not closed.valid(digest_of(operator_token(data)))


@pytest.mark.parametrize("which", ["first", "last", "operator", "nobody"])
def test_every_principal_is_compared_whoever_it_is(data: Path, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    """A check compares in constant time with every principal, so no early exit tells how many come before a match."""
    access = opened(data)
    tokens = [access.add(f"p{n}", WRITE) for n in range(5)]
    token = {"first": tokens[0], "last": tokens[-1], "operator": operator_token(data), "nobody": "x" * 43}[which]
    compared: list[Any] = []
    real = module.hmac.compare_digest
    monkeypatch.setattr(module.hmac, "compare_digest", lambda a, b: compared.append(a) or real(a, b))
    assert (access.who(token) is None) == (which == "nobody")
    assert len(compared) == len(set(compared)) == 6
    assert access.valid(digest_of(token)) == (which != "nobody")
    assert len(compared) == 12


def test_an_admin_may_everything_and_others_what_they_were_given() -> None:
    """Admin implies every scope; no other scope implies another."""
    admin = Caller(OPERATOR, frozenset({Scope.ADMIN}))
    assert all(admin.may(scope) for scope in Scope)
    for scope in set(Scope) - {Scope.ADMIN}:
        assert [each for each in Scope if Caller("a", frozenset({scope})).may(each)] == [scope]


def test_rotate_makes_the_old_token_nobodys(data: Path) -> None:
    """After a rotation the old token is refused everywhere; principals keep theirs; `rotate` tells the path alone."""
    access = opened(data)
    alice, old = access.add("alice", WRITE), operator_token(data)
    assert access.rotate() == data / "token"
    assert operator_token(data) != old
    assert access.who(old) is None
    assert not access.valid(digest_of(old))
    assert access.who(operator_token(data)) is not None
    assert access.who(alice) is not None


def test_remove_takes_a_token_away_and_a_name_may_come_again(data: Path) -> None:
    """A name in use is refused until its removal; the old token is never accepted again."""
    access = opened(data)
    old = access.add("alice", WRITE)
    with pytest.raises(Refused, match="remove alice"):
        access.add("alice", WRITE)
    access.remove("alice")
    assert access.who(old) is None
    with pytest.raises(Unknown):
        access.remove("alice")
    with pytest.raises(BadInput, match="rotate"):
        access.remove("operator")
    assert access.add("alice", WRITE) != old
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
    """Reserved names, and names that a log or a path could confuse with another, are refused; no file changes."""
    with pytest.raises(BadInput):
        Access(data).add(name, WRITE)
    assert not data.exists()


def test_a_principal_needs_a_scope(data: Path) -> None:
    """A principal without a scope is refused: its token would be good for nothing."""
    with pytest.raises(BadInput, match="admin, write, approve, read"):
        Access(data).add("alice", [])


# Changes by other processes


def test_refresh_sees_what_another_process_changed(data: Path) -> None:
    """`refresh` reports what the real command added, rotated and removed, and reports nothing if nothing changed."""
    access = opened(data)
    old = operator_token(data)
    assert access.refresh() is False
    alice = interlock("add", "alice", "--scope", "read", data=data).stdout.strip()
    assert access.who(alice) is None
    assert access.refresh() is True
    assert access.who(alice) == access.callers["alice"] == Caller("alice", frozenset({Scope.READ}))
    Access(data).rotate()
    assert access.refresh() is True
    assert not access.valid(digest_of(old))
    Access(data).remove("alice")
    assert access.refresh() is True
    assert not access.valid(digest_of(alice))
    assert access.refresh() is False


def test_many_changes_in_one_tick_of_the_clock_are_all_seen(data: Path) -> None:
    """`refresh` compares contents: size, inode and time of two versions may be equal."""
    mine, other = opened(data), opened(data)
    first = (data / "token").stat()
    for _ in range(50):
        other.rotate()
        os.utime(data / "token", ns=(first.st_atime_ns, first.st_mtime_ns))
        assert mine.refresh() is True
        assert mine.who(operator_token(data)) is not None


@pytest.mark.parametrize("bad", [
    b"", b"{", b"[]", b"null", b'{"alice":{}}', b'{"alice":{"hash":"x","scopes":["write"],"created_at":""}}',
    b'{"operator":{"hash":"%s","scopes":["read"],"created_at":""}}' % (b"0" * 64), b"\xff\xfe", b"[" * 100_000,
    b'{"bob":{"hash":"%s","scopes":[],"created_at":""}}' % (b"0" * 64),
    b'{"bob":{"hash":"%s","scopes":["planted-token-0123456789"],"created_at":""}}' % (b"0" * 64),
])  # fmt: skip
def test_broken_principals_keep_the_last_good_state(data: Path, bad: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """A broken file is logged once and ignored until it is repaired; a start or a change refuses to build upon it.

    The principals that were read last stay valid meanwhile.
    """
    access = opened(data)
    alice = access.add("alice", WRITE)
    good = (data / "principals.json").read_bytes()
    (data / "principals.json").write_bytes(bad)
    assert [access.refresh() for _ in range(3)] == [False] * 3
    assert access.who(alice) is not None
    assert len(caplog.records) == 1
    assert "principals.json" in caplog.text
    assert "planted" not in caplog.text
    for attempt in (opened, lambda data: Access(data).add("bob", WRITE), lambda data: Access(data).remove("alice")):
        with pytest.raises(AccessFailed, match=r"principals\.json") as caught:
            attempt(data)
        assert "planted" not in str(caught.value)
    assert (data / "principals.json").read_bytes() == bad
    (data / "principals.json").write_bytes(good)
    assert access.refresh() is False
    assert opened(data).who(alice) is not None


@pytest.mark.parametrize("bad", [b"", b"\n", b"short", b"a b" * 20, b"\xff" * 43, b"x" * 600])
def test_a_broken_operators_token_is_none(data: Path, bad: bytes) -> None:
    """An empty or short file is no token; the token that was read last stays valid, and `rotate` repairs the file."""
    access = opened(data)
    old = operator_token(data)
    (data / "token").write_bytes(bad)
    assert access.refresh() is False
    assert access.who(old) is not None
    assert access.who(bad.decode("latin-1").strip()) is None
    with pytest.raises(AccessFailed, match="rotate"):
        opened(data)
    Access(data).rotate()
    assert access.refresh() is True
    assert (access.who(old), access.who(operator_token(data))) == (None, access.callers[OPERATOR])


def test_a_file_that_is_gone_lets_nobody_in(data: Path) -> None:
    """A removed token file means that its token is refused; the next start makes a new operator's token."""
    access = opened(data)
    alice, old = access.add("alice", WRITE), operator_token(data)
    (data / "token").unlink()
    (data / "principals.json").unlink()
    assert access.refresh() is True
    assert (access.who(alice), access.who(old), access.callers) == (None, None, {})
    assert opened(data).who(operator_token(data)) is not None
    assert operator_token(data) != old


def test_files_open_to_others_are_closed_and_it_is_said(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Files that others can read are closed and logged, at the start and later; the log does not hold the token."""
    opened(data)
    data.chmod(0o755)
    (data / "token").chmod(0o644)
    access = opened(data)
    assert (mode(data), mode(data / "token")) == (0o700, 0o600)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "mode 755" in caplog.text
    assert "mode 644" in caplog.text
    assert "rotate" in caplog.text
    (data / "token").chmod(0o666)
    access.refresh()
    assert mode(data / "token") == 0o600
    assert operator_token(data) not in caplog.text


def test_what_belongs_to_another_user_is_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory of another user is refused: nothing in it changes, and no token is accepted."""
    opened(data)
    data.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    for attempt in (Access(data).open, Access(data).rotate, lambda: Access(data).add("a", WRITE)):
        with pytest.raises(AccessFailed, match="belongs to user"):
            attempt()
    assert mode(data) == 0o755


def test_strange_places_are_refused(tmp_path: Path) -> None:
    """A shared directory, or a file, link or pipe in a token's place, is refused with an error and never blocks."""
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
        data = tmp_path / f"data{len(list(tmp_path.iterdir()))}"
        data.mkdir(mode=0o700)
        make(data / "token")
        with pytest.raises(AccessFailed, match="token"):
            opened(data)


# Crashes, concurrent changes and full disks

KILLED = """
import itertools, json, os, signal, sys
from pathlib import Path
from interlock.surfaces.access import Access, Scope

data, verb = Path(sys.argv[1]), sys.argv[2]
access = Access(data)
access.open()
kept = access.add("kept", [Scope.READ])

def die_at(step):
    count = itertools.count(1)
    def deadly(real):
        def call(*args, **named):
            if next(count) == step:
                if real is write:
                    real(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **named)
        return call
    write = os.write
    class File:
        def __init__(self, fd, _): self.fd = fd
        def __enter__(self): return self
        def __exit__(self, *_): os.close(self.fd)
        def write(self, text): os.write(self.fd, text)
        def flush(self): pass
    os.fdopen = File  # so that its write is one that can be cut in the middle
    for name in ("open", "write", "fsync", "fchmod", "replace", "unlink", "close", "fstat"):
        setattr(os, name, deadly(getattr(os, name)))

facts = []
for step in itertools.count(1):
    old = (data / "token").read_text().strip()
    pid = os.fork()
    if pid == 0:
        die_at(step)
        mine = Access(data)
        mine.rotate() if verb == "rotate" else mine.add(f"n{step}", [Scope.WRITE])
        os._exit(0)
    died = os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    now = Access(data)
    now.open(make=False)
    new = (data / "token").read_text().strip()
    facts.append({
        "died": died,
        "kept": now.who(kept) is not None,
        "operator": now.who(new) is not None,
        "changed": new != old if verb == "rotate" else f"n{step}" in now.callers,
        "old": now.who(old) is not None,
        "modes": sorted({oct(path.stat().st_mode & 0o777) for path in data.iterdir()}),
    })
    if not died:
        break
access.rotate()
access.add("after", [Scope.WRITE])
print(json.dumps({"facts": facts, "left": sorted(path.name for path in data.iterdir())}))
"""


def script(text: str, *arguments: str | Path) -> Any:
    """Run a script in a child process and return its JSON result."""
    done = subprocess.run(
        [sys.executable, "-c", text, *map(str, arguments)],
        capture_output=True, check=True, timeout=BOUND, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.mark.parametrize("verb", ["add", "rotate"])
def test_kill_9_at_every_step_leaves_the_old_or_the_new(data: Path, verb: str) -> None:
    """A child that dies before any system call, or within a write, leaves files that parse and every token in them."""
    found = script(KILLED, data, verb)
    facts = found["facts"]
    assert len(facts) > 15
    assert [fact["died"] for fact in facts] == [True] * (len(facts) - 1) + [False]
    assert all(fact["kept"] and fact["operator"] for fact in facts)
    assert all(fact["modes"] == ["0o600"] for fact in facts)
    if verb == "rotate":
        assert all(fact["changed"] != fact["old"] for fact in facts)
    changed = [fact["changed"] for fact in facts]
    # Each step before the rename leaves the old state, each step after it the new one.
    assert changed == sorted(changed)
    assert True in changed[:-1]
    assert found["left"] == ["access.lock", "principals.json", "token"]


CROWD = """
import json, os, sys
from pathlib import Path
from interlock.core.errors import Refused
from interlock.surfaces.access import Access, Scope

data, go = Path(sys.argv[1]), os.pipe()
children = []
for who in range(4):
    back = os.pipe()
    if (pid := os.fork()) == 0:
        os.close(go[1])
        os.read(go[0], 1)
        access, mine = Access(data), {}
        access.open()
        for n in range(12):
            mine[f"p{who}-{n}"] = access.add(f"p{who}-{n}", [Scope.WRITE])
            try:
                mine[f"same-{n}"] = access.add(f"same-{n}", [Scope.WRITE])
            except Refused:
                pass
        os.write(back[1], json.dumps(mine).encode())
        os._exit(0)
    os.close(back[1])
    children.append((pid, back[0]))
os.close(go[1])
won = []
for pid, reading in children:
    with open(reading) as file:
        won += json.loads(file.read()).items()
    assert os.waitpid(pid, 0)[1] == 0
access = Access(data)
access.open(make=False)
right = [name for name, token in won if (caller := access.who(token)) is not None and caller.name == name]
print(json.dumps({"won": len(won), "right": sorted(right), "callers": sorted(access.callers)}))
"""


def test_adders_in_several_processes_lose_nothing(data: Path) -> None:
    """Four processes add at once, also on the first start: every token is accepted, and each name exists once."""
    found = script(CROWD, data)
    names = sorted([f"p{who}-{n}" for who in range(4) for n in range(12)] + [f"same-{n}" for n in range(12)])
    assert found == {"won": 60, "right": names, "callers": sorted([*names, "operator"])}


def test_a_full_disk_changes_nothing(data: Path) -> None:
    """On a full disk the old files stay, no temporary file is left, and the error says what to do."""
    access = opened(data)
    alice, token = access.add("alice", WRITE), operator_token(data)
    with file_bytes(2):
        for attempt in (access.rotate, lambda: access.add("bob", WRITE), lambda: access.remove("alice")):
            with pytest.raises(AccessFailed, match="make room"):
                attempt()
    assert {path.name for path in data.iterdir()} == {"access.lock", "principals.json", "token"}
    assert operator_token(data) == token
    assert opened(data).who(alice) is not None


def test_a_lock_that_is_held_is_waited_for_but_not_for_ever(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that is held too long raises an error, and no file changes."""
    access = opened(data)
    monkeypatch.setattr(module, "LOCK_SECONDS", 0.05)
    with access._changing(), pytest.raises(AccessFailed, match="try again"):
        Access(data).rotate()


def test_a_token_is_in_no_repr_no_log_and_no_error(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No error shows a token, down to the traceback."""
    caplog.set_level(logging.DEBUG)
    access = opened(data)
    planted = [operator_token(data), access.add("alice", WRITE)]
    said = [repr(access), str(vars(access)), repr(access.listing()), repr(access.callers), repr(access.who(planted[0]))]
    (data / "token").chmod(0o644)
    (data / "principals.json").write_text(f'{{"{planted[1]}": {{"scopes": ["{planted[1]}"]}}}}')
    access.refresh()
    for attempt in (opened, lambda data: Access(data).add("bob", WRITE)):
        try:
            attempt(data)
        except InterlockError:
            said.append(traceback.format_exc())
    (data / "token").write_text(f"{planted[0]} {planted[1]}")
    access.refresh()
    said.append(caplog.text)
    assert len(caplog.records) == 3
    assert not [token for token in planted for text in said if token in text]


# Hosts and origins

HOSTS = [
    ("localhost", True), ("localhost:8080", True), ("LocalHost:1", True), ("127.0.0.1", True), ("127.0.0.1:9", True),
    ("[::1]", True), ("[::1]:80", True), ("[0:0:0:0:0:0:0:1]:80", True), ("gw.example", True), ("GW.Example:9", True),
    ("127.0.0.1:65535", True),
    ("only.example:8443", True), ("[2001:DB8::1]:9", True), ("only.example", False), ("only.example:80", False),
    ("tls.example", True), ("tls.example:443", True), ("tls.example:80", False),
    ("", False), (" ", False), ("localhost ", False), (" localhost", False), ("localhost\n", False),
    ("localhost\0", False),
    ("localhost.", False), ("gw.example.", False), (".localhost", False), ("localhost.evil.example", False),
    ("evil.example", False), ("evil.localhost", False), ("127.0.0.1.evil.example", False), ("xgw.example", False),
    ("user@localhost", False), ("localhost@evil.example", False), ("localhost:80@evil.example", False),
    ("localhost:", False), ("localhost:0", False), ("localhost:65536", False), ("localhost:-1", False),
    ("localhost:80a", False), ("localhost:٣", False), ("localhost:8080:1", False), ("localhost:99999999", False),
    ("localhost,localhost", False), ("localhost, evil.example", False), ("localhost evil.example", False),
    ("::1", False), ("[::1", False), ("::1]", False), ("[::1]x", False), ("[::1]80", False), ("[]", False),
    ("[localhost]", False), ("[::1%25lo]", False), ("[::ffff:127.0.0.1]", False), ("[127.0.0.1]", False),
    ("ｌocalhost", False), ("locaLhoſt", False), ("127。0。0。1", False), ("①27.0.0.1", False),
    ("xn--localhost-", False), ("0", False), ("0.0.0.0", False), ("127.1", False), ("2130706433", False),
    ("0x7f.0.0.1", False), ("127.0.0.2", False),
    ("http://localhost", False), ("localhost/", False), ("localhost/..", False), ("localhost#", False), ("*", False),
    ("localhost\\", False), ("localhost%2e", False), ("a" * 100_000, False), ("localhost:" + "8" * 100_000, False),
]  # fmt: skip
ALLOW = ("gw.example", "only.example:8443", "[2001:db8::1]", "tls.example:443")


@pytest.mark.parametrize(("host", "allowed"), HOSTS, ids=lambda value: repr(value)[:40])
def test_which_hosts_are_allowed(host: str, allowed: bool) -> None:
    """Loopback names with any port and hosts that the operator named are allowed; look-alikes are not."""
    assert allowed_host(host, ALLOW) is allowed


@pytest.mark.parametrize(("host", "allowed"), HOSTS, ids=lambda value: repr(value)[:40])
def test_an_origins_host_is_judged_alike(host: str, allowed: bool) -> None:
    """An origin whose host is refused is refused with any scheme."""
    if host != "tls.example":  # with http this name means another port
        assert allowed_origin(f"http://{host}", host=host, allow=ALLOW) is allowed
    assert allowed_origin(f"https://{host}", host=host, allow=ALLOW) is allowed
    assert allowed_origin(f"ftp://{host}", host=host, allow=ALLOW) is False


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        (None, "localhost:8080", None),
        ("http://localhost:8080", "localhost:8080", True),
        ("http://127.0.0.1:8080", "localhost:8080", True),
        ("HTTP://LOCALHOST:8080", "localhost:8080", True),
        ("https://localhost", "localhost:443", True),
        ("http://localhost:80", "[::1]", True),
        ("https://gw.example", "localhost:8080", True),  # a proxy that passes our own name as Host
        ("https://gw.example:1234", "gw.example", True),
        ("https://only.example:8443", "localhost:8080", True),
        ("https://tls.example", "tls.example", True),
        ("http://tls.example", "tls.example", False),
        ("http://localhost:3000", "localhost:8080", False),  # the page of another program on this machine
        ("http://localhost", "localhost:8080", False),
        ("http://localhost:8080", "gw.example:8080", False),  # a page on the visitor's machine, not on this one
        ("http://localhost:8080", "evil.example:8080", False),
        ("http://evil.example:8080", "evil.example:8080", False),  # DNS rebinding: the Host header says the same name
        ("null", "localhost:8080", False),
        ("", "localhost:8080", False),
        ("http://", "localhost:8080", False),
        ("http://localhost:8080/", "localhost:8080", False),
        ("http://localhost:8080 http://evil.example", "localhost:8080", False),
        ("http://localhost:8080, http://evil.example", "localhost:8080", False),
        ("http://user@localhost:8080", "localhost:8080", False),
        ("//localhost:8080", "localhost:8080", False),
        ("localhost:8080", "localhost:8080", False),
        ("file://", "localhost:8080", False),
        ("chrome-extension://abcdef", "localhost:8080", False),
        ("httpſ://localhost:8080", "localhost:8080", False),
        ("http://localhost:8080", "", False),
    ],
)
def test_which_origins_are_allowed(origin: str | None, host: str, allowed: bool | None) -> None:
    """A missing origin is neither allowed nor refused; an origin is allowed if it is ours or named by the operator."""
    assert allowed_origin(origin, host=host, allow=ALLOW) is allowed


@given(st.one_of(st.text(), st.text(alphabet=string.ascii_letters + "localhost127.:[]@,/ \\%0", max_size=24)))
def test_no_host_is_allowed_that_a_browser_reads_as_another(text: str) -> None:
    """A host that is allowed means loopback to another parser as well; no text makes the check raise."""
    if allowed_host(text):
        hostname = urlsplit(f"//{text}").hostname
        assert hostname in ("localhost", "127.0.0.1") or ipaddress.IPv6Address(hostname).is_loopback
    assert allowed_origin(text, host=text) in (True, False)


@given(st.sampled_from(sorted(LOOPBACK | {"gw.example"})), st.text(min_size=1), st.booleans())
def test_nothing_added_to_a_name_is_allowed(name: str, more: str, before: bool) -> None:
    """A name with anything before or after it is another name, but for a port after it."""
    name = f"[{name}]" if ":" in name else name
    host = more + name if before else name + more
    digits = more[1:]
    port = not before and more[0] == ":" and digits.isascii() and digits.isdigit() and 0 < int(digits) < 65_536
    assert allowed_host(host, ["gw.example"]) is (port and len(digits) <= 5)


@pytest.mark.parametrize(
    "wrong", ["", "*", "*.example", "http://gw.example", "gw.example/", "a b", "bücher.example", "x."]
)
def test_a_host_that_the_operator_misspelt_is_told(wrong: str) -> None:
    """A misspelt host raises at the start; it would otherwise never match, or match everything."""
    with pytest.raises(BadInput, match=r"example\.org"):
        sites(["gw.example", wrong])


# Failures


@pytest.mark.parametrize(
    ("address", "folded"),
    [
        ("1.2.3.4", "1.2.3.4"),
        ("::ffff:1.2.3.4", "1.2.3.4"),
        ("::FFFF:102:304", "1.2.3.4"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::", "2001:db8:1:3::/64"),
        ("::1", "::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("x" * 1000, "x" * 64),
    ],
)
def test_addresses_are_folded(address: str, folded: str) -> None:
    """Addresses that one client can have in any number are counted as one."""
    assert fold(address) == folded


def test_ten_failures_in_a_minute_and_then_a_wait() -> None:
    """The wait ends when the first of ten failures is a minute old; other addresses do not wait."""
    failures = AuthFailures()
    for n in range(FAILURES):
        assert failures.blocked("10.0.0.1", 100.0 + n) is None
        failures.failed("::ffff:10.0.0.1" if n % 2 else "10.0.0.1", 100.0 + n)
    assert failures.blocked("10.0.0.1", 110.0) == pytest.approx(50.0)
    assert failures.blocked("::ffff:10.0.0.1", 159.9) == pytest.approx(0.1)
    assert failures.blocked("10.0.0.2", 110.0) is None
    assert failures.blocked("10.0.0.1", 160.0) is None
    failures.failed("10.0.0.1", 160.0)
    assert failures.blocked("10.0.0.1", 160.5) == pytest.approx(0.5)


def test_failures_are_remembered_within_bounds() -> None:
    """Beyond the bound on addresses, the address that failed longest ago is forgotten."""
    failures = AuthFailures()
    for _ in range(1_000):
        failures.failed("10.0.0.1", 0.0)
    for n in range(ADDRESSES - 1):
        failures.failed(f"2001:db8:0:{n:x}::1", 1.0)
    assert failures.blocked("10.0.0.1", 1.0) is not None
    failures.failed("10.9.9.9", 2.0)
    assert failures.blocked("10.0.0.1", 2.0) is None
    assert len(failures._times) == ADDRESSES
    assert max(map(len, failures._times.values())) <= FAILURES


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.floats(0, 20)), max_size=60))
def test_an_address_is_kept_waiting_exactly_after_ten_in_sixty_seconds(steps: list[tuple[str, float]]) -> None:
    """An address waits exactly when a plain count of its failures in the last minute is ten."""
    failures, now, times = AuthFailures(), 0.0, {"a": [], "b": []}
    for address, pause in steps:
        now += pause
        lately = sum(now - then < 60 for then in times[address])
        wait = failures.blocked(address, now)
        assert (wait is not None) == (lately >= FAILURES)
        assert wait is None or 0 < wait <= 60
        failures.failed(address, now)
        times[address].append(now)


# Audit


@pytest.fixture
def audit(tmp_path: Path) -> Iterator[Audit]:
    """An audit that is closed after the test."""
    audit = Audit(tmp_path / "audit.jsonl")
    yield audit
    audit.close()


def lines(audit: Audit) -> list[dict[str, Any]]:
    """Return the lines of the audit, each parsed by itself."""
    return [json.loads(line) for line in audit.path.read_bytes().split(b"\n") if line]


def test_a_line_tells_who_what_when_and_from_where(audit: Audit) -> None:
    """Each entry is one JSON object on a line, in a file of mode 0600, appended to the lines before."""
    audit.note("stop", by="alice", address="127.0.0.1", run="r-1", aborted=True, after=0.5, count=3, receipt=None)
    Audit(audit.path).note("answer", by="bob", address="::1", question="q-1")
    first, second = lines(audit)
    when = first.pop("time")
    assert time.strptime(when, "%Y-%m-%dT%H:%M:%S." + when[20:23] + "Z")
    assert list(first.items()) == [
        ("kind", "stop"), ("by", "alice"), ("address", "127.0.0.1"),
        ("run", "r-1"), ("aborted", True), ("after", 0.5), ("count", 3), ("receipt", None),
    ]  # fmt: skip
    assert (second["kind"], second["question"]) == ("answer", "q-1")
    assert mode(audit.path) == 0o600


class Unspeakable:
    """A value whose str() raises."""

    def __str__(self) -> str:
        """Raise."""
        raise RuntimeError


@pytest.mark.parametrize(
    "value",
    [
        "\x1b[2J\r\n\x00\x7f\x9b\u2028",
        "\ud800x\udfff",
        "é漢😀",
        'a"b\\',
        float("nan"),
        10**5000,
        2**64,
        b"\xff",
        Unspeakable(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_is_noted_is_one_line_of_plain_ascii(audit: Audit, value: object) -> None:
    """Control characters and lone surrogates reach no terminal and break no line; no value makes the audit raise."""
    audit.note("stop", by=str(value)[:50] if isinstance(value, str) else "x", address="a", fact=value, time="mine")
    data = audit.path.read_bytes()
    assert data.count(b"\n") == 1
    assert all(32 <= byte < 127 for byte in data[:-1])
    (line,) = lines(audit)
    assert line["kind"] == "stop"
    assert line["time"] != "mine"
    json.dumps(line, ensure_ascii=False, allow_nan=False).encode()  # no lone surrogate is left


@given(value=st.text(st.characters(), max_size=40), key=st.integers(0, 3))
def test_any_text_comes_back_or_is_told_escaped(tmp_path_factory: pytest.TempPathFactory, value: str, key: int) -> None:
    """A text is stored as it was, or escaped."""
    audit = Audit(tmp_path_factory.getbasetemp() / f"any-{key}.jsonl")
    audit.note("stop", by=value, address=value, fact=value)
    audit.close()
    assert {lines(audit)[-1][name] for name in ("by", "address", "fact")} == {value}


@pytest.mark.parametrize("value", ["x" * 10**6, "\ud800" * 1000, ["y" * 10**6]])
def test_every_value_is_cut(audit: Audit, value: object) -> None:
    """A value of any length is cut to the bound."""
    audit.note("stop", by="b" * 10**6, address="a" * 10**6, fact=value)
    (line,) = lines(audit)
    assert [len(line[name]) for name in ("by", "address", "fact")] == [500] * 3


def test_a_flood_of_refusals_is_limited_and_counted(audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most twenty lines a second tell of refusals, then a count; stops and answers are always written."""
    now = 1000.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    for n in range(5_000):
        now = 1000.0 + n / 1000
        audit.note(REFUSED, by="", address="10.0.0.1", at=now)
        if n % 100 == 0:
            audit.note("stop", by="alice", address="127.0.0.1", n=n)
    kinds = [line["kind"] for line in lines(audit)]
    assert kinds.count("stop") == 50
    assert (kinds.count(REFUSED), kinds.count("left_out")) == (96, 4)
    at = [line["at"] for line in lines(audit) if line["kind"] == REFUSED]
    assert all(later - earlier >= 1 for earlier, later in zip(at, at[20:], strict=False))
    audit.tell_left_out()  # within the same second
    now += 1
    audit.tell_left_out()
    audit.tell_left_out()
    told = lines(audit)
    assert told[-1]["kind"] == "left_out"
    assert sum(line["refused"] for line in told if line["kind"] == "left_out") == 5_000 - kinds.count(REFUSED)


def test_closing_tells_what_was_left_out(tmp_path: Path) -> None:
    """Closing writes the count of omitted lines, also within the same second."""
    audit = Audit(tmp_path / "audit.jsonl")
    for _ in range(30):
        audit.note(REFUSED, by="", address="")
    audit.close()
    assert [line["kind"] for line in lines(audit)] == [REFUSED] * 20 + ["left_out"]
    assert lines(audit)[-1]["refused"] == 10


def test_a_full_disk_is_logged_once_a_minute_and_nothing_is_raised(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop whose audit line meets a full disk (/dev/full) succeeds; the fault is logged once a minute."""
    now, before = 1000.0, os.stat("/dev/full").st_mode
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    audit = Audit(Path("/dev/full"))
    for later in (0.0, 0.1, 59.0, 60.0, 61.0):
        now = 1000.0 + later
        audit.note("stop", by="alice", address="127.0.0.1")
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert "No space left" in caplog.text
    audit.close()
    assert os.stat("/dev/full").st_mode == before


def test_a_line_the_disk_took_half_of_stays_alone(audit: Audit) -> None:
    """After a half-written line the next line begins on its own, and the count of missing lines is written."""
    audit.note("stop", by="alice", address="a", n=1)
    with file_bytes(audit.path.stat().st_size + 20):
        audit.note("stop", by="alice", address="a", n=2)
        audit.note("stop", by="alice", address="a", n=3)
    audit.note("stop", by="alice", address="a", n=4)
    whole = []
    for line in audit.path.read_text().splitlines():
        try:
            whole.append(json.loads(line))
        except ValueError:
            assert line.startswith('{"time"')
    assert [(line["kind"], line.get("n"), line.get("unwritten")) for line in whole] == [
        ("stop", 1, None), ("left_out", None, 2), ("stop", 4, None)
    ]  # fmt: skip


def test_a_missing_place_a_pipe_or_a_link_costs_the_caller_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The audit blocks on no pipe and follows no link; lines are written again once the directory is back."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("pipe", "link", "missing/audit.jsonl"):
        audit = Audit(tmp_path / name)
        for _ in range(200):
            audit.note("stop", by="x" * 500, address="y" * 500)
        audit.close()
    assert not (tmp_path / "elsewhere").exists()
    assert len(caplog.records) == 3
    (tmp_path / "missing").mkdir()
    audit.note("stop", by="alice", address="a")
    audit.path.unlink()
    audit.note("stop", by="bob", address="a")
    audit.close()
    assert [line["by"] for line in lines(audit)] == ["bob"]


# The command


def interlock(*arguments: str, data: Path, good: bool = True) -> subprocess.CompletedProcess[str]:
    """Call `interlock token`."""
    done = subprocess.run(
        [*INTERLOCK, "token", *arguments, "--data", str(data)],
        capture_output=True, check=False, timeout=BOUND, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (done.returncode == 0) is good, done
    return done


def called(*arguments: str, data: Path) -> None:
    """Call `interlock token` in this process."""
    cli.app(["token", *arguments, "--data", str(data)], standalone_mode=False)


def test_the_command_makes_lists_and_takes_away(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`token add` prints the token alone on the output, once, and the hint on the error output; --json one document."""
    added = interlock("add", "bob", "--scope", "approve, write", "--scope", "read", data=data)
    token = added.stdout.removesuffix("\n")
    assert len(token) == 43
    assert "bob (write, approve, read)" in added.stderr
    assert token not in added.stderr
    opened(data)
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
    opened(data)
    old = operator_token(data)
    called("rotate", data=data)
    called("path", data=data)
    assert capsys.readouterr() == (f"{data / 'token'}\n" * 2, "")
    assert operator_token(data) != old
    called("add", "alice", data=data)
    assert opened(data).callers["alice"].scopes == WRITE


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
