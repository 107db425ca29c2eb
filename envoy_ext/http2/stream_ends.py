"""How streams ended, and what a late frame on one of them means (RFC 9113, section 5.1)."""

from enum import Enum

from envoy_ext.http2.errors import ConnectionFault, ErrorCode, StreamFault
from envoy_ext.http2.limits import CLOSED_STREAMS_KEPT


class How(Enum):
    """The end of a stream."""

    BOTH = "ended by both"
    RESET_BY_PEER = "reset by the peer"
    RESET_BY_US = "reset by us"


class StreamEnds:
    """Remembers the last ends, and which streams have begun at all."""

    __slots__ = ("_ends", "closing", "last_stream")

    def __init__(self) -> None:
        self._ends: dict[int, How] = {}  # oldest first
        self.last_stream = 0
        """The highest stream that was begun."""
        self.closing = False
        """No later one is served: the peer is told so, and may not have read it."""

    def __len__(self) -> int:
        return len(self._ends)

    def remember(self, stream_id: int, how: How) -> None:
        """A stream is over."""
        self._ends[stream_id] = how
        if len(self._ends) > CLOSED_STREAMS_KEPT:
            del self._ends[next(iter(self._ends))]

    def judge_late(self, stream_id: int, what: str) -> None:
        """DATA or HEADERS on a stream that is not open; returns when they only came late.

        Raises:
            StreamFault: the peer had reset that stream.
            ConnectionFault: it had ended it, or it never was.
        """
        self.check_begun(stream_id, what)
        how = self._ends.get(stream_id)
        if how is How.RESET_BY_PEER:
            raise StreamFault(stream_id, ErrorCode.STREAM_CLOSED, f"{what} behind a reset")
        if how is How.BOTH:
            raise ConnectionFault(ErrorCode.STREAM_CLOSED, f"{what} on a closed stream")
        if how is None and what == "HEADERS":
            # Its number was passed over, which ended it (5.1.1). Trailers come from nobody so late.
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a stream id below an earlier one")

    def check_begun(self, stream_id: int, what: str) -> None:
        """A frame that means nothing on a stream that is over, and cannot be on one that never was.

        Raises:
            ConnectionFault: the stream is idle.
        """
        if stream_id & 1 and (stream_id <= self.last_stream or self.closing):
            return
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"{what} on a stream that is idle")
