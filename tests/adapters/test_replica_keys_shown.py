"""The key of a pool's replicas is shown at their own address, on every call, and at no other."""

from typing import Any

import pytest
from envoy.config.core.v3.base_pb2 import HeaderValue
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse

from envoy_ext.adapters.clock import SystemClock
from envoy_ext.adapters.extproc_attempt import AttemptSession
from envoy_ext.adapters.identity import IdentityReader
from envoy_ext.adapters.scraper import Scraper
from envoy_ext.domain import names, step
from envoy_ext.domain.discovery import Member
from envoy_ext.domain.ids import AttemptId, PoolName, ReplicaId
from envoy_ext.domain.sample import ScrapeTarget
from envoy_ext.services.watching import WatchPlan, build_watched
from tests.support.raw_http import RawServer, build_response
from tests.support.sidecar import Sent, Sidecar

PAGE = build_response(b"vllm:num_requests_running 0\n", "connection: close")
POOL, OTHER = PoolName("chat"), PoolName("code")


def read_key(pool: PoolName | None) -> str | None:
    return "k-of-chat" if pool == POOL else None


async def call_all(target: ScrapeTarget) -> None:
    """Every call that the gateway makes by itself."""
    scraper = Scraper(SystemClock(), timeout_s=20, read_key=read_key)
    reader = IdentityReader(timeout_s=20, read_key=read_key)
    await scraper.scrape(target)
    await scraper.probe_health(target)
    await scraper.probe_model(target, "m", "/v1/chat/completions")
    await scraper.abort(target, AttemptId("att_1"))
    await reader.read_identity(target, POOL)
    await scraper.close()
    await reader.close()


@pytest.mark.parametrize(
    ("pool", "shown"), [(POOL, {"Bearer k-of-chat"}), (OTHER, {None}), (None, {None})], ids=str
)
async def test_every_call_to_a_replica_shows_its_pools_key(pool: PoolName | None, shown: set[str]) -> None:
    async with RawServer(PAGE) as server:
        await call_all(ScrapeTarget(server.url, "sglang", pool=pool))
    assert {exchange.headers.get("authorization") for exchange in server.exchanges} == shown
    paths = {exchange.line.split()[1] for exchange in server.exchanges}
    assert {"/metrics", "/health", "/v1/chat/completions", "/abort_request"} <= paths
    assert len(paths) > 4, "and what the engine tells of itself"


async def test_the_health_page_beside_the_metrics_is_asked_with_it() -> None:
    async with RawServer(PAGE) as server:
        scraper = Scraper(SystemClock(), timeout_s=20, read_key=read_key)
        await scraper.scrape(ScrapeTarget(server.url, "vllm", pool=POOL))
        await scraper.close()
    assert {exchange.line.split()[1] for exchange in server.exchanges} == {"/metrics", "/health"}
    assert {exchange.headers.get("authorization") for exchange in server.exchanges} == {"Bearer k-of-chat"}


async def test_a_page_at_another_address_is_asked_without_it() -> None:
    async with (
        RawServer(PAGE) as server,
        RawServer(PAGE) as elsewhere,
    ):
        target = ScrapeTarget(
            server.url, "vllm", f"{elsewhere.url}/m", dcgm_url=f"{elsewhere.url}/d", pool=POOL
        )
        await call_all(target)
    assert {exchange.line.split()[1] for exchange in elsewhere.exchanges} == {"/m", "/d"}
    assert {exchange.headers.get("authorization") for exchange in elsewhere.exchanges} == {None}
    assert {exchange.headers.get("authorization") for exchange in server.exchanges} == {"Bearer k-of-chat"}


def test_a_watched_replica_is_one_of_its_pool() -> None:
    member = Member(ReplicaId("a"), "http://10.0.0.1:8000")
    assert build_watched(OTHER, member, WatchPlan("vllm", ("m",), 1.0)).target.pool == OTHER


class Outbox:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, response: bytes) -> None:
        self.sent.append(ProcessingResponse.FromString(response))

    def finish(self) -> None:
        pass

    def abort(self) -> None:
        pass


@pytest.mark.parametrize("key", ["k-of-chat", None])
async def test_an_attempt_shows_the_key_in_the_place_of_a_clients_credentials(key: str | None) -> None:
    sidecar, client, outbox = Sidecar(), Sent(), Outbox()
    sidecar.arrivals.arrive(sidecar.build_arrival(), client)
    await sidecar.settle()
    (forward,) = client.replies
    assert isinstance(forward, step.ForwardRequest)
    session = AttemptSession(
        sidecar.exchanges, sidecar.reports, outbox, read_key=lambda pool: key if pool == POOL else None
    )
    message = ProcessingRequest()
    hop = ((names.EXCHANGE, forward.exchange_id), (names.POOL, forward.pool))
    for name, value in (*hop, ("x-api-key", "a-clients")):
        message.request_headers.headers.headers.append(HeaderValue(key=name, raw_value=value.encode()))
    session.receive(message)
    await sidecar.settle()
    assert outbox.sent[-1].HasField("request_headers")
    mutation = outbox.sent[-1].request_headers.response.header_mutation
    shown = [one.header.raw_value for one in mutation.set_headers if one.header.key == "authorization"]
    assert shown == ([] if key is None else [b"Bearer k-of-chat"])
    removed = {"x-api-key", "api-key"} & set(mutation.remove_headers)
    assert removed == (set() if key is None else {"x-api-key", "api-key"})
