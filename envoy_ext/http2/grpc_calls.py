"""gRPC calls on one connection, from the server's side and without IO.

Bytes in by `receive`, bytes out by `take_output`. Between the two each call has a `CallHandler`, which is fed
by this and answers through its `Call`, at once or at any later time. Whoever drives the connection has to
fetch the output behind both, and to call `expire` at `next_deadline`.

Back-pressure: what a client sends is taken off its window when its handler was given it, or it is a part of a
message that is not whole, which has a bound of its own; and as long as nothing of the answer waits. A
client that reads nothing is given no new window, so that what waits for it is bounded too.
"""

import heapq
import itertools
from collections.abc import Callable
from typing import Protocol

from envoy_ext.http2.connection import Connection
from envoy_ext.http2.errors import ErrorCode
from envoy_ext.http2.events import (
    ConnectionFailed,
    DataReceived,
    Drained,
    Event,
    RequestStarted,
    SendsDrained,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from envoy_ext.http2.grpc_messages import PREFIX_BYTES, Messages, pack_prefix
from envoy_ext.http2.grpc_wire import (
    ANSWER_HEADERS,
    OK_TRAILERS,
    CallFault,
    Status,
    build_refusal,
    build_trailers,
    check_encoding,
    judge_request,
    read_timeout_s,
)
from envoy_ext.http2.header_blocks import RequestHeaders
from envoy_ext.http2.limits import Limits
from envoy_ext.http2.streams import Stream


class CallHandler(Protocol):
    """The server's side of one call. None of these may raise, nor wait."""

    def receive(self, message: bytes) -> None:
        """One message."""

    def half_closed(self) -> None:
        """The client has sent its last message; called once at most."""

    def closed(self) -> None:
        """The call is over, for whatever reason. Called once, and never from within a `Call`'s method."""


class Call:
    """One call, as its handler sees it. After `finish` nothing more is sent."""

    __slots__ = (
        "_calls",
        "_headers_sent",
        "deadline",
        "finished",
        "handler",
        "messages",
        "quick",
        "stream",
        "untaken",
    )

    def __init__(self, calls: "ServerCalls", stream: Stream, messages: Messages) -> None:
        self._calls = calls
        self._headers_sent = False
        self.stream = stream
        self.messages = messages
        self.handler: CallHandler | None = None
        """None for what is no call, or is refused; and when it is over."""
        self.quick: Callable[[bytes], bool] | None = None
        """Of a handler that knows some messages by their bytes. It is given what may be one, prefix included,
        and takes it in place of `CallHandler.receive`, or says False and has done nothing."""
        self.deadline: float | None = None
        self.finished = False
        self.untaken = 0
        """Bytes that the client gets no new window for, as long as it reads nothing."""

    def send(self, message: bytes) -> None:
        """Queue one message; never waits."""
        if self.finished:
            return
        connection, stream = self._calls.connection, self.stream
        if not self._headers_sent:
            self._headers_sent = True
            connection.send_headers(stream, ANSWER_HEADERS)
        connection.send(stream, pack_prefix(0, len(message)), message)

    def send_parts(self, head: bytes, rest: bytes) -> None:
        """Queue one message in two parts: its prefix and begin, and the rest, which is not copied."""
        if self.finished:
            return
        if self._headers_sent:
            self._calls.connection.send(self.stream, head, rest)
        else:
            self.send(head[PREFIX_BYTES:] + rest)

    def finish(self, status: Status = Status.OK, message: str = "") -> None:
        """End the call behind what was sent."""
        if self.finished:
            return
        self.finished = True
        if status is Status.OK and self._headers_sent:
            trailers = OK_TRAILERS
        else:
            trailers = build_trailers(status, message, alone=not self._headers_sent)
        self._calls.connection.end(self.stream, trailers)


Opener = Callable[[Call, RequestHeaders], CallHandler | None]
"""Whoever knows the methods: the handler of a call, None for a method that there is not. It may finish the
call at once."""


class ServerCalls:
    """All calls of one connection. Every method runs on one thread, and none waits."""

    def __init__(self, opener: Opener, largest_message: int, limits: Limits | None = None) -> None:
        """`largest_message` is in bytes."""
        self._opener = opener
        self._largest_message = largest_message
        self.connection = Connection(limits, self._take)
        self._give_credit = self.connection.windows.take
        self.drained = False
        """A drain was asked for, and the last call is over."""
        self.failure: str | None = None
        """Which rule the client broke; the connection has to be closed behind the output."""
        self.held = 0
        """Bytes of messages that are begun, over all calls."""
        self._deadlines: list[tuple[float, int, Call]] = []
        self._numbers = itertools.count()
        self._playing = False

    @property
    def open_calls(self) -> int:
        """Those that are not over."""
        return self.connection.open_streams

    def list_handlers(self) -> list[CallHandler]:
        """Of the calls that are not over."""
        calls: list[Call] = [stream.owner for stream in self.connection.streams if stream.owner is not None]
        return [call.handler for call in calls if call.handler is not None]

    def receive(self, data: bytes, now: float) -> None:
        """Take in bytes, split anywhere."""
        self.connection.receive(data, now)
        self._play(now)

    def take_output(self, now: float) -> bytes:
        """What is to be sent, up to one batch; b"" when there is nothing that may be."""
        output = self.connection.take_output()
        self._play(now)
        return output

    def set_writable(self, writable: bool) -> None:
        """Whether the transport takes more."""
        self.connection.set_writable(writable)

    def begin(self, now: float) -> None:
        """The transport is there. Without this the client may be silent for ever."""
        self.connection.begin(now)

    def next_deadline(self) -> float | None:
        """When `expire` has something to do."""
        due, call = self.connection.due, self._next_call_deadline()
        return due if call is None or (due is not None and due < call) else call

    def _next_call_deadline(self) -> float | None:
        waiting = self._deadlines
        while waiting and waiting[0][2].handler is None:
            heapq.heappop(waiting)
        return waiting[0][0] if waiting else None

    def expire(self, now: float) -> None:
        """End calls whose time is up, and the connection of a client that is silent for too long."""
        self.connection.expire(now)
        while (deadline := self._next_call_deadline()) is not None and deadline <= now:
            _, _, call = heapq.heappop(self._deadlines)
            call.finish(Status.DEADLINE_EXCEEDED, "the call's time is up")
            if call.stream.is_backed_up:  # it would wait behind what nobody reads
                self.connection.reset(call.stream, ErrorCode.CANCEL)
        self._play(now)

    def close_all(self, now: float) -> None:
        """The transport is gone: every call is over."""
        for stream in self.connection.streams:
            self.connection.reset(stream, ErrorCode.CANCEL)
        self._play(now)

    # --- from the connection ------------------------------------------------------------------------

    def _play(self, now: float) -> None:
        """Hand on what has happened; also what happens while that is done."""
        connection = self.connection
        if self._playing:
            return
        self._playing = True
        try:
            while events := connection.take_events():
                for event in events:
                    if type(event) is DataReceived:
                        self._take_data(event)
                    else:
                        self._take_event(event, now)
        finally:
            self._playing = False

    def _take_event(self, event: Event, now: float) -> None:
        match event:
            case RequestStarted():
                self._open(event, now)
            case TrailersReceived():
                self._half_close(event.stream.owner)
            case SendsDrained():
                self._go_on_taking(event.stream.owner)
            case StreamEnded() | StreamReset():
                self._close(event.stream.owner)
            case ConnectionFailed():
                self.failure = event.detail
            case Drained():
                self.drained = True
            case DataReceived():
                self._take_data(event)

    def _open(self, event: RequestStarted, now: float) -> None:
        stream, headers = event.stream, event.headers
        call = stream.owner = Call(self, stream, Messages(self._largest_message))
        http_status = judge_request(headers)
        if http_status != 200:
            call.finished = True
            self.connection.end(stream, build_refusal(http_status))
            return
        try:
            check_encoding(headers)
            timeout_s = read_timeout_s(headers)
            handler = self._opener(call, headers)
            if handler is None and not call.finished:
                raise CallFault(Status.UNIMPLEMENTED, "there is no such method here")
        except CallFault as fault:
            call.finish(fault.status, fault.detail)
            return
        call.handler = handler
        if timeout_s is not None and handler is not None:
            call.deadline = now + timeout_s
            self._await(call, call.deadline)
        if event.ended:
            self._half_close(call)

    def _await(self, call: Call, deadline: float) -> None:
        waiting = self._deadlines
        if len(waiting) > 2 * self.open_calls + 64:  # most are over, and were to run longer
            waiting[:] = [one for one in waiting if one[2].handler is not None]
            heapq.heapify(waiting)
        heapq.heappush(waiting, (deadline, next(self._numbers), call))

    def _take_data(self, event: DataReceived) -> None:
        self._take(event.stream, event.data)
        if event.ended:
            self._half_close(event.stream.owner)

    def _take(self, stream: Stream, data: bytes) -> None:
        """A part of a call's bytes: nearly always one message."""
        call: Call = stream.owner
        quick = call.quick
        if quick is None or call.finished or call.messages.parts or not quick(data):
            self._read_messages(call, data)
        if stream.pending is None:
            self._give_credit(stream, len(data))
        else:
            call.untaken += len(data)

    def _read_messages(self, call: Call, data: bytes) -> None:
        """A message, a part of one, or several."""
        handler = call.handler
        if handler is None or call.finished:
            return
        messages = call.messages
        held = messages.held
        try:
            for message in messages.read(data):
                handler.receive(message)
                if call.finished:
                    break
        except CallFault as fault:
            call.finish(fault.status, fault.detail)
        self.held += messages.held - held
        if messages.parts and self.held > self.connection.limits.max_unfinished_bytes:
            call.finish(Status.RESOURCE_EXHAUSTED, "too much of messages that are not whole")

    def _half_close(self, call: Call) -> None:
        if call.handler is None or call.finished:
            return
        if not call.messages.is_between:
            call.finish(Status.INTERNAL, "the call ends within a message")
            return
        call.handler.half_closed()

    def _go_on_taking(self, call: Call) -> None:
        untaken, call.untaken = call.untaken, 0
        self.connection.take(call.stream, untaken)

    def _close(self, call: Call) -> None:
        call.finished = True
        handler, call.handler = call.handler, None
        call.quick = None
        self.held -= call.messages.held
        call.messages.drop()
        if handler is not None:
            handler.closed()
