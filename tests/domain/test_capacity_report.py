"""Capacity as it is told: the verdict, whose word the load is, and the sentences."""

import pytest

from envoy_ext.domain.capacity import Demand, ReplicaLoad, Scenario, compute_headrooms
from envoy_ext.domain.capacity_report import (
    CapacityPolicy,
    LoadSource,
    Measured,
    build_measured_capacity,
    build_planned_capacity,
)
from envoy_ext.domain.capacity_words import (
    describe_headroom,
    describe_n_plus_one,
    describe_spare,
    list_remarks,
)
from envoy_ext.domain.downtime_cost import CostFigures, ReplicaSize
from envoy_ext.domain.fingerprint import Fingerprint
from envoy_ext.domain.ids import ReplicaId
from envoy_ext.domain.shared_fate import Fate
from tests.support.fleet_builders import POOL

HOUR_S = 3600.0
IDLE = Demand(0.0)


def load(name="a", requests=0.0, able=True, concurrency=32, **facts):
    return ReplicaLoad(ReplicaId(name), POOL, able, requests, concurrency, **facts)


def fingerprints(loads):
    return {one.replica: Fingerprint(POOL) for one in loads}


def measured(*loads, now=IDLE, busiest=None, window_s=HOUR_S, listed=None, policy=None):
    return build_measured_capacity(
        POOL,
        loads,
        fingerprints(loads) if listed is None else listed,
        Measured(now, now if busiest is None else busiest, window_s),
        policy or CapacityPolicy(ReplicaSize(32)),
    )


def planned(*loads, requests=None, policy=None):
    return build_planned_capacity(
        POOL, loads, fingerprints(loads), requests, policy or CapacityPolicy(ReplicaSize(32))
    )


# --- the verdict ------------------------------------------------------------------------------


def test_n_plus_one_is_held_against_the_busiest_moment_and_not_against_this_one():
    pool = measured(load("a"), load("b"), now=Demand(1.0), busiest=Demand(40.0))
    assert pool.holds is False
    assert measured(load("a"), load("b"), now=Demand(1.0), busiest=Demand(32.0)).holds is True


def test_without_a_load_nothing_is_said_of_two_replicas():
    pool = planned(load("a"), load("b"))
    assert (pool.holds, pool.source, pool.now, pool.busiest) == (None, None, None, None)
    assert describe_n_plus_one(pool) == (
        "the load is not known; 2 replicas have room for 64 requests at once"
    )


def test_where_only_discovery_knows_the_replicas_nothing_is_said_of_them():
    pool = planned(requests=5)
    assert (pool.holds, pool.listed, pool.room, pool.busiest) == (None, None, None, None)
    assert describe_n_plus_one(pool).startswith("which replicas there are is not known")


@pytest.mark.parametrize("able", [0, 1])
def test_one_replica_or_none_never_holds_whatever_the_load(able):
    loads = [load("a", able=able > 0), load("b", able=False)]
    assert planned(*loads).holds is False
    assert planned(*loads, requests=0).holds is False
    assert measured(*loads).holds is False


def test_what_is_gone_is_no_replica_and_its_last_streams_are_still_work():
    loads = [load("a", 1), load("b", 1), load("c", 3, able=False)]
    pool = measured(*loads, now=Demand(5.0), listed=fingerprints(loads[:2]))
    assert (pool.listed, pool.unable) == (("a", "b"), ())
    assert pool.now is not None
    assert pool.now.demand.requests == 5.0


def test_what_drains_is_listed_and_no_room_is_counted_for_it():
    pool = measured(load("a"), load("b"), load("c", able=False), now=Demand(5.0))
    assert (pool.listed, pool.unable, pool.room) == (("a", "b", "c"), ("c",), 64)
    assert list_remarks(pool)[0] == "no room is counted for c: no new work goes there now"


def test_shared_fates_are_found_among_the_listed():
    loads = [load("a", node="n1"), load("b", node="n1"), load("c", node="n1")]
    pool = measured(*loads, listed=fingerprints(loads[:2]))
    assert [(one.fate, one.replicas) for one in pool.warnings] == [(Fate.NODE, ("a", "b"))]


# --- whose word the load is -------------------------------------------------------------------


def test_the_source_of_the_load_is_told():
    assert measured(load("a", 3), load("b", 1)).source is LoadSource.ENGINES
    partly = measured(load("a", 3), load("b", 1, measured=False))
    assert (partly.source, partly.unmeasured) == (LoadSource.PARTLY_OWN, ("b",))
    assert "of b only this gateway's own requests are known: the load is at least that" in list_remarks(
        partly
    )
    own = measured(load("a", 3, measured=False), load("b", 1, measured=False))
    assert own.source is LoadSource.OWN_REQUESTS
    assert planned(load("a"), load("b"), requests=5).source is LoadSource.GIVEN


def test_the_silence_of_a_replica_that_takes_no_work_hides_none():
    pool = measured(load("a", 3), load("b", 0, able=False, measured=False))
    assert (pool.source, pool.unmeasured) == (LoadSource.ENGINES, ())


