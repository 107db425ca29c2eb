"""A limit is lowered and never raised; what a rule does not name stays as the client wrote it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envoy_ext.domain.api import ApiFamily
from envoy_ext.domain.rewriting import (
    MAX_CHANGED_BYTES,
    ask_whole,
    encode_body,
    find_whole_path,
    name_model,
    shorten_generation,
)

CHAT, COMPLETIONS, RESPONSES = ApiFamily.CHAT, ApiFamily.COMPLETIONS, ApiFamily.RESPONSES
MESSAGES, TGI, EMBEDDINGS = ApiFamily.MESSAGES, ApiFamily.TGI, ApiFamily.EMBEDDINGS


@pytest.mark.parametrize(
    ("family", "body", "shorter"),
    [
        (CHAT, {}, {"max_tokens": 256}),
        (CHAT, {"max_tokens": 1000}, {"max_tokens": 256}),
        (CHAT, {"max_tokens": -2}, {"max_tokens": 256}),
        (CHAT, {"max_tokens": 256}, None),
        (CHAT, {"max_tokens": 8}, None),
        (CHAT, {"max_completion_tokens": 1000}, {"max_completion_tokens": 256}),
        (
            CHAT,
            {"max_completion_tokens": 900, "max_tokens": 8},
            {"max_completion_tokens": 256, "max_tokens": 8},
        ),
        (CHAT, {"max_tokens": 900, "min_tokens": 500}, {"max_tokens": 256, "min_tokens": 256}),
        (CHAT, {"max_tokens": None, "n": 2}, {"max_tokens": 256, "n": 2}),
        (COMPLETIONS, {"max_tokens": 900}, {"max_tokens": 256}),
        (COMPLETIONS, {}, None),
        (RESPONSES, {}, {"max_output_tokens": 256}),
        (RESPONSES, {"max_output_tokens": 900}, {"max_output_tokens": 256}),
        (MESSAGES, {"max_tokens": 900}, {"max_tokens": 256}),
        (MESSAGES, {"max_tokens": 900, "thinking": {"budget_tokens": 256}}, None),
        (
            MESSAGES,
            {"max_tokens": 900, "thinking": {"budget_tokens": 255}},
            {"max_tokens": 256, "thinking": {"budget_tokens": 255}},
        ),
        (
            TGI,
            {"inputs": "x", "parameters": {"max_new_tokens": 900}},
            {"inputs": "x", "parameters": {"max_new_tokens": 256}},
        ),
        (TGI, {"inputs": "x"}, None),
        (
            TGI,
            {"text": "x", "sampling_params": {"max_new_tokens": 900}},
            {"text": "x", "sampling_params": {"max_new_tokens": 256}},
        ),
        (EMBEDDINGS, {"input": "x"}, None),
        (ApiFamily.OTHER, {}, None),
    ],
)
def test_the_limit_of_each_api(
    family: ApiFamily, body: dict[str, Any], shorter: dict[str, Any] | None
) -> None:
    before = json.dumps(body)
    assert shorten_generation(family, body, 256) == shorter
    assert json.dumps(body) == before


@given(
    family=st.sampled_from(ApiFamily),
    limits=st.dictionaries(
        st.sampled_from(["max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens"]),
        st.none() | st.integers(-1, 5000),
    ),
    limit=st.integers(1, 4000),
)
def test_no_limit_is_ever_raised(family: ApiFamily, limits: dict[str, Any], limit: int) -> None:
    body = {"model": "m", "messages": [], **limits}
    shorter = shorten_generation(family, body, limit)
    if shorter is None:
        return
    assert {name: shorter[name] for name in ("model", "messages")} == {"model": "m", "messages": []}
    for name, value in limits.items():
        if value is not None and value >= 0:
            assert shorter[name] in (value, limit)
            assert shorter[name] <= value
    assert shorten_generation(family, shorter, limit) is None


def test_another_model_is_named_where_one_is() -> None:
    assert name_model({"model": "big", "a": 1}, "small") == {"model": "small", "a": 1}
    assert name_model({"inputs": "x"}, "small") == {"inputs": "x"}


def test_a_body_is_written_as_it_was_meant_or_not_at_all() -> None:
    assert encode_body({"a": "ä", "b": [1, 2.5, None]}) == '{"a":"ä","b":[1,2.5,null]}'.encode()
    assert encode_body({"half": "\ud83d"}) == b'{"half":"\\ud83d"}'
    assert encode_body({"a": "x" * MAX_CHANGED_BYTES}) is None
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert encode_body({"a": deep}) is None


@pytest.mark.parametrize(
    ("body", "whole"),
    [
        ({"stream": True, "n": 2}, {"stream": False, "n": 2}),
        ({"stream": True, "stream_options": {"include_usage": True}}, {"stream": False}),
        ({"stream": False, "stream_options": {}}, None),
        ({"n": 2}, None),
        ({"stream": None}, None),
    ],
)
def test_an_answer_in_one_piece_is_asked_for_where_a_stream_was(
    body: dict[str, Any], whole: dict[str, Any] | None
) -> None:
    assert ask_whole(body) == whole


def test_of_two_paths_that_of_the_whole_answer_is_asked() -> None:
    assert find_whole_path("/generate_stream?x=/generate_stream") == "/generate?x=/generate_stream"
    assert find_whole_path("/v1/chat/completions?y") == "/v1/chat/completions?y"
