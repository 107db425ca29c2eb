"""Builders for journal records: a test names what it is about, the rest is filled in."""

from dataclasses import replace

from envoy_ext.domain.ids import (
    AttemptId,
    ExchangeId,
    FencingToken,
    OperationId,
    PoolName,
    ReplicaId,
    SeatId,
)
from envoy_ext.domain.operation import Operation, build_operation
from envoy_ext.domain.outcomes import AttemptOutcome, Ending, OperationState, Phase, Reason
from envoy_ext.domain.records import (
    AttemptEnded,
    AttemptStarted,
    FirstDeltaSent,
    OperationBegun,
    OperationEnded,
    OwnershipTaken,
    Record,
)

START = 1_750_000_000.0


def begun(operation: str = "op_1", **changes: object) -> OperationBegun:
    record = OperationBegun(
        operation_id=OperationId(operation),
        exchange_id=ExchangeId(f"exg_of_{operation}"),
        at=START,
        request_id="req-1",
        pool=PoolName("chat"),
        path="/v1/chat/completions",
        model="llama-3.1-8b",
        stream=True,
        caller="caller-hash",
        key_hash=None,
        body_sha256="ab" * 32,
        body_bytes=512,
        prompt_tokens_estimate=128,
        max_attempts=2,
    )
    return replace(record, **changes)  # type: ignore[arg-type]


def owned(seat: str = "gw/1", operation: str = "op_1", token: int = 1, at: float = START) -> OwnershipTaken:
    return OwnershipTaken(OperationId(operation), at, SeatId(seat), FencingToken(token))


def attempt_started(
    operation: str = "op_1",
    attempt: str = "att_1",
    number: int = 1,
    replica: str | None = "a",
    at: float = START + 0.1,
) -> AttemptStarted:
    return AttemptStarted(
        operation_id=OperationId(operation),
        attempt_id=AttemptId(attempt),
        number=number,
        at=at,
        replica=None if replica is None else ReplicaId(replica),
        lease_expires_at=at + 6,
    )


def first_delta_sent(
    operation: str = "op_1", attempt: str = "att_1", replica: str | None = "a", at: float = START + 0.2
) -> FirstDeltaSent:
    return FirstDeltaSent(
        OperationId(operation), AttemptId(attempt), at, None if replica is None else ReplicaId(replica)
    )


def attempt_ended(
    operation: str = "op_1",
    attempt: str = "att_1",
    outcome: AttemptOutcome = AttemptOutcome.COMPLETED,
    replica: str | None = "a",
    at: float = START + 0.9,
    first_byte_at: float | None = START + 0.15,
    detail: str = "via_upstream",
) -> AttemptEnded:
    return AttemptEnded(
        operation_id=OperationId(operation),
        attempt_id=AttemptId(attempt),
        at=at,
        outcome=outcome,
        replica=None if replica is None else ReplicaId(replica),
        first_byte_at=first_byte_at,
        detail=detail,
    )


def ended(operation: str = "op_1", **changes: object) -> OperationEnded:
    """A good end; `interrupted` is the other one."""
    record = OperationEnded(
        operation_id=OperationId(operation),
        at=START + 1,
        ending=Ending.FINISHED,
        state=OperationState.COMPLETED,
        phase=Phase.COMPLETED,
        reason=None,
        error_code=None,
        status=200,
        delivered_deltas=37,
        delivered_output_tokens=37,
        delivered_bytes=4_096,
    )
    return replace(record, **changes)  # type: ignore[arg-type]


def interrupted(operation: str = "op_1", **changes: object) -> OperationEnded:
    """An end after a part was delivered."""
    base = ended(
        operation,
        ending=Ending.UPSTREAM_BROKE,
        state=OperationState.FAILED,
        phase=Phase.DECODE,
        reason=Reason.REPLICA_DIED,
        error_code="upstream_decode_interrupted",
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def whole_life(operation: str = "op_1", **begun_changes: object) -> list[Record]:
    """Every record of an operation that went well at the first attempt."""
    attempt = f"att_of_{operation}"
    return [
        begun(operation, **begun_changes),
        attempt_started(operation, attempt),
        first_delta_sent(operation, attempt),
        attempt_ended(operation, attempt),
        ended(operation),
    ]


def fold(*records: Record) -> Operation:
    """The operation that these records tell of."""
    operation = build_operation(records)
    assert operation is not None
    return operation
