"""The book of rights: whose a session is, and with whom it is shared, as that can be known outside the runtime.

The runtime is not asked, and an owner that it names is not believed. The book is kept at the store's door and from what
callers were told:
1. A session is founded by the first message that was handed to the store to be admitted and stands: the store holds it,
   its sender was told of its run, or its end was told. Its author is the owner, for good, once the store has the
   session.
2. A message that fell before it was decided on is never handed over to be admitted, and one that was withdrawn does not
   stand: neither founds anything.
3. A share counts from when it was asked for until its end was acknowledged.
"""

import math
from enum import StrEnum
from typing import NamedTuple

from interlock.core.decision import Decision
from interlock.core.names import LOCAL, RunId
from interlock.stores.memory import MemoryStore

WRITE, READ = "write", "read"
EVERYWHERE = "*"  # the session of a word about somebody who may see all


class Deed(StrEnum):
    """What somebody did, or was let see."""

    SEND = "send"
    END = "end"  # a stop, a takeover, an answer: a run's principal may, too
    SEE = "see"
    LOOK = "look"  # at one run: its principal may, too
    OWN = "own"  # what is the owner's alone: reset, wake, share


class Act(NamedTuple):
    """A deed as it was seen: by whom, where, and when the right to it may have been asked."""

    deed: Deed
    by: str
    session: str
    since: float
    until: float
    told: str  # the violation, if there was no right to it
    run_id: RunId | None = None  # the run that it was done to
    principal: str | None = None  # who started that


class Offer(NamedTuple):
    """A message that was handed to the store to be admitted."""

    run_id: RunId
    by: str
    text: str


class Word:
    """What was said of somebody's share of a session: what they may do there, None: nothing; the later word stands."""

    def __init__(self, may: str | None, now: float, before: tuple["Word", ...]) -> None:
        self.may = may
        self.begins, self.ends = now, math.inf
        self._before = before

    def acknowledge(self, now: float) -> None:
        """From here on nothing counts that was said before and differs."""
        for word in self._before:
            if word.may != self.may:
                word.ends = min(word.ends, now)

    def refuse(self) -> None:
        """It was as if it had not been said."""
        self.ends = -math.inf


class Rights:
    """Who owns, with whom it was shared, who is an admin: everything that a right is judged from."""

    def __init__(self, store: MemoryStore, *, admins: tuple[str, ...] = ()) -> None:
        self._store = store
        self._admins = frozenset((LOCAL, *admins))
        self._offers: dict[str, dict[RunId, Offer]] = {}
        self._standing: set[RunId] = set()
        self._refused: set[str] = set()
        self._owners: dict[str, str] = {}
        self._words: dict[tuple[str, str], list[Word]] = {}
        self._open: list[Act] = []
        self._turned_away: list[
            tuple[str, str, tuple[Offer, ...]]
        ] = []  # who, where, and what had been offered by then

    def is_admin(self, by: str) -> bool:
        """Return whether somebody may do everything."""
        return by in self._admins

    # Whose it is

    def offered(self, decision: Decision) -> None:
        """A decision was handed to the store."""
        for row in decision.admissions:
            if row.parent is None:  # a child's session is its own
                self._offers.setdefault(row.session, {}).setdefault(row.id, Offer(row.id, row.principal, row.text))

    def stands(self, run_id: RunId) -> None:
        """A sender was told of this run, or everybody of its end."""
        self._standing.add(run_id)

    def refuse(self, text: str) -> None:
        """The sender of a message was told that it was not taken."""
        self._refused.add(text)

    def turn_away(self, by: str, session: str) -> None:
        """Somebody was told that there is no such session for them; where it is nobody's, it would have been theirs."""
        if session not in self._store._sessions:
            self._turned_away.append((by, session, tuple(self._offers.get(session, {}).values())))

    def _stood(self, offer: Offer) -> bool:
        return offer.run_id in self._store._runs or offer.run_id in self._standing

    def owner(self, session: str) -> str | None:
        """Return whose a session is, None while that is nobody, or not known for certain."""
        return self._founder(session)[0]

    def _founder(self, session: str, *, final: bool = False) -> tuple[str | None, bool]:
        """Return the owner, and whether that is certain; in the end what does not stand was withdrawn."""
        if session in self._owners:
            return self._owners[session], True
        for offer in self._offers.get(session, {}).values():
            if self._stood(offer):
                self._owners[session] = offer.by
                return offer.by, True
            if offer.text not in self._refused and not final:
                return None, False  # it may have fallen while the store refused it: then its end is still to be told
        return None, True

    # With whom it is shared

    def say(self, session: str, who: str, may: str | None, now: float) -> Word:
        """Somebody asks that a session be shared, or not any more."""
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
        """Judge a deed: what was wrong with it, None if nothing, or if the owner is not certain yet."""
        kept = act.session in self._store._sessions  # whoever is only about to own a session has no right to it yet
        owner, certain = self._founder(act.session) if kept else (None, True)
        if self._allows(act, owner):
            return None
        if certain:
            return act.told
        self._open.append(act)
        return None

    def wrong_in_the_end(self) -> str | None:
        """Judge what could not be judged before, and what the store holds of sessions."""
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
                return self._theirs(act, owner)
            case Deed.SEE:
                return self._shared(act, WRITE, READ)
            case Deed.LOOK:
                return self._shared(act, WRITE, READ) or self._theirs(act, owner)
            case Deed.OWN:
                return False

    def _theirs(self, act: Act, owner: str | None) -> bool:
        """Whether a run is theirs who started it: as long as they may write where it is."""
        arriving = act.run_id not in self._offers.get(act.session, {})  # and nothing of the session's yet
        return act.by == act.principal and (owner is None or arriving or self._shared(act, WRITE))


__all__ = ["Act", "Deed", "Offer", "Rights", "Word"]
