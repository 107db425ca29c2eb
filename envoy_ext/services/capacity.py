"""How much room each pool has, from the load that is measured: now, and at the busiest moment of an hour.

Two things tell the load. The fleet's pictures tell what runs at the replicas, by their own pages or at
least by our streams there. And the exchanges in flight tell what we have been asked for, also where it
is not known yet which replica a request went to: until its answer starts, nobody tells that.

Remembers the peaks of an hour and the last picture, and computes when it is asked. One event loop
feeds it; nothing waits.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from envoy_ext.domain.capacity import (
    Demand,
    Headroom,
    PoolDemand,
    ReplicaLoad,
    compute_headrooms,
    read_pool_load,
)
from envoy_ext.domain.capacity_report import CapacityPolicy, Measured, PoolCapacity, build_measured_capacity
from envoy_ext.domain.fleet_view import FleetView, Offer, PoolView
from envoy_ext.domain.ids import PoolName
from envoy_ext.domain.load_peak import LoadPeak
from envoy_ext.domain.notes import Note, PhaseChanged
from envoy_ext.domain.outcomes import INFLIGHT_PHASES
from envoy_ext.ports import Clock


class Capacity:
    """The room of all pools. Replicas are those of the last picture; policies are the configuration's.

    A `ports.Observer` too: phases tell how many exchanges are in flight.
    """

    def __init__(self, policies: Mapping[PoolName, CapacityPolicy], clock: Clock) -> None:
        self._policies = policies
        self._clock = clock
        self._peaks = {pool: LoadPeak() for pool in policies}
        self._demands = {pool: PoolDemand() for pool in policies}
        self._at_replicas: dict[PoolName, Demand] = {}
        self._own: Counter[PoolName] = Counter()
        self._view = FleetView(())

    # --- what is heard ------------------------------------------------------------------------

    def note_fleet(self, view: FleetView) -> None:
        """The picture has changed: a page came, or a stream of ours began or ended."""
        self._view = view
        for pool in view.pools:
            self._remember(pool.pool)
            self._at_replicas[pool.pool] = self._demands[pool.pool].follow(pool)
            self._remember(pool.pool)

    def note(self, note: Note) -> None:
        """An exchange has come, moved on or ended."""
        if isinstance(note, PhaseChanged):
            self._remember(note.pool)
            self._own[note.pool] += (note.after in INFLIGHT_PHASES) - (note.before in INFLIGHT_PHASES)
            self._remember(note.pool)

    def note_bug(self, where: str, error: BaseException) -> None:
        """No load."""

    def note_journal(self, seconds: float, failed: bool) -> None:
        """No load."""

    def _remember(self, pool: PoolName) -> None:
        """What is there before a change is there until then: work that nothing changed for an hour too."""
        if pool in self._at_replicas:
            self._peaks[pool].note(self._measure(pool), self._clock.now())

    # --- what is told -------------------------------------------------------------------------

    def list_headrooms(self) -> list[Headroom]:
        """What each loss would leave at this moment; a scenario that cannot be told is not listed."""
        found: list[Headroom] = []
        for pool in self._view.pools:
            kv_limit = self._policies[pool.pool].size.kv_limit
            found += compute_headrooms(pool.pool, self._read_loads(pool), self._measure(pool.pool), kv_limit)
        return found

    def list_pools(self) -> list[PoolCapacity]:
        """Everything that is known of each pool."""
        return [self._build(pool) for pool in self._view.pools]

    def _build(self, pool: PoolView) -> PoolCapacity:
        peak, now, demand = self._peaks[pool.pool], self._clock.now(), self._measure(pool.pool)
        return build_measured_capacity(
            pool.pool,
            self._read_loads(pool),
            {one.id: one.profile.fingerprint for one in pool.replicas if one.offer is not Offer.ABSENT},
            Measured(demand, peak.read(now) or demand, peak.read_window_s(now) or 0.0),
            self._policies[pool.pool],
        )

    def _measure(self, pool: PoolName) -> Demand:
        at_replicas = self._at_replicas[pool]
        return replace(at_replicas, requests=max(at_replicas.requests, float(self._own[pool])))

    def _read_loads(self, pool: PoolView) -> Sequence[ReplicaLoad]:
        return read_pool_load(pool, self._policies[pool.pool].size.concurrency)
