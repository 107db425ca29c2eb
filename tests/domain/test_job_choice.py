"""Whose job is next: the oldest of the caller that has had least, and nobody is kept out."""

from hypothesis import given
from hypothesis import strategies as st

from envoy_ext.domain.ids import PoolName
from envoy_ext.domain.job import Job
from envoy_ext.domain.job_choice import Turns
from tests.support.jobs import queued_job

CHAT, CODE = PoolName("chat"), PoolName("code")


def job(number: int, caller: str, pool: PoolName = CHAT) -> Job:
    return queued_job(f"op_{number}", number, caller=caller, pool=pool)


def test_callers_take_turns_and_each_ones_jobs_go_in_their_order() -> None:
    turns, order = Turns(), []
    waiting = [*(job(n, "a") for n in range(1, 5)), job(5, "b"), job(6, "b"), job(7, "c")]
    while (one := turns.choose(waiting, frozenset({CHAT}))) is not None:
        waiting.remove(one)
        turns.begin(one.caller)
        turns.end(one.caller, waiting)
        order.append(one.number)
    assert order == [1, 5, 7, 2, 6, 3, 4]


def test_who_has_less_running_is_first() -> None:
    turns = Turns()
    for _ in range(2):
        turns.begin("a")
    turns.begin("b")
    assert turns.choose([job(1, "a"), job(2, "b")], frozenset({CHAT})) == job(2, "b")


def test_only_open_pools_are_looked_at() -> None:
    waiting = [job(1, "a", CODE), job(2, "a")]
    assert Turns().choose(waiting, frozenset({CHAT})) == waiting[1]
    assert Turns().choose(waiting, frozenset()) is None


@given(st.lists(st.sampled_from("abc"), max_size=30))
def test_of_two_that_both_wait_none_is_given_two_more_than_the_other(callers: list[str]) -> None:
    turns, had = Turns(), dict.fromkeys("abc", 0)
    waiting = [job(n, caller) for n, caller in enumerate(callers, 1)]
    while (one := turns.choose(waiting, frozenset({CHAT}))) is not None:
        had[one.caller] += 1
        waiting.remove(one)
        turns.begin(one.caller)
        turns.end(one.caller, waiting)
        still = [had[caller] for caller in {other.caller for other in waiting}]
        assert not still or max(still) - min(still) <= 1
