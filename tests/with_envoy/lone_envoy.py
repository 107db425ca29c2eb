"""An Envoy that knows nothing but the way to a sidecar, and sidecars that come and go beside it.

The sidecars run in the test's own event loop, one after another, each with a configuration of its own.
"""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp

from envoy_ext.adapters.envoy_process import EnvoyProcess, find_envoy
from envoy_ext.app import App
from envoy_ext.bootstrap.render import render_bootstrap
from envoy_ext.config import Config, parse_config
from envoy_ext.domain import names
from envoy_ext.sim.engine import SimEngine
from envoy_ext.sim.options import SimOptions
from envoy_ext.sim.state import RequestRecord
from envoy_ext.xds.kinds import Kind

WAIT_S = 20.0
POOLS = {"chat": "ab", "code": "c"}
"""Pool -> its replicas. A pool serves the one model that is called like it."""


class LoneEnvoy:
    """What a test speaks to; `ask` and its like take it for a gateway."""

    def __init__(self, directory: Path, api_type: str, engines: dict[str, SimEngine]) -> None:
        self.directory = directory
        self.engines = engines
        self.url = ""
        self.http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30))
        bootstrap = render_bootstrap(self.build_config())
        bootstrap["dynamic_resources"]["ads_config"]["api_type"] = api_type
        self.envoy = EnvoyProcess(find_envoy(), bootstrap, directory, concurrency=1)

    def build_config(self, pools: str = "chat", engine: str = "vllm", **sections: Any) -> Config:
        """A configuration; `pools` are names, `engine` is that of all of them."""
        data: dict[str, Any] = {
            "ingress": {"address": "127.0.0.1", "port": 0},
            "operations": {"port": 0},
            "sidecar": {"socket": f"{self.directory}/sidecar.sock"},
            "envoy": {"admin": {"port": 0}, "resources": "xds"},
            "journal": {"path": f"{self.directory}/journal.db"},
            "shutdown": {"grace": "0s"},
            "pools": [
                {
                    "name": name,
                    "models": [name],
                    "engine": engine,
                    "readiness": {"watch": False},  # they are ready from the first picture on
                    "replicas": [{"id": one, "url": self.engines[one].url} for one in POOLS[name]],
                }
                for name in pools.split()
            ],
        }
        limits = {"max_event_loop_lag": 0} | sections.pop("limits", {})
        return parse_config(data | sections | {"limits": limits}, "test")

    @contextlib.asynccontextmanager
    async def sidecar(self, **changes: Any) -> AsyncIterator[App]:
        """A sidecar that Envoy has taken everything from."""
        async with self.unheard_sidecar(**changes) as app:
            await self.wait_settled(app)
            yield app

    @contextlib.asynccontextmanager
    async def unheard_sidecar(self, **changes: Any) -> AsyncIterator[App]:
        """A sidecar that has looked at its replicas, and that Envoy may not have found yet."""
        app = App(self.build_config(**changes))
        try:
            await app.start()
            async with asyncio.timeout(WAIT_S):
                await app.fleet.wait_serving()
            yield app
        finally:
            await app.stop()

    async def start_envoy(self) -> None:
        """Start it and wait until it takes connections, which it does once it has listeners."""
        await self.envoy.start()
        self.url = "http://" + await self.envoy.find_listener(names.LISTENER_INGRESS)

    async def wait_settled(self, app: App) -> None:
        """Until Envoy has said yes or no to all that is offered."""

        def is_settled() -> bool:
            seen = app.ads.statistics()
            return seen.settled == 1 and all(seen.pushes[kind] for kind in (Kind.CDS, Kind.EDS, Kind.LDS))

        if self.envoy.admin_url:
            await self.wait(is_settled)

    async def wait(self, holds: Callable[[], bool]) -> None:
        """Until something holds that others bring about."""
        async with asyncio.timeout(WAIT_S):
            while not holds():
                await asyncio.sleep(0.02)

    async def wait_stat(self, name: str, value: int) -> None:
        """Until one of Envoy's figures has this value."""
        async with asyncio.timeout(WAIT_S):
            while await self.read_stat(name) != value:
                await asyncio.sleep(0.02)

    async def read_stat(self, name: str) -> int:
        """One of Envoy's counters or gauges."""
        stats = (await self.read_admin(f"stats?format=json&filter=^{name}$"))["stats"]
        return int(stats[0]["value"]) if stats else 0

    async def read_admin(self, path: str) -> Any:
        async with aiohttp.ClientSession() as http, http.get(f"{self.envoy.admin_url}/{path}") as answer:
            return await answer.json()

    async def list_clusters(self) -> set[str]:
        """The clusters that Envoy sends requests to."""
        statuses = (await self.read_admin("clusters?format=json"))["cluster_statuses"]
        return {one["name"] for one in statuses}

    async def list_hosts(self, cluster: str) -> set[int]:
        """The ports of a cluster's endpoints."""
        statuses = (await self.read_admin("clusters?format=json"))["cluster_statuses"]
        hosts = next(one.get("host_statuses", []) for one in statuses if one["name"] == cluster)
        return {one["address"]["socket_address"]["port_value"] for one in hosts}

    def find_requests(self, request_id: str) -> list[RequestRecord]:
        """What reached the engines of one request."""
        return [one for engine in self.engines.values() for one in engine.find_requests(request_id)]


@contextlib.asynccontextmanager
async def run_lone_envoy(api_type: str, *, start: bool = True) -> AsyncIterator[LoneEnvoy]:
    """Engines and an Envoy; without `start` a test starts the Envoy itself."""
    # Not pytest's own directory: a socket's path has room for 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="envoy-ext-test-"))
    async with contextlib.AsyncExitStack() as opened:
        opened.callback(shutil.rmtree, directory, ignore_errors=True)
        engines: dict[str, SimEngine] = {}
        for pool, replicas in POOLS.items():
            for name in replicas:
                options = SimOptions(name=name, models=(pool,), tokens=6, token_s=0.01, prefill_s=0.02)
                engines[name] = await opened.enter_async_context(SimEngine(options))
        lone = LoneEnvoy(directory, api_type, engines)
        opened.push_async_callback(lone.http.close)
        opened.callback(lambda: print(lone.envoy.log_path.read_text(errors="replace")))
        opened.push_async_callback(lone.envoy.stop)
        if start:
            async with lone.unheard_sidecar():
                await lone.start_envoy()
        yield lone
