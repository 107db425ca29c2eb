"""From one answer of a resolver to the next.

The invariants: whoever the last answer names may get work, whoever it leaves out gets none, and
whoever two answers in a row left out is gone.
"""

from hypothesis import given
from hypothesis import strategies as st

from envoy_ext.domain.discovery import Standing
from envoy_ext.domain.dns_answers import DnsAnswers

ONE, TWO, THREE = (f"10.0.0.{number}:8000" for number in (1, 2, 3))
LISTED, LEAVING = Standing.LISTED, Standing.LEAVING


def play(answers: DnsAnswers, *addresses: str) -> dict[str, Standing] | None:
    told = answers.take(addresses)
    return None if told is None else {one.replica: one.standing for one in told.members}


def test_an_address_is_a_replica() -> None:
    (member,) = DnsAnswers().take([ONE]).members  # type: ignore[union-attr]
    assert (member.replica, member.url, member.addresses) == (ONE, f"http://{ONE}", (ONE,))


def test_an_address_that_is_left_out_gets_no_work_and_is_gone_with_the_next_answer() -> None:
    answers = DnsAnswers()
    assert play(answers, ONE, TWO) == {ONE: LISTED, TWO: LISTED}
    assert play(answers, ONE) == {ONE: LISTED, TWO: LEAVING}
    assert play(answers, ONE) == {ONE: LISTED}


def test_an_address_that_returns_is_who_it_was() -> None:
    answers = DnsAnswers()
    for _ in range(10):  # a resolver that hands out parts in turn
        play(answers, ONE, TWO)
        assert play(answers, TWO, THREE) == {ONE: LEAVING, TWO: LISTED, THREE: LISTED}


def test_an_answer_without_any_address_must_be_given_twice() -> None:
    answers = DnsAnswers()
    play(answers, ONE, TWO)
    assert play(answers) is None
    assert play(answers, ONE) == {ONE: LISTED, TWO: LEAVING}
    assert play(answers) is None
    assert play(answers) == {}
    assert play(answers) == {}
    assert play(answers, TWO) == {TWO: LISTED}


def test_a_name_that_never_had_an_address_is_empty_at_once() -> None:
    assert play(DnsAnswers()) == {}


def test_two_families_are_two_ways_to_the_same_replicas() -> None:
    answers = DnsAnswers()
    assert play(answers, "[2001:db8::1]:8000", ONE) == {ONE: LISTED}
    alone = DnsAnswers().take(["[2001:db8::1]:8000"])
    assert alone is not None
    assert (alone.members[0].replica, alone.members[0].url) == (
        "2001:db8::1:8000",
        "http://[2001:db8::1]:8000",
    )


ANSWERS = st.lists(st.lists(st.sampled_from([ONE, TWO, THREE]), unique=True), min_size=1, max_size=12)


@given(ANSWERS)
def test_the_last_answer_says_who_may_get_work(played: list[list[str]]) -> None:
    answers = DnsAnswers()
    for before, answer in zip([[], *played], played, strict=False):
        told = play(answers, *answer)
        if told is None:
            assert answer == [], "only an empty answer waits to be said again"
            continue
        assert {name for name, standing in told.items() if standing is LISTED} == set(answer)
        if answer and before:
            assert set(told) <= set(answer) | set(before)
