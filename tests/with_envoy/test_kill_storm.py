"""200 streams at a time while their replicas are killed: every one ends complete, or with the truth.

Everything is a process of its own: clients, gateway (`envoy-ext run`), Envoy, three engines. What
each client saw is laid beside the journal, stream by stream.
"""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from bench.load.client import Load, run_load
from bench.load.fleet import Fleet, Rhythm
from bench.load.gateway import GatewayProcess
from bench.load.verdict import Policy, Verdict, check_generations, judge_run
from envoy_ext.adapters.envoy_process import find_envoy

pytestmark = [pytest.mark.storm, pytest.mark.timeout(240)]

STREAMS = 200
TOKENS = 24
TOKEN_S = 0.1
"""200 streams are 2,000 events a second: on two cores the slowest process is busy and not late."""
HANG_S = 20.0
"""An answer takes 2.5 s, and a lost attempt's replay as much again."""


def build_config(fleet: Fleet, directory: Path, **sections: Any) -> dict[str, Any]:
    return {
        "ingress": {"address": "127.0.0.1", "port": 0},
        "operations": {"port": 0},
        "envoy": {"concurrency": 2, "admin": {"port": 0}},
        "journal": {"store": "sqlite", "path": str(directory / "journal.db")},
        "shutdown": {"grace": "5s"},
        "pools": [{"name": "chat", "models": ["sim"], "engine": "vllm", "replicas": fleet.replicas}],
        **sections,
    }


async def play(
    directory: Path, seconds: float, rhythm: Rhythm, policy: Policy, prefill_s: float = 0.2, **sections: Any
) -> tuple[Verdict, Fleet]:
    """Let the storm blow; everything that holds for every storm is asserted here."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    options = {"tokens": TOKENS, "token_s": TOKEN_S, "prefill_s": prefill_s, "max_running": STREAMS}
    async with (
        Fleet("abc", **options) as fleet,
        GatewayProcess(build_config(fleet, directory, **sections), directory, find_envoy()) as gateway,
    ):
        load = Load(gateway.url, STREAMS, seconds, str(directory / "seen"), "storm", seed, hang_s=HANG_S)
        async with asyncio.TaskGroup() as both:
            clients = both.create_task(run_load(load))
            both.create_task(fleet.storm(seed, seconds, rhythm))
        found = clients.result()
        await gateway.wait_idle()
        await fleet.collect_all()
        operations = await gateway.fetch_operations()
        verdict = judge_run(found, operations, TOKENS, policy)
        verdict.complaints += check_generations(fleet.records, operations)
        print(f"{len(found)} streams, {fleet.kills} kills, at most {fleet.most_down} of 3 down")
        print(verdict.tell())
        print(gateway.read_log())
        assert not verdict.complaints, "\n".join(verdict.complaints[:40])
        assert set((await gateway.fetch_metrics("envoy_ext_inflight")).values()) == {0.0}
        assert await gateway.fetch_metrics("envoy_ext_bugs_total") == {"": 0.0}
        assert await gateway.fetch_metrics("envoy_ext_journal_failures_total") == {"": 0.0}
        endings = await gateway.fetch_metrics("envoy_ext_exchanges_total")
        assert {ending: count for ending, count in endings.items() if count} == {
            "finished chat": verdict.ends["complete"],
            "upstream_broke chat": verdict.ends["interrupted"]
            + verdict.ends["refused"]
            - verdict.unopened.total(),
        }
        assert (await gateway.fetch_metrics("envoy_ext_shed_total")).get("no_ready_replica chat", 0) == (
            verdict.unopened["no_ready_replica"]
        )
        faults = await gateway.fetch_envoy_stats("logs_dropped|spurious_msgs_received|message_timeouts")
        assert set(faults.values()) == {0}, faults
        assert gateway.find_envoy() == gateway.envoy_pid
        assert await gateway.stop() == 0
    return verdict, fleet


async def test_every_stream_of_a_kill_storm_ends_complete_or_with_one_truthful_error(tmp_path: Path) -> None:
    verdict, fleet = await play(
        tmp_path,
        30.0,
        Rhythm(),
        Policy(others_may_be_out=True),
        retry_budget={"percent": 100, "min_concurrency": STREAMS},
    )
    # The storm was one: all three ends were seen, and the replay at work.
    assert fleet.kills >= 6
    assert verdict.ends["complete"] > STREAMS // 4
    assert verdict.ends["interrupted"] > STREAMS // 4
    assert verdict.replayed > 0


async def test_a_storm_above_the_retry_budget_is_refused_by_that_name_and_no_other(tmp_path: Path) -> None:
    """A third of all streams is lost at once, half of it in prefill; one in ten may be replayed at once."""
    verdict, _ = await play(
        tmp_path,
        10.0,
        Rhythm(up=(2.0, 4.0), down=(0.5, 1.5)),
        Policy(budget_binds=True, others_may_be_out=True),
        prefill_s=2.0,
        retry_budget={"percent": 10, "min_concurrency": 3},
    )
    assert any(code.startswith("retry_budget_exhausted/") for code in verdict.codes)
    # A budget that was spent was spent on replays; whether one of them completes is the storm's to say.
    assert verdict.replays > 0
