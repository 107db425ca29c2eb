"""What a worker concludes from what gateways answer, and from those that do not: one contract over HTTP and
gRPC, at the gateway's own doors."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from envoy_ext.adapters.clock import SystemClock
from envoy_ext.adapters.lease_grpc import LeaseGrpcServer
from envoy_ext.adapters.lease_http import LeaseHttpServer
from envoy_ext.domain.events import DeliveryClosed
from envoy_ext.domain.ids import AttemptId, FencingToken, OperationId
from envoy_ext.domain.worker_lease import Renewal, WorkerLease
from envoy_ext.services.leases import Leases
from envoy_ext.worker import gateways
from envoy_ext.worker.channel import Answer, LeaseChannel
from envoy_ext.worker.gateways import ACKNOWLEDGE_TRIES, LeaseGateways
from envoy_ext.worker.settings import WorkerSettings, build_channel
from tests.support.sidecar import Played, Sidecar, play_until_delta

CALL_S = 20.0
SHORT_S = 0.5
"""For calls to one that will not answer."""
HTTP2_SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
SCHEMES = ("http", "grpc")
each_scheme = pytest.mark.parametrize("scheme", SCHEMES)
each_pair = pytest.mark.parametrize(
    ("scheme", "other"), [("http", "grpc"), ("grpc", "http"), ("grpc", "grpc")]
)


class Door:
    """A gateway's lease service at one of its doors; a stopped one comes back at its port."""

    def __init__(self, scheme: str, sidecar: Sidecar) -> None:
        self.scheme = scheme
        self._leases = Leases(sidecar.exchanges, sidecar.fleet.streams, SystemClock())
        self._server: Any = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    async def start(self) -> None:
        build = LeaseHttpServer if self.scheme == "http" else LeaseGrpcServer
        self._server = build(self._leases)
        self.port = await self._server.start("127.0.0.1", self.port)

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop()
            self._server = None


class Gateway:
    """A gateway that has granted one lease, at one door."""

    def __init__(self, scheme: str, played: Played) -> None:
        self.played = played
        self.door = Door(scheme, played.sidecar)

    @property
    def renewal(self) -> Renewal:
        operation_id = self.played.live.exchange.identity.operation_id
        return Renewal(self.played.attempt_id, operation_id, FencingToken(1), 1)

    @property
    def lease(self) -> WorkerLease:
        named = self.renewal
        return WorkerLease(named.operation_id, named.attempt_id, named.token, 6.0, 2.0, 0.0)

    def revoke(self) -> None:
        self.played.delivery.receive(DeliveryClosed())


@asynccontextmanager
async def run_gateway(scheme: str) -> AsyncIterator[Gateway]:
    gateway = Gateway(scheme, await play_until_delta(Sidecar()))
    await gateway.door.start()
    try:
        yield gateway
    finally:
        await gateway.door.stop()


@asynccontextmanager
async def run_stranger(scheme: str) -> AsyncIterator[str]:
    """A gateway that has granted nothing; its URL."""
    door = Door(scheme, Sidecar())
    await door.start()
    try:
        yield door.url
    finally:
        await door.stop()


@asynccontextmanager
async def run_silent(scheme: str, port: int = 0) -> AsyncIterator[tuple[str, list[asyncio.StreamWriter]]]:
    """What takes connections and answers nothing: its URL, and the connections."""
    taken: list[asyncio.StreamWriter] = []

    async def take(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if scheme == "grpc":
            writer.write(HTTP2_SETTINGS)  # so that the connection counts as made
        taken.append(writer)

    server = await asyncio.start_server(take, "127.0.0.1", port)
    try:
        yield f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}", taken
    finally:
        server.close()
        for writer in taken:
            writer.transport.abort()


@asynccontextmanager
async def open_channel(*gateways: str, call_s: float = CALL_S) -> AsyncIterator[LeaseChannel]:
    channel = build_channel(WorkerSettings(gateways), call_s)
    try:
        yield channel
    finally:
        await channel.close()


