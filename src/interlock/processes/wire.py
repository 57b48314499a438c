"""Packets between control, helper, keepers and workers: whole messages on a SEQPACKET pair, with descriptors.

1. Any error while receiving counts as the end: a peer that died may show as ECONNRESET instead of EOF.
2. Nothing here waits. A full buffer raises BlockingIOError, and the packet was not sent.
3. A message that does not fit into a packet travels in a memfd.
4. Messages are marshalled only between programs that trust each other. `marshal` is not safe against a hostile peer.

The bare helper imports this file, so it imports only the smallest modules of the standard library.
"""

from __future__ import annotations

import array
import marshal
import os
from _socket import CMSG_SPACE, MSG_CMSG_CLOEXEC, MSG_CTRUNC, MSG_DONTWAIT, SCM_RIGHTS, SOL_SOCKET, socket

TYPE_CHECKING = False  # an import of `typing` would double the helper's memory
if TYPE_CHECKING:
    from typing import Any

PACKET_BYTES = 32 * 1024
MEMFD_BYTES = 64 * 1024 * 1024
DESCRIPTORS = 8  # in one packet, at most

_HERE, _MEMFD = b"h", b"m"


class Closed(Exception):
    """The peer is gone, or has shut down its writing half."""


def send_bytes(sock: socket, data: bytes, fds: tuple[int, ...] = (), head: bytes = b"") -> None:
    """Send one packet. If the data needs a memfd and the peer is out of descriptors, only `head` arrives."""
    if len(data) <= PACKET_BYTES:
        _send(sock, _HERE + data, fds)
        return
    if len(data) > MEMFD_BYTES:
        raise OSError(7, "too long")  # E2BIG
    memfd = os.memfd_create("interlock", os.MFD_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(memfd, view) :]
        _send(sock, _MEMFD + head, (*fds, memfd))
    finally:
        os.close(memfd)


def _send(sock: socket, data: bytes, fds: tuple[int, ...]) -> None:
    rights = [(SOL_SOCKET, SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([data], rights, MSG_DONTWAIT)


def receive_bytes(sock: socket) -> tuple[bytes, list[int]] | None:
    """Return one packet with its descriptors, or None if there is none now; raise Closed at the end.

    The list of descriptors is [-1] if this process was out of descriptors and some were lost on the way.
    """
    fds = array.array("i")
    try:
        data, rights, flags, _ = sock.recvmsg(
            PACKET_BYTES + 1, CMSG_SPACE(DESCRIPTORS * fds.itemsize), MSG_DONTWAIT | MSG_CMSG_CLOEXEC
        )
    except (BlockingIOError, InterruptedError):
        return None
    except OSError as error:
        raise Closed from error
    for level, kind, packed in rights:
        if level == SOL_SOCKET and kind == SCM_RIGHTS:
            fds.frombytes(packed[: len(packed) - len(packed) % fds.itemsize])
    taken = list(fds)
    if not data:
        close_all(taken)
        raise Closed
    if flags & MSG_CTRUNC:
        close_all(taken)
        return data[1:], [-1]
    if data[:1] == _MEMFD:
        return _contents(taken.pop()), taken
    return data[1:], taken


def _contents(memfd: int) -> bytes:
    try:
        size = os.fstat(memfd).st_size
        if size > MEMFD_BYTES:
            raise Closed
        return os.pread(memfd, size, 0)
    finally:
        os.close(memfd)


def send(sock: socket, message: tuple[Any, ...], fds: tuple[int, ...] = ()) -> None:
    """Send a message of plain values."""
    send_bytes(sock, marshal.dumps(message), fds, marshal.dumps(message[:2]))


def receive(sock: socket) -> tuple[tuple[Any, ...], list[int]] | None:
    """Return one message with its descriptors, or None if there is none now; raise Closed at the end."""
    packet = receive_bytes(sock)
    return None if packet is None else (marshal.loads(packet[0]), packet[1])


def close_all(fds: list[int]) -> None:
    """Close descriptors; -1 stands for a descriptor that was lost or never opened."""
    for fd in fds:
        if fd >= 0:
            os.close(fd)
