"""Serves the proxy: its port is open exactly as long as the engine's.

A gateway tells a dead replica from one that let go of a connection by a look at its port, and takes a
port that refuses for the death of the process. So the proxy passes that on: when the engine's port
refuses, its own does, before anybody is told of the loss; and it opens when the engine listens.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final

import uvicorn

from envoy_ext.domain.errors import CannotListen
from envoy_ext.worker.engine_port import EnginePort, Presence
from envoy_ext.worker.middleware import Application, LeaseMiddleware
from envoy_ext.worker.proxy import EngineProxy
from envoy_ext.worker.settings import ProxySettings, build_channel

LOOK_EVERY_S: Final = 0.1
GRACE_S: Final = 20.0
"""What answers under way may take at the end; with what is then told it stays below Kubernetes' 30 s."""
KEEP_ALIVE_S: Final = 60
"""An idle connection is Envoy's to close, after a few seconds: a request must not meet one that closes."""
MAX_HEAD_BYTES: Final = 128 << 10
"""Of a request's headers; Envoy lets 60 KiB in and adds a few."""

log = logging.getLogger("envoy_ext.worker")


async def run_proxy(settings: ProxySettings, stop: asyncio.Event, on_bound: Callable[[str], None]) -> None:
    """The proxy with the middleware around it, until `stop` is set. `on_bound` is told its URL.

    Raises:
        CannotListen: the address is taken, or is not this host's.
        ConfigError: gRPC is asked for, and this Python has none.
    """
    channel = build_channel(settings.gateways)
    engine = EnginePort(settings.engine)
    server = ProxyServer(settings.host, settings.port, engine)
    proxy = EngineProxy(engine, settings.kind, server.note_gone)
    app = LeaseMiddleware(proxy, channel=channel, wait_stopped=proxy.wait_stopped)
    on_bound(server.bind())
    try:
        await server.serve(app, stop)
        await app.close()
    finally:
        await engine.close()


class ProxyServer:
    """Belongs to one event loop. `bind` once, `serve` once."""

    def __init__(self, host: str, port: int, engine: EnginePort) -> None:
        self._engine = engine
        self._address = (host, port)
        self._listener: socket.socket | None = None
        self._open: uvicorn.Server | None = None
        self._gone = asyncio.Event()

    def bind(self) -> str:
        """Take the address, and listen to nobody yet; the URL of it.

        Raises:
            CannotListen: the address is taken, or is not this host's.
        """
        host, port = self._address
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
        except OSError as error:
            listener.close()
            raise CannotListen(f"--listen: cannot listen at {host}:{port}: {error.strerror}") from error
        self._listener = listener
        self._address = (host, listener.getsockname()[1])
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{self._address[1]}"

    def note_gone(self) -> None:
        """The engine's port refuses: so does this one, from here on."""
        if self._open is not None:
            for server in self._open.servers:
                server.close()
        self._gone.set()

    async def serve(self, app: Application, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, and then what is under way."""
        closing: list[asyncio.Task[None]] = []
        while await self._wait_engine(stop):
            server, listener = await self._start(app)
            log.info("engine_there")
            await _wait_either(stop, self._gone)
            closing = [task for task in closing if not task.done()]
            closing.append(asyncio.ensure_future(server.shutdown(sockets=[listener])))
            self._open = None
            if not stop.is_set():
                log.warning("engine_gone")
                await self._bind_again(stop)
        if self._listener is not None:
            self._listener.close()
        if closing:
            await asyncio.wait(closing, timeout=GRACE_S)
        for task in closing:
            task.cancel()

    async def _bind_again(self, stop: asyncio.Event) -> None:
        """Take the address that was just let go of; somebody else may have been quicker, and may go again."""
        told = False
        while self._listener is None and not stop.is_set():
            try:
                self.bind()
            except CannotListen as taken:
                if not told:
                    log.warning("address_taken", extra={"detail": str(taken)})
                told = True
                await _wait_either(stop, timeout_s=LOOK_EVERY_S)

    async def _wait_engine(self, stop: asyncio.Event) -> bool:
        """Until the engine listens; False when the end comes first."""
        while not stop.is_set():
            if await self._engine.look() is Presence.THERE:
                return True
            await _wait_either(stop, timeout_s=LOOK_EVERY_S)
        return False

    async def _start(self, app: Application) -> tuple[uvicorn.Server, socket.socket]:
        listener = self._listener
        assert listener is not None, "bind comes first"
        self._listener = None
        self._gone = asyncio.Event()
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            # What passes is the engine's answer, and nothing of ours.
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        )
        config.load()
        server = uvicorn.Server(config)
        # `Server.serve` would do this and also take the process's signals, again for each time it listens.
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[listener])
        self._open = server
        return server, listener


async def _wait_either(*events: asyncio.Event, timeout_s: float | None = None) -> None:
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
