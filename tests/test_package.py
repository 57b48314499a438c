"""The wheel works alone: in an empty environment, outside the repository, as somebody installs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parent.parent
SECONDS = 120  # for pip, with all it must fetch
BASE = {"anyio", "cronsim", "idna", "interlock", "msgspec", "typing_extensions"}


def plain() -> dict[str, str]:
    """Return the environment without variables that lead back to the repository, or to somebody's gateway."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("INTERLOCK_", "PYTHON"))}


class Installed:
    """An environment of its own, with the packages that pip was asked for and nothing else."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.home = place / "home"
        self.home.mkdir(parents=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / "venv"], check=True, timeout=SECONDS)

    def install(self, wheel: Path, extra: str = "") -> None:
        """Install the wheel from outside: the environment needs no pip, which Debian splits off."""
        python = self.place / "venv" / "bin" / "python"
        pip = [sys.executable, "-m", "pip", f"--python={python}", "install", "-q", "--no-compile"]
        subprocess.run([*pip, f"{wheel}{extra}"], check=True, timeout=SECONDS)

    def command(self, name: str, *arguments: object) -> dict[str, Any]:
        """Return how to start a program of the environment, in its own home."""
        argv = [str(self.place / "venv" / "bin" / name), *map(str, arguments)]
        return {"args": argv, "cwd": self.home, "env": plain() | {"HOME": str(self.home)}, "text": True}

    def run(self, name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment to its end."""
        return subprocess.run(**self.command(name, *arguments), capture_output=True, check=False, timeout=60)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of this tree."""
    place = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", place, ROOT]
    subprocess.run(command, check=True, timeout=SECONDS)
    (found,) = place.glob("*.whl")
    return found


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    """The wheel holds every file of the package, SQL and the model too, and neither tests nor pages."""
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = (path for path in (ROOT / "src" / "interlock").rglob("*") if path.is_file())
    kept = {path.relative_to(ROOT / "src").as_posix() for path in files if "__pycache__" not in path.parts}
    assert names == kept
    assert any(name.endswith(".sql") for name in names)


def test_the_base_package_needs_three_others(wheel: Path, tmp_path: Path) -> None:
    """The base package has no server and no command line, and its command says in one line what to install."""
    alone = Installed(tmp_path)
    alone.install(wheel)
    site = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    assert {path.name.split("-")[0] for path in site.glob("*.dist-info")} <= BASE
    program = "import interlock, interlock.app, interlock.client; print(interlock.Strategy.STEER)"
    assert alone.run("python", "-W", "error", "-c", program).stdout == "steer\n"
    said = alone.run("interlock", "serve")
    assert (said.returncode, said.stdout, said.stderr.count("\n")) == (125, "", 1)
    assert "pip install 'interlock[" in said.stderr


@pytest.mark.parametrize(
    ("missing", "words", "extra"),
    [("uvloop", "serve", "serve"), ("uvicorn", "serve", "serve"), ("websockets", "send hello", "client")],
)
def test_a_command_without_its_extra_names_it(missing: str, words: str, extra: str, tmp_path: Path) -> None:
    """A command whose extra is not installed says in one line which extra to install."""
    (tmp_path / "token").write_text("a" * 40)
    program = f"import sys; sys.modules[{missing!r}] = None; from interlock.cli import main; main()"
    said = subprocess.run(
        [sys.executable, "-c", program, *words.split(), "--data", tmp_path],
        env=plain(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (said.returncode, said.stdout, said.stderr.count("\n")) == (125, "", 1), said.stderr
    assert f"pip install 'interlock[{extra}]'" in said.stderr


class Gateway:
    """`interlock serve` of the installed package, ready."""

    def __init__(self, installed: Installed) -> None:
        self._installed = installed
        self.data = installed.home / "data"
        self._log = (installed.home / "serve.log").open("w+")
        command = installed.command("interlock", "serve", "--json", "--port", 0, "--data", self.data)
        self.process = subprocess.Popen(**command, stdout=subprocess.PIPE, stderr=self._log)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log()
        self.ready = json.loads(line)

    def log(self) -> str:
        """Return the gateway's error output."""
        self._log.seek(0)
        return self._log.read()

    def __call__(self, *words: object, code: int = 0) -> str:
        """Run a command of the shell against the gateway and return what was printed."""
        where = ("--data", self.data)
        where += () if words[0] in ("runs", "token") else ("--url", self.ready["url"])
        said = self._installed.run("interlock", *words, *where)
        assert said.returncode == code, (words, said.stdout, said.stderr, self.log())
        return said.stdout

    def close(self) -> None:
        """Kill the gateway if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        self._log.close()


@pytest.fixture(scope="module")
def gateway(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Serve a gateway of the wheel, with the extra that serving needs."""
    installed = Installed(tmp_path_factory.mktemp("installed"))
    installed.install(wheel, "[serve]")
    served = Gateway(installed)
    yield served
    served.close()


def below(pid: int) -> set[tuple[int, str]]:
    """Return every process below this one, each with the moment it began: a process number alone may come back."""
    parents: dict[int, list[tuple[int, str]]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(words[1]), []).append((int(path.parent.name), words[19]))
    found: set[tuple[int, str]] = set()
    left = [pid]
    while left:
        children = parents.get(left.pop(), [])
        found.update(children)
        left.extend(child for child, _ in children)
    return found


def alive(process: tuple[int, str]) -> bool:
    """Return whether a process is still there."""
    try:
        words = Path(f"/proc/{process[0]}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return words[19] == process[1] and words[0] != "Z"


def test_serve_send_and_stop_work_from_the_wheel(gateway: Gateway) -> None:
    """The demo, served by the wheel alone, answers, is stopped, has a receipt, and leaves nothing at the end."""
    assert gateway.ready["event"] == "ready"
    assert Path(gateway.ready["tokenFile"]).stat().st_mode & 0o777 == 0o600
    assert "story [seconds]" in gateway("send", "--watch", "help")

    run = gateway("send", "story").strip()
    receipt = json.loads(gateway("stop", "--wait", "--json"))
    assert (receipt["aborted"], receipt["drain"], [each["id"] for each in receipt["runs"]]) == (True, "observed", [run])
    assert gateway("wait", run, code=130) == "stopped by operator\n"
    assert gateway("stop").startswith("nothing to stop")
    assert gateway("wait", "r-9-9", code=125) == "", "why stands in the error output"

    daemon = gateway("send", "daemon").strip()
    runs = {each["id"]: each for each in json.loads(gateway("runs", "--json"))["runs"]}
    assert {run, daemon} < set(runs)
    assert gateway("token", "list").split() == ["operator", "admin"]

    family = below(gateway.process.pid)
    assert family, "agents are served in processes of their own"
    gateway.process.send_signal(signal.SIGTERM)
    assert gateway.process.wait(60) == 0, gateway.log()
    end = monotonic() + 30
    while (left := [each for each in family if alive(each)]) and monotonic() < end:
        sleep(0.02)
    assert not left
    assert "Traceback" not in gateway.log()
