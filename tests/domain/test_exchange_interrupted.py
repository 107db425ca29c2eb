"""After the first delta a stream whose replica is lost is ended once, with the truth, in its API's words."""

import json

import pytest

from envoy_ext.domain.events import LogCause, ResponseBody
from envoy_ext.domain.outcomes import Ending, Reason
from tests.support.exchange_builders import (
    JSON,
    NDJSON,
    Policy,
    ReqChat,
    ReqCompletions,
    ReqEmbeddings,
    ReqMessages,
    ReqResponses,
    ReqTgi,
    answer,
    delta,
    done,
    engine_error,
    event,
    finish,
    usage,
)
from tests.support.exchange_claims import BEGUN, assert_interrupted, begun
from tests.support.exchange_envoy import ATTEMPT_LOG, DELIVERY, Envoy

# --- a replica is lost --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cause", "reason", "outcome"),
    [
        (LogCause.UPSTREAM_RESET, Reason.REPLICA_DIED, "replica_died"),
        (LogCause.UPSTREAM_TIMEOUT, Reason.NETWORK_PARTITION, "network_partition"),
    ],
)
def test_a_replica_lost_in_mid_answer_ends_the_stream_with_a_typed_event(cause, reason, outcome):
    envoy = begun()
    envoy.replica.is_lost(cause)
    assert_interrupted(envoy, BEGUN, reason)
    assert envoy.outcomes == [outcome]


def test_a_second_replica_is_never_asked_for_the_rest():
    envoy = begun()
    envoy.replica.is_lost()
    assert [hop.replica for hop in envoy.hops] == ["a"]


def test_the_half_of_an_event_is_dropped_so_that_the_typed_event_is_well_formed():
    envoy = begun(delta("lo")[:20])
    envoy.replica.is_lost()
    assert_interrupted(envoy, BEGUN, Reason.REPLICA_DIED)


@pytest.mark.parametrize("cut", range(1, len(delta("lo"))))
def test_wherever_an_event_is_cut_the_client_can_read_the_typed_event(cut):
    envoy = begun(delta("lo")[:cut])
    envoy.replica.is_lost()
    assert [line for line in envoy.client.body.split(b"\n") if line.startswith(b'data: {"error"')]
    assert envoy.client.last_event["error"]["code"] == "upstream_decode_interrupted"


def test_the_event_waits_for_the_bytes_that_the_log_has_overtaken():
    envoy = begun(late=(DELIVERY,))
    envoy.deliver(DELIVERY)  # headers
    envoy.deliver(DELIVERY)  # the role
    envoy.replica.is_lost()
    assert not envoy.client.ended
    envoy.catch_up(DELIVERY)
    assert_interrupted(envoy, BEGUN, Reason.REPLICA_DIED)


def test_the_event_goes_out_with_the_last_of_the_logged_bytes_though_it_ends_inside_an_event():
    envoy = begun(delta("lo")[:9], late=(DELIVERY,))
    envoy.replica.is_lost()
    envoy.catch_up(DELIVERY)
    assert_interrupted(envoy, BEGUN, Reason.REPLICA_DIED)


def test_bytes_that_do_not_come_are_waited_for_no_longer_than_the_grace():
    envoy = begun(late=(DELIVERY,), policy=Policy(inject_grace_s=0.5))
    for _ in range(3):
        envoy.deliver(DELIVERY)
    envoy.replica.sends(delta("lo"))  # logged, and never heard of
    envoy.replica.is_lost()
    envoy.wait(0.4)
    assert not envoy.client.ended
    envoy.wait(0.2)
    envoy.catch_up(DELIVERY)
    assert_interrupted(envoy, BEGUN, Reason.REPLICA_DIED)


