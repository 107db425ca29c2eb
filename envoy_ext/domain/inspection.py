"""Watches one response body: when its first delta came, how far it got, whether it ended whole.

The inspector reads a copy. It changes nothing, buffers no more than one event, and never raises: what
it cannot read it counts, and what it cannot watch it says so about.
"""

import json
from copy import copy
from enum import StrEnum
from typing import Final, assert_never

from envoy_ext.domain.alike_events import AlikeEvents
from envoy_ext.domain.api import ApiFamily
from envoy_ext.domain.deltas import EventFacts, EventReader, StreamError, get_event_reader
from envoy_ext.domain.deltas.document import Document
from envoy_ext.domain.ndjson import NdjsonParser
from envoy_ext.domain.sse import SseEvent, SseParser

MAX_HELD_BYTES: Final = 1 << 20
"""How much of an answer is held for its first delta. Envoy sends no more while it waits for a word on what
it sent, which is when its buffer of one connection is full: who held on would wait for ever."""

_NONE: Final[frozenset[int]] = frozenset()
_FIRST: Final = frozenset({0})
_WITHOUT_TERMINAL_MARK: Final = frozenset({ApiFamily.EMBEDDINGS, ApiFamily.MODELS, ApiFamily.OTHER})
"""Families whose streams, if they ever stream, have no end that could be recognised but `[DONE]`."""


class BodyKind(StrEnum):
    """How a response body is framed."""

    SSE = "sse"
    NDJSON = "ndjson"
    JSON = "json"
    """One document; its first byte is already answer."""
    OPAQUE = "opaque"
    """Bytes that cannot be read: an encoding, or a type that is none of the above."""


class Verdict(StrEnum):
    """What an orderly end of the body means."""

    COMPLETE = "complete"
    """The API's terminal mark was seen for every choice: a whole answer."""
    TRUNCATED = "truncated"
    """No terminal mark, and not even a `[DONE]`."""
    ABORTED = "aborted"
    """The engine itself said that the answer is not whole."""
    ERRORED = "errored"
    """An error event was seen, whatever came after it."""
    NO_FINISH = "no_finish"
    """`[DONE]` without a terminal mark before it."""
    UNKNOWN = "unknown"
    """Not watched, or an API without terminal marks: never read as success."""


def choose_body_kind(family: ApiFamily, content_type: str, content_encoding: str) -> BodyKind:
    """Choose how to watch a response from its headers.

    The family has no vote: engines label the bodies of all APIs alike, and what a response says of
    itself is all there is to go by.
    """
    codings = (token.strip().lower() for token in content_encoding.split(","))
    if any(coding not in ("", "identity") for coding in codings):
        return BodyKind.OPAQUE
    media_type = content_type.partition(";")[0].strip().lower()
    match media_type:
        case "text/event-stream":
            return BodyKind.SSE
        case "application/x-ndjson" | "application/ndjson" | "application/jsonl" | "application/x-jsonlines":
            return BodyKind.NDJSON
        case "application/json":
            return BodyKind.JSON
        case _:
            return BodyKind.JSON if media_type.endswith("+json") else BodyKind.OPAQUE


