"""The projection against surfaces.md §1, which is kept here as text and read cell by cell."""

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.errors import BadInput
from interlock.core.names import ENDINGS, Ending, ErrorKind, KnownPhase, LimitOf, Principal, RunId, ToolState
from interlock.core.outcome import Outcome
from interlock.core.projection import (
    LOST_RESULT,
    TABLE,
    TIMEOUT_PHASES,
    WHY_CHARS,
    Acp,
    AgentWait,
    Projection,
    agent_wait,
    announcement,
    channel_words,
    chat_event,
    client_words,
    completions,
    native,
    parent_word,
    project,
    responses,
    row,
    tool_words,
)

# A copy of the table of surfaces.md §1; compare it there, not with projection.py.
SURFACES = """
| ending | `agent.wait`; `agent` second frame; replay of a used key (status · stopReason) | `chat` event | `agent` lifecycle | Responses `status` · last stream event · HTTP code and error code if not streamed | chat.completions | ACP v1 | tasks.* status | session row | parent of a child run | client, page, terminal | chat channel says | CLI exit |
|---|---|---|---|---|---|---|---|---|---|---|---|---|
| completed | ok | final | end | completed · response.completed · 200 | finish_reason stop | end_turn | completed | done | ok + result | completed | the reply | 0 |
| failed | error | error, errorKind by cause | error | failed · response.failed · 422 `server_error` (`provider_error`) | error object | JSON-RPC error −32010 **(ours)**, `data.outcome` | failed | failed | error + reason | failed: why | one line why | 1 |
| stopped | error · `stop` (text) or `rpc` | aborted, stopReason | end, status cancelled | cancelled · response.incomplete whose status is cancelled · 422 `stopped` | error object, code `stopped` | cancelled | cancelled | stopped | cancelled | stopped by … | "Stopped." + receipt line | 130 |
| superseded | error · `superseded` | aborted, stopReason superseded | end, status superseded | incomplete, reason `superseded` (`steered` after a WebSocket steer) · response.incomplete · 422 `superseded` | error object, code `superseded` | cancelled, `_meta.outcome` | cancelled | superseded | cancelled (superseded by …) | superseded by … | nothing (the new reply speaks) | 130 |
| timed_out | timeout · + timeoutPhase, providerStarted | error, errorKind timeout | error, status timeout | failed, error.code `timeout` · response.failed · 422 `timeout` | error object, code `timeout` | JSON-RPC error −32800 (v1: internal timeouts), `data.outcome` | timed_out | timed_out | timeout + phase | timed out after … in phase … | "Timed out after …" | 124 |
| parent_ended | error · `parent` | aborted, stopReason parent | end, status cancelled | cancelled · response.incomplete whose status is cancelled · 422 `stopped` | error object, code `stopped` | cancelled | cancelled | stopped | (has itself ended) | ended with its parent | nothing | 130 |
| shutdown | error · `restart` | aborted, stopReason restart | end, status cancelled | incomplete, reason `restart` · response.incomplete · 422 `restart` | error object, code `restart` | cancelled, `_meta.outcome` | cancelled | interrupted | interrupted | interrupted by a restart | "Restarting; this answer was cut." | 143 |
| lost | error · `lost` | error, errorKind unknown | error | failed, error.code `lost` · response.failed · 422 `lost` | error object, code `lost` | JSON-RPC error −32010 **(ours)**, `data.outcome` | failed | lost | lost | lost in a crash | "The server stopped while answering; your message is kept." | 1 |
"""  # noqa: E501
LINES = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in SURFACES.strip().splitlines()]
CELLS = {Ending(line[0]): line[1:] for line in LINES[2:]}
SURFACE_COUNT = 12
PUBLISHED_PHASES = {"queue", "preflight", "provider", "post_turn", "gateway_draining"}  # the closed set of npm's schema

