"""Sidecar and Envoy as processes of their own: either can die without the other. Engines live in the test."""

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

from envoy_ext.adapters.envoy_process import EnvoyProcess, find_envoy
from envoy_ext.bootstrap.render import render_bootstrap
from envoy_ext.config import load_config
from envoy_ext.operations_client import fetch_replicas
from envoy_ext.sim.engine import SimEngine
from envoy_ext.sim.options import SimOptions
from tests.support.commands import Command, command
from tests.with_envoy.asking import CHAT, build_body


@dataclass(slots=True)
class Apart:
    """Sidecar and Envoy as two people would start them; the engines live with the test."""

    url: str
    config: Path
    envoy: EnvoyProcess
    engines: list[SimEngine]
    http: aiohttp.ClientSession

    @contextlib.asynccontextmanager
    async def sidecar(self) -> AsyncIterator[tuple[Command, str]]:
        """A sidecar whose replicas are ready, and the URL of its operations port."""
        told_before, _ = await self.read_endpoints()
        async with command("serve", "-c", str(self.config)) as serving:
            line = await serving.read_line("serves")
            url = f"http://127.0.0.1:{line.rpartition(' ')[2]}"
            async with asyncio.timeout(10):
                while not all(one["ready"] for one in await fetch_replicas(url)):
                    await asyncio.sleep(0.02)
                # What Envoy has may be of the sidecar before, whose word this one's takes the place of.
                while self.url:
                    told, healthy = await self.read_endpoints()
                    if told > told_before and healthy == 2:
                        break
                    await asyncio.sleep(0.02)
            yield serving, url

    async def read_endpoints(self) -> tuple[int, int]:
        """How often Envoy, once it runs, was told of endpoints, and how many of them are ready."""
        if not self.url:
            return 0, 0
        parameters = {"filter": "^cluster.pool_chat.(update_success|membership_healthy)$"}
        async with self.http.get(f"{self.envoy.admin_url}/stats", params=parameters) as answer:
            lines = (await answer.text()).splitlines()
        stats = {name.rpartition(".")[2]: int(value) for name, _, value in (x.partition(": ") for x in lines)}
        return stats["update_success"], stats["membership_healthy"]

    async def post(self, request_id: str, fault: str = "", **headers: str) -> aiohttp.ClientResponse:
        sent = {"x-request-id": request_id, "x-sim-fault": fault, **headers}
        return await self.http.post(self.url + CHAT, json=build_body(), headers=sent)

    async def ask(self, request_id: str, fault: str = "", **headers: str) -> tuple[int, bytes]:
        """An answer read to its end."""
        async with await self.post(request_id, fault, **headers) as answer:
            return answer.status, await answer.read()

    async def wait_engines(self, request_id: str, ended: str | None, tokens: int = 0) -> None:
        """Until an engine's record of a request has come so far."""

        def reached(engine: SimEngine) -> bool:
            return any(
                one.ended == ended and one.tokens_sent >= tokens for one in engine.find_requests(request_id)
            )

        async with asyncio.timeout(10):
            waits = [asyncio.ensure_future(e.state.wait_until(lambda e=e: reached(e))) for e in self.engines]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()


@contextlib.asynccontextmanager
async def run_apart(
    resources: str = "static",
    engine: dict[str, Any] | None = None,
    pool: dict[str, Any] | None = None,
    **sections: Any,
) -> AsyncIterator[Apart]:
    """Two engines, with these options, and an Envoy that knows of them from a sidecar that is gone again."""
    # Not pytest's own directory: a socket's path has room for 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="envoy-ext-test-"))
    async with contextlib.AsyncExitStack() as opened:
        opened.callback(shutil.rmtree, directory, ignore_errors=True)
        engines = [
            await opened.enter_async_context(SimEngine(SimOptions(name=name, **(engine or {}))))
            for name in "ab"
        ]
        replicas = [{"id": engine.options.name, "url": engine.url} for engine in engines]
        config = directory / "config.yaml"
        config.write_text(
            json.dumps(  # which is YAML, too
                {
                    "ingress": {"address": "127.0.0.1", "port": 0},
                    "operations": {"port": 0},
                    "sidecar": {"socket": str(directory / "sidecar.sock")},
                    "envoy": {"admin": {"port": 0}, "resources": resources},
                    "journal": {"path": str(directory / "journal.db"), **sections.pop("journal", {})},
                    **sections,
                    "pools": [
                        {
                            "name": "chat",
                            "models": ["sim"],
                            "engine": "vllm",
                            "replicas": replicas,
                            **(pool or {}),
                        }
                    ],
                }
            )
        )
        envoy = EnvoyProcess(find_envoy(), render_bootstrap(load_config(config)), directory, concurrency=1)
        opened.push_async_callback(envoy.stop)
        http = await opened.enter_async_context(
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30))
        )
        apart = Apart("", config, envoy, engines, http)
        # What Envoy serves with comes from a sidecar, and stays without one. In either form its endpoints do,
        # and it would wait 15 s for the first word on them.
        async with apart.sidecar():
            await envoy.start()
        apart.url = f"http://{await envoy.find_listener('ingress')}"
        yield apart
