"""Whatever the picture and the hints: a replay goes to an untried equal that may have it, or nowhere.

Hints order the replicas; they never add one or leave one out.
"""

import hypothesis.strategies as st
from hypothesis import given

from envoy_ext.domain.availability import Availability, is_usable
from envoy_ext.domain.fingerprint import Fingerprint, are_compatible
from envoy_ext.domain.fleet_view import Offer, choose_replay_candidates
from envoy_ext.domain.ids import ReplicaId
from envoy_ext.domain.replica_life import ReplicaState
from tests.support.fleet_builders import POOL, picture, profile, status

NAMES = "abcd"
FINGERPRINTS = st.builds(
    Fingerprint,
    pool=st.just(POOL),
    weights=st.none() | st.sampled_from(["rev-1", "rev-2"]),
    quantization=st.none() | st.sampled_from(["fp8", "awq"]),
    adapters=st.none() | st.sampled_from([(), ("sql",)]),
)
REPLICAS = st.fixed_dictionaries(dict.fromkeys(NAMES, FINGERPRINTS))
STATES = st.fixed_dictionaries(
    dict.fromkeys(NAMES, st.sampled_from([*ReplicaState, *[ReplicaState.READY] * 8]))
)
SOME = st.sets(st.sampled_from(NAMES).map(ReplicaId))
SHARES = st.dictionaries(st.sampled_from(NAMES).map(ReplicaId), st.floats(0, 1))
SENT = st.dictionaries(st.sampled_from(NAMES).map(ReplicaId), st.integers(0, 50))
LOADS = st.fixed_dictionaries(dict.fromkeys(NAMES, st.integers(0, 40)))
FAILURES = st.fixed_dictionaries(dict.fromkeys(NAMES, st.sampled_from([0.0, 0.4, 1.0, 6.0])))


@given(REPLICAS, STATES, LOADS, FAILURES, FINGERPRINTS, SOME, SHARES, SENT)
def test_untried_equals_that_serve_come_first_then_those_that_may_stand_in_and_nobody_else(
    fingerprints, states, loads, failures, first, tried, shares, sent
):
    view = picture(
        *(status(name, states[name], running=loads[name], failures=failures[name]) for name in NAMES),
        profiles=[profile(name, fingerprint=fingerprints[name]) for name in NAMES],
    )
    chosen = [target.replica for target in choose_replay_candidates(view, first, tried, shares, sent)]
    equals = [
        replica
        for replica in view.replicas
        if replica.id not in tried and are_compatible(first, replica.profile.fingerprint)
    ]
    serving = {replica.id for replica in equals if replica.offer is Offer.SERVING}
    in_doubt = {
        replica.id
        for replica in equals
        if replica.offer is Offer.WITHHELD and replica.status.was_ready and is_usable(replica.status)
    }
    assert len(chosen) == len(set(chosen))
    assert set(chosen[: len(serving)]) == serving
    assert set(chosen[len(serving) :]) == (in_doubt if view.availability is not Availability.EMPTY else set())
