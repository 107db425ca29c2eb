"""Leases in an exchange: who may go on, and what a replay need not wait for when a worker has spoken."""

from collections.abc import Callable

import pytest

from envoy_ext.domain import step
from envoy_ext.domain.events import AttemptFenced, AttemptStopped, LogCause
from envoy_ext.domain.ids import AttemptId, FencingToken
from envoy_ext.domain.lease import FenceProof, LeasePolicy
from envoy_ext.domain.notes import AttemptFinished, AttemptProved, FenceAwaited, FenceReached
from envoy_ext.domain.outcomes import Reason
from tests.support.exchange_builders import Policy, delta, done, finish, ping, role
from tests.support.exchange_envoy import ATTEMPT_LOG, At, Envoy

LEASE = LeasePolicy(ttl_s=6.0, renew_s=2.0, margin_s=1.0)


def build_envoy(**options: object) -> Envoy:
    return Envoy(policy=Policy(fence_s=7.0, lease=LEASE), **options)  # type: ignore[arg-type]


def renew(envoy: Envoy, number: int = 1, token: int | None = None) -> bool:
    return envoy.exchange.renew(
        AttemptId(f"att_{number}"), FencingToken(number if token is None else token), envoy.now
    )


def stop(envoy: Envoy, number: int = 1, token: int | None = None) -> None:
    envoy.receive(
        AttemptStopped(AttemptId(f"att_{number}"), FencingToken(number if token is None else token))
    )


def test_each_attempt_is_offered_a_lease_with_a_token_that_grows() -> None:
    envoy = build_envoy()
    envoy.replica.is_lost()
    offers = [reply for reply in envoy.replies if isinstance(reply, step.StartAttempt)]
    assert [(offer.token, offer.lease_ttl_s) for offer in offers] == [(1, 6.0), (2, 6.0)]


def test_a_lease_is_renewed_while_its_attempt_computes_and_while_its_answer_streams() -> None:
    envoy = build_envoy()
    assert renew(envoy)
    envoy.replica.answers(role() + delta("Hel"))
    envoy.wait(60)
    assert renew(envoy)


def test_the_holder_of_another_token_is_refused_and_changes_nothing() -> None:
    envoy = build_envoy()
    assert not renew(envoy, token=2)
    assert renew(envoy)


def test_a_cut_network_is_waited_for_from_the_last_renewal() -> None:
    envoy = build_envoy()
    renew(envoy)
    envoy.wait(3.0)
    envoy.replica.is_lost(LogCause.UPSTREAM_TIMEOUT)
    envoy.wait(3.9)
    assert envoy.replica.at is At.GATE
    envoy.wait(0.2)
    assert envoy.replica.at is At.REPLICA


def test_a_worker_that_fell_silent_before_its_network_was_missed_is_not_waited_for() -> None:
    envoy = build_envoy()
    renew(envoy)
    envoy.wait(10.0)
    envoy.replica.is_lost(LogCause.UPSTREAM_TIMEOUT)
    assert envoy.replica.at is At.REPLICA


def test_an_acknowledged_stop_ends_the_wait_at_once() -> None:
    envoy = build_envoy()
    renew(envoy)
    envoy.replica.is_lost(LogCause.UPSTREAM_TIMEOUT)
    assert envoy.replica.at is At.GATE
    stop(envoy, token=2)
    assert envoy.replica.at is At.GATE
    stop(envoy)
    assert envoy.replica.at is At.REPLICA


def test_an_acknowledged_stop_is_evidence_where_no_log_entry_came() -> None:
    envoy = build_envoy(late=(ATTEMPT_LOG,))
    renew(envoy)
    envoy.replica.answers(role())
    envoy.replica.is_lost()
    assert envoy.replica.at is At.GATE
    stop(envoy)
    assert envoy.replica.at is At.REPLICA


def test_an_attempt_that_a_later_one_has_replaced_is_renewed_no_more() -> None:
    envoy = build_envoy()
    assert renew(envoy)
    envoy.replica.is_lost(LogCause.UPSTREAM_TIMEOUT)
    assert not renew(envoy)
    envoy.wait(7.0)
    assert envoy.replica.at is At.REPLICA
    assert not renew(envoy)
    assert renew(envoy, number=2)


