"""HTTP/2 and the gRPC calls on it, against any session that a client could send.

What has to hold: nothing raises; the answer is whole frames that the client allows, with every byte of a
handler's messages in order; a handler hears what was sent, and of its end once; what is held returns to
nothing; and however the bytes are cut, the same happens.
"""

import random
from typing import Any, Final

from envoy_ext.http2.connection import Connection
from envoy_ext.http2.events import DataReceived
from envoy_ext.http2.grpc_calls import Call, ServerCalls
from envoy_ext.http2.grpc_wire import Status
from envoy_ext.http2.header_blocks import RequestHeaders
from envoy_ext.http2.limits import Limits
from tests.fuzz.http2_wire import (
    END_AT_HALF_CLOSE,
    LOW_LIMITS,
    Command,
    build_wire,
    cut,
    mutate,
    parse,
    seeds,
)
from tests.support import http2_client as client
from tests.support.http2_client import Frame
from tests.support.http2_play import describe

__all__ = ["DICTIONARY", "LONGEST", "check", "mutate", "seeds"]

LONGEST: Final = 60_000
DICTIONARY: Final = (
    client.PREFACE,
    b"grpc-timeout",
    b"grpc-encoding",
    b"content-length",
    b"\x3f\xe1\x1f",
    b"\x82\x87",
)
LARGEST_MESSAGE: Final = 1 << 20
_LOW: Final = Limits(
    max_header_block_bytes=400,
    max_header_list_bytes=600,
    max_header_fields=12,
    max_continuations=3,
    max_streams=4,
    max_unfinished_bytes=10_000,
    stream_window=65_535,
    connection_window=100_000,
    max_unsent_answers=8,
    max_unread_frames=30,
    output_batch_bytes=20_000,
    settings_frames=6,
    idle_frames=20,
    window_updates=20,
    rapid_resets=6,
    refusals=6,
)
_PASSIVE: Final = Limits(stream_window=1 << 20, connection_window=1 << 22)
"""Wider than any input: what is given back, and when, depends on how the bytes come."""
_PASSIVE_LOW: Final = Limits(
    stream_window=1 << 20,
    connection_window=1 << 22,
    max_header_block_bytes=400,
    max_continuations=3,
    max_streams=4,
    settings_frames=6,
    idle_frames=20,
    window_updates=20,
    rapid_resets=6,
    refusals=6,
)


def check(data: bytes) -> None:
    """Play one session.

    Raises:
        AssertionError: a promise is broken; and whatever else the code raises.
    """
    if len(data) < 2:
        return
    split, options, wire = build_wire(data)
    found, rest = cut(wire)
    _check_splits([raw for raw in found if not _is_command(raw)], rest, split, options)
    _Session(split, options).play(found, rest)


def _is_command(raw: bytes) -> bool:
    return raw[3] >= Command.WRITABLE and raw != client.PREFACE


# --- splits -----------------------------------------------------------------------------------------


