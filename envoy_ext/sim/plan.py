"""What one answer does differently from a good one.

A `Plan` is data: `faults` writes it from text, `script` reads it. The default is a good answer.
"""

from dataclasses import dataclass
from enum import StrEnum


class How(StrEnum):
    """How a connection stops."""

    FIN = "fin"
    """Closed in the middle of the body: no last chunk, or fewer bytes than announced."""
    RST = "rst"
    """Reset, as a crashed host or a middlebox does it."""
    KILL = "kill"
    """The engine's process sends SIGKILL to itself."""
    HANG = "hang"
    """Nothing more is sent and nothing is closed."""


class Point(StrEnum):
    """Where in its answer a replica stops."""

    BEFORE_HEADERS = "before_headers"
    AFTER_HEADERS = "after_headers"
    AFTER_ROLE = "after_role"
    AFTER_DELTAS = "after_deltas"
    MID_EVENT = "mid_event"
    MID_BODY = "mid_body"
    IN_TOOL = "in_tool"
    """While a tool is called: so many seconds after the call was made."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The replica stops at a point, for good."""

    at: Point
    how: How
    deltas: int = 0
    """How many deltas are sent first; only for AFTER_DELTAS and MID_EVENT."""
    after_s: float = 0.0
    """Only for IN_TOOL."""


class ErrorKind(StrEnum):
    """Which error event a stream carries."""

    OVERLOADED = "overloaded"
    ENGINE = "engine"
    ENGINE_400 = "engine_400"
    """vLLM's words for a dead engine in mid-stream: `BadRequestError`, 400, and not the client's fault."""
    VALIDATION = "validation"
    TGI_OVERLOADED = "tgi_overloaded"


class Close(StrEnum):
    """What follows the deltas of an answer that is not cut."""

    GOOD = "good"
    NO_DONE = "no_done"
    ABORT = "abort"
    FINISH_NULL = "finish_null"
    NOTHING = "nothing"
    ERROR = "error"


class Only(StrEnum):
    """A stream that holds one odd thing and nothing of the answer."""

    DONE = "done"
    ERROR = "error"
    RAW_JSON_ERROR = "raw_json_error"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An HTTP status in place of an answer; 204 has no body."""

    status: int
    retry_after: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """One answer's deviations; they can be combined as far as they make sense together."""

    broken: str | None = None
    """The fault that keeps this answer from being a whole and well-formed one, if there is one."""
    refusal: Refusal | None = None
    stop: Stop | None = None
    only: Only | None = None
    close: Close = Close.GOOD
    error: ErrorKind = ErrorKind.ENGINE
    deltas: int | None = None
    """At most so many deltas before the close; None is the whole answer."""
    pings: int = 0
    ping_every_s: float = 0.0
    slow: float = 1.0
    empty: bool = False
    big_event_bytes: int = 0
    newline: str = "\n"
    bom: bool = False
    ndjson: bool = False
    gzip: bool = False
    gzip_always: bool = False
    one_byte: bool = False
    content_length: bool = False
