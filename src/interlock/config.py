"""The settings of `interlock serve`: flags over INTERLOCK_* over interlock.toml over defaults.

1. Settings are read once, here; no other code reads the environment or the file for a setting.
2. Every wrong value is refused, also one that a flag overrides: the error says where it stands and what is right.
3. An unknown name is refused, with the nearest known one. INTERLOCK_* variables of other programs (OTHERS) are ignored.
4. Secrets are no settings: tokens live in the data directory, and the agent's variables are named without their values.
5. To listen where other machines can connect takes two settings, `host` and `public`.
"""

import difflib
import ipaddress
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from interlock.core.errors import BadInput
from interlock.core.names import Strategy

DEFAULT_PORT: Final = 8719
OTHERS: Final = re.compile(r"INTERLOCK_(URL|TOKEN|WORKER|OWNER|ALL_SUITES|STOPS_WITNESS|(TEST|CRASH)(_\w+)?)")
UNITS_OF_TIME: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
FLAGS: Final = {
    "agent": "AGENT",
    "agents": "--agent",
    "agent_deadlines": "--agent-deadline",
    "allow_hosts": "--allow-host",
    "allow_origins": "--allow-origin",
    "stop_words": "--stop-word",
    "environment": "--env",
}


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of `interlock serve`. Times are in seconds; a limit of 0 is none."""

    agent: str = "interlock.demo:agent"
    agents: dict[str, str] = {}
    name: str | None = None  # what people call the agent; None: the name of its callable
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    data: Path
    strategy: Strategy = Strategy.INTERRUPT
    deadline: float = 172_800.0
    child_deadline: float | None = None
    agent_deadlines: dict[str, float] = {}
    idle_limit: float | None = None
    queue_limit: float | None = None
    driver: str = "host"
    agent_user: str | None = None
    environment: tuple[str, ...] = ()  # names of further variables that the agent sees
    drain_seconds: float = 5.0
    allow_hosts: tuple[str, ...] = ()
    allow_origins: tuple[str, ...] = ()
    public: bool = False
    approval: str | tuple[str, ...] | None = None  # as open_control takes it
    stop_words: tuple[str, ...] = ()  # in addition to core/vocabulary's
    log_level: str = "info"
    json: bool = False


def read(flags: Mapping[str, object], environ: Mapping[str, str], directory: Path) -> Config:
    """Return the settings; `flags` may name a `config` file, and relative paths start in `directory`."""
    found: dict[str, object] = {"data": str(data_directory(environ))}
    for source in (_file(directory, flags.get("config")), _environment(environ), _flags(flags)):
        for name, value, where in source:
            if name == "environment":
                _refuse_values(value, where, environ)
            try:
                found[name] = _value(KINDS[name][0], value)
            except (BadInput, msgspec.ValidationError):
                given = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
                raise BadInput(f"{where} cannot be {given!r:.80}; write {KINDS[name][1]}") from None
    try:
        data = directory / Path(str(found["data"])).expanduser()
    except RuntimeError:
        raise BadInput(f"{found['data']}: this user has no home directory; say --data DIR") from None
    config = Config(**{**found, "data": data})  # type: ignore[arg-type]
    if not config.public and not _loopback(config.host):
        raise BadInput(f"{config.host} is not this machine alone; serve on 127.0.0.1, or say --public if you mean it")
    return config


def data_directory(environ: Mapping[str, str]) -> Path:
    """Return the default data directory, for when neither --data nor INTERLOCK_DATA names one."""
    state = environ.get("XDG_STATE_HOME", "")
    return (Path(state) if state.startswith("/") else Path("~/.local/state")) / "interlock"


def seconds(text: str) -> float:
    """Read a time: 90, 1.5s, 200ms, 2m, 1h."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)", text.strip())
    if found is None or found[2] not in UNITS_OF_TIME:
        raise BadInput(f"{text!r:.80} is no time; write 90, 1.5s, 200ms, 2m or 1h")
    return float(found[1]) * UNITS_OF_TIME[found[2]]


# The sources: each yields a setting's name, its value, and the place where it stands


def _flags(flags: Mapping[str, object]) -> Iterator[tuple[str, object, str]]:
    for name, value in flags.items():
        if name != "config" and value is not None and value not in ([], ()):
            yield name, str(value) if isinstance(value, Path) else value, FLAGS.get(name, "--" + name.replace("_", "-"))


def _environment(environ: Mapping[str, str]) -> Iterator[tuple[str, object, str]]:
    names = {f"INTERLOCK_{name.upper()}": name for name in KINDS}
    for variable, text in environ.items():
        if variable in names and text:
            yield names[variable], text, variable
        elif variable.startswith("INTERLOCK_") and variable not in names and not OTHERS.fullmatch(variable):
            raise BadInput(f"{variable!r:.80} is no setting of interlock; {_nearest(variable, names)}")


