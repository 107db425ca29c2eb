"""Gateways are started here: what each is, `gateways.py` says."""

import contextlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bench.load.fleet import find_ports
from bench.performance.gateways import (
    AIO,
    AIO_IN_MEMORY,
    ECHO,
    NATIVE,
    NATIVE_AGAIN,
    NATIVE_IN_MEMORY,
    Gateway,
)
from bench.performance.programs import build
from bench.stream_cost import build_config, run_envoy, run_process, strip_filters, with_own_socket
from envoy_ext.bootstrap.render import render_bootstrap
from envoy_ext.config import Config, Journal, Operations
from envoy_ext.domain import names

_TRANSPORTS: Final = {
    NATIVE: "native",
    NATIVE_AGAIN: "native",
    NATIVE_IN_MEMORY: "native",
    AIO: "grpc_aio",
    AIO_IN_MEMORY: "grpc_aio",
}


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
    if name in (NATIVE_IN_MEMORY, AIO_IN_MEMORY):
        config = config.model_copy(update={"journal": Journal(store="memory")})
    written = directory / "config.yaml"
    written.write_text(config.model_dump_json(by_alias=True, exclude_defaults=True))
    process, _ = await opened.enter_async_context(
        run_process(sys.executable, "-m", "envoy_ext", "serve", "-c", str(written), ready="serves")
    )
    gateway = await _open_envoy(opened, name, render_bootstrap(config), directory, process.pid, port)
    return replace(gateway, sidecar_socket=config.sidecar.socket)


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
