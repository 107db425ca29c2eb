"""A client's side of HTTP/2 as bytes, written apart from the server's: what it sends, and how it reads."""

import struct
from dataclasses import dataclass
from typing import Final

import hpack

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITIES = 0x1, 0x1, 0x4, 0x8, 0x20

METHOD: Final = "/test.Service/Method"
CALL: Final = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", METHOD),
    (":authority", "test"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream_id) + payload


def settings(**values: int) -> bytes:
    numbers = {"table": 1, "push": 2, "streams": 3, "window": 4, "frame": 5, "headers": 6}
    return frame(
        SETTINGS, 0, 0, b"".join(struct.pack(">HI", numbers[key], value) for key, value in values.items())
    )


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, struct.pack(">I", increment))


def rst_stream(stream_id: int, code: int = 8) -> bytes:
    return frame(RST_STREAM, 0, stream_id, struct.pack(">I", code))


def ping(payload: bytes = b"12345678", flags: int = 0) -> bytes:
    return frame(PING, flags, 0, payload)


def block(fields: tuple[tuple[str, str], ...] = CALL) -> bytes:
    """A header block that touches no table."""
    out = b""
    for name, value in fields:
        out += b"\x00" + bytes((len(name),)) + name.encode()
        raw = value.encode("latin-1")
        out += _length(len(raw)) + raw
    return out


def _length(size: int) -> bytes:
    return hpack.hpack.encode_integer(size, 7)


def headers(stream_id: int, fields: tuple[tuple[str, str], ...] = CALL, *, end: bool = False) -> bytes:
    return frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream_id, block(fields))


def data(stream_id: int, payload: bytes, *, end: bool = False) -> bytes:
    return frame(DATA, END_STREAM if end else 0, stream_id, payload)


def message(payload: bytes, flag: int = 0) -> bytes:
    """A gRPC message."""
    return struct.pack(">BI", flag, len(payload)) + payload


HELLO: Final = PREFACE + settings()
"""The least that a client says first."""


@dataclass(frozen=True)
class Frame:
    """One frame of the server's."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes

    @property
    def number(self) -> int:
        """The first word of the payload: an increment, an error code, a last stream."""
        return int.from_bytes(self.payload[:4], "big")


class Reader:
    """Reads what a server sends; a frame that no client could take fails the test."""

    def __init__(self, max_frame: int = 16_384) -> None:
        self._max_frame = max_frame
        self._decoder = hpack.Decoder()
        self._rest = b""

    @property
    def is_at_a_frames_end(self) -> bool:
        return not self._rest

    def read(self, output: bytes) -> list[Frame]:
        """All whole frames."""
        found, rest = [], self._rest + output
        while len(rest) >= 9:
            length = int.from_bytes(rest[:3], "big")
            if len(rest) < 9 + length:
                break
            assert length <= self._max_frame
            kind, flags, stream_id = struct.unpack(">BBI", rest[3:9])
            found.append(Frame(kind, flags, stream_id, rest[9 : 9 + length]))
            rest = rest[9 + length :]
        self._rest = rest
        return found

    def fields(self, one: Frame) -> dict[str, str]:
        """A HEADERS frame's fields."""
        assert one.kind == HEADERS
        assert one.flags & END_HEADERS
        return dict(self._decoder.decode(one.payload))
