"""What it costs the sidecar to look at 500 replicas once a second, as a share of one core.

    python bench/scrape_cost.py [--replicas 500] [--seconds 20] [--fleet vllm] [--json FILE]

One run, four processes: the replicas (real recorded pages with moving numbers, over real HTTP on
loopback); the whole sidecar as `app` builds it, with one xDS stream that takes its endpoints; a
reference, aiohttp and prometheus_client's parser, that reads a part of the same fleet at the same
time; and this one, which carries the xDS stream. Only the sidecar's own CPU time counts, all its
threads together. Two fleets are measured, one after the other: `vllm`, the largest pages there are,
for all replicas; and `mixed`, a third each of vLLM, SGLang and llama.cpp.

A machine that is busy with other things looks less often and pays more for a look, so the cost of a
look is also given times the rate that was asked for. Quote the ratios, and look at the load.
"""

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import grpc
import yaml

from envoy_ext.domain import names
from envoy_ext.xds.dialects import DELTA
from envoy_ext.xds.kinds import Kind

ROOT = Path(__file__).parent.parent
FLEETS = {"vllm": ("vllm",), "mixed": ("vllm", "sglang", "llamacpp")}
SETTLE_S = 5.0
"""From the last control call to the first window: pages come in their usual order by then."""
REFERENCE_REPLICAS = 20


class Process:
    """A child that answers each line with a line of JSON."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask(self, line: str = "") -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        return await self.read()

    async def read(self) -> Any:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a process of the benchmark ended: {await self._process.wait()}")
        return json.loads(line)


@contextlib.asynccontextmanager
async def start(module: str, *arguments: str) -> AsyncIterator[Process]:
    """Run a module of the benchmark until the block ends."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        f"bench.scrape.{module}",
        *arguments,
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 20,
    )
    try:
        yield Process(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(20):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def write_config(path: Path, engines: list[str], urls: list[str]) -> None:
    """A pool for each engine, as the documentation has it."""
    pools = []
    for engine in sorted(set(engines)):
        replicas = [{"url": url} for url, its in zip(urls, engines, strict=True) if its == engine]
        watch = {"watch": True}
        pools.append(
            {"name": engine, "models": [engine], "engine": engine, "readiness": watch, "replicas": replicas}
        )
    config = {
        "pools": pools,
        "envoy": {"endpoints": "xds"},
        "journal": {"store": "memory"},
        "operations": {"port": 0},
        "sidecar": {"socket": str(path.parent / "sidecar.sock")},
    }
    path.write_text(yaml.safe_dump(config))


class Stream:
    """An xDS stream that takes every assignment, as Envoy does."""

    def __init__(self) -> None:
        self.pushes = 0
        self.bytes = 0

    async def run(self, address: str, pools: list[str]) -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.stream_stream(
                DELTA.method,
                request_serializer=DELTA.request.SerializeToString,
                response_deserializer=DELTA.response.FromString,
            )()
            request = DELTA.request(type_url=Kind.EDS.type_url)
            request.resource_names_subscribe.extend(names.POOL_CLUSTER_PREFIX + pool for pool in pools)
            await call.write(request)
            async for response in call:
                self.pushes += 1
                self.bytes += response.ByteSize()
                await call.write(DELTA.request(type_url=Kind.EDS.type_url, response_nonce=response.nonce))


async def measure(fleet: str, count: int, seconds: float) -> dict[str, Any]:
    """One fleet's figures."""
    engines = [FLEETS[fleet][number % len(FLEETS[fleet])] for number in range(count)]
    stream = Stream()
    async with contextlib.AsyncExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        replicas = await opened.enter_async_context(start("replicas"))
        urls = await replicas.ask(json.dumps(engines))
        write_config(folder / "config.yaml", engines, urls)
        sidecar = await opened.enter_async_context(start("sidecar", str(folder / "config.yaml")))
        await sidecar.read()
        taking = asyncio.create_task(stream.run(f"unix:{folder / 'sidecar.sock'}", sorted(set(engines))))
        opened.callback(taking.cancel)
        few = min(count, REFERENCE_REPLICAS)
        reference = await opened.enter_async_context(start("reference", *urls[:few]))
        await reference.read()
        await asyncio.sleep(min(SETTLE_S, seconds))
        asked, pushes = await replicas.ask(), stream.pushes
        ours, theirs = await asyncio.gather(sidecar.ask(f"cpu {seconds}"), reference.ask(f"cpu {seconds}"))
        served = await replicas.ask()
        pushes = stream.pushes - pushes
        loop = await sidecar.ask(f"loop {seconds / 2}")
    looks, reference_looks = ours["calls parse"], theirs["calls parse"]
    us_per_look, reference_us = 1e6 * ours["cpu_s"] / looks, 1e6 * theirs["cpu_s"] / reference_looks
    reference_parse_s = theirs["share parse"] * theirs["wall_s"]
    parts = {name.removeprefix("share "): ours[name] for name in ours if name.startswith("share ")}
    return {
        "fleet": fleet,
        "replicas": count,
        "looks_per_s": looks / ours["wall_s"],
        "share_of_a_core": ours["share"],
        "share_at_full_rate": us_per_look * count / 1e6,
        "parts": {"HTTP, event loop": ours["share"] - sum(parts.values()), **parts},
        "us_per_look": us_per_look,
        "reference_us_per_look": reference_us,
        "reference_http_us_per_look": reference_us - 1e6 * reference_parse_s / reference_looks,
        "ratio": reference_us / us_per_look,
        "pushes_per_s": pushes / ours["wall_s"],
        "control_calls_before": asked["control_calls"],
        "control_calls_meanwhile": served["control_calls"] - asked["control_calls"],
        "loop": loop,
    }


def report(found: dict[str, Any]) -> None:
    print(f"{found['fleet']}: {found['replicas']} replicas, {found['looks_per_s']:.0f} looks a second")
    print(
        f"  {'sidecar, all of it':28}{100 * found['share_of_a_core']:>7.1f} % of one core; "
        f"{100 * found['share_at_full_rate']:.1f} % with {found['replicas']} looks a second"
    )
    for name, share in sorted(found["parts"].items(), key=lambda part: -part[1]):
        print(f"    {name:26}{100 * share:>7.1f} %")
    print(
        f"  a look: {found['us_per_look']:.0f} us; aiohttp + prometheus_client: "
        f"{found['reference_us_per_look']:.0f} us, {found['ratio']:.1f} times as much "
        f"({found['reference_http_us_per_look']:.0f} us of it aiohttp)"
    )
    print(
        f"  pushes {found['pushes_per_s']:.1f} a second; control calls "
        f"{found['control_calls_before']} at first, {found['control_calls_meanwhile']} in the window"
    )
    loop = found["loop"]
    print(
        f"  event loop: a timer is late by {loop['late_p50_ms']:.2f} ms at p50, "
        f"{loop['late_p99_ms']:.1f} at p99, {loop['late_max_ms']:.1f} at most\n"
    )


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replicas", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--fleet", choices=FLEETS, action="append")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    found = []
    for fleet in given.fleet or FLEETS:
        found.append(await measure(fleet, given.replicas, given.seconds))
        report(found[-1])
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