class Inspector:
    """Watches one response body, never changes it.

    Fed by one filter's stream, in order. The public attributes are for reading.
    """

    __slots__ = (
        "_aborted",
        "_alike",
        "_choices",
        "_deltas_at_usage",
        "_document",
        "_family",
        "_finish_count",
        "_finished",
        "_kind",
        "_model_revision",
        "_parser",
        "_reader",
        "_received",
        "_started",
        "_usage",
        "deltas",
        "done_marker",
        "error",
        "error_before_delta",
        "first_delta_seen",
        "malformed_events",
        "watching",
    )

    def __init__(self, family: ApiFamily, kind: BodyKind, max_event_bytes: int, *, choices: int = 1) -> None:
        """`choices` is how many answers the request asked for (`n`)."""
        self._family = family
        self._kind = kind
        self._choices = choices
        self._reader: EventReader = get_event_reader(family)
        self._parser = _build_parser(kind, max_event_bytes)
        self._alike = AlikeEvents()
        self._document = (
            Document(family, min(max_event_bytes, MAX_HELD_BYTES)) if kind is BodyKind.JSON else None
        )
        self._received = 0
        self._started: frozenset[int] = _NONE
        self._finished: frozenset[int] = _NONE
        self._finish_count = 0
        self._aborted = False
        self._usage: int | None = None
        self._deltas_at_usage = 0
        self.watching = kind is not BodyKind.OPAQUE
        """Whether the body is still read; false for good once an event was too long."""
        self.deltas = 0
        """Readable deltas so far. A JSON document counts as one; unwatched bytes as none."""
        self.first_delta_seen = False
        """Whether a client could have read something: a delta, or bytes that nobody watched."""
        self.error: StreamError | None = None
        """The first error event."""
        self.error_before_delta = False
        """Whether that error came before anything a client could have read."""
        self._model_revision: str | None = None
        self.malformed_events = 0
        """Events that are not a JSON object; the stream goes on."""
        self.done_marker = False
        """Whether the stream's own end was seen (`[DONE]`, `message_stop`, a closing response event, a
        `generated_text`): client SDKs read nothing that is appended now."""

    @property
    def received(self) -> int:
        """Bytes fed so far."""
        return self._received

    @property
    def boundary(self) -> int:
        """Offset up to which the body may be delivered without cutting an event."""
        return self._received if self._parser is None else self._parser.boundary

    @property
    def pending(self) -> bool:
        """Whether bytes of an unfinished event were received."""
        return self.boundary < self._received

    @property
    def output_tokens(self) -> int:
        """The usage last stated plus the deltas since, or the deltas alone when none was stated."""
        if self._document is not None:
            stated = self._document.read()
            if stated is not None and stated.output_tokens is not None:
                return stated.output_tokens
        if self._usage is None:
            return self.deltas
        return self._usage + self.deltas - self._deltas_at_usage

    @property
    def model_revision(self) -> str | None:
        """What the engine calls the build that answers, once it has said so."""
        stated = None if self._document is None else self._document.read()
        return self._model_revision if stated is None else stated.model_revision

    def feed(self, data: bytes) -> None:
        """Read the next bytes of the body, cut anywhere."""
        if self.feed_alike(data):
            return
        self._received += len(data)
        if self._document is not None:
            self._document.feed(data)
        if self._parser is None:
            if data and not self.first_delta_seen:
                self.first_delta_seen = True
                self.deltas = 1 if self._kind is BodyKind.JSON else 0
            return
        whole = self._parser.boundary == self._received - len(data)
        facts = None
        for event in self._parser.feed(data):
            facts = self._read_event(event)
        if facts is not None and _is_mere_text(facts) and self._parser.boundary == self._received:
            self._learn(data, whole, facts)
        if self._parser.overflowed and self.watching:
            self.watching = False
            self.first_delta_seen = True  # the bytes nobody read may be the answer

    def feed_alike(self, data: bytes) -> bool:
        """Read bytes that are whole events, behind whole events, of which each says what one before them
        said: the way of most chunks, which parses nothing.

        False, and nothing is read, when they are not known to be that.
        """
        alike, parser = self._alike, self._parser
        if not alike.head or parser is None:
            return False
        count, size = alike.count(data), len(data)
        if not count or not parser.skip(size):
            return False
        facts = alike.facts
        self._received += size
        self.deltas += count * facts.deltas
        if facts.model_revision is not None:
            self._model_revision = facts.model_revision
        return True

    def _learn(self, data: bytes, whole: bool, facts: EventFacts) -> None:
        """Keep the frame of the last event of these bytes, behind which nothing follows."""
        kind, reader = self._kind, self._reader
        mark = b"\n\n" if kind is BodyKind.SSE else b"\n"
        begin = data.rfind(mark, 0, -len(mark))
        if begin >= 0:
            begin += len(mark)
        elif whole:
            begin = 0
        else:
            return

        def reread(changed: bytes) -> EventFacts | None:
            parser = _build_parser(kind, len(changed))
            if parser is None:
                return None
            begun = len(parser.feed(b"\n"))  # within a stream, where a byte order mark means nothing
            events = parser.feed(changed)
            if begun or len(events) != 1 or parser.boundary != parser.received:
                return None
            payload = _parse(events[0].data)
            return reader(payload, events[0].event) if isinstance(payload, dict) else None

        self._alike.learn(data[begin:], facts, reread)

    def verdict_at_eof(self) -> Verdict:
        """Say what the body amounts to, given that it ended in order.

        Evidence of failure outweighs not having watched to the end; that outweighs a terminal mark.
        It may be asked at any time and changes nothing. A last NDJSON line without its newline counts
        for the verdict, as it does for readers; an event without its blank line does not, as for them.
        """
        if isinstance(self._parser, NdjsonParser) and self._parser.rest:
            return self._copy_with_last_line(self._parser.rest).verdict_at_eof()
        if self.error is not None:
            return Verdict.ERRORED
        if self._aborted:
            return Verdict.ABORTED
        if not self.watching:
            return Verdict.UNKNOWN
        if self._document is not None:
            return self._judge_document(self._document)
        if self._family in _WITHOUT_TERMINAL_MARK:
            return Verdict.COMPLETE if self.done_marker else Verdict.UNKNOWN
        if self._is_complete():
            return Verdict.COMPLETE
        return Verdict.NO_FINISH if self.done_marker else Verdict.TRUNCATED

    def _judge_document(self, document: Document) -> Verdict:
        if self._received == 0:
            # An empty body is no document; but to HEAD, which only these two know, it is all there is.
            empty = self._family in (ApiFamily.MODELS, ApiFamily.OTHER)
            return Verdict.COMPLETE if empty else Verdict.TRUNCATED
        stated = document.read()
        if stated is None:
            return Verdict.TRUNCATED
        if stated.error is not None:
            return Verdict.ERRORED
        return Verdict.ABORTED if stated.aborted else Verdict.COMPLETE

    def _copy_with_last_line(self, line: bytes) -> "Inspector":
        inspector = copy(self)
        inspector._parser = NdjsonParser(0)
        inspector._read_event(SseEvent(line, ""))
        return inspector

    def _is_complete(self) -> bool:
        """Whether every choice came to its end.

        Without the stream's own end, all choices that were asked for must have finished: one that had
        not even started when the stream was cut would go unnoticed otherwise. With it, the engine
        decides how many there are; and as llama.cpp puts the first choice's index on every finish
        (https://github.com/ggml-org/llama.cpp/issues/20226), as many finishes as choices will do.
        """
        if not self.done_marker:
            return len(self._finished) >= self._choices and self._started <= self._finished
        if self._finished and self._started <= self._finished:
            return True
        return self._finish_count >= max(self._choices, len(self._started), 1)

    def _read_event(self, event: SseEvent) -> EventFacts | None:
        """What it says, None when it is no object."""
        if event.data.strip().startswith(b"[DONE]"):
            self.done_marker = True
            return None
        payload = _parse(event.data)
        if isinstance(payload, dict):
            facts = self._reader(payload, event.event)
            self._apply(facts)
            return facts
        self.malformed_events += 1
        if self._family in _WITHOUT_TERMINAL_MARK and event.data:
            # An unknown API may well answer in something other than JSON objects.
            self.deltas += 1
            self.first_delta_seen = True
        return None

    def _apply(self, facts: EventFacts) -> None:
        if facts.error is not None and self.error is None:
            self.error = facts.error
            self.error_before_delta = not self.first_delta_seen
        if facts.deltas:
            self.deltas += facts.deltas
            self.first_delta_seen = True
        if facts.started:
            self._started = _add(self._started, facts.started)
        if facts.finished:
            self._finished = _add(self._finished, facts.finished)
            self._finish_count += len(facts.finished)
        if facts.aborted:
            self._aborted = True
        if facts.over:
            self.done_marker = True
        if facts.model_revision is not None:
            self._model_revision = facts.model_revision
        # With several choices, usage beside a choice counts that choice alone (vLLM's
        # continuous_usage_stats); usage that stands by itself counts them all.
        if facts.output_tokens is not None and not (facts.started and len(self._started) > 1):
            self._usage = facts.output_tokens
            self._deltas_at_usage = self.deltas


def _add(known: frozenset[int], told: tuple[int, ...]) -> frozenset[int]:
    """Both. Nearly all streams have one choice, and share the sets that say so."""
    if known.issuperset(told):
        return known
    return _FIRST if not known and told == (0,) else known.union(told)


def _parse(data: bytes) -> object:
    """An event's JSON, None when it is none.

    Decoded as clients do: bytes that are no UTF-8 become U+FFFD and harm nothing else.
    """
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):  # no JSON; an integer too long; nested too deep
        return None


def _is_mere_text(facts: EventFacts) -> bool:
    """Whether an event says no more than that there is more to read."""
    told = facts.finished or facts.aborted or facts.over or facts.error or facts.output_tokens is not None
    return facts.deltas > 0 and not told


def _build_parser(kind: BodyKind, max_event_bytes: int) -> SseParser | NdjsonParser | None:
    match kind:
        case BodyKind.SSE:
            return SseParser(max_event_bytes)
        case BodyKind.NDJSON:
            return NdjsonParser(max_event_bytes)
        case BodyKind.JSON | BodyKind.OPAQUE:
            return None
        case _:
            assert_never(kind)
