"""A simulated tool: it does nothing but write down each time that it was called, and answer.

Every path is a tool. An answer names its execution, so that one that is given again is seen to be so.
`behaviour` says how it answers; over HTTP it is read and changed at `/sim/behaviour`, and the log is at
`/sim/executions`.
"""

import asyncio
import json
import ssl
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from aiohttp import web


@dataclass(slots=True)
class Behaviour:
    """How a tool answers."""

    status: int = 200
    size: int = 0
    """At least so many bytes of body."""
    delay_s: float = 0.0
    fault: str = ""
    """`cut`: it acts, and closes the connection; `cut_mid_body`: in the middle of its answer; `hold`: it
    acts, and answers when `release` is called, or never; `listen`: it sends an event, and ends the stream
    when `release` is called."""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Execution:
    """One time that the tool has acted."""

    number: int
    method: str
    path: str
    key: str | None
    """Its Idempotency-Key."""
    headers: dict[str, str]
    body: str
    time: float
    """CLOCK_MONOTONIC, which all processes of a machine share."""


class SimTool:
    """One tool server, in the caller's event loop: `async with SimTool() as tool`."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.host = host
        self._tls = tls
        self.port = port
        self.behaviour = Behaviour()
        self.executions: list[Execution] = []
        self._changed = asyncio.Condition()
        self._released = asyncio.Event()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """Where it listens, once started."""
        return f"{'https' if self._tls else 'http'}://{self.host}:{self.port}"

    @property
    def keys(self) -> list[str | None]:
        """The idempotency keys it was given, in order."""
        return [execution.key for execution in self.executions]

    async def start(self) -> None:
        """Listen."""
        app = web.Application(client_max_size=1 << 30)
        app.router.add_get("/sim/executions", self._get_executions)
        app.router.add_get("/sim/behaviour", self._get_behaviour)
        app.router.add_post("/sim/behaviour", self._post_behaviour)
        app.router.add_route("*", "/{path:.*}", self._execute)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, self.host, self.port, ssl_context=self._tls).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close everything."""
        self.release()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop()

    def reset(self) -> None:
        """As it was when it began."""
        self.behaviour = Behaviour()
        self.executions = []
        self._released = asyncio.Event()

    def release(self) -> None:
        """Answer what is held."""
        self._released.set()

    async def wait_executions(self, count: int) -> None:
        """Until it has acted so often."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.executions) >= count)

    async def _execute(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        behaviour = self.behaviour
        execution = Execution(
            number=len(self.executions) + 1,
            method=request.method,
            path=request.raw_path,
            key=request.headers.get("idempotency-key"),
            headers={name.lower(): value for name, value in request.headers.items()},
            body=body.decode(errors="replace"),
            time=time.monotonic(),
        )
        async with self._changed:
            self.executions.append(execution)
            self._changed.notify_all()
        await asyncio.sleep(behaviour.delay_s)
        if behaviour.fault == "hold":
            await self._released.wait()
        if behaviour.fault == "cut":
            return _cut(request)
        return await self._answer(request, execution, behaviour)

    async def _answer(
        self, request: web.Request, execution: Execution, behaviour: Behaviour
    ) -> web.StreamResponse:
        data = json.dumps(_build_answer(execution, behaviour.size)).encode()
        if behaviour.fault == "listen":
            return await self._send_event(request)
        headers = {"content-type": "application/json", **behaviour.headers}
        if behaviour.fault != "cut_mid_body":
            return web.Response(status=behaviour.status, body=data, headers=headers)
        response = web.StreamResponse(status=behaviour.status, headers=headers)
        response.content_length = len(data)
        await response.prepare(request)
        await response.write(data[: len(data) // 2])
        return _cut(request)

    async def _send_event(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        await self._released.wait()
        return response

    async def _get_executions(self, _request: web.Request) -> web.Response:
        return web.json_response({"executions": [asdict(one) for one in self.executions]})

    async def _get_behaviour(self, _request: web.Request) -> web.Response:
        return web.json_response(asdict(self.behaviour))

    async def _post_behaviour(self, request: web.Request) -> web.Response:
        try:
            self.behaviour = Behaviour(**await request.json())
        except (ValueError, TypeError):
            return web.Response(
                status=400, text=f"write a JSON object with some of {list(asdict(Behaviour()))}\n"
            )
        return web.json_response(asdict(self.behaviour))


def _cut(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.close()
    return web.Response()


def _build_answer(execution: Execution, size: int) -> dict[str, Any]:
    """A JSON-RPC request gets an answer with its id."""
    answer: dict[str, Any] = {"execution": execution.number, "padding": "x" * size}
    try:
        asked = json.loads(execution.body)
    except ValueError:
        asked = None
    if isinstance(asked, dict) and asked.get("jsonrpc") == "2.0":
        return {"jsonrpc": "2.0", "id": asked.get("id"), "result": answer}
    return answer
