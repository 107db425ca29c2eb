"""An engine that is an ASGI application, on a real uvicorn, with the middleware around it."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from envoy_ext.worker import LeaseMiddleware, tool_headers
from envoy_ext.worker.settings import WorkerSettings, build_channel


class _DeafResponse(StreamingResponse):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.stream_response(send)


class Engine:
    """Streams a token each 20 ms as long as its client is there, and counts who it computes for."""

    def __init__(self) -> None:
        self.url = ""
        self.running = 0
        self.tokens = 0
        self.ended_at: float | None = None
        self.stubborn_s = 0.0
        """How long it goes on computing when it was told to stop."""

        self.in_sends_only = False
        """It never asks whether its client has left; a send that fails is all it hears."""

    async def stream(self, _request: Request) -> StreamingResponse:
        async def generate() -> AsyncIterator[bytes]:
            self.running += 1
            try:
                while True:
                    self.tokens += 1
                    yield b"data: token\n\n"
                    await asyncio.sleep(0.02)
            finally:
                with anyio.CancelScope(shield=True):
                    await asyncio.sleep(self.stubborn_s)
                self.running -= 1
                self.ended_at = time.monotonic()

        build = _DeafResponse if self.in_sends_only else StreamingResponse
        return build(generate(), media_type="text/event-stream")

    async def answer_late(self, request: Request) -> JSONResponse:
        """Computes until its client has left, and answers all the same, as vLLM's handlers do."""
        while not await request.is_disconnected():
            await asyncio.sleep(0.01)
        return JSONResponse(None)

    async def show_tool_headers(self, _request: Request) -> JSONResponse:
        """What a tool call would carry: in this task, in one that it starts, and in a thread."""
        task = asyncio.ensure_future(asyncio.to_thread(tool_headers))
        return JSONResponse([tool_headers(), await task])

    async def answer(self, request: Request) -> JSONResponse:
        return JSONResponse({"got": (await request.body()).decode()})


@asynccontextmanager
async def run_engine(gateways: tuple[str, ...], core: Any = None) -> AsyncIterator[Engine]:
    engine = Engine()
    app: Any = Starlette(
        routes=[
            Route("/stream", engine.stream, methods=["POST"]),
            Route("/tools", engine.show_tool_headers, methods=["POST"]),
            Route("/late", engine.answer_late, methods=["POST"]),
            Route("/answer", engine.answer, methods=["POST", "GET"]),
        ]
    )
    app.state.engine_client = core
    wrapped: Any = LeaseMiddleware(
        app, channel=build_channel(WorkerSettings(gateways), call_s=0.4), renew_s=0.3
    )
    server = uvicorn.Server(
        uvicorn.Config(wrapped, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    )
    listener = socket.create_server(("127.0.0.1", 0))
    engine.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    serving = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]))
    try:
        yield engine
    finally:
        server.should_exit = True
        await serving
        await wrapped.close()
