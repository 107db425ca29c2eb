"""How a connection ends when nobody did anything wrong (RFC 9113, section 6.8)."""

from envoy_ext.http2.errors import ErrorCode
from envoy_ext.http2.header_blocks import build_block
from tests.support import http2_client as client
from tests.support.http2_client import Frame
from tests.support.http2_play import Play

TRAILERS = build_block(None, [("grpc-status", "0")])


def goaways(frames: list[Frame]) -> list[tuple[int, int]]:
    """The last stream, and why."""
    return [
        (one.number, int.from_bytes(one.payload[4:8], "big")) for one in frames if one.kind == client.GOAWAY
    ]


def begin(play: Play) -> bytes:
    """The first step; the answer to its ping."""
    play.connection.begin_drain()
    told = play.read()
    assert goaways(told) == [((1 << 31) - 1, ErrorCode.NO_ERROR)]
    (asked,) = [one for one in told if one.kind == client.PING]
    return client.ping(asked.payload, client.ACK)


def test_a_drain_refuses_nothing_that_was_under_way() -> None:
    play = Play().opened()
    play.send(client.headers(1))
    answer = begin(play)
    # Sent before the client read the first step.
    assert play.send(client.headers(3)) == [("request", 3, client.METHOD, False)]
    assert play.send(answer) == []
    assert goaways(play.read()) == [(3, ErrorCode.NO_ERROR)]
    # The client has read it; what it opens all the same is passed over, and the rest of it too.
    assert play.send(client.headers(5), client.data(5, b"x"), client.window_update(5, 9)) == []
    assert play.send(client.rst_stream(5), client.data(1, b"goes on")) == [("data", 1, b"goes on", False)]
    play.connection.end(play.streams[1], TRAILERS)
    assert play.events() == [("ended", 1)]
    play.connection.end(play.streams[3], TRAILERS)
    assert play.events() == [("ended", 3), ("connection drained",)]
    play.connection.begin_drain()
    play.connection.finish_drain()
    assert goaways(play.read()) == []
    assert play.events() == []


def test_an_idle_connection_is_drained_with_the_answer() -> None:
    play = Play().opened()
    assert play.send(begin(play)) == [("connection drained",)]


def test_a_client_that_answers_no_ping_is_not_waited_for() -> None:
    play = Play().opened()
    begin(play)
    play.connection.finish_drain()
    assert play.events() == [("connection drained",)]
    assert goaways(play.read()) == [(0, ErrorCode.NO_ERROR)]


def test_a_stream_that_the_client_resets_is_over_too() -> None:
    play = Play().opened()
    play.send(client.headers(1))
    play.send(begin(play))
    assert play.send(client.rst_stream(1)) == [("reset", 1, 8, True), ("connection drained",)]


def test_another_ping_is_no_answer() -> None:
    play = Play().opened()
    begin(play)
    assert play.send(client.ping(b"another!", client.ACK)) == []
    assert goaways(play.read()) == []


def test_the_answer_to_a_drain_that_nobody_asked_for_means_nothing() -> None:
    play = Play().opened()
    answer = begin(Play().opened())
    assert play.send(answer) == []
    assert goaways(play.read()) == []


def test_a_client_that_says_goodbye_is_served_to_the_end() -> None:
    play = Play().opened()
    goodbye = client.frame(client.GOAWAY, 0, 0, b"\x00" * 8)
    assert play.send(client.headers(1), goodbye) == [("request", 1, client.METHOD, False)]
    play.connection.end(play.streams[1], TRAILERS)
    assert play.events() == [("ended", 1), ("connection drained",)]


def test_the_last_stream_is_named_when_the_connection_fails() -> None:
    play = Play().opened()
    play.send(client.headers(1), client.headers(7))
    play.send(client.ping(b"short"))
    assert goaways(play.read()) == [(7, ErrorCode.FRAME_SIZE_ERROR)]
