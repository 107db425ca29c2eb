"""The queue of an engine, and clients that leave: each is noticed where the request stands."""

import asyncio
from functools import partial

import pytest

from envoy_ext.sim.engine import SimEngine
from tests.sim.conftest import StartEngine
from tests.sim.wire import CHAT, Connection, ask, build_request, read_content

# Far beyond every timeout of these tests: who waits for it to pass, fails.
AN_HOUR_S = 3600.0


async def send(
    engine: SimEngine, request_id: str = "r", *, stream: bool = True, **headers: str
) -> Connection:
    connection = await Connection.open(engine.port)
    fields = {"x-request-id": request_id} | {key.replace("_", "-"): value for key, value in headers.items()}
    connection.writer.write(build_request(CHAT, {"stream": stream}, fields))
    return connection


def waits(engine: SimEngine, number: int) -> bool:
    return engine.state.waiting == number


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_in_the_prefill_is_noticed(
    start_engine: StartEngine, stream: bool
) -> None:
    engine = await start_engine(prefill_s=AN_HOUR_S)
    async with asyncio.timeout(20):
        connection = await send(engine, stream=stream)
        await engine.state.wait_until(lambda: engine.state.running == 1)
        await connection.close()
        await engine.state.wait_until(lambda: engine.state.cancelled == 1)
    (record,) = engine.find_requests()
    assert (record.ended, record.tokens_sent, engine.state.running) == ("client_disconnected", 0, 0)


async def test_a_client_that_leaves_between_tokens_is_noticed_before_the_next(
    start_engine: StartEngine,
) -> None:
    engine = await start_engine(token_s=AN_HOUR_S)
    async with asyncio.timeout(20):
        connection = await send(engine)
        await connection.read_until(b"a.1.0")
        await connection.close()
        await engine.state.wait_until(lambda: engine.state.cancelled == 1)
    (record,) = engine.find_requests()
    assert (record.ended, record.tokens_sent) == ("client_disconnected", 1)


async def test_a_client_that_resets_is_noticed_like_one_that_closes(start_engine: StartEngine) -> None:
    engine = await start_engine(token_s=AN_HOUR_S)
    async with asyncio.timeout(20):
        connection = await send(engine)
        await connection.read_until(b"a.1.0")
        connection.writer.transport.abort()
        await engine.state.wait_until(lambda: engine.state.cancelled == 1)


async def test_requests_above_the_limit_wait_and_run_in_their_order(start_engine: StartEngine) -> None:
    engine = await start_engine(max_running=1)
    async with asyncio.timeout(20):
        first = await send(engine, "first", x_sim_fault="hang_after=1")
        await first.read_until(b"a.1.0")
        waiting = []
        for number, name in enumerate(("second", "third", "fourth"), 1):
            waiting.append(await send(engine, name))
            await engine.state.wait_until(partial(waits, engine, number))
        assert (engine.state.running, engine.state.waiting) == (1, 3)
        await first.close()
        replies = [await connection.read_to_end() for connection in waiting]
        for connection in waiting:
            await connection.close()
    ended = sorted(engine.find_requests(), key=lambda record: record.finished_at or 0)
    order = [record.request_id for record in ended]
    assert order == ["first", "second", "third", "fourth"]
    assert [read_content(reply.body)[:4] for reply in replies] == ["a.2.", "a.3.", "a.4."]
    assert (engine.state.running, engine.state.waiting) == (0, 0)


