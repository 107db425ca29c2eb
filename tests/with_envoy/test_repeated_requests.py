"""A request that comes again: under its idempotency key, or by a retry of a mesh in front of us."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import openai
import pytest
from envoy.service.auth.v3.external_auth_pb2 import CheckRequest, CheckResponse

from tests.with_envoy.asking import (
    CHAT,
    Reply,
    ask,
    asking,
    build_body,
    mint_request_id,
    read_deltas,
    wait_request,
)
from tests.with_envoy.gateway import MODEL, Gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

GATEWAY = {"engine": {"token_s": 0.02}}


async def ask_with_key(gateway: Gateway, key: str, **options: Any) -> Reply:
    return await ask(gateway, headers={"idempotency-key": key, **options.pop("headers", {})}, **options)


def assert_conflict(reply: Reply, status: int, code: str, operation_id: str, *, sdk_retries: bool) -> None:
    error = reply.json["error"]
    assert (reply.status, error["code"], error["operation_id"]) == (status, code, operation_id)
    assert reply.headers["x-operation-id"] == operation_id
    assert error["request_id"] == reply.request_id
    assert reply.headers.get("x-should-retry") == (None if sdk_retries else "false")
    assert ("retry-after" in reply.headers) == sdk_retries


def count_shed(gateway: Gateway, code: str) -> float:
    return gateway.read_metric("envoy_ext_shed_total", pool="chat", code=code)


# --- idempotency keys -------------------------------------------------------------------------


async def test_a_key_that_is_still_running_is_409_and_the_client_may_come_back(gateway: Gateway) -> None:
    key, first = "key-running", mint_request_id()
    async with asking(
        gateway, fault="hang_after=2", request_id=first, headers={"idempotency-key": key}
    ) as answer:
        await read_deltas(answer, 2)
        again = await ask_with_key(gateway, key)
        operation_id = answer.headers["x-operation-id"]

    assert_conflict(again, 409, "operation_in_progress", operation_id, sdk_retries=True)
    assert gateway.find_requests(again.request_id) == []
    await gateway.wait_operation(first)


async def test_two_requests_at_once_with_one_key_are_computed_once(gateway: Gateway) -> None:
    replies = await asyncio.gather(*(ask_with_key(gateway, "key-at-once") for _ in range(5)))

    assert sorted(reply.status for reply in replies) == [200, 409, 409, 409, 409]
    assert sum(len(gateway.find_requests(reply.request_id)) for reply in replies) == 1


async def test_a_key_with_another_body_is_422(gateway: Gateway) -> None:
    first = await ask_with_key(gateway, "key-reused")
    other = await ask_with_key(gateway, "key-reused", body=build_body(max_tokens=2))

    operation_id = first.headers["x-operation-id"]
    assert_conflict(other, 422, "idempotency_key_reused", operation_id, sdk_retries=False)
    assert gateway.find_requests(other.request_id) == []


async def test_an_answer_that_was_cut_after_deltas_is_not_generated_again(gateway: Gateway) -> None:
    first = await ask_with_key(gateway, "key-cut", fault="die_after=5:fin")
    operation = await gateway.wait_operation(first.request_id)
    again = await ask_with_key(gateway, "key-cut")

    operation_id = first.headers["x-operation-id"]
    assert_conflict(again, 409, "operation_incomplete", operation_id, sdk_retries=False)
    assert again.headers["location"] == f"/v1/operations/{operation_id}"
    error = again.json["error"]
    assert (error["reason"], error["partial_output"]) == ("replica_died", True)
    assert error["delivered_output_tokens"] == operation["delivered_output_tokens"] == len(first.parts) > 0
    assert gateway.find_requests(again.request_id) == []


@pytest.mark.parametrize("fault", ["truncate=3", "finish_null=3", "abort=3", "error_after=3;engine"])
async def test_an_answer_that_was_no_success_is_never_repeated_as_one(gateway: Gateway, fault: str) -> None:
    key = f"key-{fault}"
    first = await ask_with_key(gateway, key, fault=fault)
    await gateway.wait_operation(first.request_id)
    again = await ask_with_key(gateway, key)

    assert_conflict(again, 409, "operation_incomplete", first.headers["x-operation-id"], sdk_retries=False)


async def test_a_whole_answer_is_not_generated_a_second_time(gateway: Gateway) -> None:
    first = await ask_with_key(gateway, "key-whole")
    await gateway.wait_operation(first.request_id)
    again = await ask_with_key(gateway, "key-whole")

    assert first.dones == 1
    assert_conflict(again, 409, "operation_complete", first.headers["x-operation-id"], sdk_retries=False)


async def test_a_request_that_failed_before_anything_was_delivered_runs_again(gateway: Gateway) -> None:
    first = await ask_with_key(gateway, "key-failed", fault="die_before_headers:rst")
    assert first.status == 503
    again = await ask_with_key(gateway, "key-failed")

    assert (again.status, again.dones) == (200, 1)
    assert again.headers["x-operation-id"] != first.headers["x-operation-id"]


async def test_a_replica_s_refusal_of_the_request_does_not_hold_its_key(gateway: Gateway) -> None:
    first = await ask_with_key(gateway, "key-refused", fault="status=400")
    assert first.status == 400
    await gateway.wait_operation(first.request_id)
    again = await ask_with_key(gateway, "key-refused")

    assert (again.status, again.dones) == (200, 1)


async def test_a_client_that_left_before_the_first_delta_may_ask_anew(gateway: Gateway) -> None:
    key, first = "key-left-early", mint_request_id()
    headers = {"idempotency-key": key, "x-request-id": first, "x-sim-fault": "hang"}
    asked = asyncio.ensure_future(gateway.http.post(gateway.url + CHAT, json=build_body(), headers=headers))
    await wait_request(gateway, first, lambda record: record.generation is not None)
    asked.cancel()
    await asyncio.wait((asked,))

    await wait_request(gateway, first, lambda record: record.ended == "client_disconnected")
    async with asyncio.timeout(5):  # at once or soon: never 409 for ever
        while (again := await ask_with_key(gateway, key)).status == 409:
            assert again.json["error"]["code"] == "operation_in_progress"
    assert (again.status, again.dones) == (200, 1)


async def test_a_client_that_left_after_deltas_gets_no_second_generation(gateway: Gateway) -> None:
    key, first = "key-left-late", mint_request_id()
    async with asking(
        gateway, fault="hang_after=2", request_id=first, headers={"idempotency-key": key}
    ) as answer:
        await read_deltas(answer, 2)
        operation_id = answer.headers["x-operation-id"]
    await gateway.wait_operation(first)

    again = await ask_with_key(gateway, key)
    assert_conflict(again, 409, "operation_incomplete", operation_id, sdk_retries=False)


async def test_a_replayed_request_is_one_operation_under_its_key(gateway: Gateway) -> None:
    first = await ask_with_key(gateway, "key-replayed", fault="#1:die_after_role:rst")
    operation = await gateway.wait_operation(first.request_id)

    assert (first.dones, len(operation["attempts"]), operation["state"]) == (1, 2, "completed")
    records = gateway.find_requests(first.request_id)
    assert [record.idempotency_key for record in records] == ["key-replayed"] * 2


async def test_a_key_is_one_callers_own(gateway: Gateway) -> None:
    mine = await ask_with_key(gateway, "key-shared", headers={"authorization": "Bearer one"})
    theirs = await ask_with_key(gateway, "key-shared", headers={"authorization": "Bearer two"})

    assert (mine.status, theirs.status) == (200, 200)


@pytest.mark.parametrize("key", ["", "x" * 256, "caf\u00e9"])
async def test_a_key_that_cannot_be_used_is_the_clients_mistake(gateway: Gateway, key: str) -> None:
    reply = await ask_with_key(gateway, key)

    assert (reply.status, reply.json["error"]["code"]) == (400, "invalid_request")
    assert reply.headers["x-should-retry"] == "false"
    assert gateway.find_requests(reply.request_id) == []


async def test_without_a_key_every_request_is_its_own(gateway: Gateway) -> None:
    """SDKs repeat a request with the same body and only a counter of their own to tell."""
    replies = [await ask(gateway, headers={"x-stainless-retry-count": str(count)}) for count in range(3)]

    assert [reply.dones for reply in replies] == [1, 1, 1]
    assert len({reply.headers["x-operation-id"] for reply in replies}) == 3


async def test_the_openai_client_leaves_an_incomplete_operation_alone(gateway: Gateway) -> None:
    headers = {"idempotency-key": "key-sdk", "x-request-id": mint_request_id()}
    async with gateway.openai(max_retries=2) as client:

        async def run(fault: str) -> None:
            stream = await client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": "x"}],
                stream=True,
                extra_headers={**headers, "x-sim-fault": fault},
            )
            async for _ in stream:
                pass

        with pytest.raises(openai.APIError):
            await run("die_after=5:fin")
        await gateway.wait_operation(headers["x-request-id"])
        shed = count_shed(gateway, "operation_incomplete")
        with pytest.raises(openai.ConflictError) as raised:
            await run("")
    assert raised.value.body["code"] == "operation_incomplete"
    # One refusal: the hint keeps the client from its own two retries, which a 409 invites.
    assert count_shed(gateway, "operation_incomplete") == shed + 1


async def test_the_openai_client_comes_back_while_its_operation_still_runs(gateway: Gateway) -> None:
    async with gateway.openai(max_retries=2) as client:

        async def start() -> openai.AsyncStream[Any]:
            headers = {"idempotency-key": "key-sdk-running", "x-sim-fault": "hang_after=2"}
            return await client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": "x"}],
                stream=True,
                extra_headers=headers,
            )

        async with await start() as stream:
            await anext(stream)
            shed = count_shed(gateway, "operation_in_progress")
            with pytest.raises(openai.ConflictError) as raised:
                await start()
    assert raised.value.body["code"] == "operation_in_progress"
    # The first try and the client's own two retries.
    assert count_shed(gateway, "operation_in_progress") == shed + 3


async def test_the_openai_client_comes_back_and_is_given_the_answer(gateway: Gateway) -> None:
    """Its first try is still computed when its second request comes: 409, the hint, and then the answer."""
    first = mint_request_id()
    async with gateway.openai(max_retries=4) as client:

        async def create(**headers: str) -> openai.types.chat.ChatCompletion:
            return await client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": "x"}],
                extra_headers={"idempotency-key": "key-sdk-answered", **headers},
            )

        running = asyncio.ensure_future(create(**{"x-request-id": first, "x-sim-fault": "slow=8"}))
        await wait_request(gateway, first, lambda record: record.generation is not None)
        shed = count_shed(gateway, "operation_in_progress")
        again = await create()
    assert again == await running
    assert count_shed(gateway, "operation_in_progress") > shed
    assert len(gateway.find_requests(first)) == 1


async def test_a_stream_is_not_kept_unless_the_configuration_says_so(gateway: Gateway) -> None:
    """And neither is what it asked for: the journal's file holds the words of no prompt and no stream."""
    first = await ask_with_key(gateway, "key-secret", body=build_body(user="a-word-of-the-prompt"))
    one = await ask_with_key(
        gateway, "key-open", body=build_body(stream=False, user="a-word-of-the-prompt"), stream=False
    )
    await gateway.wait_operation(one.request_id)
    path = Path(gateway.stack.config.journal.path)
    stored = b"".join(part.read_bytes() for part in path.parent.glob(path.name + "*"))
    assert one.json["choices"][0]["message"]["content"].encode() in stored
    assert first.parts[0].encode() not in stored
    assert b"a-word-of-the-prompt" not in stored


