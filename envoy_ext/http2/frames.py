"""Frames of HTTP/2 as bytes: what each type's payload must be, and how ours are written.

RFC 9113, sections 4 and 6; numbers in comments are its sections. A `read_` function takes the payload of a
whole frame and says what is in it, or raises the fault that the section names. A `build_` function
gives the bytes of a whole frame. Nothing here knows the state of a connection.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final

from envoy_ext.http2.errors import ConnectionFault, ErrorCode, StreamFault

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client sends first (3.4)."""

HEADER_BYTES: Final = 9
LARGEST_WINDOW: Final = (1 << 31) - 1
DEFAULT_WINDOW: Final = 65_535
"""Of a stream and of a connection, before anybody says otherwise (6.9.2)."""
SMALLEST_MAX_FRAME: Final = 16_384
LARGEST_MAX_FRAME: Final = (1 << 24) - 1
LARGEST_STREAM_ID: Final = (1 << 31) - 1


class FrameType(IntEnum):
    """Section 6. A type that is not here is ignored (5.5)."""

    DATA = 0x0
    HEADERS = 0x1
    PRIORITY = 0x2
    RST_STREAM = 0x3
    SETTINGS = 0x4
    PUSH_PROMISE = 0x5
    PING = 0x6
    GOAWAY = 0x7
    WINDOW_UPDATE = 0x8
    CONTINUATION = 0x9


class Setting(IntEnum):
    """Section 6.5.2. One that is not here is ignored."""

    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6


END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY: Final = 0x20

unpack_header: Final = struct.Struct(">BHBBI").unpack_from
"""A frame's first 9 bytes: length in two parts, type, flags, stream id with its reserved bit."""
pack_header: Final = struct.Struct(">BHBBI").pack
_PAIR: Final = struct.Struct(">HI")
_WORD: Final = struct.Struct(">I")
_TWO_WORDS: Final = struct.Struct(">II")


# --- what the peer sent ---------------------------------------------------------------------------


def read_unpadded(payload: bytes, flags: int) -> bytes:
    """A DATA payload, or that of HEADERS, without its padding (6.1, 6.2).

    Raises:
        ConnectionFault: the padding is as long as the payload, or longer; or has no length.
    """
    if not flags & PADDED:
        return payload
    if not payload:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a padded frame without the length of its padding")
    if payload[0] >= len(payload):
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "padding longer than its frame")
    return payload[1 : len(payload) - payload[0]]


def read_headers(payload: bytes, flags: int, stream_id: int) -> bytes:
    """The part of a header block in a HEADERS payload; priorities are read over (5.3.2, deprecated).

    Raises:
        ConnectionFault: padding, or a length, that cannot be. HEADERS change the state of compression, so
            that each of their mistakes costs the connection (4.2).
    """
    fragment = read_unpadded(payload, flags)
    if not flags & PRIORITY:
        return fragment
    if len(fragment) < 5:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "HEADERS too short for its priority")
    if _WORD.unpack_from(fragment)[0] & LARGEST_STREAM_ID == stream_id:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself")
    return fragment[5:]


def check_priority(payload: bytes, stream_id: int) -> None:
    """PRIORITY (6.3): checked, and ignored as RFC 9113 lets a server do.

    Raises:
        StreamFault: it has another length than 5, or the stream depends on itself.
        ConnectionFault: it names no stream.
    """
    if stream_id == 0:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0")
    if len(payload) != 5:
        raise StreamFault(stream_id, ErrorCode.FRAME_SIZE_ERROR, "PRIORITY that is not 5 bytes long")
    if _WORD.unpack_from(payload)[0] & LARGEST_STREAM_ID == stream_id:
        raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself")


def read_rst_stream(payload: bytes, stream_id: int) -> int:
    """The error code of an RST_STREAM (6.4), which may be one that nobody knows.

    Raises:
        ConnectionFault: another length than 4, or no stream.
    """
    if stream_id == 0:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "RST_STREAM on stream 0")
    if len(payload) != 4:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM that is not 4 bytes long")
    return int(_WORD.unpack(payload)[0])


