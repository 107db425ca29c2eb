"""What an API's answer looks like, as one interface over all of them."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from envoy_ext.sim.answer import DONE, Answer, Event, Finish, stream_error
from envoy_ext.sim.plan import ErrorKind


class Shape(ABC):
    """One answer in the form of one API, as one JSON object."""

    path: ClassVar[str]
    limit_keys: ClassVar[tuple[str, ...]] = ("max_tokens",)
    """Where the request may limit the answer's length; the first one that is given counts."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    @classmethod
    def read_limit(cls, body: Mapping[str, Any]) -> Any:
        """The request's own limit of the answer's length, None when it sets none."""
        return next((body[key] for key in cls.limit_keys if body.get(key) is not None), None)

    @abstractmethod
    def body(self) -> dict[str, Any]:
        """The whole answer as one JSON object."""


class StreamShape(Shape):
    """One answer as an event stream too.

    A stream is `preamble`, a `delta` for each token, `finish`, `done`; the parts are separate so
    that a fault can leave some of them out.
    """

    @classmethod
    def asks_stream(cls, body: Mapping[str, Any]) -> bool:
        """Whether the request wants a stream."""
        return body.get("stream") is True

    @abstractmethod
    def preamble(self) -> list[Event]:
        """The events before the first delta."""

    @abstractmethod
    def delta(self, index: int) -> Event:
        """The event that carries one token."""

    @abstractmethod
    def finish(self, reason: Finish) -> list[Event]:
        """The events that say why the answer ends, and its usage."""

    def done(self) -> list[Event]:
        """The end mark after that, for the APIs that have one."""
        return []

    def error(self, kind: ErrorKind) -> list[Event]:
        """The events with which the engine reports an error inside a stream."""
        # vLLM and TGI write errors with spaces (json.dumps, serde), vLLM's chunks without.
        if kind is ErrorKind.TGI_OVERLOADED:
            data = json.dumps(stream_error(kind), separators=(",", ":"))
            return [Event(data, tight=True)]
        return [Event(json.dumps(stream_error(kind))), *self.done()]


class OpenAiShape(StreamShape):
    """What the OpenAI streams of vLLM have in common: `[DONE]`, and usage when it is asked for."""

    object_name: ClassVar[str]
    chunk_name: ClassVar[str]
    id_prefix: ClassVar[str]

    def done(self) -> list[Event]:
        return [DONE]

    def usage(self, tokens: int) -> dict[str, Any]:
        """Token counts after so many tokens."""
        prompt = self.answer.prompt_tokens
        return {"prompt_tokens": prompt, "total_tokens": prompt + tokens, "completion_tokens": tokens}

    def head(self, name: str) -> dict[str, Any]:
        """The keys every chunk and every body starts with."""
        answer = self.answer
        return {
            "id": f"{self.id_prefix}-{answer.id}",
            "object": name,
            "created": answer.created,
            "model": answer.model,
        }

    def chunk(self, choices: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
        """One chunk; `tokens` is how many the answer has with this chunk."""
        value = self.head(self.chunk_name) | {"choices": choices}
        if self.answer.continuous_usage:
            value["usage"] = self.usage(tokens) | {"completion_tokens_details": None}
        value["system_fingerprint"] = self.answer.system_fingerprint
        return value

    def usage_chunk(self) -> dict[str, Any]:
        """The chunk without choices that only carries usage."""
        tail = {
            "choices": [],
            "usage": self.usage(len(self.answer.tokens)),
            "system_fingerprint": self.answer.system_fingerprint,
        }
        return self.head(self.chunk_name) | tail
