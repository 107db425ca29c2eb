"""How much room a pool has: by the configuration, by what engines tell, and by what of ours runs there."""

import pytest

from envoy_ext.domain.fleet_events import Scraped
from envoy_ext.domain.ids import AttemptId, PoolName, ReplicaId
from envoy_ext.domain.live_room import LiveRoom
from envoy_ext.domain.notes import AttemptLetGo, AttemptPlaced
from envoy_ext.domain.sample import Sample
from envoy_ext.services.rooms import Rooms
from tests.services.test_fleet import POOL, A, B, Played
from tests.support.members import place


def tell_limit(played: Played, replica: ReplicaId, limit: float | None) -> None:
    """A page of the replica, and a token of its model."""
    played.fleet.receive(replica, Scraped(Sample(at=played.clock.now(), running=0, max_running=limit)))
    played.prove(replica)


def list_taken(rooms: Rooms) -> list[tuple[ReplicaId, int]]:
    """Who gets new work, and what of ours each has."""
    room = rooms.read(POOL)
    assert isinstance(room, LiveRoom)
    return [(one.replica, one.taken) for one in room.snapshot().replicas]


@pytest.mark.parametrize(
    ("configured", "told", "slots"),
    [
        (8, (None, None), 16),
        (None, (4, 6), 10),
        (5, (4, 6), 9),
        (8, (4, None), 12),
        (None, (4, None), None),
        (None, (None, None), None),
        (None, (0, 4), 5),
    ],
)
def test_a_replica_takes_the_lower_of_what_is_configured_and_told(
    configured: int | None, told: tuple[float | None, float | None], slots: int | None
) -> None:
    played = Played()
    for replica, limit in zip((A, B), told, strict=True):
        tell_limit(played, replica, limit)
    room = Rooms(played.fleet, {POOL: configured}).read(POOL)
    assert (room.slots if room.limited else None) == slots


def test_what_runs_is_counted_at_this_moment_and_who_gets_no_work_has_no_room() -> None:
    played = Played(watched=False)
    rooms = Rooms(played.fleet, {POOL: 2})
    assert list_taken(rooms) == [("a", 0), ("b", 0)]
    place(played.fleet, AttemptId("att_1"), A)
    assert list_taken(rooms) == [("a", 1), ("b", 0)]
    assert rooms.read(POOL).choose({}) == "b"
    played.fleet.drain(A, 60)
    assert list_taken(rooms) == [("b", 0)]
    assert not rooms.read(POOL).takes(A)
    played.fleet.undrain(A)
    assert list_taken(rooms) == [("a", 1), ("b", 0)]


def test_a_pool_that_is_not_known_has_no_room() -> None:
    room = Rooms(Played().fleet, {}).read(PoolName("other"))
    assert (room.limited, room.slots) == (True, 0)


def test_an_attempt_that_nobody_has_placed_takes_a_slot_of_the_pool() -> None:
    played = Played(watched=False)
    rooms = Rooms(played.fleet, {POOL: 1})
    played.fleet.streams.note(AttemptLetGo(AttemptId("att_1"), POOL))
    assert rooms.read(POOL).count_free({}) == 1
    played.fleet.streams.note(AttemptPlaced(AttemptId("att_1"), POOL, A))
    room = rooms.read(POOL)
    assert (room.count_free({}), room.unplaced, room.choose({})) == (1, 0, "b")
