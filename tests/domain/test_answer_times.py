"""How long answers take: nine of ten, with those that were cut counted for what is known of them."""

import pytest

from envoy_ext.domain.answer_times import MEMORY, AnswerTimes


def times_of(*whole_s, cut_s=(), class_name="chat", shortened=False):
    times = AnswerTimes()
    for seconds in whole_s:
        times.note(class_name, shortened, seconds, whole=True)
    for seconds in cut_s:
        times.note(class_name, shortened, seconds, whole=False)
    return times


@pytest.mark.parametrize(
    ("whole", "cut", "known"),
    [
        ((1.0, 2.0, 3.0), (), 0.0),
        ((3.0, 1.0, 2.0, 9.0), (), 9.0),
        (range(1, 11), (), 9.0),
        # One of ten is above 1 s; of twelve, two more that were cut at 2 s are for certain.
        ((*(1.0,) * 9, 5.0), (), 1.0),
        ((*(1.0,) * 9, 5.0), (2.0, 2.0), 5.0),
        # Cut at once says nothing: the others are what they were.
        (range(1, 11), (0.0, 0.0, 0.0), 9.0),
        # Most had more to do than they were given.
        ((1.0,), (3.0, 3.0, 3.0), 3.0),
        ((1.0, 1.5), (2.0, 2.0, 2.0, 4.0), 4.0),
    ],
)
def test_time_is_left_for_what_nine_of_ten_take_and_a_fifth_more(whole, cut, known):
    assert times_of(*whole, cut_s=cut).read("chat", False) == pytest.approx(1.2 * known)


def test_classes_are_counted_apart_and_so_is_what_was_shortened():
    times = times_of(*(60.0,) * 8)
    assert times.read("batch", False) == 0.0
    assert times.read("chat", True) == 0.0
    assert times.read("chat", False) == 72.0


def test_what_is_long_ago_is_forgotten():
    times = times_of(*(60.0,) * MEMORY)
    for _ in range(MEMORY * 9 // 10):
        times.note("chat", False, 1.0, whole=True)
    assert times.read("chat", False) == 72.0
    times.note("chat", False, 1.0, whole=True)
    assert times.read("chat", False) == 1.2
