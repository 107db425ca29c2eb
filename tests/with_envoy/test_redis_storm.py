"""Redis is killed and started again under load: what was acknowledged is found, and nothing runs twice.

Everything is a process of its own: clients, gateway (`envoy-ext run`), Envoy, engines, Redis. Redis syncs its
log with each write (`appendfsync always`). A third of the requests has a key, which its client repeats; a
third is of the class that may go on unrecorded.
"""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from bench.load.client import Load, run_load
from bench.load.fleet import Fleet
from bench.load.gateway import GatewayProcess
from bench.load.seen import BodyEnd, Seen
from bench.load.verdict import Policy, check_generations, check_keys, judge_run
from envoy_ext.adapters.envoy_process import find_envoy
from tests.support.redis_server import RedisServer, redis_server

pytestmark = [pytest.mark.storm, pytest.mark.timeout(180)]

STREAMS = 60
TOKENS = 12
SECONDS = 15.0
DOWN_S = (0.2, 3.5, 1.2)
"""Shorter than a call may take, longer than a seat is kept, and between the two."""
TTL_S = 2.0


def build_config(fleet: Fleet, server: RedisServer) -> dict[str, Any]:
    return {
        "ingress": {"address": "127.0.0.1", "port": 0},
        "operations": {"port": 0},
        "envoy": {"concurrency": 2, "admin": {"port": 0}},
        "journal": {
            "store": "redis",
            "url": server.url,
            "timeout": "1s",
            "on_unavailable": "continue_unrecorded",
        },
        "admission": {"classes": {"chat": {"unrecorded": True}}},
        "lease": {"ttl": f"{TTL_S:g}s", "renew": "500ms", "margin": "500ms"},
        "shutdown": {"grace": "5s"},
        "pools": [{"name": "chat", "models": ["sim"], "engine": "vllm", "replicas": fleet.replicas}],
    }


async def kill_and_start(server: RedisServer, seed: int) -> None:
    """Each time under way in the load, and never in its last seconds."""
    rng = random.Random(seed)
    for down_s in DOWN_S:
        # The random passing of time is the load itself; nothing is waited for here.
        await asyncio.sleep(rng.uniform(1.0, 2.5))
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(down_s)
        await asyncio.to_thread(server.start)


async def wait_told(gateway: GatewayProcess) -> list[dict[str, Any]]:
    """The journal, once it has been told of every end."""
    async with asyncio.timeout(15):
        while True:
            operations = await gateway.fetch_operations()
            if all(one["ended_at"] and all(a["ended_at"] for a in one["attempts"]) for one in operations):
                return operations
            await asyncio.sleep(0.2)


def check_the_unrecorded(found: list[Seen], asked: list[dict[str, Any]]) -> list[str]:
    """Of the engines each was asked for once."""
    names = {seen.request_id for seen in found if not seen.recorded}
    ran = [one["request_id"] for one in asked if one["request_id"] in names]
    return [f"{name}: unrecorded, and ran {ran.count(name)} times" for name in names if ran.count(name) != 1]


async def test_what_redis_has_acknowledged_is_there_after_its_death_and_nothing_runs_twice(
    tmp_path: Path,
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    options = {"tokens": TOKENS, "token_s": 0.1, "prefill_s": 0.1, "max_running": STREAMS}
    with redis_server(tmp_path / "redis", appendonly="yes", appendfsync="always") as server:
        async with (
            Fleet("ab", **options) as fleet,
            GatewayProcess(build_config(fleet, server), tmp_path, find_envoy()) as gateway,
        ):
            load = Load(
                gateway.url,
                STREAMS,
                SECONDS,
                str(tmp_path / "seen"),
                "redis",
                seed,
                hang_s=20.0,
                kinds=("plain", "keyed", "chat"),
            )
            async with asyncio.TaskGroup() as both:
                clients = both.create_task(run_load(load))
                both.create_task(kill_and_start(server, seed))
            found = clients.result()
            await gateway.wait_idle()
            await fleet.collect_all()
            operations = await wait_told(gateway)
            verdict = judge_run(found, operations, TOKENS, Policy(store_may_be_down=True))
            unrecorded = {seen.request_id for seen in found if not seen.recorded}
            recorded = [one for one in fleet.records if one["request_id"] not in unrecorded]
            complaints = [
                *verdict.complaints,
                *check_generations(recorded, operations),
                *check_the_unrecorded(found, fleet.records),
                *check_keys(found),
            ]
            print(f"{len(found)} streams, {verdict.unrecorded} of them unrecorded")
            print(verdict.tell())
            print(gateway.read_log())
            assert not complaints, "\n".join(complaints[:40])
            # It was an outage, and both that may be done about one was done.
            assert verdict.codes["upstream_unavailable/store"] > 0
            assert verdict.unrecorded > 0
            # Streams that had begun went on to their end.
            assert {seen.body_end for seen in found} == {BodyEnd.ORDERLY}
            assert verdict.ends["interrupted"] == 0
            assert set((await gateway.fetch_metrics("envoy_ext_inflight")).values()) == {0.0}
            assert await gateway.fetch_metrics("envoy_ext_bugs_total") == {"": 0.0}
            assert await gateway.fetch_metrics("envoy_ext_journal_up") == {"": 1.0}
            # Envoy never ran out of patience with the sidecar: each refusal came in the time of a call.
            faults = await gateway.fetch_envoy_stats("message_timeouts|spurious_msgs_received")
            assert set(faults.values()) == {0}, faults
            assert await gateway.stop() == 0
