"""A whole pool under random pages and failures, on a simulated clock. At every moment:

* no weight is 0, and no replica that serves is out by an order;
* a pool whose replicas once were ready is never empty by what pages say or fail to say, only by orders;
* a replica without a recent page never gets more than the least of those that have one.
"""

import math
from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import given, settings

from envoy_ext.domain.availability import Availability
from envoy_ext.domain.fleet_events import DrainRequested, Removed
from envoy_ext.domain.fleet_view import Offer
from envoy_ext.domain.replica_life import ReplicaState
from envoy_ext.domain.sample import GpuSample
from tests.support.fleet_builders import IDLE, POLICY, picture, ready_replica

S = ReplicaState
POOL_POLICY = replace(POLICY, hang_s=20.0, slow_start_s=5.0)
NUMBERS = st.none() | st.sampled_from([0.0, 0.9, 0.99, 5.0, 40.0, math.nan, -1.0])
PAGES = st.one_of(
    st.sampled_from(
        [
            "refused",
            "reset",
            "timeout",
            "unreachable",
            "starved",
            "bad_status",
            "loading",
            "unsupported",
            "too_large",
        ]
    ),
    st.just(IDLE),
    st.builds(
        replace,
        st.just(IDLE),
        running=NUMBERS,
        waiting=NUMBERS,
        kv_cache_usage=NUMBERS,
        progress=NUMBERS,
        sleeping=st.none() | st.booleans(),
        process_started_at=st.sampled_from([IDLE.process_started_at, 1_750_000_500.0]),
        gpus=st.sampled_from([(), (GpuSample("0", xid=79),), (GpuSample("0", temperature_c=99.0),)]),
    ),
)
STRETCHES = st.lists(
    st.tuples(st.fixed_dictionaries(dict.fromkeys("abc", PAGES)), st.integers(1, 40), st.booleans()),
    min_size=1,
    max_size=8,
)
ORDERS = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["drain", "remove"]), max_size=2)


class Pool:
    """Three replicas that share a clock, and the picture of them."""

    def __init__(self):
        self.replicas = {name: ready_replica(name, POOL_POLICY) for name in "abc"}
        self.view = self.take()

    def take(self):
        previous = getattr(self, "view", None)
        now = next(iter(self.replicas.values())).now
        self.view = picture(*(r.status for r in self.replicas.values()), previous=previous, now=now)
        return self.view

    def order(self, orders):
        for name, order in orders.items():
            replica = self.replicas[name]
            replica.send(Removed() if order == "remove" else DrainRequested(replica.now + 10.0))
        self.take()

    def let_pass(self, pages, answers):
        for name, page in pages.items():
            self.replicas[name].page = page
            self.replicas[name].answers_control_calls = answers
        for replica in self.replicas.values():
            replica.wait(1)
        return self.take()


@settings(max_examples=60, deadline=None)
@given(STRETCHES)
def test_pages_alone_never_empty_a_pool(stretches):
    pool = Pool()
    for pages, seconds, answers in stretches:
        for _ in range(seconds):
            view = pool.let_pass(pages, answers)
            serving = [replica for replica in view.replicas if replica.offer is Offer.SERVING]
            assert view.availability is not Availability.EMPTY
            assert serving
            check(view)


@settings(max_examples=40, deadline=None)
@given(STRETCHES, ORDERS)
def test_orders_are_kept_whatever_pages_say(stretches, orders):
    pool = Pool()
    pool.order(orders)
    for pages, seconds, answers in stretches:
        for _ in range(seconds):
            view = pool.let_pass(pages, answers)
            check(view)
            for replica in view.replicas:
                if replica.id in orders:
                    assert replica.offer is (
                        Offer.ABSENT if orders[replica.id] == "remove" else Offer.DRAINING
                    )
            assert view.availability is not Availability.EMPTY


def check(view):
    assert all(replica.weight >= 1 for replica in view.replicas)
    serving = [replica for replica in view.replicas if replica.offer is Offer.SERVING]
    ready = {replica.id for replica in view.replicas if replica.status.ready}
    if ready:
        assert {replica.id for replica in serving} == ready
    assert not any(replica.status.state in (S.DRAINING, S.GONE) for replica in serving)
    # A queue alone does not tell how full a replica is.
    known = {
        replica.id: replica.weight
        for replica in serving
        if replica.status.fresh
        and (replica.status.load.running, replica.status.load.kv_cache_usage) != (None, None)
    }
    if known:
        assert all(replica.weight <= min(known.values()) for replica in serving if replica.id not in known)


def test_all_pages_failing_at_once_changes_no_endpoint_but_its_weight():
    pool = Pool()
    for _ in range(60):
        view = pool.let_pass(dict.fromkeys("abc", "timeout"), answers=True)
        assert {replica.offer for replica in view.replicas} == {Offer.SERVING}
    assert view.availability is Availability.DEGRADED_LAST_KNOWN
    assert {replica.weight for replica in view.replicas} == {100}
    for _ in range(20):
        view = pool.let_pass(dict.fromkeys("abc", IDLE), answers=True)
        assert {replica.offer for replica in view.replicas} == {Offer.SERVING}
    assert view.availability is Availability.NORMAL


def test_traffic_follows_within_two_scrapes_after_the_hold():
    """One fills its cache, one its queue, one drains, one restarts: the fourth serves, and nobody else."""
    pool = Pool()
    pool.replicas["d"] = ready_replica("d", POOL_POLICY)
    pages = {
        "a": replace(IDLE, kv_cache_usage=0.99),
        "b": replace(IDLE, waiting=30, progress=1_001),
        "c": IDLE,
        "d": IDLE,
    }
    pool.order({"c": "drain"})
    for _ in range(int(POOL_POLICY.hold_s) + 2):
        view = pool.let_pass(pages, answers=True)
    assert [str(r.id) for r in view.replicas if r.offer is Offer.SERVING] == ["d"]
    pages["d"] = replace(IDLE, process_started_at=1_750_000_500.0)
    view = pool.let_pass(pages, answers=False)
    assert pool.replicas["d"].state is S.STARTING
    assert view.availability is Availability.DEGRADED_LAST_KNOWN
    assert [str(r.id) for r in view.replicas if r.offer is Offer.SERVING] == ["a", "b"], (
        "full is better than absent"
    )
    view = pool.let_pass(pages, answers=True)
    view = pool.let_pass(pages, answers=True)
    assert [str(r.id) for r in view.replicas if r.offer is Offer.SERVING] == ["d"]
