"""Taking a replica out by order: what waits for what, and how it comes back."""

from envoy_ext.domain.discovery import Standing
from envoy_ext.domain.fleet_events import (
    Discovered,
    DrainEnded,
    DrainRequested,
    Removed,
    StandingChanged,
    Undrained,
)
from envoy_ext.domain.replica_life import ReplicaState
from tests.support.fleet_builders import IDLE, DrivenReplica, ready_replica

S = ReplicaState


def drain(replica, within=60.0):
    replica.send(DrainRequested(replica.now + within))


def test_a_drained_replica_without_streams_is_done_at_once():
    replica = ready_replica()
    drain(replica)
    assert (replica.state, replica.reasons) == (S.DRAINING, ["draining"])
    assert replica.drains == [DrainEnded(replica.gate.replica, replica.gate.pool, replica.now, inflight=0)]


def test_a_drain_waits_for_our_own_streams():
    replica = ready_replica()
    replica.inflight(2)
    drain(replica)
    assert replica.status.findings[0].text == "taken out by order; 2 of our own streams run there"
    replica.wait(30)
    replica.inflight(1)
    assert replica.drains == []
    replica.wait(5)
    replica.inflight(0)
    assert [ended.inflight for ended in replica.drains] == [0]
    replica.wait(600)
    assert len(replica.drains) == 1
    assert replica.state is S.DRAINING


def test_a_drain_that_takes_too_long_ends_at_its_deadline_and_says_what_was_left():
    replica = ready_replica()
    replica.inflight(2)
    drain(replica, within=60.0)
    replica.sleep(59)
    assert replica.drains == []
    replica.sleep(1)
    assert [ended.inflight for ended in replica.drains] == [2]
    replica.sleep(600)
    assert len(replica.drains) == 1


def test_a_second_order_moves_the_deadline():
    replica = ready_replica()
    replica.inflight(1)
    drain(replica, within=10.0)
    drain(replica, within=60.0)
    replica.sleep(59)
    assert replica.drains == []
    replica.sleep(2)
    assert len(replica.drains) == 1


def test_no_signal_brings_a_draining_replica_back():
    replica = ready_replica()
    drain(replica)
    replica.wait(600)
    assert replica.state is S.DRAINING
    replica.scrape(process_started_at=IDLE.process_started_at + 90)
    replica.wait(60)
    assert replica.state is S.DRAINING
    assert not replica.gate.is_control_call_due(replica.now)


def test_an_undrained_replica_comes_back_through_slow_start():
    replica = ready_replica()
    replica.inflight(1)
    drain(replica)
    replica.send(Undrained())
    assert replica.moves == [("ready", "draining"), ("draining", "warming")]
    replica.sleep(120)
    assert replica.drains == [], "the order was taken back before it was done"


def test_a_replica_that_restarted_while_it_was_out_must_prove_itself_when_it_is_back():
    replica = ready_replica()
    drain(replica)
    replica.scrape(process_started_at=IDLE.process_started_at + 90)
    assert replica.gate.incarnation == 2
    replica.send(Undrained())
    assert replica.state is S.STARTING
    replica.wait(1)
    assert replica.state is S.WARMING


def test_a_replica_that_broke_while_it_was_out_is_unready_when_it_is_back():
    replica = ready_replica()
    drain(replica)
    replica.fail("refused")
    assert replica.reasons == ["draining", "refused"]
    replica.send(Undrained())
    assert replica.state is S.UNREADY


def test_an_order_to_undrain_what_is_not_draining_changes_nothing():
    replica = ready_replica()
    replica.send(Undrained())
    assert replica.changes == []


def test_a_replica_can_be_drained_before_anybody_looked_at_it():
    replica = DrivenReplica()
    drain(replica)
    assert replica.state is S.DRAINING
    replica.send(Undrained())
    assert replica.state is S.STARTING


def test_a_draining_replica_that_is_removed_is_gone():
    replica = ready_replica()
    replica.inflight(1)
    drain(replica)
    replica.send(Removed())
    assert replica.state is S.GONE
    replica.sleep(120)
    assert replica.drains == []


def test_one_that_is_being_ended_drains_until_discovery_takes_it_back():
    replica = ready_replica()
    replica.inflight(1)
    replica.send(StandingChanged(Standing.LEAVING))
    assert replica.status.findings[0].text == (
        "discovery says that it is being ended; 1 of our own streams run there"
    )
    replica.send(Undrained())
    replica.wait(30)
    assert (replica.state, replica.drains) == (S.DRAINING, [])
    replica.send(StandingChanged(Standing.LISTED))
    assert replica.state is S.WARMING


def test_one_that_is_listed_as_not_ready_is_unready_and_returns_without_a_hold():
    replica = ready_replica()
    for _ in range(5):
        replica.send(StandingChanged(Standing.HELD))
        assert (replica.state, replica.reasons) == (S.UNREADY, ["pod_not_ready"])
        replica.wait(1)
        replica.send(StandingChanged(Standing.LISTED))
        assert replica.state is S.WARMING, "the orchestrator's word is no flapping of its signals"


def test_one_that_is_removed_and_listed_again_stands_as_it_is_listed():
    replica = ready_replica()
    for standing in (Standing.LEAVING, Standing.HELD):
        replica.send(StandingChanged(standing))
        replica.send(Removed())
        replica.send(Discovered())
        replica.scrape()
        replica.wait(1)
        assert replica.state is S.WARMING


def count_seconds_away(replica):
    """How long a replica is out of service for a queue that is long for a moment."""
    replica.scrape(waiting=40)
    replica.wait(replica.policy.hold_s + 2)
    assert replica.state is S.SATURATED
    replica.scrape(waiting=0)
    away = 0
    while replica.state is S.SATURATED:
        replica.wait(1)
        away += 1
    return away


def test_the_orchestrators_word_makes_no_return_slower():
    calm, held = ready_replica(), ready_replica()
    for _ in range(10):
        held.send(StandingChanged(Standing.HELD))
        held.wait(1)
        held.send(StandingChanged(Standing.LISTED))
        held.wait(1)
    held.wait(held.policy.slow_start_s)
    assert count_seconds_away(held) == count_seconds_away(calm)
