"""What our own attempts at a replica tell about it: a count that decays.

One failed attempt says little: an idle connection may have been closed at the moment it was used, a
prompt may be one that no replica survives. So a failure counts one and halves every `HALF_LIFE_S`, a
whole answer halves the count at once, and the count is capped, so that a hundred streams lost in one
crash do not weigh for an hour. What is the client's mistake or our own doing counts nothing.
"""

import math
from dataclasses import dataclass
from typing import Final

from envoy_ext.domain.outcomes import AttemptOutcome

HALF_LIFE_S: Final = 20.0
"""A replica at the cap is back below one after a minute: the order of a small engine's restart."""
NOTHING: Final = 0.001
"""A count below this changes no weight and no order, and is none: four minutes after the cap."""
CAP: Final = 6.0

COSTS: Final[dict[AttemptOutcome, float]] = {
    AttemptOutcome.REPLICA_DIED: 1.0,
    AttemptOutcome.NETWORK_PARTITION: 1.0,
    AttemptOutcome.ENGINE_ERROR: 1.0,
    AttemptOutcome.TRUNCATED: 1.0,
    # Busy is not broken; but one that says so to everybody is not the place to send work to.
    AttemptOutcome.OVERLOADED: 0.5,
}

ANSWERED: Final = frozenset(
    {
        AttemptOutcome.COMPLETED,
        AttemptOutcome.ENGINE_ERROR,
        AttemptOutcome.OVERLOADED,
        AttemptOutcome.CLIENT_ERROR,
    }
)
"""Outcomes that show that something answers there, whatever it said."""


@dataclass(slots=True)
class OwnFailures:
    """The decayed count of one replica; changed only by its gate."""

    _count: float = 0.0
    _at: float = -math.inf

    def note(self, outcome: AttemptOutcome, at: float) -> None:
        """An attempt of ours ended there."""
        count = self.read(at)
        if outcome is AttemptOutcome.COMPLETED:
            count /= 2
        self._count, self._at = min(CAP, count + COSTS.get(outcome, 0.0)), at

    def read(self, at: float) -> float:
        """The count as of a time."""
        if self._count == 0.0:
            return 0.0
        count = self._count * math.exp2((self._at - at) / HALF_LIFE_S)
        return count if count >= NOTHING else 0.0

    def falls_to(self, count: float) -> float | None:
        """When it will have decayed to this; None when it is there already."""
        if self._count <= count:
            return None
        # A millisecond more, so that what is read then is surely not above it by rounding.
        return self._at + HALF_LIFE_S * math.log2(self._count / count) + 0.001
