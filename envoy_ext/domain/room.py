"""The slots of a pool: how many requests its replicas compute at once, and how many of those are taken.

A slot is a replica's, and whoever is let in is given one: Envoy's weights are fair over many requests,
and not over the last free slot. A pool is limited when each of its replicas has a limit that is known: by
the configuration, or by what its engine tells. One replica without a limit can take whatever comes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from envoy_ext.domain.ids import ReplicaId


@dataclass(frozen=True, slots=True)
class ReplicaRoom:
    """One replica that gets new work."""

    replica: ReplicaId
    limit: int | None
    """How many requests it computes at once; None where nobody says."""
    taken: int
    """Slots that are not free: of attempts that run, and of those that may still do."""
    weight: int = 1
    """Its part of the new work."""


@dataclass(frozen=True, slots=True)
class Room:
    """The replicas of a pool that get new work, at one moment."""

    replicas: Sequence[ReplicaRoom]
    unplaced: int = 0
    """Slots that are taken at some replica, and nobody has told yet at which."""

    @property
    def limited(self) -> bool:
        """Whether there is a number of requests that it takes at once; 0 where there is no replica."""
        return all(one.limit is not None for one in self.replicas)

    @property
    def slots(self) -> int:
        """All slots of a limited pool."""
        return sum(one.limit for one in self.replicas if one.limit is not None)

    def takes(self, replica: ReplicaId) -> bool:
        """Whether it gets new work."""
        return any(one.replica == replica for one in self.replicas)

    def count_free(self, promised: Mapping[ReplicaId, int]) -> int:
        """Slots that nobody has and nobody was promised. A replica that runs more than it should takes
        nothing from the others'."""
        free = sum(max(0, _count_free(one, promised)) for one in self.replicas)
        return max(0, free - self.unplaced)

    def choose(self, promised: Mapping[ReplicaId, int]) -> ReplicaId | None:
        """The replica that the next one goes to, None where none has a free slot.

        The one that has least work for its weight, as Envoy would choose if it knew of all the work.
        """
        free = [one for one in self.replicas if _count_free(one, promised) > 0]
        if not self.count_free(promised):
            return None

        def rank(one: ReplicaRoom) -> tuple[float, ReplicaId]:
            return weigh(one.taken, promised.get(one.replica, 0), one.weight), one.replica

        return min(free, key=rank).replica


def weigh(taken: int, promised: int, weight: int) -> float:
    """How much work a replica would have for its weight, with one request more."""
    return (taken + promised + 1) / weight


def _count_free(one: ReplicaRoom, promised: Mapping[ReplicaId, int]) -> int:
    return 0 if one.limit is None else one.limit - one.taken - promised.get(one.replica, 0)
