"""The book of rights: whose a session is and with whom it is shared, as far as that can be known outside the runtime.

The oracle never believes an owner that the runtime names, not even in an event: a runtime that is wrong about the owner
would be judged by its own error. The book is kept from the decisions handed to the store and from what callers were
told:
1. A session is founded by the first message that was handed to the store to be admitted and stands. A message stands if
   the store holds it, if its sender was told of its run, or if its end was published. Its sender is the owner for good,
   once the store has the session.
2. A message that fell before it was decided on is never handed to the store, and one that was withdrawn does not stand:
   neither founds a session.
3. A share counts from the request for it until the acknowledgement of its end.
"""

import math
from enum import StrEnum
from typing import NamedTuple

from interlock.core.decision import Decision
from interlock.core.names import LOCAL, RunId
from interlock.stores.memory import MemoryStore

WRITE, READ = "write", "read"
EVERYWHERE = "*"  # the session of a word about a principal who may see every session


class Deed(StrEnum):
    """What a principal did, or was allowed to see."""

    SEND = "send"
    END = "end"  # a stop, a takeover, an answer; the run's principal may too
    SEE = "see"
    LOOK = "look"  # at one run; its principal may too
    OWN = "own"  # reset, wake, share: only the owner may


class Act(NamedTuple):
    """A deed as the oracle saw it; the runtime may have checked the right at any instant from `since` to `until`."""

    deed: Deed
    by: str
    session: str
    since: float
    until: float
    told: str  # the violation to report if there was no right
    run_id: RunId | None = None  # the run that was acted on
    principal: str | None = None  # who started that run


class Offer(NamedTuple):
    """A message that was handed to the store to be admitted."""

    run_id: RunId
    by: str
    text: str


class Word:
    """One change of a principal's share of a session: `may` is the right, None is no right; the later word stands."""

    def __init__(self, may: str | None, now: float, before: tuple["Word", ...]) -> None:
        self.may = may
        self.begins, self.ends = now, math.inf
        self._before = before

    def acknowledge(self, now: float) -> None:
        """Note that the change was acknowledged: earlier words that differ count no longer."""
        for word in self._before:
            if word.may != self.may:
                word.ends = min(word.ends, now)

    def refuse(self) -> None:
        """Note that the change was refused: it never counted."""
        self.ends = -math.inf


class Rights:
    """The owners, shares and admins from which every right is judged."""

    def __init__(self, store: MemoryStore, *, admins: tuple[str, ...] = ()) -> None:
        self._store = store
        self._admins = frozenset((LOCAL, *admins))
        self._offers: dict[str, dict[RunId, Offer]] = {}
        self._standing: set[RunId] = set()
        self._refused: set[str] = set()
        self._owners: dict[str, str] = {}
        self._words: dict[tuple[str, str], list[Word]] = {}
        self._open: list[Act] = []
        # A principal, a session that was not there for it, and the messages offered by then.
        self._turned_away: list[tuple[str, str, tuple[Offer, ...]]] = []

    def is_admin(self, by: str) -> bool:
        """Return whether a principal may do everything."""
        return by in self._admins

    # Whose it is

    def offered(self, decision: Decision) -> None:
        """Note the messages of a decision that was handed to the store."""
        for row in decision.admissions:
            if row.parent is None:  # a child founds no session of a principal
                self._offers.setdefault(row.session, {}).setdefault(row.id, Offer(row.id, row.principal, row.text))

    def stands(self, run_id: RunId) -> None:
        """Note that a run's message stands: its sender was told of the run, or its end was published."""
        self._standing.add(run_id)

    def refuse(self, text: str) -> None:
        """Note that the sender of a message was told that it was refused."""
        self._refused.add(text)

    def turn_away(self, by: str, session: str) -> None:
        """Note that a sender was told that a session is not there for them.

        A session without an owner would have become the sender's, so the refusal is right only if another message
        stands.
        """
        if session not in self._store._sessions:
            self._turned_away.append((by, session, tuple(self._offers.get(session, {}).values())))

    def _stood(self, offer: Offer) -> bool:
        return offer.run_id in self._store._runs or offer.run_id in self._standing

    def owner(self, session: str) -> str | None:
        """Return the owner of a session; None if it has none, or while that is not certain."""
        return self._founder(session)[0]

    def _founder(self, session: str, *, final: bool = False) -> tuple[str | None, bool]:
        """Return the owner, and whether that is certain; with `final`, a message that does not stand was withdrawn."""
        if session in self._owners:
            return self._owners[session], True
        for offer in self._offers.get(session, {}).values():
            if self._stood(offer):
                self._owners[session] = offer.by
                return offer.by, True
            if offer.text not in self._refused and not final:
                # The message may have fallen while the store refused it. Then its end, still to be published, makes it
                # stand.
                return None, False
        return None, True

    # With whom it is shared

    def say(self, session: str, who: str, may: str | None, now: float) -> Word:
        """Note a request that a session be shared with a principal, or no longer (`may` is None)."""
        words = self._words.setdefault((session, who), [])
        words.append(Word(may, now, tuple(words)))
        return words[-1]

    def _shared(self, act: Act, *enough: str) -> bool:
        return any(
            word.may in enough and word.begins <= act.until and word.ends >= act.since
            for session in (act.session, EVERYWHERE)
            for word in self._words.get((session, act.by), ())
        )

    # Judging

    def wrong(self, act: Act) -> str | None:
        """Return the violation of a deed; None if there is none, or while the owner is not certain."""
        # Before the store has a session, its founder has no right to it.
        kept = act.session in self._store._sessions
        owner, certain = self._founder(act.session) if kept else (None, True)
        if self._allows(act, owner):
            return None
        if certain:
            return act.told
        self._open.append(act)
        return None

    def wrong_in_the_end(self) -> str | None:
        """Return a violation among the deeds that could not be judged before, or in the owners that the store holds."""
        for act in self._open:
            if not self._allows(act, self._founder(act.session, final=True)[0]):
                return act.told
        for by, session, offers in self._turned_away:
            if not any(map(self._stood, offers)):
                return f"P7: {by} was told that session {session} is not there for them, and it was nobody's"
        for session, row in self._store._sessions.items():
            if session in self._offers and row.owner != (owner := self._founder(session, final=True)[0]):
                return f"P7: session {session} is kept as {row.owner}'s; it was founded by a message of {owner}"
        return None

    def _allows(self, act: Act, owner: str | None) -> bool:
        if act.by in self._admins or act.by == owner:
            return True
        match act.deed:
            case Deed.SEND:
                return self._shared(act, WRITE)
            case Deed.END:
                return self._started_by_actor(act, owner)
            case Deed.SEE:
                return self._shared(act, WRITE, READ)
            case Deed.LOOK:
                return self._shared(act, WRITE, READ) or self._started_by_actor(act, owner)
            case Deed.OWN:
                return False

    def _started_by_actor(self, act: Act, owner: str | None) -> bool:
        """Return whether the actor started the run and may still write in its session."""
        arriving = act.run_id not in self._offers.get(act.session, {})  # not part of the session yet
        return act.by == act.principal and (owner is None or arriving or self._shared(act, WRITE))


__all__ = ["Act", "Deed", "Offer", "Rights", "Word"]
