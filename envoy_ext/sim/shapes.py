"""All APIs by their path, and what a request asks of them."""

import json
from dataclasses import dataclass
from typing import Any, Final

from envoy_ext.sim.answer import error_object
from envoy_ext.sim.options import SimOptions
from envoy_ext.sim.shape import Shape, StreamShape
from envoy_ext.sim.shape_messages import MessagesShape
from envoy_ext.sim.shape_openai import ChatShape, CompletionsShape, EmbeddingsShape
from envoy_ext.sim.shape_responses import ResponsesShape
from envoy_ext.sim.shape_tgi import TgiShape
from envoy_ext.sim.tool_calls import TOOL_FIELD

SHAPES: Final[tuple[type[Shape], ...]] = (
    ChatShape,
    CompletionsShape,
    ResponsesShape,
    EmbeddingsShape,
    MessagesShape,
    TgiShape,
)

# Four bytes a token is the usual rule of thumb for English text; the whole body counts, so that
# an engine need not know where each API keeps its prompt.
_BYTES_PER_TOKEN = 4


class BadCall(Exception):
    """The request is the client's mistake; `body` is vLLM's answer to it."""

    def __init__(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = error_object(message, kind, status, param)


@dataclass(frozen=True, slots=True)
class Call:
    """What one request asks for."""

    shape: type[Shape]
    model: str
    stream: bool
    limit: int | None
    prompt_tokens: int
    include_usage: bool
    continuous_usage: bool
    base64: bool
    items: int | None
    """How many messages or items its conversation has; None for a bare prompt."""
    tools: str = ""
    """Calls of tools that it asks for, as their header has them."""


def read_call(shape: type[Shape], body: bytes, options: SimOptions) -> Call:
    """Read a request's body; raises `BadCall` as vLLM would refuse it."""
    try:
        value = json.loads(body)
    except ValueError as error:
        raise BadCall(400, f"invalid JSON: {error}", "BadRequestError") from None
    if not isinstance(value, dict):
        raise BadCall(400, "the body is not a JSON object", "BadRequestError")
    model = value.get("model", options.models[0])
    if model not in (*options.models, *options.adapters):
        raise BadCall(404, f"The model `{model}` does not exist.", "NotFoundError", "model")
    limit = shape.read_limit(value)
    if limit is not None and (type(limit) is not int or limit < 1):
        raise BadCall(400, f"max_tokens must be at least 1, got {limit}.", "BadRequestError", "max_tokens")
    return Call(
        shape=shape,
        model=model,
        stream=issubclass(shape, StreamShape) and shape.asks_stream(value),
        limit=limit,
        prompt_tokens=max(1, len(body) // _BYTES_PER_TOKEN),
        include_usage=_stream_option(value, "include_usage"),
        continuous_usage=_stream_option(value, "continuous_usage_stats"),
        base64=value.get("encoding_format") == "base64",
        items=_count_items(value),
        tools=json.dumps(value[TOOL_FIELD]) if TOOL_FIELD in value else "",
    )


def _count_items(body: dict[str, Any]) -> int | None:
    conversation = body.get("messages", body.get("input"))
    return len(conversation) if isinstance(conversation, list) else None


def _stream_option(body: dict[str, Any], name: str) -> bool:
    options = body.get("stream_options")
    return isinstance(options, dict) and options.get(name) is True
