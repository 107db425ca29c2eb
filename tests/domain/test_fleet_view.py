"""The picture of a pool: what is offered with what weight, and who may take a replay."""

from dataclasses import replace

import pytest

from envoy_ext.domain.availability import Availability, ServingReason, WhenNoneReady
from envoy_ext.domain.events import Target
from envoy_ext.domain.fingerprint import Fingerprint
from envoy_ext.domain.fleet_view import FleetView, Offer, ViewPolicy, choose_replay_candidates
from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.domain.replica_life import ReplicaState
from tests.support.fleet_builders import POOL, picture, profile, stale, status

S = ReplicaState
IDLE = {"running": 0, "waiting": 0, "kv_cache_usage": 0.0}
REV_1 = Fingerprint(POOL, weights="rev-1")


def offers(view):
    return {str(replica.id): replica.offer for replica in view.replicas}


def weights(view):
    return {str(replica.id): replica.weight for replica in view.replicas}


def candidates(view, fingerprint=REV_1, tried=(), **hints):
    chosen = choose_replay_candidates(view, fingerprint, tried, **hints)
    return "".join(target.replica for target in chosen)


# --- the picture ------------------------------------------------------------------------------


def test_each_state_is_offered_in_its_own_way():
    view = picture(
        status("a", **IDLE),
        status("b", S.WARMING, **IDLE, ramp=0.2),
        status("c", S.SATURATED),
        status("d", S.UNREADY),
        status("e", S.STARTING),
        status("f", S.DRAINING),
        status("g", S.GONE),
    )
    assert (view.availability, view.reason) == (Availability.NORMAL, ServingReason.READY)
    assert offers(view) == {
        "a": Offer.SERVING,
        "b": Offer.SERVING,
        "c": Offer.WITHHELD,
        "d": Offer.WITHHELD,
        "e": Offer.WITHHELD,
        "f": Offer.DRAINING,
        "g": Offer.ABSENT,
    }
    assert weights(view) == {"a": 100, "b": 20, "c": 1, "d": 1, "e": 1, "f": 1, "g": 1}


def test_the_only_replica_that_an_operator_takes_out_leaves_an_empty_pool():
    view = picture(status("a", S.GONE))
    assert (view.availability, view.reason) == (Availability.EMPTY, ServingReason.NO_REPLICAS)
    assert offers(view) == {"a": Offer.ABSENT}
    assert picture().availability is Availability.EMPTY


def test_when_all_data_is_old_the_last_known_serve_with_equal_weights():
    before = picture(status("a", **IDLE), status("b", running=30))
    assert weights(before) == {"a": 100, "b": 6}
    view = picture(stale("a", S.UNREADY), stale("b", S.UNREADY), previous=before, now=1_000.1)
    assert view.availability is Availability.DEGRADED_LAST_KNOWN
    assert offers(view) == {"a": Offer.SERVING, "b": Offer.SERVING}
    assert weights(view) == {"a": 100, "b": 100}


def test_by_policy_nobody_serves_when_none_is_ready():
    policy = ViewPolicy(when_none_ready=WhenNoneReady.FAIL_FAST)
    view = picture(stale("a", S.UNREADY), policy=policy)
    assert view.availability is Availability.EMPTY
    assert offers(view) == {"a": Offer.WITHHELD}
    assert candidates(view) == ""


def test_weights_move_once_in_their_interval_however_often_a_picture_is_taken():
    idle, busy = status("a", **IDLE), status("a", running=32)
    view = picture(idle, now=1_000.0)
    for step in range(1, 10):
        view = picture(busy, previous=view, now=1_000.0 + step / 10)
        assert weights(view) == {"a": 100}
    view = picture(busy, previous=view, now=1_001.0)
    assert weights(view) == {"a": 80}
    view = picture(busy, previous=view, now=1_001.5)
    assert weights(view) == {"a": 80}


def test_a_replica_that_joins_between_two_weighings_gets_its_weight_at_once():
    view = picture(status("a", running=16), now=1_000.0)
    view = picture(status("a", **IDLE), status("b", S.WARMING, **IDLE, ramp=0.1), previous=view, now=1_000.2)
    assert weights(view) == {"a": 50, "b": 10}


def test_one_without_a_page_that_joins_between_two_weighings_weighs_no_more_than_the_least_as_it_stands():
    busy = picture(status("a", **{**IDLE, "running": 20}), status("b", S.STARTING), now=1_000.0)
    emptied = (status("a", **IDLE, at=1_000.5), stale("b", S.WARMING, at=1_000.5))
    joined = picture(*emptied, previous=busy, now=1_000.5)
    assert joined.weighed_at == busy.weighed_at
    assert weights(joined)["a"] == weights(busy)["a"] < 50
    assert weights(joined)["b"] <= weights(joined)["a"]


def test_what_a_replica_weighed_while_it_did_not_serve_is_no_measure_when_it_is_back():
    view = picture(status("a", **IDLE), status("b", S.SATURATED), now=1_000.0)
    assert weights(view)["b"] == 1
    view = picture(status("a", **IDLE), status("b", running=16), previous=view, now=1_001.0)
    assert weights(view) == {"a": 100, "b": 50}


def test_the_same_inputs_give_the_same_picture():
    statuses = status("a", **IDLE), status("b", running=9), stale("c")
    assert picture(*statuses) == picture(*statuses)


def test_own_latencies_reach_the_weights():
    view = picture(
        *(status(name, **IDLE) for name in "abc"), latencies_s={ReplicaId("c"): 9.0, ReplicaId("a"): 1.0}
    )
    assert weights(view)["a"] == 100
    assert weights(view)["c"] < 100


