"""What a terminal shows: the text of a run in the output, everything else about it in the error output.

No text of a run can control the terminal: control characters are replaced.
"""

import re
import sys

import msgspec

from interlock.core import events
from interlock.core.names import Drain, Ending, QuestionState, ToolState
from interlock.core.projection import client_words
from interlock.core.receipt import Receipt
from interlock.core.story import Conversation

NOTE_CHARACTERS = 200


def shown(text: str) -> str:
    """Return a text without control characters other than newlines and tabs."""
    return re.sub(r"[^\x20-\x7e\n\t]", lambda found: found[0] if found[0].isprintable() else "\ufffd", text)


def line_of(text: str, characters: int = NOTE_CHARACTERS) -> str:
    """Return a text as one line without control characters, at most so many characters."""
    line = shown(" ".join(text[: 4 * characters].split()))
    return line if len(line) <= characters else line[: characters - 1] + "…"


def write(text: str) -> None:
    """Print a part of a line to the output."""
    sys.stdout.write(shown(text))
    sys.stdout.flush()


def print_line(line: str) -> None:
    """Print a line to the output."""
    # "replace" is for a terminal whose encoding cannot show every character.
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    sys.stdout.write(f"{line}\n")
    # Flush here, where callers handle a reader that is gone (`| head`), not when Python exits.
    sys.stdout.flush()


def note(text: str, mark: str = "· ") -> None:
    """Print a line to the error output."""
    sys.stderr.write(f"{mark}{line_of(text)}\n")
    sys.stderr.flush()


def print_json(document: object) -> None:
    """Print a document to the output as JSON."""
    print_line(msgspec.json.format(msgspec.json.encode(document)).decode())


class Screen:
    """Prints events for a person, as they come; `alone`: they are of one run, whose end the caller tells."""

    def __init__(self, *, alone: bool) -> None:
        self._alone = alone
        self._told = Conversation()
        self._inside = False  # the cursor is inside a line of the reply

    def tell(self, event: events.Event) -> None:
        """Print what an event changes."""
        between = self._told.between(event.run_id)
        for change in self._told.take(event):
            match change:
                case events.Delta(text=text):
                    # A new block is set apart by one blank line, also where the block before it ended its line.
                    write(text if self._inside else text.removeprefix(between[:1]))
                    self._inside = not text.endswith("\n")
                case events.Ended(outcome=outcome):
                    self._break_line()
                    self._told.forget(outcome.run_id)
                    if outcome.ending is not Ending.COMPLETED or not self._alone:
                        note(f"{event.run_id} {client_words(outcome)}")
                case events.MessageData(text=text, child=child) if child is not None:
                    self._note(text, "> ")
                case events.MessageData(text=text, by=by) if not self._alone:
                    note(f"{by} to {event.run_id}: {text}", "> ")
                case _:
                    if words := _words(change):
                        self._note(words)

    def _note(self, words: str, mark: str = "· ") -> None:
        # Output and notes may share a terminal.
        if sys.stdout.isatty():
            self._break_line()
        note(words, mark)

    def _break_line(self) -> None:
        if self._inside:
            write("\n")
        self._inside = False


def _words(data: object) -> str:
    match data:
        case events.Tool(name=name, state=state, error=error) if state is not ToolState.PENDING:
            return f"tool {name} {state}" + (f": {error}" if error else "")
        case events.ProcessData(command=command, state=state, status=status):
            return f"process {state}{'' if status is None else f' {status}'}: {command}"
        case events.QuestionData(question_id=question, text=text, state=QuestionState.OPEN, choices=choices, tool=tool):
            return f"question {question}: {question_words(text, choices, tool)}"
        case events.QuestionData(question_id=question, state=state, answer=answer, by=by):
            words = ("no", "yes")[answer] if isinstance(answer, bool) else answer
            return f"question {question} {state}" + ("" if by is None else f": {words} by {by}")
        case events.Progress(text=text, done=done, total=total):
            return text + ("" if done is None else f" {done:g}" + ("" if total is None else f"/{total:g}"))
        case events.Phase(name=str(name)):
            return f"phase {name}"
        case events.ChildData(agent=agent, child=child, outcome=outcome):
            return f"child {child} ({agent}) {'begun' if outcome is None else client_words(outcome)}"
        case events.ReceiptData(receipt=receipt) if receipt.drain is Drain.UNCONFIRMED:
            return proof(receipt)
        case events.Gap():
            return "what was said before is no longer kept"
        case events.Correction(outcome=outcome):
            return f"{outcome.run_id} really {client_words(outcome)}"
    return ""


def question_words(text: str, choices: tuple[str, ...] | None, tool: str | None) -> str:
    """Return a question in one line, with its answers."""
    return line_of(f"{text} ({'|'.join(choices or ('yes', 'no'))})" + (f" for tool {tool}" if tool else ""))


def proof(receipt: Receipt) -> str:
    """Return a receipt in one line."""
    already = f" it had ended already, {receipt.already}" if receipt.already else ""
    if receipt.id is None:
        return f"nothing to stop{already and ':'}{already}"
    runs = ", ".join(run.id for run in receipt.runs)
    ended, took = receipt.processes.ended, receipt.fence_to_drained_ms
    said = [f"{receipt.id}: {runs} {receipt.cause}" + (f" by {receipt.by}" if receipt.by else "")]
    said += [already.strip()] if already else []
    said += [f"{ended} process{'' if ended == 1 else 'es'} ended, grade {receipt.grade}"] if ended else []
    said += [f"refused {', '.join(f'{n} {kind}' for kind, n in receipt.refused.items())}"] if receipt.refused else []
    said += ["its host killed"] if receipt.host == "killed" else []
    said += [f"kept with its host: {', '.join(receipt.kept)}"] if receipt.kept else []
    said += ["not drained yet" if took is None else f"drained after {took / 1000:.3f} s"]
    said += [f"not seen gone: {', '.join(receipt.unconfirmed)}"] if receipt.unconfirmed else []
    return line_of("; ".join(said))
