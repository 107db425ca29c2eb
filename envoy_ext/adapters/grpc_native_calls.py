"""Calls of Envoy's on the native transport: each is a session, or an answer, on one `Call`."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from envoy.service.accesslog.v3.als_pb2 import StreamAccessLogsMessage, StreamAccessLogsResponse
from envoy.service.auth.v3.external_auth_pb2 import CheckRequest
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from envoy_ext.adapters.accesslog import AccessLogSession
from envoy_ext.adapters.extproc_chunks import get_reply_head, read_chunk
from envoy_ext.adapters.extproc_session import ChunkSession, Outbox, Session
from envoy_ext.adapters.grpc_services import NOT_TRUTHFUL
from envoy_ext.http2.grpc_calls import Call
from envoy_ext.http2.grpc_wire import Status
from envoy_ext.ports import Observer

NOT_OF_ITS_TYPE: Final = "a message that is not of the service's type"
_ONE_MESSAGE: Final = "the method takes one message"

log = logging.getLogger("envoy_ext")


class Wire(Protocol):
    """Whoever writes to the transport."""

    def wake(self) -> None:
        """There may be something to send."""


class ProcessorCall:
    """An ext_proc stream: the session's outbox on one side, the call's handler on the other."""

    __slots__ = ("_call", "_chunks", "_observer", "_session", "_wire")

    def __init__(
        self, call: Call, wire: Wire, build: Callable[[Outbox], Session], observer: Observer
    ) -> None:
        self._call = call
        self._wire = wire
        self._observer = observer
        session = build(self)
        self._session = session
        if isinstance(session, ChunkSession):
            self._chunks = session
            call.quick = self._receive_chunk

    # --- from Envoy ---------------------------------------------------------------------------

    def _receive_chunk(self, framed: bytes) -> bool:
        """Feed the session with what is a chunk and nothing else; False when it is not."""
        chunk = read_chunk(framed)
        if chunk is None:
            return False
        try:
            data = self._chunks.receive_chunk(chunk)
            if data:
                self._call.send_parts(get_reply_head(len(data)), data)
        except Exception as error:
            self._give_up(error)
        return True

    def receive(self, message: bytes) -> None:
        """Feed the session."""
        try:
            self._session.receive(ProcessingRequest.FromString(message))
        except DecodeError:
            log.warning("message_not_read", extra={"detail": "not of the service's type"})
            self.abort()
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Whatever a message did to a session, its stream ends and the next one is served."""
        self._observer.note_bug("session", error)
        self.abort()

    def half_closed(self) -> None:
        """Envoy has said all; so have we."""
        self.finish()

    def closed(self) -> None:
        """The stream is over."""
        try:
            self._session.closed()
        except Exception as error:
            # A bug in one session must not take the connection's other streams with it.
            self._observer.note_bug("session end", error)

    # --- to Envoy -----------------------------------------------------------------------------

    def send(self, response: bytes) -> None:
        """One ProcessingResponse."""
        self._call.send(response)
        self._wire.wake()

    def finish(self) -> None:
        """End the stream cleanly after what was queued."""
        self._call.finish()
        self._wire.wake()

    def abort(self) -> None:
        """End the stream with an error."""
        self._call.finish(Status.ABORTED, NOT_TRUTHFUL)
        self._wire.wake()


class AccessLogCall:
    """A log stream. Envoy never ends one by itself, so a stop does."""

    __slots__ = ("_call", "_observer", "_session", "_wire")

    def __init__(self, call: Call, wire: Wire, session: AccessLogSession, observer: Observer) -> None:
        self._call = call
        self._wire = wire
        self._session = session
        self._observer = observer

    def receive(self, message: bytes) -> None:
        """Take in entries."""
        try:
            self._session.receive(StreamAccessLogsMessage.FromString(message))
        except DecodeError:
            log.warning("message_not_read", extra={"detail": "not of the service's type"})
            self._call.finish(Status.INTERNAL, NOT_OF_ITS_TYPE)
        except Exception as error:
            # Evidence that cannot be read is lost evidence, not a reason to lose the log stream.
            self._observer.note_bug("access log", error)

    def half_closed(self) -> None:
        """Say that all was heard."""
        self.stop()

    def stop(self) -> None:
        """End the stream as if Envoy had."""
        self._call.send(StreamAccessLogsResponse().SerializeToString())
        self._call.finish()
        self._wire.wake()

    def closed(self) -> None:
        """Nothing is kept for it."""


