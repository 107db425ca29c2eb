"""The cheapest question there is to a model: how it is asked, and what an answer to it must be."""

import json
from typing import Any, Final

_EMBEDDINGS: Final = "/embeddings"


def build_question(model: str, api_path: str) -> dict[str, Any]:
    """One token, or one embedding, in the form of the API at the path."""
    if api_path.endswith(_EMBEDDINGS):
        return {"model": model, "input": "ping"}
    question: dict[str, Any] = {"model": model, "max_tokens": 1, "temperature": 0, "stream": False}
    if api_path.endswith("/chat/completions"):
        return question | {"messages": [{"role": "user", "content": "ping"}]}
    return question | {"prompt": "ping"}


def is_answer(raw: bytes, api_path: str) -> bool:
    """Whether the body of a 200 is an answer of the API at the path."""
    return is_embedding(raw) if api_path.endswith(_EMBEDDINGS) else is_completion(raw)


def is_completion(raw: bytes) -> bool:
    """Whether every choice came to its end. Its text may be empty: the one token can be the end mark."""
    choices = _read_list(raw, "choices")
    return bool(choices) and all(
        isinstance(choice, dict) and _is_an_end(choice.get("finish_reason")) for choice in choices
    )


def is_embedding(raw: bytes) -> bool:
    """Whether every entry has its figures; some servers send them packed, as text."""
    entries = _read_list(raw, "data")
    return bool(entries) and all(
        isinstance(entry, dict) and isinstance(entry.get("embedding"), list | str) and entry["embedding"]
        for entry in entries
    )


def _read_list(raw: bytes, key: str) -> list[Any]:
    """A list of an answer that holds no error; empty when there is none."""
    try:
        answer = json.loads(raw)
    except (ValueError, RecursionError):
        return []
    found = answer.get(key) if isinstance(answer, dict) and not answer.get("error") else None
    return found if isinstance(found, list) else []


def _is_an_end(finish_reason: object) -> bool:
    """vLLM says `abort` and `error` where an engine gave up."""
    return isinstance(finish_reason, str) and finish_reason not in ("", "abort", "error")
