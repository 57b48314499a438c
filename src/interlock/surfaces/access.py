"""Access to a gateway: tokens, allowed hosts and origins, the limit on wrong tokens, and the audit.

1. A token is kept as its digest. Only the operator's is on the disk in plain text, for the shell on this machine; no
   token is in a repr, a log, an error or an argument.
2. A token is compared with every known digest, in constant time, so that timing tells nothing about who has one.
3. A file is written beside its place, synced and renamed, under a lock of our own: kill -9 leaves the old or the new.
4. A file has changed if its contents have: times are coarse, and inodes are reused. A file that cannot be read changes
   nothing; a file that is gone revokes its tokens.
5. Hosts and origins are compared as parsed, never as prefixes; those that cannot be parsed are refused.
6. The audit never raises and never waits for fsync, and a flood of refusals cannot fill it.
7. A page is let in by a code that works once, for CODE_SECONDS. Its token is bound to its principal's token and is
   revoked with it.
"""

import contextlib
import fcntl
import hashlib
import hmac
import ipaddress
import json
import logging
import math
import os
import re
import secrets
import stat
import time
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from interlock.core.errors import BadInput, InterlockError, Refused, Unknown
from interlock.core.names import LOCAL, Principal

log = logging.getLogger("interlock")
T = TypeVar("T")

OPERATOR = Principal("operator")
TOKEN_BYTES = 32
# An operator may write a token by hand; a short one could be guessed.
TOKEN = re.compile(rb"[!-~]{16,512}")
NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
FILE_BYTES = 4 * 1024 * 1024
LOCK_SECONDS = 5.0

CODE_BYTES = 16
CODE_SECONDS = 3_600.0
CODES = 32  # unused, of one principal
PAGES = 64  # of one principal; beyond it the oldest is revoked
ALL_PAGES = 512

FAILURES = 10
FAILURE_SECONDS = 60.0
ADDRESSES = 4_096
RATE_LIMITED = "AUTH_RATE_LIMITED"

REFUSED = "refused"  # the kind of line that the audit limits
REFUSALS_PER_SECOND = 20
VALUE_CHARACTERS = 500
COMPLAINT_SECONDS = 60.0

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
AUTHORITY = r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9_-][A-Za-z0-9._-]{0,252}))(?::([0-9]{1,5}))?"
HOST = re.compile(AUTHORITY)
ORIGIN = re.compile(rf"(https?)://({AUTHORITY})", re.IGNORECASE | re.ASCII)
DEFAULT_PORTS = {"http": 80, "https": 443}


class AccessFailed(InterlockError):
    """The tokens of a gateway cannot be read or written; no new token counts."""


# Callers


class Scope(StrEnum):
    """What a token is good for."""

    ADMIN = "admin"
    WRITE = "write"
    APPROVE = "approve"
    READ = "read"


