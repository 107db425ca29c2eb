"""The slots of a pool, kept instead of counted: what `Room` says of a moment, followed from change to change.

A pool of a thousand replicas is asked for a free slot with every request, and to look at all of them each
time takes longer than the rest of the request. So the replicas with a free slot stand in a heap, each by
what `Room.choose` goes by, and only what has changed is weighed again:

* one that got work weighs more than its entry says; that is found when the entry comes up;
* one that lost work weighs less, and gets another entry at once. Of two entries the last one counts.
"""

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush, heapreplace

from envoy_ext.domain.ids import ReplicaId
from envoy_ext.domain.room import ReplicaRoom, Room, weigh


class LiveRoom:
    """A limited pool's room. Its owner tells of every change; it answers as a `Room` of that moment would."""

    limited = True

    def __init__(self) -> None:
        self.unplaced = 0
        """Slots that are taken at some replica, and nobody has told yet at which."""
        self.slots = 0
        self._limits: dict[ReplicaId, int] = {}
        self._order: dict[ReplicaId, None] = {}
        """As they were shown; who gets no work for a while keeps its place."""
        self._weights: dict[ReplicaId, int] = {}
        self._taken: dict[ReplicaId, int] = {}
        self._promised: dict[ReplicaId, int] = {}
        """As of the last look."""
        self._free = 0
        self._heap: list[tuple[float, ReplicaId]] = []
        self._entries: dict[ReplicaId, float] = {}
        """Which entry of a replica counts."""

    # --- what its owner tells -----------------------------------------------------------------

    def show(self, replicas: Iterable[ReplicaRoom]) -> None:
        """Another picture: these get new work, with these limits and weights. Each has a limit."""
        shown = list(replicas)
        self._limits = {one.replica: one.limit for one in shown if one.limit is not None}
        self._order = dict.fromkeys(self._limits)
        self._weights = {one.replica: one.weight for one in shown}
        self._taken = {one.replica: one.taken for one in shown}
        self.slots = sum(self._limits.values())
        self._free = sum(max(0, self._count_free(replica)) for replica in self._limits)
        self._build_heap()

    def change(self, replica: ReplicaId, room: ReplicaRoom | None) -> None:
        """One of them in the next picture; None, or one without a limit: it is not among them."""
        if replica in self._limits:
            self._free -= max(0, self._count_free(replica))
            self.slots -= self._limits.pop(replica)
            del self._weights[replica], self._taken[replica]
            self._entries.pop(replica, None)
        if room is None or room.limit is None:
            return
        self._order[replica] = None
        self._limits[replica], self._weights[replica] = room.limit, room.weight
        self._taken[replica] = room.taken
        self.slots += room.limit
        if (free := self._count_free(replica)) > 0:
            self._free += free
            self._enter(replica)

    def forget(self, replica: ReplicaId) -> None:
        """It is there no more."""
        self.change(replica, None)
        self._order.pop(replica, None)

    def note_taken(self, replica: ReplicaId, taken: int) -> None:
        """So many slots of a replica are taken."""
        if replica in self._limits:
            self._change(replica, taken, self._promised.get(replica, 0))

    # --- what a queue asks --------------------------------------------------------------------

    def takes(self, replica: ReplicaId) -> bool:
        """Whether it gets new work."""
        return replica in self._limits

    def count_free(self, promised: Mapping[ReplicaId, int]) -> int:
        """Slots that nobody has and nobody was promised."""
        self._follow(promised)
        return max(0, self._free - self.unplaced)

    def choose(self, promised: Mapping[ReplicaId, int]) -> ReplicaId | None:
        """The replica that the next one goes to, None where none has a free slot."""
        if not self.count_free(promised):
            return None
        while self._heap:
            entry, replica = self._heap[0]
            if self._entries.get(replica) != entry:
                heappop(self._heap)
            elif self._count_free(replica) <= 0:
                heappop(self._heap)
                del self._entries[replica]  # it gets another one when a slot comes free
            elif (load := self._weigh(replica)) > entry:
                self._entries[replica] = load
                heapreplace(self._heap, (load, replica))
            else:
                return replica
        return None

    def snapshot(self) -> Room:
        """What it follows, as of this moment."""
        replicas = [
            ReplicaRoom(one, limit, self._taken[one], self._weights[one])
            for one in self._order
            if (limit := self._limits.get(one)) is not None
        ]
        return Room(replicas, self.unplaced)

    # --- inside -------------------------------------------------------------------------------

    def _follow(self, promised: Mapping[ReplicaId, int]) -> None:
        """Promises are few at a time: each is made and kept within one request's milliseconds."""
        if not promised and not self._promised:
            return
        for replica in self._promised.keys() | promised.keys():
            now = promised.get(replica, 0)
            if now == self._promised.get(replica, 0):
                continue
            if replica in self._limits:
                self._change(replica, self._taken[replica], now)
            elif now:
                self._promised[replica] = now
            else:
                self._promised.pop(replica, None)

    def _change(self, replica: ReplicaId, taken: int, promised: int) -> None:
        before = self._count_free(replica)
        self._taken[replica] = taken
        if promised:
            self._promised[replica] = promised
        else:
            self._promised.pop(replica, None)
        after = self._count_free(replica)
        self._free += max(0, after) - max(0, before)
        if after > max(0, before):
            self._enter(replica)

    def _enter(self, replica: ReplicaId) -> None:
        self._entries[replica] = load = self._weigh(replica)
        heappush(self._heap, (load, replica))
        if len(self._heap) > 2 * len(self._limits) + 64:
            self._build_heap()

    def _build_heap(self) -> None:
        self._entries = {
            replica: self._weigh(replica) for replica in self._limits if self._count_free(replica) > 0
        }
        self._heap = [(entry, replica) for replica, entry in self._entries.items()]
        heapify(self._heap)

    def _count_free(self, replica: ReplicaId) -> int:
        return self._limits[replica] - self._taken[replica] - self._promised.get(replica, 0)

    def _weigh(self, replica: ReplicaId) -> float:
        return weigh(self._taken[replica], self._promised.get(replica, 0), self._weights[replica])


AnyRoom = Room | LiveRoom
"""What a queue is asked with."""
