"""What an attempt's end says of its replica: a failure only where that, or the way to it, has failed."""

import pytest

from envoy_ext.domain.circuit_evidence import ANSWERED, Blame, Failed, FailureClass, read_evidence
from envoy_ext.domain.events import LogCause
from envoy_ext.domain.outcomes import AttemptOutcome

W, C, K = AttemptOutcome, LogCause, FailureClass
FAILURES = {
    (W.REPLICA_DIED, C.CONNECT_REFUSED): Failed(K.CONNECT, Blame.REPLICA),
    (W.NETWORK_PARTITION, C.UNREACHABLE): Failed(K.CONNECT, Blame.REPLICA),
    (W.NETWORK_PARTITION, C.UPSTREAM_TIMEOUT): Failed(K.SILENCE, Blame.REPLICA),
    (W.REPLICA_DIED, C.UPSTREAM_RESET): Failed(K.RESET),
    (W.ENGINE_ERROR, C.SIDECAR): Failed(K.ENGINE_ERROR),
    (W.ENGINE_ERROR, None): Failed(K.ENGINE_ERROR),
    (W.TRUNCATED, C.COMPLETED): Failed(K.ENGINE_ERROR),
}
NEVER = {
    W.OVERLOADED,
    W.CLIENT_ERROR,
    W.CANCELLED,
    W.MISROUTED,
    W.NO_REPLICA,
    W.REFUSED,
    W.UNKNOWN,
    W.COMPLETED,
}


@pytest.mark.parametrize(("outcome", "cause"), FAILURES)
@pytest.mark.parametrize("answered", [False, True])
def test_what_the_replica_or_the_way_to_it_failed_in(outcome, cause, answered):
    """Part of an answer is no excuse: a stream that was cut is a loss."""
    assert read_evidence(outcome, cause, answered=answered) == FAILURES[outcome, cause]


@pytest.mark.parametrize("outcome", sorted(NEVER))
@pytest.mark.parametrize("cause", [None, *LogCause])
@pytest.mark.parametrize("answered", [False, True])
def test_what_is_no_failure_whatever_envoy_says(outcome, cause, answered):
    assert not isinstance(read_evidence(outcome, cause, answered=answered), Failed)


def test_the_two_tables_name_every_outcome():
    assert {outcome for outcome, _ in FAILURES} | NEVER == set(AttemptOutcome)


@pytest.mark.parametrize("outcome", AttemptOutcome)
def test_only_what_was_begun_to_be_answered_speaks_for_a_replica(outcome):
    assert read_evidence(outcome, None, answered=False) != ANSWERED
    good = {W.COMPLETED, W.CANCELLED, W.UNKNOWN}
    assert (read_evidence(outcome, None, answered=True) == ANSWERED) == (outcome in good)


@pytest.mark.parametrize("outcome", AttemptOutcome)
def test_what_no_model_computes_says_nothing_of_a_model(outcome):
    """A server whose engine is dead lists its models, and an unknown path may fail as it likes."""
    told = read_evidence(outcome, C.UPSTREAM_RESET, answered=True, computes=False)
    assert told in (None, Failed(K.RESET), Failed(K.SILENCE, Blame.REPLICA))
