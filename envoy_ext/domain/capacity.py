"""Is there room for the work of a pool when a replica, a node or a zone goes? From measured load.

The one that is assumed lost is the worst of its kind: whose loss leaves least room, and of those the
busiest. Its work goes to the rest. `ratio` says what follows, in one number from -1 to 1:

* above 0: that share of what remains stays free;
* 0: it just fits;
* below 0: that share of the work finds no place (-1: nothing remains).

Two things can run out, requests at once and KV cache; the tighter one is the bottleneck. Caches are
taken to be of one size within a pool. A replica without a known node (or zone) is taken to stand alone.

What is not known is never taken for nothing: load that no page tells is at least our own part of it,
and its share of the cache is estimated from the replicas that tell theirs.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import fsum
from typing import Final

from envoy_ext.domain.fleet_view import PoolView, ReplicaView, list_changes
from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.domain.replica_life import SERVING, ReplicaState
from envoy_ext.domain.replica_status import KnownLoad, Liveness, ReplicaStatus


class Scenario(StrEnum):
    """What is assumed to be gone."""

    NOTHING = "nothing"
    REPLICA = "replica"
    NODE = "node"
    ZONE = "zone"


class Bottleneck(StrEnum):
    """What runs out first."""

    REQUESTS = "requests"
    KV_CACHE = "kv_cache"


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """One replica, as far as capacity goes."""

    replica: ReplicaId
    pool: PoolName
    able: bool
    """It can take work, so its room counts; one that drains still has work, and no room."""
    requests: float
    """In hand: running, waiting, or at least our own."""
    concurrency: float
    kv_cache_usage: float | None = None
    node: str | None = None
    zone: str | None = None
    gpus: tuple[int, ...] = ()
    measured: bool = True
    """A recent page of the engine tells the requests; else they are our own streams and no more."""
    crowded: bool = False
    """The engine computes more at once than `concurrency` says that it can: that figure is too low."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The work of a pool: what is to be placed. `kv_cache` is in caches of one replica."""

    requests: float
    kv_cache: float | None = None


@dataclass(frozen=True, slots=True)
class Headroom:
    """What remains of a pool in one scenario."""

    pool: PoolName
    scenario: Scenario
    lost: tuple[ReplicaId, ...]
    where: str
    """Which replica, node or zone; empty when there is none to lose."""
    why: str
    """For people: what makes it the worst of its kind, or empty when others are like it."""
    ratio: float
    bottleneck: Bottleneck
    requests: float
    """To be placed."""
    room: float
    """Requests the rest computes at once."""

    @property
    def holds(self) -> bool:
        """Whether the rest can take it all."""
        return self.ratio >= 0.0


_ABLE: Final = frozenset({*SERVING, ReplicaState.SATURATED})
_GONE_WITH_IT: Final = KnownLoad()


def read_replica_load(view: ReplicaView, concurrency: float) -> ReplicaLoad:
    """A replica of the picture as capacity sees it; an engine that tells a lower limit is believed."""
    status, load = view.status, _read_standing_load(view.status)
    limit = concurrency if load.max_running is None else min(concurrency, load.max_running)
    requests, kv_cache_usage = _read_work(status)
    return ReplicaLoad(
        replica=status.replica,
        pool=status.pool,
        able=status.state in _ABLE,
        requests=requests,
        concurrency=limit,
        kv_cache_usage=kv_cache_usage,
        node=view.profile.node,
        zone=view.profile.zone,
        gpus=view.profile.gpus,
        measured=load.running is not None or load.waiting is not None,
        crowded=load.running is not None and load.running > limit,
    )


def _read_standing_load(status: ReplicaStatus) -> KnownLoad:
    """What its page tells; that of a process which is dead tells of work that is gone."""
    return _GONE_WITH_IT if status.liveness is Liveness.DEAD else status.load


def _read_work(status: ReplicaStatus) -> tuple[float, float | None]:
    """Requests and KV cache.

    A page is as old as the last look; our own streams are known to this moment. Those of a replica
    that is lost are elsewhere a moment later, and must not be counted in both places.
    """
    load = _read_standing_load(status)
    page = (load.running or 0.0) + (load.waiting or 0.0)
    left = max(page - max(0, status.page_inflight - status.inflight), 0.0)
    kv_cache = load.kv_cache_usage
    if kv_cache is not None and page > 0.0:
        kv_cache *= left / page
    return max(left, status.inflight), kv_cache


def read_pool_load(view: PoolView, concurrency: float) -> tuple[ReplicaLoad, ...]:
    """The replicas of a pool as capacity sees them; what is gone counts while its last streams end."""
    return tuple(read_replica_load(replica, concurrency) for replica in view.replicas)


class PoolDemand:
    """The work in hand of one pool, followed from picture to picture: `measure_demand` of its loads, without
    building them, and with a look at those only that have changed."""

    def __init__(self) -> None:
        self._replicas: tuple[ReplicaView, ...] = ()
        self._works = _Works()

    def follow(self, view: PoolView) -> Demand:
        """What there is in this picture."""
        for old, new in list_changes(self._replicas, view.replicas):
            if new is not None:
                self._works.put(new.id, *_read_work(new.status))
            elif old is not None:
                self._works.drop(old.id)
        self._replicas = view.replicas
        return self._works.measure()


def measure_demand(loads: Sequence[ReplicaLoad]) -> Demand:
    """The work in hand at this moment."""
    works = _Works()
    for number, load in enumerate(loads):
        works.put(number, load.requests, load.kv_cache_usage)
    return works.measure()


