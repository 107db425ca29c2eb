"""Two gateways, each with an Envoy of its own, and one journal: one key runs once, whoever freezes."""

import asyncio
import contextlib
import json
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from envoy_ext.adapters.envoy_process import EnvoyProcess, find_envoy
from envoy_ext.adapters.journal_sqlite import SqliteJournalReader
from envoy_ext.bootstrap.render import render_bootstrap
from envoy_ext.config import load_config
from envoy_ext.domain.operation import Operation
from envoy_ext.domain.outcomes import Ending, OperationState
from envoy_ext.operations_client import fetch_replicas
from envoy_ext.sim.engine import SimEngine
from envoy_ext.sim.options import SimOptions
from tests.support.commands import Command, command
from tests.with_envoy.asking import CHAT, build_body, mint_request_id

TTL_S, RENEW_S, MARGIN_S = 2.0, 0.5, 0.5
WAIT_S = 20.0


@dataclass(slots=True)
class Answer:
    status: int
    body: bytes

    @property
    def code(self) -> str:
        """Of the error that the body holds; "" for an answer."""
        return str(json.loads(self.body)["error"]["code"]) if self.status != 200 else ""

    @property
    def whole(self) -> bool:
        return self.status == 200 and self.body.endswith(b"data: [DONE]\n\n")


@dataclass(slots=True)
class Edge:
    """One gateway: a sidecar as a process, and its Envoy."""

    serving: Command
    operations_url: str
    url: str
    http: aiohttp.ClientSession

    async def ask(self, request_id: str, key: str, fault: str = "") -> Answer:
        """One request, read to its end."""
        sent = {"x-request-id": request_id, "x-sim-fault": fault, "idempotency-key": key}
        async with self.http.post(self.url + CHAT, json=build_body(), headers=sent) as answer:
            return Answer(answer.status, await answer.read())

    async def ask_until(self, key: str, *codes: str) -> Answer:
        """Repeat a key as an SDK does, for as long as it gets one of these codes."""
        async with asyncio.timeout(WAIT_S):
            while (answer := await self.ask(mint_request_id(), key)).code in codes:
                await asyncio.sleep(0.1)
        return answer

    async def read_ready(self) -> list[str]:
        """What stands against sending requests here."""
        async with self.http.get(self.operations_url + "/healthz/ready") as answer:
            failing: list[str] = (await answer.json())["failing"]
        return failing


@dataclass(slots=True)
class Pair:
    a: Edge
    b: Edge
    journal: Path
    engines: list[SimEngine]

    def count_asked(self, *request_ids: str) -> int:
        """How many attempts of these requests have reached an engine."""
        return sum(len(engine.find_requests(one)) for engine in self.engines for one in request_ids)

    async def wait_asked(self, request_id: str) -> None:
        async with asyncio.timeout(WAIT_S):
            while not self.count_asked(request_id):
                await asyncio.sleep(0.01)

    async def read_operations(self, *request_ids: str) -> list[Operation]:
        """What the journal holds of these requests."""
        reader = await SqliteJournalReader.open(self.journal)
        try:
            found = {one.request_id: one for one in await reader.list_recent(100)}
        finally:
            await reader.close()
        return [found[request_id] for request_id in request_ids]


@contextlib.asynccontextmanager
async def run_edge(
    directory: Path, journal: Path, engines: list[SimEngine], http: aiohttp.ClientSession
) -> AsyncIterator[Edge]:
    directory.mkdir()
    config = directory / "config.yaml"
    data: dict[str, Any] = {
        "ingress": {"address": "127.0.0.1", "port": 0},
        "operations": {"port": 0},
        "sidecar": {"socket": str(directory / "s.sock")},
        "envoy": {"concurrency": 1, "admin": {"port": 0}},
        "journal": {"path": str(journal), "shared": True},
        "lease": {"ttl": f"{TTL_S:g}s", "renew": f"{RENEW_S:g}s", "margin": f"{MARGIN_S:g}s"},
        "shutdown": {"grace": "0s"},
        "pools": [
            {
                "name": "chat",
                "models": ["sim"],
                "engine": "vllm",
                "replicas": [{"id": engine.options.name, "url": engine.url} for engine in engines],
            }
        ],
    }
    config.write_text(json.dumps(data))  # which is YAML, too
    async with contextlib.AsyncExitStack() as opened:
        serving = await opened.enter_async_context(command("serve", "-c", str(config)))
        operations_url = f"http://127.0.0.1:{(await serving.read_line('serves')).rpartition(' ')[2]}"
        envoy = EnvoyProcess(find_envoy(), render_bootstrap(load_config(config)), directory, concurrency=1)
        opened.push_async_callback(envoy.stop)
        await envoy.start()
        url = f"http://{await envoy.find_listener('ingress')}"
        async with asyncio.timeout(WAIT_S):
            while not all(one["ready"] for one in await fetch_replicas(operations_url)):
                await asyncio.sleep(0.02)
        yield Edge(serving, operations_url, url, http)


