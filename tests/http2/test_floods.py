"""What a client may send without any use, and what it may make us send."""

import pytest

from envoy_ext.http2.errors import ConnectionFault, ErrorCode
from envoy_ext.http2.floods import Budget
from envoy_ext.http2.limits import Limits
from tests.support import http2_client as client
from tests.support.http2_play import Play

FEW = Limits(idle_frames=50, window_updates=50, rapid_resets=50, settings_frames=50)

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
