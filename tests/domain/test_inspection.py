"""What the inspector says of answers built to the point, one property of a body at a time."""

import gzip
import json

import pytest

from envoy_ext.domain.deltas import StreamError
from envoy_ext.domain.inspection import BodyKind, Inspector, choose_body_kind
from tests.domain.inspecting import (
    ABORTED,
    CHAT,
    COMPLETE,
    COMPLETIONS,
    DATA,
    EMBEDDINGS,
    ERRORED,
    FAILED,
    LIMIT,
    MESSAGES,
    NO_FINISH,
    OTHER,
    OVERLOADED,
    RESPONSES,
    TGI,
    TRUNCATED,
    UNKNOWN,
    load,
    observe,
    watch,
)


class TestErrors:
    def test_a_delta_and_an_error_in_one_chunk_are_read_in_order(self):
        delta = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
        error = b'data: {"error":{"message":"m","type":"server_error"}}\n\n'
        inspector = watch(delta + error)
        assert inspector.first_delta_seen
        assert not inspector.error_before_delta
        assert inspector.error == StreamError(FAILED, "server_error", "")
        inspector = watch(error + delta)
        assert inspector.error_before_delta
        assert inspector.verdict_at_eof() is ERRORED

    def test_the_first_error_counts_and_nothing_after_it_mends_it(self):
        body = b'data: {"error":"a","error_type":"overloaded"}\n\ndata: {"error":"b"}\n\n' + load(
            "vllm_chat_ok.sse"
        )
        inspector = watch(body)
        assert inspector.error == StreamError(OVERLOADED, "overloaded", "")
        assert inspector.verdict_at_eof() is ERRORED

    def test_an_error_in_a_field_called_error_is_read_by_nobody(self):
        inspector = watch(b'error: {"code":500,"message":"m","type":"server_error"}\n\n')
        assert inspector.error is None
        assert inspector.verdict_at_eof() is TRUNCATED
        assert not inspector.first_delta_seen


class TestSeveralChoices:
    def test_all_finished(self):
        inspector = watch(load("n2_interleaved_ok.sse"), choices=2)
        assert inspector.verdict_at_eof() is COMPLETE
        assert inspector.deltas == 3

    def test_cut_after_the_first_choice_finished(self):
        body = load("n2_interleaved_ok.sse")
        cut = body.index(b"\n\n", body.index(b'"stop"')) + 2
        assert watch(body[:cut], choices=2).verdict_at_eof() is TRUNCATED
        assert watch(body[:cut] + b"data: [DONE]\n\n", choices=2).verdict_at_eof() is NO_FINISH

    def test_cut_before_the_second_choice_started(self):
        body = b'data: {"choices":[{"index":0,"text":"x","finish_reason":"stop"}]}\n\n'
        assert watch(body, COMPLETIONS, choices=2).verdict_at_eof() is TRUNCATED

    def test_an_engine_that_answers_once_says_so_with_done(self):
        body = b'data: {"choices":[{"index":0,"text":"x","finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
        assert watch(body, COMPLETIONS, choices=2).verdict_at_eof() is COMPLETE

    def test_finishes_with_the_wrong_index_are_counted(self):
        body = load("n2_llamacpp_finish_index_bug_20226.sse")
        assert watch(body, choices=2).verdict_at_eof() is COMPLETE
        without_done = body.removesuffix(b"data: [DONE]\n\n")
        assert watch(without_done, choices=2).verdict_at_eof() is TRUNCATED

    def test_fewer_finishes_than_choices_are_not_enough_for_that(self):
        body = load("n2_llamacpp_finish_index_bug_20226.sse")
        finish = body.index(b'"stop"')
        one_finish = body[:finish] + b"null" + body[finish + len(b'"stop"') :]
        assert watch(one_finish, choices=2).verdict_at_eof() is NO_FINISH
        assert watch(one_finish).verdict_at_eof() is NO_FINISH

    def test_one_aborted_choice_makes_the_answer_aborted(self):
        body = load("n2_interleaved_ok.sse").replace(b'"length"', b'"abort"')
        assert watch(body, choices=2).verdict_at_eof() is ABORTED

    def test_usage_beside_one_of_several_choices_is_not_the_sum(self):
        first = b'data: {"choices":[{"index":0,"text":"a"}],"usage":{"completion_tokens":1}}\n\n'
        second = b'data: {"choices":[{"index":1,"text":"b"}],"usage":{"completion_tokens":1}}\n\n'
        total = b'data: {"choices":[],"usage":{"completion_tokens":6}}\n\n'
        assert watch(first, COMPLETIONS).output_tokens == 1
        assert watch(first + second + first, COMPLETIONS).output_tokens == 3
        assert watch(first + second + first + total, COMPLETIONS).output_tokens == 6


