"""A class whose operations act on the world keeps its model and its context, whatever stands against it.

Beside each case stands a request of a class that may step down, in the same moment: what it is spared is
what a payment is refused with. Engines write down what they were asked, and the small pool's is the witness.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from envoy_ext.domain.ids import ReplicaId
from envoy_ext.sim.engine import SimEngine
from envoy_ext.sim.options import SimOptions
from tests.with_envoy.asking import Reply, ask, asking, build_body, mint_request_id, read_deltas
from tests.with_envoy.gateway import WAIT_S, Gateway, build_config, run_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

TURNS = [
    {"role": "system", "content": "Be exact."},
    *({"role": role, "content": f"{role} {n}"} for n in range(1, 4) for role in ("user", "assistant")),
    {"role": "user", "content": "Pay it."},
]
BODY = build_body(messages=TURNS, max_tokens=100, model="sim")
LADDER = [
    {"shorten_generation": {"max_tokens": 2}},
    {"shorten_context": {"keep_turns": 1}},
    {"pool": "small"},
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    """Two replicas with one slot each and a line of one, and a smaller pool with much room."""
    async with contextlib.AsyncExitStack() as opened:
        engines = {
            name: await opened.enter_async_context(
                SimEngine(SimOptions(name=name, models=(model,), tokens=6, token_s=0.005, prefill_s=0.01))
            )
            for name, model in (("a", "sim"), ("b", "sim"), ("small", "small"))
        }
        pools = [
            {
                "name": "sim",
                "models": ["sim"],
                "engine": "vllm",
                "readiness": {"scrape": "100ms", "stale": "5s"},
                "capacity": {"concurrency": 1},
                "replicas": [{"id": name, "url": engines[name].url} for name in "ab"],
            },
            {
                "name": "small",
                "models": ["small"],
                "engine": "vllm",
                "readiness": {"watch": False},
                "replicas": [{"id": "small", "url": engines["small"].url}],
            },
        ]
        classes = {
            "payment": {"side_effects": True, "max_wait": "300ms"},
            "soft": {"ladder": LADDER, "max_wait": "300ms"},
        }
        config = build_config(
            engines,
            tmp_path_factory.mktemp("gateway"),
            pools=pools,
            admission={"queue": 1, "max_wait": "9s", "classes": classes},
        )
        yield await opened.enter_async_context(run_stack(config, engines))


@contextlib.asynccontextmanager
async def busy(gateway: Gateway, waiting: int = 0) -> AsyncIterator[None]:
    """Both slots are taken, and so many wait for one."""
    async with contextlib.AsyncExitStack() as opened:
        for _ in "ab":
            answer = await opened.enter_async_context(
                asking(gateway, fault="hang_after=1", request_id=mint_request_id())
            )
            await read_deltas(answer, 1)
        line = [asyncio.create_task(ask(gateway)) for _ in range(waiting)]
        async with asyncio.timeout(WAIT_S):
            while gateway.read_metric("envoy_ext_queue_depth", pool="sim") != waiting:
                await asyncio.sleep(0.01)
        yield
        for one in line:
            one.cancel()
        await asyncio.gather(*line, return_exceptions=True)
    await gateway.wait_idle()


@pytest.fixture(autouse=True)
def _small_hears_nothing_of_payments(gateway: Gateway) -> Any:
    """Of every test: whatever the small model was asked is a request of the class that may step down."""
    yield
    asked = gateway.engines["small"].find_requests()
    assert all(record.request_id is not None and record.request_id.startswith("soft-") for record in asked)
    for name in "ab":
        for record in gateway.engines[name].find_requests():
            if record.request_id is not None and record.request_id.startswith("payment-"):
                assert (record.model, record.limit, record.items) == ("sim", 100, len(TURNS))


async def ask_as(gateway: Gateway, name: str, fault: str = "", **headers: str) -> Reply:
    named = {"x-request-class": name} | {key.replace("_", "-"): value for key, value in headers.items()}
    request_id = f"{name}-{mint_request_id()}"
    return await ask(gateway, body=BODY, headers=named, request_id=request_id, fault=fault)


def read_refusal(reply: Reply) -> tuple[int, str]:
    assert "x-degraded" not in reply.headers
    return reply.status, reply.json["error"]["code"]


async def test_when_the_line_is_full(gateway: Gateway) -> None:
    async with busy(gateway, waiting=1):
        payment, soft = await ask_as(gateway, "payment"), await ask_as(gateway, "soft")
    assert read_refusal(payment) == (429, "queue_full")
    assert (soft.status, soft.headers["x-degraded"]) == (200, "pool")
    assert gateway.find_requests(payment.request_id) == []


async def test_when_its_wait_was_in_vain(gateway: Gateway) -> None:
    async with busy(gateway):
        payment = await ask_as(gateway, "payment")
        soft = await ask_as(gateway, "soft")
    assert read_refusal(payment) == (503, "queue_deadline_exceeded")
    assert (soft.status, soft.headers["x-degraded"].rpartition(", ")[2]) == (200, "pool")
    operation = await gateway.wait_operation(payment.request_id)
    assert (operation["pool"], operation["attempts"], operation["degraded"]) == ("sim", [], [])


async def test_when_its_deadline_passes_in_the_line(gateway: Gateway) -> None:
    async with busy(gateway):
        payment = await ask_as(gateway, "payment", x_request_deadline="0.1")
    status, code = read_refusal(payment)
    assert (status, code) in {(504, "deadline_exceeded"), (503, "queue_deadline_exceeded")}
    assert gateway.find_requests(payment.request_id) == []


async def test_when_its_deadline_is_nearer_than_an_answer_takes(gateway: Gateway) -> None:
    """A free slot, and less time than others needed: it is asked in full, and ends as it may."""
    for _ in range(8):
        assert (await ask(gateway, fault="slow=30")).dones == 1
    payment = await ask_as(gateway, "payment", x_request_deadline="0.4")
    soft = await ask_as(gateway, "soft", x_request_deadline="0.4")
    assert payment.status in (200, 504)
    assert "x-degraded" not in payment.headers
    assert soft.headers["x-degraded"] == "shorten_generation, shorten_context"
    (record,) = gateway.find_requests(payment.request_id)
    assert (record.model, record.limit, record.items) == ("sim", 100, len(TURNS))
    await gateway.wait_idle()


@pytest.mark.parametrize("fault", ["die_before_headers:rst", "status=503", "die_after_role:fin"])
async def test_when_its_replica_is_lost(gateway: Gateway, fault: str) -> None:
    """It is computed again by the same model, from the same bytes; and where that one is lost too it is
    refused."""
    replayed = await ask_as(gateway, "payment", fault=f"#1:{fault}")
    assert (replayed.status, replayed.dones, replayed.headers["x-attempt-count"]) == (200, 1, "2")
    first, second = gateway.find_requests(replayed.request_id)
    assert first.body_sha256 == second.body_sha256
    assert {first.model, second.model} == {"sim"}
    lost = await ask_as(gateway, "payment", fault=fault)
    assert lost.status == 503
    assert "x-degraded" not in lost.headers
    assert len(gateway.find_requests(lost.request_id)) == 2
    await gateway.wait_idle()


async def test_when_no_replica_is_there(gateway: Gateway) -> None:
    """The last test of the module: nobody is taken back."""
    fleet = gateway.stack.app.fleet
    for name in "ab":
        fleet.drain(ReplicaId(name), WAIT_S)
    payment, soft = await ask_as(gateway, "payment"), await ask_as(gateway, "soft")
    assert read_refusal(payment) == (503, "no_ready_replica")
    assert (soft.status, soft.headers["x-degraded"]) == (200, "pool")
