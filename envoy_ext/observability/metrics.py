"""Every metric of the sidecar: names, labels, buckets, and how the core's notes fill them.

The registry is passed in, so two sidecars (or two tests) in one process never share a number.
Labels hold configured names and closed sets of words only. Ids, and whatever a client may choose,
are never labels: each value would be a series that Prometheus keeps for good.
"""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, assert_never

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector

from envoy_ext import __version__
from envoy_ext.domain.boundaries import FORBIDDEN
from envoy_ext.domain.circuit import CircuitState
from envoy_ext.domain.circuit_evidence import FailureClass
from envoy_ext.domain.fleet_events import CircuitTurned
from envoy_ext.domain.fleet_view import FleetView
from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.domain.notes import (
    AnswerReplayed,
    AttemptFinished,
    AttemptLetGo,
    AttemptPlaced,
    AttemptProved,
    BoundaryHeld,
    ExchangeEnded,
    FenceAwaited,
    FenceReached,
    FirstDelta,
    HandOffFailed,
    JobEnded,
    JobSubmitted,
    LedgerAwaited,
    MalformedEvents,
    Note,
    PhaseChanged,
    ReplayRefused,
    ReplayStarted,
    RequestDegraded,
    RequestRefused,
    SlotGiven,
    StoreBack,
    StoreLost,
    StreamInterrupted,
    ToolCallDecided,
    ToolCallEnded,
    WentUnrecorded,
)
from envoy_ext.domain.outcomes import INFLIGHT_PHASES, AttemptOutcome, Ending, Phase, Reason, RungName
from envoy_ext.domain.retention import Why
from envoy_ext.domain.retry import RETRIABLE
from envoy_ext.domain.slots import CancelOver, CancelProof
from envoy_ext.observability.job_metrics import JobMetrics
from envoy_ext.observability.replica_metrics import ReplicaMetrics
from envoy_ext.observability.tool_metrics import ToolMetrics
from envoy_ext.ports import StoreSize

_TTFT_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
"""A short prompt on an idle GPU takes tens of milliseconds; a long prompt behind a queue takes
minutes, and a replay adds a second prefill to that."""
_FENCE_S: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 4.0, 6.0, 7.0, 8.0, 10.0, 20.0)
"""A refused connection proves a death in milliseconds; without any proof it is the lease and its margin."""
_QUEUE_S: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 300.0, 1800.0)
"""Most find a slot free (0). Waits end with `admission.max_wait`: 30 s by default, 30 minutes at most."""
_CHUNK_S: Final = (10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 50e-3, 250e-3, 1.0)
"""Reading one event costs tens of microseconds. Milliseconds mean chunks queueing for the event
loop; above 10 ms somebody blocked it, and at 50 ms a fast model's tokens arrive in bursts."""
_JOURNAL_S: Final = (
    100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3, 1.0, 2.5, 5.0
)  # fmt: skip
"""Memory and a group commit without fsync stay under a millisecond, an fsync takes one to tens of
them, a shared disk hundreds; the store gives up on a lock after 2 s."""


