"""A whole gateway for one test: simulated engines, the sidecar, a real Envoy; all on free ports.

The sidecar and the engines run in the test's own event loop, Envoy in a process of its own. What
Envoy logged is printed only when the test fails (pytest shows captured output then). When a test is
through with its gateway, nothing may be in flight and no bug of ours may have been contained.
"""

import asyncio
import contextlib
import logging
import os
import traceback
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai

from envoy_ext.adapters.envoy_process import find_envoy
from envoy_ext.adapters.journal_sqlite import SqliteJournal
from envoy_ext.config import Config, Sidecar, parse_config
from envoy_ext.config.model import DEFAULT_SIDECAR_SOCKET
from envoy_ext.domain.operation import Operation
from envoy_ext.services.live_exchange import LiveExchange
from envoy_ext.sim.engine import SimEngine
from envoy_ext.sim.options import SimOptions
from envoy_ext.sim.state import RequestRecord
from envoy_ext.stack import Stack

MODEL = "sim"
WAIT_S = 10.0


class BugLog(logging.Handler):
    """Keeps what the sidecar logged as a bug of ours, so that a failed test says which one."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == "bug" and record.exc_info is not None:
            self.seen.append("".join(traceback.format_exception(*record.exc_info)))


class Gateway:
    """What a test speaks to."""

    def __init__(self, stack: Stack, engines: dict[str, SimEngine]) -> None:
        self.stack = stack
        self.engines = engines
        self.bugs = BugLog()
        # No decompression: a test that cares for bytes sees those of the wire. No limit and no
        # reuse: a connection that one test leaves behind is no other test's.
        self.http = aiohttp.ClientSession(
            auto_decompress=False,
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=60),
        )

    @property
    def url(self) -> str:
        """Where clients connect."""
        return self.stack.ingress_url

    def openai(self, **options: Any) -> openai.AsyncOpenAI:
        """The real client; it does not retry unless asked to."""
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", **{"api_key": "k", "max_retries": 0, **options})

    def find_requests(self, request_id: str) -> list[RequestRecord]:
        """What reached the engines of one request, over all attempts, in order."""
        found = [record for engine in self.engines.values() for record in engine.find_requests(request_id)]
        return sorted(found, key=lambda record: record.started_at)

    async def wait_operation(self, request_id: str) -> dict[str, Any]:
        """The operation of a request, once its end and those of its attempts are in the journal."""
        async with asyncio.timeout(WAIT_S):
            while True:
                operation = await self.find_operation(request_id)
                if operation and operation["ended_at"] and all(a["ended_at"] for a in operation["attempts"]):
                    return operation
                await asyncio.sleep(0.02)

    async def find_operation(self, request_id: str) -> dict[str, Any] | None:
        """The operation of a request as the journal has it at this moment."""
        url = f"{self.stack.operations_url}/v1/operations"
        async with (
            aiohttp.ClientSession() as http,
            http.get(url, params={"limit": "200"}) as answer,
        ):
            listed = (await answer.json())["operations"]
        return next((one for one in listed if one["request_id"] == request_id), None)

    async def read_envoy_stats(self, pattern: str) -> dict[str, int]:
        """Envoy's own counters whose names match."""
        async with aiohttp.ClientSession() as http:
            url = f"{self.stack.envoy.admin_url}/stats"
            async with http.get(url, params={"filter": pattern}) as answer:
                lines = (await answer.text()).splitlines()
        return {
            name: int(value) for name, _, value in (line.partition(": ") for line in lines) if value.isdigit()
        }

    async def wait_let_out(self, request_id: str | None) -> None:
        """Until a part of an answer was let out to the client, or none is going to be.

        What Envoy has not let out when the connection to a replica breaks may be lost with it. On a busy
        machine that is all of it, and the request is refused or replayed, and not interrupted.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                while not all(live.exchange.partly_delivered for live in self._find_live(request_id)):
                    await asyncio.sleep(0.005)

    def _find_live(self, request_id: str | None) -> list[LiveExchange]:
        live = self.stack.app.exchanges._live.values()
        return [one for one in live if one.exchange.identity.request_id == request_id]

    async def wait_idle(self) -> None:
        """Until nothing is in flight and no end evidence is waited for."""
        async with asyncio.timeout(WAIT_S):
            await self.stack.app.exchanges.wait_idle()

    def read_metric(self, name: str, **labels: str) -> float:
        """One of the sidecar's own metrics; a series that is not there is a mistake of the test."""
        value = self.stack.app.registry.get_sample_value(name, labels)
        assert value is not None, f"no series {name} {labels}"
        return value

    async def assert_clean(self) -> None:
        """Nothing in flight, here or at an engine; no slot held; no bug; Envoy still runs."""
        await self.wait_idle()
        assert self.stack.app.queues.idle
        assert self.bugs.seen == []
        assert self.read_metric("envoy_ext_bugs_total") == 0
        for pool in self.stack.config.pools:
            for phase in ("queued", "prefill", "decode"):
                assert self.read_metric("envoy_ext_inflight", pool=pool.name, phase=phase) == 0
        assert await self.read_envoy_stats("^server.live$") == {"server.live": 1}


