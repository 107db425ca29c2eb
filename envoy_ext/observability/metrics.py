"""Every metric of the sidecar: names, labels, buckets, and how the core's notes fill them.

The registry is passed in, so two sidecars (or two tests) in one process never share a number.
Labels hold configured names and closed sets of words only. Ids, and whatever a client may choose,
are never labels: each value would be a series that Prometheus keeps for good.

The families of admission, the fleet, the journal, tools and jobs stand in files of their own beside this one.
"""

from collections.abc import Callable, Iterable
from typing import Final, assert_never

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector

from envoy_ext import __version__
from envoy_ext.domain.boundaries import FORBIDDEN
from envoy_ext.domain.ids import PoolName
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
from envoy_ext.domain.outcomes import INFLIGHT_PHASES, AttemptOutcome, Ending, Phase, Reason
from envoy_ext.domain.retry import RETRIABLE
from envoy_ext.observability.admission_metrics import AdmissionMetrics
from envoy_ext.observability.fleet_metrics import FleetMetrics
from envoy_ext.observability.job_metrics import JobMetrics
from envoy_ext.observability.journal_metrics import JournalMetrics
from envoy_ext.observability.loop_metrics import LoopMetrics
from envoy_ext.observability.quick_histogram import QuickHistogram
from envoy_ext.observability.tool_metrics import ToolMetrics

_TTFT_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
"""A short prompt on an idle GPU takes tens of milliseconds; a long prompt behind a queue takes
minutes, and a replay adds a second prefill to that."""
_FENCE_S: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 4.0, 6.0, 7.0, 8.0, 10.0, 20.0)
"""A refused connection proves a death in milliseconds; without any proof it is the lease and its margin."""
_CHUNK_S: Final = (10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 50e-3, 250e-3, 1.0)
"""Reading one event costs tens of microseconds. Milliseconds mean chunks queueing for the event
loop; above 10 ms somebody blocked it, and at 50 ms a fast model's tokens arrive in bursts."""


class Metrics:
    """The metric families, each in the registry given. To be used from one event loop."""

    def __init__(self, registry: CollectorRegistry, pools: Iterable[str], tools: Iterable[str] = ()) -> None:
        self.registry = registry
        self._inflight_counts = {PoolName(pool): dict.fromkeys(INFLIGHT_PHASES, 0) for pool in pools}
        self._build_exchange_families(registry)
        self._build_stream_families(registry)
        self._build_own_families(registry)
        self.admission = AdmissionMetrics(registry, self._inflight_counts)
        self.fleet = FleetMetrics(registry, self._inflight_counts)
        self.journal = JournalMetrics(registry)
        self.loop = LoopMetrics(registry)
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
        self.chunk = QuickHistogram(
            "envoy_ext_chunk_seconds",
            "Time a response chunk spends in the sidecar.",
            registry=registry,
            buckets=_CHUNK_S,
        )

    def _build_own_families(self, registry: CollectorRegistry) -> None:
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
        for pool in self._inflight_counts:
            self.malformed_events.labels(pool)
            self.answers_replayed.labels(pool)
            self.unrecorded.labels(pool)
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

    def watch_repeats(self, count_waiting: Callable[[], int]) -> None:
        """From where the number of repeats that wait is read."""
        self.repeats_waiting.set_function(count_waiting)

    def watch_background(self, count: Callable[[], int]) -> None:
        """From where the number of tasks is read that belong to exchanges."""
        self.background_tasks.set_function(count)

    def note_push(self, kind: str) -> None:
        """An Envoy was sent resources of this kind."""
        self.xds_pushes.labels(kind).inc()

    def note_nack(self, kind: str) -> None:
        """An Envoy refused resources of this kind."""
        self.xds_nacks.labels(kind).inc()

    def note_callers_file(self, *, in_force: bool) -> None:
        """The file of callers was read again."""
        self.callers_file_in_force.set(in_force)

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
                metrics.journal.up.set(0)
            case StoreBack():
                metrics.journal.up.set(1)
            case RequestRefused():
                metrics.admission.note_refusal(note.pool or "", note.code)
            case HandOffFailed():
                metrics.admission.hand_offs_failed.labels(note.pool).inc()
            case RequestDegraded():
                for rung in note.rungs:
                    metrics.admission.degraded.labels(note.pool, rung).inc()
            case BoundaryHeld():
                metrics.admission.note_refusal(note.pool, FORBIDDEN)
            case AnswerReplayed():
                metrics.answers_replayed.labels(note.pool).inc()
            case JobSubmitted():
                pass  # counted where it waits, and when it ends
            case JobEnded():
                metrics.jobs.note_ended(note)
            case SlotGiven():
                metrics.admission.queue_wait.observe(note.waited_s)
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
        """Time a good append, count a failed one."""
        self._metrics.journal.note_append(seconds, failed)
