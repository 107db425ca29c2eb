"""A `response_body` read and written by hand: of this message there are as many as an answer has tokens.

Both directions go by length alone, with the five bytes that gRPC sets before a message. A protobuf message
that holds nothing but one bytes field in one submessage is that field behind tags and lengths, and what
stands before the field is the same for all of one size. Whatever looks in any way different (an end of
stream, an attribute, a length that is not in its shortest form) is for the protobuf parser. Field numbers:
`ProcessingRequest.response_body` 5, `HttpBody.body` 1; `ProcessingResponse.response_body` 4,
`BodyResponse.response` 1, `CommonResponse.body_mutation` 3, `BodyMutation.streamed_response` 3,
`StreamedBodyResponse.body` 1 (envoy/service/ext_proc/v3/external_processor.proto).
"""

from typing import Final

from envoy_ext.adapters.protobuf_wire import build_head
from envoy_ext.http2.grpc_messages import PREFIX_BYTES, pack_prefix

MAX_CHUNK_BYTES: Final = 1 << 14
"""Larger ones are rare, and cost more elsewhere; what is kept for each size is kept up to here."""

_REQUEST_FIELDS: Final = (1, 5)
_RESPONSE_FIELDS: Final = (1, 3, 3, 1, 4)
"""From the inside to the outside."""

_NO_METADATA: Final = b"\x42\x00"
"""`ProcessingRequest.metadata_context`, 8, with nothing in it: Envoy 1.40 writes it behind each message."""

_plain_heads: dict[int, bytes] = {}
_metadata_heads: dict[int, bytes] = {}
"""What a chunk's message begins with, by the size of all of it; b"" where there is no such size."""
_reply_heads: dict[int, bytes] = {}
"""By the size of the body."""


def read_chunk(framed: bytes) -> bytes | None:
    """The body of one gRPC message, prefix included, that is a `response_body` which does not end.

    None for anything else, several messages or a part of one among it.
    """
    size = len(framed)
    head = _metadata_heads.get(size)
    if head is None:
        if size > MAX_CHUNK_BYTES:
            return None
        head = _metadata_heads[size] = _find_head(size, _NO_METADATA)
        _plain_heads[size] = _find_head(size, b"")
    if head and framed.startswith(head) and framed.endswith(_NO_METADATA):
        return framed[len(head) : -len(_NO_METADATA)]
    head = _plain_heads[size]
    return framed[len(head) :] if head and framed.startswith(head) else None


def get_reply_head(size: int) -> bytes:
    """What stands before a body of this size, above 0, in the message that streams it to the client.

    The gRPC prefix is part of it; the message tells no end of the body.
    """
    return _reply_heads.get(size) or _build_reply_head(size)


def _build_reply_head(size: int) -> bytes:
    head = build_head(size, _RESPONSE_FIELDS)
    head = pack_prefix(0, len(head) + size) + head
    if size <= MAX_CHUNK_BYTES:
        _reply_heads[size] = head
    return head


def _find_head(framed_size: int, tail: bytes) -> bytes:
    """The only head with which a message can have this size."""
    size = framed_size - PREFIX_BYTES - len(tail)
    for head_size in range(4, 10):
        body = size - head_size
        if body > 0:
            head = build_head(body, _REQUEST_FIELDS)
            if len(head) == head_size:
                return pack_prefix(0, size + len(tail)) + head
    return b""
