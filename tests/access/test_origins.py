"""Which hosts and origins are allowed."""

from __future__ import annotations

import ipaddress
import string
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.access.origins import LOOPBACK, allowed_host, allowed_origin, sites
from interlock.core.errors import BadInput

HOSTS = [
    ("localhost", True), ("localhost:8080", True), ("LocalHost:1", True), ("127.0.0.1", True), ("127.0.0.1:9", True),
    ("[::1]", True), ("[::1]:80", True), ("[0:0:0:0:0:0:0:1]:80", True), ("gw.example", True), ("GW.Example:9", True),
    ("127.0.0.1:65535", True),
    ("only.example:8443", True), ("[2001:DB8::1]:9", True), ("only.example", False), ("only.example:80", False),
    ("tls.example", True), ("tls.example:443", True), ("tls.example:80", False),
    ("", False), (" ", False), ("localhost ", False), (" localhost", False), ("localhost\n", False),
    ("localhost\0", False),
    ("localhost.", False), ("gw.example.", False), (".localhost", False), ("localhost.evil.example", False),
    ("evil.example", False), ("evil.localhost", False), ("127.0.0.1.evil.example", False), ("xgw.example", False),
    ("user@localhost", False), ("localhost@evil.example", False), ("localhost:80@evil.example", False),
    ("localhost:", False), ("localhost:0", False), ("localhost:65536", False), ("localhost:-1", False),
    ("localhost:80a", False), ("localhost:٣", False), ("localhost:8080:1", False), ("localhost:99999999", False),
    ("localhost,localhost", False), ("localhost, evil.example", False), ("localhost evil.example", False),
    ("::1", False), ("[::1", False), ("::1]", False), ("[::1]x", False), ("[::1]80", False), ("[]", False),
    ("[localhost]", False), ("[::1%25lo]", False), ("[::ffff:127.0.0.1]", False), ("[127.0.0.1]", False),
    ("ｌocalhost", False), ("locaLhoſt", False), ("127。0。0。1", False), ("①27.0.0.1", False),
    ("xn--localhost-", False), ("0", False), ("0.0.0.0", False), ("127.1", False), ("2130706433", False),
    ("0x7f.0.0.1", False), ("127.0.0.2", False),
    ("http://localhost", False), ("localhost/", False), ("localhost/..", False), ("localhost#", False), ("*", False),
    ("localhost\\", False), ("localhost%2e", False), ("a" * 100_000, False), ("localhost:" + "8" * 100_000, False),
]  # fmt: skip
ALLOW = ("gw.example", "only.example:8443", "[2001:db8::1]", "tls.example:443")


@pytest.mark.parametrize(("host", "allowed"), HOSTS, ids=lambda value: repr(value)[:40])
def test_which_hosts_are_allowed(host: str, allowed: bool) -> None:
    """Loopback names with any port and hosts that the operator named are allowed; look-alikes are not."""
    assert allowed_host(host, ALLOW) is allowed


@pytest.mark.parametrize(("host", "allowed"), HOSTS, ids=lambda value: repr(value)[:40])
def test_an_origins_host_is_judged_alike(host: str, allowed: bool) -> None:
    """An origin whose host is refused is refused with any scheme."""
    if host != "tls.example":  # with http this name means another port
        assert allowed_origin(f"http://{host}", host=host, allow=ALLOW) is allowed
    assert allowed_origin(f"https://{host}", host=host, allow=ALLOW) is allowed
    assert allowed_origin(f"ftp://{host}", host=host, allow=ALLOW) is False


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        (None, "localhost:8080", None),
        ("http://localhost:8080", "localhost:8080", True),
        ("http://127.0.0.1:8080", "localhost:8080", True),
        ("HTTP://LOCALHOST:8080", "localhost:8080", True),
        ("https://localhost", "localhost:443", True),
        ("http://localhost:80", "[::1]", True),
        ("https://gw.example", "localhost:8080", True),  # a proxy that passes our own name as Host
        ("https://gw.example:1234", "gw.example", True),
        ("https://only.example:8443", "localhost:8080", True),
        ("https://tls.example", "tls.example", True),
        ("http://tls.example", "tls.example", False),
        ("http://localhost:3000", "localhost:8080", False),  # the page of another program on this machine
        ("http://localhost", "localhost:8080", False),
        ("http://localhost:8080", "gw.example:8080", False),  # a page on the visitor's machine, not on this one
        ("http://localhost:8080", "evil.example:8080", False),
        ("http://evil.example:8080", "evil.example:8080", False),  # DNS rebinding: the Host header says the same name
        ("null", "localhost:8080", False),
        ("", "localhost:8080", False),
        ("http://", "localhost:8080", False),
        ("http://localhost:8080/", "localhost:8080", False),
        ("http://localhost:8080 http://evil.example", "localhost:8080", False),
        ("http://localhost:8080, http://evil.example", "localhost:8080", False),
        ("http://user@localhost:8080", "localhost:8080", False),
        ("//localhost:8080", "localhost:8080", False),
        ("localhost:8080", "localhost:8080", False),
        ("file://", "localhost:8080", False),
        ("chrome-extension://abcdef", "localhost:8080", False),
        ("httpſ://localhost:8080", "localhost:8080", False),
        ("http://localhost:8080", "", False),
    ],
)
def test_which_origins_are_allowed(origin: str | None, host: str, allowed: bool | None) -> None:
    """A missing origin is neither allowed nor refused; an origin is allowed if it is ours or named by the operator."""
    assert allowed_origin(origin, host=host, allow=ALLOW) is allowed


@given(st.one_of(st.text(), st.text(alphabet=string.ascii_letters + "localhost127.:[]@,/ \\%0", max_size=24)))
def test_no_host_is_allowed_that_a_browser_reads_as_another(text: str) -> None:
    """A host that is allowed means loopback to another parser as well; no text makes the check raise."""
    if allowed_host(text):
        hostname = urlsplit(f"//{text}").hostname
        assert hostname in ("localhost", "127.0.0.1") or ipaddress.IPv6Address(hostname).is_loopback
    assert allowed_origin(text, host=text) in (True, False)


@given(st.sampled_from(sorted(LOOPBACK | {"gw.example"})), st.text(min_size=1), st.booleans())
def test_nothing_added_to_a_name_is_allowed(name: str, more: str, before: bool) -> None:
    """A name with anything before or after it is another name, but for a port after it."""
    name = f"[{name}]" if ":" in name else name
    host = more + name if before else name + more
    digits = more[1:]
    port = not before and more[0] == ":" and digits.isascii() and digits.isdigit() and 0 < int(digits) < 65_536
    assert allowed_host(host, ["gw.example"]) is (port and len(digits) <= 5)


@pytest.mark.parametrize(
    "wrong", ["", "*", "*.example", "http://gw.example", "gw.example/", "a b", "bücher.example", "x."]
)
def test_a_host_that_the_operator_misspelt_is_told(wrong: str) -> None:
    """A misspelt host raises at the start; it would otherwise never match, or match everything."""
    with pytest.raises(BadInput, match=r"example\.org"):
        sites(["gw.example", wrong])
