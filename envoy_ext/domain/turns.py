"""Shortening a conversation: its oldest turns go, by rule, and what the rule protects stays.

A turn begins with a message of the user's and reaches to the next one: answers, calls of tools and their
results are part of it. Turns are dropped whole and from the oldest on, and

* never a system or developer prompt, wherever it stands;
* never the last turn, so never what the user asked last;
* never a call of a tool without its result, or the other way round: where a pair reaches over the
  cut, the cut is made before it.

What was said before the first message of the user's (few-shot examples, a greeting) is the oldest of all.
Nothing is dropped of a conversation that is partly kept elsewhere, or that has a shape that is not known: the
engine would be told half of something.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Final

from envoy_ext.domain.api import ApiFamily
from envoy_ext.domain.prompt_size import (
    JsonObject,
    estimate_chat_tokens,
    estimate_messages_tokens,
    estimate_responses_tokens,
)

_STAYS: Final = frozenset({"system", "developer"})
_PLACES: Final = {ApiFamily.CHAT: "messages", ApiFamily.MESSAGES: "messages", ApiFamily.RESPONSES: "input"}
_ESTIMATES: Final[dict[ApiFamily, Callable[[JsonObject], int]]] = {
    ApiFamily.CHAT: estimate_chat_tokens,
    ApiFamily.MESSAGES: estimate_messages_tokens,
    ApiFamily.RESPONSES: estimate_responses_tokens,
}


def shorten_context(
    family: ApiFamily,
    body: JsonObject,
    *,
    keep_turns: int | None = None,
    max_prompt_tokens: int | None = None,
) -> JsonObject | None:
    """The request with its oldest turns dropped, as few as the bound asks for; None where none can be.

    `keep_turns` is how many of the last ones stay, `max_prompt_tokens` how large the prompt may be by the
    estimate: when even the last turn is larger, it stays alone.
    """
    place = _PLACES.get(family)
    items = None if place is None else _read_items(body, place)
    if place is None or items is None:
        return None
    cuts = _list_cuts(items)
    if keep_turns is not None:
        turns = [number for number, item in enumerate(items) if _begins_turn(item)]
        wanted = turns[-keep_turns] if len(turns) >= keep_turns else 0
        cuts = [cut for cut in cuts if cut <= wanted][-1:]
    if max_prompt_tokens is not None:
        estimate = _ESTIMATES[family]
        if estimate(body) <= max_prompt_tokens:
            return None
        # The later the cut, the smaller the prompt.
        fits = bisect_left(cuts, -max_prompt_tokens, key=lambda cut: -estimate(_cut(body, place, items, cut)))
        cuts = cuts[fits:][:1] or cuts[-1:]
    if not cuts:
        return None
    shorter = _cut(body, place, items, cuts[0])
    return None if shorter[place] == items else shorter


def _cut(body: JsonObject, place: str, items: list[JsonObject], cut: int) -> JsonObject:
    stays = [item for item in items[:cut] if _read_role(item) in _STAYS]
    return {**body, place: [*stays, *items[cut:]]}


def _read_items(body: JsonObject, place: str) -> list[JsonObject] | None:
    """The conversation, None where a part of it is elsewhere or cannot be read."""
    items = body.get(place)
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        return None
    kept_elsewhere = body.get("previous_response_id") or body.get("conversation")
    if kept_elsewhere or any(item.get("type") == "item_reference" for item in items):
        return None
    return items


def _begins_turn(item: JsonObject) -> bool:
    """Whether the user speaks. In the Messages API a tool's results come in a message of the user's."""
    if _read_role(item) != "user":
        return False
    content = item.get("content")
    return not (isinstance(content, list) and any(_is_part(part, "tool_result") for part in content))


def _list_cuts(items: list[JsonObject]) -> list[int]:
    """Where turns begin, but for the first item and for places that a call's result is behind."""
    called: dict[str, int] = {}
    over = [0] * (len(items) + 1)
    for number, item in enumerate(items):
        for one in _list_results(item):
            if isinstance(one, str) and one in called:
                over[called[one] + 1] += 1
                over[number + 1] -= 1
        for one in _list_calls(item):
            if isinstance(one, str):
                called[one] = number
    open_pairs = list(accumulate(over))
    return [
        number
        for number, item in enumerate(items)
        if number and _begins_turn(item) and not open_pairs[number]
    ]


def _list_calls(item: JsonObject) -> Iterator[object]:
    """What an item asks of tools, by the ids that the results bear."""
    kind = item.get("type")
    if isinstance(kind, str) and not kind.endswith("_output"):
        yield item.get("call_id")
        if kind == "mcp_approval_request":
            yield item.get("id")
    for call in _list_parts(item.get("tool_calls")):
        yield call.get("id")
    for part in _list_parts(item.get("content")):
        if _is_part(part, "tool_use"):
            yield part.get("id")


def _list_results(item: JsonObject) -> Iterator[object]:
    kind = item.get("type")
    if isinstance(kind, str) and kind.endswith("_output"):
        yield item.get("call_id")
    yield item.get("approval_request_id")
    yield item.get("tool_call_id")
    for part in _list_parts(item.get("content")):
        if _is_part(part, "tool_result"):
            yield part.get("tool_use_id")


def _read_role(item: JsonObject) -> str:
    role = item.get("role")
    return role if isinstance(role, str) else ""


def _list_parts(value: object) -> Iterator[JsonObject]:
    return (one for one in value if isinstance(one, dict)) if isinstance(value, list) else iter(())


def _is_part(part: object, kind: str) -> bool:
    return isinstance(part, dict) and part.get("type") == kind
