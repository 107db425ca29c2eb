"""Three questions about the sidecar's health, and what speaks against each."""

from envoy_ext.domain.notes import StoreBack, StoreLost
from envoy_ext.services.health import JOURNAL_FAILED_FOR_S, HealthState
from tests.support.clock import ManualClock
from tests.support.notes import SAMPLES


def test_startup_waits_for_the_composition_and_stays_done_afterwards() -> None:
    health = HealthState()
    assert health.find_startup_faults() == ("starting",)
    assert health.find_ready_faults() == ("starting",)
    health.started = True
    health.draining = True
    health.fatal = "out of file descriptors"
    assert health.find_startup_faults() == ()


def test_only_a_fatal_fault_asks_for_a_restart() -> None:
    health = HealthState()
    health.draining = True
    health.note_journal(2.0, failed=True)
    assert health.find_live_faults() == ()
    health.fatal = "out of file descriptors"
    assert health.find_live_faults() == ("fatal",)


def test_every_fault_of_readiness_is_named() -> None:
    health = HealthState()
    health.draining = True
    health.fatal = "out of file descriptors"
    health.note_journal(2.0, failed=True)
    health.holds_seat = lambda: False
    assert health.find_ready_faults() == ("starting", "fatal", "draining", "seat", "journal")


def test_a_gateway_without_a_seat_is_not_ready_and_needs_no_restart() -> None:
    health = HealthState()
    health.started = True
    seats = [True, False, True]
    health.holds_seat = lambda: seats.pop(0)
    assert [health.find_ready_faults() for _ in range(3)] == [(), ("seat",), ()]
    assert health.find_live_faults() == ()


def test_a_failed_append_makes_it_unready_until_one_succeeds() -> None:
    clock = ManualClock()
    health = HealthState(clock.now)
    health.started = True
    health.note_journal(2.0, failed=True)
    assert health.find_ready_faults() == ("journal",)
    health.note_journal(0.001, failed=False)
    assert health.find_ready_faults() == ()


def test_a_failed_append_does_not_keep_it_unready_for_good() -> None:
    clock = ManualClock()
    health = HealthState(clock.now)
    health.started = True
    health.note_journal(2.0, failed=True)
    clock.advance(JOURNAL_FAILED_FOR_S - 0.1)
    assert health.find_ready_faults() == ("journal",)
    clock.advance(0.1)
    assert health.find_ready_faults() == ()


def test_a_store_that_is_down_keeps_it_unready_until_it_is_back() -> None:
    clock = ManualClock()
    health = HealthState(clock.now)
    health.started = True
    health.note(StoreLost("the disk is full"))
    clock.advance(10 * JOURNAL_FAILED_FOR_S)
    assert health.find_ready_faults() == ("journal",)
    health.note(StoreBack(100.0))
    assert health.find_ready_faults() == ()


def test_a_store_that_is_back_makes_it_ready_before_the_next_append() -> None:
    health = HealthState()
    health.started = True
    health.note_journal(2.0, failed=True)
    health.note(StoreBack(3.0))
    assert health.find_ready_faults() == ()


def test_one_that_serves_without_its_store_is_ready_while_that_is_down() -> None:
    down = True
    health = HealthState()
    health.started = True
    health.serves_without_store = lambda: down
    health.holds_seat = lambda: False
    health.note_journal(2.0, failed=True)
    assert health.find_ready_faults() == ()
    down = False
    assert health.find_ready_faults() == ("seat", "journal")


def test_bad_replicas_and_contained_bugs_do_not_make_a_bad_sidecar() -> None:
    health = HealthState()
    health.started = True
    for note in SAMPLES.values():
        health.note(note)
    health.note_bug("session", RuntimeError())
    assert health.find_ready_faults() == ()
