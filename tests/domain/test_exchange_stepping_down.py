"""An exchange that waits, and is stepped down: to another pool, or to an answer of the gateway's own."""

import pytest

from envoy_ext.domain import step
from envoy_ext.domain.errors import ImpossibleEvent
from envoy_ext.domain.events import AnsweredHere, RequestAdmitted, RequestMoved, RequestShed
from envoy_ext.domain.ids import PoolName
from envoy_ext.domain.notes import PhaseChanged, RequestRefused
from envoy_ext.domain.outcomes import Ending, OperationState, Phase, RungName
from envoy_ext.domain.records import AttemptStarted
from tests.support.exchange_builders import OPERATION, POOL, SMALL, ReqChat, delta, done, finish
from tests.support.exchange_envoy import Envoy
from tests.support.records import fold

BOTH = (RungName.SHORTEN_GENERATION, RungName.POOL)
MOVED = RequestMoved(SMALL, ReqChat(prompt_tokens=7).facts, BOTH, b"{}")
TEXT = AnsweredHere("text/plain", b"later", (RungName.TEMPLATE,), "queue_full", settled=False)
PERSON = AnsweredHere("text/plain", b"a person", (RungName.HAND_OFF,), "queue_full", settled=True)


def forwards(envoy):
    return [reply for reply in envoy.replies if isinstance(reply, step.ForwardRequest)]


def test_who_is_moved_goes_on_there_with_the_changed_body_and_the_journal_says_so():
    envoy = Envoy(queued=True)
    envoy.receive(MOVED)
    envoy.receive(RequestAdmitted())
    assert [(reply.pool, reply.changed_body) for reply in forwards(envoy)] == [(SMALL, b"{}")]
    assert envoy.moved_to == SMALL
    envoy.replica.answers(delta("Hello"), finish(), done(), end=True)
    (started,) = [record for record in envoy.records if isinstance(record, AttemptStarted)]
    assert (started.pool, started.degraded) == (SMALL, BOTH)
    operation = fold(*envoy.journal)
    assert (operation.pool, operation.degraded, operation.state) == (SMALL, BOTH, OperationState.COMPLETED)
    (response,) = [reply for reply in envoy.replies if isinstance(reply, step.ForwardResponse)]
    assert response.degraded == BOTH


def test_its_phases_are_counted_in_one_pool_at_a_time():
    envoy = Envoy(queued=True)
    envoy.receive(MOVED)
    envoy.receive(RequestAdmitted())
    phases = [note for note in envoy.notes if isinstance(note, PhaseChanged)]
    assert [(note.pool, note.before, note.after) for note in phases] == [
        (POOL, None, Phase.QUEUED),
        (POOL, Phase.QUEUED, None),
        (SMALL, None, Phase.QUEUED),
        (SMALL, Phase.QUEUED, Phase.PREFILL),
    ]


def test_nobody_is_moved_to_where_its_data_may_not_go():
    envoy = Envoy(queued=True)
    with pytest.raises(ImpossibleEvent):
        envoy.exchange.receive(RequestMoved(PoolName("far"), MOVED.facts, BOTH, b"{}"), envoy.now)
    assert envoy.exchange.identity.pool == POOL


@pytest.mark.parametrize(
    ("event", "ending", "state"),
    [
        (TEXT, Ending.REFUSED, OperationState.FAILED),
        (PERSON, Ending.FINISHED, OperationState.COMPLETED),
    ],
)
def test_an_answer_of_the_gateways_own_is_all_that_the_client_gets(event, ending, state):
    envoy = Envoy(queued=True, late=("exchange log",))
    envoy.receive(event)
    assert envoy.client.own_answer == step.AnswerHere(
        "req-1", OPERATION, "text/plain", event.data, event.degraded
    )
    assert (envoy.end.ending, envoy.end.state, envoy.end.status) == (ending, state, 200)
    assert (envoy.end.error_code, envoy.end.degraded) == ("queue_full", event.degraded)
    assert not any(isinstance(note, RequestRefused) for note in envoy.notes)
    assert envoy.exchange.finished
    before = len(envoy.steps)
    for late in (RequestAdmitted(), RequestShed("queue_full", 1), MOVED, TEXT):
        envoy.receive(late)
    assert all(taken is step.NOTHING for taken in envoy.steps[before:])


def test_a_client_that_has_gone_is_neither_moved_nor_answered():
    envoy = Envoy(queued=True)
    envoy.client_leaves()
    for late in (MOVED, TEXT):
        envoy.receive(late)
    assert forwards(envoy) == []
    assert envoy.client.own_answer is None
    assert envoy.end.state is OperationState.CANCELLED


def test_a_changed_body_is_dropped_when_envoy_has_it():
    envoy = Envoy(queued=True)
    envoy.receive(MOVED)
    envoy.receive(RequestAdmitted())
    assert envoy.exchange._shared.request.changed_body is None
