"""Reads an answer that is one JSON document: what it states at its end, and whether it has one.

Where a whole answer has the fields that a stream's last event has, the reader of events reads it.
"""

import json
from typing import Final

from envoy_ext.domain.api import ApiFamily
from envoy_ext.domain.deltas.choices import read_choices_event
from envoy_ext.domain.deltas.errors import build_error, read_error
from envoy_ext.domain.deltas.facts import ABORT_WORDS, NOTHING, EventFacts, JsonObject, read_tokens
from envoy_ext.domain.deltas.generate import read_generate_event

_GENERATED: Final = frozenset(
    {ApiFamily.CHAT, ApiFamily.COMPLETIONS, ApiFamily.RESPONSES, ApiFamily.MESSAGES, ApiFamily.TGI}
)
"""Families whose documents are a model's answers, and may be cut in one."""

_VECTORS_HEAD: Final = 16 << 10
"""Bytes up to which an answer of embeddings is read: an error in the place of vectors is short, and many
numbers take long to parse and state nothing."""


class Document:
    """One JSON document as far as it has come, within bounds; longer ones are not read.

    It is read when something is asked of it, which is when it ends: once, however often that is.
    """

    __slots__ = ("_bytes", "_facts", "_family", "_limit", "_read_at")

    def __init__(self, family: ApiFamily, max_bytes: int) -> None:
        self._family = family
        self._limit = max_bytes if family in _GENERATED else min(max_bytes, _VECTORS_HEAD)
        is_read = family in _GENERATED or family is ApiFamily.EMBEDDINGS
        self._bytes: bytearray | None = bytearray() if is_read else None
        self._read_at = -1
        self._facts: EventFacts | None = NOTHING

    def feed(self, data: bytes) -> None:
        """Keep the next bytes."""
        if self._bytes is not None:
            self._bytes += data
            if len(self._bytes) > self._limit:
                self._bytes = None

    def read(self) -> EventFacts | None:
        """What it states; None when it stops in its middle. A document that was not kept states nothing."""
        if self._bytes is None:
            return NOTHING
        if self._read_at != len(self._bytes):
            self._read_at, self._facts = len(self._bytes), read_document(self._family, bytes(self._bytes))
        return self._facts


def read_document(family: ApiFamily, document: bytes) -> EventFacts | None:
    """What a whole document states; None when it stops in its middle.

    A document that cannot be read for another reason (no JSON at all, nested too deep) states nothing:
    that is between the engine and its clients.
    """
    text = document.decode("utf-8", "replace").strip()
    try:
        payload = json.loads(text)
    except json.JSONDecodeError as mistake:
        # The mistake of a document that was cut is at its end, or where the string begins that was cut.
        cut = mistake.pos >= len(text) or mistake.msg.startswith("Unterminated string")
        return None if cut or not _is_closed(text) else NOTHING
    except (ValueError, RecursionError):
        return NOTHING
    if isinstance(payload, list):  # one for each prompt, from /generate
        return _join([_read_object(family, one) for one in payload if isinstance(one, dict)])
    return _read_object(family, payload) if isinstance(payload, dict) else NOTHING


def _read_object(family: ApiFamily, payload: JsonObject) -> EventFacts:
    match family:
        case ApiFamily.CHAT | ApiFamily.COMPLETIONS:
            return read_choices_event(payload, "")
        case ApiFamily.RESPONSES:
            return _read_response(payload)
        case ApiFamily.MESSAGES:
            return _read_message(payload)
        case ApiFamily.TGI:
            return read_generate_event(payload, "")
        case ApiFamily.EMBEDDINGS:
            return EventFacts(error=read_error(payload, ""))
        case _:
            return NOTHING


def _read_response(payload: JsonObject) -> EventFacts:
    """Read a response object. `incomplete` is a whole document: its limit was reached, as `length` says."""
    error = payload.get("error")
    status = payload.get("status")
    if error or status == "failed":
        return EventFacts(error=build_error(error if isinstance(error, dict) else {}))
    if payload.get("object") == "error":  # as vLLM says it, in whichever API it was asked
        return EventFacts(error=build_error(payload))
    return EventFacts(
        output_tokens=read_tokens(payload.get("usage"), "output_tokens"), aborted=status == "cancelled"
    )


def _read_message(payload: JsonObject) -> EventFacts:
    error = read_error(payload, "")
    if error is not None:
        return EventFacts(error=error)
    reason = payload.get("stop_reason")
    return EventFacts(
        output_tokens=read_tokens(payload.get("usage"), "output_tokens"),
        aborted=isinstance(reason, str) and reason.lower() in ABORT_WORDS,
    )


def _join(facts: list[EventFacts]) -> EventFacts:
    counts = [one.output_tokens for one in facts if one.output_tokens is not None]
    return EventFacts(
        output_tokens=sum(counts) if counts else None,
        aborted=any(one.aborted for one in facts),
        error=next((one.error for one in facts if one.error is not None), None),
    )


def _is_closed(text: str) -> bool:
    """Whether it ends as it began; what is no object and no list has no end that could be missing."""
    closing = {"{": "}", "[": "]"}.get(text[:1])
    return closing is None or text.endswith(closing)
