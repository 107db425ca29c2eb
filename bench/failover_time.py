"""How long a request waits for its second attempt: behind a proof of death, and behind the fence.

    python bench/failover_time.py [--kills 120] [--cuts 20]

Two replicas behind one gateway. *Killed*: the one that computes a request is killed with SIGKILL, again
and again; from the signal until the request has arrived at the other one. *Cut*: its network is cut
under several requests at once, with the process alive; from the cut until they have arrived at the other
one. Both in one run, with default settings. The cut needs root and `ip`, and is left out without them.
"""

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import aiohttp

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.load.gateway import GatewayProcess
from envoy_ext.adapters.envoy_process import find_envoy
from envoy_ext.drills.cut_network import Link, find_obstacle, make_link
from envoy_ext.sim.engine import SimEngine
from envoy_ext.sim.options import SimOptions
from envoy_ext.sim.process import SimProcess

LOST: Final = "lost"
"""The name of the replica that is killed or cut; its requests hang until then."""
BODY: Final = {"model": "sim", "stream": True, "messages": [{"role": "user", "content": "x"}]}
COMPUTING_S: Final = (0.02, 0.2)
"""How long a request has been with its replica when that is killed."""


class Bench:
    """One gateway, the replica that stays, and the one that is lost."""

    def __init__(self, gateway: GatewayProcess, near: SimEngine, lost: SimProcess) -> None:
        self._gateway = gateway
        self._near = near
        self._lost = lost
        self._http = aiohttp.ClientSession()
        self._count = 0

    async def close(self) -> None:
        await self._http.close()

    async def begin(self) -> tuple[str, asyncio.Task[bytes]]:
        """A request that hangs at the replica which is about to be lost; Envoy takes turns."""
        while True:
            self._count += 1
            request_id = f"req-{self._lost.options.name}-{self._count}"
            task = asyncio.get_running_loop().create_task(self._ask(request_id))
            while not task.done():
                if await self._has_come(request_id):
                    return request_id, task
                await asyncio.sleep(0.005)
            await task

    async def _ask(self, request_id: str) -> bytes:
        headers = {"x-request-id": request_id, "x-sim-fault": f"{LOST}:hang"}
        url = f"{self._gateway.url}/v1/chat/completions"
        async with self._http.post(url, json=BODY, headers=headers) as answer:
            return await answer.read()

    async def _has_come(self, request_id: str) -> bool:
        async with self._http.get(f"{self._lost.url}/sim/requests") as answer:
            return any(one["request_id"] == request_id for one in (await answer.json())["requests"])

    async def wait_replayed(self, request_id: str, task: asyncio.Task[bytes]) -> float:
        """When it had arrived at the other replica, in Unix seconds."""
        body = await task
        if b"[DONE]" not in body:
            raise RuntimeError(f"{request_id} was not replayed: {body!r}")
        (record,) = self._near.find_requests(request_id)
        return record.started_at

    async def kill(self) -> float:
        """Seconds from the signal to the second attempt."""
        request_id, task = await self.begin()
        await asyncio.sleep(random.uniform(*COMPUTING_S))
        killed_at = time.time()
        await self._lost.kill()
        replayed_at = await self.wait_replayed(request_id, task)
        await self._lost.start()
        return replayed_at - killed_at

    async def cut(self, link: Link, count: int) -> list[float]:
        """Seconds from the cut to the second attempts of so many requests."""
        begun = [await self.begin() for _ in range(count)]
        cut_at = time.time()
        await link.cut()
        return [await self.wait_replayed(*one) - cut_at for one in begun]


def build_config(directory: Path, near: SimEngine, lost: SimProcess, cuts: int) -> dict[str, Any]:
    """Defaults, but for a budget that lets all replays of a cut wait at once."""
    replicas = [{"id": "near", "url": near.url}, {"id": LOST, "url": lost.url}]
    return {
        "ingress": {"address": "127.0.0.1", "port": 0},
        "operations": {"port": 0},
        "envoy": {"admin": {"port": 0}, "endpoints": "static"},
        "journal": {"path": str(directory / "journal.db")},
        "retry_budget": {"percent": 100, "min_concurrency": max(3, cuts)},
        "pools": [
            {
                "name": "chat",
                "models": ["sim"],
                "replicas": replicas,
                "readiness": {"watch": False},
                # The same replica is lost again and again, which is what a circuit is there to end.
                "circuit": {"enabled": False},
            },
        ],
    }


async def measure(kills: int, cuts: int, link: Link | None) -> tuple[list[float], float, float]:
    """The times of one way of losing a replica, and how many fences were waited for, how long in all."""
    async with AsyncExitStack() as opened:
        directory = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        near = await opened.enter_async_context(SimEngine(SimOptions(name="near", tokens=2)))
        host, within = ("127.0.0.1", ()) if link is None else (link.address, link.within)
        lost = SimProcess(SimOptions(name=LOST, host=host, tokens=2), within)
        await lost.start()
        opened.push_async_callback(lost.kill)
        gateway = await opened.enter_async_context(
            GatewayProcess(build_config(directory, near, lost, cuts), directory, find_envoy())
        )
        bench = Bench(gateway, near, lost)
        opened.push_async_callback(bench.close)
        if link is None:
            times = [await bench.kill() for _ in range(kills)]
        else:
            times = await bench.cut(link, cuts)
            await link.heal()
        name = "envoy_ext_fence_wait_seconds"
        fences = await gateway.fetch_metrics(f"{name}_count"), await gateway.fetch_metrics(f"{name}_sum")
        return times, fences[0][""], fences[1][""]


def build_row(name: str, times: Sequence[float], fences: float, waited_s: float) -> str:
    """One row of the table; times in milliseconds."""
    ordered = sorted(times)
    p99 = ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
    figures = [statistics.median(ordered), p99, ordered[-1]]
    cells = (
        name,
        len(ordered),
        *(f"{one * 1000:.0f}" for one in figures),
        f"{fences:.0f}",
        f"{waited_s:.1f}",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


async def main(kills: int, cuts: int) -> None:
    print("| lost by | losses | p50, ms | p99, ms | max, ms | fences waited for | for s in all |")
    print("|---|---|---|---|---|---|---|")
    print(build_row("kill", *await measure(kills, cuts, None)), flush=True)
    obstacle = await find_obstacle()
    if obstacle is not None:
        print(f"no cut: {obstacle}")
        return
    async with make_link() as link:
        print(build_row("cut", *await measure(kills, cuts, link)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=120)
    parser.add_argument("--cuts", type=int, default=20)
    asyncio.run(main(**vars(parser.parse_args())))