class TestOutputTokens:
    def test_deltas_stand_in_until_usage_is_stated(self):
        body = load("vllm_chat_ok_usage.sse")
        assert watch(body[: body.index(b'"usage"')]).output_tokens == 2
        assert watch(body).output_tokens == 3

    def test_deltas_after_a_statement_are_added_to_it(self):
        stated = b'data: {"choices":[{"delta":{"content":"a"}}],"usage":{"completion_tokens":5}}\n\n'
        bare = b'data: {"choices":[{"delta":{"content":"b"}}]}\n\n'
        assert watch(stated + bare + bare).output_tokens == 7


RESPONSES_OK = (DATA / "sse" / "responses_ok.sse").read_bytes()
RESPONSES_EVENTS = [event + b"\n\n" for event in RESPONSES_OK.split(b"\n\n")[:-1]]
BEFORE_DELTA, UP_TO_DELTA = b"".join(RESPONSES_EVENTS[:4]), b"".join(RESPONSES_EVENTS[:5])
LAST = RESPONSES_EVENTS[-1]


def last_as(kind, **inner):
    payload = json.loads(LAST.split(b"data: ")[1])
    payload["type"] = f"response.{kind}"
    payload["response"].update(inner)
    return f"event: response.{kind}\ndata: {json.dumps(payload)}\n\n".encode()


class TestResponses:
    @pytest.mark.parametrize(
        ("end", "verdict", "done"),
        [
            (LAST, COMPLETE, True),
            (last_as("incomplete", status="incomplete"), ABORTED, True),
            (last_as("completed", status="incomplete"), ABORTED, True),
            (last_as("completed", incomplete_details={"reason": "max_output_tokens"}), ABORTED, True),
            (last_as("failed", status="failed", error={"code": "server_error"}), ERRORED, True),
            (b'event: error\ndata: {"type":"error","code":"server_error"}\n\n', ERRORED, False),
            (b"data: [DONE]\n\n", NO_FINISH, True),
            (b"", TRUNCATED, False),
            (LAST[:-1], TRUNCATED, False),
        ],
        ids=[
            "completed",
            "incomplete",
            "vllm_incomplete",
            "details",
            "failed",
            "error_event",
            "done",
            "cut",
            "cut_in_last",
        ],
    )
    def test_ends_after_a_delta(self, end, verdict, done):
        inspector = watch(UP_TO_DELTA + end, RESPONSES)
        assert inspector.verdict_at_eof() is verdict
        assert inspector.done_marker is done
        assert inspector.first_delta_seen
        assert not inspector.error_before_delta

    def test_opening_events_are_no_delta(self):
        inspector = watch(BEFORE_DELTA, RESPONSES)
        assert not inspector.first_delta_seen
        assert inspector.verdict_at_eof() is TRUNCATED
        inspector.feed(last_as("failed", error={"code": "rate_limit_exceeded"}))
        assert inspector.error_before_delta
        assert inspector.error == StreamError(OVERLOADED, "", "rate_limit_exceeded")

    def test_an_error_event_cut_in_transit_is_a_cut(self):
        inspector = watch(UP_TO_DELTA + b'event: error\ndata: {"type":"error","co', RESPONSES)
        assert inspector.verdict_at_eof() is TRUNCATED
        assert inspector.pending
        assert inspector.boundary == len(UP_TO_DELTA)

    def test_the_stated_usage_counts(self):
        assert watch(RESPONSES_OK, RESPONSES).output_tokens == 3


def test_messages_count_the_usage_of_the_end_and_need_no_done():
    body = load("anthropic_ok.sse")
    inspector = watch(body, MESSAGES)
    assert inspector.output_tokens == 4
    assert inspector.done_marker
    before_stop = body[: body.index(b"event: message_stop")]
    assert watch(before_stop, MESSAGES).verdict_at_eof() is TRUNCATED
    assert watch(before_stop + b"data: [DONE]\n\n", MESSAGES).verdict_at_eof() is NO_FINISH


