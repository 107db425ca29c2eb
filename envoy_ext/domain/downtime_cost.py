"""What lost replicas cost in a year, and what a spare saves: arithmetic on figures that people put in.

A replica fails `failures_per_year` times, and each time is away for `recovery_hours`; while it is,
the share of the work that the rest cannot take is lost, by the same rule as in the capacity check. Two
replicas lost at once, and whole nodes, are left out, which makes the estimate low; every hour is taken
to be as busy as the demand given, which makes it high when that is a peak.
"""

from dataclasses import dataclass
from typing import Final

from envoy_ext.domain.capacity import Demand, compute_ratio

HOURS_PER_YEAR: Final = 8760.0


@dataclass(frozen=True, slots=True)
class CostFigures:
    """What people know and no metric tells. Money is in whatever currency they think in."""

    downtime_per_hour: float
    """What an hour costs in which none of the pool's work is done."""
    replica_per_hour: float
    failures_per_year: float
    """Of one replica."""
    recovery_hours: float
    """From its failure until it serves again: notice, restart, model load."""


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """A year with so many replicas."""

    replicas: int
    lost_share: float
    """The share of the work without a place while one replica is away, 0 to 1."""
    hours_short: float
    """Hours in the year in which a replica is away."""
    downtime_cost: float
    """Of the work that is lost."""
    replica_cost: float
    """Of running them."""

    @property
    def total(self) -> float:
        return self.downtime_cost + self.replica_cost


@dataclass(frozen=True, slots=True)
class SpareComparison:
    """A year as it is, and one with a spare more."""

    as_it_is: CostEstimate
    with_spare: CostEstimate

    @property
    def saves(self) -> float:
        """What the spare saves in a year, its own cost taken off; negative when it costs more."""
        return self.as_it_is.total - self.with_spare.total


@dataclass(frozen=True, slots=True)
class ReplicaSize:
    """What one replica holds: requests at once, and the usage at which its KV cache is full."""

    concurrency: float
    kv_limit: float = 0.95


def estimate_cost(figures: CostFigures, replicas: int, demand: Demand, size: ReplicaSize) -> CostEstimate:
    """A year with so many replicas of one size, for this work at every moment of it."""
    lost_share = _compute_lost_share(replicas - 1, demand, size)
    hours_short = min(HOURS_PER_YEAR, replicas * figures.failures_per_year * figures.recovery_hours)
    return CostEstimate(
        replicas=replicas,
        lost_share=lost_share,
        hours_short=hours_short,
        downtime_cost=hours_short * lost_share * figures.downtime_per_hour,
        replica_cost=replicas * figures.replica_per_hour * HOURS_PER_YEAR,
    )


def compare_spare(figures: CostFigures, replicas: int, demand: Demand, size: ReplicaSize) -> SpareComparison:
    """What one replica more would change."""
    return SpareComparison(
        estimate_cost(figures, replicas, demand, size),
        estimate_cost(figures, replicas + 1, demand, size),
    )


def _compute_lost_share(left: int, demand: Demand, size: ReplicaSize) -> float:
    """Of the work, by whatever is tighter; an idle pool loses none."""
    ratios = [1.0]
    if demand.requests > 0.0:
        ratios.append(compute_ratio(demand.requests, left * size.concurrency))
    if demand.kv_cache is not None and demand.kv_cache > 0.0:
        ratios.append(compute_ratio(demand.kv_cache, left * size.kv_limit))
    return max(0.0, -min(ratios))
