"""What scenarios are played on: a real Envoy, the sidecar on one store, simulated engines, a network to cut.

    beside   two replicas, `left` and `right`, on this machine; either can be killed
    apart    `far`, in a network namespace of its own and behind a worker that holds its leases; and `near`

Where no namespace can be made (it needs root and `ip`), there is no pool `apart`, and `obstacle` says why.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

import aiohttp

from envoy_ext.config import Config, parse_config
from envoy_ext.domain.ids import ReplicaId
from envoy_ext.drills.cut_network import Link, find_obstacle, make_link
from envoy_ext.drills.scenarios.model import Tool
from envoy_ext.observability.trace import TraceLog
from envoy_ext.sim.options import SimOptions
from envoy_ext.sim.process import SimProcess
from envoy_ext.sim.tool_server import SimTool
from envoy_ext.stack import Stack

POOLS: Final = {"beside": ("left", "right"), "apart": ("far", "near")}
TOKENS: Final = 64
"""An answer's length unless its request says less."""
FAR_PREFILL_S: Final = 1.5
"""Longer than it takes to cut the network, and shorter than a lease: it computes in the cut, and may."""
LEASE: Final = {"ttl": "9s", "renew": "1s", "margin": "1s"}
"""It outlasts the 6 s that it takes to miss a cut (docs/fencing.md): the replay has to wait for its end."""
_WORKER_PORT: Final = 8000
"""In a namespace of its own, where no other port is taken."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a stage is to be."""

    store: str
    journal: dict[str, Any]
    """That section of the configuration."""
    seed: str
    model_revision: str
    pools: frozenset[str] = frozenset(POOLS)
    """Those that are needed."""


@dataclass
class Stage:
    """A running stage. One scenario is played on it at a time."""

    setting: Setting
    stack: Stack
    engines: dict[str, SimProcess]
    logs: dict[str, Path]
    trace: list[str]
    """The sidecar's, line by line."""
    tool: SimTool
    http: aiohttp.ClientSession
    link: Link | None
    obstacle: str | None
    """Why nothing is `apart`."""
    cut: bool = field(default=False)

    async def cut_network(self) -> None:
        """Between the gateway and `far`."""
        assert self.link is not None, "nothing is apart"
        self.cut = True
        await self.link.cut()

    async def heal_network(self) -> None:
        """Packets pass again."""
        assert self.link is not None, "nothing is apart"
        await self.link.heal()
        self.cut = False

    def turn_to(self, replica: str | None) -> None:
        """First attempts go there; None: Envoy chooses."""
        for name in self.engines:
            if replica is None or name == replica:
                self.stack.app.fleet.undrain(ReplicaId(name))
            else:
                self.stack.app.fleet.drain(ReplicaId(name), 600)

    async def mend(self) -> None:
        """Whole again after a scenario: every engine runs, and the network too."""
        self.turn_to(None)
        self.tool.release()
        self.tool.reset()
        if self.cut:
            await self.heal_network()
        for engine in self.engines.values():
            await engine.start()

    async def describe(self) -> dict[str, Any]:
        """Where it ran: for whoever reads the evidence, and no part of it."""
        async with self.http.get(f"{self.stack.envoy.admin_url}/server_info") as answer:
            envoy = (await answer.json())["version"]
        config = self.stack.config.model_dump(mode="json")
        return {"envoy": envoy, "config": config}


@asynccontextmanager
async def run_stage(envoy: str, setting: Setting, directory: Path) -> AsyncIterator[Stage]:
    """Start everything; end everything. The engines' logs go into the directory."""
    trace = list[str]()
    async with AsyncExitStack() as opened:
        obstacle = await find_obstacle() if "apart" in setting.pools else "not asked for"
        link = None if obstacle is not None else await opened.enter_async_context(make_link())
        pools = [pool for pool in POOLS if pool in setting.pools and (link is not None or pool != "apart")]
        names = [name for pool in pools for name in POOLS[pool]]
        logs = {name: directory / f"{name}.jsonl" for name in names}
        engines = {
            name: SimProcess(
                SimOptions(
                    name=name,
                    models=POOLS_OF_MODELS[name],
                    tokens=TOKENS,
                    prefill_s=FAR_PREFILL_S if name == "far" else 0.05,
                    seed=setting.seed,
                    revision=setting.model_revision,
                    event_log=str(logs[name]),
                ),
                link.within if link is not None and name == "far" else (),
            )
            for name in names
        }
        for engine in engines.values():
            opened.push_async_callback(engine.kill)
        await asyncio.gather(*(engine.start() for engine in engines.values()))
        tool = await opened.enter_async_context(SimTool())
        stack = Stack(_build_config(engines, link, tool, setting.journal), envoy, TraceLog(trace.append))
        await opened.enter_async_context(stack)
        if link is not None:
            await opened.enter_async_context(_run_worker(link, engines["far"], stack))
        # No reuse of connections: what one scenario leaves behind is no other's.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        http = await opened.enter_async_context(aiohttp.ClientSession(connector=connector))
        yield Stage(setting, stack, engines, logs, trace, tool, http, link, obstacle)


POOLS_OF_MODELS: Final = {name: (pool,) for pool, names in POOLS.items() for name in names}
"""Each pool serves a model of its own name."""


def _build_config(
    engines: dict[str, SimProcess], link: Link | None, tool: SimTool, journal: dict[str, Any]
) -> Config:
    urls = {name: engine.url for name, engine in engines.items()}
    lease: dict[str, Any] = dict(LEASE)
    if link is not None:
        urls["far"] = f"http://{link.address}:{_WORKER_PORT}"
        lease["http"] = {"address": link.near_address, "port": 0}
    pools = [
        {
            "name": pool,
            "models": [pool],
            "engine": "vllm",
            "replicas": [{"id": name, "url": urls[name]} for name in names],
            # Nobody looks at them: what is known of a loss comes from the request that met it.
            "readiness": {"watch": False},
            # Each scenario is a loss of its own, and none of them is to move the next one's attempts.
            "circuit": {"enabled": False},
        }
        for pool, names in POOLS.items()
        if set(names) <= urls.keys()
    ]
    routes = [{"name": name, "prefix": f"/{name}", "url": f"{tool.url}/{name}"} for name in get_args(Tool)]
    return parse_config(
        {
            "ingress": {"address": "127.0.0.1", "port": 0},
            "operations": {"port": 0},
            "envoy": {"concurrency": 1, "admin": {"port": 0}, "endpoints": "static"},
            "shutdown": {"grace": "0s"},
            "limits": {"max_event_loop_lag": 0},  # all of it is played, however slow the machine
            "journal": journal,
            "lease": lease,
            "tools": {"listener": {"port": 0}, "routes": routes},
            "pools": pools,
        },
        "scenarios",
    )


@asynccontextmanager
async def _run_worker(link: Link, engine: SimProcess, stack: Stack) -> AsyncIterator[None]:
    """`envoy-ext worker` before the far engine."""
    gateways = f"http://{link.near_address}:{stack.app.lease_ports['http']}"
    listen = f"{link.address}:{_WORKER_PORT}"
    process = await asyncio.create_subprocess_exec(
        *(*link.within, sys.executable, "-m", "envoy_ext", "worker"),
        *("--engine", engine.url, "--listen", listen, "--gateways", gateways),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(30):
            while not await _accepts(link.address, _WORKER_PORT):
                await asyncio.sleep(0.05)
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _accepts(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True
