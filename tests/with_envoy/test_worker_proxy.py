"""Replicas whose engine is no ASGI application, with `envoy-ext worker` before it, behind a real Envoy."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from envoy_ext.domain.ids import ReplicaId
from envoy_ext.sim.options import SimOptions
from envoy_ext.sim.process import SimProcess
from envoy_ext.worker.settings import EngineKind
from tests.support.commands import Command, command
from tests.support.hiding_relay import HidingRelay
from tests.support.proxied import Proxied, run_proxied
from tests.support.raw_http import RawServer
from tests.support.slot_engine import SlotEngine
from tests.with_envoy.asking import CHAT, Reply, ask, asking, mint_request_id, read_deltas
from tests.with_envoy.gateway import Gateway, build_unwatched_pool, run_gateway
from tests.with_envoy.heard import Heard

pytestmark = pytest.mark.asyncio(loop_scope="module")

TTL_S = 6.0
WAIT_S = 20


@dataclass
class Worked:
    """A gateway over simulated engines behind workers, all of them processes of their own."""

    gateway: Gateway
    heard: Heard
    engines: dict[str, SimProcess] = field(default_factory=dict)
    workers: dict[str, "Worker"] = field(default_factory=dict)

    async def ask_held(self, name: str, fault: str) -> tuple[asyncio.Task[Reply], str]:
        """A request that this replica has and holds without a delta."""
        fleet, request_id = self.gateway.stack.app.fleet, mint_request_id()
        others = [ReplicaId(other) for other in self.engines if other != name]
        before = await self.read_running(name)
        for other in others:
            fleet.drain(other, 600)
        try:
            task = asyncio.ensure_future(ask(self.gateway, fault=fault, request_id=request_id))
            async with asyncio.timeout(WAIT_S):
                while await self.read_running(name) == before:
                    await asyncio.sleep(0.02)
        finally:
            for other in others:
                fleet.undrain(other)
        return task, request_id

    async def read_running(self, name: str) -> float:
        """What an engine computes, by its own page."""
        async with aiohttp.ClientSession() as http, http.get(f"{self.engines[name].url}/metrics") as page:
            lines = (await page.text()).splitlines()
        running = next(line for line in lines if line.startswith("vllm:num_requests_running"))
        return float(running.rpartition(" ")[2])


class Worker:
    """`envoy-ext worker` before one engine; it comes back at its port."""

    def __init__(self, engine: SimProcess, lease_url: str) -> None:
        self.port = 0
        self._engine = engine
        self._lease_url = lease_url
        self._running = AsyncExitStack()
        self._command: Command | None = None

    async def start(self) -> None:
        listen = f"127.0.0.1:{self.port}"
        options = ("--engine", self._engine.url, "--listen", listen, "--gateways", self._lease_url)
        self._command = await self._running.enter_async_context(command("worker", *options))
        line = await self._command.read_line("envoy-ext worker at")
        self.port = int(line.split(", as long")[0].rpartition(":")[2])
        await self.wait_open()

    async def wait_open(self) -> None:
        await Proxied(f"http://127.0.0.1:{self.port}").wait_open()

    async def kill(self) -> None:
        assert self._command is not None
        await self._command.end(signal.SIGKILL)

    async def close(self) -> None:
        await self._running.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Worked]:
    async with AsyncExitStack() as opened:
        monkeypatch = opened.enter_context(pytest.MonkeyPatch.context())
        way = await opened.enter_async_context(HidingRelay())
        engines = {name: SimProcess(SimOptions(name=name, tokens=6)) for name in "ab"}
        workers = {name: Worker(engine, way.url) for name, engine in engines.items()}
        for engine in engines.values():
            await engine.start()
            opened.push_async_callback(engine.kill)
        for worker in workers.values():
            opened.push_async_callback(worker.close)
            await worker.start()
        urls = {name: f"http://127.0.0.1:{worker.port}" for name, worker in workers.items()}
        gateway = await opened.enter_async_context(
            run_gateway(
                tmp_path_factory.mktemp("gateway"),
                "",
                pools=[build_unwatched_pool(urls)],
                lease={"http": {"port": 0}, "ttl": f"{TTL_S}s"},
                envoy={"concurrency": 1, "admin": {"port": 0}, "endpoints": "static"},
            )
        )
        way.far_port = gateway.stack.app.lease_ports["http"]
        yield Worked(gateway, Heard(monkeypatch), engines, workers)


def read_history(operation: dict[str, Any]) -> list[tuple[str, str]]:
    return [(attempt["replica"], attempt["outcome"]) for attempt in operation["attempts"]]


async def check_replayed_without_the_lease_s_end(worked: Worked, task: asyncio.Task[Reply]) -> dict[str, Any]:
    """One whole answer, begun before the lease of the lost attempt could end; the operation."""
    reply = await task
    assert (reply.status, reply.errors, reply.dones) == (200, [], 1)
    operation = await worked.gateway.wait_operation(reply.request_id)
    first, second = operation["attempts"]
    assert read_time(second["lease_expires_at"]) - TTL_S < read_time(first["ended_at"]) + TTL_S
    return operation


def read_time(value: str) -> float:
    return datetime.fromisoformat(value).timestamp()


async def test_an_answer_passes_whole_and_its_end_is_told(worked: Worked) -> None:
    reply = await ask(worked.gateway)
    assert (reply.status, reply.errors, reply.dones, len(reply.marks)) == (200, [], 1, 6)
    operation = await worked.gateway.wait_operation(reply.request_id)
    (attempt,) = operation["attempts"]
    assert attempt["outcome"] == "completed"
    await worked.heard.wait(attempt["attempt_id"])


async def test_a_client_that_leaves_stops_the_engine_behind_the_worker(worked: Worked) -> None:
    request_id = mint_request_id()
    async with asking(worked.gateway, request_id=request_id, fault="hang_after=2") as answer:
        await read_deltas(answer, 2)
    async with asyncio.timeout(WAIT_S):
        while any([await worked.read_running(name) for name in worked.engines]):
            await asyncio.sleep(0.02)
    operation = await worked.gateway.wait_operation(request_id)
    assert (operation["ending"], len(operation["attempts"])) == ("client_gone", 1)


async def test_an_engine_that_is_killed_behind_its_worker_is_replayed_at_once(worked: Worked) -> None:
    task, _ = await worked.ask_held("a", "a:hang")
    await worked.engines["a"].kill()
    try:
        operation = await check_replayed_without_the_lease_s_end(worked, task)
    finally:
        await worked.engines["a"].start()
        await worked.workers["a"].wait_open()
    assert [replica for replica, _ in read_history(operation)] == ["a", "b"]
    assert read_history(operation)[1] == ("b", "completed")


async def test_an_engine_that_is_killed_in_its_answer_ends_it_with_its_true_name(worked: Worked) -> None:
    request_id = mint_request_id()
    async with asking(worked.gateway, request_id=request_id, fault="hang_after=2") as answer:
        await read_deltas(answer, 2)
        running = {name: await worked.read_running(name) for name in worked.engines}
        name = max(running, key=running.__getitem__)
        await worked.engines[name].kill()
        try:
            rest = await answer.content.read()
        finally:
            await worked.engines[name].start()
            await worked.workers[name].wait_open()
    operation = await worked.gateway.wait_operation(request_id)
    assert rest.count(b'"code":"upstream_decode_interrupted"') == 1
    assert b"[DONE]" not in rest
    assert operation["error"]["reason"] == "replica_died"
    assert read_history(operation) == [(name, "replica_died")]


async def test_a_worker_that_is_killed_counts_as_its_replica_s_death(worked: Worked) -> None:
    task, _ = await worked.ask_held("a", "a:hang")
    await worked.workers["a"].kill()
    try:
        operation = await check_replayed_without_the_lease_s_end(worked, task)
    finally:
        await worked.workers["a"].start()
    assert read_history(operation) == [("a", "replica_died"), ("b", "completed")]
    # Nobody proves that, but its connection was closed by the kernel, and that is a cancel.
    async with asyncio.timeout(WAIT_S):
        while await worked.read_running("a"):
            await asyncio.sleep(0.02)


async def test_a_replica_whose_engine_is_dead_is_never_started_at(worked: Worked) -> None:
    await worked.engines["a"].kill()
    try:
        replies = [await ask(worked.gateway) for _ in range(3)]
    finally:
        await worked.engines["a"].start()
        await worked.workers["a"].wait_open()
    assert [(reply.status, reply.dones) for reply in replies] == [(200, 1)] * 3


# --- a way that hides who leaves ------------------------------------------------------------------------


@dataclass
class Hidden:
    """A gateway over one engine with slots, behind a worker, behind a way that closes nothing."""

    gateway: Gateway
    heard: Heard
    engine: SlotEngine
    proxied: Proxied


@pytest_asyncio.fixture(loop_scope="module")
async def hidden(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Hidden]:
    engine = SlotEngine()
    async with AsyncExitStack() as opened:
        monkeypatch = opened.enter_context(pytest.MonkeyPatch.context())
        server = await opened.enter_async_context(RawServer(engine))
        way = await opened.enter_async_context(HidingRelay())
        gateway = await opened.enter_async_context(
            run_gateway(
                tmp_path_factory.mktemp("gateway"),
                "",
                pools=[build_unwatched_pool({"s": way.url})],
                lease={"grpc": {"port": 0}, "ttl": "3s", "renew": "1s"},
            )
        )
        lease_url = f"grpc://127.0.0.1:{gateway.stack.app.lease_ports['grpc']}"
        proxied = await opened.enter_async_context(
            run_proxied(server.url, lease_url, kind=EngineKind.LLAMACPP)
        )
        await proxied.wait_open()
        way.far_port = proxied.port
        yield Hidden(gateway, Heard(monkeypatch), engine, proxied)
        engine.stop.set()


async def test_a_cancelled_attempt_is_stopped_by_its_lease_and_told_of_when_its_slot_is_free(
    hidden: Hidden,
) -> None:
    request_id, engine = mint_request_id(), hidden.engine
    async with asking(hidden.gateway, request_id=request_id) as answer:
        await read_deltas(answer, 1)
    await asyncio.wait_for(engine.left.wait(), WAIT_S)  # refused at its next renewal
    operation = await hidden.gateway.wait_operation(request_id)
    (attempt,) = operation["attempts"]
    assert operation["ending"] == "client_gone"
    await asyncio.sleep(0.3)  # a few looks at a slot that works on
    assert hidden.heard.at == {}
    engine.stop.set()
    assert await hidden.heard.wait(attempt["attempt_id"]) >= engine.stopped_at > 0
    assert engine.working == 0


async def test_an_attempt_that_comes_twice_does_not_reach_the_engine_again(hidden: Hidden) -> None:
    """A request that a network kept, or somebody sent again."""
    async with asking(hidden.gateway, request_id=mint_request_id()) as answer:
        await read_deltas(answer, 1)
        (chat,) = hidden.engine.chats
        offer = {name: value for name, value in chat.headers.items() if name.startswith("x-envoy-ext-")}
        async with hidden.gateway.http.post(hidden.proxied.url + CHAT, json={}, headers=offer) as late:
            assert (late.status, json.loads(await late.read())["error"]["code"]) == (
                409,
                "attempt_superseded",
            )
        assert len(hidden.engine.chats) == 1
        hidden.engine.stop.set()
