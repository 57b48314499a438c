"""The rows of tokens: kill -9 at every step, several processes, full disks, and directories of earlier versions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from interlock.access.files import AccessFailed
from interlock.access.rows import OPERATOR
from interlock.access.tokens import Access, Holder, digest_of
from interlock.core.scopes import Scope

from .scene import BOUND, WRITE, add, change, file_bytes, mode, opened, operator_token

KILLED = """
import asyncio, itertools, json, os, signal, sys
from pathlib import Path
from interlock.access.changes import Changes
from interlock.access.tokens import Access
from interlock.core.scopes import Scope

data, verb = Path(sys.argv[1]), sys.argv[2]

def change(access, verb, *args):
    return asyncio.run(getattr(Changes(access), verb)(*args))

def now():
    access = Access(data)
    access.open(make=False)
    return access

def die_at(step, access):
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
    access.disk._db.set_trace_callback(deadly(lambda statement: None))

access = Access(data)
access.open()
kept = change(access, "add_token", "kept", [Scope.READ]).token
access.close()
facts = []
for step in itertools.count(1):
    old = (data / "token").read_text().strip()
    access = now()
    gone = change(access, "add_token", f"gone{step}", [Scope.READ]).token
    access.close()
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        mine = now()
        die_at(step, mine)
        named = {"rotate": [], "add": [f"n{step}", [Scope.WRITE]], "remove": [f"gone{step}"]}
        change(mine, f"{verb}_token", *named[verb])
        os.set_blocking(tell, False)
        os.writev(tell, [b"done"])  # the answer
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(tell)
    os.waitpid(pid, 0)
    answered = os.read(told, 4) == b"done"
    access = now()
    new = (data / "token").read_text().strip()
    changed = {"rotate": new != old, "add": f"n{step}" in access.callers, "remove": access.who(gone) is None}[verb]
    facts.append({
        "answered": answered,
        "changed": changed,
        "kept": access.who(kept) is not None,
        "operator": access.who(new) is not None,
        "old": access.who(old) is not None,
        "modes": sorted({oct(path.stat().st_mode & 0o777) for path in data.iterdir()}),
    })
    access.close()
    if answered:
        break
print(json.dumps({"facts": facts, "left": sorted(path.name for path in data.iterdir())}))
"""


def script(text: str, *arguments: str | Path) -> Any:
    """Run a script in a child process and return its JSON result."""
    done = subprocess.run(
        [sys.executable, "-c", text, *map(str, arguments)],
        capture_output=True, check=False, timeout=BOUND, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("verb", ["add", "remove", "rotate"])
def test_kill_9_at_every_step_leaves_the_old_or_the_new(data: Path, verb: str) -> None:
    """A process that dies at any step leaves every other token; a change that was answered is never taken back."""
    found = script(KILLED, data, verb)
    facts = found["facts"]
    assert len(facts) > (10 if verb == "rotate" else 3)
    assert [fact["answered"] for fact in facts] == [False] * (len(facts) - 1) + [True]
    assert all(fact["kept"] and fact["operator"] for fact in facts)
    assert all(fact["modes"] == ["0o600"] for fact in facts)
    if verb == "rotate":
        assert all(fact["changed"] != fact["old"] for fact in facts)
    changed = [fact["changed"] for fact in facts]
    # Each step before the commit, or the rename, leaves the old state, each step after it the new one.
    assert changed == sorted(changed)
    assert changed[-1] and not changed[0]
    assert found["left"] == ["access.db", "access.lock", "token"]


CROWD = """
import asyncio, json, os, sys
from pathlib import Path
from interlock.access.changes import Changes
from interlock.access.tokens import Access
from interlock.core.errors import Refused
from interlock.core.scopes import Scope

data, go = Path(sys.argv[1]), os.pipe()
children = []
for who in range(4):
    back = os.pipe()
    if (pid := os.fork()) == 0:
        os.close(go[1])
        os.read(go[0], 1)
        mine = {}
        for n in range(6):
            for name in (f"p{who}-{n}", f"same-{n}"):
                access = Access(data)
                access.open(patience=20)
                try:
                    mine[name] = asyncio.run(Changes(access).add_token(name, [Scope.WRITE])).token
                except Refused:
                    pass
                access.close()
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
    """Four processes add in turns, also on the first start: every token is accepted, and each name exists once."""
    found = script(CROWD, data)
    names = sorted([f"p{who}-{n}" for who in range(4) for n in range(6)] + [f"same-{n}" for n in range(6)])
    assert found == {"won": 30, "right": names, "callers": sorted([*names, "operator"])}


def test_on_a_full_disk_nothing_is_added_and_what_was_revoked_stays_so(data: Path) -> None:
    """On a full disk the old rows stay and the error says what to do; a token whose row stays counts no more."""
    with opened(data) as access:
        alice, token = add(access, "alice"), operator_token(data)
        with file_bytes(2):
            for verb, *arguments in (("rotate_token",), ("add_token", "bob", WRITE), ("remove_token", "alice")):
                with pytest.raises(AccessFailed, match="make room"):
                    change(access, verb, *arguments)
        assert access.who(alice) is None and access.who(token) is not None
        assert operator_token(data) == token
        assert [each.name for each in access.listing()] == [OPERATOR, "alice"]
        change(access, "remove_token", "alice")
    assert {path.name for path in data.iterdir()} == {"access.db", "access.lock", "token"}
    with opened(data) as access:
        assert access.who(alice) is None and add(access, "alice") != alice


