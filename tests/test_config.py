"""The settings of `interlock serve`: their sources, which source wins, and the error for a wrong one."""

import re
from pathlib import Path

import pytest

from interlock.config import KINDS, OTHERS, Config, data_directory, read, seconds
from interlock.core.errors import BadInput

ROOT = Path(__file__).parent.parent


def refused(
    directory: Path, *, flags: dict[str, object] | None = None, toml: str | bytes | None = None, **environ: str
) -> str:
    """Return the error for settings that are wrong."""
    if toml is not None:
        (directory / "interlock.toml").write_bytes(toml.encode() if isinstance(toml, str) else toml)
    with pytest.raises(BadInput) as said:
        read(flags or {}, environ, directory)
    return str(said.value)


def test_nothing_given(tmp_path: Path) -> None:
    """The defaults are the demo, on this machine alone, in hosts, with two days for a run."""
    config = read({"port": None, "agents": [], "allow_hosts": (), "config": None}, {"HOME": "/x"}, tmp_path)
    assert config == Config(data=Path("~/.local/state/interlock").expanduser())
    assert (config.agent, config.host, config.port) == ("interlock.demo:agent", "127.0.0.1", 8719)
    assert (config.driver, config.strategy, config.deadline) == ("host", "interrupt", 48 * 3600)
    assert (config.drain_seconds, config.public, config.approval) == (5.0, False, None)


def test_a_kind_for_every_setting() -> None:
    """Every setting can be given by each source."""
    assert set(KINDS) == set(Config.__struct_fields__)


def test_flags_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    """The nearest source wins, field by field; an empty variable says nothing."""
    (tmp_path / "interlock.toml").write_text("port = 1\ndriver = 'inline'\nlog_level = 'debug'\ndrain-seconds = 2")
    environ = {"INTERLOCK_PORT": "2", "INTERLOCK_DRIVER": "host", "INTERLOCK_LOG_LEVEL": ""}
    config = read({"port": 3, "driver": None}, environ, tmp_path)
    assert (config.port, config.driver, config.log_level, config.drain_seconds) == (3, "host", "debug", 2.0)


def test_the_same_from_every_source(tmp_path: Path) -> None:
    """Texts, TOML values and the shell's own values mean the same."""
    flags: dict[str, object] = {
        "agent": "m:f",
        "agents": ["a=m:g", "b=p.q:h"],
        "port": 80,
        "data": tmp_path / "d",
        "deadline": "48h",
        "child_deadline": "30m",
        "agent_deadlines": ["a=90", "b=2m"],
        "idle_limit": "90",
        "queue_limit": "1.5s",
        "allow_hosts": ["x.org", "y.org"],
        "public": True,
        "approval": "read,list",
        "agent_user": "nobody",
    }
    environ = {
        "INTERLOCK_AGENT": "m:f",
        "INTERLOCK_AGENTS": "a=m:g, b=p.q:h",
        "INTERLOCK_PORT": "80",
        "INTERLOCK_DATA": "d",
        "INTERLOCK_DEADLINE": "48h",
        "INTERLOCK_CHILD_DEADLINE": "30m",
        "INTERLOCK_AGENT_DEADLINES": "a=90, b=2m",
        "INTERLOCK_IDLE_LIMIT": "90",
        "INTERLOCK_QUEUE_LIMIT": "1.5s",
        "INTERLOCK_ALLOW_HOSTS": "x.org, y.org",
        "INTERLOCK_PUBLIC": "1",
        "INTERLOCK_APPROVAL": "read, list",
        "INTERLOCK_AGENT_USER": "nobody",
    }
    toml = """
        agent = "m:f"
        port = 80
        data = "d"
        deadline = 172800
        child_deadline = "30m"
        idle-limit = "90"
        queue_limit = 1.5
        allow-hosts = ["x.org", "y.org"]
        public = true
        approval = ["read", "list"]
        agent_user = "nobody"
        [agents]
        a = "m:g"
        b = "p.q:h"
        [agent-deadlines]
        a = 90
        b = "2m"
    """
    (tmp_path / "other.toml").write_text(toml)
    told = read(flags, {}, tmp_path)
    assert told.agents == {"a": "m:g", "b": "p.q:h"} and told.data == tmp_path / "d"
    assert (told.deadline, told.idle_limit, told.queue_limit) == (172_800.0, 90.0, 1.5)
    assert (told.child_deadline, told.agent_deadlines) == (1_800.0, {"a": 90.0, "b": 120.0})
    assert (told.allow_hosts, told.approval) == (("x.org", "y.org"), ("read", "list"))
    assert read({}, environ, tmp_path) == told
    assert read({"config": "other.toml"}, {}, tmp_path) == told
    assert read({"config": tmp_path / "other.toml"}, {}, Path("/")).agents == told.agents


