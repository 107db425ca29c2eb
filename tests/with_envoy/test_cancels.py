"""A cancel that is sent and not proved: who is told, what is still taken, and what comes behind it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from envoy_ext.adapters.engines import name_request
from envoy_ext.domain.ids import AttemptId, FencingToken, OperationId, ReplicaId
from envoy_ext.domain.slots import SlotCount
from envoy_ext.services.leases import LeaseAnswer, Leases
from envoy_ext.sim.engine import SimEngine
from envoy_ext.sim.options import SimOptions
from tests.with_envoy.asking import (
    CHAT,
    ask,
    asking,
    build_body,
    build_headers,
    mint_request_id,
    read_deltas,
    wait_request,
)
from tests.with_envoy.gateway import MODEL, Gateway, build_config, run_gateway, run_stack

AN_HOUR_S = 3600.0
A = ReplicaId("a")


async def leave_in_prefill(gateway: Gateway, *, half: bool = False) -> str:
    """A client sends its request, and goes when a replica computes for it; its request's id.

    `half`: it ends its side alone, as a client may that still wants to read.
    """
    request_id = mint_request_id()
    if half:
        await half_close_in_prefill(gateway, request_id)
        return request_id
    asked = asyncio.ensure_future(
        gateway.http.post(
            gateway.url + CHAT, json=build_body(), headers=build_headers(request_id, "hang_after_headers")
        )
    )
    await wait_request(gateway, request_id, lambda record: record.generation is not None)
    asked.cancel()
    await asyncio.wait((asked,))
    return request_id


async def half_close_in_prefill(gateway: Gateway, request_id: str) -> None:
    body = f'{{"model": "{MODEL}", "stream": true, "messages": [{{"role": "user", "content": "hi"}}]}}'
    head = f"POST {CHAT} HTTP/1.1\r\nhost: gateway\r\nx-request-id: {request_id}\r\nx-sim-fault: hang\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
    writer.write(
        f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()
    )
    await wait_request(gateway, request_id, lambda record: record.generation is not None)
    writer.write_eof()
    async with asyncio.timeout(10):
        assert await reader.read() == b"", "nobody is given an answer that did not ask for one any more"
    writer.close()


async def wait_slots(gateway: Gateway, count: SlotCount) -> None:
    async with asyncio.timeout(10):
        while gateway.stack.app.fleet.streams.count(A) != count:
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def run_sglang(directory: Path) -> AsyncIterator[Gateway]:
    """One replica, whose engine looks for closed connections once an hour."""
    async with SimEngine(SimOptions(name="a", models=(MODEL,), notice_s=AN_HOUR_S)) as engine:
        config = build_config({"a": engine}, directory, readiness={"watch": False})
        pool = config.pools[0].model_copy(update={"engine": "sglang"})
        async with run_stack(config.model_copy(update={"pools": [pool]}), {"a": engine}) as gateway:
            yield gateway


async def test_an_engine_with_a_call_for_it_is_asked_to_end_just_the_request_that_was_dropped(
    tmp_path: Path,
) -> None:
    """It would compute for an hour: nothing but the call makes it stop."""
    async with run_sglang(tmp_path) as gateway:
        (engine,) = gateway.engines.values()
        request_id = await leave_in_prefill(gateway)
        async with asyncio.timeout(10):
            await engine.state.wait_until(lambda: engine.state.running == 0)
        operation = await gateway.wait_operation(request_id)
        attempt_id = AttemptId(operation["attempts"][0]["attempt_id"])
        assert engine.state.aborts == [name_request(attempt_id)]
        assert gateway.read_metric("envoy_ext_engine_aborts_total", pool="chat", result="asked") == 1
        assert gateway.stack.app.fleet.streams.count(A).cancelling == 1, (
            "a call that was taken proves nothing"
        )


@pytest.mark.parametrize("half", [False, True], ids=["closes", "half-closes"])
async def test_the_slot_of_a_client_that_has_gone_is_free_with_the_next_page(
    tmp_path: Path, half: bool
) -> None:
    async with run_gateway(tmp_path, "a", capacity={"concurrency": 1}) as gateway:
        request_id = await leave_in_prefill(gateway, half=half)
        operation = await gateway.wait_operation(request_id)
        assert (operation["ending"], len(gateway.find_requests(request_id))) == ("client_gone", 1)
        await wait_slots(gateway, SlotCount())
        assert gateway.read_metric("envoy_ext_cancels_total", pool="chat", proof="engine_count") == 1
        assert (await ask(gateway)).dones == 1


async def test_a_client_that_leaves_at_the_fence_starts_no_further_attempt(tmp_path: Path) -> None:
    """The first attempt has a worker, which has not said that it stopped when its connection is lost."""
    async with run_gateway(tmp_path, "ab", engine={"prefill_s": 1.0}) as gateway:
        exchanges, fleet = gateway.stack.app.exchanges, gateway.stack.app.fleet
        leases = Leases(exchanges, fleet.streams, gateway.stack.app.clock)
        request_id = mint_request_id()
        headers = build_headers(request_id, "#1:die_before_headers")
        asked = asyncio.ensure_future(
            gateway.http.post(gateway.url + CHAT, json=build_body(), headers=headers)
        )
        record = await wait_request(gateway, request_id, lambda record: record.generation is not None)
        own = record.own_headers
        attempt_id = AttemptId(own["x-envoy-ext-attempt"])
        token = FencingToken(int(own["x-envoy-ext-lease"]))
        operation_id = OperationId(own["x-envoy-ext-operation"])
        assert leases.renew(operation_id, attempt_id, token) is LeaseAnswer.GRANTED
        live = exchanges.find_attempt(attempt_id)
        assert live is not None
        async with asyncio.timeout(10):
            while not live.exchange.waits_for_fence:
                await asyncio.sleep(0.005)
        asked.cancel()
        await asyncio.wait((asked,))
        operation = await gateway.wait_operation(request_id)
        assert len(operation["attempts"]) == len(gateway.find_requests(request_id)) == 1
        assert (operation["ending"], operation["first_delta_sent"]) == ("client_gone", False)
        assert leases.note_stopped(operation_id, attempt_id, token)
        assert [fleet.streams.count(ReplicaId(name)) for name in "ab"] == [SlotCount(), SlotCount()]


async def leave_in_decode(gateway: Gateway) -> None:
    async with asking(gateway, fault="hang_after=2", request_id=mint_request_id()) as answer:
        await read_deltas(answer, 2)


async def ask_with(gateway: Gateway, fault: str, *statuses: int, **body: object) -> None:
    reply = await ask(gateway, fault=fault, body=build_body(**body))
    assert reply.status in (statuses or (200,))


# A retry budget that is spent refuses a replay, which must leave nothing either.
MIX: dict[str, Callable[[Gateway], Awaitable[object]]] = {
    "answered": lambda gateway: ask_with(gateway, ""),
    "in one piece": lambda gateway: ask_with(gateway, "", stream=False),
    "leaves in prefill": leave_in_prefill,
    "half-closes in prefill": lambda gateway: leave_in_prefill(gateway, half=True),
    "leaves in decode": leave_in_decode,
    "replayed": lambda gateway: ask_with(gateway, "#1:die_before_headers", 200, 503),
    "replayed when held": lambda gateway: ask_with(gateway, "#1:die_after_headers", 200, 503),
    # What dies right behind its first deltas may lose them on the way: it is refused, as if it gave nothing.
    "interrupted": lambda gateway: ask_with(gateway, "die_after=2", 200, 503),
    "refused": lambda gateway: ask_with(gateway, "", 404, model="nobody's"),
}
OF_EACH = 12


async def test_whatever_way_requests_end_nothing_is_left_of_them(tmp_path: Path) -> None:
    async with run_gateway(tmp_path, "ab", capacity={"concurrency": 8}) as gateway:
        for _ in range(OF_EACH // 4):
            await asyncio.gather(*(way(gateway) for way in MIX.values() for _ in range(4)))
        await gateway.wait_idle()
        app = gateway.stack.app
        assert gateway.read_metric("envoy_ext_replays_total", pool="chat", reason="replica_died") > 0
        async with asyncio.timeout(10):
            while any(app.fleet.streams.count(ReplicaId(name)).inflight for name in "ab"):
                await asyncio.sleep(0.01)
        assert app.fleet.streams.count_unplaced(app.fleet.view.pools[0].pool) == 0
        assert [engine.state.running + engine.state.waiting for engine in gateway.engines.values()] == [0, 0]
        assert gateway.read_metric("envoy_ext_queue_depth", pool="chat") == 0
        assert app.exchanges.repeats._live == {}
        assert app.exchanges.repeats._keys == {}
