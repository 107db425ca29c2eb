"""The sidecar dies by SIGKILL: what is in flight is cut, what had begun is found again, Envoy serves on."""

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
import pytest

from envoy_ext.adapters.envoy_process import EnvoyProcess, find_envoy
from envoy_ext.bootstrap.render import render_bootstrap
from envoy_ext.config import load_config
from envoy_ext.operations_client import fetch_operations, fetch_replicas
from envoy_ext.sim.engine import SimEngine
from envoy_ext.sim.options import SimOptions
from tests.support.commands import Command, command
from tests.with_envoy.asking import CHAT, build_body, mint_request_id


@dataclass(slots=True)
class Apart:
    """Sidecar and Envoy as two people would start them; the engines live with the test."""

    url: str
    config: Path
    envoy: EnvoyProcess
    engines: list[SimEngine]
    http: aiohttp.ClientSession

    @contextlib.asynccontextmanager
    async def sidecar(self) -> AsyncIterator[tuple[Command, str]]:
        """A sidecar whose replicas are ready, and the URL of its operations port."""
        told_before, _ = await self.read_endpoints()
        async with command("serve", "-c", str(self.config)) as serving:
            line = await serving.read_line("serves")
            url = f"http://127.0.0.1:{line.rpartition(' ')[2]}"
            async with asyncio.timeout(10):
                while not all(one["ready"] for one in await fetch_replicas(url)):
                    await asyncio.sleep(0.02)
                # What Envoy has may be of the sidecar before, whose word this one's takes the place of.
                while self.url:
                    told, healthy = await self.read_endpoints()
                    if told > told_before and healthy == 2:
                        break
                    await asyncio.sleep(0.02)
            yield serving, url

    async def read_endpoints(self) -> tuple[int, int]:
        """How often Envoy, once it runs, was told of endpoints, and how many of them are ready."""
        if not self.url:
            return 0, 0
        parameters = {"filter": "^cluster.pool_chat.(update_success|membership_healthy)$"}
        async with self.http.get(f"{self.envoy.admin_url}/stats", params=parameters) as answer:
            lines = (await answer.text()).splitlines()
        stats = {name.rpartition(".")[2]: int(value) for name, _, value in (x.partition(": ") for x in lines)}
        return stats["update_success"], stats["membership_healthy"]

    async def post(self, request_id: str, fault: str = "", **headers: str) -> aiohttp.ClientResponse:
        sent = {"x-request-id": request_id, "x-sim-fault": fault, **headers}
        return await self.http.post(self.url + CHAT, json=build_body(), headers=sent)

    async def ask(self, request_id: str, fault: str = "", **headers: str) -> tuple[int, bytes]:
        """An answer read to its end."""
        async with await self.post(request_id, fault, **headers) as answer:
            return answer.status, await answer.read()

    async def wait_engines(self, request_id: str, ended: str | None, tokens: int = 0) -> None:
        """Until an engine's record of a request has come so far."""

        def reached(engine: SimEngine) -> bool:
            return any(
                one.ended == ended and one.tokens_sent >= tokens for one in engine.find_requests(request_id)
            )

        async with asyncio.timeout(10):
            waits = [asyncio.ensure_future(e.state.wait_until(lambda e=e: reached(e))) for e in self.engines]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()


@contextlib.asynccontextmanager
async def run_apart(resources: str = "static", **sections: Any) -> AsyncIterator[Apart]:
    # Not pytest's own directory: a socket's path has room for 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="envoy-ext-test-"))
    async with contextlib.AsyncExitStack() as opened:
        opened.callback(shutil.rmtree, directory, ignore_errors=True)
        engines = [await opened.enter_async_context(SimEngine(SimOptions(name=name))) for name in "ab"]
        replicas = [{"id": engine.options.name, "url": engine.url} for engine in engines]
        config = directory / "config.yaml"
        config.write_text(
            json.dumps(  # which is YAML, too
                {
                    "ingress": {"address": "127.0.0.1", "port": 0},
                    "operations": {"port": 0},
                    "sidecar": {"socket": str(directory / "sidecar.sock")},
                    "envoy": {"admin": {"port": 0}, "resources": resources},
                    "journal": {"path": str(directory / "journal.db")},
                    **sections,
                    "pools": [{"name": "chat", "models": ["sim"], "engine": "vllm", "replicas": replicas}],
                }
            )
        )
        envoy = EnvoyProcess(find_envoy(), render_bootstrap(load_config(config)), directory, concurrency=1)
        opened.push_async_callback(envoy.stop)
        http = await opened.enter_async_context(
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30))
        )
        apart = Apart("", config, envoy, engines, http)
        # What Envoy serves with comes from a sidecar, and stays without one. In either form its endpoints do,
        # and it would wait 15 s for the first word on them.
        async with apart.sidecar():
            await envoy.start()
        apart.url = f"http://{await envoy.find_listener('ingress')}"
        yield apart


both = pytest.mark.parametrize("resources", ["static", "xds"])