def read_settings(payload: bytes, flags: int, stream_id: int) -> Iterator[tuple[int, int]] | None:
    """Identifier and value of each setting, in order; None for an acknowledgement (6.5).

    Raises:
        ConnectionFault: on a stream, of an impossible length, or a value out of its range.
    """
    if stream_id != 0:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
    if flags & ACK:
        if payload:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "an acknowledgement of SETTINGS with a payload")
        return None
    if len(payload) % 6:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS that are no multiple of 6 bytes long")
    found = list(_PAIR.iter_unpack(payload))
    for identifier, value in found:
        _check_setting(identifier, value)
    return iter(found)


def _check_setting(identifier: int, value: int) -> None:
    if identifier == Setting.ENABLE_PUSH and value > 1:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
    if identifier == Setting.INITIAL_WINDOW_SIZE and value > LARGEST_WINDOW:
        raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE above 2^31-1")
    if identifier == Setting.MAX_FRAME_SIZE and not SMALLEST_MAX_FRAME <= value <= LARGEST_MAX_FRAME:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "MAX_FRAME_SIZE out of its range")


def check_ping(payload: bytes, stream_id: int) -> None:
    """PING (6.7).

    Raises:
        ConnectionFault: on a stream, or another length than 8.
    """
    if stream_id != 0:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
    if len(payload) != 8:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "PING that is not 8 bytes long")


def read_goaway(payload: bytes, stream_id: int) -> int:
    """The error code of a GOAWAY (6.8); its other words are about streams that a server never opens.

    Raises:
        ConnectionFault: on a stream, or shorter than 8 bytes.
    """
    if stream_id != 0:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
    if len(payload) < 8:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY shorter than 8 bytes")
    return int(_TWO_WORDS.unpack_from(payload)[1])


def read_window_update(payload: bytes, stream_id: int) -> int:
    """By how much a window grows (6.9).

    Raises:
        ConnectionFault: another length than 4; or a growth by 0 of the connection's window.
        StreamFault: a growth by 0 of a stream's window.
    """
    if len(payload) != 4:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE that is not 4 bytes long")
    increment = int(_WORD.unpack(payload)[0]) & LARGEST_WINDOW
    if increment == 0 and stream_id == 0:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
    if increment == 0:
        raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
    return increment


# --- what is sent ---------------------------------------------------------------------------------


def build_frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """One frame of any type."""
    length = len(payload)
    return pack_header(length >> 16, length & 0xFFFF, kind, flags, stream_id) + payload


def build_headers(stream_id: int, block: bytes, end: bool) -> bytes:
    """A header block that fits into one frame; ours do."""
    return build_frame(FrameType.HEADERS, END_HEADERS | (END_STREAM if end else 0), stream_id, block)


def build_rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    return build_frame(FrameType.RST_STREAM, 0, stream_id, _WORD.pack(code))


def build_settings(settings: dict[Setting, int]) -> bytes:
    payload = b"".join(_PAIR.pack(identifier, value) for identifier, value in settings.items())
    return build_frame(FrameType.SETTINGS, 0, 0, payload)


SETTINGS_ACK: Final = build_frame(FrameType.SETTINGS, ACK, 0)


def build_ping(payload: bytes, *, ack: bool) -> bytes:
    return build_frame(FrameType.PING, ACK if ack else 0, 0, payload)


def build_goaway(last_stream_id: int, code: ErrorCode, detail: str = "") -> bytes:
    return build_frame(FrameType.GOAWAY, 0, 0, _TWO_WORDS.pack(last_stream_id, code) + detail.encode())


def build_window_update(stream_id: int, increment: int) -> bytes:
    return build_frame(FrameType.WINDOW_UPDATE, 0, stream_id, _WORD.pack(increment))
