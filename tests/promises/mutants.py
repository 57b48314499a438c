"""Does each test named in tests/races.md really catch the bug named beside it? `python tests/promises/mutants.py`

Applies every bug to a copy of the source and runs the tests of its rows against the copy: each must fail, and each must
pass on the source as it is. Takes a minute or two, so it is no part of `make test`. Names of bugs as arguments choose.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(TESTS), str(TESTS.parent)]
from proofs.processes import NoScope, scope  # noqa: E402

import races  # noqa: E402

SECONDS = 30  # a test that hangs has failed
PIDS = 4_000  # processes of one test, those of the hostile ones it starts included
ENTER = 'test -z "$1" || echo 0 > "$1/cgroup.procs"; shift; exec "$@"'
JOBS = 2
TRANSPORT, OUTBOX = "surfaces/test_transport.py", "surfaces/test_outbox.py"
AUTHORITY, RIGHTS = "runtime/test_authority.py", "surfaces/test_authorization.py"
FRAMES, BROUGHT = "surfaces/test_frames.py", "runtime/test_instructions.py"
KEPT, LATE = "hosts/test_kept.py", "hosts/test_late.py"
DESCRIPTORS, STRANGERS = "processes/test_descriptors.py", "runtime/test_strangers.py"
SHARING = "runtime/test_sharing.py"
ZYGOTE = "hosts/test_zygote.py"
LIMITS, LISTS = "runtime/test_child_limits.py", "surfaces/test_task_lists.py"
HEARING, ANNOUNCED = "contracts/test_hearing.py", "runtime/test_announcements.py"
LINES, REMOTE = "surfaces/test_lines.py", "surfaces/test_remote_current.py"
BEHIND, TOKENS = "surfaces/test_catching_up.py", "surfaces/test_token_changes.py"
BESIDE = (  # bugs of rules that are no row of the table
    (
        "unit/recovery-seats-too-early",
        (
            "runtime/test_recovery_of_stores.py",
            "test_a_store_that_cannot_be_read_opens_nothing_and_destroys_nothing",
        ),
    ),
    (
        "unit/key-of-another-run-admitted",
        ("contracts/test_store_keys.py", "test_a_key_of_another_run_refuses_the_whole_decision"),
    ),
    ("unit/lapse-leaves-the-fences-open", ("runtime/test_lapse.py", "test_nothing_is_told_or_kept_after_a_lapse")),
    ("unit/host-tool-not-killed", ("hosts/test_hogs.py", "test_a_tool_at_work_is_killed_at_once")),
    ("unit/guest-s-child-gets-in", (ANNOUNCED, "test_a_guest_s_child_does_not_get_into_the_owner_s_turn")),
    ("announced-twice", (ANNOUNCED, "test_an_ending_becomes_a_turn_of_its_session")),
    ("unit/next-turn-hears-the-last", (HEARING, "test_a_host_s_next_turn_does_not_hear_the_last_one_s")),
    ("unit/permitted-tool-begins-after-the-end", (HEARING, "test_no_body_begins_when_its_run_is_over")),
    ("unit/worker-begins-after-the-end", (HEARING, "test_no_body_begins_when_its_run_is_over")),
    (
        "unit/given-up-is-not-insisted-upon",
        ("processes/test_drain.py", "test_a_keeper_that_does_not_answer_is_replaced_though_nobody_waits"),
    ),
    (
        "unit/grace-heard-after-the-hang-up",
        ("processes/test_drain.py", "test_a_grace_that_was_asked_for_just_before_the_cut"),
    ),
    ("child-limit-ignored", (LIMITS, "test_a_child_has_the_shortest_limit_of_all")),
    ("unit/childs-later-limit-told", (LIMITS, "test_a_late_loop_knows_which_limit_came_first")),
    (
        "unit/sender-outlasts-the-agent-s-limit",
        (LIMITS, "test_an_agent_s_limit_bounds_the_runs_that_are_sent_to_it"),
    ),
    ("unit/list-without-children", (LISTS, "test_a_session_s_list_has_every_generation")),
    (
        "unit/task-known-by-itself-alone",
        (ZYGOTE, "test_a_task_of_an_earlier_turn_that_was_given_work_goes_with_its_turn"),
    ),
    (
        "unit/another-s-loop-believed",
        (ZYGOTE, "test_a_loop_that_does_not_show_its_timers_is_not_judged_clean"),
    ),
    (
        "unit/refused-leaves-a-trace",
        ("runtime/test_foreign_arrivals.py", "test_a_stranger_s_message_that_is_stopped_while_it_arrives"),
    ),
    (
        "unit/unshare-forgotten-with-the-session",
        (SHARING, "test_a_right_that_is_gone_does_not_come_back_from_the_store"),
    ),
    ("unit/right-asked-before-the-read", (SHARING, "test_what_is_read_while_a_right_goes_is_not_told")),
    ("unit/embedder-s-names-are-anybody-s", (RIGHTS, "test_nobody_founds_a_session_of_the_embedder_s")),
    ("unit/refusal-takes-the-session", (AUTHORITY, "test_a_refused_message_does_not_take_a_session_from_its_founder")),
    ("unit/stalled-reader-hoards", (TRANSPORT, "test_a_stalled_reader_holds_little_that_cannot_be_taken_back")),
    ("unit/joined-without-bound", (OUTBOX, "test_a_joined_frame_is_short")),
    ("unit/outbox-not-dropped", (TRANSPORT, "test_a_fall_drops_from_every_outbox")),
    ("unit/outbox-not-dropped", (OUTBOX, "test_a_hastened_delta_is_dropped_too")),
    ("unit/outbox-not-dropped", (LINES, "test_lines_of_json_use_the_outbox_as_it_is")),
    ("unit/fall-not-told", (REMOTE, "test_a_fall_is_told_ahead_of_its_terminal_event")),
    ("unit/room-not-told", (BEHIND, "test_a_stalled_watcher_catches_up")),
    ("unit/outdated-client-served", ("surfaces/test_outdated.py", "test_an_outdated_client_can_only_stop")),
    ("unit/spawn-beside-the-old", ("runtime/test_spawn.py", "test_the_first_spawn_waits_for_the_processes_before")),
    ("unit/read-before-the-removal", (TRANSPORT, "test_what_a_removed_token_has_asked_is_not_begun")),
    ("unit/read-before-the-removal", (TOKENS, "test_a_request_of_two_steps_is_not_carried_on")),
    ("unit/answers-outlive-their-token", (TOKENS, "test_what_waits_for_a_removed_token_is_not_sent")),
    ("unit/removal-waits-for-the-disk", (TOKENS, "test_a_token_ends_though_the_disk_does_not_answer")),
    (
        "unit/removed-token-comes-back",
        ("access/test_rows.py", "test_kill_9_at_every_step_leaves_the_old_or_the_new"),
    ),
    ("unit/bare-names-are-everybodys", (RIGHTS, "test_the_main_of_two_people_are_two_sessions")),
    ("unit/tree-killed-one-by-one", ("processes/test_bombs.py", "test_a_fork_bomb_is_ended")),
    ("unit/pipe-kept-for-a-reader", (DESCRIPTORS, "test_stops_amid_lines_that_are_not_read_leak_nothing")),
    ("unit/dropped-called-observed", (STRANGERS, "test_a_body_that_was_dropped_is_not_observed")),
    ("unit/threads-not-looked-for", (STRANGERS, "test_a_thread_that_a_library_made_is_named")),
    ("unit/stops-share-the-budget", (TRANSPORT, "test_a_stop_has_a_budget_of_its_own")),
    ("unit/rest-of-a-block-untold", (FRAMES, "test_what_a_block_adds_to_its_deltas_is_told_before_the_end")),
    ("unit/unused-fields-passed-over", (FRAMES, "test_a_field_that_is_not_used_is_named_if_it_means_something")),
    ("unit/marks-in-a-text-counted", (FRAMES, "test_marks_in_a_text_are_no_elements")),
    ("unit/instructions-not-kept", (BROUGHT, "test_a_message_that_waits_over_a_crash_keeps_agent_and_instructions")),
    ("unit/anothers-agent-steered", (BROUGHT, "test_a_run_takes_in_what_is_for_its_own_agent")),
    ("unit/kept-though-it-ran", (KEPT, "test_a_helper_that_was_given_work_goes_with_its_turn")),
    ("unit/host-believed-of-its-threads", (KEPT, "test_a_host_that_lies_about_its_threads_is_not_believed")),
    ("unit/unseen-is-nothing", (KEPT, "test_more_than_control_looks_at_is_not_kept")),
    ("unit/return-judged-when-read", (LATE, "test_an_answer_that_was_finished_in_time_is_no_timeout")),
    ("unit/return-not-heard-out", (LATE, "test_an_answer_that_was_finished_in_time_is_no_timeout")),
    ("unit/lying-host-believed", (LATE, "test_a_host_that_lies_about_the_time_is_not_believed")),
    ("unit/log-handed-over", ("hosts/test_error_output.py", "test_nothing_can_truncate_the_log")),
    ("unit/flood-told-whole", ("hosts/test_error_output.py", "test_a_flood_is_bounded_and_counted")),
    ("unit/agents-not-apart", ("hosts/test_apart.py", "test_one_session_s_agent_reaches_nothing_of_another_s")),
    ("unit/outer-proc-left", ("processes/test_apart.py", "test_processes_of_one_user_do_not_reach_each_other")),
    (
        "unit/environment-handed-over",
        ("surfaces/test_agent_user.py", "test_an_agent_of_another_user_has_what_was_named_and_no_more"),
    ),
)


def passes(test: tuple[str, str], source: Path) -> bool:
    """Run one test against a copy of the source."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", f"tests/{test[0]}::{test[1]}"]
    status, said = apart(command, {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}, seconds=SECONDS)
    if status not in (0, 1, None):
        raise SystemExit(said)
    return status == 0


