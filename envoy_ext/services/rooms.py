"""How much room each pool has: what its replicas compute at once, and what of ours takes a slot there.

Looks at the fleet's picture of the moment; no IO and no wait.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from envoy_ext.domain.fleet_view import Offer, PoolView, ReplicaView
from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.domain.room import ReplicaRoom, Room
from envoy_ext.services.fleet import Fleet

UNLIMITED: Final = Room((ReplicaRoom(ReplicaId(""), None, 0),))


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What one picture tells of a pool; the same until the next one."""

    view: PoolView
    replicas: tuple[tuple[ReplicaId, int, int], ...] | None
    """Id, limit and weight of each that gets work; None where one of them has no limit."""


class Rooms:
    """The rooms of all pools."""

    def __init__(self, fleet: Fleet, limits: Mapping[PoolName, int | None]) -> None:
        """`limits` are what the configuration says that one replica of a pool computes at once."""
        self._fleet = fleet
        self._limits = limits
        self._sizes: dict[PoolName, _Sizes] = {}

    def read(self, pool: PoolName) -> Room:
        """A pool's room at this moment."""
        view = self._fleet.view.find(pool)
        if view is None:
            return Room(())
        sizes = self._sizes.get(pool)
        if sizes is None or sizes.view is not view:
            sizes = self._sizes[pool] = _Sizes(view, _read_sizes(view, self._limits.get(pool)))
        if sizes.replicas is None:
            return UNLIMITED
        streams = self._fleet.streams
        return Room(
            [
                ReplicaRoom(one, limit, streams.count(one).taken, weight)
                for one, limit, weight in sizes.replicas
            ],
            streams.count_unplaced(pool),
        )


def _read_sizes(view: PoolView, configured: int | None) -> tuple[tuple[ReplicaId, int, int], ...] | None:
    found: list[tuple[ReplicaId, int, int]] = []
    for replica in view.replicas:
        if replica.offer is Offer.SERVING:
            limit = _read_limit(replica, configured)
            if limit is None:
                return None
            found.append((replica.id, limit, replica.weight))
    return tuple(found)


def _read_limit(replica: ReplicaView, configured: int | None) -> int | None:
    """An engine that tells a lower limit is believed."""
    told = replica.status.load.max_running
    limits = [limit for limit in (configured, None if told is None else int(told)) if limit is not None]
    return max(1, min(limits)) if limits else None
