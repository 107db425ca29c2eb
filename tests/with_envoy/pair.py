"""Two gateways, each with an Envoy of its own, in front of the same engines, and one journal that they share.

The sidecars are processes; the engines run in the test's own event loop.
"""

import asyncio
import contextlib
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from multidict import CIMultiDictProxy

from envoy_ext.adapters.envoy_process import EnvoyProcess, find_envoy
from envoy_ext.bootstrap.render import render_bootstrap
from envoy_ext.config import load_config, parse_config
from envoy_ext.domain.operation import Operation
from envoy_ext.operations_client import fetch_replicas
from envoy_ext.sim.engine import SimEngine
from envoy_ext.sim.options import SimOptions
from envoy_ext.wiring.journal import open_journal
from tests.support.commands import Command, command
from tests.support.redis_server import RedisServer, redis_server
from tests.with_envoy.asking import CHAT, build_body, mint_request_id

Journal = dict[str, Any]
"""The section of a configuration."""
POOL_OF_NOBODY = [{"name": "chat", "models": ["sim"], "replicas": [{"url": "http://127.0.0.1:1"}]}]
TTL_S, RENEW_S, MARGIN_S = 2.0, 0.5, 0.5
WAIT_S = 20.0


@dataclass(slots=True)
class Answer:
    status: int
    body: bytes
    headers: CIMultiDictProxy[str]

    @property
    def code(self) -> str:
        """Of the error that the body holds; "" for an answer."""
        return str(json.loads(self.body)["error"]["code"]) if self.status != 200 else ""

    @property
    def whole(self) -> bool:
        return self.status == 200 and self.body.endswith(b"data: [DONE]\n\n")


@dataclass(slots=True)
class Edge:
    """One gateway: a sidecar as a process, and its Envoy."""

    serving: Command
    operations_url: str
    url: str
    http: aiohttp.ClientSession

    async def ask(
        self, request_id: str, key: str, fault: str = "", *, stream: bool = True, **headers: str
    ) -> Answer:
        """One request, read to its end."""
        async with self.asking(request_id, key, fault, stream=stream, **headers) as answer:
            return Answer(answer.status, await answer.read(), answer.headers)

    @contextlib.asynccontextmanager
    async def asking(
        self, request_id: str, key: str, fault: str = "", *, stream: bool = True, **headers: str
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer that is still coming in when the block begins."""
        sent = {"x-request-id": request_id, "x-sim-fault": fault, "idempotency-key": key, **headers}
        body = build_body(stream=stream)
        async with self.http.post(self.url + CHAT, json=body, headers=sent) as answer:
            yield answer

    async def ask_until(self, key: str, *codes: str) -> Answer:
        """Repeat a key as an SDK does, for as long as it gets one of these codes."""
        async with asyncio.timeout(WAIT_S):
            while (answer := await self.ask(mint_request_id(), key)).code in codes:
                await asyncio.sleep(0.1)
        return answer

    async def read_ready(self) -> list[str]:
        """What stands against sending requests here."""
        async with self.http.get(self.operations_url + "/healthz/ready") as answer:
            failing: list[str] = (await answer.json())["failing"]
        return failing


@dataclass(slots=True)
class Pair:
    a: Edge
    b: Edge
    journal: Journal
    engines: list[SimEngine]
    redis: RedisServer | None = None
    """The store, where it is one that a test can stop."""

    def count_asked(self, *request_ids: str) -> int:
        """How many attempts of these requests have reached an engine."""
        return sum(len(engine.find_requests(one)) for engine in self.engines for one in request_ids)

    async def wait_asked(self, request_id: str) -> None:
        async with asyncio.timeout(WAIT_S):
            while not self.count_asked(request_id):
                await asyncio.sleep(0.01)

    async def read_operations(self, *request_ids: str) -> list[Operation]:
        """What the journal holds of these requests."""
        config = parse_config({"pools": POOL_OF_NOBODY, "journal": self.journal}, "test")
        store = await open_journal(config)
        try:
            found = {one.request_id: one for one in await store.list_recent(1_000)}
        finally:
            await store.close()
        return [found[request_id] for request_id in request_ids]

    async def wait_ended(self, request_id: str) -> Operation:
        """The operation of a request, once it has ended."""
        async with asyncio.timeout(WAIT_S):
            while True:
                (operation,) = await self.read_operations(request_id)
                if operation.ending is not None:
                    return operation
                await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def run_edge(
    directory: Path,
    journal: Journal,
    engines: list[SimEngine],
    http: aiohttp.ClientSession,
    sections: dict[str, Any],
) -> AsyncIterator[Edge]:
    directory.mkdir()
    config = directory / "config.yaml"
    data: dict[str, Any] = {
        "ingress": {"address": "127.0.0.1", "port": 0},
        "operations": {"port": 0},
        "sidecar": {"socket": str(directory / "s.sock")},
        "envoy": {"concurrency": 1, "admin": {"port": 0}},
        "journal": journal,
        "lease": {"ttl": f"{TTL_S:g}s", "renew": f"{RENEW_S:g}s", "margin": f"{MARGIN_S:g}s"},
        "shutdown": {"grace": "0s"},
        **sections,
        "pools": [
            {
                "name": "chat",
                "models": ["sim"],
                "engine": "vllm",
                "circuit": {"enabled": False},  # failures are asked for one by one, and often
                "replicas": [{"id": engine.options.name, "url": engine.url} for engine in engines],
            }
        ],
    }
    config.write_text(json.dumps(data))  # which is YAML, too
    async with contextlib.AsyncExitStack() as opened:
        serving = await opened.enter_async_context(command("serve", "-c", str(config)))
        operations_url = f"http://127.0.0.1:{(await serving.read_line('serves')).rpartition(' ')[2]}"
        envoy = EnvoyProcess(find_envoy(), render_bootstrap(load_config(config)), directory, concurrency=1)
        opened.push_async_callback(envoy.stop)
        await envoy.start()
        url = f"http://{await envoy.find_listener('ingress')}"
        async with asyncio.timeout(WAIT_S):
            while not all(one["ready"] for one in await fetch_replicas(operations_url)):
                await asyncio.sleep(0.02)
        yield Edge(serving, operations_url, url, http)


@contextlib.asynccontextmanager
async def run_pair(store: str, sections: dict[str, Any] | None = None, **options: Any) -> AsyncIterator[Pair]:
    """Two gateways at one store, `sqlite` or `redis`, with these sections beside their own; `options` are
    those of the engines."""
    # Not pytest's own directory: a socket's path has room for 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="envoy-ext-"))
    async with contextlib.AsyncExitStack() as opened:
        opened.callback(shutil.rmtree, directory, ignore_errors=True)
        options = {"tokens": 6, "token_s": 0.01, "prefill_s": 0.02, **options}
        engines = [
            await opened.enter_async_context(SimEngine(SimOptions(name=name, **options))) for name in "xy"
        ]
        timeout = aiohttp.ClientTimeout(total=60)
        connector = aiohttp.TCPConnector(limit=0)
        http = await opened.enter_async_context(aiohttp.ClientSession(timeout=timeout, connector=connector))
        journal: Journal = {"path": str(directory / "journal.db"), "shared": True}
        server = None
        if store == "redis":
            server = opened.enter_context(redis_server(directory / "redis", appendonly="yes"))
            journal = {"store": "redis", "url": server.url}
        starts = [run_edge(directory / name, journal, engines, http, sections or {}) for name in "ab"]
        a, b = await asyncio.gather(*(opened.enter_async_context(start) for start in starts))
        yield Pair(a, b, journal, engines, server)
