"""What forbids a replay, and what it waits for: the gate starts none beside an attempt that may still act."""

import pytest

from envoy_ext.domain import step
from envoy_ext.domain.events import AttemptUnanswered, LogCause, ResponseStarted
from envoy_ext.domain.ids import AttemptId, ReplicaId
from envoy_ext.domain.outcomes import Reason
from envoy_ext.domain.records import AttemptStarted
from tests.support.exchange_builders import (
    JSON,
    Policy,
    ReqChat,
    delta,
    done,
    engine_error,
    finish,
    role,
)
from tests.support.exchange_claims import (
    WHOLE,
    assert_one_whole_answer,
    assert_refused,
    refusals,
)
from tests.support.exchange_envoy import ATTEMPT_LOG, At, Envoy

# --- what forbids a replay ----------------------------------------------------------------------


def test_no_more_attempts_than_the_policy_allows_even_if_envoy_asks():
    envoy = Envoy(replicas=("a", "b", "c"), retries=9)
    envoy.replica.is_lost()
    envoy.replica.is_lost()
    assert envoy.started == 2
    assert_refused(envoy, "upstream_unavailable", 503, Reason.REPLICA_DIED)


def test_a_policy_that_fails_before_the_first_delta_replays_nothing():
    envoy = Envoy(policy=Policy(replay=False), retries=1)
    envoy.replica.is_lost()
    assert envoy.started == 1
    assert_refused(envoy, "upstream_unavailable", 503, Reason.REPLICA_DIED)


def test_a_prompt_too_dear_to_compute_again_is_refused_at_once():
    envoy = Envoy(ReqChat(prompt_tokens=50_000))
    envoy.replica.is_lost()
    assert_refused(envoy, "replay_not_allowed", 503, Reason.REPLICA_DIED)
    assert envoy.now == 1000.0


def test_a_replay_that_would_start_too_late_is_refused_at_once():
    envoy = Envoy(policy=Policy(max_replay_delay_s=20.0))
    envoy.wait(20.5)
    envoy.replica.is_lost()
    assert_refused(envoy, "replay_not_allowed", 503, Reason.REPLICA_DIED)


def test_a_replay_whose_fence_ends_too_late_is_refused_at_once():
    envoy = Envoy(policy=Policy(max_replay_delay_s=20.0, fence_s=7.0))
    envoy.wait(14.0)
    envoy.replica.is_lost(LogCause.UPSTREAM_TIMEOUT)
    assert_refused(envoy, "replay_not_allowed", 503, Reason.NETWORK_PARTITION)


def test_an_error_answer_to_a_prompt_too_dear_to_repeat_says_why_it_is_not_repeated():
    envoy = Envoy(ReqChat(prompt_tokens=50_000))
    envoy.replica.answers(status=503, type=JSON)
    assert_refused(envoy, "replay_not_allowed", 503, Reason.ENGINE_ERROR)


def test_a_refused_attempt_stays_refused_whatever_is_heard_later():
    envoy = Envoy(policy=Policy(replay=False), retries=1, late=(ATTEMPT_LOG,))
    envoy.replica.answers(role())
    envoy.replica.is_lost()
    envoy.catch_up(ATTEMPT_LOG)
    envoy.wait(60)
    refused = [reply for reply in envoy.replies if isinstance(reply, step.RefuseAttempt)]
    assert refused == [step.RefuseAttempt(AttemptId("att_2"), "upstream_unavailable")]
    assert envoy.outcomes == ["replica_died", "open"]


def test_envoys_own_budget_being_spent_is_said_as_such():
    envoy = Envoy(retries=0)
    envoy.replica.is_lost()
    assert_refused(envoy, "retry_budget_exhausted", 503, Reason.REPLICA_DIED)
    assert refusals(envoy) == ["retry_budget_exhausted"]


def test_a_replay_that_neither_envoy_nor_we_would_start_is_not_blamed_on_the_budget():
    envoy = Envoy(replicas=("a",), retries=0)
    envoy.replica.is_lost()
    assert_refused(envoy, "upstream_unavailable", 503, Reason.REPLICA_DIED)


