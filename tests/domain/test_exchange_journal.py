"""What is recorded, in which step; and that what cannot be recorded does not happen."""

import pytest

from envoy_ext.domain import step
from envoy_ext.domain.events import JournalFailed
from envoy_ext.domain.ids import AttemptId
from envoy_ext.domain.lease import LeasePolicy
from envoy_ext.domain.notes import ExchangeEnded
from envoy_ext.domain.operation import build_operation
from envoy_ext.domain.outcomes import AttemptOutcome, Ending, OperationState, Phase
from envoy_ext.domain.records import (
    AttemptEnded,
    AttemptStarted,
    FirstDeltaSent,
    OperationBegun,
    OperationEnded,
)
from tests.support.exchange_builders import (
    JSON,
    OPERATION,
    Policy,
    ReqChat,
    answer,
    delta,
    done,
    finish,
    role,
    usage,
)
from tests.support.exchange_envoy import ATTEMPT_LOG, WALL, Envoy

CANNOT_RECORD = "The gateway cannot record this operation, so it does not run it."


def step_with(envoy, kind):
    return next(one for one in envoy.steps if any(isinstance(reply, kind) for reply in one.replies))


def replayed():
    envoy = Envoy(ReqChat(prompt_tokens=77), policy=Policy(lease=LeasePolicy(ttl_s=6.0)))
    envoy.wait(1.0)
    envoy.replica.is_lost()
    envoy.wait(1.0)
    envoy.replica.answers(role(), delta("Hel", system_fingerprint="fp_1"))
    envoy.wait(1.0)
    envoy.replica.sends(usage(5), finish(), done(), end=True)
    return envoy


# --- what is recorded ---------------------------------------------------------------------------


def test_the_journal_tells_the_whole_story_in_order():
    att_1, att_2 = AttemptId("att_1"), AttemptId("att_2")
    begun, *rest = replayed().records
    assert isinstance(begun, OperationBegun)
    assert (begun.operation_id, begun.prompt_tokens_estimate, begun.max_attempts) == (OPERATION, 77, 2)
    assert (begun.caller, begun.key_hash, begun.at) == ("caller-hash", None, WALL)
    assert rest == [
        AttemptStarted(OPERATION, att_1, 1, WALL, None, lease_expires_at=WALL + 6),
        AttemptEnded(OPERATION, att_1, WALL + 1, AttemptOutcome.REPLICA_DIED, "a", None, "upstream_reset"),
        AttemptStarted(OPERATION, att_2, 2, WALL + 1, "b", lease_expires_at=WALL + 7),
        FirstDeltaSent(OPERATION, att_2, WALL + 2, "b"),
        OperationEnded(
            OPERATION,
            WALL + 3,
            Ending.FINISHED,
            OperationState.COMPLETED,
            Phase.COMPLETED,
            reason=None,
            error_code=None,
            status=200,
            delivered_deltas=1,
            delivered_output_tokens=5,
            delivered_bytes=len(
                role() + delta("Hel", system_fingerprint="fp_1") + usage(5) + finish() + done()
            ),
            model_revision="fp_1",
        ),
        AttemptEnded(OPERATION, att_2, WALL + 3, AttemptOutcome.COMPLETED, "b", WALL + 2, "via_upstream"),
    ]


def test_the_records_fold_into_the_operation_they_tell_of():
    operation = build_operation(replayed().records)
    assert (operation.state, operation.first_delta_sent) == (OperationState.COMPLETED, True)
    assert [attempt.outcome for attempt in operation.attempts] == ["replica_died", "completed"]


def test_an_operation_is_recorded_in_the_step_that_lets_its_request_go():
    assert [type(record) for record in step_with(Envoy(), step.ForwardRequest).records] == [OperationBegun]


def test_an_attempt_is_recorded_in_the_step_that_starts_it():
    assert [type(record) for record in step_with(Envoy(), step.StartAttempt).records] == [AttemptStarted]


def test_an_end_is_recorded_in_the_step_that_lets_the_last_bytes_out():
    envoy = Envoy()
    envoy.replica.answers(answer("Hel"), end=True)
    last = next(s for s in envoy.steps if any(isinstance(r, step.ForwardBody) and r.end for r in s.replies))
    assert [type(record) for record in last.records] == [OperationEnded]


