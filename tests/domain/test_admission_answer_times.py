"""A deadline is met by an answer and not by a slot: who waits needs time for both."""

import pytest

from envoy_ext.domain.ids import AttemptId
from envoy_ext.domain.traffic_class import TrafficClass
from tests.support.queue_builders import FREE, FULL, Queue, R, Rep, Req, read_codes, teach_answers

LATE = "queue_deadline_exceeded"


def test_a_newcomer_with_time_for_a_slot_and_not_for_an_answer_is_refused_at_once():
    """Slots come free every two seconds, and an answer takes two and is given 2.4."""
    queue = Queue()
    teach_answers(queue, 2.0)
    assert read_codes(queue.arrive(Req(deadline=4.3), FULL, 0.0)) == [LATE]
    assert read_codes(queue.arrive(Req(deadline=4.5), FULL, 0.0)) == ["waits"]
    assert read_codes(queue.arrive(Req(deadline=6.3), FULL, 0.0)) == [LATE]


def test_where_a_slot_is_free_it_may_try_all_the_same():
    queue = Queue()
    teach_answers(queue, 2.0)
    assert read_codes(queue.arrive(Req(deadline=0.5), FREE, 0.0)) == ["granted"]


def test_one_without_a_deadline_waits_as_long_as_it_may():
    queue = Queue()
    teach_answers(queue, 20.0)
    assert read_codes(queue.arrive(Req(), FULL, 0.0)) == ["waits"]


def test_a_slot_that_comes_too_late_for_its_answer_goes_to_the_next_in_line():
    """And the turn of its caller is not taken: `calm` has had nothing, and is before `flood`'s second."""
    queue = Queue()
    teach_answers(queue, 1.0)
    room = R(Rep(limit=1, taken=1))
    for name, caller, deadline in (
        ("op_1", "calm", 2.3),
        ("op_2", "flood", 30.0),
        ("op_3", "calm", 30.0),
        ("op_4", "flood", 30.0),
    ):
        waits = queue.arrive(Req(name, caller=caller, deadline=deadline), room, 0.0)
        assert read_codes(waits) == ["waits"]
    outcomes = queue.fill(FREE, 1.2)
    assert [one.operation_id for one in outcomes] == ["op_1", "op_3"]
    assert read_codes(outcomes) == [LATE, "granted"]
    assert queue.depth == 2


def test_a_deadline_that_leaves_no_time_for_an_answer_any_more_is_refused_when_that_is_known():
    queue = Queue()
    teach_answers(queue, 2.0)
    assert read_codes(queue.arrive(Req(deadline=6.4), FULL, 0.0)) == ["waits"]
    assert read_codes(queue.expire(FULL, 1.9)) == []
    assert read_codes(queue.expire(FULL, 2.95)) == [LATE]


def test_answers_that_were_cut_do_not_make_the_next_one_look_possible():
    queue = Queue()
    teach_answers(queue, 1.0, whole=False)
    teach_answers(queue, 3.0)
    assert queue.read_rate(FULL) == pytest.approx(0.5)
    assert read_codes(queue.arrive(Req(deadline=4.5), FULL, 0.0)) == [LATE]


@pytest.mark.parametrize(
    ("silent_s", "late"),
    [
        (0.0, True),
        (2.0, True),  # as bytes are noted, that is nothing
        (3.9, True),  # it was heard of for more than half of the time
        (4.1, False),
    ],
)
def test_a_replica_that_has_gone_silent_does_not_close_the_line_of_the_others(silent_s, late):
    queue = Queue()
    for number in range(8):
        one = Req()
        queue.arrive(one, FREE, 0.0)
        queue.start(one.operation_id)
        queue.begin_answer(one.operation_id, AttemptId(f"att_{number}"), 0.0)
        queue.end_answer(AttemptId(f"att_{number}"), 8.0, whole=False, heard_at=8.0 - silent_s)
        queue.leave(one.operation_id, 0.001)
    assert read_codes(queue.arrive(Req(deadline=7.0), FULL, 0.0)) == [LATE if late else "waits"]


def test_a_whole_answer_counts_whatever_came_between():
    queue = Queue()
    for number in range(8):
        one = Req()
        queue.arrive(one, FREE, 0.0)
        queue.start(one.operation_id)
        queue.begin_answer(one.operation_id, AttemptId(f"att_{number}"), 0.0)
        queue.end_answer(AttemptId(f"att_{number}"), 8.0, whole=True, heard_at=-100.0)
        queue.leave(one.operation_id, 0.001)
    assert read_codes(queue.arrive(Req(deadline=7.0), FULL, 0.0)) == [LATE]


def test_the_long_answers_of_a_class_are_no_others_obstacle():
    queue = Queue(TrafficClass("batch"))
    teach_answers(queue, 1.0, "batch")
    assert read_codes(queue.arrive(Req(of="batch", deadline=1.9), FULL, 0.0)) == [LATE]
    assert read_codes(queue.arrive(Req(deadline=1.9), FULL, 0.0)) == ["waits"]


@pytest.mark.parametrize("shortened", [True, False])
def test_a_request_that_was_shortened_is_measured_by_others_that_were(shortened):
    queue = Queue()
    teach_answers(queue, 1.0, shortened=not shortened)
    assert read_codes(queue.arrive(Req(deadline=1.9, shortened=shortened), FULL, 0.0)) == ["waits"]
    assert read_codes(queue.arrive(Req(deadline=1.9, shortened=not shortened), FULL, 0.0)) == [LATE]


def test_whoever_may_be_shortened_for_its_deadline_is_told_of_what_it_would_be_refused_by():
    """Three of four answers take a second, and the mean is 1.5."""
    queue = Queue(TrafficClass("batch"))
    teach_answers(queue, 3.0)
    for _ in range(3):
        teach_answers(queue, 1.0)
    outlook = queue.foresee(None, "", FULL)
    assert outlook.wait_s is not None
    assert outlook.hold_s is not None
    due = outlook.wait_s + outlook.hold_s
    assert read_codes(queue.arrive(Req(deadline=due - 0.1), FULL, 0.0)) == [LATE]
    assert read_codes(queue.arrive(Req(deadline=due + 0.1), FULL, 0.0)) == ["waits"]
    assert queue.foresee(None, "", FREE).hold_s == outlook.hold_s
    assert queue.foresee("batch", "", FREE).hold_s == pytest.approx(1 / queue.read_rate(FREE))


def test_an_attempt_that_never_ends_is_seen():
    queue = Queue()
    one = Req()
    queue.arrive(one, FREE, 0.0)
    queue.start(one.operation_id)
    queue.begin_answer(one.operation_id, AttemptId("att_1"), 0.0)
    queue.leave(one.operation_id, 1.0)
    assert not queue.idle
    queue.end_answer(AttemptId("att_1"), 1.0, whole=True)
    assert queue.idle
