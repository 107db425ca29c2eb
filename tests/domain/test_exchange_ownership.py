"""An exchange whose operation another gateway owns: its client is told once, and nothing more begins."""

import pytest

from envoy_ext.domain import step
from envoy_ext.domain.events import BeginRefused, OwnershipLost
from envoy_ext.domain.ids import AttemptId, OperationId
from envoy_ext.domain.outcomes import Ending, Reason
from envoy_ext.domain.records import (
    AttemptEnded,
    AttemptStarted,
    FirstDeltaSent,
    OperationBegun,
    OperationEnded,
)
from tests.support.exchange_builders import answer, delta, done, finish, role
from tests.support.exchange_envoy import Envoy
from tests.support.exchange_phases import BEFORE_THE_FIRST_DELTA, answering_json, arriving, streaming, waiting

REFUSED = OwnershipLost(refused=True)


@pytest.mark.parametrize("phase", BEFORE_THE_FIRST_DELTA)
def test_before_the_first_delta_the_client_gets_one_error_and_may_ask_elsewhere(phase):
    envoy = phase()
    envoy.loses_its_ownership()
    error = envoy.client.error
    assert (error.code, error.http_status, error.reason) == ("upstream_unavailable", 503, Reason.TAKEN_OVER)
    assert bytes(envoy.client.body) == b""
    assert envoy.end.ending is Ending.UPSTREAM_BROKE
    assert envoy.exchange.finished


def test_before_any_replica_is_asked_it_is_the_gateways_own_no():
    envoy = arriving()
    envoy.loses_its_ownership()
    assert envoy.client.error.reason is Reason.TAKEN_OVER
    assert envoy.end.ending is Ending.REFUSED


def test_after_the_first_delta_the_stream_ends_with_the_typed_event():
    envoy = streaming()
    envoy.loses_its_ownership()
    error = envoy.client.last_event["error"]
    assert (error["code"], error["reason"]) == ("upstream_decode_interrupted", "taken_over")
    assert error["message"].startswith("Another gateway took this operation over")
    assert envoy.exchange.finished


def test_in_a_json_body_it_is_reset():
    envoy = answering_json()
    envoy.loses_its_ownership()
    assert envoy.client.reset


def test_what_has_ended_is_not_touched():
    envoy = streaming()
    envoy.replica.sends(finish(), done(), end=True)
    before = len(envoy.replies)
    envoy.loses_its_ownership()
    assert len(envoy.replies) == before


def test_nothing_starts_afterwards():
    envoy = waiting()
    envoy.loses_its_ownership()
    envoy.wait(60)
    envoy.asks_again()
    assert envoy.started == 1


def test_no_worker_is_given_time_afterwards():
    envoy = Envoy()
    attempt = envoy.hops[-1].id
    assert envoy.exchange.renew(attempt, 1, envoy.now)
    envoy.loses_its_ownership()
    assert not envoy.exchange.renew(attempt, 1, envoy.now)


def test_an_attempt_whose_record_is_refused_is_not_started():
    envoy = Envoy(journal_fails_at=AttemptStarted, journal_failure=REFUSED)
    assert envoy.started == 0
    assert envoy.client.error.reason is Reason.TAKEN_OVER
    assert step.RefuseAttempt(AttemptId("att_1"), "upstream_unavailable") in envoy.replies
    envoy.wait(3.1)
    assert envoy.exchange.finished


def test_a_first_delta_whose_record_is_refused_is_not_sent():
    envoy = Envoy(journal_fails_at=FirstDeltaSent, journal_failure=REFUSED)
    envoy.replica.answers(role(), delta("Hel"))
    assert bytes(envoy.client.body) == b""
    assert envoy.client.error.reason is Reason.TAKEN_OVER
    assert step.WithholdAnswer(AttemptId("att_1"), "upstream_unavailable") in envoy.replies
    envoy.asks_again()
    assert envoy.started == 1
    envoy.wait(3.1)
    assert envoy.exchange.finished


@pytest.mark.parametrize("refused", [AttemptEnded, OperationEnded])
def test_an_end_whose_record_is_refused_does_not_keep_the_client_from_its_answer(refused):
    envoy = Envoy(journal_fails_at=refused, journal_failure=REFUSED)
    envoy.replica.answers(answer("Hel"), end=True)
    assert (bytes(envoy.client.body), envoy.client.ended) == (answer("Hel"), True)


def test_a_key_that_another_gateway_has_just_begun_is_in_progress_there():
    holder = OperationId("op_of_another")
    envoy = Envoy(journal_fails_at=OperationBegun, journal_failure=BeginRefused(holder))
    assert envoy.hops == []
    error = envoy.client.error
    assert (error.code, error.http_status, error.operation_id) == ("operation_in_progress", 409, holder)
    assert envoy.exchange.finished
