"""The attempts of one exchange behind the gate: which answer is released, what a lost one means.

Only the latest attempt is ever released, once, and only while the client is waiting; its release is
the commit, so `FirstDeltaSent` is a record of the same step.
"""

from typing import assert_never

from envoy_ext.domain import ending, events, records, step
from envoy_ext.domain.api import NOT_COMPUTED
from envoy_ext.domain.attempt import Attempt, AttemptState, Judgement, Trigger
from envoy_ext.domain.attempt_gate import TAKEN_OVER, AttemptGate
from envoy_ext.domain.attempt_outcomes import (
    REASON_OF_OUTCOME,
    read_acts_until,
    read_released_outcome,
)
from envoy_ext.domain.delivery import Delivery
from envoy_ext.domain.errors import ImpossibleEvent
from envoy_ext.domain.exchange_shared import Shared
from envoy_ext.domain.ids import AttemptId, FencingToken, ReplicaId
from envoy_ext.domain.inspection import BodyKind
from envoy_ext.domain.lease import FenceProof
from envoy_ext.domain.notes import AttemptFinished, AttemptProved, FirstDelta
from envoy_ext.domain.outcomes import AttemptOutcome, Phase, Reason
from envoy_ext.domain.places import RanAt
from envoy_ext.domain.retry import GiveUp


