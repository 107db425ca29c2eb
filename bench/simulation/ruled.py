"""The product before simulated engines: its own fleet, queues and rules on the simulated clock.

Real here, and the same objects that `serve` builds: `Fleet` with a `ReplicaGate` for each replica (scrapes,
control calls, hysteresis, slow start, weights), `OwnStreams` and `Slots`, `Rooms`, `Queues` with
`AdmissionQueue`, `FairLine` and `DrainRate`, `decide_retry` and `choose_replay_candidates` for replays. A
model here, in place of what Envoy and the adapters do: the way of the bytes, Envoy's retry budget, and the
look at the port of a replica that is lost.
"""

from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final

from bench.simulation.engine import Engine, Job
from bench.simulation.events import Events, Timer
from bench.simulation.request import Request
from bench.simulation.tally import Tally
from bench.simulation.watch import Watch
from envoy_ext.domain.admission_queue import QueuePolicy
from envoy_ext.domain.availability import Availability
from envoy_ext.domain.client_errors import CODES
from envoy_ext.domain.discovery import Member, MemberChanges
from envoy_ext.domain.events import Event, RequestAdmitted, RequestShed
from envoy_ext.domain.fingerprint import Fingerprint
from envoy_ext.domain.fleet_view import Offer, ViewPolicy, choose_replay_candidates
from envoy_ext.domain.ids import AttemptId, OperationId, PoolName, ReplicaId
from envoy_ext.domain.notes import AttemptFinished, AttemptLetGo, AttemptPlaced, SlotGiven
from envoy_ext.domain.outcomes import AttemptOutcome
from envoy_ext.domain.readiness_policy import ReadinessPolicy
from envoy_ext.domain.retry import FailoverPolicy, PreviousAttempt, Retry, RetryView, decide_retry
from envoy_ext.domain.ticket import Granted, Newcomer, Shed
from envoy_ext.domain.traffic_class import TrafficClass, TrafficClasses
from envoy_ext.domain.weights import WeightPolicy
from envoy_ext.services.fleet import TICK_S, Fleet, FleetPool
from envoy_ext.services.live_exchange import RETRY_AFTER_S
from envoy_ext.services.queues import NO_REPLICA_SPAN_S, Queues, draw_retry_after
from envoy_ext.services.rooms import Rooms

POOL: Final = PoolName("pool")


@dataclass(frozen=True)
class RuledPolicy:
    """How it is configured; the defaults are the product's."""

    concurrency: int = 16
    queue: int = 256
    classes: tuple[TrafficClass, ...] = (
        TrafficClass("chat", weight=4),
        TrafficClass("app", weight=2),
        TrafficClass("batch", weight=1, max_wait_s=300.0),
    )
    readiness: ReadinessPolicy = field(default_factory=ReadinessPolicy)
    failover: FailoverPolicy = field(default_factory=FailoverPolicy)
    budget: tuple[float, int] = (0.20, 3)
    deadlines: bool = False
    """Whether clients say until when their answer is of use (`x-request-deadline`)."""
    worker: bool = False
    """Whether a worker beside each engine says when a cancelled attempt is over."""
    back_off_s: float = 0.025


@dataclass(slots=True, eq=False)
class _Flight:
    request: Request
    operation_id: OperationId
    waits: bool = False
    attempts: list[PreviousAttempt] = field(default_factory=list)
    attempt_id: AttemptId | None = None
    replica: ReplicaId | None = None
    job: Job | None = None
    started_at: float = 0.0
    first_started_at: float = 0.0
    replaying: bool = False
    beyond_slots: bool = False
    """It was let in, and its slot is gone."""
    begun: bool = False
    timer: Timer | None = None
    """Its own deadline."""


