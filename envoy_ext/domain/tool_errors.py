"""What an engine is told of a call of a tool that is not let out, or has no answer; and the words for counts.

The same error object as for clients. None of these is a 5xx where the call may have acted: much that calls
over HTTP repeats those by itself.
"""

from enum import StrEnum
from typing import Final

from envoy_ext.domain.client_errors import ClientError
from envoy_ext.domain.ids import OperationId
from envoy_ext.domain.tool_calls import CallRefusal, CallState


class CallOutcome(StrEnum):
    """What was decided about a request to a tool."""

    GRANTED = "granted"
    ANSWERED = "answered"
    """From the ledger."""
    UNWATCHED = "unwatched"
    """It passed: it names no operation."""
    PASSED = "passed"
    """It passed: it calls nothing that acts."""
    INVALID = "invalid"
    """It could not be understood, or must name an operation."""
    UNAVAILABLE = "unavailable"
    """The store could not be asked."""
    FENCED = "fenced"
    OUTCOME_UNKNOWN = "outcome_unknown"
    RESULT_NOT_KEPT = "result_not_kept"
    IN_FLIGHT = "in_flight"
    DIVERGED = "diverged"
    KEY_REUSED = "key_reused"


_CODES: Final = {
    CallRefusal.FENCED: "attempt_superseded",
    CallRefusal.OUTCOME_UNKNOWN: "tool_outcome_unknown",
    CallRefusal.RESULT_NOT_KEPT: "replay_not_allowed",
    CallRefusal.IN_FLIGHT: "operation_in_progress",
    CallRefusal.DIVERGED: "replay_not_allowed",
    CallRefusal.KEY_REUSED: "idempotency_key_reused",
}
_MESSAGES: Final = {
    CallRefusal.RESULT_NOT_KEPT: (
        "An earlier attempt made this call; its result was too large to be kept, and it is not made again."
    ),
    CallRefusal.IN_FLIGHT: "This call is being made under the same key at this moment.",
    CallRefusal.DIVERGED: (
        "An earlier attempt made another call in the place of this one; what it did must be asked for first."
    ),
    CallRefusal.KEY_REUSED: "This key was used for a call with other arguments.",
}
_CONFLICT: Final = 409
_IN_FLIGHT_S: Final = 1


def build_refusal(why: CallRefusal, request_id: str, operation_id: OperationId) -> ClientError:
    """Why a call is not let out."""
    code = _CODES[why]
    return ClientError(
        code,
        request_id,
        operation_id,
        message=_MESSAGES.get(why),
        status=_CONFLICT if code == "replay_not_allowed" else None,
        retry_after_s=_IN_FLIGHT_S if why is CallRefusal.IN_FLIGHT else None,
    )


def build_unrecorded(request_id: str, operation_id: OperationId) -> ClientError:
    """The store could not be asked: nothing acts without a record."""
    message = "The gateway cannot record this call, so it does not let it out."
    return ClientError("upstream_unavailable", request_id, operation_id, message, retry_after_s=1)


def build_no_answer(state: CallState, request_id: str, operation_id: OperationId) -> ClientError:
    """Envoy has no whole answer of the tool to a call that was let out."""
    if state is CallState.NOT_SENT:
        message = "This call was not made: no way to the tool."
        return ClientError("upstream_unavailable", request_id, operation_id, message, retry_after_s=1)
    return ClientError("tool_outcome_unknown", request_id, operation_id)
