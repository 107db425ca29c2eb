"""Did the sidecar's own loop run on time? Who was starved must not judge others.

A stopped or starved process finds all its probes timed out when it wakes, and the replicas are fine.
So whoever serves deadlines or hands on signals asks this first, before any of them is judged, and tells
every gate what it says: which of the loop's callbacks runs first after a pause is nobody's choice.
"""

from dataclasses import dataclass
from typing import Final

from envoy_ext.domain.fleet_events import LoopLate

LATE_S: Final = 0.5
"""Lateness that counts. A busy loop is late by tens of milliseconds; probes have seconds."""


@dataclass(slots=True)
class LoopHealth:
    """Compares when it is ticked with when it should have been."""

    interval_s: float
    late_s: float = LATE_S
    _ticked_at: float | None = None

    def tick(self, now: float) -> LoopLate | None:
        """Call at least once an interval; tells how long nobody looked, None when all is well."""
        before, self._ticked_at = self._ticked_at, now
        if before is None:
            return None
        late = now - before - self.interval_s
        return LoopLate(late) if late > self.late_s else None

    def look(self, now: float) -> LoopLate | None:
        """Between two ticks: tells lateness as a tick would; without any, the next tick is as it was."""
        before = self._ticked_at
        if before is None or now - before - self.interval_s <= self.late_s:
            return None
        return self.tick(now)
