"""What takes a replica out and what lets it back in: load, hardware, hangs, silence, own failures."""

import math
from dataclasses import replace

import pytest

from envoy_ext.domain.fleet_events import DependencyChanged
from envoy_ext.domain.outcomes import AttemptOutcome
from envoy_ext.domain.readiness_reasons import KINDS, ReadinessReason
from envoy_ext.domain.replica_life import ReplicaState
from envoy_ext.domain.replica_status import KnownLoad, Liveness
from envoy_ext.domain.sample import Sample
from tests.support.fleet_builders import IDLE, POLICY, DrivenReplica, gpu, ready_replica

S = ReplicaState
HOLD = POLICY.hold_s


def test_every_reason_has_a_kind():
    assert set(KINDS) == set(ReadinessReason)


# --- load -------------------------------------------------------------------------------------

FULL = [("kv_cache_usage", 0.97, 0.90, 0.80), ("waiting", 20, 8, 1)]


@pytest.mark.parametrize(("signal", "high", "between", "low"), FULL)
def test_a_full_replica_is_saturated_after_the_hold_and_never_dead(signal, high, between, low):
    replica = ready_replica()
    replica.scrape(**{signal: high})
    replica.wait(HOLD - 1)
    assert replica.state is S.READY
    replica.wait(1)
    assert replica.state is S.SATURATED
    assert replica.status.liveness is Liveness.ALIVE
    assert not replica.status.ready
    replica.scrape(**{signal: between})
    replica.wait(100)
    assert replica.state is S.SATURATED
    replica.scrape(**{signal: low})
    replica.wait(2 * HOLD - 1)
    assert replica.state is S.SATURATED, "good for as long as it was full, and the hold"
    replica.wait(1)
    assert replica.state is S.READY


@pytest.mark.parametrize("missing", [None, math.nan, math.inf])
@pytest.mark.parametrize(("signal", "high"), [("kv_cache_usage", 0.97), ("waiting", 20)])
def test_a_value_that_is_missing_is_not_below_any_threshold(signal, high, missing):
    replica = ready_replica()
    replica.scrape(**{signal: high})
    replica.wait(HOLD)
    assert replica.state is S.SATURATED
    replica.scrape(**{signal: missing})
    replica.wait(600)
    assert replica.state is S.SATURATED


def test_two_reasons_stand_until_both_are_over():
    replica = ready_replica()
    replica.scrape(kv_cache_usage=0.97, waiting=20)
    replica.wait(HOLD)
    assert replica.reasons == ["kv_cache", "waiting"]
    replica.scrape(waiting=0)
    replica.wait(2 * HOLD)
    assert replica.reasons == ["kv_cache"]
    assert replica.state is S.SATURATED
    replica.scrape(kv_cache_usage=0.1)
    replica.wait(4 * HOLD)
    assert replica.state is S.READY


def test_the_sentence_for_people_has_the_number_and_both_thresholds():
    replica = ready_replica()
    replica.scrape(kv_cache_usage=0.97)
    replica.wait(HOLD)
    replica.scrape(kv_cache_usage=0.99)
    assert replica.status.findings[0].text == "99% of the KV cache is in use (leaves at 95, returns at 85 %)"


