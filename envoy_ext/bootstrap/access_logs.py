"""The access logs: one entry to the sidecar for each exchange and each attempt, sent at once.

They are evidence and not statistics: the end of an ext_proc stream does not tell a replica that
was cut from a client that left, the log does.
"""

from typing import Final

from envoy_data_plane.envoy.config.accesslog.v3 import AccessLog
from envoy_data_plane.envoy.config.core.v3 import ApiVersion
from envoy_data_plane.envoy.extensions.access_loggers.grpc.v3 import (
    CommonGrpcAccessLogConfig,
    HttpGrpcAccessLogConfig,
)
from envoy_data_plane.google.protobuf import Any

from envoy_ext.bootstrap.parts import duration, grpc_to_sidecar
from envoy_ext.domain import names

SEND_EACH_ENTRY_BYTES: Final = 0
"""No entry waits for another. And none is dropped: with a size above 0, Envoy drops what comes while the
connection is full."""

FLUSH_S: Final = 0.1
"""When an entry that met a full connection is sent again."""


def build_exchange_log() -> AccessLog:
    return _grpc_log(names.LOG_EXCHANGES, [names.EXCHANGE])


def build_attempt_log() -> AccessLog:
    return _grpc_log(names.LOG_ATTEMPTS, [names.EXCHANGE, names.ATTEMPT])


def _grpc_log(log_name: str, request_headers: list[str]) -> AccessLog:
    config = HttpGrpcAccessLogConfig(
        common_config=CommonGrpcAccessLogConfig(
            log_name=log_name,
            grpc_service=grpc_to_sidecar(names.CLUSTER_SIDECAR_LOGS),
            transport_api_version=ApiVersion.V3,
            buffer_size_bytes=SEND_EACH_ENTRY_BYTES,
            buffer_flush_interval=duration(FLUSH_S),
        ),
        additional_request_headers_to_log=request_headers,
    )
    return AccessLog(name="envoy.access_loggers.http_grpc", typed_config=Any.pack(config))
