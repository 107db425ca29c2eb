"""Engines in processes of their own that are killed and started again, each in its own random rhythm."""

import asyncio
import random
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

from envoy_ext.sim.options import SimOptions
from envoy_ext.sim.process import SimProcess

RECORDS_S: Final = 2.0
"""How long an engine may take to tell what it was sent, before it is killed."""


@dataclass(frozen=True, slots=True)
class Rhythm:
    """For how long a replica lives and for how long it is gone: uniform between two bounds, in seconds."""

    up: tuple[float, float] = (2.0, 6.0)
    down: tuple[float, float] = (0.2, 1.5)


class Fleet:
    """The engines of one run. `async with Fleet(names, options) as fleet`."""

    def __init__(self, names: Sequence[str], **options: Any) -> None:
        ports = find_ports(len(names))
        self.engines = [
            SimProcess(SimOptions(name=name, port=port, **options))
            for name, port in zip(names, ports, strict=True)
        ]
        self.kills = 0
        self.most_down = 0
        self.records: list[dict[str, Any]] = []
        """The requests that engines told of: just before they were killed, and at the end."""
        self.untold = 0
        """Killed engines that did not tell in time."""

    @property
    def replicas(self) -> list[dict[str, str]]:
        """For a pool's configuration."""
        return [{"id": engine.options.name, "url": engine.url} for engine in self.engines]

    async def storm(self, seed: int, seconds: float, rhythm: Rhythm) -> None:
        """Kill and restart each engine at random until the time is up; then all of them run."""
        stop_at = asyncio.get_running_loop().time() + seconds
        async with asyncio.TaskGroup() as lives:
            for engine in self.engines:
                rng = random.Random(f"{seed}/{engine.options.name}")
                lives.create_task(self._live_and_die(engine, rng, stop_at, rhythm))

    async def _live_and_die(
        self, engine: SimProcess, rng: random.Random, stop_at: float, rhythm: Rhythm
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # The random passing of time is the load itself; nothing is waited for here.
            await asyncio.sleep(min(rng.uniform(*rhythm.up), max(0.0, stop_at - loop.time())))
            if loop.time() >= stop_at:
                return
            await self._collect(engine)
            await engine.kill()
            self.kills += 1
            self.most_down = max(self.most_down, sum(not one.alive for one in self.engines))
            await asyncio.sleep(rng.uniform(*rhythm.down))
            await engine.start()

    def forget(self) -> None:
        """Begin a new count of kills and records."""
        self.kills = self.most_down = self.untold = 0
        self.records.clear()

    async def collect_all(self) -> None:
        """Have the engines that run tell what they were sent."""
        for engine in self.engines:
            await self._collect(engine)

    async def _collect(self, engine: SimProcess) -> None:
        limit = aiohttp.ClientTimeout(total=RECORDS_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=limit) as http,
                http.get(f"{engine.url}/sim/requests") as answer,
            ):
                told = (await answer.json())["requests"]
        except (TimeoutError, aiohttp.ClientError):
            self.untold += 1
            return
        # Without a request id: the sidecar's own control calls.
        self.records += [one | {"replica": engine.options.name} for one in told if one["request_id"]]

    async def __aenter__(self) -> Self:
        try:
            for engine in self.engines:
                await engine.start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def _stop(self) -> None:
        for engine in self.engines:
            await engine.stop()


def find_ports(count: int) -> list[int]:
    """Free ports that no outgoing connection is given.

    A replica's port stands empty while it is dead. From the range of outgoing connections, one of
    them could take it, and the replica could not come back; worse, a connection to it could get the
    port as its own source and be connected to itself.
    """
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    candidates = list(range(first_outgoing - 1, first_outgoing - 12_000, -1))
    random.shuffle(candidates)
    found: list[int] = []
    for port in candidates:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError("no free port below the range of outgoing connections")
