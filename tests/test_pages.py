"""The pages and the example of a configuration say of the code what is true: tables, links, commands."""

from __future__ import annotations

import asyncio
import importlib
import re
from pathlib import Path

import msgspec
import pytest
from typer.main import get_command

from interlock import Receipt, open_control
from interlock.cli.app import command_line
from interlock.config import KINDS, Config, _value, read
from interlock.core.scopes import Scope
from interlock.core.verbs import Measure
from interlock.protocol import frames
from interlock.surfaces.metrics import Meters

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
ROOMS = {"settings": "runtime.settings", "values": "core.values", "frames": "protocol.frames"}
ROOMS |= {name: f"access.{name}" for name in ("audit", "failures", "pairing", "tokens")}
ROOMS |= {name: f"surfaces.gateway.{name}" for name in ("connection", "gateway", "methods")}
UNITS = {"KiB": 1024, "MiB": 1024**2, "s": 1}


def rows(head: str) -> list[list[str]]:
    """Return the rows of the one table in the pages with this head, each cell without its code marks."""
    (text,) = [text for page in DOCS if f"\n| {head} |" in (text := page.read_text("utf-8"))]
    table = text.partition(f"\n| {head} |")[2].partition("\n\n")[0]
    return [[cell.strip().strip("`") for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]


def test_every_method_stands_in_the_page_with_its_scopes() -> None:
    """The table of methods and scopes is the gateway's own."""
    told = {method: tuple(cell.strip() == "yes" for cell in cells[:3]) for method, *cells in rows("method | write")}
    scopes = (Scope.WRITE, Scope.APPROVE, Scope.READ)
    assert told == {name: tuple(scope in each.scopes for scope in scopes) for name, each in frames.METHODS.items()}


def test_every_published_method_stands_in_the_page_with_its_params() -> None:
    """The table names every parameter of a method, marks the required ones, and names no other."""
    told = {method: with_ for method, with_, _ in rows("asked")}
    assert set(told) == {name for name in frames.METHODS if not name.startswith("interlock.")}
    for method, with_ in told.items():
        named = re.sub(r"\([^)]*\)", "", with_)  # words in brackets are about the parameter before
        found = {name: bool(star) for name, star in re.findall(r"(\w+)`?(\\\*)?", named.replace(" or ", " "))}
        fields = msgspec.structs.fields(frames.METHODS[method].params)
        assert found == {field.encode_name: field.required for field in fields}, method


def test_every_event_stands_in_the_page() -> None:
    """The table of events names all of them and no other."""
    assert sorted(name for name, _ in rows("event")) == sorted(frames.EVENTS)


@pytest.mark.parametrize("row", rows("what | bound"), ids=lambda row: str(row[2]))
def test_a_bound_in_the_page_is_the_constants(row: list[str]) -> None:
    """The figure of each bound is that of the constant beside it."""
    room, _, name = row[2].partition(".")
    value = getattr(importlib.import_module(f"interlock.{ROOMS.get(room, f'surfaces.{room}')}"), name)
    found = re.match(r"([\d,.]+)(?: (KiB|MiB|s)\b)?", row[1])
    assert found is not None
    assert float(found[1].replace(",", "")) * UNITS.get(found[2], 1) == value


def test_every_close_code_stands_in_the_page() -> None:
    """The table of close codes is the gateway's own."""
    codes = {frames.NOT_JSON, frames.NOT_TEXT, frames.BROKEN_RULE, frames.TOO_BIG, frames.RESTART, frames.NO_TOKEN}
    assert {int(code) for code, _ in rows("code")} == codes


def test_every_setting_stands_in_the_page_with_its_flag_and_default() -> None:
    """The table of settings is that of `config`, and its flags are those of `interlock serve`."""
    told = {name: (flag, default) for name, flag, default, _ in rows("setting | flag")}
    assert set(told) == set(KINDS) == set(Config.__struct_fields__)
    serve = get_command(command_line()).commands["serve"]  # type: ignore[attr-defined]
    flags = {option for parameter in serve.params for option in parameter.opts if option.startswith("--")}
    assert {flag.split()[0] for flag, _ in told.values()} - {"AGENT"} == flags - {"--config"}
    plain = Config(data=Path("~/.local/state/interlock"))
    for name, (_, default) in told.items():
        usual = getattr(plain, name)
        if default not in ("none", "each tool says"):
            assert _value(KINDS[name][0], default) == (str(usual) if name == "data" else usual), name
        else:
            assert usual in (None, (), {}), name


def test_every_metric_stands_in_the_page() -> None:
    """The table of metrics names exactly the metrics that Prometheus gets."""

    async def names() -> set[str]:
        async with open_control("interlock.demo:agent") as control:
            text = Meters().text(await control.ask(Measure())).decode()
        return set(re.findall(r"^# TYPE (\w+?)(?:_created)? ", text, re.MULTILINE))

    told = {name for name, _, _ in rows("metric")}
    seen = {name for name in asyncio.run(names()) if f"{name}_total" not in told}
    assert seen <= told
    assert told - seen <= {"interlock_hosts_total"}, "hosts are told where there are some"


def test_the_example_of_a_configuration_is_one(tmp_path: Path) -> None:
    """The example of a configuration can be read, and names every setting but the flags that make no sense in one."""
    path = ROOT / "examples" / "interlock.toml"
    found = read({"config": path}, {"HOME": str(tmp_path)}, tmp_path)
    assert msgspec.structs.replace(found, agents={}, data=tmp_path) == Config(data=tmp_path)
    named = set(re.findall(r"^#? ?\[?(\w+)(?: =|\])", path.read_text("utf-8"), re.MULTILINE))
    assert named - set(found.agents) == set(KINDS) - {"json"}


def test_the_receipt_in_the_page_is_one() -> None:
    """The receipt that receipts.md shows can be read as one, and has every field but those it names below."""
    page = (ROOT / "docs" / "receipts.md").read_text("utf-8")
    shown = re.sub(r" *// .*", "", page.partition("```jsonc\n")[2].partition("```")[0])
    msgspec.json.decode(shown, type=Receipt)
    assert {*msgspec.json.decode(shown), "host", "kept", "in_flight"} == set(Receipt.__struct_fields__)


def test_every_field_that_is_not_used_stands_in_the_page() -> None:
    """The fields that the page calls refused or ignored are those that the gateway refuses or ignores."""
    told = {method: [set(re.findall(r"\w+", cell)) for cell in cells] for method, *cells in rows("method | refused")}
    assert told == {
        name: [set(method.refused), set(method.ignored)] for name, method in frames.METHODS.items() if method.refused
    }


PAGES = [*sorted(ROOT.glob("*.md")), *DOCS]


def anchors(page: Path) -> set[str]:
    """Return GitHub's anchors for the headings of a page; a line inside a program is no heading."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_between_the_pages_leads_somewhere(page: Path) -> None:
    """Every link leads to a file that exists, and to a heading in it."""
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if not link.startswith(("http:", "https:")):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def test_every_page_is_listed_once() -> None:
    """docs/README.md lists every page by what a reader wants to do, and README.md leads there."""
    index = (ROOT / "docs" / "README.md").read_text("utf-8").partition("\n## ")[2]
    assert sorted(re.findall(r"^\* \[(\w+\.md)\]\(\1\): ", index, re.MULTILINE)) == sorted(
        page.name for page in DOCS if page.name not in ("README.md", "quickstart.md")
    )
    assert "](docs/README.md)" in (ROOT / "README.md").read_text("utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_in_the_pages_exists(page: Path) -> None:
    """A command of `interlock` or of make that a page names exists, with each of its flags."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for code in re.findall(r"`([^`\n]+)`", text):
        words = re.split(r" -- | \\\| ", code)[0].replace(",", " ").split()
        if words[0] == "make" and len(words) > 1:
            assert words[1] in targets, code
        if words[0] == "interlock" and len(words) > 1:
            command = get_command(command_line())
            for word in words[1:]:
                command = getattr(command, "commands", {}).get(word, command)
            known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
            assert command.name in words, code
            assert {word for word in words if word.startswith("-")} <= known, code
