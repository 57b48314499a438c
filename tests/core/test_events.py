"""Events as they cross a wire."""

from typing import get_args

import msgspec
from hypothesis import given

from core.histories import histories
from interlock.core.events import Data, Event
from interlock.core.names import EventKind


@given(histories())
def test_events_cross_a_wire(events: list[Event]) -> None:
    """Every event is the same after being encoded and decoded."""
    for event in events:
        assert msgspec.json.decode(msgspec.json.encode(event), type=Event) == event


def test_every_kind_of_data_has_its_own_tag() -> None:
    """Each sort of data encodes under the word of its kind, and no two share one."""
    tags = [kind.__struct_config__.tag for kind in get_args(Data)]
    kinds = [kind.kind for kind in get_args(Data)]
    assert len(set(tags)) == len(tags)
    assert tags == [kind.value for kind in kinds]
    assert set(EventKind) == set(kinds)