async def renew_until_answered(channel: LeaseChannel, renewal: Renewal) -> Answer:
    async with asyncio.timeout(20):
        while (answer := await channel.renew(renewal)) is Answer.NONE:
            await asyncio.sleep(0.05)
    return answer


def nowhere(scheme: str) -> str:
    return f"{scheme}://127.0.0.1:1"


@each_scheme
async def test_the_gateway_that_granted_a_lease_renews_it_until_it_is_wanted_no_more(scheme: str) -> None:
    async with run_gateway(scheme) as gateway, open_channel(gateway.door.url) as channel:
        assert await channel.renew(gateway.renewal) is Answer.GRANTED
        gateway.revoke()
        assert await channel.renew(gateway.renewal) is Answer.REFUSED


@each_pair
async def test_a_lease_that_no_gateway_knows_is_refused(scheme: str, other: str) -> None:
    async with run_stranger(scheme) as one, run_stranger(other) as two, open_channel(one, two) as channel:
        assert await channel.renew(FORGED) is Answer.REFUSED


@each_pair
async def test_while_a_gateway_is_away_it_may_be_the_one_that_knows(scheme: str, other: str) -> None:
    async with run_stranger(other) as one, open_channel(nowhere(scheme), one) as channel:
        assert await channel.renew(FORGED) is Answer.NONE


@each_pair
async def test_the_word_of_the_gateway_that_knows_it_counts(scheme: str, other: str) -> None:
    async with (
        run_stranger(other) as stranger,
        run_gateway(scheme) as gateway,
        open_channel(nowhere(other), stranger, gateway.door.url) as channel,
    ):
        assert await channel.renew(gateway.renewal) is Answer.GRANTED
        gateway.revoke()
        assert await channel.renew(gateway.renewal) is Answer.REFUSED


@each_pair
async def test_a_gateway_that_says_nothing_takes_no_time_from_another_ones_lease(
    scheme: str, other: str
) -> None:
    async with (
        run_silent(other) as (silent, _),
        run_gateway(scheme) as gateway,
        open_channel(silent, gateway.door.url, call_s=60.0) as channel,
    ):
        async with asyncio.timeout(30):  # of the minute that the silent one would take
            assert await channel.renew(gateway.renewal) is Answer.GRANTED
            gateway.revoke()
            assert await channel.renew(gateway.renewal) is Answer.REFUSED


@each_scheme
async def test_no_answer_in_time_is_no_answer(scheme: str) -> None:
    async with (
        run_gateway(scheme) as gateway,
        run_silent(scheme) as (silent, _),
        open_channel(silent, call_s=SHORT_S) as channel,
    ):
        assert await channel.renew(gateway.renewal) is Answer.NONE
        assert not await channel.acknowledge(gateway.lease)


@each_scheme
async def test_a_gateway_that_starts_again_is_found_again(scheme: str) -> None:
    async with run_gateway(scheme) as gateway, open_channel(gateway.door.url) as channel:
        assert await channel.renew(gateway.renewal) is Answer.GRANTED
        await gateway.door.stop()
        assert await channel.renew(gateway.renewal) is Answer.NONE
        await gateway.door.start()
        assert await renew_until_answered(channel, gateway.renewal) is Answer.GRANTED


@each_scheme
async def test_a_connection_on_which_nothing_comes_is_left_for_another_one(scheme: str) -> None:
    """As one over a way that was cut: TCP would hold on to it for minutes."""
    async with run_gateway(scheme) as gateway, open_channel(gateway.door.url, call_s=SHORT_S) as channel:
        await gateway.door.stop()
        async with run_silent(scheme, gateway.door.port) as (_, taken):
            assert await channel.renew(gateway.renewal) is Answer.NONE
            held = list(taken)
            taken.clear()  # they stay open
        await gateway.door.start()
        answer = await renew_until_answered(channel, gateway.renewal)
        for writer in held:
            writer.transport.abort()
    assert answer is Answer.GRANTED
    assert held


