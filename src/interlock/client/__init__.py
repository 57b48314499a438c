"""The verbs of a caller: `Client`, over a door; `connect` gives one of a server elsewhere."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from interlock.client.client import Client
    from interlock.client.socket import RemoteClient, connect

__all__ = ["Client", "RemoteClient", "connect"]


def __getattr__(name: str) -> object:
    """Import on first use: the runtime has doors of its own, and needs no socket."""
    if name == "Client":
        from interlock.client import client  # noqa: PLC0415

        return client.Client
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from interlock.client import socket  # noqa: PLC0415

    return getattr(socket, name)
