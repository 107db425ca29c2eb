"""What a client may read of its own operations, through the ingress."""

import pytest
from yarl import URL

from tests.with_envoy.asking import ask
from tests.with_envoy.gateway import Gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_the_owner_of_an_operation_reads_it_and_nobody_else_does(gateway: Gateway) -> None:
    mine, theirs = {"authorization": "Bearer mine"}, {"authorization": "Bearer theirs"}
    reply = await ask(gateway, headers=mine)
    operation_id = reply.headers["x-operation-id"]
    url = f"{gateway.url}/v1/operations/{operation_id}"
    async with gateway.http.get(url, headers=mine) as answer:
        shown = await answer.json()
        assert (answer.status, shown["operation_id"], shown["state"]) == (200, operation_id, "completed")
    for headers in (theirs, {}):
        async with gateway.http.get(url, headers=headers) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (404, "invalid_request")


ODD_IDS = ("op_1", "%2e%2e%2fop_1", "op_%ff", "x" * 3_000, "op_1%0d%0ax:y", "'", "op%201")


async def test_an_operation_of_another_caller_is_told_from_none_by_nothing(gateway: Gateway) -> None:
    reply = await ask(gateway, headers={"authorization": "Bearer mine"})
    foreign, answers = reply.headers["x-operation-id"], {}
    for operation_id in (foreign, *ODD_IDS):
        url = URL(f"{gateway.url}/v1/operations/{operation_id}", encoded=True)
        headers = {"authorization": "Bearer theirs", "x-request-id": "one"}
        async with gateway.http.get(url, headers=headers) as answer:
            shown = {name: value for name, value in answer.headers.items() if name.lower() != "date"}
            answers[operation_id] = (answer.status, shown, await answer.json())
    assert answers[foreign][0] == 404
    assert [one for one in ODD_IDS if answers[one] != answers[foreign]] == []


async def test_a_head_tells_what_a_get_would_without_its_body(gateway: Gateway) -> None:
    mine = {"authorization": "Bearer mine"}
    reply = await ask(gateway, headers=mine)
    url = f"{gateway.url}/v1/operations/{reply.headers['x-operation-id']}"
    async with gateway.http.head(url, headers=mine) as answer:
        assert (answer.status, answer.content_type, await answer.read()) == (200, "application/json", b"")
    async with gateway.http.head(f"{url}x", headers=mine) as answer:
        assert (answer.status, await answer.read()) == (404, b"")
