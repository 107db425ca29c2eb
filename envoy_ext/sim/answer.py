"""One answer's content, the events that carry it, and how events become bytes."""

import hashlib
import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from envoy_ext.sim.plan import ErrorKind


class Finish(StrEnum):
    """Why an answer ends, in the engine's words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request is answered, before any API gives it a shape."""

    replica: str
    generation: int
    created: int
    model: str
    tokens: tuple[str, ...]
    finish: Finish
    prompt_tokens: int
    include_usage: bool = False
    continuous_usage: bool = False
    base64: bool = False
    """Embeddings only: the OpenAI client asks for base64 unless it is told otherwise."""
    fingerprint: bytes = b""
    """Embeddings only: a digest of the input, from which the vector is made."""
    revision: str = ""
    """Of the weights; "" where the replica's name stands for it."""

    @property
    def id(self) -> str:
        return f"{self.replica}-{self.generation}"

    @property
    def text(self) -> str:
        return "".join(self.tokens)

    @property
    def system_fingerprint(self) -> str:
        return self.revision or f"sim-{self.replica}"


@dataclass(frozen=True, slots=True)
class TokenMark:
    """Where one token of text came from."""

    replica: str
    generation: int
    index: int


# Padding that makes an event a given size follows the token; no name may hold its character.
_TOKEN: Final = re.compile(r"([A-Za-z0-9_-]+)\.(\d+)\.(\d+) ~*")


def token_text(replica: str, generation: int, index: int) -> str:
    """The text of one token; it names its origin, so that mixed text shows."""
    return f"{replica}.{generation}.{index} "


_SYLLABLES: Final = tuple(consonant + vowel for consonant in "bdfgklmnprstvwz" for vowel in "aeiou")


def seeded_text(seed: str, fingerprint: bytes, index: int) -> str:
    """The text of one token that follows from a seed and a request's digest alone: it names nobody."""
    digest = hashlib.blake2b(f"{seed}\n{index}\n".encode() + fingerprint, digest_size=3).digest()
    return "".join(_SYLLABLES[byte % len(_SYLLABLES)] for byte in digest) + " "


def read_text(text: str) -> tuple[TokenMark, ...]:
    """The origins of all tokens in a text; raises `ValueError` on text that no engine wrote."""
    marks: list[TokenMark] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"not a token at {position}: {text[position : position + 20]!r}")
        marks.append(TokenMark(match[1], int(match[2]), int(match[3])))
        position = match.end()
    return tuple(marks)


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event."""

    data: str
    name: str | None = None
    tight: bool = False
    """No space after the colon, as axum (TGI) writes it."""


DONE: Final = Event("[DONE]")


def json_event(value: object, name: str | None = None, *, tight: bool = False) -> Event:
    """An event whose data is compact JSON, as pydantic writes it for vLLM."""
    return Event(json.dumps(value, separators=(",", ":"), ensure_ascii=False), name, tight)


def encode_event(event: Event, newline: str = "\n") -> bytes:
    """The event's bytes, with its blank line."""
    colon = ":" if event.tight else ": "
    lines = [f"event{colon}{event.name}"] if event.name else []
    lines.append(f"data{colon}{event.data}")
    return "".join(line + newline for line in [*lines, ""]).encode()


def error_object(message: str, kind: str, code: int, param: str | None = None) -> dict[str, object]:
    """An error in vLLM's form; inside a stream and as an HTTP body it is the same."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def stream_error(kind: ErrorKind) -> dict[str, object]:
    """The JSON of an error event on OpenAI-shaped streams, in the words of the engine that sends it."""
    match kind:
        case ErrorKind.OVERLOADED:
            return error_object(
                "The engine is overloaded, please try again later.", "ServiceUnavailable", 503
            )
        case ErrorKind.ENGINE:
            return error_object("Internal server error", "InternalServerError", 500)
        case ErrorKind.ENGINE_400:
            message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
            return error_object(message, "BadRequestError", 400)
        case ErrorKind.VALIDATION:
            return {"error": {"message": _VALIDATION, "http_status_code": 422}}
        case ErrorKind.TGI_OVERLOADED:
            return {"error": "Model is overloaded", "error_type": "overloaded"}


_VALIDATION: Final = "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096."
