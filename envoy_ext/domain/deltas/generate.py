"""Reads the events of `/generate_stream` and `/generate`: TGI's, and SGLang's native ones.

Terminal mark: TGI, a `generated_text` that is not null ("" is a text); SGLang, a
`meta_info.finish_reason`. https://huggingface.github.io/text-generation-inference/ (TGI's OpenAPI
description) and https://docs.sglang.io/basic_usage/native_api.html
"""

from envoy_ext.domain.deltas.errors import read_error
from envoy_ext.domain.deltas.facts import (
    ABORT_WORDS,
    NOTHING,
    EventFacts,
    JsonObject,
    read_choice,
    read_tokens,
)


def read_generate_event(payload: JsonObject, event: str) -> EventFacts:
    """Read one event of either engine; what it holds tells which."""
    error = read_error(payload, event)
    if error is not None:
        return EventFacts(error=error)
    meta = payload.get("meta_info")
    if isinstance(meta, dict):
        return _read_sglang(payload, meta)
    token = payload.get("token")
    # TGI's own clients skip special tokens (</s>): they are marks, not text that anybody reads.
    readable = isinstance(token, dict) and token.get("special") is not True
    text = token.get("text") if isinstance(token, dict) and readable else None
    ended = payload.get("generated_text") is not None
    if not ended and not isinstance(token, dict):
        return NOTHING
    return EventFacts(
        deltas=1 if text else 0,
        started=(0,),
        finished=(0,) if ended else (),
        over=ended,
        output_tokens=read_tokens(payload.get("details"), "generated_tokens"),
    )


def _read_sglang(payload: JsonObject, meta: JsonObject) -> EventFacts:
    """Read SGLang's shape: text (all of it so far, or the last piece) beside `meta_info`."""
    index = read_choice(payload.get("index"))
    finish = meta.get("finish_reason")
    reason = finish.get("type") if isinstance(finish, dict) else finish
    ended = isinstance(reason, str) and bool(reason)
    aborted = isinstance(reason, str) and reason.lower() in ABORT_WORDS
    return EventFacts(
        deltas=1 if payload.get("text") or payload.get("output_ids") else 0,
        started=(index,),
        finished=(index,) if ended and not aborted else (),
        aborted=aborted,
        output_tokens=read_tokens(meta, "completion_tokens"),
    )
