"""How much room each pool has: what its replicas compute at once, and what of ours takes a slot there.

Looks at the fleet's picture of the moment; no IO and no wait.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from envoy_ext.domain.fleet_view import Offer, PoolView, ReplicaView
from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.domain.live_room import AnyRoom, LiveRoom
from envoy_ext.domain.room import ReplicaRoom, Room
from envoy_ext.domain.slots import SlotCount
from envoy_ext.services.fleet import Fleet

UNLIMITED: Final = Room((ReplicaRoom(ReplicaId(""), None, 0),))


@dataclass(slots=True)
class _Known:
    """A pool's room as of one picture of the fleet; followed from there until the next one."""

    view: PoolView | None = None
    limited: bool = False
    room: LiveRoom = field(default_factory=LiveRoom)


class Rooms:
    """The rooms of all pools. A picture is read once, and what changes between two pictures one by one."""

    def __init__(self, fleet: Fleet, limits: Mapping[PoolName, int | None]) -> None:
        """`limits` are what the configuration says that one replica of a pool computes at once."""
        self._fleet = fleet
        self._limits = limits
        self._known: dict[PoolName, _Known] = {}
        fleet.streams.on_count(self._note_count)

    def read(self, pool: PoolName) -> AnyRoom:
        """A pool's room at this moment; it follows what happens to the pool until it is read again."""
        view = self._fleet.view.find(pool)
        if view is None:
            return Room(())
        known = self._known.setdefault(pool, _Known())
        if known.view is not view:
            known.view = view
            replicas = self._list_replicas(view)
            known.limited = replicas is not None
            known.room.show(replicas or ())
        if not known.limited:
            return UNLIMITED
        known.room.unplaced = self._fleet.streams.count_unplaced(pool)
        return known.room

    def _note_count(self, replica: ReplicaId, count: SlotCount) -> None:
        for known in self._known.values():
            known.room.note_taken(replica, count.taken)  # of whoever is not in that pool it says nothing

    def _list_replicas(self, view: PoolView) -> list[ReplicaRoom] | None:
        """Each that gets work; None where one of them has no limit."""
        found: list[ReplicaRoom] = []
        configured, streams = self._limits.get(view.pool), self._fleet.streams
        for replica in view.replicas:
            if replica.offer is Offer.SERVING:
                limit = _read_limit(replica, configured)
                if limit is None:
                    return None
                taken = streams.count(replica.id).taken
                found.append(ReplicaRoom(replica.id, limit, taken, replica.weight))
        return found


def _read_limit(replica: ReplicaView, configured: int | None) -> int | None:
    """An engine that tells a lower limit is believed."""
    told = replica.status.load.max_running
    limits = [limit for limit in (configured, None if told is None else int(told)) if limit is not None]
    return max(1, min(limits)) if limits else None
