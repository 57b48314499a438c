"""What can be refused, and what a person can do about it.

Every message says what happened and what to do next. Nothing was changed when one of these is raised.
"""


class InterlockError(Exception):
    """Anything Interlock refuses; its text says what to do next."""


class BadInput(InterlockError, ValueError):
    """The call's own values are wrong; nothing was changed."""


class Unknown(InterlockError, LookupError):
    """There is no such thing for this caller: not found and not yours look the same."""

    session: str | None = None  # of the refusal of a session: its id


class Refused(InterlockError):
    """A move the lifecycle does not have, or a message the session does not take now."""


class Rejected(Refused):
    """The session is busy and the message's strategy was `reject`."""


class QueueFull(Refused):
    """The session's queue is full; refused before the ack, so nothing is lost silently."""


class KeyConflict(Refused):
    """The key was used before for another body or another method."""


class QuestionClosed(Refused):
    """The question was answered before, has expired, or went void with its run; the text says which."""


class Denied(Refused):
    """A tool was not allowed to run: a person said no, or nobody answered in time."""


class Unavailable(InterlockError):
    """The store did not take it in time; nothing was changed, the same call may be made again."""

    retryable = True


class Stale(BaseException):
    """The run is over: the user moved on. Let it pass; every further effect of this run is refused.

    A BaseException, so that `except Exception` in a tool cannot revive a run.
    """
