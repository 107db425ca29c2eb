"""May an operation that has called tools be run again? One decision, from its ledger.

It is asked once no earlier attempt can begin a call any more: what is read then is all there will be, but
for ends that are still on their way. A call without an end may have acted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from envoy_ext.domain.retry import GiveUp
from envoy_ext.domain.tool_calls import CallId, ToolCall, find_not_kept, find_unknown


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why no attempt may go out, and the call that stands in its way, where it is one."""

    refusal: GiveUp
    call_id: CallId | None = None


def find_obstacle(calls: Sequence[ToolCall] | None) -> Obstacle | None:
    """What forbids another attempt; None when nothing does. `calls`: None when the ledger cannot be read."""
    if calls is None:
        return Obstacle(GiveUp("replay_not_allowed", "the ledger of its tool calls cannot be read"))
    unknown = find_unknown(calls)
    if unknown is not None:
        detail = f"what came of {unknown.call_id} is not known"
        return Obstacle(GiveUp("tool_outcome_unknown", detail), unknown.call_id)
    not_kept = find_not_kept(calls)
    if not_kept is not None:
        detail = f"the result of {not_kept.call_id} is not kept"
        return Obstacle(GiveUp("replay_not_allowed", detail), not_kept.call_id)
    return None
