"""Requests before they are exchanges: read, admitted or refused, and told from the repeats of others."""

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final, assert_never

from envoy_ext.domain import step
from envoy_ext.domain.api import ReadRequest
from envoy_ext.domain.boundaries import FORBIDDEN
from envoy_ext.domain.callers import DENIED, UnknownCaller, decide_again
from envoy_ext.domain.client_errors import ClientError
from envoy_ext.domain.errors import JournalUnavailable
from envoy_ext.domain.ids import OperationId, PoolName
from envoy_ext.domain.job import Job
from envoy_ext.domain.notes import AnswerReplayed, BoundaryHeld, RequestRefused
from envoy_ext.domain.operation import Operation
from envoy_ext.domain.retry import FailoverPolicy
from envoy_ext.domain.tool_calls import ToolCall
from envoy_ext.ports import Clock, DeliverySink, HandOffs, Observer, Store
from envoy_ext.services.admission import AdmissionRules, Admitted, Arrival, Forbidden, decide_admission
from envoy_ext.services.background import Background
from envoy_ext.services.changing import Changing
from envoy_ext.services.deliveries import Delivery
from envoy_ext.services.exchange_replicas import hash_prompt
from envoy_ext.services.exchanges import Exchanges
from envoy_ext.services.fleet import Fleet
from envoy_ext.services.heads import Heads, RequestHead, read_operation_path
from envoy_ext.services.job_questions import read_job_question
from envoy_ext.services.jobs import Jobs
from envoy_ext.services.joiners import Joiners, JoinPolicy
from envoy_ext.services.keyed import HasAnswer, HasJob, HasLeft, Keyed, KeyedRequest, MayRun
from envoy_ext.services.ladders import BecomesJob, Ladders, Placed
from envoy_ext.services.live_exchange import add_retry_after
from envoy_ext.services.opening import Opening
from envoy_ext.services.queues import Queues
from envoy_ext.services.repeat_rules import RunsAgain, build_incomplete_error
from envoy_ext.services.repeats import RequestKey


@dataclass(frozen=True, slots=True)
class ShownOperation:
    """An operation as its owner may see it."""

    operation: Operation | None
    """Of a job its newest run, as far as one has begun; then None."""
    calls: tuple[ToolCall, ...]
    """Of its ledger."""
    job: Job | None = None


