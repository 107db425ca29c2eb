"""A replica lost under 70 % load on two: is the other one driven into collapse?

    python bench/loss_under_load.py [--by kill cut plain] [--json FILE] [--seed N]

Two simulated engines whose tokens take longer the fuller they are, and whose own queue grows beyond their
slots; clients of which four in five are the real `openai` SDK with its own retries, and one takes no advice.
Four phases: what one replica can do alone through this gateway; 70 % of both on both; one is lost and the
load stays, 140 % of what is left; it comes back. `kill` and `cut` lose it behind the gateway, and every
promise is judged; `plain` loses it by a kill behind an Envoy with nothing but its usual retries, under the
same load, for comparison. A cut needs root and `ip`, and is left out without them. Exit status 1 when a
promise is broken.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.loss.clients import SDK_SLACK_S, Clients
from bench.loss.evidence import Evidence, Marks, end_with_their_engine
from bench.loss.places import LOST, STAYS, Engines, Front, run_engines, run_gateway, run_plain, wait_ready
from bench.loss.shape import QUICK, Shape
from bench.loss.table import HEADER, build_rows, tell
from bench.loss.verdict import Promise, count_good, judge
from envoy_ext.drills.cut_network import find_obstacle, make_link

WAYS: Final = ("kill", "cut", "plain")


async def play(
    shape: Shape, front: Front, engines: Engines, seed: int, per_s: float | None = None
) -> Evidence:
    """The four phases. `per_s`: the load, where it is not to follow from the capacity measured here."""
    marks = Marks()
    async with Clients(front.url, shape, seed) as clients:
        await wait_ready(front, 1)
        marks.measured_from = time.monotonic()
        capacity = await clients.saturate(shape.measure_s)
        await engines.lost.start()
        await wait_ready(front, 2)
        stop = asyncio.Event()
        marks.both_at = time.monotonic()
        rate = 2 * shape.load * capacity if per_s is None else per_s
        load = asyncio.create_task(clients.call_at_random(rate, stop))
        # The passing of time is the load itself.
        await asyncio.sleep(shape.both_s)
        marks.lost_at = time.monotonic()
        await engines.lose()
        await asyncio.sleep(shape.lost_s)
        await engines.bring_back()
        marks.back_at = time.monotonic()
        await asyncio.sleep(shape.back_s)
        marks.end_at = time.monotonic()
        stop.set()
        # Whoever was told to come back later than this is not waited for.
        await asyncio.wait((load,), timeout=shape.deadline_s + SDK_SLACK_S + 0.5)
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)
        tries = [one for one in clients.tries if one.sent_at < marks.end_at]
        return Evidence(shape, marks, STAYS, capacity, tries)


def collect(run: Evidence, engines: Engines) -> Evidence:
    """Add what the engines wrote down."""
    until = run.marks.end_at
    run.generations = [one for one in engines.read_generations() if one.started_at < until]
    if engines.link is None:
        end_with_their_engine(run.generations, LOST, run.marks.lost_at)
    return run


async def lose_behind_gateway(shape: Shape, by: str, seed: int) -> Evidence:
    """One run behind the gateway."""
    async with AsyncExitStack() as opened:
        directory = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="envoy-ext-loss-")))
        link = await opened.enter_async_context(make_link()) if by == "cut" else None
        engines = await opened.enter_async_context(run_engines(shape, directory, link))
        front = await opened.enter_async_context(run_gateway(shape, engines))
        run = await play(shape, front, engines, seed)
        gateway = front.gateway
        await gateway.wait_idle()
        run.inflight = sum((await gateway.fetch_metrics("envoy_ext_inflight")).values())
        run.bugs = sum((await gateway.fetch_metrics("envoy_ext_bugs_total")).values())
        return collect(run, engines)


async def lose_behind_plain(shape: Shape, seed: int, per_s: float | None) -> Evidence:
    """The same by a kill, behind plain Envoy and under a load that is given."""
    async with AsyncExitStack() as opened:
        directory = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="envoy-ext-loss-")))
        engines = await opened.enter_async_context(run_engines(shape, directory))
        front = await opened.enter_async_context(run_plain(engines))
        return collect(await play(shape, front, engines, seed, per_s), engines)


async def run(ways: Sequence[str], shape: Shape, seed: int, out: Path | None) -> int:
    """All ways; how many promises were broken."""
    print(f"seed {seed}\n{HEADER}", flush=True)
    runs: dict[str, Evidence] = {}
    promises: dict[str, list[Promise]] = {}
    for way in ways:
        if way == "cut" and (obstacle := await find_obstacle()) is not None:
            print(f"no cut: {obstacle}", flush=True)
            continue
        if way == "plain":
            known = next((one.capacity for one in runs.values()), None)
            load = None if known is None else 2 * shape.load * known
            runs[way] = await lose_behind_plain(shape, seed, load)
        else:
            runs[way] = await lose_behind_gateway(shape, way, seed)
            promises[way] = judge(runs[way])
        print("\n".join(build_rows(way, runs[way])), flush=True)
    for way, made in promises.items():
        print(f"\n{way}:\n{tell(made)}")
    shares = {way: _read_share(one) for way, one in runs.items()}
    print("\nwhile one is lost, answers in time against the capacity of the other: ", end="")
    print(", ".join(f"{way} {share:.0%}" for way, share in shares.items()))
    if out is not None:
        out.write_text(json.dumps(_build_report(seed, runs, promises, shares), indent=1))
    return sum(not one.kept for made in promises.values() for one in made)


def _read_share(one: Evidence) -> float:
    since, until = one.marks.lost_at, one.marks.back_at
    return count_good(one, since, until) / (until - since) / one.capacity


def _build_report(
    seed: int, runs: dict[str, Evidence], promises: dict[str, list[Promise]], shares: dict[str, float]
) -> dict[str, Any]:
    return {
        "seed": seed,
        "share_of_capacity": shares,
        "promises": {way: [asdict(one) for one in made] for way, made in promises.items()},
        "runs": {way: asdict(one) for way, one in runs.items()},
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--by", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="all of it, with every try and generation")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument(
        "--quick", action="store_true", help="short phases and wide tolerances, as the test has"
    )
    given = parser.parse_args()
    sys.exit(
        1 if asyncio.run(run(given.by, QUICK if given.quick else Shape(), given.seed, given.json)) else 0
    )


if __name__ == "__main__":
    main()
