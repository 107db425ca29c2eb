"""What a client may read: the contract's codes, and the one event that ends a stream, per API."""

import json

import pytest

from envoy_ext.domain.api import ApiFamily
from envoy_ext.domain.client_errors import (
    CODES,
    ClientError,
    build_error_body,
    build_error_headers,
    build_error_object,
    build_terminal_event,
)
from envoy_ext.domain.ids import OperationId
from envoy_ext.domain.inspection import BodyKind
from envoy_ext.domain.outcomes import Reason

INTERRUPTED = ClientError(
    "upstream_decode_interrupted",
    "req-1",
    OperationId("op_1"),
    reason=Reason.REPLICA_DIED,
    partial_output=True,
    delivered_output_tokens=37,
)

OBJECT = {
    "code": "upstream_decode_interrupted",
    "type": "upstream_error",
    "message": "The replica stopped after part of the answer was delivered.",
    "request_id": "req-1",
    "operation_id": "op_1",
    "partial_output": True,
    "delivered_output_tokens": 37,
    "retryable": False,
    "reason": "replica_died",
}
"""The contract's example, with ids filled in."""

# --- the terminal event -------------------------------------------------------------------------

PLAIN = (
    b'data: {"error":{"code":"upstream_decode_interrupted","type":"upstream_error",'
    b'"message":"The replica stopped after part of the answer was delivered.",'
    b'"request_id":"req-1","operation_id":"op_1","partial_output":true,'
    b'"delivered_output_tokens":37,"retryable":false,"reason":"replica_died"}}\n\n'
)
OBJECT_BYTES = PLAIN.removeprefix(b'data: {"error":').removesuffix(b"}\n\n")
RESPONSES = (
    b'event: error\ndata: {"type":"error","code":"upstream_decode_interrupted",'
    b'"message":"The replica stopped after part of the answer was delivered.","param":null,'
    b'"error":' + OBJECT_BYTES + b"}\n\n"
)
MESSAGES = b'event: error\ndata: {"type":"error","error":' + OBJECT_BYTES + b"}\n\n"

GOLDEN = {
    ApiFamily.CHAT: PLAIN,
    ApiFamily.COMPLETIONS: PLAIN,
    ApiFamily.RESPONSES: RESPONSES,
    ApiFamily.MESSAGES: MESSAGES,
    ApiFamily.TGI: PLAIN,
    ApiFamily.EMBEDDINGS: PLAIN,
    ApiFamily.MODELS: PLAIN,
    ApiFamily.OTHER: PLAIN,
}


@pytest.mark.parametrize("family", list(ApiFamily))
def test_the_terminal_event_of_each_api_to_the_byte(family):
    assert build_terminal_event(family, BodyKind.SSE, INTERRUPTED) == GOLDEN[family]


@pytest.mark.parametrize("family", list(ApiFamily))
def test_the_terminal_event_is_one_that_sdks_raise_on(family):
    """openai-python: a non-empty `error` object in the data, a blank line behind it, no `[DONE]`."""
    event = build_terminal_event(family, BodyKind.SSE, INTERRUPTED)
    assert event.endswith(b"\n\n")
    assert event.count(b"\n\n") == 1
    assert b"[DONE]" not in event
    data = event.rstrip(b"\n").rpartition(b"data: ")[2]
    assert b"\n" not in data
    assert json.loads(data)["error"] == OBJECT


@pytest.mark.parametrize("family", list(ApiFamily))
def test_lines_of_json_are_ended_by_one_line(family):
    line = build_terminal_event(family, BodyKind.NDJSON, INTERRUPTED)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert json.loads(line) == {"error": OBJECT}


@pytest.mark.parametrize("family", list(ApiFamily))
@pytest.mark.parametrize("kind", [BodyKind.JSON, BodyKind.OPAQUE])
def test_nothing_is_added_to_a_body_that_it_would_break(family, kind):
    assert build_terminal_event(family, kind, INTERRUPTED) is None


@pytest.mark.parametrize(
    ("reason", "partial", "message"),
    [
        (Reason.REPLICA_DIED, True, "The replica stopped after part of the answer was delivered."),
        (Reason.TRUNCATED, True, "The replica stopped after part of the answer was delivered."),
        (Reason.REPLICA_DIED, False, "The replica stopped before any part of the answer was delivered."),
        (Reason.DEADLINE, True, "The request's own deadline passed after part of the answer was delivered."),
        (Reason.DRAIN_DEADLINE, True, "This gateway shut down after part of the answer was delivered."),
    ],
)
def test_the_text_does_not_blame_the_replica_for_what_others_did(reason, partial, message):
    error = ClientError("upstream_decode_interrupted", "req-1", reason=reason, partial_output=partial)
    assert build_error_object(error)["message"] == message


# --- refusals -----------------------------------------------------------------------------------

CONTRACT = {
    "upstream_unavailable": (503, True),
    "replay_not_allowed": (503, False),
    "retry_budget_exhausted": (503, True),
    "no_ready_replica": (503, True),
    "draining": (503, True),
    "deadline_exceeded": (504, False),
    "request_too_large": (413, False),
    "invalid_request": (400, False),
    "operation_in_progress": (409, True),
    "operation_incomplete": (409, False),
    "idempotency_key_reused": (422, False),
}
"""Code -> HTTP status, and whether an SDK may send the request again."""


@pytest.mark.parametrize("code", list(CONTRACT))
def test_each_code_has_its_status_and_its_hint_for_sdks(code):
    status, may_repeat = CONTRACT[code]
    error = ClientError(code, "req-1", retry_after_s=2)
    headers = dict(build_error_headers(error))
    assert error.http_status == status
    assert headers.get("x-should-retry") == (None if may_repeat else "false")
    assert headers.get("retry-after") == ("2" if may_repeat else None)


@pytest.mark.parametrize("code", list(CODES))
def test_the_body_has_the_same_object_as_the_event(code):
    error = ClientError(code, "req-1", OperationId("op_1"))
    body = json.loads(build_error_body(error))
    assert list(body) == ["error"]
    assert list(body["error"]) == list(OBJECT)
    assert body["error"]["code"] == code
    assert body["error"]["retryable"] is False
    assert body["error"]["message"]
    assert (body["error"]["partial_output"], body["error"]["delivered_output_tokens"]) == (False, 0)
    assert body["error"]["reason"] is None


@pytest.mark.parametrize("code", list(CODES))
@pytest.mark.parametrize("word", ["continu", "resum"])
def test_no_text_calls_a_repeated_generation_a_continuation(code, word):
    assert word not in CODES[code].message.lower()


def test_the_headers_name_the_request_and_the_operation():
    error = ClientError("draining", "req-1", OperationId("op_1"), headers=(("x-attempt-count", "2"),))
    assert build_error_headers(error) == [
        ("content-type", "application/json"),
        ("x-request-id", "req-1"),
        ("x-operation-id", "op_1"),
        ("x-attempt-count", "2"),
    ]
    assert "x-operation-id" not in dict(build_error_headers(ClientError("draining", "req-1")))


def test_a_text_status_or_hint_of_its_own_replaces_the_codes():
    error = ClientError(
        "invalid_request", "req-1", message="no such path", status=404, sdk_retries=True, retry_after_s=1
    )
    assert error.http_status == 404
    assert build_error_object(error)["message"] == "no such path"
    assert dict(build_error_headers(error))["retry-after"] == "1"
