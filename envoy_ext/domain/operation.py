"""An operation as its records tell it: a pure fold.

Records may reach a journal more than once (a retried append, a recovery that ran twice) and an
attempt's end may come after the operation's. So every record is taken at most once, behind a
guard that only closes: the first OperationBegun, AttemptStarted, FirstDeltaSent and
OperationEnded count, an attempt's outcome counts until a known one replaces `unknown`, and of its
owners the one with the greatest token.
Repeating any record, at any later place, changes nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, assert_never

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
from envoy_ext.domain.records import (
    AttemptEnded,
    AttemptStarted,
    FirstDeltaSent,
    OperationBegun,
    OperationEnded,
    OwnershipTaken,
    Record,
)

NO_TOKEN: Final = FencingToken(0)
"""Of an operation without an owner: smaller than every token."""


@dataclass(frozen=True, slots=True)
class AttemptView:
    """One attempt of an operation; what no record has told yet is None."""

    attempt_id: AttemptId
    number: int | None = None
    started_at: float | None = None
    """None for an attempt the gate never let start: it may still have an end (refused)."""
    replica: ReplicaId | None = None
    lease_expires_at: float | None = None
    outcome: AttemptOutcome | None = None
    """None while the attempt runs."""
    first_byte_at: float | None = None
    ended_at: float | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Operation:
    """What the journal knows of one operation."""

    operation_id: OperationId
    exchange_id: ExchangeId
    request_id: str
    pool: PoolName
    path: str
    model: str | None
    stream: bool
    caller: str
    key_hash: str | None
    body_sha256: str
    body_bytes: int
    prompt_tokens_estimate: int
    max_attempts: int
    created_at: float
    ledger_id: OperationId
    """Whose ledger its tool calls stand in: its own id, or that of the operation which it runs again."""
    owner: SeatId | None = None
    """None for an operation of a release that kept no owners."""
    token: FencingToken = NO_TOKEN
    """Its owner's."""
    state: OperationState = OperationState.RUNNING
    phase: Phase = Phase.QUEUED
    """No attempt has been started before it is another."""
    first_delta_at: float | None = None
    first_delta_attempt: AttemptId | None = None
    attempts: tuple[AttemptView, ...] = ()
    ending: Ending | None = None
    """None until the operation ended."""
    reason: Reason | None = None
    error_code: str | None = None
    status: int | None = None
    delivered_deltas: int = 0
    delivered_output_tokens: int = 0
    delivered_bytes: int = 0
    model_revision: str | None = None
    tool_call_id: str | None = None
    """The tool call that kept it from being run again, if one did."""
    ended_at: float | None = None
    degraded: tuple[RungName, ...] = ()
    """What was given up of it before it was answered or refused, in order."""
    job_id: OperationId | None = None
    """The job that it is a run of."""

    @property
    def first_delta_sent(self) -> bool:
        """Whether the point of no return was recorded."""
        return self.first_delta_at is not None

    @property
    def partly_delivered(self) -> bool:
        """Whether the client has a part of an answer, or may have one.

        A first delta is recorded before it is sent, and can be lost on its way together with its
        replica. Whoever delivered says so with the end: no byte went out.
        """
        lost = self.ending not in (None, Ending.UNKNOWN) and self.delivered_bytes == 0
        return self.first_delta_sent and not lost

    @property
    def retry_budget(self) -> int:
        """How many more attempts `max_attempts` leaves; other rules may forbid them all the same."""
        started = sum(attempt.started_at is not None for attempt in self.attempts)
        return max(0, self.max_attempts - started)

    @property
    def delivered_counts_known(self) -> bool:
        """Whether the delivered counts say something: they are written with the end, by the sidecar
        that delivered. After a first delta, and without such an end, "0" would be untrue."""
        counted = self.delivered_deltas > 0 or self.ending not in (None, Ending.UNKNOWN)
        return counted or not self.first_delta_sent


def build_operation(records: Iterable[Record]) -> Operation | None:
    """The operation that these records of one operation tell; None when none of them begins it.

    The begin is applied first wherever it stands, so that an append of it that was retried after
    later records does not hide them.
    """
    in_order = list(records)
    begun = next((record for record in in_order if isinstance(record, OperationBegun)), None)
    if begun is None:
        return None
    operation = apply_record(None, begun)
    for record in in_order:
        operation = apply_record(operation, record)
    return operation