def test_a_series_of_allocation_failures_saturates_and_single_ones_do_not():
    replica = ready_replica()
    for count in range(40):
        replica.scrape(allocation_failures=count // 2)
        replica.wait(1)
    assert replica.moves == []
    for count in range(100, 107):
        replica.scrape(allocation_failures=count)
        replica.wait(1, every=9)
    assert replica.reasons == ["allocation_failures"]
    assert replica.state is S.SATURATED
    replica.wait(2 * HOLD + 2)
    assert replica.state is S.READY


def test_a_status_tells_the_last_page_its_age_and_what_is_known_of_the_load():
    replica = ready_replica()
    replica.scrape(running=3, waiting=2, kv_cache_usage=0.4, max_running=64)
    replica.fail("timeout")
    replica.sleep(4)
    status = replica.status
    assert (status.sample.running, status.sample_age_s, status.fresh) == (3, 4.0, True)
    assert status.load == KnownLoad(3, 2, 0.4, 64)
    assert status.was_ready
    replica.sleep(6)
    status = replica.status
    assert (status.sample.running, status.sample_age_s, status.fresh) == (3, 10.0, False)
    assert status.load == KnownLoad()
    assert status.findings[0].text == "no metrics for 10 s (timeout)"


def test_a_replica_that_only_ever_was_full_has_served():
    replica = DrivenReplica(policy=replace(POLICY, hold_s=0.0))
    assert not replica.status.was_ready
    replica.scrape(kv_cache_usage=0.99)
    assert replica.state is S.SATURATED
    assert replica.status.was_ready


# --- hardware, sleep, dependencies -----------------------------------------------------------

BROKEN_GPUS = {
    "gpu_xid": gpu(xid=79),
    "gpu_ecc": gpu(ecc_double_bit=1),
    "gpu_row_remap": gpu(row_remap_failure=True),
}


@pytest.mark.parametrize(("reason", "broken"), BROKEN_GPUS.items())
def test_broken_hardware_takes_a_replica_out_at_the_first_look(reason, broken):
    replica = ready_replica()
    replica.scrape(gpus=(gpu("0", xid=0), replace(broken, gpu="1")))
    assert (replica.state, replica.reasons) == (S.UNREADY, [reason])
    assert "GPU 1" in replica.status.findings[0].text
    replica.scrape(gpus=(gpu("0", xid=0, ecc_double_bit=0, row_remap_failure=False),))
    replica.wait(HOLD)
    assert replica.state is S.WARMING


def test_the_hottest_gpu_speaks_for_all():
    replica = ready_replica()
    replica.scrape(gpus=(gpu("0", temperature_c=50), gpu("1", temperature_c=93)))
    replica.wait(HOLD)
    assert replica.reasons == ["gpu_temperature"]
    assert "GPU 1 has 93 °C" in replica.status.findings[0].text
    replica.scrape(gpus=(gpu("0", temperature_c=50), gpu("1", temperature_c=79)))
    replica.wait(2 * HOLD)
    assert replica.state is S.WARMING


@pytest.mark.parametrize("blank", [9223372036854775794.0, math.nan])
def test_an_exporters_blank_is_no_heat(blank):
    replica = ready_replica()
    replica.scrape(gpus=(gpu(temperature_c=44, memory_temperature_c=blank),))
    replica.wait(60)
    assert replica.state is S.READY
    replica.scrape(gpus=(gpu(temperature_c=blank),))
    replica.wait(60)
    assert replica.state is S.READY


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68, 109])
def test_an_error_of_the_program_on_a_gpu_is_shown_and_benches_nobody(code):
    replica = ready_replica()
    replica.scrape(gpus=(gpu(xid=code),))
    replica.wait(60)
    assert replica.state is S.READY
    assert replica.reasons == ["gpu_xid_application"]


def test_a_pending_row_remap_is_a_remark():
    replica = ready_replica()
    replica.scrape(gpus=(gpu(row_remap_pending=True),))
    assert (replica.state, replica.reasons) == (S.READY, ["gpu_row_remap_pending"])


def test_an_exporter_that_falls_silent_neither_cures_nor_breaks_a_gpu():
    replica = ready_replica()
    replica.scrape(gpus=(gpu(xid=79),))
    replica.scrape(gpus=())
    replica.wait(600)
    assert replica.reasons == ["gpu_xid"]


def test_a_sleeping_engine_gets_no_work_until_it_is_awake_for_the_hold():
    replica = ready_replica()
    replica.scrape(sleeping=True)
    assert (replica.state, replica.reasons) == (S.UNREADY, ["sleeping"])
    assert not replica.gate.is_control_call_due(replica.now)
    replica.scrape(sleeping=False)
    replica.wait(HOLD)
    assert replica.state is S.WARMING
    assert replica.gate.incarnation == 1


def test_a_dead_engine_behind_a_living_server_gets_no_work_from_the_first_look_on():
    replica = ready_replica()
    replica.fail("engine_dead")
    assert (replica.state, replica.reasons) == (S.UNREADY, ["engine_dead"])
    assert replica.status.liveness is Liveness.ALIVE
    assert not replica.gate.is_control_call_due(replica.now)
    replica.wait(600)
    assert (replica.state, replica.reasons) == (S.UNREADY, ["engine_dead", "metrics_stale"])


