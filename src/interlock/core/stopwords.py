"""Stop words: does this whole message say stop?

1. Whole messages only: every word must be a stop, or politeness, urgency, emphasis and our own name around one. With
   one word too many ("stop the music"), in quotation marks or forwarded it is an ordinary message.
2. A stop beside a negation in one clause ("don't stop") is its opposite; a mark between them ends the clause.
3. Never guess: what the tables (`vocabulary`) do not cover is an ordinary message. `wait` is one.
4. The work is bounded: a longer message is not read, a shorter one in one pass per language.

Who may stop, and which text is the sender's own, the channel knows; this file only reads words.
"""

import re
import string
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from enum import IntEnum
from functools import cache
from typing import Final

from interlock.core.vocabulary import EVERYWHERE, LANGUAGES, Language, phrases

LONGEST_CHARS: Final = 300
"""A message longer than this, our name and mention not counted, is not read for a stop."""

_STRAIGHT: Final = str.maketrans("‘’‚‛“”„‟´ʼ′", "''''\"\"\"\"'''")
# ASCII, its full-width twins, and the marks that end a sentence in the scripts of the tables.
_TRAILING: Final = (
    string.punctuation + "".join(chr(ord(mark) + 0xFEE0) for mark in string.punctuation) + "…‥。、｡､・〜।॥؟،؛۔" + " "
)
_AFTER_MENTION: Final = " ,:，："  # what may stand between a mention and the words

# Accents of Latin and Cyrillic letters, Arabic vowel signs and the Arabic stretching mark: people leave them out.
_ACCENTS: Final = re.compile(r"[\u0300-\u036f\u064b-\u065f\u0670\u0640]")
_EMPHASIS: Final = "✋🤚🖐⛔🚫❌❎✖⚠❗❕⭕🙏😡😠🤬😤😭😢😱😰😨😫😩😖🤯🔴🆘🙅🤦👎📛♀♂"
_INVISIBLE: Final = "\ufe0f\u200b-\u200f\u202a-\u202e\u2060\ufeff\U0001f3fb-\U0001f3ff"
_CJK: Final = r"\u3040-\u30fb\u30fd-\u30ff\u3400-\u9fff"
_LETTER: Final = rf"(?:[^\W{_CJK}\u30fc]|[\u0900-\u0963\u0970-\u0dff])"  # Indic vowel signs are no \w
_TOKEN: Final = re.compile(
    rf"(?P<word>🛑|[{_CJK}]|[/@]?{_LETTER}+(?:['@-]{_LETTER}+)*)"
    rf"|(?P<mark>!(?:!|1)*|[,;:?¡¿。、।॥؟،؛۔–—]|\.(?!\.)|(?<=\s)-+(?=\s))"
    rf"|[\s〜ー…{_EMPHASIS}{_INVISIBLE}]+|\.\.+"
)
_OPENING: Final = frozenset("!¡¿.")  # the marks a message may begin with; `:stop` and `- stop` say something else
_DRAWN_OUT: Final = re.compile(r"(.)\1\1+")

Phrase = tuple[str, ...]


class _Role(IntEnum):
    STOP = 1
    OBJECT = 2
    AROUND = 3
    DENIAL = 4
    NEGATION = 5


_SAID, _STOPPED, _BARRED, _DENIED = 1, 2, 4, 8  # of the message: a stop; of the clause: a stop, a negation, a denial


def _fold(text: str) -> str:
    # NFKC first, so that a decomposed arrête and a full-width STOP are the listed ones. lower(), not casefold():
    # casefold would also make ß into ss, which nobody who types a stop word means. A Turkish İ lower-cases to i and a
    # loose dot, so EXİT would not be exit. NFKC again, because the new i may stand before an accent.
    straight = text.translate(_STRAIGHT)
    folded = unicodedata.normalize("NFKC", straight).replace("İ", "i").lower()
    return " ".join(unicodedata.normalize("NFKC", folded).translate(_STRAIGHT).split())


def normalise(text: str) -> str:
    """Return the text in the form commands are compared in; doing it twice changes nothing."""
    return _fold(text).rstrip(_TRAILING)


def _plain(folded: str) -> str:
    """Return folded text without what people leave out when they type fast: accents, and what tells ı from i."""  # noqa: RUF002
    bare = _ACCENTS.sub("", unicodedata.normalize("NFD", folded)).replace("ı", "i")
    return unicodedata.normalize("NFC", bare)


def is_stop(
    text: str,
    *,
    name: str | Collection[str] | None = None,
    mention: str | None = None,
    forwarded: bool = False,
    also: Collection[str] = (),
) -> bool:
    """Return whether a whole message says stop.

    `name` is ours (or several are), as in `STOP NAME` and `/stop@name`; `mention` is how a group addresses us and is
    taken off first; `forwarded` says the text is not the sender's own; `also` are words of yours that stop as well.
    """
    names = (name,) if isinstance(name, str) else tuple(name or ())
    longest = max(LONGEST_CHARS, *map(len, also)) if also else LONGEST_CHARS
    if forwarded or len(text) > longest + len(mention or "") + max(map(len, names), default=0):
        return False
    tokens = _tokens(_plain(_without(mention, text) if mention else normalise(text)))
    if not tokens:
        return False
    own = _own_words(names, also)
    return any(grammar.reads_stop(tokens, own) for grammar in _grammars())


def _without(mention: str, text: str) -> str:
    folded, before = _fold(text), _fold(mention)
    if before and folded.startswith(before):
        rest = folded[len(before) :]
        if rest[:1] in _AFTER_MENTION:  # else it is the beginning of somebody else's longer name
            folded = rest.lstrip(_AFTER_MENTION)
    said, after = folded.rstrip(_TRAILING), before.rstrip(_TRAILING)
    return said.removesuffix(f" {after}").rstrip(_TRAILING) if after else said


