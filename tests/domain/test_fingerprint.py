"""Who may answer in whose place: what is known must be equal, and not known is a matter of the pool."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envoy_ext.domain.fingerprint import (
    FIELDS,
    Fingerprint,
    are_compatible,
    compute_digest,
    describe_mix,
    list_differences,
    merge_observed,
)
from envoy_ext.domain.ids import PoolName, ReplicaId

CHAT, OTHER = PoolName("chat"), PoolName("chat-2")
FULL = Fingerprint(
    CHAT,
    model="llama-3.1-8b",
    weights="rev-1",
    quantization="fp8",
    tokenizer="tok-1",
    chat_template="tpl-1",
    attention="flash",
    kv_dtype="fp8_e5m2",
    parallel="tp=2",
    context="8192",
    adapters=("sql", "de"),
)


def another(field):
    return ("de", "sql") if field == "adapters" else "something else"


@pytest.mark.parametrize("field", FIELDS)
def test_one_known_difference_is_enough(field):
    other = replace(FULL, **{field: another(field)})
    assert not are_compatible(FULL, other)
    assert [difference.field for difference in list_differences(FULL, other)] == [field]


@pytest.mark.parametrize("field", FIELDS)
def test_what_one_side_does_not_tell_is_equal_within_a_pool_only(field):
    silent = replace(FULL, **{field: None})
    assert are_compatible(FULL, silent)
    assert not are_compatible(FULL, replace(silent, pool=OTHER))


def test_pools_that_tell_everything_alike_are_compatible():
    assert are_compatible(FULL, replace(FULL, pool=OTHER))


def test_nothing_known_is_compatible_within_a_pool_and_not_between_pools():
    assert are_compatible(Fingerprint(CHAT), Fingerprint(CHAT))
    assert not are_compatible(Fingerprint(CHAT), Fingerprint(OTHER))


def test_the_order_of_adapters_counts_and_none_loaded_is_known():
    assert not are_compatible(FULL, replace(FULL, adapters=("de", "sql")))
    assert not are_compatible(FULL, replace(FULL, adapters=()))
    assert str(list_differences(FULL, replace(FULL, adapters=()))[0]) == "adapters: [sql, de] and []"


def test_compatible_is_asked_of_pairs_for_it_does_not_carry_over():
    one, other, silent = (
        Fingerprint(CHAT, weights="rev-1"),
        Fingerprint(CHAT, weights="rev-2"),
        Fingerprint(CHAT),
    )
    assert are_compatible(one, silent)
    assert are_compatible(silent, other)
    assert not are_compatible(one, other)


VALUES = st.none() | st.sampled_from(["x", "y"])
FINGERPRINTS = st.builds(
    Fingerprint,
    pool=st.sampled_from([CHAT, OTHER]),
    adapters=st.none() | st.sampled_from([(), ("x",), ("x", "y")]),
    **{field: VALUES for field in FIELDS if field != "adapters"},
)


@given(FINGERPRINTS, FINGERPRINTS)
def test_it_is_asked_in_either_direction(left, right):
    assert are_compatible(left, right) == are_compatible(right, left)


@given(FINGERPRINTS, st.sampled_from(FIELDS))
def test_within_a_pool_silence_never_speaks_against_a_replica(fingerprint, field):
    assert are_compatible(fingerprint, replace(fingerprint, **{field: None}))


def test_what_the_engine_tells_is_believed_and_a_contradiction_is_reported():
    declared = Fingerprint(CHAT, weights="rev-1", kv_dtype="fp8")
    told = Fingerprint(CHAT, weights="rev-2", adapters=("sql",))
    merged, contradictions = merge_observed(declared, told)
    assert merged == Fingerprint(CHAT, weights="rev-2", kv_dtype="fp8", adapters=("sql",))
    assert [str(contradiction) for contradiction in contradictions] == ["weights: rev-1 and rev-2"]


@given(FINGERPRINTS, FINGERPRINTS)
def test_a_digest_names_what_is_known_and_nothing_else(left, right):
    same = replace(left, pool=CHAT) == replace(right, pool=CHAT)
    assert (compute_digest(left) == compute_digest(right)) is same


def test_a_digest_is_the_same_in_every_process_and_empty_when_nothing_is_known():
    assert compute_digest(Fingerprint(CHAT)) == ""
    assert compute_digest(FULL) == "6fccea9aebf2"
    assert compute_digest(replace(FULL, adapters=())) != compute_digest(replace(FULL, adapters=None))


def test_a_mixed_pool_is_described_field_by_field():
    a, b, c, d = map(ReplicaId, "abcd")
    mix = describe_mix(
        {
            c: replace(FULL, weights="rev-2"),
            a: FULL,
            b: FULL,
            d: replace(FULL, weights=None, adapters=()),
        }
    )
    assert mix == ("weights: rev-1 on a, b; rev-2 on c", "adapters: [] on d; [sql, de] on a, b, c")


def test_a_pool_of_one_kind_or_of_silent_replicas_is_not_mixed():
    a, b = ReplicaId("a"), ReplicaId("b")
    assert describe_mix({}) == ()
    assert describe_mix({a: FULL, b: Fingerprint(CHAT)}) == ()


def test_thousands_of_adapters_are_one_short_line_and_one_that_differs_still_shows():
    a, b = ReplicaId("a"), ReplicaId("b")
    many = tuple(f"adapter-{number}" for number in range(5_000))
    (line,) = describe_mix(
        {a: replace(FULL, adapters=many), b: replace(FULL, adapters=(*many[:-1], "adapter-x"))}
    )
    assert "adapter-15 and 4984 more, " in line
    assert len(line) < 1_000
    left, right = line.removeprefix("adapters: ").split("; ")
    assert left.removesuffix(" on a") != right.removesuffix(" on b")
    assert describe_mix({a: replace(FULL, adapters=many), b: replace(FULL, adapters=many)}) == ()
