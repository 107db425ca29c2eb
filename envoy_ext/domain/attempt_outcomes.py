"""From outcomes to reasons and back: what an attempt's end says of its exchange, and the other way round."""

from typing import Final, assert_never

from envoy_ext.domain import ending
from envoy_ext.domain.attempt import Attempt
from envoy_ext.domain.exchange_shared import Shared
from envoy_ext.domain.outcomes import AttemptOutcome, Ending, Reason

REASON_OF_OUTCOME: Final[dict[AttemptOutcome | None, Reason]] = {
    AttemptOutcome.REPLICA_DIED: Reason.REPLICA_DIED,
    AttemptOutcome.NETWORK_PARTITION: Reason.NETWORK_PARTITION,
    AttemptOutcome.ENGINE_ERROR: Reason.ENGINE_ERROR,
    AttemptOutcome.OVERLOADED: Reason.ENGINE_ERROR,
    AttemptOutcome.TRUNCATED: Reason.TRUNCATED,
}

_OUTCOME_OF_REASON: Final[dict[Reason | None, AttemptOutcome]] = {
    Reason.REPLICA_DIED: AttemptOutcome.REPLICA_DIED,
    Reason.NETWORK_PARTITION: AttemptOutcome.NETWORK_PARTITION,
    Reason.ENGINE_ERROR: AttemptOutcome.ENGINE_ERROR,
    Reason.TRUNCATED: AttemptOutcome.TRUNCATED,
    Reason.DEADLINE: AttemptOutcome.CANCELLED,
    Reason.DRAIN_DEADLINE: AttemptOutcome.CANCELLED,
    Reason.TAKEN_OVER: AttemptOutcome.CANCELLED,
}


GENERATION_OVER: Final = frozenset(
    {
        AttemptOutcome.COMPLETED,
        AttemptOutcome.ENGINE_ERROR,
        AttemptOutcome.OVERLOADED,
        AttemptOutcome.CLIENT_ERROR,
        AttemptOutcome.TRUNCATED,
        AttemptOutcome.NO_REPLICA,
        AttemptOutcome.REFUSED,
    }
)
"""Outcomes after which nothing is computed: the engine itself ended its answer, or was never asked. After all
others the stream has ended, and nobody has said that the generation has."""


def read_acts_until(attempt: Attempt, now: float) -> float | None:
    """Until when the generation of an attempt may last whose stream has ended; None when it is over too."""
    lease = attempt.lease
    if lease is None or attempt.outcome in GENERATION_OVER:
        return None
    lease.revoke(now)
    return None if lease.proof is not None else lease.expires_at


def read_released_outcome(shared: Shared, attempt: Attempt) -> AttemptOutcome:
    """What became of the attempt whose bytes the client got, by how its exchange ended."""
    resolution = shared.resolution
    if resolution is None:
        return AttemptOutcome.UNKNOWN
    match resolution.ending:
        case Ending.FINISHED:
            client_error = shared.evidence.client_error
            return AttemptOutcome.CLIENT_ERROR if client_error else AttemptOutcome.COMPLETED
        case Ending.CLIENT_GONE:
            return AttemptOutcome.CANCELLED
        case Ending.UPSTREAM_BROKE:
            if resolution.reason is None and attempt.log is not None:
                return ending.read_outcome(attempt.log.cause)
            return _OUTCOME_OF_REASON.get(resolution.reason, AttemptOutcome.UNKNOWN)
        case Ending.REFUSED | Ending.UNKNOWN:
            return AttemptOutcome.UNKNOWN
        case _:
            assert_never(resolution.ending)
