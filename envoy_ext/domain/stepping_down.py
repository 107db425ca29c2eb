"""How an exchange that waits for a slot is stepped down: to another pool, or to an answer of our own.

Both happen before anything was sent, to a replica or to the client, and at most once each.
"""

from envoy_ext.domain import events, records, step
from envoy_ext.domain.client_side import ClientSide
from envoy_ext.domain.errors import ImpossibleEvent
from envoy_ext.domain.exchange_shared import Shared
from envoy_ext.domain.notes import RequestDegraded


def build_begun(shared: Shared, now: float) -> records.OperationBegun:
    """The record that an operation has begun, with what was given up of it on arrival."""
    identity, failover, request = shared.identity, shared.policy.failover, shared.request
    return records.OperationBegun(
        operation_id=identity.operation_id,
        exchange_id=identity.exchange_id,
        at=shared.wall(now),
        request_id=identity.request_id,
        pool=identity.pool,
        path=request.path,
        model=request.facts.model,
        stream=request.facts.stream,
        caller=identity.caller,
        key_hash=identity.key_hash,
        body_sha256=request.body_sha256,
        body_bytes=request.body_bytes,
        prompt_tokens_estimate=request.facts.prompt_tokens_estimate,
        max_attempts=failover.max_attempts if failover.replay else 1,
        ledger_id=identity.ledger_id,
        degraded=request.degraded or None,
        job_id=identity.job_id,
    )


def move(shared: Shared, event: events.RequestMoved) -> None:
    """The request is another pool's from here on; where its data may go does not change."""
    if event.pool not in shared.identity.allowed_pools:
        raise ImpossibleEvent("a request was moved to a pool that it may not reach")
    phase = shared.phase
    shared.enter(None)
    shared.move(event)
    shared.enter(phase)


def answer(shared: Shared, client: ClientSide, event: events.AnsweredHere) -> None:
    """The client is given a fixed answer, whole."""
    shared.degraded, shared.degraded_later = event.degraded, True
    identity = shared.identity
    client.give_own_answer(event)
    shared.out.notes.append(RequestDegraded(identity.pool, shared.degraded))
    shared.out.replies.append(
        step.AnswerHere(
            identity.request_id,
            identity.operation_id,
            event.content_type,
            event.data,
            event.degraded,
            shared.recorded,
            event.job,
        )
    )
