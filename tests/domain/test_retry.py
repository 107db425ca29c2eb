"""Whether another attempt may start: one table of views and decisions, and what outweighs what."""

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from envoy_ext.domain.ids import ReplicaId
from envoy_ext.domain.outcomes import AttemptOutcome
from envoy_ext.domain.retry import (
    RETRIABLE,
    FailoverPolicy,
    GiveUp,
    PreviousAttempt,
    Retry,
    RetryView,
    WaitForFence,
    decide_retry,
)
from tests.support.exchange_builders import target, targets

POLICY = FailoverPolicy(
    max_attempts=2,
    max_replay_prompt_tokens=32_000,
    max_replay_delay_s=20.0,
    fence_s=7.0,
    log_grace_s=1.0,
)
DIED, PARTITION = AttemptOutcome.REPLICA_DIED, AttemptOutcome.NETWORK_PARTITION


def before(outcome=DIED, replica="a"):
    return PreviousAttempt(outcome, None if replica is None else ReplicaId(replica))


VIEW = RetryView(
    now=105.0,
    committed=False,
    client_waiting=True,
    attempts=(before(),),
    prompt_tokens=100,
    first_started_at=100.0,
    asked_at=105.0,
    deadline=None,
    candidates=targets("a", "b", "c"),
)


def decide(policy=POLICY, **view):
    return decide_retry(replace(VIEW, **view), policy)


def code(**view):
    decision = decide(**view)
    return decision.code if isinstance(decision, GiveUp) else type(decision).__name__


def test_a_dead_replicas_work_goes_to_the_best_one_that_was_not_tried():
    assert decide() == Retry(target("b"), DIED)
    assert decide(candidates=targets("c", "a", "b")) == Retry(target("c"), DIED)


# --- no -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        ({"committed": True}, "replay_not_allowed"),
        ({"client_waiting": False}, "upstream_unavailable"),
        ({"attempts": (before(), before(replica="b"))}, "upstream_unavailable"),
        ({"attempts": ()}, "upstream_unavailable"),
        ({"attempts": (before(AttemptOutcome.CLIENT_ERROR),)}, "upstream_unavailable"),
        ({"prompt_tokens": 32_001}, "replay_not_allowed"),
        ({"prompt_tokens": 32_000}, "Retry"),
        ({"deadline": 105.0}, "deadline_exceeded"),
        ({"deadline": 105.1}, "Retry"),
        ({"now": 120.1, "asked_at": 120.1}, "replay_not_allowed"),
        ({"now": 120.0, "asked_at": 120.0}, "Retry"),
        ({"candidates": targets("a")}, "upstream_unavailable"),
        ({"candidates": ()}, "upstream_unavailable"),
    ],
)
def test_what_forbids_a_replay(view, expected):
    assert code(**view) == expected


def test_a_policy_that_replays_nothing():
    assert decide(replace(POLICY, replay=False)) == GiveUp(
        "upstream_unavailable", "no more attempts are allowed"
    )


@pytest.mark.parametrize("outcome", list(AttemptOutcome))
def test_only_an_attempt_that_may_have_failed_by_its_replicas_fault_is_repeated(outcome):
    fenced = {"attempts": (before(outcome),), "now": 113.0}
    expected = "Retry" if outcome in RETRIABLE else "upstream_unavailable"
    assert code(**fenced) == expected


def test_which_outcomes_are_final():
    assert set(AttemptOutcome) - RETRIABLE == {
        AttemptOutcome.COMPLETED,
        AttemptOutcome.CLIENT_ERROR,
        AttemptOutcome.CANCELLED,
        AttemptOutcome.REFUSED,
    }


NOWHERE = (AttemptOutcome.MISROUTED, AttemptOutcome.NO_REPLICA)

NOES = [
    ({"committed": True}, "part of an answer was delivered"),
    ({"client_waiting": False}, "the client has gone"),
    ({"attempts": (before(), before(), before(AttemptOutcome.CANCELLED))}, "no more attempts are allowed"),
    ({"prompt_tokens": 99_999}, "the prompt is too long to compute again"),
    ({"deadline": 1.0}, "the request's deadline comes first"),
    ({"first_started_at": 1.0}, "the replay would start too late"),
    ({"attempts": (before(replica=None),)}, "nobody has told where an earlier attempt ran"),
    ({"candidates": ()}, "no ready replica of its fingerprint is left that was not tried"),
]


@pytest.mark.parametrize("first", range(len(NOES)))
def test_the_first_no_in_the_order_of_the_questions_decides(first):
    """Whatever else is wrong with the request, the client is told the weightiest reason."""
    everything = {}
    for view, _ in reversed(NOES[first:]):
        everything |= view
    decision = decide(**everything)
    assert isinstance(decision, GiveUp)
    assert decision.detail == NOES[first][1]


# --- wait ---------------------------------------------------------------------------------------


