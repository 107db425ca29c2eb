"""The chunks that are read by hand, against the protobuf parser.

What has to hold: a message that is read by hand says to protobuf the same and no more; one that Envoy writes
for a chunk is read by hand; and what is written by hand is what protobuf writes.
"""

import random
from typing import Final

from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse
from google.protobuf.message import DecodeError

from envoy_ext.adapters.extproc_chunks import MAX_CHUNK_BYTES, get_reply_head, read_chunk
from envoy_ext.adapters.extproc_codec import build_streamed_body
from tests.fuzz.http2_wire import Scramble
from tests.support import http2_client as client

LONGEST: Final = MAX_CHUNK_BYTES + 64
DICTIONARY: Final = (
    b"\x2a",
    b"\x0a",
    b"\x42\x00",
    b"\x10\x01",
    b"\x22",
    b"\x18\x01",
    b"\x80\x00",
    b"\x2a\x02\x0a\x00",
)


def check(data: bytes) -> None:
    """Read one message both ways, and write its bytes both ways.

    Raises:
        AssertionError: the two do not agree; and whatever else the code raises.
    """
    chunk = read_chunk(data)
    message = data[5:]
    try:
        parsed = ProcessingRequest.FromString(message)
    except DecodeError:
        assert chunk is None, "read by hand, and not of the type"
        return
    if data != client.message(message):
        assert chunk is None, "read by hand, and not one message"
        return
    if chunk is not None:
        assert chunk, "an empty chunk is for the session"
        for expected in _build_chunks(chunk):
            if len(expected) == len(message):
                assert expected == message
                assert parsed == ProcessingRequest.FromString(expected)
                break
        else:
            raise AssertionError("read by hand, and more than a chunk")
    elif parsed.WhichOneof("request") == "response_body":
        body = parsed.response_body.body
        written = [one for one in _build_chunks(body) if body and len(one) + 5 <= MAX_CHUNK_BYTES]
        assert message not in written, "a chunk that is not read by hand"
    if data:
        written_by_hand = get_reply_head(len(data)) + data
        assert written_by_hand == client.message(build_streamed_body(data, end=False))
        reply = ProcessingResponse.FromString(written_by_hand[5:])
        assert reply.response_body.response.body_mutation.streamed_response.body == data
        assert reply.SerializeToString() == written_by_hand[5:]


def _build_chunks(body: bytes) -> list[bytes]:
    """As an Envoy writes it, with the empty metadata of 1.40 and without."""
    request = ProcessingRequest()
    request.response_body.body = body
    plain = request.SerializeToString()
    request.metadata_context.SetInParent()
    return [plain, request.SerializeToString()]


def seeds() -> list[bytes]:
    """Chunks of sizes at which lengths grow, and near relations of them."""
    found = []
    for size in (
        0,
        1,
        5,
        100,
        114,
        116,
        120,
        124,
        127,
        128,
        130,
        300,
        MAX_CHUNK_BYTES - 16,
        MAX_CHUNK_BYTES - 9,
    ):
        found += _build_chunks(b"d" * size)
    request = ProcessingRequest()
    request.response_body.body = b"last"
    request.response_body.end_of_stream = True
    found.append(request.SerializeToString())
    request = ProcessingRequest()
    request.request_body.body = b"asked"
    found.append(request.SerializeToString())
    found += [_build_chunks(b"x\x42\x00")[0], b"\x2a\x07\x0a\x05hello\x2a\x07\x0a\x05hello"]
    return [client.message(one) for one in found]


def mutate(data: bytes, most: int, rnd: random.Random, scramble: Scramble) -> bytes:
    """Change a few bytes at the ends, where tags and lengths stand; the prefix fits again."""
    message = data[5:]
    what = rnd.randrange(6)
    if what == 0:
        return scramble(data, most)[:most]
    if what == 1:
        message += rnd.choice((*DICTIONARY, data[:20]))
    elif what == 2:
        message = _build_chunks(scramble(message[8:], most))[rnd.randrange(2)]
    else:
        message = scramble(message[:8], 12) + message[8:]
    return client.message(message, rnd.random() < 0.05)[:most]
