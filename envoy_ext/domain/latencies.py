"""How fast each replica begins to answer, by our own streams: recent, robust, and forgotten when old.

A prompt's length moves a single time to the first delta more than any replica does, so only the middle
of many counts. Too few, or too old, is not known; a replica that is not asked is not slow.
"""

from collections import deque
from statistics import median
from typing import Final

from envoy_ext.domain.ids import ReplicaId

WINDOW_S: Final = 60.0
"""What is older says nothing about the replica as it is. Weights move in seconds."""
MAX_SAMPLES: Final = 32
MIN_SAMPLES: Final = 8
"""Fewer have a middle that one long prompt moves."""
LEAST_S: Final = 0.1
"""Below this nobody feels a difference, and shares of a few milliseconds are noise."""
EVERY_S: Final = 1.0
"""How often they are computed, however often they are asked for."""


class Latencies:
    """Times to a first delta by replica. One event loop feeds it."""

    def __init__(self) -> None:
        self._samples: dict[ReplicaId, deque[tuple[float, float]]] = {}
        self._known: dict[ReplicaId, float] = {}
        self._known_at: float | None = None

    def note(self, replica: ReplicaId, seconds: float, now: float) -> None:
        """An attempt gave its first delta so long after its start."""
        self._samples.setdefault(replica, deque(maxlen=MAX_SAMPLES)).append((now, seconds))

    def forget(self, replica: ReplicaId) -> None:
        """Another process is there, or nobody."""
        self._samples.pop(replica, None)
        self._known.pop(replica, None)

    def read(self, now: float) -> dict[ReplicaId, float]:
        """Seconds to a first delta of each replica of which they are known, at most a second old."""
        if self._known_at is None or now >= self._known_at + EVERY_S:
            self._known_at = now
            self._known = {
                replica: max(LEAST_S, median(seconds for _, seconds in samples))
                for replica, samples in self._samples.items()
                if self._drop_old(samples, now) >= MIN_SAMPLES
            }
        return self._known

    def _drop_old(self, samples: deque[tuple[float, float]], now: float) -> int:
        while samples and samples[0][0] < now - WINDOW_S:
            samples.popleft()
        return len(samples)
