"""How a connection begins: preface, SETTINGS, and their acknowledgement (RFC 9113, sections 3.4 and 6.5)."""

import pytest

from envoy_ext.http2.errors import ErrorCode
from envoy_ext.http2.limits import Limits
from tests.support import http2_client as client
from tests.support.http2_play import Play


def test_the_server_says_its_limits_before_it_has_heard_anything() -> None:
    limits = Limits()
    settings, window = Play(limits).read()
    told = {
        int.from_bytes(settings.payload[at : at + 2], "big"): int.from_bytes(
            settings.payload[at + 2 : at + 6], "big"
        )
        for at in range(0, len(settings.payload), 6)
    }
    assert (settings.kind, settings.flags) == (client.SETTINGS, 0)
    assert told == {
        1: 0,
        3: limits.max_streams,
        4: limits.stream_window,
        5: limits.max_frame_bytes,
        6: limits.max_header_list_bytes,
    }
    assert (window.kind, window.stream_id) == (client.WINDOW_UPDATE, 0)
    assert window.number == limits.connection_window - 65_535


def test_settings_are_acknowledged() -> None:
    play = Play()
    play.read()
    assert not play.connection.is_ready
    assert play.send(client.PREFACE + client.settings(window=100, frame=20_000)) == []
    assert play.connection.is_ready
    assert [(one.kind, one.flags, one.payload) for one in play.read()] == [(client.SETTINGS, client.ACK, b"")]


def test_an_acknowledgement_of_ours_is_taken_once() -> None:
    play = Play().opened()
    ack = client.frame(client.SETTINGS, client.ACK, 0)
    assert play.send(ack) == []
    assert play.is_alive()
    play.fails_with(ErrorCode.PROTOCOL_ERROR, ack)


@pytest.mark.parametrize(
    "hello",
    [
        b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rX" + client.settings(),
        client.PREFACE + client.ping(),
        client.PREFACE + client.headers(1),
        client.PREFACE + client.data(1, b"x"),
        client.PREFACE + client.frame(client.SETTINGS, client.ACK, 0),
        client.PREFACE + client.frame(0x42, 0, 0),
    ],
    ids=["http1", "broken preface", "ping", "headers", "data", "acknowledgement", "unknown"],
)
def test_a_client_that_begins_otherwise_is_let_go(hello: bytes) -> None:
    Play().fails_with(ErrorCode.PROTOCOL_ERROR, hello)


def test_a_wrong_preface_shows_with_its_first_byte() -> None:
    Play().fails_with(ErrorCode.PROTOCOL_ERROR, b"G")


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"\x00" * 5, ErrorCode.FRAME_SIZE_ERROR),
        (b"\x00\x02\x00\x00\x00\x02", ErrorCode.PROTOCOL_ERROR),
        (b"\x00\x04\x80\x00\x00\x00", ErrorCode.FLOW_CONTROL_ERROR),
        (b"\x00\x05\x00\x00\x3f\xff", ErrorCode.PROTOCOL_ERROR),
        (b"\x00\x05\x01\x00\x00\x00", ErrorCode.PROTOCOL_ERROR),
        (b"\x00\x03\x00\x00\x00\x01" * 33, ErrorCode.ENHANCE_YOUR_CALM),
    ],
    ids=["length", "push", "window", "small frame", "large frame", "too many"],
)
def test_settings_that_cannot_be(payload: bytes, code: ErrorCode) -> None:
    Play().opened().fails_with(code, client.frame(client.SETTINGS, 0, 0, payload))


def test_settings_belong_to_the_connection() -> None:
    Play().opened().fails_with(ErrorCode.PROTOCOL_ERROR, client.frame(client.SETTINGS, 0, 1))


def test_an_acknowledgement_has_no_payload() -> None:
    ack = client.frame(client.SETTINGS, client.ACK, 0, b"\x00" * 6)
    Play().opened().fails_with(ErrorCode.FRAME_SIZE_ERROR, ack)


def test_settings_that_nobody_knows_are_passed_over() -> None:
    play = Play().opened()
    play.send(client.frame(client.SETTINGS, 0, 0, b"\x00\x99\x00\x00\x00\x01"))
    assert play.read()[0].flags == client.ACK
    assert play.is_alive()
