"""The metric families of jobs. Their gauge is of the store's jobs, whichever gateway took them in."""

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from envoy_ext.domain.ids import PoolName
from envoy_ext.domain.job import ENDED, JobCounts, JobState
from envoy_ext.domain.notes import JobEnded


class JobMetrics:
    """Part of `Metrics`, and used as that is."""

    def __init__(self, registry: CollectorRegistry, pools: Iterable[PoolName]) -> None:
        self._pools: Final = tuple(pools)
        self.unfinished = Gauge(
            "envoy_ext_jobs",
            "Jobs of this store that have not ended, whichever gateway took them in.",
            ["pool", "state"],
            registry=registry,
        )
        # Not envoy_ext_jobs_total: OpenMetrics has no gauge beside a counter of its name.
        self.ended = Counter(
            "envoy_ext_jobs_ended_total",
            "Jobs that ended by this gateway's word, by how.",
            ["pool", "state"],
            registry=registry,
        )
        for pool in self._pools:
            for state in sorted(ENDED):
                self.ended.labels(pool, state)
        self.note_counts(JobCounts({}, {}, 0))

    def note_counts(self, counts: JobCounts) -> None:
        """What the store holds. A pool that is not configured any more has no series."""
        for state, by_pool in ((JobState.QUEUED, counts.queued), (JobState.RUNNING, counts.running)):
            for pool in self._pools:
                self.unfinished.labels(pool, state).set(by_pool.get(pool, 0))

    def note_ended(self, note: JobEnded) -> None:
        """One has ended."""
        if note.pool in self._pools:
            self.ended.labels(note.pool, note.state).inc()