def test_sglang_generate_finishes_by_its_meta_info():
    event = 'data: {"text":"%s","meta_info":{"finish_reason":%s,"completion_tokens":%d}}\n\n'
    begun = (event % ("a", "null", 1) + event % ("ab", "null", 2)).encode()
    ended = (event % ("abc", '{"type":"length","length":3}', 3)).encode()
    assert watch(begun, TGI).verdict_at_eof() is TRUNCATED
    inspector = watch(begun + ended + b"data: [DONE]\n\n", TGI)
    assert inspector.verdict_at_eof() is COMPLETE
    assert inspector.output_tokens == 3
    aborted = (event % ("ab", '{"type":"abort","message":"m"}', 2)).encode()
    assert watch(begun + aborted + b"data: [DONE]\n\n", TGI).verdict_at_eof() is ABORTED


class TestMalformedEvents:
    @pytest.mark.parametrize(
        "data",
        [b"{", b"", b"hello", b"[1]", b"7", b"null", b"[" * 100_000, b"9" * 5_000, b'{"a":' * 100_000],
        ids=["cut", "empty", "text", "list", "number", "null", "deep_list", "huge_integer", "deep_object"],
    )
    def test_they_are_counted_and_the_stream_goes_on(self, data):
        inspector = watch(b"data: " + data + b"\n\n" + load("vllm_chat_ok.sse"))
        assert inspector.malformed_events == 1
        assert inspector.verdict_at_eof() is COMPLETE
        assert inspector.deltas == 2

    def test_bytes_that_are_no_utf8_harm_nothing_else_in_their_event(self):
        inspector = watch(b'data: {"choices":[{"delta":{"content":"\xff\xe5"},"finish_reason":"stop"}]}\n\n')
        assert inspector.malformed_events == 0
        assert inspector.deltas == 1
        assert inspector.verdict_at_eof() is COMPLETE


class TestBodiesThatAreNotWatched:
    def test_an_encoded_stream_commits_at_its_first_byte_and_is_unknown(self):
        body = load("framing_gzip_body.sse.gz")
        assert watch(gzip.decompress(body)).verdict_at_eof() is COMPLETE  # what a client sees
        kind = choose_body_kind(CHAT, "text/event-stream", "gzip")
        inspector = Inspector(CHAT, kind, LIMIT)
        inspector.feed(b"")
        assert not inspector.first_delta_seen
        inspector.feed(body[:1])
        assert inspector.first_delta_seen
        inspector.feed(body[1:])
        assert inspector.verdict_at_eof() is UNKNOWN
        assert not inspector.watching
        assert not inspector.pending
        assert inspector.deltas == 0

    def test_an_event_above_the_limit_may_be_the_answer(self):
        inspector = Inspector(CHAT, BodyKind.SSE, 100)
        inspector.feed(b"data: " + b"x" * 94)
        assert inspector.watching
        assert not inspector.first_delta_seen
        inspector.feed(b"x")
        assert not inspector.watching
        assert inspector.first_delta_seen
        inspector.feed(b"\n\ndata: [DONE]\n\n")
        assert inspector.verdict_at_eof() is UNKNOWN
        assert not inspector.pending

    def test_a_whole_answer_before_it_does_not_make_it_known(self):
        inspector = watch(load("vllm_chat_ok.sse") + b"x" * 4096, limit=1024)
        assert inspector.deltas == 2
        assert inspector.verdict_at_eof() is UNKNOWN

    def test_an_error_before_it_stays_known(self):
        inspector = watch(load("vllm_error_before_first_token.sse") + b"x" * 4096, limit=1024)
        assert inspector.error_before_delta
        assert inspector.verdict_at_eof() is ERRORED

    def test_a_300_kb_event_within_the_limit_is_watched(self):
        event = b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % (b"x" * 300_000)
        inspector = watch(event + load("vllm_chat_ok.sse"))
        assert inspector.watching
        assert inspector.deltas == 3


