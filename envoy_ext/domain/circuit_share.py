"""Which of a pool's open circuits take their replica out: circuits never empty a pool on the word of
requests alone.

What requests say may be the requests' own doing, or be said of a pool that can only just carry its load. So
on their word alone no more than `max_open` of the replicas that could serve are out, and never the last
one. The rest are *overruled*: they serve on, with less weight, and their model is asked at once. One whose
model fails the control call as well is out whatever the share: it can compute nothing for anybody. When that
is true of all, the pool is out; it refuses at once, and the control calls go on.

A replica that its own signals keep from work is theirs to judge: its circuit takes it out of nothing, and it
may stand in as one that last served, for whom nothing listens costs an attempt no more than a refusal.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from envoy_ext.domain.ids import ReplicaId


@dataclass(frozen=True, slots=True)
class Member:
    """One replica of a pool that is listed, and that nobody took out by order."""

    replica: ReplicaId
    sound: bool
    """It could serve, but for its circuit."""
    cut: bool
    """Its circuit is open, or half open."""
    condemned: bool = False
    """Its model has failed the control call too."""
    opened_at: float = 0.0


def choose_cut(members: Iterable[Member], max_open: float) -> frozenset[ReplicaId]:
    """The replicas that get no new work but trials. The same members in any order give the same answer."""
    sound = [one for one in members if one.sound]
    cut = {one.replica for one in sound if one.cut and one.condemned}
    room = compute_limit(len(sound), max_open) - sum(one.replica in cut for one in sound)
    waiting = [one for one in sound if one.cut and one.replica not in cut]
    waiting.sort(key=lambda one: (one.opened_at, one.replica))
    return frozenset(cut | {one.replica for one in waiting[: max(0, room)]})


def compute_limit(sound: int, max_open: float) -> int:
    """How many of so many may be out on the word of requests alone: at least one of two, never all."""
    return max(0, min(sound - 1, max(1, int(sound * max_open))))
