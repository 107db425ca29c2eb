"""Ten times the work that eight slots can do, on a real Envoy, and a verdict on each promise of admission.

    python bench/overload.py [--seconds 60] [--seed N] [--json FILE] [--keep DIRECTORY]

Engines, gateway (`envoy-ext run`), Envoy and clients are processes of their own. Clients come open-loop,
in three classes that share by weight (4:2:1) and one of higher priority, by nine callers of which one is
greedy; half are streams; two thirds have a deadline of their own; some leave while they wait, in prefill
or in the middle of a stream. What clients saw is laid beside the engines' logs and the gateway's own
figures. Exit status 1 when a promise was not kept.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import aiohttp

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.crowd.calls import read_calls
from bench.crowd.client import read_told
from bench.crowd.evidence import Evidence
from bench.crowd.plan import KINDS, PREFILL_S, TOKEN_S, Setting
from bench.crowd.verdict import Promise, count_codes, judge
from bench.crowd.watch import (
    Sample,
    read_counts,
    read_cpu_s,
    read_deepest,
    read_journal,
    wait_counts,
    watch_line,
)
from bench.load.fleet import Fleet
from bench.load.gateway import GatewayProcess
from envoy_ext.adapters.envoy_process import find_envoy

TOKENS: Final = 64
"""Longer than any answer: each request says how long its own is to be."""
OVER_S: Final = 60.0
"""How long the last answers may take, behind the load."""


def build_config(setting: Setting, replicas: list[dict[str, str]], directory: Path) -> dict[str, Any]:
    """A slot whose client has left is known free by the lease's end at the latest: of holds of half a second,
    the usual seven seconds would be most of the pool."""
    return {
        "ingress": {"address": "127.0.0.1", "port": 0},
        "operations": {"port": 0},
        "envoy": {"concurrency": 1, "admin": {"port": 0}},
        "journal": {"store": "sqlite", "path": str(directory / "journal.db")},
        "shutdown": {"grace": "5s"},
        "lease": {"ttl": "1s", "renew": "400ms", "margin": "250ms"},
        "admission": {
            "queue": setting.queue,
            "max_wait": f"{setting.max_wait_s:g}s",
            "classes": {
                kind.name: {"weight": kind.weight, "priority": kind.priority} for kind in KINDS.values()
            },
        },
        "pools": [
            {
                "name": "chat",
                "models": ["sim"],
                "engine": "vllm",
                "capacity": {"concurrency": setting.slots_each},
                "replicas": replicas,
            }
        ],
    }


async def overload(setting: Setting, directory: Path) -> Evidence:
    """One run, from the first process to the last."""
    names = "abcdefgh"[: setting.replicas]
    logs = [directory / f"{name}.log" for name in (*names, "direct")]
    speed = {"prefill_s": PREFILL_S, "token_s": TOKEN_S, "tokens": TOKENS}
    async with (
        _run_engines(names, directory, max_running=setting.slots_each, **speed) as fleet,
        _run_engines(("direct",), directory, **speed) as beside,
        GatewayProcess(build_config(setting, fleet.replicas, directory), directory, find_envoy()) as gateway,
    ):
        await _ask_once(gateway)
        before = await read_counts(gateway)
        told = directory / "told"
        order = {
            "gateway": gateway.url,
            "engine": beside.engines[0].url,
            "out": str(told),
            "setting": asdict(setting),
        }
        samples: list[Sample] = []
        cpu = await _send_crowd(order, gateway, directory, samples)
        left_over = await wait_counts(gateway, before)
        deepest = await read_deepest(gateway.operations_url)
        if await gateway.stop() != 0:
            left_over["exit status of the gateway"] = 1.0
    return Evidence(
        setting,
        read_told(told),
        read_calls(logs),
        samples,
        deepest,
        left_over,
        await read_journal(directory / "journal.db"),
        cpu,
    )


def _run_engines(names: Any, directory: Path, **options: Any) -> Fleet:
    fleet = Fleet(names, **options)
    for engine in fleet.engines:
        log = directory / f"{engine.options.name}.log"
        engine.options = replace(engine.options, event_log=str(log))
    return fleet


async def _ask_once(gateway: GatewayProcess) -> None:
    """One request, so that the streams are open that last as long as Envoy does."""
    body = {"model": "sim", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{gateway.url}/v1/chat/completions", json=body) as answer,
    ):
        answer.raise_for_status()
    await gateway.wait_idle()


async def _send_crowd(
    order: dict[str, Any], gateway: GatewayProcess, directory: Path, samples: list[Sample]
) -> dict[str, float]:
    """Run the clients; what each process took of a core while the crowd was there."""
    written = directory / "order.json"
    written.write_text(json.dumps(order))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "bench.crowd.client", str(written)),
        cwd=Path(__file__).parent.parent,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        if (await process.stdout.readline()).strip() != b"crowd":
            raise RuntimeError("the clients did not come")
        pids = {"sidecar": gateway.pid, "envoy": gateway.envoy_pid, "clients": process.pid}
        begun = {name: read_cpu_s(pid) for name, pid in pids.items()}
        started = asyncio.get_running_loop().time()
        watching = asyncio.create_task(watch_line(gateway.operations_url, samples))
        try:
            await asyncio.sleep(order["setting"]["seconds"])
            lasted_s = asyncio.get_running_loop().time() - started
            cpu = {name: (read_cpu_s(pid) - begun[name]) / lasted_s for name, pid in pids.items()}
        finally:
            watching.cancel()
            await asyncio.wait((watching,))
        async with asyncio.timeout(OVER_S):
            status = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if status != 0:
        raise RuntimeError(f"the clients ended with status {status}")
    return cpu


def report(evidence: Evidence, promises: list[Promise]) -> None:
    """Print what was found."""
    setting = evidence.setting
    print(
        f"seed {setting.seed}; {setting.slots} slots, line {setting.queue}, nominal capacity"
        f" {setting.capacity_per_s:.1f}/s; of a core: "
        + ", ".join(f"{name} {part:.0%}" for name, part in evidence.cpu.items())
    )
    print(f"clients: {count_codes(evidence)}")
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}\n")
    for promise in promises:
        print(f"{'kept' if promise.kept else 'BROKEN':6}  {promise.name}\n        {promise.evidence}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="where logs, journal and what clients saw are to stay")
    given = parser.parse_args()
    with contextlib.ExitStack() as opened:
        directory = given.keep or Path(
            opened.enter_context(tempfile.TemporaryDirectory(prefix="envoy-ext-overload-"))
        )
        directory.mkdir(parents=True, exist_ok=True)
        evidence = asyncio.run(overload(Setting(given.seconds, given.seed), directory))
    promises = judge(evidence)
    report(evidence, promises)
    if given.json is not None:
        found = {
            "setting": asdict(evidence.setting),
            "codes": count_codes(evidence),
            "cpu": dict(evidence.cpu),
            "cores": os.cpu_count(),
            "load_average": os.getloadavg()[0],
            "promises": [asdict(one) for one in promises],
        }
        given.json.write_text(json.dumps(found, indent=2) + "\n")
    sys.exit(0 if all(one.kept for one in promises) else 1)


if __name__ == "__main__":
    main()
