"""A client that stops reading loses its stream and frees its replica; a slow client loses nothing.

The kernel of a client takes in what it has room for, so these clients have small buffers, and the first
event is too large for all of them. Time is what these tests are about: the limit is real.
"""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import h2.config
import h2.connection
import h2.events
import pytest

from envoy_ext.adapters.socket_diag import SocketDiag
from envoy_ext.ports import Connection
from tests.with_envoy.asking import (
    CHAT,
    Reply,
    ask,
    asking,
    build_body,
    build_headers,
    mint_request_id,
    read_deltas,
)
from tests.with_envoy.gateway import Gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMIT_S = 1.5
GATEWAY = {
    "names": "ab",
    "engine": {"tokens": 5000, "token_s": 0.05, "max_running": 64},
    "limits": {"client_write_stall": f"{LIMIT_S}s"},
}
BIG = "big_event=200000"
SHORT = {"max_tokens": 40}


class RawClient:
    """One request over a socket of its own that takes in little."""

    def __init__(self, sock: socket.socket, request_id: str) -> None:
        self.sock = sock
        self.request_id = request_id

    async def read(self, size: int) -> bytes:
        async with asyncio.timeout(20):
            return await asyncio.get_running_loop().sock_recv(self.sock, size)

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def read_more_than(self, size: int) -> bytes:
        data = b""
        while len(data) <= size:
            more = await self.read(4096)
            assert more, "the answer ended early"
            data += more
        return data


@contextlib.asynccontextmanager
async def connected(gateway: Gateway) -> AsyncIterator[RawClient]:
    url = urlsplit(gateway.url)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (url.hostname, url.port))
        yield RawClient(sock, mint_request_id())


@contextlib.asynccontextmanager
async def asking_raw(gateway: Gateway, **fields: object) -> AsyncIterator[RawClient]:
    """A client that has sent its request over HTTP/1.1."""
    async with connected(gateway) as client:
        body = json.dumps(build_body(**fields)).encode()
        headers = build_headers(client.request_id, BIG, {"content-length": str(len(body)), "host": "a"})
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        await client.send(f"POST {CHAT} HTTP/1.1\r\n{head}\r\n".encode() + body)
        yield client


class Http2Client:
    """Streams over one connection, each with a window of 65,535 bytes that opens when its reader says so."""

    def __init__(self, client: RawClient) -> None:
        self._client = client
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(1 << 24)
        self.data: dict[int, bytes] = {}
        self.ended: dict[int, type[h2.events.Event]] = {}

    async def ask(self, request_id: str, fault: str, **fields: object) -> int:
        stream = self._h2.get_next_available_stream_id()
        pseudo = {":method": "POST", ":path": CHAT, ":scheme": "http", ":authority": "a"}
        headers = {**pseudo, **build_headers(request_id, fault)}
        self._h2.send_headers(stream, list(headers.items()))
        self._h2.send_data(stream, json.dumps(build_body(**fields)).encode(), end_stream=True)
        self.data[stream] = b""
        await self._flush()
        return stream

    async def open_window(self, stream: int, size: int) -> None:
        self._h2.increment_flow_control_window(size, stream)
        await self._flush()

    async def read_until_ended(self, *streams: int) -> None:
        while not all(stream in self.ended for stream in streams):
            received = await self._client.read(65_536)
            assert received, "the connection ended"
            for event in self._h2.receive_data(received):
                if isinstance(event, h2.events.DataReceived):
                    self.data[event.stream_id] += event.data
                elif isinstance(event, h2.events.StreamEnded | h2.events.StreamReset):
                    self.ended[event.stream_id] = type(event)
            await self._flush()

    async def _flush(self) -> None:
        if data := self._h2.data_to_send():
            await self._client.send(data)


async def assert_stalled(gateway: Gateway, request_id: str) -> None:
    operation = await gateway.wait_operation(request_id)
    assert (operation["ending"], operation["state"]) == ("client_gone", "cancelled")
    assert operation["error"]["reason"] == "client_stalled"
    assert [attempt["outcome"] for attempt in operation["attempts"]] == ["cancelled"]


