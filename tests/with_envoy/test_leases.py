"""Replicas whose engine is an ASGI application with the worker's middleware, behind a real Envoy."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
import pytest_asyncio

from tests.support.asgi_engine import AsgiEngine, run_asgi_engine
from tests.support.hiding_relay import HidingRelay
from tests.with_envoy.asking import CHAT, ask, asking, build_body, build_headers, mint_request_id, read_deltas
from tests.with_envoy.gateway import Gateway, build_unwatched_pool, run_gateway
from tests.with_envoy.heard import Heard

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass
class Leased:
    """A gateway with a lease service, and engines that renew there."""

    gateway: Gateway
    engines: list[AsgiEngine]
    hidden: AsgiEngine
    """The one of a pool of its own, behind a way that hides from it who leaves."""

    @property
    def lease_url(self) -> str:
        return f"http://127.0.0.1:{self.gateway.stack.app.lease_ports['http']}"

    async def wait_stopped(self) -> None:
        """Until no engine computes."""
        async with asyncio.timeout(10):
            while any(engine.running for engine in self.engines):
                await asyncio.sleep(0.01)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def leased(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Leased]:
    async with AsyncExitStack() as opened:
        engines = [await opened.enter_async_context(run_asgi_engine()) for _ in range(2)]
        pool = build_unwatched_pool({f"w{number}": engine.url for number, engine in enumerate(engines)})
        hidden = await opened.enter_async_context(run_asgi_engine())
        way = await opened.enter_async_context(HidingRelay(int(hidden.url.rpartition(":")[2])))
        hidden_pool = {**build_unwatched_pool({"h": way.url}), "name": "hidden", "models": ["hidden"]}
        gateway = await opened.enter_async_context(
            run_gateway(
                tmp_path_factory.mktemp("gateway"),
                "",
                pools=[pool, hidden_pool],
                lease={"http": {"port": 0}, "ttl": "5s", "renew": "1s"},
            )
        )
        running = Leased(gateway, engines, hidden)
        for engine in (*engines, hidden):
            engine.renew_at(running.lease_url)
        yield running


async def test_an_answer_that_outlives_its_lease_passes_whole(leased: Leased) -> None:
    reply = await ask(leased.gateway, headers={"x-tokens": "110"})

    assert (reply.status, reply.errors, reply.dones, len(reply.parts)) == (200, [], 1, 110)
    operation = await leased.gateway.wait_operation(reply.request_id)
    assert [attempt["outcome"] for attempt in operation["attempts"]] == ["completed"]


async def test_a_client_that_leaves_stops_generation(leased: Leased) -> None:
    request_id = mint_request_id()
    async with asking(leased.gateway, request_id=request_id, headers={"x-tokens": "100000"}) as answer:
        await read_deltas(answer, 3)
        assert sum(engine.running for engine in leased.engines) == 1
    await leased.wait_stopped()
    operation = await leased.gateway.wait_operation(request_id)
    assert (operation["ending"], len(operation["attempts"])) == ("client_gone", 1)


async def test_a_lease_that_is_revoked_is_enough_to_stop_generation_and_the_word_comes_after_the_stop(
    leased: Leased, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine cannot see that its client has left: its next renewal is refused."""
    heard, engine, request_id = Heard(monkeypatch), leased.hidden, mint_request_id()
    engine.stubborn_s = 0.3
    answer = await leased.gateway.http.post(
        leased.gateway.url + CHAT,
        json=build_body(model="hidden"),
        headers=build_headers(request_id, headers={"x-tokens": "100000"}),
    )
    await read_deltas(answer, 3)
    assert engine.running == 1
    answer.close()
    operation = await leased.gateway.wait_operation(request_id)
    assert (operation["ending"], len(operation["attempts"])) == ("client_gone", 1)
    heard_at = await heard.wait(operation["attempts"][0]["attempt_id"])
    assert engine.running == 0
    assert heard_at >= engine.ended_at > 0


async def test_a_replica_whose_worker_reaches_no_gateway_sends_nothing_and_is_replayed(
    leased: Leased,
) -> None:
    cut_off = leased.engines[0]
    cut_off.renew_at("http://127.0.0.1:1")
    try:
        replies = [await ask(leased.gateway, headers={"x-tokens": "3"}) for _ in range(2)]
    finally:
        cut_off.renew_at(leased.lease_url)

    assert [(reply.status, reply.dones) for reply in replies] == [(200, 1), (200, 1)]
    histories = []
    for reply in replies:
        operation = await leased.gateway.wait_operation(reply.request_id)
        histories.append([(attempt["replica"], attempt["outcome"]) for attempt in operation["attempts"]])
    assert [("w0", "overloaded"), ("w1", "completed")] in histories


async def test_an_engine_that_fails_is_replayed_on_its_workers_word(leased: Leased) -> None:
    waited_before_s = leased.gateway.read_metric("envoy_ext_fence_wait_seconds_sum")
    failing = leased.engines[0]
    failing.failing = True
    try:
        replies = [await ask(leased.gateway, headers={"x-tokens": "3"}) for _ in range(2)]
    finally:
        failing.failing = False

    assert [(reply.status, reply.dones) for reply in replies] == [(200, 1), (200, 1)]
    histories = []
    for reply in replies:
        operation = await leased.gateway.wait_operation(reply.request_id)
        histories.append([(attempt["replica"], attempt["outcome"]) for attempt in operation["attempts"]])
    assert [("w0", "engine_error"), ("w1", "completed")] in histories
    waited_s = leased.gateway.read_metric("envoy_ext_fence_wait_seconds_sum")
    assert waited_s - waited_before_s < 5.0, "the end of the lease was waited for, and not the worker's word"
