"""How a run goes to Envoy: what it bears, and that its end is the connection's."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from envoy_ext.adapters.runs_client import RunsClient


class Listener:
    """Envoy's jobs listener, as far as its client sees it."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, dict[str, str], bytes]] = []
        self.left = asyncio.Event()
        self.came = asyncio.Event()
        self.status = 200
        self.hangs = False

    async def take(self, request: web.Request) -> web.StreamResponse:
        names = {name.lower(): value for name, value in request.headers.items()}
        self.heard.append((request.raw_path, names, await request.read()))
        self.came.set()
        if self.hangs:
            try:
                await asyncio.Event().wait()
            finally:
                self.left.set()
        return web.Response(status=self.status, headers={"location": "/elsewhere"}, body=b"x" * 100_000)


@contextlib.asynccontextmanager
async def listen(path: Path) -> AsyncIterator[tuple[Listener, RunsClient]]:
    listener, app = Listener(), web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{tail:.*}", listener.take)
    runner = web.AppRunner(app, shutdown_timeout=0, handler_cancellation=True)
    await runner.setup()
    socket = str(path / "jobs.sock")
    await web.UnixSite(runner, socket).start()
    client = RunsClient(socket)
    try:
        yield listener, client
    finally:
        await client.close()
        await runner.cleanup()


async def send(client: RunsClient, body: bytes = b"{}") -> None:
    headers = [("content-type", "application/json")]
    await client.send("op_1.1", "req-1", "/v1/completions?a=b", headers, body)


async def test_a_run_bears_its_name_and_nothing_that_nobody_asked_for(tmp_path: Path) -> None:
    async with listen(tmp_path) as (listener, client):
        await send(client, b"y" * (5 << 20))
    ((path, headers, body),) = listener.heard
    assert (path, len(body)) == ("/v1/completions?a=b", 5 << 20)
    headers.pop("connection", None)
    assert headers == {
        "host": "jobs",
        "content-type": "application/json",
        "x-request-id": "req-1",
        "x-envoy-ext-run": "op_1.1",
        "content-length": str(5 << 20),
    }


async def test_a_path_goes_on_as_its_client_wrote_it(tmp_path: Path) -> None:
    path = "/v1/completions?a=%2F&b=[1]&c=%zz&d=x+y%20z"
    async with listen(tmp_path) as (listener, client):
        await client.send("op_1.1", "req-1", path, [], b"{}")
    assert [heard for heard, _, _ in listener.heard] == [path]


@pytest.mark.parametrize("status", [307, 500])
async def test_whatever_is_answered_is_read_once_and_not_followed(tmp_path: Path, status: int) -> None:
    async with listen(tmp_path) as (listener, client):
        listener.status = status
        await send(client)
    assert len(listener.heard) == 1


async def test_a_cancel_closes_the_connection(tmp_path: Path) -> None:
    async with listen(tmp_path) as (listener, client):
        listener.hangs = True
        sending = asyncio.create_task(send(client))
        async with asyncio.timeout(10):
            await listener.came.wait()
            sending.cancel()
            await listener.left.wait()


async def test_nobody_there_is_no_exception(tmp_path: Path) -> None:
    client = RunsClient(str(tmp_path / "nobody.sock"))
    await send(client)
    await client.close()
