"""A replica made of bytes: what it was sent is kept as it came, what it answers a test writes out.

For questions about the wire itself, which the simulated engine's HTTP library answers by itself.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.with_envoy.gateway import Gateway, build_unwatched_pool, run_gateway

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class WireRequest:
    """One request as it stood on the wire."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes

    def get_all(self, name: str) -> list[str]:
        """The values of a header, as often as it was sent."""
        return [value for key, value in self.headers if key.lower() == name]


@dataclass(slots=True)
class WireConnection:
    """What an answer is written to."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, *parts: bytes) -> None:
        """Write; each part leaves on its own."""
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    async def send_chunks(self, *parts: bytes) -> None:
        """Write parts of a chunked body."""
        for part in parts:
            await self.send(b"%x\r\n%b\r\n" % (len(part), part))

    async def wait_closed_by_peer(self) -> None:
        """Until the other side has closed or reset the connection."""
        with contextlib.suppress(ConnectionError):
            await self.reader.read()

    def reset(self) -> None:
        """Break the connection off with RST."""
        connection = self.writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.writer.transport.abort()


Answer = Callable[[WireRequest, WireConnection], Awaitable[None]]


class WireEngine:
    """One replica. A test sets `answer`; the connection is closed when it returns."""

    def __init__(self) -> None:
        self.requests: list[WireRequest] = []
        self.answer: Answer = refuse_to_answer
        self.failures: list[BaseException] = []
        self.url = ""
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "WireEngine":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 24)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_exc: object) -> None:
        assert self._server is not None
        self._server.close()
        assert self.failures == []

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await _read_request(reader)
            if request is not None:  # None: the connection was opened in vain
                self.requests.append(request)
                await self.answer(request, WireConnection(reader, writer))
        except ConnectionError:
            pass  # Envoy closed first; some tests are about that
        except Exception as error:  # shown when the engine is left: a task's exception would pass unseen
            self.failures.append(error)
        finally:
            writer.close()


async def refuse_to_answer(_request: WireRequest, _connection: WireConnection) -> None:
    raise AssertionError("the test did not say how this engine answers")


def answering(*parts: bytes) -> Answer:
    """An answer that is always these bytes."""

    async def answer(_request: WireRequest, connection: WireConnection) -> None:
        await connection.send(*parts)

    return answer


def build_response(
    body: bytes, *headers: tuple[str, str], status: str = "200 OK", content_type: str = "application/json"
) -> bytes:
    """A response with its content length."""
    return (
        build_head(("content-length", str(len(body))), *headers, status=status, content_type=content_type)
        + body
    )


def build_head(
    *headers: tuple[str, str], status: str = "200 OK", content_type: str = "text/event-stream"
) -> bytes:
    """A status line and headers; without a content length the body ends with the connection.

    The connection takes one request, so that its close never falls on the next one.
    """
    fields = [("content-type", content_type), ("connection", "close"), *headers]
    return "\r\n".join(
        [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in fields), "", ""]
    ).encode()


async def _read_request(reader: asyncio.StreamReader) -> WireRequest | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    line, *fields = head.removesuffix("\r\n\r\n").split("\r\n")
    headers = [(name.strip(), value.strip()) for name, _, value in (one.partition(":") for one in fields)]
    known = {name.lower(): value for name, value in headers}
    if known.get("transfer-encoding", "").lower() == "chunked":
        body = b"".join([chunk async for chunk in _read_chunks(reader)])
    else:
        body = await reader.readexactly(int(known.get("content-length", "0")))
    return WireRequest(line, headers, body)


async def _read_chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int(await reader.readline(), 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)


@dataclass(frozen=True, slots=True)
class Wired:
    """A gateway and the replicas behind it."""

    gateway: Gateway
    engines: list[WireEngine]

    @property
    def requests(self) -> list[WireRequest]:
        """What reached any replica."""
        return [request for engine in self.engines for request in engine.requests]

    def find_requests(self, request_id: str) -> list[WireRequest]:
        """What reached any replica of one request."""
        return [request for request in self.requests if request.get_all("x-request-id") == [request_id]]

    def answer_with(self, answer: Answer) -> None:
        """How every replica answers from here on."""
        for engine in self.engines:
            engine.answer = answer


@contextlib.asynccontextmanager
async def run_wire_gateway(
    directory: Path, replicas: int = 1, engine: str = "vllm", **sections: Any
) -> AsyncIterator[Wired]:
    """A gateway in front of such replicas."""
    async with contextlib.AsyncExitStack() as opened:
        engines = [await opened.enter_async_context(WireEngine()) for _ in range(replicas)]
        # Nobody looks at them: a test writes out every answer that they give.
        urls = {f"w{number}": one.url for number, one in enumerate(engines)}
        pool = build_unwatched_pool(urls, engine)
        gateway = await opened.enter_async_context(run_gateway(directory, "", pools=[pool], **sections))
        yield Wired(gateway, engines)
