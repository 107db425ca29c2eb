"""A pool's queue, one case after the other: who gets a slot, who waits, who is refused, with which word."""

import pytest

from envoy_ext.domain.errors import ImpossibleEvent
from envoy_ext.domain.ids import OperationId
from envoy_ext.domain.room import Room
from envoy_ext.domain.ticket import TRANSITIONS, Granted, Ticket, TicketState, Turn
from envoy_ext.domain.traffic_class import TrafficClass
from tests.support.queue_builders import FREE, FULL, Queue, R, Rep, Req, read_codes, teach_rate

S, T = TicketState, Turn

ROWS = {
    (S.WAITING, T.PROMISE): S.PROMISED,
    (S.PROMISED, T.START): S.STARTED,
    (S.STARTED, T.START): S.STARTED,
}
"""All there is; a second copy of the table, so that a row cannot come or go unnoticed."""


@pytest.mark.parametrize("state", S)
@pytest.mark.parametrize("turn", T)
def test_every_state_of_a_ticket_with_every_turn(state, turn):
    ticket = Ticket(Req(), "default", 0.0, 30.0, state)
    if (state, turn) in ROWS:
        ticket.move(turn)
        assert ticket.state is ROWS[state, turn]
    else:
        with pytest.raises(ImpossibleEvent):
            ticket.move(turn)
        assert ticket.state is state
    assert turn in TRANSITIONS[state] or (state, turn) not in ROWS


# --- who goes on, and who waits -----------------------------------------------------------------


def test_a_free_slot_is_given_at_once_and_promised_from_that_moment():
    queue = Queue()
    assert read_codes(queue.arrive(Req("op_a"), FREE, 0.0)) == ["granted"]
    assert queue.count_free(FREE) == 0
    assert read_codes(queue.arrive(Req("op_b"), FREE, 0.0)) == ["waits"]


@pytest.mark.parametrize(
    "room", [R(Rep(limit=None, taken=500)), R(Rep("a", limit=1, taken=1), Rep("b", limit=None))]
)
def test_where_a_replica_has_no_limit_nobody_ever_waits(room):
    queue = Queue(length=0)
    for _ in range(300):
        assert read_codes(queue.arrive(Req(), room, 0.0)) == ["granted"]
    assert (queue.depth, queue.count_free(room), queue.read_rate(room)) == (0, None, None)


def test_without_a_replica_requests_wait():
    queue = Queue()
    assert read_codes(queue.arrive(Req(), R(), 0.0)) == ["waits"]
    assert queue.fill(R(), 1.0) == ()


def test_whoever_waits_goes_in_order_when_slots_come_free():
    queue = Queue()
    for name in ("op_a", "op_b", "op_c"):
        queue.arrive(Req(name), FULL, 0.0)
    assert queue.fill(FULL, 1.0) == ()
    assert queue.fill(R(Rep(limit=2, taken=0)), 2.5) == (
        Granted(OperationId("op_a"), 2.5),
        Granted(OperationId("op_b"), 2.5),
    )
    assert queue.depth == 1


def test_nobody_overtakes_those_that_wait_even_if_a_slot_is_free():
    queue = Queue()
    queue.arrive(Req("op_a"), FULL, 0.0)
    assert read_codes(queue.arrive(Req("op_b"), FREE, 1.0)) == ["waits"]
    assert [one.operation_id for one in queue.fill(FREE, 1.0)] == ["op_a"]


def test_a_pool_that_loses_its_limit_lets_everybody_in():
    queue = Queue()
    for _ in range(5):
        queue.arrive(Req(), FULL, 0.0)
    assert len(queue.fill(R(Rep(limit=None)), 1.0)) == 5


# --- slots ----------------------------------------------------------------------------------------


def test_slots_are_given_where_least_runs_for_its_weight():
    queue = Queue()
    room = R(Rep("a", limit=4, taken=1, weight=10), Rep("b", limit=4, taken=2, weight=40))
    requests = [Req() for _ in range(3)]
    for one in requests:
        queue.arrive(one, room, 0.0)
    assert [queue.choose_replica(one.operation_id, room) for one in requests] == ["b", "b", "a"]


def test_how_long_a_slot_was_promised_and_not_used_says_nothing_of_the_rate():
    queue = Queue()
    now = teach_rate(queue, held_s=2.0)
    for _ in range(20):
        one = Req()
        queue.arrive(one, FREE, now)
        queue.leave(one.operation_id, now)
    assert queue.read_rate(FREE) == pytest.approx(0.5)


