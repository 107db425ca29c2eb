"""Requests before they are exchanges: read, admitted or refused, and told from the repeats of others."""

import contextlib
from collections.abc import Callable
from hashlib import sha256

from envoy_ext.domain import step
from envoy_ext.domain.api import ApiFamily, ReadRequest
from envoy_ext.domain.availability import Availability
from envoy_ext.domain.boundaries import FORBIDDEN, Boundaries
from envoy_ext.domain.client_errors import ClientError
from envoy_ext.domain.errors import JournalUnavailable
from envoy_ext.domain.events import DeliveryClosed, Event, ResponseBody
from envoy_ext.domain.ids import AttemptId, OperationId, PoolName
from envoy_ext.domain.operation import Operation
from envoy_ext.domain.retry import FailoverPolicy
from envoy_ext.domain.ticket import Granted, Newcomer, Outcome, Shed, Waits
from envoy_ext.ports import Clock, DeliverySink, Journal, Observer
from envoy_ext.services.admission import (
    Admitted,
    Arrival,
    Forbidden,
    PoolDirectory,
    build_incomplete_error,
    decide_admission,
    decide_repeat,
)
from envoy_ext.services.background import Background
from envoy_ext.services.exchange_replicas import hash_prompt
from envoy_ext.services.exchanges import Exchanges, Opening
from envoy_ext.services.fleet import Fleet
from envoy_ext.services.live_exchange import LiveExchange, add_retry_after
from envoy_ext.services.queues import Queues, draw_retry_after
from envoy_ext.services.repeats import RequestKey


class Delivery:
    """One client's request as the delivery adapter holds it, from its arrival to its end.

    Between the arrival and the exchange stands a question to the journal, for requests with an
    idempotency key. A client that leaves meanwhile is remembered, and nothing is opened for it. One
    that leaves later gives back its place in the line, or its slot, without a wait for any record.
    """

    def __init__(self, sink: DeliverySink, note_bytes: Callable[[AttemptId], None], queues: Queues) -> None:
        self.sink = sink
        self._queues = queues
        self.live: LiveExchange | None = None
        self.left = False
        self._note_bytes = note_bytes

    def receive(self, event: Event) -> None:
        """An event of the delivery stream."""
        if isinstance(event, DeliveryClosed):
            self.left = True
        if self.live is None:
            return
        if self.left:
            identity = self.live.exchange.identity
            self._queues.leave(identity.pool, identity.operation_id)
        self.live.receive(event)
        attempt_id = self.live.exchange.released_attempt
        if attempt_id is not None and isinstance(event, ResponseBody):
            self._note_bytes(attempt_id)


