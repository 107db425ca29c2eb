"""How many tokens a prompt is taken for."""

import pytest

from envoy_ext.domain.prompt_size import (
    TOKENS_PER_PART,
    estimate_chat_tokens,
    estimate_input_tokens,
    estimate_messages_tokens,
    estimate_responses_tokens,
)


def user(content):
    return {"messages": [{"role": "user", "content": content}]}


CHATS = {
    "nothing": ({}, 0),
    "four bytes are a token": (user("abcd"), 1),
    "rounded up": (user("abcde"), 2),
    "bytes, not characters": (user("北京今天多云"), 5),
    "half a surrogate pair": (user("\ud800"), 1),
    "rounded once for all messages": ({"messages": [{"content": "a"}] * 8}, 2),
    "a text part": (user([{"type": "text", "text": "abcd"}]), 1),
    "an image": (user([{"type": "image_url", "image_url": {"url": "data:" + "A" * 9000}}]), TOKENS_PER_PART),
    "audio": (user([{"type": "input_audio", "input_audio": {"data": "A" * 9000}}]), TOKENS_PER_PART),
    "a file": (user([{"type": "file", "file": {"file_data": "A" * 9000}}]), TOKENS_PER_PART),
    "text and two images": (
        user([{"type": "text", "text": "abcd"}, {"type": "image_url"}, {"type": "image_url"}]),
        1 + 2 * TOKENS_PER_PART,
    ),
    "an earlier tool call": (
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"a": "bcde"}]}]},
        4,  # [{"a": "bcde"}]
    ),
    "tools": ({"messages": [], "tools": [{"a": "bcde"}]}, 4),
    "junk": ({"messages": [5, None, {"content": {"x": 1}}, {"type": []}], "tools": None}, 0),
    "messages that are no list": ({"messages": {"a": 1}}, 0),
}


@pytest.mark.parametrize(("request_body", "tokens"), CHATS.values(), ids=CHATS.keys())
def test_chat(request_body, tokens):
    assert estimate_chat_tokens(request_body) == tokens


MESSAGES = {
    "a system text": ({"system": "abcd"}, 1),
    "system blocks": ({"system": [{"type": "text", "text": "abcd"}]}, 1),
    "an image": (user([{"type": "image", "source": {"data": "A" * 9000}}]), TOKENS_PER_PART),
    "a tool's result": (user([{"type": "tool_result", "content": [{"type": "text", "text": "abcd"}]}]), 1),
    "a tool's input": (user([{"type": "tool_use", "name": "f", "input": {"a": "bc"}}]), 3),  # {"a": "bc"}
    "thinking": (user([{"type": "thinking", "thinking": "abcd"}]), 1),
}


@pytest.mark.parametrize(("request_body", "tokens"), MESSAGES.values(), ids=MESSAGES.keys())
def test_messages(request_body, tokens):
    assert estimate_messages_tokens(request_body) == tokens


RESPONSES = {
    "a text": ({"instructions": "abcd", "input": "efgh"}, 2),
    "message items": (
        {
            "input": [
                {"type": "message", "content": [{"type": "input_text", "text": "abcd"}]},
                {"content": "efgh"},
            ]
        },
        2,
    ),
    "an image": (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]},
        TOKENS_PER_PART,
    ),
    "a tool call and its output": (
        {"input": [{"type": "function_call", "arguments": "abcd"}, {"type": "x_output", "output": "efgh"}]},
        2,
    ),
}


@pytest.mark.parametrize(("request_body", "tokens"), RESPONSES.values(), ids=RESPONSES.keys())
def test_responses(request_body, tokens):
    assert estimate_responses_tokens(request_body) == tokens


INPUTS = {
    "a text": ("abcde", (2, 1)),
    "texts": (["abcd", "efgh", "i"], (3, 3)),
    "token ids": ([1, 2, 3], (3, 1)),
    "lists of token ids": ([[1, 2], [3]], (3, 2)),
    "an empty list": ([], (0, 1)),
    "nothing": (None, (0, 1)),
    "no prompt": (5, (0, 1)),
    "an object": ({"a": 1}, (0, 1)),
    "an object among texts": (["abcd", {"text": "efgh"}, None], (2, 3)),
}


@pytest.mark.parametrize(("value", "estimate"), INPUTS.values(), ids=INPUTS.keys())
def test_bare_prompts(value, estimate):
    assert estimate_input_tokens(value) == estimate
