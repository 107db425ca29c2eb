"""What is dropped of a conversation is its oldest turns; prompts of the system and the last turn never are,
and no tool's result stays without its call.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envoy_ext.domain.api import ApiFamily
from envoy_ext.domain.prompt_size import estimate_chat_tokens
from envoy_ext.domain.turns import shorten_context

CHAT, MESSAGES, RESPONSES = ApiFamily.CHAT, ApiFamily.MESSAGES, ApiFamily.RESPONSES

SYSTEM = {"role": "system", "content": "s"}
DEVELOPER = {"role": "developer", "content": "d"}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def calls(name: str) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": name, "type": "function", "function": {}}]}


def result(name: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": name, "content": "r"}


LONG = [SYSTEM, user("1"), said("a"), DEVELOPER, user("2"), calls("x"), result("x"), said("b"), user("3")]


def shorten(items: list[Any], family: ApiFamily = CHAT, **rule: int) -> list[Any] | None:
    place = "input" if family is RESPONSES else "messages"
    before = {"model": "m", place: items}
    shorter = shorten_context(family, before, **rule)
    assert before == {"model": "m", place: items}
    if shorter is None:
        return None
    assert shorter["model"] == "m"
    return shorter[place]  # type: ignore[return-value]


def test_the_last_turns_stay_with_every_prompt_of_the_system() -> None:
    assert shorten(LONG, keep_turns=1) == [SYSTEM, DEVELOPER, user("3")]
    assert shorten(LONG, keep_turns=2) == [SYSTEM, DEVELOPER, *LONG[4:]]
    assert shorten(LONG, keep_turns=3) is None
    assert shorten([said("hello"), user("1")], keep_turns=1) == [user("1")]
    assert shorten([said("hello"), user("1")], keep_turns=2) is None


def test_as_few_turns_go_as_make_the_prompt_small_enough() -> None:
    items = [SYSTEM, *(user(str(n) * 40) for n in range(1, 6))]
    whole = estimate_chat_tokens({"messages": items})
    assert shorten(items, max_prompt_tokens=whole) is None
    assert shorten(items, max_prompt_tokens=whole - 1) == [SYSTEM, *items[2:]]
    assert shorten(items, max_prompt_tokens=25) == [SYSTEM, *items[4:]]
    assert shorten(items, max_prompt_tokens=1) == [SYSTEM, items[-1]]
    assert shorten([SYSTEM, user("9" * 400)], max_prompt_tokens=1) is None


def test_a_call_and_its_result_are_dropped_together_or_not_at_all() -> None:
    late = [user("1"), calls("x"), user("2"), result("x"), user("3"), said("c"), user("4")]
    assert shorten(late, keep_turns=3) is None
    assert shorten(late, keep_turns=2) == late[4:]


def test_tools_of_the_messages_api_are_results_in_a_message_of_the_users() -> None:
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "f", "input": {}}]}
    gives = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "r"}]}
    items = [user("1"), said("a"), user("2"), use, gives, said("b")]
    assert shorten(items, MESSAGES, keep_turns=1) == items[2:]


def test_items_of_the_responses_api_go_by_turns_too() -> None:
    call = {"type": "function_call", "call_id": "x", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "x", "output": "r"}
    items = [user("1"), {"type": "reasoning", "id": "r"}, call, output, {"type": "message", **user("2")}]
    assert shorten(items, RESPONSES, keep_turns=1) == items[4:]
    crossing = [user("1"), call, user("2"), output, said("b")]
    assert shorten(crossing, RESPONSES, keep_turns=1) is None


@pytest.mark.parametrize(
    ("family", "body"),
    [
        (CHAT, {"messages": [user("1"), "text", user("2")]}),
        (CHAT, {"messages": "text"}),
        (CHAT, {}),
        (RESPONSES, {"input": "text"}),
        (RESPONSES, {"input": [user("1"), user("2")], "previous_response_id": "resp_1"}),
        (RESPONSES, {"input": [user("1"), user("2")], "conversation": "conv_1"}),
        (RESPONSES, {"input": [user("1"), {"type": "item_reference", "id": "i"}, user("2")]}),
        (ApiFamily.COMPLETIONS, {"prompt": "text"}),
        (ApiFamily.EMBEDDINGS, {"input": ["a", "b"]}),
    ],
)
def test_what_is_kept_elsewhere_or_has_no_turns_is_left_alone(
    family: ApiFamily, body: dict[str, Any]
) -> None:
    assert shorten_context(family, body, keep_turns=1) is None


ids = st.sampled_from(["x", "y", "z"])
anything = st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2) | st.just({})
message = st.one_of(
    st.just(SYSTEM),
    st.just(DEVELOPER),
    st.text(max_size=60).map(user),
    st.text(max_size=60).map(said),
    ids.map(calls),
    ids.map(result),
    st.fixed_dictionaries({"role": anything, "content": anything, "tool_calls": anything, "type": anything}),
)


@given(
    items=st.lists(message, max_size=14),
    rule=st.fixed_dictionaries({"keep_turns": st.integers(1, 5)})
    | st.fixed_dictionaries({"max_prompt_tokens": st.integers(1, 60)}),
    family=st.sampled_from([CHAT, MESSAGES, RESPONSES]),
)
def test_whatever_the_conversation_is_what_the_rule_protects_stays(
    items: list[Any], rule: dict[str, int], family: ApiFamily
) -> None:
    numbered = [{**item, "number": number} for number, item in enumerate(items)]
    shorter = shorten(numbered, family, **rule)
    if shorter is None:
        return
    kept = [item["number"] for item in shorter]
    gone = [number for number in range(len(items)) if number not in kept]
    assert gone
    assert kept == sorted(kept)
    assert shorter == [numbered[number] for number in kept]
    assert not any(items[number].get("role") in ("system", "developer") for number in gone)
    users = [number for number, item in enumerate(items) if item.get("role") == "user"]
    assert users[-1] in kept
    # Everything dropped is older than everything that stays, but for what stays wherever it is.
    stays = [number for number in kept if items[number].get("role") not in ("system", "developer")]
    assert max(gone) < min(stays)
    called = {}
    for number, item in enumerate(items):
        if item.get("role") == "tool" and item.get("tool_call_id") in called:
            assert (number in kept) == (called[item["tool_call_id"]] in kept)
        if isinstance(item.get("tool_calls"), list) and item.get("role") == "assistant":
            for one in item["tool_calls"]:
                called[one["id"]] = number


def test_a_conversation_of_very_many_short_messages_is_cut_in_one_go() -> None:
    """Its length does not square: eight thousand turns, each with a call of its own."""
    items = [one for n in range(8_000) for one in (user("x"), calls(f"{n}"), result(f"{n}"))]
    shorter = shorten(items, max_prompt_tokens=50)
    assert shorter is not None
    assert len(shorter) < 100
