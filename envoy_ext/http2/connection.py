"""The server's side of one HTTP/2 connection, without IO (RFC 9113; numbers in comments are its sections).

Theory of operation. Bytes come in by `receive`, events go out by `take_events`, bytes by `take_output`;
whoever drives the connection asks for both after each call. The two halves meet in the streams: this file
is the receiving half and the life of streams, `outbound` the sending half.

A stream is in `_streams` from its HEADERS until both sides have ended it or one has reset it. Ended ones are
remembered for a while, because what a late frame means depends on how its stream ended (5.1). A server
that answers before the request is over resets the rest of it with NO_ERROR (8.1), so that no stream of ours
is ever half-closed (local).

Received DATA counts against the peer's windows until it is taken (`inbound`).

A rule that the peer breaks is a fault: of the stream, which is reset, or of the connection. After the latter
`receive` reads nothing more, and the output ends with a GOAWAY.

A drain has two steps (6.8): a GOAWAY that refuses nothing yet, with a PING; and, when its answer shows that
the peer has read it, one that names the last stream there is.
"""

from collections.abc import Callable
from typing import Any, Final

from envoy_ext.http2 import frames
from envoy_ext.http2.errors import ConnectionFault, ErrorCode, StreamFault
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
from envoy_ext.http2.floods import Budget
from envoy_ext.http2.frames import FrameType
from envoy_ext.http2.header_assembly import Block, HeaderAssembly
from envoy_ext.http2.header_blocks import HeaderReader
from envoy_ext.http2.inbound import InboundWindows, build_greeting
from envoy_ext.http2.limits import Limits
from envoy_ext.http2.outbound import Outbound
from envoy_ext.http2.patience import Patience
from envoy_ext.http2.peer_settings import PeerSettings
from envoy_ext.http2.stream_ends import How, StreamEnds
from envoy_ext.http2.streams import Stream

_DRAIN_PING: Final = b"draining"
_ASKING_PING: Final = b"is there"

Taker = Callable[[Stream, bytes], None]
"""Takes a part of a body that does not end it. It may use the connection, but not read from it."""


