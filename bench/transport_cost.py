"""What the two transports of the sidecar cost, side by side in one run, with all of the product behind each.

    python bench/transport_cost.py [--rounds 3]

One engine; for each transport a sidecar and an Envoy of its own, measured in turn, round by round. Three
loads: paced streams, as many chunks as the sidecar can take, and short answers. CPU is that of the process,
from /proc; chunks are counted by the sidecar itself, since Envoy merges what comes back to back. Figures are
medians over the rounds; quote the ratios.
"""

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.load.fleet import find_ports
from bench.stream_cost import Load, Sample, build_config, measure, read_cpu_s, run_envoy, run_process
from bench.stream_cost import SetUp as Gateway
from envoy_ext.bootstrap.render import render_bootstrap
from envoy_ext.config import Operations
from envoy_ext.domain import names

TRANSPORTS: Final = ("grpc_aio", "native")
LOADS: Final = {
    "paced, 24 streams x 50/s": Load(streams=24, chunks=100, gap_ms=20, requests_a_stream=1),
    "busy, 64 streams x 100/s": Load(streams=64, chunks=300, gap_ms=10, requests_a_stream=1),
    "short answers, 32 at once": Load(streams=32, chunks=1, gap_ms=0, requests_a_stream=30),
}


@dataclass
class SetUp:
    """One transport under measurement."""

    gateway: Gateway
    operations_port: int

    def count_chunks(self) -> int:
        """How many the sidecar has had in its hands."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.operations_port}/metrics") as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith("envoy_ext_chunk_seconds_count"):
                    return int(float(line.split()[1]))
        raise RuntimeError("the sidecar does not count chunks")


@dataclass
class Cost:
    """CPU of one load, in microseconds."""

    sidecar_a_chunk: float
    sidecar_a_request: float
    envoy_a_request: float
    chunk_us: float
    """Median time of a chunk under way."""


async def build_setup(
    opened: contextlib.AsyncExitStack, engine_port: int, transport: str, directory: Path
) -> SetUp:
    """A sidecar and its Envoy."""
    directory.mkdir()
    (port,) = find_ports(1)
    config = build_config(engine_port, directory)
    sidecar = config.sidecar.model_copy(update={"transport": transport})
    config = config.model_copy(update={"sidecar": sidecar, "operations": Operations(port=port)})
    written = directory / "config.yaml"
    written.write_text(config.model_dump_json(by_alias=True, exclude_defaults=True))
    process, _ = await opened.enter_async_context(
        run_process(sys.executable, "-m", "envoy_ext", "serve", "-c", str(written), ready="serves")
    )
    envoy = await opened.enter_async_context(run_envoy(render_bootstrap(config), directory / "envoy"))
    ingress = int((await envoy.find_listener(names.LISTENER_INGRESS)).rpartition(":")[2])
    return SetUp(Gateway(transport, ingress, {"envoy": envoy.pid, "sidecar": process.pid}), port)


async def measure_cost(setup: SetUp, load: Load) -> Cost:
    """Put one load on one transport."""
    pids = setup.gateway.pids
    chunks = setup.count_chunks()
    before = {name: read_cpu_s(pid) for name, pid in pids.items()}
    sample: Sample = await measure(setup.gateway, load)
    used = {name: (read_cpu_s(pid) - before[name]) * 1e6 for name, pid in pids.items()}
    chunks = setup.count_chunks() - chunks
    requests = load.streams * load.requests_a_stream
    return Cost(
        sidecar_a_chunk=used["sidecar"] / chunks,
        sidecar_a_request=used["sidecar"] / requests,
        envoy_a_request=used["envoy"] / requests,
        chunk_us=1e6 * statistics.median(sample.chunk_s) if sample.chunk_s else 0.0,
    )


def report(costs: dict[str, dict[str, list[Cost]]]) -> None:
    """Print each load's figures, and native against grpc.aio."""
    for load, by_transport in costs.items():
        print(f"\n{load}")
        for field in ("sidecar_a_chunk", "sidecar_a_request", "envoy_a_request", "chunk_us"):
            values = {one: [getattr(cost, field) for cost in by_transport[one]] for one in TRANSPORTS}
            aio, native = (statistics.median(values[one]) for one in TRANSPORTS)
            ratios = [b / a for a, b in zip(values["grpc_aio"], values["native"], strict=True) if a]
            if ratios:
                print(
                    f"  {field:18} grpc_aio {aio:9.1f} us   native {native:9.1f} us   x{native / aio:.3f}"
                    f"   ({min(ratios):.3f} to {max(ratios):.3f})"
                )


async def main(rounds: int) -> None:
    """Measure and print."""
    root = Path(__file__).parent.parent
    costs: dict[str, dict[str, list[Cost]]] = {load: {one: [] for one in TRANSPORTS} for load in LOADS}
    with tempfile.TemporaryDirectory(prefix="envoy-ext-bench-") as made:
        async with contextlib.AsyncExitStack() as opened:
            _, line = await opened.enter_async_context(
                run_process(sys.executable, str(root / "bench" / "engine.py"), "0", ready="ready")
            )
            setups = [
                await build_setup(opened, int(line.split()[1]), one, Path(made) / one) for one in TRANSPORTS
            ]
            for number in range(rounds + 1):
                for name, load in LOADS.items():
                    for setup in setups if number % 2 else setups[::-1]:
                        cost = await measure_cost(setup, load)
                        if number > 0:  # the first round warms everything up
                            costs[name][setup.gateway.name].append(cost)
    print(f"{rounds} rounds, Envoy with one worker")
    report(costs)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    asyncio.run(main(parser.parse_args().rounds))
