"""The product and other gateways in front of the same replicas, side by side in one run.

    python bench/peers.py [--rounds 5] [--only NAME ...] [--json FILE] [--page]

LiteLLM proxy and smg are installed into virtual environments of their own under build/peers (about 1 GB). All
gateways run at once and are measured in turn, round by round, in an order that changes; what is idle takes
next to nothing. `--page` writes docs/performance-peers.md. What the figures say and do not say stands there.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.peers import setups
from bench.peers.figures import LOADS, Round, Sample
from bench.peers.install import VERSIONS
from bench.peers.page import PAGE, Run, write_page, write_tables
from bench.performance.programs import LoadGenerator, load_generator
from envoy_ext.adapters.envoy_process import find_envoy


async def measure(generator: LoadGenerator, gateway: setups.Gateway, options: dict[str, object]) -> Sample:
    """One load on one gateway."""
    before, after, rss = [], [], []
    counted: dict[str, Any] = await generator.run(
        port=gateway.port,
        on_start=lambda: before.append(gateway.read_cpu_us()),
        on_stop=lambda: (after.append(gateway.read_cpu_us()), rss.append(gateway.read_rss_mib()))[0],
        **options | {"key": setups.KEY},
    )
    (all_before, sidecar_before), (all_after, sidecar_after) = before[0], after[0]
    return counted | {
        "all_us": all_after - all_before,
        "sidecar_us": sidecar_after - sidecar_before,
        "rss_mib": rss[0],
    }


async def run(rounds: int, only: list[str]) -> Run:
    """All of it. A peer that does not start is said, and the others are measured."""
    missing: dict[str, str] = {}
    idle: dict[str, float] = {}
    done: list[Round] = []
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="envoy-ext-peers-") as made:
        async with contextlib.AsyncExitStack() as opened:
            generator = await opened.enter_async_context(load_generator())
            gateways = []
            for number, name in enumerate(only or setups.ALL):
                try:
                    gateways.append(
                        await setups.open_gateway(opened, name, generator.port, Path(made) / str(number))
                    )
                except (RuntimeError, TimeoutError) as error:
                    if name not in VERSIONS:
                        raise
                    missing[name] = str(error) or "not ready in time"
            for gateway in gateways:
                idle[gateway.name] = gateway.read_rss_mib()
            for number in range(rounds + 1):
                one: Round = {}
                for gateway in gateways[number % len(gateways) :] + gateways[: number % len(gateways)]:
                    one[gateway.name] = {}
                    for load, options in LOADS.items():
                        try:
                            one[gateway.name][load] = await measure(generator, gateway, options)
                        except RuntimeError as error:
                            raise RuntimeError(f"{gateway.name}, {load}: {error}") from error
                if number > 0:  # the first warms everything up
                    done.append(one)
                print(f"round {number} of {rounds}", file=sys.stderr, flush=True)
    return Run(
        rounds=done,
        idle_mib=idle,
        missing=missing,
        machine={
            "date": datetime.now(UTC).date().isoformat(),
            "cores": os.cpu_count() or 0,
            "system": f"{platform.system()} {platform.release()}",
            "python": platform.python_version(),
            "envoy": await _read_envoy_version(),
            "load": [round(load_before, 1), round(os.getloadavg()[0], 1)],
        }
        | VERSIONS,
    )


async def _read_envoy_version() -> str:
    asked = await asyncio.create_subprocess_exec(find_envoy(), "--version", stdout=asyncio.subprocess.PIPE)
    said = (await asked.communicate())[0].decode()
    return said.rpartition("version:")[2].split("/")[1] if "version:" in said else said.strip()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[], choices=setups.ALL)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    result = asyncio.run(run(given.rounds, given.only))
    print(write_tables(result))
    if given.json:
        given.json.write_text(json.dumps(vars(result), indent=1) + "\n")
    if given.page:
        PAGE.write_text(write_page(result))
