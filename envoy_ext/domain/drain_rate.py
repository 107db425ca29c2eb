"""How fast slots come free, and when whoever is refused may come back.

The rate is measured, from how long slots are held: so many slots, each free again after so long, is so
many free in a second (Little's law). It is known without a queue, follows at once when replicas come or
go, and needs no busy time to be told from idle time. A slot that is never given back says nothing: a
pool that hangs is told by its replicas' readiness, not by this.

Whoever is refused is given a span of seconds to come back in, as long as the pool needs for all who
were refused of late: two hundred that were refused in one second and come back in the next would be refused
again. Inside the span each one's second is drawn by whoever has randomness.
"""

from dataclasses import dataclass
from math import ceil
from typing import Final

KNOWN_FROM: Final = 4
"""How many slots must have come free before their mean says anything."""
MEMORY: Final = 16
"""The mean is over about this many: half of a change is in it after eleven."""
UNKNOWN_HOLD_S: Final = 1.0
"""Taken for the time a slot is held, to spread refusals by, before it is known."""
SHORTEST_SPAN_S: Final = 3
LONGEST_SPAN_S: Final = 30
"""Well within the 60 s that OpenAI's SDKs are willing to wait (120 s since version 3 of Python's); others
wait less."""


@dataclass(slots=True)
class DrainRate:
    """Of one pool; changed only by its queue."""

    _mean_s: float = 0.0
    _count: int = 0
    _owed: float = 0.0
    """Refused, and not yet due to come back."""
    _owed_at: float = 0.0

    def note_free(self, held_s: float) -> None:
        """A slot that was held for so long is free again."""
        self._count += 1
        self._mean_s += (held_s - self._mean_s) / min(self._count, MEMORY)

    def read(self, slots: int) -> float | None:
        """How many of so many slots come free in a second; None while that is not known."""
        if self._count < KNOWN_FROM or slots <= 0 or self._mean_s <= 0.0:
            return None
        return slots / self._mean_s

    def note_refusal(self, slots: int, now: float) -> int:
        """One more is refused; within how many seconds it is to come back."""
        rate = self.read(slots) or max(slots, 1) / UNKNOWN_HOLD_S
        left = max(0.0, self._owed - (now - self._owed_at) * rate)
        self._owed = min(left + 1.0, LONGEST_SPAN_S * rate)
        self._owed_at = now
        return min(max(SHORTEST_SPAN_S, ceil(self._owed / rate)), LONGEST_SPAN_S)
