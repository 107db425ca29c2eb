"""Takes the fleet's pictures: what has not changed since the last one is not looked at again.

A status is read when its replica has heard of something, when time alone makes it another, and at each tick
while it moves by itself (slow start, failures that fade). A picture in which few have changed is the one
before with these in it; one in which weights are due is built from all, with statuses that were read before.
"""

import math
from collections.abc import Mapping
from heapq import heappop, heappush

from envoy_ext.domain.fleet_view import (
    FleetView,
    PoolView,
    ReplicaProfile,
    ViewPolicy,
    build_pool_view,
    update_pool_view,
)
from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.domain.readiness import ReplicaGate
from envoy_ext.domain.replica_status import ReplicaStatus
from envoy_ext.services.experience import Experience


class FleetPicture:
    """Part of the fleet, which tells it what to look at again; gates and profiles are the fleet's."""

    def __init__(
        self,
        policies: Mapping[PoolName, ViewPolicy],
        gates: Mapping[ReplicaId, ReplicaGate],
        profiles: Mapping[ReplicaId, ReplicaProfile],
        experience: Experience,
    ) -> None:
        self._policies = policies
        self._gates = gates
        self._profiles = profiles
        self._experience = experience
        self._statuses: dict[ReplicaId, ReplicaStatus] = {}
        self._touched: dict[ReplicaId, None] = {}
        """To be read."""
        self._changed: dict[PoolName, dict[ReplicaId, None]] = {pool: {} for pool in policies}
        """Read, and not in a picture yet."""
        self._moving: set[ReplicaId] = set()
        self._ageing: list[tuple[float, ReplicaId]] = []
        """A heap: when to look whether time has made a status another."""
        self._looks: dict[ReplicaId, float] = {}
        """The earliest entry of each replica in it."""
        self._relisted = True
        """Somebody has come or gone."""

    def touch(self, replica: ReplicaId) -> None:
        """Something of a replica may be another."""
        self._touched[replica] = None

    def touch_all(self) -> None:
        """And of every one."""
        self._touched = dict.fromkeys(self._gates)

    def list_anew(self) -> None:
        """Somebody has come or gone."""
        self._relisted = True

    def read_some(self, now: float, count: int) -> bool:
        """Read so many statuses for the next picture; whether more wait."""
        for _ in range(min(count, len(self._touched))):
            self._read(self._touched.popitem()[0], now)
        return bool(self._touched)

    def look_for_movement(self) -> None:
        """Once a tick: statuses that move by themselves are read for the next picture."""
        for replica in self._moving:
            self._touched[replica] = None

    def take(self, before: FleetView | None, now: float) -> FleetView:
        """The picture of this moment."""
        self._look_for_age(now)
        while self.read_some(now, len(self._touched)):
            pass
        relisted, self._relisted = self._relisted, False
        if relisted:
            self._forget_the_gone()
        listed: dict[PoolName, list[ReplicaId]] | None = None
        read_latencies = self._experience.read_latencies
        views: list[PoolView] = []
        for name, policy in self._policies.items():
            previous = None if before is None else before.find(name)
            changed, self._changed[name] = self._changed[name], {}
            view: PoolView | None = None
            if previous is not None and not relisted:
                few = [self._pair(replica) for replica in changed]
                view = update_pool_view(previous, few, policy, now, lambda: read_latencies(now))
            if view is None:
                if previous is None or relisted:
                    listed = listed or self._list()
                    members = listed[name]
                else:
                    members = [one.id for one in previous.replicas]
                pairs = [self._pair(replica) for replica in members]
                view = build_pool_view(name, pairs, previous, policy, now, read_latencies(now))
            views.append(view)
        return FleetView(tuple(views))

    def _pair(self, replica: ReplicaId) -> tuple[ReplicaStatus, ReplicaProfile]:
        return self._statuses[replica], self._profiles[replica]

    def _list(self) -> dict[PoolName, list[ReplicaId]]:
        listed: dict[PoolName, list[ReplicaId]] = {name: [] for name in self._policies}
        for replica, gate in self._gates.items():
            listed[gate.pool].append(replica)
        return listed

    def _forget_the_gone(self) -> None:
        for replica in self._statuses.keys() - self._gates.keys():
            del self._statuses[replica]
            self._moving.discard(replica)
            self._looks.pop(replica, None)
            for changed in self._changed.values():
                changed.pop(replica, None)

    def _read(self, replica: ReplicaId, now: float) -> None:
        gate = self._gates.get(replica)
        if gate is None:
            return
        self._statuses[replica] = gate.read_status(now)
        self._changed[gate.pool][replica] = None
        if gate.moves(now):
            self._moving.add(replica)
        else:
            self._moving.discard(replica)
        self._plan_look(replica, gate.next_ageing(now))

    def _plan_look(self, replica: ReplicaId, at: float) -> None:
        """Never later than the status ages; a look that comes too early is planned anew."""
        if at < self._looks.get(replica, math.inf):
            self._looks[replica] = at
            heappush(self._ageing, (at, replica))

    def _look_for_age(self, now: float) -> None:
        while self._ageing and self._ageing[0][0] <= now:
            at, replica = heappop(self._ageing)
            if self._looks.get(replica) == at:
                del self._looks[replica]
                gate = self._gates.get(replica)
                if gate is not None:
                    self._touched[replica] = None