class Arrivals:
    """What the delivery hop asks before there is an exchange. Runs on the event loop of the exchanges."""

    def __init__(
        self,
        exchanges: Exchanges,
        *,
        journal: Store,
        observer: Observer,
        fleet: Fleet,
        rules: AdmissionRules,
        failover: FailoverPolicy,
        mint_operation_id: Callable[[], OperationId],
        background: Background,
        queues: Queues,
        clock: Clock,
        joining: JoinPolicy | None = None,
        hand_offs: HandOffs | None = None,
        jobs: Jobs | None = None,
    ) -> None:
        """`jobs`: None where no request is run later."""
        self._jobs = jobs
        self._queues = queues
        self._clock = clock
        self._exchanges = exchanges
        self._repeats = exchanges.repeats
        self._journal = journal
        self._observer = observer
        self._fleet = fleet
        self._rules = rules
        self.heads: Final = Heads(rules, clock)
        """What is decided before there is a body."""
        self._failover = failover
        self._mint_operation_id = mint_operation_id
        self._background = background
        self.joiners: Final = Joiners(JoinPolicy() if joining is None else joining, exchanges.repeats)
        """The repeats that wait."""
        exchanges.on_draining(self.joiners.wake_all)
        self._keyed = Keyed(
            exchanges,
            store=journal,
            joiners=self.joiners,
            queues=queues,
            clock=clock,
            observer=observer,
            jobs=jobs,
        )
        self._ladders = Ladders(
            queues=queues,
            fleet=fleet,
            exchanges=exchanges,
            changing=Changing(self._hash_prompt),
            clock=clock,
            observer=observer,
            background=background,
            hand_offs=hand_offs,
            jobs=jobs,
            mint_operation_id=mint_operation_id,
        )

    def arrive(self, arrival: Arrival, sink: DeliverySink) -> Delivery:
        """A whole request has come; the sink is sent ForwardRequest, HoldRequest or an error."""
        delivery = Delivery(sink, self._fleet.streams.note_bytes, self._queues)
        closed = self.find_closure(arrival)
        if closed is not None:
            self.refuse(sink, closed)
            return delivery
        admitted = self.admit(arrival)
        if isinstance(admitted, ClientError):
            self.refuse(sink, admitted)
            return delivery
        if isinstance(admitted, Forbidden):
            self._hold_boundary(sink, arrival, admitted)
            return delivery
        request = admitted.request
        key = RequestKey(arrival.caller, request.path, arrival.request_id, request.body_sha256)
        if arrival.idempotency_key is not None:
            # Before anything else: what was done already needs no replica, and no slot.
            one = self._build_keyed(delivery, arrival, admitted, arrival.idempotency_key)
            self._background.run(self._arrive_with_key(one, admitted, key))
            return delivery
        repeated = self._repeats.find_upstream_retry(arrival, key)
        if repeated is not None:
            self._background.run(self._refuse_repeat(delivery, arrival, admitted.pool, repeated))
        else:
            ledger_id = self._repeats.find_ledger(arrival, key)
            operation_id = self._mint_operation_id()
            opening = Opening(arrival, admitted, key, operation_id, None, ledger_id=ledger_id)
            if self._wants_job(arrival):
                self._background.run(self._submit(delivery, opening))
            elif overflow := self._exchanges.find_overflow(arrival.request_id):
                self.refuse(sink, overflow, admitted.pool)
            else:
                placed = self._ladders.place(opening)
                if isinstance(placed, BecomesJob):
                    self._background.run(self._open_later(delivery, placed, admitted.pool))
                else:
                    self._open(delivery, placed, admitted.pool)
        return delivery

    def admit(self, arrival: Arrival) -> Admitted | Forbidden | ClientError:
        """What the configuration says of a request: whose it is, and whether it may go there."""
        return decide_admission(arrival, self._rules, self._hash_prompt)

    def admit_again(self, arrival: Arrival) -> Admitted | Forbidden | ClientError:
        """The same of a request that was let in once, and is to run: with what its caller may do by now."""
        if self._rules.read_callers is not None:
            caller = decide_again(arrival.caller, self._rules.read_callers(), self._clock.wall())
            if isinstance(caller, UnknownCaller):
                return ClientError(DENIED, arrival.request_id, message=caller.message)
            arrival = replace(arrival, rights=caller.rights)
        return self.admit(arrival)

    def find_early_refusal(self, head: RequestHead) -> ClientError | None:
        """Why a request is refused before its body is taken in; None where the headers say nothing against
        it, or it has an answer of its own."""
        sender = self.heads.decide_sender(head)
        if isinstance(sender, ClientError):
            return sender
        if read_operation_path(head.method, head.path) is not None:
            return None
        if self._jobs is not None and read_job_question(head.method, head.path) is not None:
            return None
        arrival = self.heads.decide_head(head, sender)
        if isinstance(arrival, ClientError):
            return arrival
        return self.find_closure(arrival)

    def find_closure(self, arrival: Arrival) -> ClientError | None:
        """Why this request is not taken at this moment, whatever its body says; None when it is."""
        return self._exchanges.find_closure(arrival.request_id, arrival)

    def refuse(self, sink: DeliverySink, error: ClientError, pool: PoolName | None = None) -> None:
        """Answer a request that becomes no exchange."""
        if error.code != FORBIDDEN:  # counted where it was held
            self._observer.note(RequestRefused(pool, error.code))
        sink.send(add_retry_after(step.RespondLocally(error)))

    def show_operation(
        self,
        operation_id: str,
        caller: str,
        answer: Callable[[ShownOperation | None], None],
        give_up: Callable[[], None],
    ) -> None:
        """Look up an operation for its owner; None for all others. Give up if the journal cannot be asked."""
        self._background.run(self._show_operation(OperationId(operation_id), caller, answer, give_up))

    def ask_jobs(self, ask: Callable[[Jobs], Awaitable[None]], give_up: Callable[[], None]) -> bool:
        """Have a client's question about a job answered; give up if the journal cannot be asked. False where
        there are no jobs."""
        if self._jobs is None:
            return False
        self._background.run(self._ask_job(self._jobs, ask, give_up))
        return True

    # --- inside -------------------------------------------------------------------------------

    def _hold_boundary(self, sink: DeliverySink, arrival: Arrival, held: Forbidden) -> None:
        self._observer.note(BoundaryHeld(held.pool, arrival.request_id, None, held.data_class))
        self.refuse(sink, ClientError(FORBIDDEN, arrival.request_id))

    def _build_keyed(
        self, delivery: Delivery, arrival: Arrival, admitted: Admitted, given: str
    ) -> KeyedRequest:
        return KeyedRequest(
            delivery=delivery,
            arrival=arrival if self._wants_job(arrival) else self._ladders.keep_body(arrival),
            pool=admitted.pool,
            path=admitted.request.path,
            body_sha256=admitted.request.body_sha256,
            key_hash=sha256(given.encode()).hexdigest(),
            operation_id=self._mint_operation_id(),
            arrived_at=self._clock.now(),
        )

    def _open(self, delivery: Delivery, placed: Placed | ClientError, pool: PoolName) -> bool:
        """Whether it became an exchange, which goes on or waits for a slot; else it was refused."""
        if isinstance(placed, ClientError):
            self.refuse(delivery.sink, placed, pool)
            return False
        live = delivery.live = self._exchanges.add(placed.opening, delivery.sink)
        self._ladders.begin(placed, live)
        return True

    async def _open_later(self, delivery: Delivery, placed: BecomesJob, pool: PoolName) -> None:
        await self._open_placed(delivery, placed, pool)

    async def _open_placed(
        self, delivery: Delivery, placed: Placed | BecomesJob | ClientError, pool: PoolName
    ) -> bool:
        """The same, for what may be to become a job: one that cannot be taken in goes on down its ladder."""
        while isinstance(placed, BecomesJob):
            if self._jobs is not None:
                accepted = await self._jobs.take_in(placed.opening, by_ladder=True)
                if not isinstance(accepted, ClientError):
                    delivery.sink.send(accepted)
                    return False
            placed = self._ladders.place_below(placed)
        return False if delivery.left else self._open(delivery, placed, pool)

    def _wants_job(self, arrival: Arrival) -> bool:
        return self._jobs is not None and arrival.respond_async and self._jobs.fits(arrival)

    async def _submit(self, delivery: Delivery, opening: Opening) -> None:
        """Take in as a job what its client would rather come back for."""
        assert self._jobs is not None  # else nobody wants one
        told = await self._jobs.take_in(opening, by_ladder=False)
        if isinstance(told, ClientError):
            self.refuse(delivery.sink, told, opening.admitted.pool)
        else:
            delivery.sink.send(told)

    async def _ask_job(
        self, jobs: Jobs, ask: Callable[[Jobs], Awaitable[None]], give_up: Callable[[], None]
    ) -> None:
        try:
            await ask(jobs)
        except JournalUnavailable:
            give_up()

    async def _give_job(self, one: KeyedRequest, found: HasJob, pool: PoolName) -> None:
        """The repeat of a request that became a job: where to look for it, or what it has come to."""
        assert self._jobs is not None  # else nobody has looked for one
        sink, arrival = one.delivery.sink, one.arrival
        told = await self._jobs.tell_again(found.job, arrival, one.body_sha256)
        if isinstance(told, ClientError):
            self.refuse(sink, told, pool)
        else:
            sink.send(told)

    async def _show_operation(
        self,
        operation_id: OperationId,
        caller: str,
        answer: Callable[[ShownOperation | None], None],
        give_up: Callable[[], None],
    ) -> None:
        try:
            shown = await self._find_shown(operation_id, caller)
        except JournalUnavailable:
            give_up()
            return
        answer(shown)

    async def _find_shown(self, operation_id: OperationId, caller: str) -> ShownOperation | None:
        job = None if self._jobs is None else await self._jobs.find(operation_id, caller)
        if job is not None:
            run = None if job.run_id is None else await self._journal.get(job.run_id)
            return ShownOperation(run, await self._journal.read_calls(job.ledger_id), job)
        found = await self._journal.get(operation_id)
        if found is None or found.caller != caller:
            return None
        return ShownOperation(found, await self._journal.read_calls(found.ledger_id))

    async def _refuse_repeat(
        self, delivery: Delivery, arrival: Arrival, pool: PoolName, operation_id: OperationId
    ) -> None:
        earlier = None
        with contextlib.suppress(JournalUnavailable):  # then the refusal says less, but stands
            earlier = await self._journal.get(operation_id)
        self.refuse(delivery.sink, build_incomplete_error(arrival.request_id, operation_id, earlier), pool)

    async def _arrive_with_key(self, one: KeyedRequest, admitted: Admitted, key: RequestKey) -> None:
        """`one` is without its body: it may wait for long, and Envoy keeps it."""
        delivery, request_id = one.delivery, one.arrival.request_id
        opened = False
        try:
            found = await self._keyed.find(one)
            match found:
                case HasLeft():
                    pass
                case ClientError():
                    self.refuse(delivery.sink, found, admitted.pool)
                case HasJob():
                    await self._give_job(one, found, admitted.pool)
                case HasAnswer():
                    self._give_answer(delivery.sink, found, request_id, admitted.pool)
                case MayRun():
                    opened = await self._open_keyed(one, admitted, key, found.again)
                case _:
                    assert_never(found)
        except JournalUnavailable:
            message = "The gateway cannot look up the idempotency key, so it does not run the request."
            error = ClientError("upstream_unavailable", request_id, message=message)
            self.refuse(delivery.sink, error, admitted.pool)
        finally:
            if not opened:
                self._repeats.free_key(one.operation_id)

    async def _open_keyed(
        self, one: KeyedRequest, admitted: Admitted, key: RequestKey, again: RunsAgain | None
    ) -> bool:
        arrival, sink = one.arrival, one.delivery.sink
        repeated = self._repeats.find_upstream_retry(arrival, key)
        if repeated is not None:
            await self._refuse_repeat(one.delivery, arrival, admitted.pool, repeated)
            return False
        refusal = self._exchanges.find_closure(arrival.request_id)
        if arrival.deadline_s is not None:
            left_s = arrival.deadline_s - (self._clock.now() - one.arrived_at)
            if left_s <= 0:
                refusal = ClientError("deadline_exceeded", arrival.request_id)
            arrival = replace(arrival, deadline_s=left_s)
            admitted = replace(admitted, request=replace(admitted.request, deadline_s=left_s))
        if refusal is not None:
            self.refuse(sink, refusal, admitted.pool)
            return False
        if one.delivery.left:
            return False
        opening = Opening(
            arrival,
            admitted,
            key,
            one.operation_id,
            one.key_hash,
            after=None if again is None else again.after,
            ledger_id=None if again is None else again.ledger_id,
        )
        if self._wants_job(arrival):
            await self._submit(one.delivery, opening)
            return False
        overflow = self._exchanges.find_overflow(arrival.request_id)
        if overflow is not None:
            self.refuse(sink, overflow, admitted.pool)
            return False
        return await self._open_placed(one.delivery, self._ladders.place(opening), admitted.pool)

    def _give_answer(self, sink: DeliverySink, found: HasAnswer, request_id: str, pool: PoolName) -> None:
        operation = found.operation
        attempts = sum(attempt.started_at is not None for attempt in operation.attempts)
        self._observer.note(AnswerReplayed(pool, operation.operation_id, request_id))
        answer = step.GiveAnswer(
            found.answer, request_id, operation.operation_id, attempts, operation.degraded
        )
        sink.send(answer)

    def _hash_prompt(self, pool: PoolName, request: ReadRequest) -> tuple[bytes, ...]:
        """The prefixes of a prompt that may be replayed; none for all others."""
        failover, facts = self._failover, request.facts
        if not failover.replay or facts.prompt_tokens_estimate > failover.max_replay_prompt_tokens:
            return ()
        return hash_prompt(self._fleet, pool, request)
