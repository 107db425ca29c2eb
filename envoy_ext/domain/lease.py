"""The gateway's side of a lease: until when an attempt may act, and the proof that it acts no more.

    HELD ── revoke ──> REVOKED ── proof, or the last moment has passed ──> FENCED

An attempt may publish only under a lease that its worker has renewed. The gateway answers renewals as
long as the lease is held, and remembers when it last did: no worker can believe in its lease for longer
than the time to live from there, since it counts from the moment it *sent* what was answered. So after a
revocation, the time to live and a margin for clocks of different rates are all there is to wait for.

A replica without a worker believes in nothing and is told nothing. For it the wait counts from the
revocation, which is when its connection is gone; that it has stopped by then is an assumption.

See Gray and Cheriton, "Leases" (SOSP 1989), whose terms count from the sender's side as these do.
"""

from dataclasses import dataclass
from enum import StrEnum

from envoy_ext.domain.ids import AttemptId, FencingToken, OperationId


@dataclass(frozen=True, slots=True)
class LeasePolicy:
    """The times of every lease, in seconds."""

    ttl_s: float = 6.0
    renew_s: float = 2.0
    margin_s: float = 1.0
    """With `ttl_s` it says how much faster the gateway's clock may run than a worker's:
    (ttl_s + margin_s) / ttl_s."""


class LeaseState(StrEnum):
    """Where a lease stands."""

    HELD = "held"
    REVOKED = "revoked"
    """Never renewed again; the worker may not know it yet."""
    FENCED = "fenced"
    """Its attempt publishes nothing any more."""


class FenceProof(StrEnum):
    """What fenced an attempt."""

    NEVER_STARTED = "never_started"
    """No replica was sent the request: no connection was made."""
    CANCEL_ACK = "cancel_ack"
    """The worker says that generation has stopped."""
    DEATH = "death"
    """Its process is gone: the port refuses, or a later one has taken its place."""
    ENDED = "ended"
    """Its answer came to its own end."""
    EXPIRY = "lease_expiry"


@dataclass(slots=True)
class Lease:
    """One attempt's right to act; changed only by its exchange. Times are the gateway's monotonic seconds."""

    operation_id: OperationId
    attempt_id: AttemptId
    token: FencingToken
    policy: LeasePolicy
    renewed_at: float | None = None
    """When a renewal was last granted; None when no worker has asked."""
    revoked_at: float | None = None
    proof: FenceProof | None = None

    @property
    def state(self) -> LeaseState:
        """Where it stands, as far as it was told."""
        if self.proof is not None:
            return LeaseState.FENCED
        return LeaseState.HELD if self.revoked_at is None else LeaseState.REVOKED

    def renew(self, token: FencingToken, now: float) -> bool:
        """Answer a worker that asks for more time. A refusal is final.

        Repeating one moves the end of the wait, never a worker's belief: safe, and at most a time to
        live longer.
        """
        if self.state is not LeaseState.HELD or token != self.token:
            return False
        self.renewed_at = now
        return True

    def revoke(self, now: float) -> None:
        """Grant no more. The first call counts."""
        if self.revoked_at is None:
            self.revoked_at = now

    def note_proof(self, proof: FenceProof, now: float) -> None:
        """The attempt is known to act no more. The first proof counts."""
        self.revoke(now)
        if self.proof is None:
            self.proof = proof

    def note_stopped(self, token: FencingToken, now: float) -> bool:
        """A worker says that generation has stopped; False when it speaks of another lease."""
        if token != self.token:
            return False
        self.note_proof(FenceProof.CANCEL_ACK, now)
        return True

    @property
    def expires_at(self) -> float | None:
        """The last moment at which the attempt could act; None while nobody has revoked it."""
        return None if self.revoked_at is None else self.read_fence(self.revoked_at)

    def read_fence(self, revoked_at: float) -> float:
        """From when on the attempt acts no more, were it revoked at this moment and not renewed since."""
        if self.proof is not None:
            return revoked_at
        counted_from = revoked_at if self.renewed_at is None else self.renewed_at
        return counted_from + self.policy.ttl_s + self.policy.margin_s

    def expire(self, now: float) -> None:
        """Let time pass: the end of a revoked lease is its proof."""
        expires_at = self.expires_at
        if self.proof is None and expires_at is not None and now >= expires_at:
            self.proof = FenceProof.EXPIRY

    def next_deadline(self) -> float | None:
        """When `expire` would change something; None when it would not."""
        return self.expires_at if self.state is LeaseState.REVOKED else None
