"""The hosts and origins that a server answers.

Hosts and origins are compared as parsed, never as prefixes; those that cannot be parsed are refused.
"""

import ipaddress
import re
from collections.abc import Collection
from typing import NamedTuple

from interlock.core.errors import BadInput

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
AUTHORITY = r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9_-][A-Za-z0-9._-]{0,252}))(?::([0-9]{1,5}))?"
HOST = re.compile(AUTHORITY)
ORIGIN = re.compile(rf"(https?)://({AUTHORITY})", re.IGNORECASE | re.ASCII)
DEFAULT_PORTS = {"http": 80, "https": 443}


class Site(NamedTuple):
    """A host, in lower case, and a port if one is named."""

    name: str
    port: int | None


def site(text: str) -> Site | None:
    """Parse `host[:port]`; None for any other text."""
    found = HOST.fullmatch(text)
    if found is None:
        return None
    six, name, digits = found.groups()
    port = None if digits is None else int(digits)
    if port is not None and not 0 < port < 65_536:
        return None
    if six is not None:
        try:
            name = str(ipaddress.IPv6Address(six))
        except ValueError:
            return None
    return None if name.endswith(".") else Site(name.lower(), port)


def sites(allow: Collection[str]) -> frozenset[Site]:
    """Parse the hosts that the operator allows: `example.org` or `example.org:8443`."""
    named = {text: site(text) for text in allow}
    for text, found in named.items():
        if found is None:
            raise BadInput(f"{text[:80]!r} is no host; write example.org, example.org:8443, 10.0.0.1 or [2001:db8::1]")
    return frozenset(found for found in named.values() if found is not None)


def _named(found: Site, allow: Collection[str], usual: Collection[int]) -> bool:
    """Return whether the operator allows a site; `usual` are the ports that a site without a port means."""
    ports = usual if found.port is None else (found.port,)
    return not {Site(found.name, port) for port in (None, *ports)}.isdisjoint(sites(allow))


def allowed_host(host_header: str, allow: Collection[str] = ()) -> bool:
    """Return whether a request for this host is served; the caller joins a repeated header by a comma.

    This refuses DNS rebinding: a foreign page whose name was made to point at this server still sends its own name.
    """
    found = site(host_header)
    return found is not None and (found.name in LOOPBACK or _named(found, allow, DEFAULT_PORTS.values()))


def allowed_origin(origin: str | None, *, host: str, allow: Collection[str] = ()) -> bool | None:
    """Return whether a page of this origin may call this server; None if the request has no origin.

    A loopback page must come from the port that it calls, since another port belongs to another program. A page of a
    site that the operator names may call too.
    """
    if origin is None:
        return None
    match = ORIGIN.fullmatch(origin)
    page, here = (site(match[2]) if match else None), site(host)
    if match is None or page is None or here is None:
        return False
    usual = DEFAULT_PORTS[match[1].lower()]
    same_port = (page.port or usual) == (here.port or usual)
    return _named(page, allow, (usual,)) or (same_port and page.name in LOOPBACK and here.name in LOOPBACK)
