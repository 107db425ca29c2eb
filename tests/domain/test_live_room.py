"""A room that is followed says at every moment what one that is counted anew says."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from envoy_ext.domain.ids import ReplicaId
from envoy_ext.domain.live_room import LiveRoom
from envoy_ext.domain.room import ReplicaRoom, Room

NAMES = [ReplicaId(name) for name in "abcde"]
NAME = st.sampled_from(NAMES)


class LiveRoomMachine(RuleBasedStateMachine):
    """Invariant: `LiveRoom` and a `Room` of the same facts have the same free slots and the same choice."""

    def __init__(self) -> None:
        super().__init__()
        self.live = LiveRoom()
        self.listed: dict[ReplicaId, tuple[int, int]] = {}
        self.taken: Counter[ReplicaId] = Counter()
        self.promised: Counter[ReplicaId] = Counter()
        self.unplaced = 0

    def count(self) -> Room:
        replicas = [
            ReplicaRoom(one, limit, self.taken[one], weight) for one, (limit, weight) in self.listed.items()
        ]
        return Room(replicas, self.unplaced)

    @rule(listed=st.dictionaries(NAME, st.tuples(st.integers(1, 4), st.integers(1, 100))))
    def show(self, listed: dict[ReplicaId, tuple[int, int]]) -> None:
        self.listed = listed
        self.live.show(self.count().replicas)

    @rule(replica=NAME, taken=st.integers(0, 6))
    def take(self, replica: ReplicaId, taken: int) -> None:
        self.taken[replica] = taken
        self.live.note_taken(replica, taken)

    @rule(replica=NAME, promised=st.integers(0, 5))
    def promise(self, replica: ReplicaId, promised: int) -> None:
        self.promised[replica] = promised
        if not promised:
            del self.promised[replica]

    @rule()
    def grant(self) -> None:
        """As a queue does: promise what was chosen."""
        replica = self.live.choose(self.promised)
        if replica is not None:
            self.promised[replica] += 1

    @rule(unplaced=st.integers(0, 4))
    def leave_unplaced(self, unplaced: int) -> None:
        self.unplaced = self.live.unplaced = unplaced

    @invariant()
    def says_the_same(self) -> None:
        counted = self.count()
        assert self.live.choose(self.promised) == counted.choose(self.promised)
        assert self.live.count_free(self.promised) == counted.count_free(self.promised)
        assert self.live.slots == counted.slots
        assert [one for one in NAMES if self.live.takes(one)] == [one for one in NAMES if counted.takes(one)]
        assert list(self.live.snapshot().replicas) == list(counted.replicas)


LiveRoomMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40)
test_a_room_that_is_followed_is_the_room_that_is_counted = LiveRoomMachine.TestCase


def test_what_was_forgotten_of_its_entries_does_not_pile_up() -> None:
    live = LiveRoom()
    live.show([ReplicaRoom(name, 1000, 0) for name in NAMES])
    for taken in [*range(900, 0, -1)] * 3:
        live.note_taken(NAMES[0], taken)
    assert len(live._heap) <= 2 * len(NAMES) + 64 + 1
