"""Pools, replicas and capacity as people read them: what is said once, what is left out, what is unknown."""

import io
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from envoy_ext.adapters.ops_capacity import build_capacity_json
from envoy_ext.cli.columns import print_text
from envoy_ext.cli.fleet_tables import build_capacity_text, build_status_text
from envoy_ext.domain.capacity import ReplicaLoad
from envoy_ext.domain.capacity_report import CapacityPolicy, build_planned_capacity
from envoy_ext.domain.downtime_cost import CostFigures, ReplicaSize
from envoy_ext.domain.fingerprint import Fingerprint
from envoy_ext.domain.ids import PoolName, ReplicaId

CHAT = PoolName("chat")


def show(text: Text) -> str:
    out = io.StringIO()
    print_text(Console(file=out, width=40, no_color=True), text)
    return out.getvalue()


def plan(
    requests: float | None, *replicas: dict[str, Any], figures: CostFigures | None = None
) -> dict[str, Any]:
    loads = [ReplicaLoad(pool=CHAT, able=True, requests=0.0, concurrency=32.0, **one) for one in replicas]
    fingerprints = {load.replica: Fingerprint(CHAT) for load in loads}
    policy = CapacityPolicy(ReplicaSize(32.0), figures)
    return build_capacity_json(build_planned_capacity(CHAT, loads, fingerprints, requests, policy))


def replica(name: str, node: str | None = None, zone: str | None = None) -> dict[str, Any]:
    return {"replica": ReplicaId(name), "node": node, "zone": zone}


def read_findings(*pools: dict[str, Any]) -> list[str]:
    """The indented lines, without warnings and notes."""
    lines = show(build_capacity_text({"note": "here", "pools": list(pools)})).splitlines()
    return [line.strip() for line in lines if line.startswith(("  when", "  as"))]


def test_the_loss_of_a_node_that_says_no_more_than_the_loss_of_its_replica_is_not_said_twice() -> None:
    assert len(read_findings(plan(80, replica("a", "n1"), replica("b", "n2")))) == 2
    three = plan(80, replica("a", "n1"), replica("b", "n2"), replica("c", "n3"))
    assert [line.partition(" goes")[0] for line in read_findings(three)] == ["when replica a"]
    shared = plan(60, replica("a", "n1", "z1"), replica("b", "n1", "z1"), replica("c", "n2", "z2"))
    assert [line.partition(" goes")[0] for line in read_findings(shared)] == [
        "when replica a",
        "when node n1 (a, b; the largest)",
    ]


def test_a_pool_that_has_no_room_as_it_is_says_so() -> None:
    replica_goes, as_it_is = read_findings(plan(80, replica("a"), replica("b")))
    assert replica_goes.startswith("when replica a goes, 48 of 80 requests find no place")
    assert as_it_is.startswith("as it is, 16 of 80 requests find no place")


def test_a_node_whose_loss_is_held_is_only_a_number() -> None:
    pool = plan(10, replica("a", "n1"), replica("b", "n1"), replica("c", "n2"))
    assert len(read_findings(pool)) == 1
    assert "+69%" in show(build_capacity_text({"note": "here", "pools": [pool]}))


def test_the_years_of_all_pools_stand_in_one_table_and_money_without_a_currency_has_none() -> None:
    figures = CostFigures(50_000.0, 2.0, 6.0, 0.5)
    pool = plan(64, replica("a"), replica("b"), figures=figures)
    lines = show(
        build_capacity_text({"note": "here", "pools": [pool, {**pool, "pool": "embed"}]})
    ).splitlines()
    rows = [row for line in lines if (row := line.split())[1:2] == ["2"]]
    assert [row[0] for row in rows] == ["chat", "embed"]
    assert [row[1:] for row in rows] == [["2", "6.0", "h", "50%", "150,000", "35,040", "185,040"]] * 2
    assert lines[-2:] == [
        "chat: one replica more saves 132,480 a year, its own cost taken off",
        "embed: one replica more saves 132,480 a year, its own cost taken off",
    ]


@pytest.mark.parametrize("build", [build_capacity_text, build_status_text])
def test_an_answer_of_another_release_with_fields_missing_is_still_shown(build: Any) -> None:
    hostile = "a\x1b[2J\n[red]b"
    odd: dict[str, Any] = {
        "note": hostile,
        "pools": [{}, {"name": hostile, "pool": hostile, "mix": hostile, "inflight": 3, "n_plus_one": None}],
        "replicas": [{"id": hostile}],
        "capacity": [{"pool": hostile, "n_plus_one": {"holds": "no", "text": hostile}}],
    }
    shown = show(build(odd))
    assert r"a\x1b[2J\n[red]b" in shown
    assert all(one.isprintable() or one == "\n" for one in shown)
    assert "unknown" in shown
    assert show(build({})).strip() in ("no pools\n\nno replicas", "-\n\nno pools")


def test_status_says_where_fingerprints_differ_and_where_an_engine_contradicts_the_file() -> None:
    contradiction = "kv_dtype: fp8 is configured, the engine says auto"
    status = {
        "pools": [{"name": "chat", "mix": ["kv_dtype: auto on a; fp8 on b"]}],
        "replicas": [{"id": "a", "contradictions": [contradiction]}, {"id": "b", "contradictions": []}],
    }
    lines = show(build_status_text(status)).splitlines()
    assert lines[-2:] == ["chat: fingerprints differ: kv_dtype: auto on a; fp8 on b", f"a: {contradiction}"]
