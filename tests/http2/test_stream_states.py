"""The life of a stream, and what comes out of turn (RFC 9113, sections 5.1 and 8.1)."""

import pytest

from envoy_ext.http2.errors import ErrorCode
from envoy_ext.http2.header_blocks import build_block
from envoy_ext.http2.limits import CLOSED_STREAMS_KEPT, Limits
from tests.support import http2_client as client
from tests.support.http2_play import Play

ANSWER = build_block(200, [])
TRAILERS = build_block(None, [("grpc-status", "0")])


def end_answer(play: Play, stream_id: int = 1) -> None:
    stream = play.streams[stream_id]
    play.connection.send_headers(stream, ANSWER)
    play.connection.send(stream, b"", b"answer")
    play.connection.end(stream, TRAILERS)


def test_a_request_and_its_answer() -> None:
    play = Play().opened()
    assert play.send(client.headers(1), client.data(1, b"ask", end=True)) == [
        ("request", 1, client.METHOD, False),
        ("data", 1, b"ask", True),
    ]
    end_answer(play)
    assert play.events() == [("ended", 1)]
    assert [(one.kind, one.flags, one.payload) for one in play.read()] == [
        (client.HEADERS, client.END_HEADERS, ANSWER),
        (client.DATA, 0, b"answer"),
        (client.HEADERS, client.END_HEADERS | client.END_STREAM, TRAILERS),
    ]
    assert play.connection.open_streams == 0


def test_a_request_of_headers_alone() -> None:
    assert Play().opened().send(client.headers(1, end=True)) == [("request", 1, client.METHOD, True)]


def test_an_answer_before_the_end_of_its_request_resets_the_rest() -> None:
    play = Play().opened()
    play.send(client.headers(1))
    end_answer(play)
    assert play.events() == [("ended", 1)]
    last = play.read()[-1]
    assert (last.kind, last.stream_id, last.number) == (client.RST_STREAM, 1, ErrorCode.NO_ERROR)
    # The client had sent this before it read that.
    assert play.send(client.data(1, b"more"), client.headers(1, (("late", "1"),), end=True)) == []
    assert play.is_alive()


def test_trailers_end_a_request() -> None:
    play = Play().opened()
    assert play.send(client.headers(1), client.headers(1, (("a", "b"),), end=True)) == [
        ("request", 1, client.METHOD, False),
        ("trailers", 1),
    ]


def test_trailers_that_end_nothing() -> None:
    Play().opened().resets_with(ErrorCode.PROTOCOL_ERROR, client.headers(1), client.headers(1, (("a", "b"),)))


@pytest.mark.parametrize(
    "late",
    [client.data(1, b"x"), client.headers(1, (("a", "b"),), end=True)],
    ids=["data", "headers"],
)
def test_nothing_comes_behind_the_end_of_a_request(late: bytes) -> None:
    """Half-closed (remote): a fault of the stream."""
    Play().opened().resets_with(ErrorCode.STREAM_CLOSED, client.headers(1, end=True), late)


@pytest.mark.parametrize(
    "late",
    [client.data(1, b"x"), client.headers(1, (("a", "b"),), end=True)],
    ids=["data", "headers"],
)
def test_nothing_comes_on_a_stream_that_both_have_ended(late: bytes) -> None:
    """Closed, with both ends: a fault of the connection."""
    play = Play().opened()
    play.send(client.headers(1, end=True))
    end_answer(play)
    play.read()
    play.fails_with(ErrorCode.STREAM_CLOSED, late)


def test_nothing_comes_behind_a_reset() -> None:
    play = Play().opened()
    play.send(client.headers(1), client.rst_stream(1))
    play.resets_with(ErrorCode.STREAM_CLOSED, client.data(1, b"x"))


@pytest.mark.parametrize("frame", [client.window_update(1, 5), client.rst_stream(1)], ids=["window", "reset"])
def test_a_window_or_a_reset_may_come_late(frame: bytes) -> None:
    play = Play().opened()
    play.send(client.headers(1, end=True))
    end_answer(play)
    play.events()
    assert play.send(frame) == []
    assert play.is_alive()


