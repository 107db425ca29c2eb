"""A route with ext_authz alone, as docs/authz.md has it, refuses what the route through ext_proc refuses."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from envoy_ext.adapters.envoy_process import EnvoyProcess, find_envoy
from envoy_ext.domain import names
from tests.support.callers import bearer, make_key, write_callers
from tests.with_envoy.asking import Reply, ask, build_body
from tests.with_envoy.gateway import Gateway, build_config, run_stack
from tests.with_envoy.wire import WireConnection, WireEngine, WireRequest, answering, build_response

pytestmark = pytest.mark.asyncio(loop_scope="module")

DOC = Path(__file__).parents[2] / "docs" / "authz.md"
ROWS: dict[str, dict[str, Any]] = {
    "alice": {},
    "bob": {"models": ["home"], "classes": ["batch"], "data_classes": ["public"]},
}
ANSWER = json.dumps(
    {"choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}], "usage": {}}
).encode()
LIMIT = 4096
TEXT = {"template": {"text": "Later."}}
OF_ONE_REQUEST = {
    "date",
    "x-operation-id",
    "x-attempt-count",
    "retry-after",
    "content-length",
    "transfer-encoding",
}


def read_example(sidecar: str, engine: str) -> dict[str, Any]:
    """The configuration that the document shows, with the places of this test."""
    text = DOC.read_text().split("```yaml\n", 1)[1].split("```", 1)[0]
    host, _, port = engine.removeprefix("http://").partition(":")
    for shown, here in (
        ("/run/envoy-ext/sidecar.sock", sidecar),
        ("address: 0.0.0.0, port_value: 8000", "address: 127.0.0.1, port_value: 0"),
        ("address: 10.0.0.11, port_value: 8000", f"address: {host}, port_value: {port}"),
        ("max_request_bytes: 16777216", f"max_request_bytes: {LIMIT}"),
    ):
        assert text.count(shown) == 1
        text = text.replace(shown, here)
    bootstrap: dict[str, Any] = yaml.safe_load(text)
    bootstrap["admin"] = {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}}
    return bootstrap


@dataclass
class Routes:
    """Two ways to the same replicas; `ask` takes either for a gateway."""

    by_delivery: Gateway
    by_authz: Any
    home: WireEngine


@dataclass
class Other:
    url: str
    http: Any


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def routes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Routes]:
    directory = tmp_path_factory.mktemp("authz")
    async with contextlib.AsyncExitStack() as opened:
        home = await opened.enter_async_context(WireEngine())
        home.answer = answering(build_response(ANSWER))
        pools = [
            {
                "name": name,
                "models": [model],
                "engine": "vllm",
                "boundary": boundary,
                "capacity": {"concurrency": 1},
                "readiness": {"watch": False},
                "replicas": [{"id": name, "url": url}],
            }
            for name, model, boundary, url in (
                ("chat", "home", "local", home.url),
                ("away", "away", "local", "http://127.0.0.1:9"),
                ("partner", "partner", "external:p", "http://127.0.0.1:19"),
            )
        ]
        config = build_config(
            {},
            directory,
            pools=pools,
            limits={"max_request_bytes": LIMIT},
            admission={
                "queue": 0,
                "classes": {"batch": {}, "soft": {"ladder": [{"template": {"text": "Later."}}]}},
            },
            data_classes={"public": {"boundaries": ["local"]}},
            callers={
                "keys_file": write_callers(directory / "callers.yaml", ROWS),
                "trusted_header": "x-caller",
                "trusted_from": ["127.0.0.1"],
            },
        )
        gateway = await opened.enter_async_context(run_stack(config, {}))
        socket = gateway.stack.config.sidecar.socket
        assert socket is not None
        bootstrap = read_example(socket, home.url)
        envoy = EnvoyProcess(find_envoy(), bootstrap, tmp_path_factory.mktemp("other"), concurrency=1)
        await envoy.start()
        opened.push_async_callback(envoy.stop)
        url = "http://" + await envoy.find_listener("gateway")
        yield Routes(gateway, Other(url, gateway.http), home)


def read(reply: Reply) -> tuple[int, dict[str, str], dict[str, Any]]:
    """What a client is told, without what is one request's own."""
    headers = {k.lower(): v for k, v in reply.headers.items() if k.lower() not in OF_ONE_REQUEST}
    error = reply.json.get("error", {}) | {"operation_id": None}
    assert headers.pop("x-request-id") == error.get("request_id", reply.request_id) == reply.request_id
    return reply.status, headers, {**error, "request_id": None}