def test_the_agent_s_environment_is_named(tmp_path: Path) -> None:
    """The environment setting takes, from every source, names of variables set at the server's start; never a value."""
    environ = {"MODEL_KEY": "hush", "_B2": ""}
    (tmp_path / "other.toml").write_text('environment = ["MODEL_KEY", "_B2"]')
    assert read({}, environ, tmp_path).environment == ()
    for flags, more in (
        ({"environment": ["MODEL_KEY", "_B2"]}, {}),
        ({}, {"INTERLOCK_ENVIRONMENT": "MODEL_KEY, _B2"}),
        ({"config": "other.toml"}, {}),
    ):
        config = read(flags, environ | more, tmp_path)
        assert config.environment == ("MODEL_KEY", "_B2")
        assert "hush" not in repr(config)


@pytest.mark.parametrize("given", ["MODEL_KEY=hush", "sk-hush", "MODEL_KEY,B=hush", "hush*", "", "1hush", "hush hush"])
def test_a_value_is_no_name_of_a_variable(tmp_path: Path, given: str) -> None:
    """A value in the place of a variable's name is refused, and the error does not repeat it: it may be a key."""
    for said, where in (
        (refused(tmp_path, flags={"environment": ["MODEL_KEY", given]}, MODEL_KEY="x"), "--env"),
        (refused(tmp_path, MODEL_KEY="x", INTERLOCK_ENVIRONMENT=f"MODEL_KEY,{given}"), "INTERLOCK_ENVIRONMENT"),
        (refused(tmp_path, toml=f"environment = ['MODEL_KEY', {given!r}]".replace("'", '"'), MODEL_KEY="x"), "toml:1"),
    ):
        assert where in said and "write its name alone" in said and "hush" not in said


def test_a_variable_that_the_agent_cannot_have(tmp_path: Path) -> None:
    """A variable that is not set, or is interlock's own, is refused at the start: the agent would miss it in a turn."""
    said = refused(tmp_path, flags={"environment": ["MODEL_KEY"]})
    assert "--env: MODEL_KEY is not set where the server was started; export it there" in said
    assert "interlock's own" in refused(tmp_path, flags={"environment": ["INTERLOCK_TOKEN"]}, INTERLOCK_TOKEN="x")
    assert "environment cannot be 5" in refused(tmp_path, toml="environment = 5")


