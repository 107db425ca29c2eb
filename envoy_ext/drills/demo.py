"""`envoy-ext demo`: the main job on real Envoy, one failure after another, with what each side saw.

Three simulated engines run in processes of their own and are really killed. A scenario says which
fault it plays and what must come of it; what did not come is printed and makes the exit status 1.
"""

import asyncio
import contextlib
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from envoy_ext.adapters.envoy_process import find_envoy
from envoy_ext.config import Config, parse_config
from envoy_ext.drills.client import Seen, ask_chat
from envoy_ext.observability.logs import configure_logging
from envoy_ext.operations_client import fetch_operation, fetch_operations
from envoy_ext.sim.options import SimOptions
from envoy_ext.sim.process import SimProcess
from envoy_ext.stack import Stack

MODEL: Final = "sim"
SETTLE_S: Final = 5.0
"""How long the journal may take to hear from both access logs; it takes milliseconds."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that is known of one played scenario."""

    seen: Seen
    operation: dict[str, Any]
    generations: list[dict[str, Any]]
    """What the engines that still live remember of the request."""
    cancelled_after_s: float | None
    """For a client that left: how long until its replica noticed."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One failure, and what must come of it."""

    title: str
    fault: str
    expect: Callable[[Outcome], dict[str, bool]]
    leave_after_deltas: int | None = None


def _whole(outcome: Outcome, attempts: int) -> dict[str, bool]:
    return {
        "one complete answer": outcome.seen.complete and outcome.seen.done,
        f"attempts = {attempts}": len(outcome.operation["attempts"]) == attempts,
        "the text is of one attempt": len({word.rpartition(".")[0] for word in outcome.seen.text.split()})
        == 1,
        "the journal says completed": outcome.operation["state"] == "completed",
    }


def _interrupted(outcome: Outcome, reason: str) -> dict[str, bool]:
    error = outcome.seen.error or {}
    counted = outcome.operation["delivered_deltas"]
    return {
        "one typed event": outcome.seen.errors == 1 and error.get("code") == "upstream_decode_interrupted",
        "no [DONE] and no cut": not outcome.seen.done and not outcome.seen.cut,
        f"reason {reason}": error.get("reason") == reason == (outcome.operation["error"] or {}).get("reason"),
        "attempts = 1": len(outcome.operation["attempts"]) == 1,
        "no second generation was started": len(outcome.generations) <= 1,
        "client and journal count the same deltas": outcome.seen.deltas == counted,
    }


def _client_gone(outcome: Outcome) -> dict[str, bool]:
    noticed = outcome.cancelled_after_s
    return {
        "the replica's connection was reset within 1 s": noticed is not None and noticed < 1.0,
        "no second attempt": len(outcome.operation["attempts"]) == 1 and len(outcome.generations) == 1,
        "the journal says client_gone": outcome.operation["ending"] == "client_gone",
    }


SCENARIOS: Final = (
    Scenario("nothing fails", "", lambda o: _whole(o, 1)),
    Scenario("the replica is killed before headers", "#1:die_before_headers:kill", lambda o: _whole(o, 2)),
    Scenario("the replica is killed after headers", "#1:die_after_headers:kill", lambda o: _whole(o, 2)),
    Scenario(
        "the replica is killed while its first token is on the way",
        "#1:die_mid_event=0:kill",
        lambda o: _whole(o, 2),
    ),
    Scenario(
        "the replica is killed after three deltas",
        # Slow, so that the deltas are with the client before the kill.
        "slow=20+die_after=3:kill",
        lambda o: _interrupted(o, "replica_died"),
    ),
    Scenario("the client leaves after two deltas", "slow=10", _client_gone, leave_after_deltas=2),
    Scenario("the client leaves during prefill", "hang_after_headers", _client_gone, leave_after_deltas=0),
    Scenario("a 200 whose first event is an engine error", "#1:error_first=engine", lambda o: _whole(o, 2)),
    Scenario(
        "a stream that ends without a word after three deltas",
        "truncate=3",
        lambda o: _interrupted(o, "truncated"),
    ),
)


async def run_demo(envoy: str | None, keep: bool) -> int:
    """Play all scenarios; 0 when everything came as it must."""
    binary = find_envoy(envoy)
    configure_logging("error")
    with tempfile.TemporaryDirectory(prefix="envoy-ext-demo-") as directory:
        engines = [SimProcess(SimOptions(name=name, models=(MODEL,), tokens=8)) for name in "abc"]
        try:
            for engine in engines:
                await engine.start()
            async with Stack(_build_config(engines, Path(directory)), binary) as stack:
                print(f"envoy {stack.ingress_url}, sidecar {stack.operations_url}, three simulated engines\n")
                failed = await _play_all(stack, engines)
                print("everything came as it must" if not failed else f"{failed} scenarios did not")
                if keep:
                    await _keep(stack, engines)
        finally:
            for engine in engines:
                await engine.stop()
    return 1 if failed else 0


