"""Capacity's part of the composition: from configuration to policies, and to a pool that is only planned.

Belongs to the composition layer, beside `app`.
"""

from collections.abc import Sequence

from envoy_ext.config import Cost, Pool
from envoy_ext.domain.capacity import ReplicaLoad
from envoy_ext.domain.capacity_report import CapacityPolicy, PoolCapacity, build_planned_capacity
from envoy_ext.domain.downtime_cost import CostFigures, ReplicaSize
from envoy_ext.domain.fingerprint import Fingerprint
from envoy_ext.domain.ids import PoolName

HOUR_S = 3600.0


def build_capacity_policies(pools: Sequence[Pool]) -> dict[PoolName, CapacityPolicy]:
    """What one replica of each pool holds, and what losing one costs."""
    return {pool.name: build_capacity_policy(pool) for pool in pools}


def build_capacity_policy(pool: Pool) -> CapacityPolicy:
    """A cache counts as full where the pool's readiness would take a replica out for it."""
    cost = pool.capacity.cost
    return CapacityPolicy(
        size=ReplicaSize(float(pool.capacity.assumed_concurrency), pool.readiness.kv_cache.leave),
        figures=None if cost is None else build_figures(cost),
        currency=None if cost is None else cost.currency,
    )


def build_figures(cost: Cost) -> CostFigures:
    """A pool's `capacity.cost`, as the core takes it."""
    return CostFigures(
        downtime_per_hour=cost.downtime_per_hour,
        replica_per_hour=cost.replica_per_hour,
        failures_per_year=cost.failures_per_year,
        recovery_hours=cost.recovery / HOUR_S,
    )


def plan_capacity(pool: Pool, requests: float | None) -> PoolCapacity:
    """What the configuration alone tells: every listed replica taken to be there and to take work."""
    loads = [
        ReplicaLoad(
            replica=replica.id,
            pool=pool.name,
            able=True,
            requests=0.0,
            concurrency=float(pool.capacity.assumed_concurrency),
            node=replica.node,
            zone=replica.zone,
            gpus=tuple(replica.gpus),
        )
        for replica in pool.replicas
    ]
    # A file gives one fingerprint for a whole pool: only engines could tell that replicas differ.
    fingerprints = dict.fromkeys((load.replica for load in loads), Fingerprint(pool.name))
    return build_planned_capacity(pool.name, loads, fingerprints, requests, build_capacity_policy(pool))
