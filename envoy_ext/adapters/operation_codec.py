"""An operation as the JSON that operators and its owner may read."""

from collections.abc import Sequence
from datetime import UTC, datetime

from envoy_ext.domain.operation import AttemptView, Operation
from envoy_ext.domain.tool_calls import ToolCall


def build_operation_json(operation: Operation, calls: Sequence[ToolCall] | None = ()) -> dict[str, object]:
    """What `GET /v1/operations/{id}` answers. Holds no caller, key or body hash: those stay inside.

    `calls` are those of its ledger, which repeats of it share; None: they were not looked up.
    """
    counts_known = operation.delivered_counts_known
    return {
        "operation_id": operation.operation_id,
        "state": operation.state.value,
        "phase": operation.phase.value,
        "first_delta_sent": operation.first_delta_sent,
        "delivered_output_tokens": operation.delivered_output_tokens if counts_known else None,
        "delivered_deltas": operation.delivered_deltas if counts_known else None,
        "model_revision": operation.model_revision,
        "retry_budget": operation.retry_budget,
        "attempts": [_build_attempt_json(attempt) for attempt in operation.attempts],
        "tool_calls": None if calls is None else [_build_call_json(call) for call in calls],
        "error": _build_error_json(operation),
        "created_at": format_time(operation.created_at),
        "ended_at": format_time(operation.ended_at),
        "ending": None if operation.ending is None else operation.ending.value,
        "request_id": operation.request_id,
        "pool": operation.pool,
        "path": operation.path,
        "model": operation.model,
        "stream": operation.stream,
        "degraded": [rung.value for rung in operation.degraded],
    }


def build_operator_json(operation: Operation, calls: Sequence[ToolCall] | None) -> dict[str, object]:
    """The same for operators, who also see which gateway has it: the name of its seat."""
    return {**build_operation_json(operation, calls), "owner": operation.owner}


def format_time(at: float | None) -> str | None:
    """Unix seconds as RFC 3339 in UTC with milliseconds; None stays None."""
    if at is None:
        return None
    # Rounded first, because isoformat cuts: a float's 0.1 would read as .099.
    moment = datetime.fromtimestamp(round(at, 3), UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _build_attempt_json(attempt: AttemptView) -> dict[str, object]:
    return {
        "attempt": attempt.number,
        "attempt_id": attempt.attempt_id,
        "replica": attempt.replica,
        "lease_expires_at": format_time(attempt.lease_expires_at),
        "outcome": None if attempt.outcome is None else attempt.outcome.value,
        "first_byte_at": format_time(attempt.first_byte_at),
        "ended_at": format_time(attempt.ended_at),
    }


def _build_call_json(call: ToolCall) -> dict[str, object]:
    """Nothing of its arguments or its result, nor a hash of them."""
    return {
        "call_id": call.call_id,
        "tool": call.tool,
        "ordinal": call.ordinal,
        "state": call.state.value,
        "idempotent": call.idempotent,
        "attempts": list(call.attempts),
        "status": call.status,
        "begun_at": format_time(call.begun_at),
        "ended_at": format_time(call.ended_at),
    }


def _build_error_json(operation: Operation) -> dict[str, object] | None:
    if operation.error_code is None and operation.reason is None:
        return None
    named = {} if operation.tool_call_id is None else {"tool_call_id": operation.tool_call_id}
    return {
        "code": operation.error_code,
        "reason": None if operation.reason is None else operation.reason.value,
        "status": operation.status,
        "partial_output": operation.partly_delivered,
        **named,
    }
