"""What is asked: two engines as processes behind a gateway, or behind an Envoy with its usual retries."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import aiohttp

from bench.load.fleet import find_ports
from bench.load.gateway import GatewayProcess
from bench.loss.evidence import Generation, read_log
from bench.loss.shape import Shape
from envoy_ext.adapters.envoy_process import EnvoyProcess, find_envoy
from envoy_ext.drills.cut_network import Link
from envoy_ext.sim.process import SimProcess

LISTENER: Final = "clients"
CLUSTER: Final = "engines"
THERE_S: Final = 30.0
STAYS, LOST = "a", "b"


class Front(Protocol):
    """What stands in front of the engines."""

    url: str

    async def count_ready(self) -> int:
        """Replicas that it sends new work to."""
        ...


@dataclass
class Engines:
    """The replica that stays and the one that is lost, by a kill or by a cut of its network."""

    stays: SimProcess
    lost: SimProcess
    directory: Path
    link: Link | None = None
    """Cut in place of a kill."""

    async def lose(self) -> None:
        await (self.lost.kill() if self.link is None else self.link.cut())

    async def bring_back(self) -> None:
        await (self.lost.start() if self.link is None else self.link.heal())

    def list_replicas(self) -> list[dict[str, str]]:
        """For a pool's configuration."""
        return [{"id": one.options.name, "url": one.url} for one in (self.stays, self.lost)]

    def read_generations(self) -> list[Generation]:
        """Of both."""
        logs = (Path(one.options.event_log) for one in (self.stays, self.lost))
        return [generation for log in logs if log.exists() for generation in read_log(log)]


@contextlib.asynccontextmanager
async def run_engines(shape: Shape, directory: Path, link: Link | None = None) -> AsyncIterator[Engines]:
    """The one that stays runs; the other is to be started."""
    ports = find_ports(2)
    processes = []
    for name, port in zip((STAYS, LOST), ports, strict=True):
        there = link if name == LOST else None
        host = "127.0.0.1" if there is None else there.address
        options = shape.build_engine(name, str(directory / f"{name}.jsonl"), host, port)
        processes.append(SimProcess(options, () if there is None else there.within))
    async with AsyncExitStack() as opened:
        for process in processes:
            opened.push_async_callback(process.stop)
        await processes[0].start()
        yield Engines(processes[0], processes[1], directory, link)


async def wait_ready(front: Front, count: int) -> None:
    """Until so many replicas get new work."""
    async with asyncio.timeout(THERE_S):
        while await front.count_ready() != count:  # noqa: ASYNC110
            # Another process can only be asked again.
            await asyncio.sleep(0.05)


# --- the gateway ----------------------------------------------------------------------------------


class GatewayFront:
    """`envoy-ext run`, with what a configuration says by default but for the shape's few keys."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.gateway = gateway
        self.url = gateway.url

    async def count_ready(self) -> int:
        return sum(map(int, (await self.gateway.fetch_metrics("envoy_ext_replica_ready")).values()))


@contextlib.asynccontextmanager
async def run_gateway(shape: Shape, engines: Engines) -> AsyncIterator[GatewayFront]:
    pool = {
        "name": "chat",
        "models": ["sim"],
        "engine": "vllm",
        "capacity": {"concurrency": shape.slots},
        "replicas": engines.list_replicas(),
    }
    config = {
        "ingress": {"address": "127.0.0.1", "port": 0},
        "operations": {"port": 0},
        "envoy": {"concurrency": 1, "admin": {"port": 0}},
        "journal": {"path": str(engines.directory / "journal.db")},
        "shutdown": {"grace": "5s"},
        "pools": [pool],
        **shape.build_admission(),
    }
    async with GatewayProcess(config, engines.directory, find_envoy()) as gateway:
        yield GatewayFront(gateway)


# --- plain Envoy ----------------------------------------------------------------------------------


class PlainFront:
    """An Envoy with what people put before engines without a gateway for them."""

    def __init__(self, envoy: EnvoyProcess, url: str) -> None:
        self._envoy = envoy
        self.url = url

    async def count_ready(self) -> int:
        query = {"filter": f"^cluster.{CLUSTER}.membership_healthy$"}
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"{self._envoy.admin_url}/stats", params=query) as answer,
        ):
            return int((await answer.text()).rpartition(": ")[2])


@contextlib.asynccontextmanager
async def run_plain(engines: Engines) -> AsyncIterator[PlainFront]:
    envoy = EnvoyProcess(find_envoy(), build_plain(engines), engines.directory, concurrency=1)
    await envoy.start()
    try:
        yield PlainFront(envoy, f"http://{await envoy.find_listener(LISTENER)}")
    finally:
        await envoy.stop()


def build_plain(engines: Engines) -> dict[str, Any]:
    """Least requests, a health check a second, and two retries on what Istio retries by default
    (https://istio.io/latest/docs/concepts/traffic-management/#retries) and on any 5xx."""
    manager = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3"
        ".HttpConnectionManager",
        "stat_prefix": LISTENER,
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
                },
            }
        ],
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [
                        {
                            "match": {"prefix": "/"},
                            "route": {
                                "cluster": CLUSTER,
                                "timeout": "0s",
                                "retry_policy": {
                                    "retry_on": "5xx,reset,connect-failure,refused-stream",
                                    "num_retries": 2,
                                },
                            },
                        }
                    ],
                }
            ]
        },
    }
    endpoints = []
    for one in engines.list_replicas():
        there = urlsplit(one["url"])
        address = {"socket_address": {"address": there.hostname, "port_value": there.port}}
        endpoints.append({"endpoint": {"address": address}})
    cluster = {
        "name": CLUSTER,
        "type": "STATIC",
        "connect_timeout": "1s",
        "lb_policy": "LEAST_REQUEST",
        "health_checks": [
            {
                "timeout": "1s",
                "interval": "1s",
                "no_traffic_interval": "1s",
                "unhealthy_threshold": 2,
                "healthy_threshold": 1,
                "http_health_check": {"path": "/health"},
            }
        ],
        "load_assignment": {"cluster_name": CLUSTER, "endpoints": [{"lb_endpoints": endpoints}]},
    }
    listener = {
        "name": LISTENER,
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }
    return {
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}},
        "static_resources": {"listeners": [listener], "clusters": [cluster]},
    }