@pytest.mark.parametrize("word", ["never", "ask"])
def test_a_word_for_approval(tmp_path: Path, word: str) -> None:
    """`never` and `ask` stay words; anything else is a list of tools."""
    assert read({"approval": word}, {}, tmp_path).approval == word


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("port", "eighty", "a number from 0 to 65535"),
        ("port", "65536", "a number from 0 to 65535"),
        ("port", "-1", "a number from 0 to 65535"),
        ("deadline", "2 days", "a time: 90, 1.5s, 2m or 48h"),
        ("deadline", "nan", "a time"),
        ("idle_limit", "9" * 400, "a time"),
        ("drain_seconds", "-1", "a time"),
        ("strategy", "polite", "interrupt or queue"),
        ("driver", "thread", "host or inline"),
        ("log_level", "loud", "debug, info"),
        ("public", "perhaps", "true or false"),
        ("agent", "agent.py", "module:callable"),
        ("agents", "m:f", "names, each with its module:callable"),
        ("agents", "=m:f", "names, each with its module:callable"),
        ("child_deadline", "-1", "a time"),
        ("agent_deadlines", "tester", "names of agents, each with its time, as in tester=10m"),
        ("agent_deadlines", "tester=soon", "names of agents, each with its time"),
        ("agent_deadlines", "tester=-1", "names of agents, each with its time"),
        ("agent_deadlines", "=10m", "names of agents, each with its time"),
        ("agent_deadlines", "tester=5s,tester=6s", "names of agents, each with its time, as in tester=10m, and none"),
        ("agents", "a=m:f,a=m:g", "names, each with its module:callable, and none twice"),
        ("allow_hosts", "a,,b", "names, and a comma"),
        ("host", "a\nb", "an address"),
        ("agent_user", " ", "a user's name"),
    ],
)
def test_a_wrong_value_in_every_source(tmp_path: Path, name: str, value: str, right: str) -> None:
    """The error for a wrong value says where it stands, what it is, and what is right."""
    flag = {
        "agent": "AGENT",
        "agents": "--agent",
        "agent_deadlines": "--agent-deadline",
        "allow_hosts": "--allow-host",
    }.get(name, f"--{name.replace('_', '-')}")
    for said, where in (
        (refused(tmp_path, flags={name: value}), flag),
        (refused(tmp_path, **{f"INTERLOCK_{name.upper()}": value}), f"INTERLOCK_{name.upper()}"),
        (refused(tmp_path, toml=f"# settings\n\n{name} = {value!r}".replace("'", '"')), f"interlock.toml:3: {name}"),
    ):
        assert f"{where} cannot be {value[:10]!r}"[:-1] in said and f"write {right}" in said
        assert len(said) < 400 and "\n" not in said


def test_flags_that_are_repeated_are_shown_as_they_were_typed(tmp_path: Path) -> None:
    """The error shows repeated flags as they were typed, and of two times for one agent none is dropped in silence."""
    assert "--agent-deadline cannot be 'tester=x'; write" in refused(tmp_path, flags={"agent_deadlines": ["tester=x"]})
    twice = refused(tmp_path, flags={"agent_deadlines": ["tester=5s", "tester=6s"]})
    assert "--agent-deadline cannot be 'tester=5s,tester=6s'; write" in twice and twice.endswith("and none twice")


@pytest.mark.parametrize(
    "toml",
    [
        "port=true",
        "port=80.5",
        "host=5",
        "deadline=nan",
        "deadline=inf",
        "deadline=-1",
        "child_deadline=nan",
        "child_deadline=-1",
        "child_deadline=true",
        "agent_deadlines=5",
        "agent_deadlines={a=-1}",
        "agent_deadlines={a=nan}",
        "agent_deadlines={a='soon'}",
        "agent_deadlines={a=true}",
        "agent_deadlines={''=5}",
        "public=2",
        "agents=5",
        "agents={a=5}",
        "allow_hosts=[5]",
        "approval=5",
        "strategy=[]",
        "data={}",
    ],
)
def test_a_wrong_type_in_the_file(tmp_path: Path, toml: str) -> None:
    """A TOML value of the wrong type is refused."""
    assert f"interlock.toml:1: {toml.partition('=')[0]} cannot be" in refused(tmp_path, toml=toml)


def test_a_wrong_value_that_is_overridden(tmp_path: Path) -> None:
    """A wrong value is refused even if another source overrides it: someone meant it."""
    assert "INTERLOCK_PORT" in refused(tmp_path, flags={"port": 80}, INTERLOCK_PORT="eighty")


def test_a_name_that_is_nearly_right(tmp_path: Path) -> None:
    """The error for an unknown name gives the nearest known name, or all of them."""
    assert "did you mean INTERLOCK_PORT?" in refused(tmp_path, INTERLOCK_PROT="80")
    assert "did you mean INTERLOCK_DEADLINE?" in refused(tmp_path, INTERLOCK_DEADLINES="")
    said = refused(tmp_path, toml="driver = 'host'\n'ide-limit' = 5")
    assert "interlock.toml:2: there is no setting 'ide-limit'; did you mean idle_limit?" in said
    assert all(name in refused(tmp_path, toml="[serve]\nport = 5") for name in KINDS)
    assert "twice" in refused(tmp_path, toml="idle-limit = 5\nidle_limit = 5")


