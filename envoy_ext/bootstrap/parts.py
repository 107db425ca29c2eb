"""Small pieces that every part of the Envoy configuration is built from."""

from datetime import timedelta
from typing import Final

from betterproto2 import Message
from envoy_data_plane.envoy.config.core.v3 import (
    Address,
    AggregatedConfigSource,
    ApiVersion,
    ConfigSource,
    GrpcService,
    GrpcServiceEnvoyGrpc,
    HeaderValue,
    HeaderValueOption,
    HeaderValueOptionHeaderAppendAction,
    Pipe,
    SocketAddress,
    SocketOption,
    SocketOptionSocketState,
    TypedExtensionConfig,
)
from envoy_data_plane.google.protobuf import Any

CONNECTION_BUFFER_BYTES: Final = 1 << 20
"""What a connection may hold before the other side has to wait: Envoy's default, spelled out because it
decides how much of an answer a slow client can leave in memory. Request bodies are not bound by it."""

IPPROTO_TCP: Final = 6
TCP_USER_TIMEOUT: Final = 18
TCP_NOTSENT_LOWAT: Final = 25
"""Linux's numbers, not those of the machine that renders."""

METADATA_ENDPOINT: Final = "endpoint"
"""Of a request at the egress hop: `ip:port` of the replica that the gate named."""


def duration(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


NEVER: Final = timedelta(0)
"""Envoy's word for "no such timeout"; left out, its own defaults (15 s, 5 min) would cut long answers."""


def extension(name: str, message: Message) -> TypedExtensionConfig:
    return TypedExtensionConfig(name=name, typed_config=Any.pack(message))


def socket_address(address: str, port: int) -> Address:
    return Address(socket_address=SocketAddress(address=address, port_value=port))


def pipe_address(path: str, mode: int = 0) -> Address:
    return Address(pipe=Pipe(path=path, mode=mode))


def keep_unsent(size: int) -> SocketOption:
    """The kernel takes no more than this beside what is on its way (man 7 tcp, TCP_NOTSENT_LOWAT)."""
    return SocketOption(
        description="TCP_NOTSENT_LOWAT",
        level=IPPROTO_TCP,
        name=TCP_NOTSENT_LOWAT,
        int_value=size,
        state=SocketOptionSocketState.STATE_PREBIND,
    )


def give_up_unconfirmed_after(seconds: float) -> SocketOption:
    """The kernel ends a connection once bytes of ours have waited so long for the other side.

    TCP_USER_TIMEOUT counts only while something waits (man 7 tcp), so the silence of a long prefill does
    not count; a host that is well, but whose program reads nothing or slowly, does. Linux only, as the rest
    of this configuration.
    """
    return SocketOption(
        description="TCP_USER_TIMEOUT",
        level=IPPROTO_TCP,
        name=TCP_USER_TIMEOUT,
        int_value=max(1, round(seconds * 1000)),
        state=SocketOptionSocketState.STATE_PREBIND,
    )


def set_header(name: str, value: str) -> HeaderValueOption:
    return HeaderValueOption(
        header=HeaderValue(key=name, value=value),
        append_action=HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
    )


def grpc_to_sidecar(cluster: str, metadata: dict[str, str] | None = None) -> GrpcService:
    return GrpcService(
        envoy_grpc=GrpcServiceEnvoyGrpc(cluster_name=cluster),
        initial_metadata=[HeaderValue(key=key, value=value) for key, value in (metadata or {}).items()],
    )


def from_sidecar(initial_fetch_timeout: timedelta | None = None) -> ConfigSource:
    """Over the one xDS stream. Unless told otherwise, Envoy waits 15 s for a thing and goes on without it."""
    return ConfigSource(
        ads=AggregatedConfigSource(),
        resource_api_version=ApiVersion.V3,
        initial_fetch_timeout=initial_fetch_timeout,
    )
