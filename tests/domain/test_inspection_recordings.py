"""What the inspector says of recorded answers: from real engines, from reports, and cut into odd chunks."""

import base64
import json

import pytest

from envoy_ext.domain.inspection import BodyKind, Inspector
from tests.domain.inspecting import (
    ABORTED,
    CHAT,
    CLIENT,
    COMPLETE,
    COMPLETIONS,
    DATA,
    ERRORED,
    FAILED,
    LIMIT,
    MESSAGES,
    NO_FINISH,
    OVERLOADED,
    RESPONSES,
    TGI,
    TRUNCATED,
    load,
    observe,
    watch,
)

# file: family, verdict, deltas, which event (counted from 1) holds the first delta, fault of the error
STREAMS = {
    "vllm_chat_ok.sse": (CHAT, COMPLETE, 2, 2, None),
    "vllm_chat_ok_usage.sse": (CHAT, COMPLETE, 2, 2, None),
    "sglang_chat_ok.sse": (CHAT, COMPLETE, 1, 2, None),
    "llamacpp_pings_then_ok.sse": (CHAT, COMPLETE, 2, 5, None),
    "tgi_chat_ok.sse": (CHAT, COMPLETE, 2, 1, None),
    "tgi_generate_stream_ok.sse": (TGI, COMPLETE, 3, 2, None),
    "legacy_completions_ok.sse": (COMPLETIONS, COMPLETE, 3, 1, None),
    "anthropic_ok.sse": (MESSAGES, COMPLETE, 2, 4, None),
    "responses_ok.sse": (RESPONSES, COMPLETE, 1, 5, None),
    "empty_completion_ok.sse": (CHAT, COMPLETE, 0, None, None),
    "ollama_finish_reason_empty_string.sse": (CHAT, COMPLETE, 2, 1, None),
    "framing_bom.sse": (CHAT, COMPLETE, 1, 1, None),
    "framing_malformed_json_event_midstream.sse": (CHAT, COMPLETE, 2, 2, None),
    "framing_done_space_variants.sse": (CHAT, NO_FINISH, 0, None, None),
    "framing_raw_json_error_no_data_prefix.sse": (CHAT, TRUNCATED, 0, None, None),
    "llamacpp_pings_only_then_cut.sse": (CHAT, TRUNCATED, 0, None, None),
    "vllm_role_only_then_cut.sse": (CHAT, TRUNCATED, 0, None, None),
    "vllm_cut_no_finish_no_done.sse": (CHAT, TRUNCATED, 2, 2, None),
    "vllm_finish_null_then_done.sse": (CHAT, NO_FINISH, 2, 2, None),
    "vllm_abort_then_done.sse": (CHAT, ABORTED, 1, 2, None),
    "sglang_abort_graceful.sse": (CHAT, ABORTED, 1, 2, None),
    "sglang_abort_error_then_done.sse": (CHAT, ERRORED, 1, 2, OVERLOADED),
    "vllm_error_midstream_new.sse": (CHAT, ERRORED, 1, 2, FAILED),
    "vllm_error_midstream_old.sse": (CHAT, ERRORED, 1, 2, FAILED),
    "vllm_error_before_first_token.sse": (CHAT, ERRORED, 0, None, FAILED),
    "tgi_chat_error_then_done.sse": (CHAT, ERRORED, 1, 1, FAILED),
    "tgi_chat_validation_error_200.sse": (CHAT, ERRORED, 0, None, CLIENT),
    "tgi_generate_stream_overloaded_first.sse": (TGI, ERRORED, 0, None, OVERLOADED),
}


@pytest.mark.parametrize("name", STREAMS)
class TestStreams:
    def test_verdict_deltas_and_fault(self, name):
        family, verdict, deltas, first, fault = STREAMS[name]
        inspector = watch(load(name), family)
        assert inspector.verdict_at_eof() is verdict
        assert inspector.deltas == deltas
        assert inspector.first_delta_seen is (first is not None)
        assert (inspector.error and inspector.error.fault) == fault
        assert inspector.error_before_delta is (fault is not None and first is None)

    def test_the_same_byte_by_byte(self, name):
        family = STREAMS[name][0]
        body = load(name)
        assert observe(watch([bytes([byte]) for byte in body], family)) == observe(watch(body, family))

    def test_the_first_delta_is_seen_with_the_event_that_holds_it(self, name):
        family, _, _, first, _ = STREAMS[name]
        inspector = Inspector(family, BodyKind.SSE, LIMIT)
        seen = []
        for event in load(name).split(b"\n\n"):
            inspector.feed(event + b"\n\n")
            seen.append(inspector.first_delta_seen)
        assert seen.index(True) + 1 == first if first else not any(seen)


