"""What a message costs on each transport alone: one connection, 64 streams in lock step, every chunk echoed.

    python bench/transport_echo.py [--rounds 5]

The same session behind both: a chunk is parsed, and built again as the answer. No Envoy, so that nothing is
merged and the number of messages is the same; the client is a process of its own and is not counted. Also
per call: streams of one message each. CPU time of the server process; medians over interleaved rounds.
"""

import argparse
import asyncio
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent.parent))

import uvloop
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest

from envoy_ext.adapters.extproc_codec import build_streamed_body
from envoy_ext.adapters.extproc_session import Outbox
from envoy_ext.adapters.grpc_native import NativeServer
from envoy_ext.adapters.grpc_server import GrpcServer
from envoy_ext.adapters.grpc_services import PROCESS, Services
from envoy_ext.domain import names
from envoy_ext.http2 import frames
from envoy_ext.http2.frames import FrameType, Setting
from envoy_ext.http2.grpc_messages import pack_prefix
from envoy_ext.http2.header_blocks import build_block

TRANSPORTS: Final = ("grpc_aio", "native")
STREAMS: Final = 64
MESSAGES: Final = 150
CALLS: Final = 1_000
CHUNK: Final = (
    b'data: {"id":"chatcmpl-00000000000000000000000000000001","object":"chat.completion.chunk","created":1,'
    b'"model":"bench","choices":[{"index":0,"delta":{"content":"word "},"finish_reason":null}]}\n\n'
)


class Echo:
    """Answers each chunk with itself."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def receive(self, message: Any) -> None:
        self._outbox.send(build_streamed_body(message.response_body.body, end=False))

    def closed(self) -> None:
        pass


async def serve(transport: str, path: str) -> None:
    """The server process."""
    unused: Any = None
    services = Services(Echo, Echo, unused, unused, unused, 1 << 20)
    server = NativeServer(services) if transport == "native" else GrpcServer(services, unused)
    await server.start(f"unix:{path}")
    print("ready", flush=True)
    await asyncio.Event().wait()


class Client:
    """One connection, blocking."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._rest = b""
        self._next = 1
        request = ProcessingRequest()
        request.response_body.body = CHUNK
        message = request.SerializeToString()
        self._message = pack_prefix(0, len(message)) + message
        fields = [(":method", "POST"), (":scheme", "http"), (":path", PROCESS), (":authority", "bench")]
        fields += [("te", "trailers"), ("content-type", "application/grpc")]
        self._headers = build_block(None, [*fields, (names.ROLE_METADATA, names.ROLE_DELIVERY)])
        wide = frames.build_settings({Setting.INITIAL_WINDOW_SIZE: 1 << 30, Setting.HEADER_TABLE_SIZE: 0})
        self._socket.sendall(frames.PREFACE + wide + frames.build_window_update(0, 1 << 30))

    def open(self) -> int:
        """Begin a stream."""
        self._next += 2
        self._socket.sendall(frames.build_headers(self._next - 2, b"\x20" + self._headers, end=False))
        return self._next - 2

    def send(self, streams: list[int], flags: int = 0) -> None:
        """One message on each of these."""
        data = (frames.build_frame(FrameType.DATA, flags, one, self._message) for one in streams)
        self._socket.sendall(b"".join(data))

    def read(self) -> tuple[list[int], list[int]]:
        """Streams that were answered, and those that have ended."""
        answered: list[int] = []
        ended: list[int] = []
        data, at = self._rest + self._socket.recv(1 << 18), 0
        while len(data) - at >= 9:
            high, low, kind, flags, stream = frames.unpack_header(data, at)
            end = at + 9 + (high << 16 | low)
            if end > len(data):
                break
            if kind == FrameType.DATA:
                answered.append(stream)
            elif kind == FrameType.HEADERS and flags & 1:
                ended.append(stream)
            elif kind == FrameType.SETTINGS and not flags & 1:
                self._socket.sendall(frames.SETTINGS_ACK)
            elif kind == FrameType.PING and not flags & 1:
                self._socket.sendall(frames.build_ping(data[at + 9 : end], ack=True))
            at = end
        self._rest = data[at:]
        return answered, ended

    def echo(self, messages: int) -> int:
        """All streams in lock step; how many messages that were."""
        streams = [self.open() for _ in range(STREAMS)]
        left = dict.fromkeys(streams, messages - 1)
        self.send(streams)
        open_streams = set(streams)
        while open_streams:
            answered, ended = self.read()
            again = [one for one in answered if left[one]]
            for one in again:
                left[one] -= 1
            self.send(again)
            done = [one for one in answered if one not in again]
            self._socket.sendall(b"".join(frames.build_frame(0, frames.END_STREAM, one) for one in done))
            open_streams.difference_update(ended)
        return STREAMS * messages

    def call(self, calls: int) -> int:
        """Streams of one message, 16 at a time."""
        begun, over = 0, 0
        while over < calls:
            while begun < calls and begun - over < 16:
                self.send([self.open()], frames.END_STREAM)
                begun += 1
            over += len(self.read()[1])
        return calls


def read_cpu_us(pid: int) -> float:
    """CPU time of a process, by its own clock."""
    return time.clock_gettime_ns((~pid << 3) | 2) / 1e3


def measure(rounds: int) -> None:
    """Print both figures for both transports, and the ratio."""
    with tempfile.TemporaryDirectory(prefix="envoy-ext-bench-") as made:
        servers, clients = {}, {}
        for transport in TRANSPORTS:
            path = f"{made}/{transport}.sock"
            command = [sys.executable, __file__, "--serve", transport, path]
            server = servers[transport] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            clients[transport] = Client(path)
        for title, run, count in (("message", Client.echo, MESSAGES), ("call", Client.call, CALLS)):
            costs: dict[str, list[float]] = {one: [] for one in TRANSPORTS}
            for number in range(rounds + 1):
                for transport in TRANSPORTS if number % 2 else TRANSPORTS[::-1]:
                    before = read_cpu_us(servers[transport].pid)
                    done = run(clients[transport], count)
                    if number:  # the first round warms everything up
                        costs[transport].append((read_cpu_us(servers[transport].pid) - before) / done)
            aio, native = (statistics.median(costs[one]) for one in TRANSPORTS)
            ratios = [b / a for a, b in zip(costs["grpc_aio"], costs["native"], strict=True)]
            print(
                f"us a {title:8} grpc_aio {aio:8.1f}   native {native:8.1f}   x{native / aio:.3f}"
                f"   ({min(ratios):.3f} to {max(ratios):.3f})"
            )
        for server in servers.values():
            server.terminate()
            server.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(*given.serve))
    else:
        measure(given.rounds)
