"""The native transport under a real Envoy: what goes over it, its other address, its change, its end.

It is the default, so all other tests here play on it; `test_both_forms` plays the failures on gRPC's own
server too, and `make with-envoy TRANSPORT=grpc_aio` everything.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bench.load.fleet import find_ports
from envoy_ext.adapters.envoy_process import EnvoyProcess, find_envoy
from envoy_ext.adapters.grpc_native import NativeServer
from envoy_ext.app import App
from envoy_ext.bootstrap.render import render_bootstrap
from envoy_ext.domain import names
from envoy_ext.http2.connection import Connection
from envoy_ext.http2.limits import Limits
from envoy_ext.sim.engine import SimEngine
from envoy_ext.sim.options import SimOptions
from tests.with_envoy.asking import CHAT, ask, asking, build_body, mint_request_id, read_deltas
from tests.with_envoy.gateway import MODEL, Gateway, build_config, run_gateway
from tests.with_envoy.lone_envoy import WAIT_S, LoneEnvoy, run_lone_envoy

SIDECAR = {"socket": "/run/moved/elsewhere.sock", "transport": "native"}
GATEWAY: dict[str, Any] = {
    "names": "ab",
    "sidecar": SIDECAR,
    "engine": {"tokens": 1_000_000, "token_s": 0.0},
}
SHORT = {"max_tokens": 6}
STREAMS = f"cluster.{names.CLUSTER_SIDECAR_STREAMS}.upstream_rq_total"
CONTROL = f"cluster.{names.CLUSTER_SIDECAR}.upstream_rq_total"


def server_of(app: App) -> NativeServer:
    assert app._grpc is not None
    assert app._grpc.native is not None
    return app._grpc.native


@pytest.mark.asyncio(loop_scope="module")
async def test_streams_of_requests_go_over_it_and_xds_does_not(gateway: Gateway) -> None:
    for _ in range(5):
        assert (await ask(gateway, body=build_body(**SHORT))).dones == 1
    await gateway.wait_idle()
    stats = await gateway.read_envoy_stats(r"^cluster\.envoy_ext_sidecar.*upstream_rq_total$")
    assert stats[STREAMS] == 10  # delivery and attempt
    assert stats[CONTROL] == 1  # xDS
    assert stats[f"cluster.{names.CLUSTER_SIDECAR_LOGS}.upstream_rq_total"] == 2
    assert server_of(gateway.stack.app).open_connections == 2
    assert server_of(gateway.stack.app).open_calls == 2, "the logs"


@pytest.mark.asyncio(loop_scope="module")
async def test_a_prompt_of_many_windows_passes(gateway: Gateway) -> None:
    prompt = json.dumps(build_body(user="x" * (12 << 20), **SHORT)).encode()
    reply = await ask(gateway, data=prompt, headers={"content-type": "application/json"})
    assert (reply.status, reply.dones) == (200, 1)


@pytest.mark.asyncio(loop_scope="module")
async def test_headers_that_envoy_sends_again_and_again_are_read_once(gateway: Gateway) -> None:
    """What makes a request cheap: the table is gone, and both filters' blocks are kept."""
    for _ in range(5):
        await ask(gateway, body=build_body(**SHORT))
    readers = [one.calls.connection._headers for one in server_of(gateway.stack.app)._connections]
    kept = max(readers, key=lambda one: len(one._kept))
    assert kept._table_is_gone
    assert 2 <= len(kept._kept) <= 4


@pytest.mark.asyncio(loop_scope="module")
async def test_a_client_that_reads_nothing_leaves_no_more_than_a_window_with_the_sidecar(
    gateway: Gateway,
) -> None:
    """The answer has no end that would come in this test; back-pressure reaches the engine."""
    body = json.dumps(build_body(max_tokens=1_000_000)).encode()
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1_024)
    head = f"POST {CHAT} HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n"
    writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
    assert b" 200 " in await reader.readline()
    server = server_of(gateway.stack.app)
    (live,) = gateway.stack.app.exchanges._live.values()
    taken: list[int] = []
    async with asyncio.timeout(30):
        while len(taken) < 10 or taken[-1] != taken[-10]:  # until nothing more comes
            await asyncio.sleep(0.1)
            taken.append(live.exchange._delivery.deltas)
            held = sum(one.calls.connection.statistics()["uncredited"] for one in server._connections)
            assert held <= server.limits.stream_window
    assert 0 < taken[-1] < 200_000
    writer.transport.abort()
    await gateway.wait_idle()


