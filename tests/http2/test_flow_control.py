"""Windows of both sides, and whose turn it is to send (RFC 9113, sections 5.2 and 6.9)."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envoy_ext.http2.errors import ErrorCode
from envoy_ext.http2.header_blocks import build_block
from envoy_ext.http2.limits import Limits
from tests.support import http2_client as client
from tests.support.http2_client import Frame
from tests.support.http2_play import Play

TRAILERS = build_block(None, [("grpc-status", "0")])
SMALL = Limits(stream_window=65_535, connection_window=131_070)


def bodies(frames: list[Frame]) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for one in frames:
        if one.kind == client.DATA:
            found[one.stream_id] = found.get(one.stream_id, b"") + one.payload
    return found


def windows(frames: list[Frame]) -> list[tuple[int, int]]:
    return [(one.stream_id, one.number) for one in frames if one.kind == client.WINDOW_UPDATE]


# --- what we take -----------------------------------------------------------------------------------


def test_a_window_is_given_back_in_halves_and_only_for_what_was_taken() -> None:
    play = Play(SMALL).opened()
    play.send(client.headers(1), *[client.data(1, b"x" * 16_000)] * 4)
    stream = play.streams[1]
    assert windows(play.read()) == []
    play.connection.take(stream, 32_000)
    assert windows(play.read()) == []
    play.connection.take(stream, 1_000)
    assert windows(play.read()) == [(1, 33_000)]
    play.connection.take(stream, 31_000)
    assert windows(play.read()) == []
    play.send(client.data(1, b"x" * 2_000))
    play.connection.take(stream, 2_000)
    assert windows(play.read()) == [(0, 66_000), (1, 33_000)]


def test_more_than_a_streams_window() -> None:
    play = Play(SMALL).opened()
    play.send(client.headers(1), *[client.data(1, b"x" * 16_000)] * 4)
    play.resets_with(ErrorCode.FLOW_CONTROL_ERROR, client.data(1, b"x" * 1_536))


def test_a_streams_window_can_be_used_to_its_last_byte() -> None:
    play = Play(SMALL).opened()
    events = play.send(client.headers(1), *[client.data(1, b"x" * 13_107)] * 5)
    assert len(events) == 6
    assert play.is_alive()


def test_more_than_the_connections_window() -> None:
    play = Play(SMALL).opened()
    for number in (1, 3):
        play.send(client.headers(number), *[client.data(number, b"x" * 13_107)] * 5)
    assert play.is_alive()
    play.fails_with(ErrorCode.FLOW_CONTROL_ERROR, client.headers(5), client.data(5, b"x"))


def test_padding_counts_and_is_given_back_by_itself() -> None:
    play = Play(Limits(stream_window=65_535, connection_window=65_536)).opened()
    play.send(client.headers(1))
    padded = client.frame(client.DATA, client.PADDED, 1, b"\xff" + b"\x00" * 255)
    play.send(padded * 128)
    assert windows(play.read()) == [(0, 32_768), (1, 32_768)]


@pytest.mark.parametrize("end", ["peer", "us", "answer"])
def test_what_a_stream_had_not_taken_goes_back_to_the_connection(end: str) -> None:
    play = Play(SMALL).opened()
    for number in range(1, 41, 2):
        play.send(client.headers(number), *[client.data(number, b"x" * 13_107)] * 4)
        if end == "peer":
            play.send(client.rst_stream(number))
        elif end == "us":
            play.connection.reset(play.streams[number], ErrorCode.CANCEL)
        else:
            play.connection.end(play.streams[number], TRAILERS)
        play.connection.take(play.streams[number], 52_428)  # comes too late to count twice
        assert play.connection.statistics()["uncredited"] == 0
    given_back = sum(increment for stream_id, increment in windows(play.read()) if stream_id == 0)
    assert 20 * 52_428 - 65_536 < given_back <= 20 * 52_428


def test_data_for_a_stream_that_is_over_costs_the_connection_nothing() -> None:
    play = Play(SMALL).opened()
    play.send(client.headers(1))
    play.connection.reset(play.streams[1], ErrorCode.CANCEL)
    for _ in range(100):
        assert play.send(client.data(1, b"x" * 16_000)) in ([], [("reset", 1, 8, False)])
    assert play.is_alive()
    assert play.connection.statistics()["uncredited"] == 0


def test_a_request_that_is_over_gets_no_window() -> None:
    play = Play(SMALL).opened()
    play.send(client.headers(1), *[client.data(1, b"x" * 16_000)] * 3, client.data(1, b"", end=True))
    play.connection.take(play.streams[1], 48_000)
    assert windows(play.read()) == []


# --- what we send -----------------------------------------------------------------------------------


def test_an_answer_waits_for_its_streams_window() -> None:
    play = Play().opened(client.PREFACE + client.settings(window=10))
    play.send(client.headers(1, end=True))
    stream = play.streams[1]
    play.connection.send(stream, b"01234", b"56789abcdef")
    play.connection.end(stream, TRAILERS)
    assert stream.is_backed_up
    assert bodies(play.read()) == {1: b"0123456789"}
    assert play.events() == []
    play.send(client.window_update(1, 4))
    assert bodies(play.read()) == {1: b"abcd"}
    play.send(client.window_update(1, 100))
    rest = play.read()
    assert bodies(rest) == {1: b"ef"}
    assert (rest[-1].kind, rest[-1].flags & client.END_STREAM) == (client.HEADERS, 1)
    assert play.events() == [("ended", 1), ("drained", 1)]


def test_an_answer_waits_for_the_connections_window() -> None:
    play = Play().opened(client.PREFACE + client.settings(window=1 << 20))
    play.send(client.headers(1, end=True))
    play.connection.send(play.streams[1], b"", b"x" * 100_000)
    assert len(bodies(play.read())[1]) == 65_535
    play.send(client.window_update(0, 10))
    assert len(bodies(play.read())[1]) == 10
    play.send(client.window_update(0, 1 << 20))
    assert len(bodies(play.read())[1]) == 100_000 - 65_545


def test_an_answer_is_cut_into_frames_that_the_client_takes() -> None:
    play = Play(max_frame=20_000).opened(client.PREFACE + client.settings(window=1 << 20, frame=20_000))
    play.send(client.headers(1, end=True))
    play.connection.send(play.streams[1], b"", b"x" * 50_000)
    assert [len(one.payload) for one in play.read()] == [20_000, 20_000, 10_000]


def test_a_smaller_initial_window_takes_from_streams_that_there_are() -> None:
    """Their windows go below 0, and what was sent has to come back first (6.9.2)."""
    play = Play().opened(client.PREFACE + client.settings(window=100))
    play.send(client.headers(1, end=True))
    stream = play.streams[1]
    play.connection.send(stream, b"", b"x" * 80)
    play.read()
    play.send(client.settings(window=50))
    assert stream.window == -30
    play.connection.send(stream, b"", b"y" * 10)
    assert bodies(play.read()) == {}
    play.send(client.window_update(1, 30))
    assert bodies(play.read()) == {}
    play.send(client.window_update(1, 3))
    assert bodies(play.read()) == {1: b"yyy"}
    play.send(client.settings(window=100))
    assert bodies(play.read()) == {1: b"y" * 7}
    play.send(client.headers(3, end=True))
    assert play.streams[3].window == 100


def test_windows_that_cannot_be() -> None:
    play = Play().opened()
    play.fails_with(ErrorCode.FLOW_CONTROL_ERROR, client.window_update(0, (1 << 31) - 65_535))
    play = Play().opened()
    play.resets_with(
        ErrorCode.FLOW_CONTROL_ERROR, client.headers(1), client.window_update(1, (1 << 31) - 65_535)
    )
    play = Play().opened()
    widest = client.window_update(1, (1 << 31) - 1 - 65_535)
    assert play.send(client.headers(1), widest)[0][0] == "request"
    play.fails_with(ErrorCode.FLOW_CONTROL_ERROR, client.settings(window=65_536))


def test_the_widest_windows_that_can_be() -> None:
    play = Play().opened()
    assert play.send(client.window_update(0, (1 << 31) - 1 - 65_535)) == []
    assert play.is_alive()


# --- in turn ----------------------------------------------------------------------------------------


def test_streams_that_wait_are_served_in_turn() -> None:
    """Three with much to say and a connection that takes one frame at a time."""
    play = Play().opened(client.PREFACE + client.settings(window=1 << 20))
    for number in (1, 3, 5, 7):
        play.send(client.headers(number, end=True))
    play.connection.send(play.streams[7], b"", b"x" * 65_535)
    play.read()
    for number in (1, 3, 5):
        play.connection.send(play.streams[number], b"", b"x" * 100_000)
    served: Counter[int] = Counter()
    for _ in range(12):
        play.send(client.window_update(0, 16_384))
        served.update({number: len(body) for number, body in bodies(play.read()).items()})
    assert served == {1: 65_536, 3: 65_536, 5: 65_536}


def test_a_stream_whose_window_is_shut_stands_in_nobodys_way() -> None:
    play = Play().opened(client.PREFACE + client.settings(window=5))
    play.send(client.headers(1, end=True), client.headers(3, end=True), client.window_update(3, 1_000))
    play.connection.send(play.streams[1], b"", b"x" * 100)
    play.connection.send(play.streams[3], b"", b"y" * 100)
    found = bodies(play.read())
    assert found == {1: b"x" * 5, 3: b"y" * 100}
    assert not play.connection.has_more


def test_nothing_is_handed_to_a_transport_that_is_full() -> None:
    play = Play().opened()
    play.send(client.headers(1, end=True))
    play.connection.set_writable(False)
    play.connection.send(play.streams[1], b"", b"answer")
    play.connection.end(play.streams[1], TRAILERS)
    assert play.read() == []
    assert play.is_alive()  # a ping is answered meanwhile
    play.connection.set_writable(True)
    assert bodies(play.read()) == {1: b"answer"}
    assert ("ended", 1) in play.events()


def test_a_batch_has_a_size() -> None:
    """A transport that is full can only say so behind a write."""
    play = Play(Limits(output_batch_bytes=40_000)).opened(
        client.PREFACE + client.settings(window=1 << 24) + client.window_update(0, 1 << 24)
    )
    play.send(client.headers(1, end=True))
    play.connection.send(play.streams[1], b"", b"x" * 1_000_000)
    sizes = []
    while output := play.connection.take_output():
        sizes.append(len(output))
    assert max(sizes) < 50_000 + 16_384
    assert sum(sizes) > 1_000_000


@given(
    st.lists(st.tuples(st.sampled_from((1, 3, 5)), st.binary(max_size=60)), max_size=20),
    st.lists(st.tuples(st.sampled_from((0, 1, 3, 5)), st.integers(1, 80)), max_size=60),
    st.integers(0, 40),
)
def test_whatever_the_windows_each_body_comes_whole_and_in_order(
    sent: list[tuple[int, bytes]], opened: list[tuple[int, int]], window: int
) -> None:
    play = Play().opened(client.PREFACE + client.settings(window=window))
    for number in (1, 3, 5):
        play.send(client.headers(number, end=True))
    expected = {1: b"", 3: b"", 5: b""}
    found = {1: b"", 3: b"", 5: b""}
    room = dict.fromkeys((1, 3, 5), window)

    def look() -> None:
        for number, body in bodies(play.read()).items():
            found[number] += body
            assert len(found[number]) <= room[number], "more than the client's window"

    for number, body in sent:
        play.connection.send(play.streams[number], b"", body)
        expected[number] += body
        look()
    for number, increment in opened:
        play.send(client.window_update(number, increment))
        if number:
            room[number] += increment
        look()
    for number in (1, 3, 5):
        assert expected[number].startswith(found[number])
        assert len(found[number]) == min(len(expected[number]), room[number])
        play.connection.end(play.streams[number], TRAILERS)
        play.send(client.window_update(number, 10_000))
        room[number] += 10_000
        look()
    assert found == expected
    assert play.connection.open_streams == 0
