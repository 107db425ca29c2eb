"""A chat engine that is an ASGI application, on a real uvicorn, with the worker's middleware around it."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from envoy_ext.worker import LeaseMiddleware
from envoy_ext.worker.settings import WorkerSettings, build_channel


class AsgiEngine:
    """Streams as many tokens as the request's `x-tokens` says, one each 50 ms."""

    def __init__(self) -> None:
        self.url = ""
        self.running = 0
        self.failing = False
        self.stubborn_s = 0.0
        """How long it computes on when it was told to stop."""
        self.ended_at = 0.0
        """When it last stopped, in monotonic seconds."""
        self._middlewares: list[LeaseMiddleware] = []
        self._app: Any = Starlette(routes=[Route("/v1/chat/completions", self._stream, methods=["POST"])])
        self._middleware: Any = None

    def renew_at(self, gateway: str) -> None:
        """Renew leases there from the next request on."""
        self._middleware = LeaseMiddleware(
            self._app, channel=build_channel(WorkerSettings((gateway,)), call_s=0.5), renew_s=0.3
        )
        self._middlewares.append(self._middleware)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._middleware(scope, receive, send)

    async def close(self) -> None:
        for middleware in self._middlewares:
            await middleware.close()

    async def _stream(self, request: Request) -> Response:
        if self.failing:
            return Response("out of memory", 500)
        tokens = int(request.headers["x-tokens"])

        async def generate() -> AsyncIterator[bytes]:
            self.running += 1
            try:
                for _ in range(tokens):
                    yield _build_event({"content": "x"})
                    await asyncio.sleep(0.05)
                yield _build_event({}, "stop") + b"data: [DONE]\n\n"
            finally:
                with anyio.CancelScope(shield=True):
                    await asyncio.sleep(self.stubborn_s)
                self.running -= 1
                self.ended_at = time.monotonic()

        return StreamingResponse(generate(), media_type="text/event-stream")


def _build_event(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


@asynccontextmanager
async def run_asgi_engine() -> AsyncIterator[AsgiEngine]:
    engine = AsgiEngine()
    config = uvicorn.Config(engine, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    engine.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    serving = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]))
    try:
        yield engine
    finally:
        server.should_exit = True
        await serving
        await engine.close()
