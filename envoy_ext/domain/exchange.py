"""One HTTP request through the ingress, over all its attempts: the place where both hops meet.

Three kinds of small machine touch here: the client's side (`delivery.TRANSITIONS`), one machine
for each attempt (`attempt.TRANSITIONS`), and the ending, which is not a state but a function of
evidence (`ending.resolve`). This file holds what couples them:

* A released attempt that breaks is cut off with one typed event (client side), once the delivery
  filter has passed every byte that the egress hop logged (attempt side).
* An answer that Envoy may not replay any more, or that the gate refused, becomes the client's error.
* The operation's end is recorded in the step that lets its last bytes out, or when the logs have
  told, or when the time for them is up.

`receive` and `expire` never raise for anything that Envoy, a replica or a client does.
"""

from typing import Final, assert_never

from envoy_ext.domain import ending, events, records, step
from envoy_ext.domain.api import NOT_COMPUTED
from envoy_ext.domain.attempt import Attempt
from envoy_ext.domain.attempt_gate import AttemptGate
from envoy_ext.domain.attempt_side import AttemptSide
from envoy_ext.domain.client_errors import NOT_RECORDABLE
from envoy_ext.domain.client_side import ClientSide
from envoy_ext.domain.delivery import Delivery, DeliveryState
from envoy_ext.domain.errors import ImpossibleEvent
from envoy_ext.domain.exchange_shared import ExchangePolicy, Identity, Replicas, Shared
from envoy_ext.domain.ids import AttemptId, FencingToken
from envoy_ext.domain.notes import (
    ExchangeEnded,
    MalformedEvents,
    ReplayRefused,
    RequestDegraded,
    WentUnrecorded,
)
from envoy_ext.domain.outcomes import Phase, Reason
from envoy_ext.domain.places import RanAt
from envoy_ext.domain.retry import GiveUp
from envoy_ext.domain.stepping_down import answer, build_begun, move

QUEUE_WORD_S: Final = 5.0
"""How long the queue's last word may take to reach Envoy, beyond the longest wait."""


