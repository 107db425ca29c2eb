"""`x-request-deadline`: everything, replays included, happens within the time the client gave."""

import asyncio

import openai
import pytest

from tests.with_envoy.asking import MESSAGES, Reply, ask, asking, mint_request_id, read_deltas, wait_request
from tests.with_envoy.gateway import MODEL, Gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")


DEADLINE = {"x-request-deadline": "1.5"}
"""After all that is to come before it, on a busy machine too."""


async def test_a_deadline_before_the_first_delta_is_504_and_frees_the_replica(gateway: Gateway) -> None:
    faults = ("hang", "hang_after_headers", "pings=1000@0.02")
    for reply in await asyncio.gather(*(ask(gateway, fault=fault, headers=DEADLINE) for fault in faults)):
        await assert_late_before_the_first_delta(gateway, reply)


async def assert_late_before_the_first_delta(gateway: Gateway, reply: Reply) -> None:
    error = reply.json["error"]
    assert (reply.status, error["code"], error["type"]) == (504, "deadline_exceeded", "timeout_error")
    assert (error["reason"], error["partial_output"], error["delivered_output_tokens"]) == (
        "deadline",
        False,
        0,
    )
    assert reply.headers["x-should-retry"] == "false"
    assert "retry-after" not in reply.headers
    await wait_request(gateway, reply.request_id, lambda record: record.ended == "client_disconnected")
    operation = await gateway.wait_operation(reply.request_id)
    assert (operation["state"], operation["error"]["reason"]) == ("failed", "deadline")
    assert [attempt["outcome"] for attempt in operation["attempts"]] == ["cancelled"]
    assert len(gateway.find_requests(reply.request_id)) == 1


async def test_a_deadline_after_deltas_ends_the_stream_with_one_typed_event(gateway: Gateway) -> None:
    reply = await ask(gateway, fault="hang_after=3", headers=DEADLINE)

    assert (reply.status, reply.cut, reply.dones) == (200, False, 0)
    (error,) = reply.errors
    assert (error["code"], error["reason"]) == ("upstream_decode_interrupted", "deadline")
    assert error["delivered_output_tokens"] == len(reply.parts) == 3
    await wait_request(gateway, reply.request_id, lambda record: record.ended == "client_disconnected")
    operation = await gateway.wait_operation(reply.request_id)
    assert (operation["delivered_deltas"], operation["error"]["reason"]) == (3, "deadline")
    assert len(gateway.find_requests(reply.request_id)) == 1


async def test_a_deadline_after_deltas_ends_another_apis_stream_in_its_own_form(gateway: Gateway) -> None:
    reply = await ask(gateway, MESSAGES, fault="hang_after=3", headers=DEADLINE)

    assert reply.names[-1] == "error"
    assert reply.events[-1]["type"] == "error"
    assert reply.errors[0]["reason"] == "deadline"


async def test_an_answer_within_its_deadline_is_left_alone(gateway: Gateway) -> None:
    reply = await ask(gateway, headers={"x-request-deadline": "30"})

    assert (reply.status, reply.errors, reply.dones) == (200, [], 1)


async def test_the_deadline_covers_the_replay(gateway: Gateway) -> None:
    fault = "#1:die_after_role:rst,#2:hang_after_headers"
    reply = await ask(gateway, fault=fault, headers=DEADLINE)

    assert (reply.status, reply.json["error"]["code"]) == (504, "deadline_exceeded")
    operation = await gateway.wait_operation(reply.request_id)
    assert [attempt["outcome"] for attempt in operation["attempts"]] == ["replica_died", "cancelled"]


@pytest.mark.parametrize("given", ["", "0", "-1", "soon", "1e3", "inf", "nan", "0.0", "1,5"])
async def test_a_deadline_that_cannot_be_read_is_the_clients_mistake(gateway: Gateway, given: str) -> None:
    reply = await ask(gateway, headers={"x-request-deadline": given})

    assert (reply.status, reply.json["error"]["code"]) == (400, "invalid_request")
    assert "x-request-deadline" in reply.json["error"]["message"]
    assert gateway.find_requests(reply.request_id) == []


async def test_the_openai_client_raises_for_a_deadline_and_does_not_come_back(gateway: Gateway) -> None:
    request_id = mint_request_id()
    headers = {"x-request-id": request_id, "x-sim-fault": "hang", **DEADLINE}
    async with gateway.openai(max_retries=2) as client:
        with pytest.raises(openai.APIStatusError) as raised:
            await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "x"}], stream=True, extra_headers=headers
            )
    assert (raised.value.status_code, raised.value.body["code"]) == (504, "deadline_exceeded")
    assert len(gateway.find_requests(request_id)) == 1


async def test_a_client_that_leaves_before_its_deadline_is_gone_and_not_late(gateway: Gateway) -> None:
    request_id = mint_request_id()
    headers = {"x-request-deadline": "30"}
    async with asking(gateway, fault="hang_after=2", request_id=request_id, headers=headers) as answer:
        await read_deltas(answer, 2)
    operation = await gateway.wait_operation(request_id)
    assert (operation["ending"], operation["error"]) == ("client_gone", None)
