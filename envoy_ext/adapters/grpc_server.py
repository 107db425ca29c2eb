"""The gRPC server: one port for ext_proc, access logs, ext_authz and health, on `grpc.aio`.

It carries sessions and knows nothing of what they say. A session never waits, so one reader task
feeds it and one writer sends what it queued; the stream's end, whoever caused it, reaches the
session exactly once.
"""

import asyncio
import errno
import logging
import os
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import grpc
from envoy.service.accesslog.v3.als_pb2 import StreamAccessLogsMessage, StreamAccessLogsResponse
from envoy.service.auth.v3.external_auth_pb2 import CheckRequest, CheckResponse
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from envoy_ext.adapters.accesslog import AccessLogSession
from envoy_ext.adapters.ads import DIALECTS
from envoy_ext.adapters.extproc_session import Outbox, Session
from envoy_ext.adapters.grpc_services import (
    CHECK,
    NO_ROLE,
    NOT_TRUTHFUL,
    PROCESS,
    STREAM_ACCESS_LOGS,
    Services,
    is_listened_at,
)
from envoy_ext.domain import names
from envoy_ext.xds.dialects import Dialect

_ABORTED: Final = object()
_UNIX: Final = "unix:"

log = logging.getLogger("envoy_ext")


class _StreamOutbox:
    """The queue between a session and its stream's writer."""

    def __init__(self) -> None:
        self._queue: deque[Any] = deque()
        self._wake = asyncio.Event()
        self._over = False

    def send(self, response: Any) -> None:
        if not self._over:
            self._queue.append(response)
            self._wake.set()

    def finish(self) -> None:
        self.send(None)
        self._over = True

    def abort(self) -> None:
        self.send(_ABORTED)
        self._over = True

    async def next(self) -> Any:
        """The next response; None for a clean end, `_ABORTED` for the other."""
        while not self._queue:
            self._wake.clear()
            await self._wake.wait()
        return self._queue.popleft()