class TestJson:
    def test_the_first_byte_is_the_first_delta(self):
        inspector = Inspector(CHAT, BodyKind.JSON, 4)
        inspector.feed(b"")
        assert not inspector.first_delta_seen
        inspector.feed(b"{")
        assert inspector.first_delta_seen
        inspector.feed(b'"choices":[]' * 1000)
        assert (inspector.deltas, inspector.watching, inspector.pending) == (1, True, False)
        assert inspector.boundary == inspector.received == 12_001
        assert inspector.verdict_at_eof() is COMPLETE

    @pytest.mark.parametrize(
        ("family", "document", "tokens"),
        [
            (CHAT, b'{"choices":[{"finish_reason":"stop"}],"usage":{"completion_tokens":7}}', 7),
            (COMPLETIONS, b'{"choices":[{"text":"a"},{"text":"b"}],"usage":{"completion_tokens":8}}\n', 8),
            (RESPONSES, b'{"status":"completed","error":null,"usage":{"output_tokens":9}}', 9),
            (RESPONSES, b'{"status":"incomplete","usage":{"output_tokens":9}}', 9),
            (RESPONSES, b'{"status":"in_progress"}', 1),
            (MESSAGES, b'{"type":"message","stop_reason":"end_turn","usage":{"output_tokens":10}}', 10),
            (TGI, b'{"generated_text":"a","details":{"generated_tokens":11}}', 11),
            (TGI, b'[{"meta_info":{"completion_tokens":4}},{"meta_info":{"completion_tokens":5}}]', 9),
            (CHAT, b'{"choices":[],"usage":null}', 1),
            (CHAT, b'["not an answer"]', 1),
            (CHAT, b"{not JSON, and yet closed}", 1),
        ],
    )
    def test_a_whole_answer_counts_the_tokens_it_states(self, family, document, tokens):
        inspector = watch([document[:9], document[9:]], family, BodyKind.JSON)
        assert inspector.verdict_at_eof() is COMPLETE
        assert (inspector.output_tokens, inspector.deltas, inspector.error) == (tokens, 1, None)

    @pytest.mark.parametrize("end", range(1, 79))
    def test_an_answer_that_stops_in_its_middle_is_truncated(self, end):
        document = b'{"choices":[{"message":{"content":"a } ] b"}}],"usage":{"completion_tokens":7}}'
        inspector = watch(document[:end], CHAT, BodyKind.JSON)
        assert inspector.verdict_at_eof() is TRUNCATED
        assert inspector.output_tokens == 1
        inspector.feed(document[end:])
        assert (inspector.verdict_at_eof(), inspector.output_tokens) == (COMPLETE, 7)

    @pytest.mark.parametrize(
        ("family", "document", "verdict"),
        [
            (CHAT, b'{"choices":[{"message":{"content":"a"},"finish_reason":"abort"}]}', ABORTED),
            (TGI, b'{"text":"a","meta_info":{"finish_reason":{"type":"abort"}}}', ABORTED),
            (TGI, b'[{"text":"a"},{"text":"a","meta_info":{"finish_reason":{"type":"abort"}}}]', ABORTED),
            (RESPONSES, b'{"status":"cancelled"}', ABORTED),
            (RESPONSES, b'{"status":"failed","error":{"code":"server_error"}}', ERRORED),
            (MESSAGES, b'{"type":"error","error":{"type":"overloaded_error"}}', ERRORED),
            (COMPLETIONS, b'{"error":{"message":"m","type":"server_error"}}', ERRORED),
            (RESPONSES, b'{"object":"error","message":"m","code":500}', ERRORED),
            (EMBEDDINGS, b'{"object":"error","message":"m","code":500}', ERRORED),
            (EMBEDDINGS, b'{"error":{"message":"m","type":"server_error"}}', ERRORED),
            (EMBEDDINGS, b'{"object":"list","data":[{"embedding":[0.5', TRUNCATED),
        ],
    )
    def test_what_the_engine_itself_gave_up_is_no_success(self, family, document, verdict):
        assert watch(document, family, BodyKind.JSON).verdict_at_eof() is verdict

    def test_a_document_says_which_build_wrote_it(self):
        document = b'{"system_fingerprint":"b6","choices":[]}'
        assert watch(document, CHAT, BodyKind.JSON).model_revision == "b6"

    def test_beyond_the_bound_nothing_is_kept_and_the_end_is_taken_as_it_is(self):
        inspector = watch(
            [b'{"usage":{"completion_tokens":7},"x":"', b"y" * 100], CHAT, BodyKind.JSON, limit=99
        )
        assert (inspector.verdict_at_eof(), inspector.output_tokens) == (COMPLETE, 1)

    def test_vectors_are_an_answer_and_long_ones_are_not_read(self):
        vectors = b'{"object":"list","data":[{"embedding":[0.5]}],"usage":{"prompt_tokens":7}}'
        inspector = watch(vectors, EMBEDDINGS, BodyKind.JSON)
        assert (inspector.verdict_at_eof(), inspector.output_tokens) == (COMPLETE, 1)
        long = b'{"data":[' + b"0.5," * 5_000
        assert watch([long[:99], long[99:]], EMBEDDINGS, BodyKind.JSON).verdict_at_eof() is COMPLETE

    def test_a_cut_document_that_is_no_answer_of_a_model_is_not_judged(self):
        assert watch(b'{"data": [', OTHER, BodyKind.JSON).verdict_at_eof() is COMPLETE