async def test_a_stream_that_waits_has_its_headers_already(start_engine: StartEngine) -> None:
    engine = await start_engine(max_running=1)
    async with asyncio.timeout(20):
        first = await send(engine, x_sim_fault="hang")
        await engine.state.wait_until(lambda: engine.state.running == 1)
        second = await send(engine)
        assert (await second.read_until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
        await first.close()
        await second.close()


async def test_a_client_that_leaves_the_queue_frees_its_place_in_it(start_engine: StartEngine) -> None:
    engine = await start_engine(max_running=1)
    async with asyncio.timeout(20):
        first = await send(engine, x_sim_fault="hang")
        await engine.state.wait_until(lambda: engine.state.running == 1)
        second = await send(engine)
        await engine.state.wait_until(lambda: engine.state.waiting == 1)
        await second.close()
        await engine.state.wait_until(lambda: engine.state.waiting == 0)
        assert engine.state.running == 1
        await first.close()
        await engine.state.wait_until(lambda: engine.state.running == 0)
        third = await send(engine)
        assert (await third.read_to_end()).complete
        await third.close()


async def test_a_client_that_does_not_read_stops_the_generation(start_engine: StartEngine) -> None:
    engine = await start_engine(tokens=4)
    async with asyncio.timeout(20):
        connection = await send(engine, x_sim_fault=f"big_event={16 * 1024 * 1024}")
        transport = connection.writer.transport
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        await engine.state.wait_until(lambda: engine.state.running == 1)
        prompt = engine.find_requests()[0].body_bytes // 4
        await engine.state.wait_until(lambda: engine.state.kv_tokens == prompt + 1)
        # The engine has time for other requests, and none of its tokens takes time: were it not
        # held up by the unread event, all four would be sent by then.
        for _ in range(5):
            await ask(engine, "/sim/state", method="GET")
        assert (engine.find_requests()[0].tokens_sent, engine.state.kv_tokens) == (0, prompt + 1)
        await connection.close()
        await engine.state.wait_until(lambda: engine.state.cancelled == 1)


async def test_the_cache_fills_with_tokens_and_is_given_back(start_engine: StartEngine) -> None:
    engine = await start_engine(tokens=3)

    def two_sent() -> bool:
        return any(record.tokens_sent == 2 for record in engine.find_requests())

    async with asyncio.timeout(20):
        connection = await send(engine, x_sim_fault="hang_after=2")
        await engine.state.wait_until(two_sent)
        prompt = engine.find_requests()[0].body_bytes // 4
        assert engine.state.kv_tokens == prompt + 2
        await connection.close()
        await engine.state.wait_until(lambda: engine.state.running == 0)
    assert engine.state.kv_tokens == 0


async def test_one_connection_carries_request_after_request(start_engine: StartEngine) -> None:
    engine = await start_engine(tokens=1)
    async with asyncio.timeout(20):
        connection = await Connection.open(engine.port)
        for generation in (1, 2, 3):
            connection.writer.write(build_request(CHAT, {"stream": True}, {"connection": "keep-alive"}))
            assert f"a.{generation}.0".encode() in await connection.read_until(b"0\r\n\r\n")
            connection.seen = b""
        await connection.close()
    assert [record.ended for record in engine.find_requests()] == ["done"] * 3


async def test_an_engine_that_does_not_look_keeps_the_place_of_a_client_that_has_gone(
    start_engine: StartEngine,
) -> None:
    engine = await start_engine(prefill_s=AN_HOUR_S, notice_s=0.2)
    async with asyncio.timeout(20):
        connection = await send(engine)
        await engine.state.wait_until(lambda: engine.state.running == 1)
        await connection.close()
        await engine.state.wait_until(lambda: engine.state.cancelled == 1)
        assert engine.state.running == 1
        await engine.state.wait_until(lambda: engine.state.running == 0)
    assert engine.state.kv_tokens == 0


async def test_a_request_is_ended_by_its_rid_and_no_other_is(start_engine: StartEngine) -> None:
    engine = await start_engine(prefill_s=AN_HOUR_S, notice_s=AN_HOUR_S)
    async with asyncio.timeout(20):
        connections = [await send(engine, x_override_rid=rid) for rid in ("one", "two")]
        await engine.state.wait_until(lambda: engine.state.running == 2)
        for connection in connections:
            await connection.close()
        await engine.state.wait_until(lambda: engine.state.cancelled == 2)
        for body in ({"rid": ""}, {"rid": "three"}, {"rid": "one"}):
            answer = await ask(engine, "/abort_request", body, stream=False)
            assert answer.status == 200
        assert (engine.state.running, engine.state.aborts) == (1, ["three", "one"])
        refused = await ask(engine, "/abort_request", {"abort_all": True}, stream=False)
    assert (refused.status, engine.state.running) == (400, 1)
