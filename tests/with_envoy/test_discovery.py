"""Pods of a Kubernetes Service behind a real Envoy: they come, go and are ended, and no client notices."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from envoy_ext.operations_client import fetch_replicas, fetch_status
from envoy_ext.sim.engine import SimEngine
from envoy_ext.sim.options import SimOptions
from tests.support.kube_api import KubeApi, forbidden
from tests.support.slices import pod, slice_of
from tests.with_envoy.asking import Reply, ask, asking, build_body, mint_request_id, read_deltas
from tests.with_envoy.gateway import MODEL, Gateway, build_config, run_stack

WAIT_S = 20.0
CONNECT_TIMEOUT_S = 2.0
"""Of the pools' clusters: how long a request waits that is sent to an address nobody is at."""


class Cluster:
    """A Service of simulated engines, and the gateway that follows it."""

    def __init__(self) -> None:
        self.api = KubeApi()
        self.engines: dict[str, SimEngine] = {}
        self.gateway: Gateway
        self._opened = contextlib.AsyncExitStack()

    async def start_pod(self, name: str, **conditions: Any) -> None:
        """An engine in a pod; the pod's slice follows."""
        options = SimOptions(name=name, models=(MODEL,), tokens=8, token_s=0.02, prefill_s=0.01)
        self.engines[name] = await self._opened.enter_async_context(SimEngine(options))
        self.tell(name, **conditions)

    def tell(self, name: str, **conditions: Any) -> None:
        """What the slice says of a pod. Each has one of its own: their port of one name is never the same."""
        host, port = self.engines[name].url.removeprefix("http://").split(":")
        endpoint = pod(name, host, node=f"node-of-{name}", zone="z1", **conditions)
        ports = [{"name": "http", "port": int(port), "protocol": "TCP"}]
        self.api.put(slice_of(endpoint, name=f"vllm-{name}", ports=ports))

    def end_pod(self, name: str) -> None:
        """It was deleted: it ends its streams, and gets no new ones."""
        self.tell(name, ready=False, serving=True, terminating=True)

    async def lose_pod(self, name: str) -> None:
        """It is not there any more."""
        self.api.delete(f"vllm-{name}")
        await self.wait_gone(name)

    async def stop_engine(self, name: str) -> None:
        await self.engines.pop(name).stop()

    async def read_replicas(self) -> dict[str, dict[str, Any]]:
        return {one["id"]: one for one in await fetch_replicas(self.gateway.stack.operations_url)}

    async def wait_state(self, name: str, *states: str) -> None:
        async with asyncio.timeout(WAIT_S):
            while (await self.read_replicas()).get(name, {}).get("state") not in states:
                await asyncio.sleep(0.02)

    async def wait_gone(self, name: str) -> None:
        async with asyncio.timeout(WAIT_S):
            while (await self.read_replicas()).get(name, {"state": "gone"})["state"] != "gone":
                await asyncio.sleep(0.02)

    async def ask(self, count: int = 1) -> Counter[str]:
        """Who answered; each request must get one whole answer."""
        replies = await asyncio.gather(*(ask(self.gateway) for _ in range(count)))
        assert [(one.status, one.errors, one.dones) for one in replies] == [(200, [], 1)] * count
        return Counter(one.headers["x-sim-replica"] for one in replies)

    async def wait_ended(self, name: str) -> None:
        """Until a pod that is being ended gets nothing new and has nothing left: its time of grace."""
        serving = len(self.api.list_ready())
        async with asyncio.timeout(WAIT_S):
            while await self.count_healthy() != serving:
                await asyncio.sleep(0.02)
            # The engine's own word, since of a stream in prefill the sidecar does not know yet where it runs;
            # and more than once, since Envoy's workers hear a little later than its statistics.
            idle = 0
            while idle < 3:
                busy = self.engines[name].state.running or (await self.read_replicas())[name]["inflight"]
                idle = 0 if busy else idle + 1
                await asyncio.sleep(0.02)

    async def count_healthy(self) -> int:
        """How many endpoints Envoy may send new work to."""
        stats = await self.gateway.read_envoy_stats("pool_chat.membership_healthy$")
        return sum(stats.values())

    async def ask_until_answered(self) -> str:
        """Who answered first. Until Envoy has heard of somebody, `no_ready_replica` is all that is said."""
        async with asyncio.timeout(WAIT_S):
            while True:
                reply = await ask(self.gateway)
                if reply.status == 200:
                    return reply.headers["x-sim-replica"]
                assert (reply.status, reply.json["error"]["code"]) == (503, "no_ready_replica")

    async def assert_sent_to_nobody_who_is_not_there(self) -> None:
        """No connection was tried that could only fail."""
        failed = await self.gateway.read_envoy_stats("pool_chat.upstream_cx_connect_(fail|timeout)")
        assert set(failed.values()) == {0}

    async def close(self) -> None:
        await self._opened.aclose()


