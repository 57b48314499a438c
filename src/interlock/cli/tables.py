"""The tables that the shell prints of a store or a gateway: sessions, runs, one run."""

import time

from interlock.cli.documents import ProcessLine, RunLine, Runs, SessionLine, Sessions, Shown
from interlock.cli.printing import count, facts_of, line_of, print_line, print_table
from interlock.core.decision import QuestionRow, ToolRow
from interlock.core.names import Drain, Ending, RunKind, ToolState
from interlock.core.projection import client_words
from interlock.core.receipt import Receipt
from interlock.core.timeline import Moment

UNITS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))
UNSETTLED = "unsettled: the next start settles it"


def tell_sessions(found: Sessions) -> None:
    """Print a list of sessions."""
    used = found.in_use
    table = [
        (
            each.id,
            each.owner,
            _shares(each),
            str(each.runs),
            str(each.open),
            _ago(each.latest_at),
            _standing(each, used),
        )
        for each in found.sessions
    ]
    heads = ("session", "owner", "shared with", "runs", "open", "last message", "")
    print_table(heads, table, empty=f"no sessions in {found.data}")


def tell_runs(found: Runs, session: str | None) -> None:
    """Print a list of runs."""
    table = [
        ("  " * run.depth + run.id, run.session, _by(run), _ago(run.admitted_at), _run_words(run), run.text)
        for run in found.runs
    ]
    where = found.data if session is None else f"session {session}"
    print_table(("run", "session", "by", "admitted", "how it stands", "message"), table, empty=f"no runs in {where}")
    if found.more:
        print_line("these are the latest; --all lists every run")


def tell_run(found: Shown) -> None:
    """Print what is known of one run."""
    run = found.run
    facts = [
        ("run", f"{run.id} of session {run.session}, {_whose(run)}, {_ago(run.admitted_at)}"),
        ("child", f"of {run.parent}, by agent {run.agent}{_detached(run)}" if run.parent is not None else ""),
        ("message", run.text),
        ("outcome", _run_words(run)),
        ("session", "parked: it takes no message until it is reset" if found.parked else ""),
        ("reply", ("(cut) " if _was_cut(run) else "") + found.reply),
        *(("tool", _tool_words(tool, run)) for tool in found.tools),
        *(("question", _question_words(question)) for question in found.questions),
        *(("process", _process_words(process, run)) for process in found.processes),
        ("receipt", "" if found.receipt is None else _receipt_words(found.receipt, found.in_use)),
    ]
    for name, value in facts:
        if value:
            print_line(f"{name:9} {line_of(value)}")
    if found.timeline:
        print_line("")
        began = found.timeline[0].at
        print_table(("when", "what", "", "", ""), [_moment_cells(moment, began) for moment in found.timeline])


# Words


def _shares(session: SessionLine) -> str:
    return ", ".join(f"{who} ({may})" for who, may in sorted(session.shares.items()))


def _standing(session: SessionLine, in_use: bool) -> str:
    if session.parked:
        return f"parked after {count(session.crashes, 'crash')} in a row: reset it to go on"
    return UNSETTLED if session.open and not in_use else ""


def _by(run: RunLine) -> str:
    """Return who sent a run's message: a principal, an agent (to its child), or the child whose end it announces."""
    if run.kind in (RunKind.ANNOUNCE, RunKind.NOTE):  # the key of an announcement is the child's id
        return f"child {run.key}" + (" (note)" if run.kind is RunKind.NOTE else "")
    return f"{run.agent}{_detached(run)}" if run.parent is not None else run.agent or run.principal


def _whose(run: RunLine) -> str:
    if run.kind is RunKind.ANNOUNCE:
        return f"announces the end of child {run.key}"
    if run.kind is RunKind.NOTE:
        return f"a note of the end of child {run.key}"
    return f"by {run.principal}"


def _detached(run: RunLine) -> str:
    return ", detached" if run.detached else ""


def _run_words(run: RunLine) -> str:
    """Return a run's ending or state in a few words."""
    if run.outcome is not None:
        return client_words(run.outcome)
    if run.state.aliased:
        return f"part of {run.alias}"
    if not run.unsettled:
        return run.state
    return UNSETTLED if run.started or run.parent is not None else "queued: the next start takes it up"


def _was_cut(run: RunLine) -> bool:
    return run.outcome is not None and bool(run.outcome.text) and run.outcome.ending is not Ending.COMPLETED


def _tool_words(tool: ToolRow, run: RunLine) -> str:
    unknown = tool.state is ToolState.RUNNING and run.unsettled
    return f"{'started, outcome unknown' if unknown else tool.state}: {tool.name}({tool.arguments})"


def _question_words(question: QuestionRow) -> str:
    answer = "" if question.answer is None else f" {question.answer} by {question.by}"
    return f"{question.state}{answer}: {question.text}"


def _process_words(process: ProcessLine, run: RunLine) -> str:
    state = process.state
    if state == "ended":
        state = "ended with the server" if run.outcome is None else "ended with its run"
    elif process.status is not None:
        state = f"{state} with {process.status}"
    return f"{state}: {process.command}" + (f" ({process.name})" if process.name else "")


def _receipt_words(receipt: Receipt, in_use: bool) -> str:
    took, detached = receipt.fence_to_drained_ms, receipt.processes.detached
    after = "" if took is None else f" after {took / 1000:.3f} s"
    if receipt.drain is Drain.PENDING and not in_use:
        after = " (the next start completes it)"
    ended, refused, kept, left = facts_of(receipt)
    apart = f"{detached} detached" if detached else ""
    said = (f"{receipt.id}", f"drain {receipt.drain}{after}", ended, apart, kept, refused, left)
    return "; ".join(filter(None, said))


def _moment_cells(moment: Moment, began: float) -> tuple[str, ...]:
    more = moment.detail or (f"{moment.count} times" if moment.count > 1 else "")
    return (f"+{max(0.0, moment.at - began):.3f} s", moment.what, moment.name, moment.state, more)


def _ago(at: float | None) -> str:
    """Return how long ago an instant was: 3 min ago."""
    passed = 0.0 if at is None else time.time() - at
    for seconds, unit in UNITS:
        if passed >= seconds:
            return f"{passed // seconds:.0f} {unit} ago"
    return "never" if at is None else "just now"
