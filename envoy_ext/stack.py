"""The sidecar and an Envoy child process as one thing: what `run` and `demo` start.

Belongs to the composition layer, beside `app`. Both Unix sockets, Envoy's bootstrap and its log
live in one private directory, made here and removed at the end.
"""

import asyncio
import errno
import json
import os
import shutil
import socket
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from envoy_ext.adapters.envoy_process import EnvoyProcess, validate_bootstrap
from envoy_ext.app import App
from envoy_ext.bootstrap.render import render_bootstrap, render_full_bootstrap
from envoy_ext.config import Config
from envoy_ext.domain import names
from envoy_ext.domain.errors import CannotListen, ConfigError
from envoy_ext.ports import Trace

READY_S = 10.0
"""How long a start waits for replicas: it goes on without them, and requests are refused until they come."""


class Stack:
    """A running gateway: `async with Stack(config, envoy) as stack`."""

    def __init__(self, config: Config, envoy_binary: str, trace: Trace | None = None) -> None:
        if config.envoy.admin is None:
            # Whether Envoy is ready, and where it listens, is asked at its admin port.
            raise ConfigError(["envoy.admin: is needed here; give it an address and a port on loopback"])
        check_not_taken("ingress", config.ingress.address, config.ingress.port)
        check_not_taken("envoy.admin", config.envoy.admin.address, config.envoy.admin.port)
        tools = config.tools
        if tools is not None and tools.listener.port is not None:
            check_not_taken("tools.listener", tools.listener.address, tools.listener.port)
        self.directory = Path(tempfile.mkdtemp(prefix="envoy-ext-"))
        self.config = config.with_sockets_in(str(self.directory))
        self.app = App(self.config, trace)
        self.envoy = EnvoyProcess(
            binary=envoy_binary,
            bootstrap=render_bootstrap(self.config),
            directory=self.directory,
            concurrency=self.config.envoy.concurrency,
        )
        self.ingress_url = ""
        self.tools_url = ""
        """Where engines call tools, when the configuration has any over TCP."""

    @property
    def operations_url(self) -> str:
        """Where operators ask."""
        address, port = self.config.operations.address, self.app.operations_port
        host = "127.0.0.1" if address == "0.0.0.0" else address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def start(self) -> None:
        """The sidecar first: an Envoy without one answers 500."""
        try:
            await self.app.start()
            await self.envoy.start()
            # Whoever is told that this runs may send requests at once; who does not wait is refused.
            await self.app.wait_ready(READY_S)
            address = await self.envoy.find_listener(names.LISTENER_INGRESS)
            self.ingress_url = "http://" + address.replace("0.0.0.0:", "127.0.0.1:")
            if self.config.tools is not None and self.config.tools.listener.port is not None:
                address = await self.envoy.find_listener(names.LISTENER_TOOLS)
                self.tools_url = "http://" + address.replace("0.0.0.0:", "127.0.0.1:")
        except BaseException:  # also a cancelled start leaves no process behind
            await self.stop()
            raise

    async def stop(self) -> None:
        """Streams end through Envoy, so it goes after the sidecar has drained."""
        try:
            await self.app.stop()
        finally:
            await self.envoy.stop()
            await asyncio.to_thread(shutil.rmtree, self.directory, ignore_errors=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


def check_not_taken(key: str, address: str, port: int) -> None:
    """Whether something listens there already.

    Envoy does not always say: two Envoys of one user share a listener's port (`SO_REUSEPORT`, for its hot
    restart), and each of two gateways would get some of the clients.

    Raises:
        CannotListen: something does. Whatever else is wrong with the address is Envoy's to tell.
    """
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        if probe.family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # as Envoy's own
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what a port's last user left is no user
        try:
            probe.bind((address, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise CannotListen(
                    f"{key}: cannot listen at {address}:{port}: {os.strerror(error.errno)}"
                ) from None


async def validate_with_envoy(config: Config, envoy_binary: str) -> str | None:
    """What Envoy has against the rendering of a configuration, None when it accepts it.

    Envoy validates nothing that comes over xDS, so that is shown to it in a bootstrap as well.
    """
    forms = [render_full_bootstrap(config)]
    if config.envoy.resources == "xds":
        forms.append(render_bootstrap(config))
    with tempfile.TemporaryDirectory(prefix="envoy-ext-") as directory:
        path = Path(directory) / "envoy.json"
        for form in forms:
            path.write_text(json.dumps(form))
            if complaint := await validate_bootstrap(envoy_binary, path):
                return complaint
    return None
