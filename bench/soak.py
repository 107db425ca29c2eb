"""Half an hour of everything that goes wrong at once, on a real Envoy: nothing of it may stay behind.

    python bench/soak.py [--minutes 30] [--transport native] [--seed N] [--json FILE]

Three engines that are killed and come back, `envoy-ext run` with Envoy, and clients: streams, short answers,
repeats under a key, jobs, answers that break before and behind their first delta, clients that leave in line,
in prefill and in mid-stream, and bursts that fill the line. Every 25 s the load rests until nothing is in
flight, and it is counted what there is: objects by type, allocated blocks, memory, descriptors, tasks,
gauges. Before all that as many streams are left as are remembered for a retry. `bench.inside.growth` has
the rule. Exit status 1 when something grows, or is left in flight.
"""

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import aiohttp

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.inside.growth import Growth, judge_all
from bench.inside.report import ask, count_descriptors, read_rss
from bench.load.fleet import Fleet
from bench.load.gateway import GatewayProcess
from envoy_ext.adapters.envoy_process import find_envoy
from envoy_ext.services.repeats import REMEMBERED

FREE: Final = "d"
"""An engine whose pool has slots for everybody."""
FILL_AT_ONCE: Final = 16
ROUND_S: Final = 25.0
CLIENTS: Final = 6
THINK_S: Final = (0.1, 0.8)
BURST: Final = 40
JOBS_S: Final = 20.0
UP_S: Final = (15.0, 60.0)
DOWN_S: Final = (0.5, 3.0)
GAUGES: Final = (
    "envoy_ext_inflight",
    "envoy_ext_queue_depth",
    "envoy_ext_background_tasks",
    "envoy_ext_jobs",
)
FAULTS: Final = ("#1:die_before_headers", "die_after=3", "#1:die_before_headers", "")


def build_config(replicas: list[dict[str, str]], directory: Path, transport: str) -> dict[str, Any]:
    """Small bounds, so that they are reached."""
    return {
        "ingress": {"address": "127.0.0.1", "port": 0},
        "operations": {"port": 0},
        "envoy": {"concurrency": 1, "admin": {"port": 0}},
        "sidecar": {"socket": str(directory / "sidecar.sock"), "transport": transport},
        "journal": {"store": "sqlite", "path": str(directory / "journal.db"), "max_operations": 2_000},
        # To be looked into stops the sidecar for a tenth of a second.
        "limits": {"max_event_loop_lag": 0},
        "lease": {"ttl": "1s", "renew": "400ms", "margin": "250ms"},
        "admission": {"queue": 12, "max_wait": "3s"},
        "jobs": {"max_age": "1m", "keep_results": "1m"},
        "pools": [
            {
                "name": "chat",
                "models": ["sim"],
                "engine": "vllm",
                "capacity": {"concurrency": 4},
                "replicas": [one for one in replicas if one["id"] != FREE],
            },
            {
                "name": "free",
                "models": ["free"],
                "engine": "vllm",
                "replicas": [one for one in replicas if one["id"] == FREE],
            },
        ],
    }


class Crowd:
    """The clients. What each saw is counted, not judged: other benchmarks do that."""

    def __init__(self, url: str, seed: int) -> None:
        self._url = f"{url}/v1/chat/completions"
        self._rng = random.Random(seed)
        self._numbers = 0
        self.seen: Counter[str] = Counter()

    async def fill(self) -> None:
        """As many streams that their clients leave as the sidecar remembers for a mesh's retry."""
        numbers = iter(range(REMEMBERED + FILL_AT_ONCE))

        async def leave_some(http: aiohttp.ClientSession) -> None:
            body = {"model": "free", "stream": True, "messages": [{"role": "user", "content": "x"}]}
            for number in numbers:
                async with http.post(
                    self._url, json=body, headers={"x-request-id": f"fill-{number}"}
                ) as answer:
                    await answer.content.readany()
                    answer.close()

        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as http, asyncio.TaskGroup() as group:
            for _ in range(FILL_AT_ONCE):
                group.create_task(leave_some(http))

    async def play(self, seconds: float) -> None:
        """For so long, and until all that were asked have their end."""
        stop_at = time.monotonic() + seconds
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(CLIENTS):
                group.create_task(self._ask_until(http, stop_at))
            await asyncio.sleep(seconds / 2)
            for _ in range(BURST):
                group.create_task(self._ask(http, "stream"))

    async def _ask_until(self, http: aiohttp.ClientSession, stop_at: float) -> None:
        kinds = ("stream", "short", "short", "short", "broken", "leave", "keyed", "job")
        while time.monotonic() < stop_at:
            await self._ask(http, self._rng.choice(kinds))
            await asyncio.sleep(self._rng.uniform(*THINK_S))

    async def _ask(self, http: aiohttp.ClientSession, kind: str) -> None:
        self._numbers += 1
        rng, name = self._rng, f"soak-{self._numbers}"
        headers = {"x-request-id": name}
        body: dict[str, Any] = {"model": "sim", "stream": kind != "keyed", "max_tokens": 20}
        body["messages"] = [{"role": "user", "content": f"{name} " + "x" * rng.randrange(2_000)}]
        if kind in ("short", "job"):
            body["max_tokens"] = 1
        if kind == "job":
            headers["prefer"] = "respond-async"
        if kind == "keyed":
            headers["idempotency-key"] = name
        if kind == "broken":
            headers["x-sim-fault"] = rng.choice(FAULTS)
        patience = rng.uniform(0.005, 0.3) if kind == "leave" else 60.0
        for number in range(2 if kind == "keyed" else 1):
            try:
                async with (
                    asyncio.timeout(patience),
                    http.post(self._url, json=body, headers=headers) as answer,
                ):
                    text = await answer.text()
                word = "interrupted" if "upstream_decode_interrupted" in text else str(answer.status)
            except TimeoutError:
                word = "left" if kind == "leave" else "hung"
            except aiohttp.ClientError as error:
                word = type(error).__name__
            self.seen[f"{kind}{' again' if number else ''}: {word}"] += 1


