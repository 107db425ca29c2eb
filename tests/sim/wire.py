"""A client that sees bytes: what arrived, and whether the connection ended by FIN, by RST or not at all."""

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from envoy_ext.sim.engine import SimEngine
from envoy_ext.sim.options import SimOptions

CHAT = "/v1/chat/completions"


def quick(**changes: Any) -> SimOptions:
    """Options of an engine that does not make a test wait."""
    return SimOptions(**({"prefill_s": 0.0, "token_s": 0.0, "tokens": 3} | changes))


@dataclass(frozen=True, slots=True)
class Reply:
    """One HTTP answer as it came over the wire."""

    raw: bytes
    reset: bool
    """The connection ended by RST."""

    @property
    def head(self) -> str:
        return self.raw.partition(b"\r\n\r\n")[0].decode("latin-1")

    @property
    def status(self) -> int:
        return int(self.head.split()[1])

    @property
    def headers(self) -> dict[str, str]:
        lines = [line.partition(": ") for line in self.head.split("\r\n")[1:]]
        return {name.lower(): value for name, _, value in lines}

    @property
    def chunks(self) -> list[bytes]:
        """The HTTP chunks that arrived whole."""
        return self._dechunk()[0]

    @property
    def body(self) -> bytes:
        """The body bytes that arrived, in a whole chunk or not."""
        if self.headers.get("transfer-encoding") != "chunked":
            return self.raw.partition(b"\r\n\r\n")[2]
        chunks, rest, _ = self._dechunk()
        return b"".join(chunks) + rest.partition(b"\r\n")[2]

    @property
    def complete(self) -> bool:
        """Whether the body came to the end that its framing announces."""
        length = self.headers.get("content-length")
        if length is not None:
            return len(self.body) == int(length)
        return self._dechunk()[2]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def _dechunk(self) -> tuple[list[bytes], bytes, bool]:
        rest = self.raw.partition(b"\r\n\r\n")[2]
        chunks: list[bytes] = []
        while b"\r\n" in rest:
            size_text, _, tail = rest.partition(b"\r\n")
            size = int(size_text, 16)
            if len(tail) < size + 2:
                break
            assert tail[size : size + 2] == b"\r\n"
            if size == 0:
                return chunks, tail[2:], True
            chunks.append(tail[:size])
            rest = tail[size + 2 :]
        return chunks, rest, False


def build_request(
    path: str, body: Any = None, headers: dict[str, str] | None = None, method: str = "POST"
) -> bytes:
    """A request as bytes; the connection is to be closed after the answer unless a header says otherwise."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"host": "engine", "connection": "close", "content-length": str(len(data))} | (headers or {})
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode() + data


class Connection:
    """One TCP connection to an engine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.seen = b""

    @classmethod
    async def open(cls, port: int) -> "Connection":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def read_until(self, mark: bytes) -> bytes:
        """Read until the mark has been seen; returns all bytes so far."""
        while mark not in self.seen:
            data = await self.reader.read(65536)
            assert data, f"connection ended before {mark!r}: {self.seen!r}"
            self.seen += data
        return self.seen

    async def read_to_end(self) -> Reply:
        """Read until the engine ends the connection."""
        try:
            while data := await self.reader.read(65536):
                self.seen += data
        except ConnectionResetError:
            return Reply(self.seen, reset=True)
        return Reply(self.seen, reset=False)

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionResetError):
            await self.writer.wait_closed()


async def ask(
    engine: SimEngine | int,
    path: str = CHAT,
    body: Any = None,
    *,
    stream: bool = True,
    fault: str | None = None,
    method: str = "POST",
    **headers: str,
) -> Reply:
    """Send one request on its own connection and read everything that comes."""
    port = engine if isinstance(engine, int) else engine.port
    if body is None and method == "POST":
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": stream}
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    if fault is not None:
        fields["x-sim-fault"] = fault
    async with asyncio.timeout(20):
        connection = await Connection.open(port)
        try:
            connection.writer.write(build_request(path, body, fields, method))
            return await connection.read_to_end()
        finally:
            await connection.close()


def read_events(body: bytes) -> list[str]:
    """The data of all events of a body with LF line ends."""
    return [
        line.removeprefix(b"data:").removeprefix(b" ").decode()
        for block in body.split(b"\n\n")
        for line in block.split(b"\n")
        if line.startswith(b"data:")
    ]


def read_chunks(body: bytes) -> list[Any]:
    """The JSON of all events that are JSON."""
    return [json.loads(data) for data in read_events(body) if data != "[DONE]"]


def read_content(body: bytes) -> str:
    """The text of a chat stream."""
    choices = [choice for chunk in read_chunks(body) for choice in chunk.get("choices", [])]
    return "".join(choice["delta"].get("content") or "" for choice in choices)
