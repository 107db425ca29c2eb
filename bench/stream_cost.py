"""Plain Envoy against Envoy with the sidecar, side by side in one run.

    python bench/stream_cost.py [--rounds 5] [--json FILE]

Three set-ups over the same cheap engine, measured in turn, round by round, so that a drift of the
machine's speed hits all alike:

    plain     client -> Envoy -> engine                       (one hop, no filters)
    two-hop   client -> Envoy -> Unix socket -> Envoy -> engine  (the hops, without the sidecar)
    sidecar   the rendered bootstrap with the sidecar beside it

Two loads. Paced: streams at 50 chunks a second that start one after another, for times and for CPU
per chunk of each process (from /proc); a chunk carries the moment it was written, and each is a
message of its own. Saturated: streams as fast as they go, for chunks per second; Envoy then merges
chunks, so CPU per chunk says little there. Figures are medians over the rounds; quote the ratios.
"""

import argparse
import asyncio
import contextlib
import copy
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from envoy_ext.adapters.envoy_process import EnvoyProcess, find_envoy
from envoy_ext.bootstrap.render import render_bootstrap
from envoy_ext.config import Config, parse_config
from envoy_ext.domain import names

TICKS = os.sysconf("SC_CLK_TCK")
MODEL = "bench"


@dataclass
class Load:
    """How many streams, how long, how fast."""

    streams: int
    chunks: int
    gap_ms: float
    requests_a_stream: int


PACED = Load(streams=24, chunks=150, gap_ms=20, requests_a_stream=1)
SATURATED = Load(streams=32, chunks=150, gap_ms=0, requests_a_stream=2)


@dataclass
class Sample:
    """What one load on one set-up gave."""

    chunks: int = 0
    seconds: float = 0.0
    first_s: list[float] = field(default_factory=list)
    chunk_s: list[float] = field(default_factory=list)
    cpu_us_a_chunk: dict[str, float] = field(default_factory=dict)


@dataclass
class SetUp:
    """One running gateway under measurement."""

    name: str
    port: int
    pids: dict[str, int]


async def ask(port: int, load: Load, sample: Sample, number: int) -> None:
    """One client: its requests one after another on one connection, raw, so that it costs little."""
    await asyncio.sleep(number * 2.5 * load.gap_ms / 1000)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps(
        {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "x"}]}
    ).encode()
    fields = {
        "host": "bench",
        "content-type": "application/json",
        "content-length": len(body),
        "x-bench-chunks": load.chunks,
        "x-bench-gap-ms": load.gap_ms,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    head = f"POST /v1/chat/completions HTTP/1.1\r\n{lines}\r\n".encode()
    for _ in range(load.requests_a_stream):
        started = time.monotonic_ns()
        writer.write(head + body)
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"the gateway answered {status!r}")
        await reader.readuntil(b"\r\n\r\n")
        first = True
        while (size := int(await reader.readline(), 16)) > 0:
            data = await reader.readexactly(size + 2)
            arrived = time.monotonic_ns()
            for event in data.split(b"\n\n"):
                _, found, rest = event.partition(b'"content":"')
                if not found:
                    continue
                sample.chunks += 1
                if first:
                    sample.first_s.append((arrived - started) / 1e9)
                    first = False
                elif load.gap_ms:
                    sample.chunk_s.append((arrived - int(rest.partition(b" ")[0])) / 1e9)
        await reader.readline()
    writer.close()


async def measure(setup: SetUp, load: Load) -> Sample:
    """Put one load on one set-up."""
    sample = Sample()
    before = {name: read_cpu_s(pid) for name, pid in setup.pids.items()}
    started = time.monotonic()
    await asyncio.gather(*(ask(setup.port, load, sample, number) for number in range(load.streams)))
    sample.seconds = time.monotonic() - started
    for name, pid in setup.pids.items():
        sample.cpu_us_a_chunk[name] = (read_cpu_s(pid) - before[name]) / sample.chunks * 1e6
    return sample


