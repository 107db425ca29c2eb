"""A replica at which requests fail is left alone, tried, and back; nothing that clients do takes one out."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from envoy_ext.domain.circuit import CircuitState
from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.operations_client import fetch_replicas
from envoy_ext.xds.kinds import Kind
from tests.with_envoy.asking import (
    CHAT,
    COMPLETIONS,
    TGI,
    Reply,
    ask,
    asking,
    mint_request_id,
    read_deltas,
    wait_request,
)
from tests.with_envoy.gateway import WAIT_S, Gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

GATEWAY = {
    "names": "ab",
    "engine": {"tokens": 3, "token_s": 0.002, "prefill_s": 0.005},
    "readiness": {"scrape": "200ms", "hold": "200ms"},
    "circuit": {"window": "3s", "open": {"first": "500ms", "longest": "1s"}},
}
CLOSED, HALF_OPEN, OPEN = 0, 1, 2


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def closed(gateway: Gateway) -> AsyncIterator[None]:
    """Every test begins with sound engines and closed circuits."""
    for engine in gateway.engines.values():
        engine.faults.clear()
    while any(read_state(gateway, name) is not CircuitState.CLOSED for name in gateway.engines):
        await ask(gateway)
    yield
    for engine in gateway.engines.values():
        engine.faults.clear()


def read_state(gateway: Gateway, name: str) -> CircuitState | None:
    return gateway.stack.app.fleet.circuits.read_state(ReplicaId(name))


async def ask_until(
    gateway: Gateway, done: Callable[[], bool], *, at_once: int = 1, path: str = CHAT
) -> list[Reply]:
    """Ask, so many at once, until something is so."""
    replies: list[Reply] = []
    async with asyncio.timeout(WAIT_S):
        while not done():
            replies += await asyncio.gather(*(ask(gateway, path) for _ in range(at_once)))
    return replies


async def wait_offered(gateway: Gateway, name: str, offered: bool) -> None:
    """Until Envoy has been told whether a replica is to get new work."""
    async with asyncio.timeout(WAIT_S):
        while (gateway.read_metric("envoy_ext_replica_weight", pool="chat", replica=name) > 0) != offered:
            await asyncio.sleep(0.01)
        await gateway.stack.app.ads.wait_taken(Kind.EDS)


def count_work(gateway: Gateway, name: str) -> int:
    """Requests of clients that have reached an engine; control calls bear no such id."""
    return sum((one.request_id or "").startswith("req-") for one in gateway.engines[name].state.requests)


async def test_a_replica_that_answers_500_to_everything_is_left_alone_and_comes_back_by_trials(
    gateway: Gateway,
) -> None:
    gateway.engines["a"].faults.arm("status=500", None)
    replies = await ask_until(gateway, lambda: read_state(gateway, "a") is not CircuitState.CLOSED)
    replayed = [reply for reply in replies if reply.headers["x-attempt-count"] == "2"]
    assert {reply.status for reply in replies} == {200}
    assert 5 <= len(replayed) <= 7
    await wait_offered(gateway, "a", False)
    before = count_work(gateway, "a")
    replies = await asyncio.gather(*(ask(gateway) for _ in range(40)))
    assert {reply.status for reply in replies} == {200}
    assert count_work(gateway, "a") == before, "it computes nothing, and is asked by control calls only"
    url = gateway.stack.operations_url
    (a,) = [one for one in await fetch_replicas(url) if one["id"] == "a"]
    assert (a["state"], a["ready"], a["weight"]) == ("unready", False, None)
    assert "circuit_open" in a["reasons"]
    assert gateway.read_metric("envoy_ext_circuit_state", pool="chat", replica="a") == OPEN
    opened = {"pool": "chat", "class": "engine_error"}
    assert gateway.read_metric("envoy_ext_circuit_opened_total", **opened) >= 1
    gateway.engines["a"].faults.clear()
    async with asyncio.timeout(WAIT_S):
        while read_state(gateway, "a") is not CircuitState.HALF_OPEN:
            await asyncio.sleep(0.01)
    trials = count_work(gateway, "a")
    replies = await ask_until(gateway, lambda: read_state(gateway, "a") is CircuitState.CLOSED, at_once=20)
    assert {reply.status for reply in replies} == {200}
    assert count_work(gateway, "a") - trials >= 3
    await wait_offered(gateway, "a", True)
    assert await count_overflow(gateway) == 0


async def count_overflow(gateway: Gateway) -> int:
    """Replays that the budget had no room for."""
    stats = await gateway.read_envoy_stats("upstream_rq_retry_overflow$")
    assert stats
    return sum(stats.values())


def count_opened(gateway: Gateway) -> float:
    """Openings of whatever class so far, of both replicas."""
    kinds = ("connect", "reset", "engine_error", "silence")
    name = "envoy_ext_circuit_opened_total"
    return sum(gateway.read_metric(name, **{"pool": "chat", "class": kind}) for kind in kinds)


async def test_a_thousand_validation_errors_of_one_client_open_nothing(gateway: Gateway) -> None:
    opened = count_opened(gateway)
    ways = [(CHAT, "status=400"), (COMPLETIONS, "status=422"), (TGI, "error_first=validation")]
    seen: Counter[tuple[str, int]] = Counter()
    for number in range(50):
        path, fault = ways[number % 3]
        for reply in await asyncio.gather(*(ask(gateway, path, fault=fault) for _ in range(20))):
            seen[path, reply.status] += 1
    assert sum(seen.values()) == 1000
    assert set(seen) == {(CHAT, 400), (COMPLETIONS, 422), (TGI, 200)}
    assert {read_state(gateway, name) for name in "ab"} == {CircuitState.CLOSED}
    assert count_opened(gateway) == opened


async def test_clients_that_leave_open_nothing(gateway: Gateway) -> None:
    opened = count_opened(gateway)

    async def leave_early(number: int) -> None:
        fault = "hang" if number % 2 else "hang_after=1"
        request_id = mint_request_id()
        if number % 2:
            going = asyncio.create_task(ask(gateway, fault=fault, request_id=request_id))
            await wait_request(gateway, request_id)
            going.cancel()
            await asyncio.wait([going])
        else:
            async with asking(gateway, fault=fault, request_id=request_id) as answer:
                await read_deltas(answer, 1)

    for _ in range(3):
        await asyncio.gather(*(leave_early(number) for number in range(20)))
    await gateway.wait_idle()
    assert {read_state(gateway, name) for name in "ab"} == {CircuitState.CLOSED}
    assert count_opened(gateway) == opened


async def test_an_overloaded_engine_stays_in(gateway: Gateway) -> None:
    opened = count_opened(gateway)
    gateway.engines["a"].faults.arm("status=429", None)
    replies = [await ask(gateway) for _ in range(60)]
    asked = count_work(gateway, "a")
    replies += await ask_until(gateway, lambda: count_work(gateway, "a") > asked)
    assert {reply.status for reply in replies} == {200}
    assert read_state(gateway, "a") is CircuitState.CLOSED
    assert count_opened(gateway) == opened


async def test_requests_that_no_engine_survives_open_nothing_while_others_are_answered(
    gateway: Gateway,
) -> None:
    """A client's mistake that engines answer with 500, at half of all requests: the model answers."""
    opened = count_opened(gateway)
    replies: list[Reply] = []
    for _ in range(30):
        bad, good = await asyncio.gather(ask(gateway, fault="status=500"), ask(gateway))
        assert bad.status == 503
        replies.append(good)
    await gateway.wait_idle()
    assert {reply.status for reply in replies} == {200}
    assert count_opened(gateway) == opened


async def test_a_pool_whose_replicas_all_fail_refuses_at_once_and_comes_back_by_itself(
    gateway: Gateway,
) -> None:
    for engine in gateway.engines.values():
        engine.faults.arm("status=500", None)
    pool = PoolName("chat")
    await ask_until(gateway, lambda: gateway.stack.app.fleet.is_cut_off(pool), at_once=4)
    before = [count_work(gateway, name) for name in "ab"]
    replies = await asyncio.gather(*(ask(gateway) for _ in range(20)))
    assert [count_work(gateway, name) for name in "ab"] == before
    assert {(reply.status, reply.json["error"]["code"]) for reply in replies} == {
        (503, "upstream_unavailable")
    }
    assert {1, 2} >= {int(reply.headers["retry-after"]) for reply in replies}
    for engine in gateway.engines.values():
        engine.faults.clear()
    replies = await ask_until(
        gateway, lambda: all(read_state(gateway, name) is CircuitState.CLOSED for name in "ab"), at_once=2
    )
    assert {reply.status for reply in replies} == {200, 503}
    assert replies[-1].status == 200
