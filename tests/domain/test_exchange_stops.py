"""A client that leaves, a deadline, a drain: each ends the exchange in every phase, and starts nothing."""

from dataclasses import replace

import pytest

from envoy_ext.domain import step
from envoy_ext.domain.events import DeliveryClosed, LogCause
from envoy_ext.domain.ids import AttemptId
from envoy_ext.domain.notes import ReplayRefused
from envoy_ext.domain.outcomes import Ending, Reason
from envoy_ext.domain.records import OperationEnded
from tests.support.exchange_builders import (
    JSON,
    ReqChat,
    answer,
    delta,
    done,
    finish,
    role,
)
from tests.support.exchange_envoy import ATTEMPT_LOG, DELIVERY, EXCHANGE_LOG, At, Envoy
from tests.support.exchange_phases import (
    BEFORE_THE_FIRST_DELTA,
    DEADLINE,
    answering_json,
    arriving,
    asked,
    held,
    streaming,
    waiting,
)

# --- the client leaves --------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [*BEFORE_THE_FIRST_DELTA, streaming, answering_json])
def test_a_client_that_leaves_frees_everything_and_starts_nothing(phase):
    envoy = phase()
    started = envoy.started
    envoy.client_leaves()
    assert envoy.started == started
    assert all(hop.at is At.OVER for hop in envoy.hops)
    assert (envoy.end.ending, envoy.end.state) == (Ending.CLIENT_GONE, "cancelled")
    assert envoy.exchange.finished
    assert envoy.outcomes[-1] in ("cancelled", "open")


def test_a_client_that_leaves_is_no_failure_of_its_replica():
    envoy = held()
    envoy.client_leaves()
    assert envoy.outcomes == ["cancelled"]


def test_a_client_that_leaves_before_the_first_attempt_asks_gets_none():
    envoy = arriving()
    envoy.receive(DeliveryClosed())
    envoy.deliver("attempt 1")
    assert envoy.replies[-1] == step.RefuseAttempt(AttemptId("att_1"), "upstream_unavailable")
    assert envoy.started == 0
    assert not any(isinstance(note, ReplayRefused) for note in envoy.notes)


def test_a_retry_for_a_client_that_has_left_is_refused():
    envoy = held()
    envoy.client_leaves()
    envoy.asks_again()
    assert envoy.started == 1
    assert isinstance(envoy.replies[-1], step.RefuseAttempt)


def test_a_replay_that_waits_at_the_gate_is_refused_as_soon_as_its_client_has_left():
    envoy = waiting()
    envoy.late.add("attempt 2")
    envoy.client_leaves()
    assert envoy.replies[-1] == step.RefuseAttempt(AttemptId("att_2"), "upstream_unavailable")


def test_a_busy_answer_for_a_client_that_has_left_is_withheld():
    envoy = Envoy(replicas=("a",), manual=True)
    envoy.deliver("attempt 1")
    envoy.receive(DeliveryClosed())
    envoy.replica.answers(status=429, type=JSON)
    envoy.deliver("attempt 1")
    assert isinstance(envoy.replies[-1], step.WithholdAnswer)


def test_an_answer_for_a_client_that_has_left_is_withheld():
    envoy = Envoy(late=("attempt 1",))
    envoy.catch_up("attempt 1")
    envoy.receive(DeliveryClosed())
    envoy.replica.answers(answer("Hel"))
    assert not any(isinstance(reply, step.ReleaseAttempt) for reply in envoy.replies)
    assert any(isinstance(reply, step.WithholdAnswer) for reply in envoy.replies)
    assert not envoy.exchange.committed


def test_a_log_entry_that_comes_again_with_other_words_is_not_believed():
    envoy = streaming()
    envoy.late = {ATTEMPT_LOG, EXCHANGE_LOG}
    envoy.client_leaves()
    entry = envoy.queues[ATTEMPT_LOG][0]
    envoy.catch_up(ATTEMPT_LOG)
    envoy.receive(replace(entry, cause=LogCause.UPSTREAM_RESET))
    envoy.catch_up(EXCHANGE_LOG)
    assert envoy.end.ending is Ending.CLIENT_GONE


@pytest.mark.parametrize("phase", [asked, held, streaming])
def test_one_of_the_two_logs_is_enough_to_know_that_the_client_left(phase):
    for lost in (ATTEMPT_LOG, EXCHANGE_LOG):
        envoy = phase()
        envoy.late = {lost}
        envoy.client_leaves()
        envoy.wait(3.1)
        assert envoy.end.ending is Ending.CLIENT_GONE, lost
        assert envoy.exchange.finished


def test_a_hop_that_we_failed_over_does_not_make_a_client_that_left():
    """Its log entry names the ingress hop's disconnect, which was our own doing."""
    envoy = Envoy(replicas=("a", "b"), late=(EXCHANGE_LOG,), manual=True)
    envoy.deliver("attempt 1")
    envoy.replica.answers(status=503, type=JSON)
    envoy.deliver("attempt 1")
    envoy.manual = False
    envoy.late.add("attempt 2")
    envoy.pump()
    envoy.client_leaves()
    envoy.wait(3.1)
    assert envoy.end.ending is Ending.UNKNOWN


