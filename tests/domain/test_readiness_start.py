"""From discovery to service: loading, the control call, slow start, and other incarnations."""

from dataclasses import replace

import pytest

from envoy_ext.domain.fleet_events import ControlCallPassed, Discovered, Removed
from envoy_ext.domain.replica_life import ReplicaState
from envoy_ext.domain.replica_status import Liveness
from envoy_ext.domain.sample import Sample
from tests.support.fleet_builders import IDLE, POLICY, DrivenReplica, gpu, ready_replica

S = ReplicaState


def test_a_replica_nobody_looked_at_is_discovered_and_gets_no_work():
    replica = DrivenReplica()
    assert replica.state is S.DISCOVERED
    assert not replica.status.ready
    assert not replica.status.started
    assert replica.status.liveness is Liveness.UNKNOWN
    assert not replica.gate.is_control_call_due(replica.now)


def test_a_good_page_is_no_proof_of_a_model():
    replica = DrivenReplica(answers_control_calls=False)
    replica.scrape()
    replica.wait(300)
    assert replica.state is S.STARTING
    assert replica.reasons == ["control_call"]
    assert replica.status.liveness is Liveness.ALIVE
    assert not replica.status.started
    assert "no token in 10 s" in replica.status.findings[0].text


def test_a_control_call_and_slow_start_lead_to_ready():
    replica = DrivenReplica()
    replica.scrape()
    assert replica.moves == [("discovered", "starting"), ("starting", "warming")]
    assert replica.status.ready
    assert replica.status.ramp == 0.1
    replica.wait(15)
    assert replica.status.ramp == pytest.approx(0.5)
    replica.wait(15)
    assert replica.state is S.READY
    assert replica.status.ramp == 1.0
    assert replica.reasons == []


def test_failed_control_calls_are_asked_again_ever_more_rarely():
    replica = DrivenReplica(answers_control_calls=False)
    replica.scrape()
    asked = []
    for _ in range(100):
        replica.wait(1)
        asked.append(replica.gate.is_control_call_due(replica.now))
    assert not any(asked), "the driven replica answers what is due at once"
    replica.answers_control_calls = True
    replica.wait(POLICY.control_retry_max_s)
    assert replica.state is S.WARMING


def test_a_busy_engine_that_computes_for_others_has_a_model():
    """A sidecar that starts among full replicas need not wait in their queues for a token of its own."""
    replica = DrivenReplica(answers_control_calls=False)
    replica.scrape(running=30, waiting=12, progress=1_000.0)
    assert replica.state is S.STARTING
    replica.wait(1, every=2)
    replica.scrape(progress=1_400.0)
    assert replica.state is S.WARMING


def test_numbers_that_move_without_a_token_are_no_proof():
    replica = DrivenReplica(answers_control_calls=False)
    for second in range(5):
        replica.scrape(running=30 + second, waiting=second, progress=1_000.0 + second / 10)
        replica.wait(1, every=2)
    assert replica.state is S.STARTING


def test_what_another_process_computed_is_no_proof():
    replica = DrivenReplica(answers_control_calls=False)
    replica.scrape(progress=1_000.0)
    replica.scrape(process_started_at=IDLE.process_started_at + 90, progress=9_000.0)
    assert replica.state is S.STARTING


def test_an_engine_that_declines_control_calls_is_ready_and_says_so():
    replica = DrivenReplica()
    replica.answers_control_calls = False
    replica.page = "unsupported"
    replica.scrape()
    replica.send(ControlCallPassed(replica.gate.incarnation, declined="answered 401"))
    assert replica.state is S.WARMING
    assert replica.reasons == ["metrics_unsupported", "control_call_declined"]
    replica.wait(POLICY.slow_start_s)
    assert replica.state is S.READY
    replica.fail("refused")
    replica.fail("unsupported")
    assert "control_call_declined" not in replica.reasons, "another process is there"


def test_the_next_control_call_is_a_deadline():
    replica = DrivenReplica(answers_control_calls=False)
    replica.scrape()
    assert replica.gate.next_deadline() == replica.now + POLICY.control_retry_s


def test_without_warmup_the_first_answer_is_enough():
    for answer in (IDLE, "unsupported", "bad_status"):
        replica = DrivenReplica(policy=replace(POLICY, warmup=False))
        replica.page = answer
        replica.scrape()
        assert replica.state is S.WARMING
    for no_answer in ("loading", "refused", "timeout", "starved"):
        replica = DrivenReplica(policy=replace(POLICY, warmup=False))
        replica.fail(no_answer)
        assert replica.state is not S.WARMING


def test_without_slow_start_a_proven_replica_is_ready_at_once():
    replica = DrivenReplica(policy=replace(POLICY, slow_start_s=0.0))
    replica.scrape()
    assert replica.state is S.READY
    assert replica.status.ramp == 1.0


