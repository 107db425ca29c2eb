"""What each type of frame must be, whatever the connection is about (RFC 9113, sections 4 and 6)."""

import pytest

from envoy_ext.http2 import frames
from envoy_ext.http2.errors import ErrorCode
from tests.support import http2_client as client
from tests.support.http2_play import Play


def open_one() -> Play:
    play = Play().opened()
    assert play.send(client.headers(1)) == [("request", 1, client.METHOD, False)]
    return play


CONNECTION_FAULTS = {
    "data on 0": (client.frame(client.DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
    "data with too much padding": (
        client.frame(client.DATA, client.PADDED, 1, b"\x01"),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "data with padding of no length": (
        client.frame(client.DATA, client.PADDED, 1),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    "headers on 0": (client.frame(client.HEADERS, client.END_HEADERS, 0), ErrorCode.PROTOCOL_ERROR),
    "headers on an even stream": (client.headers(2), ErrorCode.PROTOCOL_ERROR),
    "headers with too much padding": (
        client.frame(client.HEADERS, client.PADDED | client.END_HEADERS, 3, b"\x05\x88"),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "headers too short for a priority": (
        client.frame(client.HEADERS, client.PRIORITIES | client.END_HEADERS, 3, b"\x00" * 4),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    "headers that depend on themselves": (
        client.frame(client.HEADERS, client.PRIORITIES | client.END_HEADERS, 3, b"\x00\x00\x00\x03\x00"),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "headers that cannot be unpacked": (
        client.frame(client.HEADERS, client.END_HEADERS, 3, b"\xff\xff\xff"),
        ErrorCode.COMPRESSION_ERROR,
    ),
    "priority on 0": (client.frame(client.PRIORITY, 0, 0, b"\x00" * 5), ErrorCode.PROTOCOL_ERROR),
    "reset on 0": (client.rst_stream(0), ErrorCode.PROTOCOL_ERROR),
    "reset of another length": (
        client.frame(client.RST_STREAM, 0, 1, b"\x00" * 3),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    "reset of an idle stream": (client.rst_stream(3), ErrorCode.PROTOCOL_ERROR),
    "push promise": (client.frame(client.PUSH_PROMISE, 0, 1, b"\x00" * 4), ErrorCode.PROTOCOL_ERROR),
    "ping on a stream": (client.frame(client.PING, 0, 1, b"\x00" * 8), ErrorCode.PROTOCOL_ERROR),
    "ping of another length": (client.ping(b"1234567"), ErrorCode.FRAME_SIZE_ERROR),
    "goaway on a stream": (client.frame(client.GOAWAY, 0, 1, b"\x00" * 8), ErrorCode.PROTOCOL_ERROR),
    "goaway too short": (client.frame(client.GOAWAY, 0, 0, b"\x00" * 7), ErrorCode.FRAME_SIZE_ERROR),
    "window update of another length": (
        client.frame(client.WINDOW_UPDATE, 0, 1, b"\x00" * 5),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    "window update by 0": (client.window_update(0, 0), ErrorCode.PROTOCOL_ERROR),
    "window update of an idle stream": (client.window_update(3, 1), ErrorCode.PROTOCOL_ERROR),
    "continuation of nothing": (
        client.frame(client.CONTINUATION, client.END_HEADERS, 1),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "continuation on 0": (
        client.frame(client.CONTINUATION, client.END_HEADERS, 0),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "a frame above the limit": (
        client.frame(client.DATA, 0, 1, b"x" * 16_385),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    "an unknown frame above the limit": (
        client.frame(0x77, 0, 0, b"x" * 16_385),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
}

STREAM_FAULTS = {
    "priority of another length": (
        client.frame(client.PRIORITY, 0, 1, b"\x00" * 4),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    "priority that depends on itself": (
        client.frame(client.PRIORITY, 0, 1, b"\x00\x00\x00\x01\x00"),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "window update by 0": (client.window_update(1, 0), ErrorCode.PROTOCOL_ERROR),
}


@pytest.mark.parametrize("name", CONNECTION_FAULTS)
def test_a_frame_that_costs_the_connection(name: str) -> None:
    wrong, code = CONNECTION_FAULTS[name]
    open_one().fails_with(code, wrong)


@pytest.mark.parametrize("name", STREAM_FAULTS)
def test_a_frame_that_costs_its_stream(name: str) -> None:
    wrong, code = STREAM_FAULTS[name]
    open_one().resets_with(code, wrong)


def test_a_stream_that_never_was_is_not_reset() -> None:
    """RST_STREAM on an idle stream is itself a mistake (6.4), so that this costs the connection."""
    wrong = client.frame(client.PRIORITY, 0, 5, b"\x00" * 4)
    Play().opened().fails_with(ErrorCode.FRAME_SIZE_ERROR, wrong)


def test_padding_and_priorities_are_read_over() -> None:
    play = Play().opened()
    padded = b"\x03" + b"\x00\x00\x00\x00\x10" + client.block() + b"\x00" * 3
    flags = client.PADDED | client.PRIORITIES | client.END_HEADERS
    body = client.frame(client.DATA, client.PADDED | client.END_STREAM, 1, b"\x02hi\x00\x00")
    assert play.send(client.frame(client.HEADERS, flags, 1, padded), body) == [
        ("request", 1, client.METHOD, False),
        ("data", 1, b"hi", True),
    ]


def test_a_body_of_padding_alone() -> None:
    play = open_one()
    assert play.send(client.frame(client.DATA, client.PADDED, 1, b"\x03" + b"\x00" * 3)) == [
        ("data", 1, b"", False)
    ]


def test_priority_and_unknown_frames_change_nothing() -> None:
    play = open_one()
    assert (
        play.send(
            client.frame(client.PRIORITY, 0, 1, b"\x00\x00\x00\x05\x10"),
            client.frame(client.PRIORITY, 0, 9, b"\x00\x00\x00\x05\x10"),
            client.frame(0x10, 0xFF, 1, b"whatever"),
            client.frame(0xFF, 0, 0, b""),
        )
        == []
    )
    assert play.is_alive()


def test_the_reserved_bit_of_a_stream_id_is_ignored() -> None:
    play = open_one()
    body = bytearray(client.data(1, b"x"))
    body[5] |= 0x80
    assert play.send(bytes(body)) == [("data", 1, b"x", False)]


def test_a_ping_comes_back() -> None:
    play = Play().opened()
    play.send(client.ping(b"abcdefgh"))
    assert [(one.kind, one.flags, one.payload) for one in play.read()] == [
        (client.PING, client.ACK, b"abcdefgh")
    ]
    play.send(client.ping(b"abcdefgh", client.ACK))
    assert play.read() == []


def test_data_of_the_largest_size_passes() -> None:
    assert open_one().send(client.data(1, b"x" * 16_384)) == [("data", 1, b"x" * 16_384, False)]


@pytest.mark.parametrize(
    ("built", "expected"),
    [
        (frames.build_headers(3, b"block", end=True), client.frame(client.HEADERS, 0x5, 3, b"block")),
        (frames.build_headers(3, b"block", end=False), client.frame(client.HEADERS, 0x4, 3, b"block")),
        (frames.build_rst_stream(5, ErrorCode.CANCEL), client.rst_stream(5, 8)),
        (frames.build_settings({frames.Setting.MAX_FRAME_SIZE: 20_000}), client.settings(frame=20_000)),
        (frames.SETTINGS_ACK, client.frame(client.SETTINGS, client.ACK, 0)),
        (frames.build_ping(b"12345678", ack=True), client.ping(flags=client.ACK)),
        (frames.build_window_update(7, 99), client.window_update(7, 99)),
        (
            frames.build_goaway(9, ErrorCode.PROTOCOL_ERROR, "why"),
            client.frame(client.GOAWAY, 0, 0, b"\x00\x00\x00\x09\x00\x00\x00\x01why"),
        ),
        (frames.build_frame(0, 1, 1, b"x" * 70_000), client.frame(0, 1, 1, b"x" * 70_000)),
    ],
)
def test_frames_are_written_as_a_client_reads_them(built: bytes, expected: bytes) -> None:
    assert built == expected
