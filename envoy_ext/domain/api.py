"""The APIs that engines speak: which one a request belongs to, and the few facts read from its body.

The body is read once and passed on untouched. Only what a decision needs is read; the rest is left to
the engine to judge, which is as lenient or strict as its users know it.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import unquote

from envoy_ext.domain.content_coding import UnreadableBody, decode_body
from envoy_ext.domain.errors import EnvoyExtError
from envoy_ext.domain.prompt_size import (
    JsonObject,
    estimate_chat_tokens,
    estimate_input_tokens,
    estimate_messages_tokens,
    estimate_responses_tokens,
)

DEFAULT_MAX_DECODED_BYTES: Final = 64 * 1024 * 1024
"""Four times the default limit for a request: text compresses by about that, and what compresses much
better is not a prompt."""
_MAX_INTEGER: Final = 2**31 - 1
"""Engines keep these numbers in 32-bit integers."""
_MAX_MODEL_CHARS: Final = 1024


class ApiFamily(StrEnum):
    """APIs whose requests and answers have the same shape."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    TGI = "tgi"
    EMBEDDINGS = "embeddings"
    MODELS = "models"
    OTHER = "other"
    """A path that the configuration lets through unread."""


NOT_COMPUTED: Final = frozenset({ApiFamily.MODELS, ApiFamily.OTHER})
"""Whose answers say nothing of a model; of the second nobody knows what it does."""


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What a request asks for, as far as decisions need it."""

    family: ApiFamily
    model: str | None
    stream: bool
    choices: int
    """Answers the stream will carry: `n`, for each prompt."""
    prompt_tokens_estimate: int
    max_output_tokens: int | None
    """None when the client set no limit."""


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A request's facts beside its body as it was read; the body is not to be kept."""

    facts: RequestFacts
    body: JsonObject
    """Empty for requests whose body is not read."""


class InvalidRequest(EnvoyExtError):
    """A request no engine could serve. The message is for the client: where, and what would mend it.

    It never quotes the request.
    """


_POSTED: Final = {
    "/v1/chat/completions": ApiFamily.CHAT,
    "/v1/completions": ApiFamily.COMPLETIONS,
    "/v1/responses": ApiFamily.RESPONSES,
    "/v1/messages": ApiFamily.MESSAGES,
    "/v1/embeddings": ApiFamily.EMBEDDINGS,
    "/generate_stream": ApiFamily.TGI,
    "/generate": ApiFamily.TGI,
}
MODELS_PATH: Final = "/v1/models"


def match_api(method: str, path: str) -> ApiFamily | None:
    """Return the family of a request, None for one that is not watched.

    Paths are compared as the engines do: exactly, without the query, with no slash forgiven.
    """
    path = path.partition("?")[0]
    if method == "POST":
        return _POSTED.get(path)
    if method in ("GET", "HEAD") and (path == MODELS_PATH or _is_model_path(path)):
        return ApiFamily.MODELS
    return None


def _is_model_path(path: str) -> bool:
    """Whether the path names one model. Ids hold slashes (`org/name`), but never climb out."""
    name = path.removeprefix(MODELS_PATH + "/")
    if name in ("", path):
        return False
    return not any(segment in ("", ".", "..") for segment in unquote(name).split("/"))


def read_request(
    family: ApiFamily,
    body: bytes,
    content_encoding: str = "",
    *,
    path: str = "",
    max_decoded_bytes: int = DEFAULT_MAX_DECODED_BYTES,
) -> RequestFacts:
    """The facts of `parse_request` alone."""
    return parse_request(family, body, content_encoding, path=path, max_decoded_bytes=max_decoded_bytes).facts


def parse_request(
    family: ApiFamily,
    body: bytes,
    content_encoding: str = "",
    *,
    path: str = "",
    max_decoded_bytes: int = DEFAULT_MAX_DECODED_BYTES,
) -> ReadRequest:
    """Read a whole request body, or raise `InvalidRequest`.

    `path` tells the two TGI calls apart: without it, an answer is taken to stream. Of a name that
    stands twice in an object the last one counts, as in the engines' own JSON readers.
    """
    if family in (ApiFamily.MODELS, ApiFamily.OTHER):
        facts = RequestFacts(
            family=family,
            model=None,
            stream=False,
            choices=1,
            prompt_tokens_estimate=0,
            max_output_tokens=None,
        )
        return ReadRequest(facts, {})
    request = _read_object(body, content_encoding, max_decoded_bytes)
    try:
        return ReadRequest(read_facts(family, request, path.partition("?")[0]), request)
    except RecursionError:
        raise InvalidRequest(_TOO_DEEP) from None


_TOO_DEEP: Final = "body: is nested too deeply; flatten it"


