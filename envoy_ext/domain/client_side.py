"""What the client of one exchange is sent: the replica's bytes, our error, or the one typed event.

A stream is cut (`_cut`) at one place only, whatever the cause: the replica broke, it ended without
its API's terminal mark, a deadline passed, the sidecar drains, the client takes nothing.
"""

from dataclasses import replace

from envoy_ext.domain import ending, events, names, step
from envoy_ext.domain.boundaries import FORBIDDEN
from envoy_ext.domain.client_errors import NOT_RECORDED, ClientError, build_terminal_event
from envoy_ext.domain.delivery import Delivery, DeliveryState
from envoy_ext.domain.exchange_shared import Shared
from envoy_ext.domain.ids import OperationId
from envoy_ext.domain.inspection import BodyKind, Verdict
from envoy_ext.domain.notes import RequestRefused, StreamInterrupted
from envoy_ext.domain.outcomes import Reason
from envoy_ext.domain.write_stall import Look, WriteStall


class ClientSide:
    """The delivery half of an exchange; changed only by it."""

    __slots__ = ("_delivery", "_headers", "_shared", "_stall", "error", "inject_at", "spared_code")

    def __init__(self, shared: Shared, delivery: Delivery) -> None:
        self.error: ClientError | None = None
        """The error the client was sent, as a body or as an event."""
        self.spared_code: str | None = None
        """What the client would have been refused with, had the gateway not had an answer of its own."""
        self.inject_at: float | None = None
        self._shared = shared
        self._delivery = delivery
        self._stall = WriteStall(shared.policy.client_stall_s)
        self._headers: tuple[tuple[str, str], ...] = ()

    def receive_headers(self, event: events.ResponseStarted) -> None:
        """Response headers that may go on to the client, with the first that it can read."""
        delivery = self._delivery
        delivery.start(event)
        self._headers = event.headers
        if event.end or event.status >= 400:
            # No body, or one that nothing was held for: it may be slow, and Envoy's patience is short.
            self._open(end=event.end)
        if event.end:
            self._pass_end(delivery.judge_end() if delivery.may_append else Verdict.COMPLETE)

    def _open(self, *, end: bool = False) -> None:
        delivery = self._delivery
        delivery.open()
        identity = self._shared.identity
        self._shared.out.replies.append(
            step.ForwardResponse(
                request_id=identity.request_id,
                operation_id=identity.operation_id,
                attempts=self._shared.started_attempts,
                may_append=delivery.may_append,
                recorded=self._shared.recorded,
                status=delivery.status or 0,
                headers=self._headers,
                streams=delivery.kind in (BodyKind.SSE, BodyKind.NDJSON),
                end=end,
                degraded=self._shared.degraded,
            )
        )

    def receive_body(self, event: events.ResponseBody, now: float) -> None:
        """Bytes of the response: let out what is whole, judge the end."""
        delivery, replies = self._delivery, self._shared.out.replies
        if not delivery.answering:
            return
        data = delivery.take(event.data)
        if delivery.state is DeliveryState.OPENING and delivery.readable:
            self._open()
        if not event.end:
            if data:
                replies.append(step.ForwardBody(data, end=False))
            if self.inject_at is not None:
                self.cut_if_due(now)
            return
        verdict = delivery.judge_end()
        looks_whole = verdict in _LOOKS_WHOLE and delivery.may_append and not delivery.last_word_said
        if looks_whole or (verdict is Verdict.TRUNCATED and delivery.kind is BodyKind.JSON):
            self._cut(Reason.TRUNCATED, data, trailers=event.trailers)
            return
        if delivery.state is DeliveryState.OPENING:
            self._open()
        data += delivery.take_tail()
        replies.append(step.ForwardBody(data, end=True, trailers=event.trailers))
        self._pass_end(verdict)

    def note_break(self, now: float) -> None:
        """The replica is lost in mid-answer: cut the stream once all that it sent has passed."""
        self.inject_at = now + self._shared.policy.inject_grace_s
        self.cut_if_due(now)

    def cut_if_due(self, now: float) -> None:
        """End a broken stream when every byte that left the egress hop has passed, or is overdue."""
        released = self._shared.released
        log = released.log if released is not None else None
        if self.inject_at is None or log is None:
            return
        if self._delivery.received_bytes >= log.body_bytes or now >= self.inject_at:
            self._cut(ending.read_reason(log.cause), b"")

    def receive_progress(self, event: events.ExchangeProgressed, now: float) -> None:
        """Envoy has told how much its client has taken; a client that takes nothing is ended."""
        delivery, released = self._delivery, self._shared.released
        if delivery.closed or delivery.state is not DeliveryState.RESPONDING or released is None:
            return
        look = Look(
            left=released.left_bytes,
            arrived=delivery.received_bytes,
            released=delivery.released_bytes,
            taken=event.taken_bytes,
            acked=event.acked_bytes,
        )
        if self._stall.note(look, now):
            self._cut(Reason.CLIENT_STALLED, b"")

    def stop(self, code: str, reason: Reason) -> None:
        """The gateway itself ends the exchange: by an error before the first byte, by the event after."""
        if not self._delivery.client_waiting:
            return
        if self._delivery.state is DeliveryState.RESPONDING:
            self._cut(reason, b"")
        else:
            self.respond(code, reason)

    def respond(
        self,
        code: str,
        reason: Reason | None,
        message: str | None = None,
        operation_id: OperationId | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        """Answer with an error of ours; the replicas that were asked have given nothing.

        `operation_id`: of the operation that the error is about, when that is another one.
        """
        if self._delivery.state is DeliveryState.QUEUED:
            if code != FORBIDDEN:  # counted where it was held
                self._shared.out.notes.append(RequestRefused(self._shared.identity.pool, code))
            self._shared.learn(exchange_cause=events.LogCause.SIDECAR)  # its log entry will bear no name
        asked = self._shared.started_attempts > 0
        self._shared.learn(refused=not asked, failed=asked, interrupted=reason)
        error = replace(self._build_error(code, reason, message), retry_after_s=retry_after_s)
        if operation_id is not None:
            error = replace(error, operation_id=operation_id)
        self._delivery.end()
        self._delivery.status = error.http_status
        self.error = error
        self._shared.out.replies.append(step.RespondLocally(error))

    def give_own_answer(self, event: events.AnsweredHere) -> None:
        """Answer with a fixed text in a model's place; no replica has been asked."""
        self._shared.learn(exchange_cause=events.LogCause.SIDECAR)  # its log entry will bear no name
        if event.settled:
            self._shared.learn(passed_end=Verdict.COMPLETE)
        else:
            self._shared.learn(refused=True)
        self.spared_code = event.code
        self._delivery.end()
        self._delivery.status = 200 if event.job is None else 202

    def _pass_end(self, verdict: Verdict) -> None:
        self.inject_at = None
        self._delivery.end()
        self._shared.learn(passed_end=verdict)

    def _cut(self, reason: Reason, data: bytes, *, trailers: bool = False) -> None:
        """End the client's stream behind `data`, with what is true to say. A half event is dropped."""
        if self._delivery.state is DeliveryState.OPENING:
            self.inject_at = None
            self.respond("upstream_unavailable", reason)
            return
        delivery, replies = self._delivery, self._shared.out.replies
        verdict = delivery.judge_end()
        if delivery.last_word_said or delivery.whole_answer_passed:
            # The replica's own last word is out: a second one would be untrue, or unread.
            replies.append(step.ForwardBody(data, end=True, trailers=trailers))
            self._pass_end(verdict)
            return
        if verdict is Verdict.ABORTED:
            reason = Reason.ENGINE_ERROR  # the engine had given the answer up before anything else broke
        self.inject_at = None
        error = self._build_error("upstream_decode_interrupted", reason)
        event = None
        # A client that takes nothing reads no event, and over HTTP/2 Envoy would let the replica go on until
        # it had.
        if delivery.may_append and reason is not Reason.CLIENT_STALLED:
            event = build_terminal_event(delivery.family, delivery.kind, error)
        if event is None:
            replies.append(step.ResetDelivery())
        else:
            replies.append(step.ForwardBody(data + event, end=True, trailers=trailers))
            self.error = error
        delivery.end()
        self._shared.learn(interrupted=reason)
        self._shared.out.notes.append(StreamInterrupted(self._shared.identity.pool, reason))

    def _build_error(self, code: str, reason: Reason | None, message: str | None = None) -> ClientError:
        delivery, identity = self._delivery, self._shared.identity
        headers = [("x-attempt-count", str(self._shared.started_attempts))]
        if not self._shared.recorded:
            headers.append(NOT_RECORDED)
        if self._shared.blocked_by is not None:  # the operation names the call
            headers.append(("location", f"/v1/operations/{identity.operation_id}"))
        if self._shared.degraded and self._shared.started_attempts:
            headers.append((names.DEGRADED, ", ".join(self._shared.degraded)))
        return ClientError(
            code=code,
            request_id=identity.request_id,
            operation_id=identity.operation_id,
            message=message,
            reason=reason,
            partial_output=delivery.first_delta_passed,
            delivered_output_tokens=delivery.output_tokens,
            headers=tuple(headers),
        )


_LOOKS_WHOLE = frozenset({Verdict.TRUNCATED, Verdict.ABORTED})
"""Orderly ends that a client would take for those of a whole answer if nothing were said."""
