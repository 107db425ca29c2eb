"""Replicas that stop in the middle, seen at the socket: which bytes arrived, and how the connection ended."""

import asyncio

import pytest

from envoy_ext.sim.engine import SimEngine
from envoy_ext.sim.player import Player
from tests.sim.conftest import StartEngine
from tests.sim.wire import CHAT, Connection, ask, build_request, read_chunks, read_content, read_events

WAYS = [("fin", False), ("rst", True)]


@pytest.mark.parametrize(("how", "reset"), WAYS)
async def test_dying_before_headers_sends_nothing(start_engine: StartEngine, how: str, reset: bool) -> None:
    engine = await start_engine()
    reply = await ask(engine, fault=f"die_before_headers:{how}")
    assert (reply.raw, reply.reset) == (b"", reset)
    assert engine.find_requests()[0].ended == "die_before_headers"


@pytest.mark.parametrize(("how", "reset"), WAYS)
async def test_dying_after_headers_sends_them_and_no_body(
    start_engine: StartEngine, how: str, reset: bool
) -> None:
    reply = await ask(await start_engine(), fault=f"die_after_headers:{how}")
    assert (reply.status, reply.reset, reply.complete) == (200, reset, False)
    assert reply.raw.endswith(b"\r\n\r\n")
    assert reply.body == b""


@pytest.mark.parametrize(("how", "reset"), WAYS)
async def test_dying_after_the_role_sends_the_role_chunk_only(
    start_engine: StartEngine, how: str, reset: bool
) -> None:
    reply = await ask(await start_engine(), fault=f"die_after_role:{how}")
    (role,) = read_chunks(reply.body)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert (reply.reset, reply.complete) == (reset, False)


@pytest.mark.parametrize(("how", "reset"), WAYS)
async def test_dying_after_deltas_sends_exactly_those(
    start_engine: StartEngine, how: str, reset: bool
) -> None:
    engine = await start_engine(tokens=5)
    reply = await ask(engine, fault=f"die_after=2:{how}")
    assert read_content(reply.body) == "a.1.0 a.1.1 "
    assert len(read_events(reply.body)) == 3
    assert (reply.reset, reply.complete) == (reset, False)
    (record,) = engine.find_requests()
    assert (record.ended, record.tokens_sent) == ("die_after", 2)


async def test_a_cut_beyond_the_answer_falls_on_its_last_delta(start_engine: StartEngine) -> None:
    reply = await ask(await start_engine(tokens=2), fault="die_after=99")
    assert read_content(reply.body) == "a.1.0 a.1.1 "
    assert b"stop" not in reply.body
    assert not reply.complete


@pytest.mark.parametrize(("how", "reset"), WAYS)
async def test_dying_in_an_event_leaves_half_of_it(start_engine: StartEngine, how: str, reset: bool) -> None:
    reply = await ask(await start_engine(), fault=f"die_mid_event=1:{how}")
    *whole, part = reply.chunks
    assert read_content(b"".join(whole)) == "a.1.0 "
    assert part.startswith(b'data: {"id":"chatcmpl-a-1"')
    assert b"\n" not in part
    assert (reply.reset, reply.complete) == (reset, False)


async def test_dying_in_the_event_after_the_last_delta_breaks_the_finish(start_engine: StartEngine) -> None:
    reply = await ask(await start_engine(tokens=1), fault="die_mid_event=1")
    assert read_content(b"".join(reply.chunks[:-1])) == "a.1.0 "
    assert reply.chunks[-1].startswith(b"data: {")
    assert b"[DONE]" not in reply.body


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses", "/v1/messages", "/generate_stream"])
async def test_every_api_can_be_cut_after_a_delta(start_engine: StartEngine, path: str) -> None:
    reply = await ask(await start_engine(), path, {"stream": True}, fault="die_after=1:rst")
    assert b"a.1.0" in reply.body
    assert b"a.1.1" not in reply.body
    assert (reply.reset, reply.complete) == (True, False)


async def test_only_the_named_replica_dies(start_engine: StartEngine) -> None:
    first, second = await start_engine(name="a"), await start_engine(name="b")
    assert not (await ask(first, fault="a:die_after_headers")).complete
    assert (await ask(second, fault="a:die_after_headers")).complete


async def test_a_fault_for_the_first_attempt_spares_the_second(start_engine: StartEngine) -> None:
    engine = await start_engine()
    assert not (await ask(engine, fault="#1:die_after_role")).complete
    assert not (await ask(engine, fault="#1:die_after_role", x_envoy_attempt_count="1")).complete
    assert (await ask(engine, fault="#1:die_after_role", x_envoy_attempt_count="2")).complete


async def test_a_kill_fault_is_refused_where_the_process_is_shared(start_engine: StartEngine) -> None:
    reply = await ask(await start_engine(), fault="die_after=1:kill")
    assert reply.status == 400
    assert "shares its process" in reply.json["error"]["message"]


@pytest.mark.parametrize(
    ("fault", "seen"),
    [("hang", b""), ("hang_after_headers", b"\r\n\r\n"), ("hang_after=2", b"a.1.1")],
)
async def test_a_hung_replica_sends_its_part_and_keeps_its_place_until_the_client_leaves(
    start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch, fault: str, seen: bytes
) -> None:
    engine = await start_engine()
    hung = asyncio.Event()
    halt = Player._halt

    async def watch_halt(self: Player, *args: object) -> None:
        await halt(self, *args)  # type: ignore[arg-type]
        hung.set()

    monkeypatch.setattr(Player, "_halt", watch_halt)
    async with asyncio.timeout(20):
        connection = await Connection.open(engine.port)
        connection.writer.write(build_request(CHAT, {"stream": True}, {"x-sim-fault": fault}))
        received = await connection.read_until(seen) if seen else b""
        await hung.wait()
        assert received.count(b"a.1.") == (2 if fault == "hang_after=2" else 0)
        assert engine.state.running == 1
        assert engine.find_requests()[0].ended is None
        await connection.close()
        await engine.state.wait_until(lambda: engine.state.running == 0)
    (record,) = engine.find_requests()
    assert (record.ended, record.fault) == ("client_disconnected", fault)


async def test_stopping_an_engine_cuts_its_streams(start_engine: StartEngine) -> None:
    engine: SimEngine = await start_engine()
    async with asyncio.timeout(20):
        connection = await Connection.open(engine.port)
        connection.writer.write(build_request(CHAT, {"stream": True}, {"x-sim-fault": "hang_after=1"}))
        await connection.read_until(b"a.1.0")
        await engine.stop()
        reply = await connection.read_to_end()
        assert not reply.complete
        await connection.close()
    assert engine.find_requests()[0].ended == "engine_stopped"
    with pytest.raises(ConnectionRefusedError):
        await Connection.open(engine.port)
