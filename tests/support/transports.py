"""Both gRPC transports with the same services behind them, for tests that hold one against the other."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse

from envoy_ext.adapters.extproc_codec import build_streamed_body
from envoy_ext.adapters.extproc_session import Outbox
from envoy_ext.adapters.grpc_native import NativeServer
from envoy_ext.adapters.grpc_server import GrpcServer
from envoy_ext.adapters.grpc_services import PROCESS, Services
from envoy_ext.domain import names
from tests.support.sidecar import Watcher

TRANSPORTS: Final = ("grpc_aio", "native")
WAIT_S: Final = 30.0
MAX_REQUEST: Final = 8 << 20


class Session:
    """Does what the body of each message says, and keeps what it heard."""

    def __init__(self, outbox: Outbox, observer: Watcher) -> None:
        self._outbox = outbox
        self._observer = observer
        self.heard: list[str] = []
        self.over = asyncio.Event()

    def receive(self, message: Any) -> None:
        body: bytes = message.response_body.body
        word, _, rest = body.partition(b":")
        self.heard.append(word.decode())
        match word:
            case b"echo":
                self._send(rest)
            case b"many":
                for number in range(int(rest)):
                    self._send(b"%d" % number)
            case b"large":
                self._send(b"x" * int(rest))
            case b"later":
                asyncio.get_running_loop().call_soon(self._send, rest)
            case b"finish":
                self._send(rest)
                self._outbox.finish()
                self._send(b"behind the end")
            case b"abort":
                self._send(rest)
                self._outbox.abort()
                self._outbox.finish()
            case b"raise":
                raise ValueError("a bug of this session")

    def _send(self, data: bytes) -> None:
        self._outbox.send(build_streamed_body(data, end=False))

    def closed(self) -> None:
        assert not self.over.is_set(), "closed twice"
        self.heard.append("closed")
        self.over.set()
        if "raise at the end" in self.heard:
            raise ValueError("a bug at the end of this session")


class LogSession:
    """Keeps the names of logs."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def receive(self, message: Any) -> None:
        if message.identifier.log_name == "raise":
            raise ValueError("a bug of this session")
        self.heard.append(message.identifier.log_name)


@dataclass
class Served:
    """One server and all that its services heard."""

    address: str
    server: GrpcServer | NativeServer
    watcher: Watcher
    sessions: list[Session] = field(default_factory=list)
    logs: list[LogSession] = field(default_factory=list)


@contextlib.asynccontextmanager
async def serve(
    transport: str,
    directory: Path,
    check: Callable[[Any], Awaitable[Any]] | None = None,
    build: Callable[[Services], Services] | None = None,
) -> AsyncIterator[Served]:
    """A server at a socket; nothing of a stream is left when it has stopped."""
    watcher = Watcher()
    unused: Any = None
    served = Served(f"unix:{directory}/{transport}.sock", unused, watcher)

    def open_session(outbox: Outbox) -> Session:
        served.sessions.append(Session(outbox, watcher))
        return served.sessions[-1]

    def open_log() -> Any:
        served.logs.append(LogSession())
        return served.logs[-1]

    services = Services(
        delivery=open_session,
        attempt=open_session,
        access_log=open_log,
        check=check or _refuse_to_say,
        observer=watcher,
        max_request_bytes=MAX_REQUEST,
    )
    if build is not None:
        services = build(services)
    served.server = NativeServer(services) if transport == "native" else GrpcServer(services, unused)
    await served.server.start(served.address)
    try:
        yield served
    finally:
        await served.server.stop(0)
    async with asyncio.timeout(WAIT_S):
        for session in served.sessions:
            await session.over.wait()


async def _refuse_to_say(_request: Any) -> Any:
    raise AssertionError("nobody asks this here")


def connect(address: str) -> grpc.aio.Channel:
    """A client with a connection of its own."""
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
    ]
    return grpc.aio.insecure_channel(address, options=options)


def build_request(body: bytes) -> bytes:
    request = ProcessingRequest()
    request.response_body.body = body
    return bytes(request.SerializeToString())


def open_stream(channel: grpc.aio.Channel, role: str = names.ROLE_DELIVERY, **options: Any) -> Any:
    """An ext_proc stream that sends bytes as they are."""
    return channel.stream_stream(PROCESS, response_deserializer=ProcessingResponse.FromString)(
        metadata=[(names.ROLE_METADATA, role)], **options
    )


async def read_body(call: Any) -> bytes | None:
    """The next answer's bytes; None behind the last one."""
    answer = await call.read()
    if answer is grpc.aio.EOF:
        return None
    return bytes(answer.response_body.response.body_mutation.streamed_response.body)