class TestNdjson:
    DELTA = b'{"choices":[{"delta":{"content":"x"}}]}\n'
    FINISH = b'{"choices":[{"delta":{},"finish_reason":"stop"}]}\n'

    def test_lines_are_events(self):
        inspector = watch(self.DELTA + b"\r\n" + self.DELTA + self.FINISH, kind=BodyKind.NDJSON)
        assert (inspector.deltas, inspector.verdict_at_eof()) == (2, COMPLETE)

    def test_the_boundary_is_the_last_newline(self):
        inspector = watch(self.DELTA + self.DELTA[:9], kind=BodyKind.NDJSON)
        assert inspector.boundary == len(self.DELTA)
        assert inspector.pending
        assert inspector.verdict_at_eof() is TRUNCATED

    def test_a_last_line_needs_no_newline(self):
        inspector = watch(self.DELTA + self.FINISH[:-1], kind=BodyKind.NDJSON)
        assert inspector.verdict_at_eof() is COMPLETE
        assert inspector.pending

    def test_asking_for_the_verdict_in_the_middle_changes_nothing(self):
        asked, silent = (Inspector(CHAT, BodyKind.NDJSON, LIMIT) for _ in range(2))
        for byte in self.DELTA + b'{"error":"e"}\n{"bro\n' + self.FINISH:
            asked.feed(bytes([byte]))
            silent.feed(bytes([byte]))
            asked.verdict_at_eof()
        assert observe(asked) == observe(silent)
        assert asked.malformed_events == 1

    def test_a_line_above_the_limit_ends_the_watching(self):
        inspector = watch(b"x" * 101, kind=BodyKind.NDJSON, limit=100)
        assert inspector.first_delta_seen
        assert inspector.verdict_at_eof() is UNKNOWN


class TestUnknownApis:
    def test_anything_may_be_the_answer(self):
        assert watch(b'data: {"a":1}\n\n', OTHER).deltas == 1
        assert watch(b"data: plain text\n\n", OTHER).deltas == 1
        assert watch(b": ping\n\nevent: ping\n\ndata:\n\n", OTHER).deltas == 0

    def test_without_a_mark_an_orderly_end_says_nothing(self):
        assert watch(b'data: {"a":1}\n\n', OTHER).verdict_at_eof() is UNKNOWN
        assert watch(b'data: {"a":1}\n\ndata: [DONE]\n\n', OTHER).verdict_at_eof() is COMPLETE
        assert watch(b'data: {"error":"e"}\n\ndata: [DONE]\n\n', OTHER).verdict_at_eof() is ERRORED


KINDS = {
    ("text/event-stream", ""): BodyKind.SSE,
    ("text/event-stream; charset=utf-8", ""): BodyKind.SSE,
    ("Text/Event-Stream ;charset=UTF-8", "identity"): BodyKind.SSE,
    ("text/event-stream", "gzip"): BodyKind.OPAQUE,
    ("text/event-stream", "br"): BodyKind.OPAQUE,
    ("application/json", "identity, gzip"): BodyKind.OPAQUE,
    ("application/x-ndjson", ""): BodyKind.NDJSON,
    ("application/jsonl", ""): BodyKind.NDJSON,
    ("application/json", ""): BodyKind.JSON,
    ("application/problem+json", ""): BodyKind.JSON,
    ("text/plain", ""): BodyKind.OPAQUE,
    ("", ""): BodyKind.OPAQUE,
}


@pytest.mark.parametrize(("headers", "kind"), KINDS.items())
def test_the_headers_choose_how_a_body_is_watched(headers, kind):
    assert choose_body_kind(CHAT, *headers) is kind