class Exchange:
    """The delivery state machine. Not thread-safe: one owner feeds it events, one at a time."""

    __slots__ = ("_attempts", "_client", "_delivery", "_gate", "_settle_at", "_settled", "_shared")

    def __init__(
        self,
        identity: Identity,
        request: events.RequestArrived,
        policy: ExchangePolicy,
        replicas: Replicas,
        now: float,
        wall: float,
    ) -> None:
        deadline = None if request.deadline_s is None else now + request.deadline_s
        self._shared = Shared(identity, request, policy, now, wall, deadline, replicas)
        self._delivery = Delivery(request.facts.family, request.facts.choices, policy.max_event_bytes)
        self._client = ClientSide(self._shared, self._delivery)
        attempts: list[Attempt] = []
        self._gate = AttemptGate(self._shared, self._delivery, attempts)
        self._attempts = AttemptSide(self._shared, self._delivery, self._gate, attempts)
        self._settle_at: float | None = None
        self._settled = False

    def open(self, now: float) -> step.Step:
        """Begin: record the operation, then let the request go on."""
        self._shared.out.records.append(build_begun(self._shared, now))
        self._forward()
        return self._shared.out.take()

    def open_queued(self, now: float, until: float) -> step.Step:
        """Begin with a wait for a slot, until this time at the longest; the queue tells when it is over.

        The operation has begun all the same: a repeat under its key is told that it is in progress.
        """
        self._shared.out.records.append(build_begun(self._shared, now))
        self._delivery.queue()
        self._shared.enter(Phase.QUEUED)
        self._shared.out.replies.append(step.HoldRequest(until - now + QUEUE_WORD_S))
        return self._shared.out.take()

    def _forward(self) -> None:
        identity, shared = self.identity, self._shared
        self._delivery.forward()
        shared.enter(Phase.PREFILL)
        if shared.degraded:
            shared.out.notes.append(RequestDegraded(identity.pool, shared.degraded))
        body = shared.request.changed_body
        shared.out.replies.append(
            step.ForwardRequest(identity.exchange_id, identity.operation_id, identity.pool, body)
        )
        shared.drop_body()  # Envoy has it now, and keeps it for a replay

    def receive(self, event: events.Event, now: float) -> step.Step:
        """Take in one event; all that follows from it."""
        match event:
            case events.ResponseBody():
                self._client.receive_body(event, now)
            case events.AttemptBody():
                self._attempts.receive_body(event, now)
            case events.ResponseStarted():
                self._receive_response(event, now)
            case events.AttemptArrived():
                self._gate.receive_arrival(event, now)
                self._attempts.record_refusals(now)
            case events.LedgerRead():
                self._gate.receive_ledger(event, now)
                self._attempts.record_refusals(now)
            case events.AttemptAnswered():
                self._attempts.receive_answer(event, now)
            case events.AttemptUnanswered():
                self._attempts.receive_loss(event, now)
            case events.AttemptUnconfirmed():
                self._attempts.receive_unconfirmed(event, now)
            case events.AttemptLogged():
                self._receive_attempt_log(event, now)
            case events.AttemptClosed():
                self._attempts.receive_close(event, now)
            case events.AttemptStopped():
                self._attempts.receive_stop(event, now)
            case events.AttemptFenced():
                self._attempts.receive_fence(event, now)
            case events.AttemptProgressed():
                self._attempts.receive_progress(event)
            case events.ExchangeProgressed():
                self._client.receive_progress(event, now)
            case events.ExchangeLogged():
                if self._shared.evidence.exchange_cause is None:
                    self._shared.learn(exchange_cause=event.cause)
            case events.DeliveryClosed():
                self._receive_closed(now)
            case events.RequestAdmitted():
                if self.waits_for_slot:
                    self._forward()
            case events.RequestShed():
                if self.waits_for_slot:
                    self._client.respond(event.code, _read_reason(event), retry_after_s=event.retry_after_s)
            case events.RequestMoved():
                if self.waits_for_slot:
                    move(self._shared, event)
            case events.AnsweredHere():
                if self.waits_for_slot:
                    answer(self._shared, self._client, event)
            case events.DrainExpired():
                self._client.stop("draining", Reason.DRAIN_DEADLINE)
            case events.JournalFailed():
                self._receive_journal_failure()
            case events.RecordingLost():
                self._receive_recording_loss()
            case events.OwnershipLost():
                self._receive_ownership_loss(event)
            case events.BeginRefused():
                if self._delivery.client_waiting:
                    self._client.respond("operation_in_progress", None, operation_id=event.holder)
            case events.RequestArrived():
                raise ImpossibleEvent("a request arrives once, at construction")
            case _:
                assert_never(event)
        self._conclude(now)
        return self._shared.out.take()

    def pass_chunk(self, data: bytes) -> bytes | None:
        """The way of nearly every chunk: what `receive` would forward of it, when nothing else can follow.

        In mid-answer a chunk brings no evidence of an end and moves no deadline. None, with nothing changed,
        where it may: before the answer is open, behind its end, and while a broken one waits to be cut.
        """
        delivery = self._delivery
        if delivery.state is not DeliveryState.RESPONDING or self._client.inject_at is not None:
            return None
        return data if delivery.pass_alike(data) else delivery.take(data)

    def renew(self, attempt_id: AttemptId, token: FencingToken, now: float) -> bool:
        """Whether the worker of an attempt may go on for another time to live. A refusal is final."""
        return self._attempts.renew(attempt_id, token, now)

    def read_silence(self, attempt_id: AttemptId, now: float) -> float:
        """For how many seconds nothing has come of an attempt, as far as a replay could follow it."""
        return self._attempts.read_silence(attempt_id, now)

    def read_wait(self, attempt_id: AttemptId, now: float) -> float | None:
        """For how many seconds an attempt has waited for its answer's first word; None if it does not."""
        return self._attempts.read_wait(attempt_id, now)

    def find_place(self, attempt_id: AttemptId) -> RanAt | None:
        """Where an attempt ran, which a proof of its death must speak of; None for one never let go."""
        return self._attempts.find_place(attempt_id)

    def next_deadline(self) -> float | None:
        """When `expire` wants to be called, None while nothing is waited for."""
        due = self._open_deadline
        for wait in (self._gate.until, self._client.inject_at, self._settle_at):
            if wait is not None and (due is None or wait < due):
                due = wait
        return due

    def expire(self, now: float) -> step.Step:
        """Time has passed; do what was waiting for it."""
        deadline = self._open_deadline
        if deadline is not None and now >= deadline:
            self._client.stop("deadline_exceeded", Reason.DEADLINE)
        gate_until = self._gate.until
        if gate_until is not None and now >= gate_until:
            self._gate.reconsider(now)
        inject_at = self._client.inject_at
        if inject_at is not None and now >= inject_at:
            self._client.cut_if_due(now)
            self._client.inject_at = None
        if self._settle_at is not None and now >= self._settle_at:
            self._settle(now)
        self._conclude(now)
        return self._shared.out.take()

    @property
    def identity(self) -> Identity:
        """Who and what this exchange is for."""
        return self._shared.identity

    @property
    def computes(self) -> bool:
        """Whether a model has to compute something for it."""
        return self._shared.request.facts.family not in NOT_COMPUTED

    @property
    def may_be_replayed(self) -> bool:
        """Whether the policy would let its first attempt be followed by another."""
        failover = self._shared.policy.failover
        short = self._shared.request.facts.prompt_tokens_estimate <= failover.max_replay_prompt_tokens
        return failover.replay and failover.max_attempts > 1 and short

    @property
    def resolution(self) -> ending.Resolution | None:
        """How it ended, None while that is open."""
        return self._shared.resolution

    @property
    def committed(self) -> bool:
        """Whether the first downstream write is behind us."""
        return self._shared.released is not None

    @property
    def partly_delivered(self) -> bool:
        """Whether a part of an answer has been let out to the client."""
        return self._delivery.first_delta_passed

    @property
    def last_word_said(self) -> bool:
        """Whether the client has been sent the stream's own end."""
        return self._delivery.last_word_said

    @property
    def held_up(self) -> bool:
        """Whether something of the released answer is still on its way to the sidecar: the ingress hop does
        not read on while its buffer for the client is full."""
        released = self._shared.released
        return released is not None and released.left_bytes > self._delivery.received_bytes

    @property
    def released_attempt(self) -> AttemptId | None:
        """The attempt whose bytes the client gets."""
        return self._shared.released.id if self._shared.released is not None else None

    @property
    def waits_for_fence(self) -> bool:
        """Whether a replay stands at the gate until an earlier attempt can act no more."""
        return self._gate.until is not None

    @property
    def finished(self) -> bool:
        """Whether nothing that can still arrive would change anything: the owner may forget it."""
        if not self._delivery.closed or self._shared.resolution is None:
            return False
        if self._settled:
            return True
        logged = self._shared.evidence.exchange_cause is not None
        return logged and all(attempt.settled for attempt in self._attempts.attempts)

    def __repr__(self) -> str:
        attempts = " ".join(f"{a.number}:{a.state}" for a in self._attempts.attempts)
        end = self.resolution.ending if self.resolution else "open"
        return f"<Exchange {self.identity.operation_id} {self._delivery.state} [{attempts}] {end}>"

    @property
    def waits_for_slot(self) -> bool:
        """Whether no replica has been asked, and the client waits for its pool's queue."""
        return self._delivery.state is DeliveryState.QUEUED and self._delivery.client_waiting

    # --- where the two sides meet -------------------------------------------------------------

    def _receive_response(self, event: events.ResponseStarted, now: float) -> None:
        if self._delivery.state is not DeliveryState.FORWARDED:
            return
        failed = event.refusal is not None or event.replay_mark
        if failed or (event.status >= 500 and self._shared.released is None):
            self._attempts.note_lost(event.lost, now)
            self._client.respond(self._read_failure_code(event, now), self._attempts.read_failure_reason())
            return
        self._client.receive_headers(event)
        self._note_break(now)

    def _read_failure_code(self, event: events.ResponseStarted, now: float) -> str:
        """Which of the contract's codes tells the client why it gets no answer."""
        if self._shared.released is not None:
            # The release crossed the loss of the replica. Nothing was delivered, and the journal says that
            # a first delta was about to be: that forbids a replay, and is no reason to call it forbidden.
            return "upstream_unavailable"
        if event.refusal is not None:
            return self._shared.refusal.code if self._shared.refusal is not None else "upstream_unavailable"
        if not event.replay_mark:
            return "upstream_unavailable"
        decision = self._gate.decide_next(now)
        if isinstance(decision, GiveUp):
            return decision.code
        # We would have let it start and Envoy did not ask: its budget for retries is used up.
        code, own = "retry_budget_exhausted", self.identity
        why = "Envoy did not ask for it: as many run as retry_budget allows"
        self._shared.out.notes.append(ReplayRefused(own.operation_id, own.pool, code, why))
        return code

    def _receive_attempt_log(self, event: events.AttemptLogged, now: float) -> None:
        self._attempts.receive_log(event, now)
        self._note_break(now)

    def _note_break(self, now: float) -> None:
        """Cut the client's stream off if its replica broke; asked when either side has news of it."""
        released = self._shared.released
        log = released.log if released is not None else None
        answering = self._delivery.answering and not self._delivery.closed
        if log is not None and log.cause in ending.BROKE and answering and self._client.inject_at is None:
            self._client.note_break(now)

    def _receive_closed(self, now: float) -> None:
        if self._delivery.closed:
            return
        if self.waits_for_slot:
            # Nobody but its client can have ended it, and Envoy logs it without our name for it.
            self._shared.learn(exchange_cause=events.LogCause.DOWNSTREAM_GONE)
        self._shared.learn(closed=True, last_word=self._delivery.last_word)
        self._delivery.closed = True
        self._client.inject_at = None
        self._settle_at = now + self._shared.policy.settle_s
        self._gate.reconsider(now)
        self._shared.enter(None)

    def _receive_journal_failure(self) -> None:
        if self._delivery.answering:
            return
        self._attempts.abandon()
        if self._delivery.client_waiting:
            self._client.respond("upstream_unavailable", None, NOT_RECORDABLE)

    def _receive_recording_loss(self) -> None:
        if self._shared.recorded:
            self._shared.recorded = False
            self._shared.out.notes.append(WentUnrecorded(self._shared.identity.pool))

    def _receive_ownership_loss(self, event: events.OwnershipLost) -> None:
        if event.refused:
            self._attempts.abandon()
        self._client.stop("upstream_unavailable", Reason.TAKEN_OVER)

    # --- ending -------------------------------------------------------------------------------

    @property
    def _open_deadline(self) -> float | None:
        return self._shared.deadline if self._delivery.client_waiting else None

    def _conclude(self, now: float) -> None:
        shared = self._shared
        if shared.resolution is None and shared.learned:
            shared.learned = False
            resolution = ending.resolve(shared.evidence)
            if resolution is not None:
                self._end(resolution, now)
        released = shared.released
        if shared.resolution is not None and released is not None and released.log is not None:
            self._attempts.record_end(released, now)

    def _settle(self, now: float) -> None:
        self._settle_at = None
        self._settled = True
        if self._shared.released is None:
            self._shared.learn(attempt_cause=self._attempts.read_last_cause())
        if self._shared.resolution is None:
            self._end(ending.resolve_at_deadline(self._shared.evidence), now)
        for attempt in self._attempts.attempts:
            self._attempts.record_end(attempt, now)

    def _end(self, resolution: ending.Resolution, now: float) -> None:
        shared, delivery, identity = self._shared, self._delivery, self._shared.identity
        shared.resolution = resolution
        state, phase = ending.read_state(resolution, shared.evidence)
        code = self._client.error.code if self._client.error is not None else self._client.spared_code
        shared.out.records.append(
            records.OperationEnded(
                operation_id=identity.operation_id,
                at=shared.wall(now),
                ending=resolution.ending,
                state=state,
                phase=phase,
                reason=resolution.reason,
                error_code=code,
                status=delivery.status,
                delivered_deltas=delivery.deltas,
                delivered_output_tokens=delivery.output_tokens,
                delivered_bytes=delivery.released_bytes,
                model_revision=delivery.model_revision or self._attempts.find_revision(),
                tool_call_id=shared.blocked_by,
                degraded=shared.degraded if self._client.spared_code is not None else None,
            )
        )
        shared.enter(None)
        if delivery.malformed_events:
            shared.out.notes.append(MalformedEvents(identity.pool, delivery.malformed_events))
        shared.out.notes.append(
            ExchangeEnded(
                operation_id=identity.operation_id,
                request_id=identity.request_id,
                pool=identity.pool,
                ending=resolution.ending,
                reason=resolution.reason,
                code=code,
                attempts=shared.started_attempts,
                delivered_deltas=delivery.deltas,
                duration_s=now - shared.opened_at,
                recorded=shared.recorded,
                degraded=shared.degraded,
            )
        )


def _read_reason(shed: events.RequestShed) -> Reason | None:
    return Reason.DEADLINE if shed.code == "deadline_exceeded" else None
