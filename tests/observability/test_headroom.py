"""The capacity metric shows what can be told at this moment, and nothing that no longer can."""

import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from envoy_ext.domain.capacity import Demand, Headroom, ReplicaLoad, compute_headrooms
from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.observability.headroom import HeadroomMetric

NAME = "envoy_ext_capacity_headroom_ratio"
POOL = PoolName("chat")


def build_headrooms(node: str | None) -> list[Headroom]:
    loads = [ReplicaLoad(ReplicaId(name), POOL, True, 12.0, 32.0, node=node) for name in "ab"]
    return list(compute_headrooms(POOL, loads, Demand(24.0)))


def read(registry: CollectorRegistry, scenario: str) -> float | None:
    return registry.get_sample_value(NAME, {"pool": "chat", "scenario": scenario})


def test_each_scenario_that_can_be_told_is_a_series() -> None:
    registry = CollectorRegistry()
    HeadroomMetric(registry, lambda: build_headrooms(node="n1"))
    assert read(registry, "nothing") == pytest.approx(40 / 64)
    assert read(registry, "replica") == pytest.approx(8 / 32)
    assert read(registry, "node") == -1.0
    assert read(registry, "zone") is None
    assert f'{NAME}{{pool="chat",scenario="replica"}} 0.25' in generate_latest(registry).decode()


def test_a_scenario_and_a_pool_that_can_no_longer_be_told_have_no_series() -> None:
    shown: list[Headroom] = build_headrooms(node="n1")
    registry = CollectorRegistry()
    HeadroomMetric(registry, lambda: shown)
    assert read(registry, "node") == -1.0
    shown[:] = build_headrooms(node=None)
    assert (read(registry, "node"), read(registry, "replica")) == (None, 0.25)
    shown.clear()
    assert read(registry, "replica") is None


def test_its_name_cannot_be_taken_twice_in_one_registry() -> None:
    registry = CollectorRegistry()
    HeadroomMetric(registry, list)
    with pytest.raises(ValueError, match="Duplicated"):
        Gauge(NAME, "another", registry=registry)
