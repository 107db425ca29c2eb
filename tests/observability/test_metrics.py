"""The metrics page says what the notes said, under the contract's names and with bounded labels."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from envoy_ext import __version__
from envoy_ext.domain.availability import Availability, ServingReason
from envoy_ext.domain.client_errors import CODES
from envoy_ext.domain.fingerprint import Fingerprint
from envoy_ext.domain.fleet_events import ControlCallPassed, Discovered
from envoy_ext.domain.fleet_view import FleetView, Offer, PoolView, ReplicaProfile, ReplicaView
from envoy_ext.domain.ids import AttemptId, OperationId, PoolName, ReplicaId
from envoy_ext.domain.notes import (
    AttemptFinished,
    AttemptLetGo,
    AttemptPlaced,
    AttemptProved,
    FenceAwaited,
    FirstDelta,
    LedgerAwaited,
    MalformedEvents,
    PhaseChanged,
    ReplayRefused,
    ReplayStarted,
    StoreBack,
    StoreLost,
    StreamInterrupted,
    ToolCallEnded,
)
from envoy_ext.domain.outcomes import INFLIGHT_PHASES, AttemptOutcome, Ending, Phase, Reason
from envoy_ext.domain.readiness import ReplicaGate
from envoy_ext.domain.readiness_policy import ReadinessPolicy
from envoy_ext.domain.tool_calls import CallId, CallState
from envoy_ext.domain.tool_errors import CallOutcome
from envoy_ext.observability.metrics import Metrics, MetricsObserver
from tests.support.notes import CHAT, KINDS, SAMPLES, attempt_finished, exchange_ended

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]

LABELS = {
    "envoy_ext_exchanges_total": {"pool", "ending"},
    "envoy_ext_attempts_total": {"pool", "outcome"},
    "envoy_ext_circuit_opened_total": {"pool", "class"},
    "envoy_ext_replays_total": {"pool", "reason"},
    "envoy_ext_replays_refused_total": {"pool", "reason"},
    "envoy_ext_interrupted_streams_total": {"pool", "reason"},
    "envoy_ext_inflight": {"pool", "phase"},
    "envoy_ext_cancels_total": {"pool", "proof"},
    "envoy_ext_engine_aborts_total": {"pool", "result"},
    "envoy_ext_shed_total": {"pool", "code"},
    "envoy_ext_degraded_total": {"pool", "rung"},
    "envoy_ext_hand_offs_failed_total": {"pool"},
    "envoy_ext_answers_replayed_total": {"pool"},
    "envoy_ext_jobs": {"pool", "state"},
    "envoy_ext_jobs_ended_total": {"pool", "state"},
    "envoy_ext_queue_depth": {"pool"},
    "envoy_ext_repeats_waiting": set(),
    "envoy_ext_background_tasks": set(),
    "envoy_ext_queue_wait_seconds_count": set(),
    "envoy_ext_malformed_events_total": {"pool"},
    "envoy_ext_unrecorded_total": {"pool"},
    "envoy_ext_journal_up": set(),
    "envoy_ext_tool_calls_total": {"tool", "outcome"},
    "envoy_ext_tool_call_ends_total": {"tool", "state"},
    "envoy_ext_tool_calls_unrecorded_total": {"tool"},
    "envoy_ext_ttft_seconds_count": set(),
    "envoy_ext_chunk_seconds_count": set(),
    "envoy_ext_journal_append_seconds_count": set(),
    "envoy_ext_fence_wait_seconds_count": set(),
    "envoy_ext_journal_failures_total": set(),
    "envoy_ext_journal_operations": set(),
    "envoy_ext_journal_bytes": set(),
    "envoy_ext_journal_over_limit": set(),
    "envoy_ext_journal_forgotten_total": {"why"},
    "envoy_ext_callers_file_in_force": set(),
    "envoy_ext_bugs_total": set(),
    "envoy_ext_event_loop_lag_seconds_count": set(),
    "envoy_ext_event_loop_shed_total": set(),
    "envoy_ext_event_loop_shedding": set(),
    "envoy_ext_build_info": {"version"},
}


def read(metrics: Metrics) -> Series:
    """The page as a scraper reads it, without the `_created` times and the process's own figures."""
    page = generate_latest(metrics.registry).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name.startswith("envoy_ext_") and not sample.name.endswith("_created")
    }


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return read(metrics)[name, tuple(sorted(labels.items()))]


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(CollectorRegistry(), ["chat", "embed"])