def test_every_recorded_stream_is_watched_here():
    special = {"framing_gzip_body.sse.gz", "n2_interleaved_ok.sse", "n2_llamacpp_finish_index_bug_20226.sse"}
    assert {path.name for path in (DATA / "sse").iterdir()} == set(STREAMS) | special


class TestStreamsOfRealEngines:
    @pytest.mark.parametrize(
        ("name", "tokens", "revision"),
        [
            ("vllm_sse.raw", 32, "vllm-0.32.0-fbc09d19"),
            ("vllm_sse_continuous_usage.raw", 8, "vllm-0.32.0-fbc09d19"),
            ("xllamacpp_sse.raw", 48, "b0-unknown"),
        ],
    )
    def test_a_whole_answer(self, name, tokens, revision):
        body = (DATA / "real" / name).read_bytes()
        events = [json.loads(e[6:]) for e in body.split(b"\n\n") if e and e != b"data: [DONE]"]
        contents = [c["delta"].get("content") for e in events for c in e["choices"]]
        inspector = watch(body)
        assert inspector.verdict_at_eof() is COMPLETE
        assert inspector.deltas == sum(1 for content in contents if content)
        assert inspector.output_tokens == tokens == events[-1]["usage"]["completion_tokens"]
        assert inspector.model_revision == revision
        assert inspector.malformed_events == 0
        assert inspector.boundary == inspector.received == len(body)
        assert observe(watch([bytes([byte]) for byte in body])) == observe(inspector)

    def test_cut_at_any_event_before_the_finish_it_is_truncated_and_counted(self):
        body = (DATA / "real" / "vllm_sse_continuous_usage.raw").read_bytes()
        events = [event + b"\n\n" for event in body.split(b"\n\n")[:-1]]
        for kept in range(len(events)):
            inspector = watch(b"".join(events[:kept]))
            finished = any(b'"finish_reason":"' in event for event in events[:kept])
            assert inspector.verdict_at_eof() is (COMPLETE if finished else TRUNCATED)
            stated = [json.loads(e[6:])["usage"]["completion_tokens"] for e in events[:kept] if b"usage" in e]
            assert inspector.output_tokens == (stated[-1] if stated else 0)

    def test_cut_at_any_byte_it_is_never_complete_before_the_finish(self):
        body = (DATA / "real" / "xllamacpp_sse.raw").read_bytes()
        finish = body.index(b"\n\n", body.index(b'"finish_reason":"')) + 2
        inspector = Inspector(CHAT, BodyKind.SSE, LIMIT)
        for end, byte in enumerate(body, start=1):
            inspector.feed(bytes([byte]))
            assert (inspector.verdict_at_eof() is COMPLETE) == (end >= finish)


PLANS = json.loads((DATA / "json" / "chunk_plans.json").read_text())
PLAN_RESULTS = {
    # plan: verdict, deltas, the chunk (counted from 1) that brings the first delta, fault
    "split_inside_json": (COMPLETE, 1, 2, None),
    "split_inside_field_name": (COMPLETE, 1, 2, None),
    "split_between_the_two_newlines": (COMPLETE, 1, 2, None),
    "one_byte_per_chunk": (COMPLETE, 1, 454, None),  # the 454th byte ends the second event
    "split_inside_3_byte_char": (COMPLETE, 1, 2, None),
    "split_inside_4_byte_char": (COMPLETE, 1, 2, None),
    "crlf_split_multiline": (TRUNCATED, 0, None, None),
    "bom_split_over_chunks": (COMPLETE, 1, 3, None),
    "content_delta_and_error_in_one_chunk": (ERRORED, 1, 2, FAILED),
    "error_and_done_in_first_chunk": (ERRORED, 0, None, FAILED),
    "last_event_and_eos_in_separate_messages": (COMPLETE, 1, 1, None),
    "done_without_final_blank_line": (COMPLETE, 1, 1, None),
    "ping_splits_event_lines": (NO_FINISH, 1, 2, None),
}


@pytest.mark.parametrize("plan", PLANS)
def test_chunk_plans(plan):
    verdict, deltas, first, fault = PLAN_RESULTS[plan]
    chunks = [base64.b64decode(chunk) for chunk in PLANS[plan]["chunks_b64"]]
    inspector = Inspector(CHAT, BodyKind.SSE, LIMIT)
    seen_at = None
    for number, chunk in enumerate(chunks, start=1):
        inspector.feed(chunk)
        if inspector.first_delta_seen and seen_at is None:
            seen_at = number
    assert (inspector.verdict_at_eof(), inspector.deltas, seen_at) == (verdict, deltas, first)
    assert (inspector.error and inspector.error.fault) == fault
    assert inspector.error_before_delta is (fault is not None and first is None)
    assert inspector.malformed_events == 0
    assert observe(watch(b"".join(chunks))) == observe(inspector)