class Caller(msgspec.Struct, frozen=True):
    """The principal and the scopes of a token."""

    name: Principal
    scopes: frozenset[Scope]

    def may(self, scope: Scope) -> bool:
        """Return whether the token has a scope; `admin` includes every other."""
        return scope in self.scopes or Scope.ADMIN in self.scopes


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A principal in `interlock token list`."""

    name: Principal
    scopes: tuple[Scope, ...]
    created_at: str | None = None  # the operator's token has no date


Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    hash: Digest
    scopes: Annotated[tuple[Scope, ...], msgspec.Meta(min_length=1)]
    created_at: str


class _Page(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    hash: Digest
    name: str
    of: Digest  # of its principal's token when it was paired
    created_at: str


def digest_of(token: str) -> str:
    """Return the digest by which a token is kept."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class Access:
    """The tokens of a gateway, under its data directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.expanduser()
        self.token = self.directory / "token"
        self.principals = self.directory / "principals.json"
        self.pages = self.directory / "pages.json"
        self._files = (self.token, self.principals, self.pages)
        self._operator: str | None = None  # a digest
        self._entries: dict[str, _Entry] = {}
        self._pages: tuple[_Page, ...] = ()
        self._holders: tuple[tuple[str, Caller], ...] = ()
        self._seen: dict[Path, str | None] = {}  # digest of each file's contents
        self._troubles: dict[Path, str] = {}

    def open(self, *, make: bool = True) -> None:
        """Read the tokens and close their files to other users.

        With `make` the first start creates the directory and the operator's token; without it, a missing directory is
        an error.
        """
        if make:
            self._make()
        self._see_to_directory()
        if make and not self.token.exists():
            with self._changing():
                if not self.token.exists():  # no other process made it meanwhile
                    self._write(self.token, secrets.token_urlsafe(TOKEN_BYTES).encode() + b"\n")
        for path in self._files:
            self._take(path)

    def refresh(self) -> bool:
        """Read the files again, which another process may have changed; return whether a token or its scopes did."""
        before = self._holders
        for path in self._files:
            try:
                self._take(path)
                self._troubles.pop(path, None)
            except AccessFailed as error:
                if self._troubles.get(path) != str(error):
                    self._troubles[path] = str(error)
                    log.error("%s; until then what was read before stands", error)
        return self._holders != before

    def who(self, token: str) -> Caller | None:
        """Return the caller whose token this is."""
        digest, found = digest_of(token), None
        for known, caller in self._holders:
            if hmac.compare_digest(known, digest):
                found = caller
        return found

    def valid(self, digest: str) -> bool:
        """Return whether the token of this digest still counts; `callers` has its scopes, which may have changed."""
        return any([hmac.compare_digest(known, digest) for known, _ in self._holders])

    @property
    def callers(self) -> dict[Principal, Caller]:
        """Every principal that has a token, by name."""
        return {caller.name: caller for _, caller in self._holders}

    def listing(self) -> tuple[Listed, ...]:
        """Return every principal that has a token: the operator first, then by name."""
        operator = Listed(name=OPERATOR, scopes=(Scope.ADMIN,))
        others = (
            Listed(name=Principal(name), scopes=entry.scopes, created_at=entry.created_at)
            for name, entry in sorted(self._entries.items())
        )
        return (*((operator,) if self._operator is not None else ()), *others)

    def add(self, name: str, scopes: Collection[Scope]) -> str:
        """Add a principal and return its token. Only the digest is kept, so the token cannot be shown again."""
        if NAME.fullmatch(name) is None:
            raise BadInput(f"{name[:80]!r} is no name for a principal; write 1 to 64 of A-Z a-z 0-9 . _ @ -")
        if name.lower() in (OPERATOR, LOCAL):
            raise BadInput(f"{name!r} is a reserved name; choose another")
        if not scopes:
            raise BadInput(f"a principal needs a scope: {', '.join(Scope)}")
        self._make()
        self._see_to_directory()
        token = secrets.token_urlsafe(TOKEN_BYTES)
        with self._changing():
            self._take(self.principals)
            if name in self._entries:
                raise Refused(f"there is a principal {name} already; `interlock token remove {name}` first")
            held = tuple(scope for scope in Scope if scope in scopes)
            entry = _Entry(hash=digest_of(token), scopes=held, created_at=_now())
            self._write(self.principals, _file_of({**self._entries, name: entry}))
        self.refresh()
        return token

    def remove(self, name: str) -> None:
        """Revoke a principal's token; its runs go on, and its sessions stay its own."""
        self._see_to_directory()
        with self._changing():
            self._take(self.principals)
            if name == OPERATOR:
                raise BadInput("the operator stays; `interlock token rotate` makes a new token")
            if name not in self._entries:
                raise Unknown(f"there is no principal {name[:80]!r}; `interlock token list` names them")
            self._write(self.principals, _file_of({n: e for n, e in self._entries.items() if n != name}))
        self.refresh()

    def rotate(self) -> Path:
        """Replace the operator's token by a new one and return the path of its file."""
        self._see_to_directory()
        with self._changing():
            self._write(self.token, secrets.token_urlsafe(TOKEN_BYTES).encode() + b"\n")
        self.refresh()
        return self.token

    # Pages

    def own(self, name: str) -> str | None:
        """Return the digest of a principal's own token, to which its pages are bound."""
        return next((digest for digest, caller in self._holders if caller.name == name), None)

    def is_page(self, token: str) -> bool:
        """Return whether a token belongs to a page, not to its principal itself."""
        digest = digest_of(token)
        return any([hmac.compare_digest(page.hash, digest) for page in self._pages])

    def add_page(self, name: str, of: str) -> str:
        """Make, keep and return a page's token; `of` is the digest of its principal's. This waits for the disk.

        A server calls this in a thread, on an `Access` of its own, and then `refresh` on the one that it serves with:
        the loop meanwhile reads the object that it serves with.
        """
        token = secrets.token_urlsafe(TOKEN_BYTES)
        page = _Page(hash=digest_of(token), name=name, of=of, created_at=_now())
        with self._changing_pages() as pages:
            mine = [each for each in pages if each.name == name]
            gone = mine[: max(0, len(mine) + 1 - PAGES)]
            pages[:] = [*(each for each in pages if each not in gone), page][-ALL_PAGES:]
        return token

    def forget_page(self, token: str) -> None:
        """Revoke a page's token. This waits for the disk, as `add_page` does."""
        digest = digest_of(token)
        with self._changing_pages() as pages:
            pages[:] = [each for each in pages if each.hash != digest]

    @contextlib.contextmanager
    def _changing_pages(self) -> Iterator[list[_Page]]:
        """Yield the pages whose principal's token still counts, and write the list as the caller changed it."""
        self._see_to_directory()
        with self._changing():
            for path in self._files:
                self._take(path)
            standing = {digest for digest, _ in self._holders}
            pages = [each for each in self._pages if each.hash in standing]
            yield pages
            self._write(self.pages, msgspec.json.format(msgspec.json.encode(pages)) + b"\n")

    # Reading

    def _take(self, path: Path) -> None:
        """Read one of the files into memory if its contents have changed."""
        data = self._read(path)
        seen = None if data is None else hashlib.sha256(data).hexdigest()
        if path in self._seen and self._seen[path] == seen:
            return
        if path == self.token:
            self._operator = None if data is None else _operator_of(data, path)
        elif path == self.pages:
            self._pages = () if data is None else _decoded(data, path, tuple[_Page, ...])
        else:
            self._entries = {} if data is None else _entries_of(data, path)
        self._seen[path] = seen
        holders = [(e.hash, Caller(Principal(name), frozenset(e.scopes))) for name, e in self._entries.items()]
        if self._operator is not None:
            holders.append((self._operator, Caller(OPERATOR, frozenset({Scope.ADMIN}))))
        callers = dict(holders)
        pages = ((page.hash, callers[page.of]) for page in self._pages if page.of in callers)
        self._holders = (*holders, *pages)

    def _read(self, path: Path) -> bytes | None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise AccessFailed(f"{path} cannot be read: {error.strerror}; put it right or remove it") from None
        try:
            facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode) or facts.st_size > FILE_BYTES:
                raise AccessFailed(f"{path} is not a file of ours; move it away")
            _close_to_others(path, fd, 0o600)
            return os.read(fd, FILE_BYTES)
        except OSError as error:
            raise AccessFailed(f"{path} cannot be read: {error.strerror}; put it right or remove it") from None
        finally:
            os.close(fd)

    # Writing

    def _make(self) -> None:
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise AccessFailed(f"{self.directory} cannot be made: {error.strerror}; choose another --data") from None

    def _see_to_directory(self) -> None:
        """Close the directory to other users, or refuse it: a user who can write there could add a token."""
        where = self.directory
        try:
            fd = os.open(where, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                if os.fstat(fd).st_mode & stat.S_ISVTX:  # such as /tmp
                    raise AccessFailed(f"{where} is shared by many users; choose a directory of its own with --data")
                _close_to_others(where, fd, 0o700)
            finally:
                os.close(fd)
        except FileNotFoundError:
            raise AccessFailed(f"there is no {where}; name the gateway's directory with --data") from None
        except OSError as error:
            raise AccessFailed(f"{where} cannot be used: {error.strerror}; choose another --data") from None

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock under which any process changes the files."""
        path = self.directory / "access.lock"
        try:
            fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise AccessFailed(f"{path} cannot be opened: {error.strerror}; put it right or remove it") from None
        try:
            end = time.monotonic() + LOCK_SECONDS
            while True:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                if time.monotonic() > end:
                    raise AccessFailed(f"another process has been changing {self.directory} for too long; try again")
                time.sleep(0.01)
            yield
        finally:
            os.close(fd)

    def _write(self, path: Path, data: bytes) -> None:
        """Replace a file as a whole, or leave it as it was. The caller has the lock, so the temporary name is free."""
        beside = path.with_name(f".{path.name}.new")
        try:
            beside.unlink(missing_ok=True)  # left by a process that was killed
            fd = os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(fd, "wb") as file:
                os.fchmod(fd, 0o600)  # in spite of the umask
                file.write(data)
                file.flush()
                os.fsync(fd)
            beside.replace(path)
            above = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(above)
            finally:
                os.close(above)
        except OSError as error:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            raise AccessFailed(f"{path} could not be written: {error.strerror}; make room and try again") from None


def _close_to_others(path: Path, fd: int, mode: int) -> None:
    """Check that a file or directory is ours, and close it to other users; warn if it was open to them."""
    facts = os.fstat(fd)
    if facts.st_uid != os.geteuid():
        raise AccessFailed(f"{path} belongs to user {facts.st_uid}; be that user, or choose another --data")
    if facts.st_mode & 0o077:
        os.fchmod(fd, mode)
        if os.fstat(fd).st_mode & 0o077:
            raise AccessFailed(f"{path} cannot be closed to other users on this file system; choose another --data")
        said = "%s was open to other users (mode %o) and is closed; if they may have looked, `interlock token rotate`"
        log.warning(said, path, stat.S_IMODE(facts.st_mode))


def _operator_of(data: bytes, path: Path) -> str:
    token = data.strip()
    if TOKEN.fullmatch(token) is None:
        raise AccessFailed(f"{path} holds no token; `interlock token rotate` makes a new one")
    return digest_of(token.decode())


def _decoded(data: bytes, path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        where = str(error).rpartition(" - ")[2]  # the text before it may quote the file's contents
        raise AccessFailed(f"{path} is not what we write ({where}); put it right or remove it") from None


def _entries_of(data: bytes, path: Path) -> dict[str, _Entry]:
    entries = _decoded(data, path, dict[str, _Entry])
    if any(NAME.fullmatch(name) is None or name.lower() in (OPERATOR, LOCAL) for name in entries):
        raise AccessFailed(f"{path} has a name that no principal may have; put it right or remove it")
    return entries


def _file_of(entries: dict[str, _Entry]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(entries)) + b"\n"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# Pairing


class Pairing(NamedTuple):
    """The page that a code lets in: of which principal, under which digest of its token, and until when."""

    name: Principal
    of: str
    until: float


class Codes:
    """The unused pairing codes. They live in memory, and a restart forgets them."""

    def __init__(self) -> None:
        self._waiting: dict[str, Pairing] = {}  # by digest, the oldest first

    def make(self, name: Principal, of: str, now: float) -> str:
        """Return a new code for a page of a principal whose token has the digest `of`."""
        self._waiting = {digest: each for digest, each in self._waiting.items() if now < each.until}
        mine = [digest for digest, each in self._waiting.items() if each.name == name]
        for digest in mine[: max(0, len(mine) + 1 - CODES)]:
            del self._waiting[digest]
        code = secrets.token_urlsafe(CODE_BYTES)
        self._waiting[digest_of(code)] = Pairing(name, of, now + CODE_SECONDS)
        return code

    def take(self, code: str, now: float) -> Pairing | None:
        """Use up a code and return its pairing; None if it is unknown or too old."""
        digest = digest_of(code)
        known = [each for each in self._waiting if hmac.compare_digest(each, digest)]
        found = self._waiting.pop(known[0]) if known else None
        return found if found is not None and now < found.until else None


# Hosts and origins


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


# Failures


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


# Audit


class Audit:
    """The file of stops, answers, shares and refusals, by whom and from where: JSON lines, only ever appended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._refusals: deque[float] = deque(maxlen=REFUSALS_PER_SECOND)
        self._left_out = 0  # refusals beyond REFUSALS_PER_SECOND
        self._unwritten = 0  # lines that could not be written
        self._told_at = -math.inf
        self._complained_at = -math.inf

    def note(self, kind: str, *, by: str, address: str, **facts: object) -> None:
        """Write a line; at most REFUSALS_PER_SECOND of kind `refused`, and later how many were left out."""
        now = time.monotonic()
        self.tell_left_out()
        if kind == REFUSED:
            if not self._room(now):
                self._left_out += 1
                return
            self._refusals.append(now)
        if not self._put(kind, {"by": by, "address": address}, facts):
            self._unwritten += 1

    def tell_left_out(self, *, at_once: bool = False) -> None:
        """Write how many lines are missing, at most once a second. The gateway's clock calls this too."""
        now = time.monotonic()
        if not (self._left_out or self._unwritten) or not (at_once or (self._room(now) and now - self._told_at >= 1)):
            return
        if self._put("left_out", {}, {"refused": self._left_out, "unwritten": self._unwritten}):
            self._left_out = self._unwritten = 0
            self._told_at = now
            self._refusals.append(now)

    def close(self) -> None:
        """Write how many lines are missing, and close the file."""
        self.tell_left_out(at_once=True)
        self._let_go()

    def _room(self, now: float) -> bool:
        return len(self._refusals) < REFUSALS_PER_SECOND or now - self._refusals[0] >= 1

    def _put(self, kind: str, head: dict[str, str], facts: dict[str, object]) -> bool:
        own: dict[str, object] = {"time": _now(), "kind": kind, **head}
        plain = {_told(key): _told(value) for key, value in (own | facts | own).items()}
        line = json.dumps(plain).encode() + b"\n"
        try:
            if self._fd is None or os.fstat(self._fd).st_nlink == 0:
                self._let_go()
                self._fd = self._open()
            if os.write(self._fd, line) != len(line):
                raise OSError("only a part of a line was written")
        except OSError as error:
            self._let_go()  # opened again, the file gets a newline behind a torn line
            if time.monotonic() - self._complained_at >= COMPLAINT_SECONDS:
                self._complained_at = time.monotonic()
                log.error("the audit %s cannot be written: %s", self.path, error.strerror or error)
            return False
        return True

    def _open(self) -> int:
        fd = os.open(
            self.path,
            os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY,
            0o600,
        )
        try:
            facts = os.fstat(fd)
            if stat.S_ISREG(facts.st_mode):
                os.fchmod(fd, 0o600)
                if facts.st_size and os.pread(fd, 1, facts.st_size - 1) != b"\n":
                    os.write(fd, b"\n")  # behind a line that a crash or a full disk tore
        except OSError:
            os.close(fd)
            raise
        return fd

    def _let_go(self) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = None


def _told(value: object) -> str | int | float | None:
    """Return a value for the audit: short, and valid JSON for every reader."""
    if value is None or isinstance(value, bool) or (isinstance(value, int) and -(2**63) <= value < 2**63):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    try:
        text = str(value)
    except Exception:  # such as an integer with too many digits
        text = f"({type(value).__name__})"
    return text[:VALUE_CHARACTERS].encode("utf-8", "backslashreplace").decode()[:VALUE_CHARACTERS]