def _file(directory: Path, named: object) -> Iterator[tuple[str, object, str]]:
    path = directory / str(named or "interlock.toml")
    try:
        text = path.read_text("utf-8")
        import tomllib  # noqa: PLC0415 - the shell's verbs read no file

        values = tomllib.loads(text)
    except FileNotFoundError:
        if named is None:
            return
        raise BadInput(f"there is no file {path}; write it, or leave --config out") from None
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    for key, value in values.items():
        line = re.search(rf"^[ \t\[]*[\"']?{re.escape(key)}[\"']?\s*[=.\]]", text, re.MULTILINE)
        where = f"{path}:{text.count(chr(10), 0, line.start()) + 1}" if line else str(path)
        if key in ("token", "tokens"):
            raise BadInput(f"{where}: a token is no setting; `interlock token` keeps them, take it out of the file")
        if key.replace("-", "_") not in KINDS:
            raise BadInput(f"{where}: there is no setting {key!r:.80}; {_nearest(key.replace('-', '_'), KINDS)}")
        if "-" in key and key.replace("-", "_") in values:
            raise BadInput(f"{where}: {key} is there twice, with - and with _; take one out")
        yield key.replace("-", "_"), value, f"{where}: {key}"


def _nearest(name: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name[:80], known, 1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"


# What a value must be


def _value(kind: object, value: object) -> object:
    """Return a setting's value, from a text or a TOML value."""
    if isinstance(value, str):
        value = value.strip()
        if kind is Time:
            value = seconds(value)
        elif kind in (Names, Agents, Times, Variables) or (kind is Approval and value not in ("never", "ask")):
            value = value.split(",")
    if isinstance(value, list | tuple):
        value = [part.strip() if isinstance(part, str) else part for part in value]
        if kind in (Agents, Times):
            pairs = [str(part).partition("=")[::2] for part in value]
            value = dict(pairs)
            if len(value) < len(pairs):
                raise BadInput("a name is given twice")
    if kind is Times and isinstance(value, dict):
        value = {name: seconds(each) if isinstance(each, str) else each for name, each in value.items()}
    return msgspec.convert(value, kind, strict=False)


def _refuse_values(value: object, where: str, environ: Mapping[str, str]) -> None:
    """Refuse a variable that is not set, and a text that is no variable's name; do not repeat it: it may be a key."""
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else ()
    for name in (str(part).strip() for part in parts):
        if not VARIABLE.fullmatch(name):
            raise BadInput(
                f"{where} takes the names of variables, not their values, which others could read there; "
                "export the variable where the server is started, and write its name alone"
            )
        if name.startswith("INTERLOCK_"):
            raise BadInput(f"{where} cannot be {name!r:.80}: that is interlock's own; leave it out")
        if name not in environ:
            raise BadInput(
                f"{where}: {name:.80} is not set where the server was started; export it there, or leave it out"
            )


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name may resolve to any machine
        return False


Text = Annotated[str, Meta(pattern=r"^[^\x00-\x20\x7f][^\x00-\x1f\x7f]*\Z")]
Agent = Annotated[str, Meta(pattern=r"^[^\W\d][\w.]*:[^\W\d][\w.]*\Z")]
Agents = dict[Text, Agent]
Names = tuple[Text, ...]
VARIABLE: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
Variables = tuple[Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z")], ...]
Approval = Literal["never", "ask"] | Names
Time = Annotated[float, Meta(ge=0, le=1e9)]
Times = dict[Text, Time]

KINDS: Final[dict[str, tuple[object, str]]] = {
    "agent": (Agent, "module:callable, as in myagents.chat:assistant"),
    "agents": (Agents, "names, each with its module:callable, and none twice"),
    "name": (Text, "what people call the agent"),
    "host": (Text, "an address or a name"),
    "port": (Annotated[int, Meta(ge=0, le=65_535)], "a number from 0 to 65535"),
    "data": (Text, "a directory"),
    "strategy": (Strategy, " or ".join(Strategy)),
    **dict.fromkeys(
        ("deadline", "child_deadline", "idle_limit", "queue_limit", "drain_seconds"),
        (Time, "a time: 90, 1.5s, 2m or 48h"),
    ),
    "agent_deadlines": (Times, "names of agents, each with its time, as in tester=10m, and none twice"),
    "driver": (Literal["host", "inline"], "host or inline"),
    "agent_user": (Text, "a user's name"),
    "environment": (Variables, "names of variables, and a comma before the next"),
    **dict.fromkeys(("allow_hosts", "allow_origins"), (Names, "names, and a comma before the next")),
    **dict.fromkeys(("public", "json"), (bool, "true or false")),
    "stop_words": (Names, "words that stop, and a comma before the next"),
    "approval": (Approval, "never, ask, or the tools that need none"),
    "log_level": (Literal["debug", "info", "warning", "error"], "debug, info, warning or error"),
}
