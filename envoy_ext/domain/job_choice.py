"""Which of the jobs that wait is run next: the oldest of the caller whose turn it is.

Its turn has who has the fewest running, and among those who was served longest ago: so a caller with one job
does not wait for another one's thousand.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from envoy_ext.domain.ids import PoolName
from envoy_ext.domain.job import Job


@dataclass(slots=True)
class Turns:
    """Whose turn it is at one gateway, in one pool as in another."""

    _running: Counter[str] = field(default_factory=Counter)
    _served: dict[str, int] = field(default_factory=dict)
    _count: int = 0

    def choose(self, waiting: Iterable[Job], pools: frozenset[PoolName]) -> Job | None:
        """The next job of these pools; None when there is none."""
        return min((job for job in waiting if job.pool in pools), key=self._rank, default=None)

    def begin(self, caller: str) -> None:
        """One of a caller's jobs is run."""
        self._count += 1
        self._running[caller] += 1
        self._served[caller] = self._count

    def end(self, caller: str, waiting: Iterable[Job]) -> None:
        """It is run no more. Who has nothing else here is forgotten."""
        self._running[caller] -= 1
        if self._running[caller] <= 0:
            del self._running[caller]
            if all(job.caller != caller for job in waiting):
                self._served.pop(caller, None)

    def _rank(self, job: Job) -> tuple[int, int, int]:
        return (self._running[job.caller], self._served.get(job.caller, 0), job.number)
