"""The event loop is made late: new requests are refused before their bodies, and what runs goes on."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from tests.with_envoy.asking import ask, asking, build_body, mint_request_id, read_deltas
from tests.with_envoy.gateway import Gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

GATEWAY = {"names": "a", "engine": {"token_s": 0.02}, "limits": {"max_event_loop_lag": "10ms"}}


@contextlib.asynccontextmanager
async def holding_the_loop() -> AsyncIterator[None]:
    """Whoever has the loop next has to wait for 40 ms each time."""

    async def hold() -> None:
        while True:
            time.sleep(0.04)  # noqa: ASYNC251
            await asyncio.sleep(0.001)

    task = asyncio.create_task(hold())
    try:
        yield
    finally:
        task.cancel()


async def wait_shedding(gateway: Gateway, wanted: bool) -> None:
    async with asyncio.timeout(30):
        while gateway.read_metric("envoy_ext_event_loop_shedding") != wanted:
            await asyncio.sleep(0.05)


async def test_new_requests_are_refused_while_the_loop_is_late(gateway: Gateway) -> None:
    async with asking(gateway, fault="hang_after=2", request_id=mint_request_id()) as running:
        await read_deltas(running, 1)
        async with holding_the_loop():
            await wait_shedding(gateway, True)
            refused = await ask(gateway, body=build_body(user="x" * 100_000))
            await read_deltas(running, 1)
            assert (refused.status, refused.json["error"]["code"]) == (429, "queue_full")
            assert int(refused.headers["retry-after"]) in (1, 2, 3)
            assert not gateway.find_requests(refused.request_id)
        await wait_shedding(gateway, False)
    assert (await ask(gateway)).dones == 1
    assert gateway.read_metric("envoy_ext_event_loop_shed_total") >= 1
