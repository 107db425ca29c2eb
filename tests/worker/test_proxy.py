"""The proxy between a client and an engine, both made of bytes: what passes, and what a loss is."""

import asyncio
import gzip
import hashlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from envoy_ext.domain.errors import CannotListen
from envoy_ext.worker.engine_port import EnginePort
from envoy_ext.worker.proxy_server import ProxyServer
from tests.support.proxied import Proxied, run_proxied
from tests.support.raw_http import RawExchange, RawServer, build_response

Play = Callable[[RawExchange], Awaitable[None]]
HELLO = build_response(b"hello")


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, raw: bytes) -> None:
        self.writer.write(raw)
        await self.writer.drain()

    async def read_head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the next answer."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines[1:] if line)
        return int(lines[0].split()[1]), {name.lower(): value.strip() for name, _, value in pairs}

    async def read_plain(self) -> tuple[int, dict[str, str], bytes]:
        """An answer that has a length."""
        status, headers = await self.read_head()
        return status, headers, await self.reader.readexactly(int(headers["content-length"]))

    async def read_chunk(self) -> bytes:
        size = int(await self.reader.readline(), 16)
        return (await self.reader.readexactly(size + 2))[:size]


@asynccontextmanager
async def connect(proxied: Proxied) -> AsyncIterator[Client]:
    await proxied.wait_open()
    reader, writer = await asyncio.open_connection("127.0.0.1", proxied.port)
    try:
        async with asyncio.timeout(60):
            yield Client(reader, writer)
    finally:
        writer.transport.abort()


async def test_a_request_passes_as_it_is_but_for_what_belongs_to_its_connection() -> None:
    async with RawServer(HELLO) as engine, run_proxied(engine.url) as proxied, connect(proxied) as client:
        await client.send(
            b"POST /v1/a%2Fb/../%C3%A9?x=%20&y&&z=%2B HTTP/1.1\r\nHost: chat.example\r\n"
            b"Connection: keep-alive, X-Hop\r\nKeep-Alive: 5\r\nX-Hop: 1\r\nTE: trailers\r\nUpgrade: h2c\r\n"
            b"Proxy-Connection: close\r\nX-Twice: 1\r\nX-Twice: 2\r\nX-Name: caf\xc3\xa9\r\n"
            b"Authorization: Bearer k\r\nContent-Length: 4\r\n\r\nbody"
        )
        assert await client.read_plain() == (
            *(200, {"content-type": "text/plain; version=0.0.4", "content-length": "5"}),
            b"hello",
        )
    (seen,) = engine.exchanges
    head, body = seen.request.split(b"\r\n\r\n", 1)
    first, *lines = head.split(b"\r\n")
    assert first == b"POST /v1/a%2Fb/../%C3%A9?x=%20&y&&z=%2B HTTP/1.1"
    assert sorted(line.lower() for line in lines) == [
        *(b"authorization: bearer k", b"connection: close", b"content-length: 4", b"host: chat.example"),
        *(b"x-name: caf\xc3\xa9", b"x-twice: 1", b"x-twice: 2"),
    ]
    assert body == b"body"