class _Deaf:
    """An observer for whom nothing is noted but what the tally wants."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def note(self, note: object) -> None:
        if isinstance(note, SlotGiven) and note.waited_s > 0:
            self._tally.note_granted(note.waited_s)


class RuledGateway:
    """The product's rules over simulated engines."""

    def __init__(
        self, events: Events, engines: list[Engine], policy: RuledPolicy, random: Random, tally: Tally
    ) -> None:
        self.events = events
        self.policy = policy
        self.random = random
        self.tally = tally
        self.retrying = 0
        names = [ReplicaId(f"r{number:04d}") for number in range(len(engines))]
        self.engines = dict(zip(names, engines, strict=True))
        pool = FleetPool(
            POOL,
            Fingerprint(POOL),
            policy.readiness,
            watched=True,
            over_xds=True,
            view=ViewPolicy(weights=WeightPolicy(concurrency=policy.concurrency)),
        )
        self.fleet = Fleet([pool], events, on_view=_hear_nothing, on_change=_hear_nothing)
        self.rooms = Rooms(self.fleet, {POOL: policy.concurrency})
        self.queues = Queues(
            QueuePolicy(policy.queue, TrafficClasses(policy.classes)),
            [POOL],
            rooms=self.rooms,
            fleet=self.fleet,
            clock=events,
            observer=_Deaf(tally),  # type: ignore[arg-type]
        )
        self._flights: dict[int, _Flight] = {}
        self._attempts = 0
        self._streams: dict[ReplicaId, set[AttemptId]] = {name: set() for name in names}
        """Attempts whose first delta has come: their bytes are a sign of life."""
        members = tuple(Member(name, f"http://{name}:8000", (f"{name}:8000",)) for name in names)
        self.fleet.change_members(POOL, MemberChanges(added=members))
        self.fleet.tick()
        events.after(TICK_S, self._tick)
        self.watch = Watch(events, self.fleet, self.engines, self._streams, policy.readiness.scrape_s, random)

    # --- requests -----------------------------------------------------------------------------

    def receive(self, request: Request) -> None:
        """A request from a client: what `Arrivals` and `Ladders` do with one that has no ladder."""
        if self.fleet.availability(POOL) is Availability.EMPTY:
            shed = Shed(OperationId(str(request.number)), "no_ready_replica", NO_REPLICA_SPAN_S)
            self._refuse(request, shed.code, draw_retry_after(shed))
            return
        flight = _Flight(request, OperationId(str(request.number)))
        deadline = request.deadline if self.policy.deadlines else None
        newcomer = Newcomer(flight.operation_id, request.kind, request.caller, deadline)
        self._flights[request.number] = flight
        if deadline is not None:
            flight.timer = self.events.at(deadline, self._end_at_deadline, flight)
        outcome = self.queues.ask(POOL, newcomer)
        match outcome:
            case Granted():
                self._start_first(flight)
            case Shed():
                self._give_up(flight, outcome.code, draw_retry_after(outcome))
            case _:
                flight.waits = True
                self.queues.listen(POOL, flight.operation_id, partial(self._hear, flight))

    def leave(self, request: Request) -> None:
        """Its client has gone."""
        flight = self._flights.pop(request.number, None)
        if flight is not None:
            self._drop_attempt(flight)
            self._land(flight)

    def check_invariants(self) -> None:
        """What must hold at every moment."""
        room = self.rooms.read(POOL)
        shown = self.queues.show(POOL)
        assert shown.waiting <= self.policy.queue, "the line is longer than it may be"
        assert shown.waiting == sum(flight.waits for flight in self._flights.values())
        assert self.retrying == sum(flight.replaying for flight in self._flights.values())
        replayed: dict[ReplicaId | None, int] = {}
        for flight in self._flights.values():
            if flight.job is not None and (flight.replaying or flight.beyond_slots):
                replayed[flight.replica] = replayed.get(flight.replica, 0) + 1
        for name in self.engines:
            taken = self.fleet.streams.count(name).taken
            assert taken <= self.policy.concurrency + replayed.get(name, 0), f"{name} has {taken}"
        assert room.limited

    def _end_at_deadline(self, flight: _Flight) -> None:
        flight.timer = None
        begun = flight.begun
        self._drop_attempt(flight)
        if begun:
            del self._flights[flight.request.number]
            self._land(flight)
            flight.request.broken()
        else:
            self._give_up(flight, "deadline_exceeded", None)

    def _drop_attempt(self, flight: _Flight) -> None:
        """Close the connection to its replica, if it has one."""
        if flight.job is not None and flight.replica is not None:
            self.engines[flight.replica].cancel(flight.job)
            self._finish(flight, AttemptOutcome.CANCELLED, dropped=not self.policy.worker)

    # --- attempts -----------------------------------------------------------------------------

    def _hear(self, flight: _Flight, event: Event) -> None:
        flight.waits = False
        match event:
            case RequestAdmitted():
                self._start_first(flight)
            case RequestShed(code, retry_after_s):
                self._give_up(flight, code, retry_after_s)

    def _start_first(self, flight: _Flight) -> None:
        replica = self.queues.choose_replica(POOL, flight.operation_id)
        if replica is None:
            # Its replica was taken out since it was let in, and no other slot is free: Envoy's to choose.
            replica = self._choose_by_weight()
            flight.beyond_slots = True
        flight.first_started_at = self.events.time
        self._start(flight, replica)

    def _choose_by_weight(self) -> ReplicaId:
        view = self.fleet.view.find(POOL)
        assert view is not None
        serving = [one for one in view.replicas if one.offer is Offer.SERVING]
        return self.random.choices(serving, [one.weight for one in serving])[0].id

    def _start(self, flight: _Flight, replica: ReplicaId) -> None:
        request = flight.request
        self._attempts += 1
        attempt_id = AttemptId(str(self._attempts))
        flight.attempt_id, flight.replica, flight.started_at = attempt_id, replica, self.events.time
        self.fleet.streams.note(AttemptLetGo(attempt_id, POOL))
        self.queues.start(POOL, flight.operation_id, attempt_id)
        self.fleet.streams.note(AttemptPlaced(attempt_id, POOL, replica))
        self.tally.count("attempts")
        job = Job(
            request.prompt,
            request.answer,
            partial(self._hear_first, flight),
            partial(self._hear_end, flight),
            partial(self._lose, flight),
        )
        flight.job = job
        if not self.engines[replica].submit(job):
            self._lose(flight)

    def _hear_first(self, flight: _Flight) -> None:
        replica, attempt_id = flight.replica, flight.attempt_id
        assert replica is not None
        assert attempt_id is not None
        self.tally.note_first(flight.request)
        self._streams[replica].add(attempt_id)
        self.fleet.experience.note_first_delta(
            replica,
            self.fleet.incarnation(replica),
            (),
            self.events.time - flight.started_at,
            self.events.time,
        )
        flight.begun = flight.request.stream
        flight.request.first_word()

    def _hear_end(self, flight: _Flight) -> None:
        self._finish(flight, AttemptOutcome.COMPLETED)
        del self._flights[flight.request.number]
        self._land(flight)
        flight.request.answered()

    def _finish(self, flight: _Flight, outcome: AttemptOutcome, dropped: bool = False) -> None:
        """The attempt is over; `dropped`: nobody says that its generation is."""
        attempt_id, replica = flight.attempt_id, flight.replica
        assert attempt_id is not None
        assert replica is not None
        acts_until = self.events.time + self.policy.failover.fence_s if dropped else None
        whole = outcome is AttemptOutcome.COMPLETED
        # A stream is heard of with every token; of a prompt that is computed nothing is.
        heard = whole or attempt_id in self._streams[replica]
        heard_at = self.events.time if heard else flight.started_at
        self._streams[replica].discard(attempt_id)
        flight.job = None
        self.queues.end(POOL, attempt_id, whole=whole, heard_at=heard_at)
        self.fleet.streams.note(
            AttemptFinished(flight.operation_id, attempt_id, POOL, replica, outcome, "", acts_until)
        )

    def _lose(self, flight: _Flight) -> None:
        """The connection is lost or refused, and the port refuses another: the process is dead."""
        replica = flight.replica
        self._finish(flight, AttemptOutcome.REPLICA_DIED)
        if flight.begun:
            del self._flights[flight.request.number]
            self._land(flight)
            flight.request.broken()
            return
        flight.attempts.append(PreviousAttempt(AttemptOutcome.REPLICA_DIED, replica))
        share, least = self.policy.budget
        # Who waits for a slot has not come as far as the cluster whose budget it is.
        active = len(self._flights) - self.queues.count_waiting(POOL)
        if not flight.replaying and self.retrying >= max(least, share * active):
            self._give_up(flight, "retry_budget_exhausted", self.random.randint(*RETRY_AFTER_S))
            return
        if not flight.replaying:
            flight.replaying = True
            self.retrying += 1
        self.events.after(self.random.uniform(0, self.policy.back_off_s), self._replay, flight)

    def _replay(self, flight: _Flight) -> None:
        if flight.request.over:
            return
        now, view = self.events.time, self.fleet.view.find(POOL)
        assert view is not None
        tried = {one.replica for one in flight.attempts if one.replica is not None}
        decision = decide_retry(
            RetryView(
                now=now,
                committed=False,
                client_waiting=True,
                attempts=tuple(flight.attempts),
                prompt_tokens=flight.request.prompt,
                first_started_at=flight.first_started_at,
                asked_at=now,
                deadline=None,
                candidates=choose_replay_candidates(view, None, tried, recent_replays=self.fleet.placed),
            ),
            self.policy.failover,
        )
        if isinstance(decision, Retry):
            self._start(flight, decision.target.replica)
            return
        code = getattr(decision, "code", "upstream_unavailable")
        retry_after = self.random.randint(*RETRY_AFTER_S) if CODES[code].sdk_retries else None
        self._give_up(flight, code, retry_after)

    def _give_up(self, flight: _Flight, code: str, retry_after_s: int | None) -> None:
        del self._flights[flight.request.number]
        self._land(flight)
        self._refuse(flight.request, code, retry_after_s)

    def _land(self, flight: _Flight) -> None:
        flight.waits = False
        if flight.timer is not None:
            flight.timer.cancel()
            flight.timer = None
        if flight.replaying:
            flight.replaying = False
            self.retrying -= 1
        self.queues.leave(POOL, flight.operation_id)

    def _refuse(self, request: Request, code: str, retry_after_s: float | None) -> None:
        self.tally.note_refused(request, code)
        request.refused(CODES[code].status, retry_after_s, CODES[code].sdk_retries)

    # --- the fleet's signals ------------------------------------------------------------------

    def _tick(self) -> None:
        """What `Fleet.run` does four times a second, and its listener with it."""
        self.fleet.tick()
        self.queues.look_at_all()
        self.events.after(TICK_S, self._tick)


def _hear_nothing(_: object) -> None:
    """Endpoints, metrics and logs are nobody's business here."""
