"""Names of sessions as people write them, and the ids that control knows."""

import pytest

from interlock import BadInput
from interlock.core.names import LOCAL, Principal, SessionId
from interlock.runtime.naming import Naming

ALICE, BOB, OPERATOR = (Principal(name) for name in ("alice", "bob", "operator"))


@pytest.fixture
def naming() -> Naming:
    """Return names with two sessions of an older version, `main` and `team/plans`, both the operator's."""
    known = Naming()
    known.keep([(OPERATOR, SessionId("main")), (OPERATOR, SessionId("team/plans"))])
    return known


@pytest.mark.parametrize(
    ("by", "name", "session", "again"),
    [
        (ALICE, "main", "alice/main", "main"),
        (BOB, "main", "bob/main", "main"),
        (ALICE, "alice/main", "alice/main", "main"),
        (BOB, "alice/main", "alice/main", "alice/main"),
        (ALICE, "alice/a/b", "alice/a/b", "alice/a/b"),
        (ALICE, "local/shop", "shop", "local/shop"),
        (ALICE, "run:r-1-1", "run:r-1-1", "run:r-1-1"),
        (OPERATOR, "main", "main", "main"),
        (OPERATOR, "operator/main", "main", "main"),
        (ALICE, "operator/main", "main", "operator/main"),
        (OPERATOR, "new", "operator/new", "new"),
        (OPERATOR, "team/plans", "team/plans", "team/plans"),
        (ALICE, "operator/team/plans", "team/plans", "operator/team/plans"),
    ],
)
def test_a_name_and_its_id(naming: Naming, by: Principal, name: str, session: str, again: str) -> None:
    """A bare name is the caller's own session, another's begins with its owner, and the name told leads to the id."""
    assert naming.id_of(name, by) == session
    assert naming.name_of(SessionId(session), by) == again
    assert naming.id_of(again, by) == session


def test_the_embedder_names_its_sessions_itself(naming: Naming) -> None:
    """A name that `local` writes is the id itself, with or without a slash."""
    for name in ("main", "alice/main", "project/x"):
        assert naming.id_of(name, LOCAL) == name


@pytest.mark.parametrize("name", ["", "   ", "alice/", "alice/  ", "/main", " /main"])
def test_half_a_name_is_refused(naming: Naming, name: str) -> None:
    """A name with nothing before or after its slash is refused, and the error says what to write."""
    with pytest.raises(BadInput, match="OWNER/NAME"):
        naming.id_of(name, ALICE)
