"""One replica with one slot, and a line of two behind it: who waits, who is let in, who is refused."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from envoy_ext.bootstrap.filters import MESSAGE_TIMEOUT_S
from envoy_ext.domain.admission_queue import LOOK_S
from envoy_ext.domain.ids import PoolName
from tests.with_envoy.asking import (
    CHAT,
    Reply,
    ask,
    asking,
    build_body,
    mint_request_id,
    read_deltas,
    wait_request,
)
from tests.with_envoy.gateway import WAIT_S, Gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

GATEWAY = {
    "names": "a",
    "engine": {"token_s": 0.02},
    "capacity": {"concurrency": 1},
    "admission": {"queue": 2, "max_wait": "25s"},
}


async def wait_depth(gateway: Gateway, depth: int) -> None:
    """Until so many requests wait."""
    async with asyncio.timeout(WAIT_S):
        while gateway.read_metric("envoy_ext_queue_depth", pool="chat") != depth:
            await asyncio.sleep(0.01)


def queue_up(gateway: Gateway, request_id: str, **options: Any) -> asyncio.Task[Reply]:
    """A request that is to wait."""
    return asyncio.create_task(ask(gateway, request_id=request_id, **options))


async def leave(*waiting: asyncio.Task[Reply]) -> None:
    """Their clients close the connection."""
    for one in waiting:
        one.cancel()
    await asyncio.wait(waiting)


async def read_pool(gateway: Gateway) -> dict[str, Any]:
    url = f"{gateway.stack.operations_url}/v1/pools"
    async with aiohttp.ClientSession() as http, http.get(url) as answer:
        pools: list[dict[str, Any]] = (await answer.json())["pools"]
    return pools[0]


async def send_raw(
    gateway: Gateway, request_id: str, fault: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request on a connection of the test's own."""
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps(build_body()).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: {host}\r\nx-request-id: {request_id}\r\nx-sim-fault: {fault}\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return reader, writer


async def test_a_client_that_leaves_the_line_is_sent_nowhere_and_disturbs_nobody(gateway: Gateway) -> None:
    """One slot: A streams, B and C queue, B drops: A goes on, and C is next."""
    a, b, c = (mint_request_id() for _ in range(3))
    async with asking(gateway, fault="hang_after=3", request_id=a) as answer:
        await read_deltas(answer, 3)
        leaves = queue_up(gateway, b)
        await wait_depth(gateway, 1)
        stays = queue_up(gateway, c)
        await wait_depth(gateway, 2)
        await leave(leaves)
        await wait_depth(gateway, 1)
        running = await wait_request(gateway, a)
        assert running.ended is None
        assert gateway.find_requests(c) == []
    reply = await stays
    assert (reply.status, reply.dones) == (200, 1)
    assert gateway.find_requests(b) == []
    operation = await gateway.wait_operation(b)
    assert (operation["ending"], operation["phase"], operation["attempts"]) == ("client_gone", "queued", [])


async def test_a_full_line_refuses_at_once_and_says_when_to_come_back(gateway: Gateway) -> None:
    refused_before = gateway.read_metric("envoy_ext_shed_total", pool="chat", code="queue_full")
    async with asking(gateway, fault="hang_after=1", request_id=mint_request_id()) as answer:
        await read_deltas(answer, 1)
        waiting = [queue_up(gateway, mint_request_id()) for _ in range(2)]
        await wait_depth(gateway, 2)
        refused = await asyncio.gather(*(ask(gateway) for _ in range(20)))
        for reply in refused:
            assert reply.status == 429
            assert reply.json["error"]["code"] == "queue_full"
            assert 1 <= int(reply.headers["retry-after"]) <= 30
            assert "x-should-retry" not in reply.headers
            assert gateway.find_requests(reply.request_id) == []
        assert len({reply.headers["retry-after"] for reply in refused}) > 3
        assert not any(one.done() for one in waiting)
        await leave(*waiting)
    refused_now = gateway.read_metric("envoy_ext_shed_total", pool="chat", code="queue_full")
    assert refused_now - refused_before == 20