# --- retries of another gateway, after our first delta ------------------------------------------


async def test_a_retry_of_a_mesh_after_the_first_delta_is_refused(gateway: Gateway) -> None:
    first = await ask(gateway, fault="die_after=5:fin")
    operation = await gateway.wait_operation(first.request_id)
    again = await ask(gateway, request_id=first.request_id, headers={"x-envoy-attempt-count": "2"})

    operation_id = operation["operation_id"]
    assert_conflict(again, 409, "operation_incomplete", operation_id, sdk_retries=False)
    assert again.json["error"]["delivered_output_tokens"] == len(first.parts)
    assert again.headers["location"] == f"/v1/operations/{operation_id}"
    assert len(gateway.find_requests(first.request_id)) == 1


async def test_a_retry_of_a_mesh_while_the_answer_still_comes_is_refused(gateway: Gateway) -> None:
    request_id = mint_request_id()
    async with asking(gateway, fault="hang_after=2", request_id=request_id) as answer:
        await read_deltas(answer, 2)
        again = await ask(gateway, request_id=request_id, headers={"x-envoy-attempt-count": "2"})

    assert (again.status, again.json["error"]["code"]) == (409, "operation_incomplete")
    assert again.json["error"]["delivered_output_tokens"] is None
    assert len(gateway.find_requests(request_id)) == 1
    await gateway.wait_operation(request_id)


