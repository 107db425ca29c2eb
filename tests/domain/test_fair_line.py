"""The order of those that wait: priority, then weight, then callers in turns, then first come.

Tolerances that are promised: while two classes both have somebody waiting, what each was served divided by
its weight differs by at most 1/weight of the one plus 1/weight of the other; two callers of a class by one.
"""

from collections import Counter

import hypothesis.strategies as st
from hypothesis import given

from envoy_ext.domain.fair_line import FairLine
from envoy_ext.domain.ids import OperationId
from envoy_ext.domain.traffic_class import DEFAULT, TrafficClass, TrafficClasses

CLASSES = (
    TrafficClass("chat", weight=3),
    TrafficClass("batch", weight=1),
    TrafficClass("alarm", weight=2, priority=1),
    TrafficClass("late", weight=5),
)
NAMES = (*(one.name for one in CLASSES), DEFAULT)


def line(*classes):
    return FairLine(TrafficClasses(classes or CLASSES))


def push(waiting, *requests):
    """Each is `class/caller/name`."""
    for request in requests:
        class_name, caller, _ = request.split("/")
        waiting.push(OperationId(request), class_name, caller)


def pop_all(waiting):
    return [waiting.pop() for _ in range(len(waiting))]


def test_one_callers_requests_come_in_their_order():
    waiting = line()
    push(waiting, "chat/x/1", "chat/x/2", "chat/x/3")
    assert pop_all(waiting) == ["chat/x/1", "chat/x/2", "chat/x/3"]


def test_callers_of_a_class_take_turns_however_much_one_of_them_sends():
    waiting = line()
    push(waiting, *(f"chat/x/{n}" for n in range(4)), "chat/y/0", "chat/z/0", "chat/y/1")
    assert [one[5:] for one in pop_all(waiting)] == ["x/0", "y/0", "z/0", "x/1", "y/1", "x/2", "x/3"]


def test_classes_share_by_weight():
    waiting = line()
    push(waiting, *(f"batch/x/{n}" for n in range(40)), *(f"chat/x/{n}" for n in range(40)))
    first = Counter(one.partition("/")[0] for one in (waiting.pop() for _ in range(40)))
    assert first == {"chat": 30, "batch": 10}


def test_a_higher_priority_goes_first_whatever_its_weight():
    waiting = line()
    push(waiting, "late/x/1", "chat/x/1", "alarm/x/1", "alarm/x/2")
    assert pop_all(waiting)[:2] == ["alarm/x/1", "alarm/x/2"]


def test_a_class_that_was_idle_has_saved_nothing_up():
    waiting = line(TrafficClass("chat"), TrafficClass("batch"))
    push(waiting, *(f"chat/x/{n}" for n in range(20)))
    for _ in range(10):
        waiting.pop()
    push(waiting, *(f"batch/x/{n}" for n in range(10)))
    assert Counter(waiting.pop().partition("/")[0] for _ in range(8)) == {"chat": 4, "batch": 4}


def test_who_leaves_is_skipped_and_keeps_nobody_from_their_turn():
    waiting = line()
    push(waiting, "chat/x/1", "chat/x/2", "chat/y/1")
    waiting.remove(OperationId("chat/x/1"))
    assert OperationId("chat/x/1") not in waiting
    assert pop_all(waiting) == ["chat/x/2", "chat/y/1"]


def test_the_newest_of_the_caller_that_has_most_goes_when_one_must():
    waiting = line()
    push(waiting, *(f"chat/x/{n}" for n in range(4)), "chat/y/0", "chat/z/0")
    assert waiting.find_excess(OperationId("chat/z/0")) == "chat/x/3"


def test_the_class_that_has_most_for_its_weight_pays():
    waiting = line()
    push(waiting, *(f"chat/x/{n}" for n in range(5)), "batch/x/0", "batch/x/1", "default/y/0")
    assert waiting.find_excess(OperationId("default/y/0")) == "batch/x/1"


def test_a_lower_priority_pays_for_a_higher_one_and_never_the_other_way_round():
    waiting = line()
    push(waiting, *(f"alarm/x/{n}" for n in range(9)), "batch/x/0")
    assert waiting.find_excess(OperationId("alarm/x/8")) == "batch/x/0"
    assert waiting.find_excess(OperationId("batch/x/0")) == "batch/x/0"


def test_between_equals_the_newcomer_goes():
    waiting = line(TrafficClass("chat"), TrafficClass("batch"))
    push(waiting, "chat/x/0", "chat/y/0", "batch/x/0", "batch/y/0")
    for newcomer in ("chat/x/0", "chat/y/0", "batch/x/0", "batch/y/0"):
        assert waiting.find_excess(OperationId(newcomer)) == newcomer


REQUESTS = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from("xyz")), min_size=1, max_size=40)