def test_with_neither_log_the_ending_is_not_known():
    envoy = asked()
    envoy.late = {ATTEMPT_LOG, EXCHANGE_LOG}
    envoy.client_leaves()
    assert envoy.end is None
    envoy.wait(2.9)
    assert (envoy.end, envoy.exchange.finished) == (None, False)
    envoy.wait(0.2)
    assert (envoy.end.ending, envoy.end.state) == (Ending.UNKNOWN, "failed")
    assert envoy.outcomes == ["unknown"]
    assert envoy.exchange.finished


# --- the request's own deadline -----------------------------------------------------------------


@pytest.mark.parametrize("phase", BEFORE_THE_FIRST_DELTA)
def test_a_deadline_before_the_first_delta_is_a_504(phase):
    envoy = phase()
    started = envoy.started
    envoy.wait(DEADLINE + 0.1)
    error = envoy.client.error
    assert (error.code, error.http_status, error.reason) == ("deadline_exceeded", 504, Reason.DEADLINE)
    assert envoy.end.ending is Ending.UPSTREAM_BROKE
    assert envoy.started <= started + 1
    assert envoy.exchange.finished


def test_a_deadline_before_any_replica_is_asked_is_the_gateways_own_no():
    envoy = arriving()
    envoy.wait(DEADLINE)
    assert envoy.client.code == "deadline_exceeded"
    assert (envoy.end.ending, envoy.end.reason) == (Ending.REFUSED, Reason.DEADLINE)


def test_a_deadline_after_the_first_delta_ends_the_stream_with_the_typed_event():
    envoy = streaming()
    envoy.wait(DEADLINE)
    assert envoy.client.ended
    assert envoy.client.last_event["error"]["reason"] == "deadline"
    assert envoy.client.last_event["error"]["partial_output"] is True
    assert (envoy.end.ending, envoy.end.reason) == (Ending.UPSTREAM_BROKE, Reason.DEADLINE)
    assert envoy.outcomes == ["cancelled"]


def test_a_deadline_in_a_json_body_resets_it():
    envoy = Envoy(ReqChat(stream=False, deadline_s=DEADLINE))
    envoy.replica.answers(b"{", type=JSON)
    envoy.wait(DEADLINE)
    assert envoy.client.reset
    assert envoy.end.reason is Reason.DEADLINE


def test_a_deadline_behind_the_terminal_mark_lets_the_answer_be_whole():
    envoy = streaming()
    envoy.replica.sends(finish(), done())
    envoy.wait(DEADLINE)
    assert envoy.client.ended
    assert bytes(envoy.client.body) == answer("Hel")
    assert envoy.end.ending is Ending.FINISHED


def test_a_deadline_while_the_release_is_on_its_way_answers_once():
    envoy = asked()
    envoy.late = {DELIVERY}
    envoy.replica.answers(role(), delta("Hel"))
    envoy.wait(DEADLINE)
    assert envoy.client.code == "deadline_exceeded"
    envoy.catch_up(DELIVERY)
    assert bytes(envoy.client.body) == b""
    assert envoy.end.reason is Reason.DEADLINE


def test_a_request_without_a_deadline_may_take_as_long_as_it_takes():
    envoy = Envoy()
    envoy.replica.answers(role())
    assert envoy.exchange.next_deadline() is None
    envoy.wait(7200)
    envoy.replica.sends(delta("Hel"), finish(), done(), end=True)
    assert envoy.end.ending is Ending.FINISHED


def test_a_finished_exchange_has_no_deadline_left():
    envoy = asked()
    envoy.replica.answers(answer("Hel"), end=True)
    envoy.wait(DEADLINE + 10)
    assert envoy.exchange.next_deadline() is None
    assert sum(isinstance(record, OperationEnded) for record in envoy.records) == 1


# --- the sidecar stops --------------------------------------------------------------------------


@pytest.mark.parametrize("phase", BEFORE_THE_FIRST_DELTA)
def test_a_drain_before_the_first_delta_is_a_503_that_may_be_tried_elsewhere(phase):
    envoy = phase()
    envoy.drain_expires()
    error = envoy.client.error
    assert (error.code, error.http_status, error.reason) == ("draining", 503, Reason.DRAIN_DEADLINE)
    assert envoy.end.ending is Ending.UPSTREAM_BROKE
    assert envoy.exchange.finished


def test_a_drain_before_any_replica_is_asked_is_the_gateways_own_no():
    envoy = arriving()
    envoy.drain_expires()
    assert envoy.client.code == "draining"
    assert envoy.end.ending is Ending.REFUSED


def test_a_drain_after_the_first_delta_ends_the_stream_with_the_typed_event():
    envoy = streaming()
    envoy.drain_expires()
    assert envoy.client.last_event["error"]["reason"] == "drain_deadline"
    assert envoy.exchange.finished


def test_a_drain_of_what_has_ended_does_nothing():
    envoy = streaming()
    envoy.replica.sends(finish(), done(), end=True)
    before = len(envoy.replies)
    envoy.drain_expires()
    assert len(envoy.replies) == before


def test_nothing_starts_after_a_drain_has_answered():
    envoy = waiting()
    envoy.drain_expires()
    envoy.wait(60)
    assert envoy.started == 1
