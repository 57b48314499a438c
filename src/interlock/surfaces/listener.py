"""The listening socket, apart from the server: a port that is taken is told before the server is imported."""

import contextlib
import socket
from typing import Final

from interlock.core.errors import BadInput

UNSENT_BYTES: Final = 4096  # TCP_NOTSENT_LOWAT of each socket
BACKLOG: Final = 2048
TCP_NOTSENT_LOWAT: Final = getattr(socket, "TCP_NOTSENT_LOWAT", 25)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; the sockets that it accepts inherit UNSENT_BYTES."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # some systems have no such option
            listener.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        listener.bind((host, port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise BadInput(
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose another --port"
        ) from None
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the address of a listening socket as an http URL."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
