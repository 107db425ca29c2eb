"""A pool outside is sent not one byte without a policy: the witness is the socket that listens there.

It keeps every connection that its kernel accepted and every byte on it, of whoever it was: Envoy, the
sidecar's looks and control calls, its looks at lost replicas. First a policy names the boundary, so that the
witness is seen to see; then the gateway is started again, on the same journal, without it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import pytest
import pytest_asyncio

from envoy_ext.domain.ids import ReplicaId
from envoy_ext.sim.engine import SimEngine
from envoy_ext.sim.options import SimOptions
from tests.with_envoy.asking import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    MESSAGES,
    RESPONSES,
    TGI,
    Reply,
    ask,
    asking,
    build_body,
    mint_request_id,
    read_deltas,
)
from tests.with_envoy.gateway import WAIT_S, Gateway, build_config, run_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
KEY = {"idempotency-key": "paid-by-the-partner"}
FORBIDDEN = (403, "data_class_forbidden")


class Witness:
    """A listening socket that answers whatever comes with 503, and remembers it."""

    def __init__(self) -> None:
        self.connections: list[bytearray] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.port = 0
        self._server: asyncio.Server | None = None

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard = bytearray()
        self.connections.append(heard)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                heard += data
                await self.may_answer.wait()
                writer.write(BUSY)
                await writer.drain()
        writer.close()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_exc: object) -> None:
        assert self._server is not None
        self._server.close()


class World:
    """Engines at home, the witness outside, and one gateway after another before them."""

    def __init__(self, engines: dict[str, SimEngine], witness: Witness, directory: Path) -> None:
        self.engines = engines
        self.witness = witness
        self.job = ""
        """Where the answer of the job is to be found that was left behind."""
        self._directory = directory

    def run(self, *, policy: bool, endpoints: str = "xds") -> contextlib.AbstractAsyncContextManager[Gateway]:
        """A gateway; the pool outside is the first, so that paths that pass unread are its."""
        far: dict[str, Any] = {
            "name": "far",
            "models": ["far"],
            "engine": "vllm",
            "boundary": "external:partner",
            # Without a policy nobody looks, though nobody is forbidden to.
            "readiness": {"watch": not policy},
            "capacity": {"concurrency": 1},
            "replicas": [{"id": "far", "url": f"http://127.0.0.1:{self.witness.port}"}],
        }
        home: dict[str, Any] = {
            "name": "home",
            "models": ["sim"],
            "engine": "vllm",
            "readiness": {"scrape": "100ms", "stale": "5s"},
            "capacity": {"concurrency": 1},
            "replicas": [{"id": name, "url": self.engines[name].url} for name in "ab"],
        }
        ladder = {"ladder": [{"pool": "far"}, {"template": {"text": "Later."}}]}
        classes = {
            "text": ladder,
            "far": {"ladder": [{"pool": "far"}]},
            "brief": {**ladder, "max_wait": "200ms"},
        }
        named = {"boundaries": ["local", "external:partner"]} if policy else {"boundaries": ["local", "site"]}
        config = build_config(
            self.engines,
            self._directory,
            pools=[far, home],
            pass_through=["/v1/rerank"],
            idempotency={"answers": "all"},
            admission={"queue": 1, "max_wait": "9s", "classes": classes},
            jobs={},
            data_classes={"default": named, "health": {"boundaries": ["local"]}},
            envoy={"concurrency": 1, "admin": {"port": 0}, "endpoints": endpoints},
        )
        return run_stack(config, self.engines)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with contextlib.AsyncExitStack() as opened:
        witness = await opened.enter_async_context(Witness())
        options = {"models": ("sim",), "tokens": 4, "token_s": 0.005, "prefill_s": 0.01}
        engines = {
            name: await opened.enter_async_context(SimEngine(SimOptions(name=name, **options)))  # type: ignore[arg-type]
            for name in "ab"
        }
        yield World(engines, witness, tmp_path_factory.mktemp("gateway"))


def read_refusal(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.json["error"]["code"]


async def ask_for(gateway: Gateway, model: str, path: str = CHAT, fault: str = "", **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await ask(gateway, path, body={**build_body(path), "model": model}, headers=named, fault=fault)


async def test_with_a_policy_the_witness_hears_of_it_and_of_nothing_but_the_request(world: World) -> None:
    async with world.run(policy=True) as gateway:
        assert world.witness.connections == []
        reply = await ask(gateway, body={**build_body(), "model": "far"}, headers=KEY)
        assert reply.status == 503
        await leave_a_job(gateway, world)
    # One for each of the two that were not to wait, and none for the job.
    assert sum(heard.count(b"POST ") for heard in world.witness.connections) == 2
    assert all(heard.startswith(b"POST /v1/chat/completions ") for heard in world.witness.connections)
    world.witness.connections.clear()


async def leave_a_job(gateway: Gateway, world: World) -> None:
    """A job for the partner that waits for its slot when the gateway stops: the next one finds it."""
    world.witness.may_answer.clear()
    holds = asyncio.create_task(ask_for(gateway, "far"))
    heard = len(world.witness.connections)
    async with asyncio.timeout(WAIT_S):
        while len(world.witness.connections) == heard:
            await asyncio.sleep(0.01)
    taken = await ask_for(gateway, "far", prefer="respond-async", authorization="Bearer me")
    assert taken.status == 202
    world.job = taken.headers["location"]
    gateway.stack.app.exchanges.start_draining()
    world.witness.may_answer.set()
    assert (await holds).status == 503


@pytest.mark.parametrize("endpoints", ["xds", "static"])
async def test_without_a_policy_it_hears_nothing_whatever_is_asked(world: World, endpoints: str) -> None:
    async with world.run(policy=False, endpoints=endpoints) as gateway:
        await ask_in_every_way(gateway, world.witness.port)
        await repeat_by_key(gateway)
        await ask_for_jobs(gateway, world)
        await lose_replicas(gateway)
        await fill_the_line(gateway)
        await take_all_replicas_out(gateway)
        assert (await gateway.read_envoy_stats("^cluster.pool_far.upstream_cx_total$")).popitem()[1] == 0
    assert world.witness.connections == []


async def ask_in_every_way(gateway: Gateway, port: int) -> None:
    for path in (CHAT, COMPLETIONS, RESPONSES, MESSAGES, TGI, EMBEDDINGS):
        assert read_refusal(await ask_for(gateway, "far", path)) == FORBIDDEN
    assert read_refusal(await ask_for(gateway, "far", x_data_class="health")) == FORBIDDEN
    for path in ("/v1/models/far", "/v1/rerank?x=1"):
        assert (await ask(gateway, path, method="GET")).status == 403
    assert (await ask(gateway, "/v1/rerank", data=b"{}")).status == 403
    listed = await ask(gateway, "/v1/models", method="GET")
    assert {one["id"] for one in listed.json["data"]} == {"far", "sim"}
    steering = {
        "x_envoy_ext_pool": "far",
        "x_envoy_ext_endpoint": f"127.0.0.1:{port}",
        "x_envoy_original_dst_host": f"127.0.0.1:{port}",
        "x_envoy_original_path": "/v1/rerank",
        "host": f"127.0.0.1:{port}",
    }
    assert read_refusal(await ask_for(gateway, "far", **steering)) == FORBIDDEN
    assert (await ask_for(gateway, "sim", **steering)).dones == 1


async def repeat_by_key(gateway: Gateway) -> None:
    """One that the partner was asked while it might be, and that may run again by its key."""
    for _ in range(2):
        reply = await ask(gateway, body={**build_body(), "model": "far"}, headers=KEY)
        assert read_refusal(reply) == FORBIDDEN
    key = {"idempotency_key": mint_request_id()}
    first = await ask_for(gateway, "sim", **key)
    again = await ask_for(gateway, "sim", **key)
    assert (first.body, again.headers["idempotent-replayed"]) == (again.body, "true")


async def ask_for_jobs(gateway: Gateway, world: World) -> None:
    """One more, and the one that was taken in while the partner might be asked."""
    refused = await ask_for(gateway, "far", prefer="respond-async")
    assert read_refusal(refused) == FORBIDDEN
    async with asyncio.timeout(WAIT_S):
        while True:
            result = await ask(
                gateway, f"{world.job}/result", method="GET", headers={"authorization": "Bearer me"}
            )
            if result.status != 202:
                break
            await asyncio.sleep(0.05)
    assert read_refusal(result) == FORBIDDEN


async def lose_replicas(gateway: Gateway) -> None:
    replayed = await ask_for(gateway, "sim", fault="#1:die_after_role:rst", x_request_class="text")
    assert (replayed.status, replayed.headers["x-attempt-count"]) == (200, "2")
    lost = await ask_for(gateway, "sim", fault="die_before_headers:rst", x_request_class="text")
    assert read_refusal(lost)[0] == 503
    await gateway.wait_idle()


async def fill_the_line(gateway: Gateway) -> None:
    """On arrival, where it waits, and with a text as the way out behind the pool that is passed over."""
    async with contextlib.AsyncExitStack() as opened:
        for _ in "ab":
            answer = await opened.enter_async_context(ask_home(gateway))
            await read_deltas(answer, 1)
        waited = await ask_for(gateway, "sim", x_request_class="brief")
        line = asyncio.create_task(ask_for(gateway, "sim"))
        async with asyncio.timeout(WAIT_S):
            while gateway.read_metric("envoy_ext_queue_depth", pool="home") != 1:
                await asyncio.sleep(0.01)
        text = await ask_for(gateway, "sim", x_request_class="text")
        far = await ask_for(gateway, "sim", x_request_class="far")
        keyed = await ask_for(gateway, "sim", x_request_class="far", idempotency_key=mint_request_id())
        line.cancel()
        await asyncio.gather(line, return_exceptions=True)
    for reply in (waited, text):
        assert (reply.status, reply.headers["x-degraded"]) == (200, "template")
    assert read_refusal(far) == read_refusal(keyed) == FORBIDDEN
    await gateway.wait_idle()


def ask_home(gateway: Gateway) -> contextlib.AbstractAsyncContextManager[Any]:
    return asking(gateway, fault="hang_after=1", request_id=mint_request_id())


async def take_all_replicas_out(gateway: Gateway) -> None:
    for name in "ab":
        gateway.stack.app.fleet.drain(ReplicaId(name), WAIT_S)
    far = await ask_for(gateway, "sim", x_request_class="far")
    text = await ask_for(gateway, "sim", x_request_class="text")
    assert read_refusal(far) == FORBIDDEN
    assert (text.status, text.headers["x-degraded"]) == (200, "template")
    assert read_refusal(await ask_for(gateway, "sim")) == (503, "no_ready_replica")
