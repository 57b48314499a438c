"""Codes and pages: how long they count, and how many."""

from __future__ import annotations

from pathlib import Path

import pytest

from interlock.access.pairing import CODE_SECONDS, CODES, Codes
from interlock.access.tokens import PAGES, digest_of
from interlock.core.errors import Refused, Unknown
from interlock.core.names import Principal

from .scene import add, change, opened, operator_token, rows


def test_a_code_is_over_after_an_hour_and_few_wait() -> None:
    """A code is valid for an hour to the second; a principal's newest codes stay, and push out nobody else's."""
    codes, ann, bob = Codes(), Principal("ann"), Principal("bob")
    first = codes.make(ann, "d", 0.0)
    assert codes.take(first, CODE_SECONDS) is None
    assert codes.take(first, 1.0) is None  # the late attempt used the code up
    second = codes.make(ann, "d", 0.0)
    assert codes.take(second, CODE_SECONDS - 0.1) == (ann, "d", CODE_SECONDS)
    mine = codes.make(bob, "e", 0.0)
    many = [codes.make(ann, "d", 1.0) for _ in range(CODES + 1)]
    assert codes.take(many[0], 2.0) is None
    assert codes.take(many[1], 2.0) is not None and codes.take(mine, 2.0) is not None
    assert len({*many, mine, first, second}) == CODES + 4


def test_the_oldest_of_too_many_pages_goes(data: Path) -> None:
    """Beyond the bound a principal's oldest page is forgotten, and a removed principal's pages are, too."""
    with opened(data) as access:
        ann, bob = (digest_of(add(access, name)) for name in ("ann", "bob"))
        other = change(access, "add_page", "bob", bob)
        many = [change(access, "add_page", "ann", ann) for _ in range(PAGES + 1)]
        assert access.who(many[0]) is None
        assert all(access.who(token) == access.callers[Principal("ann")] for token in many[1:])
        assert access.who(other) == access.callers[Principal("bob")]
    with opened(data) as access:
        assert [access.who(token) is None for token in (many[0], many[1], other)] == [True, False, False]
        change(access, "remove_token", "ann")
        assert not any(access.who(token) for token in many) and access.own("ann") is None
        with pytest.raises(Refused):
            change(access, "add_page", "ann", ann)
        change(access, "remove_page", other)
        assert access.who(other) is None
        with pytest.raises(Unknown):
            change(access, "remove_page", other)
        assert rows(data) == ["bob"]


def test_pages_of_a_rotated_operator_do_not_come_back(data: Path) -> None:
    """The operator's pages end with the operator's token, and a restart forgets their rows."""
    with opened(data) as access:
        page = change(access, "add_page", "operator", digest_of(operator_token(data)))
        change(access, "rotate_token")
        assert access.who(page) is None
    with opened(data) as access:
        assert access.who(page) is None and rows(data) == []
