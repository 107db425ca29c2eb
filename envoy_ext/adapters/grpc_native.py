"""The native transport: ext_proc, access logs, ext_authz and health on our own HTTP/2, over asyncio.

The same sessions as behind `grpc_server`, on `http2`, which costs a fraction of `grpc.aio` for each
message. For an Envoy beside the sidecar, over a Unix socket or loopback: it speaks no TLS.
"""

import asyncio
import errno
import logging
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

from envoy_ext.adapters.grpc_native_calls import (
    AccessLogCall,
    CheckCall,
    Health,
    HealthCheckCall,
    HealthWatchCall,
    ProcessorCall,
)
from envoy_ext.adapters.grpc_services import (
    CHECK,
    NO_ROLE,
    PROCESS,
    STREAM_ACCESS_LOGS,
    Services,
    is_listened_at,
)
from envoy_ext.domain import names
from envoy_ext.http2.grpc_calls import Call, CallHandler, ServerCalls
from envoy_ext.http2.grpc_wire import Status
from envoy_ext.http2.header_blocks import RequestHeaders
from envoy_ext.http2.limits import Limits

DRAIN_ANSWER_S: Final = 1.0
"""How long a client may take to answer the first step of a drain."""
LAST_BYTES_S: Final = 2.0
"""How long a client may take to read what is left when a connection is closed."""
WRITE_BUFFER_BYTES: Final = 256 << 10
"""What may wait in the transport of one connection before streams wait instead."""

_HEALTH_CHECK: Final = "/grpc.health.v1.Health/Check"
_HEALTH_WATCH: Final = "/grpc.health.v1.Health/Watch"
_UNIX: Final = "unix:"

log = logging.getLogger("envoy_ext")


class NativeServer:
    """Owns the listening socket and its connections, on one event loop. `start`, then `stop(grace)` once."""

    def __init__(self, services: Services, limits: Limits | None = None) -> None:
        self.services = services
        self.health = Health()
        self.limits = limits or Limits()
        """What a connection may cost; at a Unix socket nobody is asked by PING."""
        self._server: asyncio.Server | None = None
        self._file: tuple[Path, int] | None = None
        """The socket's file and its inode: another server may have put its own in the same place."""
        self._stopping = False
        self._connections: dict[_Connection, None] = {}
        self._all_gone = asyncio.Event()
        self._all_gone.set()

    @property
    def open_connections(self) -> int:
        """How many clients there are."""
        return len(self._connections)

    @property
    def open_calls(self) -> int:
        """How many streams there are, over all clients."""
        return sum(connection.calls.open_calls for connection in self._connections)

    async def start(self, address: str) -> int:
        """Listen at `unix:PATH` or `HOST:PORT` (port 0 picks one) and serve.

        Returns the port, 1 for a socket. The file of a socket at which nobody listens any more is replaced.

        Raises:
            OSError: the address cannot be listened at.
        """
        loop = asyncio.get_running_loop()
        if not address.startswith(_UNIX):
            host, _, port = address.rpartition(":")
            self._server = await loop.create_server(self._accept, host.strip("[]"), int(port))
            self.health.set(True)
            return int(self._server.sockets[0].getsockname()[1])
        # The kernel tells of each end of such a peer; a silent one may come back to its streams.
        self.limits = replace(self.limits, ping_after_s=None)
        path = Path(address.removeprefix(_UNIX))
        if is_listened_at(str(path)):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self._server = await loop.create_unix_server(self._accept, str(path))
        self._file = (path, path.stat().st_ino)
        self.health.set(True)
        return 1

    async def set_serving(self, serving: bool) -> None:
        """What the gRPC health service answers."""
        self.health.set(serving)

    async def stop(self, grace_s: float) -> None:
        """Stop listening, let streams end for `grace_s`, then cut them.

        Envoy never ends a log stream by itself, and who stops the server has heard all there is to hear.
        """
        if self._server is not None:
            self._server.close()
        if self._file is not None:
            path, inode = self._file
            with suppress(OSError):
                if path.stat().st_ino == inode:
                    path.unlink()
        self._stopping = True
        for connection in tuple(self._connections):
            connection.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._all_gone.wait()
        for connection in tuple(self._connections):
            connection.cut()
        await self._all_gone.wait()

    def _accept(self) -> "_Connection":
        return _Connection(self)

    def add(self, connection: "_Connection") -> bool:
        """A client has come; False when it is too late for it."""
        if self._stopping:
            return False
        self._connections[connection] = None
        self._all_gone.clear()
        return True

    def remove(self, connection: "_Connection") -> None:
        """A client has gone."""
        self._connections.pop(connection, None)
        if not self._connections:
            self._all_gone.set()


