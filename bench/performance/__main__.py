"""Every figure of the hot path against its baseline in one run: `python -m bench.performance`.

--rounds 7        how often each load is put on each gateway
--quick           two short rounds, fewer streams: to see whether all works
--json FILE       where the raw figures go; docs/performance/results.json with --keep
--keep            keep them there, and write the tables of docs/performance.md
--page            nothing but the page, from what is kept

Exit status 1 when a line was missed or has no evidence; docs/performance.md says how each is measured.
"""

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path

from bench.performance import page
from bench.performance.gateways import ALL, NATIVE, TWO_HOPS, Gateway
from bench.performance.loads import Machine
from bench.performance.many import FINE, MOST, RATE, Seen, find_most, measure_many
from bench.performance.memory import FEW, MANY, measure_held
from bench.performance.programs import LoadGenerator, NotHere, build, load_generator
from bench.performance.results import Results, describe_machine, read, write
from bench.performance.rounds import measure_round
from bench.performance.setups import open_gateway
from bench.performance.targets import CHUNK_ECHO, IDLE
from bench.performance.targets import MANY as MANY_STREAMS
from envoy_ext.adapters.envoy_process import find_envoy


@dataclass(frozen=True)
class Options:
    """How much of it."""

    rounds: int
    seconds: float = 1.5
    warm_s: float = 0.5
    sidecars: int = 3
    """How many are measured for what idle streams take."""
    held: int = MANY
    many_s: float = 4.0


QUICK = Options(rounds=2, seconds=1.0, warm_s=0.3, sidecars=1, held=3 * FEW, many_s=2.0)


def say(text: str) -> None:
    """To whoever waits."""
    print(text, file=sys.stderr, flush=True)


async def run(options: Options) -> Results:
    """All of it."""
    began = time.monotonic()
    results = Results(describe_machine(str(find_envoy())))
    results.about |= {"seconds": options.seconds, "journal": "SQLite, in its default form"}
    with tempfile.TemporaryDirectory(prefix="envoy-ext-bench-") as made:
        directory = Path(made)
        async with contextlib.AsyncExitStack() as opened:
            generator = await opened.enter_async_context(load_generator())
            gateways = await open_all(opened, generator, directory)
            machine = Machine(generator, list(gateways.values()))
            for number in range(options.rounds + 1):
                measured = await measure_round(
                    machine, gateways, number, seconds=options.seconds, warm_s=options.warm_s, say=say
                )
                if number:  # the first one warms everything up
                    results.rounds.append(measured)
            await attempt(results, MANY_STREAMS.key, add_many(results, machine, gateways, options))
        async with load_generator() as generator:
            await attempt(results, IDLE.key, add_held(results, generator, directory, options))
    results.about["took_s"] = time.monotonic() - began
    return results


async def open_all(
    opened: contextlib.AsyncExitStack, generator: LoadGenerator, directory: Path
) -> dict[str, Gateway]:
    """Every gateway that this machine can run."""
    gateways: dict[str, Gateway] = {}
    for number, name in enumerate(ALL):
        try:
            gateways[name] = await open_gateway(opened, name, generator.port, directory / str(number))
        except NotHere as why:
            say(f"{name}: {why}; {CHUNK_ECHO.key} will have no evidence")
    return gateways


async def attempt(results: Results, key: str, what: Awaitable[None]) -> None:
    """A part that fails costs its own line, and not those that were measured before it."""
    try:
        await what
    except (RuntimeError, OSError, TimeoutError) as why:
        say(f"{key}: {why}")
        results.failed[key] = str(why) or type(why).__name__


async def add_many(
    results: Results, machine: Machine, gateways: dict[str, Gateway], options: Options
) -> None:
    """How many streams are carried, and how long a chunk is in the sidecar then."""
    for name in (TWO_HOPS, NATIVE):
        most, tried = await find_most(machine, gateways[name], say, options.many_s / 2)
        results.most[name], results.tried[name] = most, tried
    native, most = gateways[NATIVE], results.most[NATIVE]
    results.many, most = await hold_most(machine, native, most, options.many_s)
    results.most[NATIVE] = most
    if most < MOST:
        results.slow.append(await measure_many(machine, native, MOST, RATE * most / MOST, options.many_s))


async def hold_most(machine: Machine, gateway: Gateway, most: int, seconds: float) -> tuple[list[Seen], int]:
    """The most that is carried each time of three, from what was carried once downwards."""
    while most > 0:
        seen: list[Seen] = []
        for _ in range(3):
            seen.append(await measure_many(machine, gateway, most, RATE, seconds))
            if not seen[-1].carried:
                break
        else:
            return seen, most
        say(f"{gateway.name}: {most} streams were carried {len(seen) - 1} times")
        most -= FINE
    raise RuntimeError("no number of streams that was tried was carried each time")


async def add_held(results: Results, generator: LoadGenerator, directory: Path, options: Options) -> None:
    """What idle streams take."""
    for number in range(options.sidecars):
        async with contextlib.AsyncExitStack() as opened:
            gateway = await open_gateway(opened, NATIVE, generator.port, directory / f"held-{number}")
            held = await measure_held(generator, gateway, options.held)
        say(f"{held.many - held.few} streams: {held.kib_a_stream:.1f} KiB each")
        results.held.append(held)


def main() -> int:
    """From the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.performance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    if given.page:
        results = read(page.KEPT)
    else:
        try:
            build("loadgen")
        except NotHere as why:
            parser.exit(2, f"{why}\n")
        results = asyncio.run(run(QUICK if given.quick else Options(rounds=given.rounds)))
        results.about["load_after"] = os.getloadavg()[0]
    for path in filter(None, (given.json, page.KEPT if given.keep else None)):
        write(results, path)
    if given.keep or given.page:
        results = read(page.KEPT)
        page.PAGE.write_text(page.fill(page.PAGE.read_text(), results))
    for table in page.write_tables(results).values():
        print(f"{table}\n")
    return int(any(line.red for line in results.judge()))


if __name__ == "__main__":
    sys.exit(main())
