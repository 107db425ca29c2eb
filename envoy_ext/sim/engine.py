"""The simulated engine: a server shaped like vLLM's, for one replica.

`SimEngine` lives in the caller's event loop; `run_sim_engine` is a whole process's job. Every
instance has its own state and its own metric registry.
"""

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any, Final, Self

from aiohttp import web

from envoy_ext.sim.answer import error_object
from envoy_ext.sim.answering import REPLICA_HEADER, Answering
from envoy_ext.sim.control import FaultControl, LoadControl
from envoy_ext.sim.event_log import EventLog
from envoy_ext.sim.faults import FaultError
from envoy_ext.sim.metrics import SimMetrics
from envoy_ext.sim.options import SimOptions
from envoy_ext.sim.player import kill_this_process
from envoy_ext.sim.shape import Shape
from envoy_ext.sim.shapes import SHAPES, BadCall
from envoy_ext.sim.state import EngineState, RequestRecord

__all__ = ["SimEngine", "SimOptions", "run_sim_engine"]

# Far above any prompt, so that a limit in front of the engine is the one that is seen.
_MAX_BODY_BYTES: Final = 256 * 1024 * 1024
# Connections that wait to be accepted; a load test opens hundreds at once.
_BACKLOG: Final = 1024

log = logging.getLogger(__name__)


