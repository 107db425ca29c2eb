"""What h2spec asks for (github.com/summerwind/h2spec) and no other file here does; see docs/http2.md."""

import hpack
import pytest

from envoy_ext.http2.errors import ErrorCode
from tests.support import http2_client as client
from tests.support.http2_play import Play


def ask(block: bytes, flags: int = client.END_HEADERS) -> bytes:
    return client.frame(client.HEADERS, flags, 1, block)


@pytest.mark.parametrize("kind", [client.PING, client.WINDOW_UPDATE, client.RST_STREAM, client.DATA])
def test_flags_that_a_type_does_not_have_are_ignored(kind: int) -> None:
    """4.1."""
    play = Play().opened()
    play.send(client.headers(1))
    payload, stream_id = {
        client.PING: (b"12345678", 0),
        client.WINDOW_UPDATE: (b"\0\0\0\x01", 1),
        client.RST_STREAM: (b"\0\0\0\x08", 1),
        client.DATA: (b"x", 1),
    }[kind]
    undefined = 0xF6 if kind == client.DATA else 0xFE
    events = play.send(client.frame(kind, undefined, stream_id, payload))
    assert not any(event[0] == "failed" for event in events)
    assert play.is_alive()


@pytest.mark.parametrize("before", ["half-closed", "reset", "closed"])
def test_a_continuation_behind_the_end_of_headers(before: str) -> None:
    """5.1, 6.10."""
    play = Play().opened()
    play.send(client.headers(1, end=before != "reset"))
    if before == "reset":
        play.send(client.rst_stream(1))
    elif before == "closed":
        play.connection.end(play.streams[1], b"\x88")
        play.read()
    play.fails_with(ErrorCode.PROTOCOL_ERROR, client.frame(client.CONTINUATION, client.END_HEADERS, 1, b""))


def test_of_a_setting_that_stands_twice_the_last_counts() -> None:
    """6.5.3."""
    twice = b"\0\x04\0\0\0\x64\0\x04\0\0\0\x01"
    play = Play().opened()
    play.send(client.frame(client.SETTINGS, 0, 0, twice), client.headers(1))
    play.connection.send(play.streams[1], b"", b"answer")
    assert [one.payload for one in play.read() if one.kind == client.DATA] == [b"a"]


def test_error_codes_that_nobody_knows() -> None:
    """7."""
    play = Play().opened()
    play.send(client.headers(1), client.headers(3))
    assert play.send(client.rst_stream(1, 0xFF)) == [("reset", 1, 0xFF, True)]
    play.send(client.frame(client.GOAWAY, 0, 0, b"\0\0\0\0\0\0\0\xff"))
    assert play.is_alive()


BROKEN_BLOCKS = {
    "an index that there is not": b"\xc6",
    "a literal with an index that there is not": b"\x7f\x0f\x01a",
    "index 0": b"\x80",
    "a size above what was announced": b"\x3f\xe1\xff\x03",
    "a size behind a field": client.block() + b"\x3f\xe1\x1f",
    "a huffman code padded with 8 bits": b"\x00\x85\xf2\xb2\x4a\x84\xff\x84\x49\x50\x9f\xff",
    "a huffman code padded with zeros": b"\x00\x85\xf2\xb2\x4a\x84\xff\x83\x49\x50\x90",
    "the end of huffman codes": b"\x00\x85\xf2\xb2\x4a\x84\xff\x87\x49\x51\xff\xff\xff\xfa\x7f",
    "a length beyond the block": b"\x00\x7f\x05a",
    "a length without an end": b"\x00\x01a\x7f" + b"\xff" * 100,
    "half a field": b"\x00\x03ab",
}


@pytest.mark.parametrize("name", BROKEN_BLOCKS)
def test_blocks_that_cannot_be_unpacked(name: str) -> None:
    """RFC 7541, 2.3.3, 4.2, 5.1, 5.2, 6.1, 6.3."""
    Play().opened().fails_with(ErrorCode.COMPRESSION_ERROR, ask(BROKEN_BLOCKS[name]))


@pytest.mark.parametrize("huffman", [False, True])
@pytest.mark.parametrize("form", ["indexed", "kept", "not kept", "never kept", "a table of another size"])
def test_forms_of_a_field(form: str, huffman: bool) -> None:
    """RFC 7541, 6.1 to 6.3: one field with the name of an entry, one with a new name."""
    encoder = hpack.Encoder()
    block = encoder.encode(client.CALL, huffman=huffman)
    name, value = b"x-name", b"a value"
    if huffman:
        coder = encoder.huffman_coder
        name, value = coder.encode(name), coder.encode(value)
    flag = 0x80 if huffman else 0
    text = bytes((flag | len(name),)) + name + bytes((flag | len(value),)) + value
    block += {
        "indexed": b"\x40" + text + b"\xbe",
        "kept": b"\x40" + text,
        "not kept": b"\x00" + text,
        "never kept": b"\x10" + text,
        "a table of another size": b"\x00" + text,
    }[form]
    if form == "a table of another size":
        block = b"\x20\x3f\x45" + block
    play = Play().opened()
    play.connection.receive(ask(block), 0.0)
    (event,) = play.connection.take_events()
    assert event.headers.fields["x-name"] == ("a value,a value" if form == "indexed" else "a value")