async def test_a_first_try_with_a_request_id_that_was_seen_runs(gateway: Gateway) -> None:
    """The id alone says nothing: some clients send the same one with everything."""
    first = await ask(gateway, fault="die_after=5:fin")
    again = await ask(gateway, request_id=first.request_id)

    assert (again.status, again.dones) == (200, 1)


async def test_a_retry_of_a_mesh_with_nothing_delivered_runs(gateway: Gateway) -> None:
    first = await ask(gateway, fault="die_before_headers:rst")
    again = await ask(gateway, request_id=first.request_id, headers={"x-envoy-attempt-count": "2"})

    assert (first.status, again.status, again.dones) == (503, 200, 1)


# --- ext_authz --------------------------------------------------------------------------------


async def check(gateway: Gateway, headers: dict[str, str]) -> Any:
    """Ask as another Envoy's ext_authz filter does."""
    call = CheckRequest()
    call.attributes.request.http.method = "POST"
    call.attributes.request.http.path = CHAT
    call.attributes.request.http.headers.update(headers)
    socket = gateway.stack.config.sidecar.socket
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        method = channel.unary_unary(
            "/envoy.service.auth.v3.Authorization/Check",
            request_serializer=CheckRequest.SerializeToString,
            response_deserializer=CheckResponse.FromString,
        )
        return await method(call)


