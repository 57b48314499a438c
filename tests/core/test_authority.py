"""The table of rights, cell by cell, against a table written by hand."""

import itertools

import pytest

from interlock.core import authority
from interlock.core.authority import RIGHTS, Action, Authority, Relation, Whose, may, may_found
from interlock.core.names import LOCAL, May, Principal, SessionId

ALICE, BOB, CAROL, EVE, ROOT = (Principal(name) for name in ("alice", "bob", "carol", "eve", "root"))

# Written down from docs/design.md, not derived from the code: an `x` is a right.
#                    admin owner principal writer guest reader approver other
EXPECTED = {
    "found": "       x     x     x         x      x     .      .        x",
    "send": "        x     x     .         x      .     .      .        .",
    "take_over": "   x     x     x         .      .     .      .        .",
    "stop": "        x     x     x         .      .     .      .        .",
    "answer": "      x     x     x         .      .     .      x        .",
    "see_run": "     x     x     x         x      x     x      .        .",
    "see_session": " x     x     .         x      x     x      .        .",
    "wake": "        x     x     .         .      .     .      .        .",
    "reset": "       x     x     .         .      .     .      .        .",
    "share": "       x     x     .         .      .     .      .        .",
}
COLUMNS = ("admin", "owner", "principal", "writer", "guest", "reader", "approver", "other")
SEES = (Action.SEE_RUN, Action.SEE_SESSION)
CHANGES = tuple(action for action in Action if action not in SEES)
SHARED = {BOB: May.WRITE, CAROL: May.READ}


def test_the_expected_table_is_complete() -> None:
    """The hand-written table has a row for every action and a column for every relation."""
    assert set(EXPECTED) == {action.value for action in Action}
    assert set(COLUMNS) == {relation.value for relation in Relation}
    assert all(len(row.split()) == len(COLUMNS) for row in EXPECTED.values())


@pytest.mark.parametrize("action", Action)
@pytest.mark.parametrize("relation", Relation)
def test_every_cell(action: Action, relation: Relation) -> None:
    """Each action is allowed to each relation exactly where the table says so."""
    expected = EXPECTED[action].split()[COLUMNS.index(relation)] == "x"
    assert may(action, [relation]) is expected


@pytest.mark.parametrize("action", Action)
def test_relations_add_up(action: Action) -> None:
    """A caller with several relations has the rights of each, and a caller with none has no right."""
    for pair in itertools.combinations(Relation, 2):
        assert may(action, pair) is any(may(action, [relation]) for relation in pair)
    assert not may(action, [])


def test_an_action_without_an_entry_is_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    """An action that the table does not list is denied to everybody, even to an admin."""
    monkeypatch.setattr(authority, "RIGHTS", {a: r for a, r in RIGHTS.items() if a is not Action.STOP})
    assert not may(Action.STOP, Relation)
    assert not may("conquer", Relation)  # type: ignore[arg-type]
    assert not Authority(admins=["root"]).may("conquer", ROOT)  # type: ignore[arg-type]


def test_a_relation_that_is_not_named_is_denied() -> None:
    """A relation the table has never heard of has no rights."""
    for action in Action:
        assert not may(action, ["stranger"])  # type: ignore[list-item]


@pytest.mark.parametrize("action", CHANGES)
def test_a_reader_never_changes_anything(action: Action) -> None:
    """A reader has no right that changes something, even over what once was its own."""
    known = Authority(readers=[EVE])
    for owner, principal in itertools.product((None, EVE, ALICE), repeat=2):
        assert not known.may(action, EVE, whose=Whose(owner), principal=principal)
        assert known.may(Action.SEE_RUN, EVE, whose=Whose(owner), principal=principal)
        assert known.may(Action.SEE_SESSION, EVE, whose=Whose(owner), principal=principal)


@pytest.mark.parametrize(
    ("by", "owner", "principal", "expected"),
    [
        (ROOT, ALICE, BOB, {"admin"}),
        (ROOT, ROOT, ROOT, {"admin"}),
        (LOCAL, ALICE, BOB, {"admin"}),
        (LOCAL, None, None, {"admin"}),
        (EVE, ALICE, BOB, {"reader"}),
        (EVE, EVE, EVE, {"reader"}),
        (ALICE, ALICE, BOB, {"owner"}),
        (ALICE, ALICE, ALICE, {"owner", "principal"}),
        (ALICE, BOB, ALICE, {"other"}),
        (ALICE, None, ALICE, {"principal"}),
        (ALICE, ALICE, None, {"owner"}),
        (ALICE, BOB, BOB, {"other"}),
        (ALICE, None, None, {"other"}),
    ],
)
def test_relations(by: Principal, owner: Principal | None, principal: Principal | None, expected: set[str]) -> None:
    """A caller's relations to a session and a run follow from names alone, never from a connection (race 101)."""
    known = Authority(admins=[ROOT], readers=[EVE])
    assert {relation.value for relation in known.relations(by, whose=Whose(owner), principal=principal)} == expected