def assert_whole(reply: Reply) -> None:
    assert not reply.cut
    assert (len(reply.parts), reply.dones, reply.errors) == (SHORT["max_tokens"], 1, [])


async def wait_engines_idle_but_for(gateway: Gateway, running: int) -> None:
    async with asyncio.timeout(20):
        while sum(engine.state.running for engine in gateway.engines.values()) != running:
            await asyncio.sleep(0.02)


async def test_stalled_clients_are_ended_and_nobody_beside_them_is(gateway: Gateway) -> None:
    silent = mint_request_id()
    async with contextlib.AsyncExitStack() as opened:
        waiting = await opened.enter_async_context(asking(gateway, fault="hang_after=3", request_id=silent))
        await read_deltas(waiting, 3)
        prefilling = asyncio.ensure_future(ask(gateway, fault="hang"))
        stalled = [await opened.enter_async_context(asking_raw(gateway)) for _ in range(20)]
        for client in stalled:
            await client.read_more_than(10_000)
        healthy = await asyncio.gather(*(ask(gateway, body=build_body(**SHORT)) for _ in range(6)))
        for reply in healthy:
            assert_whole(reply)
        for client in stalled:
            await assert_stalled(gateway, client.request_id)
        await wait_engines_idle_but_for(gateway, 2)

        assert not prefilling.done(), "a long prefill is no stall"
        assert not waiting.closed, "a silent replica is no stall"
        held = gateway.read_metric("envoy_ext_inflight", pool="chat", phase="decode")
        assert held == 1
        prefilling.cancel()
        await asyncio.wait((prefilling,))

    operation = await gateway.wait_operation(silent)
    assert (operation["ending"], operation["error"]) == ("client_gone", None)
    counted = gateway.read_metric("envoy_ext_interrupted_streams_total", pool="chat", reason="client_stalled")
    assert counted == 20
    await gateway.wait_idle()


async def test_one_stalled_stream_of_an_http2_connection_is_ended_alone(gateway: Gateway) -> None:
    stalled, healthy, slow = mint_request_id(), mint_request_id(), mint_request_id()
    async with connected(gateway) as client:
        http2 = Http2Client(client)
        first = await http2.ask(stalled, BIG)
        second = await http2.ask(healthy, "", **SHORT)
        third = await http2.ask(slow, BIG, **SHORT)
        reading = asyncio.ensure_future(http2.read_until_ended(first, second, third))
        began = time.monotonic()
        while time.monotonic() - began < 3 * LIMIT_S:
            await http2.open_window(third, 4096)
            await asyncio.sleep(LIMIT_S / 10)
        await http2.open_window(third, 1 << 20)
        async with asyncio.timeout(20):
            await reading
    assert http2.ended == {
        first: h2.events.StreamReset,
        second: h2.events.StreamEnded,
        third: h2.events.StreamEnded,
    }
    assert len(http2.data[first]) == 65_535
    assert http2.data[third].endswith(b"data: [DONE]\n\n")
    await assert_stalled(gateway, stalled)
    for request_id in (healthy, slow):
        assert (await gateway.wait_operation(request_id))["ending"] == "finished"


async def test_a_client_that_reads_slowly_gets_its_whole_answer(gateway: Gateway) -> None:
    """It reads for three times the limit, and Envoy holds more for it all the while than it lets in."""
    async with asking_raw(gateway, **SHORT) as client:
        with contextlib.closing(SocketDiag()) as diag:
            (peer_ip, peer_port), (local_ip, local_port) = (
                client.sock.getsockname(),
                client.sock.getpeername(),
            )
            if diag.read_acked(Connection(local_ip, local_port, peer_ip, peer_port)) is None:
                pytest.skip("this kernel does not tell of connections (sock_diag)")
        began, data = time.monotonic(), b""
        while time.monotonic() - began < 3 * LIMIT_S:
            data += await client.read(1500)
            await asyncio.sleep(0.05)
        while not data.endswith(b"\r\n0\r\n\r\n"):
            more = await client.read(65_536)
            assert more, "the answer ended early"
            data += more
    assert b"data: [DONE]" in data
    operation = await gateway.wait_operation(client.request_id)
    assert (operation["ending"], operation["error"]) == ("finished", None)