@pytest.fixture
def observer(metrics: Metrics) -> MetricsObserver:
    return MetricsObserver(metrics)


def note_everything(metrics: Metrics, observer: MetricsObserver) -> None:
    for note in SAMPLES.values():
        observer.note(note)
    observer.note_bug("here", ValueError())
    observer.note_journal(0.001, failed=False)
    observer.note_journal(0.001, failed=True)
    observer.note(ToolCallEnded("mail", CallState.RECORDED, False, OperationId("op_1"), CallId("call_1")))
    metrics.admission.note_refusal("", "invalid_request")
    metrics.fleet.note_abort(CHAT, "asked")
    metrics.chunk.observe(0.0001)


FLEETS_OWN = (
    AttemptLetGo,
    AttemptPlaced,
    AttemptProved,
    FenceAwaited,
    LedgerAwaited,
)
"""What is counted where streams run."""


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in FLEETS_OWN])
def test_every_kind_of_note_that_is_counted_changes_a_metric(
    kind: type, metrics: Metrics, observer: MetricsObserver
) -> None:
    if kind is StoreBack:
        observer.note(SAMPLES[StoreLost])
    before = read(metrics)
    observer.note(SAMPLES[kind])
    assert read(metrics) != before


def test_the_names_and_their_labels_are_the_contracts(metrics: Metrics, observer: MetricsObserver) -> None:
    note_everything(metrics, observer)
    shown: dict[str, set[str]] = {}
    for name, labels in read(metrics):
        if not name.endswith(("_bucket", "_sum")):
            shown.setdefault(name, set()).update(label for label, _ in labels)
    assert shown == LABELS


def test_inflight_exists_at_zero_for_each_pool_and_phase_before_anything_happens(metrics: Metrics) -> None:
    shown = {labels: v for (name, labels), v in read(metrics).items() if name == "envoy_ext_inflight"}
    expected = {
        (("phase", phase), ("pool", pool)): 0.0
        for pool in ("chat", "embed")
        for phase in ("queued", "prefill", "decode")
    }
    assert shown == expected


def test_counters_of_known_words_exist_at_zero(metrics: Metrics) -> None:
    for ending in Ending:
        assert value(metrics, "envoy_ext_exchanges_total", pool="embed", ending=ending) == 0
    for outcome in AttemptOutcome:
        assert value(metrics, "envoy_ext_attempts_total", pool="chat", outcome=outcome) == 0
    for reason in Reason:
        assert value(metrics, "envoy_ext_interrupted_streams_total", pool="chat", reason=reason) == 0


def test_inflight_follows_an_exchange_through_its_phases_and_back_to_zero(
    metrics: Metrics, observer: MetricsObserver
) -> None:
    def counts() -> list[float]:
        return [value(metrics, "envoy_ext_inflight", pool="chat", phase=phase) for phase in INFLIGHT_PHASES]

    observer.note(PhaseChanged(CHAT, None, Phase.QUEUED))
    observer.note(PhaseChanged(CHAT, None, Phase.QUEUED))
    assert counts() == [2, 0, 0]
    observer.note(PhaseChanged(CHAT, Phase.QUEUED, Phase.PREFILL))
    assert counts() == [1, 1, 0]
    observer.note(PhaseChanged(CHAT, Phase.PREFILL, Phase.DECODE))
    assert counts() == [1, 0, 1]
    assert metrics.count_inflight("chat") == {Phase.QUEUED: 1, Phase.PREFILL: 0, Phase.DECODE: 1}
    observer.note(PhaseChanged(CHAT, Phase.DECODE, None))
    observer.note(PhaseChanged(CHAT, Phase.QUEUED, Phase.COMPLETED))
    assert counts() == [0, 0, 0]
    assert metrics.count_inflight("embed") == dict.fromkeys(INFLIGHT_PHASES, 0)


