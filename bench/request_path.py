"""What one short request costs the sidecar, without an Envoy: recorded streams and log entries, replayed.

    python bench/request_path.py [--requests 3000] [--at-once 4] [--store memory|sqlite] [--functions 30]

All of the product runs in this process behind the native transport, on a transport that is no socket. Each
request is what a real Envoy sent for one (`request_record.py`): a delivery stream, an attempt stream, and
the log entry of each hop, with ids of its own. So many requests are under way at once, in lock step; their
frames of one step come in one read.

Figures are CPU time of the process, without what replaying costs, per request. A second pass, under a timer
of CPU time, says in which part of the product that is spent: what a library takes is its caller's.
"""

import argparse
import asyncio
import json
import re
import signal
import statistics
import sys
import tempfile
import time
from base64 import b64decode
from collections import Counter
from pathlib import Path
from types import FrameType as PythonFrame
from typing import Any, Final, cast

sys.path.insert(0, str(Path(__file__).parent.parent))

import uvloop

from bench.stream_cost import build_config
from envoy_ext.app import App, exempt_from_collection
from envoy_ext.domain import names
from envoy_ext.http2 import frames
from envoy_ext.http2.frames import FrameType, Setting

ROOT: Final = Path(__file__).parent.parent
RECORDED: Final = ROOT / "bench" / "recorded" / "short_request.json"
STORES: Final = ("memory", "sqlite")
ROUNDS: Final = 5
TICK_S: Final = 0.0005
PARTS: Final = (
    ("transport", ("envoy_ext/http2/", "envoy_ext/adapters/grpc_native")),
    ("journal", ("envoy_ext/adapters/journal_",)),
    ("codec", ("envoy_ext/adapters/",)),
    ("domain", ("envoy_ext/domain/",)),
    ("services", ("envoy_ext/services/", "envoy_ext/ports/", "envoy_ext/wiring/")),
    ("observability", ("envoy_ext/observability/",)),
)
EXCHANGE: Final = re.compile(rb"exg_\w{58}")
ATTEMPT: Final = re.compile(rb"att_\w{26}")


class Recording:
    """The messages of one request, and what in them is of that request alone."""

    def __init__(self) -> None:
        data = json.loads(RECORDED.read_text())
        self.engine_port: int = data["engine_port"]
        self.ids = {name: text.encode() for name, text in data["ids"].items()}
        streams = [[b64decode(one) for one in stream["messages"]] for stream in data["streams"]]
        self.delivery, self.attempt, (self.attempt_log,), (self.exchange_log,) = streams
        self.blocks = [b64decode(stream["block"]) for stream in data["streams"]]