def read_cpu_s(pid: int) -> float:
    """User and system CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


# --- the set-ups ----------------------------------------------------------------------------------


def build_config(engine_port: int, directory: Path) -> Config:
    """The configuration under measurement: one worker, so that CPU figures are of one thread, and nobody
    looks at the replica, so that they are of streams alone."""
    data: dict[str, Any] = {
        "ingress": {"address": "127.0.0.1", "port": 0},
        "operations": {"port": 0},
        "envoy": {"concurrency": 1, "admin": {"port": 0}, "endpoints": "static"},
        "journal": {"path": str(directory / "journal.db")},
        "pools": [
            {
                "name": "bench",
                "models": [MODEL],
                "readiness": {"watch": False},
                "replicas": [{"url": f"http://127.0.0.1:{engine_port}"}],
            }
        ],
    }
    return parse_config(data, "bench").with_sockets_in(str(directory))


def strip_filters(bootstrap: dict[str, Any], keep_hops: bool) -> dict[str, Any]:
    """The same bootstrap without the sidecar: same tuning, no ext_proc, no access log."""
    plain = copy.deepcopy(bootstrap)
    resources = plain["static_resources"]
    pool = next(c["name"] for c in resources["clusters"] if c["name"].startswith(names.POOL_CLUSTER_PREFIX))
    for listener in resources["listeners"]:
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        manager.pop("access_log", None)
        manager["http_filters"] = [f for f in manager["http_filters"] if f["name"].endswith(".router")]
        cluster = names.CLUSTER_EGRESS if listener["name"] == names.LISTENER_INGRESS and keep_hops else pool
        for host in manager["route_config"]["virtual_hosts"]:
            host["routes"] = [{"match": {"prefix": "/"}, "route": {"cluster": cluster, "timeout": "0s"}}]
    if not keep_hops:
        resources["listeners"] = [
            one for one in resources["listeners"] if one["name"] == names.LISTENER_INGRESS
        ]
    dropped = {names.CLUSTER_SIDECAR, names.CLUSTER_SIDECAR_STREAMS, names.CLUSTER_SIDECAR_LOGS}
    if not keep_hops:
        dropped.add(names.CLUSTER_EGRESS)
    resources["clusters"] = [c for c in resources["clusters"] if c["name"] not in dropped]
    return plain


@contextlib.asynccontextmanager
async def run_process(*command: str, ready: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A child process, from its ready line to its end."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        while True:
            line = (await process.stdout.readline()).decode() if process.stdout else ""
            if not line:
                raise RuntimeError(f"{command} did not start")
            if ready in line:
                break
        yield process, line
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@contextlib.asynccontextmanager
async def run_envoy(bootstrap: dict[str, Any], directory: Path) -> AsyncIterator[EnvoyProcess]:
    """One Envoy."""
    directory.mkdir(exist_ok=True)
    envoy = EnvoyProcess(find_envoy(), bootstrap, directory, concurrency=1)
    await envoy.start()
    try:
        yield envoy
    finally:
        await envoy.stop()


async def build_setups(opened: contextlib.AsyncExitStack, directory: Path) -> list[SetUp]:
    """Start the engine, the sidecar and three Envoys."""
    root = Path(__file__).parent.parent
    _, line = await opened.enter_async_context(
        run_process(sys.executable, str(root / "bench" / "engine.py"), "0", ready="ready")
    )
    config = build_config(int(line.split()[1]), directory)
    written = directory / "config.yaml"
    written.write_text(config.model_dump_json(by_alias=True, exclude_defaults=True))
    sidecar, _ = await opened.enter_async_context(
        run_process(sys.executable, "-m", "envoy_ext", "serve", "-c", str(written), ready="serves")
    )
    bootstrap = render_bootstrap(config)
    setups = []
    for name, rendered in (
        ("plain", strip_filters(bootstrap, keep_hops=False)),
        ("two-hop", with_own_socket(strip_filters(bootstrap, keep_hops=True), config.egress_socket)),
        ("sidecar", bootstrap),
    ):
        envoy = await opened.enter_async_context(run_envoy(rendered, directory / name))
        port = int((await envoy.find_listener(names.LISTENER_INGRESS)).rpartition(":")[2])
        pids = {"envoy": envoy.pid} | ({"sidecar": sidecar.pid} if name == "sidecar" else {})
        setups.append(SetUp(name, port, pids))
    return setups


def with_own_socket(bootstrap: dict[str, Any], egress_socket: str) -> dict[str, Any]:
    """A second Envoy with an egress hop needs a socket of its own for it."""
    text = json.dumps(bootstrap).replace(json.dumps(egress_socket), json.dumps(egress_socket + "2"))
    changed: dict[str, Any] = json.loads(text)
    return changed


# --- the report -----------------------------------------------------------------------------------


def median_of(samples: list[Sample], read: Callable[[Sample], float]) -> float:
    """The median over the rounds."""
    return statistics.median(read(sample) for sample in samples)


def report(paced: dict[str, list[Sample]], saturated: dict[str, list[Sample]]) -> dict[str, dict[str, float]]:
    """Print the table; return it."""
    rows: dict[str, dict[str, float]] = {}
    for name in paced:
        rows[name] = {
            "chunks_per_s": median_of(saturated[name], lambda s: s.chunks / s.seconds),
            "first_ms": 1e3 * median_of(paced[name], lambda s: statistics.median(s.first_s)),
            "chunk_us": 1e6 * median_of(paced[name], lambda s: statistics.median(s.chunk_s)),
            "chunk_p99_us": 1e6
            * median_of(paced[name], lambda s: statistics.quantiles(s.chunk_s, n=100)[98]),
            "envoy_cpu_us": median_of(paced[name], lambda s: s.cpu_us_a_chunk["envoy"]),
            "sidecar_cpu_us": median_of(paced[name], lambda s: s.cpu_us_a_chunk.get("sidecar", 0.0)),
        }
    plain = rows["plain"]
    titles = ("chunks/s", "first ms", "chunk us", "p99 us", "envoy us", "sidecar us")
    print(f"{'':10}" + "".join(f"{title:>12}" for title in titles))
    for name, row in rows.items():
        print(f"{name:10}" + "".join(f"{value:>12.1f}" for value in row.values()))
    print("\nagainst plain Envoy, in this run:")
    for name, row in rows.items():
        if name == "plain":
            continue
        print(
            f"{name:10} chunks/s x{row['chunks_per_s'] / plain['chunks_per_s']:.2f}   "
            f"first token +{row['first_ms'] - plain['first_ms']:.2f} ms   "
            f"chunk +{row['chunk_us'] - plain['chunk_us']:.0f} us   "
            f"envoy CPU x{row['envoy_cpu_us'] / plain['envoy_cpu_us']:.2f}"
        )
    return rows


async def main(rounds: int, out: Path | None) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="envoy-ext-bench-") as made:
        async with contextlib.AsyncExitStack() as opened:
            setups = await build_setups(opened, Path(made))
            paced: dict[str, list[Sample]] = {setup.name: [] for setup in setups}
            saturated: dict[str, list[Sample]] = {setup.name: [] for setup in setups}
            for number in range(rounds + 1):
                for setup in setups:
                    timed, fast = await measure(setup, PACED), await measure(setup, SATURATED)
                    if number > 0:  # the first round warms everything up
                        paced[setup.name].append(timed)
                        saturated[setup.name].append(fast)
            print(f"{rounds} rounds, {os.cpu_count()} cores, Envoy with one worker")
            print(f"paced {PACED}\nsaturated {SATURATED}\n")
            rows = report(paced, saturated)
    if out is not None:
        out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    asyncio.run(main(given.rounds, given.json))