def apply_record(operation: Operation | None, record: Record) -> Operation:
    """The operation after one more of its records."""
    if operation is None:
        if not isinstance(record, OperationBegun):
            raise ImpossibleEvent(f"{type(record).__name__} for an operation that has not begun")
        return _begin(record)
    if record.operation_id != operation.operation_id:
        raise ImpossibleEvent(f"record of {record.operation_id} applied to {operation.operation_id}")
    match record:
        case OperationBegun():
            return operation
        case OwnershipTaken():
            return _take(operation, record)
        case AttemptStarted():
            return _start_attempt(operation, record)
        case FirstDeltaSent():
            return _send_first_delta(operation, record)
        case AttemptEnded():
            return _end_attempt(operation, record)
        case OperationEnded():
            return _end(operation, record)
        case _:
            assert_never(record)


def _begin(record: OperationBegun) -> Operation:
    return Operation(
        operation_id=record.operation_id,
        exchange_id=record.exchange_id,
        request_id=record.request_id,
        pool=record.pool,
        path=record.path,
        model=record.model,
        stream=record.stream,
        caller=record.caller,
        key_hash=record.key_hash,
        body_sha256=record.body_sha256,
        body_bytes=record.body_bytes,
        prompt_tokens_estimate=record.prompt_tokens_estimate,
        max_attempts=record.max_attempts,
        created_at=record.at,
        ledger_id=record.operation_id if record.ledger_id is None else record.ledger_id,
        degraded=record.degraded or (),
        job_id=record.job_id,
    )


def _take(operation: Operation, record: OwnershipTaken) -> Operation:
    if record.token <= operation.token:
        return operation
    return replace(operation, owner=record.owner, token=record.token)


def _start_attempt(operation: Operation, record: AttemptStarted) -> Operation:
    attempt = _find_attempt(operation, record.attempt_id)
    if attempt.started_at is not None:
        return operation
    # A replica that is already there comes from the connection itself and outranks the gate's wish.
    started = replace(
        attempt,
        number=record.number,
        started_at=record.at,
        lease_expires_at=record.lease_expires_at,
        replica=record.replica if attempt.replica is None else attempt.replica,
    )
    if operation.phase is Phase.QUEUED and operation.ending is None:
        operation = replace(operation, phase=Phase.PREFILL)
    operation = replace(
        operation,
        pool=operation.pool if record.pool is None else record.pool,
        degraded=operation.degraded if record.degraded is None else record.degraded,
    )
    return _with_attempt(operation, started)


def _send_first_delta(operation: Operation, record: FirstDeltaSent) -> Operation:
    if operation.first_delta_at is not None:
        return operation
    attempt = _find_attempt(operation, record.attempt_id)
    if record.replica is not None and attempt.outcome is None:
        attempt = replace(attempt, replica=record.replica)
    return replace(
        _with_attempt(operation, attempt),
        first_delta_at=record.at,
        first_delta_attempt=record.attempt_id,
        phase=Phase.DECODE if operation.ending is None else operation.phase,
    )


def _end_attempt(operation: Operation, record: AttemptEnded) -> Operation:
    attempt = _find_attempt(operation, record.attempt_id)
    unknown = AttemptOutcome.UNKNOWN
    learns = attempt.outcome is None or (attempt.outcome is unknown and record.outcome is not unknown)
    if not learns:
        return operation
    ended = replace(
        attempt,
        outcome=record.outcome,
        ended_at=record.at,
        detail=record.detail,
        replica=attempt.replica if record.replica is None else record.replica,
        first_byte_at=attempt.first_byte_at if record.first_byte_at is None else record.first_byte_at,
    )
    return _with_attempt(operation, ended)


def _end(operation: Operation, record: OperationEnded) -> Operation:
    if operation.ending is not None:
        return operation
    return replace(
        operation,
        ending=record.ending,
        state=record.state,
        phase=record.phase,
        reason=record.reason,
        error_code=record.error_code,
        status=record.status,
        delivered_deltas=record.delivered_deltas,
        delivered_output_tokens=record.delivered_output_tokens,
        delivered_bytes=record.delivered_bytes,
        model_revision=record.model_revision,
        tool_call_id=record.tool_call_id,
        ended_at=record.at,
        degraded=operation.degraded if record.degraded is None else record.degraded,
    )


def _find_attempt(operation: Operation, attempt_id: AttemptId) -> AttemptView:
    """The attempt as known so far; an empty view for one that no record has named."""
    for attempt in operation.attempts:
        if attempt.attempt_id == attempt_id:
            return attempt
    return AttemptView(attempt_id)


def _with_attempt(operation: Operation, changed: AttemptView) -> Operation:
    """The operation with one attempt replaced in its place, or added after the others."""
    attempts = operation.attempts
    if any(attempt.attempt_id == changed.attempt_id for attempt in attempts):
        updated = tuple(changed if one.attempt_id == changed.attempt_id else one for one in attempts)
    else:
        updated = (*attempts, changed)
    return replace(operation, attempts=updated)
