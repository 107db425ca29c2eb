"""What one sign makes of another: refusals and bytes, missing pages, work that outlives a process."""

from dataclasses import replace

import pytest

from envoy_ext.domain.fleet_events import Scraped
from envoy_ext.domain.replica_life import ReplicaState
from envoy_ext.domain.sample import Sample
from tests.support.fleet_builders import IDLE, POLICY, DrivenReplica, ready_replica

S = ReplicaState
HANG_POLICY = replace(POLICY, hang_s=60.0)
NAMELESS = replace(IDLE, process_started_at=None, requests_total=None)
"""A page by which no process can be told from another, such as llama.cpp's."""


def nameless_replica():
    replica = DrivenReplica(policy=replace(POLICY, slow_start_s=0.0))
    replica.page = NAMELESS
    replica.scrape()
    assert replica.state is S.READY
    return replica


# --- refusals, and what takes them back -------------------------------------------------------------


def test_a_refusal_is_strong_again_after_a_page_whatever_bytes_said_of_an_earlier_one():
    replica = ready_replica()
    replica.fail("refused")
    replica.page = IDLE
    replica.scrape()
    replica.sleep(2)
    replica.bytes()
    replica.wait(20)
    assert replica.state in (S.WARMING, S.READY)
    replica.bytes()
    replica.fail("refused")
    assert (replica.state, replica.reasons) == (S.UNREADY, ["refused"])


def test_a_process_that_streamed_on_after_a_refusal_is_the_same_without_a_name():
    replica = nameless_replica()
    replica.fail("refused")
    replica.sleep(2)
    replica.bytes()
    replica.page = NAMELESS
    replica.scrape()
    assert replica.gate.incarnation == 1


def test_bytes_that_were_on_their_way_do_not_make_it_the_same():
    replica = nameless_replica()
    replica.fail("refused")
    replica.sleep(0.5)
    replica.bytes()
    replica.page = NAMELESS
    replica.scrape()
    assert replica.gate.incarnation == 2


def test_what_answers_after_a_refusal_without_a_page_does_not_make_the_page_after_it_the_same_process():
    replica = nameless_replica()
    replica.fail("refused")
    replica.fail("bad_status")
    replica.page = NAMELESS
    replica.scrape()
    assert replica.gate.incarnation == 2


def test_what_was_refused_before_its_first_page_is_the_first_process():
    replica = DrivenReplica()
    replica.fail("refused")
    replica.page = IDLE
    replica.scrape()
    assert replica.gate.incarnation == 1


def test_a_replica_that_is_silent_stays_so_when_it_refuses_in_between():
    """A refusal is no answer: it ends the run back from silence."""
    replica = ready_replica()
    replica.fail("timeout")
    replica.wait(20)
    assert "unreachable" in replica.reasons
    replica.fail("refused")
    replica.wait(60)
    assert {"unreachable", "refused"} <= set(replica.reasons)


def test_an_engine_that_loaded_and_gives_no_metrics_is_asked_for_a_token():
    """llama.cpp without `--metrics`: 503 while it loads, 501 from then on."""
    replica = DrivenReplica()
    replica.fail("loading")
    replica.wait(30)
    assert (replica.state, replica.reasons) == (S.STARTING, ["loading", "metrics_stale"])
    replica.fail("unsupported")
    assert (replica.state, replica.reasons) == (S.WARMING, ["metrics_unsupported"])


# --- work, and what shows it ------------------------------------------------------------------------


def test_an_engine_without_pages_and_without_streams_has_nothing_to_hang_on():
    replica = DrivenReplica(policy=HANG_POLICY)
    replica.fail("unsupported")
    replica.inflight(1)
    replica.inflight(0)
    replica.wait(600)
    assert replica.state is S.READY


def test_streams_of_ours_that_a_new_process_does_not_move_hang_it():
    replica = ready_replica(policy=HANG_POLICY)
    replica.inflight(1)
    replica.scrape(running=None, waiting=None, process_started_at=IDLE.process_started_at + 90)
    assert replica.gate.incarnation == 2
    replica.wait(59)
    assert "hang" not in replica.reasons
    replica.wait(2)
    assert "hang" in replica.reasons


def test_streams_of_ours_that_an_engine_without_pages_does_not_move_after_a_restart_hang_it():
    replica = ready_replica(policy=HANG_POLICY)
    replica.inflight(1)
    replica.fail("loading")
    replica.fail("unsupported")
    assert replica.gate.incarnation == 2
    replica.wait(61)
    assert "hang" in replica.reasons


def test_a_page_that_is_old_shows_no_hang():
    """Something answers there, and its pages cannot be had: nobody knows whether its work goes on."""
    replica = ready_replica(policy=HANG_POLICY)
    replica.scrape(running=2)
    replica.fail("bad_status")
    replica.wait(600)
    assert (replica.state, replica.reasons) == (S.READY, ["metrics_stale"])


@pytest.mark.parametrize(("more", "proven"), [(0.9, False), (1.0, True)])
def test_one_thing_computed_for_others_shows_that_there_is_a_model(more, proven):
    """Its control call waits in a queue; less than one is what a gauge adds to a counter."""
    replica = DrivenReplica(answers_control_calls=False)
    replica.scrape(running=4)
    replica.scrape(progress=IDLE.progress + more)
    assert replica.status.started is proven


def test_allocation_failures_that_a_page_leaves_out_break_no_series():
    replica = ready_replica()
    for count in (1, None, 2, None, 3, None, 4, None, 5):
        replica.scrape(allocation_failures=count)
        replica.sleep(1)
    assert replica.reasons == ["allocation_failures"]


def test_a_replica_without_a_page_has_no_fresh_one():
    replica = DrivenReplica()
    assert not replica.status.fresh
    replica.send(Scraped(Sample(at=replica.now)))
    assert replica.status.fresh