def test_ends_and_replays_are_counted_by_their_words(metrics: Metrics, observer: MetricsObserver) -> None:
    for kind in (ReplayStarted, ReplayRefused, StreamInterrupted, MalformedEvents):
        observer.note(SAMPLES[kind])
    observer.note(exchange_ended())
    observer.note(exchange_ended(ending=Ending.FINISHED))
    observer.note(exchange_ended(ending=Ending.FINISHED))
    observer.note(attempt_finished())
    assert value(metrics, "envoy_ext_exchanges_total", pool="chat", ending="upstream_broke") == 1
    assert value(metrics, "envoy_ext_exchanges_total", pool="chat", ending="finished") == 2
    assert value(metrics, "envoy_ext_attempts_total", pool="chat", outcome="replica_died") == 1
    assert value(metrics, "envoy_ext_replays_total", pool="chat", reason="replica_died") == 1
    assert value(metrics, "envoy_ext_replays_refused_total", pool="chat", reason="replay_not_allowed") == 1
    assert value(metrics, "envoy_ext_interrupted_streams_total", pool="chat", reason="replica_died") == 1
    assert value(metrics, "envoy_ext_malformed_events_total", pool="chat") == 3


def test_times_go_into_histograms_in_seconds(metrics: Metrics, observer: MetricsObserver) -> None:
    observer.note(FirstDelta(CHAT, 0.3))
    metrics.chunk.observe(30e-6)
    observer.note_journal(0.004, failed=False)
    assert value(metrics, "envoy_ext_ttft_seconds_sum") == pytest.approx(0.3)
    assert value(metrics, "envoy_ext_ttft_seconds_bucket", le="0.25") == 0
    assert value(metrics, "envoy_ext_ttft_seconds_bucket", le="0.5") == 1
    assert value(metrics, "envoy_ext_chunk_seconds_bucket", le="2.5e-05") == 0
    assert value(metrics, "envoy_ext_chunk_seconds_bucket", le="5e-05") == 1
    assert value(metrics, "envoy_ext_journal_append_seconds_bucket", le="0.0025") == 0
    assert value(metrics, "envoy_ext_journal_append_seconds_bucket", le="0.005") == 1


def test_a_failed_append_is_counted_and_not_timed(metrics: Metrics, observer: MetricsObserver) -> None:
    observer.note_journal(2.0, failed=True)
    assert value(metrics, "envoy_ext_journal_failures_total") == 1
    assert value(metrics, "envoy_ext_journal_append_seconds_count") == 0


def test_bugs_and_refusals_are_counted(metrics: Metrics, observer: MetricsObserver) -> None:
    observer.note_bug("session", RuntimeError())
    metrics.admission.note_refusal("", "invalid_request")
    metrics.fleet.note_abort(CHAT, "asked")
    metrics.admission.note_refusal("chat", "draining")
    metrics.admission.note_refusal("chat", "draining")
    assert value(metrics, "envoy_ext_bugs_total") == 1
    assert value(metrics, "envoy_ext_shed_total", pool="", code="invalid_request") == 1
    assert value(metrics, "envoy_ext_shed_total", pool="chat", code="draining") == 2


def test_the_running_release_is_shown(metrics: Metrics) -> None:
    assert value(metrics, "envoy_ext_build_info", version=__version__) == 1


def test_the_number_of_series_does_not_grow_with_the_number_of_requests(
    metrics: Metrics, observer: MetricsObserver
) -> None:
    note_everything(metrics, observer)
    for code in CODES:
        metrics.admission.note_refusal("chat", code)
    before = len(read(metrics))
    for number in range(500):
        observer.note(exchange_ended(request_id=f"req-{number}"))
        observer.note(
            AttemptFinished(
                OperationId(f"op_{number}"),
                AttemptId(f"att_{number}"),
                CHAT,
                ReplicaId(f"replica-{number}"),
                AttemptOutcome.REPLICA_DIED,
                f"detail {number}",
            )
        )
        observer.note(ReplayStarted(CHAT, ReplicaId(f"r{number}"), AttemptOutcome.REPLICA_DIED))
        observer.note(FirstDelta(CHAT, float(number)))
    assert len(read(metrics)) == before