# FACTS fills the table's dots; FILLED says how the table's own phrases for data read once filled in.
FACTS = {
    "text": "the reply",
    "by": Principal("alice"),
    "superseded_by": RunId("r-8"),
    "phase": "provider",
    "limit_ms": 5000,
    "error": "why",
    "error_kind": ErrorKind.AGENT,
    "started_at": 1.0,
    "ended_at": 2.0,
}
FILLED = {
    "stopped by …": "stopped by alice",
    "superseded by …": "superseded by r-8",
    "cancelled (superseded by …)": "cancelled (superseded by r-8)",
    "timed out after … in phase …": "timed out after 5 s in phase provider",
    "timeout + phase": "timeout in phase provider",
    "error + reason": "error: why",
    "ok + result": "ok",  # the result is in the outcome's text
    "one line why": "Failed: why",
    '"Stopped." + receipt line': "Stopped. 1 tool skipped",
    '"Timed out after …"': "Timed out after 5 s.",
    "(has itself ended)": None,
    "nothing": None,
    "nothing (the new reply speaks)": None,
}


def outcome(ending: Ending, **changes: object) -> Outcome:
    """Return an outcome that carries every fact, so that a word that leaks another ending's facts is seen."""
    return msgspec.convert({"run_id": "r-7", "ending": ending, **FACTS, **changes}, Outcome)


def bare(ending: Ending) -> Outcome:
    """Return an outcome with no facts beside its ending."""
    return Outcome(run_id=RunId("r-7"), ending=ending)


def quoted(cell: str) -> str | None:
    """Return the first word in backticks, if the cell has one."""
    found = re.search(r"`(\w+)`", cell)
    return found.group(1) if found else None


def after(word: str, cell: str) -> str | None:
    """Return what follows a word within a cell, up to a comma."""
    found = re.search(rf"{word} ([\w]+)", cell)
    return found.group(1) if found else None


def spoken(cell: str) -> str | None:
    """Return what the cell says once its dots are filled from FACTS."""
    return FILLED[cell] if cell in FILLED else cell.strip('"')


every_ending = pytest.mark.parametrize("ending", ENDINGS)


def test_the_copy_is_a_whole_table() -> None:
    """The transcription has a row for every ending and a cell for every surface, so no walk below skips one."""
    assert set(CELLS) == set(ENDINGS)
    assert all(len(cells) == SURFACE_COUNT for cells in CELLS.values())


def test_no_ending_is_missing() -> None:
    """The table has every ending and nothing else: the two answers to a waiter are not rows."""
    assert set(TABLE) == set(ENDINGS)


@every_ending
def test_agent_wait(ending: Ending) -> None:
    """A waiter gets the status and stopReason of the table's first column, and phase data only on a timeout."""
    cell = CELLS[ending][0]
    answer = agent_wait(outcome(ending))
    assert answer.status == cell.split(" · ")[0]
    assert answer.stop_reason == ("rpc" if ending is Ending.STOPPED else quoted(cell))
    assert (answer.timeout_phase, answer.provider_started) == (
        ("provider", True) if "timeoutPhase, providerStarted" in cell else (None, None)
    )


@every_ending
def test_chat_event(ending: Ending) -> None:
    """The terminal chat event has the state, stopReason and errorKind of the table."""
    cell = CELLS[ending][1]
    event = chat_event(outcome(ending))
    assert event.state == cell.split(",")[0]
    assert event.stop_reason == ("rpc" if ending is Ending.STOPPED else after("stopReason", cell))
    assert event.error_kind == ("unknown" if "by cause" in cell else after("errorKind", cell))


@every_ending
def test_lifecycle_event(ending: Ending) -> None:
    """The agent lifecycle event has the phase and status of the table."""
    cell = CELLS[ending][2]
    assert row(outcome(ending)).lifecycle.phase == cell.split(",")[0]
    assert row(outcome(ending)).lifecycle.status == after("status", cell)


@every_ending
def test_responses(ending: Ending) -> None:
    """A response object ends with the status, last event, HTTP code, reason and error code of the table."""
    status, event, http = CELLS[ending][3].split(" · ")
    answer = responses(outcome(ending))
    assert answer.status == re.split(r"[, ]", status)[0]
    assert answer.last_event == event.split(" ")[0]
    assert answer.http == int(http.split(" ")[0])
    assert answer.error_code == quoted(http)
    assert answer.incomplete_reason == (quoted(status) if "reason" in status else None)
    if "error.code" in status:
        # The code is the same in the object and in the HTTP error.
        assert answer.error_code == quoted(status)