def test_the_next_process_at_the_place_of_a_dead_engine_starts_afresh():
    replica = ready_replica()
    replica.fail("engine_dead")
    replica.fail("refused")
    replica.page = replace(IDLE, process_started_at=IDLE.process_started_at + 100, requests_total=0)
    replica.wait(POLICY.slow_start_s + 2)
    assert (replica.state, replica.reasons) == (S.READY, [])
    assert replica.gate.incarnation == 2


def test_restarts_are_no_flapping_of_the_load_that_comes_after_them():
    replica = ready_replica()
    for number in (1, 2):
        replica.fail("refused")
        replica.wait(3)
        started_at = IDLE.process_started_at + 100 * number
        replica.page = replace(IDLE, process_started_at=started_at, requests_total=0)
        replica.wait(POLICY.slow_start_s + 2)
        assert (replica.state, replica.gate.incarnation) == (S.READY, number + 1)
    replica.scrape(waiting=20)
    replica.wait(HOLD)
    assert replica.reasons == ["waiting"]
    replica.scrape(waiting=0)
    replica.wait(3 * HOLD)  # it must be good for as long as it was bad
    assert (replica.state, replica.reasons) == (S.READY, [])


def test_a_lost_dependency_takes_a_replica_out_for_as_long_as_it_is_lost():
    replica = ready_replica()
    replica.send(DependencyChanged("adapters", reachable=False))
    replica.send(DependencyChanged("weights", reachable=False))
    assert (replica.state, replica.reasons) == (S.UNREADY, ["dependency"])
    assert replica.status.findings[0].text == "cannot reach adapters, weights"
    replica.send(DependencyChanged("adapters", reachable=True))
    assert replica.state is S.UNREADY
    replica.send(DependencyChanged("weights", reachable=True))
    assert replica.state is S.WARMING


# --- hang -------------------------------------------------------------------------------------

LOCKED = {"running": 0, "waiting": 9, "kv_cache_usage": 0.41}
HANG_POLICY = replace(POLICY, hang_s=60.0)


def test_a_locked_scheduler_with_nothing_running_and_a_queue_is_hung():
    replica = ready_replica(policy=HANG_POLICY)
    replica.scrape(**LOCKED)
    replica.wait(59)
    assert replica.state is S.READY
    replica.wait(1)
    assert (replica.state, replica.reasons) == (S.UNREADY, ["hang"])
    assert replica.status.liveness is Liveness.ALIVE


def test_a_page_that_tells_only_the_queue_shows_work():
    replica = ready_replica(policy=HANG_POLICY)
    replica.scrape(running=None, waiting=3)
    replica.wait(61)
    assert replica.reasons == ["hang"]


def test_a_page_that_tells_neither_running_nor_waiting_leaves_the_work_as_it_was():
    replica = ready_replica(policy=HANG_POLICY)
    replica.scrape(running=2)
    replica.scrape(running=None, waiting=None)
    replica.wait(61)
    assert replica.reasons == ["hang"]


def test_the_work_of_the_last_process_is_not_the_work_of_this_one():
    replica = ready_replica(policy=HANG_POLICY)
    replica.scrape(running=2)
    replica.scrape(running=None, waiting=None, process_started_at=IDLE.process_started_at + 90)
    replica.wait(300)
    assert replica.state is S.READY


def test_a_queue_that_grows_is_no_progress():
    replica = ready_replica(policy=HANG_POLICY)
    for waiting in range(1, 16):
        replica.scrape(**{**LOCKED, "waiting": waiting})
        replica.wait(4)
    replica.wait(1)
    assert replica.reasons == ["hang"]


MOVING = {
    "the live counter": [{"progress": 2_000.0}, {"progress": 2_800.0}],
    "the share of the KV cache, in a chunked prefill": [{"kv_cache_usage": 0.42}, {"kv_cache_usage": 0.43}],
    "the number running": [{"running": 4}, {"running": 3}],
    "finished requests": [{"requests_total": 51}, {"requests_total": 52}],
}


