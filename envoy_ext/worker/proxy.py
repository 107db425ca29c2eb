"""A reverse proxy as ASGI application: what stands before an engine that is none, inside the middleware.

Bytes pass as they are: nothing is decompressed, collected or renamed; only what belongs to one connection
(RFC 9110, section 7.6.1) ends here. A client that leaves closes the engine's connection at once.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import aiohttp
from multidict import CIMultiDict

from envoy_ext.worker.engine_kinds import PARSED_S, build_watch, wait_stopped
from envoy_ext.worker.engine_port import EnginePort, Presence
from envoy_ext.worker.settings import EngineKind

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

_CALL: Final = "envoy_ext.call"
"""Where a request's scope has its call."""
OF_ONE_CONNECTION: Final = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding"),
        *(b"upgrade", b"expect"),
    }
)
"""Headers that speak of one connection. The server before us has answered `expect: 100-continue`."""
log = logging.getLogger("envoy_ext.worker")


class Progress(StrEnum):
    """How far a request has come with the engine."""

    NOT_SENT = "not_sent"
    """The engine knows nothing of it: there was no connection."""
    SENT = "sent"
    ANSWERING = "answering"
    ENDED = "ended"
    """Its answer has come to its own end."""


@dataclass(slots=True)
class Call:
    """One request at the engine."""

    headers: CIMultiDict[str]
    progress: Progress = Progress.NOT_SENT
    uploaded_at: float | None = None
    """Monotonic seconds; None while a part of the request is still with us."""


class EngineProxy:
    """Serves each request by one to the engine. Belongs to one event loop."""

    def __init__(
        self,
        port: EnginePort,
        kind: EngineKind,
        on_gone: Callable[[], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._port = port
        self._kind = kind
        self._on_gone = on_gone
        """Told whenever the engine's port refuses, before the client is told anything."""
        self._now = now

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if not scope["raw_path"].startswith(b"/"):
            await _respond(send, 400, "invalid_target", "a request names a path")
            return
        call = Call(_read_headers(scope["headers"]))
        scope[_CALL] = call
        upload = _Upload(call, receive, self._now, _has_body(scope["headers"]))
        exchange = asyncio.ensure_future(self._exchange(call, scope, upload, send))
        leaving = asyncio.ensure_future(upload.wait_left())
        try:
            await asyncio.wait((exchange, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (exchange, leaving):
                task.cancel()
            await asyncio.wait((exchange, leaving))
        if not exchange.cancelled():
            exchange.result()

    async def wait_stopped(self, scope: Scope) -> None:
        """Until the engine works on a request no more. For one of which that cannot be known: for ever."""
        call: Call | None = scope.get(_CALL)
        if call is None or call.progress in (Progress.NOT_SENT, Progress.ENDED):
            return
        had_s = PARSED_S
        if call.progress is Progress.SENT:
            had_s = 0.0 if call.uploaded_at is None else self._now() - call.uploaded_at
        let_in = {name: value for name, value in call.headers.items() if name.lower() == "authorization"}
        await wait_stopped(build_watch(self._kind, self._port, let_in), had_s)

    async def _exchange(self, call: Call, scope: Scope, upload: "_Upload", send: Send) -> None:
        query = scope["query_string"]
        target = (scope["raw_path"] + (b"?" + query if query else b"")).decode("ascii")
        body = upload.read() if upload.has_body else None
        call.progress = Progress.SENT
        try:
            async with self._port.open(scope["method"], target, call.headers, body) as response:
                call.progress = Progress.ANSWERING
                headers = [(name.lower(), value) for name, value in _drop_own(response.raw_headers)]
                await send({"type": "http.response.start", "status": response.status, "headers": headers})
                async for piece in response.content.iter_any():
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                call.progress = Progress.ENDED
                await send({"type": "http.response.body", "body": b""})
        except aiohttp.ClientError as error:
            await self._tell_loss(call, error, send)

    async def _tell_loss(self, call: Call, error: aiohttp.ClientError, send: Send) -> None:
        """The engine's answer did not come, or not whole. The client hears of it when the gateway can already
        see at our port what is at the engine's."""
        began = call.progress is Progress.ANSWERING
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            call.progress = Progress.NOT_SENT
        if await self._port.look() is Presence.GONE:
            self._on_gone()
        if began:
            return  # without its end: the server closes the connection, as the engine did
        log.warning("engine_failed", extra={"progress": call.progress, "error": type(error).__name__})
        if call.progress is Progress.NOT_SENT:
            await _respond(
                send, 502, "engine_unreachable", "no connection to the engine: it was asked nothing"
            )
        else:
            await _respond(send, 502, "engine_lost", "the engine closed the connection, and gave no answer")


class _Upload:
    """The client's end of a request: its body, and then its leaving. One reader at a time."""

    def __init__(self, call: Call, receive: Receive, now: Callable[[], float], has_body: bool) -> None:
        self.has_body = has_body
        self._left = False
        self._call = call
        self._receive = receive
        self._now = now
        self._over = asyncio.Event()
        if not has_body:
            self._note_whole()

    async def read(self) -> AsyncIterator[bytes]:
        """The body, piece by piece."""
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._left = True
                self._over.set()
                raise ConnectionResetError("the client has left")
            if message.get("body"):
                yield message["body"]
            more = message.get("more_body", False)
        self._note_whole()

    async def wait_left(self) -> None:
        """Until the client has left."""
        await self._over.wait()
        while not self._left:
            self._left = (await self._receive())["type"] == "http.disconnect"

    def _note_whole(self) -> None:
        self._call.uploaded_at = self._now()
        self._over.set()


def _read_headers(headers: Headers) -> CIMultiDict[str]:
    """What goes on to the engine. aiohttp writes UTF-8; a value that is none would not pass as it is."""
    read: CIMultiDict[str] = CIMultiDict()
    for name, value in _drop_own(headers):
        try:
            read.add(name.decode("ascii"), value.decode("utf-8"))
        except UnicodeDecodeError:
            read.add(name.decode("ascii"), value.decode("latin-1"))
    return read


def _drop_own(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Without what belongs to one connection, by its name or because `connection` names it."""
    listed = [(bytes(name), bytes(value)) for name, value in headers]
    tokens = (value for name, value in listed if name.lower() == b"connection")
    named = {token.strip().lower() for value in tokens for token in value.split(b",")}
    dropped = OF_ONE_CONNECTION | named
    return [(name, value) for name, value in listed if name.lower() not in dropped]


def _has_body(headers: Headers) -> bool:
    sizes = [(name.lower(), value.strip()) for name, value in headers]
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0") for name, value in sizes
    )


async def _respond(send: Send, status: int, code: str, text: str) -> None:
    body = json.dumps({"error": {"code": code, "type": "engine_error", "message": text}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