def test_pools_and_replicas_are_found_by_name():
    view = picture(status("a"))
    fleet = FleetView((view,))
    assert fleet.find(POOL) is view
    assert fleet.find(PoolName("other")) is None
    assert view.find(ReplicaId("a")) is view.replicas[0]
    assert view.find(ReplicaId("z")) is None


def test_a_mixed_pool_shows_it_and_a_replica_that_is_gone_does_not_mix_it():
    other = profile("b", fingerprint=Fingerprint(POOL, weights="rev-2"))
    assert picture(status("a"), status("b"), profiles=[other]).mix == ("weights: rev-1 on a; rev-2 on b",)
    assert picture(status("a"), status("b", S.GONE), profiles=[other]).mix == ()


# --- replays ----------------------------------------------------------------------------------


def test_a_replay_goes_to_whoever_has_most_free():
    view = picture(status("a", running=24), status("b", **IDLE), status("c", running=16))
    assert candidates(view) == "bca"


def test_a_candidate_is_an_address_envoy_knows():
    view = picture(status("a"))
    assert choose_replay_candidates(view, REV_1, ()) == (Target(ReplicaId("a"), "10.0.0.1:8000"),)
    assert candidates(picture(status("a"), profiles=[profile("a", addresses=())])) == ""


def test_a_replica_that_was_tried_is_not_tried_again():
    view = picture(status("a"), status("b"), status("c"))
    assert candidates(view, tried={ReplicaId("a"), ReplicaId("c")}) == "b"


def test_the_full_and_the_doubtful_are_asked_behind_those_that_serve():
    """Of a pool of two, one that just failed is the only one left to a request that fails at the other."""
    view = picture(
        status("a", S.SATURATED),
        status("b", S.UNREADY, ["just_failed"], failures=2.5),
        status("c", running=30, failures=3.0),
    )
    assert candidates(view) == "cab"
    assert candidates(view, tried={ReplicaId("c")}) == "ab"


@pytest.mark.parametrize("reason", ["hang", "gpu_xid", "refused", "sleeping", "control_call", "loading"])
def test_the_faulty_the_absent_and_those_taken_out_are_not_asked(reason):
    view = picture(
        status("a"),
        status("b", S.UNREADY, ["just_failed", reason]),
        status("c", S.DRAINING),
        status("d", S.GONE),
        status("e", S.STARTING),
    )
    assert candidates(view) == "a"


def test_without_a_ready_replica_the_last_known_are_asked():
    assert candidates(picture(stale("a", S.UNREADY), stale("b", S.UNREADY))) == "ab"


def test_a_replica_of_another_fingerprint_is_never_asked():
    other = profile("b", fingerprint=Fingerprint(POOL, weights="rev-2"))
    view = picture(status("a"), status("b", **IDLE), profiles=[other])
    assert candidates(view) == "a"
    assert candidates(view, fingerprint=Fingerprint(POOL, weights="rev-2")) == "b"
    assert candidates(view, fingerprint=Fingerprint(POOL, weights="rev-3")) == ""
    assert len(candidates(view, fingerprint=None)) == 2


def test_who_failed_of_late_comes_last_and_is_still_asked():
    view = picture(
        status("a", **IDLE, failures=0.5), status("b", running=30), status("c", **IDLE, failures=0.49)
    )
    assert candidates(view) == "cba"


def test_half_a_prompt_in_the_cache_is_worth_a_detour():
    view = picture(status("a", **IDLE), status("b", running=8), status("c", running=8))
    assert candidates(view, prefix_shares={ReplicaId("c"): 0.8}) == "cab"
    assert candidates(view, prefix_shares={ReplicaId("c"): 0.8, ReplicaId("b"): 0.9}) == "bca"
    assert candidates(view, prefix_shares={ReplicaId("c"): 0.5}) == "cab"
    assert candidates(view, prefix_shares={ReplicaId("c"): 0.4}) == "abc"


def test_no_cache_is_worth_a_queue_or_a_failure():
    view = picture(status("a", **IDLE), status("b", running=30), status("c", **IDLE, failures=1.0))
    assert candidates(view, prefix_shares={ReplicaId("b"): 1.0, ReplicaId("c"): 1.0}) == "abc"
    twice = picture(status("a", **IDLE), status("b", running=16))
    assert candidates(twice, prefix_shares={ReplicaId("b"): 1.0}) == "ba", "twice as busy is the limit"


def test_where_all_have_failed_the_one_whose_failures_lie_furthest_back_comes_first():
    view = picture(
        status("a", **IDLE, failures=8.0),
        status("b", running=30, failures=2.0),
        status("c", **IDLE, failures=4.0),
    )
    assert candidates(view) == "bca"


def test_many_replays_at_once_are_spread_by_weight():
    view = picture(status("a", **IDLE), status("b", running=16), status("c", running=24))
    sent = {ReplicaId(name): 0 for name in "abc"}
    for _ in range(175):
        first = choose_replay_candidates(view, REV_1, (), recent_replays=sent)[0]
        sent[first.replica] += 1
    assert sent == {ReplicaId("a"): 100, ReplicaId("b"): 50, ReplicaId("c"): 25}


def test_a_shared_prefix_does_not_send_all_replays_to_one_replica():
    view = picture(status("a", **IDLE), status("b", **IDLE))
    sent = {ReplicaId("a"): 0, ReplicaId("b"): 0}
    for _ in range(90):
        chosen = choose_replay_candidates(
            view, REV_1, (), prefix_shares={ReplicaId("a"): 1.0}, recent_replays=sent
        )
        sent[chosen[0].replica] += 1
    assert 55 <= sent[ReplicaId("a")] <= 62


def test_profiles_keep_their_place_in_the_picture():
    there = profile("a", node="n1", zone="z1", gpus=(0, 1))
    view = picture(status("a"), profiles=[there])
    assert view.replicas[0].profile == replace(there)