class SimEngine:
    """One engine. Start and stop it from one event loop; its state may be read between awaits.

    `die` is what a `:kill` fault calls. Without it such a fault is refused, because it would end
    a process that is not the engine's own.
    """

    def __init__(self, options: SimOptions, *, die: Callable[[], None] | None = None) -> None:
        self.options = options
        self.state = EngineState(options.max_running, options.first_generation)
        self.faults = FaultControl()
        self.load = LoadControl()
        self.looks = 0
        """How often the metrics page was read."""
        self.port = options.port
        self._started_at = time.time()
        self._metrics = SimMetrics(options, self.state, self._started_at, self.load)
        self._runner: web.AppRunner | None = None
        self._log = EventLog(options.event_log, options.name)
        self._answering = Answering(options, self.state, self._metrics, self.faults, self._log, die)

    @property
    def url(self) -> str:
        """Where it listens; valid after `start`."""
        return f"http://{self.options.host}:{self.port}"

    async def start(self) -> None:
        """Listen; afterwards `port` and `url` are true."""
        self._log.open()
        # Bodies stay as they came (auto_decompress), so that their digest is the wire's.
        self._runner = web.AppRunner(
            self._build_app(), handler_cancellation=True, auto_decompress=False, access_log=None
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.options.host, self.options.port, backlog=_BACKLOG)
        await site.start()
        self.port = self._runner.addresses[0][1]
        log.info("sim engine %s listens on %s", self.options.name, self.url)

    async def stop(self) -> None:
        """Cut every answer that is being sent, close every connection, free the port."""
        self._answering.cut_all()
        self.state.stop()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        self._log.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop()

    def cut(self, request_id: str) -> None:
        """Cut the answers to one request that are being sent, as a crash would."""
        self._answering.cut(request_id)

    def find_requests(self, request_id: str | None = None) -> list[RequestRecord]:
        """The remembered requests, oldest first."""
        return [r for r in self.state.requests if request_id is None or r.request_id == request_id]

    def _build_app(self) -> web.Application:
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        for shape in SHAPES:
            app.router.add_post(shape.path, partial(self._answer, shape=shape))
        app.add_routes(
            [
                web.get("/health", self._get_health),
                web.get("/metrics", self._get_metrics),
                web.get("/v1/models", self._get_models),
                web.post("/abort_request", self._post_abort),
                web.get("/v1/models/{id:.+}", self._get_model),
                web.get("/sim/requests", self._get_requests),
                web.get("/sim/state", self._get_state),
                web.get("/sim/faults", self._get_faults),
                web.post("/sim/faults", self._post_fault),
                web.delete("/sim/faults", self._delete_faults),
                web.post("/sim/load", self._post_load),
                web.delete("/sim/load", self._delete_load),
            ]
        )
        return app

    async def _answer(self, request: web.Request, shape: type[Shape]) -> web.StreamResponse:
        return await self._answering.answer(request, shape)

    async def _get_health(self, _request: web.Request) -> web.Response:
        return web.Response(headers=self._reply_headers())

    async def _get_metrics(self, _request: web.Request) -> web.Response:
        self.looks += 1
        headers = self._reply_headers() | {"content-type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self._metrics.expose(), headers=headers)

    async def _get_models(self, _request: web.Request) -> web.Response:
        cards = [self._model_card(name) for name in (*self.options.models, *self.options.adapters)]
        return self._reply(200, {"object": "list", "data": cards})

    async def _get_model(self, request: web.Request) -> web.Response:
        name = request.match_info["id"]
        if name not in (*self.options.models, *self.options.adapters):
            error = BadCall(404, f"The model `{name}` does not exist.", "NotFoundError", "model")
            return self._reply(error.status, error.body)
        return self._reply(200, self._model_card(name))

    async def _post_abort(self, request: web.Request) -> web.Response:
        """SGLang's: 200 whatever is there, and nothing at all for an empty rid. `abort_all` ends everybody's,
        so it is a mistake here."""
        asked = await request.json()
        if asked.get("abort_all"):
            return self._refuse("abort_all would end the requests of others")
        if asked.get("rid"):
            self.state.abort(asked["rid"])
        return web.Response(headers=self._reply_headers())

    async def _get_requests(self, request: web.Request) -> web.Response:
        found = self.find_requests(request.query.get("request_id"))
        return self._reply(200, {"requests": [asdict(record) for record in found]})

    async def _get_state(self, _request: web.Request) -> web.Response:
        state = self.state
        counters = {
            "name": self.options.name,
            "pid": os.getpid(),
            "started_at": self._started_at,
            "running": state.running,
            "waiting": state.waiting,
            "generations": state.generations,
            "cancelled": state.cancelled,
            "kv_tokens": state.kv_tokens,
        }
        return self._reply(200, counters)

    async def _get_faults(self, _request: web.Request) -> web.Response:
        return self._reply(200, {"faults": self.faults.list_armed()})

    async def _post_fault(self, request: web.Request) -> web.Response:
        try:
            value = await request.json()
            text, count = value["fault"], value.get("count")
        except (ValueError, KeyError, TypeError, AttributeError):
            return self._refuse('write {"fault": "…", "count": 3}; a count of null holds until DELETE')
        if not isinstance(text, str) or not (count is None or (type(count) is int and count > 0)):
            return self._refuse("fault: a text; count: a whole number from 1, or null")
        try:
            self.faults.arm(text, count)
        except FaultError as error:
            return self._refuse(str(error))
        return self._reply(200, {"faults": self.faults.list_armed()})

    async def _delete_faults(self, _request: web.Request) -> web.Response:
        self.faults.clear()
        return self._reply(200, {"faults": []})

    async def _post_load(self, request: web.Request) -> web.Response:
        try:
            self.load.tell(await request.json())
        except ValueError as error:
            return self._refuse(str(error))
        return self._reply(200, {"load": self.load.told})

    async def _delete_load(self, _request: web.Request) -> web.Response:
        self.load.tell({})
        return self._reply(200, {"load": {}})

    def _reply_headers(self) -> dict[str, str]:
        return {REPLICA_HEADER: self.options.name}

    def _reply(self, status: int, value: object) -> web.Response:
        return web.json_response(value, status=status, headers=self._reply_headers())

    def _refuse(self, message: str) -> web.Response:
        return self._reply(400, error_object(message, "BadRequestError", 400))

    def _model_card(self, name: str) -> dict[str, Any]:
        adapter = name not in self.options.models
        return {
            "id": name,
            "object": "model",
            "created": int(self._started_at),
            "owned_by": "vllm",
            "root": f"adapters/{name}" if adapter else self.options.root or self.options.models[0],
            "parent": self.options.models[0] if adapter else None,
            "max_model_len": None if adapter else self.options.kv_capacity_tokens,
        }


async def run_sim_engine(options: SimOptions) -> None:
    """Be the engine of this process until SIGTERM or SIGINT; says on stdout when it is ready.

    The process belongs to the engine: a `:kill` fault ends it.
    """
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    try:
        async with SimEngine(options, die=kill_this_process) as engine:
            sys.stdout.write(f"sim-engine {options.name} listening on {engine.url}\n")
            sys.stdout.flush()
            await stopped.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