def build_config(engines: dict[str, SimEngine], directory: Path, **sections: Any) -> Config:
    """A configuration for these engines on free ports.

    `sections` replace or extend top-level keys; `readiness`, `circuit`, `capacity` and `discovery` are the
    pool's.
    """
    replicas = [{"id": name, "url": engine.url} for name, engine in engines.items()]
    data: dict[str, Any] = {
        "ingress": {"address": "127.0.0.1", "port": 0},
        "operations": {"port": 0},
        "envoy": {"concurrency": 1, "admin": {"port": 0}},
        "journal": {"path": str(directory / "journal.db")},
        "shutdown": {"grace": "0s"},
        # Engines, clients and sidecar share one loop here, and perhaps a busy machine: it may be late.
        "limits": {"max_event_loop_lag": 0},
        "pools": [{"name": "chat", "models": [MODEL], "engine": "vllm", "replicas": replicas}],
    }
    # Requests of these tests ask for their failures one by one, as often as no replica survives it.
    data["pools"][0]["circuit"] = {"enabled": False}
    for name in ("readiness", "circuit", "capacity"):
        if name in sections:
            data["pools"][0][name] = sections.pop(name)
    if "discovery" in sections:
        data["pools"][0] |= {"discovery": sections.pop("discovery"), "replicas": []}
    data["limits"] |= sections.pop("limits", {})
    return parse_config({**data, **sections}, "test")


def build_unwatched_pool(urls: dict[str, str], engine: str = "vllm") -> dict[str, Any]:
    """The section of a pool whose replicas nobody looks at: no control call reaches them."""
    return {
        "name": "chat",
        "models": [MODEL],
        "engine": engine,
        "replicas": [{"id": name, "url": url} for name, url in urls.items()],
        "readiness": {"watch": False},
        "circuit": {"enabled": False},
    }


@contextlib.asynccontextmanager
async def run_gateway(
    directory: Path,
    names: str = "ab",
    *,
    engine: dict[str, Any] | None = None,
    unequal: dict[str, dict[str, Any]] | None = None,
    **sections: Any,
) -> AsyncIterator[Gateway]:
    """Start everything; end everything. `engine` are SimOptions for all, `unequal` for one by its name."""
    options = {"models": (MODEL,), "tokens": 6, "token_s": 0.01, "prefill_s": 0.02, **(engine or {})}
    async with contextlib.AsyncExitStack() as opened:
        engines = {
            name: await opened.enter_async_context(
                SimEngine(SimOptions(name=name, **{**options, **(unequal or {}).get(name, {})}))
            )
            for name in names
        }
        config = build_config(engines, directory, **sections)
        yield await opened.enter_async_context(run_stack(config, engines))


@contextlib.asynccontextmanager
async def run_stack(config: Config, engines: dict[str, SimEngine]) -> AsyncIterator[Gateway]:
    """The gateway alone, in front of engines that somebody else starts and ends."""
    if os.environ.get("TRANSPORT") == "grpc_aio":  # make with-envoy TRANSPORT=grpc_aio
        sidecar = Sidecar(socket=DEFAULT_SIDECAR_SOCKET, transport="grpc_aio")
        config = config.model_copy(update={"sidecar": sidecar})
    async with contextlib.AsyncExitStack() as opened:
        stack = Stack(config, find_envoy())
        try:
            await opened.enter_async_context(stack)
            gateway = Gateway(stack, engines)
            logging.getLogger("envoy_ext").addHandler(gateway.bugs)
            opened.callback(logging.getLogger("envoy_ext").removeHandler, gateway.bugs)
            opened.push_async_callback(gateway.http.close)
            for engine in engines.values():
                engine.state.wait_before_loss = lambda record: gateway.wait_let_out(record.request_id)
            yield gateway
            await gateway.assert_clean()
        finally:
            if stack.envoy.log_path.exists():
                print(stack.envoy.log_path.read_text(errors="replace"))


async def read_journal(path: str) -> dict[str, Operation]:
    """All operations in the journal of a sidecar that has stopped, by request id."""
    journal = await SqliteJournal.open(path)
    try:
        operations = await journal.list_recent(1000)
    finally:
        await journal.close()
    found = {operation.request_id: operation for operation in operations}
    assert len(found) == len(operations), "a request id stands twice"
    return found