class _Connection(asyncio.Protocol):
    """One client's connection: bytes between the transport and its calls."""

    def __init__(self, server: NativeServer) -> None:
        self._server = server
        self._services = server.services
        self.calls = ServerCalls(self._open, server.services.max_message_bytes, server.limits)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._busy = False
        """Bytes are being read: what is to be sent goes out behind that."""
        self._planned = False
        self._closing = False
        self._due: float | None = None
        """When the timer was meant to fire: what it says of itself is rounded."""
        self._timer: asyncio.TimerHandle | None = None

    # --- the transport ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's have all of its methods, and are no instances.
        self._transport = transport = cast(asyncio.Transport, transport)
        if not self._server.add(self):
            transport.abort()
            return
        transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        self.calls.begin(self._loop.time())
        self._flush()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._busy = True
        try:
            self.calls.receive(data, self._loop.time())
        except Exception as error:
            self._give_up(error)
        finally:
            self._busy = False
        self._flush()

    def pause_writing(self) -> None:
        self.calls.set_writable(False)

    def resume_writing(self) -> None:
        self.calls.set_writable(True)
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = True
        self._cancel_timer()
        self._server.remove(self)
        self.calls.close_all(self._loop.time())

    # --- to the transport ---------------------------------------------------------------------

    def wake(self) -> None:
        """There may be something to send; in the same turn of the event loop it is sent once."""
        if not (self._busy or self._planned or self._closing):
            self._planned = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._planned = False
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        calls, now = self.calls, self._loop.time()
        self._busy = True
        try:
            while output := calls.take_output(now):
                transport.write(output)
        except Exception as error:
            self._give_up(error)
        finally:
            self._busy = False
        if calls.failure is not None:
            log.warning("envoy_connection_failed", extra={"detail": calls.failure})
            self._close()
        elif calls.drained:
            self._close()
        else:
            self._watch_deadlines()

    def _watch_deadlines(self) -> None:
        due = self.calls.next_deadline()
        if due != self._due:
            self._cancel_timer()
            if due is not None:
                self._due, self._timer = due, self._loop.call_at(due, self._expire)

    def _expire(self) -> None:
        due = self._due or 0.0
        self._due = self._timer = None
        # A timer may fire a tick of the clock before its time.
        self.calls.expire(max(self._loop.time(), due))
        self._flush()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = self._timer = None

    # --- the end ------------------------------------------------------------------------------

    def drain(self) -> None:
        """Take no more calls, and end those that Envoy never ends."""
        for handler in self.calls.list_handlers():
            if isinstance(handler, AccessLogCall | HealthWatchCall):
                handler.stop()
        self.calls.connection.begin_drain()
        self._loop.call_later(DRAIN_ANSWER_S, self._finish_drain)
        self._flush()

    def _finish_drain(self) -> None:
        self.calls.connection.finish_drain()
        self._flush()

    def cut(self) -> None:
        """End all that is left."""
        self.calls.connection.finish_drain()
        self.calls.close_all(self._loop.time())
        self._flush()
        self._close()

    def _close(self) -> None:
        if self._closing or self._transport is None:
            return
        self._closing = True
        self._cancel_timer()
        self._transport.close()
        self._loop.call_later(LAST_BYTES_S, self._transport.abort)

    def _give_up(self, error: Exception) -> None:
        """A bug of ours costs this connection, which can be trusted no more; Envoy opens another."""
        self._services.observer.note_bug("native transport", error)
        if self._transport is not None:
            self._transport.abort()

    # --- calls --------------------------------------------------------------------------------

    def _open(self, call: Call, headers: RequestHeaders) -> CallHandler | None:
        """A call has begun; None when there is no such method, or the call is over already."""
        services, path = self._services, headers.path
        try:
            if path == PROCESS:
                return self._open_processor(call, headers)
            if path == STREAM_ACCESS_LOGS:
                return AccessLogCall(call, self, services.access_log(), services.observer)
            if path == CHECK:
                return CheckCall(call, self, services.check, services.observer)
            if path == _HEALTH_CHECK:
                return HealthCheckCall(call, self._server.health)
            if path == _HEALTH_WATCH:
                return HealthWatchCall(call, self, self._server.health)
        except Exception as error:
            # Whatever a begin did, its call gets an end and the next one is served.
            services.observer.note_bug("session begin", error)
            call.finish(Status.UNKNOWN, "the service has failed")
        return None

    def _open_processor(self, call: Call, headers: RequestHeaders) -> CallHandler | None:
        build = self._services.find_processor(headers.fields.get(names.ROLE_METADATA, ""))
        if build is None:
            call.finish(Status.INVALID_ARGUMENT, NO_ROLE)
            return None
        return ProcessorCall(call, self, build, self._services.observer)
