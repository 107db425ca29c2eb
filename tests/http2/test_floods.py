"""What a client may send without any use, and what it may make us send."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from envoy_ext.http2.errors import ConnectionFault, ErrorCode
from envoy_ext.http2.floods import Budget
from envoy_ext.http2.limits import Limits
from tests.support import http2_client as client
from tests.support.http2_play import Play

FEW = Limits(idle_frames=50, window_updates=50, rapid_resets=50, refusals=50, settings_frames=50)

USELESS = {
    "pings": client.ping(),
    "pings that answer nothing": client.ping(flags=client.ACK),
    "settings": client.settings(),
    "priorities": client.frame(client.PRIORITY, 0, 1, b"\x00\x00\x00\x05\x10"),
    "empty data": client.data(1, b""),
    "data of padding alone": client.frame(client.DATA, client.PADDED, 1, b"\x00"),
    "unknown frames": client.frame(0x55, 0, 0),
    "window updates": client.window_update(1, 1),
    "resets of what is over": client.rst_stream(3),
}


@pytest.mark.parametrize("name", USELESS)
def test_a_flood_costs_the_connection(name: str) -> None:
    play = Play(FEW).opened()
    play.send(client.headers(1), client.headers(3), client.rst_stream(3))
    play.send(USELESS[name] * 40)
    assert play.is_alive()
    play.fails_with(ErrorCode.ENHANCE_YOUR_CALM, USELESS[name] * 20)


@pytest.mark.parametrize("name", USELESS)
def test_the_same_over_a_longer_time_is_none(name: str) -> None:
    play = Play(FEW).opened()
    play.send(client.headers(1), client.headers(3), client.rst_stream(3))
    for _ in range(100):
        play.send(USELESS[name] * 20)
        play.now += 0.5
    assert play.is_alive()


def test_streams_that_are_opened_and_reset() -> None:
    """CVE-2023-44487."""
    play = Play(FEW).opened()
    parts = [client.headers(number) + client.rst_stream(number) for number in range(1, 401, 2)]
    play.fails_with(ErrorCode.ENHANCE_YOUR_CALM, *parts)


CAUSES: dict[str, Callable[[int], bytes]] = {
    "a window that cannot be": lambda one: client.window_update(one, (1 << 31) - 1),
    "data behind the end": lambda one: client.data(one, b"x"),
    "headers behind the end": lambda one: client.headers(one, end=True),
    "a priority on itself": lambda one: client.frame(client.PRIORITY, 0, one, one.to_bytes(4) + b"\x10"),
    "a priority of another length": lambda one: client.frame(client.PRIORITY, 0, one, b"\x00"),
    "a window update by 0": lambda one: client.window_update(one, 0),
}


@pytest.mark.parametrize("name", CAUSES)
def test_streams_that_we_are_made_to_reset(name: str) -> None:
    """CVE-2025-8671: what the peer does not reset by itself, it gets reset."""
    play, cause = Play(replace(FEW, window_updates=1_000, idle_frames=1_000)).opened(), CAUSES[name]
    for number in range(1, 81, 2):
        assert play.send(client.headers(number, end=True), cause(number))[-1][:2] == ("reset", number)
    assert play.is_alive()
    more = [client.headers(number, end=True) + cause(number) for number in range(81, 121, 2)]
    play.fails_with(ErrorCode.ENHANCE_YOUR_CALM, *more)


def test_malformed_requests_one_after_the_other() -> None:
    play = Play(FEW).opened()
    play.fails_with(
        ErrorCode.ENHANCE_YOUR_CALM, *(client.headers(number, client.CALL[1:]) for number in range(1, 121, 2))
    )


def test_resets_of_streams_that_were_answered_are_clients_that_leave() -> None:
    play = Play(FEW).opened()
    for number in range(1, 401, 2):
        play.send(client.headers(number))
        play.connection.send(play.streams[number], b"", b"x")
        play.read()
        assert play.send(client.rst_stream(number)) == [("reset", number, 8, True)]
    assert play.is_alive()


@pytest.mark.parametrize(
    "asking",
    [client.ping(), client.settings(), client.window_update(1, 0)],
    ids=["ping", "settings", "window update by 0"],
)
def test_answers_that_nobody_reads_are_bounded(asking: bytes) -> None:
    play = Play(Limits(max_unsent_answers=10, settings_frames=100)).opened()
    play.send(client.headers(1))
    play.connection.set_writable(False)
    assert not any(event[0] == "failed" for event in play.send(asking * 10))
    play.connection.set_writable(True)
    assert play.is_alive()
    play.connection.set_writable(False)
    assert not any(event[0] == "failed" for event in play.send(asking * 10))
    play.fails_with(ErrorCode.ENHANCE_YOUR_CALM, asking)


@pytest.mark.parametrize("end", ["trailers", "reset"])
def test_what_we_say_on_many_streams_to_who_reads_nothing_is_bounded(end: str) -> None:
    """Each of them is over at once, so that no number of open streams bounds them."""
    play = Play(Limits(max_unread_frames=100)).opened()
    play.connection.set_writable(False)
    for number in range(1, 1_001, 2):
        events = play.send(client.headers(number))
        if any(event[0] == "failed" for event in events):
            break
        stream = play.streams[number]
        play.connection.send_headers(stream, b"\x88")
        if end == "trailers":
            play.connection.end(stream, b"\x88")
        else:
            play.connection.reset(stream, ErrorCode.CANCEL)
    assert 30 < number < 110
    assert play.read()[-1].kind == client.GOAWAY


def test_who_reads_again_is_taken_back() -> None:
    play = Play(Limits(max_unread_frames=100)).opened()
    for number in range(1, 1_001, 2):
        play.connection.set_writable(number % 20 == 1)
        play.send(client.headers(number, end=True))
        play.connection.end(play.streams[number], b"\x88")
    assert play.is_alive()


def test_a_budget_lets_a_burst_pass_and_refills() -> None:
    budget = Budget(10, "enough")
    for _ in range(10):
        budget.spend(100.0)
    with pytest.raises(ConnectionFault):
        budget.spend(100.05)
    for _ in range(5):
        budget.spend(100.55)
    with pytest.raises(ConnectionFault):
        budget.spend(100.55)
    for _ in range(10):
        budget.spend(1_000.0)
    with pytest.raises(ConnectionFault):
        budget.spend(1_000.0)