@every_ending
def test_chat_completions(ending: Ending) -> None:
    """A chat completion has a finish reason or an error code, never both, as the table says."""
    cell, answer = CELLS[ending][4], completions(outcome(ending))
    assert answer.finish_reason == after("finish_reason", cell)
    if cell.startswith("error object"):
        assert answer.error_code == (quoted(cell) or "server_error") == responses(outcome(ending)).error_code
    else:
        assert answer.error_code is None


@every_ending
def test_acp(ending: Ending) -> None:
    """ACP is told the table's stop reason, or an error with the table's code where v1 has no word."""
    cell, answer = CELLS[ending][5], row(outcome(ending)).acp
    code = re.match(r"JSON-RPC error \u2212(\d+)", cell)
    assert answer == (Acp(error_code=-int(code[1])) if code else Acp(cell.split(",")[0]))


@every_ending
def test_single_words(ending: Ending) -> None:
    """Task status, session row and exit code are the table's words as they stand."""
    cells, words = CELLS[ending], row(outcome(ending))
    assert (words.task, words.session, str(words.exit_code)) == (cells[6], cells[7], cells[11])


@every_ending
def test_sentences(ending: Ending) -> None:
    """Parent, client and channel say the table's sentences with the outcome's own facts in place of the dots."""
    cells, told = CELLS[ending], outcome(ending)
    assert parent_word(told) == spoken(cells[8])
    assert client_words(told) == (spoken(cells[9]))
    assert channel_words(told, "1 tool skipped") == spoken(cells[10])


@every_ending
def test_sentences_without_facts(ending: Ending) -> None:
    """An outcome with no facts still reads as a sentence: no dots, braces, None or doubled spaces."""
    for words in (parent_word(bare(ending)), client_words(bare(ending)), channel_words(bare(ending))):
        assert words is None or (words and words == words.strip() and not re.search(r"[{}…]|None|  |: ?$", words))


TOOLS = {
    Ending.COMPLETED: "its run had completed",
    Ending.FAILED: "its run failed: boom",
    Ending.STOPPED: "stopped by alice",
    Ending.SUPERSEDED: "superseded by a newer message of alice",
    Ending.TIMED_OUT: "timed out after 30 s in phase provider",
    Ending.PARENT_ENDED: "ended with its parent",
    Ending.SHUTDOWN: "the server was ended",
    Ending.LOST: "the server went down",
}


@every_ending
def test_a_call_without_a_result_names_the_ending_and_who(ending: Ending) -> None:
    """A call that never ran says so; a call that was cut also says that its effect is unknown."""
    told = Outcome(run_id=RunId("r"), ending=ending, by=Principal("alice"), error="boom", phase="provider")
    told = msgspec.structs.replace(told, limit_ms=30_000)
    assert tool_words(ToolState.SKIPPED, told) == f"not run: {TOOLS[ending]}"
    cut = LOST_RESULT if ending is Ending.LOST else f"interrupted: {TOOLS[ending]}; its effect is unknown"
    assert tool_words(ToolState.INTERRUPTED, told) == cut
    assert not re.search(r"[{}]|None", tool_words(ToolState.SKIPPED, bare(ending)))


def test_a_call_that_no_ending_took_says_what_is_known() -> None:
    """A call that no ending cut says that it did not run, or why it was given up."""
    assert tool_words(ToolState.SKIPPED) == "not run"
    assert tool_words(ToolState.INTERRUPTED, why="given up") == "interrupted: given up; its effect is unknown"


def test_facts_are_not_templates() -> None:
    """A brace in a user's text or error is told as it is, never filled in."""
    assert channel_words(outcome(Ending.COMPLETED, text="{by} {0}")) == "{by} {0}"
    assert client_words(outcome(Ending.FAILED, error="{text}")) == "failed: {text}"


def test_stop_takeover_and_timeout_differ() -> None:
    """A stop, a takeover and a timeout are three different things wherever the table tells them apart."""
    three = [outcome(ending) for ending in (Ending.STOPPED, Ending.SUPERSEDED, Ending.TIMED_OUT)]
    for surface in (agent_wait, chat_event, responses, parent_word, client_words, channel_words, native, project):
        assert len({msgspec.json.encode(surface(told)) for told in three}) == 3, surface
    for column in ("lifecycle", "completions", "session"):
        assert len({msgspec.json.encode(getattr(row(told), column)) for told in three}) == 3, column
    for column in ("acp", "task", "exit_code"):
        # These surfaces have one foreign word for both cuts, and another for the timeout.
        stopped, superseded, timed_out = (getattr(row(told), column) for told in three)
        assert stopped == superseded != timed_out


