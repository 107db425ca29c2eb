"""The hand-written chunk codec, held against the protobuf parser."""

import pytest
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest
from hypothesis import given, settings
from hypothesis import strategies as st

from envoy_ext.adapters.extproc_chunks import MAX_CHUNK_BYTES, get_reply_head
from envoy_ext.adapters.extproc_chunks import read_chunk as read_framed
from envoy_ext.adapters.extproc_codec import build_streamed_body

SIZES = sorted(
    {*range(1, 300), *(near + off for near in (128, 1 << 14, 1 << 15, 1 << 21) for off in range(-12, 13))}
)


NO_METADATA = b"\x42\x00"


def frame(message: bytes) -> bytes:
    """As gRPC sends it (its PROTOCOL-HTTP2.md: a flag for compression, the length, the message)."""
    return b"\x00" + len(message).to_bytes(4, "big") + message


def read_chunk(message: bytes) -> bytes | None:
    return read_framed(frame(message))


def build_request(body: bytes, end: bool = False) -> bytes:
    request = ProcessingRequest()
    request.response_body.body = body
    request.response_body.end_of_stream = end
    return bytes(request.SerializeToString())


@pytest.mark.parametrize("size", [0, *SIZES])
def test_every_size(size: int) -> None:
    body = b"x" * size
    for tail in (b"", NO_METADATA):
        message = build_request(body) + tail
        assert read_chunk(message) == (body if size and len(frame(message)) <= MAX_CHUNK_BYTES else None)
    assert read_chunk(build_request(body, end=True)) is None
    if size:
        reply = build_streamed_body(body, end=False)
        assert get_reply_head(size) + body == frame(reply)


def varint(value: int, padding: int) -> bytes:
    """A length, in more bytes than it needs."""
    out = bytearray()
    while value > 0x7F or padding > 0:
        out.append(value & 0x7F | 0x80)
        value >>= 7
        padding -= 1
    return bytes([*out, value])


@given(st.data())
@settings(max_examples=600, deadline=None)
def test_what_is_read_is_what_protobuf_reads(data: st.DataObject) -> None:
    """Of messages that are nearly of the one kind."""
    draw = data.draw
    body = draw(st.binary(max_size=200))
    field = bytes([draw(st.sampled_from([0x0A, 0x0A, 0x0A, 0x12, 0x08, 0x0C]))])
    wrong = draw(st.sampled_from([0, 0, 0, 1, -1]))
    inner = field + varint(max(0, len(body) + wrong), draw(st.sampled_from([0, 0, 0, 1]))) + body
    inner += draw(st.sampled_from([b"", b"", b"\x10\x01", b"\x18\x01", b"\x10\x00", b"\xff"]))
    wrong = draw(st.sampled_from([0, 0, 0, 1, -1]))
    outer = bytes([draw(st.sampled_from([0x2A, 0x2A, 0x2A, 0x22, 0x1A]))])
    message = outer + varint(max(0, len(inner) + wrong), draw(st.sampled_from([0, 0, 0, 1]))) + inner
    endings = [b"", b"", NO_METADATA, NO_METADATA, NO_METADATA * 2, b"\x42\x01", b"\x50\x01", b"\x00", inner]
    message += draw(st.sampled_from(endings))
    chunk = read_chunk(message)
    if chunk is not None:
        parsed = ProcessingRequest.FromString(message)
        assert parsed.WhichOneof("request") == "response_body"
        parsed.ClearField("metadata_context")
        assert parsed == ProcessingRequest.FromString(build_request(chunk))


def test_a_body_that_ends_as_empty_metadata_does() -> None:
    assert read_chunk(build_request(b"a" + NO_METADATA)) == b"a" + NO_METADATA
    assert read_chunk(build_request(b"a" + NO_METADATA) + NO_METADATA) == b"a" + NO_METADATA


def test_what_is_not_one_whole_message() -> None:
    one = frame(build_request(b"abc"))
    assert read_framed(one) == b"abc"
    for data in (one + one, one[:-1], one + b"\x00", b"\x01" + one[1:], b"", one[:4], one[5:]):
        assert read_framed(data) is None