def test_an_admin_who_is_also_a_reader_is_an_admin() -> None:
    """A name on both lists, of admins and of readers, has the greater right."""
    known = Authority(admins=["root"], readers=["root", "local"])
    assert known.relations(ROOT) == {Relation.ADMIN}
    assert known.relations(LOCAL) == {Relation.ADMIN}


@pytest.mark.parametrize(
    ("by", "owner", "principal", "expected"),
    [
        (BOB, ALICE, ALICE, {"approver", "other"}),
        (BOB, BOB, ALICE, {"approver", "owner"}),
        (BOB, ALICE, BOB, {"approver", "other"}),
        (EVE, EVE, EVE, {"approver", "reader"}),
        (ROOT, ALICE, ALICE, {"admin"}),
        (ALICE, BOB, BOB, {"other"}),
    ],
)
def test_an_approver_is_one_besides(by: Principal, owner: Principal, principal: Principal, expected: set[str]) -> None:
    """An approver may answer every question and keeps every other relation: reader, owner, or none."""
    known = Authority()
    known.appoint(admins=[ROOT], readers=[EVE], approvers=[BOB, EVE, ROOT])
    assert {relation.value for relation in known.relations(by, whose=Whose(owner), principal=principal)} == expected
    assert known.may(Action.ANSWER, by, whose=Whose(owner), principal=principal) is (by != ALICE)


def test_appointing_replaces_who_was_appointed() -> None:
    """An appointment replaces the one before it whole; `local` and the names given at first keep their roles."""
    known = Authority(admins=[ROOT], readers=[EVE])
    known.appoint(admins=[BOB], approvers=[ALICE])
    assert known.relations(EVE) == {Relation.READER}
    assert known.relations(BOB) == known.relations(ROOT) == known.relations(LOCAL) == {Relation.ADMIN}
    assert known.relations(ALICE) == {Relation.APPROVER, Relation.OTHER}
    known.appoint()
    assert known.relations(BOB) == known.relations(ALICE) == {Relation.OTHER}
    assert known.relations(ROOT) == known.relations(LOCAL) == {Relation.ADMIN}


def test_a_reader_who_may_write_is_somebody_too() -> None:
    """A reader who may also write owns their own sessions and runs, and nothing of others."""
    known = Authority()
    known.appoint(readers=[EVE, BOB], writers=[EVE])
    assert known.relations(EVE, whose=Whose(EVE), principal=EVE) == {
        Relation.READER,
        Relation.OWNER,
        Relation.PRINCIPAL,
    }
    assert known.relations(EVE, whose=Whose(ALICE), principal=ALICE) == {Relation.READER, Relation.OTHER}
    assert known.relations(BOB, whose=Whose(BOB), principal=BOB) == {Relation.READER}
    assert known.may(Action.STOP, EVE, principal=EVE) and not known.may(Action.STOP, EVE, principal=ALICE)
    assert not known.may(Action.FOUND, BOB) and known.may(Action.FOUND, EVE)


def test_names_are_compared_whole() -> None:
    """A right belongs to exactly one name: neither a part of it nor another spelling has it."""
    known = Authority(admins=["root"])
    for name in ("Root", "roo", "root ", "", "rootroot"):
        assert known.relations(Principal(name), whose=Whose(ALICE)) == {Relation.OTHER}


def test_nobody_owns_what_has_no_owner() -> None:
    """A session without a known owner, and a run without a principal, belong to nobody."""
    known = Authority()
    for action in (Action.STOP, Action.TAKE_OVER, Action.SEE_RUN, Action.SEE_SESSION):
        assert not known.may(action, ALICE, whose=Whose(None), principal=None)


@pytest.mark.parametrize(
    ("by", "principal", "expected"),
    [
        (BOB, None, {"writer"}),
        (BOB, BOB, {"writer", "principal"}),
        (BOB, ALICE, {"writer"}),
        (CAROL, None, {"guest"}),
        (CAROL, CAROL, {"guest"}),
        (ALICE, BOB, {"owner"}),
        (EVE, EVE, {"other"}),
        (ROOT, None, {"admin"}),
    ],
)
def test_what_a_session_was_shared_for(by: Principal, principal: Principal | None, expected: set[str]) -> None:
    """Sharing makes a writer or a guest; a run's principal has a right to it only while they may write there."""
    known, whose = Authority(admins=[ROOT]), Whose(ALICE, SHARED)
    assert {relation.value for relation in known.relations(by, whose=whose, principal=principal)} == expected


def test_nobody_founds_a_session_for_another() -> None:
    """A session name with a slash belongs to the principal before the slash; the embedder may use any name."""
    for name, founders in (
        ("main", (ALICE, BOB, LOCAL)),
        ("alice/main", (ALICE, LOCAL)),
        ("alice/a/b", (ALICE, LOCAL)),
        ("local/main", (LOCAL,)),
        ("/main", (LOCAL,)),
    ):
        assert [by for by in (ALICE, BOB, LOCAL) if may_found(by, SessionId(name))] == list(founders)
