"""Changes to a request's body before it goes to a replica: a lower limit, another model's name.

Every function gives a changed copy, or None where there is nothing to change or the rule does not fit the
request; what it does not name stays as the client wrote it.
"""

import json
from typing import Final

from envoy_ext.domain.api import ApiFamily
from envoy_ext.domain.prompt_size import JsonObject

MAX_CHANGED_BYTES: Final = 1 << 20
"""A changed body waits with the sidecar for its slot, up to as many as may wait; a client's own body stays in
Envoy's buffer. What is larger is images or files, and goes as it is."""

_LIMITS: Final[dict[ApiFamily, tuple[str, ...]]] = {
    # The first name is the one that every engine knows.
    ApiFamily.CHAT: ("max_tokens", "max_completion_tokens"),
    ApiFamily.COMPLETIONS: ("max_tokens",),
    ApiFamily.RESPONSES: ("max_output_tokens",),
    ApiFamily.MESSAGES: ("max_tokens",),
}
_UNLIMITED: Final = frozenset({ApiFamily.CHAT, ApiFamily.RESPONSES})
"""Where a request without a limit has none. Elsewhere engines have limits of their own for it, some as low as
16 tokens, and a limit of ours could be a higher one."""
_TGI_LIMIT: Final = "max_new_tokens"


def shorten_generation(family: ApiFamily, body: JsonObject, max_tokens: int) -> JsonObject | None:
    """Limit the answer to so many tokens, where the client has no limit as low of its own."""
    if family is ApiFamily.TGI:
        # TGI reads `parameters`; SGLang's own call, which has the same path, reads `sampling_params`.
        place = "sampling_params" if "sampling_params" in body or "text" in body else "parameters"
        inner = body.get(place)
        parameters = inner if isinstance(inner, dict) else {}
        lowered = _lower(parameters, (_TGI_LIMIT,), max_tokens)
        return None if lowered is None else {**body, place: lowered}
    names = _LIMITS.get(family)
    if names is None or _thinks_longer(body, max_tokens):
        return None
    return _lower(body, names, max_tokens, names[0] if family in _UNLIMITED else None)


def name_model(body: JsonObject, model: str) -> JsonObject:
    """Ask for another model. A request that names none (TGI's need not) means its server's own."""
    return body if body.get("model") is None else {**body, "model": model}


def ask_whole(body: JsonObject) -> JsonObject | None:
    """Ask for the answer in one piece; None where that is what is asked for."""
    if not body.get("stream"):
        return None
    # Engines refuse options of a stream that there is none of.
    return {**{name: value for name, value in body.items() if name != "stream_options"}, "stream": False}


_STREAM_PATH: Final = "/generate_stream"


def find_whole_path(path: str) -> str:
    """Where the same is asked in one piece: TGI has a path for each. With the query, if there is one."""
    place, mark, query = path.partition("?")
    return ("/generate" if place == _STREAM_PATH else place) + mark + query


def encode_body(body: JsonObject, max_bytes: int = MAX_CHANGED_BYTES) -> bytes | None:
    """The body as JSON; None where it is too large, or cannot be written."""
    try:
        text = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
    except RecursionError:
        return None
    try:
        encoded = text.encode()
    except UnicodeEncodeError:  # half a surrogate pair: JSON can spell it, UTF-8 cannot
        encoded = json.dumps(body, separators=(",", ":")).encode()
    return encoded if len(encoded) <= max_bytes else None


def _lower(
    place: JsonObject, names: tuple[str, ...], max_tokens: int, default: str | None = None
) -> JsonObject | None:
    given = {name: place[name] for name in names if place.get(name) is not None}
    lower = {name: max_tokens for name, value in given.items() if _allows_more(value, max_tokens)}
    if not given and default is not None:
        lower = {default: max_tokens}
    if not lower:
        return None
    for least in ("min_tokens", "min_new_tokens"):
        if _is_above(place.get(least), max_tokens):
            lower[least] = max_tokens  # engines refuse a request whose bounds cross
    return {**place, **lower}


def _allows_more(value: object, limit: int) -> bool:
    """A negative limit means none to llama.cpp."""
    return isinstance(value, int | float) and not isinstance(value, bool) and (value > limit or value < 0)


def _is_above(value: object, limit: int) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > limit


def _thinks_longer(body: JsonObject, max_tokens: int) -> bool:
    """Whether the request gives thinking alone more tokens than that, which the Messages API refuses."""
    thinking = body.get("thinking")
    return isinstance(thinking, dict) and _is_above(thinking.get("budget_tokens"), max_tokens - 1)
