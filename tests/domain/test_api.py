"""Which API a request belongs to, and the facts read from its body."""

import gzip
import json
import zlib
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envoy_ext.domain.api import ApiFamily, InvalidRequest, RequestFacts, match_api, read_request

PATHS = {
    ("POST", "/v1/chat/completions"): ApiFamily.CHAT,
    ("POST", "/v1/chat/completions?api-version=1"): ApiFamily.CHAT,
    ("POST", "/v1/completions"): ApiFamily.COMPLETIONS,
    ("POST", "/v1/responses"): ApiFamily.RESPONSES,
    ("POST", "/v1/messages"): ApiFamily.MESSAGES,
    ("POST", "/v1/embeddings"): ApiFamily.EMBEDDINGS,
    ("POST", "/generate_stream"): ApiFamily.TGI,
    ("POST", "/generate"): ApiFamily.TGI,
    ("GET", "/v1/models"): ApiFamily.MODELS,
    ("HEAD", "/v1/models"): ApiFamily.MODELS,
    ("GET", "/v1/models/llama-3.1-8b"): ApiFamily.MODELS,
    ("GET", "/v1/models/org/name?x=1"): ApiFamily.MODELS,
    ("GET", "/v1/models/org%2Fname"): ApiFamily.MODELS,
    ("GET", "/v1/models/"): None,
    ("GET", "/v1/modelsx"): None,
    ("GET", "/v1/models/../../metrics"): None,
    ("GET", "/v1/models/%2e%2e/%2E%2E/metrics"): None,
    ("GET", "/v1/models/x%2f..%2f..%2fmetrics"): None,
    ("GET", "/v1/models//metrics"): None,
    ("DELETE", "/v1/models/x"): None,
    ("GET", "/v1/chat/completions"): None,
    ("OPTIONS", "/v1/chat/completions"): None,
    ("POST", "/v1/chat/completions/"): None,
    ("POST", "/V1/chat/completions"): None,
    ("POST", "//v1/chat/completions"): None,
    ("POST", "/v1/responses/resp_1/cancel"): None,
    ("POST", "/v1/messages/count_tokens"): None,
    ("POST", "/tokenize"): None,
    ("GET", "/health"): None,
    ("POST", "/"): None,
    ("POST", ""): None,
    ("post", "/v1/completions"): None,
}


@pytest.mark.parametrize(("request_line", "family"), PATHS.items())
def test_method_and_path_name_the_family(request_line, family):
    assert match_api(*request_line) is family


def read(family, request, **options):
    return read_request(family, json.dumps(request).encode(), **options)


CHAT_REQUEST = {
    "model": "llama-3.1-8b",
    "messages": [{"role": "user", "content": "x" * 400}],
    "stream": True,
    "n": 2,
    "max_tokens": 64,
}