def read_denial(answer: Any) -> tuple[int, dict[str, str], str]:
    denied = answer.denied_response
    headers = {option.header.key: option.header.value for option in denied.headers}
    return denied.status.code, headers, denied.body


async def test_asking_ext_authz_twice_takes_nothing_and_answers_the_same(gateway: Gateway) -> None:
    headers = {"x-request-id": mint_request_id(), "idempotency-key": "key-authz"}

    answers = [await check(gateway, headers) for _ in range(2)]

    assert [answer.status.code for answer in answers] == [0, 0]
    reply = await ask(gateway, request_id=headers["x-request-id"], headers={"idempotency-key": "key-authz"})
    assert (reply.status, reply.dones) == (200, 1)


async def test_ext_authz_does_not_hold_a_request_against_itself(gateway: Gateway) -> None:
    """Envoy may ask again about a request that already runs."""
    request_id, key = mint_request_id(), {"idempotency-key": "key-authz-self"}
    async with asking(gateway, fault="hang_after=2", request_id=request_id, headers=key) as answer:
        await read_deltas(answer, 2)
        itself = await check(gateway, {"x-request-id": request_id, **key})
        another = await check(gateway, {"x-request-id": mint_request_id(), **key})

    assert itself.status.code == 0
    status, headers, body = read_denial(another)
    assert (status, headers["retry-after"]) == (409, "1")
    assert '"operation_in_progress"' in body
    await gateway.wait_operation(request_id)


async def test_ext_authz_refuses_a_retry_after_the_first_delta(gateway: Gateway) -> None:
    first = await ask(gateway, fault="die_after=5:fin", headers={"idempotency-key": "key-authz-cut"})
    await gateway.wait_operation(first.request_id)

    by_mesh = await check(gateway, {"x-request-id": first.request_id, "x-envoy-attempt-count": "2"})
    by_key = await check(gateway, {"x-request-id": mint_request_id(), "idempotency-key": "key-authz-cut"})
    unrelated = await check(gateway, {"x-request-id": mint_request_id(), "x-envoy-attempt-count": "2"})

    for answer in (by_mesh, by_key):
        status, headers, body = read_denial(answer)
        assert (status, headers["x-should-retry"]) == (409, "false")
        assert headers["content-type"] == "application/json"
        assert '"operation_incomplete"' in body
        assert first.headers["x-operation-id"] in body
    assert unrelated.status.code == 0
