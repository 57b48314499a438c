"""The context of one request: its caller, and the names that its answer may use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from interlock.core.errors import InterlockError, UnknownSession
from interlock.core.names import SessionId
from interlock.core.receipt import Receipt
from interlock.protocol import frames
from interlock.protocol.frames import Request

if TYPE_CHECKING:
    from interlock.surfaces.gateway.connection import Connection


class RequestContext:
    """The connection, as the handler of one request sees it."""

    __slots__ = ("_written", "arrived", "by", "chat", "client", "connection", "door", "ignored", "request", "typed")

    def __init__(self, connection: Connection, request: Request) -> None:
        self.connection, self.request = connection, request
        self.door, self.client, self.chat = connection.door, connection.client, connection.gateway.chat
        self.by = connection.by
        self.typed = False
        self.ignored: tuple[str, ...] = ()
        # The time of day when the frame of a stop was read.
        self.arrived = 0.0
        self._written: dict[str, str] = {}

    def session_id(self, name: str) -> SessionId:
        """Return a session's id, and remember what a refusal may call it.

        A refusal repeats the name that the caller wrote. Sessions of schema 1 have ids without an owner, and such an
        id in a refusal would tell the caller that the session exists.
        """
        session = self.door.id_of(name)
        self._written[session] = name if "/" in name else session
        return session

    def error(self, error: InterlockError) -> dict[str, Any]:
        """Return the wire's error; it names a session as the caller wrote it."""
        return frames.error_of(self._as_written(error))

    def _as_written(self, error: InterlockError) -> InterlockError:
        if isinstance(error, UnknownSession):
            return UnknownSession(SessionId(self._written.get(error.session, error.session)), self.by)
        return error

    def nothing(self, payload: Any) -> Any:
        """Return an answer; a receipt in it that ended nothing names its session as the caller wrote it."""
        found = payload.get("receipt") if isinstance(payload, dict) else payload
        if not isinstance(found, Receipt) or found.id is not None or found.session is None:
            return payload
        named = SessionId(self._written.get(found.session, found.session))
        receipt = msgspec.structs.replace(found, session=named)
        return payload | {"receipt": receipt} if isinstance(payload, dict) else receipt

    def first(self, payload: dict[str, Any], about: SessionId) -> None:
        """Send the first of two answers to a request; the handler returns the second."""
        self.connection.outbox.answer(frames.response(self.request.id, self.told(payload)), about=about)

    def name(self, session: SessionId) -> str:
        """Return a session's name as the caller writes it."""
        return self.door.name_of(session)

    def told(self, payload: Any) -> Any:
        """Return an answer with the names of the fields that were ignored, if there were any."""
        return payload | {"ignored": self.ignored} if self.ignored and isinstance(payload, dict) else payload

    @contextmanager
    def parting(self, answer: Any) -> Iterator[None]:
        """Give the caller this answer if the block ends the caller's own token, and with it the connection."""
        self.connection.parting = frames.response(self.request.id, answer)
        try:
            yield
        finally:
            self.connection.parting = None
