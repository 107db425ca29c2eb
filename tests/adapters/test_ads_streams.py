"""Streams of both protocols over our gRPC server: fifty at once, cut ones, and clients that misbehave."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from envoy_ext.adapters import grpc_server
from envoy_ext.adapters.ads import DIALECTS, AdsHub, AdsSession
from envoy_ext.adapters.grpc_server import GrpcServer
from envoy_ext.adapters.grpc_services import Services
from envoy_ext.xds.dialects import MOST_NAMES, STATE_OF_THE_WORLD, Dialect
from envoy_ext.xds.kinds import Kind
from envoy_ext.xds.snapshot import Snapshot
from tests.support.sidecar import Watcher
from tests.xds.builders import endpoints_alone, read_number

STREAMS = 50
WAIT_S = 30.0

either = pytest.mark.parametrize("dialect", DIALECTS, ids=["sotw", "delta"])


class Client:
    """Asks for one pool, acknowledges everything, knows the last number it was told."""

    def __init__(self, dialect: Dialect, name: str) -> None:
        self.dialect = dialect
        self.name = name
        self.number = 0
        self.answers = 0
        self.told = asyncio.Condition()

    async def run(self, channel: grpc.aio.Channel) -> None:
        call = channel.stream_stream(
            self.dialect.method,
            request_serializer=self.dialect.request.SerializeToString,
            response_deserializer=self.dialect.response.FromString,
        )()
        await call.write(self.ask(""))
        async for response in call:
            async with self.told:
                self.answers += 1
                for one in response.resources:
                    value = one.value if self.dialect is STATE_OF_THE_WORLD else one.resource.value
                    self.number = read_number(Kind.EDS, value)
                self.told.notify_all()
            await call.write(self.ask(response.nonce))

    def ask(self, nonce: str) -> Any:
        request = self.dialect.request(type_url=Kind.EDS.type_url, response_nonce=nonce)
        if self.dialect is STATE_OF_THE_WORLD:
            request.resource_names.append(self.name)
        elif not nonce:
            request.resource_names_subscribe.append(self.name)
        return request

    async def wait_for(self, number: int) -> None:
        async with asyncio.timeout(WAIT_S), self.told:
            await self.told.wait_for(lambda: self.number == number)


@contextlib.asynccontextmanager
async def run_clients(address: str, clients: list[Client]) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as opened:
        tasks = []
        for client in clients:
            channel = await opened.enter_async_context(
                grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
            )
            tasks.append(asyncio.get_running_loop().create_task(client.run(channel)))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


class Served:
    """Our server with a hub behind its discovery, and nothing behind the rest."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.observer = Watcher()
        self.hub = AdsHub(lambda note: None, lambda where, error: self.observer.note_bug(where, error))
        self.hub.publish(snapshot)
        services = Services(
            delivery=_nobody,
            attempt=_nobody,
            access_log=_nobody,
            check=_check_nothing,
            observer=self.observer,
            max_request_bytes=1 << 24,
        )
        self.server = GrpcServer(services, lambda outbox, dialect: AdsSession(self.hub, outbox, dialect))

    async def wait_streams(self, count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while self.hub.statistics().streams != count:
                await asyncio.sleep(0.005)


async def _check_nothing(_request: object) -> None:
    raise AssertionError("nobody asks this here")


def _nobody(*_: Any) -> Any:
    raise AssertionError("only discovery is asked for")


@contextlib.asynccontextmanager
async def serve(address: str, snapshot: Snapshot) -> AsyncIterator[Served]:
    """Ends with all streams gone, and no bug seen on any of them."""
    served = Served(snapshot)
    await served.server.start(address)
    try:
        yield served
    finally:
        await served.server.stop(0)
    await served.wait_streams(0)
    assert served.observer.bugs == []


def open_call(channel: grpc.aio.Channel, dialect: Dialect) -> Any:
    return channel.stream_stream(
        dialect.method,
        request_serializer=lambda given: given if isinstance(given, bytes) else given.SerializeToString(),
        response_deserializer=dialect.response.FromString,
    )()


def offer(number: int) -> Snapshot:
    return endpoints_alone(**{f"p{index}": number for index in range(5)})


async def test_fifty_streams_follow_and_come_back(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/xds.sock"
    clients = [Client(DIALECTS[number % 2], f"pool_p{number % 5}") for number in range(STREAMS)]
    async with serve(address, offer(1)) as served, run_clients(address, clients):
        for number in (1, 2, 3):
            served.hub.publish(offer(number))
            await asyncio.gather(*(client.wait_for(number) for client in clients))
        assert served.hub.statistics().streams == STREAMS
        assert all(client.answers <= 3 for client in clients)
    async with serve(address, offer(4)), run_clients(address, clients):
        await asyncio.gather(*(client.wait_for(4) for client in clients))


@either
async def test_a_stream_that_is_cut_in_the_middle_of_a_push_costs_itself_alone(
    tmp_path: Path, dialect: Dialect
) -> None:
    address = f"unix:{tmp_path}/xds.sock"
    client = Client(dialect, "pool_p0")
    async with (
        serve(address, offer(1)) as served,
        run_clients(address, [client]),
        grpc.aio.insecure_channel(address) as channel,
    ):
        await client.wait_for(1)
        for number in range(2, 40):
            call = open_call(channel, dialect)
            await call.write(Client(dialect, "pool_p0").ask(""))
            await call.read()
            await call.write(Client(dialect, "pool_p0").ask("1"))
            served.hub.publish(offer(number))
            call.cancel()
            await client.wait_for(number)
        await served.wait_streams(1)


@either
async def test_a_client_that_never_reads_is_owed_one_answer(tmp_path: Path, dialect: Dialect) -> None:
    address = f"unix:{tmp_path}/xds.sock"
    async with serve(address, offer(1)) as served, grpc.aio.insecure_channel(address) as channel:
        call = open_call(channel, dialect)
        await call.write(Client(dialect, "pool_p0").ask(""))
        async with asyncio.timeout(WAIT_S):
            while not served.hub.statistics().pushes[Kind.EDS]:
                await asyncio.sleep(0.005)
        for number in range(2, 60):
            served.hub.publish(offer(number))
            await asyncio.sleep(0)
        assert served.hub.statistics().pushes[Kind.EDS] == 1
        assert served.hub.statistics().settled == 0
        call.cancel()
        await served.wait_streams(0)


@either
@pytest.mark.parametrize("what", ["no message", "no kind", "too many names"])
async def test_a_client_that_breaks_the_protocol_loses_its_stream_and_nobody_else_anything(
    tmp_path: Path, dialect: Dialect, what: str
) -> None:
    address = f"unix:{tmp_path}/xds.sock"
    client = Client(dialect, "pool_p0")
    field = "resource_names" if dialect is STATE_OF_THE_WORLD else "resource_names_subscribe"
    names = [f"pool_{number}" for number in range(MOST_NAMES + 1)]
    bad = {
        "no message": b"\xff\xff\xff",
        "no kind": dialect.request(),
        "too many names": dialect.request(type_url=Kind.EDS.type_url, **{field: names}),
    }[what]
    async with (
        serve(address, offer(1)) as served,
        run_clients(address, [client]),
        grpc.aio.insecure_channel(address) as channel,
    ):
        await client.wait_for(1)
        call = open_call(channel, dialect)
        await call.write(bad)
        async with asyncio.timeout(WAIT_S):
            assert await call.code() is not grpc.StatusCode.OK
        await served.wait_streams(1)
        served.hub.publish(offer(2))
        await client.wait_for(2)


async def test_a_stream_that_was_cancelled_while_nobody_read_has_ended() -> None:
    class Cancelled:
        async def read(self) -> None:
            raise grpc.aio.UsageError("RPC already finished.")

    assert await grpc_server._read_message(Cancelled()) is grpc.aio.EOF