async def test_an_answer_passes_as_it_is_but_for_what_belongs_to_its_connection() -> None:
    packed = gzip.compress(b"hello " * 100)
    answer = build_response(
        packed,
        *(
            "content-encoding: gzip",
            "set-cookie: a=1",
            "set-cookie: b=2",
            "date: yesterday",
            "server: llama.cpp",
        ),
        "x-long: " + "l" * 20_000,
        *("keep-alive: timeout=5, max=100", "connection: x-hop", "x-hop: 1", "location: http://elsewhere/"),
        status=302,
    )
    async with RawServer(answer) as engine, run_proxied(engine.url) as proxied, connect(proxied) as client:
        await client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        head = (await client.reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        assert head[0].startswith(b"HTTP/1.1 302 ")
        assert sorted(head[1:-2]) == [
            *(b"content-encoding: gzip", b"content-length: %d" % len(packed)),
            *(b"content-type: text/plain; version=0.0.4", b"date: yesterday"),
            *(b"location: http://elsewhere/", b"server: llama.cpp", b"set-cookie: a=1", b"set-cookie: b=2"),
            b"x-long: " + b"l" * 20_000,
        ]
        assert await client.reader.readexactly(len(packed)) == packed


async def test_each_piece_passes_when_it_comes() -> None:
    passed = asyncio.Event()

    async def play(exchange: RawExchange) -> None:
        await exchange.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for _ in range(3):
            await exchange.send(b"9\r\ndata: x\n\n\r\n")
            await passed.wait()
            passed.clear()
        await exchange.send(b"0\r\n\r\n")

    async with RawServer(play) as engine, run_proxied(engine.url) as proxied, connect(proxied) as client:
        await client.send(b"POST /stream HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}")
        status, headers = await client.read_head()
        assert (status, headers["transfer-encoding"]) == (200, "chunked")
        for _ in range(3):
            assert await client.read_chunk() == b"data: x\n\n"
            passed.set()
        assert await client.read_chunk() == b""


async def test_large_bodies_pass_both_ways_whole() -> None:
    size = 8 << 20
    body = bytes(range(256)) * (size // 256)
    digest = hashlib.sha256(body).hexdigest()

    async def play(exchange: RawExchange) -> None:
        got = hashlib.sha256(exchange.body).hexdigest()
        await exchange.send(build_response(body, f"x-got: {got}"))

    async with RawServer(play) as engine, run_proxied(engine.url) as proxied, connect(proxied) as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % size + body)
        status, headers, answer = await client.read_plain()
    assert (status, headers["x-got"], hashlib.sha256(answer).hexdigest()) == (200, digest, digest)


async def test_a_body_in_chunks_goes_on_in_chunks_before_it_is_whole() -> None:
    """RawServer reads no chunks: the engine is a bare socket here."""
    got = bytearray()
    whole = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not got.endswith(b"0\r\n\r\n"):
            piece = await reader.read(65536)
            if not piece:
                break  # a look at the port
            got.extend(piece)
            if b"first" in got:
                whole.set()
        if whole.is_set():
            writer.write(HELLO)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with run_proxied(url) as proxied, connect(proxied) as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        await whole.wait()
        await client.send(b"6\r\nsecond\r\n0\r\n\r\n")
        assert (await client.read_plain())[2] == b"hello"
    server.close()
    head, body = bytes(got).split(b"\r\n\r\n", 1)
    assert b"transfer-encoding: chunked" in head.lower()
    assert b"content-length" not in head.lower()
    assert body == b"5\r\nfirst\r\n6\r\nsecond\r\n0\r\n\r\n"


async def test_a_client_that_asks_first_is_told_to_go_on() -> None:
    async with RawServer(HELLO) as engine, run_proxied(engine.url) as proxied, connect(proxied) as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
        assert (await client.read_head())[0] == 100
        await client.send(b"body")
        assert (await client.read_plain())[2] == b"hello"
    assert engine.exchanges[0].body == b"body"
    assert "expect" not in engine.exchanges[0].headers


async def test_words_before_the_answer_end_here() -> None:
    hints = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"
    async with (
        RawServer(hints + HELLO) as engine,
        run_proxied(engine.url) as proxied,
        connect(proxied) as client,
    ):
        await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n")
        assert (await client.read_plain())[2] == b"hello"


@pytest.mark.parametrize("length", [b"content-length: 5\r\n", b"transfer-encoding: chunked\r\n"])
async def test_a_head_has_its_answer_s_headers_and_no_body_and_the_connection_goes_on(length: bytes) -> None:
    async def play(exchange: RawExchange) -> None:
        head = b"HTTP/1.1 200 OK\r\n" + length + b"\r\n"
        await exchange.send(head if exchange.line.startswith("HEAD") else HELLO)

    async with RawServer(play) as engine, run_proxied(engine.url) as proxied, connect(proxied) as client:
        await client.send(b"HEAD / HTTP/1.1\r\nHost: h\r\n\r\n")
        status, headers = await client.read_head()
        assert (status, headers.get("content-length")) == (200, "5" if b"length" in length else None)
        await client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await client.read_plain())[2] == b"hello"
    assert [one.line.split()[0] for one in engine.exchanges] == ["HEAD", "GET"]


@pytest.mark.parametrize("begun", [False, True])
async def test_a_client_that_leaves_closes_the_engine_s_connection(begun: bool) -> None:
    left, answered = asyncio.Event(), asyncio.Event()

    async def play(exchange: RawExchange) -> None:
        if begun:
            await exchange.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n")
        answered.set()
        await exchange.wait_closed_by_peer()
        left.set()

    async with RawServer(play) as engine, run_proxied(engine.url) as proxied, connect(proxied) as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}")
        await answered.wait()
        if begun:
            await client.read_head()
        client.writer.close()
        await left.wait()


async def test_a_client_that_leaves_within_its_request_closes_the_engine_s_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun, closed = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while piece := await reader.read(65536):
                if b"half" in piece:
                    begun.set()
        if begun.is_set():
            closed.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with run_proxied(url) as proxied, connect(proxied) as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 8\r\n\r\nhalf")
        await begun.wait()
        client.writer.close()
        await closed.wait()
    server.close()
    assert "engine_failed" not in caplog.messages, "the fault was not the engine's"