def test_an_attempt_without_a_word_is_given_the_logs_grace_and_then_the_fence():
    silent = {"attempts": (before(None),), "asked_at": 105.0}
    assert decide(**silent, now=105.0) == WaitForFence(106.0)
    assert decide(**silent, now=105.9) == WaitForFence(106.0)
    assert decide(**silent, now=106.0) == WaitForFence(112.0)
    assert decide(**silent, now=111.9) == WaitForFence(112.0)
    assert decide(**silent, now=112.0) == Retry(target("b"), AttemptOutcome.UNKNOWN)


@pytest.mark.parametrize("outcome", [PARTITION, AttemptOutcome.UNKNOWN])
def test_an_attempt_that_may_live_is_waited_for_until_it_may_act_no_more(outcome):
    alive = {"attempts": (before(outcome),)}
    assert decide(**alive, now=105.0) == WaitForFence(112.0)
    assert decide(**alive, now=112.0) == Retry(target("b"), outcome)


def test_every_earlier_attempt_is_waited_for_and_not_the_last_alone():
    attempts = (before(PARTITION), before(DIED, "b"))
    policy = replace(POLICY, max_attempts=3)
    assert decide(policy, attempts=attempts) == WaitForFence(112.0)
    assert decide(policy, attempts=attempts, now=112.0) == Retry(target("c"), DIED)


def test_a_wait_that_could_not_help_is_refused_at_once():
    alive = {"attempts": (before(PARTITION),)}
    assert code(**alive, deadline=112.0) == "deadline_exceeded"
    assert code(**alive, deadline=112.1) == "WaitForFence"
    assert code(**alive, first_started_at=91.0) == "replay_not_allowed"
    assert code(**alive, first_started_at=92.0) == "WaitForFence"


def test_nothing_is_replayed_while_an_earlier_attempt_may_have_run_anywhere():
    """Whoever is chosen could be the one that has just failed, or of another fingerprint."""
    policy = replace(POLICY, max_attempts=3)
    for attempts in ((before(replica=None),), (before(replica=None), before(replica="a"))):
        decision = decide(policy, attempts=attempts)
        assert isinstance(decision, GiveUp)
        assert (decision.code, decision.detail) == (
            "upstream_unavailable",
            "nobody has told where an earlier attempt ran",
        )


def test_where_an_attempt_ran_may_come_to_light_while_its_end_is_waited_for():
    silent = {"attempts": (before(None, replica=None),), "asked_at": 105.0}
    assert decide(**silent, now=105.0) == WaitForFence(106.0)
    assert decide(attempts=(before(DIED, "a"),), asked_at=105.0, now=105.5) == Retry(target("b"), DIED)
    assert code(**silent, now=112.0) == "upstream_unavailable"


@pytest.mark.parametrize("outcome", NOWHERE)
def test_an_attempt_that_ran_at_no_replica_of_ours_excludes_none(outcome):
    assert decide(attempts=(before(outcome, replica=None),)) == Retry(target("a"), outcome)


views = st.builds(
    RetryView,
    now=st.floats(100, 140),
    committed=st.booleans(),
    client_waiting=st.booleans(),
    attempts=st.lists(
        st.builds(
            PreviousAttempt,
            st.none() | st.sampled_from(AttemptOutcome),
            st.none() | st.sampled_from("abc").map(ReplicaId),
        ),
        max_size=3,
    ).map(tuple),
    prompt_tokens=st.sampled_from([1, 40_000]),
    first_started_at=st.just(100.0),
    asked_at=st.floats(100, 130),
    deadline=st.none() | st.floats(100, 150),
    candidates=st.lists(st.sampled_from("abcd"), unique=True).map(lambda names: targets(*names)),
)


@given(views)
@settings(max_examples=400, deadline=None)
def test_a_replay_is_never_started_against_the_policy_and_a_wait_always_ends(view):
    decision = decide_retry(view, POLICY)
    if isinstance(decision, Retry):
        assert view.client_waiting
        assert not view.committed
        assert len(view.attempts) < POLICY.max_attempts
        assert view.prompt_tokens <= POLICY.max_replay_prompt_tokens
        assert view.deadline is None or view.now < view.deadline
        assert decision.target in view.candidates
        assert decision.target.replica not in {attempt.replica for attempt in view.attempts}
        assert all(a.replica is not None or a.outcome in NOWHERE for a in view.attempts)
    if isinstance(decision, WaitForFence):
        assert decision.until > view.now
        # Asked again at each time it names, it comes to an end within the fence.
        later = decide_retry(replace(view, now=decision.until), POLICY)
        latest = decide_retry(replace(view, now=max(decision.until, view.asked_at + POLICY.fence_s)), POLICY)
        assert not isinstance(latest, WaitForFence)
        assert not isinstance(later, WaitForFence) or later.until > decision.until