@pytest.mark.parametrize("steps", MOVING.values(), ids=MOVING.keys())
def test_anything_that_moves_in_any_phase_is_progress(steps):
    replica = ready_replica(policy=HANG_POLICY)
    replica.scrape(running=2, waiting=0, kv_cache_usage=0.41)
    for step in steps:
        replica.wait(50)
        replica.scrape(**step)
    replica.wait(50)
    assert replica.moves == []


def test_token_totals_that_stand_still_are_no_hang_where_the_live_counter_moves():
    """SGLang counts tokens when a request ends: 10 s apart only the live counter of decode steps moved."""
    replica = ready_replica(policy=replace(POLICY, hang_s=9.0))
    replica.scrape(running=3, requests_total=50, progress=10_000)
    replica.wait(8)
    replica.scrape(progress=10_800)
    replica.wait(8)
    assert replica.state is S.READY


def test_bytes_on_our_own_streams_are_progress_where_the_engine_shows_none():
    replica = ready_replica(policy=HANG_POLICY)
    replica.inflight(1)
    replica.streaming = True
    replica.scrape(running=1, progress=None, kv_cache_usage=None, requests_total=None)
    replica.wait(600)
    assert replica.state is S.READY
    replica.streaming = False
    replica.wait(61)
    assert replica.reasons == ["hang"]


def test_an_idle_engine_does_not_hang():
    replica = ready_replica(policy=HANG_POLICY)
    replica.wait(6_000)
    assert replica.moves == []


def test_the_clock_of_a_hang_starts_with_the_work():
    replica = ready_replica(policy=HANG_POLICY)
    replica.wait(600)
    replica.scrape(running=1)
    replica.wait(59)
    assert replica.state is S.READY


def test_silent_streams_of_our_own_hang_an_engine_without_pages():
    replica = DrivenReplica(policy=HANG_POLICY)
    replica.fail("unsupported")
    replica.wait(40)
    replica.inflight(2)
    replica.wait(61)
    assert "hang" in replica.reasons


def test_a_hang_is_a_deadline_and_needs_no_event():
    replica = DrivenReplica(policy=HANG_POLICY)
    replica.fail("unsupported")
    replica.inflight(2)
    replica.sleep(59.9)
    assert "hang" not in replica.reasons
    replica.sleep(0.1)
    assert "hang" in replica.reasons


def test_a_hung_engine_that_moves_again_comes_back_after_the_hold():
    replica = ready_replica(policy=HANG_POLICY)
    replica.scrape(**LOCKED)
    replica.wait(70)
    assert replica.reasons == ["hang"]
    replica.scrape(running=1, progress=2_000)
    replica.wait(HOLD)
    assert replica.state is S.WARMING


def test_a_hung_engine_whose_clients_gave_up_is_asked_before_it_gets_work_again():
    replica = ready_replica(policy=HANG_POLICY)
    replica.scrape(**LOCKED)
    replica.answers_control_calls = False
    replica.wait(70)
    replica.page = replace(replica.page, waiting=0)
    replica.wait(300)
    assert replica.reasons == ["hang"], "no work is no progress"
    replica.answers_control_calls = True
    replica.wait(POLICY.control_retry_max_s + HOLD + 1)
    assert replica.state is S.WARMING


def test_without_control_calls_a_hang_ends_with_its_work():
    replica = DrivenReplica(policy=replace(HANG_POLICY, warmup=False, slow_start_s=0.0))
    replica.scrape(**LOCKED)
    replica.wait(61)
    assert replica.reasons == ["hang"]
    replica.scrape(waiting=0)
    replica.wait(HOLD)
    assert replica.state is S.READY


# --- silence ----------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["refused", "reset"])
def test_one_strong_sign_is_enough_and_the_way_back_takes_the_hold(reason):
    replica = ready_replica()
    replica.fail(reason)
    assert (replica.state, replica.reasons) == (S.UNREADY, ["refused"])
    assert replica.status.liveness is Liveness.DEAD
    replica.page = IDLE
    replica.scrape()
    assert replica.status.liveness is Liveness.ALIVE
    replica.wait(HOLD - 1)
    assert replica.state is S.UNREADY
    replica.wait(1)
    assert replica.state is S.WARMING