@each_scheme
async def test_an_acknowledgement_is_repeated_until_it_is_heard(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateways, "ACKNOWLEDGE_PAUSE_S", 0.5)  # a busy machine is back by the third try
    async with run_gateway(scheme) as gateway, open_channel(gateway.door.url) as channel:
        await gateway.door.stop()
        telling = asyncio.ensure_future(channel.acknowledge(gateway.lease))
        await asyncio.sleep(0)
        await gateway.door.start()
        assert await telling
        assert await channel.renew(gateway.renewal) is Answer.REFUSED


@each_pair
async def test_an_acknowledgement_finds_the_gateway_that_waits_for_it(scheme: str, other: str) -> None:
    async with (
        run_stranger(other) as stranger,
        run_gateway(scheme) as gateway,
        open_channel(stranger, gateway.door.url) as channel,
    ):
        assert await channel.acknowledge(gateway.lease)
        assert await channel.renew(gateway.renewal) is Answer.REFUSED


class Scripted:
    """A link with the same answer to every question, that counts them."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked = 0
        self.told = 0

    async def renew(self, renewal: Renewal) -> Answer:
        self.asked += 1
        return self.answer

    async def tell_stopped(self, lease: WorkerLease) -> bool | None:
        self.told += 1
        return {Answer.UNKNOWN: False, Answer.NONE: None}.get(self.answer, True)

    async def close(self) -> None:
        pass


FORGED = Renewal(AttemptId("att_x"), OperationId("op_x"), FencingToken(1), 1)
FORGED_LEASE = WorkerLease(FORGED.operation_id, FORGED.attempt_id, FORGED.token, 6.0, 2.0, 0.0)


async def test_the_gateway_that_knows_a_lease_is_asked_alone_as_long_as_it_answers() -> None:
    links = [Scripted(Answer.UNKNOWN), Scripted(Answer.NONE), Scripted(Answer.GRANTED)]
    channel = LeaseGateways(links)
    for _ in range(3):
        assert await channel.renew(FORGED) is Answer.GRANTED
    assert [link.asked for link in links] == [1, 1, 3]
    links[2].answer = Answer.NONE
    assert await channel.renew(FORGED) is Answer.NONE
    links[1].answer = Answer.REFUSED
    assert await channel.renew(FORGED) is Answer.REFUSED
    assert [link.asked for link in links] == [3, 3, 5]
    assert await channel.acknowledge(FORGED_LEASE)
    assert [link.told for link in links] == [0, 1, 0], "the one that answered last is told first"


async def test_an_acknowledgement_that_nobody_waits_for_is_said_once() -> None:
    links = [Scripted(Answer.UNKNOWN), Scripted(Answer.UNKNOWN)]
    assert not await LeaseGateways(links).acknowledge(FORGED_LEASE)
    assert [link.told for link in links] == [1, 1]


async def test_one_that_may_be_waited_for_by_a_silent_gateway_is_repeated() -> None:
    links = [Scripted(Answer.UNKNOWN), Scripted(Answer.NONE)]
    assert not await LeaseGateways(links).acknowledge(FORGED_LEASE)
    assert [link.told for link in links] == [ACKNOWLEDGE_TRIES, ACKNOWLEDGE_TRIES]


WITHOUT_GRPC = """
import sys
sys.modules["grpc"] = sys.modules["google.protobuf"] = None  # as where they are not installed
from envoy_ext.domain.errors import ConfigError
from envoy_ext.worker import LeaseMiddleware
from envoy_ext.worker.settings import WorkerSettings
LeaseMiddleware(None, settings=WorkerSettings(("http://127.0.0.1:9904",)))
try:
    LeaseMiddleware(None, settings=WorkerSettings(("grpc://127.0.0.1:9905",)))
except ConfigError as error:
    print(error)
"""


def test_an_engine_without_grpc_works_over_http_and_is_told_what_grpc_needs() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_GRPC], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "grpc://127.0.0.1:9905 needs grpcio and protobuf" in done.stdout