class _Works:
    """What each has in hand. Where a cache is not known, its requests are taken to need as much as those of
    known caches do."""

    def __init__(self) -> None:
        self._requests: dict[Hashable, float] = {}
        self._caches: dict[Hashable, float] = {}
        self._known_requests: dict[Hashable, float] = {}
        """Of those whose cache is known."""
        self._silent: set[Hashable] = set()
        """Those that have requests, and whose cache is not known."""

    def put(self, one: Hashable, requests: float, kv_cache: float | None) -> None:
        self._requests[one] = requests
        self._silent.discard(one)
        if kv_cache is not None:
            self._caches[one], self._known_requests[one] = kv_cache, requests
            return
        self._caches.pop(one, None)
        self._known_requests.pop(one, None)
        if requests > 0.0:
            self._silent.add(one)

    def drop(self, one: Hashable) -> None:
        self._requests.pop(one, None)
        self._caches.pop(one, None)
        self._known_requests.pop(one, None)
        self._silent.discard(one)

    def measure(self) -> Demand:
        # Exactly rounded: the same works give the same sums, in whatever order they came to be there.
        total = fsum(self._requests.values())
        if not self._caches:
            return Demand(total)
        known, known_requests = fsum(self._caches.values()), fsum(self._known_requests.values())
        if known_requests > 0.0:
            # No cache holds more than all of itself, however many requests were sent there.
            known += min(float(len(self._silent)), known * (total - known_requests) / known_requests)
        return Demand(total, known)


_PLACES: Final[dict[Scenario, Callable[[ReplicaLoad], str | None]]] = {
    Scenario.REPLICA: lambda load: load.replica,
    Scenario.NODE: lambda load: load.node,
    Scenario.ZONE: lambda load: load.zone,
}


@dataclass(frozen=True, slots=True)
class _Room:
    """What some replicas hold: requests at once, whole caches, and the work they have."""

    requests: float = 0.0
    caches: float = 0.0
    work: float = 0.0


def compute_headrooms(
    pool: PoolName, loads: Sequence[ReplicaLoad], demand: Demand, kv_limit: float = 0.95
) -> tuple[Headroom, ...]:
    """One pool in each scenario that can be told; `kv_limit` is the usage at which a cache is full.

    A pool in which nothing can take work has lost whatever it could lose: -1, and not silence, so
    that an alarm that rang for the last replica does not end when that goes too.
    """
    able = [load for load in loads if load.able]
    whole = _sum_room(able)
    found = [_build_headroom(pool, Scenario.NOTHING, "", "", (), whole, demand, kv_limit)]
    for scenario, read_place in _PLACES.items():
        if scenario is Scenario.REPLICA or any(read_place(load) is not None for load in loads):
            found.append(_find_worst(pool, scenario, _group(able, read_place), whole, demand, kv_limit))
    return tuple(found)


def _find_worst(
    pool: PoolName,
    scenario: Scenario,
    groups: dict[str, list[ReplicaLoad]],
    whole: _Room,
    demand: Demand,
    kv_limit: float,
) -> Headroom:
    if not groups:
        return _build_headroom(pool, scenario, "", "", (), _Room(), demand, kv_limit)
    rooms = {where: _sum_room(group) for where, group in groups.items()}
    rests = {
        where: _Room(whole.requests - room.requests, whole.caches - room.caches)
        for where, room in rooms.items()
    }

    def weigh(where: str) -> tuple[float, float, str]:
        return _compute_tightest(rests[where], demand, kv_limit)[0], -rooms[where].work, where

    worst = min(groups, key=weigh)
    why = _tell_apart(rooms.pop(worst), list(rooms.values()))
    lost = tuple(sorted(load.replica for load in groups[worst]))
    return _build_headroom(pool, scenario, worst, why, lost, rests[worst], demand, kv_limit)


def _tell_apart(worst: _Room, others: Sequence[_Room]) -> str:
    if all((worst.requests, worst.caches) > (other.requests, other.caches) for other in others):
        return "the largest" if others else ""
    return "the busiest" if all(worst.work > other.work for other in others) else ""


def _build_headroom(
    pool: PoolName,
    scenario: Scenario,
    where: str,
    why: str,
    lost: tuple[ReplicaId, ...],
    rest: _Room,
    demand: Demand,
    kv_limit: float,
) -> Headroom:
    ratio, bottleneck = _compute_tightest(rest, demand, kv_limit)
    return Headroom(
        pool=pool,
        scenario=scenario,
        lost=lost,
        where=where,
        why=why,
        ratio=ratio,
        bottleneck=bottleneck,
        requests=demand.requests,
        room=rest.requests,
    )


def _compute_tightest(rest: _Room, demand: Demand, kv_limit: float) -> tuple[float, Bottleneck]:
    ratio = compute_ratio(demand.requests, rest.requests)
    if demand.kv_cache is not None:
        kv_ratio = compute_ratio(demand.kv_cache, kv_limit * rest.caches)
        if kv_ratio < ratio:
            return kv_ratio, Bottleneck.KV_CACHE
    return ratio, Bottleneck.REQUESTS


def compute_ratio(demand: float, room: float) -> float:
    """The free share of the room (0 to 1), or the share of the demand that has no place (-1 to 0)."""
    if room <= 0.0:
        return -1.0
    return (room - demand) / max(room, demand)


def _sum_room(loads: Sequence[ReplicaLoad]) -> _Room:
    return _Room(
        sum(load.concurrency for load in loads), float(len(loads)), sum(load.requests for load in loads)
    )


def _group(
    loads: Sequence[ReplicaLoad], read_place: Callable[[ReplicaLoad], str | None]
) -> dict[str, list[ReplicaLoad]]:
    groups: dict[str, list[ReplicaLoad]] = {}
    for load in loads:
        groups.setdefault(read_place(load) or f"replica {load.replica}", []).append(load)
    return groups
