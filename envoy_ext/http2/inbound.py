"""What has been received and not been taken yet: the windows that the peer may fill.

Received DATA counts against the stream's window and the connection's until its consumer has taken it.
Windows are given back in halves, so that small messages do not cost a WINDOW_UPDATE each.
"""

from envoy_ext.http2 import frames
from envoy_ext.http2.errors import ConnectionFault, ErrorCode, StreamFault
from envoy_ext.http2.frames import Setting
from envoy_ext.http2.limits import Limits
from envoy_ext.http2.outbound import Outbound
from envoy_ext.http2.streams import Stream


def build_greeting(limits: Limits) -> bytes:
    """What the server says first: what it takes of a peer, and how much at once."""
    settings = {
        Setting.HEADER_TABLE_SIZE: 0,
        Setting.MAX_CONCURRENT_STREAMS: limits.max_streams,
        Setting.INITIAL_WINDOW_SIZE: limits.stream_window,
        Setting.MAX_FRAME_SIZE: limits.max_frame_bytes,
        Setting.MAX_HEADER_LIST_SIZE: limits.max_header_list_bytes,
    }
    update = frames.build_window_update(0, limits.connection_window - frames.DEFAULT_WINDOW)
    return frames.build_settings(settings) + update


class InboundWindows:
    """Of one connection and its streams. What is given back goes out by `out`."""

    def __init__(self, limits: Limits, out: Outbound) -> None:
        self._limits = limits
        self._out = out
        self.uncredited = 0
        """Bytes of the connection's window that are used."""
        self._taken = 0
        self._half = limits.connection_window >> 1
        self._stream_half = limits.stream_window >> 1

    @property
    def held(self) -> int:
        """Bytes that nobody has taken."""
        return self.uncredited - self._taken

    def use(self, size: int) -> None:
        """So many bytes have come, of whatever stream.

        Raises:
            ConnectionFault: they are more than the window holds.
        """
        self.uncredited += size
        if self.uncredited > self._limits.connection_window:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more than the connection's window")

    def use_stream(self, stream: Stream, size: int) -> None:
        """So many of them are this stream's.

        Raises:
            StreamFault: they are more than its window holds.
        """
        stream.uncredited += size
        if stream.uncredited > self._limits.stream_window:
            raise StreamFault(stream.id, ErrorCode.FLOW_CONTROL_ERROR, "more than the stream's window")

    def take(self, stream: Stream, length: int) -> None:
        """The consumer has taken so many bytes of a stream's DATA."""
        left = stream.uncredited - stream.taken
        if length > left:
            length = left  # with a stream's end all of it was given back
        self._taken += length
        if self._taken >= self._half:
            self.give_back(0)
        stream.taken += length
        if stream.taken >= self._stream_half:
            if not stream.ended_by_peer and not stream.ended_by_us:
                self._out.add(frames.build_window_update(stream.id, stream.taken))
            stream.uncredited -= stream.taken
            stream.taken = 0

    def drop(self, stream: Stream) -> None:
        """The stream is over: what it holds is taken by nobody."""
        self.give_back(stream.uncredited - stream.taken)
        stream.uncredited = stream.taken = 0

    def forget(self) -> None:
        """Every stream is over, and the peer may send no more."""
        self.uncredited = self._taken = 0

    def give_back(self, length: int) -> None:
        """So many bytes of the connection's window are free again."""
        self._taken += length
        if self._taken >= self._half:
            self._out.add(frames.build_window_update(0, self._taken))
            self.uncredited -= self._taken
            self._taken = 0