class Metrics:
    """The metric families, each in the registry given. To be used from one event loop."""

    def __init__(self, registry: CollectorRegistry, pools: Iterable[str], tools: Iterable[str] = ()) -> None:
        self.registry = registry
        self._inflight_counts = {PoolName(pool): dict.fromkeys(INFLIGHT_PHASES, 0) for pool in pools}
        self._failed: dict[tuple[PoolName, ReplicaId], set[str]] = {}
        """The reasons each replica has a series of scrape failures for."""
        self._build_exchange_families(registry)
        self._build_stream_families(registry)
        self._build_own_families(registry)
        self.tools = ToolMetrics(registry, tools)
        self.jobs = JobMetrics(registry, self._inflight_counts)
        self._create_known_series()

    def _build_exchange_families(self, registry: CollectorRegistry) -> None:
        self.exchanges = Counter(
            "envoy_ext_exchanges_total",
            "Exchanges that ended, by how they ended.",
            ["pool", "ending"],
            registry=registry,
        )
        self.attempts = Counter(
            "envoy_ext_attempts_total",
            "Attempts at a replica that ended, by how they ended.",
            ["pool", "outcome"],
            registry=registry,
        )
        self.replays = Counter(
            "envoy_ext_replays_total",
            "Attempts after the first one that were started, by the outcome of the one before.",
            ["pool", "reason"],
            registry=registry,
        )
        self.replays_refused = Counter(
            "envoy_ext_replays_refused_total",
            "Replays that were asked for and not allowed, by the error code the client is given.",
            ["pool", "reason"],
            registry=registry,
        )
        self.unrecorded = Counter(
            "envoy_ext_unrecorded_total",
            "Exchanges that went on although the journal could not be told of them.",
            ["pool"],
            registry=registry,
        )
        self.fence_wait = Histogram(
            "envoy_ext_fence_wait_seconds",
            "Time a replay waited until the attempt before it could act no more.",
            registry=registry,
            buckets=_FENCE_S,
        )
        self.shed = Counter(
            "envoy_ext_shed_total",
            "Requests answered with an error of ours before they were let in; no pool if none was found.",
            ["pool", "code"],
            registry=registry,
        )
        self.answers_replayed = Counter(
            "envoy_ext_answers_replayed_total",
            "Repeats of completed operations that were given the kept answer.",
            ["pool"],
            registry=registry,
        )
        self.repeats_waiting = Gauge(
            "envoy_ext_repeats_waiting",
            "Repeats that wait for the end of the operation they repeat; Envoy keeps the body of each.",
            registry=registry,
        )
        self.background_tasks = Gauge(
            "envoy_ext_background_tasks",
            "Work of the sidecar beside its streams that has not ended; 0 when nothing is in flight.",
            registry=registry,
        )
        self.hand_offs_failed = Counter(
            "envoy_ext_hand_offs_failed_total",
            "Requests that were to be handed to a person, and that nobody took.",
            ["pool"],
            registry=registry,
        )
        self.degraded = Counter(
            "envoy_ext_degraded_total",
            "Requests that went on or were answered with less than they asked for, by what was given up.",
            ["pool", "rung"],
            registry=registry,
        )
        self.queue_depth = Gauge(
            "envoy_ext_queue_depth", "Requests that wait for a slot.", ["pool"], registry=registry
        )
        self.queue_wait = Histogram(
            "envoy_ext_queue_wait_seconds",
            "Time a request waited until it was given a slot, in pools with a limit; 0 where one was free.",
            registry=registry,
            buckets=_QUEUE_S,
        )

    def _build_stream_families(self, registry: CollectorRegistry) -> None:
        self.interrupted_streams = Counter(
            "envoy_ext_interrupted_streams_total",
            "Streams that ended with a typed event or a reset after their first delta.",
            ["pool", "reason"],
            registry=registry,
        )
        self.malformed_events = Counter(
            "envoy_ext_malformed_events_total",
            "Events of replicas that were not JSON and were passed on unread.",
            ["pool"],
            registry=registry,
        )
        self.inflight = Gauge(
            "envoy_ext_inflight",
            "Exchanges in flight, by phase.",
            ["pool", "phase"],
            registry=registry,
        )
        self.ttft = Histogram(
            "envoy_ext_ttft_seconds",
            "Time from a request's arrival to its first delta, all attempts and waits included.",
            registry=registry,
            buckets=_TTFT_S,
        )
        self.chunk = Histogram(
            "envoy_ext_chunk_seconds",
            "Time a response chunk spends in the sidecar.",
            registry=registry,
            buckets=_CHUNK_S,
        )

    def _build_own_families(self, registry: CollectorRegistry) -> None:
        self.journal_append = Histogram(
            "envoy_ext_journal_append_seconds",
            "Time of journal appends that succeeded.",
            registry=registry,
            buckets=_JOURNAL_S,
        )
        self.journal_up = Gauge(
            "envoy_ext_journal_up",
            "Whether the store of the journal takes writes.",
            registry=registry,
        )
        self.journal_up.set(1)
        self.journal_failures = Counter(
            "envoy_ext_journal_failures_total",
            "Journal appends that could not be done.",
            registry=registry,
        )
        self.journal_operations = Gauge(
            "envoy_ext_journal_operations", "Operations in the journal.", registry=registry
        )
        self.journal_operations.set(math.nan)  # not known before the first look
        self.journal_bytes = Gauge(
            "envoy_ext_journal_bytes",
            "What they take in the store, without room that is free again; NaN where it cannot tell.",
            registry=registry,
        )
        self.journal_bytes.set(math.nan)
        self.journal_over_limit = Gauge(
            "envoy_ext_journal_over_limit",
            "1 while the journal holds more than its limits allow, and nothing of it may go.",
            registry=registry,
        )
        self.journal_forgotten = Counter(
            "envoy_ext_journal_forgotten_total",
            "Ended operations that were removed from the journal by this gateway, by what for.",
            ["why"],
            registry=registry,
        )
        self.callers_file_in_force = Gauge(
            "envoy_ext_callers_file_in_force",
            "0 while the file of callers is bad, and the one before it holds; 1 without a file too.",
            registry=registry,
        )
        self.callers_file_in_force.set(1)
        self.bugs = Counter(
            "envoy_ext_bugs_total",
            "Exceptions that should not be; each ended one exchange or one request and nothing else.",
            registry=registry,
        )
        self.cancels = Counter(
            "envoy_ext_cancels_total",
            "Attempts that were cancelled and are known to be computed no more, by what is known of it.",
            ["pool", "proof"],
            registry=registry,
        )
        self.circuit_opened = Counter(
            "envoy_ext_circuit_opened_total",
            "Circuits that have opened, or opened again after a trial, by the class of failure.",
            ["pool", "class"],
            registry=registry,
        )
        self.engine_aborts = Counter(
            "envoy_ext_engine_aborts_total",
            "Calls to an engine to end a cancelled attempt: asked, or why it could not be.",
            ["pool", "result"],
            registry=registry,
        )
        self._replicas = ReplicaMetrics(registry)
        self.discovery_up = Gauge(
            "envoy_ext_discovery_up",
            "Whether the source of a pool's replicas tells who is there; while not, its last list stands.",
            ["pool"],
            registry=registry,
        )
        self.scrape_failures = Counter(
            "envoy_ext_scrape_failures_total",
            "Looks at a replica that gave nothing.",
            ["pool", "replica", "reason"],
            registry=registry,
        )
        self.xds_pushes = Counter(
            "envoy_ext_xds_pushes_total",
            "Answers to Envoys that brought something.",
            ["kind"],
            registry=registry,
        )
        self.xds_nacks = Counter(
            "envoy_ext_xds_nacks_total", "Answers that an Envoy refused.", ["kind"], registry=registry
        )
        Info("envoy_ext_build", "The running release.", registry=registry).info({"version": __version__})
        # Memory, CPU and open files under the names every exporter has (process_*).
        ProcessCollector(registry=registry)

    def _create_known_series(self) -> None:
        """Every series whose labels are known from the start begins at 0: `rate()` and `increase()`
        do not see a counter that first appears as 1."""
        for why in Why:
            self.journal_forgotten.labels(why)
        for pool in self._inflight_counts:
            self.malformed_events.labels(pool)
            self.answers_replayed.labels(pool)
            self.unrecorded.labels(pool)
            self.queue_depth.labels(pool)
            for code in (
                "queue_full",
                "queue_deadline_exceeded",
                "no_ready_replica",
                "upstream_unavailable",
                FORBIDDEN,
            ):
                self.shed.labels(pool, code)
            for kind in FailureClass:
                self.circuit_opened.labels(pool, kind)
            self.hand_offs_failed.labels(pool)
            for rung in RungName:
                if rung is not RungName.REFUSE:
                    self.degraded.labels(pool, rung)
            for phase in INFLIGHT_PHASES:
                self.inflight.labels(pool, phase).set(0)
            for ending in Ending:
                self.exchanges.labels(pool, ending)
            for outcome in AttemptOutcome:
                self.attempts.labels(pool, outcome)
            for outcome in sorted(RETRIABLE):
                self.replays.labels(pool, outcome)
            for reason in Reason:
                self.interrupted_streams.labels(pool, reason)
            for proof in CancelProof:
                self.cancels.labels(pool, proof)

    def watch_queues(self, count_waiting: Callable[[PoolName], int]) -> None:
        """From where the depth of each pool's queue is read, whenever somebody looks."""
        for pool in self._inflight_counts:
            self.queue_depth.labels(pool).set_function(partial(count_waiting, pool))

    def watch_repeats(self, count_waiting: Callable[[], int]) -> None:
        """From where the number of repeats that wait is read."""
        self.repeats_waiting.set_function(count_waiting)

    def watch_background(self, count: Callable[[], int]) -> None:
        """From where the number of tasks is read that belong to exchanges."""
        self.background_tasks.set_function(count)

    def note_refusal(self, pool: str, code: str) -> None:
        """A request was answered with an error of ours, and was not let in.

        `pool` is "" when none was found for it; `code` is one of `client_errors.CODES`.
        """
        self.shed.labels(pool, code).inc()

    def note_fleet(self, view: FleetView) -> None:
        """The picture has changed. Who is not in it any more has no series: pods come and go for good."""
        self._replicas.view = view
        if self._failed:
            shown = {(pool.pool, replica.id) for pool in view.pools for replica in pool.replicas}
            for gone in self._failed.keys() - shown:
                for reason in self._failed.pop(gone):
                    self.scrape_failures.remove(*gone, reason)

    def note_scrape_failure(self, pool: PoolName, replica: ReplicaId, reason: str) -> None:
        """A look gave nothing; `reason` is one of `domain.sample`'s."""
        self.scrape_failures.labels(pool, replica, reason).inc()
        self._failed.setdefault((pool, replica), set()).add(reason)

    def note_cancel(self, over: CancelOver) -> None:
        """A cancelled attempt is computed no more."""
        self.cancels.labels(over.pool, over.proof).inc()

    def watch_circuits(self, read: Callable[[ReplicaId], CircuitState | None]) -> None:
        """Where the state of a replica's circuit comes from."""
        self._replicas.read_circuit = read

    def note_circuit(self, turned: CircuitTurned) -> None:
        """A circuit is in another state. A control call that failed is no opening of its own."""
        opened = turned.after is CircuitState.OPEN and turned.before is not CircuitState.PROBING
        if opened and turned.kind is not None:
            self.circuit_opened.labels(turned.pool, turned.kind).inc()

    def note_abort(self, pool: PoolName, result: str) -> None:
        """An engine was asked to end a cancelled attempt; `result` is "asked" or one of `domain.sample`'s."""
        self.engine_aborts.labels(pool, result).inc()

    def note_discovery(self, pool: PoolName, listed: bool) -> None:
        """A pool's source of replicas told a list, or that it cannot."""
        self.discovery_up.labels(pool).set(listed)

    def note_push(self, kind: str) -> None:
        """An Envoy was sent resources of this kind."""
        self.xds_pushes.labels(kind).inc()

    def note_nack(self, kind: str) -> None:
        """An Envoy refused resources of this kind."""
        self.xds_nacks.labels(kind).inc()

    def note_forgotten(self, why: Why, operations: int) -> None:
        """Ended operations were removed from the journal."""
        self.journal_forgotten.labels(why).inc(operations)

    def note_journal_size(self, size: StoreSize, over_limit: bool) -> None:
        """How much the journal holds."""
        self.journal_operations.set(size.operations)
        self.journal_bytes.set(math.nan if size.bytes is None else size.bytes)
        self.journal_over_limit.set(over_limit)

    def note_callers_file(self, *, in_force: bool) -> None:
        """The file of callers was read again."""
        self.callers_file_in_force.set(in_force)

    def note_chunk(self, seconds: float) -> None:
        """A response chunk was in our hands for this long."""
        self.chunk.observe(seconds)

    def move_inflight(self, pool: PoolName, before: Phase | None, after: Phase | None) -> None:
        """An exchange went from one phase to another; None and the ended phases are "not in flight"."""
        counts = self._inflight_counts.setdefault(pool, dict.fromkeys(INFLIGHT_PHASES, 0))
        for phase, change in ((before, -1), (after, 1)):
            if phase in counts:
                counts[phase] += change
                self.inflight.labels(pool, phase).set(counts[phase])

    def count_inflight(self, pool: str) -> dict[Phase, int]:
        """A pool's exchanges in flight, by phase."""
        return dict(self._inflight_counts[PoolName(pool)])