def test_only_a_completed_run_looks_completed() -> None:
    """No other ending is told in the words of a completion: not end_turn, not finish_reason stop, not exit 0."""
    done = TABLE[Ending.COMPLETED]
    for ending in set(ENDINGS) - {Ending.COMPLETED}:
        other = TABLE[ending]
        for column in ("wait", "chat", "lifecycle", "responses", "completions", "acp", "task", "session", "exit_code"):
            assert getattr(other, column) != getattr(done, column), (ending, column)


def test_typed_stop() -> None:
    """A stop the user typed is told as `stop`, one by a call as `rpc`, and no other ending listens to that."""
    for surface in (agent_wait, chat_event):
        assert surface(outcome(Ending.STOPPED, typed=True)).stop_reason == "stop"
        assert surface(outcome(Ending.STOPPED)).stop_reason == "rpc"
        assert surface(outcome(Ending.SUPERSEDED, typed=True)).stop_reason == "superseded"
        assert surface(outcome(Ending.COMPLETED, typed=True)).stop_reason is None


def test_waiting_is_not_an_ending() -> None:
    """A waiter who gave up hears pending and one who asked for no run hears unknown; neither hears timeout."""
    assert agent_wait(bare(Ending.PENDING)) == AgentWait("pending")
    assert agent_wait(bare(Ending.UNKNOWN)) == AgentWait("unknown")
    assert client_words(bare(Ending.PENDING)) == "still running"
    assert client_words(bare(Ending.UNKNOWN)) == "no such run"


TO_DO = {Ending.PENDING: "once it has ended", Ending.UNKNOWN: "name one that `runs` lists"}


@pytest.mark.parametrize("ending", TO_DO)
def test_no_surface_ends_a_run_that_has_not_ended(ending: Ending) -> None:
    """Terminal words for a run that has not ended are refused, naming the run and what to use."""
    for surface in (chat_event, responses, completions, parent_word, channel_words, row, project):
        with pytest.raises(BadInput, match=rf"r-7 is {ending}.*{TO_DO[ending]}"):
            surface(bare(ending))


@pytest.mark.parametrize(
    ("phase", "started_at", "told"),
    [
        ("queue", None, ("queue", False)),
        ("preflight", 1.0, ("preflight", False)),
        ("provider", 1.0, ("provider", True)),
        ("post_turn", 1.0, ("post_turn", True)),
        ("start", 1.0, ("preflight", None)),  # the agent may ask its model without telling anybody
        ("start", None, ("preflight", False)),  # a provider cannot start before the run
        # The closed set has no such word: the turn is under way, and nobody knows of a provider.
        ("agent", 1.0, ("provider", None)),
        ("tool", 1.0, ("provider", None)),
        ("approval", 1.0, ("provider", None)),
        ("hold", 1.0, ("provider", None)),
        ("child", 1.0, ("provider", None)),
        ("idle", 1.0, ("provider", None)),
        ("compaction", 1.0, ("provider", None)),  # an agent's own word
        # An agent's own word as well: a run that began must not be told as queued, or it would be tried again.
        ("queue", 1.0, ("provider", None)),
        ("gateway_draining", 1.0, ("provider", None)),
        (None, 1.0, ("provider", None)),  # stored by a version that named no phase
        (None, None, ("preflight", False)),
    ],
)
def test_timeout_phase(phase: str | None, started_at: float | None, told: tuple[str | None, bool | None]) -> None:
    """timeoutPhase is always a word of the gateway's closed set; providerStarted is known or left out."""
    answer = agent_wait(outcome(Ending.TIMED_OUT, phase=phase, started_at=started_at))
    assert (answer.timeout_phase, answer.provider_started) == told
    assert set(TIMEOUT_PHASES) <= PUBLISHED_PHASES


@given(st.none() | st.sampled_from(KnownPhase) | st.text(max_size=20), st.sampled_from([None, 1.0]))
def test_every_timeout_has_a_published_phase(phase: str | None, started_at: float | None) -> None:
    """A waiter is told a phase of every timeout, whatever the agent named; only a run that never began was queued."""
    told = agent_wait(outcome(Ending.TIMED_OUT, phase=phase, started_at=started_at)).timeout_phase
    assert told in PUBLISHED_PHASES
    assert (told == "queue") == (phase == "queue" and started_at is None)


