"""The native transport's connections: their begin, their end, and what they hold of a client that is deaf."""

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
import uvloop
from envoy.service.accesslog.v3.als_pb2 import StreamAccessLogsMessage, StreamAccessLogsResponse
from grpc_health.v1 import health_pb2, health_pb2_grpc

from envoy_ext.adapters import grpc_native
from envoy_ext.adapters.grpc_native import NativeServer
from envoy_ext.adapters.grpc_services import PROCESS, STREAM_ACCESS_LOGS
from envoy_ext.domain import names
from envoy_ext.http2.connection import Connection
from envoy_ext.http2.limits import Limits
from tests.support import http2_client as client
from tests.support.transports import WAIT_S, Served, build_request, connect, open_stream, read_body, serve

STREAM = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", PROCESS),
    ("content-type", "application/grpc"),
    (names.ROLE_METADATA, names.ROLE_DELIVERY),
)


@pytest_asyncio.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serve("native", tmp_path) as one:
        yield one
    assert one.watcher.bugs == []


def server_of(served: Served) -> NativeServer:
    assert isinstance(served.server, NativeServer)
    return served.server


class RawClient:
    """A client that says what it is told to, and reads when it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._frames = client.Reader()

    @classmethod
    async def connect(cls, served: Served) -> "RawClient":
        path = served.address.removeprefix("unix:")
        return cls(*await asyncio.open_unix_connection(path, limit=1 << 24))

    def say(self, *parts: bytes) -> None:
        self.writer.write(b"".join(parts))

    def go_deaf(self) -> None:
        """Read nothing, not even into a buffer."""
        assert isinstance(self.writer.transport, asyncio.ReadTransport)
        self.writer.transport.pause_reading()

    async def read_until(self, kind: int) -> list[client.Frame]:
        """Frames up to the first of this kind."""
        found: list[client.Frame] = []
        async with asyncio.timeout(WAIT_S):
            while not any(one.kind == kind for one in found):
                data = await self._reader.read(1 << 20)
                assert data, "the connection is closed"
                found += self._frames.read(data)
        return found

    async def read_to_end(self) -> list[client.Frame]:
        async with asyncio.timeout(WAIT_S):
            return self._frames.read(await self._reader.read())


Dial = Callable[[Served], Awaitable[RawClient]]


@pytest_asyncio.fixture
async def dial() -> AsyncIterator[Dial]:
    """Opens raw clients, which are gone when the test is."""
    opened: list[RawClient] = []

    async def connect_raw(served: Served) -> RawClient:
        opened.append(await RawClient.connect(served))
        return opened[-1]

    yield connect_raw
    for one in opened:
        one.writer.transport.abort()
    for one in opened:
        with contextlib.suppress(OSError):
            await one.writer.wait_closed()


# --- begin ----------------------------------------------------------------------------------------


async def test_a_socket_at_which_somebody_listens_is_left_to_it(served: Served) -> None:
    other = NativeServer(server_of(served).services)
    with pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
        await other.start(served.address)
    await other.stop(0)
    async with connect(served.address) as channel:
        assert (await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())).status == 1


async def test_a_socket_that_was_left_behind_is_replaced(tmp_path: Path, dial: Dial) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "native.sock"))
    async with serve("native", tmp_path) as served:
        await (await dial(served)).read_until(client.SETTINGS)
    assert not (tmp_path / "native.sock").exists()


async def test_another_servers_socket_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "native.sock"
    async with serve("native", tmp_path):
        path.unlink()
        path.touch()
    assert path.exists()


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
async def test_over_tcp(host: str, served: Served) -> None:
    other = NativeServer(server_of(served).services)
    port = await other.start(f"{host}:0")
    async with connect(f"{host}:{port}") as channel:
        call = open_stream(channel)
        await call.write(build_request(b"finish:x"))
        assert await read_body(call) == b"x"
        assert await call.code() is grpc.StatusCode.OK
    await other.stop(1)


async def test_a_place_that_is_taken_over_tcp(served: Served) -> None:
    first, second = NativeServer(server_of(served).services), NativeServer(server_of(served).services)
    port = await first.start("127.0.0.1:0")
    with pytest.raises(OSError, match="address already in use"):
        await second.start(f"127.0.0.1:{port}")
    await first.stop(0)
    await second.stop(0)


def hurry(served: Served, **waits: float | None) -> None:
    """Other times for those who connect from here on."""
    server_of(served).limits = replace(server_of(served).limits, **waits)  # type: ignore[arg-type]


async def test_a_client_that_says_nothing_is_let_go(served: Served, dial: Dial) -> None:
    hurry(served, hello_s=0.05)
    silent = await dial(served)
    said = await silent.read_to_end()
    assert [one.kind for one in said] == [client.SETTINGS, client.WINDOW_UPDATE, client.GOAWAY]


async def test_a_client_that_has_said_hello_may_be_silent(served: Served, dial: Dial) -> None:
    """At a Unix socket nobody is asked whether it is there."""
    assert server_of(served).limits.ping_after_s is None
    hurry(served, hello_s=0.05, settings_ack_s=0.06)
    quiet = await dial(served)
    quiet.say(client.HELLO, client.frame(client.SETTINGS, client.ACK, 0))
    await quiet.read_until(client.SETTINGS)
    await asyncio.sleep(0.2)
    quiet.say(client.ping())
    await quiet.read_until(client.PING)


async def test_a_client_that_never_acknowledges_our_settings_is_let_go(served: Served, dial: Dial) -> None:
    hurry(served, hello_s=0.02, settings_ack_s=0.05)
    rude = await dial(served)
    rude.say(client.HELLO, client.headers(1, STREAM))
    last = (await rude.read_to_end())[-1]
    assert (last.kind, last.payload[4:8]) == (client.GOAWAY, b"\x00\x00\x00\x04")
    async with asyncio.timeout(WAIT_S):
        await served.sessions[0].over.wait()


async def test_a_client_over_tcp_is_asked_whether_it_is_there(served: Served) -> None:
    """It answers the first time; then it is gone without a word, and its streams end."""
    limits = Limits(hello_s=0.02, settings_ack_s=0.02, ping_after_s=0.02, ping_answer_s=0.5)
    other = NativeServer(server_of(served).services, limits)
    port = await other.start("127.0.0.1:0")
    one = RawClient(*await asyncio.open_connection("127.0.0.1", port))
    one.say(client.HELLO, client.frame(client.SETTINGS, client.ACK, 0), client.headers(1, STREAM))
    asked = (await one.read_until(client.PING))[-1]
    one.say(client.ping(asked.payload, client.ACK))
    assert (await one.read_until(client.PING))[-1] == asked
    last = (await one.read_to_end())[-1]
    assert (last.kind, last.payload[4:8]) == (client.GOAWAY, bytes(4))
    async with asyncio.timeout(WAIT_S):
        await served.sessions[0].over.wait()
    one.writer.close()
    await other.stop(0)


async def test_a_client_that_breaks_a_rule_is_told_and_let_go(
    served: Served, caplog: pytest.LogCaptureFixture, dial: Dial
) -> None:
    wrong = await dial(served)
    with caplog.at_level(logging.WARNING, "envoy_ext"):
        wrong.say(client.HELLO, client.headers(1, STREAM), client.ping(b"short"))
        last = (await wrong.read_to_end())[-1]
    assert last.kind == client.GOAWAY
    (record,) = [one for one in caplog.records if one.msg == "envoy_connection_failed"]
    assert vars(record)["detail"] == "PING that is not 8 bytes long"
    async with asyncio.timeout(WAIT_S):
        await served.sessions[0].over.wait()


def test_on_the_event_loop_that_serves(tmp_path: Path) -> None:
    """`serve` and `run` use uvloop, whose transports are of another kind: a stream, a deaf client, a stop."""

    async def play() -> None:
        async with serve("native", tmp_path) as served, asyncio.timeout(WAIT_S):
            one, deaf = await RawClient.connect(served), await RawClient.connect(served)
            for peer in (one, deaf):
                peer.say(client.PREFACE + client.settings(window=1 << 30), client.window_update(0, 1 << 30))
                peer.say(client.headers(1, STREAM))
            deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]
            deaf.say(client.data(1, client.message(build_request(b"large:4000000"))))
            one.say(client.data(1, client.message(build_request(b"echo:a"))))
            await one.read_until(client.DATA)
            buffered = [c._transport.get_write_buffer_size() for c in server_of(served)._connections]  # type: ignore[union-attr]
            assert 0 < max(buffered) < 1 << 20
            one.say(client.data(1, client.message(build_request(b"finish:b"))))
            await one.read_until(client.RST_STREAM)  # behind the end of the answer
            stopped = asyncio.ensure_future(served.server.stop(0.1))
            await one.read_until(client.GOAWAY)
            await stopped
            heard = sorted(session.heard for session in served.sessions)
            assert heard == [["echo", "finish", "closed"], ["large", "closed"]]
            assert served.watcher.bugs == []
            for peer in (one, deaf):
                peer.writer.transport.abort()
        assert not (tmp_path / "native.sock").exists()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(play())


# --- end ------------------------------------------------------------------------------------------


async def test_a_stop_lets_streams_end_and_ends_what_envoy_never_ends(served: Served) -> None:
    async with connect(served.address) as channel:
        logs = channel.stream_unary(
            STREAM_ACCESS_LOGS, response_deserializer=StreamAccessLogsResponse.FromString
        )()
        await logs.write(StreamAccessLogsMessage().SerializeToString())
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == 1
        call = open_stream(channel)
        await call.write(build_request(b"echo:a"))
        assert await read_body(call) == b"a"
        stopped = asyncio.get_running_loop().create_task(served.server.stop(WAIT_S))
        async with asyncio.timeout(WAIT_S):
            assert await logs == StreamAccessLogsResponse()
            assert await watch.code() is grpc.StatusCode.UNAVAILABLE
            await call.write(build_request(b"echo:b"))
            assert await read_body(call) == b"b"
            assert not stopped.done()
            with pytest.raises(FileNotFoundError):  # nobody new
                await asyncio.open_unix_connection(served.address.removeprefix("unix:"))
            await call.write(build_request(b"finish:c"))
            assert await read_body(call) == b"c"
            assert await call.code() is grpc.StatusCode.OK
            await stopped
    assert server_of(served).open_connections == 0


async def test_a_stop_cuts_what_has_not_ended(served: Served) -> None:
    async with connect(served.address) as channel:
        call = open_stream(channel)
        await call.write(build_request(b"echo:a"))
        await read_body(call)
        await served.server.stop(0.05)
        assert await call.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
        assert served.sessions[0].heard == ["echo", "closed"]


async def test_a_stop_waits_for_no_client_that_reads_nothing(
    served: Served, monkeypatch: pytest.MonkeyPatch, dial: Dial
) -> None:
    monkeypatch.setattr(grpc_native, "LAST_BYTES_S", 0.05)
    deaf = await dial(served)
    deaf.go_deaf()
    deaf.say(client.PREFACE + client.settings(window=1 << 30), client.window_update(0, 1 << 30))
    deaf.say(client.headers(1, STREAM), client.data(1, client.message(build_request(b"large:9000000"))))
    async with asyncio.timeout(WAIT_S):
        while not served.sessions or not served.sessions[0].heard:
            await asyncio.sleep(0.01)
        await served.server.stop(0)
        await served.sessions[0].over.wait()
    assert server_of(served).open_connections == 0


async def test_who_was_accepted_a_moment_before_a_stop_is_let_go(served: Served) -> None:
    await served.server.stop(0)
    ours, theirs = socket.socketpair()
    with theirs:
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(server_of(served)._accept, ours)
        theirs.setblocking(False)
        async with asyncio.timeout(WAIT_S):
            assert await loop.sock_recv(theirs, 1_000) == b""
    assert server_of(served).open_connections == 0


async def test_a_client_that_goes_ends_its_streams(served: Served, dial: Dial) -> None:
    gone = await dial(served)
    gone.say(client.HELLO, client.headers(1, STREAM), client.headers(3, STREAM))
    async with asyncio.timeout(WAIT_S):
        while len(served.sessions) < 2:
            await asyncio.sleep(0.01)
        gone.writer.transport.abort()
        for session in served.sessions:
            await session.over.wait()
    assert server_of(served).open_calls == 0


async def test_a_bug_of_ours_costs_one_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dial: Dial
) -> None:
    def broken(self: Connection, kind: int, *_: Any) -> None:
        raise ZeroDivisionError

    async with serve("native", tmp_path) as served:
        first = await dial(served)
        first.say(client.HELLO, client.headers(1, STREAM))
        await first.read_until(client.SETTINGS)
        other = await dial(served)
        other.say(client.HELLO)
        async with asyncio.timeout(WAIT_S):
            while len(served.sessions) < 1 or server_of(served).open_connections < 2:
                await asyncio.sleep(0.01)
            with monkeypatch.context() as patched:
                patched.setattr(Connection, "_read_ping", broken)
                first.say(client.ping())
                await served.sessions[0].over.wait()
            other.say(client.ping())
            await other.read_until(client.PING)
        assert [type(bug) for bug in served.watcher.bugs] == [ZeroDivisionError]


async def test_a_session_that_cannot_begin_costs_one_call(tmp_path: Path) -> None:
    def fail(_: Any) -> Any:
        raise ZeroDivisionError

    async with (
        serve("native", tmp_path, build=lambda given: replace(given, attempt=fail)) as served,
        connect(served.address) as channel,
    ):
        assert await open_stream(channel, names.ROLE_ATTEMPT).code() is grpc.StatusCode.UNKNOWN
        call = open_stream(channel)
        await call.write(build_request(b"finish:x"))
        assert await read_body(call) == b"x"
        assert await call.code() is grpc.StatusCode.OK
        assert [type(bug) for bug in served.watcher.bugs] == [ZeroDivisionError]


# --- a client that reads nothing ------------------------------------------------------------------


async def test_what_waits_for_a_client_that_reads_nothing_is_bounded(served: Served, dial: Dial) -> None:
    """It has opened every window, sends as much as it may, is answered with more, and takes none of that."""
    deaf = await dial(served)
    deaf.go_deaf()
    deaf.say(client.PREFACE + client.settings(window=1 << 30), client.window_update(0, 1 << 30))
    deaf.say(client.headers(1, STREAM), client.data(1, client.message(build_request(b"large:4000000"))))
    message = client.message(build_request(b"echo:" + b"x" * 15_000))
    window = server_of(served).limits.stream_window
    count = window // len(message) - 1
    deaf.say(client.data(1, message) * count)
    async with asyncio.timeout(WAIT_S):
        while not served.sessions or len(served.sessions[0].heard) < 1 + count:
            await asyncio.sleep(0.01)
    (connection,) = server_of(served)._connections
    transport = connection._transport
    assert transport is not None
    batch = server_of(served).limits.output_batch_bytes
    assert transport.get_write_buffer_size() <= grpc_native.WRITE_BUFFER_BYTES + batch + (64 << 10)
    # No window for what it has sent: more would be its fault.
    assert connection.calls.connection.statistics()["uncredited"] > window - (32 << 10)
    assert isinstance(deaf.writer.transport, asyncio.ReadTransport)
    deaf.writer.transport.resume_reading()
    expected, found = 4_000_000 + 15_000 * count, 0
    while found < expected:
        found += sum(
            len(one.payload) for one in await deaf.read_until(client.DATA) if one.kind == client.DATA
        )