class MetricsObserver:
    """`ports.Observer` that counts."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def note(self, note: Note) -> None:
        """Count one note of the core."""
        metrics = self._metrics
        match note:
            case PhaseChanged():
                metrics.move_inflight(note.pool, note.before, note.after)
            case FirstDelta():
                metrics.ttft.observe(note.ttft_s)
            case ReplayStarted():
                metrics.replays.labels(note.pool, note.reason).inc()
            case FenceReached():
                metrics.fence_wait.observe(note.waited_s)
            case ReplayRefused():
                metrics.replays_refused.labels(note.pool, note.code).inc()
            case AttemptFinished():
                metrics.attempts.labels(note.pool, note.outcome).inc()
            case StreamInterrupted():
                metrics.interrupted_streams.labels(note.pool, note.reason).inc()
            case ExchangeEnded():
                metrics.exchanges.labels(note.pool, note.ending).inc()
            case AttemptLetGo() | AttemptPlaced() | AttemptProved() | FenceAwaited():
                pass  # where streams run is the fleet's own figure
            case LedgerAwaited():
                pass  # its attempt is counted, or its refusal
            case WentUnrecorded():
                metrics.unrecorded.labels(note.pool).inc()
            case StoreLost():
                metrics.journal_up.set(0)
            case StoreBack():
                metrics.journal_up.set(1)
            case RequestRefused():
                metrics.note_refusal(note.pool or "", note.code)
            case HandOffFailed():
                metrics.hand_offs_failed.labels(note.pool).inc()
            case RequestDegraded():
                for rung in note.rungs:
                    metrics.degraded.labels(note.pool, rung).inc()
            case BoundaryHeld():
                metrics.note_refusal(note.pool, FORBIDDEN)
            case AnswerReplayed():
                metrics.answers_replayed.labels(note.pool).inc()
            case JobSubmitted():
                pass  # counted where it waits, and when it ends
            case JobEnded():
                metrics.jobs.note_ended(note)
            case SlotGiven():
                metrics.queue_wait.observe(note.waited_s)
            case MalformedEvents():
                metrics.malformed_events.labels(note.pool).inc(note.count)
            case ToolCallDecided():
                metrics.tools.note_decided(note)
            case ToolCallEnded():
                metrics.tools.note_ended(note)
            case _:
                assert_never(note)

    def note_bug(self, where: str, error: BaseException) -> None:
        """Count it; where it was is for the log."""
        self._metrics.bugs.inc()

    def note_journal(self, seconds: float, failed: bool) -> None:
        """Time a good append, count a failed one: its time says how long a store was waited for."""
        if failed:
            self._metrics.journal_failures.inc()
        else:
            self._metrics.journal_append.observe(seconds)