@contextlib.asynccontextmanager
async def run_cluster(directory: Path, *names: str, watch: bool = False) -> AsyncIterator[Cluster]:
    """A cluster that begins with these pods."""
    cluster = Cluster()
    (directory / "token").write_text("token-1")
    async with contextlib.aclosing(contextlib.AsyncExitStack()) as opened:
        opened.push_async_callback(cluster.close)
        for name in names:
            await cluster.start_pod(name)
        await opened.enter_async_context(cluster.api.run())
        where = {"namespace": "ml", "api": cluster.api.url, "token_file": str(directory / "token")}
        config = build_config(
            {},
            directory,
            envoy={"concurrency": 2, "admin": {"port": 0}, "endpoints": "xds"},
            discovery={"kubernetes": {"service": "vllm", "port": "http", **where}},
            readiness={"watch": watch, "scrape": "200ms", "stale": "2s", "hold": "400ms"},
        )
        cluster.gateway = await opened.enter_async_context(run_stack(config, cluster.engines))
        yield cluster


async def test_pods_are_shown_with_their_place(tmp_path: Path) -> None:
    async with run_cluster(tmp_path, "a", "b") as cluster:
        replicas = await cluster.read_replicas()
        assert {name: one["url"] for name, one in replicas.items()} == {
            name: engine.url for name, engine in cluster.engines.items()
        }
        assert (replicas["a"]["node"], replicas["a"]["zone"]) == ("node-of-a", "z1")
        (pool,) = (await fetch_status(cluster.gateway.stack.operations_url))["pools"]
        assert (pool["replicas"], pool["discovery"]["source"]) == (["a", "b"], "kubernetes")
        assert (pool["discovery"]["listed"], pool["discovery"]["failing"]) == (True, None)


@pytest.mark.parametrize("watch", [False, True])
async def test_pods_come_and_go_under_load_and_no_request_fails(tmp_path: Path, watch: bool) -> None:
    async with run_cluster(tmp_path, "a", "b", watch=watch) as cluster:
        stop = asyncio.Event()
        answered: Counter[str] = Counter()

        async def load() -> None:
            while not stop.is_set():
                answered.update(await cluster.ask())

        async def wait_answers(name: str) -> None:
            before = answered[name]
            async with asyncio.timeout(WAIT_S):
                while answered[name] == before:
                    await asyncio.sleep(0.02)

        clients = [asyncio.create_task(load()) for _ in range(8)]
        try:
            for old, new in (("a", "c"), ("b", "d"), ("c", "e")):
                await cluster.start_pod(new, ready=False)
                await cluster.wait_state(new, "unready", "starting")
                assert answered[new] == 0, "the kubelet does not call it ready yet"
                cluster.tell(new)
                await wait_answers(new)
                cluster.end_pod(old)
                await cluster.wait_ended(old)
                await cluster.stop_engine(old)
                await cluster.lose_pod(old)
                await wait_answers(new)
        finally:
            stop.set()
            await asyncio.gather(*clients)
        assert set(answered) == {"a", "b", "c", "d", "e"}
        async with asyncio.timeout(WAIT_S):
            while set(await cluster.read_replicas()) != {"d", "e"}:
                await asyncio.sleep(0.02)
        page = cluster.gateway.stack.app.registry
        shown = {
            sample.labels["replica"]
            for family in page.collect()
            for sample in family.samples
            if "replica" in sample.labels
        }
        assert shown == {"d", "e"}, "whoever is gone has no series any more"


async def test_a_stream_outlives_that_its_pod_is_not_listed_any_more(tmp_path: Path) -> None:
    async with run_cluster(tmp_path, "a") as cluster:
        request_id = mint_request_id()
        async with asking(cluster.gateway, request_id=request_id) as answer:
            await read_deltas(answer, 1)
            await cluster.lose_pod("a")
            assert (await cluster.read_replicas())["a"]["inflight"] == 1
            assert b"[DONE]" in await answer.content.read()
        operation = await cluster.gateway.wait_operation(request_id)
        assert [one["replica"] for one in operation["attempts"]] == ["a"]
        assert operation["state"] == "completed"
        async with asyncio.timeout(WAIT_S):
            while "a" in await cluster.read_replicas():
                await asyncio.sleep(0.02)