def test_a_slot_that_is_taken_somewhere_is_not_given_to_another():
    queue = Queue()
    room = Room((Rep("a"), Rep("b")), unplaced=1)
    codes = [read_codes(queue.arrive(Req(), room, 0.0)) for _ in range(2)]
    assert codes == [["granted"], ["waits"]]
    assert queue.count_free(room) == 0


def test_a_placed_attempt_is_counted_by_the_room_and_no_longer_promised():
    queue = Queue()
    one = Req()
    queue.arrive(one, FREE, 0.0)
    queue.start(one.operation_id)
    assert queue.count_free(FULL) == 0
    assert queue.count_free(FREE) == 1
    queue.start(one.operation_id)  # a replay
    queue.leave(one.operation_id, 1.0)
    queue.leave(one.operation_id, 1.0)
    assert queue.count_free(FREE) == 1


def test_a_slot_that_was_promised_and_never_used_is_free_when_its_request_leaves():
    queue = Queue()
    one = Req()
    queue.arrive(one, FREE, 0.0)
    queue.leave(one.operation_id, 0.1)
    assert queue.count_free(FREE) == 1


def test_a_promise_of_a_replica_that_is_out_is_kept_by_another():
    queue = Queue()
    one = Req()
    queue.arrive(one, R(Rep("a"), Rep("b")), 0.0)
    rest = R(Rep("b"))
    assert queue.choose_replica(one.operation_id, rest) == "b"
    assert queue.count_free(rest) == 0
    assert queue.choose_replica(one.operation_id, R()) is None
    assert queue.choose_replica(OperationId("op_unknown"), rest) is None


def test_a_replica_that_runs_more_than_it_should_takes_nothing_from_another():
    queue = Queue()
    room = R(Rep("a", limit=2, taken=5), Rep("b", limit=2, taken=1))
    assert queue.count_free(room) == 1
    one = Req()
    assert read_codes(queue.arrive(one, room, 0.0)) == ["granted"]
    assert queue.choose_replica(one.operation_id, room) == "b"


# --- who is refused -------------------------------------------------------------------------------


def test_a_full_line_refuses_at_once():
    queue = Queue(length=2)
    codes = [read_codes(queue.arrive(Req(), FULL, 0.0)) for _ in range(3)]
    assert codes == [["waits"], ["waits"], ["queue_full"]]
    assert queue.depth == 2


def test_how_deep_the_line_ever_was_is_remembered():
    queue = Queue(length=3)
    for _ in range(2):
        queue.arrive(Req(), FULL, 0.0)
    queue.fill(R(Rep(limit=9)), 1.0)
    queue.arrive(Req(), FULL, 1.0)
    assert (queue.depth, queue.deepest) == (1, 2)
    for _ in range(5):
        queue.arrive(Req(), FULL, 2.0)
    assert (queue.depth, queue.deepest) == (3, 3)


def test_no_line_at_all_refuses_whoever_finds_no_slot():
    queue = Queue(length=0)
    assert read_codes(queue.arrive(Req(), FREE, 0.0)) == ["granted"]
    assert read_codes(queue.arrive(Req(), FREE, 0.0)) == ["queue_full"]


def test_a_full_line_makes_room_for_a_caller_that_has_less_of_it():
    queue = Queue(length=3)
    for name in ("op_1", "op_2", "op_3"):
        queue.arrive(Req(name, caller="many"), FULL, 0.0)
    outcomes = queue.arrive(Req("op_x", caller="one"), FULL, 1.0)
    assert read_codes(outcomes) == ["waits", "queue_full"]
    assert [one.operation_id for one in outcomes] == ["op_x", "op_3"]
    assert queue.depth == 3
    assert [one.operation_id for one in queue.fill(R(Rep(limit=9)), 2.0)] == ["op_1", "op_x", "op_2"]


def test_a_wait_ends_with_its_class_limit():
    queue = Queue(TrafficClass("quick", max_wait_s=2.0), max_wait_s=10.0)
    queue.arrive(Req("op_slow", of="no such class"), FULL, 0.0)
    queue.arrive(Req("op_quick", of="quick"), FULL, 0.0)
    assert queue.next_deadline() == 2.0
    assert queue.expire(FULL, 1.9) == ()
    assert [(one.operation_id, one.code) for one in queue.expire(FULL, 2.0)] == [
        ("op_quick", "queue_deadline_exceeded")
    ]
    assert queue.next_deadline() == 10.0
    assert read_codes(queue.expire(FULL, 10.0)) == ["queue_deadline_exceeded"]
    assert queue.next_deadline() is None


