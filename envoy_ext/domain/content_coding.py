"""Decodes a copy of a compressed request body, within a bound.

https://www.rfc-editor.org/rfc/rfc9110#section-8.4.1. Only what the standard library decodes is read;
the bound is on the decoded size, so a small body that swells is refused before it does.
"""

import zlib
from typing import Final

from envoy_ext.domain.errors import EnvoyExtError

_MAX_MEMBERS: Final = 16
"""Senders write one gzip member. Each costs a copy of what follows it, so many tiny ones would cost the
square of the body's size."""


class UnreadableBody(EnvoyExtError):
    """The body cannot be decoded. The message is for the client."""


def decode_body(body: bytes, content_encoding: str, max_decoded_bytes: int) -> bytes:
    """Return the body without its content coding, or raise `UnreadableBody`."""
    codings = [token.strip().lower() for token in content_encoding.split(",")]
    codings = [coding for coding in codings if coding not in ("", "identity")]
    match codings:
        case []:
            return body
        case ["gzip" | "x-gzip"]:
            return _inflate(body, 16 + zlib.MAX_WBITS, max_decoded_bytes)
        case ["deflate"]:
            # "deflate" is the zlib format, but some senders write the bare one: RFC 9110, 8.4.1.2.
            # A zlib header says so: method 8, and a check over its two bytes (RFC 1950, 2.2).
            is_zlib = len(body) >= 2 and body[0] & 0x0F == 8 and (body[0] * 256 + body[1]) % 31 == 0
            return _inflate(body, zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS, max_decoded_bytes)
        case _:
            raise UnreadableBody("content-encoding: is not supported; send gzip, deflate or none")


def _inflate(body: bytes, wbits: int, max_decoded_bytes: int) -> bytes:
    """Inflate every member of the body (gzip allows several, one after the other)."""
    decoded = bytearray()
    rest = body
    for _ in range(_MAX_MEMBERS):
        member = zlib.decompressobj(wbits)
        try:
            # One byte more than allowed is enough to know, and max_length 0 would mean no limit.
            decoded += member.decompress(rest, max_decoded_bytes - len(decoded) + 1)
        except zlib.error:
            raise UnreadableBody("body: does not match its content-encoding; compress it again") from None
        if len(decoded) > max_decoded_bytes:
            raise UnreadableBody(f"body: is larger than {max_decoded_bytes} bytes when decoded; send less")
        if not member.eof:
            raise UnreadableBody("body: its compressed form is cut short; send all of it")
        rest = member.unused_data
        if not rest:
            return bytes(decoded)
    raise UnreadableBody(f"body: has more than {_MAX_MEMBERS} gzip members; compress it in one")
