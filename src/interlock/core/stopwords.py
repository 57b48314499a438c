"""Stop words: does this whole message say stop?

A grammar reads the message; a list of stop words would not do, since people in a hurry write "Stop don't do anything".
`vocabulary` has one table per language. A message says stop if phrases of one language cover all of it.

1. Every word of the message must belong to a stop, or to politeness, urgency, emphasis or the agent's name around it.
   A message with one word more ("stop the music"), in quotation marks, or forwarded is an ordinary message.
2. A stop and a negation in one clause ("don't stop") are the opposite of a stop. A punctuation mark ends the clause.
3. A message that the tables do not cover is an ordinary message. "wait" is an ordinary message, because it need not
   mean stop, and this file does not guess.
4. One language reads the whole message. Otherwise "no para" (Spanish: it does not stop) would be read as English "no"
   and Spanish "para" (stop), and would stop the run.
5. The work is bounded: a message longer than LONGEST_CHARS and than the longest word in `also` is not read. A shorter
   message whose words are all known is read once per language.

This file only reads words. `Authority` decides who may stop, and the channel decides which part of a text is the
sender's own.
"""

import re
import string
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from enum import IntEnum
from functools import cache, lru_cache
from typing import Final, NamedTuple

from interlock.core.vocabulary import EVERYWHERE, LANGUAGES, Language, phrases

LONGEST_CHARS: Final = 300
"""A longer message is not read; a longer word in `also` raises the bound. The agent's name and mention are added."""
CALLERS: Final = 64  # pairs of names and further stop words whose tables are kept

_STRAIGHT: Final = str.maketrans("‘’‚‛“”„‟´ʼ′", "''''\"\"\"\"'''")
# The marks of ASCII, their full-width forms, and the marks that end a sentence in the scripts of the tables.
_TRAILING: Final = (
    string.punctuation + "".join(chr(ord(mark) + 0xFEE0) for mark in string.punctuation) + "…‥。、｡､・〜।॥؟،؛۔" + " "
)
_AFTER_MENTION: Final = " ,:，："  # may stand between a mention and the words

# People leave these out: accents of Latin and Cyrillic letters, Arabic vowel signs, the Arabic stretching mark.
_ACCENTS: Final = re.compile(r"[\u0300-\u036f\u064b-\u065f\u0670\u0640]")
_EMPHASIS: Final = "✋🤚🖐⛔🚫❌❎✖⚠❗❕⭕🙏😡😠🤬😤😭😢😱😰😨😫😩😖🤯🔴🆘🙅🤦👎📛♀♂"
_INVISIBLE: Final = "\ufe0f\u200b-\u200f\u202a-\u202e\u2060\ufeff\U0001f3fb-\U0001f3ff"
_CJK: Final = r"\u3040-\u30fb\u30fd-\u30ff\u3400-\u9fff"
# The second range adds the vowel signs of Indic scripts, which \w does not match.
_LETTER: Final = rf"(?:[^\W{_CJK}\u30fc]|[\u0900-\u0963\u0970-\u0dff])"
_TOKEN: Final = re.compile(
    rf"(?P<word>🛑|[{_CJK}]|[/@]?{_LETTER}+(?:['@-]{_LETTER}+)*)"
    rf"|(?P<mark>!(?:!|1)*|[,;:?¡¿。、।॥؟،؛۔–—]|\.(?!\.)|(?<=\s)-+(?=\s))"
    rf"|[\s〜ー…{_EMPHASIS}{_INVISIBLE}]+|\.\.+"
)
# The marks that a stop may begin with. `:stop` and `- stop` are ordinary messages.
_OPENING: Final = frozenset("!¡¿.")
_DRAWN_OUT: Final = re.compile(r"(.)\1\1+")

Phrase = tuple[str, ...]


class _Role(IntEnum):
    STOP = 1
    OBJECT = 2
    AROUND = 3
    DENIAL = 4
    NEGATION = 5


# Bits of the reader's state: the message has a stop (_SAID); the present clause has a stop, a negation, a denial.
_SAID, _STOPPED, _BARRED, _DENIED = 1, 2, 4, 8


