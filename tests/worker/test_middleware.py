"""The middleware on a real ASGI server: chunks under a lease only; a stop is acknowledged when it is one."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest
import pytest_asyncio

from envoy_ext.domain import names
from envoy_ext.worker import middleware, tool_headers
from tests.support.lateness import measure_lateness
from tests.worker.engine import Engine, run_engine
from tests.worker.engine_client import EngineClient
from tests.worker.lease_gateway import POLICY, LeaseGateway, run_lease_gateway


@pytest_asyncio.fixture
async def gateway() -> AsyncIterator[LeaseGateway]:
    async with run_lease_gateway() as running:
        yield running


@pytest_asyncio.fixture
async def engine(gateway: LeaseGateway) -> AsyncIterator[Engine]:
    async with run_engine((gateway.url,)) as running:
        yield running


@pytest_asyncio.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
        yield session


async def wait_for(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def read_to_cut(answer: aiohttp.ClientResponse) -> None:
    """Read until the stream is cut."""
    with pytest.raises(aiohttp.ClientPayloadError):
        await answer.content.read()


async def test_a_request_without_a_lease_passes_untouched(
    engine: Engine, http: aiohttp.ClientSession
) -> None:
    async with http.post(f"{engine.url}/answer", data=b"hello") as answer:
        assert (answer.status, await answer.json()) == (200, {"got": "hello"})


async def test_an_answer_under_a_lease_passes_whole_and_its_end_is_told(
    engine: Engine, gateway: LeaseGateway, http: aiohttp.ClientSession
) -> None:
    headers = gateway.grant("att_1")
    async with http.post(f"{engine.url}/answer", data=b"hello", headers=headers) as answer:
        assert (answer.status, await answer.json()) == (200, {"got": "hello"})
    assert gateway.leases["att_1"].renewed_at is not None
    await asyncio.wait_for(gateway.stop_heard.wait(), 10)
    assert gateway.leases["att_1"].proof == "cancel_ack"


async def test_what_calls_a_tool_is_told_for_whom(
    engine: Engine, gateway: LeaseGateway, http: aiohttp.ClientSession
) -> None:
    for number, attempt in enumerate(("att_1", "att_2"), 1):
        headers = gateway.grant(attempt, token=number)
        async with http.post(f"{engine.url}/tools", headers=headers) as answer:
            told = await answer.json()
        expected = {name: headers[name] for name in (names.OPERATION, names.ATTEMPT)}
        assert told == [expected, expected]
    assert tool_headers() == {}
    async with http.post(f"{engine.url}/tools") as answer:
        assert await answer.json() == [{}, {}], "without a lease"


async def test_a_stream_outlives_its_lease_while_it_is_renewed(
    engine: Engine, gateway: LeaseGateway, http: aiohttp.ClientSession
) -> None:
    headers = gateway.grant("att_1", ttl_s=5.0)  # a busy machine may miss many renewals
    async with http.post(f"{engine.url}/stream", headers=headers) as answer:
        begun = time.monotonic()
        async for _ in answer.content.iter_any():
            if time.monotonic() > begun + 5.5:
                break
    assert gateway.granted > 1
    assert engine.tokens > 1


async def test_a_revoked_lease_stops_generation_and_the_stop_is_acknowledged_after_it(
    engine: Engine, gateway: LeaseGateway, http: aiohttp.ClientSession
) -> None:
    engine.stubborn_s = 0.2
    headers = gateway.grant("att_1")
    async with http.post(f"{engine.url}/stream", headers=headers) as answer:
        await answer.content.readany()
        gateway.revoke("att_1")
        await read_to_cut(answer)
    await asyncio.wait_for(gateway.stop_heard.wait(), 10)
    assert engine.running == 0
    assert engine.ended_at is not None
    assert gateway.stopped["att_1"] >= engine.ended_at
    assert gateway.leases["att_1"].proof == "cancel_ack"


async def test_no_chunk_is_sent_after_the_lease_could_not_be_renewed(
    engine: Engine, gateway: LeaseGateway, http: aiohttp.ClientSession
) -> None:
    headers = gateway.grant("att_1")
    async with (
        measure_lateness() as lateness,
        http.post(f"{engine.url}/stream", headers=headers) as answer,
    ):
        await answer.content.readany()
        gateway.silent = True
        await read_to_cut(answer)
    renewed_at = gateway.leases["att_1"].renewed_at
    assert renewed_at is not None
    assert engine.ended_at is not None
    # Both clocks are this machine's, so the gateway's bound can be held against what the engine did, but for
    # the time in which this machine ran neither.
    assert engine.ended_at < renewed_at + POLICY.ttl_s + POLICY.margin_s + lateness.total_s
    assert engine.running == 0


async def test_nothing_is_sent_before_the_first_renewal_is_granted(
    engine: Engine, gateway: LeaseGateway, http: aiohttp.ClientSession
) -> None:
    gateway.silent = True
    headers = gateway.grant("att_1")
    async with http.post(f"{engine.url}/stream", headers=headers) as answer:
        assert answer.status == 503
        assert (await answer.json())["error"]["code"] == "lease_lost"
    await wait_for(lambda: engine.running == 0)


async def test_a_lease_that_the_gateway_does_not_know_is_refused_at_once(
    engine: Engine, gateway: LeaseGateway, http: aiohttp.ClientSession
) -> None:
    headers = gateway.grant("att_1")
    gateway.leases.clear()
    async with http.post(f"{engine.url}/stream", headers=headers) as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (503, "lease_lost")


async def test_a_client_that_leaves_is_acknowledged_once_generation_has_stopped(
    engine: Engine, gateway: LeaseGateway, http: aiohttp.ClientSession
) -> None:
    headers = gateway.grant("att_1")
    answer = await http.post(f"{engine.url}/stream", headers=headers)
    await answer.content.readany()
    answer.close()
    await asyncio.wait_for(gateway.stop_heard.wait(), 10)
    assert engine.running == 0
    assert gateway.leases["att_1"].proof == "cancel_ack"


async def test_an_attempt_older_than_one_seen_is_refused(
    engine: Engine, gateway: LeaseGateway, http: aiohttp.ClientSession
) -> None:
    seen = []
    for attempt_id, token in (("att_2", 2), ("att_1", 1), ("att_2", 2), ("att_3", 3)):
        headers = gateway.grant(attempt_id, token=token)
        async with http.post(f"{engine.url}/answer", headers=headers) as answer:
            seen.append(answer.status)
            if answer.status == 409:
                assert (await answer.json())["error"]["code"] == "attempt_superseded"
    assert seen == [200, 409, 409, 200]


async def test_a_newer_attempt_stops_the_older_one(
    engine: Engine, gateway: LeaseGateway, http: aiohttp.ClientSession
) -> None:
    first = await http.post(f"{engine.url}/stream", headers=gateway.grant("att_1", token=1))
    await first.content.readany()
    async with http.post(f"{engine.url}/answer", headers=gateway.grant("att_2", token=2)) as second:
        assert second.status == 200
    await read_to_cut(first)
    await wait_for(lambda: gateway.leases["att_1"].proof == "cancel_ack")
    assert gateway.leases["att_1"].renewed_at is not None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-envoy-ext-lease", "0"),
        ("x-envoy-ext-lease", "-1"),
        ("x-envoy-ext-lease", "one"),
        ("x-envoy-ext-lease-ttl", "nan"),
        ("x-envoy-ext-lease-ttl", "0"),
        ("x-envoy-ext-lease-ttl", "1e9"),
        ("x-envoy-ext-attempt", ""),
        ("x-envoy-ext-operation", "a b"),
        ("x-envoy-ext-operation", "a" * 65),
    ],
)
async def test_headers_that_are_no_gateways_are_refused_by_name(
    engine: Engine, gateway: LeaseGateway, http: aiohttp.ClientSession, name: str, value: str
) -> None:
    headers = {**gateway.grant("att_1"), name: value}
    async with http.post(f"{engine.url}/answer", headers=headers) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["message"].startswith(f"{name}: ")


async def test_the_second_gateway_is_asked_when_the_first_does_not_know_or_is_away(
    gateway: LeaseGateway, http: aiohttp.ClientSession
) -> None:
    async with (
        run_lease_gateway() as stranger,
        run_engine(("http://127.0.0.1:1", stranger.url, gateway.url)) as engine,
        http.post(f"{engine.url}/answer", headers=gateway.grant("att_1")) as answer,
    ):
        assert answer.status == 200


async def test_what_nobody_waits_for_any_more_is_closed_before_the_stop_is_acknowledged(
    engine: Engine, gateway: LeaseGateway, http: aiohttp.ClientSession
) -> None:
    """A failed send leaves the generator behind, open, to whoever collects it."""
    engine.stubborn_s = 0.2
    engine.in_sends_only = True
    headers = gateway.grant("att_1")
    async with http.post(f"{engine.url}/stream", headers=headers) as answer:
        await answer.content.readany()
        gateway.revoke("att_1")
        await read_to_cut(answer)
    await asyncio.wait_for(gateway.stop_heard.wait(), 10)
    assert engine.running == 0
    assert engine.ended_at is not None
    assert gateway.stopped["att_1"] >= engine.ended_at


async def test_a_stop_is_acknowledged_when_the_process_that_computes_has_let_go(
    gateway: LeaseGateway, http: aiohttp.ClientSession
) -> None:
    """The server's own end, and the cut of the stream, are not waited for that long."""
    core = EngineClient()
    core.stands_still.set()
    async with run_engine((gateway.url,), core) as engine:
        async with http.post(f"{engine.url}/stream", headers=gateway.grant("att_1")) as answer:
            await answer.content.readany()
            gateway.revoke("att_1")
            await read_to_cut(answer)
        await wait_for(lambda: engine.running == 0 and core.asked == 1)
        assert not gateway.stop_heard.is_set()
        core.stands_still.clear()
        await asyncio.wait_for(gateway.stop_heard.wait(), 10)
        assert core.asked == 2


