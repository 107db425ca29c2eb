"""Clients that read slowly or not at all, and a sidecar that is stopped: memory stays as it is.

    python bench/slow_readers.py [--seconds 20] [--transport native]

A flood of 100 MB a stream from an engine, `envoy-ext run` with Envoy, and raw clients with small buffers.

    slow      8 clients that read 10 KB a second each
    stopped   24 streams at 50 chunks a second, and the sidecar is stopped (SIGSTOP) for half of the time
    silent    200 clients that read the begin of the answer, and nothing of the rest

What fills at first (buffers of the kernel, of Envoy, of the transport) has a bound; when it has filled, the
memory of both processes that is their own may rise by no more than the allowances, however long it lasts.
Exit status 1 when it does, or when a stream that was stopped does not go on.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.inside.report import read_rss
from bench.load.gateway import GatewayProcess
from bench.stream_cost import run_process
from envoy_ext.adapters.envoy_process import find_envoy

MIB: Final = 1 << 20
SIDECAR_MAY_RISE: Final = 4 * MIB
"""Once, behind a stop: what the kernel and Envoy have for it comes in one piece."""
ENVOY_MAY_RISE: Final = 8 * MIB
FLOOD_CHUNKS: Final = 400_000
"""Of 250 bytes: 100 MB."""
SLOW_BYTES_S: Final = 10_000
WAIT_S: Final = 30.0
LOOK_S: Final = 0.25


@dataclass
class Watched:
    """Memory of both processes over one scenario, in bytes, from when the buffers had filled."""

    name: str
    sidecar: list[int] = field(default_factory=list)
    envoy: list[int] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def judge(self) -> list[str]:
        """What was not as it should be."""
        found = list(self.complaints)
        for name, values, most in (
            ("the sidecar", self.sidecar, SIDECAR_MAY_RISE),
            ("Envoy", self.envoy, ENVOY_MAY_RISE),
        ):
            if max(values) - values[0] > most:
                found.append(f"{self.name}: {name} grew by {(max(values) - values[0]) / MIB:.1f} MiB")
        return found


@dataclass
class Stage:
    """What runs, and how long each scenario lasts."""

    gateway: GatewayProcess
    seconds: float

    async def watch(self, watched: Watched, seconds: float) -> None:
        """Look at the memory for so long."""
        stop_at = time.monotonic() + seconds
        while True:
            watched.sidecar.append(read_rss(self.gateway.pid))
            watched.envoy.append(read_rss(self.gateway.envoy_pid))
            if time.monotonic() >= stop_at:
                return
            await asyncio.sleep(LOOK_S)


@contextlib.asynccontextmanager
async def run_stage(directory: Path, seconds: float, transport: str) -> AsyncIterator[Stage]:
    """Engine, sidecar and Envoy."""
    root = Path(__file__).parent.parent
    async with contextlib.AsyncExitStack() as opened:
        _, line = await opened.enter_async_context(
            run_process(sys.executable, str(root / "bench" / "engine.py"), "0", ready="ready")
        )
        config: dict[str, Any] = {
            "ingress": {"address": "127.0.0.1", "port": 0},
            "operations": {"port": 0},
            "envoy": {"concurrency": 1, "admin": {"port": 0}},
            "sidecar": {"socket": str(directory / "sidecar.sock"), "transport": transport},
            "journal": {"store": "memory"},
            "limits": {"client_write_stall": "10m", "max_event_loop_lag": 0},
            "shutdown": {"grace": "0s"},
            "pools": [
                {
                    "name": "bench",
                    "models": ["bench"],
                    "readiness": {"watch": False},
                    "replicas": [{"url": f"http://127.0.0.1:{line.split()[1]}"}],
                }
            ],
        }
        gateway = await opened.enter_async_context(GatewayProcess(config, directory, find_envoy()))
        yield Stage(gateway, seconds)


@contextlib.asynccontextmanager
async def open_streams(stage: Stage, count: int, gap_ms: int) -> AsyncIterator[list[socket.socket]]:
    """So many answers that have begun, none of which is read on."""
    url, loop = urlsplit(stage.gateway.url), asyncio.get_running_loop()
    body = json.dumps({"model": "bench", "stream": True, "messages": []}).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nx-bench-chunks: {FLOOD_CHUNKS}\r\nx-bench-gap-ms: {gap_ms}\r\n\r\n"
    )
    with contextlib.ExitStack() as opened:
        found = []
        for _ in range(count):
            one = opened.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            one.setblocking(False)
            await loop.sock_connect(one, (url.hostname, url.port))
            await loop.sock_sendall(one, head.encode() + body)
            async with asyncio.timeout(WAIT_S):
                begin = await loop.sock_recv(one, 1024)
            if b" 200 " not in begin:
                raise RuntimeError(f"the gateway answered {begin[:60]!r}")
            found.append(one)
        yield found


async def read_slowly(one: socket.socket, bytes_s: float) -> None:
    """For as long as nobody cancels."""
    loop = asyncio.get_running_loop()
    while True:
        if not await loop.sock_recv(one, int(bytes_s / 10)):
            raise RuntimeError("the answer ended")
        await asyncio.sleep(0.1)


async def read_all(one: socket.socket, read: list[int], at: int) -> None:
    """As fast as it comes; how much that is is told at a place of `read`."""
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(one, 1 << 16):
        read[at] += len(data)


@contextlib.asynccontextmanager
async def reading(readers: list[Any]) -> AsyncIterator[None]:
    """While these read."""
    tasks = [asyncio.ensure_future(one) for one in readers]
    try:
        yield
        ended = [task for task in tasks if task.done()]
        if ended:
            raise RuntimeError(f"{len(ended)} answers have ended")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def slow(stage: Stage, count: int = 8) -> Watched:
    """Clients that read much less than there is."""
    watched = Watched("slow")
    async with (
        open_streams(stage, count, 0) as clients,
        reading([read_slowly(one, SLOW_BYTES_S) for one in clients]),
    ):
        await wait_filled(stage)
        await stage.watch(watched, stage.seconds)
    return watched


async def silent(stage: Stage, count: int = 200) -> Watched:
    """Clients that read nothing."""
    watched = Watched("silent")
    async with open_streams(stage, count, 0):
        await wait_filled(stage)
        await stage.watch(watched, stage.seconds)
    return watched


async def stopped(stage: Stage, count: int = 24) -> Watched:
    """A sidecar that does not run for a while."""
    watched, read = Watched("stopped"), [0] * count
    async with (
        open_streams(stage, count, 20) as clients,
        reading([read_all(one, read, at) for at, one in enumerate(clients)]),
    ):
        await wait_filled(stage)
        os.kill(stage.gateway.pid, signal.SIGSTOP)
        try:
            await stage.watch(watched, stage.seconds / 2)
            before = list(read)
        finally:
            os.kill(stage.gateway.pid, signal.SIGCONT)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                # All that waited, and some more.
                while any(now - then < 20_000 for now, then in zip(read, before, strict=True)):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        still = sum(now - then < 20_000 for now, then in zip(read, before, strict=True))
        if still:
            watched.complaints.append(f"stopped: {still} of {count} streams did not go on")
        await stage.watch(watched, stage.seconds / 2)
    return watched


async def wait_filled(stage: Stage) -> None:
    """Until what may be on its way is: for a second the memory of both has not risen by much."""
    async with asyncio.timeout(WAIT_S):
        while True:
            before = read_rss(stage.gateway.pid), read_rss(stage.gateway.envoy_pid)
            await asyncio.sleep(1.0)
            after = read_rss(stage.gateway.pid), read_rss(stage.gateway.envoy_pid)
            if after[0] - before[0] < MIB // 4 and after[1] - before[1] < MIB:
                return


SCENARIOS: Final = (slow, stopped, silent)


async def main(seconds: float, transport: str) -> int:
    """Play all, print what was seen; the exit status."""
    complaints: list[str] = []
    with tempfile.TemporaryDirectory(prefix="envoy-ext-slow-") as made:
        async with run_stage(Path(made), seconds, transport) as stage:
            for scenario in SCENARIOS:
                watched = await scenario(stage)
                for name, values in (("sidecar", watched.sidecar), ("envoy", watched.envoy)):
                    first, most, last = (one / MIB for one in (values[0], max(values), values[-1]))
                    print(
                        f"{watched.name:8} {name:8} {first:8.1f} MiB at first, {most - first:+6.1f} at most,"
                        f" {last - first:+6.1f} at last",
                        flush=True,
                    )
                complaints += watched.judge()
                await stage.gateway.wait_idle()
    print("\n".join(complaints) or "memory stayed as it was, and streams went on")
    return 1 if complaints else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--transport", default="native", choices=("native", "grpc_aio"))
    given = parser.parse_args()
    sys.exit(asyncio.run(main(given.seconds, given.transport)))