async def live_and_die(fleet: Fleet, seed: int) -> None:
    """Kill one engine after the other, and have it back; until cancelled."""
    rng = random.Random(seed)
    while True:
        await asyncio.sleep(rng.uniform(*UP_S))
        engine = rng.choice([one for one in fleet.engines if one.options.name != FREE])
        await engine.kill()
        fleet.kills += 1
        await asyncio.sleep(rng.uniform(*DOWN_S))
        await engine.start()


async def look(gateway: GatewayProcess, report: Path) -> dict[str, float]:
    """What there is, with nothing in flight."""
    await gateway.wait_idle()
    for name in GAUGES[1:]:
        async with asyncio.timeout(JOBS_S):
            while any((await gateway.fetch_metrics(name)).values()):  # noqa: ASYNC110
                # Another process can only be asked again.
                await asyncio.sleep(0.1)
    told = await ask(gateway.pid, report)
    found: dict[str, float] = {
        "rss": read_rss(gateway.pid),
        "envoy rss": read_rss(gateway.envoy_pid),
        "blocks": told.blocks,
        "objects": told.objects,
        "tasks": told.tasks,
        "descriptors": count_descriptors(gateway.pid),
        "envoy descriptors": count_descriptors(gateway.envoy_pid),
    }
    for name in GAUGES:
        for labels, value in (await gateway.fetch_metrics(name)).items():
            found[f"gauge: {name} {labels}".rstrip()] = value
    return found | {f"type: {name}": count for name, count in told.types.items()}


async def soak(
    minutes: float, transport: str, seed: int, directory: Path
) -> tuple[list[dict[str, float]], str]:
    """The samples, and what clients saw."""
    report = directory / "inside.json"
    speed = {"prefill_s": 0.05, "token_s": 0.02, "tokens": 20, "max_running": 4}
    async with Fleet("abc" + FREE, **speed) as fleet:
        config = build_config(fleet.replicas, directory, transport)
        program = ("bench.inside", str(report))
        async with GatewayProcess(config, directory, find_envoy(), program) as gateway:
            crowd = Crowd(gateway.url, seed)
            await crowd.fill()
            samples = [await look(gateway, report)]
            death = asyncio.create_task(live_and_die(fleet, seed))
            stop_at = time.monotonic() + 60 * minutes
            try:
                while time.monotonic() < stop_at:
                    await crowd.play(ROUND_S)
                    samples.append(await look(gateway, report))
                    shown = ("rss", "envoy rss", "blocks", "objects", "tasks", "descriptors")
                    journal = (directory / "journal.db").stat().st_size
                    print(
                        f"{len(samples) - 1:4}  "
                        + "  ".join(f"{name} {samples[-1][name]:,.0f}" for name in shown)
                        + f"  journal {journal:,}",
                        flush=True,
                    )
            finally:
                death.cancel()
                await asyncio.wait((death,))
            bugs = await gateway.fetch_metrics("envoy_ext_bugs_total")
            crowd.seen["bugs"] += int(sum(bugs.values()))
            text = ", ".join(f"{name} {count}" for name, count in sorted(crowd.seen.items()))
            return samples, f"{crowd._numbers} requests, {fleet.kills} engines killed\n{text}"


def tell(growths: list[Growth]) -> bool:
    """Print the verdict; whether nothing grows."""
    worst = sorted(growths, key=lambda one: (not one.grows, one.name.startswith(("type", "gauge")), one.name))
    for one in worst:
        if one.grows or not one.name.startswith(("type", "gauge")):
            print(
                f"{'GROWS' if one.grows else 'flat':6}{one.name:40}{one.first:16,.0f}{one.rise:+14,.1f}"
                f"   strays {one.strays:,.1f}, allowed {one.allowed:,.1f}"
            )
    print(f"{sum(not one.grows for one in growths)} of {len(growths)} figures are flat")
    return not any(one.grows for one in growths)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--transport", default="native", choices=("native", "grpc_aio"))
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with contextlib.ExitStack() as opened:
        directory = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="envoy-ext-soak-")))
        samples, seen = asyncio.run(soak(given.minutes, given.transport, given.seed, directory))
    print(f"seed {given.seed}; {seen}")
    if given.json is not None:
        given.json.write_text(json.dumps(samples))
    sys.exit(0 if tell(judge_all(samples)) else 1)


if __name__ == "__main__":
    main()
