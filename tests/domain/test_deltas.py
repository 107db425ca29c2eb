"""What each API family's events state; table rows are one event each."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envoy_ext.domain.api import ApiFamily
from envoy_ext.domain.deltas import EventFacts, get_event_reader
from envoy_ext.domain.deltas.facts import STRAY_CHOICE


def read(family, payload, event=""):
    return get_event_reader(family)(payload, event)


def chunk(delta, index=0, finish=None, **more):
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish}], **more}


CHAT_DELTAS = {
    "content": ({"content": "x"}, 1),
    "white space is content": ({"content": " "}, 1),
    "content as parts": ({"content": [{"type": "text", "text": "x"}]}, 1),
    "empty content": ({"content": ""}, 0),
    "no content": ({"content": None}, 0),
    "a role alone": ({"role": "assistant"}, 0),
    "a role with empty content": ({"role": "assistant", "content": ""}, 0),
    "a role with content": ({"role": "assistant", "content": "x"}, 1),
    "reasoning_content": ({"content": None, "reasoning_content": "x"}, 1),
    "reasoning": ({"reasoning": "x"}, 1),
    "empty reasoning": ({"reasoning": "", "reasoning_content": None}, 0),
    "a refusal": ({"refusal": "no"}, 1),
    "a tool call's name": ({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}, 1),
    "a fragment of arguments": ({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}, 1),
    "tool_calls null": ({"content": "", "tool_calls": None}, 0),
    "tool_calls empty": ({"content": "", "tool_calls": []}, 0),
    "a function call": ({"function_call": {"name": "f"}}, 1),
    "audio": ({"audio": {"data": "AA=="}}, 1),
    "a field of no known name": ({"role": "assistant", "padding": "x"}, 0),
    "nothing": ({}, 0),
    "no object": ("x", 0),
}


@pytest.mark.parametrize(("delta", "deltas"), CHAT_DELTAS.values(), ids=CHAT_DELTAS.keys())
def test_a_chat_delta_is_what_a_client_could_read(delta, deltas):
    assert read(ApiFamily.CHAT, chunk(delta)) == EventFacts(deltas=deltas, started=(0,))


FINISHES = {
    "stop": ("stop", True, False),
    "length": ("length", True, False),
    "tool_calls": ("tool_calls", True, False),
    "content_filter": ("content_filter", True, False),
    "function_call": ("function_call", True, False),
    "a word of the engine's own": ("eos", True, False),
    "null": (None, False, False),
    "empty": ("", False, False),
    "no word": (1, False, False),
    "abort": ("abort", False, True),
    "error": ("error", False, True),
    "cancelled": ("cancelled", False, True),
    "abort in capitals": ("ABORT", False, True),
}


@pytest.mark.parametrize(("word", "finished", "aborted"), FINISHES.values(), ids=FINISHES.keys())
def test_a_finish_reason_that_is_a_word_finishes_its_choice_unless_it_says_abort(word, finished, aborted):
    facts = read(ApiFamily.CHAT, chunk({"content": ""}, index=3, finish=word))
    assert facts == EventFacts(started=(3,), finished=(3,) if finished else (), aborted=aborted)


class TestChoices:
    def test_a_chunk_may_carry_several_choices(self):
        payload = {
            "choices": [
                {"index": 0, "delta": {"content": "a"}},
                {"index": 1, "delta": {"content": "b"}, "finish_reason": "stop"},
                {"index": 2, "delta": {"content": ""}},
                "junk",
            ]
        }
        assert read(ApiFamily.CHAT, payload) == EventFacts(deltas=2, started=(0, 1, 2), finished=(1,))

    def test_a_choice_without_index_is_the_first(self):
        assert read(ApiFamily.CHAT, {"choices": [{"delta": {"content": "a"}}]}).started == (0,)

    @pytest.mark.parametrize("index", [-1, 65_536, 10**30, "0", 1.0, []])
    def test_indexes_that_cannot_be_are_one_stray_choice(self, index):
        assert read(ApiFamily.CHAT, chunk({"content": "a"}, index=index)).started == (STRAY_CHOICE,)

    def test_usage_alone_is_no_delta(self):
        payload = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 7}}
        assert read(ApiFamily.CHAT, payload) == EventFacts(output_tokens=7)

    @pytest.mark.parametrize("usage", [None, {}, [], {"completion_tokens": None}])
    def test_usage_may_be_missing(self, usage):
        assert read(ApiFamily.CHAT, {"choices": [], "usage": usage}) == EventFacts()

    @pytest.mark.parametrize("count", [-1, 1.5, "7", True, 10**12, [7]])
    def test_counts_that_cannot_be_are_not_stated(self, count):
        payload = {"choices": [], "usage": {"completion_tokens": count}}
        assert read(ApiFamily.CHAT, payload).output_tokens is None

    def test_the_fingerprint_is_kept(self):
        payload = chunk({"content": "a"}, system_fingerprint="b9465-23e6dab86")
        assert read(ApiFamily.CHAT, payload) == EventFacts(
            deltas=1, started=(0,), model_revision="b9465-23e6dab86"
        )

    @pytest.mark.parametrize("fingerprint", [None, "", 5, "a\nb", "\ud800"])
    def test_a_fingerprint_that_is_no_printable_word_is_not(self, fingerprint):
        assert read(ApiFamily.CHAT, chunk({}, system_fingerprint=fingerprint)).model_revision is None

    def test_a_long_fingerprint_is_cut(self):
        facts = read(ApiFamily.CHAT, chunk({}, system_fingerprint="f" * 1000))
        assert facts.model_revision == "f" * 128

    @pytest.mark.parametrize(("text", "deltas"), [("x", 1), ("\n", 1), ("", 0), (None, 0)])
    def test_a_legacy_completion_reads_its_text(self, text, deltas):
        payload = {"choices": [{"index": 0, "text": text, "finish_reason": None}]}
        assert read(ApiFamily.COMPLETIONS, payload).deltas == deltas


MESSAGES = {
    "message_start, whose usage is a placeholder": (
        {"type": "message_start", "message": {"usage": {"output_tokens": 1}}},
        EventFacts(started=(0,)),
    ),
    "content_block_start": ({"type": "content_block_start", "content_block": {"text": ""}}, EventFacts()),
    "ping": ({"type": "ping"}, EventFacts()),
    "text": (
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "p"}},
        EventFacts(deltas=1, started=(0,)),
    ),
    "empty text": (
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": ""}},
        EventFacts(started=(0,)),
    ),
    "thinking": (
        {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "h"}},
        EventFacts(deltas=1, started=(0,)),
    ),
    "a tool's input": (
        {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "{"}},
        EventFacts(deltas=1, started=(0,)),
    ),
    "a delta that is no object": ({"type": "content_block_delta", "delta": "x"}, EventFacts(started=(0,))),
    "usage and the reason to stop": (
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 4}},
        EventFacts(started=(0,), output_tokens=4),
    ),
    "an abort": (
        {"type": "message_delta", "delta": {"stop_reason": "abort"}},
        EventFacts(started=(0,), aborted=True),
    ),
    "message_stop": ({"type": "message_stop"}, EventFacts(started=(0,), finished=(0,), over=True)),
    "a type of no known name": ({"type": "future"}, EventFacts()),
    "no type": ({}, EventFacts()),
    "a type that is no word": ({"type": []}, EventFacts()),
}


@pytest.mark.parametrize(("payload", "facts"), MESSAGES.values(), ids=MESSAGES.keys())
def test_messages_events(payload, facts):
    assert read(ApiFamily.MESSAGES, payload) == facts


def test_a_messages_event_without_a_type_goes_by_its_name():
    assert read(ApiFamily.MESSAGES, {}, "message_stop").over


def ended(kind, **response):
    return {"type": f"response.{kind}", "response": {"status": kind, **response}}


RESPONSES = {
    "created": (ended("created"), EventFacts(started=(0,))),
    "in_progress": (ended("in_progress"), EventFacts(started=(0,))),
    "an item": ({"type": "response.output_item.added", "item": {"type": "message"}}, EventFacts()),
    "a part": ({"type": "response.content_part.added", "part": {"text": ""}}, EventFacts()),
    "text": ({"type": "response.output_text.delta", "delta": "Hi"}, EventFacts(deltas=1, started=(0,))),
    "empty text": ({"type": "response.output_text.delta", "delta": ""}, EventFacts(started=(0,))),
    "reasoning": (
        {"type": "response.reasoning_text.delta", "delta": "h"},
        EventFacts(deltas=1, started=(0,)),
    ),
    "arguments": (
        {"type": "response.function_call_arguments.delta", "delta": "{"},
        EventFacts(deltas=1, started=(0,)),
    ),
    "a refusal": ({"type": "response.refusal.delta", "delta": "n"}, EventFacts(deltas=1, started=(0,))),
    "done text": ({"type": "response.output_text.done", "text": "Hi"}, EventFacts()),
    "completed": (
        ended("completed", usage={"output_tokens": 3}, error=None, incomplete_details=None),
        EventFacts(started=(0,), finished=(0,), over=True, output_tokens=3),
    ),
    "completed around nothing": (
        {"type": "response.completed"},
        EventFacts(started=(0,), finished=(0,), over=True),
    ),
    "completed around an incomplete response": (
        {"type": "response.completed", "response": {"status": "incomplete"}},
        EventFacts(started=(0,), aborted=True, over=True),
    ),
    "completed with incomplete details": (
        ended("completed", incomplete_details={"reason": "max_output_tokens"}),
        EventFacts(started=(0,), aborted=True, over=True),
    ),
    "incomplete": (
        ended("incomplete", usage={"output_tokens": 9}),
        EventFacts(started=(0,), aborted=True, over=True, output_tokens=9),
    ),
    "cancelled": (ended("cancelled"), EventFacts(started=(0,), aborted=True, over=True)),
    "a type that is no word": ({"type": {}}, EventFacts()),
}


@pytest.mark.parametrize(("payload", "facts"), RESPONSES.values(), ids=RESPONSES.keys())
def test_responses_events(payload, facts):
    assert read(ApiFamily.RESPONSES, payload) == facts


GENERATE = {
    "a token": ({"token": {"text": "x"}, "generated_text": None}, EventFacts(deltas=1, started=(0,))),
    "an empty token": ({"token": {"text": ""}, "generated_text": None}, EventFacts(started=(0,))),
    "the last token": (
        {"token": {"text": "."}, "generated_text": "x.", "details": {"generated_tokens": 2}},
        EventFacts(deltas=1, started=(0,), finished=(0,), over=True, output_tokens=2),
    ),
    "a special token is a mark, not text": (
        {"token": {"text": "</s>", "special": True}, "generated_text": "x."},
        EventFacts(started=(0,), finished=(0,), over=True),
    ),
    "an empty text is a text": (
        {"token": {"text": "", "special": True}, "generated_text": ""},
        EventFacts(started=(0,), finished=(0,), over=True),
    ),
    "nothing": ({}, EventFacts()),
    "SGLang's text": (
        {"text": "x", "meta_info": {"finish_reason": None, "completion_tokens": 1}},
        EventFacts(deltas=1, started=(0,), output_tokens=1),
    ),
    "SGLang's finish": (
        {"text": "x.", "index": 1, "meta_info": {"finish_reason": {"type": "stop", "matched": 7}}},
        EventFacts(deltas=1, started=(1,), finished=(1,)),
    ),
    "SGLang's abort": (
        {"text": "", "meta_info": {"finish_reason": {"type": "abort", "message": "m"}}},
        EventFacts(started=(0,), aborted=True),
    ),
}


@pytest.mark.parametrize(("payload", "facts"), GENERATE.values(), ids=GENERATE.keys())
def test_generate_events(payload, facts):
    assert read(ApiFamily.TGI, payload) == facts


@pytest.mark.parametrize("family", [ApiFamily.EMBEDDINGS, ApiFamily.MODELS, ApiFamily.OTHER])
def test_any_object_of_an_unknown_api_is_a_delta_but_an_error_is_not(family):
    assert read(family, {"anything": 1}).deltas == 1
    assert read(family, {"error": {"message": "m"}}).deltas == 0
    assert read(family, {"error": {"message": "m"}}).error is not None


FIELDS = [
    "choices", "index", "delta", "content", "tool_calls", "text", "finish_reason", "usage",
    "completion_tokens", "output_tokens", "system_fingerprint", "error", "type", "code", "message",
    "http_status_code", "error_type", "object", "response", "status", "incomplete_details",
    "token", "generated_text", "details", "meta_info", "stop_reason",
]  # fmt: skip

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "stop", "abort", "error", "response.completed", "x.delta", "message_stop"])
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(FIELDS),
            inner,
            max_size=6,
        )
    ),
    max_leaves=25,
)


@given(st.sampled_from(ApiFamily), st.dictionaries(st.text(max_size=12), json_values), json_values, st.text())
@settings(max_examples=500, deadline=None)
def test_no_object_makes_a_reader_raise(family, noise, value, event):
    payload = {**noise, **(value if isinstance(value, dict) else {"choices": value})}
    facts = read(family, payload, event)
    assert facts.deltas >= 0
    assert facts.error is None or (facts.deltas == 0 and not facts.finished)
    assert facts.output_tokens is None or 0 <= facts.output_tokens <= 10**9
    json.dumps([facts.model_revision]).encode()
