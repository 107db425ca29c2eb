"""Header blocks put together from HEADERS and CONTINUATION (RFC 9113, section 6.10), within limits."""

from envoy_ext.http2 import frames
from envoy_ext.http2.errors import ConnectionFault, ErrorCode
from envoy_ext.http2.limits import Limits


class Block:
    """A header block that is there as a whole."""

    __slots__ = ("ended", "stream_id", "whole")

    def __init__(self, stream_id: int, whole: bytes, ended: bool) -> None:
        self.stream_id = stream_id
        self.whole = whole
        self.ended = ended
        """Nothing of the request follows."""


class HeaderAssembly:
    """At most one block is open, and nothing else may come until it is closed."""

    __slots__ = ("_ended", "_frames", "_limits", "_parts", "_size", "stream_id")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.stream_id: int | None = None
        """Of the block that is open."""
        self._ended = False
        self._parts: list[bytes] = []
        self._size = 0
        self._frames = 0

    def begin(self, payload: bytes, flags: int, stream_id: int) -> Block | None:
        """HEADERS; None when more has to come.

        Raises:
            ConnectionFault: on no stream of a client's, badly padded, or above the limit.
        """
        if not stream_id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "HEADERS on a stream that no client opens")
        fragment = frames.read_headers(payload, flags, stream_id)
        self.stream_id = stream_id
        self._ended = bool(flags & frames.END_STREAM)
        self._frames = 0
        return self._add(fragment, flags)

    def go_on(self, payload: bytes, flags: int) -> Block | None:
        """CONTINUATION, of the block that is open.

        Raises:
            ConnectionFault: none is, or this makes it too long.
        """
        if self.stream_id is None:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        self._frames += 1
        if self._frames > self._limits.max_continuations:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a header block in too many frames")
        return self._add(payload, flags)

    def _add(self, fragment: bytes, flags: int) -> Block | None:
        assert self.stream_id is not None
        self._parts.append(fragment)
        self._size += len(fragment)
        if self._size > self._limits.max_header_block_bytes:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a header block above the limit")
        if not flags & frames.END_HEADERS:
            return None
        block = Block(self.stream_id, b"".join(self._parts), self._ended)
        self.stream_id = None
        self._parts = []
        self._size = 0
        return block