def _fold(text: str) -> str:
    # NFKC makes a decomposed arrête and a full-width STOP equal to the phrases of the tables. lower() is used and not
    # casefold(), which would also turn ß into ss. A Turkish İ would lower-case to i and a loose dot, and EXİT would not
    # be exit, so İ is replaced first. The second NFKC joins that i with an accent after it.
    if text.isascii():
        return " ".join(text.lower().translate(_STRAIGHT).split())
    straight = text.translate(_STRAIGHT)
    folded = unicodedata.normalize("NFKC", straight).replace("İ", "i").lower()
    return " ".join(unicodedata.normalize("NFKC", folded).translate(_STRAIGHT).split())


def normalise(text: str, mention: str | None = None) -> str:
    """Return the text in the form in which commands are compared; normalising twice changes nothing more.

    `mention` is how a group addresses the agent; it is removed.
    """
    return _without(mention, text) if mention else _fold(text).rstrip(_TRAILING)


def _plain(folded: str) -> str:
    """Return folded text without accents, and with the Turkish dotless ı written as i.

    People in a hurry leave out the accents, and the difference between ı and i.
    """  # noqa: RUF002
    if folded.isascii():
        return folded
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

    `name` is the agent's name, or several names, as in `STOP NAME` and `/stop@name`. `mention` is how a group addresses
    the agent; it is removed first. `forwarded` says that the text is not the sender's own. `also` are further stop
    words of the caller.
    """
    own = _own_words((name,) if isinstance(name, str) else tuple(name or ()), tuple(also))
    if forwarded or len(text) > own.chars + len(mention or ""):
        return False
    plain = _plain(normalise(text, mention))
    if plain.isascii() and any(word.isalpha() and not _is_known(word, own) for word in plain.split()):
        return False
    tokens = _tokens(plain)
    # Most messages have a word that is in no table. The others are read only in the languages that know every word.
    spoken = _speaking(tokens, own) if tokens else 0
    return spoken != 0 and any(
        grammar.reads_stop(tokens or [], own) for at, grammar in enumerate(_grammars()) if spoken >> at & 1
    )


def _without(mention: str, text: str) -> str:
    folded, before = _fold(text), _fold(mention)
    if before and folded.startswith(before):
        rest = folded[len(before) :]
        # With any other sign after it, the mention is the beginning of a longer name, which is not the agent's.
        if rest[:1] in _AFTER_MENTION:
            folded = rest.lstrip(_AFTER_MENTION)
    said, after = folded.rstrip(_TRAILING), before.rstrip(_TRAILING)
    return said.removesuffix(f" {after}").rstrip(_TRAILING) if after else said


# Words


def _tokens(plain: str) -> list[str | None] | None:
    """Return the words of a text, with None where a clause ends. Return None for a text with signs that no stop has."""
    bold = plain.lstrip("*_")
    # Remove the opening signs of **STOP**. `normalise` has removed the closing ones as trailing marks.
    if len(bold) < len(plain) and not bold[:1].isspace():
        plain = bold
    tokens: list[str | None] = []
    at = 0
    while at < len(plain):
        found = _TOKEN.match(plain, at)
        if found is None or (found["mark"] and not tokens and found["mark"][0] not in _OPENING):
            return None
        if found["word"]:
            # A slash inside the text belongs to a path or a choice ("stop/go"), not to a command.
            if found["word"][0] == "/" and at:
                return None
            tokens.append(found["word"])
        elif found["mark"] and tokens and tokens[-1] is not None:
            tokens.append(None)
        at = found.end()
    return tokens


class _Own(NamedTuple):
    """The caller's own phrases with their roles, their words, the most words of one, and the longest text to read."""

    roles: Mapping[Phrase, _Role]
    words: frozenset[str]
    longest: int
    chars: int


@lru_cache(CALLERS)
def _own_words(names: tuple[str, ...], also: tuple[str, ...]) -> _Own:
    """Return the caller's own phrases: names stand around a stop, words in `also` are stops."""
    own: dict[Phrase, _Role] = {}
    for name in names:
        folded = _fold(name).lstrip("@")
        for spelled in {_plain(folded), _plain(folded.rstrip(_TRAILING))} - {""}:
            for called in (spelled, f"@{spelled}"):
                _add(own, _tokens(called), _Role.AROUND)
            _add(own, _tokens(f"/stop@{spelled}"), _Role.STOP)
    for word in also:
        _add(own, _tokens(_plain(normalise(word))), _Role.STOP)
    chars = max(LONGEST_CHARS, *map(len, also), 0) + max(map(len, names), default=0)
    words = frozenset(word for phrase in own for word in phrase)
    return _Own(own, words, max(map(len, own), default=0), chars)


