"""The failures that matter most, with a full bootstrap and with all but the way to the sidecar over xDS; and
with both transports of the streams.

The other files play everything with one of each; what they show may not depend on which.
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.with_envoy.asking import (
    CHAT,
    MESSAGES,
    ask,
    asking,
    mint_request_id,
    read_deltas,
    wait_request,
)
from tests.with_envoy.gateway import Gateway, run_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKENS = 6


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["static", "xds", "grpc_aio"])
async def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Gateway]:
    """A gateway whose Envoy has its resources from there; or, by `grpc_aio`, all that is not the default."""
    other = request.param == "grpc_aio"
    envoy = {"concurrency": 1, "admin": {"port": 0}, "resources": "xds" if other else request.param}
    sidecar = {"socket": "/run/moved.sock", "transport": "grpc_aio" if other else None}
    directory = tmp_path_factory.mktemp("gateway")
    async with run_gateway(
        directory, "abc", engine={"token_s": 0.02}, envoy=envoy, sidecar=sidecar
    ) as running:
        yield running


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("fault", ["die_before_headers:rst", "die_after_role:fin", "error_first=engine"])
async def test_a_replica_lost_before_its_first_delta_costs_the_client_nothing(
    gateway: Gateway, path: str, fault: str
) -> None:
    reply = await ask(gateway, path, fault=f"#1:{fault}")

    assert (reply.status, reply.cut, reply.errors) == (200, False, [])
    assert [mark.index for mark in reply.marks] == list(range(TOKENS))
    assert len(reply.sources) == 1
    assert reply.headers["x-attempt-count"] == "2"
    first, second = (await gateway.wait_operation(reply.request_id))["attempts"]
    assert first["replica"] != second["replica"]
    assert second["outcome"] == "completed"


@pytest.mark.parametrize("fault", ["die_after=3:rst", "die_mid_event=3:fin", "truncate=3"])
async def test_a_replica_lost_after_deltas_ends_the_stream_with_one_typed_event(
    gateway: Gateway, fault: str
) -> None:
    reply = await ask(gateway, fault=fault)

    assert (reply.status, reply.cut, reply.dones, len(reply.errors)) == (200, False, 0, 1)
    assert reply.errors[0]["code"] == "upstream_decode_interrupted"
    assert reply.errors[0]["delivered_output_tokens"] == len(reply.parts) > 0
    operation = await gateway.wait_operation(reply.request_id)
    assert (operation["ending"], len(operation["attempts"])) == ("upstream_broke", 1)
    assert len(gateway.find_requests(reply.request_id)) == 1


async def test_a_client_that_leaves_is_computed_for_no_more(gateway: Gateway) -> None:
    request_id = mint_request_id()
    async with asking(gateway, fault="hang_after=3", request_id=request_id) as answer:
        await read_deltas(answer, 3)

    record = await wait_request(gateway, request_id, lambda one: one.ended == "client_disconnected")
    operation = await gateway.wait_operation(request_id)
    assert (operation["ending"], operation["state"]) == ("client_gone", "cancelled")
    assert operation["delivered_deltas"] == 3
    assert gateway.find_requests(request_id) == [record]


async def test_a_body_above_the_limit_is_refused_by_envoy_in_the_documented_form(gateway: Gateway) -> None:
    reply = await ask(gateway, data=b"x" * (17 << 20))

    assert (reply.status, reply.json["error"]["code"]) == (413, "request_too_large")
    assert gateway.find_requests(reply.request_id) == []
