"""A `response_body` read and written by hand: of this message there are as many as an answer has tokens.

Both directions go by length alone. A protobuf message that holds nothing but one bytes field in one
submessage is that field behind tags and lengths, and what stands before the field is the same for all of one
size. Whatever looks in any way different (an end of stream, an attribute, a length that is not written in
the shortest form) is for the protobuf parser. Field numbers: `ProcessingRequest.response_body` 5,
`HttpBody.body` 1; `ProcessingResponse.response_body` 4, `BodyResponse.response` 1,
`CommonResponse.body_mutation` 3, `BodyMutation.streamed_response` 3, `StreamedBodyResponse.body` 1
(envoy/service/ext_proc/v3/external_processor.proto).
"""

from typing import Final

MAX_CHUNK_BYTES: Final = 1 << 14
"""Larger ones are rare, and cost more elsewhere; what is kept for each size is kept up to here."""

_REQUEST_FIELDS: Final = (1, 5)
_RESPONSE_FIELDS: Final = (1, 3, 3, 1, 4)
"""From the inside to the outside."""

_NO_METADATA: Final = b"\x42\x00"
"""`ProcessingRequest.metadata_context`, 8, with nothing in it: Envoy 1.40 writes it behind each message."""

_request_heads: dict[int, bytes | None] = {}


def read_chunk(message: bytes) -> bytes | None:
    """The body of a `ProcessingRequest` that is a `response_body` which does not end; None for any other."""
    if message.endswith(_NO_METADATA):
        head = _get_request_head(len(message) - len(_NO_METADATA))
        if head is not None and message.startswith(head):
            return message[len(head) : -len(_NO_METADATA)]
    head = _get_request_head(len(message))
    return message[len(head) :] if head is not None and message.startswith(head) else None


def build_chunk_head(size: int) -> bytes:
    """What stands before so many bytes, above 0, in a `ProcessingResponse` that streams them to the client.

    It tells no end of the body.
    """
    return _build_head(size, _RESPONSE_FIELDS)


def _get_request_head(size: int) -> bytes | None:
    head = _request_heads.get(size)
    if head is None and size <= MAX_CHUNK_BYTES and size not in _request_heads:
        head = _request_heads[size] = _find_request_head(size)
    return head


def _find_request_head(size: int) -> bytes | None:
    """The only head with which a message can have this size; None when none can."""
    for head_size in range(4, 10):
        body = size - head_size
        if body > 0:
            head = _build_head(body, _REQUEST_FIELDS)
            if len(head) == head_size:
                return head
    return None


def _build_head(size: int, fields: tuple[int, ...]) -> bytes:
    head = b""
    for field in fields:
        head = bytes([field << 3 | 2]) + _build_varint(size + len(head)) + head
    return head


def _build_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
