"""What the parts of control share, wired once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from interlock.agent.crew import Crew
from interlock.core.authority import Authority
from interlock.runtime.clock import Clock
from interlock.runtime.guards import Guards
from interlock.runtime.registry import Registry
from interlock.runtime.settings import Settings
from interlock.stores.base import Store

if TYPE_CHECKING:
    from interlock.runtime.feed import Feed
    from interlock.runtime.sight import Sight


@dataclass(frozen=True, kw_only=True, slots=True)
class Inside:
    """The one registry, store, feed and the rest of a control."""

    registry: Registry
    store: Store
    feed: Feed
    authority: Authority
    guards: Guards
    sight: Sight
    crew: Crew
    clock: Clock
    settings: Settings


class Inner:
    """A part of control: it has all that the parts share."""

    def __init__(self, inside: Inside) -> None:
        self._inside = inside
        self._registry = inside.registry
        self._store = inside.store
        self._feed = inside.feed
        self._authority = inside.authority
        self._guards = inside.guards
        self._sight = inside.sight
        self._crew = inside.crew
        self._clock = inside.clock
        self._settings = inside.settings
