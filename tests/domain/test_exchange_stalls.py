"""A client that takes nothing of its answer: its stream is broken off, its replica freed, nobody blamed."""

import pytest

from envoy_ext.domain.events import AttemptProgressed, ExchangeProgressed, LogCause
from envoy_ext.domain.notes import ExchangeEnded, PhaseChanged, StreamInterrupted
from envoy_ext.domain.operation import build_operation
from envoy_ext.domain.outcomes import Ending, Reason
from envoy_ext.domain.write_stall import LOOKS, compute_look_s
from tests.support.exchange_builders import JSON, POOL, Policy, ReqEmbeddings, delta, done, finish, role
from tests.support.exchange_envoy import ATTEMPT_LOG, DELIVERY, At, Envoy
from tests.support.exchange_phases import asked, held

LIMIT = 60.0


def looks(envoy, count=LOOKS + 2, *, taken=None, acked=None):
    """So many looks of Envoy's. Without `taken` the client has an HTTP/1.1 connection."""
    for _ in range(count):
        envoy.wait(compute_look_s(LIMIT))
        for hop in envoy.hops:
            if hop.at is not At.GATE:
                envoy.receive(AttemptProgressed(hop.id, hop.passed_bytes))
        envoy.receive(ExchangeProgressed(len(envoy.client.body) if taken is None else taken, acked))
        envoy.pump()


def held_up(request=None):
    """A part of an answer is with the client, and the ingress hop does not read the rest."""
    envoy = Envoy(request, policy=Policy(client_stall_s=LIMIT))
    if request is None:
        envoy.replica.answers(role(), delta("Hel"))
    else:
        envoy.replica.answers(b'{"data":[', type=JSON)
    envoy.late.add(DELIVERY)
    return envoy


def assert_stalled(envoy):
    assert envoy.client.reset
    assert all(hop.at is At.OVER for hop in envoy.hops)
    end = envoy.end
    assert (end.ending, end.state, end.reason) == (Ending.CLIENT_GONE, "cancelled", Reason.CLIENT_STALLED)
    assert envoy.outcomes == ["cancelled"]
    assert envoy.started == 1
    assert StreamInterrupted(POOL, Reason.CLIENT_STALLED) in envoy.notes
    phases = [note for note in envoy.notes if isinstance(note, PhaseChanged)]
    assert phases[-1].after is None
    ended = next(note for note in envoy.notes if isinstance(note, ExchangeEnded))
    assert (ended.ending, ended.reason) == (Ending.CLIENT_GONE, Reason.CLIENT_STALLED)
    assert envoy.exchange.finished


def test_a_client_that_takes_nothing_of_what_waits_is_ended_and_its_replica_freed():
    envoy = held_up()
    envoy.replica.sends(delta("lo"))
    looks(envoy, LOOKS)
    assert envoy.end is None
    looks(envoy, 1)
    envoy.catch_up(DELIVERY)
    assert_stalled(envoy)


def test_also_where_the_bytes_wait_behind_a_window_of_its_stream():
    envoy = held_up()
    envoy.catch_up(DELIVERY)
    looks(envoy, taken=10)
    assert_stalled(envoy)


def test_also_in_an_answer_in_one_piece():
    envoy = held_up(ReqEmbeddings())
    envoy.replica.sends(b"1,2")
    looks(envoy)
    envoy.catch_up(DELIVERY)
    assert_stalled(envoy)


def test_also_when_its_replica_has_long_said_everything():
    """Nobody else would ever end it: the replica's side is over, and the client's never will be."""
    envoy = held_up()
    envoy.replica.sends(delta("lo"), finish(), done(), end=True)
    assert envoy.replica.at is At.OVER
    looks(envoy)
    envoy.catch_up(DELIVERY)
    assert envoy.end.reason is Reason.CLIENT_STALLED


def test_the_journal_tells_it():
    envoy = held_up()
    envoy.replica.sends(delta("lo"))
    looks(envoy)
    envoy.catch_up(DELIVERY)
    operation = build_operation(envoy.records)
    assert (operation.reason, operation.error_code) == (Reason.CLIENT_STALLED, None)
    assert operation.partly_delivered


@pytest.mark.parametrize("phase", [asked, held])
def test_before_the_first_delta_no_client_is_stalled(phase):
    envoy = phase()
    envoy.receive(AttemptProgressed(envoy.replica.id, 1000))
    looks(envoy, 1)
    assert envoy.end is None
    assert not envoy.client.over


def test_a_replica_that_says_nothing_is_waited_for():
    envoy = held_up()
    envoy.catch_up(DELIVERY)
    looks(envoy, 1000)
    assert not envoy.client.over
    assert envoy.replica.at is At.PASSING


def test_a_slow_client_that_takes_something_between_two_looks_is_left_alone():
    envoy = held_up()
    envoy.replica.sends(*[delta(str(n)) for n in range(100)])
    for _ in range(90):
        looks(envoy, LOOKS)
        envoy.deliver(DELIVERY)
    assert not envoy.client.over
    looks(envoy)
    assert envoy.client.reset


def test_a_client_whose_machine_confirms_bytes_is_slow_and_no_more():
    envoy = held_up()
    envoy.replica.sends(delta("lo"))
    for acked in range(100):
        looks(envoy, 1, acked=acked)
    assert not envoy.client.over
    looks(envoy, acked=99)
    assert envoy.client.reset


def test_a_replica_that_breaks_while_its_client_is_stalled_is_the_cause():
    envoy = held_up()
    envoy.replica.sends(delta("lo"))
    looks(envoy, LOOKS)
    envoy.replica.is_lost(LogCause.UPSTREAM_RESET)
    looks(envoy, 1)
    envoy.catch_up(DELIVERY)
    assert (envoy.end.ending, envoy.end.reason) == (Ending.UPSTREAM_BROKE, Reason.REPLICA_DIED)


def test_when_the_last_word_was_let_go_the_answer_was_a_whole_one():
    """SDKs stop reading at it, and some close nothing."""
    envoy = held_up()
    envoy.catch_up(DELIVERY)
    envoy.replica.sends(delta("lo"), finish(), done())
    looks(envoy, taken=10)
    assert (envoy.end.ending, envoy.end.reason) == (Ending.FINISHED, None)


def test_a_look_behind_the_end_changes_nothing():
    envoy = held_up()
    envoy.replica.sends(delta("lo"))
    envoy.late.add(ATTEMPT_LOG)
    looks(envoy)
    before = len(envoy.produced)
    looks(envoy)
    assert not any(taken.records or taken.replies for taken in envoy.produced[before:])
