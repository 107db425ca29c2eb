"""One access-log entry as facts: whose it is, how the hop's exchange ended, how many bytes left it."""

from dataclasses import dataclass
from typing import Any, Final

from envoy.data.accesslog.v3.accesslog_pb2 import AccessLogType

from envoy_ext.domain import names
from envoy_ext.domain.events import LogCause
from envoy_ext.ports import Connection

_END_TYPES: Final = frozenset({AccessLogType.NotSet, AccessLogType.DownstreamEnd})
"""Older Envoys set no type; periodic and start entries say nothing about the end."""


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What the sidecar reads of an entry."""

    exchange_id: str
    """Logged by the ingress hop, "" elsewhere."""
    attempt_id: str
    """Logged by the egress hop, "" elsewhere."""
    cause: LogCause
    upstream_address: str
    """`ip:port`, "" when no host was chosen."""
    body_bytes: int
    detail: str


def read_log_entry(entry: Any) -> LogFacts | None:
    """The facts of one HTTP entry, None for an entry that is no end or not one of ours."""
    common, request, response = entry.common_properties, entry.request, entry.response
    if common.intermediate_log_entry or common.access_log_type not in _END_TYPES:
        return None
    exchange_id = request.request_headers.get(names.EXCHANGE, "")
    attempt_id = request.request_headers.get(names.ATTEMPT, "")
    if not exchange_id and not attempt_id:
        return None
    details = response.response_code_details
    transport = common.upstream_transport_failure_reason
    return LogFacts(
        exchange_id=exchange_id,
        attempt_id=attempt_id,
        cause=read_cause(details, common.response_flags, transport),
        upstream_address=_read_address(common.upstream_remote_address),
        body_bytes=response.response_body_bytes,
        detail=f"{details} {transport}".strip(),
    )


def is_progress(entry: Any) -> bool:
    """Whether an entry tells of an exchange that goes on."""
    return bool(entry.common_properties.access_log_type == AccessLogType.DownstreamPeriodic)


def read_attempt_progress(entry: Any) -> tuple[str, int, Connection]:
    """Whose entry of the egress hop it is ("" without an id yet), how many body bytes left the hop, and over
    which connection the replica is spoken to (without addresses while there is none)."""
    common = entry.common_properties
    return (
        entry.request.request_headers.get(names.ATTEMPT, ""),
        entry.response.response_body_bytes,
        _read_connection(common.upstream_local_address, common.upstream_remote_address),
    )


def read_exchange_progress(entry: Any) -> tuple[str, int, Connection]:
    """Whose entry of the ingress hop it is, how many bytes of the body, framed, the client has taken, and
    over which connection.

    Over HTTP/2 a byte counts when a window of the client lets it go, over HTTP/1.1 when it is in the
    connection's buffer.
    """
    common = entry.common_properties
    return (
        entry.request.request_headers.get(names.EXCHANGE, ""),
        common.downstream_wire_bytes_sent - entry.response.downstream_header_bytes_sent,
        _read_connection(common.downstream_local_address, common.downstream_direct_remote_address),
    )


def _read_connection(local: Any, peer: Any) -> Connection:
    ours, theirs = local.socket_address, peer.socket_address
    return Connection(ours.address, ours.port_value, theirs.address, theirs.port_value)


def read_cause(details: str, flags: Any = None, transport: str = "") -> LogCause:
    """How the hop's exchange ended.

    The code details decide where they are specific (Envoy docs, "Response Code Details"), the
    response flags elsewhere. A reset after the response had started keeps status 200, so the status
    is never asked.
    """
    if details.startswith(("envoy_ext_", "ext_proc")):
        return LogCause.SIDECAR
    if details.startswith("upstream_reset"):
        return _read_reset(details, transport)
    if details.startswith(("downstream", "http1.codec_error", "http2.")):
        return LogCause.DOWNSTREAM_GONE
    if details.startswith(("no_healthy_upstream", "route_not_found", "cluster_not_found")):
        return LogCause.NO_UPSTREAM
    if details.startswith("via_upstream"):
        return LogCause.COMPLETED
    return _read_flags(flags) if flags is not None else LogCause.OTHER


def read_lost(mark: str) -> LogCause | None:
    """How an attempt was lost, by the replay mark on Envoy's own answer: the details that its log entry
    has too. None for the mark of the sidecar, which knows."""
    cause = read_cause(mark)
    return None if cause is LogCause.OTHER else cause


def _read_reset(details: str, transport: str) -> LogCause:
    """`upstream_reset_{before,after}_response_started{why|transport failure}`.

    `connection_failure` and `connection_timeout` are Envoy's words for a connection that was not made; one
    that was made and then lost, by whatever it was, is `connection_termination` or `protocol_error`.
    """
    why = f"{details} {transport}".lower().replace("_", " ")
    if "overflow" in why:
        return LogCause.NO_UPSTREAM
    if "connection failure" in why or "connection timeout" in why:
        by_its_host = "connection refused" in why or "connection reset" in why
        return LogCause.CONNECT_REFUSED if by_its_host else LogCause.UNREACHABLE
    if "timed out" in why:
        return LogCause.UPSTREAM_TIMEOUT
    return LogCause.UPSTREAM_RESET


def _read_flags(flags: Any) -> LogCause:
    if flags.downstream_connection_termination or flags.downstream_remote_reset:
        return LogCause.DOWNSTREAM_GONE
    if flags.no_healthy_upstream or flags.no_route_found or flags.upstream_overflow or flags.no_cluster_found:
        return LogCause.NO_UPSTREAM
    if flags.upstream_request_timeout:
        return LogCause.UPSTREAM_TIMEOUT
    if flags.upstream_connection_failure:
        return LogCause.UNREACHABLE
    if flags.upstream_connection_termination or flags.upstream_remote_reset or flags.upstream_protocol_error:
        return LogCause.UPSTREAM_RESET
    return LogCause.OTHER


def _read_address(address: Any) -> str:
    socket = address.socket_address
    if not socket.address:
        return ""
    host = f"[{socket.address}]" if ":" in socket.address else socket.address
    return f"{host}:{socket.port_value}"
