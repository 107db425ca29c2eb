"""Reads the chunks of chat completions and of legacy completions.

Terminal mark: a `finish_reason` that is a word, for every choice that started. null and "" mean "not
yet" (Ollama writes "" on each chunk).
"""

from typing import Final

from envoy_ext.domain.deltas.errors import read_error
from envoy_ext.domain.deltas.facts import (
    ABORT_WORDS,
    NOTHING,
    ONE_DELTA,
    EventFacts,
    JsonObject,
    read_choice,
    read_revision,
    read_tokens,
)

_READABLE: Final = (
    "content",
    "reasoning_content",  # SGLang, llama.cpp, older vLLM
    "reasoning",  # vLLM
    "tool_calls",
    "refusal",
    "function_call",
    "audio",
)
"""Fields of a chat delta that a client reads as answer when they are not empty."""


def read_choices_event(payload: JsonObject, event: str) -> EventFacts:
    """Read one `chat.completion.chunk` or `text_completion` object."""
    error = read_error(payload, event)
    if error is not None:
        return EventFacts(error=error)
    deltas = 0
    aborted = False
    started: list[int] = []
    finished: list[int] = []
    choices = payload.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if not isinstance(choice, dict):
            continue
        index = read_choice(choice.get("index"))
        started.append(index)
        if _is_readable(choice):
            deltas += 1
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            if reason.lower() in ABORT_WORDS:
                aborted = True
            else:
                finished.append(index)
    usage = payload.get("usage")
    output_tokens = read_tokens(usage, "completion_tokens") if usage else None
    revision = read_revision(payload.get("system_fingerprint"))
    if output_tokens is None and revision is None and not finished and not aborted:
        if deltas == 1 and started == [0]:
            return ONE_DELTA
        if not started:
            return NOTHING
    return EventFacts(
        deltas=deltas,
        output_tokens=output_tokens,
        started=tuple(started),
        finished=tuple(finished),
        aborted=aborted,
        model_revision=revision,
    )


def _is_readable(choice: JsonObject) -> bool:
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return any(delta.get(field) for field in _READABLE)
    return bool(choice.get("text"))
