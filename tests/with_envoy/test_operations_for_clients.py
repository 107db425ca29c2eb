"""What a client may read of its own operations, through the ingress."""

import pytest

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