class TestFacts:
    def test_a_chat_request(self):
        assert read(ApiFamily.CHAT, CHAT_REQUEST) == RequestFacts(
            ApiFamily.CHAT, "llama-3.1-8b", True, 2, 100, 64
        )

    def test_what_is_absent_or_null_has_its_default(self):
        facts = RequestFacts(ApiFamily.CHAT, None, False, 1, 0, None)
        assert read(ApiFamily.CHAT, {}) == facts
        nulls = {
            "model": None,
            "messages": None,
            "stream": None,
            "n": None,
            "max_tokens": None,
            "tools": None,
        }
        assert read(ApiFamily.CHAT, nulls) == facts

    def test_an_empty_model_is_the_engines_own(self):
        assert read(ApiFamily.CHAT, {"model": ""}).model is None

    def test_the_newer_limit_comes_first(self):
        both = {"max_completion_tokens": 5, "max_tokens": 9}
        assert read(ApiFamily.CHAT, both).max_output_tokens == 5
        assert read(ApiFamily.CHAT, {**both, "max_completion_tokens": None}).max_output_tokens == 9

    def test_a_negative_limit_is_none_and_whole_floats_are_integers(self):
        assert read(ApiFamily.CHAT, {"max_tokens": -1}).max_output_tokens is None
        assert read(ApiFamily.CHAT, {"max_tokens": 16.0, "n": 2.0}).max_output_tokens == 16

    def test_completions_answer_each_prompt_n_times(self):
        request = {"model": "m", "prompt": ["a" * 8, "b" * 8, "c"], "n": 2, "max_tokens": 3}
        assert read(ApiFamily.COMPLETIONS, request) == RequestFacts(
            ApiFamily.COMPLETIONS, "m", False, 6, 5, 3
        )

    def test_responses_have_one_answer_whatever_n_says(self):
        request = {"model": "m", "input": "abcd", "stream": True, "n": 3, "max_output_tokens": 7}
        assert read(ApiFamily.RESPONSES, request) == RequestFacts(ApiFamily.RESPONSES, "m", True, 1, 1, 7)

    def test_messages(self):
        request = {"model": "m", "system": "abcd", "messages": [], "stream": True, "max_tokens": 8}
        assert read(ApiFamily.MESSAGES, request) == RequestFacts(ApiFamily.MESSAGES, "m", True, 1, 1, 8)

    def test_embeddings_do_not_stream_by_themselves(self):
        request = {"model": "m", "input": ["abcd", "efgh"]}
        assert read(ApiFamily.EMBEDDINGS, request) == RequestFacts(
            ApiFamily.EMBEDDINGS, "m", False, 1, 2, None
        )

    def test_tgi_streams_by_its_path(self):
        request = {"inputs": "abcdefgh", "parameters": {"max_new_tokens": 20}}
        facts = RequestFacts(ApiFamily.TGI, None, True, 1, 2, 20)
        assert read(ApiFamily.TGI, request) == facts
        assert read(ApiFamily.TGI, request, path="/generate_stream?x=1") == facts
        assert not read(ApiFamily.TGI, request, path="/generate").stream
        assert not read(ApiFamily.TGI, {**request, "stream": False}, path="/generate").stream
        assert read(ApiFamily.TGI, {**request, "stream": True}, path="/generate").stream

    def test_sglang_generate(self):
        request = {"text": ["abcd", "efgh"], "sampling_params": {"max_new_tokens": 9, "n": 2}, "stream": True}
        assert read(ApiFamily.TGI, request) == RequestFacts(ApiFamily.TGI, None, True, 4, 2, 9)
        assert read(ApiFamily.TGI, {"input_ids": [1, 2, 3]}).prompt_tokens_estimate == 3

    @pytest.mark.parametrize("family", [ApiFamily.MODELS, ApiFamily.OTHER])
    def test_families_without_a_known_body_are_not_read(self, family):
        assert read_request(family, b"\xff not json") == RequestFacts(family, None, False, 1, 0, None)

    def test_the_last_of_two_values_counts(self):
        body = b'{"stream": false, "stream": true, "model": "a", "model": "b"}'
        facts = read_request(ApiFamily.CHAT, body)
        assert (facts.stream, facts.model) == (True, "b")

    def test_json_may_come_as_the_engines_take_it(self):
        text = json.dumps(CHAT_REQUEST)
        for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32"):
            assert read_request(ApiFamily.CHAT, text.encode(encoding)).choices == 2


POSTED = sorted(set(ApiFamily) - {ApiFamily.MODELS, ApiFamily.OTHER})

