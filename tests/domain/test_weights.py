"""Weights follow free capacity, calmly: never 0, no jumps, and nothing that is not known attracts work."""

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from envoy_ext.domain.ids import ReplicaId
from envoy_ext.domain.weights import WeightPolicy, compute_free_share, compute_weights
from tests.support.fleet_builders import stale, status

POLICY = WeightPolicy()
A, B, C = ReplicaId("a"), ReplicaId("b"), ReplicaId("c")
IDLE = {"running": 0, "waiting": 0, "kv_cache_usage": 0.0}


def weigh(*statuses, previous=None, latencies_s=None, policy=POLICY):
    return compute_weights(statuses, previous or {}, policy, latencies_s or {})


@pytest.mark.parametrize(
    ("load", "free"),
    [
        ({"running": 0, "waiting": 0, "kv_cache_usage": 0.0}, 1.0),
        ({"running": 16, "waiting": 0, "kv_cache_usage": 0.0}, 0.5),
        ({"running": 0, "waiting": 8, "kv_cache_usage": 0.0}, 0.5),
        ({"running": 0, "waiting": 0, "kv_cache_usage": 0.475}, 0.5),
        ({"running": 8, "waiting": 12, "kv_cache_usage": 0.1}, 0.25),
        ({"running": 32, "waiting": 40, "kv_cache_usage": 1.0}, 0.0),
        ({"running": 400, "waiting": 0, "kv_cache_usage": 0.0}, 0.0),
        ({"kv_cache_usage": 0.475}, 0.5),
        ({"running": 4, "max_running": 8}, 0.5),
        ({"running": 16, "max_running": 256}, 0.5),
        ({"running": 0, "max_running": 0}, 1.0),
    ],
)
def test_the_tightest_of_what_is_known_says_how_much_is_free(load, free):
    assert compute_free_share(status(**load), POLICY) == pytest.approx(free)


def test_our_own_streams_count_before_the_page_shows_them():
    assert compute_free_share(status(**IDLE, inflight=16), POLICY) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "unknown",
    [
        status(),
        status(max_running=8),
        stale(**IDLE),
        status(waiting=0),  # so is the queue of an engine with one request less than it can take
        status(waiting=0, max_running=8, inflight=0),
    ],
)
def test_not_known_is_not_empty(unknown):
    assert compute_free_share(unknown, POLICY) is None


def test_the_emptier_replica_gets_more():
    weights = weigh(status("a", **IDLE), status("b", running=24, waiting=0, kv_cache_usage=0.2))
    assert weights == {A: 100, B: 25}


def test_a_full_replica_that_serves_weighs_one_and_not_nothing():
    assert weigh(status("a", **IDLE), status("b", running=32)) == {A: 100, B: 1}


def test_slow_start_scales_the_weight():
    assert weigh(status("a", **IDLE), status("b", **IDLE, ramp=0.1)) == {A: 100, B: 10}


def test_failures_of_our_own_requests_scale_the_weight():
    assert weigh(status("a", **IDLE), status("b", **IDLE, failures=1.0)) == {A: 100, B: 50}


def test_a_slow_replica_gets_less_a_fast_one_no_more_and_slow_is_not_broken():
    replicas = [status(name, **IDLE) for name in "abc"]
    assert weigh(*replicas, latencies_s={A: 0.1, B: 0.2, C: 0.25}) == {A: 100, B: 100, C: 80}
    assert weigh(*replicas, latencies_s={A: 0.1, B: 0.2, C: 60.0})[C] == 50
    assert weigh(*replicas, latencies_s={C: 9.0}) == {A: 100, B: 100, C: 100}


def test_who_does_not_serve_here_is_no_measure_of_what_is_slow():
    elsewhere = {ReplicaId(f"x{number}"): 0.1 for number in range(9)}
    slow = {A: 2.0, B: 2.0, C: 2.0}
    replicas = [status(name, **IDLE) for name in "abc"]
    assert weigh(*replicas, latencies_s={**elsewhere, **slow}) == {A: 100, B: 100, C: 100}


def test_without_a_recent_page_a_replica_gets_the_least_of_those_that_have_one():
    weights = weigh(status("a", **IDLE), status("b", running=16), stale("c", **IDLE))
    assert weights == {A: 100, B: 50, C: 50}


