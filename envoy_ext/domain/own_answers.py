"""Answers that the gateway itself gives in the place of a model: a fixed text, in the API's own shape.

A client reads them like any answer: one body, or one whole stream with its terminal mark. They are marked
as what they are: the model is `envoy-ext`, no token was used, and the response header `x-degraded` names the
rung. The same text and ids give the same bytes.
"""

import json
from dataclasses import dataclass
from typing import Final

from envoy_ext.domain.api import ApiFamily, RequestFacts

MODEL: Final = "envoy-ext"
"""Stands where the name of the model that answered stands: none did."""
MAX_CHOICES: Final = 128
"""OpenAI's own limit for `n`; an answer that is repeated more often is not given at all."""

Fields = dict[str, object]


@dataclass(frozen=True, slots=True)
class OwnAnswer:
    """An HTTP response of 200."""

    content_type: str
    body: bytes


def build_own_answer(facts: RequestFacts, path: str, text: str, name: str, at: int) -> OwnAnswer | None:
    """The answer to such a request; None where its API has no place for a text.

    `name` is the operation's id, `at` the Unix time in whole seconds.
    """
    if facts.choices > MAX_CHOICES:
        return None
    match facts.family:
        case ApiFamily.CHAT | ApiFamily.COMPLETIONS:
            chat = facts.family is ApiFamily.CHAT
            return _build_choices(facts, text, name, at) if chat else _build_texts(facts, text, name, at)
        case ApiFamily.RESPONSES:
            return _build_response(facts.stream, text, name, at)
        case ApiFamily.MESSAGES:
            return _build_message(facts.stream, text, name)
        case ApiFamily.TGI:
            return _build_generated(facts, path, text)
        case _:
            return None


def _build_choices(facts: RequestFacts, text: str, name: str, at: int) -> OwnAnswer:
    head: Fields = {"id": f"chatcmpl-{name}", "created": at, "model": MODEL}
    numbers = range(facts.choices)
    if not facts.stream:
        choices = [_choice(n, "stop", message={"role": "assistant", "content": text}) for n in numbers]
        return _whole({**head, "object": "chat.completion", "choices": choices, "usage": _NO_USAGE})
    chunk: Fields = {**head, "object": "chat.completion.chunk"}
    deltas: list[tuple[Fields, str | None]] = [
        ({"role": "assistant", "content": ""}, None),
        ({"content": text}, None),
        ({}, "stop"),
    ]
    events = [
        {**chunk, "choices": [_choice(n, finish, delta=delta)]} for n in numbers for delta, finish in deltas
    ]
    return _stream([_event(one) for one in events], _DONE)


def _build_texts(facts: RequestFacts, text: str, name: str, at: int) -> OwnAnswer:
    head: Fields = {"id": f"cmpl-{name}", "object": "text_completion", "created": at, "model": MODEL}
    numbers = range(facts.choices)
    if not facts.stream:
        choices = [_choice(n, "stop", text=text) for n in numbers]
        return _whole({**head, "choices": choices, "usage": _NO_USAGE})
    events = [{**head, "choices": [_choice(n, "stop", text=text)]} for n in numbers]
    return _stream([_event(one) for one in events], _DONE)


def _choice(number: int, finish: str | None, **content: object) -> Fields:
    return {"index": number, **content, "logprobs": None, "finish_reason": finish}


def _build_response(stream: bool, text: str, name: str, at: int) -> OwnAnswer:
    part: Fields = {"type": "output_text", "text": text, "annotations": []}
    item: Fields = {"id": f"msg_{name}", "type": "message", "status": "completed", "role": "assistant"}
    ended = _response("completed", [{**item, "content": [part]}], name, at)
    if not stream:
        return _whole(ended)
    begun = _response("in_progress", [], name, at)
    place: Fields = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    opened: Fields = {**item, "status": "in_progress", "content": []}
    said: list[tuple[str, Fields]] = [
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
        ("response.output_item.added", {"output_index": 0, "item": opened}),
        ("response.content_part.added", {**place, "part": {**part, "text": ""}}),
        ("response.output_text.delta", {**place, "delta": text, "logprobs": []}),
        ("response.output_text.done", {**place, "text": text, "logprobs": []}),
        ("response.content_part.done", {**place, "part": part}),
        ("response.output_item.done", {"output_index": 0, "item": {**item, "content": [part]}}),
        ("response.completed", {"response": ended}),
    ]
    events = [
        _event({"type": kind, "sequence_number": number, **fields}, kind)
        for number, (kind, fields) in enumerate(said)
    ]
    return _stream(events)


def _response(status: str, output: list[Fields], name: str, at: int) -> Fields:
    return {
        "id": f"resp_{name}",
        "object": "response",
        "created_at": at,
        "model": MODEL,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "output": output,
        "parallel_tool_calls": False,
        "tool_choice": "none",
        "tools": [],
        "usage": {
            "input_tokens": 0,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 0,
        },
    }


def _build_message(stream: bool, text: str, name: str) -> OwnAnswer:
    message: Fields = {
        "id": f"msg_{name}",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }
    if not stream:
        return _whole(message)
    said: list[tuple[str, Fields]] = [
        ("message_start", {"message": {**message, "content": [], "stop_reason": None}}),
        ("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}),
        ("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": text}}),
        ("content_block_stop", {"index": 0}),
        (
            "message_delta",
            {"delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 0}},
        ),
        ("message_stop", {}),
    ]
    return _stream([_event({"type": kind, **fields}, kind) for kind, fields in said])


def _build_generated(facts: RequestFacts, path: str, text: str) -> OwnAnswer:
    if path == "/generate":
        return _whole({"generated_text": text})
    details: Fields = {"finish_reason": "eos_token", "generated_tokens": 0, "seed": None, "input_length": 0}
    said: Fields = {"id": 0, "text": text, "logprob": 0.0, "special": False}
    last: Fields = {"id": 0, "text": "", "logprob": 0.0, "special": True}
    events = [
        {"index": 1, "token": said, "generated_text": None, "details": None},
        {"index": 2, "token": last, "generated_text": text, "details": details},
    ]
    return _stream([_event(one) for one in events])


_NO_USAGE: Final[Fields] = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
_DONE: Final = b"data: [DONE]\n\n"


def _event(fields: Fields, kind: str = "") -> bytes:
    head = f"event: {kind}\n".encode() if kind else b""
    return head + b"data: " + _json(fields) + b"\n\n"


def _stream(events: list[bytes], end: bytes = b"") -> OwnAnswer:
    return OwnAnswer("text/event-stream; charset=utf-8", b"".join(events) + end)


def _whole(fields: Fields) -> OwnAnswer:
    return OwnAnswer("application/json", _json(fields))


def _json(fields: Fields) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
