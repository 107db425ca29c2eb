"""The door of the sidecar for its Envoy: gRPC.

Belongs to the composition layer, beside `app`.
"""

import secrets
from pathlib import Path

from envoy_ext.adapters import extauthz
from envoy_ext.adapters.accesslog import AccessLogSession
from envoy_ext.adapters.ads import AdsHub, AdsSession
from envoy_ext.adapters.engines import get_engine
from envoy_ext.adapters.extproc_attempt import AttemptSession
from envoy_ext.adapters.extproc_caller import CallerSession
from envoy_ext.adapters.extproc_delivery import DeliverySession
from envoy_ext.adapters.extproc_delivery_run import RunSession
from envoy_ext.adapters.extproc_session import Outbox
from envoy_ext.adapters.extproc_tool import ToolSession
from envoy_ext.adapters.grpc_native import NativeServer
from envoy_ext.adapters.grpc_server import GrpcServer
from envoy_ext.adapters.grpc_services import Services
from envoy_ext.config import Config
from envoy_ext.domain.errors import CannotListen
from envoy_ext.observability.metrics import Metrics
from envoy_ext.observability.observers import Observers
from envoy_ext.services.arrivals import Arrivals
from envoy_ext.services.authz import Authz
from envoy_ext.services.exchanges import Exchanges
from envoy_ext.services.hop_reports import HopReports
from envoy_ext.services.job_runs import Runs
from envoy_ext.services.replica_keys import ReadKey
from envoy_ext.services.tools import Tools


class EnvoyDoor:
    """Where Envoy asks: gRPC's own server, which serves everything; and beside it, where the configuration
    says so, the native one for the streams of requests. `start`, then `stop` once."""

    def __init__(self, config: Config, grpc: GrpcServer, native: NativeServer | None) -> None:
        self._config = config
        self._grpc = grpc
        self.native = native

    async def start(self) -> int:
        """Listen, and return the port of gRPC's own server.

        Raises:
            CannotListen: a place is taken, or closed to this user.
        """
        config = self._config
        port = await _listen(self._grpc, grpc_address(config), config.sidecar.socket)
        if self.native is not None:
            await _listen(self.native, streams_address(config), config.streams_socket)
        return port

    async def set_serving(self, serving: bool) -> None:
        """What the gRPC health service answers."""
        await self._grpc.set_serving(serving)
        if self.native is not None:
            await self.native.set_serving(serving)

    async def stop(self, grace_s: float) -> None:
        """Stop listening, let streams end for `grace_s`, then cut them."""
        if self.native is not None:
            await self.native.stop(grace_s)
        await self._grpc.stop(grace_s)


def build_grpc(
    config: Config,
    arrivals: Arrivals,
    exchanges: Exchanges,
    reports: HopReports,
    authz: Authz,
    observer: Observers,
    metrics: Metrics,
    hub: AdsHub,
    tools: Tools | None,
    runs: Runs | None,
    read_key: ReadKey,
) -> EnvoyDoor:
    """All that Envoy asks, behind one door."""
    calls = {pool.name: get_engine(pool.engine).abort for pool in config.pools}
    aborts = {pool: call for pool, call in calls.items() if call is not None}

    note_chunk = metrics.chunk.observe

    def delivery(outbox: Outbox) -> DeliverySession:
        return DeliverySession(arrivals, outbox, mint_request_id, note_chunk)

    limits = config.tools
    tool = None
    if tools is not None and limits is not None:

        def tool(outbox: Outbox) -> ToolSession:
            return ToolSession(tools, outbox, limits.max_result_bytes, mint_request_id)

    run = None
    if runs is not None:

        def run(outbox: Outbox) -> RunSession:
            return RunSession(runs, arrivals, outbox, mint_request_id, metrics.chunk.observe)

    services = Services(
        tool=tool,
        caller=lambda outbox: CallerSession(arrivals, outbox, mint_request_id),
        run=run,
        delivery=delivery,
        attempt=lambda outbox: AttemptSession(exchanges, reports, outbox, aborts, read_key),
        access_log=lambda: AccessLogSession(reports),
        check=lambda message: extauthz.check(authz, message, mint_request_id),
        observer=observer,
        max_request_bytes=max(
            config.limits.max_request_bytes, 0 if limits is None else limits.max_request_bytes
        ),
    )
    grpc = GrpcServer(services, lambda outbox, dialect: AdsSession(hub, outbox, dialect))
    return EnvoyDoor(config, grpc, NativeServer(services) if config.sidecar.native else None)


async def _listen(server: GrpcServer | NativeServer, address: str, socket: str | None) -> int:
    """Listen for Envoy; the socket's directory is made when it is missing, for us alone."""
    try:
        if socket is not None:
            Path(socket).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return await server.start(address)
    except OSError as error:
        place = address.removeprefix("unix:")
        # gRPC keeps the reason to its own log.
        asked = "is it taken?" if socket is None else "is it taken, or closed to this user?"
        why = error.strerror or asked
        raise CannotListen(f"sidecar: cannot listen at {place}: {why}") from error


def mint_request_id() -> str:
    """A request id for a client that sent none that can be used."""
    return secrets.token_hex(16)


def grpc_address(config: Config) -> str:
    """Where gRPC's own server listens, in gRPC's notation."""
    return _place(config.sidecar.socket, config.sidecar.address, config.sidecar.port)


def streams_address(config: Config) -> str:
    """Where the native server listens, in the same notation."""
    return _place(config.streams_socket, config.sidecar.address, config.sidecar.streams_port)


def _place(socket: str | None, address: str | None, port: int | None) -> str:
    if socket is not None:
        return f"unix:{socket}"
    host = f"[{address}]" if ":" in str(address) else address
    return f"{host}:{port}"
