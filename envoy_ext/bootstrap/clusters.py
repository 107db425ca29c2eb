"""The clusters: the sidecar, the hop between the two listeners, and one for each pool of replicas."""

from typing import Final

from envoy_data_plane.envoy.config.cluster.v3 import (
    CircuitBreakers,
    CircuitBreakersThresholds,
    CircuitBreakersThresholdsRetryBudget,
    Cluster,
    ClusterCommonLbConfig,
    ClusterDiscoveryType,
    ClusterDnsLookupFamily,
    ClusterEdsClusterConfig,
    LoadBalancingPolicy,
    LoadBalancingPolicyPolicy,
    UpstreamConnectionOptions,
)
from envoy_data_plane.envoy.config.core.v3 import (
    Address,
    Http1ProtocolOptions,
    Http2ProtocolOptions,
    HttpProtocolOptions,
    KeepaliveSettings,
    Metadata,
    TcpKeepalive,
)
from envoy_data_plane.envoy.config.endpoint.v3 import (
    ClusterLoadAssignment,
    Endpoint,
    LbEndpoint,
    LocalityLbEndpoints,
)
from envoy_data_plane.envoy.extensions.load_balancing_policies.override_host.v3 import (
    OverrideHost,
    OverrideHostOverrideHostSource,
)
from envoy_data_plane.envoy.extensions.load_balancing_policies.round_robin.v3 import RoundRobin
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import (
    HttpProtocolOptions as UpstreamHttpProtocolOptions,
)
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import HttpProtocolOptionsExplicitHttpConfig
from envoy_data_plane.envoy.type.metadata.v3 import MetadataKey, MetadataKeyPathSegment
from envoy_data_plane.envoy.type.v3 import Percent
from envoy_data_plane.google.protobuf import Any, Struct, Value

from envoy_ext.bootstrap.parts import (
    CONNECTION_BUFFER_BYTES,
    METADATA_ENDPOINT,
    duration,
    extension,
    from_sidecar,
    pipe_address,
    socket_address,
)
from envoy_ext.config import Config, Pool, Replica
from envoy_ext.domain import names
from envoy_ext.domain.places import CONNECT_S
from envoy_ext.domain.silent_loss import (
    KEEPALIVE_EVERY_S,
    KEEPALIVE_IDLE_S,
    KEEPALIVE_PROBES,
)

MANY: Final = 65_536
"""Stands for "not limited here". Envoy's default of 1,024 would refuse streams: HTTP/1.1 takes one
connection for each, and what limits work is admission."""

SIDECAR_STREAMS: Final = 100_000
"""Two ext_proc streams for each exchange, and never a reason to refuse one."""

REPLICA_IDLE_S: Final = 4.0
"""uvicorn (vLLM, SGLang) and cpp-httplib (llama.cpp) close an idle connection after 5 s, and a request sent
into that close is lost without having been looked at. Envoy lets go first."""

SIDECAR_STREAM_BYTES: Final = 256 << 10
"""What Envoy keeps of one exchange for the sidecar before it stops reading from the replica, which is by
Envoy's default 16 MiB and more: bytes that are with the sidecar count in no client's buffer."""

SIDECAR_CONNECTION_BYTES: Final = 16 << 20
"""What the sidecar may have on its way to Envoy over one connection, which thousands of streams share."""

CLOSES_AFTER_STREAM: Final = frozenset({"llamacpp"})
"""Engines that close a connection behind each streamed answer without a word of it in the answer. The next
request would meet the close and be lost, so it gets a connection of its own."""

HOP_IDLE_S: Final = 60.0
"""The egress listener keeps idle connections for an hour, so this side always lets go first."""

HOP_HEADERS: Final = 160
HOP_HEADERS_KB: Final = 128
"""Of an answer, between the hops. A replica may send 100 headers and 60 KiB, which are Envoy's defaults;
the sidecar's own come on top, and Envoy breaks an answer off, after its release, that they do not fit in."""

PING_S: Final = 10.0
PING_ANSWER_S: Final = 20.0
"""Longer than a busy Python process keeps a ping waiting."""

_HTTP_OPTIONS: Final = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def build_clusters(config: Config) -> list[Cluster]:
    """All of them but the one that leads to the sidecar."""
    native = config.sidecar.native
    return [
        *([_build_streams_cluster(config, names.CLUSTER_SIDECAR_STREAMS)] if native else []),
        _build_streams_cluster(config, names.CLUSTER_SIDECAR_LOGS),
        build_egress_cluster(config),
        *(build_pool_cluster(pool, config.envoy.endpoints == "xds") for pool in config.pools),
    ]