def test_an_engine_that_loads_is_starting_however_long_and_then_asked():
    replica = DrivenReplica()
    replica.fail("loading")
    replica.wait(600)
    assert replica.state is S.STARTING
    assert "loading" in replica.reasons
    assert "control_call" not in replica.reasons
    assert replica.status.liveness is Liveness.ALIVE
    assert replica.gate.incarnation == 1
    replica.scrape(running=0)
    assert replica.state is S.WARMING


def test_an_engine_without_metrics_serves_after_its_control_call():
    replica = DrivenReplica()
    replica.fail("unsupported")
    replica.wait(120)
    assert replica.state is S.READY
    assert replica.reasons == ["metrics_unsupported"]
    assert not replica.status.fresh


@pytest.mark.parametrize("reason", ["bad_status", "not_metrics", "too_large"])
def test_a_page_that_cannot_be_read_is_no_fault_of_the_replica(reason):
    replica = ready_replica()
    replica.fail(reason)
    replica.wait(600)
    assert replica.state is S.READY
    assert replica.reasons == ["metrics_stale"]
    assert replica.status.liveness is Liveness.ALIVE


def test_a_page_without_any_family_is_not_known_and_never_idle():
    replica = ready_replica()
    replica.page = Sample(at=0.0)
    replica.wait(60)
    assert replica.state is S.READY
    load = replica.status.load
    assert (load.running, load.waiting, load.kv_cache_usage, load.max_running) == (None,) * 4


# --- other incarnations -----------------------------------------------------------------------


RESTARTS = {
    "a start time that moved": {"process_started_at": IDLE.process_started_at + 90},
    "a start time that moved back": {"process_started_at": IDLE.process_started_at - 90},
    "requests that fell": {"requests_total": 3},
    "requests that fell, from a page without start time": {"requests_total": 0, "process_started_at": None},
    "progress that fell, where nothing else is counted": {
        "progress": 2,
        "requests_total": None,
        "process_started_at": None,
    },
}


@pytest.mark.parametrize("signals", RESTARTS.values(), ids=RESTARTS.keys())
def test_a_restart_is_another_incarnation_that_must_prove_itself(signals):
    replica = ready_replica()
    if signals.get("requests_total", 0) is None:
        replica.page = replace(IDLE, requests_total=None, process_started_at=None)
        replica.gate = ready_like(replica)
    replica.answers_control_calls = False
    replica.scrape(**signals)
    assert replica.state is S.STARTING
    assert replica.gate.incarnation == 2
    assert not replica.status.started
    assert replica.changes[0].incarnation == 2
    replica.answers_control_calls = True
    replica.wait(2)
    assert replica.state is S.WARMING
    assert replica.gate.incarnation == 2


def ready_like(replica):
    """A gate that has only ever seen the page the replica shows."""
    other = DrivenReplica(now=replica.now)
    other.page = replica.page
    other.scrape()
    other.wait(POLICY.slow_start_s + 1)
    replica.now = other.now
    return other.gate


SAME = {
    "start time computed anew": {"process_started_at": IDLE.process_started_at + 0.4},
    "counters that grow": {"requests_total": 60, "progress": 5_000},
    "counters missing from one page": {"requests_total": None, "progress": None},
    "a share of a gauge inside progress": {"progress": IDLE.progress - 0.7, "requests_total": None},
    "another rank's progress": {"progress": IDLE.progress - 500},
}


@pytest.mark.parametrize("signals", SAME.values(), ids=SAME.keys())
def test_the_same_process_is_not_taken_for_another(signals):
    replica = ready_replica()
    replica.scrape(**signals)
    assert (replica.state, replica.gate.incarnation) == (S.READY, 1)


@pytest.mark.parametrize(
    ("mark", "later"),
    [("requests_total", 3), ("process_started_at", IDLE.process_started_at + 90), ("progress", 3)],
)
def test_a_mark_that_was_missing_in_between_still_tells_a_restart(mark, later):
    replica = ready_replica()
    alone = {"requests_total": None, "process_started_at": None, "progress": None, mark: getattr(IDLE, mark)}
    replica.page = replace(IDLE, **alone)
    replica.gate = ready_like(replica)
    replica.scrape(**{mark: None})
    replica.scrape(**{mark: later})
    assert replica.gate.incarnation == 2


def test_a_restart_forgets_the_load_of_the_last_process():
    replica = ready_replica()
    replica.scrape(kv_cache_usage=0.99, waiting=40)
    replica.wait(6)
    assert replica.state is S.SATURATED
    replica.scrape(process_started_at=IDLE.process_started_at + 90, kv_cache_usage=None, waiting=None)
    assert replica.reasons == []
    assert replica.state is S.WARMING
    assert replica.status.load.kv_cache_usage is None


def test_a_restart_does_not_cure_the_hardware():
    replica = ready_replica()
    replica.scrape(gpus=(gpu(xid=79),))
    replica.scrape(process_started_at=IDLE.process_started_at + 90)
    assert replica.state is S.UNREADY
    assert replica.reasons == ["gpu_xid"]


