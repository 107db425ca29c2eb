"""What circuits hear of whole exchanges: a failure where the replica failed, and nowhere else."""

from collections.abc import Callable

import pytest

from envoy_ext.domain.circuit_evidence import ANSWERED, Blame, Evidence, Failed, FailureClass, read_evidence
from envoy_ext.domain.events import LogCause
from envoy_ext.domain.notes import AttemptFinished
from tests.support.exchange_builders import (
    JSON,
    ReqChat,
    ReqModels,
    ReqTgi,
    abort,
    delta,
    done,
    engine_error,
    finish,
    overloaded,
    role,
    validation_error,
)
from tests.support.exchange_claims import BEGUN, WHOLE
from tests.support.exchange_envoy import Envoy

K = FailureClass
NOT_MADE = Failed(K.CONNECT, Blame.REPLICA)
SILENT = Failed(K.SILENCE, Blame.REPLICA)
LOST, FAULTY = Failed(K.RESET), Failed(K.ENGINE_ERROR)


def hear(envoy: Envoy) -> list[Evidence | None]:
    return [
        read_evidence(note.outcome, note.cause, answered=note.answered, computes=note.computes)
        for note in envoy.notes
        if isinstance(note, AttemptFinished)
    ]


def play(
    happen: Callable[[Envoy], object], request: object = None, replicas: tuple[str, ...] = ("a",)
) -> list[Evidence | None]:
    envoy = Envoy(ReqChat() if request is None else request, replicas=replicas)  # type: ignore[arg-type]
    happen(envoy)
    envoy.wait(60)
    return hear(envoy)


def begun(envoy: Envoy) -> None:
    envoy.replica.answers(BEGUN)


FAILURES = {
    "refused": (lambda e: e.replica.is_lost(LogCause.CONNECT_REFUSED), NOT_MADE),
    "no way there": (lambda e: e.replica.is_lost(LogCause.UNREACHABLE), NOT_MADE),
    "lost before its headers": (lambda e: e.replica.is_lost(), LOST),
    "lost while it is held": (lambda e: (e.replica.answers(role()), e.replica.is_lost()), LOST),
    "lost behind its first delta": (lambda e: (begun(e), e.replica.is_lost()), LOST),
    "silent": (lambda e: e.replica.is_lost(LogCause.UPSTREAM_TIMEOUT), SILENT),
    "silent in its answer": (lambda e: (begun(e), e.replica.is_lost(LogCause.UPSTREAM_TIMEOUT)), SILENT),
    "500": (lambda e: e.replica.answers(status=500, type=JSON), FAULTY),
    "an error as first event": (lambda e: e.replica.answers(engine_error(), end=True), FAULTY),
    "an error behind its first delta": (lambda e: e.replica.answers(BEGUN, engine_error(), end=True), FAULTY),
    "an abort": (lambda e: e.replica.answers(BEGUN, abort(), done(), end=True), FAULTY),
    "an abort before anything": (lambda e: e.replica.answers(role(), abort(), done(), end=True), FAULTY),
    "cut short in good order": (lambda e: e.replica.answers(BEGUN, end=True), FAULTY),
    "nothing in good order": (lambda e: e.replica.answers(role(), end=True), FAULTY),
}


@pytest.mark.parametrize("story", FAILURES)
def test_what_a_replica_failed_in_is_heard_once_by_its_class(story):
    happen, evidence = FAILURES[story]
    assert play(happen) == [evidence]


NO_FAILURES = {
    "a validation error": (lambda e: e.replica.answers(status=400, type=JSON, end=True), None),
    "another one": (lambda e: e.replica.answers(status=422, type=JSON, end=True), None),
    "a validation error in a 200": (lambda e: e.replica.answers(validation_error(), end=True), None),
    "429": (lambda e: e.replica.answers(status=429, type=JSON, end=True), None),
    "503": (lambda e: e.replica.answers(status=503, type=JSON, end=True), None),
    "an overload event": (lambda e: e.replica.answers(overloaded(), end=True), None),
    "a client that leaves a silent replica": (lambda e: e.client_leaves(), None),
    "a client that leaves while it is held": (lambda e: (e.replica.answers(role()), e.client_leaves()), None),
    "a client that leaves in mid-answer": (lambda e: (begun(e), e.client_leaves()), ANSWERED),
    "no endpoint": (lambda e: e.replica.is_lost(LogCause.NO_UPSTREAM), None),
    "a stop of the gateway": (lambda e: e.drain_expires(), None),
    "a stop in mid-answer": (lambda e: (begun(e), e.drain_expires()), ANSWERED),
    "an operation that is another gateway's": (lambda e: (begun(e), e.loses_its_ownership()), ANSWERED),
    "a whole answer": (lambda e: e.replica.answers(WHOLE, end=True), ANSWERED),
    "a whole answer in several parts": (
        lambda e: e.replica.answers(role(), delta("x"), finish(), done(), end=True),
        ANSWERED,
    ),
}


@pytest.mark.parametrize("story", NO_FAILURES)
def test_what_clients_and_gateways_do_is_no_failure(story):
    happen, evidence = NO_FAILURES[story]
    request = ReqTgi() if story == "a validation error in a 200" else None
    assert play(happen, request) == [evidence]


def test_a_deadline_on_a_slow_replica_is_no_failure_of_its():
    for happen in (lambda envoy: None, begun):
        assert play(happen, ReqChat(deadline_s=5.0)) in ([None], [ANSWERED])


def test_the_list_of_models_says_nothing_of_a_model():
    assert play(lambda e: e.replica.answers(b'{"data": []}', type=JSON, end=True), ReqModels()) == [None]
    assert play(lambda e: e.replica.answers(status=500, type=JSON), ReqModels()) == [None]
    assert play(lambda e: e.replica.is_lost(LogCause.CONNECT_REFUSED), ReqModels()) == [NOT_MADE]


def test_of_a_replay_each_replica_is_heard_for_itself():
    def happen(envoy: Envoy) -> None:
        envoy.replica.answers(status=500, type=JSON)
        envoy.replica.answers(WHOLE, end=True)

    assert play(happen, replicas=("a", "b")) == [FAULTY, ANSWERED]