def test_a_later_attempt_at_the_gate_revokes_the_one_before_it_though_no_log_came() -> None:
    envoy = build_envoy(late=(ATTEMPT_LOG,))
    assert renew(envoy)
    envoy.replica.answers(role())
    envoy.replica.is_lost()
    assert envoy.replica.at is At.GATE
    assert not renew(envoy)


def test_nobody_computes_on_for_a_client_that_has_left() -> None:
    envoy = build_envoy()
    renew(envoy)
    envoy.client_leaves()
    assert not renew(envoy)


def test_that_the_client_has_left_is_enough_while_the_log_is_late() -> None:
    envoy = build_envoy(late=(ATTEMPT_LOG,))
    assert renew(envoy)
    envoy.client_leaves()
    assert not renew(envoy)


def test_an_attempt_that_is_still_at_the_gate_has_no_lease() -> None:
    envoy = build_envoy()
    envoy.replica.is_lost(LogCause.UPSTREAM_TIMEOUT)
    assert envoy.replica.at is At.GATE
    assert not renew(envoy, number=2)
    stop(envoy, number=2)
    assert envoy.replica.at is At.GATE


def test_a_replay_that_waits_names_whom_it_waits_for_once() -> None:
    envoy = build_envoy()
    envoy.replica.is_lost(LogCause.UPSTREAM_TIMEOUT)
    envoy.wait(3.0)
    awaited = [note for note in envoy.notes if isinstance(note, FenceAwaited)]
    assert [(note.attempt_id, note.replica) for note in awaited] == [("att_1", "a")]
    assert envoy.exchange.waits_for_fence


def test_a_proof_of_death_ends_the_wait_at_once_and_its_length_is_told() -> None:
    envoy = build_envoy()
    renew(envoy)
    envoy.replica.is_lost(LogCause.UPSTREAM_TIMEOUT)
    envoy.wait(1.5)
    assert envoy.replica.at is At.GATE
    envoy.receive(AttemptFenced(AttemptId("att_1"), FenceProof.DEATH))
    assert envoy.replica.at is At.REPLICA
    waited = [note.waited_s for note in envoy.notes if isinstance(note, FenceReached)]
    assert waited == [1.5]
    assert not envoy.exchange.waits_for_fence
    assert not renew(envoy)


def test_a_process_that_is_known_to_be_dead_is_not_waited_for() -> None:
    envoy = build_envoy()
    renew(envoy)
    envoy.receive(AttemptFenced(AttemptId("att_1"), FenceProof.DEATH))
    envoy.replica.is_lost(LogCause.UPSTREAM_RESET)
    assert envoy.replica.at is At.REPLICA
    assert not [note for note in envoy.notes if isinstance(note, FenceAwaited | FenceReached)]


def test_a_worker_is_waited_for_whatever_became_of_its_connection() -> None:
    envoy = build_envoy()
    renew(envoy)
    envoy.replica.is_lost(LogCause.UPSTREAM_RESET)
    assert envoy.replica.at is At.GATE
    assert [note.attempt_id for note in envoy.notes if isinstance(note, FenceAwaited)] == ["att_1"]
    stop(envoy)
    assert envoy.replica.at is At.REPLICA


def test_an_engine_that_failed_is_waited_for_until_its_worker_says_that_it_has_stopped() -> None:
    envoy = build_envoy()
    renew(envoy)
    envoy.replica.answers(status=500)
    assert envoy.replica.at is At.GATE
    stop(envoy)
    assert envoy.replica.at is At.REPLICA


def test_without_a_worker_a_lost_connection_is_the_end() -> None:
    envoy = build_envoy()
    envoy.replica.is_lost(LogCause.UPSTREAM_RESET)
    assert envoy.replica.at is At.REPLICA


@pytest.mark.parametrize(
    ("cause", "outcome"),
    [
        (LogCause.CONNECT_REFUSED, "replica_died"),
        (LogCause.UNREACHABLE, "network_partition"),
        (LogCause.NO_UPSTREAM, "no_replica"),
    ],
)
@pytest.mark.parametrize("late", [(), (ATTEMPT_LOG,)])
def test_what_no_replica_was_sent_needs_no_fence_and_keeps_its_name(
    cause: LogCause, outcome: str, late: tuple[str, ...]
) -> None:
    envoy = build_envoy(late=late)
    envoy.replica.is_lost(cause)
    assert envoy.replica.at is At.REPLICA
    assert envoy.outcomes[0] == outcome
    assert not [note for note in envoy.notes if isinstance(note, FenceAwaited)]