def test_a_wait_ends_with_the_requests_own_deadline_and_by_that_name():
    queue = Queue()
    queue.arrive(Req(deadline=5.0), FULL, 0.0)
    assert read_codes(queue.expire(FULL, 4.9)) == []
    assert read_codes(queue.expire(FULL, 5.0)) == ["deadline_exceeded"]


def test_a_deadline_behind_the_longest_wait_does_not_end_it():
    queue = Queue(max_wait_s=3.0)
    queue.arrive(Req(deadline=50.0), FULL, 0.0)
    assert read_codes(queue.expire(FULL, 3.0)) == ["queue_deadline_exceeded"]


def test_a_class_that_may_not_wait_is_refused_at_once():
    queue = Queue(max_wait_s=0.0)
    assert read_codes(queue.arrive(Req(), FREE, 0.0)) == ["granted"]
    assert read_codes(queue.arrive(Req(), FULL, 0.0)) == ["queue_deadline_exceeded"]


def test_a_newcomer_whose_deadline_the_rate_cannot_meet_is_refused_at_once():
    queue = Queue()
    now = teach_rate(queue, held_s=2.0)
    assert queue.read_rate(FULL) == pytest.approx(0.5)
    assert read_codes(queue.arrive(Req(deadline=now + 1.9), FULL, now)) == ["queue_deadline_exceeded"]
    assert read_codes(queue.arrive(Req(deadline=now + 2.1), FULL, now)) == ["waits"]
    assert read_codes(queue.arrive(Req(deadline=now + 3.9), FULL, now)) == ["queue_deadline_exceeded"]
    assert read_codes(queue.arrive(Req(deadline=now + 4.1), FULL, now)) == ["waits"]


def test_a_newcomer_that_would_wait_longer_than_it_may_is_refused_at_once():
    queue = Queue(max_wait_s=5.0)
    now = teach_rate(queue, held_s=2.0)
    codes = [read_codes(queue.arrive(Req(), FULL, now)) for _ in range(4)]
    assert codes == [["waits"], ["waits"], ["queue_deadline_exceeded"], ["queue_deadline_exceeded"]]


def test_as_long_as_the_rate_is_not_known_nobody_is_refused_by_it():
    queue = Queue()
    now = teach_rate(queue, held_s=20.0, times=3)
    assert read_codes(queue.arrive(Req(deadline=now + 1.0), FULL, now)) == ["waits"]


def test_a_deadline_that_falls_out_of_reach_while_it_waits_is_refused_then():
    queue = Queue()
    now = teach_rate(queue, held_s=2.0)
    assert read_codes(queue.arrive(Req("op_x", caller="x", deadline=now + 5.0), FULL, now)) == ["waits"]
    # Slots come free every two seconds, and none has: the last moment for one is at three.
    assert queue.next_deadline() == now + 1.0
    assert read_codes(queue.expire(FULL, now + 2.9)) == []
    assert read_codes(queue.expire(FULL, now + 3.95)) == ["queue_deadline_exceeded"]
    assert queue.depth == 0


def test_a_refusal_makes_no_others_wait_look_longer_than_it_is():
    """Whoever has no hope is not counted among those ahead of the next."""
    queue = Queue()
    now = teach_rate(queue, held_s=1.0)
    for name, deadline in (("op_1", 2.9), ("op_2", 2.9), ("op_3", 3.6)):
        assert read_codes(queue.arrive(Req(name, deadline=now + deadline), FULL, now)) == ["waits"]
    shed = queue.expire(FULL, now + 1.5)
    assert [one.operation_id for one in shed] == ["op_2"]


def test_all_that_wait_can_be_refused_with_one_word():
    queue = Queue()
    for _ in range(3):
        queue.arrive(Req(), FULL, 0.0)
    assert read_codes(queue.shed_all("draining", FULL, 1.0)) == ["draining"] * 3
    assert (queue.depth, queue.next_deadline()) == (0, None)


def test_whoever_leaves_the_line_is_forgotten_and_takes_no_slot():
    queue = Queue()
    gone, stays = Req(deadline=9.0), Req()
    queue.arrive(gone, FULL, 0.0)
    queue.arrive(stays, FULL, 0.0)
    queue.leave(gone.operation_id, 1.0)
    assert [one.operation_id for one in queue.fill(FREE, 2.0)] == [stays.operation_id]
    assert queue.expire(FULL, 60.0) == ()


def test_what_waits_is_counted_by_class():
    queue = Queue(TrafficClass("batch"))
    for name in ("batch", "batch", None, "unheard-of"):
        queue.arrive(Req(of=name), FULL, 0.0)
    assert queue.count_waiting() == {"default": 2, "batch": 2}