def test_a_reset_ends_a_stream_at_once() -> None:
    play = Play().opened()
    play.send(client.headers(1))
    assert play.send(client.rst_stream(1, 0x99)) == [("reset", 1, 0x99, True)]
    stream = play.streams[1]
    play.connection.send_headers(stream, ANSWER)
    play.connection.send(stream, b"", b"for nobody")
    play.connection.end(stream, TRAILERS)
    play.connection.reset(stream, ErrorCode.CANCEL)
    assert play.read() == []
    assert play.events() == []


def test_we_reset_a_stream() -> None:
    play = Play().opened()
    play.send(client.headers(1))
    play.connection.reset(play.streams[1], ErrorCode.INTERNAL_ERROR)
    assert play.events() == [("reset", 1, ErrorCode.INTERNAL_ERROR, False)]
    assert [(one.kind, one.number) for one in play.read()] == [(client.RST_STREAM, ErrorCode.INTERNAL_ERROR)]


def test_stream_ids_grow() -> None:
    play = Play().opened()
    play.send(client.headers(5))
    play.fails_with(ErrorCode.PROTOCOL_ERROR, client.headers(3))


def test_data_on_an_idle_stream() -> None:
    Play().opened().fails_with(ErrorCode.PROTOCOL_ERROR, client.data(1, b"x"))


def test_more_streams_than_there_may_be_are_refused_one_by_one() -> None:
    play = Play(Limits(max_streams=2)).opened()
    play.resets_with(
        ErrorCode.REFUSED_STREAM, client.headers(1), client.headers(3), client.headers(5), stream_id=5
    )
    play.send(client.rst_stream(1))
    assert play.send(client.headers(7)) == [("request", 7, client.METHOD, False)]


def test_only_the_last_ends_are_remembered() -> None:
    play = Play().opened()
    for number in range(CLOSED_STREAMS_KEPT + 50):
        play.send(client.headers(2 * number + 1), client.rst_stream(2 * number + 1))
    assert play.connection.statistics()["remembered"] == CLOSED_STREAMS_KEPT
    assert play.send(client.data(1, b"of one long ago")) == []
    assert play.is_alive()


@pytest.mark.parametrize(
    ("length", "parts"),
    [
        ("3", [client.data(1, b"four")]),
        ("3", [client.data(1, b"four", end=True)]),
        ("5", [client.data(1, b"four", end=True)]),
        ("5", [client.data(1, b"four"), client.headers(1, (("a", "b"),), end=True)]),
        ("-1", []),
        ("x", []),
    ],
)
def test_a_body_has_the_length_that_was_declared(length: str, parts: list[bytes]) -> None:
    fields = (*client.CALL, ("content-length", length))
    Play().opened().resets_with(ErrorCode.PROTOCOL_ERROR, client.headers(1, fields), *parts)


def test_a_declared_length_that_is_kept() -> None:
    play = Play().opened()
    fields = (*client.CALL, ("content-length", "4"))
    events = play.send(client.headers(1, fields), client.data(1, b"fo"), client.data(1, b"ur", end=True))
    assert [event[0] for event in events] == ["request", "data", "data"]


def test_a_request_without_the_body_that_was_declared() -> None:
    fields = (*client.CALL, ("content-length", "4"))
    Play().opened().resets_with(ErrorCode.PROTOCOL_ERROR, client.headers(1, fields, end=True))


def test_all_streams_are_over_when_the_connection_fails() -> None:
    play = Play().opened()
    play.send(client.headers(1), client.headers(3))
    assert play.send(client.ping(b"short")) == [
        ("reset", 1, ErrorCode.FRAME_SIZE_ERROR, False),
        ("reset", 3, ErrorCode.FRAME_SIZE_ERROR, False),
        ("failed", ErrorCode.FRAME_SIZE_ERROR),
    ]
    play.connection.send(play.streams[1], b"", b"for nobody")
    play.connection.take(play.streams[1], 100)
    assert [one.kind for one in play.read()] == [client.GOAWAY]
