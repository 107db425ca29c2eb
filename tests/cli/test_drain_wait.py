"""What `envoy-ext drain` waits for: "drained" is said of a replica that is out, and of no other."""

import asyncio
from dataclasses import replace

import pytest

from envoy_ext.adapters.ops_answers import ReplicaView
from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.operations_client import OperationsUnavailable, wait_drained
from tests.support.ops_port import OpsPort

DRAINING = ReplicaView(
    id=ReplicaId("a"),
    pool=PoolName("chat"),
    url="http://10.0.0.1:8000",
    state="draining",
    reasons=("draining",),
    inflight=2,
)
WORKING = replace(DRAINING, state="warming", reasons=())


async def test_the_wait_ends_with_the_last_stream() -> None:
    async with OpsPort(replicas=[DRAINING]).serving() as port:
        waiting = asyncio.create_task(wait_drained(port.url, "a", 60))
        assert not (await asyncio.wait({waiting}, timeout=0.1))[0]
        port.replicas = [replace(DRAINING, inflight=0)]
        assert await waiting == 0


@pytest.mark.parametrize("inflight", [0, 2])
async def test_an_order_that_was_taken_back_meanwhile_is_no_drain(inflight: int) -> None:
    """It may have no stream at this moment, and gets one at the next."""
    async with OpsPort(replicas=[DRAINING]).serving() as port:
        waiting = asyncio.create_task(wait_drained(port.url, "a", 60))
        assert not (await asyncio.wait({waiting}, timeout=0.1))[0]
        port.replicas = [replace(WORKING, inflight=inflight)]
        with pytest.raises(OperationsUnavailable, match=r"^a: gets work again: the order was taken back"):
            await waiting


async def test_who_does_not_wait_is_told_of_the_streams_that_are_left() -> None:
    async with OpsPort(replicas=[DRAINING]).serving() as port:
        assert await wait_drained(port.url, "a", 0) == 2


@pytest.mark.parametrize("replicas", [[], [replace(WORKING, state="gone", reasons=("removed",), inflight=0)]])
async def test_whoever_is_listed_no_more_is_drained_with_its_last_stream(replicas: list[ReplicaView]) -> None:
    async with OpsPort(replicas=replicas).serving() as port:
        assert await wait_drained(port.url, "a", 60) == 0
