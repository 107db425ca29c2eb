"""Reads the events of an API this project does not know, where anything may be the answer."""

from envoy_ext.domain.deltas.errors import read_error
from envoy_ext.domain.deltas.facts import ONE_DELTA, EventFacts, JsonObject


def read_generic_event(payload: JsonObject, event: str) -> EventFacts:
    """Count every object as a delta, unless it is an error."""
    error = read_error(payload, event)
    return ONE_DELTA if error is None else EventFacts(error=error)