def test_whom_a_worker_has_renewed_for_was_sent_it_whatever_is_said() -> None:
    envoy = build_envoy()
    renew(envoy)
    envoy.replica.is_lost(LogCause.UNREACHABLE)
    assert envoy.replica.at is At.GATE
    stop(envoy)
    assert envoy.replica.at is At.REPLICA


def test_an_unreachable_replica_has_its_name_where_no_replay_follows() -> None:
    envoy = Envoy(retries=0)
    envoy.replica.is_lost(LogCause.UNREACHABLE)
    assert envoy.client.error is not None
    assert envoy.client.error.reason is Reason.NETWORK_PARTITION


def test_an_attempt_is_silent_since_it_was_started_or_since_something_came() -> None:
    envoy = build_envoy()
    first = AttemptId("att_1")
    envoy.wait(4.0)
    assert envoy.exchange.read_silence(first, envoy.now) == 4.0
    envoy.replica.answers(role())
    assert envoy.exchange.read_silence(first, envoy.now) == 0.0
    envoy.wait(2.0)
    envoy.replica.sends(ping())
    envoy.wait(3.0)
    assert envoy.exchange.read_silence(first, envoy.now) == 3.0


def test_an_answer_that_passes_unseen_is_never_called_silent() -> None:
    envoy = build_envoy()
    envoy.replica.answers(role() + delta("Hel"))
    envoy.wait(30.0)
    assert envoy.exchange.read_silence(AttemptId("att_1"), envoy.now) == 0.0


def test_a_client_that_leaves_ends_the_wait() -> None:
    envoy = build_envoy()
    envoy.replica.is_lost(LogCause.UPSTREAM_TIMEOUT)
    assert envoy.exchange.waits_for_fence
    envoy.client_leaves()
    assert not envoy.exchange.waits_for_fence


def read_acts_until(envoy: Envoy) -> float | None:
    """Until when the first attempt may be computed, by the note of its end."""
    (finished,) = [
        note
        for note in envoy.notes
        if isinstance(note, AttemptFinished) and note.attempt_id == AttemptId("att_1")
    ]
    return finished.acts_until


def complete(envoy: Envoy) -> None:
    envoy.replica.answers(role(), delta("Hel"), finish(), done(), end=True)


@pytest.mark.parametrize(
    ("end", "lasts_s"),
    [
        (lambda envoy: envoy.replica.is_lost(LogCause.CONNECT_REFUSED), None),
        (lambda envoy: envoy.replica.is_lost(LogCause.NO_UPSTREAM), None),
        (lambda envoy: envoy.replica.answers(status=500), None),
        (lambda envoy: envoy.replica.answers(b"{}", status=400, end=True), None),
        (complete, None),
        (lambda envoy: envoy.replica.is_lost(LogCause.UPSTREAM_RESET), 7.0),
        (lambda envoy: envoy.replica.is_lost(LogCause.UPSTREAM_TIMEOUT), 7.0),
        (lambda envoy: envoy.client_leaves(), 7.0),
    ],
    ids=["refused", "nowhere", "failed", "mistake", "complete", "reset", "cut", "left"],
)
def test_a_lost_stream_is_no_word_on_its_generation(
    end: Callable[[Envoy], None], lasts_s: float | None
) -> None:
    envoy = build_envoy()
    ended_at = envoy.now
    end(envoy)
    assert read_acts_until(envoy) == (None if lasts_s is None else pytest.approx(ended_at + lasts_s))


@pytest.mark.parametrize("proof", ["stopped", "dead"])
def test_what_was_proved_before_its_stream_was_lost_acts_no_more(proof: str) -> None:
    envoy = build_envoy()
    if proof == "stopped":
        stop(envoy)
    else:
        envoy.receive(AttemptFenced(AttemptId("att_1"), FenceProof.DEATH))
    told = [note for note in envoy.notes if isinstance(note, AttemptProved)]
    assert [(note.attempt_id, note.proof) for note in told] == [
        (AttemptId("att_1"), FenceProof.CANCEL_ACK if proof == "stopped" else FenceProof.DEATH)
    ]
    envoy.replica.is_lost(LogCause.UPSTREAM_TIMEOUT)
    assert read_acts_until(envoy) is None
