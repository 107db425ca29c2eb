"""A worker's settings, from the environment: an engine that loads middleware passes it no arguments."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self
from urllib.parse import SplitResult, urlsplit

from envoy_ext.domain.errors import ConfigError
from envoy_ext.worker.channel import GatewayLink, LeaseChannel
from envoy_ext.worker.gateways import LeaseGateways

GATEWAYS: Final = "ENVOY_EXT_GATEWAYS"
"""Base URLs of the gateways' lease service, with commas between them."""
CALL_S: Final = 2.0
"""An answer that comes later than this is of little use: the next renewal is on its way."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Where the gateways are. The one that granted a lease answers for it."""

    gateways: tuple[str, ...]
    """`http://host:port` or `grpc://host:port` each."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Read them.

        Raises:
            ConfigError: none is named, or one is not a URL.
        """
        return cls.parse(environment.get(GATEWAYS, ""), GATEWAYS)

    @classmethod
    def parse(cls, value: str, name: str) -> Self:
        """Read URLs with commas between them; `name` is whose value it is, for people.

        Raises:
            ConfigError: none is named, or one is not a URL.
        """
        named = [url.strip() for url in value.split(",") if url.strip()]
        if not named:
            raise ConfigError([f"{name}: name the gateways' lease service, such as http://10.0.0.5:9904"])
        mistakes = [
            f"{name}: {url} is neither http://host:port nor grpc://host:port"
            for url in named
            if not _is_gateway(url)
        ]
        if mistakes:
            raise ConfigError(mistakes)
        return cls(tuple(url.rstrip("/") for url in named))


class EngineKind(StrEnum):
    """Which engine is behind a proxy."""

    GENERIC = "generic"
    """Any that speaks HTTP. Nothing is known of it but its port."""
    LLAMACPP = "llamacpp"


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """What a worker stands before that is a process of its own."""

    engine: str
    """Base URL of the engine's own port."""
    kind: EngineKind
    host: str
    port: int
    """Where the gateway's Envoy reaches it; 0 leaves the port to the kernel."""
    gateways: WorkerSettings

    @classmethod
    def parse(cls, engine: str, kind: EngineKind, listen: str, gateways: str) -> Self:
        """Read them from a command line.

        Raises:
            ConfigError: with a line for each that cannot be used.
        """
        mistakes: list[str] = []
        parts = _split(engine)
        if parts is None or parts.scheme != "http":
            mistakes.append(f"--engine: {engine} is not http://host:port")
        place = _split(f"//{listen}")
        if place is None or place.port is None:
            mistakes.append(f"--listen: {listen} is not host:port")
        try:
            workers = WorkerSettings.parse(gateways, f"--gateways ({GATEWAYS})")
        except ConfigError as error:
            mistakes += error.mistakes
        if mistakes or place is None:
            raise ConfigError(mistakes)
        return cls(engine.rstrip("/"), kind, place.hostname or "", place.port or 0, workers)


def build_channel(settings: WorkerSettings, call_s: float = CALL_S) -> LeaseChannel:
    """The channel that these settings ask for. What a protocol needs is imported when it is asked for.

    Raises:
        ConfigError: gRPC is asked for, and this Python has none.
    """
    return LeaseGateways([_build_link(url, call_s) for url in settings.gateways])


def _build_link(url: str, call_s: float) -> GatewayLink:
    parts = urlsplit(url)
    if parts.scheme != "grpc":
        from envoy_ext.worker.http_link import HttpLink

        return HttpLink(url, call_s)
    try:
        from envoy_ext.worker.grpc_link import GrpcLink
    except ImportError as missing:
        raise ConfigError(
            [f"{GATEWAYS}: {url} needs grpcio and protobuf beside the engine: {missing}"]
        ) from None
    return GrpcLink(parts.netloc, call_s)


def _is_gateway(url: str) -> bool:
    parts = _split(url)
    if parts is None or parts.port == 0:
        return False
    if parts.scheme == "grpc":
        return parts.port is not None  # gRPC has no port of its own
    return parts.scheme in ("http", "https")


def _split(url: str) -> SplitResult | None:
    """The parts of a URL that names a host, perhaps a port, and nothing else."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    more = parts.path.strip("/") or parts.query or parts.fragment or parts.username
    return parts if parts.hostname and not more else None
