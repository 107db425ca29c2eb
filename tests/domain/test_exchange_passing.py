"""What a replica answers in order reaches the client byte for byte, whatever it is."""

from pathlib import Path

import pytest

from envoy_ext.domain import step
from envoy_ext.domain.api import ApiFamily
from envoy_ext.domain.ids import ReplicaId
from envoy_ext.domain.notes import ExchangeEnded, FirstDelta, MalformedEvents, PhaseChanged
from envoy_ext.domain.outcomes import Ending, Phase
from envoy_ext.domain.records import FirstDeltaSent
from tests.support.exchange_builders import (
    JSON,
    POOL,
    SSE,
    Req,
    ReqChat,
    ReqCompletions,
    ReqEmbeddings,
    ReqMessages,
    ReqModels,
    ReqResponses,
    ReqTgi,
    answer,
    delta,
    done,
    finish,
    role,
)
from tests.support.exchange_envoy import At, Envoy

DATA = Path(__file__).parent.parent / "data"


def load(name):
    return (DATA / "sse" / name).read_bytes()


def play(request, *chunks, **head):
    envoy = Envoy(request)
    envoy.replica.answers(*chunks, end=True, **head)
    return envoy


def assert_passed(envoy, body, ending=Ending.FINISHED):
    assert bytes(envoy.client.body) == body
    assert envoy.client.ended
    assert envoy.end.ending is ending
    assert envoy.started == 1
    assert envoy.exchange.finished


WHOLE = [
    ("vllm_chat_ok.sse", ReqChat()),
    ("vllm_chat_ok_usage.sse", ReqChat()),
    ("sglang_chat_ok.sse", ReqChat()),
    ("tgi_chat_ok.sse", ReqChat()),
    ("ollama_finish_reason_empty_string.sse", ReqChat()),
    ("llamacpp_pings_then_ok.sse", ReqChat()),
    ("framing_bom.sse", ReqChat()),
    ("framing_malformed_json_event_midstream.sse", ReqChat()),
    ("empty_completion_ok.sse", ReqChat()),
    ("n2_interleaved_ok.sse", ReqChat(n=2)),
    ("n2_llamacpp_finish_index_bug_20226.sse", ReqChat(n=2)),
    ("legacy_completions_ok.sse", ReqCompletions()),
    ("responses_ok.sse", ReqResponses()),
    ("anthropic_ok.sse", ReqMessages()),
    ("tgi_generate_stream_ok.sse", ReqTgi()),
]


@pytest.mark.parametrize(("name", "request_arrived"), WHOLE)
@pytest.mark.parametrize("size", [0, 1, 7])
def test_whole_answers_of_every_engine_pass_byte_for_byte_however_they_are_cut(name, request_arrived, size):
    body = load(name)
    chunks = [body] if size == 0 else [body[at : at + size] for at in range(0, len(body), size)]
    assert_passed(play(request_arrived, *chunks), body)


@pytest.mark.parametrize(
    "name",
    [
        "vllm_abort_then_done.sse",
        "sglang_abort_graceful.sse",
        "sglang_abort_error_then_done.sse",
        "vllm_error_midstream_new.sse",
        "vllm_error_midstream_old.sse",
        "tgi_chat_error_then_done.sse",
        "vllm_finish_null_then_done.sse",
    ],
)
def test_answers_that_engines_gave_up_pass_unchanged_and_are_no_success(name):
    assert_passed(play(ReqChat(), load(name)), load(name), Ending.UPSTREAM_BROKE)


@pytest.mark.parametrize(
    "name",
    [
        "vllm_error_before_first_token.sse",
        "tgi_generate_stream_overloaded_first.sse",
        "framing_done_space_variants.sse",
    ],
)
def test_recorded_streams_that_failed_before_the_first_token_are_replayed(name):
    envoy = Envoy(ReqTgi() if "tgi" in name else ReqChat())
    envoy.replica.answers(load(name))
    assert envoy.replica.number == 2


def test_a_recorded_validation_error_is_not_replayed():
    body = load("tgi_chat_validation_error_200.sse")
    assert_passed(play(ReqChat(), body), body)


def test_a_recorded_silent_cut_is_told():
    envoy = play(ReqChat(), load("vllm_cut_no_finish_no_done.sse"))
    assert envoy.client.last_event["error"]["reason"] == "truncated"


def test_a_json_answer_is_released_with_its_first_byte():
    envoy = Envoy(ReqChat(stream=False))
    envoy.replica.answers(type=JSON)
    assert envoy.replica.at is At.HELD
    envoy.replica.sends(b"{")
    assert envoy.replica.at is At.PASSING
    envoy.replica.sends(b"}", end=True)
    assert_passed(envoy, b"{}")
    assert envoy.end.delivered_deltas == 1


@pytest.mark.parametrize(
    ("request_arrived", "status", "kind"),
    [(ReqModels(), 200, JSON), (ReqChat(), 204, ""), (ReqEmbeddings(), 304, "")],
)
def test_headers_alone_are_an_answer_and_no_first_delta(request_arrived, status, kind):
    envoy = Envoy(request_arrived)
    envoy.replica.answers(status=status, type=kind, end=True)
    assert (envoy.client.status, envoy.client.ended) == (status, True)
    assert envoy.end.ending is Ending.FINISHED
    assert not any(isinstance(record, FirstDeltaSent) for record in envoy.records)
    assert envoy.exchange.finished