class Arrivals:
    """What the delivery hop asks before there is an exchange. Runs on the event loop of the exchanges."""

    def __init__(
        self,
        exchanges: Exchanges,
        *,
        journal: Journal,
        observer: Observer,
        fleet: Fleet,
        directory: PoolDirectory,
        boundaries: Boundaries,
        failover: FailoverPolicy,
        mint_operation_id: Callable[[], OperationId],
        max_request_bytes: int,
        background: Background,
        queues: Queues,
        clock: Clock,
    ) -> None:
        self._queues = queues
        self._clock = clock
        self._exchanges = exchanges
        self._repeats = exchanges.repeats
        self._journal = journal
        self._observer = observer
        self._fleet = fleet
        self._directory = directory
        self._boundaries = boundaries
        self._failover = failover
        self._mint_operation_id = mint_operation_id
        self._max_request_bytes = max_request_bytes
        self._background = background

    def arrive(self, arrival: Arrival, sink: DeliverySink) -> Delivery:
        """A whole request has come; the sink is sent ForwardRequest, HoldRequest or an error."""
        delivery = Delivery(sink, self._fleet.streams.note_bytes, self._queues)
        closed = self._exchanges.find_closure(arrival.request_id)
        if closed is not None:
            self.refuse(sink, closed)
            return delivery
        admitted = decide_admission(
            arrival, self._directory, self._boundaries, self._max_request_bytes, self._hash_prompt
        )
        if isinstance(admitted, ClientError):
            self.refuse(sink, admitted)
            return delivery
        if isinstance(admitted, Forbidden):
            self._hold_boundary(sink, arrival, admitted)
            return delivery
        if self._fleet.availability(admitted.pool) is Availability.EMPTY:
            self.refuse(sink, ClientError("no_ready_replica", arrival.request_id), admitted.pool)
            return delivery
        request = admitted.request
        key = RequestKey(arrival.caller, request.path, arrival.request_id, request.body_sha256)
        repeated = self._repeats.find_upstream_retry(arrival, key)
        if repeated is not None:
            self._background.run(self._refuse_repeat(delivery, arrival, admitted.pool, repeated))
        elif arrival.idempotency_key is None:
            self._open(delivery, Opening(arrival, admitted, key, self._mint_operation_id(), None))
        else:
            work = self._arrive_with_key(delivery, arrival, admitted, key, arrival.idempotency_key)
            self._background.run(work)
        return delivery

    def list_models(self) -> tuple[str, ...] | None:
        """What `GET /v1/models` names; None where the engine of the one pool is to be asked."""
        return self._directory.list_models()

    def refuse(self, sink: DeliverySink, error: ClientError, pool: PoolName | None = None) -> None:
        """Answer a request that becomes no exchange."""
        self._observer.note(step.RequestRefused(pool, error.code))
        sink.send(add_retry_after(step.RespondLocally(error)))

    def show_operation(
        self, operation_id: str, caller: str, answer: Callable[[Operation | None], None]
    ) -> None:
        """Look up an operation for its owner; None for all others, and where the journal cannot be asked."""
        self._background.run(self._show_operation(OperationId(operation_id), caller, answer))

    # --- inside -------------------------------------------------------------------------------

    def _hold_boundary(self, sink: DeliverySink, arrival: Arrival, held: Forbidden) -> None:
        self._observer.note(step.BoundaryHeld(held.pool, arrival.request_id, None, held.data_class))
        sink.send(step.RespondLocally(ClientError(FORBIDDEN, arrival.request_id)))

    def _open(self, delivery: Delivery, opening: Opening) -> bool:
        """Whether it became an exchange, which goes on or waits for a slot; else it was refused."""
        outcome = self._ask(opening)
        if isinstance(outcome, Shed):
            retry_after_s = draw_retry_after(outcome)
            error = ClientError(outcome.code, opening.arrival.request_id, retry_after_s=retry_after_s)
            self.refuse(delivery.sink, error, opening.admitted.pool)
            return False
        live = delivery.live = self._exchanges.add(opening, delivery.sink)
        if isinstance(outcome, Waits):
            self._queues.listen(opening.admitted.pool, opening.operation_id, live.receive)
            live.open_queued(outcome.until)
        else:
            live.open()
        return True

    def _ask(self, opening: Opening) -> Outcome:
        """Ask the pool's queue for a slot. A question about models takes none: nothing is computed."""
        arrival = opening.arrival
        if arrival.family is ApiFamily.MODELS:
            return Granted(opening.operation_id, 0.0)
        deadline = None if arrival.deadline_s is None else self._clock.now() + arrival.deadline_s
        return self._queues.ask(
            opening.admitted.pool,
            Newcomer(opening.operation_id, arrival.request_class, arrival.caller, deadline),
        )

    async def _show_operation(
        self, operation_id: OperationId, caller: str, answer: Callable[[Operation | None], None]
    ) -> None:
        found = None
        with contextlib.suppress(JournalUnavailable):
            found = await self._journal.get(operation_id)
        answer(found if found is not None and found.caller == caller else None)

    async def _refuse_repeat(
        self, delivery: Delivery, arrival: Arrival, pool: PoolName, operation_id: OperationId
    ) -> None:
        earlier = None
        with contextlib.suppress(JournalUnavailable):  # then the refusal says less, but stands
            earlier = await self._journal.get(operation_id)
        self.refuse(delivery.sink, build_incomplete_error(arrival.request_id, operation_id, earlier), pool)

    async def _arrive_with_key(
        self, delivery: Delivery, arrival: Arrival, admitted: Admitted, key: RequestKey, given: str
    ) -> None:
        key_hash = sha256(given.encode()).hexdigest()
        operation_id = self._mint_operation_id()
        path = admitted.request.path
        holder = self._repeats.claim_key(arrival.caller, path, key_hash, operation_id)
        opened = False
        try:
            while holder is not None and (ending := self._exchanges.find_ending(holder)) is not None:
                await ending.wait_written()  # a client may come back before its answer's record is written
                holder = self._repeats.claim_key(arrival.caller, path, key_hash, operation_id)
            await self._exchanges.record_owed_ends()
            earlier = await self._journal.find_by_key(arrival.caller, path, key_hash)
            refusal = None
            if earlier is not None:
                refusal = decide_repeat(arrival, admitted.request.body_sha256, earlier)
            if refusal is None and holder is not None:
                refusal = ClientError("operation_in_progress", arrival.request_id, holder, retry_after_s=1)
            if refusal is not None:
                self.refuse(delivery.sink, refusal, admitted.pool)
            elif (closed := self._exchanges.find_closure(arrival.request_id)) is not None:
                self.refuse(delivery.sink, closed, admitted.pool)
            elif not delivery.left:
                after = None if earlier is None else earlier.operation_id
                opened = self._open(delivery, Opening(arrival, admitted, key, operation_id, key_hash, after))
        except JournalUnavailable:
            message = "The gateway cannot look up the idempotency key, so it does not run the request."
            error = ClientError("upstream_unavailable", arrival.request_id, message=message)
            self.refuse(delivery.sink, error, admitted.pool)
        finally:
            if not opened:
                self._repeats.free_key(operation_id)

    def _hash_prompt(self, pool: PoolName, request: ReadRequest) -> tuple[bytes, ...]:
        """The prefixes of a prompt that may be replayed; none for all others."""
        failover, facts = self._failover, request.facts
        if not failover.replay or facts.prompt_tokens_estimate > failover.max_replay_prompt_tokens:
            return ()
        return hash_prompt(self._fleet, pool, request)
