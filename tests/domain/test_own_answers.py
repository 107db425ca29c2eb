"""A fixed text in each API's own shape: whole by the same judge as an engine's answer, and the same twice."""

import json
from dataclasses import replace

import pytest

from envoy_ext.domain.api import ApiFamily
from envoy_ext.domain.inspection import Inspector, Verdict, choose_body_kind
from envoy_ext.domain.own_answers import MAX_CHOICES, MODEL, build_own_answer
from tests.support.exchange_builders import ReqChat

FACTS = ReqChat().facts
TEXT = 'Später. "quoted" \u2713'
PATHS = {
    ApiFamily.CHAT: "/v1/chat/completions",
    ApiFamily.COMPLETIONS: "/v1/completions",
    ApiFamily.RESPONSES: "/v1/responses",
    ApiFamily.MESSAGES: "/v1/messages",
    ApiFamily.TGI: "/generate_stream",
}


def build(family: ApiFamily, *, stream: bool, choices: int = 1, path: str | None = None):
    facts = replace(FACTS, family=family, stream=stream, choices=choices)
    return build_own_answer(facts, path or PATHS.get(family, "/x"), TEXT, "op_1", 1_750_000_000)


@pytest.mark.parametrize("choices", [1, 3])
@pytest.mark.parametrize("family", list(PATHS))
def test_a_stream_is_whole_by_the_judge_of_engines_streams(family: ApiFamily, choices: int) -> None:
    choices = choices if family in (ApiFamily.CHAT, ApiFamily.COMPLETIONS) else 1
    answer = build(family, stream=True, choices=choices)
    assert answer is not None
    inspector = Inspector(family, choose_body_kind(family, answer.content_type, ""), 1 << 20, choices=choices)
    inspector.feed(answer.body)
    assert (inspector.verdict_at_eof(), inspector.first_delta_seen) == (Verdict.COMPLETE, True)
    assert answer == build(family, stream=True, choices=choices)
    openai_like = family in (ApiFamily.CHAT, ApiFamily.COMPLETIONS)
    assert answer.body.endswith(b"data: [DONE]\n\n") is openai_like


@pytest.mark.parametrize("family", list(PATHS))
def test_a_body_in_one_piece_says_the_text_and_that_no_model_did(family: ApiFamily) -> None:
    path = "/generate" if family is ApiFamily.TGI else None
    answer = build(family, stream=False, choices=2 if family is ApiFamily.CHAT else 1, path=path)
    assert answer is not None
    assert answer.content_type == "application/json"
    told = json.loads(answer.body)
    found = {
        ApiFamily.CHAT: lambda: [one["message"]["content"] for one in told["choices"]],
        ApiFamily.COMPLETIONS: lambda: [one["text"] for one in told["choices"]],
        ApiFamily.RESPONSES: lambda: [told["output"][0]["content"][0]["text"]],
        ApiFamily.MESSAGES: lambda: [told["content"][0]["text"]],
        ApiFamily.TGI: lambda: [told["generated_text"]],
    }[family]()
    assert found == [TEXT] * (2 if family is ApiFamily.CHAT else 1)
    assert family is ApiFamily.TGI or told["model"] == MODEL


@pytest.mark.parametrize("family", [ApiFamily.EMBEDDINGS, ApiFamily.MODELS, ApiFamily.OTHER])
def test_where_no_text_fits_there_is_none(family: ApiFamily) -> None:
    assert build(family, stream=False) is None


def test_a_text_is_not_repeated_for_as_many_choices_as_somebody_likes() -> None:
    assert build(ApiFamily.CHAT, stream=True, choices=MAX_CHOICES) is not None
    assert build(ApiFamily.CHAT, stream=True, choices=MAX_CHOICES + 1) is None