def _read_object(body: bytes, content_encoding: str, max_decoded_bytes: int) -> JsonObject:
    try:
        text = decode_body(body, content_encoding, max_decoded_bytes)
    except UnreadableBody as unreadable:
        raise InvalidRequest(str(unreadable)) from None
    try:
        request = json.loads(text)  # bytes: UTF-8, or UTF-16 and UTF-32 as the engines accept them
    except RecursionError:
        raise InvalidRequest(_TOO_DEEP) from None
    except UnicodeDecodeError:
        raise InvalidRequest("body: is not valid UTF-8; send JSON encoded as UTF-8") from None
    except json.JSONDecodeError as mistake:
        raise InvalidRequest(
            f"body: is not valid JSON (line {mistake.lineno}, column {mistake.colno}); send a JSON object"
        ) from None
    except ValueError:  # Python refuses integers of more than 4300 digits
        raise InvalidRequest("body: holds a number with too many digits; shorten it") from None
    if not isinstance(request, dict):
        raise InvalidRequest("body: must be a JSON object")
    return request


def read_facts(family: ApiFamily, request: JsonObject, path: str) -> RequestFacts:
    """The facts of a body that has been decoded; `path` is without a query."""
    stream = _read_bool(request, "stream")
    prompts = 1
    match family:
        case ApiFamily.CHAT:
            tokens = estimate_chat_tokens(request)
            limit = _read_limit(request, "max_completion_tokens", "max_tokens")
        case ApiFamily.COMPLETIONS:
            tokens, prompts = estimate_input_tokens(request.get("prompt"))
            limit = _read_limit(request, "max_tokens")
        case ApiFamily.RESPONSES:
            tokens = estimate_responses_tokens(request)
            limit = _read_limit(request, "max_output_tokens")
        case ApiFamily.MESSAGES:
            tokens = estimate_messages_tokens(request)
            limit = _read_limit(request, "max_tokens")
        case ApiFamily.TGI:
            return _read_generate(request, path, stream)
        case _:
            tokens, _ = estimate_input_tokens(request.get("input"))
            limit = None
    choices = prompts
    if family in (ApiFamily.CHAT, ApiFamily.COMPLETIONS):
        choices *= _read_count(request, "n")
    return RequestFacts(
        family=family,
        model=_read_model(request),
        stream=bool(stream),
        choices=choices,
        prompt_tokens_estimate=tokens,
        max_output_tokens=limit,
    )


def _read_generate(request: JsonObject, path: str, stream: bool | None) -> RequestFacts:
    """Read TGI's request (`inputs`, `parameters`) or SGLang's (`text`, `sampling_params`)."""
    prompt = next((request[name] for name in ("inputs", "text", "input_ids") if request.get(name)), None)
    tokens, prompts = estimate_input_tokens(prompt)
    choices = prompts
    limit = None
    for name in ("parameters", "sampling_params"):
        parameters = request.get(name)
        if isinstance(parameters, dict):
            limit = _read_limit(parameters, "max_new_tokens", place=name + ".")
            if name == "sampling_params":
                choices *= _read_count(parameters, "n", place=name + ".")
    return RequestFacts(
        family=ApiFamily.TGI,
        model=_read_model(request),
        stream=stream is True or path != "/generate",
        choices=choices,
        prompt_tokens_estimate=tokens,
        max_output_tokens=limit,
    )


def _read_model(request: JsonObject) -> str | None:
    """Read the model's name; null and "" mean the engine's own, as they do to engines."""
    model = request.get("model")
    if model is None:
        return None
    if not isinstance(model, str):
        raise InvalidRequest("model: must be a string")
    if len(model) > _MAX_MODEL_CHARS:
        raise InvalidRequest(f"model: is too long; use at most {_MAX_MODEL_CHARS} characters")
    if not model.isprintable():  # control characters, and halves of surrogate pairs
        raise InvalidRequest("model: holds characters that cannot be printed; remove them")
    return model or None


def _read_bool(request: JsonObject, name: str) -> bool | None:
    value = request.get(name)
    if value is None or isinstance(value, bool):
        return value
    raise InvalidRequest(f"{name}: must be true or false")


def _read_count(request: JsonObject, name: str, place: str = "") -> int:
    """Read a number of answers; null and absent mean one."""
    value = _read_integer(request, name, place)
    if value is None:
        return 1
    if value < 1:
        raise InvalidRequest(f"{place}{name}: must be at least 1")
    return value


def _read_limit(request: JsonObject, *names: str, place: str = "") -> int | None:
    """Read the first limit that is given; a negative one means "no limit" to llama.cpp."""
    for name in names:
        value = _read_integer(request, name, place)
        if value is not None:
            return value if value >= 0 else None
    return None


def _read_integer(request: JsonObject, name: str, place: str) -> int | None:
    """Read an integer; 8.0 is one, since some clients know only one kind of number."""
    value = request.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{place}{name}: must be an integer")
    if abs(value) > _MAX_INTEGER:
        raise InvalidRequest(f"{place}{name}: is out of range; use at most {_MAX_INTEGER}")
    return value
