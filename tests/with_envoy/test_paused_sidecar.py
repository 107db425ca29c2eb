"""A sidecar that was stopped and continued: who did not run for a while ejects nobody for it."""

import asyncio
import contextlib
import json
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from envoy_ext.operations_client import fetch_replicas
from envoy_ext.sim.engine import SimEngine
from envoy_ext.sim.options import SimOptions
from tests.support.commands import command

STALE_S = 15.0
PAUSE_S = STALE_S + 1.0
WAIT_S = 20.0
NO_WAY_THERE = "http://255.255.255.255:9/metrics"
"""The kernel refuses to send there: a weak sign, and one that comes at once."""


async def wait_states(url: str, *states: str) -> list[dict[str, Any]]:
    """Until all replicas are in one of these states."""
    async with asyncio.timeout(WAIT_S):
        while True:
            replicas: list[dict[str, Any]] = await fetch_replicas(url)
            if all(one["state"] in states for one in replicas):
                return replicas
            await asyncio.sleep(0.05)


async def count_failures(url: str) -> dict[str, float]:
    """Looks that gave nothing so far, by replica."""
    async with aiohttp.ClientSession() as http, http.get(url + "/metrics") as answer:
        page = await answer.text()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == "envoy_ext_scrape_failures_total":
                replica = sample.labels["replica"]
                found[replica] = found.get(replica, 0) + sample.value
    return found


async def test_a_sidecar_that_is_stopped_for_longer_than_its_patience_takes_nobody_out() -> None:
    """No page of theirs can be had, so all that speaks for the replicas is that little time has passed."""
    async with contextlib.AsyncExitStack() as opened:
        engines = [await opened.enter_async_context(SimEngine(SimOptions(name=name))) for name in "ab"]
        # Not pytest's own: a socket's path has room for 107 bytes.
        directory = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="envoy-ext-test-")))
        config = directory / "config.yaml"
        pool = {
            "name": "chat",
            "models": ["sim"],
            "engine": "vllm",
            "readiness": {"watch": True, "scrape": "200ms", "stale": f"{STALE_S:g}s", "hold": "400ms"},
            "replicas": [
                {"id": engine.options.name, "url": engine.url, "metrics_url": NO_WAY_THERE}
                for engine in engines
            ],
        }
        config.write_text(
            json.dumps(
                {
                    "operations": {"port": 0},
                    "sidecar": {"socket": str(directory / "sidecar.sock")},
                    "journal": {"store": "memory"},
                    "pools": [pool],
                }
            )
        )
        async with command("serve", "-c", str(config)) as serving:
            url = f"http://127.0.0.1:{(await serving.read_line('serves')).rpartition(' ')[2]}"
            began = time.monotonic()
            await wait_states(url, "warming", "ready")

            serving.process.send_signal(signal.SIGSTOP)
            stopped = time.monotonic()
            await asyncio.sleep(PAUSE_S)
            woke = time.monotonic()
            serving.process.send_signal(signal.SIGCONT)

            seen = await count_failures(url)
            async with asyncio.timeout(WAIT_S):
                while any(count < seen[name] + 3 for name, count in (await count_failures(url)).items()):
                    await asyncio.sleep(0.05)
            replicas = await fetch_replicas(url)
            ran_s = stopped - began + time.monotonic() - woke
            assert ran_s < STALE_S, "the machine was too slow for this to mean anything"
            assert [(one["id"], one["ready"]) for one in replicas] == [("a", True), ("b", True)]
            assert await serving.end(signal.SIGTERM) == 0
