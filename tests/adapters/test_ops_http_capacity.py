"""`/v1/capacity`: what a loss leaves, in figures and words, and null for what is not known."""

import pytest

from envoy_ext.domain.capacity import Demand, ReplicaLoad
from envoy_ext.domain.capacity_report import (
    CapacityPolicy,
    Measured,
    PoolCapacity,
    build_measured_capacity,
    build_planned_capacity,
)
from envoy_ext.domain.downtime_cost import CostFigures, ReplicaSize
from envoy_ext.domain.fingerprint import Fingerprint
from envoy_ext.domain.ids import PoolName, ReplicaId
from tests.support.ops_port import OpsPort

CHAT, EMBED = PoolName("chat"), PoolName("embed")
FIGURES = CostFigures(
    downtime_per_hour=50_000.0, replica_per_hour=2.0, failures_per_year=6, recovery_hours=0.5
)


def build_loads(pool: PoolName, *names: str, node: str | None = None) -> list[ReplicaLoad]:
    return [ReplicaLoad(ReplicaId(name), pool, True, 20.0, 32.0, node=node) for name in names]


def build_chat() -> PoolCapacity:
    loads = build_loads(CHAT, "a", "b", node="n1")
    return build_measured_capacity(
        CHAT,
        loads,
        {load.replica: Fingerprint(CHAT) for load in loads},
        Measured(Demand(16.0, 0.5), Demand(40.0, 0.5), 90.0),
        CapacityPolicy(ReplicaSize(32.0), FIGURES, "EUR"),
    )


async def test_a_pool_is_shown_at_this_moment_and_at_the_busiest_one(ops: OpsPort) -> None:
    ops.capacity = [build_chat()]
    reply = await ops.ask("/v1/capacity")
    assert reply.status == 200
    (chat,) = reply.json["pools"]
    assert (chat["pool"], chat["replicas"], chat["unable"], chat["room"]) == ("chat", ["a", "b"], [], 64)
    assert (chat["load"], chat["unmeasured"], chat["measured_for_s"]) == ("engines", [], 90)
    assert (chat["now"]["requests"], chat["busiest"]["requests"], chat["busiest"]["kv_cache"]) == (
        16,
        40,
        0.5,
    )
    assert chat["now"]["scenarios"]["replica"]["ratio"] == pytest.approx(0.47, abs=0.01)
    assert chat["busiest"]["scenarios"]["replica"] == {
        "ratio": pytest.approx(-8 / 40),
        "holds": False,
        "lost": ["a"],
        "where": "a",
        "room": 32,
        "bottleneck": "requests",
        "text": "when replica a goes, 8 of 40 requests find no place; the tighter limit is requests at once",
    }
    assert chat["n_plus_one"] == {
        "holds": False,
        "text": chat["busiest"]["scenarios"]["replica"]["text"],
    }
    assert [warning["fate"] for warning in chat["warnings"]] == ["node"]
    assert chat["remarks"] == ["the load has been measured for 90 s so far"]


async def test_the_cost_of_a_spare_is_shown_where_figures_are_given(ops: OpsPort) -> None:
    ops.capacity = [build_chat()]
    cost = (await ops.ask("/v1/capacity")).json["pools"][0]["cost"]
    assert (cost["currency"], cost["as_it_is"]["replicas"], cost["with_spare"]["replicas"]) == ("EUR", 2, 3)
    assert cost["as_it_is"]["lost_share"] == pytest.approx(0.2)
    assert cost["saves"] == pytest.approx(cost["as_it_is"]["total"] - cost["with_spare"]["total"])


async def test_what_is_not_known_of_a_pools_capacity_is_null_and_never_zero(ops: OpsPort) -> None:
    loads = build_loads(EMBED, "x", "y")
    fingerprints = {load.replica: Fingerprint(EMBED) for load in loads}
    policy = CapacityPolicy(ReplicaSize(32.0))
    ops.capacity = [
        build_planned_capacity(EMBED, loads, fingerprints, None, policy),
        build_planned_capacity(EMBED, loads, fingerprints, 8, policy),
    ]
    blind, given = (await ops.ask("/v1/capacity")).json["pools"]
    for key in ("load", "measured_for_s", "now", "busiest", "cost"):
        assert blind[key] is None, key
    assert blind["n_plus_one"]["holds"] is None
    assert given["busiest"]["kv_cache"] is None
    assert (given["busiest"]["scenarios"]["node"], given["busiest"]["scenarios"]["zone"]) == (None, None)


async def test_without_a_pool_the_answer_is_an_empty_list(ops: OpsPort) -> None:
    assert (await ops.ask("/v1/capacity")).json == {"pools": []}
