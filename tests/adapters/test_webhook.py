"""A call to a person: what is sent, and what counts as a yes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from envoy_ext.adapters.webhook import Webhook
from envoy_ext.domain.ids import OperationId
from envoy_ext.ports import HandedOver

REQUEST = HandedOver(OperationId("op_1"), "req-1", "chat", "/v1/chat/completions", "ab" * 32, "queue_full")


@contextlib.asynccontextmanager
async def listen(status: int, heard: list[Any], *, held: asyncio.Event | None = None) -> AsyncIterator[str]:
    async def take(request: web.Request) -> web.Response:
        heard.append((request.path_qs, await request.json() if request.can_read_body else None))
        if held is not None:
            await held.wait()
        return web.Response(status=status, headers={"location": "/elsewhere"})

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", take)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/hook?team=1"
    finally:
        await runner.cleanup()


async def call(url: str, timeout_s: float = 5.0) -> bool:
    webhook = Webhook()
    try:
        return await webhook.hand_over(url, REQUEST, timeout_s)
    finally:
        await webhook.close()


@pytest.mark.parametrize(
    ("status", "taken"), [(200, True), (204, True), (302, False), (404, False), (500, False)]
)
async def test_a_2xx_is_a_yes_and_each_call_is_made_once(status: int, taken: bool) -> None:
    heard: list[Any] = []
    async with listen(status, heard) as url:
        assert await call(url) is taken
    assert heard == [
        (
            "/hook?team=1",
            {
                "operation_id": "op_1",
                "request_id": "req-1",
                "class": "chat",
                "path": "/v1/chat/completions",
                "body_sha256": "ab" * 32,
                "reason": "queue_full",
            },
        )
    ]


async def test_whoever_does_not_answer_in_time_or_is_not_there_has_not_taken_it() -> None:
    held, heard = asyncio.Event(), []  # type: ignore[var-annotated]
    async with listen(200, heard, held=held) as url:
        assert await call(url, timeout_s=0.05) is False
        held.set()
    assert await call(url) is False