class CheckCall:
    """One ext_authz question. Its answer may take a while; a caller that gives up ends that too."""

    __slots__ = ("_call", "_check", "_message", "_observer", "_task", "_wire")

    def __init__(
        self, call: Call, wire: Wire, check: Callable[[Any], Awaitable[Any]], observer: Observer
    ) -> None:
        self._call = call
        self._wire = wire
        self._check = check
        self._observer = observer
        self._message: bytes | None = None
        self._task: asyncio.Task[None] | None = None

    def receive(self, message: bytes) -> None:
        """The question."""
        if self._message is not None:
            self._call.finish(Status.INTERNAL, _ONE_MESSAGE)
        self._message = message

    def half_closed(self) -> None:
        """It is asked."""
        if self._message is None:
            self._call.finish(Status.INTERNAL, _ONE_MESSAGE)
            return
        message, self._message = self._message, None
        self._task = asyncio.get_running_loop().create_task(self._answer(message))

    def closed(self) -> None:
        """Nobody waits any more."""
        if self._task is not None:
            self._task.cancel()

    async def _answer(self, message: bytes) -> None:
        try:
            response = await self._check(CheckRequest.FromString(message))
            self._call.send(response.SerializeToString())
            self._call.finish()
        except DecodeError:
            log.warning("message_not_read", extra={"detail": "not of the service's type"})
            self._call.finish(Status.INTERNAL, NOT_OF_ITS_TYPE)
        except Exception as error:
            # Whatever was asked, its call gets an end and the next one is served.
            self._observer.note_bug("ext_authz", error)
            self._call.finish(Status.UNKNOWN, "the decision has failed")
        finally:
            self._wire.wake()


class Health:
    """What the gRPC health service says of the whole server, and who wants to hear of changes."""

    def __init__(self) -> None:
        self._serving = False
        self._watches: dict[HealthWatchCall, None] = {}

    def set(self, serving: bool) -> None:
        """From now on."""
        self._serving = serving
        for watch in self._watches:
            watch.tell(self.get(""))

    def get(self, service: str) -> int | None:
        """A status of the health protocol; None for a service that nobody knows here."""
        if service:
            return None
        status = health_pb2.HealthCheckResponse
        return int(status.SERVING if self._serving else status.NOT_SERVING)

    def add(self, watch: "HealthWatchCall") -> None:
        self._watches[watch] = None

    def remove(self, watch: "HealthWatchCall") -> None:
        self._watches.pop(watch, None)


class HealthCheckCall:
    """One question about health."""

    __slots__ = ("_call", "_health", "_service")

    def __init__(self, call: Call, health: Health) -> None:
        self._call = call
        self._health = health
        self._service: str | None = None

    def receive(self, message: bytes) -> None:
        """The question."""
        service = _read_service(self._call, message)
        if self._service is not None:
            self._call.finish(Status.INTERNAL, _ONE_MESSAGE)
        self._service = service

    def half_closed(self) -> None:
        """It is asked."""
        if self._service is None:
            self._call.finish(Status.INTERNAL, _ONE_MESSAGE)
            return
        status = self._health.get(self._service)
        if status is None:
            self._call.finish(Status.NOT_FOUND)
        else:
            self._call.send(_build_health(status))
            self._call.finish()

    def closed(self) -> None:
        """Nothing is kept for it."""


class HealthWatchCall:
    """Who wants to hear of each change. A stop ends it."""

    __slots__ = ("_call", "_health", "_service", "_told", "_wire")

    def __init__(self, call: Call, wire: Wire, health: Health) -> None:
        self._call = call
        self._wire = wire
        self._health = health
        self._service: str | None = None
        self._told: int | None = None

    def receive(self, message: bytes) -> None:
        """What is to be watched; the state of it is told at once."""
        self._service = _read_service(self._call, message)
        if self._service is None:
            return
        status = self._health.get(self._service)
        if status is None:
            self.tell(health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
            return
        self._health.add(self)
        self.tell(status)

    def tell(self, status: int | None) -> None:
        """The state now, which goes out when it is another one."""
        if status is not None and status != self._told:
            self._told = status
            self._call.send(_build_health(status))
            self._wire.wake()

    def half_closed(self) -> None:
        """A question has one message; the answer has no end."""

    def stop(self) -> None:
        """There will be no more changes."""
        self._call.finish(Status.UNAVAILABLE, "the server stops")
        self._wire.wake()

    def closed(self) -> None:
        """Nobody listens any more."""
        self._health.remove(self)


def _read_service(call: Call, message: bytes) -> str | None:
    """The service that is asked about; None, and the call is over, when it cannot be read."""
    try:
        return str(health_pb2.HealthCheckRequest.FromString(message).service)
    except DecodeError:
        call.finish(Status.INTERNAL, NOT_OF_ITS_TYPE)
        return None


def _build_health(status: int) -> bytes:
    return bytes(health_pb2.HealthCheckResponse(status=status).SerializeToString())
