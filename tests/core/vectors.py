"""Short histories with what each event of them changes: stories.json, which the page's model has to tell alike.

The file is a contract between core/story.py and the page's model.js. A vector has its events, and for each of them what
it changed in brief and the texts of its run after it; then how every run stands, and the order of the turns.
"""

from pathlib import Path
from typing import Any

import msgspec

from interlock.core.events import ChildData, Data, Delta, Ended, Event, ProcessData, QuestionData, Tool, Typing
from interlock.core.names import QuestionState
from interlock.core.story import OPEN_CALLS, Conversation, Story

FILE = Path(__file__).with_name("stories.json")


def vectors() -> dict[str, dict[str, Any]]:
    """Return the vectors by name."""
    found: dict[str, dict[str, Any]] = msgspec.json.decode(FILE.read_bytes())
    return found


def told(events: list[Event]) -> dict[str, Any]:
    """Return what a conversation makes of these events, in brief."""
    conversation = Conversation()
    steps = []
    for event in events:
        changes = [brief(change) for change in conversation.take(event) if not isinstance(change, Delta)]
        story = conversation.stories.get(event.run_id) if event.run_id is not None else None
        texts = [] if story is None else [*story.blocks, *filter(None, ["".join(story.open)])]
        # The page returns each run that a receipt or a correction is about, so only their effects are compared.
        steps.append({"changes": [] if event.run_id is None else changes, "texts": texts})
    order = list(dict.fromkeys(entry.run_id for entry in conversation.entries()))
    runs = {run_id: stands(story) for run_id, story in conversation.stories.items()}
    return {"told": steps, "runs": runs, "order": order}


def brief(change: Data) -> list[Any]:
    """Return the kind of a change, the part that it is about, and how that part stands."""
    match change:
        case Tool(call_id=name, state=state) | QuestionData(question_id=name, state=state):
            return [change.kind, name, state]
        case ProcessData(command=name, state=state):
            return [change.kind, name, state]
        case ChildData(child=name, outcome=outcome):
            return [change.kind, name, None if outcome is None else outcome.ending]
        case Typing(on=on):
            return [change.kind, on]
        case Ended(outcome=outcome):
            return [change.kind, outcome.ending]
    return [change.kind]


def stands(story: Story) -> dict[str, Any]:
    """Return how a run stands."""
    return {
        "said": sum(1 for message in story.messages),
        "started": story.started_at,
        "open_calls": [call.call_id for call in story.calls.values() if call.state in OPEN_CALLS],
        "open_questions": [key for key, asked in story.questions.items() if asked.state is QuestionState.OPEN],
        "children": {
            key: None if child.outcome is None else child.outcome.ending for key, child in story.children.items()
        },
        "processes": [[each.command, each.name, each.status] for each in story.processes],
        "typing": story.typing,
        "ending": None if story.outcome is None else story.outcome.ending,
        "drain": None if story.receipt is None else story.receipt.drain,
    }
