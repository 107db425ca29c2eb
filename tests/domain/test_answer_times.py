"""How long answers take: the middle of many, with those that were cut counted for what is known of them."""

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
        ((3.0, 1.0, 2.0, 9.0), (), 2.0),
        # Two of four are above 2 s for certain, the one that was cut at 3 s as well.
        ((1.0, 2.0, 9.0), (3.0,), 2.0),
        # Cut at once says nothing: the middle of the others is what it was.
        ((1.0, 2.0, 3.0, 4.0), (0.0, 0.0, 0.0), 2.0),
        # Most had more to do than they were given.
        ((1.0,), (3.0, 3.0, 3.0), 3.0),
        ((1.0, 1.5), (2.0, 2.0, 2.0, 4.0), 4.0),
    ],
)
def test_half_of_them_take_longer_than_what_is_told(whole, cut, known):
    assert times_of(*whole, cut_s=cut).read("chat", False) == known


def test_classes_are_counted_apart_and_so_is_what_was_shortened():
    times = times_of(*(60.0,) * 8)
    assert times.read("batch", False) == 0.0
    assert times.read("chat", True) == 0.0
    assert times.read("chat", False) == 60.0


def test_what_is_long_ago_is_forgotten():
    times = times_of(*(60.0,) * MEMORY)
    assert times.read("chat", False) == 60.0
    for _ in range(MEMORY // 2 + 1):
        times.note("chat", False, 1.0, whole=True)
    assert times.read("chat", False) == 1.0
