"""A replica that fails in words, by a status or an event, is replayed; its word to the client is passed."""

import pytest

from envoy_ext.domain import step
from envoy_ext.domain.ids import AttemptId
from envoy_ext.domain.outcomes import AttemptOutcome, Ending, Reason
from envoy_ext.domain.records import FirstDeltaSent
from tests.support.exchange_builders import (
    JSON,
    ReqTgi,
    delta,
    done,
    engine_error,
    finish,
    overloaded,
    ping,
    role,
    validation_error,
)
from tests.support.exchange_claims import (
    WHOLE,
    assert_one_whole_answer,
    assert_refused,
)
from tests.support.exchange_envoy import Envoy


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(500, "engine_error"), (502, "engine_error"), (503, "overloaded"), (429, "overloaded")],
)
def test_a_failure_status_is_replayed_on_another_replica(status, outcome):
    envoy = Envoy()
    envoy.replica.answers(status=status, type=JSON)
    assert envoy.replica.number == 2
    envoy.replica.answers(WHOLE, end=True)
    assert_one_whole_answer(envoy, attempts=2)
    assert envoy.outcomes == [outcome, "completed"]


@pytest.mark.parametrize("status", [500, 502, 503])
def test_a_failure_status_of_the_only_replica_becomes_our_own_error(status):
    envoy = Envoy(replicas=("a",))
    envoy.replica.answers(status=status, type=JSON)
    assert_refused(envoy, "upstream_unavailable", 503, Reason.ENGINE_ERROR)


def test_a_busy_answer_of_the_only_replica_goes_to_the_client_as_it_is():
    """429 carries the replica's own Retry-After."""
    envoy = Envoy(replicas=("a",))
    envoy.replica.answers(b'{"error": "busy"}', status=429, type=JSON, end=True)
    assert (envoy.client.status, bytes(envoy.client.body)) == (429, b'{"error": "busy"}')
    assert envoy.outcomes == ["overloaded"]
    assert envoy.end.status == 429
    assert not any(isinstance(record, FirstDeltaSent) for record in envoy.records)


@pytest.mark.parametrize(
    ("first_event", "outcome"), [(engine_error(), "engine_error"), (overloaded(), "overloaded")]
)
@pytest.mark.parametrize("before", [b"", role(), ping()])
def test_an_error_as_first_event_of_a_200_is_replayed(before, first_event, outcome):
    envoy = Envoy()
    envoy.replica.answers(before + first_event + done())
    envoy.replica.answers(WHOLE, end=True)
    assert_one_whole_answer(envoy, attempts=2)
    assert envoy.outcomes == [outcome, "completed"]


@pytest.mark.parametrize("first_event", [engine_error(), overloaded()])
def test_an_error_as_first_event_of_the_last_attempt_becomes_a_503(first_event):
    envoy = Envoy()
    envoy.replica.is_lost()
    envoy.replica.answers(first_event, end=True)
    assert_refused(envoy, "upstream_unavailable", 503, Reason.ENGINE_ERROR)


def test_a_validation_error_is_the_clients_answer_and_is_not_replayed():
    envoy = Envoy(ReqTgi())
    envoy.replica.answers(validation_error(), end=True)
    assert (envoy.client.status, bytes(envoy.client.body)) == (200, validation_error())
    assert envoy.started == 1
    assert envoy.outcomes == ["client_error"]
    assert (envoy.end.ending, envoy.end.state) == (Ending.FINISHED, "failed")
    assert not any(isinstance(record, FirstDeltaSent) for record in envoy.records)


def test_a_delta_and_an_error_in_one_chunk_are_delivered_and_never_replayed():
    envoy = Envoy()
    envoy.replica.answers(role() + delta("Hel") + engine_error() + done(), end=True)
    assert bytes(envoy.client.body) == role() + delta("Hel") + engine_error() + done()
    assert (envoy.end.ending, envoy.end.reason) == (Ending.UPSTREAM_BROKE, Reason.ENGINE_ERROR)
    assert envoy.started == 1


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param([b""], id="an empty body"),
        pytest.param([role()], id="the role alone"),
        pytest.param([done()], id="a bare DONE"),
        pytest.param([role(), done()], id="a role and DONE"),
        pytest.param([b'{"error": "no data: in front"}\n'], id="an error without its frame"),
    ],
)
def test_an_orderly_end_with_nothing_to_read_is_replayed(chunks):
    envoy = Envoy()
    envoy.replica.answers(*chunks, end=True)
    envoy.replica.answers(WHOLE, end=True)
    assert_one_whole_answer(envoy, attempts=2)
    assert envoy.outcomes == ["truncated", "completed"]


def test_stream_headers_that_end_the_response_are_a_truncated_answer():
    envoy = Envoy()
    envoy.replica.answers(end=True)
    envoy.replica.answers(WHOLE, end=True)
    assert_one_whole_answer(envoy, attempts=2)
    assert envoy.outcomes == ["truncated", "completed"]


def test_what_comes_behind_an_answer_that_was_failed_over_changes_nothing():
    envoy = Envoy(manual=True)
    envoy.deliver("attempt 1")
    envoy.replica.answers(engine_error(), delta("Hel"), engine_error())
    while envoy.queues["attempt 1"]:
        envoy.deliver("attempt 1")
    assert [r for r in envoy.replies if isinstance(r, step.FailOver)] == [
        step.FailOver(AttemptId("att_1"), AttemptOutcome.ENGINE_ERROR)
    ]
    assert not envoy.exchange.committed


def test_an_abort_before_the_first_delta_is_replayed():
    envoy = Envoy()
    envoy.replica.answers(role(), finish("abort"), done())
    envoy.replica.answers(WHOLE, end=True)
    assert envoy.outcomes == ["engine_error", "completed"]


def test_a_legal_empty_completion_is_a_whole_answer():
    envoy = Envoy()
    envoy.replica.answers(role(), finish(), done(), end=True)
    assert envoy.client.ended
    assert bytes(envoy.client.body) == role() + finish() + done()
    assert envoy.end.ending is Ending.FINISHED
    assert envoy.started == 1