def test_chunks_in_mid_answer_need_no_record():
    envoy = Envoy()
    envoy.replica.answers(role(), delta("Hel"))
    before = len(envoy.journal)
    envoy.replica.sends(delta("lo"), delta("!"))
    assert len(envoy.journal) == before


def test_nothing_of_an_answer_is_in_the_journal_or_in_the_notes():
    envoy = Envoy()
    envoy.replica.answers(role(), delta("secret words"))
    envoy.replica.sends(b'data: {"error": {"message": "secret words", "type": "x"}}\n\n')
    envoy.replica.is_lost()
    assert "secret" not in repr(envoy.journal) + repr(envoy.notes) + repr(envoy.exchange)


def test_an_end_is_recorded_once_whatever_still_comes():
    envoy = Envoy(late=(ATTEMPT_LOG,))
    envoy.replica.answers(answer("Hel"), end=True)
    entry = envoy.queues[ATTEMPT_LOG][0]
    envoy.wait(60)
    envoy.catch_up(ATTEMPT_LOG)
    envoy.receive(entry)
    kinds = [type(record) for record in envoy.records]
    assert kinds.count(OperationEnded) == kinds.count(AttemptEnded) == 1
    assert [type(note) for note in envoy.notes].count(ExchangeEnded) == 1


# --- the journal fails --------------------------------------------------------------------------


def test_an_operation_that_cannot_be_recorded_is_not_run():
    envoy = Envoy(journal_fails_at=OperationBegun)
    assert envoy.hops == []
    error = envoy.client.error
    assert (error.code, error.http_status, error.message) == ("upstream_unavailable", 503, CANNOT_RECORD)
    assert envoy.exchange.resolution.ending is Ending.REFUSED
    assert envoy.exchange.finished


def test_an_attempt_that_cannot_be_recorded_is_not_started():
    envoy = Envoy(journal_fails_at=AttemptStarted)
    assert envoy.started == 0
    assert envoy.client.error.message == CANNOT_RECORD
    assert step.RefuseAttempt(AttemptId("att_1"), "upstream_unavailable") in envoy.replies
    envoy.wait(3.1)
    assert envoy.exchange.finished
    assert envoy.outcomes == ["cancelled"]


def test_a_first_delta_that_cannot_be_recorded_is_not_sent():
    envoy = Envoy(journal_fails_at=FirstDeltaSent)
    envoy.replica.answers(role(), delta("Hel"))
    assert bytes(envoy.client.body) == b""
    assert envoy.client.error.message == CANNOT_RECORD
    assert step.WithholdAnswer(AttemptId("att_1"), "upstream_unavailable") in envoy.replies
    envoy.wait(3.1)
    assert envoy.exchange.finished
    assert envoy.outcomes == ["cancelled"]


def test_a_replay_is_not_started_after_the_journal_failed():
    envoy = Envoy(journal_fails_at=FirstDeltaSent)
    envoy.replica.answers(role(), delta("Hel"))
    envoy.asks_again()
    assert envoy.started == 1


@pytest.mark.parametrize("lost", [AttemptEnded, OperationEnded])
def test_an_end_that_cannot_be_recorded_does_not_keep_the_client_from_its_answer(lost):
    envoy = Envoy(journal_fails_at=lost)
    envoy.replica.answers(answer("Hel"), end=True)
    assert (bytes(envoy.client.body), envoy.client.ended) == (answer("Hel"), True)


def test_a_journal_that_fails_in_mid_answer_does_not_break_the_stream():
    envoy = Envoy()
    envoy.replica.answers(role(), delta("Hel"))
    envoy.journal_fails_at = AttemptEnded
    envoy.replica.sends(delta("lo"), finish(), done(), end=True)
    assert bytes(envoy.client.body) == answer("Hel", "lo")


def test_a_failure_that_is_told_in_mid_answer_takes_nothing_back():
    envoy = Envoy()
    envoy.replica.answers(role(), delta("Hel"))
    assert envoy.exchange.receive(JournalFailed(), envoy.now) is step.NOTHING


def test_a_busy_answer_is_no_first_delta():
    envoy = Envoy(replicas=("a",), journal_fails_at=FirstDeltaSent)
    envoy.replica.answers(b"{}", status=429, type=JSON, end=True)
    assert envoy.client.status == 429
