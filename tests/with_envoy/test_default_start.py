"""The smallest configuration from its start on: what is refused, and which engines become ready."""

from pathlib import Path

import pytest

from envoy_ext import stack
from envoy_ext.operations_client import fetch_replicas
from envoy_ext.sim.engine import SimEngine
from envoy_ext.sim.options import SimOptions
from tests.with_envoy.asking import EMBEDDINGS, ask
from tests.with_envoy.gateway import MODEL, run_gateway
from tests.with_envoy.wire import WireConnection, WireEngine, WireRequest, build_response


async def test_until_a_model_has_answered_requests_are_refused_at_once_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack, "READY_S", 0.1)
    async with run_gateway(tmp_path, "a", engine={"prefill_s": 3600}) as gateway:
        reply = await ask(gateway)
        assert (reply.status, reply.json["error"]["code"]) == (503, "no_ready_replica")
        assert reply.headers["retry-after"].isdigit()
        assert gateway.find_requests(reply.request_id) == []


async def test_a_replica_by_name_is_served_as_one_by_address(tmp_path: Path) -> None:
    async with SimEngine(SimOptions(name="a", models=(MODEL,), tokens=6)) as engine:
        named = {"id": "a", "url": f"http://localhost:{engine.port}"}
        lost = {"id": "lost", "url": "http://no-such-host.invalid:8000"}
        pools = [{"name": "chat", "models": [MODEL], "replicas": [lost, named]}]
        async with run_gateway(tmp_path, "", pools=pools) as gateway:
            reply = await ask(gateway)
            assert (reply.status, reply.dones, reply.headers["x-sim-replica"]) == (200, 1, "a")


def speaks_only(path: str, body: bytes, key: str | None = None) -> object:
    """An engine with one API, no metrics, no health page, and a key where it wants one."""

    async def answer(request: WireRequest, connection: WireConnection) -> None:
        if key is not None and request.get_all("authorization") != [f"Bearer {key}"]:
            await connection.send(build_response(b"{}", status="401 Unauthorized"))
        elif request.line.split()[1] == path:
            await connection.send(build_response(body))
        else:
            await connection.send(build_response(b'{"detail":"Not Found"}', status="404 Not Found"))

    return answer


@pytest.mark.parametrize(
    ("path", "key", "reasons"),
    [
        (EMBEDDINGS, None, ["metrics_unsupported"]),
        (EMBEDDINGS, "secret", ["control_call_declined"]),
        ("/v1/messages", None, ["metrics_unsupported", "control_call_declined"]),
    ],
)
async def test_an_engine_without_metrics_completions_or_our_key_becomes_ready(
    tmp_path: Path, path: str, key: str | None, reasons: list[str]
) -> None:
    body = b'{"data":[{"index":0,"embedding":[0.5]}]}'
    async with WireEngine() as engine:
        engine.answer = speaks_only(path, body, key)  # type: ignore[assignment]
        pools = [{"name": "chat", "models": [MODEL], "replicas": [{"id": "a", "url": engine.url}]}]
        async with run_gateway(tmp_path, "", pools=pools) as gateway:
            (replica,) = await fetch_replicas(gateway.stack.operations_url)
            assert (replica["ready"], replica["reasons"]) == (True, reasons)
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            if path == EMBEDDINGS:
                reply = await ask(gateway, path, headers=headers)
                assert (reply.status, reply.body) == (200, body)
