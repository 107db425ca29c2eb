"""The listeners: ingress, which clients reach; egress, which only the ingress hop reaches; and jobs, which
only the sidecar does."""

from typing import Final

from envoy_data_plane.envoy.config.common.mutation_rules.v3 import (
    HeaderMutation,
    HeaderMutationRemoveOnMatch,
)
from envoy_data_plane.envoy.config.core.v3 import (
    Address,
    Http2ProtocolOptions,
    HttpProtocolOptions,
    HttpProtocolOptionsHeadersWithUnderscoresAction,
    TypedExtensionConfig,
)
from envoy_data_plane.envoy.config.listener.v3 import Filter, FilterChain, Listener
from envoy_data_plane.envoy.config.route.v3 import RouteConfiguration
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManager,
    HttpConnectionManagerCodecType,
    HttpConnectionManagerHcmAccessLogOptions,
    HttpConnectionManagerPathWithEscapedSlashesAction,
    Rds,
)
from envoy_data_plane.envoy.extensions.http.early_header_mutation.header_mutation.v3 import (
    HeaderMutation as EarlyHeaderMutation,
)
from envoy_data_plane.envoy.type.matcher.v3 import StringMatcher
from envoy_data_plane.google.protobuf import Any

from envoy_ext.bootstrap.access_logs import build_attempt_log, build_exchange_log
from envoy_ext.bootstrap.clusters import name_streams_cluster
from envoy_ext.bootstrap.filters import (
    build_attempt_filter,
    build_body_buffer,
    build_caller_filter,
    build_delivery_filter,
    build_endpoint_hint,
    build_router,
)
from envoy_ext.bootstrap.local_replies import build_egress_replies, build_ingress_replies
from envoy_ext.bootstrap.parts import (
    CONNECTION_BUFFER_BYTES,
    NEVER,
    duration,
    extension,
    from_sidecar,
    give_up_unconfirmed_after,
    keep_unsent,
    pipe_address,
    set_header,
    socket_address,
)
from envoy_ext.config import Config
from envoy_ext.domain import names
from envoy_ext.domain.silent_loss import UNCONFIRMED_LOOK_S
from envoy_ext.domain.write_stall import compute_look_s

BACKLOG: Final = 16_384
"""Connections that may wait for a worker; the kernel lowers it to net.core.somaxconn. A Unix socket
refuses a connection at once when its queue is full, and every attempt may open one."""

CLIENT_HEADERS_KB: Final = 96
CLIENT_HEADERS: Final = 128
"""Above what the sidecar takes from a client (60 KiB and 100 headers, which are Envoy's defaults): its
refusal can be read, and Envoy's has no body. Headers of ours must fit in, too: Envoy breaks a request off
that has too many after the sidecar's word."""
EGRESS_HEADERS_KB: Final = 128
EGRESS_HEADERS: Final = 160
"""The egress accepts more, because the ingress hop adds headers of its own."""

HEADERS_S: Final = 10.0
"""How long a request's headers may take; Envoy's advice for an edge."""

UPLOAD_S: Final = 300.0
"""How long a body may take to arrive: 16 MiB over half a megabit per second. The timer ends with the body,
so waiting for admission does not count."""

HTTP2_STREAMS: Final = 1024
HTTP2_STREAM_WINDOW_BYTES: Final = 256 << 10
HTTP2_CONNECTION_WINDOW_BYTES: Final = 1 << 20
"""A client may hold many long answers open over one connection, but leave little unread in memory.
Envoy's advice for an edge is 100 streams, 64 KiB and 1 MiB; long prompts ask for a wider stream."""

DELAYED_CLOSE_S: Final = 5.0
"""How long the egress hop keeps a broken stream's connection open: the window in which the sidecar can
still end the client's stream with the truth."""

CLIENT_BUFFER_BYTES: Final = 32 << 10
"""What Envoy keeps for a client before it stops reading from the replica. Small, because how far a client
has come shows only in what the replica is let send."""

