"""A client that leaves: its replica is told at once, nobody computes for it again, nobody is blamed."""

import asyncio
from typing import Any

import pytest

from envoy_ext.domain.attempt import AttemptState
from envoy_ext.domain.ids import PoolName
from envoy_ext.sim.state import RequestRecord
from tests.with_envoy.asking import (
    asking,
    build_body,
    build_headers,
    mint_request_id,
    read_deltas,
    wait_request,
)
from tests.with_envoy.gateway import Gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Three replicas: a failover in error would have somewhere to go.
GATEWAY = {"names": "abc", "engine": {"token_s": 0.05}}


async def assert_gone(gateway: Gateway, request_id: str) -> dict[str, Any]:
    """Its replica noticed, no other was asked, none is blamed, and the journal says who ended it.

    The replicas of these tests would hang for ever: that one notices is the gateway's doing.
    """

    def dropped(record: RequestRecord) -> bool:
        return record.ended == "client_disconnected"

    record = await wait_request(gateway, request_id, dropped)
    operation = await gateway.wait_operation(request_id)
    assert (operation["ending"], operation["state"]) == ("client_gone", "cancelled")
    assert [attempt["outcome"] for attempt in operation["attempts"]] == ["cancelled"]
    assert operation["error"] is None
    assert gateway.find_requests(request_id) == [record]
    pool = gateway.stack.app.fleet.view.find(PoolName("chat"))
    assert pool is not None
    assert [replica.status.failures for replica in pool.replicas] == [0.0] * 3
    return operation


async def wait_held(gateway: Gateway, request_id: str) -> None:
    """Until the gateway holds an answer's headers."""

    def holds() -> bool:
        return any(
            attempt.state is AttemptState.HOLDING
            for live in gateway.stack.app.exchanges._live.values()
            if live.exchange.identity.request_id == request_id
            for attempt in live.exchange._attempts.attempts
        )

    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.01)


async def leave_before_an_answer(gateway: Gateway, request_id: str, fault: str, held: bool = False) -> None:
    """Send a request, wait until a replica works on it, or has begun its answer, and close the connection."""
    headers = build_headers(request_id, fault)
    url = gateway.url + "/v1/chat/completions"
    asked = asyncio.ensure_future(gateway.http.post(url, json=build_body(), headers=headers))
    await wait_request(gateway, request_id, lambda record: record.generation is not None)
    if held:
        await wait_held(gateway, request_id)
    assert not asked.done()
    asked.cancel()
    await asyncio.wait((asked,))


async def test_a_client_that_leaves_before_the_replica_answers_is_computed_for_no_more(
    gateway: Gateway,
) -> None:
    request_id = mint_request_id()

    await leave_before_an_answer(gateway, request_id, "hang")

    operation = await assert_gone(gateway, request_id)
    assert operation["first_delta_sent"] is False


async def test_a_client_that_leaves_while_the_answer_is_held_is_computed_for_no_more(
    gateway: Gateway,
) -> None:
    request_id = mint_request_id()

    await leave_before_an_answer(gateway, request_id, "hang_after_headers", held=True)

    operation = await assert_gone(gateway, request_id)
    assert operation["first_delta_sent"] is False
    assert operation["attempts"][0]["first_byte_at"] is not None


async def test_a_client_that_leaves_while_pings_are_held_is_computed_for_no_more(gateway: Gateway) -> None:
    request_id = mint_request_id()

    await leave_before_an_answer(gateway, request_id, "pings=1000@0.02", held=True)

    await assert_gone(gateway, request_id)


async def test_a_client_that_leaves_after_deltas_is_computed_for_no_more(gateway: Gateway) -> None:
    request_id = mint_request_id()
    async with asking(gateway, fault="hang_after=3", request_id=request_id) as answer:
        await read_deltas(answer, 3)

    operation = await assert_gone(gateway, request_id)
    assert operation["first_delta_sent"] is True
    assert operation["delivered_deltas"] == 3


async def test_a_client_that_leaves_in_the_middle_of_the_deltas_is_computed_for_no_more(
    gateway: Gateway,
) -> None:
    request_id = mint_request_id()
    async with asking(gateway, fault="slow=12", request_id=request_id) as answer:
        await read_deltas(answer, 2)

    operation = await assert_gone(gateway, request_id)
    assert 2 <= operation["delivered_deltas"] < 6


async def test_a_client_that_has_read_everything_and_closes_has_not_gone(gateway: Gateway) -> None:
    """SDKs close at `[DONE]` without waiting for the end of the body."""
    request_id = mint_request_id()
    async with asking(gateway, request_id=request_id) as answer:
        async for line in answer.content:
            if line.startswith(b"data: [DONE]"):
                break

    operation = await gateway.wait_operation(request_id)
    assert (operation["ending"], operation["state"]) == ("finished", "completed")