@pytest.mark.parametrize("reason", ["timeout", "unreachable"])
def test_weak_signs_count_only_together_and_after_a_long_silence(reason):
    replica = ready_replica()
    replica.fail(reason)
    replica.wait(POLICY.stale_s - 1.5)
    assert replica.state is S.READY
    replica.wait(1.5)
    assert replica.state is S.UNREADY
    assert replica.reasons == ["unreachable", "metrics_stale"]
    assert replica.status.liveness is Liveness.UNKNOWN


def test_two_timeouts_are_too_few_however_long_they_take():
    replica = ready_replica()
    replica.fail("timeout")
    replica.wait(20, every=20)
    assert replica.state is S.READY
    replica.scrape()
    assert replica.state is S.UNREADY


def test_an_answer_in_between_takes_the_weak_signs_back():
    replica = ready_replica()
    replica.fail("timeout")
    replica.scrape()
    replica.page = IDLE
    replica.scrape()
    replica.fail("timeout")
    replica.wait(40, every=40)
    assert replica.state is S.READY, "two, and not four"


def test_a_timeout_ends_the_run_back_after_a_refusal():
    replica = ready_replica()
    replica.fail("refused")
    replica.page = IDLE
    replica.wait(HOLD)
    replica.fail("timeout")
    replica.page = IDLE
    replica.wait(HOLD)
    assert replica.state is S.UNREADY
    replica.wait(1)
    assert replica.state is S.WARMING


def test_a_blocked_page_of_a_replica_that_streams_ejects_nobody():
    """Metrics behind the decode loop: nothing for a minute, while a stream of ours gives bytes."""
    replica = ready_replica()
    replica.inflight(1)
    replica.streaming = True
    replica.fail("timeout")
    replica.wait(60)
    assert replica.moves == []
    assert replica.reasons == ["metrics_stale"]
    assert not replica.status.fresh
    assert replica.status.load.running is None
    assert replica.status.liveness is Liveness.ALIVE
    replica.streaming = False
    replica.wait(POLICY.stale_s)
    assert replica.reasons == ["unreachable", "metrics_stale"]


def test_timeouts_of_our_own_attempts_are_weak_signs_too():
    replica = ready_replica()
    replica.attempt(AttemptOutcome.NETWORK_PARTITION, times=2)
    replica.fail("timeout")
    replica.sleep(POLICY.stale_s)
    assert "unreachable" in replica.reasons


def test_a_refused_metrics_port_of_a_replica_that_streams_is_a_weak_sign():
    replica = ready_replica()
    replica.streaming = True
    replica.fail("refused")
    assert replica.state is S.UNREADY
    replica.wait(HOLD + 2)
    assert replica.state is S.WARMING
    replica.wait(300)
    assert replica.state is S.READY
    assert replica.reasons == ["metrics_stale"]
    assert replica.gate.incarnation == 1
    replica.streaming = False
    replica.wait(POLICY.stale_s)
    assert replica.reasons == ["unreachable", "metrics_stale"], "weak, and still a sign"
    replica.scrape(running=0)
    assert replica.gate.incarnation == 1
    replica.wait(POLICY.slow_start_s + HOLD)
    assert replica.state is S.READY
    replica.fail("refused")
    assert replica.state is S.UNREADY, "a page came from there, so refusals are strong again"


@pytest.mark.parametrize("every", [0.2, 0.5, 1.0, 3.0])
def test_bytes_disprove_a_refusal_however_often_it_is_repeated(every):
    replica = ready_replica(policy=replace(POLICY, scrape_s=every))
    replica.streaming = True
    replica.fail("refused")
    replica.wait(2 * HOLD + 5)
    assert replica.state is S.WARMING


def test_bytes_that_were_on_their_way_do_not_disprove_a_refusal():
    replica = ready_replica()
    replica.fail("refused")
    replica.sleep(0.5)
    replica.bytes()
    replica.sleep(HOLD + 1)
    assert replica.state is S.UNREADY


def test_a_starved_look_is_no_sign_at_all():
    replica = ready_replica()
    replica.fail("starved")
    replica.wait(POLICY.stale_s + 30)
    assert replica.state is S.READY
    assert replica.reasons == ["metrics_stale"]


# --- our own loop -----------------------------------------------------------------------------