class AttemptSide:
    """All attempts of an exchange; changed only by it."""

    __slots__ = ("_delivery", "_gate", "_shared", "attempts")

    def __init__(
        self, shared: Shared, delivery: Delivery, gate: AttemptGate, attempts: list[Attempt]
    ) -> None:
        self.attempts = attempts
        self._gate = gate
        self._shared = shared
        self._delivery = delivery

    # --- hold ---------------------------------------------------------------------------------

    def receive_answer(self, event: events.AttemptAnswered, now: float) -> None:
        """A replica's response headers have come."""
        attempt = self.find(event.attempt_id)
        if attempt.state is not AttemptState.STARTED or attempt.over:
            return
        attempt.move(Trigger.ANSWER)
        attempt.first_byte_at = attempt.heard_at = now
        if event.replica is not None:
            self._gate.note_place(attempt.id, event.replica)
        if self._superseded(attempt):
            self._withhold(attempt, TAKEN_OVER)
            return
        if not self._may_answer(attempt, event.replica):
            attempt.outcome = AttemptOutcome.MISROUTED
            attempt.detail = "answered by a replica that may not answer"
            self._fail(attempt, now)
            return
        self._act(attempt, attempt.judge_answer(event), now)
        self._ask_patience(attempt)

    def _may_answer(self, attempt: Attempt, replica: ReplicaId | None) -> bool:
        """The cluster's fallback policy may pick any host when the named one is gone."""
        others = [one for one in self.attempts if one is not attempt]
        if replica is None or any(one.replica == replica for one in others):
            return False
        if attempt.target is None or attempt.number == 1 or replica == attempt.target.replica:
            return True
        return any(target.replica == replica for target in self._gate.find_candidates(others))

    def receive_loss(self, event: events.AttemptUnanswered, now: float) -> None:
        """Envoy answers in the replica's place. The gate decides on a replay, when the next attempt asks."""
        attempt = self.find(event.attempt_id)
        if attempt.state is not AttemptState.STARTED:
            return
        attempt.detail = event.detail
        self._lose(attempt, event, now)
        self._shared.out.replies.append(step.PassLocalReply(attempt.id))

    def receive_unconfirmed(self, event: events.AttemptUnconfirmed, now: float) -> None:
        """Nobody is there, and Envoy would wait on: it is made to let go, and may ask for a replay."""
        attempt = self.find(event.attempt_id)
        if attempt.state is not AttemptState.STARTED or attempt.over:
            return
        attempt.detail = "what was sent is not confirmed"
        self._lose(attempt, event, now)
        outcome = attempt.outcome or AttemptOutcome.UNKNOWN
        self._shared.out.replies.append(step.FailOver(attempt.id, outcome))

    def _lose(
        self, attempt: Attempt, event: events.AttemptUnanswered | events.AttemptUnconfirmed, now: float
    ) -> None:
        attempt.move(Trigger.LOSE)
        self._note_cause(attempt, event.cause, now)
        attempt.address = event.address
        if attempt.replica is None:
            attempt.replica = event.replica
        self.record_end(attempt, now)
        self._gate.reconsider(now)

    def receive_body(self, event: events.AttemptBody, now: float) -> None:
        """Bytes of a held answer have come."""
        attempt = self.find(event.attempt_id)
        attempt.heard_at = now
        if attempt.holding and not attempt.over:
            # The log may overtake the last bytes of a lost attempt: a release would reach nobody and
            # forbid the replay that Envoy is about to ask for.
            self._act(attempt, attempt.judge_body(event), now)
            self._ask_patience(attempt)

    def _ask_patience(self, attempt: Attempt) -> None:
        """For each message that is held: with every one that it sends, Envoy's time begins anew."""
        if attempt.holding:
            self._shared.out.replies.append(step.AskPatience(attempt.id, self._shared.policy.hold_limit_s))

    def _act(self, attempt: Attempt, judgement: Judgement, now: float) -> None:
        match judgement:
            case Judgement.KEEP_HOLDING:
                return
            case Judgement.COMMIT:
                self._release(attempt, now, has_answer=True)
            case Judgement.PASS_ERROR:
                self._release(attempt, now, has_answer=False)
            case Judgement.FAILED:
                self._fail(attempt, now)
            case _:
                assert_never(judgement)

    def _release(self, attempt: Attempt, now: float, *, has_answer: bool) -> None:
        shared = self._shared
        if self._superseded(attempt) or not self._delivery.client_waiting:
            self._withhold(attempt, GiveUp("replay_not_allowed", "another attempt or nobody is waiting"))
            return
        attempt.move(Trigger.RELEASE)
        shared.released = attempt
        shared.learn(released=True, client_error=not has_answer)
        if has_answer and not attempt.headers_only:
            shared.out.records.append(
                records.FirstDeltaSent(
                    shared.identity.operation_id, attempt.id, shared.wall(now), attempt.replica
                )
            )
            shared.out.notes.append(self._build_first_delta(attempt, now))
        shared.enter(Phase.DECODE)
        shared.out.replies.append(step.ReleaseAttempt(attempt.id))

    def _build_first_delta(self, attempt: Attempt, now: float) -> FirstDelta:
        streamed = attempt.kind in (BodyKind.SSE, BodyKind.NDJSON) and attempt.started_at is not None
        return FirstDelta(
            self._shared.identity.pool,
            ttft_s=now - self._shared.opened_at,
            replica=attempt.replica,
            attempt_s=now - (attempt.started_at or now) if streamed else None,
        )

    def _fail(self, attempt: Attempt, now: float) -> None:
        """A held answer must not go on: have it replayed, or refuse for good."""
        superseded = self._superseded(attempt)
        decision = self._gate.decide(self.attempts, now, now)
        if superseded:
            self._withhold(attempt, TAKEN_OVER)
        elif not isinstance(decision, GiveUp):
            attempt.move(Trigger.FAIL_OVER)
            outcome = attempt.outcome or AttemptOutcome.UNKNOWN
            self._shared.out.replies.append(step.FailOver(attempt.id, outcome))
        elif attempt.status == 429:
            # Busy is the replica's own word and carries its own Retry-After: it goes on as it is.
            self._release(attempt, now, has_answer=False)
        else:
            self._withhold(attempt, decision)

    def _withhold(self, attempt: Attempt, refusal: GiveUp) -> None:
        attempt.move(Trigger.WITHHOLD)
        if attempt is self.attempts[-1]:  # of an earlier one the ingress hop hears nothing any more
            self._shared.refusal = refusal
        self._shared.out.replies.append(step.WithholdAnswer(attempt.id, refusal.code))

    def _superseded(self, attempt: Attempt) -> bool:
        return self._shared.released is not None or attempt is not self.attempts[-1]

    def receive_progress(self, event: events.AttemptProgressed) -> None:
        """The egress hop has told how much of an answer has left it."""
        attempt = self.find(event.attempt_id)
        if attempt.log is None:
            attempt.left_bytes = event.body_bytes

    # --- ends ---------------------------------------------------------------------------------

    def receive_log(self, event: events.AttemptLogged, now: float) -> None:
        """The egress hop has told how an attempt ended; a second entry changes nothing."""
        attempt = self.find(event.attempt_id)
        if attempt.log is not None:
            return
        attempt.note_log(event)
        if attempt is self._shared.released:
            self._shared.learn(attempt_cause=event.cause)
        else:
            self._note_cause(attempt, event.cause, now)
            self.record_end(attempt, now)
        self._gate.reconsider(now)

    def renew(self, attempt_id: AttemptId, token: FencingToken, now: float) -> bool:
        """Answer the worker of an attempt that asks for more time: while it is wanted, and not revoked by a
        later one."""
        attempt = self.find(attempt_id)
        lease = attempt.lease
        if lease is None:
            return False
        if not self._delivery.client_waiting or attempt.log is not None:
            lease.revoke(now)
        return lease.renew(token, now)

    def read_silence(self, attempt_id: AttemptId, now: float) -> float:
        """For how many seconds nothing has come of an attempt; 0 for one whose answer passes unseen."""
        attempt = self.find(attempt_id)
        if attempt.heard_at is None or attempt is self._shared.released:
            return 0.0
        return now - attempt.heard_at

    def read_wait(self, attempt_id: AttemptId, now: float) -> float | None:
        """For how many seconds an attempt has waited for its answer's first word; None if it does not."""
        attempt = self.find(attempt_id)
        if attempt.state is not AttemptState.STARTED or attempt.over or attempt.started_at is None:
            return None
        return now - attempt.started_at

    def find_place(self, attempt_id: AttemptId) -> RanAt | None:
        """Where an attempt runs, or ran; None for one that was never let go."""
        attempt = self.find(attempt_id)
        return None if attempt.started_at is None else RanAt(attempt.address, attempt.started_at)

    def receive_stop(self, event: events.AttemptStopped, now: float) -> None:
        """A worker says that an attempt has stopped: whatever waits for its fence waits no more."""
        lease = self.find(event.attempt_id).lease
        if lease is not None and lease.note_stopped(event.token, now):
            self._tell_proof(event.attempt_id, FenceProof.CANCEL_ACK)
            self._gate.reconsider(now)

    def receive_fence(self, event: events.AttemptFenced, now: float) -> None:
        """An attempt is proved to act no more."""
        lease = self.find(event.attempt_id).lease
        if lease is not None:
            lease.note_proof(event.proof, now)
            self._tell_proof(event.attempt_id, event.proof)
            self._gate.reconsider(now)

    def _tell_proof(self, attempt_id: AttemptId, proof: FenceProof) -> None:
        self._shared.out.notes.append(AttemptProved(attempt_id, self._shared.identity.pool, proof))

    def note_lost(self, cause: events.LogCause | None, now: float) -> None:
        """The ingress hop was given Envoy's own answer in place of the last attempt's."""
        attempt = next((one for one in reversed(self.attempts) if one.started_at is not None), None)
        if attempt is not None and cause is not None:
            self._note_cause(attempt, cause, now)

    def _note_cause(self, attempt: Attempt, cause: events.LogCause, now: float) -> None:
        """Envoy's word on how an attempt ended: the first word on it stands, and one that nobody was sent
        is fenced by that. A worker that has renewed was sent it, whatever is said."""
        attempt.cause = attempt.cause or cause
        if attempt.outcome is None:
            attempt.outcome = ending.read_outcome(cause)
        lease = attempt.lease
        if cause in events.NEVER_SENT and lease is not None and lease.renewed_at is None:
            lease.note_proof(FenceProof.NEVER_STARTED, now)

    def receive_close(self, event: events.AttemptClosed, now: float) -> None:
        """An attempt's stream is over."""
        attempt = self.find(event.attempt_id)
        attempt.stream_closed = True
        if attempt.state is AttemptState.GATED:
            self._gate.reconsider(now)

    def record_refusals(self, now: float) -> None:
        """Record the end of each attempt whose start is recorded, and which was refused after that."""
        for attempt in self.attempts:
            if attempt.state is AttemptState.REFUSED:
                self.record_end(attempt, now)

    def record_end(self, attempt: Attempt, now: float) -> None:
        """Record how an attempt ended, once."""
        if attempt.end_recorded or attempt.recorded_at is None:
            return
        attempt.end_recorded = True
        if attempt.outcome is None:
            released = attempt is self._shared.released
            attempt.outcome = AttemptOutcome.UNKNOWN
            if released:
                attempt.outcome = read_released_outcome(self._shared, attempt)
        shared = self._shared
        first_byte = None if attempt.first_byte_at is None else shared.wall(attempt.first_byte_at)
        shared.out.records.append(
            records.AttemptEnded(
                operation_id=shared.identity.operation_id,
                attempt_id=attempt.id,
                at=shared.wall(now),
                outcome=attempt.outcome,
                replica=attempt.replica,
                first_byte_at=first_byte,
                detail=attempt.detail,
            )
        )
        shared.out.notes.append(
            AttemptFinished(
                operation_id=shared.identity.operation_id,
                attempt_id=attempt.id,
                pool=shared.identity.pool,
                replica=attempt.replica,
                outcome=attempt.outcome,
                detail=attempt.detail,
                acts_until=read_acts_until(attempt, now),
                cause=attempt.cause,
                answered=attempt is shared.released and not shared.evidence.client_error,
                computes=shared.request.facts.family not in NOT_COMPUTED,
            )
        )

    def abandon(self) -> None:
        """The journal failed: take back what was decided and not yet sent."""
        for attempt in self.attempts:
            if attempt.over:
                continue
            if attempt.state is AttemptState.RELEASED:
                self._shared.out.replies.append(step.WithholdAnswer(attempt.id, "upstream_unavailable"))
            elif attempt.state in (AttemptState.STARTED, AttemptState.CHECKING):
                self._shared.out.replies.append(step.RefuseAttempt(attempt.id, "upstream_unavailable"))
            else:
                continue
            if attempt.outcome is None:
                attempt.outcome = AttemptOutcome.CANCELLED

    def read_failure_reason(self) -> Reason | None:
        """Why the last attempt that was started gave nothing."""
        for attempt in reversed(self.attempts):
            if attempt.started_at is not None:
                outcome = attempt.outcome
                if outcome is None and attempt.log is not None:
                    outcome = ending.read_outcome(attempt.log.cause)
                return REASON_OF_OUTCOME.get(outcome)
        return None

    def find_revision(self) -> str | None:
        """What the replica served whose answer was released, as far as it is known without that answer."""
        released = self._shared.released
        if released is None or released.replica is None or released.started_at is None:
            return None
        return self._shared.replicas.find_revision(released.replica, released.started_at)

    def read_last_cause(self) -> events.LogCause | None:
        """The log's word on the last attempt, if it was still under way with the replica."""
        attempt = self.attempts[-1] if self.attempts else None
        if attempt is None or attempt.log is None:
            return None
        under_way = attempt.state in (AttemptState.STARTED, AttemptState.HOLDING)
        return attempt.log.cause if under_way else None

    def find(self, attempt_id: AttemptId) -> Attempt:
        """The attempt with this id."""
        for attempt in self.attempts:
            if attempt.id == attempt_id:
                return attempt
        raise ImpossibleEvent("an event of an attempt that never arrived")
