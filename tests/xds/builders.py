"""Resources for tests. `number` is the content: another number, another version; BAD ones are refused."""

from collections.abc import Iterable
from typing import Any

from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager,
)

from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.xds.kinds import Kind
from envoy_ext.xds.resources import EndpointView, PoolView, Resource, build_assignment, read_resource
from envoy_ext.xds.snapshot import Snapshot, build_snapshot

BAD = 90
"""Numbers from here on: a peer that refuses anything refuses these."""

MESSAGES: dict[Kind, Any] = {
    Kind.CDS: Cluster,
    Kind.EDS: ClusterLoadAssignment,
    Kind.LDS: Listener,
    Kind.RDS: RouteConfiguration,
}


def endpoint(number: int = 0, **more: Any) -> EndpointView:
    return EndpointView(ReplicaId(f"r{number}"), "127.0.0.1", 9000 + number, **more)


def pool(name: str, *numbers: int) -> Resource:
    """The assignment `pool_NAME`, with an endpoint for each number."""
    return build_assignment(PoolView(PoolName(name), tuple(endpoint(number) for number in numbers)))


def cluster(name: str, number: int = 1) -> Resource:
    """A cluster whose endpoints come over EDS under its own name."""
    message = Cluster(name=f"pool_{name}", type=Cluster.EDS)
    message.eds_cluster_config.eds_config.ads.SetInParent()
    message.connect_timeout.seconds = number
    return read_resource(Kind.CDS, message.SerializeToString())


def listener(name: str, route: str, number: int = 1) -> Resource:
    """A listener with the route configuration of that name."""
    manager = HttpConnectionManager(stat_prefix=f"n{number}")
    manager.rds.route_config_name = route
    manager.rds.config_source.ads.SetInParent()
    message = Listener(name=name)
    message.filter_chains.add().filters.add(name="http").typed_config.Pack(manager)
    return read_resource(Kind.LDS, message.SerializeToString())


def route(name: str, pools: Iterable[str], number: int = 1) -> Resource:
    """A route configuration that names the clusters of these pools."""
    message = RouteConfiguration(name=name)
    message.max_direct_response_body_size_bytes.value = number
    for one in pools:
        host = message.virtual_hosts.add(name=one, domains=[one])
        host.routes.add().route.cluster = f"pool_{one}"
    return read_resource(Kind.RDS, message.SerializeToString())


def endpoints_alone(**pools: int | tuple[int, ...]) -> Snapshot:
    """A snapshot that serves EDS only: `endpoints_alone(a=1, b=(2, 3), c=())`."""
    numbers = {name: (given,) if isinstance(given, int) else given for name, given in pools.items()}
    return build_snapshot({Kind.EDS: [pool(name, *given) for name, given in numbers.items()]})


def clusters_with_endpoints(**pools: tuple[int, int]) -> Snapshot:
    """Clusters and endpoints: `(a=(cluster number, endpoint number))`."""
    return build_snapshot(
        {
            Kind.CDS: [cluster(name, numbers[0]) for name, numbers in pools.items()],
            Kind.EDS: [pool(name, numbers[1]) for name, numbers in pools.items()],
        }
    )


def read_number(kind: Kind, value: bytes) -> int:
    """The content of a resource made here; 0 for an assignment without endpoints."""
    message = MESSAGES[kind].FromString(value)
    match kind:
        case Kind.CDS:
            return int(message.connect_timeout.seconds)
        case Kind.EDS:
            ports = [
                one.endpoint.address.socket_address.port_value
                for locality in message.endpoints
                for one in locality.lb_endpoints
            ]
            return max(ports) - 9000 if ports else 0
        case Kind.LDS:
            manager = HttpConnectionManager()
            message.filter_chains[0].filters[0].typed_config.Unpack(manager)
            return int(manager.stat_prefix[1:])
        case Kind.RDS:
            return int(message.max_direct_response_body_size_bytes.value)


def read_name(kind: Kind, value: bytes) -> str:
    message = MESSAGES[kind].FromString(value)
    return str(message.cluster_name if kind is Kind.EDS else message.name)
