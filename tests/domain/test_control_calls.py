"""When a replica is asked for a token again, and what an answer or another process makes of that."""

from dataclasses import replace

from envoy_ext.domain.control_calls import ControlCalls
from tests.support.fleet_builders import POLICY


def calls():
    return ControlCalls(replace(POLICY, control_retry_s=1.0, control_retry_max_s=30.0))


def read_waits(subject, times, at=100.0):
    waits = []
    for _ in range(times):
        subject.note_failed("no token", at)
        waits.append(subject.retry_at - at)
    return waits


def test_the_wait_doubles_up_to_its_bound():
    assert read_waits(calls(), 7) == [1, 2, 4, 8, 16, 30, 30]
    assert read_waits(calls(), 5_000)[-1] == 30


def test_an_answer_ends_the_waiting_and_the_complaint():
    subject = calls()
    read_waits(subject, 5)
    subject.note_passed()
    assert (subject.proven, subject.failure) == (True, "")
    assert subject.retry_at <= 0.0
    assert read_waits(subject, 1) == [1]


def test_another_process_has_proven_nothing_and_failed_nothing():
    subject = calls()
    subject.note_passed()
    read_waits(subject, 5)
    subject.reset()
    assert (subject.proven, subject.failure) == (False, "")
    assert subject.retry_at <= 0.0
    assert read_waits(subject, 1) == [1]


def test_who_has_proven_itself_stays_so():
    subject = calls()
    subject.note_passed()
    read_waits(subject, 3)
    assert subject.proven
    assert subject.failure == "no token"
