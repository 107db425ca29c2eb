"""How long a peer may be silent, and when it is asked whether it is there (RFC 9113, 6.5.3 and 6.7)."""

from dataclasses import replace

import pytest

from envoy_ext.http2.errors import ErrorCode
from envoy_ext.http2.limits import Limits
from tests.support import http2_client as client
from tests.support.grpc_play import GrpcPlay
from tests.support.http2_play import Play

LIMITS = Limits(hello_s=10, settings_ack_s=60, ping_after_s=100, ping_answer_s=300)
ACK = client.frame(client.SETTINGS, client.ACK, 0)


def begin(limits: Limits = LIMITS) -> Play:
    play = Play(limits)
    play.read()
    play.connection.begin(play.now)
    return play


def wait(play: Play, now: float) -> list[client.Frame]:
    """Time goes on to `now`, and each deadline on the way is met."""
    found = []
    while (due := play.connection.due) is not None and due <= now:
        play.now = max(play.now, due)
        play.connection.expire(play.now)
        found += play.read()
    play.now = now
    return found


def acknowledged() -> Play:
    play = begin()
    play.send(client.HELLO, ACK)
    play.read()
    return play


def given_up(frames: list[client.Frame]) -> int:
    """The code of the last word."""
    assert frames[-1].kind == client.GOAWAY
    return int.from_bytes(frames[-1].payload[4:8], "big")


@pytest.mark.parametrize("said", [b"", client.PREFACE, client.HELLO[:-1]])
def test_a_hello_that_does_not_come_whole(said: bytes) -> None:
    play = begin()
    play.send(said)
    assert wait(play, 9.9) == []
    assert given_up(wait(play, 10)) == ErrorCode.PROTOCOL_ERROR
    assert play.connection.due is None


def test_our_settings_have_to_be_acknowledged() -> None:
    """Whatever else is said meanwhile."""
    play = begin()
    play.send(client.HELLO, client.headers(1))
    play.read()
    for now in range(1, 60):
        assert wait(play, now) == []
        play.send(client.data(1, b"x"))
    assert given_up(wait(play, 60)) == ErrorCode.SETTINGS_TIMEOUT
    assert play.events() == [("reset", 1, ErrorCode.SETTINGS_TIMEOUT, False), ("failed", 4)]


def test_an_acknowledgement_in_time() -> None:
    play = begin()
    play.send(client.HELLO)
    play.read()
    wait(play, 59)
    play.send(ACK)
    assert wait(play, 99) == []
    assert not play.connection.failed


def test_a_silent_peer_is_asked_and_one_that_says_anything_is_there() -> None:
    play = acknowledged()
    assert wait(play, 99.9) == []
    (asked,) = wait(play, 100)
    assert (asked.kind, asked.flags, asked.stream_id) == (client.PING, 0, 0)
    assert wait(play, 399) == [], "once"
    play.send(client.ping(asked.payload, client.ACK))
    assert wait(play, 498) == []
    assert [one.kind for one in wait(play, 499)] == [client.PING]
    play.now = 500
    play.send(client.headers(1)[:3])  # not even a whole frame
    assert wait(play, 900) == [asked], "100 s after those bytes, looked at when the answer was due"
    assert not play.connection.failed


def test_a_peer_that_speaks_is_not_asked() -> None:
    play = acknowledged()
    play.send(client.headers(1))
    for now in range(10, 2_000, 10):
        assert wait(play, now) == []
        play.send(client.data(1, b"x"))


def test_a_peer_that_is_gone_is_given_up_with_its_streams() -> None:
    play = acknowledged()
    play.send(client.headers(1))
    wait(play, 399)
    assert not play.connection.failed
    frames = wait(play, 400)
    assert given_up(frames) == ErrorCode.NO_ERROR
    assert play.events() == [("reset", 1, 0, False), ("failed", 0)]


def test_nobody_is_waited_for_who_has_broken_a_rule() -> None:
    play = acknowledged()
    play.fails_with(ErrorCode.FRAME_SIZE_ERROR, client.ping(b"short"))
    assert play.connection.due is None


def test_nobody_is_asked_where_that_is_off() -> None:
    play = begin(replace(LIMITS, ping_after_s=None))
    play.send(client.HELLO, ACK)
    play.read()
    assert wait(play, 1e6) == []
    assert play.connection.due is None


@pytest.mark.parametrize("owed", ["hello", "acknowledgement", "answer"])
def test_who_was_stopped_itself_listens_once_more(owed: str) -> None:
    """What the peer owes may have come while nobody looked."""
    play = begin()
    if owed != "hello":
        play.send(client.HELLO)
        play.read()
        wait(play, 59)
    if owed == "answer":
        play.send(ACK)
        assert len(wait(play, 159)) == 1
    late = play.now + 5_000
    play.connection.expire(late)
    assert not play.connection.failed
    assert play.connection.due == late + 10
    play.now = late + 1
    play.send({"hello": client.HELLO, "acknowledgement": ACK, "answer": client.ping(flags=client.ACK)}[owed])
    play.read()
    wait(play, late + 10)
    assert not play.connection.failed
    given_up(wait(play, late + 10_000))  # but not for ever


def test_without_a_begin_there_is_no_hurry() -> None:
    assert Play().connection.due is None


def test_calls_and_silence_have_one_next_deadline() -> None:
    play = GrpcPlay(limits=LIMITS, hello=b"")
    assert play.calls.next_deadline() is None
    play.calls.begin(play.now)
    assert play.calls.next_deadline() == 110
    timed = (*client.CALL, ("grpc-timeout", "5S"))
    play.send(client.HELLO, client.headers(1, timed), client.headers(3))
    assert play.calls.next_deadline() == 105
    for now in (105, 110):
        play.now = now
        play.calls.expire(now)
        play.read()
    assert play.answers[1].status[0] == "4"
    assert play.calls.next_deadline() == 160
    play.calls.expire(160)
    play.read()
    assert play.calls.failure == "our SETTINGS are not acknowledged"
    assert [handler.closes for handler in play.handlers] == [1, 1]
    assert play.calls.next_deadline() is None