CLIENT_UNSENT_BYTES: Final = 16 << 10
"""What the kernel keeps beside what is on its way to the client. Linux would take up to 4 MiB."""

LAST_RESORT: Final = 5
"""How many times the limit a client has that takes nothing where the sidecar does not see it: the unread rest
of a whole answer, or an answer too small to fill a buffer. Longer than the limit, because neither clock looks
for progress, and both would cut a steady reader that is slow: Envoy's runs from the answer's end until all
of it is taken (over HTTP/2), Linux's from a full window until one that takes all that waits at once."""


Routes = RouteConfiguration | Rds
"""What a listener routes by: the routes themselves, or where they are to be had."""


def routes_from_sidecar(name: str) -> Rds:
    """Routes that come over xDS; until they do the listener takes no connection, and an older one keeps its
    place."""
    return Rds(route_config_name=name, config_source=from_sidecar(NEVER))


def build_ingress_listener(config: Config, routes: Routes) -> Listener:
    """Faces the clients: HTTP/1.1 or HTTP/2 without TLS."""
    stall_s = config.limits.client_write_stall
    manager = HttpConnectionManager(
        stat_prefix=names.LISTENER_INGRESS,
        codec_type=HttpConnectionManagerCodecType.AUTO,
        http2_protocol_options=Http2ProtocolOptions(
            max_concurrent_streams=HTTP2_STREAMS,
            initial_stream_window_size=HTTP2_STREAM_WINDOW_BYTES,
            initial_connection_window_size=HTTP2_CONNECTION_WINDOW_BYTES,
        ),
        common_http_protocol_options=HttpProtocolOptions(
            # Some servers read x_a and x-a as one name. Dropped and not refused: what Envoy's codec refuses
            # gets no answer at all where there is an ext_proc filter (envoyproxy/envoy#29440).
            headers_with_underscores_action=HttpProtocolOptionsHeadersWithUnderscoresAction.DROP_HEADER,
            max_headers_count=CLIENT_HEADERS,
        ),
        max_request_headers_kb=CLIENT_HEADERS_KB,
        use_remote_address=True,
        early_header_mutation_extensions=[_remove_reserved_headers()],
        generate_request_id=True,
        preserve_external_request_id=True,
        always_set_request_id_in_response=True,
        normalize_path=True,
        merge_slashes=True,
        # /v1/models/org%2Fname is one model; refusing or decoding the slash would lose it.
        path_with_escaped_slashes_action=HttpConnectionManagerPathWithEscapedSlashesAction.KEEP_UNCHANGED,
        request_headers_timeout=duration(HEADERS_S),
        request_timeout=duration(UPLOAD_S),
        stream_idle_timeout=NEVER,
        stream_flush_timeout=duration(LAST_RESORT * stall_s),
        local_reply_config=build_ingress_replies(),
        access_log=[build_exchange_log()],
        access_log_options=_tell_progress(compute_look_s(stall_s)),
        http_filters=[
            *(() if config.callers is None else (build_caller_filter(name_streams_cluster(config)),)),
            build_body_buffer(config.limits.max_request_bytes),
            build_delivery_filter(name_streams_cluster(config)),
            build_router(),
        ],
    )
    address = socket_address(config.ingress.address, config.ingress.port)
    listener = build_listener(names.LISTENER_INGRESS, manager, routes, address)
    listener.per_connection_buffer_limit_bytes = CLIENT_BUFFER_BYTES
    listener.socket_options = [
        keep_unsent(CLIENT_UNSENT_BYTES),
        give_up_unconfirmed_after(LAST_RESORT * stall_s),
    ]
    return listener


