"""Clients that break the protocol, by mistake or on purpose: each costs its own stream and bounded memory."""

from typing import Any

import pytest

from envoy_ext.domain.errors import PeerViolation
from envoy_ext.xds.dialects import DELTA, MOST_NAME_BYTES, MOST_NAMES, STATE_OF_THE_WORLD, Dialect
from envoy_ext.xds.kinds import Kind
from envoy_ext.xds.session import MOST_UNKNOWN_KINDS, MOST_WORDS, NotServed, Pushed, Session, Turn
from tests.xds.builders import endpoints_alone

either = pytest.mark.parametrize("dialect", [STATE_OF_THE_WORLD, DELTA], ids=["sotw", "delta"])


def open_session(dialect: Dialect) -> Session:
    session = Session(dialect)
    session.publish(endpoints_alone(a=1, b=1))
    return session


def ask(dialect: Dialect, names: list[str], nonce: str = "") -> Any:
    field = "resource_names" if dialect is STATE_OF_THE_WORLD else "resource_names_subscribe"
    return dialect.request(type_url=Kind.EDS.type_url, response_nonce=nonce, **{field: names})


def make_names(count: int, start: int = 0) -> list[str]:
    return [f"pool_{number}" for number in range(start, start + count)]


# --- names ------------------------------------------------------------------------------------------


@either
def test_as_many_names_as_a_stream_may_have_are_answered(dialect: Dialect) -> None:
    session = open_session(dialect)
    [answer] = session.receive(ask(dialect, make_names(MOST_NAMES))).responses
    told = answer.resources if dialect is STATE_OF_THE_WORLD else answer.removed_resources
    assert len(told) == MOST_NAMES


@either
def test_one_name_more_ends_the_stream(dialect: Dialect) -> None:
    with pytest.raises(PeerViolation, match=f"more than {MOST_NAMES} names"):
        open_session(dialect).receive(ask(dialect, make_names(MOST_NAMES + 1)))


@either
def test_a_name_longer_than_any_is_refused(dialect: Dialect) -> None:
    session = open_session(dialect)
    session.receive(ask(dialect, ["x" * MOST_NAME_BYTES]))
    with pytest.raises(PeerViolation, match="name") as refused:
        session.receive(ask(dialect, ["x" * (MOST_NAME_BYTES + 1)]))
    assert "xxx" not in str(refused.value)


def test_a_name_is_measured_in_bytes() -> None:
    with pytest.raises(PeerViolation, match="name"):
        open_session(DELTA).receive(ask(DELTA, ["é" * (MOST_NAME_BYTES // 2 + 1)]))


def test_names_of_many_delta_requests_add_up_and_those_that_were_left_do_not() -> None:
    session = open_session(DELTA)
    half = MOST_NAMES // 2
    for turn in range(6):
        [answer] = session.receive(ask(DELTA, make_names(half, turn * half))).responses
        request = DELTA.request(type_url=Kind.EDS.type_url, response_nonce=answer.nonce)
        request.resource_names_unsubscribe.extend(make_names(half, turn * half))
        assert session.receive(request) == Turn()
    session.receive(ask(DELTA, make_names(half)))
    session.receive(ask(DELTA, make_names(half)))
    session.receive(ask(DELTA, make_names(half, half)))
    with pytest.raises(PeerViolation, match="names"):
        session.receive(ask(DELTA, ["one more"]))


@pytest.mark.parametrize("field", ["held", "unsubscribe"])
def test_names_that_are_held_or_left_have_the_same_bounds(field: str) -> None:
    for names in (make_names(MOST_NAMES + 1), ["x" * (MOST_NAME_BYTES + 1)]):
        request = DELTA.request(type_url=Kind.EDS.type_url)
        if field == "held":
            request.initial_resource_versions.update(dict.fromkeys(names, "1"))
        else:
            request.resource_names_unsubscribe.extend(names)
        with pytest.raises(PeerViolation, match="name"):
            open_session(DELTA).receive(request)


@either
def test_a_name_that_is_asked_for_twice_at_once_is_answered_once(dialect: Dialect) -> None:
    session = open_session(dialect)
    [answer] = session.receive(ask(dialect, ["pool_b", "pool_a", "pool_b", "pool_a"])).responses
    assert len(answer.resources) == 2
    [unknown] = open_session(dialect).receive(ask(dialect, ["pool_x", "pool_x"])).responses
    assert len(unknown.resources if dialect is STATE_OF_THE_WORLD else unknown.removed_resources) == 1


# --- kinds and words --------------------------------------------------------------------------------


@either
def test_kinds_that_nobody_knows_are_noted_once_and_only_a_few_of_them(dialect: Dialect) -> None:
    session = open_session(dialect)
    notes = []
    for number in range(1_000):
        for _ in range(2):
            turn = session.receive(dialect.request(type_url=f"type.googleapis.com/kind.{number}"))
            assert turn.responses == ()
            notes += turn.notes
    assert notes == [NotServed(f"type.googleapis.com/kind.{number}") for number in range(MOST_UNKNOWN_KINDS)]
    [answer] = session.receive(ask(dialect, ["pool_a"])).responses
    assert len(answer.resources) == 1, "a stream goes on with what is known"


@either
def test_nothing_a_client_says_of_itself_is_kept_in_full(dialect: Dialect) -> None:
    session = open_session(dialect)
    request = dialect.request(type_url="type.googleapis.com/" + "k" * 1_000_000)
    request.node.id = "n" * 5_000_000
    [note] = session.receive(request).notes
    assert isinstance(note, NotServed)
    assert len(note.type_url) < MOST_WORDS + 10
    assert len(session.node) < MOST_WORDS + 10


# --- acknowledgements that never come ---------------------------------------------------------------


@either
def test_a_client_that_never_acknowledges_gets_one_answer_whatever_it_asks(dialect: Dialect) -> None:
    session = open_session(dialect)
    answers = 0
    for number in range(200):
        answers += len(session.receive(ask(dialect, [f"pool_{number % 7}", "pool_a"])).responses)
        answers += len(session.publish(endpoints_alone(a=number % 80 + 1)).responses)
    assert answers == 1


@either
def test_an_acknowledgement_that_comes_again_and_again_is_heard_once(dialect: Dialect) -> None:
    session = open_session(dialect)
    names = ["pool_a"]
    [answer] = session.receive(ask(dialect, names)).responses
    again = ask(dialect, names if dialect is STATE_OF_THE_WORLD else [], nonce=answer.nonce)
    for _ in range(100):
        assert session.receive(again) == Turn()
    turn = session.publish(endpoints_alone(a=2, b=1))
    assert turn.notes == (Pushed(Kind.EDS, 1, 0),)
    for _ in range(100):
        assert session.receive(again) == Turn(), "an old nonce acknowledges nothing"
    assert not session.is_settled
