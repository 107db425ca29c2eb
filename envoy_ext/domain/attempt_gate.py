"""The gate of one exchange's attempts: which may start, and where.

Only `decide_retry` starts an attempt after the first, and the gate is decided for the latest attempt
alone.
"""

from typing import Final, assert_never

from envoy_ext.domain import events, records, step
from envoy_ext.domain.attempt import Attempt, AttemptState, Trigger
from envoy_ext.domain.boundaries import FORBIDDEN
from envoy_ext.domain.delivery import Delivery
from envoy_ext.domain.exchange_shared import Shared, Tried
from envoy_ext.domain.ids import AttemptId, FencingToken, PoolName, ReplicaId
from envoy_ext.domain.lease import Lease
from envoy_ext.domain.notes import (
    AttemptLetGo,
    AttemptPlaced,
    BoundaryHeld,
    FenceAwaited,
    FenceReached,
    LedgerAwaited,
    ReplayRefused,
    ReplayStarted,
)
from envoy_ext.domain.outcomes import AttemptOutcome
from envoy_ext.domain.retry import (
    LIVENESS_UNKNOWN,
    Decision,
    GiveUp,
    PreviousAttempt,
    Retry,
    RetryView,
    WaitForFence,
    decide_retry,
)
from envoy_ext.domain.tool_verdict import find_obstacle

TAKEN_OVER: Final = GiveUp("replay_not_allowed", "a later attempt has taken over")