def test_a_sidecar_that_stood_still_ejects_nobody():
    replica = ready_replica()
    replica.scrape(running=1)
    replica.starve(600)
    for _ in range(5):
        replica.page = "timeout"
        replica.scrape()  # probes that were pending over the pause
    assert replica.moves == []
    replica.page = IDLE
    replica.wait(30)
    assert replica.changes == []


def test_strikes_from_before_a_pause_do_not_add_up_with_those_after_it():
    replica = ready_replica()
    replica.fail("timeout")
    replica.wait(5)
    replica.starve(30)
    replica.wait(POLICY.hold_s + 1)
    assert replica.state is S.READY, "only two looks since the grace after the pause"
    replica.wait(1)
    assert "unreachable" in replica.reasons, "silence that lasts after the pause does count"


def test_the_time_of_a_pause_is_not_silence():
    replica = ready_replica()
    replica.fail("timeout")
    replica.wait(2)
    replica.starve(30)
    replica.wait(POLICY.stale_s - 2.5)
    assert replica.state is S.READY, "it has been silent for nearly ten seconds that we know of"
    replica.wait(0.5)
    assert "unreachable" in replica.reasons


def test_a_pause_is_no_hang_but_a_hang_after_it_is():
    replica = ready_replica(policy=HANG_POLICY)
    replica.scrape(**LOCKED)
    replica.wait(30)
    replica.starve(300)
    replica.wait(29)
    assert replica.state is S.READY
    replica.wait(2)
    assert replica.reasons == ["hang"]


def test_a_pause_does_not_bring_a_silent_replica_back():
    replica = ready_replica()
    replica.fail("timeout")
    replica.wait(20)
    assert replica.state is S.UNREADY
    replica.starve(60)
    replica.wait(120)
    assert replica.state is S.UNREADY


def test_a_pause_does_not_bring_a_hung_replica_back():
    replica = ready_replica(policy=HANG_POLICY)
    replica.scrape(**LOCKED)
    replica.wait(70)
    replica.starve(60)
    replica.wait(30)
    assert replica.reasons == ["hang"]


# --- our own attempts -------------------------------------------------------------------------


def test_cuts_on_one_replica_bench_it_and_the_penalty_decays():
    replica = ready_replica()
    replica.attempt(AttemptOutcome.TRUNCATED, times=5)
    assert (replica.state, replica.reasons) == (S.UNREADY, ["just_failed"])
    replica.wait(120)
    assert replica.state in (S.WARMING, S.READY)
    assert replica.gate.incarnation == 1


def test_one_lost_connection_benches_nobody():
    replica = ready_replica()
    replica.attempt(AttemptOutcome.REPLICA_DIED)
    assert replica.state is S.READY
    assert replica.status.failures == pytest.approx(1.0)
    replica.wait(20)
    assert replica.status.failures == pytest.approx(0.5)


def test_a_hundred_streams_lost_at_once_do_not_weigh_longer_than_six():
    replica = ready_replica()
    replica.attempt(AttemptOutcome.REPLICA_DIED, times=100)
    assert replica.state is S.UNREADY
    replica.wait(60)
    assert replica.state is S.WARMING


def test_whole_answers_halve_the_penalty():
    replica = ready_replica()
    replica.attempt(AttemptOutcome.ENGINE_ERROR, times=2)
    replica.attempt(AttemptOutcome.COMPLETED)
    assert replica.status.failures == pytest.approx(1.0)


@pytest.mark.parametrize(
    "outcome",
    sorted(
        set(AttemptOutcome)
        - {
            AttemptOutcome.REPLICA_DIED,
            AttemptOutcome.NETWORK_PARTITION,
            AttemptOutcome.ENGINE_ERROR,
            AttemptOutcome.TRUNCATED,
            AttemptOutcome.OVERLOADED,
        }
    ),
)
def test_what_is_not_the_replicas_fault_costs_it_nothing(outcome):
    replica = ready_replica()
    replica.attempt(outcome, times=100)
    assert replica.status.failures == 0.0
    assert replica.state is S.READY


def test_the_end_of_a_penalty_is_a_deadline_and_needs_no_event():
    replica = ready_replica()
    replica.page = Sample(at=0.0)
    replica.attempt(AttemptOutcome.ENGINE_ERROR, times=3)
    replica.sleep(120)
    assert ("unready", "warming") in replica.moves