def test_a_token_is_no_setting(tmp_path: Path) -> None:
    """A token in the file is refused, and the error does not repeat it; the client's variable is left to the client."""
    said = refused(tmp_path, toml="token = 'hush'")
    assert "interlock token" in said and "hush" not in said
    (tmp_path / "interlock.toml").unlink()
    read({}, {"INTERLOCK_TOKEN": "hush", "INTERLOCK_URL": "http://127.0.0.1:1"}, tmp_path)


def test_every_name_in_the_tree_is_known() -> None:
    """A name INTERLOCK_* that the project itself uses never makes `serve` refuse to start."""
    folders = [ROOT / name for name in ("src", "tests", "bench", "proofs", "examples", "Makefile")]
    files = [file for folder in folders for file in ([folder] if folder.is_file() else folder.rglob("*.py"))]
    names = {name for file in files if file != Path(__file__) for name in variables(file)}
    assert {"INTERLOCK_DATA", "INTERLOCK_WORKER", "INTERLOCK_OWNER"} <= names
    settings = {f"INTERLOCK_{name.upper()}" for name in KINDS}
    assert {name for name in names - settings if not OTHERS.fullmatch(name)} == set()


def variables(file: Path) -> list[str]:
    """Return the names in a file that look like ours."""
    return re.findall(r"\bINTERLOCK_[A-Z][A-Z_]*[A-Z]\b", file.read_text("utf-8"))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_a_bind_on_this_machine(tmp_path: Path, host: str) -> None:
    """A loopback address needs no second setting."""
    assert read({"host": host}, {}, tmp_path).host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "127.0.0.1.example.org", "*", "0"])
def test_a_bind_that_others_can_reach(tmp_path: Path, host: str) -> None:
    """An address that others can reach is refused unless a second setting, from any source, asks for it too."""
    assert "--public" in refused(tmp_path, flags={"host": host})
    assert "--public" in refused(tmp_path, flags={"public": False}, INTERLOCK_HOST=host, INTERLOCK_PUBLIC="true")
    assert read({"host": host}, {"INTERLOCK_PUBLIC": "true"}, tmp_path).host == host


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """A named file must be there; every other fault of a file is told with its name."""
    assert "there is no file" in refused(tmp_path, flags={"config": "other.toml"})
    assert "line 2" in refused(tmp_path, toml="port = 1\nport = 2\n")
    for broken in (b"\xff\xfe", "a = " + "[" * 100_000, "port"):
        assert "interlock.toml cannot be read" in refused(tmp_path, toml=broken)
    (tmp_path / "interlock.toml").unlink()
    (tmp_path / "interlock.toml").mkdir()
    assert "interlock.toml cannot be read: Is a directory" in refused(tmp_path)


def test_where_the_data_is(tmp_path: Path) -> None:
    """The data is below the working directory, in the home directory or in the desktop's state; always absolute."""
    assert read({"data": "d"}, {}, tmp_path).data == tmp_path / "d"
    assert read({"data": "~/d"}, {}, tmp_path).data == Path.home() / "d"
    assert read({}, {"XDG_STATE_HOME": "/state"}, tmp_path).data == Path("/state/interlock")
    assert data_directory({"XDG_STATE_HOME": "relative"}) == Path("~/.local/state/interlock")
    assert "say --data DIR" in refused(tmp_path, flags={"data": "~nobody-of-that-name/d"})


def test_times() -> None:
    """A time is read as a person writes it."""
    times = {"90": 90.0, "1.5s": 1.5, "200ms": 0.2, "2m": 120.0, "48h": 172_800.0, " 1 d ": 86_400.0, ".5": 0.5}
    assert {text: seconds(text) for text in times} == pytest.approx(times)
    for text in ("", "-1", "1w", "1e9", "nan", "1 2", "h"):
        with pytest.raises(BadInput, match="is no time; write 90"):
            seconds(text)


def test_it_is_read_once(tmp_path: Path) -> None:
    """A configuration cannot be changed once it was read."""
    config = read({}, {}, tmp_path)
    with pytest.raises(AttributeError):
        config.port = 1  # type: ignore[misc]
