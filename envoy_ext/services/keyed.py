"""Requests with an idempotency key: what the store knows of the key, and what a repeat is to be given.

A gateway has at most one request at work for a key (`Repeats.claim_key`); between gateways the store decides
(`Journal.begin`).
"""

from dataclasses import dataclass

from envoy_ext.domain import step
from envoy_ext.domain.client_errors import ClientError
from envoy_ext.domain.exchange import QUEUE_WORD_S
from envoy_ext.domain.ids import OperationId, PoolName
from envoy_ext.domain.job import Job
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.notes import ReplayRefused
from envoy_ext.domain.operation import Operation
from envoy_ext.domain.tool_verdict import find_obstacle
from envoy_ext.ports import Clock, Observer, Store
from envoy_ext.services.admission import Arrival
from envoy_ext.services.deliveries import Delivery
from envoy_ext.services.exchanges import Exchanges
from envoy_ext.services.jobs import Jobs
from envoy_ext.services.joiners import Joiner, Joiners
from envoy_ext.services.queues import Queues
from envoy_ext.services.recovery import end_left_over
from envoy_ext.services.repeat_rules import (
    BecameJob,
    Repeat,
    RunsAgain,
    StillRuns,
    WasAnswered,
    build_running_error,
    build_tool_error,
    decide_repeat,
    decide_repeat_of_job,
)


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """A request that is ours and readable, with its key."""

    delivery: Delivery
    arrival: Arrival
    """Without its body, which Envoy keeps, unless its ladder may need it, or it is to become a job."""
    pool: PoolName
    path: str
    body_sha256: str
    key_hash: str
    operation_id: OperationId
    """What it will be called if it runs."""
    arrived_at: float


@dataclass(frozen=True, slots=True)
class MayRun:
    """Nothing stands against it; the key is this request's until it is given back."""

    again: RunsAgain | None
    """None for the first of its key."""


@dataclass(frozen=True, slots=True)
class HasAnswer:
    """A kept answer is to be given."""

    operation: Operation
    answer: KeptAnswer


@dataclass(frozen=True, slots=True)
class HasLeft:
    """Its client has gone; nothing is to be done."""


@dataclass(frozen=True, slots=True)
class HasJob:
    """The key is a job's."""

    job: Job


Found = MayRun | HasAnswer | HasJob | HasLeft | ClientError