@pytest.mark.parametrize("status", [500, 504])
def test_a_failure_of_envoy_itself_is_not_blamed_on_the_budget(status):
    """Its filter timed out, say: no mark of ours, and no answer was released."""
    envoy = Envoy()
    envoy.receive(ResponseStarted(status, "text/plain", "", replay_mark=False, refusal=None, end=False))
    assert (envoy.client.code, envoy.client.error.http_status) == ("upstream_unavailable", 503)
    assert refusals(envoy) == []


def test_an_end_that_no_replica_caused_is_not_replayed():
    envoy = Envoy()
    envoy.replica.is_lost(LogCause.DOWNSTREAM_GONE)
    assert_refused(envoy, "upstream_unavailable", 503)


def test_an_attempt_for_which_envoy_had_no_endpoint_is_replayed():
    envoy = Envoy()
    envoy.replica.is_lost(LogCause.NO_UPSTREAM)
    envoy.replica.answers(WHOLE, end=True)
    assert_one_whole_answer(envoy, attempts=2)
    assert envoy.outcomes == ["no_replica", "completed"]


def test_a_retry_after_the_first_delta_is_refused_at_the_gate():
    envoy = Envoy()
    envoy.replica.answers(role(), delta("Hel"))
    envoy.asks_again()
    assert envoy.replies[-1] == step.RefuseAttempt(AttemptId("att_2"), "replay_not_allowed")
    envoy.attempt(1).sends(delta("lo"), finish(), done(), end=True)
    assert_one_whole_answer(envoy, attempts=1)


# --- the fence ----------------------------------------------------------------------------------


def test_a_replay_waits_at_the_gate_for_the_word_on_the_attempt_before():
    envoy = Envoy(late=(ATTEMPT_LOG,))
    envoy.replica.answers(role())
    envoy.replica.is_lost()
    assert (envoy.replica.number, envoy.replica.at, envoy.started) == (2, At.GATE, 1)
    envoy.wait(0.5)
    assert envoy.replica.at is At.GATE
    envoy.catch_up(ATTEMPT_LOG)
    assert envoy.replica.at is At.REPLICA
    envoy.replica.answers(WHOLE, end=True)
    assert_one_whole_answer(envoy, attempts=2)


def test_envoys_own_answer_in_a_lost_replicas_place_is_word_enough():
    envoy = Envoy(late=(ATTEMPT_LOG,))
    envoy.replica.is_lost()
    assert (envoy.replica.number, envoy.replica.at, envoy.replica.replica) == (2, At.REPLICA, "b")
    assert envoy.outcomes == ["replica_died", "open"]
    assert repr(envoy.exchange) == "<Exchange op_1 forwarded [1:lost 2:started] open>"
    envoy.replica.answers(WHOLE, end=True)
    envoy.catch_up(ATTEMPT_LOG)
    assert_one_whole_answer(envoy, attempts=2)
    assert envoy.outcomes == ["replica_died", "completed"]


def test_envoys_own_answer_that_is_heard_of_late_lets_the_waiting_replay_go():
    envoy = Envoy(late=(ATTEMPT_LOG, "attempt 1"))
    envoy.catch_up("attempt 1")
    envoy.late.add("attempt 1")
    envoy.replica.is_lost()
    envoy.asks_again()
    assert envoy.replica.at is At.GATE
    envoy.catch_up("attempt 1")
    assert (envoy.replica.at, envoy.replica.replica) == (At.REPLICA, "b")


def test_envoys_own_answer_behind_a_replicas_headers_changes_nothing():
    envoy = Envoy()
    envoy.replica.answers(role())
    loss = AttemptUnanswered(AttemptId("att_1"), LogCause.UPSTREAM_RESET, ReplicaId("a"), "upstream_reset")
    assert envoy.exchange.receive(loss, envoy.now) is step.NOTHING


