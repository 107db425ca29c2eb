"""A stream that breaks after its first delta: one typed event, no second generation, no untrue end."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from envoy_ext.domain.ids import ReplicaId
from tests.with_envoy.asking import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    TGI,
    Reply,
    ask,
    asking,
    mint_request_id,
    read_deltas,
    read_part,
)
from tests.with_envoy.gateway import Gateway
from tests.with_envoy.wire import WireConnection, Wired, WireRequest, build_head, run_wire_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Slow enough that the first tokens are with the client before the replica dies after the fifth.
GATEWAY = {"engine": {"token_s": 0.02}}


def assert_error_object(reply: Reply, error: dict[str, Any], reason: str, deltas: int) -> None:
    """The contract's object, as the client needs it."""
    message = error["message"]
    assert message
    assert error == {
        "code": "upstream_decode_interrupted",
        "type": "upstream_error",
        "message": message,
        "request_id": reply.request_id,
        "operation_id": reply.headers["x-operation-id"],
        "partial_output": True,
        "delivered_output_tokens": deltas,
        "retryable": False,
        "reason": reason,
    }


async def assert_interrupted(gateway: Gateway, reply: Reply, reason: str, sent: int) -> None:
    """One typed event at the very end, one attempt, one generation; everybody counts the same deltas.

    What Envoy has not let out when the replica's connection breaks is lost with it, so a client may have
    got less than the replica sent; what counts is that all sides say the same.
    """
    deltas = len(reply.parts)
    assert 0 < deltas <= sent
    assert [mark.index for mark in reply.marks] == list(range(deltas))
    assert (reply.status, reply.cut, reply.dones) == (200, False, 0)
    assert len(reply.errors) == 1
    assert_error_object(reply, reply.errors[0], reason, deltas)
    assert "error" in reply.events[-1]
    assert reply.body.endswith(b"}\n\n")
    assert len(reply.sources) == 1
    operation = await gateway.wait_operation(reply.request_id)
    assert len(operation["attempts"]) == 1
    assert operation["first_delta_sent"] is True
    assert operation["delivered_deltas"] == operation["delivered_output_tokens"] == deltas
    assert (operation["state"], operation["ending"]) == ("failed", "upstream_broke")
    assert operation["error"]["code"] == "upstream_decode_interrupted"
    assert operation["error"]["reason"] == reason
    assert reply.headers["x-attempt-count"] == "1"
    assert len(gateway.find_requests(reply.request_id)) == 1


@pytest.mark.parametrize(
    "fault", ["die_after=5:fin", "die_after=5:rst", "die_mid_event=5:fin", "die_mid_event=5:rst"]
)
async def test_a_replica_lost_after_deltas_ends_the_stream_with_one_typed_event(
    gateway: Gateway, fault: str
) -> None:
    reply = await ask(gateway, fault=fault)

    await assert_interrupted(gateway, reply, "replica_died", 5)
    assert not any(choice["finish_reason"] for event in reply.events for choice in event.get("choices", ()))


async def test_the_half_of_an_event_is_not_delivered(gateway: Gateway) -> None:
    """A client would join it to the typed event and read neither."""
    reply = await ask(gateway, fault="die_mid_event=5:fin+big_event=2000")

    await assert_interrupted(gateway, reply, "replica_died", 5)
    assert all(block.startswith("data: {") for block in reply.blocks[:-1])
    assert reply.blocks[-1] == ""


@pytest.mark.parametrize("deltas", [1, 3])
async def test_a_stream_that_ends_in_good_order_without_a_terminal_mark_is_no_success(
    gateway: Gateway, deltas: int
) -> None:
    reply = await ask(gateway, fault=f"truncate={deltas}")

    await assert_interrupted(gateway, reply, "truncated", deltas)
    assert len(reply.parts) == deltas


@pytest.mark.parametrize("fault", ["finish_null=3", "finish_null"])
async def test_a_done_without_a_finish_is_passed_on_and_recorded_as_no_success(
    gateway: Gateway, fault: str
) -> None:
    """Behind `[DONE]` no client reads an event, so none is added."""
    reply = await ask(gateway, fault=fault)

    assert (reply.status, reply.cut, reply.errors, reply.dones) == (200, False, [], 1)
    assert reply.body.endswith(b"data: [DONE]\n\n")
    operation = await gateway.wait_operation(reply.request_id)
    assert (operation["state"], operation["ending"]) == ("failed", "upstream_broke")
    assert operation["delivered_deltas"] == len(reply.parts)
    assert len(gateway.find_requests(reply.request_id)) == 1


async def test_an_answer_that_the_engine_aborted_is_no_success(gateway: Gateway) -> None:
    reply = await ask(gateway, fault="abort=3")

    assert (reply.status, reply.cut, reply.dones) == (200, False, 1)
    operation = await gateway.wait_operation(reply.request_id)
    assert (operation["state"], operation["ending"]) == ("failed", "upstream_broke")
    assert operation["error"]["reason"] == "engine_error"
    assert operation["delivered_deltas"] == len(reply.parts) == 3
    assert len(gateway.find_requests(reply.request_id)) == 1


async def test_an_error_event_of_the_engine_after_deltas_is_passed_on_once(gateway: Gateway) -> None:
    reply = await ask(gateway, fault="error_after=3;engine")

    assert (reply.status, reply.cut) == (200, False)
    (error,) = reply.errors
    assert error["message"] == "Internal server error"
    operation = await gateway.wait_operation(reply.request_id)
    assert (operation["state"], operation["ending"]) == ("failed", "upstream_broke")
    assert operation["error"]["reason"] == "engine_error"
    assert operation["delivered_deltas"] == len(reply.parts) == 3
    assert len(gateway.find_requests(reply.request_id)) == 1


