"""An operation as the JSON that operators and its owner may read."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from envoy_ext.domain.job import Job, JobState
from envoy_ext.domain.operation import AttemptView, Operation
from envoy_ext.domain.outcomes import OperationState, Phase
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


_STATES: Final = {
    JobState.QUEUED: (OperationState.RUNNING, Phase.QUEUED),
    JobState.SUCCEEDED: (OperationState.COMPLETED, Phase.COMPLETED),
    JobState.FAILED: (OperationState.FAILED, None),
    JobState.CANCELLED: (OperationState.CANCELLED, None),
    JobState.EXPIRED: (OperationState.FAILED, None),
}
"""What is said of the operation as a whole that a job is; None: as its newest run has it."""


def build_job_json(
    job: Job, run: Operation | None, calls: Sequence[ToolCall] | None = ()
) -> dict[str, object]:
    """A job as an operation: by its newest run, as far as one has begun, and with what is said of the job."""
    of_run = _build_unbegun(job) if run is None else build_operation_json(run, calls)
    state, phase = _STATES.get(job.state, (OperationState.RUNNING, None))
    end = job.end
    error = None if end is None or job.state is JobState.SUCCEEDED else of_run["error"]
    if end is not None and end.error_code is not None:
        named = {} if end.tool_call_id is None else {"tool_call_id": end.tool_call_id}
        error = {"code": end.error_code, "reason": None, "status": None, "partial_output": False, **named}
    return {
        **of_run,
        "operation_id": job.job_id,
        "state": state.value,
        "phase": of_run["phase"] if phase is None else phase.value,
        "error": error,
        "created_at": format_time(job.submitted_at),
        "ended_at": None if end is None else format_time(end.at),
        "job": {
            "state": job.state.value,
            "submitted_at": format_time(job.submitted_at),
            "expires_at": format_time(job.expires_at),
            "cancel_requested": job.cancel_requested_at is not None,
            "result_url": f"/v1/operations/{job.job_id}/result",
            "runs": list(job.run_ids),
        },
    }


def _build_unbegun(job: Job) -> dict[str, object]:
    """An operation of which nothing has begun, in the form of the others."""
    return {
        "operation_id": job.job_id,
        "state": OperationState.RUNNING.value,
        "phase": Phase.QUEUED.value,
        "first_delta_sent": False,
        "delivered_output_tokens": 0,
        "delivered_deltas": 0,
        "model_revision": None,
        "retry_budget": None,
        "attempts": [],
        "tool_calls": [],
        "error": None,
        "created_at": format_time(job.submitted_at),
        "ended_at": None,
        "ending": None,
        "request_id": job.request_id,
        "pool": job.pool,
        "path": job.path,
        "model": job.model,
        "stream": False,
        "degraded": [],
    }


def build_operator_json(operation: Operation, calls: Sequence[ToolCall] | None) -> dict[str, object]:
    """The same for operators, who also see which gateway has it, by the name of its seat, and a run's job."""
    job = {} if operation.job_id is None else {"job_id": operation.job_id}
    return {**build_operation_json(operation, calls), "owner": operation.owner, **job}


def build_job_operator_json(
    job: Job, run: Operation | None = None, calls: Sequence[ToolCall] | None = None
) -> dict[str, object]:
    """A job for operators: with the gateway that runs it, or ran it last."""
    return {**build_job_json(job, run, calls), "owner": job.owner}


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