def test_a_loss_that_is_logged_before_the_response_reaches_the_client_side_is_not_forgotten():
    """However long the headers take: without the event the client would see a cut."""
    envoy = begun(late=(DELIVERY,), policy=Policy(inject_grace_s=0.5))
    envoy.replica.is_lost()
    envoy.wait(3.0)
    envoy.catch_up(DELIVERY)
    assert_interrupted(envoy, BEGUN, Reason.REPLICA_DIED)


def test_a_second_log_entry_changes_nothing():
    envoy = begun(late=(ATTEMPT_LOG,))
    envoy.replica.is_lost()
    entry = envoy.queues[ATTEMPT_LOG][0]
    envoy.catch_up(ATTEMPT_LOG)
    before = len(envoy.journal)
    envoy.receive(entry)
    assert len(envoy.journal) == before
    assert_interrupted(envoy, BEGUN, Reason.REPLICA_DIED)


def test_without_a_log_entry_the_stream_is_cut_by_envoy_and_its_ending_is_not_known():
    envoy = begun(late=(ATTEMPT_LOG,))
    envoy.replica.is_lost()
    envoy.closes_broken_connection()
    assert envoy.end is None
    envoy.wait(3.1)
    assert envoy.end.ending is Ending.UNKNOWN
    assert envoy.exchange.finished


def test_a_log_entry_after_the_cut_still_tells_how_the_stream_ended():
    envoy = begun(late=(ATTEMPT_LOG,))
    envoy.replica.is_lost()
    envoy.closes_broken_connection()
    envoy.catch_up(ATTEMPT_LOG)
    assert (envoy.end.ending, envoy.end.reason) == (Ending.UPSTREAM_BROKE, Reason.REPLICA_DIED)
    assert envoy.exchange.finished


def test_a_replica_lost_behind_its_terminal_mark_has_given_a_whole_answer():
    envoy = begun(delta("lo"), finish(), done())
    envoy.replica.is_lost()
    assert bytes(envoy.client.body) == answer("Hel", "lo")
    assert envoy.client.ended
    assert envoy.end.ending is Ending.FINISHED


@pytest.mark.parametrize("half", [b"", done()[:5], usage(9)[:30]])
def test_a_replica_lost_behind_its_finish_and_before_done_has_given_a_whole_answer(half):
    envoy = begun(finish(), half)
    envoy.replica.is_lost()
    assert bytes(envoy.client.body) == BEGUN + finish()
    assert (envoy.client.ended, envoy.end.ending) == (True, Ending.FINISHED)


def test_a_replica_lost_behind_its_own_error_event_gets_no_second_one():
    envoy = begun(engine_error())
    envoy.replica.is_lost()
    assert bytes(envoy.client.body) == BEGUN + engine_error()
    assert (envoy.client.ended, envoy.end.reason) == (True, Reason.ENGINE_ERROR)


def test_bytes_that_come_behind_the_typed_event_go_nowhere():
    envoy = begun()
    envoy.replica.is_lost()
    body = bytes(envoy.client.body)
    envoy.receive(ResponseBody(delta("lo"), end=True))
    assert bytes(envoy.client.body) == body


# --- other APIs ---------------------------------------------------------------------------------

RESPONSES = event({"type": "response.created", "response": {"status": "in_progress"}}, "response.created")
RESPONSES_DELTA = event({"type": "response.output_text.delta", "delta": "Hel"}, "response.output_text.delta")
MESSAGES = event({"type": "message_start", "message": {"usage": {"output_tokens": 1}}}, "message_start")
MESSAGES_DELTA = event(
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}},
    "content_block_delta",
)
TGI_DELTA = event({"index": 1, "token": {"id": 9, "text": "Hel"}, "generated_text": None})
LEGACY_DELTA = event({"choices": [{"index": 0, "text": "Hel", "finish_reason": None}]})


