"""What a way that is not there, a pause and a death are each worth. Cuts: `test_healed_cuts`."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from envoy_ext.domain.ids import ReplicaId
from envoy_ext.drills.cut_network import Link, find_obstacle, make_link
from envoy_ext.sim.options import SimOptions
from envoy_ext.sim.process import SimProcess
from tests.with_envoy.asking import Reply, ask, asking, build_body, mint_request_id, read_deltas
from tests.with_envoy.gateway import Gateway, build_unwatched_pool, run_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

LARGE = [{"role": "user", "content": "x " * 500_000}]
"""More than two kernels hold between two processes."""

LEASE = {"ttl": "2s", "renew": "500ms", "margin": "500ms"}


@dataclass
class Apart:
    """A gateway, one replica behind a link of its own, and one beside it."""

    gateway: Gateway
    link: Link
    far: SimProcess

    @contextmanager
    def turned_to_the_far(self) -> Iterator[None]:
        """First attempts go to the far replica."""
        fleet = self.gateway.stack.app.fleet
        fleet.drain(ReplicaId("near"), 600)
        try:
            yield
        finally:
            fleet.undrain(ReplicaId("near"))

    def ask(self, request_id: str, **options: Any) -> asyncio.Task[Reply]:
        asking = ask(self.gateway, request_id=request_id, **options)
        return asyncio.get_running_loop().create_task(asking)

    async def wait_running(self, count: int) -> None:
        """Until the far replica computes so many."""
        async with asyncio.timeout(20):
            while await self.read_running() != count:
                await asyncio.sleep(0.02)

    async def wait_let_go(self, request_id: str) -> None:
        """Until an attempt of the request is on its way to a replica."""
        async with asyncio.timeout(20):
            while not ((await self.gateway.find_operation(request_id)) or {}).get("attempts"):
                await asyncio.sleep(0.02)

    async def read_running(self) -> float:
        """What the far replica computes."""
        async with aiohttp.ClientSession() as http, http.get(f"{self.far.url}/metrics") as page:
            lines = (await page.text()).splitlines()
        running = next(line for line in lines if line.startswith("vllm:num_requests_running"))
        return float(running.rpartition(" ")[2])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def apart(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Apart]:
    obstacle = await find_obstacle()
    if obstacle is not None:
        pytest.skip(obstacle)
    async with AsyncExitStack() as opened:
        link = await opened.enter_async_context(make_link())
        # Long enough to be paused within it, on a busy machine too.
        far = SimProcess(SimOptions(name="far", host=link.address, tokens=6, prefill_s=3.0), link.within)
        near = SimProcess(SimOptions(name="near", tokens=6))
        for engine in (far, near):
            await engine.start()
            opened.push_async_callback(engine.kill)
        pool = build_unwatched_pool({"far": far.url, "near": near.url})
        gateway = await opened.enter_async_context(
            run_gateway(
                tmp_path_factory.mktemp("gateway"),
                "",
                pools=[pool],
                lease=LEASE,
                envoy={"concurrency": 1, "admin": {"port": 0}, "endpoints": "static"},
            )
        )
        yield Apart(gateway, link, far)


def read_history(operation: dict[str, Any]) -> list[tuple[str, str]]:
    return [(attempt["replica"], attempt["outcome"]) for attempt in operation["attempts"]]


async def test_a_replica_that_cannot_be_reached_was_sent_nothing_and_is_not_waited_for(apart: Apart) -> None:
    fences = apart.gateway.read_metric("envoy_ext_fence_wait_seconds_count")
    await apart.link.cut()
    try:
        replies = await asyncio.gather(*(ask(apart.gateway) for _ in range(2)))  # Envoy takes turns
    finally:
        await apart.link.heal()
    assert [(reply.status, reply.errors, reply.dones) for reply in replies] == [(200, [], 1)] * 2
    operations = [await apart.gateway.wait_operation(reply.request_id) for reply in replies]
    assert [("far", "network_partition"), ("near", "completed")] in map(read_history, operations)
    assert apart.gateway.read_metric("envoy_ext_fence_wait_seconds_count") == fences


async def test_a_replica_that_stands_still_is_slow_and_not_dead(apart: Apart) -> None:
    """For longer than it takes to miss a cut network, since its kernel still answers: nobody is sent to
    another replica, however little of a large request its kernel has room for. A request's own deadline is
    no word on the replica either."""
    late_id, large_id = mint_request_id(), mint_request_id()
    deadline = {"x-request-deadline": "8"}
    async with AsyncExitStack() as opened:
        with apart.turned_to_the_far():
            begun = asking(apart.gateway, request_id=late_id, fault="far:slow=100", headers=deadline)
            late = await opened.enter_async_context(begun)
            await read_deltas(late, 1)
            patient = apart.ask(mint_request_id())
            hurried = apart.ask(mint_request_id(), headers={"x-request-deadline": "4"})
            await apart.wait_running(3)
            apart.far.pause()
            large = apart.ask(large_id, body=build_body(messages=LARGE))
            await apart.wait_let_go(large_id)
        try:
            done, _ = await asyncio.wait((patient, large), timeout=9.5)
            rest = await late.content.read()
        finally:
            apart.far.go_on()
    assert not done
    replies = [await patient, await hurried, await large]
    for whole in (replies[0], replies[2]):
        assert (whole.status, whole.errors, whole.dones) == (200, [], 1)
    assert (replies[1].status, replies[1].json["error"]["code"]) == (504, "deadline_exceeded")
    assert rest.count(b'"reason":"deadline"') == 1
    assert b"[DONE]" not in rest
    ids = [*(reply.request_id for reply in replies), late_id]
    operations = [await apart.gateway.wait_operation(one) for one in ids]
    assert [read_history(operation) for operation in operations] == [
        [("far", "completed")],
        [("far", "cancelled")],
        [("far", "completed")],
        [("far", "cancelled")],
    ]


async def test_a_dead_process_is_replayed_without_a_wait_for_its_lease(apart: Apart) -> None:
    fences = apart.gateway.read_metric("envoy_ext_fence_wait_seconds_count")
    with apart.turned_to_the_far():
        task = apart.ask(mint_request_id(), fault="far:hang")
        await apart.wait_running(1)
    await apart.far.kill()
    try:
        reply = await task
    finally:
        await apart.far.start()
    assert (reply.status, reply.errors, reply.dones) == (200, [], 1)
    operation = await apart.gateway.wait_operation(reply.request_id)
    assert read_history(operation) == [("far", "replica_died"), ("near", "completed")]
    assert apart.gateway.read_metric("envoy_ext_fence_wait_seconds_count") == fences