@contextlib.asynccontextmanager
async def run_pair() -> AsyncIterator[Pair]:
    # Not pytest's own directory: a socket's path has room for 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="envoy-ext-"))
    async with contextlib.AsyncExitStack() as opened:
        opened.callback(shutil.rmtree, directory, ignore_errors=True)
        options = {"tokens": 6, "token_s": 0.01, "prefill_s": 0.02}
        engines = [
            await opened.enter_async_context(SimEngine(SimOptions(name=name, **options))) for name in "xy"
        ]
        timeout = aiohttp.ClientTimeout(total=60)
        http = await opened.enter_async_context(aiohttp.ClientSession(timeout=timeout))
        journal = directory / "journal.db"
        starts = [run_edge(directory / name, journal, engines, http) for name in "ab"]
        a, b = await asyncio.gather(*(opened.enter_async_context(start) for start in starts))
        yield Pair(a, b, journal, engines)


async def test_a_key_runs_once_at_two_gateways_also_when_one_of_them_freezes() -> None:
    async with run_pair() as pair:
        await check_the_same_key_at_once(pair)
        await check_a_gateway_that_freezes(pair)
        await check_a_gateway_that_stops(pair)


async def check_the_same_key_at_once(pair: Pair) -> None:
    for number in range(2):
        key, requests = f"at-once-{number}", [mint_request_id(), mint_request_id()]
        answers = await asyncio.gather(
            *(
                edge.ask(request, key, "slow=8")
                for edge, request in zip((pair.a, pair.b), requests, strict=True)
            )
        )
        assert sorted(answer.status for answer in answers) == [200, 409]
        (refused,) = (answer.code for answer in answers if answer.status != 200)
        assert refused in ("operation_in_progress", "operation_complete")
        assert pair.count_asked(*requests) == 1
    assert (await pair.b.ask_until("at-once-0", "operation_in_progress")).code == "operation_complete"


async def check_a_gateway_that_freezes(pair: Pair) -> None:
    frozen = mint_request_id()
    cut = asyncio.ensure_future(pair.a.ask(frozen, "frozen", "hang"))
    await pair.wait_asked(frozen)
    pair.a.serving.process.send_signal(signal.SIGSTOP)
    froze_at = asyncio.get_running_loop().time()

    assert (await pair.b.ask(mint_request_id(), "frozen")).code == "operation_in_progress"
    assert (await pair.b.ask_until("frozen", "operation_in_progress")).whole
    (lost,) = await pair.read_operations(frozen)
    assert (lost.token, lost.ending, lost.first_delta_sent) == (2, Ending.UNKNOWN, False)
    assert [attempt.detail for attempt in lost.attempts] == ["gateway_gone"]
    assert not cut.done()

    # Three times a lease, however long it took.
    await asyncio.sleep(max(0.0, froze_at + 3 * TTL_S - asyncio.get_running_loop().time()))
    pair.a.serving.process.send_signal(signal.SIGCONT)
    answer = await cut
    assert (answer.status, answer.code) == (503, "upstream_unavailable")
    error = json.loads(answer.body)["error"]
    assert (error["reason"], error["partial_output"]) == ("taken_over", False)
    assert pair.count_asked(frozen) == 1
    assert await pair.read_operations(frozen) == [lost], "an owner that was replaced has written"

    async with asyncio.timeout(WAIT_S):
        while await pair.a.read_ready():
            await asyncio.sleep(0.02)
    assert (await pair.a.ask(mint_request_id(), "after")).whole
    assert (await pair.a.ask(mint_request_id(), "frozen")).code == "operation_complete"


async def check_a_gateway_that_stops(pair: Pair) -> None:
    """It resigns: the other need not watch it, and finds all that it did."""
    request = mint_request_id()
    assert (await pair.a.ask(request, "before the stop")).whole
    assert await pair.a.serving.end(signal.SIGTERM) == 0
    assert (await pair.b.ask(mint_request_id(), "before the stop")).code == "operation_complete"
    (operation,) = await pair.read_operations(request)
    assert (operation.state, operation.token) == (OperationState.COMPLETED, 1)
