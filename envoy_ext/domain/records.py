"""What the journal keeps: small facts about an operation, appended in order, never changed.

A service appends the records of a `Step` before it lets the step's replies out, so a record is
always older than what a client could see of it. Times are unix epoch seconds, derived from the
exchange's monotonic clock and one wall-clock reading taken when it opened. No record holds a
prompt, an answer or a credential: ids, hashes and counts only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from envoy_ext.domain.errors import ImpossibleEvent
from envoy_ext.domain.ids import (
    AttemptId,
    ExchangeId,
    FencingToken,
    OperationId,
    PoolName,
    ReplicaId,
    SeatId,
)
from envoy_ext.domain.outcomes import AttemptOutcome, Ending, OperationState, Phase, Reason, RungName


@dataclass(frozen=True, slots=True)
class OperationBegun:
    """An exchange was admitted; nothing has been sent to a replica yet."""

    operation_id: OperationId
    exchange_id: ExchangeId
    at: float
    request_id: str
    pool: PoolName
    path: str
    model: str | None
    stream: bool
    caller: str
    """Hash of the credential the request came with; "" when it had none."""
    key_hash: str | None
    """Hash of the Idempotency-Key, None when the client sent none."""
    body_sha256: str
    body_bytes: int
    prompt_tokens_estimate: int
    max_attempts: int
    ledger_id: OperationId | None = None
    """Whose ledger its tool calls stand in; None: its own. That of the operation which it runs again, for a
    client's repeat under the same key."""
    degraded: tuple[RungName, ...] | None = None
    """What was given up of it on arrival; None: nothing."""
    job_id: OperationId | None = None
    """The job that it is a run of; None: it is no job's. Such an operation has no key: its job has it."""


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """The gate let an attempt start. `replica` is None when Envoy's weights choose it."""

    operation_id: OperationId
    attempt_id: AttemptId
    number: int
    at: float
    replica: ReplicaId | None
    lease_expires_at: float
    pool: PoolName | None = None
    """Where it runs, when that is another pool than the one that the operation began in; else None."""
    degraded: tuple[RungName, ...] | None = None
    """All that was given up of the request, when that is more than on arrival; else None."""


@dataclass(frozen=True, slots=True)
class FirstDeltaSent:
    """The point of no return: appended before the first delta leaves for the client."""

    operation_id: OperationId
    attempt_id: AttemptId
    at: float
    replica: ReplicaId | None


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """An attempt has ended; `first_byte_at` is when its response headers arrived."""

    operation_id: OperationId
    attempt_id: AttemptId
    at: float
    outcome: AttemptOutcome
    replica: ReplicaId | None
    first_byte_at: float | None
    detail: str
    """Envoy's response code details or the sidecar's own word; for operators, never for clients."""


@dataclass(frozen=True, slots=True)
class OperationEnded:
    """The last record of an operation (a second one, from recovery, is ignored by readers)."""

    operation_id: OperationId
    at: float
    ending: Ending
    state: OperationState
    phase: Phase
    reason: Reason | None
    error_code: str | None
    """The contract's error code the client was given, None when it was given none."""
    status: int | None
    """HTTP status the client was given, None when it was given none."""
    delivered_deltas: int
    delivered_output_tokens: int
    delivered_bytes: int
    model_revision: str | None = None
    tool_call_id: str | None = None
    """The tool call that forbade a replay, if one did."""
    degraded: tuple[RungName, ...] | None = None
    """All that was given up of the request, when its answer was the gateway's own; else None."""


@dataclass(frozen=True, slots=True)
class OwnershipTaken:
    """A gateway owns the operation from here on: the one that began it, or one that took it over."""

    operation_id: OperationId
    at: float
    owner: SeatId
    token: FencingToken
    """Greater than that of every owner before."""


Record = OperationBegun | OwnershipTaken | AttemptStarted | FirstDeltaSent | AttemptEnded | OperationEnded


def find_operation(records: Sequence[Record]) -> OperationId | None:
    """The one operation that all of these are of; None when there are none."""
    named = {record.operation_id for record in records}
    if len(named) > 1:
        raise ImpossibleEvent("records of several operations in one append")
    return named.pop() if named else None
