"""The JSON of `/v1/capacity`: what is not known is null, never 0."""

from envoy_ext.domain.capacity import Headroom, Scenario
from envoy_ext.domain.capacity_report import Moment, PoolCapacity
from envoy_ext.domain.capacity_words import (
    describe_headroom,
    describe_n_plus_one,
    describe_spare,
    list_remarks,
)
from envoy_ext.domain.downtime_cost import CostEstimate, SpareComparison


def build_capacity_json(pool: PoolCapacity) -> dict[str, object]:
    """One entry of `/v1/capacity`."""
    return {
        "pool": pool.pool,
        "replicas": None if pool.listed is None else list(pool.listed),
        "unable": list(pool.unable),
        "room": pool.room,
        "load": pool.source,
        "unmeasured": list(pool.unmeasured),
        "measured_for_s": pool.window_s,
        "n_plus_one": {"holds": pool.holds, "text": describe_n_plus_one(pool)},
        "now": _build_moment(pool.now),
        "busiest": _build_moment(pool.busiest),
        "warnings": [
            {"fate": one.fate, "replicas": list(one.replicas), "text": one.text} for one in pool.warnings
        ],
        "remarks": list(list_remarks(pool)),
        "cost": None if pool.cost is None else build_cost_json(pool.cost, pool.policy.currency),
    }


def build_cost_json(cost: SpareComparison, currency: str | None) -> dict[str, object]:
    """A year as it is, and with a spare."""
    return {
        "currency": currency,
        "as_it_is": _build_estimate(cost.as_it_is),
        "with_spare": _build_estimate(cost.with_spare),
        "saves": cost.saves,
        "text": describe_spare(cost, currency),
    }


def _build_moment(moment: Moment | None) -> dict[str, object] | None:
    if moment is None:
        return None
    return {
        "requests": moment.demand.requests,
        "kv_cache": moment.demand.kv_cache,
        "scenarios": {scenario: _build_headroom(moment.find(scenario)) for scenario in Scenario},
    }


def _build_headroom(headroom: Headroom | None) -> dict[str, object] | None:
    if headroom is None:
        return None
    return {
        "ratio": headroom.ratio,
        "holds": headroom.holds,
        "lost": list(headroom.lost),
        "where": headroom.where or None,
        "room": headroom.room,
        "bottleneck": headroom.bottleneck,
        "text": describe_headroom(headroom),
    }


def _build_estimate(estimate: CostEstimate) -> dict[str, object]:
    return {
        "replicas": estimate.replicas,
        "lost_share": estimate.lost_share,
        "hours_short": estimate.hours_short,
        "downtime_cost": estimate.downtime_cost,
        "replica_cost": estimate.replica_cost,
        "total": estimate.total,
    }
