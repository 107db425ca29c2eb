"""How much room each pool has: what its replicas compute at once, and what of ours takes a slot there.

Looks at the fleet's picture of the moment; no IO and no wait.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from envoy_ext.domain.fleet_view import Offer, PoolView, ReplicaView, list_changes
from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.domain.live_room import AnyRoom, LiveRoom
from envoy_ext.domain.room import ReplicaRoom, Room
from envoy_ext.domain.slots import SlotCount
from envoy_ext.services.fleet import Fleet

UNLIMITED: Final = Room((ReplicaRoom(ReplicaId(""), None, 0),))


@dataclass(slots=True)
class _Known:
    """A pool's room as of one picture of the fleet; followed from there until the next one."""

    replicas: tuple[ReplicaView, ...] = ()
    unlimited: set[ReplicaId] = field(default_factory=set)
    """Those that get work and have no limit; the others are in the room."""
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
        if known.replicas is not view.replicas:
            self._follow(known, view)
        if known.unlimited:
            return UNLIMITED
        known.room.unplaced = self._fleet.streams.count_unplaced(pool)
        return known.room

    def _note_count(self, replica: ReplicaId, count: SlotCount) -> None:
        for known in self._known.values():
            known.room.note_taken(replica, count.taken)  # of whoever is not in that pool it says nothing

    def _follow(self, known: _Known, view: PoolView) -> None:
        configured = self._limits.get(view.pool)
        for old, new in list_changes(known.replicas, view.replicas):
            if new is None:
                if old is not None:
                    known.unlimited.discard(old.id)
                    known.room.forget(old.id)
                continue
            before = _read_work(old, configured)
            after = _read_work(new, configured)
            if before == after:
                continue
            replica = new.id
            known.unlimited.discard(replica)
            room = None
            if after is not None:
                limit, weight = after
                room = ReplicaRoom(replica, limit, self._fleet.streams.count(replica).taken, weight)
                if limit is None:
                    known.unlimited.add(replica)
            known.room.change(replica, room)
        known.replicas = view.replicas


def _read_work(replica: ReplicaView | None, configured: int | None) -> tuple[int | None, int] | None:
    """The limit and the weight of one that gets work."""
    if replica is None or replica.offer is not Offer.SERVING:
        return None
    return _read_limit(replica, configured), replica.weight


def _read_limit(replica: ReplicaView, configured: int | None) -> int | None:
    """An engine that tells a lower limit is believed."""
    told = replica.status.load.max_running
    limits = [limit for limit in (configured, None if told is None else int(told)) if limit is not None]
    return max(1, min(limits)) if limits else None
