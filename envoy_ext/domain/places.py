"""Who stands at which address and since when, and which processes have ended there.

A proof of death speaks of an address: its port refuses, or a page from there is another process's. It
speaks of an attempt only if the attempt ran in what stood there. An orchestrator may give a pod's name,
and even its address, to another pod while the first one still computes where nobody can reach it, and
the next pod refuses connections while it starts.
"""

import math
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from envoy_ext.domain.discovery import Member
from envoy_ext.domain.ids import ReplicaId

CONNECT_S: Final = 2.0
"""How long after its start an attempt may reach its replica: Envoy's time for a connection. One that was
let go so long before a process was last seen has reached that process, or an earlier one."""


@dataclass(frozen=True, slots=True)
class RanAt:
    """Where and from when on an attempt ran."""

    address: str
    """`ip:port`, by Envoy's word; "" before it has told."""
    since: float
    """Monotonic seconds."""


@dataclass(slots=True)
class _Place:
    came_at: dict[str, float] = field(default_factory=dict)
    """When the replica came to each address at which it is."""
    speaks_for_itself: bool = False
    """Its page comes from the very port that requests go to, and not by a name, behind which another may
    stand by now."""
    ended_at: float = -math.inf
    """When a process was last seen there that has ended since."""


class Places:
    """The places of all replicas. Times are monotonic seconds of one clock."""

    def __init__(self) -> None:
        self._places: dict[ReplicaId, _Place] = {}

    def settle(self, member: Member, now: float) -> None:
        """A replica is listed there; where it was before, it is since then."""
        place = self._places.setdefault(member.replica, _Place())
        place.came_at = {address: place.came_at.get(address, now) for address in member.addresses}
        place.speaks_for_itself = _speaks_for_itself(member)

    def leave(self, replica: ReplicaId) -> None:
        """It is gone, or another one comes under its name."""
        self._places.pop(replica, None)

    def note_process_end(self, replica: ReplicaId, last_seen_at: float) -> None:
        """A page from a replica shows another process than the one that was seen at that time."""
        place = self._places.get(replica)
        if place is not None:
            place.ended_at = last_seen_at

    def is_taken_over(self, ran: RanAt) -> bool:
        """Whether somebody came to an attempt's address after it had started."""
        return any(place.came_at.get(ran.address, -math.inf) > ran.since for place in self._places.values())

    def find_end(self, replica: ReplicaId) -> float:
        """An attempt that started at a replica by then is over with the process that has ended there."""
        place = self._places.get(replica)
        return place.ended_at - CONNECT_S if place is not None and place.speaks_for_itself else -math.inf

    def has_ended(self, ran: RanAt) -> bool:
        """Whether the process is gone in which an attempt ran."""
        return any(
            place.speaks_for_itself
            and place.came_at.get(ran.address, math.inf) <= ran.since <= place.ended_at - CONNECT_S
            for place in self._places.values()
        )


def _speaks_for_itself(member: Member) -> bool:
    requests = urlsplit(member.url)
    try:
        ip_address(requests.hostname or "")
    except ValueError:
        return False
    page = member.metrics_url
    return page is None or urlsplit(page).netloc == requests.netloc
