"""How fast replicas begin to answer: the middle of enough recent times, or nothing."""

import pytest

from envoy_ext.domain.ids import ReplicaId
from envoy_ext.domain.latencies import EVERY_S, LEAST_S, MAX_SAMPLES, MIN_SAMPLES, WINDOW_S, Latencies

A, B = ReplicaId("a"), ReplicaId("b")


def note(latencies, replica, *seconds, at=0.0):
    for one in seconds:
        latencies.note(replica, one, at)


def test_the_middle_counts_and_not_the_one_long_prompt():
    latencies = Latencies()
    note(latencies, A, *[0.4] * 8, 30.0)
    assert latencies.read(0.0) == {A: 0.4}


def test_too_few_are_not_known():
    latencies = Latencies()
    note(latencies, A, *[0.4] * (MIN_SAMPLES - 1))
    assert latencies.read(0.0) == {}
    note(latencies, A, 0.4)
    assert latencies.read(EVERY_S) == {A: 0.4}


def test_old_ones_are_dropped_one_by_one_and_a_replica_without_any_is_not_known():
    latencies = Latencies()
    note(latencies, A, *[9.0] * 8, at=0.0)
    note(latencies, A, *[1.0] * 8, at=30.0)
    assert latencies.read(30.0) == {A: 5.0}
    assert latencies.read(WINDOW_S + 1) == {A: 1.0}
    assert latencies.read(30.0 + WINDOW_S + 1) == {}


def test_only_so_many_are_kept():
    latencies = Latencies()
    note(latencies, A, *[9.0] * 1000, *[1.0] * MAX_SAMPLES)
    assert latencies.read(0.0) == {A: 1.0}


@pytest.mark.parametrize("fast_s", [0.0, 0.001, LEAST_S])
def test_what_nobody_feels_is_equal(fast_s):
    latencies = Latencies()
    note(latencies, A, *[fast_s] * 8)
    note(latencies, B, *[LEAST_S] * 8)
    assert latencies.read(0.0) == {A: LEAST_S, B: LEAST_S}


def test_they_are_computed_once_a_second():
    latencies = Latencies()
    note(latencies, A, *[1.0] * 8)
    assert latencies.read(0.0) == {A: 1.0}
    note(latencies, A, *[2.0] * 20)
    assert latencies.read(EVERY_S / 2) == {A: 1.0}
    assert latencies.read(EVERY_S) == {A: 2.0}


def test_a_replica_that_is_forgotten_is_not_known_at_once():
    latencies = Latencies()
    note(latencies, A, *[1.0] * 8)
    assert latencies.read(0.0) == {A: 1.0}
    latencies.forget(A)
    assert latencies.read(0.1) == {}
    assert latencies.read(5.0) == {}
