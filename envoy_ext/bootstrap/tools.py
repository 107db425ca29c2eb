"""The tool listener: engines call tools through it, and the sidecar looks each call up before it leaves.

Nothing here is ever retried: what a call did is the ledger's to know, and a second one is its to allow.
"""

import re
from typing import Final

from envoy_data_plane.envoy.config.cluster.v3 import (
    CircuitBreakers,
    CircuitBreakersThresholds,
    Cluster,
    ClusterDiscoveryType,
    ClusterDnsLookupFamily,
)
from envoy_data_plane.envoy.config.core.v3 import (
    DataSource,
    HttpProtocolOptions,
    TransportSocket,
)
from envoy_data_plane.envoy.config.listener.v3 import Listener
from envoy_data_plane.envoy.config.route.v3 import (
    Route,
    RouteAction,
    RouteConfiguration,
    RouteMatch,
    VirtualHost,
)
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManager,
    HttpConnectionManagerCodecType,
    HttpConnectionManagerPathWithEscapedSlashesAction,
)
from envoy_data_plane.envoy.extensions.transport_sockets.tls.v3 import (
    CertificateValidationContext,
    CommonTlsContext,
    SubjectAltNameMatcher,
    SubjectAltNameMatcherSanType,
    UpstreamTlsContext,
)
from envoy_data_plane.envoy.type.matcher.v3 import (
    RegexMatchAndSubstitute,
    RegexMatcher,
    StringMatcher,
)
from envoy_data_plane.google.protobuf import Any

from envoy_ext.bootstrap.clusters import build_http1_options, one_endpoint
from envoy_ext.bootstrap.filters import build_body_buffer, build_router, build_tool_filter
from envoy_ext.bootstrap.listeners import (
    CLIENT_HEADERS,
    CLIENT_HEADERS_KB,
    HEADERS_S,
    UPLOAD_S,
    Routes,
    build_listener,
)
from envoy_ext.bootstrap.local_replies import build_tool_replies
from envoy_ext.bootstrap.parts import NEVER, duration, pipe_address, socket_address
from envoy_ext.config import ToolRoute, Tools
from envoy_ext.domain import names
from envoy_ext.domain.places import CONNECT_S

CALLS_AT_ONCE: Final = 1024
"""Of one tool; Envoy's default for everything. What is more is refused unsent, and may be made again."""

CALLS_PER_CONNECTION: Final = 1
"""A call into a connection that the tool closes at that moment would be one of unknown outcome. A handshake
is the smaller cost."""


def build_tool_listener(tools: Tools, cluster: str, routes: Routes) -> Listener:
    """Faces the engines: HTTP/1.1 or HTTP/2 without TLS. Its filter speaks to the sidecar over `cluster`."""
    manager = HttpConnectionManager(
        stat_prefix=names.LISTENER_TOOLS,
        codec_type=HttpConnectionManagerCodecType.AUTO,
        common_http_protocol_options=HttpProtocolOptions(max_headers_count=CLIENT_HEADERS),
        max_request_headers_kb=CLIENT_HEADERS_KB,
        use_remote_address=True,
        generate_request_id=True,
        preserve_external_request_id=True,
        normalize_path=True,
        merge_slashes=True,
        path_with_escaped_slashes_action=HttpConnectionManagerPathWithEscapedSlashesAction.KEEP_UNCHANGED,
        request_headers_timeout=duration(HEADERS_S),
        request_timeout=duration(UPLOAD_S),
        stream_idle_timeout=NEVER,
        local_reply_config=build_tool_replies(),
        http_filters=[build_body_buffer(tools.max_request_bytes), build_tool_filter(cluster), build_router()],
    )
    place = tools.listener
    if place.socket is not None:
        address = pipe_address(place.socket, mode=0o600)
    else:
        assert place.port is not None  # held by the config model
        address = socket_address(place.address, place.port)
    return build_listener(names.LISTENER_TOOLS, manager, routes, address)