class Wire:
    """An asyncio transport that is no socket. What is written waits for whoever replays."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.on_write = asyncio.Event()
        self.protocol: asyncio.BaseProtocol | None = None

    def write(self, data: bytes) -> None:
        self.written.append(data)
        self.on_write.set()

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        protocol, self.protocol = cast(asyncio.Protocol | None, self.protocol), None
        if protocol is not None:
            asyncio.get_running_loop().call_soon(protocol.connection_lost, None)

    abort = close


class Request:
    """One request under way: which stream stands for which hop, and how far each is."""

    def __init__(self, delivery_stream: int, number: int) -> None:
        self.delivery_stream = delivery_stream
        self.attempt_stream = 0
        self.id = b"%08x-0000-4000-8000-%012x" % (number, number)
        self.exchange = self.attempt = b""
        self.answers = 0
        self.over = 0


class Envoy:
    """Plays requests over two connections, as an Envoy with one worker has them."""

    def __init__(self, app: App, recording: Recording) -> None:
        assert app._grpc is not None
        assert app._grpc.native is not None
        self._recording = recording
        self._wire, self._log_wire = Wire(), Wire()
        self._streams = self._connect(app, self._wire)
        self._logs = self._connect(app, self._log_wire)
        self._requests: dict[int, Request] = {}
        self._next = 1
        self._made = 0
        self._left = 0
        self._running = 0
        self.replay_s = 0.0
        """CPU time that was not the product's."""
        self._open_logs()

    def _connect(self, app: App, wire: Wire) -> Any:
        door = app._grpc
        assert door is not None
        assert door.native is not None
        wire.protocol = connection = door.native._accept()
        connection.connection_made(cast(asyncio.BaseTransport, wire))
        hello = frames.build_settings({Setting.INITIAL_WINDOW_SIZE: 256 << 10, Setting.HEADER_TABLE_SIZE: 0})
        wide = frames.build_window_update(0, 1 << 30)
        connection.data_received(frames.PREFACE + hello + wide + frames.SETTINGS_ACK)
        wire.written.clear()
        return connection

    def _open_logs(self) -> None:
        recording = self._recording
        for stream, name, block in (
            (1, names.LOG_ATTEMPTS, recording.blocks[2]),
            (3, names.LOG_EXCHANGES, recording.blocks[3]),
        ):
            inner = b"\x12" + bytes((len(name),)) + name.encode()
            identifier = b"\x0a" + bytes((len(inner),)) + inner
            message = b"\x00" + len(identifier).to_bytes(4, "big") + identifier
            head = frames.build_headers(stream, b"\x20" + block, end=False)
            self._logs.data_received(head + frames.build_frame(0, 0, stream, message))

    async def play(self, requests: int, at_once: int) -> None:
        """So many requests, each with its end."""
        self._left = requests
        sending = [self._begin() for _ in range(at_once)]
        wire = self._wire
        while self._running:
            if sending:
                data = b"".join(sending)
                self._streams.data_received(data)
            await asyncio.sleep(0)
            if not wire.written:
                wire.on_write.clear()
                await wire.on_write.wait()
            begun = time.thread_time()
            written, wire.written = wire.written, []
            sending, logged = self._answer(b"".join(written))
            if self._made % 64 == 0:  # what was read of the sidecar's answers
                sending.append(frames.build_window_update(0, 1 << 16))
            self.replay_s += time.thread_time() - begun
            for entry in logged:
                self._logs.data_received(entry)

    def _begin(self) -> bytes:
        if not self._left:
            return b""
        self._left -= 1
        self._running += 1
        self._made += 1
        stream, self._next = self._next, self._next + 2
        request = self._requests[stream] = Request(stream, self._made)
        recording = self._recording
        first = recording.delivery[0].replace(recording.ids["request"], request.id)
        # A real Envoy has said before that it uses no table; the first block here says so.
        block = (b"\x20" if stream == 1 else b"") + recording.blocks[0]
        return frames.build_headers(stream, block, end=False) + frames.build_frame(0, 0, stream, first)

    def _answer(self, data: bytes) -> tuple[list[bytes], list[bytes]]:
        """What Envoy sends for what it was sent, by connection."""
        sending: list[bytes] = []
        logged: list[bytes] = []
        at = 0
        while at < len(data):
            high, low, kind, flags, stream = frames.unpack_header(data, at)
            end = at + frames.HEADER_BYTES + (high << 16 | low)
            request = self._requests.get(stream)
            if request is not None and kind == FrameType.DATA:
                self._go_on(request, stream, data[at + frames.HEADER_BYTES : end], sending)
            elif request is not None and kind == FrameType.HEADERS and flags & frames.END_STREAM:
                assert b"grpc-status\x010" in data[at:end], data[at:end]
                self._end(request, stream, sending, logged)
            at = end
        return sending, logged

    def _go_on(self, request: Request, stream: int, message: bytes, sending: list[bytes]) -> None:
        recording = self._recording
        if stream == request.attempt_stream:
            found = ATTEMPT.search(message)
            if found is not None:
                request.attempt = found[0]
                sending += (frames.build_frame(0, 0, stream, one) for one in recording.attempt[1:])
            return
        request.answers += 1
        if request.answers == 1:
            sending.append(frames.build_frame(0, 0, stream, recording.delivery[1]))
        elif request.answers == 2:
            found = EXCHANGE.search(message)
            assert found is not None, message
            request.exchange = found[0]
            self._start_attempt(request, sending)

    def _start_attempt(self, request: Request, sending: list[bytes]) -> None:
        recording = self._recording
        stream, self._next = self._next, self._next + 2
        request.attempt_stream = stream
        self._requests[stream] = request
        first = recording.attempt[0].replace(recording.ids["exchange"], request.exchange)
        first = first.replace(recording.ids["request"], request.id)
        sending.append(frames.build_headers(stream, recording.blocks[1], end=False))
        sending.append(frames.build_frame(0, 0, stream, first))

    def _end(self, request: Request, stream: int, sending: list[bytes], logged: list[bytes]) -> None:
        recording = self._recording
        sending.append(frames.build_rst_stream(stream, frames.ErrorCode.INTERNAL_ERROR))
        del self._requests[stream]
        if stream == request.attempt_stream:
            entry = recording.attempt_log.replace(recording.ids["attempt"], request.attempt)
            logged.append(frames.build_frame(0, 0, 1, entry))
            delivery = request.delivery_stream
            sending += (frames.build_frame(0, 0, delivery, one) for one in recording.delivery[2:])
            return
        if not request.attempt:
            raise RuntimeError("a request was refused, and would count as a cheap one")
        entry = recording.exchange_log.replace(recording.ids["exchange"], request.exchange)
        logged.append(frames.build_frame(0, 0, 3, entry))
        self._running -= 1
        sending.append(self._begin())