async def timed(gateway: Gateway, model: str) -> tuple[Reply, float]:
    began = asyncio.get_running_loop().time()
    reply = await ask(gateway, body=build_body(model=model))
    return reply, asyncio.get_running_loop().time() - began


async def test_without_its_last_pod_a_pool_refuses_at_once_and_with_the_first_one_back_it_serves(
    tmp_path: Path,
) -> None:
    async with run_cluster(tmp_path, "a") as cluster:
        assert await cluster.ask() == {"a": 1}
        await cluster.stop_engine("a")
        await cluster.lose_pod("a")
        # Beside each, one that nothing can hold up: it says how fast this machine refuses.
        models = (MODEL, "nobody's") * 10
        asked = await asyncio.gather(*(timed(cluster.gateway, model) for model in models))
        for (reply, _), (unknown, _) in zip(asked[::2], asked[1::2], strict=True):
            assert (reply.status, reply.json["error"]["code"]) == (503, "no_ready_replica")
            assert reply.headers["retry-after"].isdigit()
            assert unknown.status == 404
        slowest, slowest_unknown = (max(seconds for _, seconds in one) for one in (asked[::2], asked[1::2]))
        assert slowest < slowest_unknown + CONNECT_TIMEOUT_S / 2
        members = await cluster.gateway.read_envoy_stats("pool_chat.membership_total")
        assert list(members.values()) == [0], "Envoy was told that there is nobody"

        pushed = cluster.gateway.read_metric("envoy_ext_xds_pushes_total", kind="eds")

        clients = [asyncio.create_task(cluster.ask_until_answered()) for _ in range(8)]
        await cluster.start_pod("b")
        assert set(await asyncio.gather(*clients)) == {"b"}
        assert await cluster.ask(10) == {"b": 10}
        assert cluster.gateway.read_metric("envoy_ext_xds_pushes_total", kind="eds") == pushed + 1
        await cluster.assert_sent_to_nobody_who_is_not_there()


async def test_a_gateway_that_starts_before_its_pods_refuses_until_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envoy_ext.stack.READY_S", 0.1)
    async with run_cluster(tmp_path) as cluster:
        reply = await ask(cluster.gateway)
        assert (reply.status, reply.json["error"]["code"]) == (503, "no_ready_replica")
        await cluster.start_pod("a")
        assert await cluster.ask_until_answered() == "a"
        assert await cluster.ask(5) == {"a": 5}
        await cluster.assert_sent_to_nobody_who_is_not_there()


async def test_an_api_that_is_away_takes_nobody_out_and_the_status_says_so(tmp_path: Path) -> None:
    async with run_cluster(tmp_path, "a", "b") as cluster:
        watch = await cluster.api.wait_watched()
        cluster.api.refuse("watch", forbidden("watch"))
        watch.cut()
        async with asyncio.timeout(WAIT_S):
            while True:
                (pool,) = (await fetch_status(cluster.gateway.stack.operations_url))["pools"]
                if pool["discovery"]["failing"]:
                    break
        assert (pool["discovery"]["failing"], pool["replicas"]) == ("forbidden", ["a", "b"])
        assert "the verbs list and watch on endpointslices" in pool["discovery"]["detail"]
        assert sum((await cluster.ask(10)).values()) == 10


async def test_another_pod_at_the_same_address_is_another_replica(tmp_path: Path) -> None:
    async with run_cluster(tmp_path, "a") as cluster:
        await cluster.ask()
        cluster.engines["b"] = cluster.engines.pop("a")
        cluster.tell("b")
        cluster.api.delete("vllm-a")
        await cluster.wait_gone("a")
        assert (await cluster.read_replicas())["b"]["incarnation"] == "1"
        request_id = mint_request_id()
        assert (await ask(cluster.gateway, request_id=request_id)).status == 200
        operation = await cluster.gateway.wait_operation(request_id)
        assert [one["replica"] for one in operation["attempts"]] == ["b"]


async def test_the_addresses_of_a_name_are_replicas(tmp_path: Path) -> None:
    async with SimEngine(SimOptions(name="a", models=(MODEL,))) as engine:
        config = build_config(
            {},
            tmp_path,
            envoy={"concurrency": 1, "admin": {"port": 0}, "endpoints": "xds"},
            discovery={"dns": f"localhost:{engine.port}"},
        )
        async with run_stack(config, {"a": engine}) as gateway:
            assert (await ask(gateway)).headers["x-sim-replica"] == "a"
            (replica,) = await fetch_replicas(gateway.stack.operations_url)
            at = f"127.0.0.1:{engine.port}"
            assert (replica["id"], replica["url"]) == (at, f"http://{at}")
