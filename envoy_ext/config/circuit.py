"""When our own requests keep away from a replica, by what became of those before."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from envoy_ext.config.quantities import Duration
from envoy_ext.config.section import RefusedBecause, Section

NEVER = "never"


def _check_count(value: object) -> object:
    if value == NEVER or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1_000):
        return value
    raise PydanticCustomError("count", "must be a whole number from 1 to 1000, or never")


Count = Annotated[
    int | Literal["never"],
    BeforeValidator(_check_count),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1, "maximum": 1_000}, {"const": NEVER}]}),
]


class InARow(Section):
    """Failures in a row of one class that open a circuit; `never`: that class counts for nothing."""

    connect: Count = 3
    """No connection was made."""
    reset: Count = 5
    """The connection was lost before the answer's end."""
    engine_error: Count = 5
    """5xx, an error event, an abort, an answer without its end."""
    silence: Count = 3
    """The connection timed out."""
    overload: Annotated[
        Literal["never"],
        RefusedBecause("a full replica is not a dead one, and without it the next one is full"),
    ] = "never"
    """429 and 503."""

    @model_validator(mode="after")
    def _check_any(self) -> Self:
        if {self.connect, self.reset, self.engine_error, self.silence} == {NEVER}:
            raise PydanticCustomError("circuit", "leaves nothing to count: set circuit.enabled to false")
        return self


class OpenTime(Section):
    """How long a circuit stays open before it is tried; doubled with each opening that follows another."""

    first: Duration = 5.0
    longest: Duration = 60.0

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.longest < self.first:
            raise PydanticCustomError("order", "longest must not be shorter than first")
        return self


class Trial(Section):
    """How a circuit closes again: by requests of clients, behind a control call that was answered."""

    requests: Annotated[int, Field(ge=1, le=100)] = 2
    """At a time."""
    successes: Annotated[int, Field(ge=1, le=100)] = 3
    """So many close it; one failure opens it again."""


class Circuit(Section):
    """A circuit breaker for each replica."""

    enabled: bool = True
    """False: `readiness` alone judges what becomes of requests."""
    window: Duration = 30.0
    """What came before says nothing."""
    min_attempts: Annotated[int, Field(ge=1, le=100_000)] = 10
    """Of fewer in the window no share is taken."""
    failure_rate: Annotated[float, Field(gt=0, le=1)] = 0.5
    """The share of the window's attempts that opens a circuit when it has failed."""
    in_a_row: InARow = InARow()
    open: OpenTime = OpenTime()
    trial: Trial = Trial()
    max_open: Annotated[float, Field(gt=0, le=1)] = 0.5
    """The share of a pool that may be out on the word of requests alone; the last one never is."""
