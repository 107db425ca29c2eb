"""A body without its content coding, within a bound."""

import zlib

from envoy_ext.adapters.engines.exposition import NotMetrics


class TooLarge(Exception):
    """A body is over its bound."""


def unpack(raw: bytes, coding: str, max_bytes: int) -> bytes:
    """The body without its content coding, never more than the bound in memory."""
    if not coding:
        return raw
    if coding not in ("gzip", "x-gzip"):
        raise NotMetrics("a content coding that was not asked for")
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        page = unpacker.decompress(raw, max_bytes + 1)
    except zlib.error as error:
        raise NotMetrics("not the gzip that its header says") from error
    if len(page) > max_bytes:
        raise TooLarge
    if not unpacker.eof or unpacker.unused_data:
        raise NotMetrics("gzip that is cut, or has something behind it")
    return page
