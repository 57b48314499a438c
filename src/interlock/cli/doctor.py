"""`interlock doctor`: what this machine allows, and what to change."""

import asyncio
import os
import sys
from typing import Annotated

import msgspec
import typer

from interlock.cli.printing import draw, draw_table, milliseconds, print_json
from interlock.hosts.doctor import examine_agent
from interlock.processes.doctor import Report, examine

commands = typer.Typer()


@commands.command("doctor", short_help="Say what this machine allows and what to change.")
def doctor_command(
    agent: Annotated[
        str | None, typer.Argument(help="An agent, module:name, to try in a host.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the facts as JSON.")] = False,
) -> int:
    """Try how surely processes can be ended on this machine, and say what would make it better.

    With an agent, its module is imported in a process of its own and a host is started for it.
    """
    report = asyncio.run(examine())
    if agent is not None:
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - where its module is, as a rule
        report = msgspec.structs.replace(report, facts=(*report.facts, *asyncio.run(examine_agent(agent))))
    if as_json:
        print_json(report)
    else:
        _draw(report)
    broken = any(fact.name == "agent" and fact.good is False for fact in report.facts)
    return 0 if report.grade is not None and not broken else 1


def _draw(report: Report) -> None:
    from rich.text import Text  # noqa: PLC0415 - slow to import, and JSON does not need it

    marks = {True: Text("✓", "green"), False: Text("✗", "yellow"), None: Text(" ")}
    why = f"  (not better, {report.why})" if report.why else ""
    draw(Text.assemble("Grade: ", (report.grade or "none", "bold"), (why, "dim")))
    tried = {
        each: each.why or f"two processes gone in {milliseconds(each.gone_ms or 0.0)} ms" for each in report.trials
    }
    grades = [(marks[it.works], it.grade, words, "\n".join(it.unseen)) for it, words in tried.items()]
    title = "How processes are held and ended, best first"
    draw_table(("", "grade", "tried", "cannot reach"), grades, title=title)
    facts = [(marks[fact.good], fact.name, fact.found, fact.change) for fact in report.facts]
    draw_table(("", "what", "here", "to make it better"), facts, title="What was found")