@both
async def test_a_killed_sidecar_cuts_what_is_in_flight_and_loses_no_operation(resources: str) -> None:
    async with run_apart(resources) as apart:
        whole, held, keyed = (mint_request_id() for _ in range(3))
        streams = [mint_request_id() for _ in range(5)]
        async with apart.sidecar() as (serving, _):
            assert (await apart.ask(whole))[0] == 200
            answers = [await apart.post(request_id, "hang_after=3") for request_id in streams]
            holding = asyncio.ensure_future(apart.ask(held, "hang_after_headers"))
            cut_with_key = await apart.post(keyed, "hang_after=3", **{"idempotency-key": "k-1"})
            for request_id in (*streams, keyed):
                await apart.wait_engines(request_id, None, tokens=3)
            await apart.wait_engines(held, None)
            for answer in (*answers, cut_with_key):
                assert answer.status == 200
                await answer.content.readuntil(b"\n\n")

            assert await serving.end(signal.SIGKILL) == -signal.SIGKILL

            for answer in (*answers, cut_with_key):
                with pytest.raises(aiohttp.ClientPayloadError):
                    await answer.read()
            held_id = assert_unavailable(*await holding)
            for request_id in (*streams, held, keyed):
                await apart.wait_engines(request_id, "client_disconnected")
            # Nothing passes unwatched: without a sidecar the answer is no, and it comes at once.
            assert assert_unavailable(*await apart.ask(mint_request_id(), **FORGED)) is None

        async with apart.sidecar() as (serving, operations_url):
            operations = {one["request_id"]: one for one in await fetch_operations(operations_url, 100)}
            assert set(operations) == {whole, held, keyed, *streams}
            assert operations.pop(whole)["state"] == "completed"
            assert operations[held]["operation_id"] == held_id, "what Envoy's own answer had called it"
            for request_id, operation in operations.items():
                assert_ended_by_the_restart(operation, first_delta=request_id != held)

            new = mint_request_id()
            status, body = await apart.ask(new)
            assert (status, body.endswith(b"data: [DONE]\n\n")) == (200, True)
            status, body = await apart.ask(mint_request_id(), **{"idempotency-key": "k-1"})
            error = json.loads(body)["error"]
            assert (status, error["code"]) == (409, "operation_incomplete")
            assert error["delivered_output_tokens"] is None
            assert await serving.end(signal.SIGTERM) == 0


FORGED = {"x-envoy-ext-operation": "op_of_mine"}


def assert_unavailable(status: int, body: bytes) -> str | None:
    """And the operation's id that is told; None where none is."""
    error = json.loads(body)["error"]
    assert (status, error["code"], error["partial_output"]) == (503, "upstream_unavailable", False)
    told: str | None = error["operation_id"]
    return told


def assert_ended_by_the_restart(operation: dict[str, Any], *, first_delta: bool) -> None:
    """What the dead sidecar knew of the end went with it; saying "unknown" is all that is true."""
    assert (operation["state"], operation["ending"]) == ("failed", "unknown")
    assert operation["ended_at"] is not None
    assert operation["first_delta_sent"] is first_delta
    assert [attempt["outcome"] for attempt in operation["attempts"]] == ["unknown"]
    assert operation["delivered_deltas"] is None if first_delta else operation["delivered_deltas"] == 0


async def test_a_sidecar_that_is_killed_again_and_again_loses_none() -> None:
    async with run_apart() as apart:
        begun: set[str] = set()
        for life in range(3):
            async with apart.sidecar() as (serving, _):
                requests = [mint_request_id() for _ in range(8)]
                asked = [asyncio.ensure_future(apart.ask(one, "slow=3")) for one in requests]
                await apart.wait_engines(requests[life], None, tokens=1)
                await serving.end(signal.SIGKILL)
                await asyncio.gather(*asked, return_exceptions=True)
                # Which of the eight had begun is the question; the engines know which got that far.
                reached = {record.request_id for engine in apart.engines for record in engine.find_requests()}
                begun |= reached & set(requests)

        async with apart.sidecar() as (serving, operations_url):
            operations = {one["request_id"]: one for one in await fetch_operations(operations_url, 100)}
            assert begun <= set(operations)
            assert len(begun) >= 3
            assert all(
                one["ended_at"] and all(a["ended_at"] for a in one["attempts"]) for one in operations.values()
            )
            assert await serving.end(signal.SIGTERM) == 0


async def test_a_key_whose_attempt_a_killed_sidecar_left_running_is_free_when_that_can_act_no_more() -> None:
    async with run_apart(lease={"ttl": "1s", "renew": "200ms", "margin": "500ms"}) as apart:
        lost = mint_request_id()
        async with apart.sidecar() as (serving, _):
            holding = asyncio.ensure_future(apart.ask(lost, "hang", **{"idempotency-key": "k-1"}))
            await apart.wait_engines(lost, None)
            await serving.end(signal.SIGKILL)
            assert_unavailable(*await holding)
        async with apart.sidecar() as (serving, operations_url):
            answers = []
            async with asyncio.timeout(20):
                while not answers or answers[-1][0] == 409:
                    answers.append(await apart.ask(mint_request_id(), **{"idempotency-key": "k-1"}))
            assert {json.loads(body)["error"]["code"] for _, body in answers[:-1]} <= {
                "operation_in_progress"
            }
            assert answers[-1][0] == 200
            operations = {one["request_id"]: one for one in await fetch_operations(operations_url, 100)}
            assert_ended_by_the_restart(operations[lost], first_delta=False)
            assert await serving.end(signal.SIGTERM) == 0


@both
async def test_a_sidecar_that_hangs_is_noticed_and_forgiven(resources: str) -> None:
    """Its kernel still takes connections; only Envoy's patience for a message ends the wait."""
    async with run_apart(resources) as apart, apart.sidecar() as (serving, _):
        assert (await apart.ask(mint_request_id()))[0] == 200

        serving.process.send_signal(signal.SIGSTOP)
        assert_unavailable(*await apart.ask(mint_request_id()))

        serving.process.send_signal(signal.SIGCONT)
        status, body = await apart.ask(mint_request_id())
        assert (status, body.endswith(b"data: [DONE]\n\n")) == (200, True)
        assert await serving.end(signal.SIGTERM) == 0
