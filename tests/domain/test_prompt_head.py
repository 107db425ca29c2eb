"""Equal beginnings of prompts give equal first bytes, however they were written down."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envoy_ext.domain.api import ApiFamily
from envoy_ext.domain.prefix_memory import BLOCK_BYTES, hash_prefixes
from envoy_ext.domain.prompt_head import MAX_HEAD_BYTES, read_prompt_head

SYSTEM = {"role": "system", "content": "You are helpful. " * 200}


def chat(*messages: object, **more: object) -> dict[str, object]:
    return {"model": "m", "messages": [SYSTEM, *messages], **more}


def user(text: str) -> dict[str, object]:
    return {"role": "user", "content": text}


def head(request: object, family: ApiFamily = ApiFamily.CHAT) -> bytes:
    return read_prompt_head(family, json.loads(json.dumps(request)))


def test_the_next_turn_begins_with_the_turns_before() -> None:
    first = chat(user("hello"))
    second = chat(user("hello"), {"role": "assistant", "content": "hi"}, user("more"))
    assert head(second).startswith(head(first))


@pytest.mark.parametrize(
    "same",
    [
        chat(user("hello"), temperature=0.7, stream=True, model="another"),
        chat({"content": "hello", "role": "user"}),
        chat({"role": "user", "content": "hello", "name": None}),
        chat({"role": "user", "content": "hello", "cache_control": {"type": "ephemeral"}}),
        chat(user("hello"), tools=None),
        chat(user("hello"), tools=[]),
    ],
)
def test_what_is_no_part_of_the_prompt_changes_nothing(same: object) -> None:
    assert head(same) == head(chat(user("hello")))


@pytest.mark.parametrize(
    "other",
    [
        chat(user("Hello")),
        chat({"role": "assistant", "content": "hello"}),
        chat(user("hello"), tools=[{"name": "f"}]),
        chat(user("hel"), user("lo")),
        chat({"role": "user", "content": [{"type": "text", "text": "hello"}]}),
    ],
)
def test_what_is_a_part_of_the_prompt_counts(other: object) -> None:
    assert head(other) != head(chat(user("hello")))


def test_tools_stand_before_the_messages_as_in_templates() -> None:
    one = head(chat(user("a"), tools=[{"name": "f" * 4000}]))
    other = head(chat(user("b"), tools=[{"name": "f" * 4000}]))
    assert one[:4000] == other[:4000]


@pytest.mark.parametrize(
    ("family", "request_", "part"),
    [
        (ApiFamily.COMPLETIONS, {"prompt": "once upon"}, b"once upon"),
        (ApiFamily.COMPLETIONS, {"prompt": [1, 2, 3]}, b"1 2 3"),
        (ApiFamily.RESPONSES, {"instructions": "be kind", "input": "hi"}, b"be kind\ninput\nhi"),
        (ApiFamily.MESSAGES, {"system": "be kind", "messages": [user("hi")]}, b"be kind\nmessages\n"),
        (ApiFamily.TGI, {"inputs": "once"}, b"once"),
        (ApiFamily.EMBEDDINGS, {"input": "once"}, b""),
        (ApiFamily.MODELS, {}, b""),
    ],
)
def test_each_api_has_its_prompt(family: ApiFamily, request_: object, part: bytes) -> None:
    assert part in head(request_, family)
    assert bool(part) == bool(head(request_, family))


def test_no_more_than_the_limit_is_written_however_long_the_prompt() -> None:
    assert len(head(chat(*(user("ä" * 5000) for _ in range(100))))) == MAX_HEAD_BYTES
    assert len(head(chat(user("x" * 10_000_000)))) == MAX_HEAD_BYTES


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(JSON, st.sampled_from([64, 4096]))
def test_any_json_has_a_head_within_its_limit(value: object, limit: int) -> None:
    request: dict[str, object] = {"messages": value, "prompt": value, "tools": value}
    for family in ApiFamily:
        assert len(read_prompt_head(family, request, limit)) <= limit


def test_turns_of_one_conversation_share_the_hashes_of_whole_blocks() -> None:
    first, second = head(chat(user("hello"))), head(chat(user("hello"), user("more " * 1000)))
    salt = b"s" * 16
    shared = hash_prefixes(first, salt, "m")
    assert len(shared) == len(first) // BLOCK_BYTES == 3
    assert hash_prefixes(second, salt, "m")[:3] == shared
