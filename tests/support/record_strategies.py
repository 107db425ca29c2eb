"""Hypothesis strategies for journal records: few ids, so that records meet, repeat and contradict."""

from hypothesis import strategies as st

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

OPERATION_IDS = [OperationId(f"op_{number}") for number in range(4)]
CALLERS = ["", "caller-1"]
PATHS = ["/v1/chat/completions", "/v1/embeddings", "/caf\udce9?\x00"]
KEY_HASHES = ["key-1", "key-2"]

_operations = st.sampled_from(OPERATION_IDS)
_attempts = st.sampled_from([AttemptId(f"att_{number}") for number in range(3)])
_replicas = st.sampled_from([None, ReplicaId("a"), ReplicaId("b")])
_times = st.floats(min_value=0, max_value=4e9, allow_nan=False)
_counts = st.integers(min_value=0, max_value=2**70)
# Any text, lone surrogates and NUL among it: ids and details come from peers.
_texts = st.text(st.characters(), max_size=8)
_degraded = st.none() | st.lists(st.sampled_from(RungName), min_size=1, max_size=3).map(tuple)


def records(operations: st.SearchStrategy[OperationId] = _operations) -> st.SearchStrategy[Record]:
    """Any one record, of any of the operations."""
    taken = st.builds(
        OwnershipTaken,
        operation_id=operations,
        at=_times,
        owner=_texts.map(SeatId),
        token=st.integers(min_value=1, max_value=4).map(FencingToken),
    )
    return begins(operations) | taken | appended(operations)


def begins(operations: st.SearchStrategy[OperationId]) -> st.SearchStrategy[OperationBegun]:
    """The first record of an operation."""
    return st.builds(
        OperationBegun,
        operation_id=operations,
        exchange_id=_texts.map(ExchangeId),
        at=_times,
        request_id=_texts,
        pool=_texts.map(PoolName),
        path=st.sampled_from(PATHS),
        model=st.none() | _texts,
        stream=st.booleans(),
        caller=st.sampled_from(CALLERS),
        key_hash=st.sampled_from([None, *KEY_HASHES]),
        body_sha256=_texts,
        body_bytes=_counts,
        prompt_tokens_estimate=_counts,
        max_attempts=st.integers(min_value=0, max_value=3),
        ledger_id=st.none() | operations | st.just(OPERATION_IDS[0]),
        degraded=_degraded,
    )


def appended(operations: st.SearchStrategy[OperationId]) -> st.SearchStrategy[Record]:
    """A record that the owner of an operation may append."""
    started = st.builds(
        AttemptStarted,
        operation_id=operations,
        attempt_id=_attempts,
        number=st.integers(min_value=1, max_value=3),
        at=_times,
        replica=_replicas,
        lease_expires_at=_times,
        pool=st.none() | _texts.map(PoolName),
        degraded=_degraded,
    )
    first_delta = st.builds(
        FirstDeltaSent, operation_id=operations, attempt_id=_attempts, at=_times, replica=_replicas
    )
    attempt_end = st.builds(
        AttemptEnded,
        operation_id=operations,
        attempt_id=_attempts,
        at=_times,
        outcome=st.sampled_from(AttemptOutcome),
        replica=_replicas,
        first_byte_at=st.none() | _times,
        detail=_texts,
    )
    end = st.builds(
        OperationEnded,
        operation_id=operations,
        at=_times,
        ending=st.sampled_from(Ending),
        state=st.sampled_from(OperationState),
        phase=st.sampled_from(Phase),
        reason=st.none() | st.sampled_from(Reason),
        error_code=st.none() | _texts,
        status=st.none() | st.integers(min_value=100, max_value=599),
        delivered_deltas=_counts,
        delivered_output_tokens=_counts,
        delivered_bytes=_counts,
        model_revision=st.none() | _texts,
        degraded=_degraded,
    )
    return started | first_delta | attempt_end | end