def test_remarks_say_what_the_figures_leave_out():
    short = measured(load("a", 3), load("b", 1), now=Demand(4.0), window_s=45.0)
    assert list_remarks(short) == (
        "the KV cache is left out: its usage is not known",
        "the load has been measured for 45 s so far",
    )
    assert list_remarks(measured(load("a"), load("b"), now=Demand(4.0, 0.5))) == ()
    assert list_remarks(planned(load("a"), load("b"))) == ()


def test_a_figure_that_is_too_low_is_asked_about():
    pool = measured(load("a", 40, crowded=True), load("b", 1), now=Demand(41.0, 0.5))
    (remark,) = list_remarks(pool)
    assert remark == "more is computed at once on a than capacity.concurrency says: is it too low?"


# --- the sentences ----------------------------------------------------------------------------


def say(*loads, demand, scenario=Scenario.REPLICA):
    found = compute_headrooms(POOL, loads, demand)
    return describe_headroom(next(one for one in found if one.scenario is scenario))


A, B = load("a", 20), load("b", 40)


@pytest.mark.parametrize(
    ("loads", "demand", "text"),
    [
        (
            [load("a", 20, concurrency=75), load("b", 40, concurrency=75)],
            Demand(60, 0.95 / 0.8),
            "when replica b (the busiest) goes, 12 of 60 requests find no place; "
            "the tighter limit is the KV cache",
        ),
        (
            [A, B],
            Demand(60),
            "when replica b (the busiest) goes, 28 of 60 requests find no place; "
            "the tighter limit is requests at once",
        ),
        (
            [load("a"), load("b")],
            Demand(16),
            "when replica a goes, all 16 requests find a place and 50% stays free; "
            "the tighter limit is requests at once",
        ),
        (
            [load("a"), load("b")],
            Demand(32),
            "when replica a goes, all 32 requests just find a place; the tighter limit is requests at once",
        ),
        (
            [load("a"), load("b")],
            Demand(1),
            "when replica a goes, the one request finds a place and 97% stays free; "
            "the tighter limit is requests at once",
        ),
        ([load("a"), load("b")], Demand(0), "when replica a goes, there is no work to place"),
        (
            [load("a"), load("b")],
            Demand(0, 1.9),
            "when replica a goes, 50% of the KV cache in use finds no place",
        ),
        (
            [load("a")],
            Demand(3),
            "when replica a goes, nothing is left to take work: none of 3 requests finds a place",
        ),
        ([load("a")], Demand(0), "when replica a goes, nothing is left to take work"),
        ([load("a", able=False)], Demand(0), "whatever replica goes, nothing takes work"),
        ([], Demand(2), "whatever replica goes, nothing takes work: none of 2 requests finds a place"),
    ],
)
def test_a_lost_replica_is_told_in_one_sentence(loads, demand, text):
    assert say(*loads, demand=demand) == text


def test_a_node_and_a_zone_name_what_goes_with_them():
    loads = [load("a", node="n1", zone="z1"), load("b", node="n1"), load("c")]
    assert say(*loads, demand=Demand(40), scenario=Scenario.NODE) == (
        "when node n1 (a, b; the largest) goes, 8 of 40 requests find no place; "
        "the tighter limit is requests at once"
    )
    assert say(*loads, demand=Demand(40), scenario=Scenario.ZONE).startswith("when replica b goes, all 40")
    assert say(*loads, demand=Demand(40), scenario=Scenario.NOTHING).startswith("as it is, all 40 requests")


@pytest.mark.parametrize(("requests", "room"), [(25, 11), (41, 27), (60, 48)])
def test_whole_requests_stay_whole_through_the_ratio(requests, room):
    text = say(load("a", concurrency=room), load("b", concurrency=room), demand=Demand(requests))
    assert f"{requests - room} of {requests} requests find no place" in text


def test_a_share_that_is_no_whole_request_is_never_rounded_away():
    assert "1 of 1 requests finds no place" in say(
        load("a", 1, concurrency=0.5), load("b", concurrency=0.5), demand=Demand(1)
    )


# --- cost -------------------------------------------------------------------------------------

FIGURES = CostFigures(
    downtime_per_hour=50_000.0, replica_per_hour=2.0, failures_per_year=6, recovery_hours=0.5
)
POLICY = CapacityPolicy(ReplicaSize(32), FIGURES, "EUR")


def test_a_spare_is_compared_at_the_busiest_moment_where_figures_are_given():
    cost = measured(load("a"), load("b"), busiest=Demand(64.0), policy=POLICY).cost
    assert cost is not None
    assert (cost.as_it_is.replicas, cost.as_it_is.lost_share) == (2, pytest.approx(0.5))
    assert describe_spare(cost, "EUR") == "one replica more saves 132,480 EUR a year, its own cost taken off"
    idle = planned(load("a"), load("b"), requests=1, policy=POLICY).cost
    assert idle is not None
    assert describe_spare(idle, None) == "one replica more costs 17,520 a year more than it saves"


def test_no_cost_is_told_without_figures_or_without_a_load():
    assert measured(load("a"), load("b")).cost is None
    assert planned(load("a"), load("b"), policy=POLICY).cost is None


def test_a_replica_that_takes_no_work_costs_money_all_the_same():
    cost = measured(load("a"), load("b", able=False), busiest=Demand(8.0), policy=POLICY).cost
    assert cost is not None
    assert cost.as_it_is.replicas == 2
