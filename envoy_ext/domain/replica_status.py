"""One replica as its gate sees it at one moment: what weights, views and the capacity check read."""

from dataclasses import dataclass
from enum import StrEnum

from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.domain.readiness_reasons import Finding, ReadinessReason
from envoy_ext.domain.replica_life import SERVING, ReplicaState
from envoy_ext.domain.sample import Sample


class Liveness(StrEnum):
    """Is a process there? Not known is an answer of its own."""

    ALIVE = "alive"
    UNKNOWN = "unknown"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class KnownLoad:
    """The last value of each load signal, None when there is none that is recent enough."""

    running: float | None = None
    waiting: float | None = None
    kv_cache_usage: float | None = None
    max_running: float | None = None


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """Everything that is known of one replica."""

    replica: ReplicaId
    pool: PoolName
    state: ReplicaState
    findings: tuple[Finding, ...]
    incarnation: int
    started: bool
    """Startup: its model has answered in this incarnation."""
    liveness: Liveness
    sample: Sample | None
    """The last page, however old."""
    sample_age_s: float | None
    fresh: bool
    """The last page is recent enough to say anything."""
    load: KnownLoad
    inflight: int
    """Attempts of our own: their streams are open, or they may still be computed."""
    page_inflight: int
    """Attempts of our own when the last page was read: those that have ended since are still on it."""
    cancelling: int
    """Those of `inflight` that we have dropped, and nobody has said that they are over."""
    ramp: float
    """The share of its weight that slow start lets it have, above 0, up to 1."""
    failures: float
    """The decayed count of our own attempts that failed there."""
    was_ready: bool
    """It has served since it was discovered."""

    @property
    def ready(self) -> bool:
        """Readiness: it gets new work by its own merit."""
        return self.state in SERVING

    @property
    def reasons(self) -> tuple[ReadinessReason, ...]:
        return tuple(finding.reason for finding in self.findings)