# Words


def _tokens(plain: str) -> list[str | None] | None:
    """Return the words of a text, with None where a clause ends; None where it has signs that no stop has."""
    bold = plain.lstrip("*_")
    if len(bold) < len(plain) and not bold[:1].isspace():  # **STOP**: the closing signs were taken off with the marks
        plain = bold
    tokens: list[str | None] = []
    at = 0
    while at < len(plain):
        found = _TOKEN.match(plain, at)
        if found is None or (found["mark"] and not tokens and found["mark"][0] not in _OPENING):
            return None
        if found["word"]:
            if found["word"][0] == "/" and at:  # a path or a choice, no command
                return None
            tokens.append(found["word"])
        elif found["mark"] and tokens and tokens[-1] is not None:
            tokens.append(None)
        at = found.end()
    return tokens


def _own_words(names: Iterable[str], also: Iterable[str]) -> dict[Phrase, _Role]:
    """Return the phrases of a caller: its names stand around a stop, its words are stops."""
    own: dict[Phrase, _Role] = {}
    for name in names:
        folded = _fold(name).lstrip("@")
        for spelled in {_plain(folded), _plain(folded.rstrip(_TRAILING))} - {""}:
            for called in (spelled, f"@{spelled}"):
                _add(own, _tokens(called), _Role.AROUND)
            _add(own, _tokens(f"/stop@{spelled}"), _Role.STOP)
    for word in also:
        _add(own, _tokens(_plain(normalise(word))), _Role.STOP)
    return own


def _add(own: dict[Phrase, _Role], tokens: list[str | None] | None, role: _Role) -> None:
    words = tuple(token for token in tokens or () if token is not None)
    if words:
        own[words] = role


# The grammar


class _Grammar:
    """One language: its phrases with their roles, and the clauses that mean something else."""

    def __init__(self, language: Language) -> None:
        self.spell = str.split if language.spaced else _letters
        self.roles: dict[Phrase, _Role] = {}
        for role, text in (
            (_Role.OBJECT, language.objects),
            (_Role.AROUND, f"{language.around}, {EVERYWHERE.around}"),
            (_Role.NEGATION, language.negations),
            (_Role.DENIAL, language.denials),
            (_Role.STOP, f"{language.stops}, {EVERYWHERE.stops}"),
        ):
            self.roles.update(dict.fromkeys(self._spelled(text), role))
        self.never = frozenset(self._spelled(language.never))
        self.known = frozenset(word for phrase in self.roles for word in phrase)
        self.longest = max(map(len, self.roles))

    def _spelled(self, text: str) -> list[Phrase]:
        folded = _plain(unicodedata.normalize("NFKC", text).lower())
        return [(phrase,) if phrase[0] == "/" else tuple(self.spell(phrase)) for phrase in phrases(folded)]

    def reads_stop(self, tokens: list[str | None], own: Mapping[Phrase, _Role]) -> bool:
        """Return whether phrases of this language, and the caller's own, cover a message and say stop."""
        own_words = {word for phrase in own for word in phrase}
        said: list[str | None] = []
        for token in tokens:
            meant = token if token is None else _as_meant(token, self.known, own_words)
            if token is not None and meant is None:
                return False
            said.append(meant)
        longest = max(self.longest, *map(len, own)) if own else self.longest
        reached: list[set[int]] = [set() for _ in range(len(said) + 1)]
        reached[0].add(0)
        for at, token in enumerate(said):
            if token is None:
                reached[at + 1] |= {state & _SAID for state in reached[at]}
                continue
            for end in range(at + 1, min(at + longest, len(said)) + 1) if reached[at] else ():
                phrase = tuple(word for word in said[at:end] if word is not None)
                if len(phrase) < end - at:
                    break  # no phrase goes over the end of a clause
                role = self.roles.get(phrase) or own.get(phrase)
                if role is not None:
                    reached[end] |= {after for state in reached[at] if (after := _next(state, role)) is not None}
        stops = any(state & _SAID for state in reached[-1])
        return stops and self.never.isdisjoint(_clauses(said))


@cache
def _grammars() -> tuple[_Grammar, ...]:
    """Return every language's grammar; made when the first message is read, not at import."""
    return tuple(map(_Grammar, LANGUAGES.values()))


def _letters(phrase: str) -> list[str]:
    return [letter for letter in phrase if letter not in " ー"]


def _next(state: int, role: _Role) -> int | None:
    """Return where a phrase leads, or None where it may not stand."""
    if role is _Role.STOP:
        return None if state & (_BARRED | _DENIED) else state | _SAID | _STOPPED
    if role is _Role.OBJECT:
        return state if state & _STOPPED else None
    if role is _Role.AROUND:
        return None if state & _DENIED else state  # "don't wait": what follows is what is denied
    if state & _STOPPED:  # "anhalten nicht", "रुको नहीं"
        return None
    return state | (_SAID | _DENIED if role is _Role.DENIAL else _BARRED)


def _as_meant(token: str, *known: Collection[str]) -> str | None:
    """Return a word that is known, also without its drawn-out letters: STOPPPP, nooooow."""
    if any(token in words for words in known):
        return token
    if _DRAWN_OUT.search(token) is None:
        return None
    for drawn in (r"\1", r"\1\1"):
        short = _DRAWN_OUT.sub(drawn, token)
        if any(short in words for words in known):
            return short
    return None


def _clauses(tokens: Iterable[str | None]) -> list[Phrase]:
    clauses: list[list[str]] = [[]]
    for token in tokens:
        if token is None:
            clauses.append([])
        else:
            clauses[-1].append(token)
    return [tuple(clause) for clause in clauses]
