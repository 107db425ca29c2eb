"""Each rung of the ladder, end to end: what the client is told, what the replicas saw, what the journal says.

One slot and a line of two in the first pool; a small pool beside it, a partner's pool outside, and a person
behind a webhook. Whatever a replica was asked stands in its own log.
"""

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

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
    read_part,
)
from tests.with_envoy.gateway import WAIT_S, Gateway, build_config, run_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = "Zu viele Fragen gerade: bitte später. ✓"
HANDED = "A person will answer."
TURNS = [
    {"role": "system", "content": "Be brief."},
    *({"role": role, "content": f"{role} {n}"} for n in range(1, 4) for role in ("user", "assistant")),
    {"role": "user", "content": "the last question"},
]


class Person:
    """Somebody behind a webhook, who says yes unless told otherwise."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self.status = 202
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        self.heard.append(await request.json())
        return web.Response(status=self.status)

    @contextlib.asynccontextmanager
    async def listen(self) -> AsyncIterator["Person"]:
        app = web.Application()
        app.router.add_post("/hook", self.take)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/hook"  # type: ignore[attr-defined]
        yield self
        await runner.cleanup()


person = Person()


def build_classes() -> dict[str, Any]:
    shorter = {"shorten_generation": {"max_tokens": 2}}
    return {
        "short": {"ladder": [shorter, {"shorten_context": {"keep_turns": 2}}]},
        "small": {"ladder": [{"pool": "small"}]},
        "patient": {"ladder": [{"pool": "small"}], "max_wait": "300ms"},
        "far": {"ladder": [{"pool": "far"}, "refuse"]},
        "text": {"ladder": [{"pool": "far"}, {"template": {"text": TEXT}}]},
        "human": {"ladder": [{"hand_off": {"webhook": person.url, "text": HANDED}}, {"pool": "small"}]},
        "payment": {"side_effects": True, "ladder": ["refuse"]},
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    async with contextlib.AsyncExitStack() as opened:
        await opened.enter_async_context(person.listen())
        engines = {
            name: await opened.enter_async_context(
                SimEngine(SimOptions(name=name, models=(name,), tokens=6, token_s=0.005, prefill_s=0.01))
            )
            for name in ("sim", "small", "far")
        }
        pools = [
            {
                "name": name,
                "models": [name],
                "engine": "vllm",
                "boundary": "external:partner" if name == "far" else "local",
                # Whoever cancels frees its slot when the engine's own figures say so; the others hear
                # clients alone.
                "readiness": {"scrape": "100ms", "stale": "5s"} if name == "sim" else {"watch": False},
                "capacity": {"concurrency": 1 if name == "sim" else 4},
                "replicas": [{"id": name, "url": engine.url}],
            }
            for name, engine in engines.items()
        ]
        admission = {"queue": 2, "max_wait": "9s", "classes": build_classes()}
        classes = {"public": {"boundaries": ["local", "external:partner"]}}
        config = build_config(
            engines,
            tmp_path_factory.mktemp("gateway"),
            pools=pools,
            admission=admission,
            data_classes=classes,
        )
        yield await opened.enter_async_context(run_stack(config, engines))


@contextlib.asynccontextmanager
async def busy(gateway: Gateway, name: str, waiting: int = 2) -> AsyncIterator[None]:
    """The one slot is taken, and so many of a class wait for it: a full line refuses its own next one."""
    line: list[asyncio.Task[Reply]] = []
    async with asking(gateway, fault="hang_after=1", request_id=mint_request_id()) as answer:
        await read_deltas(answer, 1)
        line += [asyncio.create_task(ask_as(gateway, name)) for _ in range(waiting)]
        await wait_depth(gateway, waiting)
        try:
            yield
        finally:
            for one in line:
                one.cancel()
            await asyncio.gather(*line, return_exceptions=True)
    await gateway.wait_idle()


async def wait_depth(gateway: Gateway, depth: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while gateway.read_metric("envoy_ext_queue_depth", pool="sim") != depth:
            await asyncio.sleep(0.01)


async def ask_as(gateway: Gateway, name: str, path: str = CHAT, **options: Any) -> Reply:
    """One request of a class, by the one caller that there is."""
    headers = {"x-request-class": name, "authorization": "Bearer me", **options.pop("headers", {})}
    return await ask(gateway, path, headers=headers, **options)


def count_rungs(gateway: Gateway, rung: str) -> float:
    pools = ("sim", "small", "far")
    return sum(gateway.read_metric("envoy_ext_degraded_total", pool=pool, rung=rung) for pool in pools)


async def test_where_the_line_fills_an_answer_is_shortened_and_then_the_conversation_too(
    gateway: Gateway,
) -> None:
    """The line is half full when the request comes: the first of two rungs, and not yet the second."""
    body = build_body(messages=TURNS, max_tokens=100, model="sim")
    quiet = await ask_as(gateway, "short", body=body)
    assert "x-degraded" not in quiet.headers
    request_id = mint_request_id()
    async with busy(gateway, "short", waiting=1):
        waits = asyncio.create_task(ask_as(gateway, "short", body=body, request_id=request_id))
        await wait_depth(gateway, 2)
        full = await ask_as(gateway, "short", body=body)
        assert (full.status, full.json["error"]["code"]) == (429, "queue_full")
    reply = await waits
    assert (reply.status, reply.dones, reply.headers["x-degraded"]) == (200, 1, "shorten_generation")
    assert [one["choices"][0]["finish_reason"] for one in reply.events][-1] == "length"
    (record,) = gateway.find_requests(request_id)
    assert (record.limit, record.items, record.tokens_sent) == (2, len(TURNS), 2)
    assert record.body_bytes == len(json.dumps({**body, "max_tokens": 2}, separators=(",", ":")))
    operation = await gateway.wait_operation(request_id)
    assert (operation["degraded"], operation["state"]) == (["shorten_generation"], "completed")


async def test_a_deadline_that_others_would_miss_takes_every_shortening(gateway: Gateway) -> None:
    """Answers of a second tell how long a slot is held; a request that has less gives up what it can."""
    for _ in range(4):
        assert (await ask(gateway, fault="slow=30")).dones == 1
    request_id = mint_request_id()
    async with gateway.openai() as client:
        answer = await client.chat.completions.with_raw_response.create(
            model="sim",
            messages=TURNS,  # type: ignore[arg-type]
            extra_headers={
                "x-request-class": "short",
                "x-request-deadline": "0.3",
                "x-request-id": request_id,
            },
        )
    assert answer.headers["x-degraded"] == "shorten_generation, shorten_context"
    assert answer.parse().choices[0].finish_reason == "length"
    (record,) = gateway.find_requests(request_id)
    assert (record.limit, record.items) == (2, 4)
    operation = await gateway.wait_operation(request_id)
    assert operation["degraded"] == ["shorten_generation", "shorten_context"]


async def test_a_class_that_may_goes_to_a_smaller_pool_under_its_models_name(gateway: Gateway) -> None:
    before = count_rungs(gateway, "pool")
    key = {"idempotency-key": mint_request_id()}
    async with busy(gateway, "small"):
        reply = await ask_as(gateway, "small", headers=key, body=build_body(model="sim"))
        packed = await ask_as(
            gateway,
            "small",
            data=gzip.compress(json.dumps(build_body(model="sim")).encode()),
            headers={"content-encoding": "gzip", "content-type": "application/json"},
        )
    assert (reply.status, reply.dones, reply.headers["x-degraded"]) == (200, 1, "pool")
    assert (packed.status, packed.dones, packed.headers["x-degraded"]) == (200, 1, "pool")
    assert {replica for replica, _ in reply.sources} == {"small"}
    (record,) = gateway.find_requests(reply.request_id)
    assert record.model == "small"
    operation = await gateway.wait_operation(reply.request_id)
    assert (operation["pool"], operation["model"], operation["degraded"]) == ("small", "sim", ["pool"])
    assert count_rungs(gateway, "pool") == before + 2
    again = await ask_as(gateway, "small", headers=key, body=build_body(model="sim"))
    assert again.json["error"]["code"] == "operation_complete"  # and not idempotency_key_reused


async def test_a_wait_in_vain_goes_to_the_other_pool_too(gateway: Gateway) -> None:
    async with busy(gateway, "patient", waiting=0):
        reply = await ask_as(gateway, "patient")
    assert (reply.status, reply.headers["x-degraded"]) == (200, "pool")
    operation = await gateway.wait_operation(reply.request_id)
    assert (operation["pool"], operation["degraded"]) == ("small", ["pool"])
    assert [one["replica"] for one in operation["attempts"]] == ["small"]


async def test_a_pool_outside_is_never_a_way_out_without_policy(gateway: Gateway) -> None:
    far = gateway.engines["far"]
    async with busy(gateway, "far"):
        reply = await ask_as(gateway, "far")
        assert (reply.status, reply.json["error"]["code"]) == (403, "data_class_forbidden")
        assert far.find_requests() == []
        allowed = await ask_as(gateway, "far", headers={"x-data-class": "public"})
    assert (allowed.status, allowed.headers["x-degraded"]) == (200, "pool")
    async with busy(gateway, "text"):
        text = await ask_as(gateway, "text")
    assert (text.status, text.headers["x-degraded"]) == (200, "template")
    assert [one.request_id for one in far.find_requests()] == [allowed.request_id]
    assert gateway.read_metric("envoy_ext_shed_total", pool="far", code="data_class_forbidden") == 2


async def test_a_payment_is_refused_and_changes_neither_model_nor_context(gateway: Gateway) -> None:
    seen = {name: len(engine.find_requests()) for name, engine in gateway.engines.items()}
    async with busy(gateway, "payment"):
        during = {name: len(engine.find_requests()) for name, engine in gateway.engines.items()}
        reply = await ask_as(gateway, "payment", body=build_body(messages=TURNS, max_tokens=100, model="sim"))
        assert (reply.status, reply.json["error"]["code"]) == (429, "queue_full")
        assert "x-degraded" not in reply.headers
        assert {name: len(engine.find_requests()) for name, engine in gateway.engines.items()} == during
    assert during["small"] == seen["small"]


async def test_a_fixed_text_comes_in_each_apis_own_shape(gateway: Gateway) -> None:
    async with busy(gateway, "text"):
        paths = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, TGI)
        bodies = {path: {"model": "sim", **build_body(path)} for path in paths}
        replies = [await ask_as(gateway, "text", path, body=bodies[path]) for path in paths]
    for reply in replies:
        assert (reply.status, reply.headers["x-degraded"]) == (200, "template")
        assert "".join(map(read_part, reply.events)) == TEXT
        operation = await gateway.wait_operation(reply.request_id)
        assert (operation["state"], operation["ending"]) == ("failed", "refused")
        assert (operation["degraded"], operation["attempts"]) == (["template"], [])
        assert operation["error"]["code"] == "queue_full"


async def test_the_real_client_reads_a_fixed_text_whole_and_streamed(gateway: Gateway) -> None:
    headers = {"x-request-class": "text", "authorization": "Bearer me"}
    asked: dict[str, Any] = {
        "model": "sim",
        "messages": [{"role": "user", "content": "hi"}],
        "extra_headers": headers,
    }
    async with busy(gateway, "text"), gateway.openai() as client:
        whole = await client.chat.completions.create(**asked)
        assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (TEXT, "stop")
        assert whole.model == "envoy-ext"
        chunks = [one async for one in await client.chat.completions.create(stream=True, **asked)]
        assert "".join(one.choices[0].delta.content or "" for one in chunks) == TEXT
        assert chunks[-1].choices[0].finish_reason == "stop"
        response = await client.responses.create(model="sim", input="hi", extra_headers=headers)
        assert response.output_text == TEXT


async def test_where_no_text_fits_a_request_is_refused(gateway: Gateway) -> None:
    async with busy(gateway, "text"):
        reply = await ask_as(gateway, "text", EMBEDDINGS)
        assert (reply.status, reply.json["error"]["code"]) == (429, "queue_full")


async def test_a_person_is_told_ids_and_no_word_of_the_request(gateway: Gateway) -> None:
    key = {"idempotency-key": mint_request_id()}
    async with busy(gateway, "human"):
        reply = await ask_as(gateway, "human", headers=key, stream=False)
        again = await ask_as(gateway, "human", headers=key, stream=False)
    assert (reply.status, reply.headers["x-degraded"]) == (200, "hand_off")
    assert reply.json["choices"][0]["message"]["content"] == HANDED
    assert again.json == reply.json
    assert (again.headers["idempotent-replayed"], again.headers["x-degraded"]) == ("true", "hand_off")
    (told,) = [one for one in person.heard if one["request_id"] == reply.request_id]
    operation = await gateway.wait_operation(reply.request_id)
    assert set(told) == {"operation_id", "request_id", "class", "path", "body_sha256", "reason"}
    assert (told["operation_id"], told["class"]) == (operation["operation_id"], "human")
    assert (told["path"], told["reason"], len(told["body_sha256"])) == (CHAT, "queue_full", 64)
    assert (operation["state"], operation["degraded"]) == ("completed", ["hand_off"])


async def test_where_nobody_takes_it_the_next_rung_is_tried(gateway: Gateway) -> None:
    person.status = 500
    try:
        async with busy(gateway, "human"):
            reply = await ask_as(gateway, "human")
    finally:
        person.status = 202
    assert (reply.status, reply.headers["x-degraded"]) == (200, "pool")
    assert [one["request_id"] for one in person.heard][-1] == reply.request_id
    assert (await gateway.wait_operation(reply.request_id))["pool"] == "small"