def test_provider_started_is_taken_from_who_knows() -> None:
    """The runtime's own knowledge of the provider beats what the phase suggests."""
    assert agent_wait(outcome(Ending.TIMED_OUT, phase="approval"), provider_started=True).provider_started is True
    assert agent_wait(outcome(Ending.TIMED_OUT, phase="provider"), provider_started=False).provider_started is False


@pytest.mark.parametrize("kind", [*ErrorKind, None])
def test_chat_error_kind_by_cause(kind: ErrorKind | None) -> None:
    """No kind of failure is told by a word of the gateway's closed set that means another one."""
    assert chat_event(outcome(Ending.FAILED, error_kind=kind)).error_kind == "unknown"


@pytest.mark.parametrize("kind", [*ErrorKind, None])
def test_the_provider_s_failure_has_a_code_of_its_own(kind: ErrorKind | None) -> None:
    """Over HTTP a failure is `provider_error` where the provider failed and `server_error` otherwise."""
    expected = "provider_error" if kind is ErrorKind.PROVIDER else "server_error"
    told = outcome(Ending.FAILED, error_kind=kind)
    assert (responses(told).http, responses(told).error_code, completions(told).error_code) == (422, expected, expected)


@given(st.sampled_from(ENDINGS), st.sampled_from([*ErrorKind, None]), st.booleans())
def test_no_ending_over_http_is_sent_again_or_taken_for_an_answer(
    ending: Ending, kind: ErrorKind | None, steered: bool
) -> None:
    """A completion is 200; every other ending has a code that no SDK repeats, and says which ending it was."""
    told = responses(outcome(ending, error_kind=kind), steered=steered)
    assert (told.http, told.error_code is None) == ((200, True) if ending is Ending.COMPLETED else (422, False))
    assert (told.incomplete_reason is not None) == (told.status == "incomplete")


@every_ending
def test_one_function_tells_every_surface(ending: Ending) -> None:
    """`project` has each surface's own answer, with the outcome's facts filled in and no brace left."""
    told = outcome(ending, typed=True, error_kind=ErrorKind.PROVIDER)
    whole = project(told, steered=True)
    assert whole == Projection(
        wait=agent_wait(told),
        chat=chat_event(told),
        lifecycle=TABLE[ending].lifecycle,
        responses=responses(told, steered=True),
        completions=completions(told),
        acp=TABLE[ending].acp,
        task=TABLE[ending].task,
        session=TABLE[ending].session,
        parent=parent_word(told),
        client=client_words(told),
        channel=channel_words(told),
        tool=tool_words(ToolState.SKIPPED, told).removeprefix("not run: "),
        exit_code=TABLE[ending].exit_code,
    )
    assert not any("{" in words for words in (whole.parent, whole.client, whole.channel, whole.tool) if words)


def test_steered() -> None:
    """A WebSocket steer changes the reason of a takeover, and nothing of any other ending."""
    assert responses(outcome(Ending.SUPERSEDED), steered=True).incomplete_reason == "steered"
    for ending in set(ENDINGS) - {Ending.SUPERSEDED}:
        assert responses(outcome(ending), steered=True) == responses(outcome(ending))


def test_why_is_one_bounded_line() -> None:
    """A person is told one line of an error, cut to a bound, whatever line ends it contains."""
    assert client_words(outcome(Ending.FAILED, error="\n first\r\nsecond")) == "failed: first"
    assert channel_words(outcome(Ending.FAILED, error="first\rQUIT\u2028x")) == "Failed: first"
    assert client_words(outcome(Ending.FAILED, error=" \n ")) == "failed"
    long = client_words(outcome(Ending.FAILED, error="x" * 1_000_000))
    assert len(long) == len("failed: ") + WHY_CHARS
    assert long.endswith("x…")


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (0, "0 ms"),
        (250, "250 ms"),
        (1000, "1 s"),
        (1500, "1.5 s"),
        (90_000, "90 s"),
        (120_000, "2 min"),
        (172_800_000, "48 h"),
    ],
)
def test_duration(ms: int, words: str) -> None:
    """A limit is told in the largest unit that leaves no remainder."""
    assert client_words(outcome(Ending.TIMED_OUT, limit_ms=ms, phase=None)) == f"timed out after {words}"