async def test_the_clients_own_mistake_inside_a_200_is_the_clients_answer(gateway: Gateway) -> None:
    """No replay can help, and the replica has done nothing wrong."""
    before = gateway.read_metric("envoy_ext_attempts_total", pool="chat", outcome="client_error")
    reply = await ask(gateway, fault="error_first=validation")

    assert (reply.status, reply.cut) == (200, False)
    (error,) = reply.errors
    assert "validation" in error["message"]
    operation = await gateway.wait_operation(reply.request_id)
    assert [attempt["outcome"] for attempt in operation["attempts"]] == ["client_error"]
    assert (operation["state"], operation["ending"], operation["first_delta_sent"]) == (
        "failed",
        "finished",
        False,
    )
    assert len(gateway.find_requests(reply.request_id)) == 1
    assert gateway.read_metric("envoy_ext_attempts_total", pool="chat", outcome="client_error") == before + 1


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, MESSAGES, TGI])
async def test_the_typed_event_has_the_form_of_its_api(gateway: Gateway, path: str) -> None:
    reply = await ask(gateway, path, fault="die_after=5:fin")

    await assert_interrupted(gateway, reply, "replica_died", 5)
    last, block = reply.events[-1], reply.blocks[-2]
    error = reply.errors[0]
    match path:
        case "/v1/responses":
            assert block.startswith("event: error\ndata: ")
            assert (last["type"], last["code"], last["message"]) == ("error", error["code"], error["message"])
            assert "response.completed" not in reply.names
        case "/v1/messages":
            assert block.startswith("event: error\ndata: ")
            assert last == {"type": "error", "error": error}
            assert "message_stop" not in reply.names
        case _:
            assert block.startswith("data: {")
            assert last == {"error": error}


async def test_a_stream_of_json_lines_ends_with_one_error_line(gateway: Gateway) -> None:
    reply = await ask(gateway, fault="ndjson+die_after=5:fin")

    assert (reply.status, reply.cut) == (200, False)
    *answer, last, behind = reply.body.split(b"\n")
    assert behind == b""
    assert json.loads(last)["error"]["reason"] == "replica_died"
    assert not any(b'"error"' in line for line in answer)
    operation = await gateway.wait_operation(reply.request_id)
    assert operation["delivered_deltas"] == sum(bool(read_part(json.loads(line))) for line in answer) > 0
    assert operation["error"]["reason"] == "replica_died"


async def test_what_a_client_has_read_is_what_is_counted(wired: Wired) -> None:
    """The replica breaks when its client has read three deltas: three are counted, and no more follow."""
    read = asyncio.Event()

    async def answer(_request: WireRequest, connection: WireConnection) -> None:
        await connection.send(build_head(("transfer-encoding", "chunked")))
        for content in ("one ", "two ", "three "):
            await connection.send_chunks(build_delta(content))
        await read.wait()
        connection.reset()

    wired.answer_with(answer)
    request_id = mint_request_id()
    async with asking(wired.gateway, request_id=request_id) as reply:
        await read_deltas(reply, 3)
        read.set()
        rest = await reply.content.read()

    (event,) = [line for line in rest.split(b"\n") if line]
    error = json.loads(event.removeprefix(b"data: "))["error"]
    assert (error["reason"], error["delivered_output_tokens"]) == ("replica_died", 3)
    operation = await wired.gateway.wait_operation(request_id)
    assert (operation["delivered_deltas"], operation["ending"]) == (3, "upstream_broke")
    assert len(wired.find_requests(request_id)) == 1


async def test_an_answer_is_never_put_together_from_two_replicas(tmp_path: Path) -> None:
    """One is cut after "Hel"; the other would say "Hello"."""
    read = asyncio.Event()

    async def break_off(_request: WireRequest, connection: WireConnection) -> None:
        await connection.send(build_head(("transfer-encoding", "chunked")))
        await connection.send_chunks(build_delta("Hel"))
        await read.wait()
        connection.reset()

    async def say_hello(_request: WireRequest, connection: WireConnection) -> None:
        await connection.send(build_head(("transfer-encoding", "chunked")))
        await connection.send_chunks(build_delta("Hello"), b"data: [DONE]\n\n", b"")

    async with run_wire_gateway(tmp_path, replicas=2) as wired:
        wired.engines[0].answer, wired.engines[1].answer = break_off, say_hello
        wired.gateway.stack.app.fleet.drain(ReplicaId("w1"), 600)
        request_id = mint_request_id()
        async with asking(wired.gateway, request_id=request_id) as reply:
            await read_deltas(reply, 1)
            wired.gateway.stack.app.fleet.undrain(ReplicaId("w1"))
            read.set()
            rest = await reply.content.read()
        assert b"Hello" not in rest
        assert rest.count(b"upstream_decode_interrupted") == 1
        assert b"[DONE]" not in rest
        operation = await wired.gateway.wait_operation(request_id)
        assert [one["replica"] for one in operation["attempts"]] == ["w0"]
        assert len(wired.requests) == 1


def build_delta(content: str) -> bytes:
    event = {"id": "x", "choices": [{"index": 0, "delta": {"content": content}}]}
    return f"data: {json.dumps(event)}\n\n".encode()


@pytest.mark.parametrize("path", [MESSAGES, RESPONSES, TGI])
async def test_a_silent_end_shows_in_every_api(gateway: Gateway, path: str) -> None:
    reply = await ask(gateway, path, fault="truncate=2")

    await assert_interrupted(gateway, reply, "truncated", 2)
    assert len(reply.parts) == 2
