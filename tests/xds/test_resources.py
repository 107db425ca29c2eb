"""What goes over the wire: right in every field, the same for the same input, and never a weight of 0."""

import random
from typing import Any

import hypothesis.strategies as st
import pytest
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.core.v3 import health_check_pb2
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
from hypothesis import given

from envoy_ext.bootstrap.resources import build_resources, build_static_resources
from envoy_ext.config import parse_config
from envoy_ext.domain import names
from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.xds.kinds import BY_TYPE_URL, Kind
from envoy_ext.xds.resources import (
    METADATA_FINGERPRINT,
    MOST_WEIGHT,
    EndpointView,
    Health,
    PoolView,
    build_assignment,
    build_empty_assignment,
    limit_weights,
    read_resource,
)
from tests.xds.builders import MESSAGES, cluster, endpoint, listener, route

ENDPOINTS = st.builds(
    EndpointView,
    replica_id=st.text(max_size=200).map(ReplicaId),
    address=st.ip_addresses().map(str),
    port=st.integers(1, 65535),
    health=st.sampled_from(Health),
    weight=st.integers(-2, 2**34),
    zone=st.sampled_from(["", "z1", "z2"]),
    fingerprint=st.sampled_from(["", "f1"]),
    metadata=st.lists(st.tuples(st.text(min_size=1), st.text()), max_size=2).map(tuple),
)


def build(*endpoints: EndpointView) -> Any:
    return ClusterLoadAssignment.FromString(build_assignment(PoolView(PoolName("chat"), endpoints)).value)


def build_as_objects(pool: PoolView) -> Any:
    """The same assignment, the long way."""
    assignment = ClusterLoadAssignment(cluster_name=names.POOL_CLUSTER_PREFIX + pool.name)
    statuses = {
        Health.READY: health_check_pb2.HEALTHY,
        Health.DRAINING: health_check_pb2.DRAINING,
        Health.UNREADY: health_check_pb2.UNHEALTHY,
    }
    for zone in sorted({one.zone for one in pool.endpoints}):
        there = sorted(
            (one for one in pool.endpoints if one.zone == zone),
            key=lambda one: (one.address, one.port, one.replica_id),
        )
        locality = assignment.endpoints.add()
        locality.locality.zone = zone
        for one, weight in zip(there, limit_weights([one.weight for one in there]), strict=True):
            built = locality.lb_endpoints.add(health_status=statuses[one.health])
            built.endpoint.address.socket_address.address = one.address
            built.endpoint.address.socket_address.port_value = one.port
            built.load_balancing_weight.value = weight
            fields = built.metadata.filter_metadata[names.METADATA_NAMESPACE].fields
            fields[names.METADATA_REPLICA].string_value = one.replica_id
            if one.fingerprint:
                fields[METADATA_FINGERPRINT].string_value = one.fingerprint
            for key, value in one.metadata:
                fields[key].string_value = value
    return assignment


@given(st.lists(ENDPOINTS, max_size=6).map(tuple))
def test_the_joined_pieces_are_the_message_built_as_objects(endpoints: tuple[EndpointView, ...]) -> None:
    pool = PoolView(PoolName("chat"), endpoints)
    assert ClusterLoadAssignment.FromString(build_assignment(pool).value) == build_as_objects(pool)


def test_an_endpoint_carries_address_health_weight_and_who_it_is() -> None:
    view = EndpointView(
        ReplicaId("a"), "10.0.0.1", 8000, Health.DRAINING, 7, "z1", "f1", (("incarnation", "3"),)
    )
    [locality] = build(view).endpoints
    [built] = locality.lb_endpoints
    assert locality.locality.zone == "z1"
    assert built.endpoint.address.socket_address.address == "10.0.0.1"
    assert built.endpoint.address.socket_address.port_value == 8000
    assert built.health_status == health_check_pb2.DRAINING
    assert built.load_balancing_weight.value == 7
    fields = built.metadata.filter_metadata["envoy_ext"].fields
    assert {key: value.string_value for key, value in fields.items()} == {
        "replica": "a",
        "fingerprint": "f1",
        "incarnation": "3",
    }


@pytest.mark.parametrize(
    ("health", "status"),
    [
        (Health.READY, health_check_pb2.HEALTHY),
        (Health.DRAINING, health_check_pb2.DRAINING),
        (Health.UNREADY, health_check_pb2.UNHEALTHY),
    ],
)
def test_each_health_has_its_word(health: Health, status: int) -> None:
    assert build(endpoint(health=health)).endpoints[0].lb_endpoints[0].health_status == status


def test_localities_come_in_order_and_hold_their_own_replicas() -> None:
    built = build(endpoint(1, zone="z2"), endpoint(2, zone="z1"), endpoint(3, zone="z2"))
    assert [
        (one.locality.zone, [e.endpoint.address.socket_address.port_value for e in one.lb_endpoints])
        for one in built.endpoints
    ] == [("z1", [9002]), ("z2", [9001, 9003])]


def test_no_endpoints_are_an_assignment_too() -> None:
    built = build()
    assert built.cluster_name == "pool_chat"
    assert not built.endpoints
    assert build_assignment(PoolView(PoolName("chat"))) == build_empty_assignment("pool_chat")


