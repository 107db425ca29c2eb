"""`python -m bench.simulation.against_envoy`: the same requests at a real Envoy, and in the simulation.

Two engines of eight slots, one answer of 1.55 s for each request, Poisson arrivals without any retry:
real processes (`envoy-ext run`, its Envoy, two of this project's engines for tests) and, with the very same
arrival times, the simulation. What is compared is stated as ratios; docs/simulation.md has those of one run.
"""

import asyncio
import contextlib
import json
import random
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from bench.load.fleet import Fleet
from bench.load.gateway import GatewayProcess
from bench.simulation.engine import Engine, EngineModel
from bench.simulation.events import Events
from bench.simulation.request import Request
from bench.simulation.ruled import RuledGateway, RuledPolicy
from bench.simulation.tables import KEPT
from bench.simulation.tally import Tally
from envoy_ext.adapters.envoy_process import find_envoy

TOKENS, TOKEN_S, PREFILL_S = 4, 0.5, 0.05
"""Few and slow: a machine with little time makes each of them late."""
MODEL_STEP_S: Final = 0.05
"""The model's engine takes newcomers in between two steps, the other one at once: fine steps."""
SLOTS_EACH, QUEUE, SECONDS = 8, 16, 40.0
CALLERS: Final = 5
ANSWER_S: Final = PREFILL_S + (TOKENS - 1) * TOKEN_S
STEPS: Final = round(ANSWER_S / MODEL_STEP_S)
CAPACITY_PER_S: Final = 2 * SLOTS_EACH / ANSWER_S


@dataclass
class Seen:
    """What became of the requests."""

    total_s: list[float] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)

    def summarize(self) -> dict[str, Any]:
        """As it is compared."""
        return {
            "answered": len(self.total_s),
            "refused": sum(self.refused.values()),
            "median_s": round(statistics.median(self.total_s), 3),
            "p90_s": round(statistics.quantiles(self.total_s, n=10)[-1], 3),
            "codes": dict(self.refused),
        }


def draw_arrivals(load: float, seed: int) -> list[tuple[float, str]]:
    """When each request comes, and whose it is."""
    dice, at = random.Random(seed), 0.0
    found: list[tuple[float, str]] = []
    while (at := at + dice.expovariate(load * CAPACITY_PER_S)) < SECONDS:
        found.append((at, f"caller-{dice.randrange(CALLERS)}"))
    return found


def simulate(arrivals: list[tuple[float, str]]) -> Seen:
    """The simulation's part."""
    # As many steps as take the time in which a slot of the other engine gives one answer.
    model = EngineModel(
        base_s=MODEL_STEP_S,
        sequence_s=0.0,
        token_s=0.0,
        sequences=SLOTS_EACH,
        step_tokens=10**6,
        kv_tokens=10**9,
    )
    events, seen = Events(), Seen()
    engines = [Engine(events, model) for _ in range(2)]

    class Client:
        def hear_first(self, request: Request) -> None: ...

        def hear_answer(self, request: Request) -> None:
            seen.total_s.append(events.time - request.sent_at)

        def hear_refusal(self, request: Request, status: int, *_: object) -> None:
            seen.refused[str(status)] += 1

        def hear_break(self, request: Request) -> None:
            seen.refused["broken"] += 1

    policy = RuledPolicy(concurrency=SLOTS_EACH, queue=QUEUE, classes=())
    with events.as_loop():
        gateway = RuledGateway(events, engines, policy, random.Random(1), Tally(events, (0.0, 1e9)))
        for number, (at, caller) in enumerate(arrivals):
            sent_at = 40.0 + at
            request = Request(number, "default", caller, True, 1, STEPS, Client(), sent_at + 1e6, sent_at)
            events.at(sent_at, gateway.receive, request)
        events.run(200.0)
    return seen


async def ask_envoy(arrivals: list[tuple[float, str]]) -> Seen:
    """The real part."""
    seen = Seen()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        fleet = Fleet("ab", prefill_s=PREFILL_S, token_s=TOKEN_S, tokens=TOKENS, max_running=SLOTS_EACH)
        async with fleet, GatewayProcess(_build_config(fleet, directory), directory, find_envoy()) as gateway:
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(connector=connector) as http, asyncio.TaskGroup() as clients:
                begun = time.monotonic()
                for at, caller in arrivals:
                    await asyncio.sleep(max(0.0, begun + at - time.monotonic()))
                    clients.create_task(_ask(http, gateway.url, caller, seen))
    return seen


async def _ask(http: aiohttp.ClientSession, url: str, caller: str, seen: Seen) -> None:
    body = {
        "model": "sim",
        "stream": True,
        "max_tokens": TOKENS,
        "messages": [{"role": "user", "content": "x"}],
    }
    begun = time.monotonic()
    headers = {"authorization": f"Bearer {caller}"}
    async with http.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
        text = await answer.text()
    if answer.status == 200 and "[DONE]" in text:
        seen.total_s.append(time.monotonic() - begun)
    else:
        seen.refused[str(answer.status)] += 1


def _build_config(fleet: Fleet, directory: Path) -> dict[str, Any]:
    return {
        "ingress": {"address": "127.0.0.1", "port": 0},
        "operations": {"port": 0},
        "envoy": {"concurrency": 1, "admin": {"port": 0}},
        "journal": {"store": "sqlite", "path": str(directory / "journal.db")},
        "admission": {"queue": QUEUE, "max_wait": "30s"},
        "pools": [
            {
                "name": "chat",
                "models": ["sim"],
                "engine": "vllm",
                "capacity": {"concurrency": SLOTS_EACH},
                "replicas": fleet.replicas,
            }
        ],
    }


async def main() -> None:
    """Both, at loads below and above what there is; the result is kept for the page."""
    kept: dict[str, Any] = {}
    for load in (0.5, 0.9, 1.5, 3.0):
        arrivals = draw_arrivals(load, seed=1)
        kept[f"{load:g}"] = {
            "sent": len(arrivals),
            "simulated": simulate(arrivals).summarize(),
            "real": (await ask_envoy(arrivals)).summarize(),
        }
        print(load, kept[f"{load:g}"], flush=True)
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
