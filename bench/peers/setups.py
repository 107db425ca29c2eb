"""The ways from a client to one of two replicas, and what each takes of the machine.

direct       client -> replica
one hop      client -> Envoy -> replica, no filters
two hops     client -> Envoy -> Unix socket -> Envoy -> replica: the product's bootstrap without the sidecar
envoy-ext    the product: Envoy, and the sidecar on its native transport
LiteLLM proxy, smg    as their documentation has it, with one worker, without debug logs and database
"""

import asyncio
import contextlib
import json
import secrets
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.load.fleet import find_ports
from bench.peers.install import LITELLM, SMG, environment, install
from bench.stream_cost import MODEL, run_envoy, run_process, strip_filters, with_own_socket
from envoy_ext.bootstrap.render import render_bootstrap
from envoy_ext.config import Config, parse_config
from envoy_ext.domain import names

DIRECT: Final = "direct"
ONE_HOP: Final = "one hop"
TWO_HOPS: Final = "two hops"
PRODUCT: Final = "envoy-ext"
ALL: Final = (DIRECT, ONE_HOP, TWO_HOPS, PRODUCT, LITELLM, SMG)
KEY: Final = f"sk-{secrets.token_hex(32)}"
"""Of this run: LiteLLM proxy does not start without a master key, and all gateways are asked with it."""
READY_S: Final = 180.0
_READINESS: Final = {LITELLM: "/health/readiness", SMG: "/readiness"}


@dataclass(frozen=True)
class Gateway:
    """One that runs."""

    name: str
    port: int
    pids: tuple[int, ...] = ()
    """Roots: what they have started is theirs too."""
    sidecar_pid: int | None = None

    def read_cpu_us(self) -> tuple[float, float]:
        """CPU of all its processes, and of the sidecar alone, in microseconds."""
        all_us = sum(_read_cpu_us(pid) for root in self.pids for pid in list_tree(root))
        return all_us, 0.0 if self.sidecar_pid is None else _read_cpu_us(self.sidecar_pid)

    def read_rss_mib(self) -> float:
        """Resident memory of all its processes."""
        pids = [pid for root in self.pids for pid in list_tree(root)]
        return sum(_read_rss_kib(pid) for pid in pids) / 1024


def list_tree(root: int) -> list[int]:
    """A process and its descendants."""
    found = [root]
    for task in Path(f"/proc/{root}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += list_tree(int(child))
    return found


def _read_cpu_us(pid: int) -> float:
    return time.clock_gettime_ns((~pid << 3) | 2) / 1e3  # the process's own clock, threads included


def _read_rss_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


async def open_gateway(
    opened: contextlib.AsyncExitStack, name: str, replica_port: int, directory: Path
) -> Gateway:
    """Start one."""
    directory.mkdir()
    urls = [f"http://127.0.0.{number}:{replica_port}" for number in (1, 2)]
    if name == DIRECT:
        return Gateway(name, replica_port)
    if name in (LITELLM, SMG):
        return await opened.enter_async_context(_run_peer(name, urls, directory))
    config = _build_config(urls, directory)
    if name == PRODUCT:
        return await _open_product(opened, config, directory)
    bootstrap = strip_filters(render_bootstrap(config), keep_hops=name == TWO_HOPS)
    envoy, port = await _open_envoy(opened, with_own_socket(bootstrap, config.egress_socket), directory)
    return Gateway(name, port, (envoy,))


def _build_config(urls: list[str], directory: Path) -> Config:
    """As a user would have it (native transport), with one Envoy worker; nobody looks at the replicas."""
    data: dict[str, Any] = {
        "ingress": {"address": "127.0.0.1", "port": 0},
        "operations": {"port": find_ports(1)[0]},
        "envoy": {"concurrency": 1, "admin": {"port": 0}, "endpoints": "static"},
        "journal": {"path": str(directory / "journal.db")},
        "limits": {"max_event_loop_lag": 0},  # no peer refuses work because its machine has much else to do
        "pools": [
            {
                "name": "bench",
                "models": [MODEL],
                "readiness": {"watch": False},
                "replicas": [{"url": url} for url in urls],
            }
        ],
    }
    return parse_config(data, "bench").with_sockets_in(str(directory))


async def _open_product(opened: contextlib.AsyncExitStack, config: Config, directory: Path) -> Gateway:
    written = directory / "config.yaml"
    written.write_text(config.model_dump_json(by_alias=True, exclude_defaults=True))
    sidecar, _ = await opened.enter_async_context(
        run_process(sys.executable, "-m", "envoy_ext", "serve", "-c", str(written), ready="serves")
    )
    envoy, port = await _open_envoy(opened, render_bootstrap(config), directory)
    return Gateway(PRODUCT, port, (envoy, sidecar.pid), sidecar.pid)


async def _open_envoy(
    opened: contextlib.AsyncExitStack, bootstrap: dict[str, Any], directory: Path
) -> tuple[int, int]:
    envoy = await opened.enter_async_context(run_envoy(bootstrap, directory / "envoy"))
    return envoy.pid, int((await envoy.find_listener(names.LISTENER_INGRESS)).rpartition(":")[2])


def build_command(name: str, urls: list[str], port: int, metrics_port: int, directory: Path) -> list[str]:
    """How a peer is started; LiteLLM's configuration is written."""
    command = [str(install(name))]
    if name == SMG:
        given = ["--host", "127.0.0.1", "--port", str(port), "--policy", "cache_aware", "--log-level", "warn"]
        metrics = ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)]
        return [*command, "launch", "--worker-urls", *urls, *given, *metrics]
    model = {"model": f"openai/{MODEL}", "api_key": "none"}
    settings = {
        "model_list": [
            {"model_name": MODEL, "litellm_params": model | {"api_base": f"{url}/v1"}} for url in urls
        ],
        "litellm_settings": {"set_verbose": False, "request_timeout": 600},
        "router_settings": {"routing_strategy": "simple-shuffle"},
    }
    written = directory / "litellm.yaml"
    written.write_text(json.dumps(settings))
    given = ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1", "--telemetry", "False"]
    return [*command, "--config", str(written), *given]


@contextlib.asynccontextmanager
async def _run_peer(name: str, urls: list[str], directory: Path) -> AsyncIterator[Gateway]:
    """From its readiness to its end; what it says is in `log`."""
    port, metrics_port = find_ports(2)
    command = build_command(name, urls, port, metrics_port, directory)
    log = directory / "log"
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=out, stderr=out, env=environment(KEY), cwd=directory
        )
    try:
        async with asyncio.timeout(READY_S):
            while not await asyncio.to_thread(_is_ready, f"http://127.0.0.1:{port}{_READINESS[name]}"):
                if process.returncode is not None:
                    raise RuntimeError(f"{name} ended: {log.read_text()[-800:]}")
                await asyncio.sleep(0.2)
        yield Gateway(name, port, (process.pid,))
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(20):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
