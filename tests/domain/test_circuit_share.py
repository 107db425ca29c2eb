"""Who is out: on the word of requests alone a share and never the last, with the model's own word all."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envoy_ext.domain.circuit_share import Member, choose_cut, compute_limit
from envoy_ext.domain.ids import ReplicaId


def member(name, *, sound=True, cut=True, condemned=False, at=0.0):
    return Member(ReplicaId(name), sound, cut, condemned, at)


def choose(*members, max_open=0.5):
    return "".join(sorted(choose_cut(members, max_open)))


@pytest.mark.parametrize(
    ("sound", "max_open", "limit"),
    [
        (0, 0.5, 0),
        (1, 1.0, 0),
        (2, 0.1, 1),
        (2, 1.0, 1),
        (3, 0.5, 1),
        (4, 0.5, 2),
        (10, 0.25, 2),
        (10, 1.0, 9),
    ],
)
def test_how_many_may_be_out(sound, max_open, limit):
    assert compute_limit(sound, max_open) == limit


def test_who_opened_first_is_out_and_the_rest_serve_on():
    pool = member("a", at=3.0), member("b", at=1.0), member("c", at=2.0), member("d", cut=False)
    assert choose(*pool) == "bc"
    assert choose(*pool, max_open=1.0) == "abc"


def test_the_last_one_stays_on_the_word_of_requests_alone():
    assert choose(member("a")) == ""
    assert choose(member("a", at=1.0), member("b", at=2.0), max_open=1.0) == "a"


def test_whose_model_fails_too_is_out_whatever_the_share():
    assert choose(member("a", condemned=True)) == "a"
    assert choose(member("a", condemned=True), member("b", condemned=True)) == "ab"
    assert choose(member("a", condemned=True), member("b")) == "a", "and uses up the share of the others"


def test_one_that_its_own_signals_keep_out_is_theirs_to_judge_and_counts_for_no_share():
    assert choose(member("a", sound=False, condemned=True), member("b", cut=False)) == ""
    assert choose(member("a", sound=False), member("b")) == ""
    assert choose(member("a"), member("b", sound=False, cut=False)) == "", "it is the last that could serve"


MEMBERS = st.lists(
    st.builds(
        Member,
        st.sampled_from([ReplicaId(name) for name in "abcdefgh"]),
        sound=st.booleans(),
        cut=st.booleans(),
        condemned=st.booleans(),
        opened_at=st.sampled_from([0.0, 1.0, 2.0]),
    ),
    unique_by=lambda one: one.replica,
)
SHARES = st.floats(0.01, 1.0)


@given(MEMBERS, SHARES, st.randoms(use_true_random=False))
def test_the_order_of_the_members_does_not_matter(members, max_open, order: random.Random):
    shuffled = list(members)
    order.shuffle(shuffled)
    assert choose_cut(shuffled, max_open) == choose_cut(members, max_open)


@given(MEMBERS, SHARES)
def test_requests_alone_never_take_out_more_than_the_share_nor_the_last(members, max_open):
    out = choose_cut(members, max_open)
    sound = [one for one in members if one.sound]
    condemned = {one.replica for one in sound if one.cut and one.condemned}
    by_requests = {one.replica for one in sound} & out - condemned
    assert out <= {one.replica for one in members if one.cut}
    assert condemned <= out
    assert len(by_requests) <= compute_limit(len(sound), max_open)
    if len(sound) > len(condemned):
        assert {one.replica for one in sound} - out, "somebody serves"
