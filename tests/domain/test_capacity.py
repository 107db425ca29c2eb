"""N+1 from measured load: what is left when the worst replica, node or zone goes."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from envoy_ext.domain.capacity import (
    Bottleneck,
    Demand,
    PoolDemand,
    ReplicaLoad,
    Scenario,
    compute_headrooms,
    compute_ratio,
    measure_demand,
    read_pool_load,
)
from envoy_ext.domain.ids import ReplicaId
from envoy_ext.domain.load_peak import BUCKET_S, BUCKETS, LoadPeak
from envoy_ext.domain.replica_life import ReplicaState
from envoy_ext.domain.replica_status import Liveness
from tests.support.fleet_builders import POOL, picture, profile, ready_replica, stale, status

S = ReplicaState


def load(name, requests=8.0, **facts):
    return ReplicaLoad(
        ReplicaId(name), POOL, **{"able": True, "requests": requests, "concurrency": 32, **facts}
    )


def headrooms(*loads, demand=None, kv_limit=0.95):
    found = compute_headrooms(POOL, loads, demand or measure_demand(loads), kv_limit)
    return {headroom.scenario: headroom for headroom in found}


@pytest.mark.parametrize(
    ("demand", "room", "ratio"),
    [(0, 0, -1.0), (9, 0, -1.0), (0, 9, 1.0), (8, 8, 0.0), (6, 8, 0.25), (8, 6, -0.25), (96, 64, -1 / 3)],
)
def test_a_ratio_is_the_free_share_of_the_room_or_the_lost_share_of_the_work(demand, room, ratio):
    assert compute_ratio(demand, room) == pytest.approx(ratio)


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_a_ratio_stays_between_minus_one_and_one(demand, room):
    assert -1.0 <= compute_ratio(demand, room) <= 1.0


def test_three_replicas_at_half_load_hold_the_loss_of_one():
    found = headrooms(load("a", 16), load("b", 16), load("c", 16))
    assert found[Scenario.NOTHING].ratio == pytest.approx(0.5)
    assert found[Scenario.REPLICA].ratio == pytest.approx(0.25)
    assert found[Scenario.REPLICA].holds
    assert set(found) == {Scenario.NOTHING, Scenario.REPLICA}, "no node and no zone is known"


def test_two_replicas_over_half_load_do_not_hold_the_loss_of_one():
    found = headrooms(load("a", 20), load("b", 24))
    worst = found[Scenario.REPLICA]
    assert not worst.holds
    assert worst.ratio == pytest.approx(-12 / 44)
    assert (worst.lost, worst.where) == ((ReplicaId("b"),), "b"), "the busiest"
    assert (worst.requests, worst.room) == (44, 32)


def test_what_just_fits_holds():
    worst = headrooms(load("a", 16), load("b", 16))[Scenario.REPLICA]
    assert worst.ratio == 0.0
    assert worst.holds


def test_a_single_replica_leaves_nothing():
    assert headrooms(load("a", 0))[Scenario.REPLICA].ratio == -1.0


def test_the_largest_is_the_worst_to_lose():
    found = headrooms(load("a", 30), load("b", 1, concurrency=128))
    assert found[Scenario.REPLICA].where == "b"


def test_a_node_takes_all_its_replicas_with_it():
    found = headrooms(
        load("a", node="n1", zone="z1"),
        load("b", node="n1", zone="z1"),
        load("c", node="n2", zone="z1"),
        load("d", node="n3", zone="z2"),
    )
    assert found[Scenario.NODE].where == "n1"
    assert found[Scenario.NODE].lost == (ReplicaId("a"), ReplicaId("b"))
    assert found[Scenario.NODE].ratio == pytest.approx(0.5)
    assert found[Scenario.ZONE].where == "z1"
    assert found[Scenario.ZONE].ratio == pytest.approx(0.0)


def test_a_replica_without_a_node_stands_alone():
    found = headrooms(load("a", node="n1"), load("b"), load("c"))
    assert len(found[Scenario.NODE].lost) == 1


def test_the_cache_can_be_the_bottleneck():
    found = headrooms(load("a", 1, kv_cache_usage=0.8), load("b", 1, kv_cache_usage=0.8))
    worst = found[Scenario.REPLICA]
    assert worst.bottleneck is Bottleneck.KV_CACHE
    assert worst.ratio == pytest.approx((0.95 - 1.6) / 1.6)
    assert found[Scenario.NOTHING].bottleneck is Bottleneck.KV_CACHE


def test_a_draining_replica_has_work_and_no_room():
    found = headrooms(load("a", 16), load("b", 16), load("c", 16, able=False))
    assert found[Scenario.NOTHING].room == 64
    assert found[Scenario.NOTHING].requests == 48
    assert not found[Scenario.REPLICA].holds


def test_a_pool_without_an_able_replica_has_no_room():
    found = headrooms(load("a", 1, able=False, node="n1"))
    assert {scenario: one.ratio for scenario, one in found.items()} == {
        Scenario.NOTHING: -1.0,
        Scenario.REPLICA: -1.0,
        Scenario.NODE: -1.0,
    }


def test_a_pool_that_has_lost_every_replica_still_rings_the_alarm():
    """What rang for the last replica must not fall silent when that goes too."""
    found = compute_headrooms(POOL, (), Demand(0.0))
    assert [(one.scenario, one.ratio) for one in found] == [
        (Scenario.NOTHING, -1.0),
        (Scenario.REPLICA, -1.0),
    ]


@pytest.mark.parametrize(
    ("loads", "where", "why"),
    [
        ([load("a", 20), load("b", 24)], "b", "the busiest"),
        ([load("a", 9), load("b", 1, concurrency=128)], "b", "the largest"),
        ([load("a", 4), load("b", 4)], "a", ""),
        ([load("a", 4)], "a", ""),
    ],
)
def test_the_worst_says_what_makes_it_so(loads, where, why):
    worst = headrooms(*loads)[Scenario.REPLICA]
    assert (worst.where, worst.why) == (where, why)


def test_a_cache_that_is_not_known_is_estimated_from_those_that_are():
    """A page that fails must not make a pool look emptier than it is."""
    told = load("a", 10, kv_cache_usage=0.5)
    assert measure_demand([told, load("b", 8)]).kv_cache == pytest.approx(0.5 + 8 * 0.05)
    assert measure_demand([told, load("b", 0)]).kv_cache == pytest.approx(0.5)
    assert measure_demand([told, load("b", 900)]).kv_cache == pytest.approx(1.5), "no more than all of it"
    assert measure_demand([load("a", 0, kv_cache_usage=0.2), load("b", 5)]).kv_cache == pytest.approx(0.2)
    assert measure_demand([load("a", 10), load("b", 8)]).kv_cache is None, "not known is not empty"


def test_a_measured_peak_counts_more_than_the_moment():
    found = headrooms(load("a", 0), load("b", 0), demand=Demand(40.0))
    assert not found[Scenario.REPLICA].holds


def test_what_is_not_known_of_the_load_is_at_least_our_own():
    view = picture(
        status("a", running=5, waiting=3, kv_cache_usage=0.4, max_running=8),
        stale("b", inflight=4),
        status("c", S.SATURATED, running=32, inflight=40),
        status("d", S.DRAINING, running=2),
        profiles=[profile("a", node="n1", zone="z1", gpus=(0,))],
    )
    a, b, c, d = read_pool_load(view, 32)
    assert (a.requests, a.concurrency, a.kv_cache_usage) == (8, 8, 0.4)
    assert not any(each.crowded for each in (a, b, c, d))
    assert (a.node, a.zone, a.gpus) == ("n1", "z1", (0,))
    assert (b.requests, b.concurrency, b.kv_cache_usage) == (4, 32, None)
    assert [each.measured for each in (a, b, c, d)] == [True, False, True, True]
    assert c.requests == 40
    assert [each.able for each in (a, b, c, d)] == [True, True, True, False]


def test_the_page_of_a_dead_process_tells_of_work_that_is_gone():
    dead = status("b", S.UNREADY, running=30, kv_cache_usage=0.9, liveness=Liveness.DEAD, inflight=2)
    (load,) = read_pool_load(picture(dead), 32)
    assert (load.requests, load.kv_cache_usage, load.measured, load.able) == (2, None, False, False)


def test_streams_that_ended_since_the_page_are_not_counted_where_they_were():
    """Those of a replica that is lost run elsewhere a moment later."""
    lost, kept = read_pool_load(
        picture(
            status("a", running=30, kv_cache_usage=0.6, page_inflight=25, inflight=0),
            status("b", running=30, kv_cache_usage=0.6, page_inflight=30, inflight=55),
        ),
        64,
    )
    assert lost.requests == 5, "what others sent there is left"
    assert lost.kv_cache_usage == pytest.approx(0.1)
    assert (kept.requests, kept.kv_cache_usage) == (55, 0.6)


def test_a_gate_remembers_how_many_streams_of_ours_its_page_shows():
    replica = ready_replica()
    replica.inflight(3)
    replica.scrape(running=3)
    replica.inflight(1)
    assert (replica.status.page_inflight, replica.status.inflight) == (3, 1)
    replica.scrape(running=1)
    assert replica.status.page_inflight == 1


def test_an_engine_whose_page_lags_behind_our_streams_is_not_below_them():
    late, empty = read_pool_load(
        picture(
            status("a", running=2, page_inflight=9, inflight=4), status("b", running=0, kv_cache_usage=0.2)
        ),
        32,
    )
    assert late.requests == 4
    assert (empty.requests, empty.kv_cache_usage) == (0, 0.2)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([None, 0.0, 3.0, 40.0]),
            st.sampled_from([None, 0.0, 0.7]),
            st.integers(0, 9),
            st.integers(0, 9),
            st.sampled_from(Liveness),
        ),
        max_size=6,
    )
)
def test_a_picture_measures_what_its_loads_measure(facts):
    view = picture(
        *(
            status(
                f"r{number}",
                running=running,
                kv_cache_usage=kv_cache,
                inflight=inflight,
                page_inflight=then,
                liveness=liveness,
            )
            for number, (running, kv_cache, inflight, then, liveness) in enumerate(facts)
        ),
        profiles=[profile("a")],
    )
    assert PoolDemand().follow(view) == measure_demand(read_pool_load(view, 32))


def test_an_engine_that_computes_more_than_it_can_shows_a_figure_that_is_too_low():
    view = picture(status("a", running=33, waiting=0), status("b", running=32, waiting=40))
    assert [each.crowded for each in read_pool_load(view, 32)] == [True, False]


@given(
    st.lists(
        st.tuples(st.floats(0, 64), st.sampled_from([None, "n1", "n2"]), st.booleans()),
        min_size=1,
        max_size=8,
    )
)
def test_losing_more_never_leaves_more(facts):
    loads = [load(f"r{i}", requests, node=node, able=able) for i, (requests, node, able) in enumerate(facts)]
    found = headrooms(*loads)
    if Scenario.REPLICA in found:
        assert found[Scenario.REPLICA].ratio <= found[Scenario.NOTHING].ratio
    if Scenario.NODE in found:
        assert found[Scenario.NODE].ratio <= found[Scenario.REPLICA].ratio


# --- the peak ---------------------------------------------------------------------------------


def test_the_peak_of_the_last_hour_is_remembered_and_then_forgotten():
    peak = LoadPeak()
    assert peak.read(0.0) is None
    peak.note(Demand(10.0, 0.5), 0.0)
    peak.note(Demand(90.0, None), 30.0)
    peak.note(Demand(20.0, 1.5), 59.0)
    assert peak.read(59.0) == Demand(90.0, 1.5)
    for minute in range(1, BUCKETS):
        peak.note(Demand(5.0), minute * BUCKET_S)
    assert peak.read(BUCKETS * BUCKET_S - 1) == Demand(90.0, 1.5)
    peak.note(Demand(5.0), BUCKETS * BUCKET_S)
    assert peak.read(BUCKETS * BUCKET_S) == Demand(5.0)


def test_an_old_peak_is_no_peak():
    peak = LoadPeak()
    peak.note(Demand(10.0), 0.0)
    assert peak.read(BUCKETS * BUCKET_S) is None


def test_how_long_is_remembered_is_told():
    peak = LoadPeak()
    assert peak.read_window_s(0.0) is None
    peak.note(Demand(1.0), 100.0)
    assert peak.read_window_s(220.0) == 120.0
    peak.note(Demand(1.0), 220.0)
    assert peak.read_window_s(220.0) == 120.0
    assert peak.read_window_s(100.0 + 9 * BUCKETS * BUCKET_S) == BUCKETS * BUCKET_S