def test_slow_start_begins_anew_with_a_restart():
    replica = DrivenReplica(policy=replace(POLICY, warmup=False))
    replica.scrape()
    replica.wait(20)
    replica.scrape(process_started_at=IDLE.process_started_at + 90)
    assert replica.state is S.WARMING
    assert replica.status.ramp == 0.1
    replica.wait(29)
    assert replica.state is S.WARMING
    replica.wait(1)
    assert replica.state is S.READY


def test_an_answer_of_an_earlier_incarnation_proves_nothing():
    replica = ready_replica()
    replica.answers_control_calls = False
    replica.scrape(process_started_at=IDLE.process_started_at + 90)
    replica.send(ControlCallPassed(incarnation=1))
    assert replica.state is S.STARTING


def test_a_ready_engine_that_says_it_is_loading_is_another_process():
    replica = ready_replica()
    replica.fail("loading")
    replica.wait(30)
    assert replica.state is S.STARTING
    assert replica.gate.incarnation == 2
    replica.scrape(running=0)
    assert replica.state is S.WARMING
    assert replica.gate.incarnation == 2


@pytest.mark.parametrize("signals", [{}, {"process_started_at": None}, {"requests_total": 61}])
def test_a_process_that_shows_it_is_the_same_keeps_its_proof_over_a_refusal(signals):
    replica = ready_replica()
    replica.fail("refused")
    replica.page = IDLE
    replica.scrape(**signals)
    replica.wait(6)
    assert replica.gate.incarnation == 1
    assert replica.state is S.WARMING


@pytest.mark.parametrize(
    "signals",
    [
        {"process_started_at": IDLE.process_started_at + 90},
        {"process_started_at": None, "requests_total": None},
        {"process_started_at": None, "requests_total": 3},
    ],
)
def test_after_a_refusal_a_page_without_identity_is_another_process(signals):
    replica = ready_replica()
    replica.fail("refused")
    replica.scrape(**signals)
    assert replica.gate.incarnation == 2


def test_after_a_refusal_an_engine_without_pages_is_another_process():
    replica = DrivenReplica()
    replica.fail("unsupported")
    replica.wait(60)
    replica.fail("refused")
    replica.answers_control_calls = False
    replica.fail("unsupported")
    assert (replica.state, replica.gate.incarnation) == (S.STARTING, 2)
    replica.wait(5)
    assert replica.gate.incarnation == 2


def test_what_was_refused_before_its_first_answer_is_the_first_process():
    replica = DrivenReplica()
    replica.fail("refused")
    replica.fail("unsupported")
    replica.wait(60)
    assert (replica.state, replica.gate.incarnation) == (S.READY, 1)


def test_a_replica_that_has_come_is_asked_at_once_and_serves_with_its_first_token():
    """However long nothing listened there: nobody waits for a hold, or for the next call of a long row."""
    replica = DrivenReplica(answers_control_calls=False)
    replica.fail("refused")
    replica.wait(120)
    assert (replica.state, replica.reasons) == (S.STARTING, ["control_call", "refused", "metrics_stale"])
    replica.answers_control_calls = True
    replica.page = IDLE
    replica.scrape()
    assert (replica.state, replica.reasons, replica.gate.incarnation) == (S.WARMING, [], 1)


@pytest.mark.parametrize("reason", ["unsupported", "loading"])
def test_it_is_asked_at_once_whatever_it_says_first(reason):
    replica = DrivenReplica(answers_control_calls=False)
    replica.fail("refused")
    replica.wait(120)
    replica.answers_control_calls = True
    replica.fail(reason)
    replica.fail("unsupported")
    assert (replica.state, replica.gate.incarnation) == (S.WARMING, 1)


def test_a_metrics_port_that_refuses_keeps_no_model_from_work():
    replica = DrivenReplica()
    replica.fail("refused")
    assert (replica.state, replica.reasons) == (S.WARMING, [])
    replica.wait(5)
    assert (replica.state, replica.reasons, replica.gate.incarnation) == (S.WARMING, [], 1)
    replica.streaming = True
    replica.wait(600)
    assert (replica.state, replica.gate.incarnation) == (S.READY, 1)


# --- gone -------------------------------------------------------------------------------------


def test_a_removed_replica_is_gone_at_once_and_nothing_but_discovery_brings_it_back():
    replica = ready_replica()
    replica.send(Removed())
    assert replica.moves == [("ready", "gone")]
    assert replica.reasons == ["removed"]
    replica.scrape()
    replica.sleep(1_000)
    assert replica.state is S.GONE
    assert replica.gate.next_deadline() is None
    replica.send(Discovered())
    assert replica.state is S.DISCOVERED
    assert replica.gate.incarnation == 2
    assert not replica.status.was_ready
    replica.scrape()
    assert replica.state is S.WARMING


def test_streams_that_still_end_on_a_gone_replica_are_counted():
    replica = ready_replica()
    replica.inflight(3)
    replica.send(Removed())
    replica.inflight(1)
    assert replica.status.inflight == 1


def test_listing_a_listed_replica_again_changes_nothing():
    replica = ready_replica()
    replica.send(Discovered())
    assert replica.changes == []
    assert replica.state is S.READY
