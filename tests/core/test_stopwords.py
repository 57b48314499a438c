"""Stop words: whole messages stop, anything else is an ordinary message."""

import string
import unicodedata
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core import stopwords
from interlock.core.stopwords import LONGEST_CHARS, is_stop, normalise
from interlock.core.vocabulary import LANGUAGES

CORPUS = Path(__file__).with_name("stop_corpus")
OURS = "OpenClaw"  # the name that the corpus uses

# A copy of surfaces.md §2.
LISTED = """
/stop, stop, esc, abort, exit, interrupt, halt, please stop, stop please, stop run, stop the agent, stop agent,
stop action, stop current run, stop doing anything, do not do that, detente, detén, deten, arrete, arrête, stopp,
anhalten, aufhören, hör auf, hoer auf, pare, стоп, остановись, останови, остановить, прекрати, 停止, 停下来, 暂停,
やめて, 止めて, रुको, توقف
"""
WORDS = [" ".join(word.split()) for word in LISTED.split(",")]
FULL_WIDTH = "！？。，、；：．…"
ORDINARY = ["the", "build", "on", "friday", "bus", "why", "did", "music", "over", "tomorrow", "kitchen", "if", "tests"]

words = st.sampled_from(WORDS)
spaces = st.text(alphabet=" \t\n\u00a0\u3000", max_size=4)
ordinary = st.lists(st.sampled_from(ORDINARY), min_size=1, max_size=6).map(" ".join)
cases = st.sampled_from([str.lower, str.upper, str.title, str.capitalize, str.swapcase])
forms = st.sampled_from(["NFC", "NFD"])


def corpus(name: str) -> list[tuple[str, str]]:
    """Return the lines of a corpus: language and message."""
    lines = (CORPUS / f"{name}.txt").read_text("utf-8").splitlines()
    parted = [line.partition(" ")[::2] for line in lines if not line.startswith("#")]
    return [(language, text.replace("\\n", "\n")) for language, text in parted]


@pytest.mark.parametrize(("language", "text"), corpus("stops"))
def test_what_people_type_to_stop_an_agent_stops_it(language: str, text: str) -> None:
    """A whole message of stop vocabulary, politeness, urgency, emphasis and our name is a stop."""
    assert is_stop(text, name=OURS)


@pytest.mark.parametrize(("language", "text"), corpus("ordinary"))
def test_what_people_say_otherwise_is_an_ordinary_message(language: str, text: str) -> None:
    """Another word, the opposite, a quotation, a question, a name that is not ours: an ordinary message (race 30)."""
    assert not is_stop(text, name=OURS)


def test_the_corpus_has_every_language() -> None:
    """Each language that is read has lines of both kinds, and there are hundreds in all."""
    for name, enough in (("stops", 400), ("ordinary", 300)):
        counted = Counter(language for language, _ in corpus(name))
        assert set(counted) == {*LANGUAGES, "xx"}
        assert counted.total() > enough and min(counted.values()) > 3, counted


@given(st.sampled_from([line for _, line in corpus("stops")]), cases, forms)
def test_the_corpus_in_any_case_and_form(text: str, case, form) -> None:  # type: ignore[no-untyped-def]
    """Upper case, lower case and decomposed letters change nothing."""
    assert is_stop(unicodedata.normalize(form, case(text)), name=OURS)


def test_the_tables_are_written_as_they_are_compared() -> None:
    """Every phrase of every language is read back as the words it is looked up by: none is dead."""
    for grammar in stopwords._grammars():
        for phrase in (*grammar.roles, *grammar.never):
            assert stopwords._tokens(" ".join(phrase)) == list(phrase)


@pytest.mark.parametrize("word", WORDS)
def test_every_listed_word_stops(word: str) -> None:
    """Each listed word by itself is a stop."""
    assert is_stop(word)


@given(st.text())
def test_normalising_twice_changes_nothing(text: str) -> None:
    """Normalising is idempotent for any text."""
    assert normalise(normalise(text)) == normalise(text)


@given(words, cases, forms, spaces, spaces, st.text(alphabet=string.punctuation + FULL_WIDTH + " ", max_size=12))
def test_written_any_way_it_still_stops(word, case, form, before, between, marks) -> None:  # type: ignore[no-untyped-def]
    """A word in any case, Unicode form and spacing, with any ASCII or full-width marks after it, is a stop."""
    spaced = word.replace(" ", " " + between)
    text = before + unicodedata.normalize(form, case(spaced)) + before
    # '@' makes a command an address, which has its own test.
    assert is_stop(text + (marks.replace("@", "") if word == "/stop" else marks))


@given(
    words, st.one_of(st.tuples(ordinary, st.just("")), st.tuples(st.just(""), ordinary), st.tuples(ordinary, ordinary))
)
def test_inside_a_sentence_it_is_not_a_stop(word: str, around: tuple[str, str]) -> None:
    """A stop word with an ordinary word before or after it is an ordinary message."""
    before, after = around
    assert not is_stop(f"{before} {word} {after}")


@given(
    words,
    st.sampled_from(["“{}”", '"{}"', "'{}'", "‘{}’", "„{}“", "«{}»", "「{}」", "`{}`", "> {}", ">{}", "\n> {}\n"]),
)
def test_quoted_text_is_not_a_stop(word: str, quote: str) -> None:
    """Quoted stop words do not stop (race 30), in any script's quotation marks or as a quoted line."""
    assert not is_stop(quote.format(word))
    assert not is_stop("@bot " + quote.format(word), mention="@bot")