class GrpcServer:
    """Owns the listening socket. `start`, then `stop(grace)` once."""

    def __init__(self, services: Services, discovery: Callable[[Outbox, Dialect], Session]) -> None:
        self._services = services
        self._discovery = discovery
        self._observer = services.observer
        self._health = HealthServicer()
        self._stopping = asyncio.Event()
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", services.max_message_bytes),
                # What we send is ours: endpoints of a large fleet must not meet a limit for bodies.
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
                # Envoy multiplexes all streams of a worker over one connection.
                ("grpc.max_concurrent_streams", 1_000_000),
                # Envoy pings an idle connection; the default policy would answer with GOAWAY.
                ("grpc.http2.min_ping_interval_without_data_ms", 1000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.max_ping_strikes", 0),
            ]
        )
        self._server.add_generic_rpc_handlers((self._build_handlers(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    async def start(self, address: str) -> int:
        """Listen at `unix:PATH` or `HOST:PORT` (port 0 picks one) and serve.

        Returns the port, 1 for a socket. The file of a socket at which nobody listens any more is replaced.

        Raises:
            OSError: the address cannot be listened at.
        """
        # gRPC would take the file of a running sidecar away from it, and remove it when either of them ends.
        if address.startswith(_UNIX) and is_listened_at(address.removeprefix(_UNIX)):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        try:
            port = int(self._server.add_insecure_port(address))
        except RuntimeError as error:
            raise OSError(f"cannot listen at {address}: {error}") from None
        await self._server.start()
        await self.set_serving(True)
        return port

    async def set_serving(self, serving: bool) -> None:
        """What the gRPC health service answers."""
        status = health_pb2.HealthCheckResponse
        await self._health.set("", status.SERVING if serving else status.NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Stop listening, let streams end for `grace_s`, then cut them.

        Envoy never ends a log stream by itself, and who stops the server has heard all there is to hear.
        """
        self._stopping.set()
        await self._server.stop(grace_s)

    def _build_handlers(self) -> Any:
        process = grpc.stream_stream_rpc_method_handler(
            self._process,
            ProcessingRequest.FromString,
            None,  # sessions send bytes
        )
        logs = grpc.stream_unary_rpc_method_handler(
            self._stream_logs, StreamAccessLogsMessage.FromString, StreamAccessLogsResponse.SerializeToString
        )
        check = grpc.unary_unary_rpc_method_handler(
            self._check, CheckRequest.FromString, CheckResponse.SerializeToString
        )
        methods: dict[str, Any] = {
            PROCESS: process,
            STREAM_ACCESS_LOGS: logs,
            CHECK: check,
        }
        for dialect in DIALECTS:
            methods[dialect.method] = grpc.stream_stream_rpc_method_handler(
                self._build_discovery(dialect), dialect.request.FromString, dialect.response.SerializeToString
            )
        return _Methods(methods)

    def _build_discovery(self, dialect: Dialect) -> Any:
        async def stream(_requests: Any, context: Any) -> None:
            """Envoy never ends a discovery stream by itself; a stop does, as with the log streams."""
            loop = asyncio.get_running_loop()
            carried = loop.create_task(self._carry(context, lambda outbox: self._discovery(outbox, dialect)))
            stopping = loop.create_task(self._stopping.wait())
            try:
                await asyncio.wait((carried, stopping), return_when=asyncio.FIRST_COMPLETED)
                if carried.done():
                    carried.result()
            finally:
                carried.cancel()
                stopping.cancel()

        return stream

    async def _process(self, _requests: Any, context: Any) -> None:
        role = dict(context.invocation_metadata()).get(names.ROLE_METADATA)
        build = self._services.find_processor(str(role))
        if build is None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, NO_ROLE)
            return
        await self._carry(context, build)

    async def _carry(self, context: Any, build: Callable[[Outbox], Session]) -> None:
        """One stream from its begin to its end."""
        outbox = _StreamOutbox()
        session = build(outbox)
        reader = asyncio.get_running_loop().create_task(self._read(context, session, outbox))
        try:
            while (response := await outbox.next()) is not None:
                if response is _ABORTED:
                    # First: its read would fail by our own abort, and look like a bug of the session.
                    await _cancel(reader)
                    await context.abort(grpc.StatusCode.ABORTED, NOT_TRUTHFUL)
                await context.write(response)
        finally:
            reader.cancel()
            try:
                session.closed()
            except Exception as error:
                # A bug in one session must not take the server's other streams with it.
                self._observer.note_bug("session end", error)

    async def _read(self, context: Any, session: Session, outbox: _StreamOutbox) -> None:
        """Feed the session until Envoy closes its side."""
        try:
            while await _feed(context, session):
                pass
            outbox.finish()
        except asyncio.CancelledError:
            raise
        except DecodeError:
            log.warning("message_not_read", extra={"detail": "not of the service's type"})
            outbox.abort()
        except Exception as error:
            # Whatever a message did to a session, its stream ends and the next one is served.
            self._observer.note_bug("session", error)
            outbox.abort()

    async def _stream_logs(self, requests: Any, _context: Any) -> Any:
        reader = asyncio.get_running_loop().create_task(
            self._read_logs(requests, self._services.access_log())
        )
        stopping = asyncio.get_running_loop().create_task(self._stopping.wait())
        try:
            await asyncio.wait((reader, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            reader.cancel()
            stopping.cancel()
        return StreamAccessLogsResponse()

    async def _read_logs(self, requests: Any, session: AccessLogSession) -> None:
        async for message in requests:
            try:
                session.receive(message)
            except Exception as error:
                # Evidence that cannot be read is lost evidence, not a reason to lose the log stream.
                self._observer.note_bug("access log", error)

    async def _check(self, request: Any, _context: Any) -> Any:
        return await self._services.check(request)


async def _feed(context: Any, session: Session) -> bool:
    """Hand one message on; False when there are no more.

    A function of its own, so that nothing keeps a message while the next one is waited for: it may be a
    request's whole body, and the wait that for a slot.
    """
    message = await _read_message(context)
    if message is grpc.aio.EOF:
        return False
    session.receive(message)
    return True


async def _read_message(context: Any) -> Any:
    """The next message, EOF when there will be none: the client has ended its side, or the whole stream."""
    try:
        return await context.read()
    except grpc.aio.UsageError:  # "RPC already finished": it was cancelled while nobody was reading
        return grpc.aio.EOF


async def _cancel(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait until it has gone."""
    task.cancel()
    await asyncio.wait((task,))


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Routes by full method name."""

    def __init__(self, methods: dict[str, Any]) -> None:
        self._methods = methods

    def service(self, handler_call_details: Any) -> Any:
        return self._methods.get(handler_call_details.method)
