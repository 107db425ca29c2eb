"""A real Envoy with little more than a node id, ADS and an admin port, between our hub and small replicas."""

import asyncio
import contextlib
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from envoy_ext.adapters.ads import AdsHub
from envoy_ext.adapters.envoy_process import EnvoyProcess, find_envoy
from envoy_ext.xds.dialects import DELTA, STATE_OF_THE_WORLD, Dialect
from envoy_ext.xds.kinds import Kind
from envoy_ext.xds.session import Nacked, Note
from envoy_ext.xds.snapshot import Snapshot
from tests.xds.carrier import AdsServer

WAIT_S = 20.0
LISTENER = "in"
ADS = {"ads": {}, "resource_api_version": "V3"}


class Replica:
    """Answers every request with its name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.port = 0

    async def __aenter__(self) -> "Replica":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{self.name}".encode())
                await writer.drain()
        writer.close()


@dataclass
class Seen:
    """One request, as the client and as Envoy saw it."""

    status: int
    replica: str
    flags: str


class Lab:
    """What a test speaks to."""

    def __init__(self, dialect: Dialect, directory: Path, envoy: EnvoyProcess, access_log: Path) -> None:
        self.dialect = dialect
        self.envoy = envoy
        self.notes: list[Note] = []
        self._address = f"unix:{directory}/xds.sock"
        self._access_log = access_log
        self._requests = 0
        self.bugs: list[object] = []

    async def start_server(self) -> None:
        """A hub and a server that know nothing of any before."""
        self.hub = AdsHub(self.notes.append, lambda *bug: self.bugs.append(bug))
        self.server = AdsServer(self.hub)
        await self.server.start(self._address)

    def use_access_log(self, path: Path) -> None:
        """Where the listener that we serve logs to."""
        self._access_log = path

    async def offer(self, snapshot: Snapshot) -> None:
        """Publish, and wait until Envoy has answered to all of it, with yes or no."""
        self.hub.publish(snapshot)
        await self.wait(lambda: self.hub.statistics().settled == 1)

    async def wait(self, holds: Callable[[], bool]) -> None:
        """Until something holds that Envoy's messages bring about."""
        await asyncio.sleep(0)
        async with asyncio.timeout(WAIT_S):
            while not holds():
                await asyncio.sleep(0.01)

    def list_refusals(self) -> list[Nacked]:
        return [note for note in self.notes if isinstance(note, Nacked)]

    def list_sent(self, kind: Kind) -> list[Any]:
        """The answers of a kind since the server was started."""
        return [
            one
            for one in self.server.log
            if isinstance(one, self.dialect.response) and one.type_url == kind.type_url
        ]

    async def read_admin(self, path: str) -> Any:
        async with aiohttp.ClientSession() as http, http.get(f"{self.envoy.admin_url}/{path}") as answer:
            return await answer.json()

    async def list_hosts(self, cluster: str) -> dict[int, tuple[str, int]]:
        """Port -> health and weight, as Envoy has them."""
        statuses = (await self.read_admin("clusters?format=json"))["cluster_statuses"]
        hosts = next(one.get("host_statuses", []) for one in statuses if one["name"] == cluster)
        return {
            one["address"]["socket_address"]["port_value"]: (
                one["health_status"]["eds_health_status"],
                one["weight"],
            )
            for one in hosts
        }

    async def read_stat(self, name: str) -> int:
        stats = (await self.read_admin(f"stats?format=json&filter=^{name}$"))["stats"]
        return int(stats[0]["value"]) if stats else 0

    async def ask(self, count: int = 1, *, host: str = "chat") -> list[Seen]:
        """Requests, one after another."""
        url = f"http://{await self.envoy.find_listener(LISTENER)}/"
        seen = []
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=WAIT_S)) as http:
            for _ in range(count):
                async with http.get(url, headers={"host": host}) as answer:
                    seen.append((answer.status, await answer.text()))
        self._requests += count
        lines: list[str] = []
        async with asyncio.timeout(WAIT_S):
            while len(lines) < self._requests:
                await asyncio.sleep(0.02)
                lines = self._access_log.read_text().splitlines()
        flags = lines[self._requests - count : self._requests]
        return [Seen(status, text, flag) for (status, text), flag in zip(seen, flags, strict=True)]

    async def ask_whom(self, count: int, *, host: str = "chat") -> Counter[str]:
        """Which replicas answered; every request must be."""
        seen = await self.ask(count, host=host)
        assert {one.status for one in seen} == {200}
        return Counter(one.replica for one in seen)


