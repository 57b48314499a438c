"""The agent of `listeners`, in a module that cannot be forked, since its import starts a thread."""

import threading

from tests.contracts.listeners import agent

__all__ = ["agent"]

threading.Thread(target=threading.Event().wait, daemon=True).start()
