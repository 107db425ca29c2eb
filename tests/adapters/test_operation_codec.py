"""An operation as its owner reads it, in JSON."""

from envoy_ext.adapters.operation_codec import build_operation_json, format_time
from envoy_ext.domain.outcomes import AttemptOutcome, Ending
from envoy_ext.domain.tool_calls import CallState
from tests.support.records import (
    START,
    attempt_ended,
    attempt_started,
    begun,
    ended,
    first_delta_sent,
    fold,
    interrupted,
    whole_life,
)
from tests.support.tool_builders import made


def test_the_json_of_an_interrupted_operation_has_the_contracts_keys_and_values() -> None:
    operation = fold(
        begun(),
        attempt_started(),
        first_delta_sent(),
        attempt_ended(outcome=AttemptOutcome.REPLICA_DIED),
        interrupted(),
    )
    assert build_operation_json(operation) == {
        "operation_id": "op_1",
        "state": "failed",
        "phase": "decode",
        "first_delta_sent": True,
        "delivered_output_tokens": 37,
        "delivered_deltas": 37,
        "model_revision": None,
        "retry_budget": 1,
        "attempts": [
            {
                "attempt": 1,
                "attempt_id": "att_1",
                "replica": "a",
                "lease_expires_at": "2025-06-15T15:06:46.100Z",
                "outcome": "replica_died",
                "first_byte_at": "2025-06-15T15:06:40.150Z",
                "ended_at": "2025-06-15T15:06:40.900Z",
            }
        ],
        "tool_calls": [],
        "error": {
            "code": "upstream_decode_interrupted",
            "reason": "replica_died",
            "status": 200,
            "partial_output": True,
        },
        "created_at": "2025-06-15T15:06:40.000Z",
        "ended_at": "2025-06-15T15:06:41.000Z",
        "ending": "upstream_broke",
        "request_id": "req-1",
        "pool": "chat",
        "path": "/v1/chat/completions",
        "model": "llama-3.1-8b",
        "stream": True,
        "degraded": [],
    }


def test_the_json_of_a_running_operation_says_null_for_what_is_not_known() -> None:
    shown = build_operation_json(fold(begun(), attempt_started(replica=None)))
    assert (shown["state"], shown["phase"]) == ("running", "prefill")
    assert (shown["error"], shown["ended_at"], shown["ending"]) == (None, None, None)
    assert shown["attempts"] == [
        {
            "attempt": 1,
            "attempt_id": "att_1",
            "replica": None,
            "lease_expires_at": "2025-06-15T15:06:46.100Z",
            "outcome": None,
            "first_byte_at": None,
            "ended_at": None,
        }
    ]


def test_delivered_counts_are_zero_before_the_first_delta_and_unknown_after_it_until_the_end() -> None:
    unknown_end = ended(ending=Ending.UNKNOWN, delivered_deltas=0, delivered_output_tokens=0)
    cases = {
        "nothing was sent": ((begun(),), 0),
        "sending": ((begun(), first_delta_sent()), None),
        "ended with counts": ((begun(), first_delta_sent(), ended()), 37),
        "cut by a restart": ((begun(), first_delta_sent(), unknown_end), None),
        "cut by a restart before the first delta": ((begun(), unknown_end), 0),
        "a whole JSON body": ((begun(), first_delta_sent(), ended(delivered_deltas=0)), 0),
    }
    for name, (told, expected) in cases.items():
        assert build_operation_json(fold(*told))["delivered_deltas"] == expected, name


def test_the_json_shows_no_caller_key_exchange_or_body_hash() -> None:
    secret = {"caller": "CALLER", "key_hash": "KEYHASH", "body_sha256": "BODYHASH", "exchange_id": "EXCHANGE"}
    shown = str(build_operation_json(fold(begun(**secret), *whole_life()[1:])))
    assert not [value for value in secret.values() if value in shown]


def test_times_are_utc_with_milliseconds() -> None:
    assert format_time(0.0) == "1970-01-01T00:00:00.000Z"
    assert format_time(1_750_000_000.1) == "2025-06-15T15:06:40.100Z"
    assert format_time(1_750_000_000.9996) == "2025-06-15T15:06:41.000Z"
    assert format_time(None) is None


def test_the_calls_of_its_tools_are_listed_without_what_was_asked_or_told() -> None:
    call = made(CallState.UNKNOWN, attempts=("att_1", "att_2"), ended_at=START + 1, begun_at=START)
    blocked = ended(error_code="tool_outcome_unknown", tool_call_id=call.call_id, status=409)
    shown = build_operation_json(fold(begun(), attempt_started(), blocked), [call])
    assert shown["tool_calls"] == [
        {
            "call_id": call.call_id,
            "tool": "mail",
            "ordinal": 1,
            "state": "unknown",
            "idempotent": False,
            "attempts": ["att_1", "att_2"],
            "status": None,
            "begun_at": "2025-06-15T15:06:40.000Z",
            "ended_at": "2025-06-15T15:06:41.000Z",
        }
    ]
    assert isinstance(shown["error"], dict)
    assert shown["error"]["tool_call_id"] == call.call_id
    assert "of mail" not in str(shown), "no hash of its arguments"
    assert build_operation_json(fold(begun()), None)["tool_calls"] is None, "nobody has looked"
