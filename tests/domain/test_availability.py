"""Who serves when not everybody is well: metrics alone never empty a pool, orders do."""

from itertools import product

import hypothesis.strategies as st
import pytest
from hypothesis import given

from envoy_ext.domain.availability import (
    Availability,
    ServingReason,
    WhenNoneReady,
    choose_serving,
)
from envoy_ext.domain.readiness_reasons import KINDS, ReadinessReason, ReasonKind
from envoy_ext.domain.replica_life import SERVING, ReplicaState
from tests.support.fleet_builders import status

S, R = ReplicaState, ServingReason
NORMAL, DEGRADED, EMPTY = Availability


def out(name, *reasons):
    return status(name, S.UNREADY, reasons)


def choose(*statuses, policy=WhenNoneReady.LAST_KNOWN):
    serving = choose_serving(statuses, policy)
    return serving.availability, serving.reason, "".join(serving.members)


def test_the_ready_serve_and_nobody_else():
    pool = (
        status("a"),
        status("b", S.WARMING),
        status("c", S.SATURATED),
        out("d", "hang"),
        status("e", S.DRAINING),
    )
    assert choose(*pool) == (NORMAL, R.READY, "ab")


def test_one_ready_replica_of_many_serves_alone():
    assert choose(status("a"), *(out(name, "refused") for name in "bcdefg")) == (NORMAL, R.READY, "a")


def test_when_all_are_full_all_serve():
    assert choose(status("a", S.SATURATED), status("b", S.SATURATED)) == (DEGRADED, R.ALL_FULL, "ab")


def test_when_metrics_fail_everywhere_the_last_known_serve():
    silent = [status(name, S.UNREADY) for name in "abc"]
    assert choose(*silent) == (DEGRADED, R.NONE_READY, "abc")


def test_the_full_and_the_silent_serve_together():
    pool = status("a", S.SATURATED), out("b", "unreachable", "metrics_stale"), out("c", "just_failed")
    assert choose(*pool) == (DEGRADED, R.NONE_READY, "abc")


@pytest.mark.parametrize(
    ("pool", "members"),
    [
        ([out("a", "unreachable"), out("b", "hang"), out("c", "refused")], "a"),
        ([out("b", "hang"), out("d", "gpu_xid"), out("c", "refused")], "bd"),
        ([out("c", "refused"), out("e", "sleeping")], "ce"),
        ([status("a", S.SATURATED), out("b", "kv_cache", "hang")], "a"),
    ],
)
def test_the_least_doubtful_serve_first(pool, members):
    assert choose(*pool) == (DEGRADED, R.NONE_READY, members)


def test_the_last_replica_is_not_removed_by_its_own_failures():
    assert choose(out("a", "just_failed")) == (DEGRADED, R.NONE_READY, "a")


def test_a_replica_that_restarts_serves_as_a_last_resort_if_it_once_was_ready():
    loading = status("a", S.STARTING, ["loading"], was_ready=True)
    assert choose(loading, status("b", S.STARTING)) == (DEGRADED, R.NONE_READY, "a")


@pytest.mark.parametrize(
    ("pool", "reason"),
    [
        ([], R.NO_REPLICAS),
        ([status("a", S.GONE)], R.NO_REPLICAS),
        ([status("a", S.DRAINING), status("b", S.GONE)], R.ALL_DRAINED),
        ([status("a", S.DISCOVERED), status("b", S.STARTING), status("c", S.DRAINING)], R.NONE_READY_YET),
    ],
)
def test_an_order_or_a_pool_that_never_was_ready_is_empty_and_says_why(pool, reason):
    assert choose(*pool) == (EMPTY, reason, "")


def test_by_policy_a_pool_without_a_ready_replica_fails_fast():
    pool = [status("a", S.SATURATED), out("b", "unreachable")]
    assert choose(*pool, policy=WhenNoneReady.FAIL_FAST) == (EMPTY, R.NONE_READY, "")
    assert choose(status("c"), *pool, policy=WhenNoneReady.FAIL_FAST) == (NORMAL, R.READY, "c")


BY_METRICS = [reason for reason, kind in KINDS.items() if kind not in (ReasonKind.ORDER, ReasonKind.CIRCUIT)]


@given(
    st.lists(st.lists(st.sampled_from(BY_METRICS), min_size=1, max_size=3), min_size=1, max_size=5),
    st.booleans(),
)
def test_whatever_metrics_say_of_replicas_that_once_were_ready_some_of_them_serve(blames, one_drains):
    pool = [out(name, *reasons) for name, reasons in zip("abcde", blames, strict=False)]
    if one_drains:
        pool.append(status("z", S.DRAINING))
    availability, _, members = choose(*pool)
    assert availability is DEGRADED
    assert members
    assert "z" not in members


@pytest.mark.parametrize("states", list(product(S, S)))
def test_every_pair_of_states(states):
    """Members and availability agree, and no order is overruled."""
    pool = [status(name, state) for name, state in zip("ab", states, strict=True)]
    availability, _, members = choose(*pool)
    assert (availability is EMPTY) == (members == "")
    assert (availability is NORMAL) == any(state in SERVING for state in states)
    for name, state in zip("ab", states, strict=True):
        if state in (S.DRAINING, S.GONE, S.DISCOVERED, S.STARTING):
            assert name not in members


def test_every_reason_but_an_order_has_a_place_in_line():
    for reason in ReadinessReason:
        if KINDS[reason] not in (ReasonKind.ORDER, ReasonKind.CIRCUIT):
            assert choose(out("a", reason))[0] is DEGRADED


def test_one_that_its_circuit_keeps_out_stands_in_for_nobody():
    failing = out("a", "circuit_open")
    assert choose(failing) == (EMPTY, R.CIRCUITS_OPEN, "")
    assert choose(failing, out("b", "refused")) == (DEGRADED, R.NONE_READY, "b")
    assert choose(failing, status("b", S.DRAINING, ["draining"])) == (EMPTY, R.CIRCUITS_OPEN, "")
    assert choose(failing, status("b")) == (NORMAL, R.READY, "b")
    assert choose(out("a", "circuit_overruled")) == (DEGRADED, R.NONE_READY, "a")
