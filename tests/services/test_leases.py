"""What workers are answered about their leases, at both doors, on real ports."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import aiohttp
import grpc
import pytest
import pytest_asyncio

from envoy_ext._pb import leases_pb2 as pb
from envoy_ext.adapters.clock import SystemClock
from envoy_ext.adapters.lease_grpc import LeaseGrpcServer
from envoy_ext.adapters.lease_http import LeaseHttpServer
from envoy_ext.domain.events import DeliveryClosed
from envoy_ext.services.leases import Leases
from tests.support.sidecar import Played, Sidecar, play_until_delta

Ask = Callable[[str, str, str, int], Awaitable[tuple[int, bool]]]
"""Call, operation, attempt and token: the status as HTTP has it, and whether it was granted."""
STATUS = {grpc.StatusCode.OK: 200, grpc.StatusCode.NOT_FOUND: 404, grpc.StatusCode.UNAVAILABLE: 503}


def build_leases(sidecar: Sidecar) -> Leases:
    return Leases(sidecar.exchanges, sidecar.fleet.streams, SystemClock())


@pytest_asyncio.fixture
async def played() -> Played:
    """One attempt whose answer streams."""
    return await play_until_delta(Sidecar())


@pytest_asyncio.fixture(params=["http", "grpc"])
async def ask(played: Played, request: pytest.FixtureRequest) -> AsyncIterator[Ask]:
    leases = build_leases(played.sidecar)
    async with AsyncExitStack() as opened:
        if request.param == "http":
            door = LeaseHttpServer(leases)
            opened.push_async_callback(door.stop)
            port = await door.start("127.0.0.1", 0)
            http = await opened.enter_async_context(aiohttp.ClientSession())
            yield lambda call, operation, attempt, token: ask_http(
                http, port, call, {"operation_id": operation, "attempt_id": attempt, "token": token}
            )
        else:
            grpc_door = LeaseGrpcServer(leases)
            opened.push_async_callback(grpc_door.stop)
            port = await grpc_door.start("127.0.0.1", 0)
            channel = await opened.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{port}"))
            yield lambda call, operation, attempt, token: ask_grpc(
                channel, call, {"operation_id": operation, "attempt_id": attempt, "token": token}
            )


async def ask_http(
    http: aiohttp.ClientSession, port: int, call: str, body: dict[str, object]
) -> tuple[int, bool]:
    async with http.post(f"http://127.0.0.1:{port}/v1/leases/{call}", json=body) as answer:
        told = await answer.json()
        return answer.status, bool(told.get("granted"))


async def ask_grpc(channel: grpc.aio.Channel, call: str, fields: dict[str, object]) -> tuple[int, bool]:
    renews = call == "renew"
    request = pb.RenewRequest if renews else pb.StoppedRequest
    method = channel.unary_unary(
        f"/envoy_ext.v1.Leases/{call.capitalize()}",
        request_serializer=request.SerializeToString,
        response_deserializer=(pb.RenewResponse if renews else pb.StoppedResponse).FromString,
    )
    try:
        answer = await method(request(**fields))
    except grpc.aio.AioRpcError as error:
        return STATUS[error.code()], False
    return 200, renews and answer.granted


async def test_a_worker_keeps_its_lease_while_its_answer_is_wanted(played: Played, ask: Ask) -> None:
    operation, attempt = played.live.exchange.identity.operation_id, played.attempt_id
    assert await ask("renew", operation, attempt, 1) == (200, True)
    assert await ask("renew", operation, attempt, 2) == (200, False)
    played.delivery.receive(DeliveryClosed())
    assert await ask("renew", operation, attempt, 1) == (200, False)
    assert await ask("stopped", operation, attempt, 1) == (200, False)


async def test_an_attempt_that_is_not_known_is_told_so(played: Played, ask: Ask) -> None:
    operation, attempt = played.live.exchange.identity.operation_id, played.attempt_id
    for call in ("renew", "stopped"):
        assert await ask(call, operation, "att_other", 1) == (404, False)
        assert await ask(call, "op_other", attempt, 1) == (404, False)
    assert await ask("renew", operation, attempt, 1) == (200, True)


async def test_a_gateway_without_a_seat_grants_nothing_and_refuses_nothing(played: Played, ask: Ask) -> None:
    operation, attempt = played.live.exchange.identity.operation_id, played.attempt_id
    await played.sidecar.keeper.take()  # another than the one in which the attempt started
    assert await ask("renew", operation, attempt, 1) == (503, False)
    assert await ask("stopped", operation, attempt, 1) == (200, False)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "the body"),
        (b"[]", "the body"),
        (b"[" * 4_000, "the body"),
        (b"{}", "operation_id"),
        (b'{"operation_id": 1, "attempt_id": "a", "token": 1}', "operation_id"),
        (b'{"operation_id": "o", "attempt_id": "", "token": 1}', "attempt_id"),
        (b'{"operation_id": "o", "attempt_id": "' + b"a" * 65 + b'", "token": 1}', "attempt_id"),
        (b'{"operation_id": "o", "attempt_id": "a"}', "token"),
        (b'{"operation_id": "o", "attempt_id": "a", "token": true}', "token"),
        (b'{"operation_id": "o", "attempt_id": "a", "token": 0}', "token"),
    ],
)
async def test_a_question_that_cannot_be_read_names_its_mistake(body: bytes, named: str) -> None:
    door = LeaseHttpServer(build_leases(Sidecar()))
    port = await door.start("127.0.0.1", 0)
    try:
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"http://127.0.0.1:{port}/v1/leases/renew", data=body) as answer,
        ):
            assert answer.status == 400
            assert (await answer.json())["error"].startswith(named)
    finally:
        await door.stop()


async def test_more_than_a_question_is_not_read() -> None:
    door = LeaseHttpServer(build_leases(Sidecar()))
    port = await door.start("127.0.0.1", 0)
    try:
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"http://127.0.0.1:{port}/v1/leases/renew", data=b"x" * 5_000) as answer,
        ):
            assert answer.status == 413
    finally:
        await door.stop()
