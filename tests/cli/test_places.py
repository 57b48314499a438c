"""The command finds a store's directory or refuses in one sentence, and takes the session names that people write."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import msgspec

from interlock import Control
from interlock.cli.documents import Runs, Sessions

from .scene import BOUND, Filled, document, interlock, refused, serve, told

SOMEONE_ELSE = """
import contextlib, io, os, sys
from interlock.cli import main
from interlock.cli.app import command_line
if os.geteuid() == 0:
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())):  # as root first: later nothing can be imported
        command_line()(sys.argv[1:], standalone_mode=False)
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
main()
"""


def test_what_is_not_there_is_one_sentence(filled: Filled, tmp_path: Path) -> None:
    """A missing run, session or store, a foreign database, a later schema: exit 1 and one line, never a traceback."""
    data = shutil.copytree(filled.data, tmp_path / "data")
    assert "no run 'r-9-9'" in refused("show", "r-9-9", "--data", data)
    assert "no session 'nobody'" in refused("runs", "--session", "nobody", "--data", data)
    assert "write 12h, 30d or 8w" in refused("prune", "--older-than", "soon", "--data", data)
    with sqlite3.connect(data / "interlock.db") as db:
        db.execute("PRAGMA user_version = 999")
    (tmp_path / "empty").mkdir()
    for name in ("noise", "other", "blank"):
        (tmp_path / name).mkdir()
    (tmp_path / "noise" / "interlock.db").write_bytes(b"no database " * 100)
    (tmp_path / "blank" / "interlock.db").touch()
    with sqlite3.connect(tmp_path / "other" / "interlock.db") as db:
        db.execute("CREATE TABLE runs (id)")
        db.execute("PRAGMA user_version = 1")
    cases = {
        "missing": "holds no interlock store; name its directory with --data",
        "empty": "holds no interlock store",
        "empty/file": "holds no interlock store",
        "noise": "file is not a database",
        "other": "is no interlock store",
        "blank": "is no interlock store",
        "data": "has schema 999, this version knows ",
    }
    (tmp_path / "empty" / "file").touch()
    for name, words in cases.items():
        assert words in refused("runs", "--json", "--data", tmp_path / name), name
    assert cases["other"] in refused("prune", "--data", tmp_path / "other")
    assert not (tmp_path / "missing").exists()


def test_a_directory_of_someone_else_is_one_sentence(tmp_path: Path) -> None:
    """Files and directory are for their owner; a user who may not read them is told so."""
    data = tmp_path / "data"
    serve(data, lambda control: control.send("alice", "greet"))
    assert data.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in data.iterdir()} == {0o600}
    if os.geteuid() != 0:
        data.chmod(0)
    for command in ("sessions", "runs", "prune"):
        done = subprocess.run(
            [sys.executable, "-c", SOMEONE_ELSE, command, "--data", data],
            capture_output=True, text=True, check=False, timeout=BOUND, cwd="/",
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"interlock: {data} cannot be read: Permission denied\n"
    data.chmod(0o700)
    told("runs", data=data)
    assert {file.stat().st_mode & 0o777 for file in data.iterdir()} == {0o600}


def test_the_directory_is_found_by_option_variable_and_habit(tmp_path: Path) -> None:
    """The directory is that of --data, then INTERLOCK_DATA, then XDG_STATE_HOME, then the home directory."""
    places = ("option", "variable", "xdg/interlock", "home/.local/state/interlock")
    for place in places:
        serve(tmp_path / place, lambda control, place=place: control.send(place.replace("/", "-"), "greet"))  # type: ignore[misc]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "INTERLOCK_"))}
    env["HOME"] = str(tmp_path / "home")

    def session(*options: str | Path, **more: str) -> str:
        done = interlock("sessions", "--json", *options, env={**env, **more})
        assert done.returncode == 0, done.stderr
        return msgspec.json.decode(done.stdout, type=Sessions).sessions[0].id

    state = {"XDG_STATE_HOME": str(tmp_path / "xdg")}
    assert session() == "home-.local-state-interlock"
    assert session(XDG_STATE_HOME="not/absolute") == "home-.local-state-interlock"
    assert session(**state) == "xdg-interlock"
    assert session(INTERLOCK_DATA=str(tmp_path / "variable"), **state) == "variable"
    assert session("--data", tmp_path / "option", INTERLOCK_DATA=str(tmp_path / "variable"), **state) == "option"


def test_a_session_is_named_as_people_write_it(tmp_path: Path) -> None:
    """A session is named by its id, with its owner, or bare if unique; otherwise the command lists the candidates."""

    async def use(control: Control) -> None:
        for session, by in (("ann/main", "ann"), ("bob/main", "bob"), ("bob/notes", "bob"), ("main", "local")):
            await control.wait((await control.send(session, f"of {by}", by=by)).run_id, drained=True)
        await control.share("ann/main", with_="bob", may="read", by="ann")
        await control.share("ann/main", with_="carol", by="ann")

    data = tmp_path / "data"
    serve(data, use)
    found = {each.id: each for each in document(Sessions, "sessions", data=data).sessions}
    assert {session: each.owner for session, each in found.items()} == {
        "ann/main": "ann", "bob/main": "bob", "bob/notes": "bob", "main": "local"
    }  # fmt: skip
    assert found["ann/main"].shares == {"bob": "read", "carol": "write"} and found["bob/main"].shares == {}
    lines = told("sessions", data=data).splitlines()
    assert lines[0].split()[:4] == ["session", "owner", "shared", "with"]
    (line,) = [line for line in lines if line.startswith("ann/main")]
    assert "bob (read), carol (write)" in line
    for name, texts in (("ann/main", ["of ann"]), ("notes", ["of bob"]), ("local/main", ["of local"])):
        listed = document(Runs, "runs", "--session", name, data=data).runs
        assert [run.text for run in listed] == texts, name
    which = interlock("runs", "--session", "main", "--data", data)
    assert which.returncode == 1 and "ann/main, bob/main, local/main; write one of these" in which.stderr
    assert "no session 'carol/main'" in interlock("runs", "--session", "carol/main", "--data", data).stderr