def build_manager(routes: dict[str, Any], access_log: Path) -> dict[str, Any]:
    return {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3"
        ".HttpConnectionManager",
        "stat_prefix": "in",
        **routes,
        "access_log": [
            {
                "name": "file",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
                    "path": str(access_log),
                    "log_format": {"text_format_source": {"inline_string": "%RESPONSE_FLAGS%\n"}},
                },
            }
        ],
        "http_filters": [
            {
                "name": "router",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
                },
            }
        ],
    }


def build_listener(routes: dict[str, Any], access_log: Path) -> dict[str, Any]:
    """A listener on a free port; `routes` is `route_config` or `rds`."""
    manager = {"name": "http", "typed_config": build_manager(routes, access_log)}
    return {
        "name": LISTENER,
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
        "filter_chains": [{"filters": [manager]}],
    }


def build_cluster(name: str, **more: Any) -> dict[str, Any]:
    """A cluster that takes its endpoints from us."""
    return {
        "name": name,
        "type": "EDS",
        "eds_cluster_config": {"eds_config": ADS},
        "connect_timeout": "5s",
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        **more,
    }


def build_bootstrap(dialect: Dialect, directory: Path, **more: Any) -> dict[str, Any]:
    """Node id, ADS, admin and the one cluster that leads to us; `more` goes into `static_resources`,
    and without any of it clusters and listeners come from us as well."""
    server = {
        "name": "xds",
        "type": "STATIC",
        "load_assignment": {
            "cluster_name": "xds",
            "endpoints": [
                {"lb_endpoints": [{"endpoint": {"address": {"pipe": {"path": f"{directory}/xds.sock"}}}}]}
            ],
        },
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        },
    }
    api = {STATE_OF_THE_WORLD.method: "GRPC", DELTA.method: "DELTA_GRPC"}[dialect.method]
    ads = {
        "api_type": api,
        "transport_api_version": "V3",
        "grpc_services": [{"envoy_grpc": {"cluster_name": "xds"}}],
    }
    roots = {} if more else {"cds_config": ADS, "lds_config": ADS}
    return {
        "node": {"id": "edge-1", "cluster": "edge"},
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}},
        "dynamic_resources": {"ads_config": ads, **roots},
        "static_resources": {"clusters": [server, *more.pop("clusters", [])], **more},
    }


@contextlib.asynccontextmanager
async def run_lab(
    dialect: Dialect, snapshot: Snapshot, *, static: Callable[[Path], dict[str, Any]] = lambda _: {}
) -> AsyncIterator[Lab]:
    """A server that offers this, and an Envoy that takes it."""
    directory = Path(tempfile.mkdtemp(prefix="envoy-ext-"))  # short: sockets have short paths
    access_log = directory / "access.log"
    bootstrap = build_bootstrap(dialect, directory, **static(access_log))
    envoy = EnvoyProcess(find_envoy(), bootstrap, directory, concurrency=1)
    lab = Lab(dialect, directory, envoy, access_log)
    await lab.start_server()
    try:
        lab.hub.publish(snapshot)
        await envoy.start()
        yield lab
        assert lab.bugs == []
        assert (await lab.read_admin("server_info"))["state"] == "LIVE"
    finally:
        await envoy.stop()
        await lab.server.stop()
        print(envoy.log_path.read_text(errors="replace"))
        shutil.rmtree(directory, ignore_errors=True)
