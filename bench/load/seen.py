"""What one client saw of one request, and what that amounts to.

The reading is on purpose not the product's: its own split of the stream, its own words for the ends.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from envoy_ext.sim.answer import TokenMark, read_text

TYPED_EVENT: Final = "upstream_decode_interrupted"


class BodyEnd(StrEnum):
    """How the body came to its end, by HTTP's rules."""

    ORDERLY = "orderly"
    CUT = "cut"
    HUNG = "hung"
    """Not at all, within the time a request may take."""


class StreamEnd(StrEnum):
    """The truthful ends."""

    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    """Part of an answer, then exactly one typed event."""
    REFUSED = "refused"
    """Nothing of an answer, and an error of the contract."""


class Untrue(Exception):
    """A stream that ended in no truthful way; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One request by its client's eyes; one line of the load generator's file."""

    request_id: str
    sent_sha256: str
    status: int = 0
    content_type: str = ""
    operation_id: str = ""
    attempts: int = 0
    """`x-attempt-count`."""
    hint: str = ""
    """What the answer says to an SDK about a repeat: `retry-after` or `x-should-retry`."""
    body: str = ""
    body_end: BodyEnd = BodyEnd.CUT
    detail: str = ""
    first_byte_s: float | None = None
    total_s: float = 0.0
    key: str = ""
    """The idempotency key that it was sent with."""
    recorded: bool = True
    """Whether the answer does not say that the journal was not told of it."""


@dataclass(slots=True)
class Reading:
    """A stream's content."""

    text: str = ""
    deltas: int = 0
    finish: str | None = None
    done: bool = False
    errors: list[dict[str, Any]] = field(default_factory=list)
    after_error: int = 0
    """Events behind the first error event."""


def read_stream(body: str) -> Reading:
    """Read a chat stream, up to its last whole event."""
    reading = Reading()
    for data in _split_events(body):
        if reading.errors:
            reading.after_error += 1
        if data == "[DONE]":
            reading.done = True
            continue
        event = json.loads(data)
        if "error" in event:
            reading.errors.append(event["error"])
            continue
        for choice in event["choices"]:
            content = choice["delta"].get("content")
            if content:
                reading.deltas += 1
                reading.text += content
            reading.finish = choice.get("finish_reason") or reading.finish
    return reading


def _split_events(body: str) -> Iterator[str]:
    *events, rest = body.split("\n\n")
    if rest:
        raise Untrue(f"half an event at the end: {rest[:80]!r}")
    for event in events:
        name, colon, data = event.partition(": ")
        if (name, colon) != ("data", ": ") or "\n" in data:
            raise Untrue(f"an event that no engine and no gateway writes: {event[:80]!r}")
        yield data


def read_marks(text: str) -> tuple[TokenMark, ...]:
    """Where the text came from; `Untrue` unless it is one generation from its start, without a gap."""
    try:
        marks = read_text(text)
    except ValueError as error:
        raise Untrue(str(error)) from None
    if len({(mark.replica, mark.generation) for mark in marks}) > 1:
        raise Untrue(f"text of more than one attempt: {text!r}")
    if [mark.index for mark in marks] != list(range(len(marks))):
        raise Untrue(f"text with a gap or out of order: {text!r}")
    return marks


def read_refusal(seen: Seen) -> dict[str, Any]:
    """The error object of an answer without any part of a generation."""
    try:
        error = json.loads(seen.body)["error"]
        code, partial = error["code"], error["partial_output"]
    except (ValueError, KeyError, TypeError):
        raise Untrue(
            f"HTTP {seen.status} with a body that is no error of the contract: {seen.body[:200]!r}"
        ) from None
    if partial or not isinstance(code, str):
        raise Untrue(f"HTTP {seen.status} that claims a partial output: {error}")
    found: dict[str, Any] = error
    return found


def judge(seen: Seen, tokens: int) -> StreamEnd:
    """Which of the truthful ends this is, `Untrue` when it is none. `tokens`: length of a whole answer.

    A replica may be killed between its finish and its `[DONE]`. The answer is whole then, and the
    gateway writes no `[DONE]` that no replica wrote.
    """
    if seen.body_end is not BodyEnd.ORDERLY:
        raise Untrue(
            f"the body {seen.body_end} after {len(seen.body)} characters, HTTP {seen.status}: {seen.detail}"
        )
    if seen.status != 200:
        read_refusal(seen)
        return StreamEnd.REFUSED
    if seen.content_type != "text/event-stream":
        raise Untrue(f"HTTP 200 of type {seen.content_type!r}")
    reading = read_stream(seen.body)
    marks = read_marks(reading.text)
    if not reading.errors:
        if not (reading.finish and len(marks) == tokens):
            raise Untrue(
                f"a 200 that just ends: {len(marks)} tokens, {reading.finish}, [DONE] {reading.done}"
            )
        return StreamEnd.COMPLETE
    codes = [error.get("code") for error in reading.errors]
    if codes != [TYPED_EVENT] or reading.after_error or reading.done:
        raise Untrue(f"not one typed event at the end: {codes}, {reading.after_error} events after it")
    if reading.finish or not reading.deltas or not reading.errors[0]["partial_output"]:
        raise Untrue(
            f"a typed event that does not fit the {reading.deltas} deltas before it: {reading.errors[0]}"
        )
    return StreamEnd.INTERRUPTED