class Keyed:
    """Asks the store about a key, and waits where a repeat may. Used from one event loop."""

    def __init__(
        self,
        exchanges: Exchanges,
        *,
        store: Store,
        joiners: Joiners,
        queues: Queues,
        clock: Clock,
        observer: Observer,
        jobs: Jobs | None,
    ) -> None:
        self._jobs = jobs
        self._exchanges = exchanges
        self._repeats = exchanges.repeats
        self._store = store
        self._joiners = joiners
        self._queues = queues
        self._clock = clock
        self._observer = observer

    async def find(self, one: KeyedRequest) -> Found:
        """What a request is to be given; `JournalUnavailable` when nobody can tell."""
        wait_s = self._joiners.policy.compute_wait_s(one.arrival.prefer_wait_s)
        if self._jobs is not None and one.arrival.respond_async:
            wait_s = 0.0  # who would rather come back does not wait; and its body is here, not with Envoy
        until = one.arrived_at + wait_s
        joiner: Joiner | None = None
        try:
            while True:
                holder = await self._claim(one)
                repeat = await self._read(one)
                if holder is not None and (repeat is None or isinstance(repeat, RunsAgain)):
                    repeat = StillRuns(holder)
                if not isinstance(repeat, StillRuns):
                    return await self._read_rest(one, repeat)
                if one.delivery.left:
                    return HasLeft()
                if joiner is None and wait_s > 0:
                    joiner = self._joiners.enter(one.delivery)
                    if joiner is not None:
                        self._hold(one, wait_s)
                ended = self._find_end_of_wait(one, until, repeat)
                if joiner is None or ended is not None:
                    # Those that found no room to wait are many, and are not to come back as one.
                    after_s = None if wait_s > 0 else 1
                    return ended or build_running_error(one.arrival.request_id, repeat.operation_id, after_s)
                await joiner.wait(holder, self._compute_limit(one, until) - self._clock.now())
        finally:
            if joiner is not None:
                joiner.leave()

    # --- inside -------------------------------------------------------------------------------

    async def _claim(self, one: KeyedRequest) -> OperationId | None:
        """Take the key; the operation that has it, when that is another one."""
        caller = one.arrival.caller
        holder = self._repeats.claim_key(caller, one.path, one.key_hash, one.operation_id)
        while holder is not None and (ending := self._exchanges.find_ending(holder)) is not None:
            await ending.wait_written()  # a client may come back before its answer's record is written
            holder = self._repeats.claim_key(caller, one.path, one.key_hash, one.operation_id)
        return holder

    async def _read(self, one: KeyedRequest) -> Repeat | BecameJob | None:
        """What the store says of the key; None when nothing has begun under it."""
        await self._exchanges.record_owed_ends()
        name = one.arrival.caller, one.path, one.key_hash
        job = None if self._jobs is None else await self._jobs.find_by_key(*name)
        if job is not None:
            return decide_repeat_of_job(
                one.arrival.request_id, one.body_sha256, job, respond_async=one.arrival.respond_async
            )
        earlier = await self._store.find_by_key(*name)
        if earlier is not None and self._exchanges.is_left_over(earlier):
            await end_left_over(self._store, earlier, self._clock.wall())
            earlier = await self._store.find_by_key(*name)
        return None if earlier is None else decide_repeat(one.arrival.request_id, one.body_sha256, earlier)

    async def _read_rest(
        self, one: KeyedRequest, repeat: RunsAgain | WasAnswered | BecameJob | ClientError | None
    ) -> Found:
        request_id = one.arrival.request_id
        match repeat:
            case None:
                return MayRun(None)
            case ClientError():
                return repeat
            case BecameJob():
                return HasJob(repeat.job)
            case RunsAgain():
                obstacle = find_obstacle(await self._store.read_calls(repeat.ledger_id))
                if obstacle is None:
                    return MayRun(repeat)
                code, why = obstacle.refusal.code, obstacle.refusal.detail
                self._observer.note(ReplayRefused(repeat.after, one.pool, code, why))
                return build_tool_error(request_id, repeat.after, obstacle)
            case WasAnswered():
                operation = repeat.operation
                answer = await self._store.read_answer(operation.operation_id)
                if answer is None:
                    return ClientError("operation_complete", request_id, operation.operation_id)
                return HasAnswer(operation, answer)

    def _hold(self, one: KeyedRequest, wait_s: float) -> None:
        """Envoy extends its patience for a message once: for this wait, and for one in the line behind it."""
        line_s = self._queues.read_longest_wait_s(one.arrival.request_class)
        preferred = one.arrival.prefer_wait_s is not None
        one.delivery.sink.send(
            step.HoldRequest(
                seconds=wait_s + line_s + QUEUE_WORD_S,
                preference=f"wait={wait_s:.0f}" if preferred else None,
            )
        )

    def _compute_limit(self, one: KeyedRequest, until: float) -> float:
        deadline_s = one.arrival.deadline_s
        return until if deadline_s is None else min(until, one.arrived_at + deadline_s)

    def _find_end_of_wait(self, one: KeyedRequest, until: float, runs: StillRuns) -> ClientError | None:
        """Why a request waits no more."""
        request_id, now = one.arrival.request_id, self._clock.now()
        closed = self._exchanges.find_closure(request_id)
        if closed is not None:
            return closed
        if now < self._compute_limit(one, until):
            return None
        if now < until:
            return ClientError("deadline_exceeded", request_id, runs.operation_id)
        return build_running_error(request_id, runs.operation_id, None)
