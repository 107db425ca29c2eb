"""Capacity from load that is really there: the operations port, the metric and the command say the same."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import yaml

from envoy_ext.operations_client import fetch_capacity, fetch_replicas, fetch_status, order_drain
from tests.support.commands import run_command
from tests.with_envoy.asking import ask, asking, mint_request_id, read_deltas
from tests.with_envoy.gateway import MODEL, Gateway, run_gateway

WAIT_S = 20.0
SECTIONS: dict[str, Any] = {
    "envoy": {"concurrency": 1, "admin": {"port": 0}, "endpoints": "xds"},
    "readiness": {"watch": True, "scrape": "200ms", "stale": "5s", "hold": "200ms"},
    "capacity": {"concurrency": 4},
    "engine": {"token_s": 0.2, "tokens": 600},
}


async def wait_pool(gateway: Gateway, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The pool's capacity, once it is as the condition wants it."""
    async with asyncio.timeout(WAIT_S):
        while True:
            (pool,) = await fetch_capacity(gateway.stack.operations_url)
            if pool["now"] is not None and condition(pool):
                return pool
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def streams(gateway: Gateway, count: int) -> AsyncIterator[None]:
    """So many answers that are coming in."""
    async with contextlib.AsyncExitStack() as opened:
        for _ in range(count):
            answer = await opened.enter_async_context(asking(gateway, request_id=mint_request_id()))
            await read_deltas(answer, 1)
        yield


async def count_placed(gateway: Gateway) -> int:
    """Requests whose replica is known."""
    return sum(one["inflight"] for one in await fetch_replicas(gateway.stack.operations_url))


def read_ratio(gateway: Gateway, scenario: str) -> float:
    return gateway.read_metric("envoy_ext_capacity_headroom_ratio", pool="chat", scenario=scenario)


def write_file(directory: Path, gateway: Gateway) -> str:
    """A file as the operator has it; only its port is the running sidecar's."""
    replicas = [{"id": name, "url": engine.url} for name, engine in gateway.engines.items()]
    port = gateway.stack.app.operations_port
    pool = {"name": "chat", "models": [MODEL], "replicas": replicas, "capacity": {"concurrency": 4}}
    path = directory / "file.yaml"
    path.write_text(yaml.safe_dump({"operations": {"port": port}, "pools": [pool]}))
    return str(path)


async def test_streams_at_the_engines_are_load_and_a_drained_replica_is_room_that_is_missing(
    tmp_path: Path,
) -> None:
    async with run_gateway(tmp_path, "abc", **SECTIONS) as gateway:
        # Pages may still show the one-token calls that proved the models.
        idle = await wait_pool(gateway, lambda pool: not pool["unable"] and not pool["now"]["requests"])
        assert (idle["room"], idle["n_plus_one"]["holds"]) == (12, True)
        config = write_file(tmp_path, gateway)
        async with streams(gateway, 6):
            loaded = await wait_pool(
                gateway, lambda pool: pool["load"] == "engines" and pool["now"]["requests"] == 6
            )
            assert loaded["busiest"]["requests"] >= 6
            replica = loaded["now"]["scenarios"]["replica"]
            assert (replica["holds"], replica["room"], replica["ratio"]) == (True, 8, 0.25)
            assert loaded["now"]["scenarios"]["node"] is None
            assert read_ratio(gateway, "nothing") == 0.5
            assert read_ratio(gateway, "replica") == 0.25

            await order_drain(gateway.stack.operations_url, "c", 60, None)
            left = await wait_pool(gateway, lambda pool: pool["unable"] == ["c"])
            assert (left["room"], left["now"]["requests"]) == (8, 6), "its streams are still work"
            assert left["now"]["scenarios"]["replica"]["text"].endswith(
                "2 of 6 requests find no place; the tighter limit is requests at once"
            )
            assert read_ratio(gateway, "replica") == -2 / 6
            status, output, _ = await run_command("capacity", "-c", config)
            assert status == 1
            assert "of 6 requests find no place" in output
            assert "note: no room is counted for c: no new work goes there now" in output

            (pool,) = (await fetch_status(gateway.stack.operations_url))["pools"]
            assert (pool["availability"], pool["reason"]) == ("normal", "ready")
            assert pool["inflight"] == {"queued": 0, "prefill": 0, "decode": 6}
            status, output, _ = await run_command("status", "--url", gateway.stack.operations_url)
            assert (status, output.splitlines()[1].split()[-1]) == (0, "fails")

        quiet = await wait_pool(gateway, lambda pool: pool["now"]["requests"] == 0)
        assert quiet["busiest"]["requests"] >= 6, "the hour remembers"
        assert read_ratio(gateway, "replica") == 1.0


async def test_of_replicas_that_nobody_watches_our_own_requests_are_told_as_such(tmp_path: Path) -> None:
    sections = SECTIONS | {"readiness": {"watch": False}}
    async with run_gateway(tmp_path, "ab", **sections) as gateway:
        async with streams(gateway, 3):
            pool = await wait_pool(gateway, lambda pool: pool["now"]["requests"] == 3)
            assert (pool["load"], pool["unmeasured"]) == ("own_requests", ["a", "b"])
            assert pool["now"]["kv_cache"] is None
            async with asyncio.timeout(WAIT_S):
                while await count_placed(gateway) < 3:
                    await asyncio.sleep(0.05)
            # Before its headers, only the gateway knows of it, and not where it runs.
            silent = asyncio.create_task(ask(gateway, fault="hang"))
            pool = await wait_pool(gateway, lambda pool: pool["now"]["requests"] == 4)
            assert (await count_placed(gateway)) == 3
            silent.cancel()
            await asyncio.gather(silent, return_exceptions=True)
        await wait_pool(gateway, lambda pool: pool["now"]["requests"] == 0)