class AttemptGate:
    """Lets attempts start or refuses them; changed only by its exchange."""

    __slots__ = ("_attempts", "_delivery", "_shared", "until")

    def __init__(self, shared: Shared, delivery: Delivery, attempts: list[Attempt]) -> None:
        self.until: float | None = None
        """When the attempt that waits here is looked at again without news."""
        self._shared = shared
        self._delivery = delivery
        self._attempts = attempts

    def receive_arrival(self, event: events.AttemptArrived, now: float) -> None:
        """An attempt asks to start."""
        shared, facts = self._shared, self._shared.request.facts
        attempt = Attempt(
            event.attempt_id,
            len(self._attempts) + 1,
            facts.family,
            facts.choices,
            shared.policy.max_event_bytes,
            arrived_at=now,
        )
        earlier = self._attempts[-1] if self._attempts else None
        waits = (AttemptState.GATED, AttemptState.CHECKING)
        if earlier is not None and earlier.state in waits and not earlier.over:
            self._refuse(earlier, TAKEN_OVER)  # the gate is decided for the latest alone
        for one in self._attempts:
            if one.lease is not None:
                one.lease.revoke(now)  # before another can be granted
        self._attempts.append(attempt)
        self.until = None
        outside = self._find_outside(event.pool)
        if outside is not None:
            self._hold_boundary(attempt, outside)
        elif attempt.number > 1:
            self.reconsider(now)
        elif self._delivery.client_waiting:
            self._start(attempt, event.steer_to, None, now)
        else:
            self._refuse(attempt, GiveUp("upstream_unavailable", "the client has gone"))

    def _find_outside(self, routed_to: PoolName | None) -> PoolName | None:
        """The pool that this attempt would reach and may not, None where all is well.

        What the exchange was let in with is not trusted to be where the hop's request goes: both must be
        inside.
        """
        identity = self._shared.identity
        asked = (identity.pool, identity.pool if routed_to is None else routed_to)
        return next((pool for pool in asked if pool not in identity.allowed_pools), None)

    def _hold_boundary(self, attempt: Attempt, outside: PoolName) -> None:
        identity = self._shared.identity
        self._shared.out.notes.append(
            BoundaryHeld(outside, identity.request_id, identity.operation_id, identity.data_class)
        )
        self._refuse(attempt, GiveUp(FORBIDDEN, "outside the boundaries of its data class"))

    def reconsider(self, now: float) -> None:
        """Decide on the attempt at the gate, if there is one: evidence has come, or time has passed."""
        attempt = self._attempts[-1] if self._attempts else None
        if attempt is None or attempt.state is not AttemptState.GATED:
            return
        if attempt.over:
            # Envoy gave it up while it waited: a start would be recorded of what cannot happen.
            self.until = None
            return
        match decision := self._decide_at_gate(attempt, now):
            case Retry():
                if self.until is not None:
                    waited_s = now - attempt.arrived_at
                    self._shared.out.notes.append(FenceReached(self._shared.identity.pool, waited_s))
                self.until = None
                self._start(attempt, decision.target, decision.reason, now)
            case WaitForFence():
                if self.until is None:
                    failover = self._shared.policy.failover
                    patience = failover.max_replay_delay_s + failover.fence_s
                    self._shared.out.replies.append(step.AskPatience(attempt.id, patience))
                    self._ask_for_proof()
                self.until = decision.until
            case GiveUp():
                self.until = None
                self._refuse(attempt, decision)
            case _:
                assert_never(decision)

    def _ask_for_proof(self) -> None:
        """Name each attempt that a replay waits for."""
        for attempt in self._attempts[:-1]:
            if attempt.lease is None or attempt.lease.proof is not None or attempt.replica is None:
                continue
            if attempt.outcome in LIVENESS_UNKNOWN or attempt.lease.renewed_at is not None:
                pool = self._shared.identity.pool
                self._shared.out.notes.append(FenceAwaited(attempt.id, pool, attempt.replica))

    def note_place(self, attempt_id: AttemptId, replica: ReplicaId) -> None:
        """It is known at which replica an attempt runs."""
        self._shared.out.notes.append(AttemptPlaced(attempt_id, self._shared.identity.pool, replica))

    def decide_next(self, now: float) -> Decision:
        """What the gate would say if one more attempt asked at this moment."""
        return self.decide(self._attempts, now, now)

    def decide(self, previous: list[Attempt], asked_at: float, now: float) -> Decision:
        """Whether one more attempt may start behind these, and where."""
        shared = self._shared
        started = [(a, a.started_at) for a in previous if a.started_at is not None]
        view = RetryView(
            now=now,
            committed=shared.released is not None,
            client_waiting=self._delivery.client_waiting,
            attempts=tuple(
                PreviousAttempt(a.outcome, a.replica, _read_fence(a, asked_at)) for a, _ in started
            ),
            prompt_tokens=shared.request.facts.prompt_tokens_estimate,
            first_started_at=started[0][1] if started else now,
            asked_at=asked_at,
            deadline=shared.deadline,
            candidates=self.find_candidates(previous),
        )
        return decide_retry(view, shared.policy.failover)

    def find_candidates(self, previous: list[Attempt]) -> tuple[events.Target, ...]:
        """Where one more attempt could go at this moment, best first."""
        placed = [
            (a.replica, a.started_at) for a in previous if a.replica is not None and a.started_at is not None
        ]
        first, at = placed[0] if placed else (None, 0.0)
        tried = frozenset(replica for replica, _ in placed)
        return self._shared.replicas.find_targets(Tried(first, at, tried))

    def _decide_at_gate(self, attempt: Attempt, now: float) -> Decision:
        released = self._shared.released
        crossed = released is not None and released.log is None and self._delivery.response_awaited
        log_due = attempt.arrived_at + self._shared.policy.failover.log_grace_s
        if crossed and now < log_due and self._delivery.client_waiting:
            # The release crossed the loss of its replica: why it was lost is on its way, for the client too.
            return WaitForFence(log_due)
        return self.decide(self._attempts[:-1], attempt.arrived_at, now)

    def receive_ledger(self, event: events.LedgerRead, now: float) -> None:
        """It is known what earlier attempts have called."""
        attempt = next((one for one in self._attempts if one.id == event.attempt_id), None)
        if attempt is None or attempt.state is not AttemptState.CHECKING:
            return
        obstacle = find_obstacle(event.calls)
        if attempt.over or not self._delivery.client_waiting:
            self._refuse(attempt, GiveUp("upstream_unavailable", "nobody waits for it any more"))
        elif obstacle is not None:
            self._shared.blocked_by = obstacle.call_id
            self._refuse(attempt, obstacle.refusal)
        else:
            self._let_go(attempt, now)

    def _start(
        self, attempt: Attempt, target: events.Target | None, reason: AttemptOutcome | None, now: float
    ) -> None:
        """Record the start, and let the attempt go: behind a look at the tool ledger where there is one."""
        shared, identity = self._shared, self._shared.identity
        attempt.recorded_at = now
        attempt.target = target
        attempt.repeats_after = reason
        started = shared.wall(now)
        shared.out.records.append(
            records.AttemptStarted(
                operation_id=identity.operation_id,
                attempt_id=attempt.id,
                number=attempt.number,
                at=started,
                replica=None if target is None else target.replica,
                lease_expires_at=started + shared.policy.lease.ttl_s,
                pool=identity.pool if shared.moved else None,
                degraded=shared.degraded if shared.degraded_later else None,
            )
        )
        if shared.policy.watches_tools and (attempt.number > 1 or identity.ledger_id is not None):
            attempt.move(Trigger.CHECK)
            ledger_id = identity.operation_id if identity.ledger_id is None else identity.ledger_id
            shared.out.notes.append(LedgerAwaited(attempt.id, ledger_id))
        else:
            self._let_go(attempt, now)

    def _let_go(self, attempt: Attempt, now: float) -> None:
        shared = self._shared
        attempt.move(Trigger.START)
        attempt.started_at = attempt.heard_at = now
        attempt.lease = Lease(
            shared.identity.operation_id, attempt.id, FencingToken(attempt.number), shared.policy.lease
        )
        shared.started_attempts += 1
        shared.learn(asked=True)
        pool, target = shared.identity.pool, attempt.target
        if attempt.repeats_after is not None and target is not None:
            shared.out.notes.append(ReplayStarted(pool, target.replica, attempt.repeats_after))
        shared.out.notes.append(AttemptLetGo(attempt.id, pool))
        if target is not None:
            attempt.replica = target.replica
            self.note_place(attempt.id, target.replica)
        shared.out.replies.append(
            step.StartAttempt(
                attempt_id=attempt.id,
                operation_id=shared.identity.operation_id,
                token=attempt.lease.token,
                lease_ttl_s=shared.policy.lease.ttl_s,
                target=attempt.target,
                keep_encoding=not (shared.request.facts.stream or shared.identity.keeps_answer),
            )
        )

    def _refuse(self, attempt: Attempt, refusal: GiveUp) -> None:
        attempt.move(Trigger.REFUSE)
        if attempt.recorded_at is not None and attempt.outcome is None:
            attempt.outcome = AttemptOutcome.REFUSED
        if attempt is self._attempts[-1]:  # of an earlier one the ingress hop hears nothing any more
            self._shared.refusal = refusal
        self._shared.out.replies.append(step.RefuseAttempt(attempt.id, refusal.code))
        if attempt.number > 1 or attempt.recorded_at is not None:
            identity = self._shared.identity
            self._shared.out.notes.append(
                ReplayRefused(identity.operation_id, identity.pool, refusal.code, refusal.detail)
            )


def _read_fence(attempt: Attempt, revoked_at: float) -> float | None:
    """What the lease of an earlier attempt tells; None where no worker has ever spoken for it."""
    lease = attempt.lease
    if lease is None or (lease.renewed_at is None and lease.proof is None):
        return None
    return lease.read_fence(revoked_at)
