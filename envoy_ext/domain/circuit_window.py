"""Counts of a sliding window, and of the failures in a row: what a closed circuit is judged by.

Evidence of one instant is a set, not a list: attempts that end together may be told in any order. So a
success excuses only the failures before its instant.
"""

import math
from collections import Counter, deque
from typing import Final

from envoy_ext.domain.circuit_evidence import Answered, Blame, Evidence, FailureClass

BUCKETS: Final = 10
"""The window moves in tenths: what is kept does not grow with the traffic."""

Failures = Counter[tuple[FailureClass, Blame]]


class CircuitWindow:
    """What has been seen of one replica; changed only by its circuit."""

    def __init__(self, window_s: float) -> None:
        self._width_s = window_s / BUCKETS
        self._buckets: deque[tuple[int, Failures, list[int]]] = deque()
        self.row: Failures = Counter()
        """Failures since the last success."""
        self._instant: Failures = Counter()
        """Those of `row` at the instant of the last one."""
        self._instant_at = -math.inf

    def note(self, evidence: Evidence, at: float) -> None:
        """Take in one piece of evidence."""
        _, failures, successes = self._find_bucket(at)
        if isinstance(evidence, Answered):
            successes[0] += 1
            self.row = Counter(self._instant) if self._instant_at == at else Counter()
            return
        key = evidence.kind, evidence.blame
        failures[key] += 1
        if self._instant_at != at:
            self._instant, self._instant_at = Counter(), at
        self._instant[key] += 1
        self.row[key] += 1

    def read(self, now: float) -> tuple[Failures, int]:
        """Failures and successes that lie within the window."""
        self._drop_old(now)
        total: Failures = Counter()
        for _, failures, _ in self._buckets:
            total += failures
        return total, sum(successes[0] for _, _, successes in self._buckets)

    def clear(self) -> None:
        """Forget everything."""
        self._buckets.clear()
        self.row = Counter()
        self._instant = Counter()

    def _find_bucket(self, at: float) -> tuple[int, Failures, list[int]]:
        self._drop_old(at)
        number = math.floor(at / self._width_s)
        if not self._buckets or self._buckets[-1][0] < number:
            self._buckets.append((number, Counter(), [0]))
        return self._buckets[-1]

    def _drop_old(self, now: float) -> None:
        oldest = math.floor(now / self._width_s) - BUCKETS
        while self._buckets and self._buckets[0][0] <= oldest:
            self._buckets.popleft()
