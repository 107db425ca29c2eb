"""How long what has ended stays in the journal: by age, and by how much the store may hold.

Running operations stay whatever is said here, and so do those that ended a moment ago: the last words about
an attempt come after its operation's end, and a client that was cut off asks at once what became of it.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

KEEP_AT_LEAST_S: Final = 60.0
"""What ended within this time stays also where there is too much. Late ends of attempts are waited for
for seconds; a minute is what is left to a client to ask again."""


class Why(StrEnum):
    """What an operation had to go for."""

    AGE = "age"
    OPERATIONS = "operations"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """How long, and how much."""

    keep_s: float
    """From an operation's end. At least `KEEP_AT_LEAST_S`."""
    max_operations: int
    max_bytes: int | None = None
    """None: no limit, or a store that cannot tell."""
    keep_results_s: float | None = None
    """From a job's end, how long its result stays. None: as long as the job."""


@dataclass(frozen=True, slots=True)
class Excess:
    """More than there may be."""

    why: Why
    operations: int
    """How many have to go, as far as that is known."""


def find_excess(policy: RetentionPolicy, operations: int, used_bytes: int | None) -> Excess | None:
    """What is too much in a store of this size; None where all may stay."""
    if operations > policy.max_operations:
        return Excess(Why.OPERATIONS, operations - policy.max_operations)
    if policy.max_bytes is None or used_bytes is None or used_bytes <= policy.max_bytes or operations == 0:
        return None
    # As if all were of one size; what is left over is seen by the next look.
    return Excess(Why.BYTES, math.ceil(operations * (1 - policy.max_bytes / used_bytes)))
