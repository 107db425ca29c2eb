"""What the peer says of itself in SETTINGS, and whether it has acknowledged ours (RFC 9113, section 6.5)."""

from collections.abc import Mapping

from envoy_ext.http2 import frames
from envoy_ext.http2.errors import ConnectionFault, ErrorCode
from envoy_ext.http2.frames import Setting
from envoy_ext.http2.header_blocks import HeaderReader
from envoy_ext.http2.limits import Limits
from envoy_ext.http2.outbound import Outbound
from envoy_ext.http2.streams import Stream


class PeerSettings:
    """Of one connection; what they change is changed at once."""

    __slots__ = ("_headers", "_limits", "_out", "_streams", "acknowledged", "read")

    def __init__(
        self, limits: Limits, out: Outbound, headers: HeaderReader, streams: Mapping[int, Stream]
    ) -> None:
        """`streams` are those of the connection, as they are at each moment."""
        self._limits = limits
        self._out = out
        self._headers = headers
        self._streams = streams
        self.read = False
        """The peer's first ones have come."""
        self.acknowledged = False
        """Ours have been taken."""

    def take(self, payload: bytes, flags: int, stream_id: int) -> None:
        """A SETTINGS frame.

        Raises:
            ConnectionFault: it breaks a rule, or moves a window above what there can be.
        """
        settings = frames.read_settings(payload, flags, stream_id)
        if settings is None:
            if self.acknowledged:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "an acknowledgement of no SETTINGS")
            self.acknowledged = True
            self._headers.note_settings_acknowledged()
            return
        if len(payload) > self._limits.max_settings * 6:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many settings")
        self.read = True
        told = dict(settings)  # of one that stands twice the last counts
        self._out.max_frame = told.get(Setting.MAX_FRAME_SIZE, self._out.max_frame)
        self._change_initial_window(told.get(Setting.INITIAL_WINDOW_SIZE, self._out.initial_window))
        self._out.answer(frames.SETTINGS_ACK)

    def _change_initial_window(self, value: int) -> None:
        """All streams' windows move with it, below 0 as well (6.9.2)."""
        moved = value - self._out.initial_window
        if not moved:
            return
        self._out.initial_window = value
        for stream in self._streams.values():
            if not self._out.widen_stream(stream, moved):
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a stream's window above 2^31-1")
