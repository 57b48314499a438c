"""The limit on wrong tokens.

1. An address that has sent FAILURES wrong tokens in FAILURE_SECONDS is refused; a right token always comes in.
2. At most ADDRESSES are remembered, the oldest is forgotten: a flood of addresses cannot fill the memory.
"""

import ipaddress
from collections import OrderedDict, deque

FAILURES = 10
FAILURE_SECONDS = 60.0
ADDRESSES = 4_096
RATE_LIMITED = "AUTH_RATE_LIMITED"


def fold(address: str) -> str:
    """Return the address under which a peer is counted: IPv4 also where it is mapped to IPv6, and the /64 of IPv6."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(found) >> 64 << 64)) + "/64"


class AuthFailures:
    """Counts the wrong tokens of each address in the last FAILURE_SECONDS."""

    def __init__(self) -> None:
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def blocked(self, address: str, now: float) -> float | None:
        """Return for how many seconds this address is still refused; None if it is not."""
        times = self._times.get(fold(address), deque())
        left = FAILURE_SECONDS - (now - times[0]) if len(times) == FAILURES else 0.0
        return left if left > 0 else None

    def failed(self, address: str, now: float) -> None:
        """Count a wrong token."""
        key = fold(address)
        self._times.setdefault(key, deque(maxlen=FAILURES)).append(now)
        self._times.move_to_end(key)
        if len(self._times) > ADDRESSES:
            self._times.popitem(last=False)
