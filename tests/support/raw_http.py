"""An HTTP server that answers whatever bytes a test says, also those no server should send."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Self

Answer = Callable[["RawExchange"], Awaitable[None]]


class RawExchange:
    """One request on one connection, and the hand that answers it."""

    def __init__(self, request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.request = request
        self.written = 0
        self._reader = reader
        self._writer = writer

    @property
    def line(self) -> str:
        """`GET /metrics HTTP/1.1`"""
        return self.request.split(b"\r\n", 1)[0].decode()

    @property
    def headers(self) -> dict[str, str]:
        head = self.request.split(b"\r\n\r\n", 1)[0].decode()
        pairs = (line.split(":", 1) for line in head.split("\r\n")[1:])
        return {name.strip().lower(): value.strip() for name, value in pairs}

    @property
    def body(self) -> bytes:
        return self.request.split(b"\r\n\r\n", 1)[1]

    async def send(self, raw: bytes) -> None:
        """These bytes, and wait until the kernel has room again."""
        self._writer.write(raw)
        await self._writer.drain()
        self.written += len(raw)

    async def send_until_closed(self, piece: bytes) -> None:
        """The piece again and again, until the peer has gone."""
        with suppress(ConnectionError):
            while not self._reader.at_eof():
                await self.send(piece)
                await asyncio.sleep(0)

    async def wait_closed_by_peer(self) -> None:
        """Say nothing until the peer has gone."""
        with suppress(ConnectionError):
            await self._reader.read()

    def reset(self) -> None:
        """End the connection with RST."""
        raw = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


def build_response(
    body: bytes,
    *headers: str,
    status: int = 200,
    content_type: str = "text/plain; version=0.0.4",
) -> bytes:
    """A whole response with a length."""
    lines = [
        f"HTTP/1.1 {status} Whatever",
        f"content-type: {content_type}",
        f"content-length: {len(body)}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class RawServer:
    """Listens on a port of 127.0.0.1, a free one unless named, and answers each request with `answer`."""

    def __init__(self, answer: Answer | bytes, port: int = 0) -> None:
        self._answer = answer
        self._port = port
        self._connections: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._asked = asyncio.Condition()
        self.accepted = 0
        self.exchanges: list[RawExchange] = []

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def wait_for_requests(self, count: int) -> None:
        """Until so many requests have come."""
        async with self._asked:
            await self._asked.wait_for(lambda: len(self.exchanges) >= count)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port, backlog=512)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._connections):
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._connections.add(writer)
        try:
            while not writer.is_closing():
                exchange = RawExchange(await _read_request(reader), reader, writer)
                self.exchanges.append(exchange)
                async with self._asked:
                    self._asked.notify_all()
                if isinstance(self._answer, bytes):
                    await exchange.send(self._answer)
                else:
                    await self._answer(exchange)
                if exchange.headers.get("connection") == "close":
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._connections.discard(writer)
            writer.close()


async def _read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    return head + await reader.readexactly(length)