def fill(waiting, requests):
    for number, (class_name, caller) in enumerate(requests):
        push(waiting, f"{class_name}/{caller}/{number}")


@given(
    served=REQUESTS,
    then=REQUESTS,
    takes=st.integers(0, 30),
    newcomer=st.tuples(st.sampled_from(NAMES), st.sampled_from("wxyz")),
)
def test_who_is_ahead_of_a_newcomer_is_known_exactly_while_nobody_else_comes(served, then, takes, newcomer):
    waiting = line()
    fill(waiting, served)
    for _ in range(min(takes, len(waiting))):
        waiting.pop()
    fill(waiting, [(one, caller + "'") for one, caller in then])
    class_name, caller = newcomer
    ahead = waiting.count_ahead(class_name, caller)
    push(waiting, f"{class_name}/{caller}/new")
    expected = waiting.list_in_order()
    assert expected.index(OperationId(f"{class_name}/{caller}/new")) == ahead
    assert pop_all(waiting) == expected


@given(requests=REQUESTS, extra=REQUESTS, takes=st.integers(1, 40))
def test_nobody_gets_more_than_its_share_while_others_wait(requests, extra, takes):
    waiting = line()
    fill(waiting, requests)
    served, callers = Counter(), Counter()
    more = iter(enumerate(extra, len(requests)))
    for _ in range(min(takes, len(waiting))):
        busy = {one: waiting.count(one) for one in NAMES}
        class_name, caller, _ = waiting.pop().split("/")
        served[class_name] += 1
        callers[class_name, caller] += 1
        number, (extra_class, extra_caller) = next(more, (0, (class_name, caller)))
        if busy[extra_class]:  # whoever is added was busy: those that stay so are compared
            push(waiting, f"{extra_class}/{extra_caller}'/{number}")
    weights = {one.name: one.weight for one in TrafficClasses(CLASSES)}
    busy_throughout = [one for one in NAMES if waiting.count(one) and any(one == r for r, _ in requests)]
    equals = [one for one in busy_throughout if one != "alarm"]
    if waiting.count("alarm") == 0:
        for one in equals:
            for other in equals:
                gap = served[one] / weights[one] - served[other] / weights[other]
                assert gap <= 1 / weights[one] + 1 / weights[other]


@given(requests=REQUESTS, takes=st.integers(1, 40))
def test_two_callers_who_both_wait_differ_by_one_at_most(requests, takes):
    waiting = line()
    fill(waiting, requests)
    served = Counter()
    for _ in range(min(takes, len(waiting))):
        class_name, caller, _ = waiting.pop().split("/")
        served[class_name, caller] += 1
    left = {tuple(one.split("/")[:2]) for one in waiting.list_in_order()}
    for class_name, caller in left:
        for other_class, other in left:
            if class_name == other_class:
                assert abs(served[class_name, caller] - served[class_name, other]) <= 1


def find_excess_by_looking_at_all(line: FairLine, newcomer: OperationId) -> OperationId:
    """The rule of `find_excess`, as one would say it of a short line."""
    own_lane, own_caller = line._where[newcomer]
    lanes = [one for one in line._lanes.values() if one.callers]
    lowest = min(one.traffic.priority for one in lanes)
    lane = max(
        (one for one in lanes if one.traffic.priority == lowest),
        key=lambda one: (sum(map(len, one.callers.values())) * one.stride, one is own_lane, one.place),
    )
    ranked = [
        (len(requests), lane is own_lane and caller == own_caller, place, requests)
        for place, (caller, requests) in enumerate(lane.callers.items())
    ]
    return next(reversed(max(ranked, key=lambda one: one[:3])[3]))


@given(
    st.lists(
        st.tuples(st.sampled_from(["push", "push", "pop", "remove"]), st.integers(0, 2), st.integers(0, 4)),
        max_size=60,
    )
)
def test_whoever_must_go_is_found_without_looking_at_all(moves: list[tuple[str, int, int]]) -> None:
    classes = TrafficClasses(
        [TrafficClass("a", weight=3), TrafficClass("b", weight=1), TrafficClass("c", priority=1)]
    )
    line = FairLine(classes)
    for number, (move, one, caller) in enumerate(moves):
        newcomer = OperationId(str(number))
        if move == "push":
            ahead = line.count_ahead("abc"[one], str(caller))
            line.push(newcomer, "abc"[one], str(caller))
            assert line.list_in_order().index(newcomer) == ahead
            assert line.find_excess(newcomer) == find_excess_by_looking_at_all(line, newcomer)
        elif move == "pop" and len(line):
            first = line.list_in_order()[0]
            assert line.pop() == first
        elif len(line):
            waiting = line.list_in_order()
            line.remove(waiting[caller % len(waiting)])
        for lane in line._lanes.values():
            assert sorted(lane.sizes.elements()) == sorted(map(len, lane.callers.values()))
            assert lane.count == sum(lane.sizes.elements())