def build_tool_routes(tools: Tools) -> RouteConfiguration:
    """The longest prefix first, which is the one that is meant. A path of no tool has no route."""
    ordered = sorted(tools.routes, key=lambda one: len(one.path_prefix), reverse=True)
    return RouteConfiguration(
        name=names.LISTENER_TOOLS,
        virtual_hosts=[
            VirtualHost(
                name=names.LISTENER_TOOLS, domains=["*"], routes=[_build_route(route) for route in ordered]
            )
        ],
    )


def build_tool_clusters(tools: Tools) -> list[Cluster]:
    """One for each tool."""
    return [_build_cluster(route) for route in tools.routes]


def _build_route(tool: ToolRoute) -> Route:
    prefix, place = tool.path_prefix, tool.place
    action = RouteAction(
        cluster=names.TOOL_CLUSTER_PREFIX + tool.name,
        timeout=duration(tool.timeout),
        idle_timeout=NEVER,
        host_rewrite_literal=tool.host or place.host_header,
    )
    if prefix and place.path:
        action.prefix_rewrite = place.path
    elif prefix:  # /mail/send becomes /send, and /mail alone /
        action.regex_rewrite = RegexMatchAndSubstitute(
            pattern=RegexMatcher(regex=f"^{re.escape(prefix)}/?"), substitution="/"
        )
    elif place.path:
        action.prefix_rewrite = f"{place.path}/"
    match = RouteMatch(path_separated_prefix=prefix) if prefix else RouteMatch(prefix="/")
    # The name is how the sidecar knows which tool is called.
    return Route(
        name=tool.name,
        match=match,
        route=action,
        # Of a tool's own answer; that of the sidecar is none, and keeps it.
        response_headers_to_remove=[names.TOOL_REPLAYED],
    )


def _build_cluster(tool: ToolRoute) -> Cluster:
    name, place = names.TOOL_CLUSTER_PREFIX + tool.name, tool.place
    cluster = Cluster(
        name=name,
        type=ClusterDiscoveryType.STATIC if place.origin.is_ip else ClusterDiscoveryType.STRICT_DNS,
        connect_timeout=duration(CONNECT_S),
        circuit_breakers=CircuitBreakers(
            thresholds=[
                CircuitBreakersThresholds(
                    max_connections=CALLS_AT_ONCE,
                    max_pending_requests=CALLS_AT_ONCE,
                    max_requests=CALLS_AT_ONCE,
                    max_retries=0,
                )
            ]
        ),
        typed_extension_protocol_options=build_http1_options(
            HttpProtocolOptions(max_requests_per_connection=CALLS_PER_CONNECTION)
        ),
        load_assignment=one_endpoint(name, socket_address(place.origin.host, place.origin.port)),
    )
    if not place.origin.is_ip:
        cluster.dns_lookup_family = ClusterDnsLookupFamily.V4_PREFERRED
    if place.tls:
        cluster.transport_socket = _build_tls(tool)
    return cluster


def _build_tls(tool: ToolRoute) -> TransportSocket:
    """Its certificate must be that of its name, signed by somebody who is trusted."""
    host = _read_host(tool)
    origin = tool.place.origin
    by_ip = tool.host is None and origin.is_ip
    kind = SubjectAltNameMatcherSanType.IP_ADDRESS if by_ip else SubjectAltNameMatcherSanType.DNS
    context = UpstreamTlsContext(
        sni="" if by_ip else host,  # RFC 6066, 3: no addresses
        common_tls_context=CommonTlsContext(
            validation_context=CertificateValidationContext(
                trusted_ca=DataSource(filename=tool.ca_file),
                match_typed_subject_alt_names=_match(kind, host),
            )
        ),
    )
    return TransportSocket(name="envoy.transport_sockets.tls", typed_config=Any.pack(context))


def _match(kind: SubjectAltNameMatcherSanType, host: str) -> list[SubjectAltNameMatcher]:
    return [SubjectAltNameMatcher(san_type=kind, matcher=StringMatcher(exact=host))]


def _read_host(tool: ToolRoute) -> str:
    """Without a port."""
    return tool.place.origin.host if tool.host is None else tool.host.partition(":")[0]