def test_without_a_word_the_replay_waits_until_the_attempt_before_may_act_no_more():
    envoy = Envoy(late=(ATTEMPT_LOG,), policy=Policy(fence_s=7.0))
    envoy.replica.answers(role())
    envoy.replica.is_lost()
    envoy.wait(6.9)
    assert envoy.replica.at is At.GATE
    envoy.wait(0.2)
    assert envoy.replica.at is At.REPLICA
    patience = [r for r in envoy.replies if isinstance(r, step.AskPatience) and r.attempt_id == "att_2"]
    assert len(patience) == 1
    assert patience[0].seconds >= 7.0


def test_a_cut_network_is_no_proof_of_death_so_the_replay_waits_for_the_fence():
    envoy = Envoy(policy=Policy(fence_s=7.0))
    envoy.replica.is_lost(LogCause.UPSTREAM_TIMEOUT)
    envoy.wait(6.9)
    assert envoy.replica.at is At.GATE
    envoy.wait(0.2)
    envoy.replica.answers(WHOLE, end=True)
    assert_one_whole_answer(envoy, attempts=2)
    assert envoy.outcomes == ["network_partition", "completed"]


def test_a_replica_that_confirms_nothing_is_let_go_of_and_replayed_behind_the_fence():
    envoy = Envoy(policy=Policy(fence_s=7.0))
    envoy.wait(8.0)
    lost = envoy.hops[0]
    assert envoy.exchange.read_wait(lost.id, envoy.now) == 8.0
    lost.confirms_nothing()
    assert [r.outcome for r in envoy.replies if isinstance(r, step.FailOver)] == ["network_partition"]
    assert (lost.at, envoy.exchange.read_wait(lost.id, envoy.now)) == (At.OVER, None)
    envoy.wait(6.9)
    assert envoy.replica.at is At.GATE
    envoy.wait(0.2)
    envoy.replica.answers(WHOLE, end=True)
    assert_one_whole_answer(envoy, attempts=2)
    assert envoy.outcomes == ["network_partition", "completed"]


@pytest.mark.parametrize("answered", ["by the replica", "by Envoy"])
def test_what_is_not_confirmed_of_an_attempt_that_was_answered_says_nothing(answered):
    envoy = Envoy()
    lost = envoy.replica
    if answered == "by Envoy":
        lost.is_lost()
    else:
        lost.answers(role())
    assert envoy.exchange.read_wait(lost.id, envoy.now) is None
    lost.confirms_nothing()
    assert not any(isinstance(reply, step.FailOver) for reply in envoy.replies)


def test_a_deadline_before_the_fence_refuses_the_replay_at_once():
    envoy = Envoy(ReqChat(deadline_s=5.0), policy=Policy(fence_s=7.0))
    envoy.replica.is_lost(LogCause.UPSTREAM_TIMEOUT)
    assert_refused(envoy, "deadline_exceeded", 504, Reason.NETWORK_PARTITION)
    assert envoy.now == 1000.0


def test_a_late_answer_of_an_attempt_that_was_given_up_is_withheld():
    envoy = Envoy(late=(ATTEMPT_LOG, "attempt 1"), steered=True)
    envoy.catch_up("attempt 1")
    envoy.late.add("attempt 1")
    envoy.replica.answers(role(), delta("from the first"))
    envoy.replica.is_lost()
    envoy.wait(7.1)
    assert envoy.replica.at is At.REPLICA
    envoy.catch_up("attempt 1")
    assert step.WithholdAnswer(AttemptId("att_1"), "replay_not_allowed") in envoy.replies
    envoy.replica.answers(WHOLE, end=True)
    envoy.catch_up(ATTEMPT_LOG)
    assert_one_whole_answer(envoy, attempts=2)
    assert envoy.outcomes == ["replica_died", "completed"]