def apart(command: list[str], environment: dict[str, str], *, seconds: float) -> tuple[int | None, str]:
    """Run a command in a scope, and end whatever it leaves there, frozen or not; None if it did not end by itself."""
    with contextlib.ExitStack() as stack:
        try:
            directory = stack.enter_context(scope(PIDS))
        except NoScope:
            directory = None  # only the command's own process group can be ended then
        # A file, not a pipe: a process that the command leaves would hold a pipe open.
        said = stack.enter_context(tempfile.TemporaryFile())
        process = subprocess.Popen(
            ["sh", "-c", ENTER, "sh", "" if directory is None else str(directory), *command],
            cwd=TESTS.parent,
            env={**os.environ, **environment},
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None, ""
        said.seek(0)
        return process.returncode, said.read().decode("utf-8", "replace")


def plant(mutant: str, place: Path) -> Path | None:
    """Copy the source, apply a bug to the copy, and return where its packages are; None if it does not apply."""
    shutil.copytree(TESTS.parent / "src", place / "src", ignore=shutil.ignore_patterns("__pycache__"))
    patch = TESTS / "planted" / f"{mutant}.patch"
    applied = subprocess.run(["git", "apply", "-p1", str(patch)], cwd=place, check=False)
    return place / "src" if applied.returncode == 0 else None


def main(chosen: list[str]) -> int:
    """Judge every bug, or those chosen."""
    table = races.rows((TESTS / "races.md").read_text("utf-8"))
    named = ((mutant, test) for row in table for mutant in row.mutants for test in row.tests)
    pairs = dict.fromkeys([*named, *BESIDE])
    pairs = [(mutant, test) for mutant, test in pairs if not chosen or mutant in chosen]
    wrong = []
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(JOBS) as pool:
        copies = {
            name: plant(name, Path(place) / name.replace("/", "-")) for name in dict.fromkeys(name for name, _ in pairs)
        }
        wrong += [f"{name} does not apply" for name, copy in copies.items() if copy is None]
        judged = [(name, test, copy) for name, test in pairs if (copy := copies[name]) is not None]
        results = pool.map(lambda each: passes(each[1], each[2]), judged)
        wrong += [f"{t[0]}::{t[1]} does not catch {n}" for (n, t, _), ok in zip(judged, results, strict=True) if ok]
        sound = list(dict.fromkeys(test for _, test, _ in judged))
        results = pool.map(lambda test: passes(test, TESTS.parent / "src"), sound)
        wrong += [
            f"{t[0]}::{t[1]} fails on the source as it is" for t, ok in zip(sound, results, strict=True) if not ok
        ]
    for line in wrong:
        print(line)
    print(f"{len(copies)} bugs, {len(pairs)} pairs of bug and test, {len(wrong)} wrong")
    return min(1, len(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