def name_streams_cluster(config: Config) -> str:
    """The cluster that the filters speak to."""
    native = config.sidecar.native
    return names.CLUSTER_SIDECAR_STREAMS if native else names.CLUSTER_SIDECAR


def build_sidecar_cluster(config: Config) -> Cluster:
    """gRPC's own server at the sidecar: for xDS, and for all else where no other transport is chosen."""
    sidecar = config.sidecar
    return _build_sidecar_cluster(names.CLUSTER_SIDECAR, sidecar.socket, sidecar.address, sidecar.port)


def _build_streams_cluster(config: Config, name: str) -> Cluster:
    """The transport of the streams of requests, over a connection of this cluster's own.

    The logs have one to themselves: behind a queue of request bodies, evidence of an attempt's end would come
    too late for its replay.
    """
    sidecar = config.sidecar
    if sidecar.native:
        return _build_sidecar_cluster(name, config.streams_socket, sidecar.address, sidecar.streams_port)
    return _build_sidecar_cluster(name, sidecar.socket, sidecar.address, sidecar.port)


def _build_sidecar_cluster(name: str, socket: str | None, host: str | None, port: int | None) -> Cluster:
    """Pings only where a network can be cut: on a Unix socket the end of either side shows at once."""
    if socket is not None:
        address, http2 = pipe_address(socket), _sidecar_http2()
    else:
        assert host is not None  # both are held by the config model
        assert port is not None
        address = socket_address(host, port)
        # A gRPC server takes pings on a quiet connection for abuse (GOAWAY, too_many_pings) unless it is
        # told otherwise; ours is.
        http2 = _sidecar_http2()
        http2.connection_keepalive = KeepaliveSettings(
            interval=duration(PING_S), timeout=duration(PING_ANSWER_S)
        )
    return Cluster(
        name=name,
        type=ClusterDiscoveryType.STATIC,
        connect_timeout=duration(1),
        per_connection_buffer_limit_bytes=CONNECTION_BUFFER_BYTES,
        circuit_breakers=CircuitBreakers(
            thresholds=[
                CircuitBreakersThresholds(
                    max_connections=SIDECAR_STREAMS,
                    max_pending_requests=SIDECAR_STREAMS,
                    max_requests=SIDECAR_STREAMS,
                )
            ]
        ),
        typed_extension_protocol_options={
            _HTTP_OPTIONS: Any.pack(
                UpstreamHttpProtocolOptions(
                    explicit_http_config=HttpProtocolOptionsExplicitHttpConfig(http2_protocol_options=http2)
                )
            )
        },
        load_assignment=one_endpoint(name, address),
    )


def _sidecar_http2() -> Http2ProtocolOptions:
    return Http2ProtocolOptions(
        initial_stream_window_size=SIDECAR_STREAM_BYTES,
        initial_connection_window_size=SIDECAR_CONNECTION_BYTES,
    )


def build_egress_cluster(config: Config) -> Cluster:
    """The hop to the egress listener: every attempt crosses it, so the retry budget stands here."""
    return Cluster(
        name=names.CLUSTER_EGRESS,
        type=ClusterDiscoveryType.STATIC,
        connect_timeout=duration(1),
        per_connection_buffer_limit_bytes=CONNECTION_BUFFER_BYTES,
        circuit_breakers=_unlimited(
            CircuitBreakersThresholdsRetryBudget(
                budget_percent=Percent(value=config.retry_budget.percent),
                min_retry_concurrency=config.retry_budget.min_concurrency,
            )
        ),
        typed_extension_protocol_options=build_http1_options(
            HttpProtocolOptions(
                idle_timeout=duration(HOP_IDLE_S),
                max_headers_count=HOP_HEADERS,
                max_response_headers_kb=HOP_HEADERS_KB,
            )
        ),
        load_assignment=one_endpoint(names.CLUSTER_EGRESS, pipe_address(config.egress_socket)),
    )


def build_pool_cluster(pool: Pool, over_xds: bool) -> Cluster:
    """One pool: its replicas come over EDS, or stand in the cluster."""
    cluster = _build_pool_cluster(names.POOL_CLUSTER_PREFIX + pool.name, pool.engine)
    if over_xds:
        cluster.type = ClusterDiscoveryType.EDS
        cluster.eds_cluster_config = ClusterEdsClusterConfig(eds_config=from_sidecar())
        return cluster
    by_address = all(replica.origin.is_ip for replica in pool.replicas)
    cluster.type = ClusterDiscoveryType.STATIC if by_address else ClusterDiscoveryType.STRICT_DNS
    if not by_address:
        # IPv6 first, which is Envoy's default, loses every request where names have both and the network one.
        cluster.dns_lookup_family = ClusterDnsLookupFamily.V4_PREFERRED
    endpoints = [_build_endpoint(one) for one in pool.replicas]
    cluster.load_assignment = ClusterLoadAssignment(
        cluster_name=cluster.name, endpoints=[LocalityLbEndpoints(lb_endpoints=endpoints)]
    )
    return cluster


