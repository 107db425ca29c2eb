"""What replicas share that should not be shared, and what downtime costs against what a spare costs."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from envoy_ext.domain.capacity import Demand, ReplicaLoad
from envoy_ext.domain.downtime_cost import (
    HOURS_PER_YEAR,
    CostFigures,
    ReplicaSize,
    compare_spare,
    estimate_cost,
)
from envoy_ext.domain.fingerprint import Fingerprint
from envoy_ext.domain.ids import ReplicaId
from envoy_ext.domain.shared_fate import Fate, list_shared_fates
from tests.support.fleet_builders import POOL

# --- shared fate ------------------------------------------------------------------------------


def replica(name, **where):
    return ReplicaLoad(ReplicaId(name), POOL, able=True, requests=0.0, concurrency=32, **where)


def fates(*loads, fingerprints=None):
    known = fingerprints or {load.replica: Fingerprint(POOL) for load in loads}
    return [(warning.fate, "".join(warning.replicas)) for warning in list_shared_fates(loads, known)]


def test_replicas_that_share_nothing_earn_no_warning():
    assert (
        fates(replica("a", node="n1", zone="z1", gpus=(0,)), replica("b", node="n2", zone="z2", gpus=(0,)))
        == []
    )
    assert fates(replica("a"), replica("b")) == [], "nothing is known of them"
    assert fates() == []


def test_a_single_replica_is_warned_of_and_nothing_else():
    assert fates(replica("a", node="n1", zone="z1")) == [(Fate.ALONE, "a")]


def test_replicas_on_one_node_fail_together():
    found = fates(replica("a", node="n1"), replica("b", node="n2"), replica("c", node="n1"))
    assert found == [(Fate.NODE, "ac")]


def test_replicas_on_one_gpu_fail_together():
    found = fates(replica("a", node="n1", gpus=(0, 1)), replica("b", node="n1", gpus=(1, 2)))
    assert found == [(Fate.GPU, "ab"), (Fate.NODE, "ab")]


def test_the_same_number_on_another_node_is_another_gpu():
    assert fates(replica("a", gpus=(0,)), replica("b", gpus=(0,))) == []


def test_a_zone_that_holds_them_all_is_warned_of_and_half_of_them_is_not():
    zones = [replica(name, node=f"n-{name}", zone=zone) for name, zone in zip("abcd", "xxyy", strict=True)]
    assert fates(*zones) == []
    assert fates(*zones[:2]) == [(Fate.ZONE, "ab")]


def test_replicas_that_cannot_stand_in_for_each_other_are_warned_of():
    a, b = replica("a"), replica("b")
    mixed = {a.replica: Fingerprint(POOL, weights="rev-1"), b.replica: Fingerprint(POOL, weights="rev-2")}
    assert fates(a, b, fingerprints=mixed) == [(Fate.FINGERPRINT, "ab")]
    text = list_shared_fates((a, b), mixed)[0].text
    assert text == "not all replicas can answer in each other's place: weights: rev-1 on a; rev-2 on b"


# --- cost -------------------------------------------------------------------------------------

FIGURES = CostFigures(
    downtime_per_hour=1_000.0, replica_per_hour=2.0, failures_per_year=6.0, recovery_hours=0.5
)
SIZE = ReplicaSize(32)


def test_a_pool_that_holds_the_loss_of_one_loses_nothing():
    estimate = estimate_cost(FIGURES, replicas=3, demand=Demand(64), size=SIZE)
    assert estimate.lost_share == 0.0
    assert estimate.downtime_cost == 0.0
    assert estimate.total == estimate.replica_cost == 3 * 2.0 * HOURS_PER_YEAR


def test_a_pool_that_does_not_hold_it_loses_the_share_without_a_place():
    estimate = estimate_cost(FIGURES, replicas=2, demand=Demand(64), size=SIZE)
    assert estimate.lost_share == pytest.approx(0.5)
    assert estimate.hours_short == pytest.approx(2 * 6 * 0.5)
    assert estimate.downtime_cost == pytest.approx(6 * 0.5 * 1_000)


def test_a_spare_saves_what_it_prevents_less_what_it_costs():
    dear = CostFigures(
        downtime_per_hour=50_000.0, replica_per_hour=2.0, failures_per_year=6, recovery_hours=0.5
    )
    comparison = compare_spare(dear, replicas=2, demand=Demand(64), size=SIZE)
    assert comparison.with_spare.replicas == 3
    assert comparison.saves == pytest.approx(150_000 - 2.0 * HOURS_PER_YEAR)
    cheap = compare_spare(FIGURES, replicas=2, demand=Demand(64), size=SIZE)
    assert cheap.saves == pytest.approx(3_000 - 2.0 * HOURS_PER_YEAR)
    assert cheap.saves < 0


def test_an_idle_pool_loses_no_work():
    assert estimate_cost(FIGURES, replicas=1, demand=Demand(0), size=SIZE).lost_share == 0.0


def test_a_replica_is_away_for_a_year_at_most():
    broken = CostFigures(1.0, 1.0, failures_per_year=10_000, recovery_hours=24)
    assert (
        estimate_cost(broken, replicas=4, demand=Demand(1), size=ReplicaSize(1)).hours_short == HOURS_PER_YEAR
    )


def test_the_work_is_lost_by_whatever_is_tighter():
    """Two caches at 60 % do not fit into one, however few requests they hold."""
    estimate = estimate_cost(FIGURES, replicas=2, demand=Demand(4, kv_cache=1.2), size=SIZE)
    assert estimate.lost_share == pytest.approx((1.2 - 0.95) / 1.2)
    empty_cache = estimate_cost(FIGURES, replicas=2, demand=Demand(64, kv_cache=0.0), size=SIZE)
    assert empty_cache.lost_share == pytest.approx(0.5)


@given(st.integers(1, 20), st.floats(0, 1_000), st.floats(1, 256))
def test_a_spare_never_loses_more_of_the_work(replicas, requests, concurrency):
    comparison = compare_spare(FIGURES, replicas, Demand(requests), ReplicaSize(concurrency))
    assert comparison.with_spare.lost_share <= comparison.as_it_is.lost_share
