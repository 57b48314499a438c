"""Stop words: does this whole message say stop?

1. Whole messages only. A stop word inside a sentence, a quotation or a forwarded message is not a stop.
2. Never guess: what is not in the set after normalising is an ordinary message. `wait` is one.
3. The work is bounded by the longest word, not by the message.

Who may stop, and which text is the sender's own, the channel knows; this file only reads words.
"""

import string
import unicodedata
from collections.abc import Iterable
from typing import Final

SLACK_CHARS: Final = 256
"""How much longer than the longest word a stop may be: spaces, punctuation, decomposed letters."""

_STRAIGHT: Final = str.maketrans("‘’‚‛“”„‟", "''''\"\"\"\"")
# ASCII, its full-width twins, and the marks that end a sentence in the scripts of the list below.
_TRAILING: Final = (
    string.punctuation + "".join(chr(ord(mark) + 0xFEE0) for mark in string.punctuation) + "…‥。、｡､・〜।॥؟،؛۔" + " "
)
_AFTER_MENTION: Final = " ,:，："  # what may stand between a mention and the words


def _fold(text: str) -> str:
    # NFC first, so that a decomposed arrête is the listed one. lower(), not casefold(): casefold would also make
    # ß into ss, which nobody who types a stop word means. A Turkish İ lower-cases to i and a loose dot, so EXİT would
    # not be exit. NFC again, because the new i may stand before an accent.
    folded = unicodedata.normalize("NFC", text).replace("İ", "i").lower()
    return " ".join(unicodedata.normalize("NFC", folded).translate(_STRAIGHT).split())


def normalise(text: str) -> str:
    """Return the text in the form stop words are compared in; doing it twice changes nothing."""
    return _fold(text).rstrip(_TRAILING)


def stop_words(words: Iterable[str]) -> frozenset[str]:
    """Return a set of your own stop words, for `is_stop(words=...)`."""
    return frozenset(filter(None, map(normalise, words)))


STOP_WORDS: Final = stop_words(
    (
        *("/stop", "stop", "esc", "abort", "exit", "interrupt", "halt", "please stop", "stop please", "stop run"),
        *("stop the agent", "stop agent", "stop action", "stop current run", "stop doing anything", "do not do that"),
        *("detente", "detén", "deten"),  # es
        *("arrete", "arrête"),  # fr
        *("stopp", "anhalten", "aufhören", "hör auf", "hoer auf"),  # de
        *("pare",),  # pt
        *("стоп", "остановись", "останови", "остановить", "прекрати"),  # ru
        *("停止", "停下来", "暂停"),  # zh
        *("やめて", "止めて"),  # ja
        *("रुको",),  # hi
        *("توقف",),  # ar
    )
)
"""The words that stop, unless configured otherwise."""


def is_stop(
    text: str,
    *,
    name: str | None = None,
    mention: str | None = None,
    forwarded: bool = False,
    words: frozenset[str] = STOP_WORDS,
) -> bool:
    """Return whether a whole message says stop.

    `name` is ours, as in `/stop@name`; `mention` is how a group addresses us and is taken off first; `forwarded` says
    the text is not the sender's own; `words` come from `stop_words`.
    """
    longest = max(map(len, words), default=0) + len(name or "") + len(mention or "")
    if forwarded or len(text) > longest + SLACK_CHARS:
        return False
    said = _without(mention, text) if mention else normalise(text)
    command, at, addressee = said.partition("@")
    if at and command.startswith("/"):
        return name is not None and addressee == normalise(name.lstrip("@")) and command in words
    return said in words


def _without(mention: str, text: str) -> str:
    folded, before = _fold(text), _fold(mention)
    if before and folded.startswith(before):
        rest = folded[len(before) :]
        if rest[:1] in _AFTER_MENTION:  # else it is the beginning of somebody else's longer name
            folded = rest.lstrip(_AFTER_MENTION)
    said, after = folded.rstrip(_TRAILING), before.rstrip(_TRAILING)
    return said.removesuffix(f" {after}").rstrip(_TRAILING) if after else said
