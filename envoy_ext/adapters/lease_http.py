"""The lease service over HTTP, for workers without gRPC: the two calls of `protos/leases.proto` as JSON.

Only replicas need to reach it. It tells nothing about operations, and takes no more than ids.
"""

import json
from typing import Final

from aiohttp import web

from envoy_ext.domain.ids import AttemptId, FencingToken, OperationId
from envoy_ext.services.leases import LeaseAnswer, Leases

MAX_BODY_BYTES: Final = 4096
_MAX_ID_CHARS: Final = 64
_STOP_S: Final = 1.0


class BadQuestion(ValueError):
    """A body that names no lease; the message says which field."""


class LeaseHttpServer:
    """Owns the listening socket. `start` once, `stop` once."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_post("/v1/leases/renew", self._renew)
        app.router.add_post("/v1/leases/stopped", self._note_stopped)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_STOP_S)

    async def start(self, address: str, port: int) -> int:
        """Listen; the port, which 0 leaves to the kernel.

        Raises:
            OSError: the address cannot be listened at.
        """
        await self._runner.setup()
        await web.TCPSite(self._runner, address, port).start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Close the port."""
        await self._runner.cleanup()

    async def _renew(self, request: web.Request) -> web.Response:
        try:
            named = read_question(await request.read())
        except BadQuestion as mistake:
            return _answer(400, error=str(mistake))
        answer = self._leases.renew(*named)
        if answer is LeaseAnswer.UNKNOWN:
            return _answer(404, error="no such attempt here")
        if answer is LeaseAnswer.NOT_NOW:
            return _answer(503, error="this gateway grants nothing at the moment")
        return _answer(200, granted=answer is LeaseAnswer.GRANTED)

    async def _note_stopped(self, request: web.Request) -> web.Response:
        try:
            named = read_question(await request.read())
        except BadQuestion as mistake:
            return _answer(400, error=str(mistake))
        if not self._leases.note_stopped(*named):
            return _answer(404, error="no such attempt here")
        return _answer(200)


def read_question(body: bytes) -> tuple[OperationId, AttemptId, FencingToken]:
    """Which lease a body speaks of.

    Raises:
        BadQuestion: it is no JSON object with these fields.
    """
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        raise BadQuestion("the body is not JSON") from None
    if not isinstance(asked, dict):
        raise BadQuestion("the body is not a JSON object")
    ids = []
    for name in ("operation_id", "attempt_id"):
        value = asked.get(name)
        if not isinstance(value, str) or not 0 < len(value) <= _MAX_ID_CHARS:
            raise BadQuestion(f"{name}: must be an id")
        ids.append(value)
    token = asked.get("token")
    if not isinstance(token, int) or isinstance(token, bool) or token < 1:
        raise BadQuestion("token: must be a whole number from 1")
    return OperationId(ids[0]), AttemptId(ids[1]), FencingToken(token)


def _answer(status: int, **fields: object) -> web.Response:
    return web.json_response(fields, status=status, headers={"server": "envoy-ext"})