async def test_no_stop_is_acknowledged_on_an_error_of_the_process_that_computes(
    gateway: LeaseGateway, http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    core = EngineClient()
    core.fails = True
    async with run_engine((gateway.url,), core) as engine:
        answer = await http.post(f"{engine.url}/stream", headers=gateway.grant("att_1"))
        await answer.content.readany()
        answer.close()
        await wait_for(lambda: "attempt_not_stopped" in caplog.messages)
    assert not gateway.stop_heard.is_set()
    assert caplog.records[-1].__dict__["detail"] == "RuntimeError: no such method"


async def test_no_stop_is_acknowledged_while_the_process_that_computes_hangs(
    gateway: LeaseGateway,
    http: aiohttp.ClientSession,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(middleware, "PROOF_S", 0.2)
    core = EngineClient()
    core.stands_still.set()
    async with run_engine((gateway.url,), core) as engine:
        answer = await http.post(f"{engine.url}/stream", headers=gateway.grant("att_1"))
        await answer.content.readany()
        answer.close()
        await wait_for(lambda: "attempt_not_stopped" in caplog.messages)
        core.stands_still.clear()
    assert not gateway.stop_heard.is_set()


async def test_what_is_sent_to_a_client_that_has_left_is_no_end_of_an_answer(
    engine: Engine, gateway: LeaseGateway, http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "envoy_ext.worker")
    asking = asyncio.ensure_future(http.post(f"{engine.url}/late", headers=gateway.grant("att_1")))
    await wait_for(lambda: gateway.granted > 0)
    asking.cancel()
    await asyncio.wait_for(gateway.stop_heard.wait(), 10)
    (told,) = (record for record in caplog.records if record.message == "attempt_stopped")
    assert told.__dict__["because"] == "client_gone"
