"""What one event of an answer says, read per API family.

A reader is a pure function from an event's JSON object and name to `EventFacts`. It never raises on
what an engine may send, and keeps nothing a client could read.

What counts as a delta, the first thing a client could read as answer: content, reasoning, a refusal,
a fragment of a tool call. What does not: a role alone, usage alone, the frames that open or close an
answer, a ping. A delta marks the point after which the computation may not be repeated.
"""

from collections.abc import Callable
from typing import assert_never

from envoy_ext.domain.api import ApiFamily
from envoy_ext.domain.deltas.choices import read_choices_event
from envoy_ext.domain.deltas.errors import StreamError
from envoy_ext.domain.deltas.facts import EventFacts, JsonObject
from envoy_ext.domain.deltas.generate import read_generate_event
from envoy_ext.domain.deltas.generic import read_generic_event
from envoy_ext.domain.deltas.messages import read_messages_event
from envoy_ext.domain.deltas.responses import read_responses_event

__all__ = ["EventFacts", "EventReader", "JsonObject", "StreamError", "get_event_reader"]

EventReader = Callable[[JsonObject, str], EventFacts]


def get_event_reader(family: ApiFamily) -> EventReader:
    """Return the reader for a family's events."""
    match family:
        case ApiFamily.CHAT | ApiFamily.COMPLETIONS:
            return read_choices_event
        case ApiFamily.RESPONSES:
            return read_responses_event
        case ApiFamily.MESSAGES:
            return read_messages_event
        case ApiFamily.TGI:
            return read_generate_event
        case ApiFamily.EMBEDDINGS | ApiFamily.MODELS | ApiFamily.OTHER:
            return read_generic_event
        case _:
            assert_never(family)