@given(words)
def test_forwarded_text_is_not_a_stop(word: str) -> None:
    """Forwarded stop words do not stop (race 30), whether the text says so or only the channel knows."""
    assert not is_stop(f"Forwarded message: {word}")
    assert not is_stop(f"> {word}\nwhat did she mean?")
    assert not is_stop(word, forwarded=True)


@pytest.mark.parametrize("text", ["wait", "please wait", "Wait!", "", "   ", "!!!", "/", "@", "/stopp", "non-stop"])
def test_not_stops(text: str) -> None:
    """A message that says wait, and one that says nothing, is no stop."""
    assert not is_stop(text)


@pytest.mark.parametrize(
    ("text", "name", "stops"),
    [
        ("/stop!!", None, True),
        ("/STOP", "ourname", True),
        ("/stop@ourname", "ourname", True),
        ("/stop@OurName!!", "ourname", True),
        ("/stop@ourname", "@OurName", True),
        ("/stop@our_bot_", "our_bot_", True),
        ("/stop@other", "ourname", False),
        ("/stop@ourname2", "ourname", False),
        ("/stop@ourname", None, False),
        ("/stop@ourname now", "ourname", True),
        ("/stop@ourname the music", "ourname", False),
        ("/stop@", "", True),  # the @ is only punctuation where no name follows
        ("stop@ourname", "ourname", False),  # an address, or a mail address; not a command
        ("/start@ourname", "ourname", False),
    ],
)
def test_command_addressed_to_a_name(text: str, name: str | None, stops: bool) -> None:
    """`/stop@name` stops us if the name is ours in any case, and never if it is another's."""
    assert is_stop(text, name=name) is stops


@pytest.mark.parametrize(
    ("text", "stops"),
    [
        ("@bot stop", True),
        ("@Bot, STOP!", True),
        ("@bot: please stop", True),
        ("stop @bot", True),
        ("Stop, @bot!", True),
        ("@bot /stop", True),
        ("stop", True),
        ("@bot", False),
        ("@bot2 stop", False),
        ("@botstop", False),
        ("stop@bot", False),
        ("@other stop", False),
        ("@bot stop the build", False),
        ("tell @bot stop", False),
    ],
)
def test_mention_is_taken_off_first(text: str, stops: bool) -> None:
    """Our own mention before or after the word is taken off in a group; another's mention makes it no stop."""
    assert is_stop(text, mention="@bot") is stops


def test_mention_made_of_marks() -> None:
    """A mention that ends in punctuation of its own is still taken off whole, on either side."""
    assert is_stop("<@123> stop", mention="<@123>")
    assert is_stop("stop <@123>!", mention="<@123>")
    assert not is_stop("<@1234> stop", mention="<@123>")


def test_without_a_mention_given_none_is_taken_off() -> None:
    """Addressing somebody is part of the message until the channel says the mention is ours."""
    assert not is_stop("@bot stop")
    assert not is_stop("@bot stop", mention="")


def test_turkish_capitals() -> None:
    """A capital typed on a Turkish keyboard is the same letter."""
    assert is_stop("EXİT")
    assert is_stop("İNTERRUPT")
    assert normalise("İ\u0301") == normalise(normalise("İ\u0301"))


def test_names_of_ours() -> None:
    """Our name, or any of several, may stand around a stop in any case; it is no stop, and another's is not ours."""
    assert is_stop("STOP OPENCLAW", name="openclaw")
    assert is_stop("open claw, stop!", name="Open Claw")
    assert is_stop("小爪，停止", name="小爪")
    for text in ("stop interlock", "stop rex", "@rex stop", "/stop@rex"):
        assert is_stop(text, name=("interlock", "Rex"))
        assert not is_stop(text, name="fido")
    assert not is_stop("rex", name="rex")
    assert not is_stop("don't stop rex", name="rex")
    assert not is_stop("stop", name="stop", forwarded=True)
    assert is_stop("stop", name=("", "<@1>", "!!!"))  # names that no message can say


def test_words_of_ones_own() -> None:
    """Configured words stop as well, however they were written, and an empty one stops nothing."""
    own = ["Rotes  Licht!", "ça va trop loin", "!!!", "", "/panic"]
    for text in (
        "rotes licht",
        "ROTES LICHT!!!",
        "bitte rotes licht",
        "Ça va trop loin, s'il te plaît",
        "/panic",
        "stop",
    ):
        assert is_stop(text, also=own), text
    for text in ("rotes", "das rote licht", "!!!", "panic"):
        assert not is_stop(text, also=own), text
    assert not is_stop("rotes licht")


def test_a_huge_message_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message far longer than anybody's stop is not one, and is not normalised to find out."""

    def unread(_: str) -> str:
        raise AssertionError("a huge message was normalised")

    monkeypatch.setattr("interlock.core.stopwords._fold", unread)
    assert not is_stop("stop" + "!" * 10_000_000)
    assert not is_stop("stop".ljust(LONGEST_CHARS + 1))
    with pytest.raises(AssertionError):
        is_stop("stop".ljust(LONGEST_CHARS))


@pytest.mark.parametrize(
    "text", ["stop ", "no ", "don't ", "停", "别", "やめて", "no no no para ", "s", "...", "!1", "'"]
)
def test_the_work_grows_with_the_message_alone(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest message that is read takes a bounded number of steps, whatever it repeats."""
    steps, step = Counter[str](), stopwords._next

    def counted(state: int, role: stopwords._Role) -> int | None:
        steps["taken"] += 1
        return step(state, role)

    monkeypatch.setattr(stopwords, "_next", counted)
    whole = (text * LONGEST_CHARS)[:LONGEST_CHARS]
    is_stop(whole)
    longest = max(grammar.longest for grammar in stopwords._grammars())
    assert steps["taken"] <= len(whole) * longest * 8 * len(LANGUAGES)