def _build_pool_cluster(name: str, engine: str) -> Cluster:
    return Cluster(
        name=name,
        connect_timeout=duration(CONNECT_S),
        per_connection_buffer_limit_bytes=CONNECTION_BUFFER_BYTES,
        circuit_breakers=_unlimited(),
        # With fewer than half of the hosts fit, Envoy's default (50 %) sends work to the unfit ones too.
        common_lb_config=ClusterCommonLbConfig(healthy_panic_threshold=Percent(value=0)),
        load_balancing_policy=_named_replica_or_round_robin(),
        # A cut network shows after 6 s in the silence of a prefill; a stopped replica, whose kernel still
        # answers, is left alone: slow is not dead. Where bytes of the request were under way, the sidecar
        # looks. TCP_USER_TIMEOUT would shorten the kernel's own 15 minutes for these, but gives up a stopped
        # replica whose window is full, and takes the place of the keepalive probes' number.
        upstream_connection_options=UpstreamConnectionOptions(
            tcp_keepalive=TcpKeepalive(
                keepalive_time=KEEPALIVE_IDLE_S,
                keepalive_interval=KEEPALIVE_EVERY_S,
                keepalive_probes=KEEPALIVE_PROBES,
            )
        ),
        typed_extension_protocol_options=build_http1_options(
            HttpProtocolOptions(
                idle_timeout=duration(REPLICA_IDLE_S),
                max_requests_per_connection=1 if engine in CLOSES_AFTER_STREAM else None,
            )
        ),
    )


def _build_endpoint(replica: Replica) -> LbEndpoint:
    origin = replica.origin
    return LbEndpoint(
        endpoint=Endpoint(address=socket_address(origin.host, origin.port)),
        metadata=Metadata(
            filter_metadata={
                names.METADATA_NAMESPACE: Struct(
                    fields={names.METADATA_REPLICA: Value(string_value=replica.id)}
                )
            }
        ),
    )


def _named_replica_or_round_robin() -> LoadBalancingPolicy:
    """The replica that the gate named, else each in turn.

    Round robin and not least request, because every Envoy worker counts only its own requests:
    with few long streams on several workers its counts say little, and turns can be predicted.
    """
    return _policy(
        "envoy.load_balancing_policies.override_host",
        OverrideHost(
            override_host_sources=[OverrideHostOverrideHostSource(metadata=_endpoint_key())],
            fallback_policy=_policy("envoy.load_balancing_policies.round_robin", RoundRobin()),
        ),
    )


def _endpoint_key() -> MetadataKey:
    return MetadataKey(key=names.METADATA_NAMESPACE, path=[MetadataKeyPathSegment(key=METADATA_ENDPOINT)])


def _policy(name: str, message: OverrideHost | RoundRobin) -> LoadBalancingPolicy:
    return LoadBalancingPolicy(
        policies=[LoadBalancingPolicyPolicy(typed_extension_config=extension(name, message))]
    )


def _unlimited(retry_budget: CircuitBreakersThresholdsRetryBudget | None = None) -> CircuitBreakers:
    return CircuitBreakers(
        thresholds=[
            CircuitBreakersThresholds(
                max_connections=MANY,
                max_pending_requests=MANY,
                max_requests=MANY,
                retry_budget=retry_budget,
            )
        ]
    )


def build_http1_options(common: HttpProtocolOptions) -> dict[str, Any]:
    """Options of a cluster that speaks HTTP/1.1."""
    return {
        _HTTP_OPTIONS: Any.pack(
            UpstreamHttpProtocolOptions(
                common_http_protocol_options=common,
                explicit_http_config=HttpProtocolOptionsExplicitHttpConfig(
                    http_protocol_options=Http1ProtocolOptions()
                ),
            )
        )
    }


def one_endpoint(cluster: str, address: Address) -> ClusterLoadAssignment:
    """The assignment of a cluster that leads to one place."""
    return ClusterLoadAssignment(
        cluster_name=cluster,
        endpoints=[LocalityLbEndpoints(lb_endpoints=[LbEndpoint(endpoint=Endpoint(address=address))])],
    )