async def ask_both(routes: Routes, **asked: Any) -> tuple[Reply, Reply]:
    return await ask(routes.by_delivery, **asked), await ask(routes.by_authz, **asked)


ALICE, BOB = bearer("alice"), bearer("bob")


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({}, 401),
        ({"headers": {"x-api-key": make_key("alice"), **BOB}}, 401),
        ({"headers": {"x-caller": "nobody", **ALICE}}, 401),
        ({"headers": ALICE, "path": "/v1/nothing"}, 404),
        ({"headers": ALICE, "body": build_body(model="nowhere")}, 404),
        ({"headers": BOB, "body": build_body(model="away")}, 404),
        ({"headers": BOB | {"x-request-class": "soft"}}, 403),
        ({"headers": BOB | {"x-data-class": "default"}}, 403),
        ({"headers": ALICE | {"x-data-class": "what"}}, 400),
        ({"headers": ALICE, "body": build_body(model="partner")}, 403),
        ({"headers": ALICE, "data": b"{"}, 400),
        ({"headers": ALICE | {"content-encoding": "gzip"}, "data": b"{}"}, 400),
        ({"headers": ALICE | {"x-request-deadline": "soon"}}, 400),
        ({"headers": ALICE | {"idempotency-key": "x" * 300}}, 400),
        ({"headers": ALICE, "data": b" " * (LIMIT + 1)}, 413),
        ({"headers": BOB, "path": "/v1/models", "method": "GET"}, 200),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_both_routes_refuse_in_the_same_words(
    routes: Routes, asked: dict[str, Any], status: int
) -> None:
    asked = {"body": build_body(model="home")} | asked
    if "data" in asked or asked.get("method"):
        del asked["body"]
    before = len(routes.home.requests)
    by_delivery, by_authz = await ask_both(routes, **asked)
    assert by_delivery.status == status
    assert len(routes.home.requests) == before
    if status == 413:  # Envoy's own, before anybody is asked
        assert by_authz.status == 413
        return
    assert read(by_authz) == read(by_delivery)
    if status == 200:
        assert by_authz.body == by_delivery.body


async def test_what_is_let_on_is_told_who_it_is_and_nothing_that_a_client_made_up(routes: Routes) -> None:
    forged = {
        names.POOL: "away",
        names.CALLER: "root",
        names.EXCHANGE: "exg_1",
        "x-envoy-retry-on": "5xx",
        "x-operation-id": "op_1",
    }
    reply = await ask(routes.by_authz, body=build_body(model="home", stream=False), headers=BOB | forged)
    assert (reply.status, reply.body) == (200, ANSWER)
    (request,) = [one for one in routes.home.requests if one.get_all("x-request-id") == [reply.request_id]]
    for name in ("authorization", names.EXCHANGE, "x-envoy-retry-on", "x-operation-id"):
        assert request.get_all(name) == []
    # An exchange that nobody has is no way around the question.
    stranger = await ask(routes.by_authz, body=build_body(model="home"), headers=forged)
    assert stranger.status == 401


async def test_both_see_that_there_is_no_room_and_give_the_text_of_the_ladder(routes: Routes) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def answer_late(_request: WireRequest, connection: WireConnection) -> None:
        begun.set()
        await may_end.wait()
        await connection.send(build_response(ANSWER))

    routes.home.answer = answer_late
    body = build_body(model="home", stream=False)
    first = asyncio.ensure_future(ask(routes.by_delivery, body=body, headers=ALICE))
    try:
        async with asyncio.timeout(10):
            await begun.wait()
        by_delivery, by_authz = await ask_both(routes, body=body, headers=ALICE)
        assert read(by_authz) == read(by_delivery)
        assert (by_authz.status, by_authz.json["error"]["code"]) == (429, "queue_full")
        assert 1 <= int(by_authz.headers["retry-after"]) <= 30
        for stream in (False, True):
            body = build_body(model="home", stream=stream)
            soft = await ask_both(routes, body=body, headers=ALICE | {"x-request-class": "soft"})
            for reply in soft:
                assert (reply.status, reply.headers["x-degraded"]) == (200, "template")
                assert b"Later." in reply.body
                assert reply.headers["content-type"].startswith(
                    "text/event-stream" if stream else "application/json"
                )
                assert reply.dones == stream
    finally:
        may_end.set()
        assert (await first).status == 200
        routes.home.answer = answering(build_response(ANSWER))
