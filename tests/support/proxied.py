"""The proxy on its own server, before an engine that a test plays."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from envoy_ext.worker.proxy_server import run_proxy
from envoy_ext.worker.settings import EngineKind, ProxySettings, WorkerSettings


@dataclass
class Proxied:
    """A proxy that runs."""

    url: str

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def is_open(self) -> bool:
        """Whether its port accepts."""
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except ConnectionRefusedError:
            return False
        writer.close()
        return True

    async def wait_open(self, wanted: bool = True) -> None:
        async with asyncio.timeout(20):
            while await self.is_open() is not wanted:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def run_proxied(
    engine: str, *gateways: str, kind: EngineKind = EngineKind.GENERIC
) -> AsyncIterator[Proxied]:
    """The proxy, once its port is bound; `wait_open` waits for the engine's."""
    stop, bound = asyncio.Event(), asyncio.get_running_loop().create_future()
    settings = ProxySettings(
        engine, kind, "127.0.0.1", 0, WorkerSettings(gateways or ("http://127.0.0.1:1",))
    )
    running = asyncio.ensure_future(run_proxy(settings, stop, bound.set_result))
    try:
        yield Proxied(await bound)
    finally:
        stop.set()
        await running
