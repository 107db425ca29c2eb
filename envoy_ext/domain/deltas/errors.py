"""Error events inside an answer, and whose fault they are.

An error inside a `200` is the engine's unless the engine labels it, credibly, as the client's. The
two mistakes do not weigh the same: an engine's death taken for the client's error ends a request
that another replica could answer; a client's error taken for the engine's costs one more attempt.
So doubt means the engine.

Labels that are not credible:
- `BadRequestError` with 400, in vLLM and in servers that took over its error helper (SGLang among
  them), is the helper's default for whatever is raised while streaming, the death of the engine
  included. They validate most of a request before they stream, so it means the engine here.
- `http_status_code` 422 in TGI's chat streams is written for every kind of failure. The fixed words
  at the start of its message tell them apart; the rest of the message is never looked at.

Only type and code are kept, bounded and reduced to a plain alphabet. A message may quote a prompt,
so it is never kept.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from envoy_ext.domain.outcomes import Fault

_MAX_WORD_CHARS: Final = 64
_NOT_PLAIN: Final = re.compile(r"[^A-Za-z0-9_.:-]+")

_OVERLOAD_CODES: Final = frozenset({429, 503, 529})
"""529 is Anthropic's code for overload; the others are HTTP's."""
_OVERLOAD_WORDS: Final = (
    "overload",  # TGI overloaded, Anthropic overloaded_error
    "unavailable",  # SGLang SERVICE_UNAVAILABLE, llama.cpp unavailable_error
    "rate_limit",  # OpenAI and Anthropic
    "ratelimit",
    "too_many_requests",  # SGLang writes the names of HTTP's statuses
)
_CLIENT_CODES: Final = frozenset({400, 401, 403, 404, 405, 413, 415, 422})
"""Not 408, 409, 424, 425, 499: those tell of the server's time, state or parts (TGI: 424 = generation
failed)."""
_CLIENT_WORDS: Final = frozenset(
    {
        "validation",  # TGI, with the three below
        "template_error",
        "missing_template_variable",
        "tool_error",
        "invalid_request_error",  # OpenAI, Anthropic, llama.cpp
        "exceed_context_size_error",  # llama.cpp
        "context_length_exceeded",  # OpenAI
        "invalid_prompt",  # OpenAI Responses
        "not_supported_error",  # llama.cpp
        "not_found_error",
        "authentication_error",
        "permission_error",
        "request_too_large",  # Anthropic
        "bad_request",  # SGLang, from a status its scheduler set on purpose
        "unprocessable_entity",
    }
)
_DEFAULT_LABEL: Final = "badrequesterror"
_TGI_OVERLOADED: Final = "Model is overloaded"
_TGI_FAILED: Final = ("Request failed during generation", "Incomplete generation")


@dataclass(frozen=True, slots=True)
class StreamError:
    """An error event, without its message."""

    fault: Fault
    type: str
    code: str


def read_error(payload: Mapping[str, object], event: str) -> StreamError | None:
    """Read an event as an error, None when it is none.

    An empty `error` is none, as for the OpenAI SDKs. The other shapes are an event that is named
    `error`, or an object that calls itself one (Anthropic, Responses, older vLLM).
    """
    error = payload.get("error")
    if isinstance(error, dict) and error:
        return build_error(error)
    if error:
        message = error if isinstance(error, str) else ""
        return build_error({"type": payload.get("error_type"), "message": message})
    if event == "error" or payload.get("type") == "error" or payload.get("object") == "error":
        return build_error(payload)
    return None


def build_error(error: Mapping[str, object]) -> StreamError:
    """Build the error from its object: type, code and fault."""
    status = error.get("http_status_code")
    code = error.get("code")
    if code is None:
        code = status
    kind = _read_word(error.get("type"))
    word = _read_word(code)
    message = error.get("message")
    return StreamError(
        fault=decide_fault(kind, word, message if isinstance(message, str) else "", status is not None),
        type=kind,
        code=word,
    )


def decide_fault(kind: str, code: str, message: str, is_tgi: bool) -> Fault:
    """Decide whose fault an error is from its labels; `message` counts for TGI's fixed words alone."""
    words = (kind.lower(), code.lower())
    number = int(code) if code.isascii() and code.isdigit() else 0
    if number in _OVERLOAD_CODES or any(part in word for word in words for part in _OVERLOAD_WORDS):
        return Fault.ENGINE_OVERLOADED
    if is_tgi or not any(words):
        if message.startswith(_TGI_OVERLOADED):
            return Fault.ENGINE_OVERLOADED
        if message.startswith(_TGI_FAILED):
            return Fault.ENGINE_FAILED
    if words[0] == _DEFAULT_LABEL:
        return Fault.ENGINE_FAILED
    if number in _CLIENT_CODES or any(word in _CLIENT_WORDS for word in words):
        return Fault.CLIENT
    return Fault.ENGINE_FAILED


def _read_word(value: object) -> str:
    """Read a label as a short plain word; "" when it is no label."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return ""
    if isinstance(value, int):
        # Converting an integer costs the square of its length; no code has more than a few digits.
        return str(value) if abs(value) < 10**9 else ""
    return _NOT_PLAIN.sub("", value[: 4 * _MAX_WORD_CHARS])[:_MAX_WORD_CHARS]
