"""The errors of Interlock.

The text of each says what happened and what to do next. A call that raises one of them was not carried out, with three
exceptions. After a failure of the disk it is unknown whether a write was kept (`Unsure` in `stores.base`). If a client
loses its connection before the answer, it is unknown whether the server carried the call out. And a run that a message
took over stays superseded even if the store does not keep that message (race 134).
"""


class InterlockError(Exception):
    """The base of every error but `Stale`; its text says what to do next."""


class BadInput(InterlockError, ValueError):
    """The call's own values are wrong; nothing was changed."""


class Unknown(InterlockError, LookupError):
    """The thing named does not exist, or is another principal's: both look the same to the caller."""


class UnknownSession(Unknown):
    """The caller sees no such session. A surface raises it anew with the name that its caller wrote."""

    def __init__(self, session: str, by: str) -> None:
        super().__init__(
            f"no session {session!r} for {by}; a session begins with its first message, "
            "and another's (owner/name) is there only for those it is shared with"
        )
        self.session = session


class Refused(InterlockError):
    """The lifecycle has no such move, or the session does not take the message now."""


class Rejected(Refused):
    """The session is busy, and the message has the strategy `reject` or is a wake."""


class QueueFull(Refused):
    """The session's queue is full. The message is refused before the ack, so no accepted message is dropped."""


class KeyConflict(Refused):
    """The key was used before for another body or another method."""


class QuestionClosed(Refused):
    """The question is answered, expired, or void with its run; the text says which."""


class Denied(Refused):
    """A person denied a tool call, or did not answer in time."""


class Unavailable(InterlockError):
    """The store did not answer in time, control is closing, or a client does not reach its server.

    The call was not carried out; make it again. Where that is unknown (`Unsure`, a lost connection), the text says so.
    """

    retryable = True


class Stale(BaseException):
    """The run has fallen, and this effect of it was refused. Do not catch it: every further effect is refused too.

    Stale is a BaseException, so that `except Exception` in a tool does not swallow it and let the agent go on.
    """
