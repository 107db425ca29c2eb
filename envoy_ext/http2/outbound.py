"""The sending half of a connection: frames of control at once, DATA as windows and transport let it.

What cannot go waits with its stream. Streams that wait are served in turn, one frame each, so that none
takes a window, or a slow transport, for itself.
"""

from collections import deque
from typing import Final

from envoy_ext.http2 import frames
from envoy_ext.http2.errors import ConnectionFault, ErrorCode
from envoy_ext.http2.frames import FrameType
from envoy_ext.http2.limits import Limits
from envoy_ext.http2.streams import Stream

_pack_header: Final = frames.pack_header


class Outbound:
    """Collects bytes until they are fetched."""

    __slots__ = (
        "_chunks",
        "_drained",
        "_ended",
        "_limits",
        "_line",
        "_unread",
        "_unsent_answers",
        "_writable",
        "initial_window",
        "max_frame",
        "window",
    )

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._chunks: list[bytes] = []
        self._line: deque[Stream] = deque()
        """Streams with something to send, each once; those whose own window is shut are not in it."""
        self._drained: list[Stream] = []
        self._ended: list[Stream] = []
        self._unsent_answers = 0
        self._unread = 0
        self._writable = True
        self.window = frames.DEFAULT_WINDOW
        self.initial_window = frames.DEFAULT_WINDOW
        self.max_frame = frames.SMALLEST_MAX_FRAME

    # --- frames of control --------------------------------------------------------------------

    def add(self, frame: bytes) -> None:
        """A frame that waits for nothing."""
        if not self._writable:
            self._unread += 1
        self._chunks.append(frame)

    def answer(self, frame: bytes) -> None:
        """A frame that the peer made us send.

        Raises:
            ConnectionFault: it makes us send, and reads nothing of it.
        """
        if not self._writable:
            self._unsent_answers += 1
            if self._unsent_answers > self._limits.max_unsent_answers:
                raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many answers that nobody reads")
        self._chunks.append(frame)

    def check_unread(self) -> None:
        """Look at all that was added for a peer which reads nothing, and goes on to send.

        Raises:
            ConnectionFault: it is too much.
        """
        if self._unread > self._limits.max_unread_frames:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that nobody reads")

    # --- a stream's answer --------------------------------------------------------------------

    def send(self, stream: Stream, head: bytes, body: bytes) -> None:
        """DATA of a stream, in two parts so that a short prefix costs no copy of a long body."""
        length = len(head) + len(body)
        if (
            stream.pending is None
            and self._writable
            and length <= self.window
            and length <= stream.window
            and length <= self.max_frame
        ):
            stream.window -= length
            self.window -= length
            header = _pack_header(length >> 16, length & 0xFFFF, 0, 0, stream.id)
            self._chunks += (header, head, body)
            return
        if stream.pending is None:
            stream.pending = deque()
        stream.pending.extend(memoryview(part) for part in (head, body) if part)
        self._line_up(stream)

    def end(self, stream: Stream, trailers: bytes) -> None:
        """End a stream's answer with this header block, once everything before it has gone."""
        stream.trailers = trailers
        if stream.pending is None:
            self._end_now(stream)

    def drop(self, stream: Stream) -> None:
        """Nothing more goes out on this stream."""
        stream.pending = None
        stream.trailers = None
        stream.ended_by_us = True

    def _line_up(self, stream: Stream) -> None:
        if not stream.in_line:
            stream.in_line = True
            self._line.append(stream)

    def _end_now(self, stream: Stream) -> None:
        assert stream.trailers is not None
        self.add(frames.build_headers(stream.id, stream.trailers, end=True))
        stream.trailers = None
        stream.ended_by_us = True
        self._ended.append(stream)

    # --- windows ------------------------------------------------------------------------------

    def widen(self, increment: int) -> None:
        """The peer takes more on this connection.

        Raises:
            ConnectionFault: more than there can be (RFC 9113, section 6.9.1).
        """
        if self.window + increment > frames.LARGEST_WINDOW:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window above 2^31-1")
        self.window += increment

    def widen_stream(self, stream: Stream, increment: int) -> bool:
        """The peer takes more on this stream; False when that is more than there can be."""
        if stream.window + increment > frames.LARGEST_WINDOW:
            return False
        stream.window += increment
        if stream.pending is not None and stream.window > 0:
            self._line_up(stream)
        return True

    def set_writable(self, writable: bool) -> None:
        """Whether the transport takes more."""
        self._writable = writable
        if writable:
            self._unsent_answers = self._unread = 0

    # --- to the transport ---------------------------------------------------------------------

    @property
    def has_more(self) -> bool:
        """Whether `fill` would find something to send."""
        return bool(self._line) and self._writable and self.window > 0

    def fill(self) -> None:
        """Move what windows allow from the waiting streams into the output, up to one batch."""
        line, left = self._line, self._limits.output_batch_bytes
        while line and self._writable and self.window > 0 and left > 0:
            stream = line.popleft()
            stream.in_line = False
            if stream.pending is None or stream.window <= 0:  # reset, or shut: it lines up when it is opened
                continue
            left -= self._send_frame(stream, stream.pending)

    def _send_frame(self, stream: Stream, pending: deque[memoryview]) -> int:
        """One frame of DATA, or what is left of the answer."""
        most = min(self.window, stream.window, self.max_frame)
        parts, length = [], 0
        while pending and length < most:
            part = pending.popleft()
            if length + len(part) > most:
                pending.appendleft(part[most - length :])
                part = part[: most - length]
            parts.append(part)
            length += len(part)
        stream.window -= length
        self.window -= length
        self._chunks.append(frames.build_frame(FrameType.DATA, 0, stream.id, b"".join(parts)))
        if pending:
            self._line_up(stream)
        else:
            stream.pending = None
            self._drained.append(stream)
            if stream.trailers is not None:
                self._end_now(stream)
        return length

    def take_output(self) -> bytes:
        """All bytes so far, once."""
        chunks = self._chunks
        if not chunks:
            return b""
        self._chunks = []
        return b"".join(chunks)

    def take_drained(self) -> list[Stream]:
        """Streams that waited, and whose bytes have all gone, since the last call."""
        if not self._drained:
            return self._drained
        drained, self._drained = self._drained, []
        return drained

    def take_ended(self) -> list[Stream]:
        """Streams whose answer has gone as a whole, since the last call."""
        if not self._ended:
            return self._ended
        ended, self._ended = self._ended, []
        return ended