@contextlib.asynccontextmanager
async def run_over_tcp(directory: Path, limits: Limits | None = None) -> AsyncIterator[tuple[App, str]]:
    control, streams = find_ports(2)
    place = {"address": "127.0.0.1", "port": control, "transport": "native", "streams_port": streams}
    async with contextlib.AsyncExitStack() as opened:
        engine = await opened.enter_async_context(
            SimEngine(SimOptions(name="a", models=(MODEL,), tokens=6, token_s=0.01, prefill_s=0.02))
        )
        config = build_config({"a": engine}, directory, sidecar=place)
        egress = config.envoy.model_copy(update={"egress_socket": str(directory / "e.sock")})
        config = config.model_copy(update={"envoy": egress})
        app = App(config)
        opened.push_async_callback(app.stop)
        await app.start()
        if limits is not None:
            server_of(app).limits = limits
        envoy = EnvoyProcess(find_envoy(), render_bootstrap(config), directory, concurrency=1)
        opened.push_async_callback(envoy.stop)
        await envoy.start()
        assert await app.wait_ready(20)
        yield app, "http://" + await envoy.find_listener(names.LISTENER_INGRESS)


async def test_over_tcp(tmp_path: Path) -> None:
    async with run_over_tcp(tmp_path) as (app, url), aiohttp.ClientSession() as http:
        async with http.post(f"{url}/v1/chat/completions", json=build_body()) as answer:
            text = await answer.text()
        assert (answer.status, text.count("data: [DONE]")) == (200, 1)
        assert server_of(app).open_connections == 2


async def test_an_envoy_that_is_silent_answers_that_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And acknowledges our SETTINGS. Its connections live on, with the log stream on one of them."""
    answers: list[bytes] = []
    read_ping = Connection._read_ping

    def keep(self: Connection, payload: bytes, flags: int, stream_id: int) -> None:
        answers.append(payload if flags == 1 else b"")
        read_ping(self, payload, flags, stream_id)

    monkeypatch.setattr(Connection, "_read_ping", keep)
    limits = Limits(hello_s=2, settings_ack_s=2, ping_after_s=0.05, ping_answer_s=30)
    async with run_over_tcp(tmp_path, limits) as (app, url), aiohttp.ClientSession() as http:
        async with http.post(f"{url}/v1/chat/completions", json=build_body()) as answer:
            assert answer.status == 200
        connections = list(server_of(app)._connections)
        async with asyncio.timeout(30):
            while b"is there" not in answers:
                await asyncio.sleep(0.02)
        async with http.post(f"{url}/v1/chat/completions", json=build_body()) as answer:
            assert (answer.status, (await answer.text()).count("data: [DONE]")) == (200, 1)
        assert set(connections) <= set(server_of(app)._connections)


async def find_way(lone: LoneEnvoy) -> str:
    """How the streams of a request go that is answered; "" when it is refused."""
    before = await lone.read_stat(STREAMS)
    reply = await ask(lone, body=build_body(model="chat"))
    if reply.status != 200:
        return ""
    assert reply.dones == 1
    return "native" if await lone.read_stat(STREAMS) > before else "grpc_aio"


async def test_another_transport_needs_no_restart_of_envoy_whose_resources_come_over_xds() -> None:
    """Its bootstrap names the way to the sidecar, which stays. To native nothing is refused: the old way
    serves until the change has come. On the way back requests are, until then."""
    async with run_lone_envoy("DELTA_GRPC") as lone:
        socket = f"{lone.directory}/sidecar.sock"
        for transport in ("native", "grpc_aio", "native"):
            async with (
                lone.sidecar(sidecar={"socket": socket, "transport": transport}),
                asyncio.timeout(WAIT_S),
            ):
                while (way := await find_way(lone)) != transport:
                    assert way or transport == "grpc_aio"
                    await asyncio.sleep(0.02)


async def test_a_stop_ends_what_is_under_way_with_the_truth(tmp_path: Path) -> None:
    async with run_gateway(tmp_path, sidecar=SIDECAR, shutdown={"grace": "100ms"}) as gateway:
        async with asking(gateway, fault="hang_after=3", request_id=mint_request_id()) as answer:
            await read_deltas(answer, 3)
            stop = asyncio.ensure_future(gateway.stack.app.stop())
            rest = await answer.text()
            await stop
        assert (rest.count('"upstream_decode_interrupted"'), rest.count('"drain_deadline"')) == (1, 1)
        assert server_of(gateway.stack.app).open_connections == 0
