"""Reads the events of OpenAI's Responses API. Terminal mark: `response.completed`.

https://platform.openai.com/docs/api-reference/responses-streaming

`response.incomplete` is an end the engine announces, and not a whole answer. vLLM 0.29 ends with
`response.completed` around a response whose own status is `incomplete`; the inner word counts.
"""

from envoy_ext.domain.deltas.errors import build_error, read_error
from envoy_ext.domain.deltas.facts import NOTHING, EventFacts, JsonObject, read_tokens


def read_responses_event(payload: JsonObject, event: str) -> EventFacts:
    """Read one event; its `type` and the event's name say the same, and either may be missing."""
    error = read_error(payload, event)
    if error is not None:
        return EventFacts(error=error)
    kind = payload.get("type") or event
    if not isinstance(kind, str):
        return NOTHING
    if kind.startswith("response.") and kind.endswith(".delta"):
        return EventFacts(deltas=1 if payload.get("delta") else 0, started=(0,))
    inner = payload.get("response")
    response: JsonObject = inner if isinstance(inner, dict) else {}
    match kind:
        case "response.completed":
            return _read_end(response, whole=True)
        case "response.incomplete" | "response.cancelled":
            return _read_end(response, whole=False)
        case "response.failed":
            return _read_failure(response)
        case "response.created" | "response.in_progress":
            return EventFacts(started=(0,))
        case _:
            return NOTHING


def _read_end(response: JsonObject, *, whole: bool) -> EventFacts:
    status = response.get("status")
    if status == "failed" or response.get("error"):
        return _read_failure(response)
    if status in ("incomplete", "cancelled") or response.get("incomplete_details"):
        whole = False
    return EventFacts(
        started=(0,),
        finished=(0,) if whole else (),
        aborted=not whole,
        over=True,
        output_tokens=read_tokens(response.get("usage"), "output_tokens"),
    )


def _read_failure(response: JsonObject) -> EventFacts:
    error = response.get("error")
    return EventFacts(error=build_error(error if isinstance(error, dict) else {}), over=True)
