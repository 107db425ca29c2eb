"""The `idempotency` section: what a client's repeat of a request under the same key is given."""

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from envoy_ext.config.quantities import SizeBetween, duration_schema, parse_duration
from envoy_ext.config.section import RefusedBecause, Section

LONGEST_JOIN_S: Final = 600.0
"""OpenAI's SDKs give a request up after ten minutes. With it and the longest wait for a slot behind it, a
request stays within what Envoy is told to have patience for at the most (`bootstrap.filters`)."""


def _parse_join(value: object) -> float:
    seconds = parse_duration(value)
    if seconds > LONGEST_JOIN_S:
        raise PydanticCustomError("duration", "longer than 10m: clients give a request up by then")
    return seconds


JoinOrZero = Annotated[
    float, BeforeValidator(_parse_join), duration_schema({"minimum": 0, "maximum": LONGEST_JOIN_S})
]
"""Seconds that a repeat may wait; 0 means not at all."""


class Idempotency(Section):
    """Requests with an `Idempotency-Key`: what is kept for their repeats, and whether those wait."""

    answers: Annotated[
        Literal["non_streaming", "all", "none"],
        RefusedBecause("answers in one piece are kept for a repeat, those that stream too, or none"),
    ] = "non_streaming"
    """Whose answers are kept in the journal's store from now on; prompts never are."""
    max_answer_bytes: Annotated[int, SizeBetween("1KiB", "64MiB")] = 1 << 20
    """Of an answer's headers and body; a longer one is not kept."""
    while_running: Annotated[
        Literal["refuse", "wait"],
        RefusedBecause("a repeat of what still runs is refused with 409, or waits for its end"),
    ] = "refuse"
    max_wait: JoinOrZero = 60.0
    """The longest that a repeat waits, also one that asks for it with `Prefer: wait=…`; 0: none may."""
    max_waiting: Annotated[int, Field(ge=0, le=10_000)] = 256
    """Repeats that may wait at once: Envoy keeps the body of each."""
