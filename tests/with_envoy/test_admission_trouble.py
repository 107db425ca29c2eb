"""Two replicas with one slot each, and requests that wait while something goes wrong."""

import asyncio

import pytest

from tests.with_envoy.asking import asking, mint_request_id, read_deltas
from tests.with_envoy.gateway import Gateway
from tests.with_envoy.test_admission import queue_up, wait_depth

pytestmark = pytest.mark.asyncio(loop_scope="module")

GATEWAY = {
    "names": "ab",
    "engine": {"token_s": 0.02},
    "capacity": {"concurrency": 1},
    "admission": {"max_wait": "25s"},
    "readiness": {"scrape": "200ms", "stale": "1s"},
}


async def test_no_replica_gets_a_second_request_while_another_has_a_free_slot(gateway: Gateway) -> None:
    for _ in range(5):
        async with (
            asking(gateway, fault="hang_after=1", request_id=mint_request_id()) as one,
            asking(gateway, fault="hang_after=1", request_id=mint_request_id()) as other,
        ):
            await read_deltas(one, 1)
            await read_deltas(other, 1)
            assert [engine.state.running for engine in gateway.engines.values()] == [1, 1]
        await gateway.wait_idle()


async def test_when_a_replica_is_lost_the_other_answers_those_that_wait(gateway: Gateway) -> None:
    async with (
        asking(gateway, fault="hang_after=1", request_id=mint_request_id()) as one,
        asking(gateway, fault="hang_after=1", request_id=mint_request_id()) as other,
    ):
        await read_deltas(one, 1)
        await read_deltas(other, 1)
        waiting = [queue_up(gateway, mint_request_id()) for _ in range(4)]
        await wait_depth(gateway, 4)
        await gateway.engines["a"].stop()
        rests = [asyncio.ensure_future(answer.read()) for answer in (one, other)]
        (ended,), (goes_on,) = await asyncio.wait(rests, return_when=asyncio.FIRST_COMPLETED)
        assert b"upstream_decode_interrupted" in ended.result()
        goes_on.cancel()
    replies = [await one for one in waiting]
    assert [reply.status for reply in replies] == [200] * 4
    assert {source for reply in replies for source, _ in reply.sources} == {"b"}
    records = [record for reply in replies for record in gateway.find_requests(reply.request_id)]
    assert len(records) == 4


async def test_a_sidecar_that_stops_sends_those_that_wait_elsewhere(gateway: Gateway) -> None:
    """The last test of the module: nothing is taken any more behind it."""
    async with asking(gateway, fault="b:hang_after=1", request_id=mint_request_id()) as answer:
        await read_deltas(answer, 1)
        waiting = [queue_up(gateway, mint_request_id()) for _ in range(3)]
        await wait_depth(gateway, 3)
        gateway.stack.app.exchanges.start_draining()
        replies = await asyncio.gather(*waiting)
        for reply in replies:
            assert (reply.status, reply.json["error"]["code"]) == (503, "draining")
            assert "retry-after" in reply.headers
            assert gateway.find_requests(reply.request_id) == []
        assert gateway.engines["b"].state.running == 1