MISTAKES = {
    "no body": (b"", "body: is not valid JSON (line 1, column 1); send a JSON object"),
    "no JSON": (b'{"model":\n "secret', "body: is not valid JSON (line 2, column 2); send a JSON object"),
    "trailing data": (b'{} {"secret":1}', "body: is not valid JSON (line 1, column 4); send a JSON object"),
    "a list": (b"[]", "body: must be a JSON object"),
    "null": (b"null", "body: must be a JSON object"),
    "a text": (b'"secret"', "body: must be a JSON object"),
    "no UTF-8": (b'{"model": "\xff"}', "body: is not valid UTF-8; send JSON encoded as UTF-8"),
    "deep lists": (b"[" * 100_000, "body: is nested too deeply; flatten it"),
    "deep objects": (b'{"a":' * 100_000, "body: is nested too deeply; flatten it"),
    "a huge integer": (
        b'{"seed": ' + b"9" * 5_000 + b"}",
        "body: holds a number with too many digits; shorten it",
    ),
    "a model that is no text": (b'{"model": 5}', "model: must be a string"),
    "a model that is a list": (b'{"model": ["secret"]}', "model: must be a string"),
    "a long model": (
        b'{"model": "' + b"m" * 1025 + b'"}',
        "model: is too long; use at most 1024 characters",
    ),
    "a model with a line end": (
        b'{"model": "a\\nb"}',
        "model: holds characters that cannot be printed; remove them",
    ),
    "a model with half a surrogate pair": (
        b'{"model": "\\ud800"}',
        "model: holds characters that cannot be printed; remove them",
    ),
    "stream in words": (b'{"stream": "yes"}', "stream: must be true or false"),
    "stream in numbers": (b'{"stream": 1}', "stream: must be true or false"),
}


