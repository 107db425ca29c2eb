"""The gateways under measurement, all in front of one replica: what is in an Envoy's way differs.

two hops     client -> Envoy -> Unix socket -> Envoy -> replica, no sidecar
same again   another one of these, by which the noise is known
native       the product, on its own transport
grpc.aio     the product, the same servicers on gRPC's server
C++ echo     the product's bootstrap, with a C++ gRPC server in the sidecar's place that decides nothing
"""

import contextlib
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.load.fleet import find_ports
from bench.performance.native import build
from bench.stream_cost import build_config, run_envoy, run_process, strip_filters, with_own_socket
from envoy_ext.bootstrap.render import render_bootstrap
from envoy_ext.config import Config, Operations
from envoy_ext.domain import names

TWO_HOPS: Final = "two hops"
AGAIN: Final = "same again"
NATIVE: Final = "native"
AIO: Final = "grpc.aio"
ECHO: Final = "C++ echo"
ALL: Final = (TWO_HOPS, AGAIN, NATIVE, AIO, ECHO)
_TRANSPORTS: Final = {NATIVE: "native", AIO: "grpc_aio"}


@dataclass(frozen=True)
class Gateway:
    """One that runs."""

    name: str
    port: int
    """The ingress's."""
    envoy_pid: int
    sidecar_pid: int | None
    operations_port: int | None

    def read_cpu_us(self) -> tuple[float, float]:
        """CPU of Envoy and of what stands beside it, in microseconds."""
        return read_cpu_us(self.envoy_pid), 0.0 if self.sidecar_pid is None else read_cpu_us(self.sidecar_pid)


def read_cpu_us(pid: int) -> float:
    """CPU time of a process, by its own clock, threads included."""
    return time.clock_gettime_ns((~pid << 3) | 2) / 1e3


async def open_gateway(
    opened: contextlib.AsyncExitStack, name: str, replica_port: int, directory: Path
) -> Gateway:
    """Start one."""
    directory.mkdir()
    config = build_config(replica_port, directory)
    if name in _TRANSPORTS:
        return await _open_product(opened, name, config, directory)
    if name == ECHO:
        return await _open_echo(opened, config, directory)
    plain = with_own_socket(strip_filters(render_bootstrap(config), keep_hops=True), config.egress_socket)
    return await _open_envoy(opened, name, plain, directory)


async def _open_product(
    opened: contextlib.AsyncExitStack, name: str, config: Config, directory: Path
) -> Gateway:
    (port,) = find_ports(1)
    sidecar = config.sidecar.model_copy(update={"transport": _TRANSPORTS[name]})
    config = config.model_copy(update={"sidecar": sidecar, "operations": Operations(port=port)})
    written = directory / "config.yaml"
    written.write_text(config.model_dump_json(by_alias=True, exclude_defaults=True))
    process, _ = await opened.enter_async_context(
        run_process(sys.executable, "-m", "envoy_ext", "serve", "-c", str(written), ready="serves")
    )
    return await _open_envoy(opened, name, render_bootstrap(config), directory, process.pid, port)


async def _open_echo(opened: contextlib.AsyncExitStack, config: Config, directory: Path) -> Gateway:
    sidecar = config.sidecar.model_copy(update={"transport": "grpc_aio"})
    config = config.model_copy(update={"sidecar": sidecar})
    program = build("grpc_echo", "grpc++")
    process, _ = await opened.enter_async_context(
        run_process(str(program), f"unix:{config.sidecar.socket}", config.pools[0].name, ready="ready")
    )
    return await _open_envoy(opened, ECHO, render_bootstrap(config), directory, process.pid)


async def _open_envoy(
    opened: contextlib.AsyncExitStack,
    name: str,
    bootstrap: dict[str, Any],
    directory: Path,
    sidecar_pid: int | None = None,
    operations_port: int | None = None,
) -> Gateway:
    envoy = await opened.enter_async_context(run_envoy(bootstrap, directory / "envoy"))
    port = int((await envoy.find_listener(names.LISTENER_INGRESS)).rpartition(":")[2])
    return Gateway(name, port, envoy.pid, sidecar_pid, operations_port)