# Earlier directories

TOKENS = {name: name.ljust(43, "-") for name in ("operator", "alice", "bob", "page", "alices-page", "lost-page")}


def earlier(data: Path) -> None:
    """Write a directory that has no rows yet: a token, principals.json and pages.json."""
    data.mkdir(mode=0o700)
    hashes = {name: digest_of(token) for name, token in TOKENS.items()}
    at = "2026-11-16T13:41:59.192Z"
    (data / "token").write_text(TOKENS["operator"] + "\n")
    entries = {
        "alice": {"hash": hashes["alice"], "scopes": ["write", "approve"], "created_at": at},
        "bob": {"hash": hashes["bob"], "scopes": ["read"], "created_at": at},
    }
    (data / "principals.json").write_text(json.dumps(entries, indent=2) + "\n")
    bound = (("page", "operator", hashes["operator"]), ("alices-page", "alice", hashes["alice"]))
    bound += (("lost-page", "alice", "0" * 64),)  # on a token that was removed
    pages = [{"hash": hashes[page], "name": name, "of": of, "created_at": at} for page, name, of in bound]
    (data / "pages.json").write_text(json.dumps(pages, indent=2) + "\n")
    for path in data.iterdir():
        path.chmod(0o600)


def test_the_tokens_of_an_earlier_directory_are_taken_over_once(data: Path) -> None:
    """Nobody loses a token or a page; the files are gone, and what is removed later does not come back from them."""
    earlier(data)
    kept = {path.name: path.read_bytes() for path in data.iterdir()}
    for _ in range(2):
        with opened(data) as access:
            operator = Holder(OPERATOR, frozenset({Scope.ADMIN}))
            alice = Holder("alice", frozenset({Scope.WRITE, Scope.APPROVE}))
            assert [access.who(TOKENS[name]) for name in ("operator", "page")] == [operator] * 2
            assert [access.who(TOKENS[name]) for name in ("alice", "alices-page")] == [alice] * 2
            assert access.who(TOKENS["bob"]) == Holder("bob", frozenset({Scope.READ}))
            assert access.who(TOKENS["lost-page"]) is None
            assert [page.name for page in access.pages()] == ["operator", "alice"]
            assert [each.created_at for each in access.listing()] == [None, *["2026-11-16T13:41:59.192Z"] * 2]
            assert {path.name for path in data.iterdir()} == {"access.db", "access.lock", "token"}
    (data / "principals.json").write_bytes(kept["principals.json"])  # as after a crash, or from a backup
    with opened(data) as access:
        change(access, "remove_token", "alice")
    with opened(data) as access:
        assert access.who(TOKENS["alice"]) is None and access.who(TOKENS["alices-page"]) is None


@pytest.mark.parametrize("name", ["principals.json", "pages.json"])
@pytest.mark.parametrize("bad", [
    b"", b"{", b"[1]", b"null", b'{"alice":{}}', b'{"alice":{"hash":"x","scopes":["write"],"created_at":""}}',
    b'{"operator":{"hash":"%s","scopes":["read"],"created_at":""}}' % (b"0" * 64), b"\xff\xfe", b"[" * 100_000,
    b'{"bob":{"hash":"%s","scopes":[],"created_at":""}}' % (b"0" * 64),
    b'{"bob":{"hash":"%s","scopes":["planted-token-0123456789"],"created_at":""}}' % (b"0" * 64),
    b'[{"hash":"planted-token-0123456789","name":"alice","of":"x","created_at":""}]',
])  # fmt: skip
def test_broken_files_are_taken_over_in_no_part(data: Path, name: str, bad: bytes) -> None:
    """A start refuses a broken file by its name and changes nothing; repaired, the directory is taken over whole."""
    earlier(data)
    good = (data / name).read_bytes()
    (data / name).write_bytes(bad)
    with pytest.raises(AccessFailed, match=name.replace(".", r"\.")) as caught:
        Access(data).open()
    assert "planted" not in str(caught.value)
    assert (data / name).read_bytes() == bad
    (data / name).write_bytes(good)
    with opened(data) as access:
        assert all(access.who(token) for name, token in TOKENS.items() if name != "lost-page")


TAKING_OVER = """
import itertools, os, signal, sqlite3, sys
from pathlib import Path
from interlock.access import rows
from interlock.access.tokens import Access

count, step = itertools.count(1), int(sys.argv[2])

def deadly(*_):
    if next(count) == step:
        os.kill(os.getpid(), signal.SIGKILL)

real, unlink = rows.connect, Path.unlink

def connect(*args, **named):
    db = real(*args, **named)
    db.set_trace_callback(deadly)
    return db

rows.connect = connect
Path.unlink = lambda *args, **named: (deadly(), unlink(*args, **named))
access = Access(Path(sys.argv[1]))
access.open()
access.close()
"""


def test_kill_9_while_tokens_are_taken_over_loses_none(tmp_path: Path) -> None:
    """Whichever step a start dies at, the next start has every token."""
    for step in range(1, 100):
        data = tmp_path / f"data{step}"
        earlier(data)
        words = [sys.executable, "-c", TAKING_OVER, str(data), str(step)]
        died = subprocess.run(words, capture_output=True, check=False, timeout=BOUND).returncode == -9
        with opened(data) as access:
            assert all(access.who(token) for name, token in TOKENS.items() if name != "lost-page"), step
            assert mode(data / "access.db") == 0o600
        if not died:
            break
    assert step > 10
