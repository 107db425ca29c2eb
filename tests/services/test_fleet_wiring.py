"""From the configuration to what the fleet works with."""

import logging

import pytest
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
from prometheus_client import CollectorRegistry

from envoy_ext.config import parse_config
from envoy_ext.domain import names
from envoy_ext.domain.fingerprint import Difference, Fingerprint, compute_digest
from envoy_ext.domain.fleet_events import FingerprintContradicted
from envoy_ext.domain.fleet_view import ViewPolicy
from envoy_ext.domain.ids import AttemptId, PoolName, ReplicaId
from envoy_ext.domain.readiness_policy import ReadinessPolicy
from envoy_ext.domain.slots import CancelBegan, CancelOver, CancelProof
from envoy_ext.observability.metrics import Metrics
from envoy_ext.services.fleet import Fleet, FleetPool
from envoy_ext.wiring.exchanges import build_boundaries
from envoy_ext.wiring.fleet import Endpoints, build_fingerprint, build_watch_plans, leave_unasked
from envoy_ext.wiring.notes import note_change
from envoy_ext.xds.kinds import Kind
from tests.support.clock import ManualClock
from tests.support.members import list_members


@pytest.mark.parametrize(
    ("written", "known"),
    [
        ({}, Fingerprint(pool="chat")),
        ({"adapters": []}, Fingerprint(pool="chat", adapters=())),
        ({"adapters": ["sql", "de"]}, Fingerprint(pool="chat", adapters=("de", "sql"))),
        (
            {"weights": "rev-1", "parallel": "tp=2"},
            Fingerprint(pool="chat", weights="rev-1", parallel="tp=2"),
        ),
    ],
)
def test_what_is_not_given_of_a_fingerprint_is_not_known(
    written: dict[str, object], known: Fingerprint
) -> None:
    pool = {
        "name": "chat",
        "models": ["m"],
        "fingerprint": written,
        "replicas": [{"url": "http://10.0.0.1:8000"}],
    }
    assert build_fingerprint(parse_config({"pools": [pool]}, "test").pools[0]) == known


@pytest.mark.parametrize(
    ("classes", "watched"),
    [
        ({}, {"home"}),
        ({"default": {"boundaries": ["local", "site"]}}, {"home", "branch"}),
        ({"open": {"boundaries": ["external:partner"]}}, {"home", "far"}),
        ({"open": {"boundaries": ["external:other"]}}, {"home"}),
    ],
)
def test_a_pool_that_no_class_of_data_may_reach_is_not_looked_at(
    classes: dict[str, object], watched: set[str]
) -> None:
    places = {"home": "local", "branch": "site", "far": "external:partner"}
    pools = [
        {
            "name": name,
            "models": [name],
            "boundary": place,
            "replicas": [{"url": f"http://{name}.example:80"}],
        }
        for name, place in places.items()
    ]
    config = parse_config({"pools": pools, "data_classes": classes}, "test")
    assert set(build_watch_plans(config)) == set(places)
    assert set(build_watch_plans(leave_unasked(config, build_boundaries(config)))) == watched


SPACE = names.METADATA_NAMESPACE


def test_envoy_gets_a_name_for_what_is_known_of_a_replica_and_another_when_that_changes() -> None:
    pool = PoolName("chat")
    fleet = Fleet(
        [FleetPool(pool, Fingerprint(pool), ReadinessPolicy(), False, True, ViewPolicy())],
        ManualClock(),
        on_view=lambda view: None,
        on_change=lambda change: None,
    )
    list_members(fleet, pool, "ab")
    endpoints = Endpoints({})

    def read() -> list[dict[str, str]]:
        (resource,) = endpoints.build(fleet.view).offers[Kind.EDS].values()
        return [
            {
                name: value.string_value
                for name, value in one.metadata.filter_metadata["envoy_ext"].fields.items()
            }
            for locality in ClusterLoadAssignment.FromString(resource.value).endpoints
            for one in locality.lb_endpoints
        ]

    assert read() == [{"replica": "a"}, {"replica": "b"}]
    for told in (Fingerprint(pool, quantization="fp8"), Fingerprint(pool, quantization="awq")):
        fleet.note_fingerprint(ReplicaId("b"), fleet.incarnation(ReplicaId("b")), told)
        assert read() == [{"replica": "a"}, {"replica": "b", "fingerprint": compute_digest(told)}]


@pytest.mark.parametrize("proof", CancelProof)
def test_a_cancel_that_is_over_is_counted_by_its_proof(proof: CancelProof) -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry, ["chat"])
    note_change(CancelBegan(AttemptId("att_1"), PoolName("chat"), ReplicaId("a")), metrics)
    note_change(CancelOver(PoolName("chat"), ReplicaId("a"), proof, 0.5), metrics)
    counted = {
        one: registry.get_sample_value("envoy_ext_cancels_total", {"pool": "chat", "proof": one})
        for one in CancelProof
    }
    assert counted == {one: float(one is proof) for one in CancelProof}


def test_what_contradicts_the_file_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    differences = (Difference("kv_dtype", "fp8", "auto"), Difference("weights", "r1", "r2"))
    with caplog.at_level(logging.WARNING, "envoy_ext"):
        note_change(
            FingerprintContradicted(ReplicaId("a"), PoolName("chat"), 1.0, differences),
            Metrics(CollectorRegistry(), ["chat"]),
        )
    (record,) = caplog.records
    assert (record.msg, record.levelname) == ("fingerprint_contradicted", "WARNING")
    why = "kv_dtype: fp8 is configured, the engine says auto; weights: r1 is configured, the engine says r2"
    assert (record.__dict__["replica"], record.__dict__["why"]) == ("a", why)