async def test_one_client_that_stops_sending_does_not_set_off_a_storm_of_refusals(gateway: Gateway) -> None:
    """One slot: a client half-closes its connection in prefill, and twenty come behind it."""
    request_id = mint_request_id()
    _, half = await send_raw(gateway, request_id, "hang")
    await wait_request(gateway, request_id, lambda record: record.generation is not None)
    crowd = [queue_up(gateway, mint_request_id()) for _ in range(20)]
    async with asyncio.timeout(WAIT_S):
        while sum(one.done() for one in crowd) < 18:
            await asyncio.sleep(0.01)
    refused = [one.result() for one in crowd if one.done()]
    assert {reply.status for reply in refused} == {429}
    assert all("retry-after" in reply.headers for reply in refused)
    half.write_eof()
    await wait_request(gateway, request_id, lambda record: record.ended == "client_disconnected")
    served = [reply for reply in [await one for one in crowd] if reply not in refused]
    assert [reply.status for reply in served] == [200, 200]
    half.close()


async def test_a_wait_outlasts_envoys_patience_and_is_seen_while_it_lasts(gateway: Gateway) -> None:
    """One waits for a slot; another has first waited for the end of what it repeats, which never ran."""
    b, c = mint_request_id(), mint_request_id()
    key = {"idempotency-key": mint_request_id(), "authorization": "Bearer me"}
    async with asking(gateway, fault="hang_after=1", request_id=mint_request_id()) as answer:
        await read_deltas(answer, 1)
        waits, leaves = queue_up(gateway, b), queue_up(gateway, mint_request_id(), headers=key)
        await wait_depth(gateway, 2)
        again = await ask(gateway, headers=key)
        assert (again.status, again.json["error"]["code"]) == (409, "operation_in_progress")
        repeats = queue_up(gateway, c, headers={**key, "prefer": "wait=20"})
        async with asyncio.timeout(WAIT_S):
            while not gateway.read_metric("envoy_ext_repeats_waiting"):
                await asyncio.sleep(0.01)
        await leave(leaves)
        async with asyncio.timeout(WAIT_S):
            while gateway.read_metric("envoy_ext_repeats_waiting"):
                await asyncio.sleep(0.01)
        await wait_depth(gateway, 2)
        pool = await read_pool(gateway)
        assert pool["inflight"]["queued"] == 2
        assert (pool["queue"]["waiting"], pool["queue"]["slots"], pool["queue"]["free"]) == (2, 1, 0)
        await asyncio.wait((waits, repeats), timeout=MESSAGE_TIMEOUT_S + 1.5)
        assert not waits.done()
        assert not repeats.done()
        assert gateway.find_requests(b) == gateway.find_requests(c) == []
    for reply in (await waits, await repeats):
        assert (reply.status, reply.dones) == (200, 1)
        assert reply.headers["x-attempt-count"] == "1"
    assert (await repeats).headers["preference-applied"] == "wait=20"


async def test_a_deadline_that_the_measured_rate_cannot_meet_is_refused_before_it_has_passed(
    gateway: Gateway,
) -> None:
    for _ in range(4):
        assert (await ask(gateway, fault="slow=10")).status == 200
    async with asking(gateway, fault="hang_after=1", request_id=mint_request_id()) as answer:
        await read_deltas(answer, 1)
        held_s = 1 / (await read_pool(gateway))["queue"]["drain_per_s"]
        answer_s = gateway.stack.app.queues._pools[PoolName("chat")].queue._answers.read("default", False)
        assert held_s > LOOK_S / 2
        assert answer_s > 0
        # Once as it comes, and once while it waits: a deadline that had passed would be called so, with 504.
        # The second one could be met when it came, and not any more at the first look.
        deadlines = ("0.2", f"{held_s + answer_s + 0.5 * LOOK_S:.3f}")
        refused = [await ask(gateway, headers={"x-request-deadline": one}) for one in deadlines]
    for reply in refused:
        assert (reply.status, reply.json["error"]["code"]) == (503, "queue_deadline_exceeded")
        assert "retry-after" in reply.headers
        assert gateway.find_requests(reply.request_id) == []
    assert "x-operation-id" not in refused[0].headers
    operation = await gateway.wait_operation(refused[1].request_id)
    assert (operation["ending"], operation["state"], operation["phase"]) == ("refused", "failed", "queued")


async def test_a_question_about_models_waits_for_nobody(gateway: Gateway) -> None:
    async with asking(gateway, fault="hang_after=1", request_id=mint_request_id()) as answer:
        await read_deltas(answer, 1)
        assert (await ask(gateway, "/v1/models", method="GET")).status == 200
