"""All exchanges in flight: opens them, finds them for the other hop and the reports, ends them on a stop.

The delivery and attempt adapters never see each other. They meet here, by the exchange id that
only the ingress hop may set.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from envoy_ext.domain.answer_keeping import AnswerKeeping, AnswersKept, KeepingPolicy
from envoy_ext.domain.api import ApiFamily
from envoy_ext.domain.client_errors import NOT_RECORDABLE, ClientError
from envoy_ext.domain.errors import JournalUnavailable
from envoy_ext.domain.events import (
    AttemptArrived,
    DrainExpired,
    LedgerRead,
    OwnershipLost,
)
from envoy_ext.domain.exchange import Exchange
from envoy_ext.domain.exchange_shared import ExchangePolicy, Identity
from envoy_ext.domain.ids import AttemptId, ExchangeId, OperationId, PoolName, ReplicaId, SeatId
from envoy_ext.domain.notes import (
    AttemptFinished,
    AttemptLetGo,
    AttemptPlaced,
    AttemptProved,
    ExchangeEnded,
    FenceAwaited,
    FirstDelta,
    LedgerAwaited,
    Note,
    PhaseChanged,
)
from envoy_ext.domain.operation import Operation
from envoy_ext.domain.outcomes import AttemptOutcome
from envoy_ext.ports import (
    AttemptSink,
    Clock,
    DeliverySink,
    Journal,
    Observer,
    ToolLedger,
    Trace,
)
from envoy_ext.services.admission import Arrival
from envoy_ext.services.background import Background
from envoy_ext.services.exchange_replicas import ExchangeReplicas
from envoy_ext.services.fences import Fences
from envoy_ext.services.fleet import Fleet
from envoy_ext.services.live_exchange import LiveExchange
from envoy_ext.services.loop_watch import LoopWatch
from envoy_ext.services.opening import Minting, Opening, RunOf
from envoy_ext.services.owed_ends import OwedEnds
from envoy_ext.services.queues import Queues
from envoy_ext.services.recording import Recordings
from envoy_ext.services.repeats import Repeats, RequestKey
from envoy_ext.services.seats import SeatKeeper
from envoy_ext.services.unrecorded import Unrecorded


class Exchanges:
    """The service both hops talk to. Runs on one event loop."""

    def __init__(
        self,
        *,
        journal: Journal,
        clock: Clock,
        observer: Observer,
        fleet: Fleet,
        policy: ExchangePolicy,
        mint: Minting,
        background: Background,
        keeper: SeatKeeper,
        queues: Queues,
        unrecorded: Unrecorded | None = None,
        fences: Fences | None = None,
        trace: Trace | None = None,
        keeping: KeepingPolicy | None = None,
        results: KeepingPolicy | None = None,
        ledger: ToolLedger | None = None,
        loop_watch: LoopWatch | None = None,
        max_requests: int | None = None,
    ) -> None:
        """`ledger`: of tool calls, where there are tools; read before anything is done again.

        `results`: how those of jobs are kept. `max_requests`: how many may be in flight; None: any number.
        """
        self._ledger = ledger
        self._loop_watch = loop_watch
        self._max_requests = max_requests
        policy = replace(policy, watches_tools=ledger is not None)
        self._queues = queues
        self._keeper = keeper
        keeper.on_lost(self._end_all_of)
        self._unrecorded = unrecorded or Unrecorded()
        self._fences = fences
        self._trace = trace
        self._journal = journal
        self._clock = clock
        self._observer = observer
        self._fleet = fleet
        self._policy = policy
        self._policy_unread = replace(policy, failover=replace(policy.failover, replay=False))
        self._mint = mint
        self._background = background
        self._live: dict[ExchangeId, LiveExchange] = {}
        self._attempts: dict[AttemptId, LiveExchange] = {}
        self._request_keys: dict[ExchangeId, RequestKey] = {}
        self._repeats = Repeats()
        self._owed_ends = OwedEnds(journal, clock)
        self._keeping = KeepingPolicy() if keeping is None else keeping
        self._results = KeepingPolicy(refusals=True) if results is None else results
        self._recordings = Recordings(
            journal, keeper, self._owed_ends, self._unrecorded, clock=clock, observer=observer, trace=trace
        )
        # One of each for all exchanges: a bound method is an object of its own.
        self._spawn: Callable[[LiveExchange], None] = lambda one: background.run(one.write_backlog())
        self._on_note = self._note
        self._on_finished = self._forget
        self._draining = False
        self._on_draining: list[Callable[[], None]] = []
        self._idle = asyncio.Event()
        self._idle.set()

    # --- the delivery hop ---------------------------------------------------------------------

    def add(self, opening: Opening, sink: DeliverySink) -> LiveExchange:
        """An exchange for an admitted request. It does nothing before its `open` is called."""
        arrival, admitted = opening.arrival, opening.admitted
        identity = Identity(
            exchange_id=self._mint.exchange_id(),
            operation_id=opening.operation_id,
            request_id=arrival.request_id,
            pool=admitted.pool,
            allowed_pools=admitted.allowed_pools,
            data_class=admitted.data_class,
            caller=arrival.caller,
            key_hash=opening.key_hash,
            ledger_id=opening.ledger_id,
            job_id=None if opening.run is None else opening.run.job_id,
            keeps_answer=opening.run is not None
            or (opening.key_hash is not None and self._keeping.answers is not AnswersKept.NONE),
        )
        now, wall = self._clock.now(), self._clock.wall()
        replicas = ExchangeReplicas(self._fleet, admitted.pool, self._clock, admitted.prefixes)
        policy, run = self._policy_for(arrival.family, opening.run), opening.run
        keeping = self._keeping if run is None else self._results
        exchange = Exchange(identity, admitted.request, policy, replicas, now, wall)
        live = LiveExchange(
            exchange,
            sink,
            recording=self._recordings.open(opening.arrival, opening.after, run_of=identity.job_id),
            clock=self._clock,
            observer=self._observer,
            replicas=replicas,
            spawn=self._spawn,
            on_note=self._on_note,
            on_finished=self._on_finished if run is None else partial(self._forget_run, run),
            trace=self._trace,
            keeping=AnswerKeeping(keeping) if identity.keeps_answer else None,
        )
        self._live[identity.exchange_id] = live
        self._request_keys[identity.exchange_id] = opening.key
        self._repeats.add(opening.key, exchange)
        self._idle.clear()
        return live

    def find_ending(self, operation_id: OperationId) -> LiveExchange | None:
        """The exchange of an operation, when it has ended and its record of that is on its way."""
        return next(
            (
                live
                for live in self._live.values()
                if live.exchange.identity.operation_id == operation_id and live.writing_its_end
            ),
            None,
        )

    def is_left_over(self, operation: Operation) -> bool:
        """Whether the store has an operation of this gateway as running that runs nowhere: it took its begin
        after that had been given up."""
        if operation.ending is not None or operation.owner != self._keeper.seat:
            return False
        same = operation.operation_id
        own = [one for one in self._live.values() if one.exchange.identity.operation_id == same]
        return all(one.exchange.resolution is not None and not one.writing for one in own)

    async def record_owed_ends(self) -> None:
        """Write the ends that the journal could not take; `JournalUnavailable` when it still cannot."""
        await self._owed_ends.record()

    def note_store_back(self) -> None:
        """The store works again: what it missed is told without waiting for the next request."""
        if self._owed_ends.due:
            self._background.run(self._try_to_record_owed_ends())

    # --- the attempt hop ----------------------------------------------------------------------

    def join(self, exchange_id: str, sink: AttemptSink) -> tuple[LiveExchange, AttemptId] | None:
        """An attempt's filter finds its exchange; None when it is unknown (an earlier life's, or forged)."""
        live = self._live.get(ExchangeId(exchange_id))
        if live is None:
            return None
        attempt_id = self._mint.attempt_id()
        live.join(attempt_id, sink)
        self._attempts[attempt_id] = live
        return live, attempt_id

    def arrive_attempt(
        self, live: LiveExchange, attempt_id: AttemptId, routed_to: PoolName | None = None
    ) -> None:
        """A joined attempt asks to start; its sink is sent StartAttempt or a refusal.

        `routed_to` is the pool that its hop will send it to, by the hop's own word.
        """
        identity = live.exchange.identity
        slot_at = self._queues.choose_replica(identity.pool, identity.operation_id)
        replicas = ExchangeReplicas(self._fleet, identity.pool, self._clock)
        target = None
        if len(live.attempt_ids) == 1 and live.exchange.computes:
            replayable = live.exchange.may_be_replayed
            target = replicas.choose_trial(identity.operation_id, replayable=replayable)
        if target is None:
            target = replicas.choose_first_target(slot_at)
        live.receive(AttemptArrived(attempt_id, target, routed_to))

    def find_attempt(self, attempt_id: AttemptId) -> LiveExchange | None:
        """The exchange in flight that an attempt belongs to."""
        return self._attempts.get(attempt_id)

    def find_replica(self, live: LiveExchange, replica: str, address: str) -> ReplicaId | None:
        """The replica of the exchange's pool that Envoy names by id, or else by `ip:port`."""
        return self._fleet.find_replica(live.exchange.identity.pool, replica, address)

    # --- for ext_authz and operators ----------------------------------------------------------

    def find(self, exchange_id: str) -> LiveExchange | None:
        """The exchange in flight with this id."""
        return self._live.get(ExchangeId(exchange_id))

    @property
    def repeats(self) -> Repeats:
        """What is known of repeats, for the decision that ext_authz shares."""
        return self._repeats

    def find_closure(self, request_id: str, arrival: Arrival | None = None) -> ClientError | None:
        """Why no more requests are taken, or this one is not; None when they are."""
        if self._draining:
            return ClientError("draining", request_id)
        if not self._keeper.may_act and not (arrival and self._unrecorded.takes_now(arrival)):
            message = "This gateway cannot be told from one that is gone, so it takes no requests."
            return ClientError("upstream_unavailable", request_id, message=message)
        if arrival is None or self._loop_watch is None:
            return None
        return self._loop_watch.find_refusal(request_id, arrival.request_class)

    @property
    def starts_jobs(self) -> bool:
        """Whether a job that waits may begin, as far as the sidecar's own time goes."""
        return self._loop_watch is None or not self._loop_watch.sheds_jobs

    def find_overflow(self, request_id: str) -> ClientError | None:
        """Whether one more would be more than may be in flight: each costs memory, whoever computes it."""
        if self._max_requests is None or len(self._live) < self._max_requests:
            return None
        message = "As many requests are in flight at this gateway as may be at once."
        return ClientError("queue_full", request_id, message=message)

    def find_store_refusal(self, arrival: Arrival) -> ClientError | None:
        """Whether a request could not be recorded at this moment, and does not go on without that."""
        if not self._unrecorded.is_down() or self._unrecorded.allows(arrival):
            return None
        return ClientError("upstream_unavailable", arrival.request_id, message=NOT_RECORDABLE)

    @property
    def inflight(self) -> int:
        """Exchanges that are open or whose end evidence is still waited for."""
        return len(self._live)

    # --- stopping -----------------------------------------------------------------------------

    def start_draining(self) -> None:
        """Take no more requests; those in flight go on, and those that wait are told to go elsewhere."""
        self._draining = True
        for listener in self._on_draining:
            listener()
        self._queues.refuse_all("draining")

    def on_draining(self, listener: Callable[[], None]) -> None:
        """Call it when no more requests are taken."""
        self._on_draining.append(listener)

    async def wait_idle(self) -> None:
        """Until no exchange is in flight."""
        await self._idle.wait()

    def end_all(self) -> None:
        """The time for in-flight streams is used up: end each with the truth."""
        for live in list(self._live.values()):
            live.receive(DrainExpired())

    def _end_all_of(self, seat: SeatId) -> None:
        """Other gateways take over what was begun in this seat."""
        for live in list(self._live.values()):
            if live.is_owned_in(seat):
                live.receive(OwnershipLost())

    async def aclose(self) -> None:
        """Wait for the appends under way."""
        await self._background.wait()
        await self._try_to_record_owed_ends()

    # --- inside -------------------------------------------------------------------------------

    def _policy_for(self, family: ApiFamily, run: RunOf | None) -> ExchangePolicy:
        """What a path that passes unread does is not known, so it is never done twice."""
        if run is None:
            return self._policy_unread if family is ApiFamily.OTHER else self._policy
        failover = self._policy.failover
        replay = failover.replay and run.attempts_left > 1
        failover = replace(failover, replay=replay, max_attempts=run.attempts_left)
        return replace(self._policy, failover=failover)

    def _note(self, live: LiveExchange, note: Note) -> None:
        identity = live.exchange.identity
        match note:
            case PhaseChanged():
                if note.after is None:
                    self._queues.leave(note.pool, identity.operation_id)
            case FirstDelta():
                if note.replica is not None:
                    live.replicas.note_first_delta(note.replica, note.attempt_s)
                    self._fleet.circuits.note_first_delta(identity.operation_id, note.replica)
            case AttemptLetGo():
                self._fleet.streams.note(note)
                self._queues.start(note.pool, identity.operation_id, note.attempt_id)
            case AttemptPlaced():
                self._fleet.streams.note(note)
                self._fleet.circuits.begin(identity.operation_id, note.replica)
            case AttemptProved() | AttemptFinished():
                self._fleet.streams.note(note)
                if isinstance(note, AttemptFinished):
                    whole = note.outcome is AttemptOutcome.COMPLETED
                    heard_at = self._fleet.streams.read_heard_at(note.replica)
                    self._queues.end(note.pool, note.attempt_id, whole=whole, heard_at=heard_at)
                self._queues.note_free(note.pool)
            case FenceAwaited():
                self._look_for_proof(note)
            case LedgerAwaited():
                self._background.run(self._read_ledger(note))
            case ExchangeEnded():
                # Its end is in the journal: a repeat under its key may ask there.
                self._repeats.free_key(note.operation_id)
                self._fleet.circuits.note_exchange_ended(note.operation_id)
        self._observer.note(note)

    async def _read_ledger(self, awaited: LedgerAwaited) -> None:
        live, calls = self._attempts.get(awaited.attempt_id), None
        if live is None or self._ledger is None:
            return
        with contextlib.suppress(JournalUnavailable):
            # No call is let out for an operation that the store knows nothing of.
            calls = () if live.never_recorded else await self._ledger.read_calls(awaited.ledger_id)
        live.receive(LedgerRead(awaited.attempt_id, calls))

    def _look_for_proof(self, awaited: FenceAwaited) -> None:
        live = self._attempts.get(awaited.attempt_id)
        if self._fences is not None and live is not None:
            fence_s = self._policy.failover.fence_s
            self._background.run(
                self._fences.watch(awaited, live, fence_s, lambda: not live.exchange.waits_for_fence)
            )

    def _forget_run(self, run: RunOf, live: LiveExchange) -> None:
        self._forget(live)
        run.on_over()

    def _forget(self, live: LiveExchange) -> None:
        identity = live.exchange.identity
        self._fleet.circuits.note_over(identity.operation_id)
        self._live.pop(identity.exchange_id, None)
        for attempt_id in live.attempt_ids:
            self._attempts.pop(attempt_id, None)
            self._fleet.streams.forget_chosen(attempt_id)
        key = self._request_keys.pop(identity.exchange_id, None)
        if key is not None:
            self._repeats.remove(key, live.exchange)
        self._repeats.free_key(identity.operation_id)
        if self._owed_ends.due:
            self._background.run(self._try_to_record_owed_ends())
        if not self._live:
            self._idle.set()

    async def _try_to_record_owed_ends(self) -> None:
        with contextlib.suppress(JournalUnavailable):  # the next exchange that ends tries again
            await self._owed_ends.record()
