"""The published words of random histories."""

import json
from typing import Any

from hypothesis import given

from core.histories import histories
from interlock.core.events import Ended, Event
from interlock.core.story import Story
from interlock.surfaces.gateway.published import PublishedWording

NAMES = ("s", "ann/s")  # as the owner and as others write it


def frames(events: list[Event]) -> dict[str, list[dict[str, Any]]]:
    """Return the published frames of a history by name of its session."""
    wording = PublishedWording()
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in NAMES}
    for event in events:
        for name in NAMES:
            items = wording.items(event, None, name)
            found[name] += [json.loads(item.render(b"", 1, [item])) for item in items]
    return found


@given(histories())
def test_both_names_of_a_session_hear_the_whole_reply(events: list[Event]) -> None:
    """The joined deltas are the reply under both names, also where a block is longer than its deltas."""
    stories: dict[str, Story] = {}
    for event in events:
        if event.run_id is not None:
            stories.setdefault(event.run_id, Story()).take(event)
    for told in frames(events).values():
        payloads = [frame["payload"] for frame in told]
        for run_id, story in stories.items():
            mine = [payload for payload in payloads if payload.get("runId") == run_id]
            chat = [payload["deltaText"] for payload in mine if payload.get("state") == "delta"]
            agent = [payload["data"]["delta"] for payload in mine if payload.get("stream") == "assistant"]
            assert ("".join(chat), "".join(agent)) == (story.text, story.text)


@given(histories())
def test_an_end_closes_typing_and_questions_before_itself(events: list[Event]) -> None:
    """Typing that is on, and questions that are open, are closed before the terminal frame of their run."""
    over = {event.run_id for event in events if isinstance(event.data, Ended)}
    for told in frames(events).values():
        asked: dict[str, str] = {}
        for frame in told:
            payload = frame["payload"]
            if frame["event"] == "exec.approval.requested":
                asked[payload["id"]] = payload["runId"]
            elif frame["event"] == "exec.approval.resolved":
                del asked[payload["id"]]
            elif frame["event"] == "chat" and payload["state"] != "delta":
                assert payload["runId"] not in asked.values()
        assert not over & set(asked.values())
