"""What people type in a chat: a stop word stops, `/new` begins anew, anything else is a message.

1. A command counts in the step that reads it, as any stop does.
2. Its key is the stop's own, or the reset's: a command that is delivered twice ends nothing newer.
3. A forwarded text is somebody else's words: it is a message, whatever it says.
"""

from collections.abc import Collection
from functools import partial
from typing import Any

import msgspec

from interlock.client.client import Client
from interlock.client.door import Asked
from interlock.core.answers import Sent
from interlock.core.errors import Unknown
from interlock.core.receipt import Receipt
from interlock.core.stopwords import is_stop, normalise
from interlock.core.verbs import Reset, Send, SessionName, Stop, Verb

ANEW = frozenset({"/new", "/reset"})
COMMAND_CHARACTERS = 64


class Handled(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a text: a message that was sent, or a command with the receipt of what it ended.

    A reset without a receipt found no session to begin anew.
    """

    sent: Sent | None = None
    receipt: Receipt | None = None
    reset: bool = False


class Chat:
    """Reads what people type, for every chat surface alike."""

    def __init__(self, *, names: Collection[str] = (), stop_words: Collection[str] = ()) -> None:
        self._names, self._stop_words = tuple(names), tuple(stop_words)
        # The first call builds the tables of stop words; the first person who types a stop must not wait for that.
        self.is_command("stop")

    def is_command(self, text: str, *, mention: str | None = None, forwarded: bool = False) -> bool:
        """Return whether a text is a command; in a group, `mention` is how the agent is addressed there."""
        if not forwarded and _is_reset(text, mention):
            return True
        return is_stop(text, name=self._names, mention=mention, forwarded=forwarded, also=self._stop_words)

    def handle(
        self,
        client: Client,
        session: str,
        text: str,
        *,
        key: str,
        order: tuple[str, float] | None = None,
        mention: str | None = None,
        forwarded: bool = False,
        **send: Any,
    ) -> Asked[Handled]:
        """Carry out a text in this step: stop, reset, or send with the further fields of `Send`."""
        named = SessionName(session)
        if not self.is_command(text, mention=mention, forwarded=forwarded):
            return _handled(client, Send(session=named, text=text, key=key, order=order, **send), "sent")
        if _is_reset(text, mention):
            return _handled(client, Reset(session=named, key=key), "receipt", reset=True)
        return _handled(client, Stop(session=named, key=key, order=order, typed=True), "receipt")


def _is_reset(text: str, mention: str | None) -> bool:
    return len(text) < COMMAND_CHARACTERS + len(mention or "") and normalise(text, mention) in ANEW


def _handled(client: Client, verb: Verb[Any], field: str, *, reset: bool = False) -> Asked[Handled]:
    return Asked(partial(_answer, client.ask(verb), field, reset))


async def _answer(asked: Asked[Any], field: str, reset: bool) -> Handled:
    try:
        return Handled(**{field: await asked}, reset=reset)
    except Unknown:
        if not reset:
            raise
        # The session has no message yet, or is another's.
        return Handled(reset=True)