def build_egress_listener(config: Config, routes: Routes) -> Listener:
    """Reached by the ingress hop only: a Unix socket that no other user may open."""
    manager = HttpConnectionManager(
        stat_prefix=names.LISTENER_EGRESS,
        codec_type=HttpConnectionManagerCodecType.HTTP1,
        common_http_protocol_options=HttpProtocolOptions(max_headers_count=EGRESS_HEADERS),
        max_request_headers_kb=EGRESS_HEADERS_KB,
        generate_request_id=True,
        preserve_external_request_id=True,
        stream_idle_timeout=NEVER,
        delayed_close_timeout=duration(DELAYED_CLOSE_S),
        local_reply_config=build_egress_replies(),
        access_log=[build_attempt_log()],
        access_log_options=_tell_progress(
            min(compute_look_s(config.limits.client_write_stall), UNCONFIRMED_LOOK_S)
        ),
        http_filters=[
            build_attempt_filter(name_streams_cluster(config)),
            build_endpoint_hint(),
            build_router(),
        ],
    )
    address = pipe_address(config.egress_socket, mode=0o600)
    return build_listener(names.LISTENER_EGRESS, manager, routes, address)


def build_jobs_listener(config: Config, routes: Routes) -> Listener:
    """An ingress for the sidecar's own requests, the runs of jobs: a Unix socket that no other user may open.

    The filters are those of the ingress, and what they say is believed alike; that a request came in here is
    told by the role of its delivery filter, which nobody can send. No header is removed: there is one client.
    """
    manager = HttpConnectionManager(
        stat_prefix=names.LISTENER_JOBS,
        codec_type=HttpConnectionManagerCodecType.HTTP1,
        common_http_protocol_options=HttpProtocolOptions(max_headers_count=CLIENT_HEADERS),
        max_request_headers_kb=CLIENT_HEADERS_KB,
        generate_request_id=True,
        preserve_external_request_id=True,
        always_set_request_id_in_response=True,
        # Paths were normalised when their jobs were submitted.
        request_timeout=duration(UPLOAD_S),
        stream_idle_timeout=NEVER,
        local_reply_config=build_ingress_replies(),
        access_log=[build_exchange_log()],
        access_log_options=_tell_progress(compute_look_s(config.limits.client_write_stall)),
        http_filters=[
            build_body_buffer(config.limits.max_request_bytes),
            build_delivery_filter(name_streams_cluster(config), names.ROLE_RUN),
            build_router(),
        ],
    )
    address = pipe_address(config.jobs_socket, mode=0o600)
    return build_listener(names.LISTENER_JOBS, manager, routes, address)


def _remove_reserved_headers() -> TypedExtensionConfig:
    """Clients may set none of Envoy's headers (they steer its retries) and none of ours.

    Before anything else looks at the request, and by prefix: a list of names would have to be right.
    Only the count of a gateway before us is kept, under another name: the sidecar refuses its retries
    after a first delta. A client that invents one can restrict nobody but itself.
    """
    everything_reserved = HeaderMutationRemoveOnMatch(key_matcher=StringMatcher(prefix=names.ENVOY_PREFIX))
    mutations = [
        HeaderMutation(append=set_header(names.MESH_ATTEMPT, "%REQ(X-ENVOY-ATTEMPT-COUNT)%")),
        HeaderMutation(remove_on_match=everything_reserved),
    ]
    return extension(
        "envoy.http.early_header_mutation.header_mutation", EarlyHeaderMutation(mutations=mutations)
    )


def _tell_progress(look_s: float) -> HttpConnectionManagerHcmAccessLogOptions:
    """How much has gone through, told of each stream while it runs: what a stalled client is known by, and
    at the egress where a request that is not confirmed has gone to."""
    return HttpConnectionManagerHcmAccessLogOptions(access_log_flush_interval=duration(look_s))


def build_listener(name: str, manager: HttpConnectionManager, routes: Routes, address: Address) -> Listener:
    """A listener with one HTTP connection manager."""
    if isinstance(routes, Rds):
        manager.rds = routes
    else:
        manager.route_config = routes
    http = Filter(name="envoy.filters.network.http_connection_manager", typed_config=Any.pack(manager))
    return Listener(
        name=name,
        address=address,
        per_connection_buffer_limit_bytes=CONNECTION_BUFFER_BYTES,
        tcp_backlog_size=BACKLOG,
        filter_chains=[FilterChain(filters=[http])],
    )
