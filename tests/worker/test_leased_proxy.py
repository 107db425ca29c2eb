"""The proxy under leases: a stop is acknowledged when the engine behind it has stopped, and not before."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress

import aiohttp
import pytest
import pytest_asyncio

from envoy_ext.worker.engine_kinds import PARSED_S
from envoy_ext.worker.settings import EngineKind
from tests.support.lateness import measure_lateness
from tests.support.proxied import run_proxied
from tests.support.raw_http import RawExchange, RawServer, build_response
from tests.support.slot_engine import STREAM, SlotEngine
from tests.worker.lease_gateway import POLICY, LeaseGateway, run_lease_gateway

WAIT_S = 30
CHAT = "/v1/chat/completions"


@pytest_asyncio.fixture
async def gateway() -> AsyncIterator[LeaseGateway]:
    async with run_lease_gateway() as running:
        yield running


@pytest_asyncio.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        yield session


async def wait_stop(gateway: LeaseGateway) -> None:
    await asyncio.wait_for(gateway.stop_heard.wait(), WAIT_S)


@pytest.mark.parametrize("revoked", [False, True], ids=["the client leaves", "the lease is revoked"])
async def test_llama_cpp_is_acknowledged_when_its_slot_is_free(
    gateway: LeaseGateway, http: aiohttp.ClientSession, revoked: bool
) -> None:
    play = SlotEngine()
    async with (
        RawServer(play) as engine,
        run_proxied(engine.url, gateway.url, kind=EngineKind.LLAMACPP) as proxied,
    ):
        await proxied.wait_open()
        answer = await http.post(f"{proxied.url}{CHAT}", headers=gateway.grant("att_1"))
        await answer.content.readany()
        if revoked:
            gateway.revoke("att_1")
        else:
            answer.close()
        await asyncio.wait_for(play.left.wait(), WAIT_S)
        await asyncio.sleep(0.3)  # a few looks at a slot that works on
        assert gateway.stopped == {}
        play.stop.set()
        await wait_stop(gateway)
        answer.close()
    assert gateway.stopped["att_1"] >= play.stopped_at > 0
    assert gateway.leases["att_1"].proof == "cancel_ack"


async def test_a_free_slot_says_nothing_of_a_request_that_may_not_have_been_read(
    gateway: LeaseGateway, http: aiohttp.ClientSession
) -> None:
    play = SlotEngine()
    async with (
        RawServer(play) as engine,
        run_proxied(engine.url, gateway.url, kind=EngineKind.LLAMACPP) as proxied,
    ):
        await proxied.wait_open()
        sent_at = time.monotonic()
        asking = asyncio.ensure_future(
            http.post(f"{proxied.url}/unread", headers=gateway.grant("att_1"), data=b"{}")
        )
        await asyncio.wait_for(play.unread.wait(), WAIT_S)
        asking.cancel()
        await wait_stop(gateway)
    assert gateway.stopped["att_1"] - sent_at >= PARSED_S


@pytest.mark.parametrize("kind", list(EngineKind))
async def test_an_engine_that_does_not_tell_is_acknowledged_when_it_is_dead(
    gateway: LeaseGateway, http: aiohttp.ClientSession, kind: EngineKind
) -> None:
    play = SlotEngine()
    play.tells_slots = False
    async with RawServer(play) as engine, run_proxied(engine.url, gateway.url, kind=kind) as proxied:
        await proxied.wait_open()
        answer = await http.post(f"{proxied.url}{CHAT}", headers=gateway.grant("att_1"))
        await answer.content.readany()
        answer.close()
        await asyncio.wait_for(play.left.wait(), WAIT_S)
        play.stop.set()
        await asyncio.sleep(0.3)  # a few looks; it has stopped, and nobody can know
        assert gateway.stopped == {}
        await engine.__aexit__()
        await wait_stop(gateway)


@pytest.mark.parametrize("kind", list(EngineKind))
async def test_an_answer_that_came_to_its_end_is_acknowledged_without_a_look(
    gateway: LeaseGateway, http: aiohttp.ClientSession, kind: EngineKind
) -> None:
    play = SlotEngine()
    async with RawServer(play) as engine, run_proxied(engine.url, gateway.url, kind=kind) as proxied:
        await proxied.wait_open()
        async with http.post(f"{proxied.url}/answer", headers=gateway.grant("att_1")) as answer:
            assert (answer.status, await answer.json(content_type=None)) == (200, {})
        await wait_stop(gateway)
    assert [one.line.split()[1] for one in engine.exchanges] == ["/answer"]


async def test_a_request_that_never_reached_the_engine_is_acknowledged_at_once(
    gateway: LeaseGateway, http: aiohttp.ClientSession
) -> None:
    async with RawServer(SlotEngine()) as engine, run_proxied(engine.url, gateway.url) as proxied:
        await proxied.wait_open()
        async with http.get(f"{proxied.url}/answer"):
            pass  # a connection of the client's that is there when the port closes
        await engine.__aexit__()
        async with http.post(f"{proxied.url}{CHAT}", headers=gateway.grant("att_1")) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (502, "engine_unreachable")
        await wait_stop(gateway)
    assert gateway.leases["att_1"].proof == "cancel_ack"


async def test_no_chunk_passes_once_the_lease_could_not_be_renewed(
    gateway: LeaseGateway, http: aiohttp.ClientSession
) -> None:
    async def play(exchange: RawExchange) -> None:
        await exchange.send(STREAM)
        await exchange.send_until_closed(b"9\r\ndata: x\n\n\r\n")

    async with (
        measure_lateness() as lateness,
        RawServer(play) as engine,
        run_proxied(engine.url, gateway.url) as proxied,
    ):
        await proxied.wait_open()
        async with http.post(f"{proxied.url}{CHAT}", headers=gateway.grant("att_1")) as answer:
            await answer.content.readany()
            gateway.silent = True
            with suppress(aiohttp.ClientPayloadError):
                async for _ in answer.content.iter_any():
                    last = time.monotonic()
                raise AssertionError("it was ended, and not cut")
            gateway.silent = False
            await engine.__aexit__()
    renewed_at = gateway.leases["att_1"].renewed_at
    assert renewed_at is not None
    assert last < renewed_at + POLICY.ttl_s + POLICY.margin_s + lateness.total_s


async def test_an_attempt_older_than_one_seen_does_not_reach_the_engine(
    gateway: LeaseGateway, http: aiohttp.ClientSession
) -> None:
    async with RawServer(SlotEngine()) as engine, run_proxied(engine.url, gateway.url) as proxied:
        await proxied.wait_open()
        async with http.post(f"{proxied.url}/answer", headers=gateway.grant("att_2", token=2)) as answer:
            assert answer.status == 200
        async with http.post(f"{proxied.url}/answer", headers=gateway.grant("att_1", token=1)) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (409, "attempt_superseded")
    assert len(engine.exchanges) == 1


async def test_pages_for_scraping_pass_without_a_lease(
    gateway: LeaseGateway, http: aiohttp.ClientSession
) -> None:
    page = b"vllm:num_requests_running 1\n"
    paths = ("/metrics", "/health", "/slots")
    async with RawServer(build_response(page)) as engine, run_proxied(engine.url, gateway.url) as proxied:
        await proxied.wait_open()
        for path in paths:
            async with http.get(f"{proxied.url}{path}") as answer:
                assert await answer.read() == page
    assert [one.line for one in engine.exchanges] == [f"GET {path} HTTP/1.1" for path in paths]
