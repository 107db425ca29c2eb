"""The busiest moment of a pool in the last hour: what the N+1 check must hold for.

A bounded memory: one bucket a minute, each with the highest demand seen in it. Requests and KV cache
peak at their own moments, and the check takes both: room must be there for either.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from envoy_ext.domain.capacity import Demand

BUCKET_S: Final = 60.0
BUCKETS: Final = 60


@dataclass(slots=True)
class LoadPeak:
    """The peaks of one pool; one event loop feeds it."""

    _buckets: deque[tuple[float, Demand]] = field(default_factory=lambda: deque(maxlen=BUCKETS))
    """When each began, and the highest demand in it."""
    _since: float | None = None

    def note(self, demand: Demand, at: float) -> None:
        """The demand at a moment."""
        if self._since is None:
            self._since = at
        if self._buckets and at < self._buckets[-1][0] + BUCKET_S:
            begun, highest = self._buckets.pop()
            self._buckets.append((begun, _join(highest, demand)))
        else:
            self._buckets.append((at, demand))

    def read(self, now: float) -> Demand | None:
        """The highest demand of the last hour, None before any was measured."""
        peak = None
        for begun, demand in self._buckets:
            if now < begun + BUCKETS * BUCKET_S:
                peak = demand if peak is None else _join(peak, demand)
        return peak

    def read_window_s(self, now: float) -> float | None:
        """How long the demand has been measured: an hour at most, None before anything was."""
        return None if self._since is None else min(BUCKETS * BUCKET_S, now - self._since)


def _join(one: Demand, other: Demand) -> Demand:
    known = [kv_cache for kv_cache in (one.kv_cache, other.kv_cache) if kv_cache is not None]
    return Demand(max(one.requests, other.requests), max(known) if known else None)