def _check_splits(found: list[bytes], rest: bytes, split: int, options: int) -> None:
    wire = b"".join(found) + rest
    limits = _PASSIVE_LOW if options & LOW_LIMITS else _PASSIVE
    whole = _take_in([wire], limits)
    assert _take_in([*found, rest], limits) == whole, "frame by frame"
    cuts = sorted(random.Random(split).choices(range(len(wire) + 1), k=12))
    pieces = [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    assert _take_in(pieces, limits) == whole, "cut anywhere"


def _take_in(pieces: list[bytes], limits: Limits) -> tuple[list[tuple[Any, ...]], list[bytes]]:
    connection, events, output = Connection(limits), [], b""
    for piece in pieces:
        connection.receive(piece, 0.0)
        for event in connection.take_events():
            if isinstance(event, DataReceived):
                connection.take(event.stream, len(event.data))
            events.append(describe(event))
        output += connection.take_output()
        assert connection.statistics()["buffered"] <= limits.max_frame_bytes + 9 + len(client.PREFACE)
    frames, rest = cut(output)
    assert not rest
    if connection.failed:  # what was drained before is told where nothing is behind it
        events = [event for event in events if event != ("connection drained",)]
    return events, [raw for raw in frames if raw[3] != client.WINDOW_UPDATE]


# --- calls ------------------------------------------------------------------------------------------


class _Handler:
    """Does what the first byte of a message says."""

    def __init__(self, call: Call, session: "_Session") -> None:
        self.call = call
        self.session = session
        self.heard: list[bytes] = []
        self.sent = bytearray()
        self.is_half_closed = self.is_closed = self.is_finished = False

    def take_quickly(self, framed: bytes) -> bool:
        """Messages of one kind, by their bytes."""
        if framed != client.message(framed[5:]) or framed[5:6] != b"q":
            return False
        self.receive(framed[5:])
        return True

    def receive(self, message: bytes) -> None:
        assert not (self.is_closed)
        assert not (self.is_half_closed)
        assert not (self.is_finished)
        self.heard.append(message)
        match message[:1]:
            case b"e" | b"q":
                self.send(message)
            case b"b":
                self.send(b"." * 20_000)
            case b"m":
                for number in range(10):
                    self.send(b"%d" % number)
            case b"f":
                self.finish(Status.OK)
            case b"x":
                self.finish(Status.INTERNAL)

    def send(self, message: bytes) -> None:
        if not self.call.finished:
            self.sent += client.message(message)
            self.session.written += len(message) + 5
        if len(message) % 2:
            self.call.send(message)
        else:
            self.call.send_parts(client.message(message)[:6], message[1:])

    def finish(self, status: Status) -> None:
        self.is_finished = True
        self.call.finish(status, "why: 100 %, ü" if status else "")

    def half_closed(self) -> None:
        assert not (self.is_closed)
        assert not (self.is_half_closed)
        assert not (self.is_finished)
        self.is_half_closed = True
        if self.session.options & END_AT_HALF_CLOSE:
            self.finish(Status.OK)

    def closed(self) -> None:
        assert not self.is_closed
        self.is_closed = True


class _Book:
    """What the client has allowed and asked for, by the frames that it has sent."""

    def __init__(self) -> None:
        self.frame = 16_384
        self.initial = self.window = 65_535
        self.windows: dict[int, int] = {}
        self.bodies: dict[int, bytearray] = {}

    def note(self, one: Frame) -> None:
        match one.kind:
            case client.HEADERS if one.stream_id & 1 and one.stream_id not in self.windows:
                self.windows[one.stream_id] = self.initial
                self.bodies[one.stream_id] = bytearray()
            case client.SETTINGS if not one.flags & client.ACK and not one.stream_id:
                for at in range(0, len(one.payload) - 5, 6):
                    self._note_setting(
                        *(int.from_bytes(one.payload[at + a : at + b], "big") for a, b in ((0, 2), (2, 6)))
                    )
            case client.WINDOW_UPDATE if one.stream_id == 0:
                self.window += one.number & 0x7FFF_FFFF
            case client.WINDOW_UPDATE if one.stream_id in self.windows:
                self.windows[one.stream_id] += one.number & 0x7FFF_FFFF
            case client.DATA if one.stream_id in self.bodies:
                padding = one.payload[0] if one.flags & client.PADDED and one.payload else 0
                padded = bool(one.flags & client.PADDED)
                self.bodies[one.stream_id] += one.payload[padded : len(one.payload) - padding]

    def _note_setting(self, number: int, value: int) -> None:
        if number == 4:
            for stream_id in self.windows:
                self.windows[stream_id] += value - self.initial
            self.initial = value
        elif number == 5:
            self.frame = value

    def list_messages(self, stream_id: int) -> list[bytes]:
        """What a handler may have heard, up to the first one that is refused."""
        body, found = bytes(self.bodies[stream_id]), []
        while len(body) >= 5 and body[0] == 0:
            end = 5 + int.from_bytes(body[1:5], "big")
            if end > len(body):
                break
            found.append(body[5:end])
            body = body[end:]
        return found


class _Answer:
    """What the client has got on one stream."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.has_headers = self.is_ended = self.is_reset = False


class _Session:
    """One connection, its driver, and a client that checks each frame it gets."""

    def __init__(self, split: int, options: int) -> None:
        self.options = options
        self.limits = _LOW if options & LOW_LIMITS else Limits()
        self.calls = ServerCalls(self._open, LARGEST_MESSAGE, self.limits)
        self.handlers: list[_Handler] = []
        self.written = 0
        self._book = _Book()
        self._answers: dict[int, _Answer] = {}
        self._now = 0.0
        self._writable = True
        self._is_over = False
        self._got = 0
        self._rnd = random.Random(split)
        self.calls.begin(0.0)

    def _open(self, call: Call, headers: RequestHeaders) -> _Handler | None:
        if headers.path != client.METHOD:
            return None
        handler = _Handler(call, self)
        call.quick = handler.take_quickly
        self.handlers.append(handler)
        return handler

    def play(self, found: list[bytes], rest: bytes) -> None:
        held, count = b"", 0
        for raw in found:
            if _is_command(raw):
                self._feed(held)
                held = b""
                self._obey(parse(raw))
                self._read()
                continue
            count += 1
            at = self._rnd.randrange(len(raw))
            if raw[3] == client.SETTINGS:  # what is sent before it is under the windows before it
                self._feed(held)
                held = b""
            elif self._rnd.random() < 0.3:  # several frames at once, and the begin of another one
                held += raw
                self._note(raw)
                continue
            self._feed(held + raw[:at])
            self._note(raw)
            self._feed(raw[at:])
            held = b""
        self._feed(held)
        self._feed(rest)
        assert self._got <= self.written * 2 + 200 * count + 2_000, "more is answered than was asked for"
        self._finish()

    def _note(self, raw: bytes) -> None:
        if raw != client.PREFACE:
            self._book.note(parse(raw))

    def _feed(self, data: bytes) -> None:
        self.calls.receive(data, self._now)
        self._read()
        held = self.calls.connection.statistics()
        assert 0 <= held["uncredited"] <= self.limits.connection_window
        assert held["streams"] <= self.limits.max_streams
        assert 0 <= self.calls.held <= self.limits.max_unfinished_bytes + len(data)

    def _obey(self, one: Frame) -> None:
        number = one.payload[0] if one.payload else 0
        handler = self.handlers[number % len(self.handlers)] if self.handlers else None
        match one.kind:
            case Command.WRITABLE:
                self._writable = bool(number & 1)
                self.calls.set_writable(self._writable)
            case Command.WAIT:
                self._now += int.from_bytes(one.payload[:2], "big") / 100
            case Command.BEGIN_DRAIN:
                self.calls.connection.begin_drain()
            case Command.FINISH_DRAIN:
                self.calls.connection.finish_drain()
            case Command.EXPIRE:
                self._now = max(self._now, self.calls.next_deadline() or 0.0)
                for _ in range(3):  # each of the waits for a silent client may be over
                    self.calls.expire(self._now)
                due = self.calls.next_deadline()
                assert due is None or due > self._now, "a deadline that is met stays"
            case Command.SEND if handler is not None:
                handler.send(b"s" * int.from_bytes(one.payload[1:3], "big"))
            case Command.FINISH if handler is not None:
                handler.finish(Status(number % 4))

    def _read(self) -> None:
        while output := self.calls.take_output(self._now):
            assert not self._is_over, "bytes behind the last GOAWAY"
            self._got += len(output)
            found, rest = cut(output)
            assert not rest, "a frame that is not whole"
            for raw in found:
                self._check(parse(raw))
            if self.calls.failure is not None:
                self._is_over = found[-1][3] == client.GOAWAY
        if self.calls.failure is not None:
            assert self._is_over, "a failure without GOAWAY"
            assert self.calls.open_calls == 0
        assert not (self._writable and self.calls.connection.has_more)

    def _check(self, one: Frame) -> None:
        assert len(one.payload) <= max(self._book.frame, 16_384)
        book, stream_id = self._book, one.stream_id
        if one.kind in (client.HEADERS, client.DATA):
            assert stream_id in book.windows, "an answer to nothing"
        answer = self._answers.setdefault(stream_id, _Answer())
        match one.kind:
            case client.HEADERS:
                assert not (answer.is_ended)
                assert not (answer.is_reset)
                assert one.flags & client.END_HEADERS
                assert not answer.has_headers or one.flags & client.END_STREAM
                answer.has_headers = True
                answer.is_ended = bool(one.flags & client.END_STREAM)
            case client.DATA:
                assert self._writable, "DATA for a transport that is full"
                assert answer.has_headers
                assert not (answer.is_ended)
                assert not (answer.is_reset)
                book.window -= len(one.payload)
                book.windows[stream_id] -= len(one.payload)
                assert not one.payload or (book.window >= 0 and book.windows[stream_id] >= 0), (
                    "a window exceeded"
                )
                answer.body += one.payload
            case client.RST_STREAM:
                assert stream_id & 1
                assert stream_id <= max(book.windows), "a reset of a stream that is idle"
                answer.is_reset = True
            case client.WINDOW_UPDATE:
                assert one.number > 0
                assert not (answer.is_ended)
                assert not (answer.is_reset)
            case client.GOAWAY | client.SETTINGS | client.PING:
                assert stream_id == 0
            case _:
                raise AssertionError("a frame that no server sends")

    def _finish(self) -> None:
        calls = self.calls
        self._writable = True
        calls.set_writable(True)
        self._read()
        self._check_bodies()
        calls.close_all(self._now)
        calls.close_all(self._now)
        held = calls.connection.statistics()
        assert calls.open_calls == held["streams"] == held["uncredited"] == 0
        assert calls.list_handlers() == []
        assert calls.held == 0
        assert all(handler.is_closed for handler in self.handlers), "a handler that was not told"
        assert calls._next_call_deadline() is None
        for handler in self.handlers:  # nothing that is said too late does anything
            handler.call.send(b"late")
            handler.call.finish()
        calls.take_output(self._now)
        calls.expire(self._now + 1e6)

    def _check_bodies(self) -> None:
        for handler in self.handlers:
            stream_id = handler.call.stream.id
            heard = handler.heard
            assert self._book.list_messages(stream_id)[: len(heard)] == heard
            answer = self._answers.get(stream_id, _Answer())
            assert handler.sent.startswith(answer.body), "other bytes than were sent"
            if answer.is_ended:
                assert answer.body == handler.sent, "an end before all was sent"
