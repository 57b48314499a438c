"""Talking to a gateway from another process: `connect`, and Control's verbs."""

from interlock.client.connection import Client, connect

__all__ = ["Client", "connect"]