def test_without_a_recent_page_a_replica_gets_no_more_than_it_had():
    weights = weigh(status("a", **IDLE), stale("c", **IDLE), previous={A: 100, C: 7})
    assert weights == {A: 100, C: 7}


def test_when_nothing_is_known_of_anybody_all_weigh_the_same():
    weights = weigh(stale("a", running=31), stale("b", **IDLE), previous={A: 3, B: 97})
    assert weights == {A: 100, B: 100}


def test_a_replica_without_metrics_starts_slowly_all_the_same():
    assert weigh(status("a"), status("b", ramp=0.1)) == {A: 100, B: 10}


def test_nobody_serving_is_no_weights():
    assert weigh() == {}


def test_a_weight_moves_step_by_step():
    weights, path = {A: 100}, []
    for _ in range(7):
        weights = weigh(status("a", running=32), previous=weights)
        path.append(weights[A])
    assert path == [80, 60, 40, 20, 1, 1, 1]
    for _ in range(6):
        weights = weigh(status("a", **IDLE), previous=weights)
        path.append(weights[A])
    assert path[7:] == [21, 41, 61, 81, 100, 100]


def test_small_changes_move_nothing():
    weights = {A: 50}
    for running in (16, 15, 17, 16, 15):
        weights = weigh(status("a", running=running), previous=weights)
        assert weights == {A: 50}


SHARES = st.none() | st.floats(0, 2)
STATUSES = st.builds(
    lambda running, waiting, kv, max_running, fresh, ramp, failures, inflight: {
        "running": running,
        "waiting": waiting,
        "kv_cache_usage": kv,
        "max_running": max_running,
        "fresh": fresh,
        "ramp": ramp,
        "failures": failures,
        "inflight": inflight,
    },
    st.none() | st.integers(0, 500),
    st.none() | st.integers(0, 500),
    SHARES,
    st.none() | st.integers(0, 512),
    st.booleans(),
    st.floats(0.1, 1.0),
    st.floats(0, 6),
    st.integers(0, 600),
)
ROUNDS = st.lists(st.fixed_dictionaries(dict.fromkeys("abcd", STATUSES)), min_size=1, max_size=8)


@given(ROUNDS, st.dictionaries(st.sampled_from([A, B, C]), st.floats(0.001, 100)))
def test_no_weight_is_0_and_none_jumps_and_the_unknown_attract_nothing(rounds, latencies_s):
    previous: dict[ReplicaId, int] = {}
    for facts in rounds:
        statuses = [status(name, **each) for name, each in facts.items()]
        known = {s.replica for s in statuses if compute_free_share(s, POLICY) is not None}
        weights = weigh(*statuses, previous=previous, latencies_s=latencies_s)
        assert set(weights) == {s.replica for s in statuses}
        assert all(isinstance(weight, int) and 1 <= weight <= POLICY.top for weight in weights.values())
        if known:
            assert all(abs(weights[r] - previous.get(r, weights[r])) <= POLICY.step for r in known)
            least = min(weights[r] for r in known)
            unknown = set(weights) - known
            assert all(weights[r] <= min(least, previous.get(r, least)) for r in unknown)
        previous = weights


@given(STATUSES, STATUSES)
def test_more_load_never_means_more_weight(one, more):
    facts = {**one, "fresh": True, "running": one["running"] or 0}
    heavier = {
        **facts,
        "running": facts["running"] + (more["running"] or 0),
        "inflight": facts["inflight"] + more["inflight"],
        "waiting": None if facts["waiting"] is None else facts["waiting"] + (more["waiting"] or 0),
    }
    assert weigh(status("a", **heavier))[A] <= weigh(status("a", **facts))[A]


def test_the_sum_of_all_endpoints_envoy_can_hold_fits_its_limit():
    assert 40_000_000 * POLICY.top <= 4_294_967_295


def test_a_policy_of_its_own_is_obeyed():
    policy = replace(POLICY, top=10, step=1, deadband=1)
    assert weigh(status("a", **IDLE), previous={A: 3}, policy=policy) == {A: 4}
