"""Frames without a wire: what is read, what is refused, what an error and an event are called.

`make prove` reads a million changed frames (`python -m proofs frames`); here are some of the same.
"""

import json
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from proofs import frames as fuzz

from interlock.core import errors
from interlock.core.events import Asked, Block, Delta, Ended, Event, Phase, Progress, Started, Tool, Typing
from interlock.core.names import (
    CallId,
    Ending,
    EventData,
    Principal,
    QuestionId,
    QuestionState,
    RunId,
    SessionId,
    ToolState,
)
from interlock.core.outcome import Outcome
from interlock.surfaces import frames, telling
from surfaces.protocol import PARAMS, check_frame