class Connection:
    """One client's connection. Not safe for threads; nothing in it waits."""

    def __init__(self, limits: Limits | None = None, taker: Taker | None = None) -> None:
        """`taker` is handed most DATA at once, within `receive`, in place of an event."""
        self.limits = limits = limits or Limits()
        self._taker = taker
        self.failed = False
        """The peer broke a rule: nothing it sends is read any more."""
        self._out = Outbound(limits)
        self._headers = HeaderReader(limits)
        self._streams: dict[int, Stream] = {}
        self._ends = StreamEnds()
        self._events: list[Event] = []
        self._buffer = bytearray()
        self._needed = len(frames.PREFACE)
        """So many bytes must be in the buffer before there is anything to read."""
        self._preface_read = False
        self._assembly = HeaderAssembly(limits)
        self._patience = Patience(limits)
        self.windows = InboundWindows(limits, self._out)
        self._drain_asked = False
        self._drained_told = False
        self._settings_frames = Budget(limits.settings_frames, "too many frames of settings")
        self._idle_frames = Budget(limits.idle_frames, "too many frames without use")
        self._window_updates = Budget(limits.window_updates, "too many window updates")
        self._rapid_resets = Budget(limits.rapid_resets, "too many streams that were reset at once")
        self._refusals = Budget(limits.refusals, "too many streams that had to be reset")
        self._settings = PeerSettings(limits, self._out, self._headers, self._streams)
        self._out.add(build_greeting(limits))

    # --- what the upper layer asks ----------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether the peer has said that it speaks HTTP/2."""
        return self._settings.read

    @property
    def open_streams(self) -> int:
        """How many are not over."""
        return len(self._streams)

    @property
    def streams(self) -> tuple[Stream, ...]:
        """Those that are not over."""
        return tuple(self._streams.values())

    def take_events(self) -> list[Event]:
        """What has happened since the last call, in order."""
        events = self._events
        if events:
            self._events = []
        return events

    def take_output(self) -> bytes:
        """What is to be sent, once. Ask again when `has_more`: a batch has a size."""
        if self._out.has_more and not self.failed:
            self._out.fill()
            self._settle()
        return self._out.take_output()

    @property
    def has_more(self) -> bool:
        """Whether another batch could go out at once."""
        return self._out.has_more and not self.failed

    def set_writable(self, writable: bool) -> None:
        """Whether the transport takes more. While it does not, DATA waits with its streams."""
        self._out.set_writable(writable)

    def send_headers(self, stream: Stream, block: bytes) -> None:
        """Begin an answer."""
        if not stream.ended_by_us:
            self._out.add(frames.build_headers(stream.id, block, end=False))

    def send(self, stream: Stream, head: bytes, body: bytes) -> None:
        """A part of an answer's body; it goes, or waits for windows. A stream that is over takes nothing."""
        if not stream.ended_by_us and stream.trailers is None:
            self._out.send(stream, head, body)

    def end(self, stream: Stream, trailers: bytes) -> None:
        """End an answer with a header block, behind all that was sent. `StreamEnded` says when it is out."""
        if not stream.ended_by_us and stream.trailers is None:
            self._out.end(stream, trailers)
            self._settle()

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """End a stream at once; what waits to be sent is dropped."""
        if self._streams.get(stream.id) is stream:
            self._out.add(frames.build_rst_stream(stream.id, code))
            self._close(stream, How.RESET_BY_US)
            self._events.append(StreamReset(stream, code, by_peer=False))

    def take(self, stream: Stream, length: int) -> None:
        """The consumer has taken so many bytes of a stream's DATA: the peer may send as many more."""
        self.windows.take(stream, length)

    def begin_drain(self) -> None:
        """Tell the peer that this connection is going to take no more."""
        if not self._drain_asked and not self.failed:
            self._drain_asked = True
            self._out.add(frames.build_goaway(frames.LARGEST_STREAM_ID, ErrorCode.NO_ERROR))
            self._out.add(frames.build_ping(_DRAIN_PING, ack=False))

    def finish_drain(self) -> None:
        """The second step, for a peer that does not answer the PING of the first one."""
        if not self._ends.closing and not self.failed:
            self._drain_asked = self._ends.closing = True
            self._out.add(frames.build_goaway(self._ends.last_stream, ErrorCode.NO_ERROR))
            self._settle()

    # --- time ---------------------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """The peer can read what is sent. From here on it is expected to say something."""
        self._patience.begin(now)

    @property
    def due(self) -> float | None:
        """When `expire` has something to do."""
        return self._patience.due

    def expire(self, now: float) -> None:
        """Ask a peer that is silent, or give it up."""
        if self.failed:
            return
        try:
            if self._patience.expire(
                now, is_ready=self._settings.read, is_acknowledged=self._settings.acknowledged
            ):
                self._out.add(frames.build_ping(_ASKING_PING, ack=False))
        except ConnectionFault as fault:
            self._fail(fault)

    # --- what the peer sends ------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> None:
        """Take in bytes, split anywhere. `now` is any clock's, in seconds: budgets refill by it."""
        if self.failed:
            return
        self._patience.heard_at = now
        buffer = self._buffer
        if buffer:
            buffer += data
            if len(buffer) < self._needed:
                return
            data = bytes(buffer)
            buffer.clear()
        try:
            self._out.check_unread()
            read = self._read(data, now)
        except ConnectionFault as fault:
            self._fail(fault)
            return
        if read < len(data):
            self._buffer += memoryview(data)[read:]
        self._settle()

    def _read(self, data: bytes, now: float) -> int:
        """Read whole frames; how many bytes that was. One copy for each payload, whatever the split."""
        at, size = 0, len(data)
        if not self._preface_read:
            if not frames.PREFACE.startswith(data[: len(frames.PREFACE)]):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "not the preface of HTTP/2")
            if size < len(frames.PREFACE):
                self._needed = len(frames.PREFACE)
                return 0
            self._preface_read = True
            at = len(frames.PREFACE)
        streams, events, unpack, taker = self._streams, self._events, frames.unpack_header, self._taker
        stream_window, connection_window = self.limits.stream_window, self.limits.connection_window
        max_frame, assembly, windows = self.limits.max_frame_bytes, self._assembly, self.windows
        while size - at >= 9:
            high, low, kind, flags, stream_id = unpack(data, at)
            length = high << 16 | low
            if length > max_frame:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a frame larger than announced")
            end = at + 9 + length
            if end > size:
                self._needed = 9 + length
                return at
            # DATA on an open stream is the path of every chunk; whatever is special about a frame is not.
            if kind == 0 and length and not flags & frames.PADDED and assembly.stream_id is None:
                stream = streams.get(stream_id)
                if stream is not None and not stream.ended_by_peer and stream.body_left is None:
                    stream.uncredited += length
                    windows.uncredited += length
                    if stream.uncredited <= stream_window and windows.uncredited <= connection_window:
                        if taker is not None and not flags & 1 and not events:  # nothing waits before it
                            taker(stream, data[at + 9 : end])
                            at = end
                            continue
                        ended = flags & 1 == 1
                        if ended:
                            stream.ended_by_peer = True
                        events.append(DataReceived(stream, data[at + 9 : end], ended))
                        at = end
                        continue
                    stream.uncredited -= length
                    windows.uncredited -= length
            try:
                self._read_frame(kind, flags, stream_id & frames.LARGEST_STREAM_ID, data[at + 9 : end], now)
            except StreamFault as fault:
                self._refuse(fault, now)
            at = end
        self._needed = 9
        return at

    def _read_frame(self, kind: int, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        open_block = self._assembly.stream_id
        if open_block is not None and (kind != FrameType.CONTINUATION or stream_id != open_block):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "another frame inside a header block")
        if not self._settings.read and (kind != FrameType.SETTINGS or flags & frames.ACK):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        match kind:
            case FrameType.DATA:
                self._read_data(payload, flags, stream_id, now)
            case FrameType.HEADERS:
                self._read_block(self._assembly.begin(payload, flags, stream_id))
            case FrameType.CONTINUATION:
                self._read_block(self._assembly.go_on(payload, flags))
            case FrameType.WINDOW_UPDATE:
                self._read_window_update(payload, stream_id, now)
            case FrameType.RST_STREAM:
                self._read_rst_stream(payload, stream_id, now)
            case FrameType.SETTINGS:
                self._settings_frames.spend(now)
                self._settings.take(payload, flags, stream_id)
            case FrameType.PING:
                self._idle_frames.spend(now)
                self._read_ping(payload, flags, stream_id)
            case FrameType.GOAWAY:
                self._idle_frames.spend(now)
                frames.read_goaway(payload, stream_id)
                # It opens no more streams; those that there are go on, and nobody needs the connection after.
                self.finish_drain()
            case FrameType.PUSH_PROMISE:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE from a client")
            case FrameType.PRIORITY:
                self._idle_frames.spend(now)
                frames.check_priority(payload, stream_id)
            case _:
                self._idle_frames.spend(now)

    # --- bodies -------------------------------------------------------------------------------------

    def _read_data(self, payload: bytes, flags: int, stream_id: int, now: float) -> None:
        if stream_id == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "DATA on stream 0")
        data, size = frames.read_unpadded(payload, flags), len(payload)
        ended = bool(flags & frames.END_STREAM)
        if not data and not ended:
            self._idle_frames.spend(now)
        self.windows.use(size)
        stream = self._streams.get(stream_id)
        if stream is None:
            self.windows.give_back(size)
            self._ends.judge_late(stream_id, "DATA")
            return
        if stream.ended_by_peer:
            self.windows.give_back(size)
            raise StreamFault(stream_id, ErrorCode.STREAM_CLOSED, "DATA behind the end of a request")
        self.windows.use_stream(stream, size)
        if stream.body_left is not None:
            stream.body_left -= len(data)
            if stream.body_left < 0 or (ended and stream.body_left):
                raise StreamFault(
                    stream_id, ErrorCode.PROTOCOL_ERROR, "a body of another length than declared"
                )
        if size > len(data):
            self.take(stream, size - len(data))  # padding is for nobody
        stream.ended_by_peer = ended
        self._events.append(DataReceived(stream, data, ended))

    # --- headers ------------------------------------------------------------------------------------

    def _read_block(self, block: Block | None) -> None:
        if block is None:
            return
        stream = self._streams.get(block.stream_id)
        if stream is not None:
            self._end_with_trailers(stream, block)
        elif block.stream_id > self._ends.last_stream:
            self._open(block.stream_id, block.whole, block.ended)
        else:
            self._headers.skip(block.whole)
            self._ends.judge_late(block.stream_id, "HEADERS")

    def _open(self, stream_id: int, block: bytes, ended: bool) -> None:
        if self._ends.closing:
            self._headers.skip(block)  # the GOAWAY has said that nothing is done for it
            return
        self._ends.last_stream = stream_id
        if len(self._streams) >= self.limits.max_streams:
            self._headers.skip(block)
            raise StreamFault(stream_id, ErrorCode.REFUSED_STREAM, "too many streams at once")
        headers = self._headers.read_request(block, stream_id)
        body_left = headers.content_length
        if ended and body_left:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "a body of another length than declared")
        stream = Stream(stream_id, self._out.initial_window, body_left)
        stream.ended_by_peer = ended
        self._streams[stream_id] = stream
        self._events.append(RequestStarted(stream, headers, ended))

    def _end_with_trailers(self, stream: Stream, block: Block) -> None:
        self._headers.read_trailers(block.whole, stream.id)
        if stream.ended_by_peer:
            raise StreamFault(stream.id, ErrorCode.STREAM_CLOSED, "HEADERS behind the end of a request")
        if not block.ended:
            raise StreamFault(stream.id, ErrorCode.PROTOCOL_ERROR, "trailers that end nothing")
        if stream.body_left:
            raise StreamFault(stream.id, ErrorCode.PROTOCOL_ERROR, "a body of another length than declared")
        stream.ended_by_peer = True
        self._events.append(TrailersReceived(stream))

    # --- control ------------------------------------------------------------------------------------

    def _read_window_update(self, payload: bytes, stream_id: int, now: float) -> None:
        self._window_updates.spend(now)
        increment = frames.read_window_update(payload, stream_id)
        if stream_id == 0:
            self._out.widen(increment)
            return
        stream = self._streams.get(stream_id)
        if stream is None:
            self._ends.check_begun(stream_id, "WINDOW_UPDATE")
        elif not self._out.widen_stream(stream, increment):
            raise StreamFault(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "a stream's window above 2^31-1")

    def _read_rst_stream(self, payload: bytes, stream_id: int, now: float) -> None:
        code = frames.read_rst_stream(payload, stream_id)
        stream = self._streams.get(stream_id)
        if stream is None:
            self._ends.check_begun(stream_id, "RST_STREAM")
            self._idle_frames.spend(now)
            return
        if stream.window == self._out.initial_window:  # nothing was sent on it yet
            self._rapid_resets.spend(now)
        self._close(stream, How.RESET_BY_PEER)
        self._events.append(StreamReset(stream, code, by_peer=True))

    def _read_ping(self, payload: bytes, flags: int, stream_id: int) -> None:
        frames.check_ping(payload, stream_id)
        if not flags & frames.ACK:
            self._out.answer(frames.build_ping(payload, ack=True))
        elif payload == _DRAIN_PING and self._drain_asked:
            self.finish_drain()

    # --- ends ---------------------------------------------------------------------------------------

    def _refuse(self, fault: StreamFault, now: float) -> None:
        # No RST_STREAM on a stream that is idle (6.4), as all of ours are.
        if fault.stream_id > self._ends.last_stream or not fault.stream_id & 1:
            raise ConnectionFault(fault.code, fault.detail)
        self._refusals.spend(now)
        self._out.answer(frames.build_rst_stream(fault.stream_id, fault.code))
        stream = self._streams.get(fault.stream_id)
        if stream is None:
            self._ends.remember(fault.stream_id, How.RESET_BY_US)
            return
        self._close(stream, How.RESET_BY_US)
        self._events.append(StreamReset(stream, fault.code, by_peer=False))

    def _settle(self) -> None:
        """Tell what the sending half has done."""
        for stream in self._out.take_ended():
            if not stream.ended_by_peer:
                # The rest of the request is not wanted (8.1); a client would go on to send it.
                self._out.add(frames.build_rst_stream(stream.id, ErrorCode.NO_ERROR))
            self._close(stream, How.BOTH if stream.ended_by_peer else How.RESET_BY_US)
            self._events.append(StreamEnded(stream))
        for stream in self._out.take_drained():
            self._events.append(SendsDrained(stream))
        if self._ends.closing and not self._streams and not self._drained_told:
            self._drained_told = True
            self._events.append(Drained())

    def _close(self, stream: Stream, how: How) -> None:
        del self._streams[stream.id]
        self._out.drop(stream)
        self.windows.drop(stream)
        self._ends.remember(stream.id, how)

    def _fail(self, fault: ConnectionFault) -> None:
        self.failed = True
        self._patience.due = None
        self._buffer.clear()
        self._out.add(frames.build_goaway(self._ends.last_stream, fault.code, fault.detail))
        for stream in self.streams:
            self._out.drop(stream)
            stream.uncredited = stream.taken = 0
            self._events.append(StreamReset(stream, fault.code, by_peer=False))
        self._streams.clear()
        self.windows.forget()
        self._events.append(ConnectionFailed(fault.code, fault.detail))

    def statistics(self) -> dict[str, Any]:
        """What it holds, for tests and people."""
        return {
            "streams": len(self._streams),
            "uncredited": self.windows.held,
            "buffered": len(self._buffer),
            "remembered": len(self._ends),
        }