@pytest.mark.parametrize(
    ("request_arrived", "held", "first", "name"),
    [
        pytest.param(ReqResponses(), RESPONSES, RESPONSES_DELTA, b"event: error", id="responses"),
        pytest.param(ReqMessages(), MESSAGES, MESSAGES_DELTA, b"event: error", id="messages"),
        pytest.param(ReqTgi(), b"", TGI_DELTA, None, id="tgi"),
        pytest.param(ReqCompletions(), b"", LEGACY_DELTA, None, id="completions"),
    ],
)
def test_each_api_is_ended_in_its_own_words(request_arrived, held, first, name):
    envoy = Envoy(request_arrived)
    if held:
        envoy.replica.answers(held)
        assert bytes(envoy.client.body) == b""
        envoy.replica.sends(first)
    else:
        envoy.replica.answers(first)
    envoy.replica.is_lost()
    assert bytes(envoy.client.body).startswith(held + first)
    assert envoy.client.last_event["error"]["code"] == "upstream_decode_interrupted"
    assert envoy.client.last_event["error"]["delivered_output_tokens"] == 1
    lines = envoy.client.events[-1].splitlines()
    assert (lines[0] if len(lines) == 2 else None) == name
    if name is not None:
        assert envoy.client.last_event["type"] == "error"


@pytest.mark.parametrize("kind", [JSON, "application/octet-stream"])
def test_a_body_that_nothing_truthful_can_be_added_to_is_reset(kind):
    envoy = Envoy(ReqEmbeddings())
    envoy.replica.answers(b'{"data": [', type=kind)
    envoy.replica.is_lost()
    assert (envoy.client.reset, bytes(envoy.client.body)) == (True, b'{"data": [')
    assert (envoy.end.ending, envoy.end.reason) == (Ending.UPSTREAM_BROKE, Reason.REPLICA_DIED)
    assert envoy.end.error_code is None
    assert envoy.exchange.finished


def test_an_answer_in_one_document_that_ends_in_its_middle_is_reset():
    envoy = Envoy(ReqChat(stream=False))
    envoy.replica.answers(b'{"choices":[{"message":{"conte', type=JSON, end=True)
    assert envoy.client.reset
    assert (envoy.end.ending, envoy.end.reason) == (Ending.UPSTREAM_BROKE, Reason.TRUNCATED)
    assert envoy.exchange.finished


def test_lines_of_json_end_with_one_line_more():
    envoy = Envoy(ReqChat())
    line = b'{"choices":[{"index":0,"delta":{"content":"Hel"}}]}\n'
    envoy.replica.answers(line + b'{"choices":[', type=NDJSON)
    envoy.replica.is_lost()
    kept, told = envoy.client.body.splitlines()
    assert kept + b"\n" == line
    assert json.loads(told)["error"]["reason"] == "replica_died"


def test_a_last_line_whose_newline_is_lost_with_its_replica_does_not_make_the_answer_whole():
    """It was not let out, so the client has not read it."""
    envoy = Envoy(ReqChat())
    line = b'{"choices":[{"index":0,"delta":{"content":"Hel"}}]}\n'
    last = b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
    envoy.replica.answers(line + last, type=NDJSON)
    envoy.replica.is_lost()
    assert envoy.end.ending is Ending.UPSTREAM_BROKE
    assert json.loads(envoy.client.body.splitlines()[-1])["error"]["reason"] == "replica_died"


def test_above_the_bound_of_an_event_the_stream_passes_and_its_ending_is_not_known():
    envoy = begun(policy=Policy(max_event_bytes=400))
    envoy.replica.sends(b"data: " + b"x" * 500, b"y" * 500, end=True)
    assert envoy.client.ended
    assert bytes(envoy.client.body) == BEGUN + b"data: " + b"x" * 500 + b"y" * 500
    assert envoy.end.ending is Ending.UNKNOWN


def test_a_replica_lost_behind_an_unwatched_event_resets_the_stream():
    envoy = begun(policy=Policy(max_event_bytes=400))
    envoy.replica.sends(b"data: " + b"x" * 500)
    envoy.replica.is_lost()
    assert envoy.client.reset
    assert envoy.end.ending is Ending.UPSTREAM_BROKE
