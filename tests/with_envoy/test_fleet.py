"""New work follows readiness: replicas that are watched, and an Envoy that hears of it over xDS."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from envoy_ext import app
from envoy_ext.domain.incarnation import START_JITTER_S
from envoy_ext.operations_client import fetch_replicas, order_drain, order_undrain
from envoy_ext.sim.engine import SimEngine
from envoy_ext.sim.options import SimOptions
from tests.with_envoy.asking import ask
from tests.with_envoy.gateway import MODEL, Gateway, run_gateway

WAIT_S = 20.0
ENVOY = {"concurrency": 1, "admin": {"port": 0}}
READINESS = {"scrape": "200ms", "stale": "2s", "hold": "400ms"}


def build_sections(**readiness: Any) -> dict[str, Any]:
    return {"envoy": ENVOY, "readiness": READINESS | readiness}


async def read_replica(gateway: Gateway, name: str) -> dict[str, Any]:
    return next(one for one in await fetch_replicas(gateway.stack.operations_url) if one["id"] == name)


async def wait_state(gateway: Gateway, name: str, *states: str) -> dict[str, Any]:
    """Until a replica is in one of these states."""
    async with asyncio.timeout(WAIT_S):
        while (replica := await read_replica(gateway, name))["state"] not in states:
            await asyncio.sleep(0.05)
    return replica


async def answer_many(gateway: Gateway, count: int) -> Counter[str]:
    """Which replicas answered; every request must get one whole answer."""
    replies = await asyncio.gather(*(ask(gateway) for _ in range(count)))
    assert {(reply.status, len(reply.errors)) for reply in replies} == {(200, 0)}
    return Counter(reply.headers["x-sim-replica"] for reply in replies)


async def test_a_replica_is_shown_as_it_was_read(tmp_path: Path) -> None:
    async with run_gateway(tmp_path, "ab", **build_sections()) as gateway:
        replica = await wait_state(gateway, "a", "ready", "warming")
        assert (replica["ready"], replica["reasons"], replica["running"], replica["waiting"]) == (
            True,
            [],
            0,
            0,
        )
        assert replica["kv_cache_usage"] == 0
        assert replica["weight"] >= 1
        assert gateway.read_metric("envoy_ext_replica_ready", pool="chat", replica="a") == 1
        assert gateway.read_metric("envoy_ext_xds_pushes_total", kind="eds") >= 1


async def test_a_stopped_replica_gets_no_work_and_comes_back_by_itself(tmp_path: Path) -> None:
    async with run_gateway(tmp_path, "ab", **build_sections()) as gateway:
        # Two processes whose start times are closer than exporters' jitter count as one.
        first_life = asyncio.create_task(asyncio.sleep(START_JITTER_S + 0.2))
        port = gateway.engines["b"].port
        await gateway.engines["b"].stop()
        gone = await wait_state(gateway, "b", "unready", "starting")
        assert "refused" in gone["reasons"]
        assert set(await answer_many(gateway, 10)) == {"a"}
        await first_life
        again = SimEngine(SimOptions(name="b", models=(MODEL,), port=port, tokens=6, first_generation=1000))
        async with again:
            back = await wait_state(gateway, "b", "warming", "ready")
            assert int(back["incarnation"]) > int(gone["incarnation"])
            answered: Counter[str] = Counter()
            async with asyncio.timeout(WAIT_S):
                while not answered["b"]:
                    answered += await answer_many(gateway, 10)


async def test_a_drained_replica_finishes_its_streams_and_gets_no_more(tmp_path: Path) -> None:
    async with run_gateway(
        tmp_path, "ab", engine={"token_s": 0.1, "tokens": 10}, **build_sections()
    ) as gateway:
        await wait_state(gateway, "a", "ready", "warming")
        running = [asyncio.create_task(ask(gateway)) for _ in range(6)]
        async with asyncio.timeout(WAIT_S):
            while not (await read_replica(gateway, "a"))["inflight"]:
                await asyncio.sleep(0.02)
        await order_drain(gateway.stack.operations_url, "a", 30, None)
        assert (await read_replica(gateway, "a"))["state"] == "draining"
        assert set(await answer_many(gateway, 6)) == {"b"}
        assert [reply.errors for reply in await asyncio.gather(*running)] == [[]] * 6
        await order_undrain(gateway.stack.operations_url, "a", None)
        await wait_state(gateway, "a", "ready", "warming")


async def test_a_pool_that_is_drained_altogether_refuses_at_once(tmp_path: Path) -> None:
    async with run_gateway(tmp_path, "a", **build_sections()) as gateway:
        await order_drain(gateway.stack.operations_url, "a", 30, None)
        reply = await ask(gateway)
        assert (reply.status, reply.json["error"]["code"]) == (503, "no_ready_replica")
        assert reply.headers["retry-after"].isdigit()
        assert gateway.engines["a"].find_requests(reply.request_id) == []


async def test_a_stop_waits_for_no_discovery_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Envoy keeps its stream for endpoints open for good; the sidecar's last words are for clients."""
    monkeypatch.setattr(app, "LAST_WORDS_S", 90.0)  # longer than any busy machine takes to stop
    async with run_gateway(tmp_path, "a", **build_sections()) as gateway:
        await gateway.wait_idle()
        async with asyncio.timeout(30):
            await gateway.stack.app.stop()


@pytest.mark.parametrize("endpoints", ["static", "xds"])
@pytest.mark.parametrize("watched", [False, True])
async def test_a_drain_holds_however_envoy_hears_of_it(tmp_path: Path, endpoints: str, watched: bool) -> None:
    """An Envoy that has only the list knows all replicas: there the gate names one that may serve."""
    sections = build_sections(watch=watched) | {"envoy": ENVOY | {"endpoints": endpoints}}
    async with run_gateway(tmp_path, "abc", **sections) as gateway:
        for name in "abc":
            await wait_state(gateway, name, "ready", "warming")
        await order_drain(gateway.stack.operations_url, "b", 30, None)
        assert set(await answer_many(gateway, 20)) == {"a", "c"}
        await order_undrain(gateway.stack.operations_url, "b", None)
        assert (await read_replica(gateway, "b"))["state"] in ("ready", "warming")
        answered: Counter[str] = Counter()
        async with asyncio.timeout(WAIT_S):
            while set(answered) != {"a", "b", "c"}:
                answered += await answer_many(gateway, 10)
