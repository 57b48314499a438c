"""The limit on wrong tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.access.failures import ADDRESSES, FAILURES, AuthFailures, fold


@pytest.mark.parametrize(
    ("address", "folded"),
    [
        ("1.2.3.4", "1.2.3.4"),
        ("::ffff:1.2.3.4", "1.2.3.4"),
        ("::FFFF:102:304", "1.2.3.4"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::", "2001:db8:1:3::/64"),
        ("::1", "::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("x" * 1000, "x" * 64),
    ],
)
def test_addresses_are_folded(address: str, folded: str) -> None:
    """Addresses that one client can have in any number are counted as one."""
    assert fold(address) == folded


def test_ten_failures_in_a_minute_and_then_a_wait() -> None:
    """The wait ends when the first of ten failures is a minute old; other addresses do not wait."""
    failures = AuthFailures()
    for n in range(FAILURES):
        assert failures.blocked("10.0.0.1", 100.0 + n) is None
        failures.failed("::ffff:10.0.0.1" if n % 2 else "10.0.0.1", 100.0 + n)
    assert failures.blocked("10.0.0.1", 110.0) == pytest.approx(50.0)
    assert failures.blocked("::ffff:10.0.0.1", 159.9) == pytest.approx(0.1)
    assert failures.blocked("10.0.0.2", 110.0) is None
    assert failures.blocked("10.0.0.1", 160.0) is None
    failures.failed("10.0.0.1", 160.0)
    assert failures.blocked("10.0.0.1", 160.5) == pytest.approx(0.5)


def test_failures_are_remembered_within_bounds() -> None:
    """Beyond the bound on addresses, the address that failed longest ago is forgotten."""
    failures = AuthFailures()
    for _ in range(1_000):
        failures.failed("10.0.0.1", 0.0)
    for n in range(ADDRESSES - 1):
        failures.failed(f"2001:db8:0:{n:x}::1", 1.0)
    assert failures.blocked("10.0.0.1", 1.0) is not None
    failures.failed("10.9.9.9", 2.0)
    assert failures.blocked("10.0.0.1", 2.0) is None
    assert len(failures._times) == ADDRESSES
    assert max(map(len, failures._times.values())) <= FAILURES


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.floats(0, 20)), max_size=60))
def test_an_address_is_kept_waiting_exactly_after_ten_in_sixty_seconds(steps: list[tuple[str, float]]) -> None:
    """An address waits exactly when a plain count of its failures in the last minute is ten."""
    failures, now, times = AuthFailures(), 0.0, {"a": [], "b": []}
    for address, pause in steps:
        now += pause
        lately = sum(now - then < 60 for then in times[address])
        wait = failures.blocked(address, now)
        assert (wait is not None) == (lately >= FAILURES)
        assert wait is None or 0 < wait <= 60
        failures.failed(address, now)
        times[address].append(now)
