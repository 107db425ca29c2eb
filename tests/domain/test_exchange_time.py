"""Nothing happens before its time, nothing stays in flight, and what may still change is not forgotten."""

import pytest

from envoy_ext.domain import step
from envoy_ext.domain.events import AttemptLogged, DeliveryClosed, LogCause, ResponseBody
from envoy_ext.domain.ids import AttemptId
from envoy_ext.domain.notes import PhaseChanged
from envoy_ext.domain.outcomes import Ending
from envoy_ext.domain.records import OperationBegun, OperationEnded
from tests.support.exchange_builders import (
    Policy,
    done,
    finish,
)
from tests.support.exchange_envoy import ATTEMPT_LOG, DELIVERY, EXCHANGE_LOG, At, Envoy
from tests.support.exchange_phases import (
    BEFORE_THE_FIRST_DELTA,
    answering_json,
    arriving,
    asked,
    held,
    left,
    overtaken,
    streaming,
    waiting,
)

# --- time ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [arriving, asked, held, waiting, streaming, overtaken, left])
def test_nothing_happens_before_its_time(phase):
    envoy = phase()
    due = envoy.exchange.next_deadline()
    assert due > envoy.now
    assert envoy.exchange.expire(envoy.now) is step.NOTHING
    assert envoy.exchange.expire(due - 0.001) is step.NOTHING
    assert envoy.exchange.next_deadline() == due


def test_what_one_deadline_brings_about_does_not_hasten_another():
    envoy = overtaken()
    envoy.wait(0.6)
    assert envoy.client.last_event["error"]["reason"] == "replica_died"
    waited = waiting()
    waited.wait(7.1)
    assert (waited.replica.at, waited.client.error) == (At.REPLICA, None)


def test_a_second_entry_of_a_loss_does_not_prolong_the_grace():
    envoy = overtaken()
    envoy.wait(0.4)
    entry = AttemptLogged(AttemptId("att_1"), LogCause.UPSTREAM_RESET, None, 10**6, "again")
    envoy.receive(entry)
    envoy.wait(0.2)
    assert envoy.client.ended


def test_a_loss_that_is_logged_behind_the_end_of_the_stream_is_told_to_nobody():
    envoy = left()
    before = len(envoy.replies)
    envoy.receive(AttemptLogged(AttemptId("att_1"), LogCause.UPSTREAM_RESET, None, 0, "upstream_reset"))
    assert len(envoy.replies) == before
    assert envoy.end.ending is Ending.UPSTREAM_BROKE


def test_a_stream_that_ended_in_the_grace_is_sent_nothing_more():
    envoy = overtaken()
    envoy.receive(DeliveryClosed())
    before = len(envoy.replies)
    envoy.wait(1.0)
    assert len(envoy.replies) == before


# --- when an exchange may be forgotten ----------------------------------------------------------


@pytest.mark.parametrize("missing", [DELIVERY, ATTEMPT_LOG, EXCHANGE_LOG])
def test_an_exchange_is_kept_until_its_stream_and_both_logs_have_spoken(missing):
    envoy = streaming()
    envoy.manual = True
    envoy.attempt(1).sends(finish() + done(), end=True)
    envoy.deliver(DELIVERY)
    assert envoy.end.ending is Ending.FINISHED
    for source in (DELIVERY, ATTEMPT_LOG, EXCHANGE_LOG):
        if source != missing:
            envoy.deliver(source)
        assert not envoy.exchange.finished
    envoy.deliver(missing)
    assert envoy.exchange.finished


def test_an_exchange_whose_ending_is_open_is_kept_though_all_have_spoken():
    envoy = asked()
    envoy.closes_broken_connection()
    assert (envoy.end, envoy.exchange.finished) == (None, False)
    envoy.wait(3.1)
    assert envoy.exchange.finished


def test_a_stream_ends_once():
    envoy = left()
    envoy.wait(1.0)
    due = envoy.exchange.next_deadline()
    assert envoy.exchange.receive(DeliveryClosed(), envoy.now) is step.NOTHING
    assert envoy.exchange.next_deadline() == due


# --- every phase is left ------------------------------------------------------------------------


def inflight(envoy):
    notes = [note for note in envoy.notes if isinstance(note, PhaseChanged)]
    return sum((note.after is not None) - (note.before is not None) for note in notes)


def test_a_client_that_left_is_in_flight_no_more_though_its_ending_is_still_open():
    envoy = streaming()
    envoy.late = {ATTEMPT_LOG, EXCHANGE_LOG}
    assert inflight(envoy) == 1
    envoy.client_leaves()
    assert (envoy.end, inflight(envoy)) == (None, 0)


def test_an_exchange_that_has_ended_is_in_flight_no_more_though_its_stream_is_still_open():
    envoy = streaming()
    envoy.late = {ATTEMPT_LOG, EXCHANGE_LOG}
    envoy.manual = True
    envoy.receive(ResponseBody(finish() + done(), end=True))
    assert envoy.end.ending is Ending.FINISHED
    assert (envoy.exchange.finished, inflight(envoy)) == (False, 0)


@pytest.mark.parametrize("phase", [arriving, *BEFORE_THE_FIRST_DELTA, streaming, answering_json])
@pytest.mark.parametrize("stop", [Envoy.client_leaves, Envoy.drain_expires])
def test_whatever_the_phase_nothing_stays_in_flight(phase, stop):
    envoy = phase()
    envoy.manual = False
    stop(envoy)
    envoy.pump()
    envoy.wait(Policy().settle_s + 0.1)
    assert inflight(envoy) == 0
    assert envoy.exchange.finished
    assert [type(r) for r in envoy.records].count(OperationBegun) == 1
    assert [type(r) for r in envoy.records].count(OperationEnded) == 1
