"""The Python client of a server: `connect`, and the methods of control."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from interlock.client.client import Client, connect

__all__ = ["Client", "connect"]


def __getattr__(name: str) -> object:
    """Import the client on first use, so that commands of the shell that need no client start faster."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from interlock.client import client  # noqa: PLC0415

    return getattr(client, name)