def _add(own: dict[Phrase, _Role], tokens: list[str | None] | None, role: _Role) -> None:
    words = tuple(token for token in tokens or () if token is not None)
    if words:
        own[words] = role


# The grammar


class _Grammar:
    """One language: its phrases with their roles, and the clauses (`never`) that mean something else."""

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

    def reads_stop(self, tokens: list[str | None], own: _Own) -> bool:
        """Return whether phrases of this language, with the caller's own, cover the whole message and say stop.

        `reached[i]` holds every state in which some sequence of phrases covers the first i words.
        """
        said: list[str | None] = []
        for token in tokens:
            meant = token if token is None else _as_meant(token, self.known, own.words)
            if token is not None and meant is None:
                return False
            said.append(meant)
        longest = max(self.longest, own.longest)
        reached: list[set[int]] = [set() for _ in range(len(said) + 1)]
        reached[0].add(0)
        for at, token in enumerate(said):
            if token is None:
                reached[at + 1] |= {state & _SAID for state in reached[at]}
                continue
            for end in range(at + 1, min(at + longest, len(said)) + 1) if reached[at] else ():
                phrase = tuple(word for word in said[at:end] if word is not None)
                # A phrase does not go beyond the end of a clause.
                if len(phrase) < end - at:
                    break
                role = self.roles.get(phrase) or own.roles.get(phrase)
                if role is not None:
                    reached[end] |= {after for state in reached[at] if (after := _next(state, role)) is not None}
        stops = any(state & _SAID for state in reached[-1])
        return stops and self.never.isdisjoint(_clauses(said))


@cache
def _grammars() -> tuple[_Grammar, ...]:
    """Return every language's grammar. They are made when the first message is read, not at import."""
    return tuple(map(_Grammar, LANGUAGES.values()))


@cache
def _known() -> Mapping[str, int]:
    """Return the words of every language, each with the languages that know it, a bit for each."""
    known: dict[str, int] = {}
    for at, grammar in enumerate(_grammars()):
        for word in grammar.known:
            known[word] = known.get(word, 0) | 1 << at
    return known


def _is_known(word: str, own: _Own) -> bool:
    return word in _known() or word in own.words or _DRAWN_OUT.search(word) is not None


def _speaking(tokens: Iterable[str | None], own: _Own) -> int:
    """Return the languages that know every word of a message, a bit for each; the caller's own words are in all."""
    known, every = _known(), (1 << len(_grammars())) - 1
    spoken = every
    for token in tokens:
        if token is None or token in own.words:
            continue
        # A drawn-out word may be one word in one language and another in the next: ask each grammar.
        knowing = known.get(token) if _DRAWN_OUT.search(token) is None else every
        if knowing is None or _as_meant(token, known, own.words) is None:
            return 0
        spoken &= knowing
    return spoken


def _letters(phrase: str) -> list[str]:
    return [letter for letter in phrase if letter not in " ー"]


def _next(state: int, role: _Role) -> int | None:
    """Return the state after a phrase of this role, or None if the phrase may not stand here."""
    if role is _Role.STOP:
        return None if state & (_BARRED | _DENIED) else state | _SAID | _STOPPED
    if role is _Role.OBJECT:
        return state if state & _STOPPED else None
    # "don't wait": a word after the denial is the thing denied, so this is not a stop.
    if role is _Role.AROUND:
        return None if state & _DENIED else state
    # "रुको नहीं" (Hindi: do not stop): a negation after the stop makes the clause the opposite of a stop.
    if state & _STOPPED:
        return None
    return state | (_SAID | _DENIED if role is _Role.DENIAL else _BARRED)


def _as_meant(token: str, known: Collection[str], own: Collection[str]) -> str | None:
    """Return the known word that a token stands for, or None. Drawn-out letters are shortened: STOPPPP, nooooow."""
    if token in known or token in own:
        return token
    if _DRAWN_OUT.search(token) is None:
        return None
    for drawn in (r"\1", r"\1\1"):
        short = _DRAWN_OUT.sub(drawn, token)
        if short in known or short in own:
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