@pytest.mark.parametrize("family", POSTED)
@pytest.mark.parametrize(("body", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_named_with_its_place_and_never_quoted(family, body, message):
    with pytest.raises(InvalidRequest) as raised:
        read_request(family, body)
    assert str(raised.value) == message
    assert "secret" not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(
    ("request_body", "message"),
    [
        ({"n": "2"}, "n: must be an integer"),
        ({"n": 1.5}, "n: must be an integer"),
        ({"n": True}, "n: must be an integer"),
        ({"n": float("nan")}, "n: must be an integer"),
        ({"n": float("inf")}, "n: must be an integer"),
        ({"n": 0}, "n: must be at least 1"),
        ({"n": -1}, "n: must be at least 1"),
        ({"n": 2**31}, "n: is out of range; use at most 2147483647"),
        ({"n": 1e300}, "n: is out of range; use at most 2147483647"),
        ({"max_tokens": "many"}, "max_tokens: must be an integer"),
        ({"max_tokens": 10**100}, "max_tokens: is out of range; use at most 2147483647"),
        ({"max_completion_tokens": []}, "max_completion_tokens: must be an integer"),
    ],
)
def test_a_number_that_is_none_is_named(request_body, message):
    with pytest.raises(InvalidRequest) as raised:
        read(ApiFamily.CHAT, request_body)
    assert str(raised.value) == message


def test_a_mistake_in_an_inner_object_is_named_with_its_path():
    with pytest.raises(InvalidRequest, match=r"^parameters\.max_new_tokens: must be an integer$"):
        read(ApiFamily.TGI, {"parameters": {"max_new_tokens": "5"}})
    with pytest.raises(InvalidRequest, match=r"^sampling_params\.n: must be at least 1$"):
        read(ApiFamily.TGI, {"sampling_params": {"n": 0}})


@pytest.mark.parametrize("depth", [10, 100, 450, 900, 2000])
@pytest.mark.parametrize(
    ("opening", "closing", "tail"),
    [(b'{"tools":', b"}", b"1"), (b'{"messages":', b"}", b'"x"')],
    ids=["tools", "messages"],
)
def test_nesting_that_json_still_allows_breaks_nothing_behind_it(depth, opening, closing, tail):
    inner = b'[{"content":' * depth + tail + b"}]" * depth
    with suppress(InvalidRequest):  # how deep JSON may go depends on the stack below
        assert read_request(ApiFamily.CHAT, opening + inner + closing).prompt_tokens_estimate > 0


class TestContentEncoding:
    BODY = json.dumps(CHAT_REQUEST).encode()

    @pytest.mark.parametrize(
        ("body", "coding"),
        [
            (BODY, ""),
            (BODY, "identity"),
            (gzip.compress(BODY), "gzip"),
            (gzip.compress(BODY), " GZip , identity"),
            (gzip.compress(BODY), "x-gzip"),
            (gzip.compress(BODY[:50]) + gzip.compress(BODY[50:]), "gzip"),
            (zlib.compress(BODY), "deflate"),
            (zlib.compress(BODY, wbits=-15), "deflate"),
        ],
        ids=["none", "identity", "gzip", "spelled", "x-gzip", "members", "deflate", "bare_deflate"],
    )
    def test_a_compressed_body_is_read_as_the_plain_one(self, body, coding):
        assert read_request(ApiFamily.CHAT, body, coding) == read_request(ApiFamily.CHAT, self.BODY)

    @pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "deflate, gzip", "compress", "chunked"])
    def test_other_codings_are_refused(self, coding):
        with pytest.raises(
            InvalidRequest, match=r"^content-encoding: is not supported; send gzip, deflate or none$"
        ):
            read_request(ApiFamily.CHAT, self.BODY, coding)

    @pytest.mark.parametrize("coding", ["gzip", "deflate"])
    @pytest.mark.parametrize("body", [BODY, b"\x1f\x8b\x08junk", gzip.compress(BODY) + b"junk"])
    def test_what_does_not_match_its_coding_is_refused(self, coding, body):
        with pytest.raises(InvalidRequest, match=r"^body: (does not match|its compressed form)"):
            read_request(ApiFamily.CHAT, body, coding)

    @pytest.mark.parametrize("coding", ["gzip", "deflate"])
    def test_a_cut_body_is_refused(self, coding):
        compress = gzip.compress if coding == "gzip" else zlib.compress
        for body in (b"", compress(self.BODY)[:-1]):
            with pytest.raises(
                InvalidRequest, match=r"^body: its compressed form is cut short; send all of it$"
            ):
                read_request(ApiFamily.CHAT, body, coding)

    @pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
    def test_the_decoded_size_is_bounded(self, compress):
        coding = "gzip" if compress is gzip.compress else "deflate"
        padded = self.BODY + b" " * (4096 - len(self.BODY))
        bounded = {"max_decoded_bytes": 4096}
        assert read_request(ApiFamily.CHAT, compress(padded), coding, **bounded).choices == 2
        with pytest.raises(
            InvalidRequest, match=r"^body: is larger than 4096 bytes when decoded; send less$"
        ):
            read_request(ApiFamily.CHAT, compress(padded + b" "), coding, **bounded)

    def test_members_share_one_bound(self):
        bomb = gzip.compress(b" " * 1000) * 5
        with pytest.raises(InvalidRequest, match="larger than 4096 bytes"):
            read_request(ApiFamily.CHAT, bomb, "gzip", max_decoded_bytes=4096)

    def test_there_are_not_many_members(self):
        with pytest.raises(InvalidRequest, match="more than 16 gzip members"):
            read_request(ApiFamily.CHAT, gzip.compress(b"") * 17, "gzip")


@given(
    st.sampled_from(POSTED),
    st.one_of(
        st.binary(max_size=100),
        st.dictionaries(
            st.sampled_from(
                [
                    "model",
                    "stream",
                    "n",
                    "messages",
                    "prompt",
                    "input",
                    "max_tokens",
                    "tools",
                    "system",
                    "inputs",
                ]
            ),
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
                lambda inner: (
                    st.lists(inner, max_size=3)
                    | st.dictionaries(
                        st.sampled_from(["role", "content", "type", "text", "tool_calls", "input", "output"]),
                        inner,
                    )
                ),
                max_leaves=10,
            ),
        ).map(lambda request: json.dumps(request).encode()),
    ),
    st.sampled_from(["", "gzip", "deflate"]),
)
@settings(max_examples=400, deadline=None)
def test_no_body_raises_anything_but_invalid_request(family, body, coding):
    with suppress(InvalidRequest):
        facts = read_request(family, body, coding)
        assert facts.choices >= 1
        assert facts.prompt_tokens_estimate >= 0