class Samples:
    """Where the main thread is, each time that so much CPU time has been used."""

    def __init__(self) -> None:
        self.parts: Counter[str] = Counter()
        self.files: Counter[str] = Counter()
        self.functions: Counter[str] = Counter()

    def __enter__(self) -> "Samples":
        signal.signal(signal.SIGPROF, self._take)
        signal.setitimer(signal.ITIMER_PROF, TICK_S, TICK_S)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0, 0)

    def _take(self, _number: int, frame: PythonFrame | None) -> None:
        while frame is not None and "/envoy_ext/" not in frame.f_code.co_filename:
            if frame.f_code.co_filename == __file__ and frame.f_code.co_name != "<module>":
                return  # it replays
            frame = frame.f_back
        if frame is None:
            self.parts["event loop"] += 1
            return
        file = frame.f_code.co_filename
        self.parts[next((part for part, marks in PARTS if any(one in file for one in marks)), "other")] += 1
        file = file.rpartition("/envoy_ext/")[2]
        self.files[file] += 1
        self.functions[f"{file}:{frame.f_code.co_qualname}"] += 1


async def measure(store: str, requests: int, at_once: int, functions: int) -> None:
    """Print one store's figures."""
    recording = Recording()
    with tempfile.TemporaryDirectory(prefix="envoy-ext-bench-") as made:
        config = build_config(recording.engine_port, Path(made))
        sidecar = config.sidecar.model_copy(update={"transport": "native"})
        journal = config.journal.model_copy(update={"store": store})
        limits = config.limits.model_copy(update={"max_event_loop_lag": 0.0})  # a busy machine refuses nobody
        config = config.model_copy(update={"sidecar": sidecar, "journal": journal, "limits": limits})
        app = App(config)
        await app.start()
        exempt_from_collection()
        envoy = Envoy(app, recording)
        await envoy.play(max(200, requests // 4), at_once)
        await app.exchanges.wait_idle()
        whole, main_thread = [], []
        for _ in range(ROUNDS):
            cpu, thread, envoy.replay_s = time.process_time(), time.thread_time(), 0.0
            await envoy.play(requests // ROUNDS, at_once)
            await app.exchanges.wait_idle()
            share = 1e6 / (requests // ROUNDS)
            whole.append((time.process_time() - cpu - envoy.replay_s) * share)
            main_thread.append((time.thread_time() - thread - envoy.replay_s) * share)
        median = statistics.median(whole)
        print(
            f"\n{store}: {median:.0f} us a request ({min(whole):.0f} to {max(whole):.0f}), "
            f"{statistics.median(main_thread):.0f} of them in the event loop's thread"
        )
        with Samples() as samples:
            await envoy.play(requests, at_once)
            await app.exchanges.wait_idle()
        print_parts(samples, statistics.median(main_thread), functions)
        await app.stop()


def print_parts(samples: Samples, in_all_us: float, functions: int) -> None:
    """How the loop's time divides, without what replaying takes."""
    total = samples.parts.total()
    each_us = in_all_us / max(1, total)
    for part, count in samples.parts.most_common():
        print(f"  {count * each_us:7.1f} us  {100 * count / total:5.1f} %  {part}")
    for title, counts in (("file", samples.files), ("function", samples.functions)):
        if functions:
            print(f"  by {title}")
        for name, count in counts.most_common(functions):
            print(f"  {count * each_us:7.1f} us  {name}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--store", choices=STORES, action="append")
    parser.add_argument("--functions", type=int, default=0, help="lines of the list by file and function")
    given = parser.parse_args()
    for chosen in given.store or STORES:
        uvloop.run(measure(chosen, given.requests, given.at_once, given.functions))