def _build_config(engines: list[SimProcess], directory: Path) -> Config:
    replicas = [{"id": engine.options.name, "url": engine.url} for engine in engines]
    return parse_config(
        {
            "ingress": {"address": "127.0.0.1", "port": 0},
            "operations": {"port": 0},
            "envoy": {"admin": {"port": 0}},
            "journal": {"path": str(directory / "journal.db")},
            "shutdown": {"grace": "2s"},
            "limits": {"max_event_loop_lag": 0},  # all of it is played, however slow the machine
            "pools": [{"name": "chat", "models": [MODEL], "engine": "vllm", "replicas": replicas}],
        },
        "demo",
    )


async def _play_all(stack: Stack, engines: list[SimProcess]) -> int:
    failed = 0
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        for number, scenario in enumerate(SCENARIOS, 1):
            outcome = await _play(stack, engines, scenario, http)
            checks = scenario.expect(outcome)
            failed += not all(checks.values())
            _print_outcome(number, scenario, outcome, checks)
            for engine in engines:
                await engine.start()
    return failed


async def _play(
    stack: Stack, engines: list[SimProcess], scenario: Scenario, http: aiohttp.ClientSession
) -> Outcome:
    headers = {"x-request-id": f"demo-{scenario.title.replace(' ', '-')}"}
    if scenario.fault:
        headers["x-sim-fault"] = scenario.fault
    seen = await ask_chat(
        http, stack.ingress_url, model=MODEL, headers=headers, leave_after_deltas=scenario.leave_after_deltas
    )
    loop = asyncio.get_running_loop()
    ended = loop.time()
    noticed = await _wait_cancelled(engines, headers["x-request-id"], http) if seen.left else False
    noticed_after = loop.time() - ended if noticed else None
    operation = await _wait_operation(stack, headers["x-request-id"])
    return Outcome(seen, operation, await _ask_engines(engines, headers["x-request-id"], http), noticed_after)


async def _wait_cancelled(engines: list[SimProcess], request_id: str, http: aiohttp.ClientSession) -> bool:
    """Until an engine has noticed that nobody reads its answer."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SETTLE_S):
            while True:
                for record in await _ask_engines(engines, request_id, http):
                    if record["ended"] == "client_disconnected":
                        return True
                await asyncio.sleep(0.02)
    return False


async def _wait_operation(stack: Stack, request_id: str) -> dict[str, Any]:
    """The operation, once both logs have told the journal how it and its attempts ended."""
    found: dict[str, Any] = {}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SETTLE_S):
            while True:
                for listed in await fetch_operations(stack.operations_url, 5):
                    if listed["request_id"] == request_id:
                        found = await fetch_operation(stack.operations_url, listed["operation_id"])
                if found.get("ended_at") and all(attempt["ended_at"] for attempt in found["attempts"]):
                    return found
                await asyncio.sleep(0.02)
    return found


async def _ask_engines(
    engines: list[SimProcess], request_id: str, http: aiohttp.ClientSession
) -> list[dict[str, Any]]:
    """What the engines that live remember of a request."""
    found: list[dict[str, Any]] = []
    for engine in engines:
        if not engine.alive:
            continue
        with contextlib.suppress(aiohttp.ClientError):
            async with http.get(f"{engine.url}/sim/requests", params={"request_id": request_id}) as answer:
                found += (await answer.json())["requests"]
    return found


def _print_outcome(number: int, scenario: Scenario, outcome: Outcome, checks: dict[str, bool]) -> None:
    print(f"{number}. {scenario.title}")
    print(f"   client   {outcome.seen.tell()}")
    print(f"   journal  {_tell_operation(outcome.operation)}")
    if outcome.cancelled_after_s is not None:
        print(f"   replica  noticed after {outcome.cancelled_after_s * 1000:.0f} ms")
    for what, good in checks.items():
        if not good:
            print(f"   NOT SO   {what}")
    print(flush=True)


def _tell_operation(operation: dict[str, Any]) -> str:
    reason = (operation.get("error") or {}).get("reason")
    end = f"{operation.get('state')}, {operation.get('ending')}" + (f" ({reason})" if reason else "")
    attempts = [f"{a['attempt']} at {a['replica']}: {a['outcome']}" for a in operation.get("attempts", ())]
    return f"{end}; {', '.join(attempts)}"


async def _keep(stack: Stack, engines: list[SimProcess]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    print(f"clients {stack.ingress_url}  operations {stack.operations_url}  envoy {stack.envoy.admin_url}")
    for engine in engines:
        print(f"engine {engine.options.name} {engine.url}")
    print("Ctrl-C ends it", flush=True)
    await stop.wait()
