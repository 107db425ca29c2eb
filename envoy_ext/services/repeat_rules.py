"""What the repeat of an earlier operation gets: decided by what the client of that one was given.

Nothing was delivered, so it runs again; a whole answer was, so it is given that one where it is kept;
anything between is told, and never done twice. What a tool did for it may keep it from running too.
"""

from dataclasses import dataclass

from envoy_ext.domain.client_errors import ClientError
from envoy_ext.domain.ids import OperationId
from envoy_ext.domain.job import Job
from envoy_ext.domain.operation import Operation
from envoy_ext.domain.outcomes import OperationState
from envoy_ext.domain.tool_verdict import Obstacle


@dataclass(frozen=True, slots=True)
class RunsAgain:
    """It may run, as an operation that shares the tool ledger of the earlier one."""

    after: OperationId
    ledger_id: OperationId


@dataclass(frozen=True, slots=True)
class StillRuns:
    """The earlier one has not ended."""

    operation_id: OperationId


@dataclass(frozen=True, slots=True)
class WasAnswered:
    """The whole answer was delivered; it may be kept."""

    operation: Operation


@dataclass(frozen=True, slots=True)
class BecameJob:
    """It is a job's: that one's client is told of it, or given what it has come to."""

    job: Job


Repeat = RunsAgain | StillRuns | WasAnswered | ClientError


def decide_repeat(request_id: str, body_sha256: str | None, earlier: Operation) -> Repeat:
    """What becomes of a request that repeats an operation under its key.

    `body_sha256`: None where the body is not known; then it is not compared.
    """
    operation_id = earlier.operation_id
    if body_sha256 is not None and earlier.body_sha256 != body_sha256:
        return ClientError("idempotency_key_reused", request_id, operation_id)
    if earlier.state is OperationState.RUNNING:
        return StillRuns(operation_id)
    if earlier.state is OperationState.COMPLETED:
        return WasAnswered(earlier)
    if earlier.partly_delivered:
        return build_incomplete_error(request_id, operation_id, earlier)
    return RunsAgain(operation_id, earlier.ledger_id)


def decide_repeat_of_job(
    request_id: str, body_sha256: str | None, job: Job, *, respond_async: bool
) -> BecameJob | StillRuns | ClientError:
    """What becomes of a request under the key of a job. Nothing runs again: the job does that, or has ended.

    A client that wants to wait, and not to come back, waits for it as for any other that still runs.
    """
    if body_sha256 is not None and job.body_sha256 != body_sha256:
        return ClientError("idempotency_key_reused", request_id, job.job_id)
    return BecameJob(job) if respond_async or job.ended else StillRuns(job.job_id)


def build_tool_error(request_id: str, operation_id: OperationId, obstacle: Obstacle) -> ClientError:
    """The operation called a tool and may not run again; it says where to read which call it was."""
    where = (("location", f"/v1/operations/{operation_id}"),)
    message = None
    if obstacle.refusal.code == "replay_not_allowed":
        message = "A tool was called for this operation, and its result is not kept; it is not repeated."
    return ClientError(obstacle.refusal.code, request_id, operation_id, message=message, headers=where)


def build_running_error(
    request_id: str, operation_id: OperationId, retry_after_s: int | None = 1
) -> ClientError:
    """The key's operation has not ended; its client may come back. None: at a moment that is drawn for it."""
    return ClientError("operation_in_progress", request_id, operation_id, retry_after_s=retry_after_s)


def build_incomplete_error(
    request_id: str, operation_id: OperationId, earlier: Operation | None
) -> ClientError:
    """Part of an answer was delivered, and that is all there will be; with what the journal knows of it."""
    known = earlier is not None and earlier.ending is not None and earlier.delivered_counts_known
    return ClientError(
        "operation_incomplete",
        request_id,
        operation_id,
        reason=None if earlier is None else earlier.reason,
        partial_output=True,
        delivered_output_tokens=earlier.delivered_output_tokens if earlier is not None and known else None,
        headers=(("location", f"/v1/operations/{operation_id}"),),
    )
