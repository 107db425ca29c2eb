"""An exchange that waits for a slot: its operation has begun, and no replica has been asked."""

import pytest

from envoy_ext.domain import step
from envoy_ext.domain.events import RequestAdmitted, RequestShed
from envoy_ext.domain.notes import PhaseChanged, RequestRefused
from envoy_ext.domain.outcomes import Ending, OperationState, Phase, Reason
from envoy_ext.domain.records import OperationBegun, OperationEnded
from tests.support.exchange_builders import POOL, ReqChat, delta, done, finish
from tests.support.exchange_envoy import Envoy


def refusals(envoy):
    return [note for note in envoy.notes if isinstance(note, RequestRefused)]


def phases(envoy):
    return [(note.before, note.after) for note in envoy.notes if isinstance(note, PhaseChanged)]


def test_the_operation_begins_with_the_wait_and_envoy_is_asked_for_time():
    envoy = Envoy(queued=True)
    assert [type(record) for record in envoy.journal] == [OperationBegun]
    assert envoy.patience_s == 35.0
    assert envoy.hops == []
    assert phases(envoy) == [(None, Phase.QUEUED)]


def test_who_is_let_in_goes_on_as_if_it_had_not_waited():
    envoy = Envoy(queued=True)
    envoy.wait(20.0)
    envoy.receive(RequestAdmitted())
    envoy.replica.answers(delta("Hello"), finish(), done(), end=True)
    assert envoy.client.status == 200
    assert envoy.end.ending is Ending.FINISHED
    assert phases(envoy)[:2] == [(None, Phase.QUEUED), (Phase.QUEUED, Phase.PREFILL)]
    assert refusals(envoy) == []


@pytest.mark.parametrize(
    ("code", "reason"),
    [("queue_full", None), ("queue_deadline_exceeded", None), ("deadline_exceeded", Reason.DEADLINE)],
)
def test_who_is_refused_gets_the_queues_word_and_the_second_to_come_back_in(code, reason):
    envoy = Envoy(queued=True, late=("exchange log",))
    envoy.receive(RequestShed(code, 7))
    assert (envoy.client.error.code, envoy.client.error.retry_after_s) == (code, 7)
    assert envoy.client.error.reason is reason
    assert (envoy.end.ending, envoy.end.state, envoy.end.phase) == (
        Ending.REFUSED,
        OperationState.FAILED,
        Phase.QUEUED,
    )
    assert refusals(envoy) == [RequestRefused(POOL, code)]
    assert envoy.exchange.finished, "no log entry bears its name: there is nothing to wait for"


def test_a_client_that_leaves_is_known_to_be_gone_at_once_and_is_not_let_in():
    envoy = Envoy(queued=True, late=("exchange log",))
    envoy.client_leaves()
    assert (envoy.end.ending, envoy.end.phase) == (Ending.CLIENT_GONE, Phase.QUEUED)
    assert envoy.exchange.finished
    envoy.receive(RequestAdmitted())
    envoy.receive(RequestShed("queue_full", 3))
    assert not any(isinstance(reply, step.ForwardRequest) for reply in envoy.replies)
    assert [type(record) for record in envoy.journal] == [OperationBegun, OperationEnded]
    assert refusals(envoy) == []


def test_its_own_deadline_ends_the_wait_without_the_queue():
    envoy = Envoy(ReqChat(deadline_s=4.0), queued=True)
    envoy.wait(4.0)
    assert envoy.client.error.code == "deadline_exceeded"
    assert refusals(envoy) == [RequestRefused(POOL, "deadline_exceeded")]
    envoy.receive(RequestAdmitted())
    assert envoy.hops == []


def test_a_stop_ends_the_wait():
    envoy = Envoy(queued=True)
    envoy.drain_expires()
    assert envoy.client.error.code == "draining"
    assert envoy.end.ending is Ending.REFUSED


def test_a_journal_that_cannot_record_the_begin_ends_the_wait():
    envoy = Envoy(queued=True, journal_fails_at=OperationBegun)
    assert envoy.client.error.code == "upstream_unavailable"
    envoy.receive(RequestAdmitted())
    assert envoy.hops == []
