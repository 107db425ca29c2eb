"""A sidecar that stops: streams in flight may finish for a while, then each is ended with the truth."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from envoy_ext import app
from tests.with_envoy.asking import Reply, ask, mint_request_id, wait_request
from tests.with_envoy.gateway import WAIT_S, Gateway, read_journal, run_gateway


@contextlib.asynccontextmanager
async def stopping(gateway: Gateway) -> AsyncIterator["asyncio.Task[None]"]:
    """The sidecar has been told to stop when the block begins, and has stopped when it ends."""
    stop = asyncio.ensure_future(gateway.stack.app.stop())
    async with asyncio.timeout(5):
        while not gateway.stack.app.exchanges.find_closure(""):
            await asyncio.sleep(0)
    try:
        yield stop
    finally:
        await stop


async def start_asking(gateway: Gateway, fault: str, tokens: int) -> "asyncio.Task[Reply]":
    """A request whose replica has sent so many tokens, which were let out; 0: works on it."""
    request_id = mint_request_id()
    asked = asyncio.ensure_future(ask(gateway, fault=fault, request_id=request_id))
    await wait_request(
        gateway, request_id, lambda record: record.generation is not None and record.tokens_sent >= tokens
    )
    async with asyncio.timeout(WAIT_S):
        while count_let_out(gateway, request_id) < tokens:
            await asyncio.sleep(0.005)
    return asked


def count_let_out(gateway: Gateway, request_id: str) -> int:
    """How many deltas of a request in flight have passed the sidecar."""
    live = [one.exchange for one in gateway.stack.app.exchanges._live.values()]
    return sum(one._delivery.deltas for one in live if one.identity.request_id == request_id)


async def test_a_stream_in_flight_may_finish_within_the_grace(tmp_path: Path) -> None:
    async with run_gateway(tmp_path, shutdown={"grace": "20s"}, engine={"token_s": 0.05}) as gateway:
        asked = await start_asking(gateway, "", 1)
        async with stopping(gateway):
            reply = await asked

        assert (reply.status, reply.errors, reply.dones, len(reply.parts)) == (200, [], 1, 6)


async def test_a_stream_that_takes_longer_than_the_grace_ends_with_one_typed_event(tmp_path: Path) -> None:
    async with run_gateway(tmp_path, shutdown={"grace": "300ms"}) as gateway:
        streams = [await start_asking(gateway, "hang_after=3", 3) for _ in range(3)]
        held = await start_asking(gateway, "hang_after_headers", 0)
        async with stopping(gateway):
            replies = [await asked for asked in streams]
            refused = await held
        operations = await read_journal(gateway.stack.config.journal.path)

        for reply in replies:
            assert (reply.status, reply.cut, reply.dones, len(reply.errors)) == (200, False, 0, 1)
            error = reply.errors[0]
            assert (error["code"], error["reason"]) == ("upstream_decode_interrupted", "drain_deadline")
            assert error["delivered_output_tokens"] == len(reply.parts) == 3
            operation = operations[reply.request_id]
            assert (operation.ending, operation.reason) == ("upstream_broke", "drain_deadline")
            assert operation.delivered_deltas == 3
        assert (refused.status, refused.json["error"]["code"]) == (503, "draining")
        assert refused.headers["retry-after"] in ("1", "2", "3")
        assert operations[refused.request_id].first_delta_sent is False


async def test_a_request_that_comes_while_the_sidecar_stops_is_told_to_come_back(tmp_path: Path) -> None:
    async with run_gateway(tmp_path, shutdown={"grace": "20s"}) as gateway:
        asked = await start_asking(gateway, "hang_after=2", 2)
        async with stopping(gateway):
            late = await ask(gateway)
            health = await read_health(gateway)
            async with aiohttp.ClientSession() as http:
                async with http.get(f"{gateway.stack.operations_url}/healthz/ready") as ready:
                    assert ready.status == 503
                    assert "draining" in await ready.text()
                async with http.get(f"{gateway.stack.operations_url}/healthz/live") as live:
                    assert live.status == 200
            asked.cancel()
            await asyncio.wait((asked,))

        assert (late.status, late.json["error"]["code"]) == (503, "draining")
        assert late.headers["retry-after"] in ("1", "2", "3")
        assert gateway.find_requests(late.request_id) == []
        assert health == health_pb2.HealthCheckResponse.NOT_SERVING


async def read_health(gateway: Gateway) -> int:
    async with grpc.aio.insecure_channel(f"unix:{gateway.stack.config.sidecar.socket}") as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        return answer.status


@pytest.mark.parametrize("grace", ["0s", "90s"])
async def test_a_sidecar_with_nothing_to_do_stops_at_once(
    tmp_path: Path, grace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of what it may wait for is waited for: each would take longer than any busy machine."""
    monkeypatch.setattr(app, "LAST_WORDS_S", 90.0)
    async with run_gateway(tmp_path, shutdown={"grace": grace}) as gateway:
        assert (await ask(gateway)).dones == 1
        await gateway.wait_idle()
        async with asyncio.timeout(30), stopping(gateway):
            pass