def test_two_sidecars_in_one_process_share_no_number(metrics: Metrics) -> None:
    other = Metrics(CollectorRegistry(), [PoolName("chat")])
    MetricsObserver(other).note(exchange_ended())
    assert value(metrics, "envoy_ext_exchanges_total", pool="chat", ending="upstream_broke") == 0


def test_the_process_shows_its_own_memory_and_files(metrics: Metrics) -> None:
    page = generate_latest(metrics.registry).decode()
    assert {"process_resident_memory_bytes", "process_open_fds"} <= {
        sample.name for family in text_string_to_metric_families(page) for sample in family.samples
    }


def test_the_fleets_picture_is_shown_replica_by_replica(metrics: Metrics) -> None:
    metrics.fleet.note_view(build_view(serving=("a", 40), withheld=("b", 1)))
    metrics.fleet.note_scrape_failure(CHAT, ReplicaId("b"), "timeout")
    metrics.fleet.note_discovery(CHAT, listed=False)
    metrics.note_push("eds")
    metrics.note_nack("eds")
    value = metrics.registry.get_sample_value
    assert value("envoy_ext_replica_weight", {"pool": "chat", "replica": "a"}) == 40
    assert value("envoy_ext_replica_weight", {"pool": "chat", "replica": "b"}) == 0
    assert value("envoy_ext_replica_ready", {"pool": "chat", "replica": "a"}) == 1
    assert value("envoy_ext_replica_ready", {"pool": "chat", "replica": "b"}) == 0
    failures = {"pool": "chat", "replica": "b", "reason": "timeout"}
    assert value("envoy_ext_scrape_failures_total", failures) == 1
    assert value("envoy_ext_discovery_up", {"pool": CHAT}) == 0
    assert value("envoy_ext_xds_pushes_total", {"kind": "eds"}) == 1
    assert value("envoy_ext_xds_nacks_total", {"kind": "eds"}) == 1


def build_view(serving: tuple[str, int], withheld: tuple[str, int]) -> FleetView:
    """A pool of one replica that serves and one that does not, each with its weight."""
    replicas = []
    for (name, weight), offer in ((serving, Offer.SERVING), (withheld, Offer.WITHHELD)):
        gate = ReplicaGate(ReplicaId(name), CHAT, ReadinessPolicy(), 0.0)
        gate.receive(Discovered(), 0.0)
        if offer is Offer.SERVING:
            gate.receive(ControlCallPassed(1), 0.0)
        profile = ReplicaProfile(ReplicaId(name), Fingerprint(CHAT))
        replicas.append(ReplicaView(gate.read_status(0.0), profile, offer, weight))
    pool = PoolView(CHAT, 0.0, 0.0, Availability.NORMAL, ServingReason.READY, tuple(replicas), ())
    return FleetView((pool,))


def test_a_replica_that_is_gone_has_no_series_any_more() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry, [CHAT])
    for number in range(100):
        name = f"pod-{number}"
        metrics.fleet.note_view(build_view(serving=(name, 7), withheld=("b", 3)))
        metrics.fleet.note_scrape_failure(CHAT, ReplicaId(name), "timeout")
        metrics.fleet.note_scrape_failure(CHAT, ReplicaId(name), "refused")
    page = generate_latest(registry).decode()
    assert "pod-99" in page
    assert "pod-98" not in page
    assert registry.get_sample_value("envoy_ext_replica_ready", {"pool": CHAT, "replica": "b"}) == 0


def test_the_counters_of_a_configured_tool_exist_at_zero() -> None:
    metrics = Metrics(CollectorRegistry(), ["chat"], ["mail"])
    for outcome in CallOutcome:
        assert value(metrics, "envoy_ext_tool_calls_total", tool="mail", outcome=outcome) == 0
    shown = {labels for name, labels in read(metrics) if name == "envoy_ext_tool_call_ends_total"}
    states = ("not_kept", "not_sent", "recorded", "unknown")
    assert sorted(shown) == [(("state", state), ("tool", "mail")) for state in states]
