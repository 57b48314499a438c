"""The events of a run or a session for a person, as they come: its text in the output, the rest in the error output."""

import sys

from interlock.cli.printing import line_of, note, proof, write
from interlock.core import events
from interlock.core.names import Drain, Ending, QuestionState, ToolState
from interlock.core.projection import client_words
from interlock.core.story import Conversation


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
