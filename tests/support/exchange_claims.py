"""What tests of an exchange claim: one whole answer, one clear refusal, or one typed event behind a part."""

import json

from envoy_ext.domain.notes import ReplayRefused, ReplayStarted, StreamInterrupted
from envoy_ext.domain.operation import build_operation
from envoy_ext.domain.outcomes import Ending
from tests.support.exchange_builders import OPERATION, POOL, answer, delta, role
from tests.support.exchange_envoy import Envoy

WHOLE = answer("Hel", "lo")


def assert_one_whole_answer(envoy, attempts):
    client = envoy.client
    assert (client.status, bytes(client.body), client.ended) == (200, WHOLE, True)
    assert client.attempts == envoy.started == attempts
    assert envoy.end.ending is Ending.FINISHED
    assert envoy.exchange.finished


def assert_nothing_delivered(envoy):
    assert envoy.client.status is None
    assert envoy.client.error.partial_output is False
    assert (envoy.end.delivered_deltas, envoy.end.delivered_bytes, envoy.end.status) == (0, 0, 503)
    assert build_operation(envoy.records).partly_delivered is False


def assert_refused(envoy, code, status, reason=None):
    error = envoy.client.error
    assert error is not None
    assert (error.code, error.http_status, error.reason) == (code, status, reason)
    assert (error.partial_output, error.delivered_output_tokens) == (False, 0)
    assert envoy.end.ending is Ending.UPSTREAM_BROKE
    assert (envoy.end.error_code, envoy.end.status) == (code, status)
    assert envoy.exchange.finished


def replays(envoy):
    return [note for note in envoy.notes if isinstance(note, ReplayStarted)]


def refusals(envoy):
    return [note.code for note in envoy.notes if isinstance(note, ReplayRefused)]


BEGUN = role() + delta("Hel")


def begun(*more, request=None, **options):
    envoy = Envoy(request, **options)
    envoy.replica.answers(role(), delta("Hel"), *more)
    return envoy


def assert_interrupted(envoy, passed, reason, tokens=1):
    """The client read what was passed, then one typed event, then an orderly end; nothing was repeated."""
    client = envoy.client
    assert bytes(client.body).startswith(passed)
    assert client.ended
    assert json.loads(client.body[len(passed) :].removeprefix(b"data: ")) == client.last_event
    assert client.last_event == {
        "error": {
            "code": "upstream_decode_interrupted",
            "type": "upstream_error",
            "message": client.last_event["error"]["message"],
            "request_id": "req-1",
            "operation_id": OPERATION,
            "partial_output": True,
            "delivered_output_tokens": tokens,
            "retryable": False,
            "reason": reason,
        }
    }
    assert envoy.started == 1
    assert (envoy.end.ending, envoy.end.reason) == (Ending.UPSTREAM_BROKE, reason)
    assert envoy.end.error_code == "upstream_decode_interrupted"
    assert envoy.end.delivered_bytes == len(passed)
    assert StreamInterrupted(POOL, reason) in envoy.notes
    assert envoy.exchange.finished
