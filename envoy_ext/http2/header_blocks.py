"""Header blocks: read with the `hpack` library and checked as a request's, and the few that we write.

We announce a compression table of size 0. Once the peer has put its own table to that size, a block means
the same whenever it comes, and the few that an Envoy sends again and again are read once.
"""

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from hpack import Decoder
from hpack.exceptions import HPACKError, OversizedHeaderListError

from envoy_ext.http2.errors import ConnectionFault, ErrorCode, StreamFault
from envoy_ext.http2.limits import Limits

_KEPT_BLOCKS: Final = 256
_KEPT_BLOCK_BYTES: Final = 1_024
"""A longer block is read anew each time, so that what is kept stays below 1 MiB."""

_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
"""A token without capitals (RFC 9113, section 8.2.1)."""
_NOT_IN_VALUE: Final = re.compile(rb"[\x00\r\n]")
_BLANK: Final = (b" ", b"\t")
_PSEUDO: Final = frozenset({b":method", b":scheme", b":authority", b":path"})
_OF_CONNECTIONS: Final = frozenset(
    {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
)
"""Meaningless in HTTP/2, and a sign of a translator that forwards what it should not (section 8.2.2)."""


@dataclass(frozen=True, slots=True)
class RequestHeaders:
    """A request's headers, in which every rule of section 8.3 holds."""

    method: str
    path: str
    authority: str
    fields: MappingProxyType[str, str]
    """Without pseudo-headers; values of a name that stands twice are joined by a comma."""
    content_length: int | None


Field = tuple[bytes, bytes]


class HeaderReader:
    """The peer's side of compression. Every block must pass here, in order, also those of refused streams."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._decoder = Decoder(limits.max_header_list_bytes)
        self._kept: dict[bytes, RequestHeaders] = {}
        self._acknowledged = False
        self._table_is_gone = False

    def note_settings_acknowledged(self) -> None:
        """From here on the peer knows that we want no table."""
        # It must say so in its next block (RFC 7541, section 4.2), and Envoy sometimes does so a few blocks
        # later: until then its table is followed.
        self._acknowledged = True
        self._note_table()

    def _note_table(self) -> None:
        if self._acknowledged and self._decoder.header_table_size == 0:
            self._table_is_gone = True
            self._decoder.max_allowed_table_size = 0

    def read_request(self, block: bytes, stream_id: int) -> RequestHeaders:
        """The headers of a request.

        Raises:
            ConnectionFault: they cannot be unpacked, or not within the limit.
            StreamFault: they are no request's.
        """
        kept = self._kept.get(block)
        if kept is not None:
            return kept
        fields, stateless = self._unpack(block)
        headers = _check_request(fields, stream_id, self._limits.max_header_fields)
        if stateless and len(block) <= _KEPT_BLOCK_BYTES and len(self._kept) < _KEPT_BLOCKS:
            self._kept[block] = headers
        return headers

    def read_trailers(self, block: bytes, stream_id: int) -> None:
        """Check what stands behind a request's body; gRPC gives it no meaning.

        Raises:
            ConnectionFault, StreamFault: as for a request.
        """
        fields, _ = self._unpack(block)
        _check_count(fields, stream_id, self._limits.max_header_fields)
        for name, value in fields:
            if name.startswith(b":"):
                raise _malformed(stream_id, "a pseudo-header among trailers")
            _check_field(name, value, stream_id)

    def skip(self, block: bytes) -> None:
        """Follow the compression of a block that nobody wants."""
        if block not in self._kept:
            self._unpack(block)

    def _unpack(self, block: bytes) -> tuple[list[Field], bool]:
        """The fields, and whether the block would mean the same at any other time."""
        decoder = self._decoder
        was_gone = self._table_is_gone
        try:
            fields = [(bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)]
        except OversizedHeaderListError:
            # The library gives up in the middle, and its table with it.
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "headers above the limit") from None
        except HPACKError:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, "headers that cannot be unpacked") from None
        if not was_gone:
            self._note_table()
        return fields, was_gone


def _check_request(fields: list[Field], stream_id: int, most: int) -> RequestHeaders:
    _check_count(fields, stream_id, most)
    pseudo: dict[bytes, str] = {}
    plain: dict[str, str] = {}
    for name, value in fields:
        if name.startswith(b":"):
            if plain:
                raise _malformed(stream_id, "a pseudo-header behind a header")
            if name not in _PSEUDO or name in pseudo:
                raise _malformed(stream_id, "a pseudo-header that is unknown, or stands twice")
            if _NOT_IN_VALUE.search(value):
                raise _malformed(stream_id, "a header's value that cannot be")
            pseudo[name] = value.decode("latin-1")
            continue
        _check_field(name, value, stream_id)
        key, text = name.decode("latin-1"), value.decode("latin-1")
        plain[key] = f"{plain[key]},{text}" if key in plain else text
    path = pseudo.get(b":path", "")
    if b":method" not in pseudo or b":scheme" not in pseudo or not path:
        raise _malformed(stream_id, "a request without method, scheme or path")
    return RequestHeaders(
        method=pseudo[b":method"],
        path=path,
        authority=pseudo.get(b":authority", ""),
        fields=MappingProxyType(plain),
        content_length=_read_length(plain.get("content-length"), stream_id),
    )


def _check_field(name: bytes, value: bytes, stream_id: int) -> None:
    if not _NAME.fullmatch(name):
        raise _malformed(stream_id, "a header's name that cannot be")
    if _NOT_IN_VALUE.search(value) or value.startswith(_BLANK) or value.endswith(_BLANK):
        raise _malformed(stream_id, "a header's value that cannot be")
    if name in _OF_CONNECTIONS or (name == b"te" and value != b"trailers"):
        raise _malformed(stream_id, "a header that belongs to another HTTP")


def _check_count(fields: list[Field], stream_id: int, most: int) -> None:
    if len(fields) > most:
        raise StreamFault(stream_id, ErrorCode.ENHANCE_YOUR_CALM, "more headers than are taken")


def _read_length(text: str | None, stream_id: int) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise _malformed(stream_id, "a content-length that is no number")
    return int(text)


def _malformed(stream_id: int, detail: str) -> StreamFault:
    return StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, detail)


# --- ours -----------------------------------------------------------------------------------------


def build_block(status: int | None, fields: list[tuple[str, str]]) -> bytes:
    """A header block that needs no table: literals that are not indexed (RFC 7541, section 6.2.2).

    `status` is None for trailers.
    """
    block = b""
    if status == 200:
        block = b"\x88"  # an entry of the static table
    elif status is not None:
        block = b"\x08" + _build_text(str(status))  # the name is an entry of the static table
    return block + b"".join(b"\x00" + _build_text(name) + _build_text(value) for name, value in fields)


def _build_text(text: str) -> bytes:
    """A string literal (section 5.2), not Huffman-coded; its length as a 7-bit prefix integer (5.1)."""
    raw = text.encode("latin-1")
    size = len(raw)
    if size < 0x7F:
        return bytes((size,)) + raw
    size -= 0x7F
    length = bytearray((0x7F,))
    while size >= 0x80:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return bytes(length) + raw