async def test_a_path_that_names_another_host_is_not_followed() -> None:
    async with RawServer(HELLO) as engine, run_proxied(engine.url) as proxied, connect(proxied) as client:
        await client.send(b"GET http://elsewhere:1/ HTTP/1.1\r\nHost: h\r\n\r\n")
        status, _, body = await client.read_plain()
    assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_target")
    assert engine.exchanges == []


# --- an engine that is lost -------------------------------------------------------------------------


async def test_an_engine_that_refuses_was_asked_nothing_and_the_port_refuses_too_until_it_is_back() -> None:
    async with RawServer(HELLO) as engine:
        port = engine.port
        async with run_proxied(engine.url) as proxied:
            async with connect(proxied) as client:
                await engine.__aexit__()
                await client.send(b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n")
                status, _, body = await client.read_plain()
                assert (status, json.loads(body)["error"]["code"]) == (502, "engine_unreachable")
                assert not await proxied.is_open()
            async with RawServer(HELLO, port), connect(proxied) as client:
                await client.send(b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n")
                assert (await client.read_plain())[2] == b"hello"


async def test_an_engine_that_dies_in_its_answer_is_gone_from_the_port_before_the_client_hears_of_it() -> (
    None
):
    async def play(exchange: RawExchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n")
        await exchange.wait_closed_by_peer()

    async with RawServer(play) as engine, run_proxied(engine.url) as proxied, connect(proxied) as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}")
        await client.read_head()
        assert await client.read_chunk() == b"x"
        await engine.__aexit__()
        assert await client.reader.read() == b"", "cut, and not ended"
        assert not await proxied.is_open()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nconten", b"SSH-2.0-x\r\n\r\n"])
async def test_an_engine_that_closes_without_an_answer_is_there_still(answer: bytes) -> None:
    async def play(exchange: RawExchange) -> None:
        await exchange.send(answer)
        exchange.reset()

    async with RawServer(play) as engine, run_proxied(engine.url) as proxied, connect(proxied) as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}")
        status, _, body = await client.read_plain()
        assert (status, json.loads(body)["error"]["code"]) == (502, "engine_lost")
        assert await proxied.is_open()
    assert len(engine.exchanges) == 1, "no request is sent twice"


@pytest.mark.parametrize("head", [b"content-length: 9\r\n", b"transfer-encoding: chunked\r\n"])
async def test_an_answer_that_breaks_off_breaks_off_here(head: bytes) -> None:
    async def play(exchange: RawExchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n")
        exchange.reset()

    async with RawServer(play) as engine, run_proxied(engine.url) as proxied, connect(proxied) as client:
        await client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        await client.read_head()
        assert await client.reader.read() == b""
        assert await proxied.is_open()


async def test_the_port_opens_with_the_engine() -> None:
    async with RawServer(HELLO) as engine:
        port, url = engine.port, engine.url
    async with run_proxied(url) as proxied:
        assert not await proxied.is_open()
        async with RawServer(HELLO, port):
            await proxied.wait_open()


async def test_what_is_under_way_at_the_end_is_finished() -> None:
    asked, finish = asyncio.Event(), asyncio.Event()

    async def play(exchange: RawExchange) -> None:
        asked.set()
        await finish.wait()
        await exchange.send(HELLO)

    async def ask(proxied: Proxied) -> bytes:
        async with connect(proxied) as client:
            await client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            return (await client.read_plain())[2]

    async with RawServer(play) as engine:
        async with run_proxied(engine.url) as proxied:
            asking = asyncio.ensure_future(ask(proxied))
            await asked.wait()
            asyncio.get_running_loop().call_later(0.05, finish.set)
        assert not await proxied.is_open()
        assert await asking == b"hello"


async def test_an_address_that_is_taken_is_named() -> None:
    async with RawServer(HELLO) as taken:
        server = ProxyServer("127.0.0.1", taken.port, EnginePort(taken.url))
        with pytest.raises(CannotListen, match=f"--listen: cannot listen at 127.0.0.1:{taken.port}"):
            server.bind()


async def test_an_address_that_somebody_else_took_meanwhile_is_waited_for() -> None:
    async with RawServer(HELLO) as engine:
        proxy_server = ProxyServer("127.0.0.1", 0, EnginePort(engine.url))
        port = int(proxy_server.bind().rpartition(":")[2])
        stop = asyncio.Event()
        serving = asyncio.ensure_future(proxy_server.serve(refuse_all, stop))
        proxied = Proxied(f"http://127.0.0.1:{port}")
        await proxied.wait_open()
        proxy_server.note_gone()  # the port is free at once, and taken before it is wanted again
        with socket.create_server(("127.0.0.1", port)):
            await asyncio.sleep(0.3)
            assert not serving.done()
        await proxied.wait_open()
        stop.set()
        await serving


async def refuse_all(_scope: Any, _receive: Any, _send: Any) -> None:
    raise AssertionError("nothing is asked here")