def test_a_late_answer_is_withheld_while_the_replay_waits_at_the_gate_and_does_not_stop_it():
    envoy = Envoy(late=(ATTEMPT_LOG, "attempt 1"))
    envoy.catch_up("attempt 1")
    envoy.late.add("attempt 1")
    envoy.replica.answers(role(), delta("from the first"))
    envoy.replica.is_lost()
    envoy.catch_up("attempt 1")
    assert envoy.replica.at is At.GATE
    envoy.catch_up(ATTEMPT_LOG)
    envoy.replica.answers(WHOLE, end=True)
    assert_one_whole_answer(envoy, attempts=2)


def test_a_withheld_late_answer_does_not_change_why_the_replay_was_refused():
    envoy = Envoy(policy=Policy(replay=False), retries=1, late=("attempt 1", "delivery", ATTEMPT_LOG))
    envoy.catch_up("attempt 1")
    envoy.late.add("attempt 1")
    envoy.replica.answers(role())
    envoy.replica.is_lost()
    assert step.RefuseAttempt(AttemptId("att_2"), "upstream_unavailable") in envoy.replies
    envoy.catch_up("attempt 1")
    assert step.WithholdAnswer(AttemptId("att_1"), "replay_not_allowed") in envoy.replies
    envoy.catch_up("delivery")
    assert envoy.client.code == "upstream_unavailable"


@pytest.mark.parametrize("words", [engine_error(), delta("late")])
def test_whatever_a_held_answer_says_after_another_attempt_has_asked_it_is_withheld(words):
    envoy = Envoy(late=("attempt 1", ATTEMPT_LOG))
    envoy.catch_up("attempt 1")
    envoy.replica.answers(role())
    envoy.late.add("attempt 1")
    envoy.replica.sends(words)
    envoy.asks_again()
    envoy.catch_up("attempt 1")
    assert step.WithholdAnswer(AttemptId("att_1"), "replay_not_allowed") in envoy.replies
    assert not envoy.exchange.committed


def test_an_attempt_that_envoy_gave_up_at_the_gate_is_not_started():
    envoy = Envoy(late=(ATTEMPT_LOG,))
    envoy.replica.answers(role())
    envoy.replica.is_lost()
    with envoy.at_once():
        envoy.replica.over(LogCause.DOWNSTREAM_GONE, "")
    envoy.catch_up(ATTEMPT_LOG)
    assert envoy.started == 1
    assert sum(isinstance(record, AttemptStarted) for record in envoy.records) == 1
    assert envoy.exchange.next_deadline() is None


def test_attempts_that_ask_in_the_wrong_order_leave_none_at_the_gate_without_a_word():
    envoy = Envoy(late=(ATTEMPT_LOG, "attempt 2"), policy=Policy(max_attempts=3))
    envoy.replica.answers(role())
    envoy.replica.is_lost()
    envoy.asks_again()
    assert (envoy.replica.number, envoy.replica.at) == (3, At.GATE)
    envoy.catch_up("attempt 2")
    assert envoy.client.code == "replay_not_allowed"
    assert envoy.started == 1
    patience = dict.fromkeys(r.attempt_id for r in envoy.replies if isinstance(r, step.AskPatience))
    assert [*patience] == ["att_1", "att_3", "att_2"]


def test_each_attempt_that_waits_at_the_gate_asks_for_its_own_patience():
    envoy = Envoy(late=(ATTEMPT_LOG,), replicas=("a", "b", "c"), policy=Policy(max_attempts=3))
    envoy.replica.answers(role())
    envoy.replica.is_lost()
    second = envoy.replica
    with envoy.at_once():
        second.over(LogCause.OTHER, "gone at the gate")
        envoy.take_failure(second, status=504, mark=True)
    patience = dict.fromkeys(r.attempt_id for r in envoy.replies if isinstance(r, step.AskPatience))
    assert [*patience] == ["att_1", "att_2", "att_3"]
    assert refusals(envoy) == []
    envoy.catch_up(ATTEMPT_LOG)
    envoy.replica.answers(WHOLE, end=True)
    assert_one_whole_answer(envoy, attempts=2)