@given(st.lists(st.integers(-5, 2**40), max_size=20))
def test_weights_are_at_least_one_and_fit_together(weights: list[int]) -> None:
    limited = limit_weights(weights)
    assert len(limited) == len(weights)
    assert all(weight >= 1 for weight in limited)
    assert sum(limited) <= MOST_WEIGHT
    by_wish = [weight for _, weight in sorted(zip(weights, limited, strict=True))]
    assert by_wish == sorted(by_wish), "who should get more gets no less"


@given(st.lists(st.integers(1, 1000), max_size=20))
def test_weights_that_fit_are_left_alone(weights: list[int]) -> None:
    assert limit_weights(weights) == weights


@pytest.mark.parametrize("address", ["replica-1", "localhost", "10.0.0.1:8000", "", "10.0.0"])
def test_a_host_name_is_no_address(address: str) -> None:
    with pytest.raises(ValueError, match="address"):
        build(EndpointView(ReplicaId("a"), address, 8000))


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_port_that_does_not_exist_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match="port"):
        build(EndpointView(ReplicaId("a"), "10.0.0.1", port))


@given(st.lists(ENDPOINTS, max_size=6, unique_by=lambda one: (one.zone, one.address, one.port)), st.randoms())
def test_the_same_replicas_in_any_order_are_the_same_resource(
    endpoints: list[EndpointView], chance: random.Random
) -> None:
    shuffled = list(endpoints)
    chance.shuffle(shuffled)
    one, other = (PoolView(PoolName("chat"), tuple(given)) for given in (endpoints, shuffled))
    assert build_assignment(one) == build_assignment(other)


@pytest.mark.parametrize(
    "other",
    [
        endpoint(1, weight=2),
        endpoint(1, health=Health.DRAINING),
        endpoint(1, zone="z"),
        endpoint(1, fingerprint="f"),
        endpoint(1, metadata=(("k", "v"),)),
        endpoint(2),
    ],
)
def test_any_difference_is_another_version(other: EndpointView) -> None:
    first, second = (build_assignment(PoolView(PoolName("c"), (one,))) for one in (endpoint(1), other))
    assert first.version != second.version


# --- resources that somebody else built -----------------------------------------------------------


def test_a_cluster_refers_to_the_assignment_it_waits_for() -> None:
    assert cluster("chat").refers_to == {"pool_chat"}
    by_service = Cluster(name="c", type=Cluster.EDS)
    by_service.eds_cluster_config.service_name = "elsewhere"
    assert read_resource(Kind.CDS, by_service.SerializeToString()).refers_to == {"elsewhere"}
    static = Cluster(name="c", type=Cluster.STATIC)
    assert read_resource(Kind.CDS, static.SerializeToString()).refers_to == frozenset()


def test_a_listener_refers_to_its_route_configuration() -> None:
    assert listener("in", "to-in").refers_to == {"to-in"}


def test_names_come_from_the_bytes() -> None:
    assert (cluster("a").name, listener("in", "r").name, route("r", "ab").name) == ("pool_a", "in", "r")
    assignment = build_assignment(PoolView(PoolName("a"), (endpoint(1),)))
    assert read_resource(Kind.EDS, assignment.value).name == "pool_a"


def test_the_order_of_a_map_is_no_difference() -> None:
    def build_with(keys: str) -> bytes:
        message = Cluster(name="c")
        for key in keys:
            message.metadata.filter_metadata[key].fields["x"].number_value = 1
        return bytes(message.SerializeToString(deterministic=False))

    assert read_resource(Kind.CDS, build_with("abc")) == read_resource(Kind.CDS, build_with("cba"))


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("encoded", [b"", b"\xff\xff\xff", b"\x0a\x05ab"])
def test_bytes_that_are_no_named_resource_are_refused(kind: Kind, encoded: bytes) -> None:
    with pytest.raises(ValueError, match=kind):
        read_resource(kind, encoded)


def test_what_the_bootstrap_renders_can_be_served() -> None:
    config = parse_config(
        {"pools": [{"name": "chat", "models": ["m"], "replicas": [{"url": "http://127.0.0.1:1"}]}]}, "test"
    )
    for built, routes in (
        (build_static_resources(config), frozenset()),  # their routes are their own
        (build_resources(config), {"ingress", "egress"}),
    ):
        served_clusters = [read_resource(Kind.CDS, bytes(one)) for one in built.clusters]
        assert [one.name for one in served_clusters] == [one.name for one in built.clusters]
        served_listeners = [read_resource(Kind.LDS, bytes(one)) for one in built.listeners]
        assert [one.name for one in served_listeners] == [one.name for one in built.listeners]
        assert frozenset().union(*(one.refers_to for one in served_listeners)) == routes
        for one in served_listeners:
            assert len(MESSAGES[Kind.LDS].FromString(one.value).filter_chains) == 1


def test_type_urls_are_those_of_the_messages() -> None:
    for kind, message in MESSAGES.items():
        assert kind.type_url == f"type.googleapis.com/{message.DESCRIPTOR.full_name}"
        assert BY_TYPE_URL[kind.type_url] is kind
