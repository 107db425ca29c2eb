"""Whose death a refusal or a page at an address proves."""

import pytest

from envoy_ext.domain.ids import ReplicaId
from envoy_ext.domain.places import CONNECT_S, Places, RanAt
from tests.support.members import member

A, B = ReplicaId("a"), ReplicaId("b")
AT = "10.0.0.1:8000"


def settled(**facts: object) -> Places:
    """One replica, there since 100."""
    places = Places()
    places.settle(member("a", 1, **facts), 100.0)
    return places


def test_an_address_is_taken_over_by_whoever_came_after_the_attempt_had_started() -> None:
    places = settled()
    assert not places.is_taken_over(RanAt(AT, 100.0))
    assert places.is_taken_over(RanAt(AT, 99.9))
    assert not places.is_taken_over(RanAt("10.0.0.2:8000", 0.0))
    places.leave(A)
    assert not places.is_taken_over(RanAt(AT, 99.9))
    places.settle(member("b", 1), 200.0)
    assert places.is_taken_over(RanAt(AT, 150.0))


def test_whoever_stays_where_it_is_has_not_come_again() -> None:
    """Its standing changed, or one more address was found for its name."""
    places = settled()
    places.settle(member("a", 1, addresses=(AT, "10.0.0.7:8000")), 200.0)
    assert not places.is_taken_over(RanAt(AT, 150.0))
    assert places.is_taken_over(RanAt("10.0.0.7:8000", 150.0))


def test_whoever_left_and_comes_again_is_there_since_then() -> None:
    places = settled()
    places.leave(A)
    places.settle(member("a", 1), 200.0)
    assert places.is_taken_over(RanAt(AT, 150.0))


@pytest.mark.parametrize(
    ("since", "ended"),
    [(99.9, False), (100.0, True), (150.0 - CONNECT_S, True), (150.1 - CONNECT_S, False), (151.0, False)],
)
def test_a_process_takes_with_it_what_had_reached_it_when_it_was_last_seen(since: float, ended: bool) -> None:
    places = settled()
    assert not places.has_ended(RanAt(AT, since))
    places.note_process_end(A, last_seen_at=150.0)
    assert places.has_ended(RanAt(AT, since)) is ended
    assert not places.has_ended(RanAt("10.0.0.2:8000", since))


def test_an_end_says_nothing_of_a_pod_that_stood_elsewhere_under_the_same_name() -> None:
    places = settled()
    places.leave(A)
    places.settle(member("a", 2), 120.0)
    places.note_process_end(A, last_seen_at=150.0)
    assert not places.has_ended(RanAt(AT, 110.0))
    assert places.has_ended(RanAt("10.0.0.2:8000", 130.0))


def test_an_end_of_a_replica_that_is_not_listed_is_nobodys() -> None:
    places = settled()
    places.note_process_end(B, last_seen_at=150.0)
    assert not places.has_ended(RanAt(AT, 100.0))


@pytest.mark.parametrize(
    ("facts", "speaks"),
    [
        ({"metrics_url": f"http://{AT}/metrics"}, True),
        ({"metrics_url": "http://10.0.0.1:9400/metrics"}, False),
        ({"metrics_url": "http://10.0.0.9:8000/metrics"}, False),
        ({"url": "http://vllm-0:8000"}, False),
        ({"url": "http://[fd00::1]:8000", "addresses": (AT,)}, True),
    ],
)
def test_a_page_from_another_port_or_by_a_name_may_be_another_process(
    facts: dict[str, object], speaks: bool
) -> None:
    places = settled(**facts)
    places.note_process_end(A, last_seen_at=150.0)
    assert places.has_ended(RanAt(AT, 100.0)) is speaks
