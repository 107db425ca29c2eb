"""Who is let in, on a real Envoy: decided before the body is taken in, and no key reaches a replica."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio

from envoy_ext.bootstrap.render import render_full_bootstrap
from tests.support.callers import bearer, make_key, write_callers
from tests.with_envoy.asking import CHAT, Reply, ask, build_body, mint_request_id
from tests.with_envoy.gateway import Gateway, build_config, run_stack
from tests.with_envoy.wire import Wired, WireEngine, answering, build_response

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROWS: dict[str, dict[str, Any]] = {
    "alice": {},
    "bob": {"models": ["home"], "classes": ["batch"], "data_classes": ["public"]},
    "mallory": {"disabled": True},
    "old": {"expires": "2020-01-01"},
}
AWAY_KEY = "key-of-the-replicas-away"
ANSWER = json.dumps(
    {"choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}], "usage": {}}
).encode()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def wired(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Wired]:
    """Two pools, and the file of those that are let in; a proxy on this machine may name a caller."""
    directory = tmp_path_factory.mktemp("callers")
    async with AsyncExitStack() as opened:
        engines = [await opened.enter_async_context(WireEngine()) for _ in range(2)]
        pools: list[dict[str, Any]] = [
            {
                "name": name,
                "models": [name],
                "engine": "vllm",
                "readiness": {"watch": False},
                "replicas": [{"id": name, "url": engine.url}],
            }
            for name, engine in zip(("home", "away"), engines, strict=True)
        ]
        key = directory / "away.key"
        key.write_text(f"{AWAY_KEY}\n")
        pools[1]["api_key_file"] = str(key)
        config = build_config(
            {},
            directory,
            pools=pools,
            admission={"classes": {"batch": {}, "alarm": {"priority": 1}}},
            data_classes={"public": {"boundaries": ["local"]}},
            callers={
                "keys_file": write_callers(directory / "callers.yaml", ROWS),
                "trusted_header": "x-caller",
                "trusted_from": ["127.0.0.1"],
            },
        )
        gateway = await opened.enter_async_context(run_stack(config, {}))
        wired = Wired(gateway, engines)
        wired.answer_with(answering(build_response(ANSWER)))
        yield wired


async def ask_as(gateway: Gateway, name: str, model: str = "home", **headers: str) -> Reply:
    more = {key.replace("_", "-"): value for key, value in headers.items()}
    return await ask(gateway, body=build_body(model=model, stream=False), headers=bearer(name) | more)


def read_code(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.json["error"]["code"]


async def test_a_caller_is_let_in_by_its_key_and_no_replica_sees_one(wired: Wired) -> None:
    for headers in (
        bearer("alice"),
        {"authorization": f"bearer {make_key('alice')}"},
        {"x-api-key": make_key("alice")},
        {"api-key": make_key("alice"), "x-api-key": make_key("alice")},
        {"x-caller": "alice"},
    ):
        reply = await ask(wired.gateway, body=build_body(model="home", stream=False), headers=headers)
        assert (reply.status, reply.body) == (200, ANSWER)
        (request,) = wired.find_requests(reply.request_id)
        for name in ("authorization", "x-api-key", "api-key", "x-caller"):
            assert request.get_all(name) == []


async def test_a_replica_that_asks_for_a_key_of_its_own_is_shown_that_and_no_other(wired: Wired) -> None:
    headers = {**bearer("alice"), "x-api-key": make_key("alice")}
    reply = await ask(wired.gateway, body=build_body(model="away", stream=False), headers=headers)
    assert reply.status == 200
    (request,) = wired.find_requests(reply.request_id)
    assert request.get_all("authorization") == [f"Bearer {AWAY_KEY}"]
    assert request.get_all("x-api-key") == request.get_all("api-key") == []
    stack = wired.gateway.stack
    shown = json.dumps(render_full_bootstrap(stack.config))
    async with wired.gateway.http.get(f"{stack.envoy.admin_url}/config_dump") as answer:
        shown += await answer.text()
    assert "away" in shown
    assert AWAY_KEY not in shown


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": f"Basic {make_key('alice')}"},
        {"authorization": "Bearer"},
        {"authorization": f"Bearer {make_key('alice')}x"},
        {"authorization": f"Bearer {make_key('alice').upper()}"},
        {"authorization": f"Bearer {make_key('alice')}", "x-api-key": make_key("bob")},
        {"x-api-key": "x" * 50_000},
        {"x-api-key": "sch\u00fcssel-mit-umlaut-0123456789"},
        bearer("mallory"),
        bearer("old"),
        {"x-caller": "nobody"},
        {"x-caller": ""},
    ],
    ids=str,
)
async def test_nobody_else_is_and_is_told_how_to_come_in(wired: Wired, headers: dict[str, str]) -> None:
    reply = await ask(wired.gateway, body=build_body(model="home"), headers=headers)
    assert read_code(reply) == (401, "invalid_api_key")
    assert reply.headers["www-authenticate"] == "Bearer"
    assert reply.headers["x-should-retry"] == "false"
    assert wired.find_requests(reply.request_id) == []


async def test_a_stranger_is_refused_before_its_body_is_taken_in(wired: Wired) -> None:
    place = wired.gateway.url.removeprefix("http://")
    host, _, port = place.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST {CHAT} HTTP/1.1\r\nhost: {place}\r\ncontent-length: 1000000\r\n\r\n"
    writer.write(head.encode() + b'{"model": ')
    async with asyncio.timeout(10):
        line = await reader.readline()
    writer.close()
    assert line == b"HTTP/1.1 401 Unauthorized\r\n"


async def test_so_is_a_body_of_a_caller_that_says_it_is_too_long(wired: Wired) -> None:
    place = wired.gateway.url.removeprefix("http://")
    host, _, port = place.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    key = bearer("alice")["authorization"]
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: {place}\r\nauthorization: {key}\r\ncontent-length: 99999999\r\n\r\n"
    )
    writer.write(head.encode())
    async with asyncio.timeout(10):
        line = await reader.readline()
    writer.close()
    assert line == b"HTTP/1.1 413 Payload Too Large\r\n"


async def test_a_key_that_stands_twice_is_one_and_two_keys_are_none(wired: Wired) -> None:
    key = bearer("alice")["authorization"]
    for second, status in ((key, 200), (bearer("bob")["authorization"], 401)):
        async with wired.gateway.http.post(
            wired.gateway.url + CHAT,
            json=build_body(model="home", stream=False),
            headers=[("authorization", key), ("authorization", second)],
        ) as answer:
            assert answer.status == status


async def test_a_key_in_the_url_is_none(wired: Wired) -> None:
    path = f"{CHAT}?api_key={make_key('alice')}&key={make_key('alice')}"
    reply = await ask(wired.gateway, path, body=build_body(model="home"))
    assert read_code(reply) == (401, "invalid_api_key")


async def test_a_model_that_one_may_not_use_is_one_that_is_not_there(wired: Wired) -> None:
    hidden, missing = [await ask_as(wired.gateway, "bob", model) for model in ("away", "nowhere")]
    assert read_code(hidden) == (404, "invalid_request")
    differ = {"x-request-id", "date"}
    assert [(k, v) for k, v in hidden.headers.items() if k.lower() not in differ] == [
        (k, v) for k, v in missing.headers.items() if k.lower() not in differ
    ]
    masked = [reply.body.replace(reply.request_id.encode(), b"ID") for reply in (hidden, missing)]
    assert masked[0] == masked[1]
    for name, models in (("alice", ["home", "away"]), ("bob", ["home"])):
        listed = await ask(wired.gateway, "/v1/models", method="GET", headers=bearer(name))
        assert [one["id"] for one in listed.json["data"]] == models
    one = await ask(wired.gateway, "/v1/models/away", method="GET", headers=bearer("bob"))
    assert one.status == 404


async def test_a_class_that_one_may_not_name_is_refused_and_ones_own_is_taken_without_a_word(
    wired: Wired,
) -> None:
    for name in ("x_request_class", "x_data_class"):
        refused = await ask_as(wired.gateway, "bob", **{name: "default"})
        assert read_code(refused) == (403, "permission_denied")
        assert refused.json["error"]["message"].startswith(name.replace("_", "-") + ": ")
        assert refused.headers["x-should-retry"] == "false"
        assert wired.find_requests(refused.request_id) == []
    assert (await ask_as(wired.gateway, "bob")).status == 200
    assert (await ask_as(wired.gateway, "bob", x_request_class="batch", x_data_class="public")).status == 200
    assert (await ask_as(wired.gateway, "alice", x_request_class="alarm")).status == 200


async def test_an_operation_and_a_key_are_its_callers_whatever_credential_it_comes_with(wired: Wired) -> None:
    key = {"idempotency_key": mint_request_id()}
    first = await ask_as(wired.gateway, "alice", **key)
    by_name = {"x-caller": "alice", "idempotency-key": key["idempotency_key"]}
    again = await ask(wired.gateway, body=build_body(model="home", stream=False), headers=by_name)
    assert again.headers["idempotent-replayed"] == "true"
    other = await ask_as(wired.gateway, "bob", **key)
    assert "idempotent-replayed" not in other.headers
    path = f"/v1/operations/{first.headers['x-operation-id']}"
    for headers, status in (
        ({"x-caller": "alice"}, 200),
        (bearer("alice"), 200),
        (bearer("bob"), 404),
        ({}, 401),
    ):
        assert (await ask(wired.gateway, path, method="GET", headers=headers)).status == status


async def test_the_real_client_raises_an_authentication_error(wired: Wired) -> None:
    async with wired.gateway.openai() as client:
        with pytest.raises(openai.AuthenticationError) as refused:
            await client.chat.completions.create(model="home", messages=[{"role": "user", "content": "hi"}])
    assert refused.value.code == "invalid_api_key"
    async with wired.gateway.openai(api_key=make_key("alice")) as client:
        answer = await client.chat.completions.create(
            model="home", messages=[{"role": "user", "content": "hi"}]
        )
    assert answer.choices[0].message.content == "Hi"


async def test_a_changed_file_is_read_again_and_a_bad_one_changes_nothing(wired: Wired) -> None:
    config = wired.gateway.stack.config.callers
    assert config is not None
    path = Path(str(config.keys_file))
    good = path.read_text()

    async def wait_for(name: str, status: int) -> None:
        async with asyncio.timeout(20):
            while (await ask_as(wired.gateway, name)).status != status:
                await asyncio.sleep(0.05)

    try:
        write_callers(path, {**ROWS, "carol": {}})
        await wait_for("carol", 200)
        path.write_text("callers: [{name: mallory, sha256: pa55}]")
        async with asyncio.timeout(20):
            while wired.gateway.read_metric("envoy_ext_callers_file_in_force") != 0:
                await asyncio.sleep(0.05)
        assert (await ask_as(wired.gateway, "carol")).status == 200
        url = f"{wired.gateway.stack.operations_url}/v1/callers"
        async with wired.gateway.http.get(url) as answer:
            text = await answer.text()
        shown = json.loads(text)
        assert [one["name"] for one in shown["callers"]] == [*ROWS, "carol"]
        assert "64 hexadecimal digits" in shown["refused"][0]
        assert "pa55" not in text
    finally:
        path.write_text(good)
    await wait_for("carol", 401)
    assert wired.gateway.read_metric("envoy_ext_callers_file_in_force") == 1