@pytest.mark.parametrize(
    ("limit_of", "words"),
    [
        (LimitOf.CALLER, " (its caller's limit)"),
        (LimitOf.OPERATOR, " (the operator's limit)"),
        (LimitOf.AGENT, " (its agent's limit)"),
        (LimitOf.PARENT, " (its parent's limit)"),
    ],
)
def test_whose_limit_it_was_is_told(limit_of: LimitOf, words: str) -> None:
    """Client, parent and transcript say whose limit ended a run, and so does the wire; no other ending speaks of it."""
    late = outcome(Ending.TIMED_OUT, limit_of=limit_of)
    assert client_words(late) == f"timed out after 5 s in phase provider{words}"
    assert parent_word(late) == f"timeout in phase provider{words}"
    assert tool_words(ToolState.SKIPPED, late) == f"not run: timed out after 5 s in phase provider{words}"
    assert msgspec.to_builtins(native(late))["limitOf"] == limit_of
    assert client_words(outcome(Ending.PARENT_ENDED, limit_of=limit_of)) == f"ended with its parent{words}"
    for ending in set(TABLE) - {Ending.TIMED_OUT, Ending.PARENT_ENDED}:
        assert client_words(outcome(ending, limit_of=limit_of)) == client_words(outcome(ending))


def test_what_an_ended_child_had_said_is_not_told_as_its_result() -> None:
    """A child's announcement says whether its text is the reply or the partial text, also in one line."""
    begun = "worker (r-7), which was started here, has ended: "
    told = {
        Ending.COMPLETED: "ok. It said:\n\ncounting",
        Ending.LOST: "lost. It had said so far:\n\ncounting",
        Ending.STOPPED: "cancelled. It had said so far:\n\ncounting",
    }
    for ending, words in told.items():
        assert announcement(outcome(ending, text="counting"), "worker", 1_000) == begun + words
        assert announcement(outcome(ending, text=""), "worker", 1_000) == begun + words.partition(".")[0]
    failed = announcement(outcome(Ending.FAILED, error="It broke.", text="counting"), "worker", 1_000)
    assert failed == f"{begun}error: It broke. It had said so far:\n\ncounting"
    long = announcement(outcome(Ending.COMPLETED, text="x" * 2_000), "worker", 1_000)
    assert len(long) <= 1_000 and long.endswith("(cut here: it said 2,000 characters)")


@pytest.mark.parametrize("value", ["x", None, RunId("r-7")])
def test_what_is_no_outcome_is_refused(value: Any) -> None:
    """`project` refuses a value that is no outcome, and names what it takes."""
    with pytest.raises(BadInput, match="expected an Outcome, as `wait` returns it"):
        project(value)


def test_an_empty_reply_says_nothing() -> None:
    """A channel posts no empty message for a run that completed without a word."""
    assert channel_words(bare(Ending.COMPLETED)) is None


def test_native_is_camel_case_and_whole() -> None:
    """The wire object has the keys of surfaces.md §1, the optional ones only where there is something to say."""
    always = {"ending", "startedAt", "endedAt", "drained", "durable"}
    full = msgspec.to_builtins(native(outcome(Ending.SUPERSEDED)))
    assert full.keys() == always | {"by", "supersededBy", "phase", "limitMs", "error"}
    assert (full["ending"], full["supersededBy"], full["limitMs"]) == ("superseded", "r-8", 5000)
    assert (full["startedAt"], full["endedAt"], full["drained"], full["durable"]) == (1.0, 2.0, False, True)
    assert msgspec.to_builtins(native(bare(Ending.LOST))).keys() == always


def test_wire_structs_leave_out_what_is_not_said() -> None:
    """The gateway's structs encode as they stand, in camelCase and without nulls."""
    assert msgspec.to_builtins(agent_wait(outcome(Ending.COMPLETED))) == {"status": "ok"}
    assert msgspec.to_builtins(chat_event(outcome(Ending.SUPERSEDED))) == {
        "state": "aborted",
        "stopReason": "superseded",
    }
    assert msgspec.to_builtins(agent_wait(outcome(Ending.TIMED_OUT))) == {
        "status": "timeout",
        "timeoutPhase": "provider",
        "providerStarted": True,
    }
