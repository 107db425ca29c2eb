"""Reads the events of Anthropic's Messages API. Terminal mark: `message_stop`.

https://docs.anthropic.com/en/docs/build-with-claude/streaming
"""

from envoy_ext.domain.deltas.errors import read_error
from envoy_ext.domain.deltas.facts import ABORT_WORDS, NOTHING, EventFacts, JsonObject, read_tokens


def read_messages_event(payload: JsonObject, event: str) -> EventFacts:
    """Read one event; its `type` and the event's name say the same, and either may be missing."""
    error = read_error(payload, event)
    if error is not None:
        return EventFacts(error=error)
    kind = payload.get("type") or event
    delta = payload.get("delta")
    match kind:
        case "content_block_delta":
            return EventFacts(deltas=1 if _is_readable(delta) else 0, started=(0,))
        case "message_start":
            # Its output_tokens stands for nothing yet (1, or 0): it is no count of what was sent.
            return EventFacts(started=(0,))
        case "message_delta":
            reason = delta.get("stop_reason") if isinstance(delta, dict) else None
            return EventFacts(
                started=(0,),
                output_tokens=read_tokens(payload.get("usage"), "output_tokens"),
                aborted=isinstance(reason, str) and reason.lower() in ABORT_WORDS,
            )
        case "message_stop":
            return EventFacts(started=(0,), finished=(0,), over=True)
        case _:
            return NOTHING


def _is_readable(delta: object) -> bool:
    """Whether any field but the type has something in it (text, thinking, partial_json, ...)."""
    return isinstance(delta, dict) and any(value for name, value in delta.items() if name != "type")