@pytest.mark.parametrize("status", [400, 401, 404, 408, 409, 413, 422, 499, 501, 505])
def test_what_a_replica_says_of_the_request_is_the_clients_answer(status):
    envoy = play(ReqChat(), b'{"error": {}}', status=status, type=JSON)
    assert_passed(envoy, b'{"error": {}}')
    assert envoy.client.status == envoy.end.status == status
    assert envoy.end.state == "failed"
    assert envoy.outcomes == ["client_error"]
    assert not any(isinstance(record, FirstDeltaSent) for record in envoy.records)


def test_an_error_status_that_claims_to_be_a_stream_is_not_watched_as_one():
    envoy = play(ReqChat(), b'{"error": {}}', status=400, type=SSE)
    assert_passed(envoy, b'{"error": {}}')


def test_an_encoded_stream_passes_and_its_ending_is_not_known():
    envoy = Envoy(ReqChat())
    body = load("framing_gzip_body.sse.gz")
    envoy.replica.answers(body, type="application/octet-stream", end=True)
    assert_passed(envoy, body, Ending.UNKNOWN)
    assert envoy.end.delivered_deltas == 0


def test_an_api_that_is_not_known_passes_unread():
    envoy = play(Req(ApiFamily.OTHER, "/tokenize", stream=False), b"1 2 3", type="text/plain")
    assert_passed(envoy, b"1 2 3", Ending.UNKNOWN)


def test_a_streams_encoding_is_kept_readable_and_a_documents_is_left_alone():
    for stream in (True, False):
        start = next(r for r in Envoy(ReqChat(stream=stream)).replies if isinstance(r, step.StartAttempt))
        assert start.keep_encoding is not stream


@pytest.mark.parametrize(
    ("kind", "may_append"),
    [(SSE, True), ("application/x-ndjson", True), (JSON, False), ("text/plain", False)],
)
def test_a_length_is_promised_only_where_nothing_can_be_added(kind, may_append):
    envoy = Envoy(ReqChat())
    envoy.replica.answers(delta("Hel"), type=kind)
    if envoy.replica.at is At.HELD:
        envoy.replica.sends(b'{"choices":[{"index":0,"delta":{"content":"Hel"}}]}\n')
    head = next(reply for reply in envoy.replies if isinstance(reply, step.ForwardResponse))
    assert (head.may_append, head.attempts) == (may_append, 1)
    assert (head.request_id, head.operation_id) == ("req-1", "op_1")


def test_events_that_are_no_json_are_counted_and_passed_on():
    envoy = play(ReqChat(), role() + delta("Hel") + b"data: {broken\n\n" + finish() + done())
    assert MalformedEvents(POOL, 1) in envoy.notes
    assert envoy.end.ending is Ending.FINISHED


def test_the_time_to_the_first_delta_is_told_when_it_leaves():
    envoy = Envoy()
    envoy.replica.answers(role())
    envoy.wait(2.5)
    envoy.replica.sends(delta("Hel"))
    assert FirstDelta(POOL, 2.5, ReplicaId("a"), 2.5) in envoy.notes


def test_a_replica_is_held_to_its_own_attempt_s_time_and_not_to_the_one_that_was_lost():
    envoy = Envoy()
    envoy.wait(3.0)
    envoy.replica.is_lost()
    envoy.wait(0.5)
    envoy.replica.answers(role(), delta("Hel"))
    assert FirstDelta(POOL, 3.5, ReplicaId("b"), 0.5) in envoy.notes


def test_an_answer_in_one_piece_says_nothing_of_how_fast_a_replica_begins():
    envoy = Envoy(ReqChat(stream=False))
    envoy.wait(3.0)
    envoy.replica.answers(b'{"choices": [{"finish_reason": "stop"}]}', type=JSON, end=True)
    (first,) = (note for note in envoy.notes if isinstance(note, FirstDelta))
    assert (first.ttft_s, first.replica, first.attempt_s) == (3.0, "a", None)


def test_what_was_served_is_the_answer_s_own_word_or_else_what_the_fleet_knows():
    for told, known in ((None, "rev-1"), ("fp_1", "fp_1")):
        more = {} if told is None else {"system_fingerprint": told}
        envoy = Envoy()
        envoy.revisions = {"a": "rev-1"}
        envoy.replica.answers(role(), delta("Hel", **more), finish(), done(), end=True)
        assert envoy.end.model_revision == known
    envoy = Envoy()
    envoy.replica.answers(role(), delta("Hel"), finish(), done(), end=True)
    assert envoy.end.model_revision is None


def test_an_answer_goes_through_its_phases():
    envoy = Envoy()
    envoy.replica.answers(answer("Hel"), end=True)
    phases = [(n.before, n.after) for n in envoy.notes if isinstance(n, PhaseChanged)]
    assert phases == [(None, Phase.PREFILL), (Phase.PREFILL, Phase.DECODE), (Phase.DECODE, None)]


def test_the_end_is_told_with_its_counts():
    envoy = Envoy()
    envoy.wait(1.0)
    envoy.replica.answers(answer("Hel", "lo"), end=True)
    (end,) = [note for note in envoy.notes if isinstance(note, ExchangeEnded)]
    assert (end.ending, end.reason, end.code) == (Ending.FINISHED, None, None)
    assert (end.attempts, end.delivered_deltas, end.duration_s) == (1, 2, 1.0)


def test_an_exchange_describes_itself_without_its_contents():
    envoy = Envoy()
    assert repr(envoy.exchange) == "<Exchange op_1 forwarded [1:started] open>"
    envoy.replica.answers(answer("Hel"), end=True)
    assert repr(envoy.exchange) == "<Exchange op_1 ended [1:released] finished>"
