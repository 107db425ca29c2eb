"""What is known of a pool's capacity, put together: room, load, what each loss leaves, and what it costs.

Pure: the sidecar builds it from the fleet's picture and what it has measured, the command line from a
configuration alone. What is not known is None, and then nothing is concluded from it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from envoy_ext.domain.capacity import Demand, Headroom, ReplicaLoad, Scenario, compute_headrooms
from envoy_ext.domain.downtime_cost import CostFigures, ReplicaSize, SpareComparison, compare_spare
from envoy_ext.domain.fingerprint import Fingerprint
from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.domain.shared_fate import FateWarning, list_shared_fates


class LoadSource(StrEnum):
    """Whose word the load is."""

    ENGINES = "engines"
    """Every replica that has work, or could have some, tells it."""
    PARTLY_OWN = "partly_own"
    """Some tell it; of the others only our own requests are known."""
    OWN_REQUESTS = "own_requests"
    """Our own requests alone: the least that there is. What others send to the replicas is not seen."""
    GIVEN = "given"
    """A figure that somebody put in."""


@dataclass(frozen=True, slots=True)
class CapacityPolicy:
    """What one replica of a pool holds, and what losing one costs."""

    size: ReplicaSize
    figures: CostFigures | None = None
    currency: str | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """A pool's work at one moment, and what each loss would leave."""

    demand: Demand
    headrooms: tuple[Headroom, ...]

    def find(self, scenario: Scenario) -> Headroom | None:
        """The scenario's headroom; None where it cannot be told."""
        return next((one for one in self.headrooms if one.scenario is scenario), None)


@dataclass(frozen=True, slots=True)
class PoolCapacity:
    """Everything that is known of one pool."""

    pool: PoolName
    source: LoadSource | None
    """None: the load is not known."""
    listed: tuple[ReplicaId, ...] | None
    """None: only discovery knows which replicas there are, and nobody has asked it."""
    unable: tuple[ReplicaId, ...]
    """Listed, and not to get new work: no room is counted for them."""
    unmeasured: tuple[ReplicaId, ...]
    """Whose load is our own streams and no more."""
    crowded: tuple[ReplicaId, ...]
    """Whose engine computes more at once than the room that is counted for it."""
    room: float | None
    """Requests that those who take work compute at once."""
    now: Moment | None
    busiest: Moment | None
    """Of the last hour: what the N+1 check must hold for."""
    window_s: float | None
    """How long the load has been measured, up to an hour."""
    warnings: tuple[FateWarning, ...]
    policy: CapacityPolicy
    cost: SpareComparison | None

    @property
    def holds(self) -> bool | None:
        """N+1: whether the rest takes all of the work when the worst replica goes; None when not known.

        For one replica, or none, no load needs to be known.
        """
        if self.listed is None:
            return None
        if len(self.listed) - len(self.unable) <= 1:
            return False
        headroom = None if self.busiest is None else self.busiest.find(Scenario.REPLICA)
        return None if headroom is None else headroom.holds


@dataclass(frozen=True, slots=True)
class Measured:
    """A pool's work as it was measured: at this moment, and at the busiest one."""

    now: Demand
    busiest: Demand
    window_s: float


def build_measured_capacity(
    pool: PoolName,
    loads: Sequence[ReplicaLoad],
    fingerprints: Mapping[ReplicaId, Fingerprint],
    measured: Measured,
    policy: CapacityPolicy,
) -> PoolCapacity:
    """Of a pool whose load is measured. `fingerprints` are those of the replicas that are listed."""
    hidden = [load for load in loads if not load.measured and (load.able or load.requests > 0.0)]
    source = LoadSource.PARTLY_OWN if hidden else LoadSource.ENGINES
    if not any(load.measured for load in loads):
        source = LoadSource.OWN_REQUESTS
    return _build(
        pool,
        loads,
        fingerprints,
        policy,
        source=source,
        unmeasured=tuple(load.replica for load in hidden),
        now=_build_moment(pool, loads, measured.now, policy),
        busiest=_build_moment(pool, loads, measured.busiest, policy),
        window_s=measured.window_s,
    )


def build_planned_capacity(
    pool: PoolName,
    loads: Sequence[ReplicaLoad],
    fingerprints: Mapping[ReplicaId, Fingerprint],
    requests: float | None,
    policy: CapacityPolicy,
) -> PoolCapacity:
    """Of a pool that nobody watches: for so many requests at once, or without any load.

    `loads` are the replicas that are planned; none means that only discovery knows them.
    """
    if not loads:
        return PoolCapacity(pool, None, None, (), (), (), None, None, None, None, (), policy, None)
    given = None if requests is None else _build_moment(pool, loads, Demand(requests), policy)
    return _build(
        pool,
        loads,
        fingerprints,
        policy,
        source=None if given is None else LoadSource.GIVEN,
        unmeasured=(),
        now=None,
        busiest=given,
        window_s=None,
    )


def _build(
    pool: PoolName,
    loads: Sequence[ReplicaLoad],
    fingerprints: Mapping[ReplicaId, Fingerprint],
    policy: CapacityPolicy,
    *,
    source: LoadSource | None,
    unmeasured: tuple[ReplicaId, ...],
    now: Moment | None,
    busiest: Moment | None,
    window_s: float | None,
) -> PoolCapacity:
    listed = [load for load in loads if load.replica in fingerprints]
    return PoolCapacity(
        pool=pool,
        source=source,
        listed=tuple(load.replica for load in listed),
        unable=tuple(load.replica for load in listed if not load.able),
        unmeasured=unmeasured,
        crowded=tuple(load.replica for load in listed if load.crowded),
        room=sum(load.concurrency for load in loads if load.able),
        now=now,
        busiest=busiest,
        window_s=window_s,
        warnings=list_shared_fates(listed, fingerprints),
        policy=policy,
        cost=_compare(listed, busiest, policy),
    )


def _build_moment(
    pool: PoolName, loads: Sequence[ReplicaLoad], demand: Demand, policy: CapacityPolicy
) -> Moment:
    return Moment(demand, compute_headrooms(pool, loads, demand, policy.size.kv_limit))


def _compare(
    listed: Sequence[ReplicaLoad], busiest: Moment | None, policy: CapacityPolicy
) -> SpareComparison | None:
    """All that are listed cost money, whether they take work at the moment or not."""
    if policy.figures is None or busiest is None or not listed:
        return None
    concurrency = sum(load.concurrency for load in listed) / len(listed)
    size = ReplicaSize(concurrency, policy.size.kv_limit)
    return compare_spare(policy.figures, len(listed), busiest.demand, size)
