"""gRPC calls as a server sees them (gRPC's PROTOCOL-HTTP2.md)."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envoy_ext.http2.errors import ErrorCode
from envoy_ext.http2.grpc_calls import Call
from envoy_ext.http2.grpc_wire import Status
from envoy_ext.http2.limits import Limits
from tests.support import http2_client as client
from tests.support.grpc_play import LARGEST, GrpcPlay


def with_field(name: str, value: str) -> tuple[tuple[str, str], ...]:
    return (*(pair for pair in client.CALL if pair[0] != name), (name, value))


def test_a_call_from_its_first_message_to_its_end() -> None:
    play = GrpcPlay()
    play.send(client.headers(1, with_field("x-envoy-ext-role", "delivery")))
    (handler,) = play.handlers
    assert play.seen[0].fields["x-envoy-ext-role"] == "delivery"
    play.send(client.data(1, client.message(b"one") + client.message(b"")))
    assert handler.heard == [b"one", b""]
    handler.call.send(b"answer")
    handler.call.send(b"")
    play.read()
    play.send(client.data(1, b"", end=True))
    assert (handler.half_closes, handler.closes) == (1, 0)
    handler.call.finish()
    handler.call.send(b"too late")
    handler.call.finish(Status.INTERNAL)
    assert handler.closes == 0, "never from within a call's own method"
    play.read()
    answer = play.answers[1]
    assert answer.headers == [{":status": "200", "content-type": "application/grpc"}, {"grpc-status": "0"}]
    assert answer.messages == [b"answer", b""]
    assert (answer.ended, answer.reset, handler.closes) == (True, None, 1)
    assert play.calls.open_calls == 0


@pytest.mark.parametrize("status", [Status.OK, Status.NOT_FOUND])
def test_an_end_without_a_message_is_one_header_block(status: Status) -> None:
    play = GrpcPlay()
    play.send(client.headers(1, end=True))
    play.handlers[0].call.finish(status, "why" if status else "")
    play.read()
    expected = {":status": "200", "content-type": "application/grpc", "grpc-status": str(int(status))}
    assert play.answers[1].headers == [expected | ({"grpc-message": "why"} if status else {})]
    assert play.answers[1].ended


def test_a_handler_that_ends_the_call_hears_no_more() -> None:
    play = GrpcPlay(lambda call, message: call.finish(Status.ABORTED, "enough"))
    play.send(client.headers(1), client.data(1, client.message(b"a") + client.message(b"b")))
    play.send(client.data(1, client.message(b"c"), end=True))
    assert (play.handlers[0].heard, play.handlers[0].half_closes, play.handlers[0].closes) == ([b"a"], 0, 1)
    assert play.answers[1].status == ("10", "enough")
    assert play.answers[1].reset == ErrorCode.NO_ERROR, "the rest is not wanted"


def test_a_cancelled_call_is_closed_once() -> None:
    play = GrpcPlay()
    play.send(client.headers(1), client.rst_stream(1))
    handler = play.handlers[0]
    assert (handler.closes, handler.half_closes) == (1, 0)
    handler.call.send(b"for nobody")
    handler.call.finish()
    play.read()
    assert 1 not in play.answers
    assert handler.closes == 1


def test_calls_end_with_their_connection() -> None:
    play = GrpcPlay()
    play.send(client.headers(1), client.headers(3))
    play.send(client.ping(b"short"))
    assert [handler.closes for handler in play.handlers] == [1, 1]
    assert play.calls.failure == "PING that is not 8 bytes long"


def test_calls_end_with_their_transport() -> None:
    play = GrpcPlay()
    play.send(client.headers(1), client.headers(3))
    play.calls.close_all(play.now)
    assert [handler.closes for handler in play.handlers] == [1, 1]
    assert play.calls.open_calls == 0


def test_a_method_that_there_is_not() -> None:
    play = GrpcPlay()
    play.send(
        client.headers(1, with_field(":path", "/other.Service/Method")[-1:] + with_field(":path", "")[:-1])
    )
    assert play.answers[1].status == ("12", "there is no such method here")
    assert play.answers[1].ended


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (with_field("content-type", "application/json"), "415"),
        (with_field("content-type", "application/grpcweb"), "415"),
        (client.CALL[:-1], "415"),
        ((("content-type", "application/grpc"), *client.CALL[1:-1]), "reset"),
        (((":method", "GET"), *client.CALL[1:]), "405"),
    ],
    ids=["another type", "a longer name", "no type", "malformed", "another method"],
)
def test_what_is_no_call(fields: tuple[tuple[str, str], ...], status: str) -> None:
    play = GrpcPlay()
    play.send(client.headers(1, fields), client.data(1, client.message(b"x")))
    if status == "reset":
        assert play.answers[1].reset == ErrorCode.PROTOCOL_ERROR
    else:
        assert play.answers[1].headers[0][":status"] == status
        assert play.answers[1].ended
    assert play.handlers == []
    assert play.calls.open_calls == 0


@pytest.mark.parametrize("kind", ["application/grpc+proto", "application/grpc;charset=utf-8"])
def test_forms_of_the_content_type(kind: str) -> None:
    play = GrpcPlay()
    play.send(client.headers(1, with_field("content-type", kind)))
    assert len(play.handlers) == 1


# --- messages -------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=50), max_size=8), st.data())
def test_messages_are_cut_anywhere(messages: list[bytes], data: st.DataObject) -> None:
    body = b"".join(client.message(one) for one in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=20)))
    play = GrpcPlay()
    play.send(client.headers(1))
    play.send(*(client.data(1, body[a:b]) for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)))
    play.send(client.data(1, b"", end=True))
    assert play.handlers[0].heard == messages
    assert play.handlers[0].half_closes == 1


def test_a_large_message_byte_by_byte_is_put_together_once() -> None:
    play = GrpcPlay()
    play.send(client.headers(1))
    messages = play.handlers[0].call.messages
    body = client.message(b"x" * 100_000)
    found, places = [], set()
    for at in range(len(body)):
        found += messages.read(body[at : at + 1])
        if at > 10 and messages.parts:
            places.add(tuple(map(id, messages.parts)))
    count = len(places)  # apart, so that a failure prints a number
    assert count == 1, "in one place that grows"
    assert found == [b"x" * 100_000]
    assert messages.is_between


def test_a_message_larger_than_the_window_comes_whole() -> None:
    play = GrpcPlay()
    play.send(client.headers(1))
    body = client.message(b"x" * LARGEST)
    window, at = 256 << 10, 0
    while at < len(body):
        assert window > 0, "the client waits for a window that never comes"
        part = body[at : at + min(16_384, window)]
        play.send(client.data(1, part))
        at, window = at + len(part), window - len(part)
        window += sum(one.number for one in play.other if one.kind == 8 and one.stream_id == 1)
        play.other.clear()
    assert play.handlers[0].heard == [b"x" * LARGEST]


def test_a_message_that_is_too_large_is_refused_by_its_length_alone() -> None:
    play = GrpcPlay()
    play.send(client.headers(1), client.data(1, b"\x00" + (LARGEST + 1).to_bytes(4, "big")))
    assert play.answers[1].status == ("8", "a message larger than is taken")
    assert play.answers[1].reset == ErrorCode.NO_ERROR
    assert play.handlers[0].closes == 1


def test_small_parts_of_a_message_cost_no_more_than_they_are() -> None:
    play = GrpcPlay()
    play.send(client.headers(1))
    messages = play.handlers[0].call.messages
    body, found = client.message(bytes(range(250)) * 400), []
    at = 0
    for size in itertools.cycle((1, 2, 3, 600, 5, 511, 7, 9, 512)):
        if at >= len(body):
            break
        found += messages.read(body[at : at + size])
        at += size
        assert len(messages.parts) <= 2 + 2 * at // 512
    assert found == [body[5:]]


def test_messages_that_are_begun_have_a_bound_over_all_calls() -> None:
    """The call that goes beyond is refused, not the connection; what is over counts no more."""
    play = GrpcPlay(limits=Limits(max_unfinished_bytes=10_000))
    begun = client.message(b"x" * 8_000)[:4_000]
    for number in (1, 3, 5):
        play.send(client.headers(number), client.data(number, begun))
    assert (play.answers[5].status[0], play.handlers[2].closes) == ("8", 1)
    assert play.calls.held == 8_000
    play.send(client.rst_stream(1), client.headers(7), client.data(7, begun))
    assert play.handlers[0].call.messages.held == 0, "nor is it kept"
    assert 7 not in play.answers
    play.send(client.data(3, b"x" * 4_005), client.data(7, b"x" * 4_005))
    assert [handler.heard for handler in play.handlers] == [[], [b"x" * 8_000], [], [b"x" * 8_000]]
    assert play.calls.held == 0
    play.send(client.headers(9), client.data(9, client.message(b"y" * 15_000)))
    assert play.handlers[4].heard == [b"y" * 15_000], "a message that comes whole is not held"


@pytest.mark.parametrize("flag", [1, 2, 255])
def test_a_compressed_message_is_refused(flag: int) -> None:
    play = GrpcPlay()
    play.send(client.headers(1), client.data(1, client.message(b"first") + client.message(b"x", flag)))
    assert play.handlers[0].heard == [b"first"]
    assert play.answers[1].status[0] == "13"


def test_a_client_that_is_going_to_compress_is_refused() -> None:
    play = GrpcPlay()
    play.send(client.headers(1, with_field("grpc-encoding", "gzip")))
    assert play.answers[1].status == ("12", "messages are taken uncompressed")
    assert play.answers[1].headers[0]["grpc-accept-encoding"] == "identity"
    play.send(client.headers(3, with_field("grpc-encoding", "identity")))
    assert len(play.handlers) == 1


def test_a_call_that_ends_within_a_message() -> None:
    play = GrpcPlay()
    play.send(client.headers(1), client.data(1, client.message(b"whole") + b"\x00\x00", end=True))
    assert play.answers[1].status == ("13", "the call ends within a message")
    assert (play.handlers[0].half_closes, play.handlers[0].closes) == (0, 1)


# --- deadlines ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_timeout", "seconds"),
    [
        ("1H", 3600),
        ("2M", 120),
        ("3S", 3),
        ("250m", 0.25),
        ("5u", 5e-6),
        ("7n", 7e-9),
        ("99999999S", 99999999),
    ],
)
def test_a_deadline_ends_its_call(given_timeout: str, seconds: float) -> None:
    play = GrpcPlay()
    play.send(client.headers(1, with_field("grpc-timeout", given_timeout)), client.headers(3))
    deadline = play.calls.next_deadline()
    assert deadline == pytest.approx(100 + seconds)
    play.now = deadline - seconds / 2
    play.calls.expire(play.now)
    play.read()
    assert 1 not in play.answers
    play.now = deadline
    play.calls.expire(play.now)
    play.read()
    assert play.answers[1].status == ("4", "the call's time is up")
    assert [handler.closes for handler in play.handlers] == [1, 0]
    assert play.calls.next_deadline() is None


@pytest.mark.parametrize("wrong", ["", "5", "S", "123456789S", "-1S", "1.5S", "1 S"])
def test_a_timeout_that_is_none_is_refused(wrong: str) -> None:
    play = GrpcPlay()
    play.send(client.headers(1, with_field("grpc-timeout", wrong)))
    assert play.answers[1].status == ("13", "a grpc-timeout that is none")
    assert play.handlers == []


def test_the_first_deadline_is_the_next_one() -> None:
    play = GrpcPlay()
    for number, timeout in ((1, "9S"), (3, "2S"), (5, "5S")):
        play.send(client.headers(number, with_field("grpc-timeout", timeout)))
    assert play.calls.next_deadline() == 102
    play.send(client.rst_stream(3))
    assert play.calls.next_deadline() == 105


def test_calls_that_are_over_do_not_wait_for_their_deadlines() -> None:
    play = GrpcPlay()
    for number in range(1, 2_001, 2):
        play.send(client.headers(number, with_field("grpc-timeout", "99999999H")), client.rst_stream(number))
    assert len(play.calls._deadlines) < 100


def test_a_deadline_behind_an_answer_that_nobody_reads_resets_the_call() -> None:
    play = GrpcPlay(hello=client.PREFACE + client.settings(window=4))
    play.send(client.headers(1, with_field("grpc-timeout", "1S")))
    play.handlers[0].call.send(b"answer")
    play.now += 2
    play.calls.expire(play.now)
    play.read()
    assert play.answers[1].reset == ErrorCode.CANCEL
    assert play.handlers[0].closes == 1


# --- back-pressure --------------------------------------------------------------------------------


def echo(call: Call, message: bytes) -> None:
    call.send(message)


def test_a_client_that_reads_nothing_is_given_no_window() -> None:
    play = GrpcPlay(echo, hello=client.PREFACE + client.settings(window=0))
    play.send(client.headers(1))
    for _ in range(16):
        play.send(client.data(1, client.message(b"x" * 15_000)))
    assert not any(one.kind == client.WINDOW_UPDATE and one.stream_id == 1 for one in play.other)
    play.send(client.window_update(0, 1 << 20), client.window_update(1, 1 << 20))
    assert len(play.answers[1].messages) == 16
    (given_back,) = [
        one.number for one in play.other if one.kind == client.WINDOW_UPDATE and one.stream_id == 1
    ]
    assert given_back == 16 * 15_005


def test_a_slow_client_slows_no_other_one() -> None:
    play = GrpcPlay(echo, hello=client.PREFACE + client.settings(window=0))
    play.send(client.headers(1), client.headers(3), client.window_update(3, 1 << 20))
    for number in range(50):
        if number < 16:
            play.send(client.data(1, client.message(b"x" * 15_000)))
        play.send(client.data(3, client.message(b"y" * 1_000)))
    assert len(play.answers[3].messages) == 50
    assert play.answers[1].body == b""


def test_an_answer_that_waits_is_followed_by_its_end() -> None:
    play = GrpcPlay(hello=client.PREFACE + client.settings(window=3))
    play.send(client.headers(1))
    call = play.handlers[0].call
    call.send(b"answer")
    call.finish()
    play.read()
    assert play.handlers[0].closes == 0, "its answer is not out"
    play.send(client.window_update(1, 100))
    assert play.answers[1].messages == [b"answer"]
    assert (play.answers[1].ended, play.handlers[0].closes) == (True, 1)


# --- status messages ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "encoded"),
    [
        ("plain, with a blank", "plain, with a blank"),
        ("100%", "100%25"),
        ("é\n", "%C3%A9%0A"),
        ("x" * 5_000, "x" * 1_024),
    ],
)
def test_a_message_is_percent_encoded(message: str, encoded: str) -> None:
    play = GrpcPlay()
    play.send(client.headers(1))
    play.handlers[0].call.finish(Status.UNKNOWN, message)
    play.read()
    assert play.answers[1].status == ("2", encoded)


@given(st.text(max_size=2_000))
def test_any_message_makes_trailers_that_a_client_reads(message: str) -> None:
    play = GrpcPlay()
    play.send(client.headers(1, end=True))
    play.handlers[0].call.finish(Status.UNKNOWN, message)
    play.read()
    encoded = play.answers[1].status[1]
    assert encoded.isascii()
    assert encoded.isprintable()
    assert len(encoded) < 1_100


# --- drain ----------------------------------------------------------------------------------------


def test_a_drained_connection_says_so() -> None:
    play = GrpcPlay()
    play.send(client.headers(1))
    play.calls.connection.begin_drain()
    play.calls.connection.finish_drain()
    play.read()
    assert not play.calls.drained
    play.handlers[0].call.finish()
    play.read()
    assert play.calls.drained


def test_the_rest_of_a_message_is_not_taken_for_one_whatever_it_looks_like() -> None:
    play = GrpcPlay()
    inner = client.message(b"looks whole")
    outer = client.message(b"begin" + inner)
    play.send(client.headers(1), client.data(1, outer[: -len(inner)]))
    play.send(client.data(1, inner))
    assert play.handlers[0].heard == [b"begin" + inner]


def test_a_message_that_is_too_large_by_one_byte_is_refused_though_it_comes_in_one_frame() -> None:
    play = GrpcPlay(limits=Limits(max_frame_bytes=LARGEST + 64, stream_window=4 * LARGEST))
    play.send(client.headers(1), client.data(1, client.message(b"x" * LARGEST)))
    play.send(client.headers(3), client.data(3, client.message(b"x" * (LARGEST + 1))))
    assert [len(one) for handler in play.handlers for one in handler.heard] == [LARGEST]
    assert play.answers[3].status[0] == "8"
