"""One lease from both of its sides, step by step."""

import pytest

from envoy_ext.domain.ids import AttemptId, FencingToken, OperationId
from envoy_ext.domain.lease import FenceProof, Lease, LeasePolicy, LeaseState
from envoy_ext.domain.worker_lease import TokenMemory, WorkerLease, WorkerLeaseState

OPERATION, ATTEMPT = OperationId("op_1"), AttemptId("att_1")
POLICY = LeasePolicy(ttl_s=6.0, renew_s=2.0, margin_s=1.0)
TOKEN, NEWER = FencingToken(1), FencingToken(2)


def build_lease() -> Lease:
    return Lease(OPERATION, ATTEMPT, TOKEN, POLICY)


def build_worker_lease(arrived_at: float = 100.0) -> WorkerLease:
    return WorkerLease(OPERATION, ATTEMPT, TOKEN, POLICY.ttl_s, POLICY.renew_s, arrived_at)


def held_worker_lease() -> WorkerLease:
    """One that was granted what it asked for at 100 s."""
    lease = build_worker_lease()
    renewal = lease.build_renewal(100.0)
    assert renewal is not None
    lease.receive_grant(renewal.number, 100.1)
    return lease


class TestGateway:
    def test_a_lease_that_nobody_revoked_has_no_end(self) -> None:
        lease = build_lease()
        assert lease.renew(TOKEN, 10.0)
        lease.expire(10_000.0)
        assert (lease.state, lease.expires_at, lease.next_deadline()) == (LeaseState.HELD, None, None)

    def test_the_wait_counts_from_the_last_renewal_that_was_granted(self) -> None:
        lease = build_lease()
        lease.renew(TOKEN, 10.0)
        lease.revoke(12.0)
        assert lease.next_deadline() == 17.0
        lease.expire(16.9)
        assert lease.state is LeaseState.REVOKED
        lease.expire(17.0)
        assert (lease.state, lease.proof) == (LeaseState.FENCED, FenceProof.EXPIRY)

    def test_a_worker_that_fell_silent_long_ago_is_fenced_at_once(self) -> None:
        lease = build_lease()
        lease.renew(TOKEN, 10.0)
        lease.revoke(30.0)
        lease.expire(30.0)
        assert lease.state is LeaseState.FENCED

    def test_without_a_worker_the_wait_counts_from_the_revocation(self) -> None:
        lease = build_lease()
        lease.revoke(30.0)
        assert lease.next_deadline() == 37.0

    def test_a_revoked_lease_is_never_renewed_and_its_wait_never_grows(self) -> None:
        lease = build_lease()
        lease.renew(TOKEN, 10.0)
        lease.revoke(11.0)
        assert not lease.renew(TOKEN, 12.0)
        lease.revoke(16.0)
        assert lease.next_deadline() == 17.0

    def test_only_the_holder_of_its_token_speaks_for_it(self) -> None:
        lease = build_lease()
        assert not lease.renew(NEWER, 10.0)
        assert not lease.note_stopped(NEWER, 10.0)
        assert lease.renewed_at is None
        assert lease.state is LeaseState.HELD

    @pytest.mark.parametrize("proof", list(FenceProof))
    def test_a_proof_ends_the_wait_at_once_and_the_first_one_stands(self, proof: FenceProof) -> None:
        lease = build_lease()
        lease.renew(TOKEN, 10.0)
        lease.note_proof(proof, 10.5)
        lease.note_proof(FenceProof.EXPIRY, 10.6)
        assert (lease.state, lease.proof, lease.next_deadline()) == (LeaseState.FENCED, proof, None)
        assert not lease.renew(TOKEN, 10.7)

    def test_a_stop_that_its_worker_acknowledges_is_a_proof(self) -> None:
        lease = build_lease()
        assert lease.note_stopped(TOKEN, 10.0)
        assert (lease.state, lease.proof) == (LeaseState.FENCED, FenceProof.CANCEL_ACK)


class TestWorker:
    def test_what_the_headers_offer_grants_nothing(self) -> None:
        lease = build_worker_lease()
        assert not lease.may_publish(100.0)
        assert lease.state is WorkerLeaseState.ASKED

    def test_a_grant_counts_from_when_its_renewal_was_sent(self) -> None:
        lease = held_worker_lease()
        assert lease.may_publish(105.9)
        assert not lease.may_publish(106.0)
        assert (lease.state, lease.lost_because) == (WorkerLeaseState.LOST, "expired")

    def test_renewals_are_sent_at_the_pace_of_the_policy(self) -> None:
        lease = held_worker_lease()
        assert lease.build_renewal(101.9) is None
        renewal = lease.build_renewal(102.0)
        assert renewal is not None
        assert (renewal.number, lease.next_deadline()) == (2, 104.0)
        lease.receive_grant(2, 102.1)
        assert lease.expires_at == 108.0

    def test_one_lost_renewal_ends_nothing(self) -> None:
        lease = held_worker_lease()
        lease.build_renewal(102.0)
        lease.build_renewal(104.0)
        lease.receive_grant(3, 104.2)
        assert lease.may_publish(109.9)

    def test_a_grant_that_comes_late_or_twice_extends_nothing(self) -> None:
        lease = held_worker_lease()
        lease.build_renewal(102.0)
        lease.build_renewal(104.0)
        lease.receive_grant(3, 104.2)
        for number in (2, 3, 1, 99):
            lease.receive_grant(number, 105.0)
        assert lease.expires_at == 110.0

    def test_a_lost_lease_never_comes_back(self) -> None:
        lease = held_worker_lease()
        lease.build_renewal(104.0)
        assert not lease.may_publish(107.0)
        lease.receive_grant(2, 107.1)
        assert not lease.may_publish(107.1)

    def test_a_grant_for_a_time_that_has_passed_is_none(self) -> None:
        lease = build_worker_lease()
        lease.build_renewal(100.0)
        lease.receive_grant(1, 106.5)
        assert not lease.may_publish(106.5)

    @pytest.mark.parametrize("end", ["refuse", "revoke", "stop"])
    def test_whatever_ends_it_nothing_is_sent_and_nothing_is_asked_for(self, end: str) -> None:
        lease = held_worker_lease()
        {
            "refuse": lease.receive_refusal,
            "revoke": lambda: lease.revoke("newer"),
            "stop": lease.note_stopped,
        }[end]()
        assert not lease.may_publish(100.2)
        assert lease.build_renewal(104.0) is None
        assert lease.next_deadline() is None

    def test_a_lease_that_is_never_granted_ends_by_itself(self) -> None:
        lease = build_worker_lease()
        lease.build_renewal(100.0)
        lease.expire(106.0)
        assert lease.state is WorkerLeaseState.LOST


class TestTokens:
    def test_an_attempt_older_than_one_seen_is_refused(self) -> None:
        tokens = TokenMemory()
        assert tokens.admit(OPERATION, NEWER)
        assert not tokens.admit(OPERATION, TOKEN)
        assert not tokens.admit(OPERATION, NEWER)
        assert tokens.admit(OPERATION, FencingToken(3))
        assert tokens.admit(OperationId("op_2"), TOKEN)

    def test_the_memory_is_bounded_and_a_refusal_counts_as_a_use(self) -> None:
        tokens = TokenMemory(limit=2)
        for name in ("op_a", "op_b"):
            tokens.admit(OperationId(name), NEWER)
        tokens.admit(OperationId("op_a"), TOKEN)
        tokens.admit(OperationId("op_c"), NEWER)
        assert not tokens.admit(OperationId("op_a"), NEWER)
        assert tokens.admit(OperationId("op_b"), TOKEN)
