"""Before the first delta a lost computation is repeated on another replica that was not tried."""

import pytest

from envoy_ext.domain import step
from envoy_ext.domain.events import AttemptArrived, LogCause
from envoy_ext.domain.exchange_shared import Tried
from envoy_ext.domain.ids import AttemptId, ReplicaId
from envoy_ext.domain.notes import AttemptFinished, ReplayRefused, ReplayStarted
from envoy_ext.domain.outcomes import AttemptOutcome, Ending, Reason
from envoy_ext.domain.records import AttemptEnded, FirstDeltaSent
from tests.support.exchange_builders import (
    JSON,
    POOL,
    Policy,
    delta,
    finish,
    ping,
    role,
    target,
    usage,
)
from tests.support.exchange_claims import (
    WHOLE,
    assert_nothing_delivered,
    assert_one_whole_answer,
    assert_refused,
    refusals,
    replays,
)
from tests.support.exchange_envoy import ATTEMPT_LOG, At, Envoy

# --- the replica is lost ------------------------------------------------------------------------


def test_an_answer_that_nothing_happens_to_takes_one_attempt():
    envoy = Envoy()
    envoy.replica.answers(WHOLE, end=True)
    assert_one_whole_answer(envoy, attempts=1)
    assert envoy.outcomes == ["completed"]


@pytest.mark.parametrize("cause", [LogCause.UPSTREAM_RESET, LogCause.CONNECT_REFUSED])
def test_a_replica_lost_before_headers_is_replayed_on_another(cause):
    envoy = Envoy()
    envoy.replica.is_lost(cause)
    assert envoy.replica.replica == "b"
    envoy.replica.answers(WHOLE, end=True)
    assert_one_whole_answer(envoy, attempts=2)
    assert envoy.outcomes == ["replica_died", "completed"]
    assert replays(envoy) == [ReplayStarted(POOL, "b", AttemptOutcome.REPLICA_DIED)]
    finished = [note for note in envoy.notes if isinstance(note, AttemptFinished)]
    assert [(note.replica, note.outcome) for note in finished] == [("a", "replica_died"), ("b", "completed")]


@pytest.mark.parametrize(
    "held",
    [
        pytest.param([], id="nothing"),
        pytest.param([role()], id="the role"),
        pytest.param([ping(), ping()], id="pings"),
        pytest.param([usage(0)], id="usage"),
        pytest.param([role(), delta("Hel")[:-1]], id="a computed token whose event is not whole"),
    ],
)
def test_a_replica_lost_while_its_answer_is_held_is_replayed_and_nothing_of_it_shows(held):
    envoy = Envoy()
    envoy.replica.answers(*held)
    assert envoy.replica.at is At.HELD
    envoy.replica.is_lost()
    envoy.replica.answers(WHOLE, end=True)
    assert_one_whole_answer(envoy, attempts=2)


def test_a_computed_token_that_was_not_sent_is_replayed_when_the_log_overtakes_it():
    """The egress hop has given the attempt up: a release would reach nobody, and forbid the replay."""
    envoy = Envoy()
    envoy.replica.answers(role())
    envoy.late = {"attempt 1"}
    envoy.replica.sends(delta("Hel"))
    envoy.replica.is_lost()
    assert envoy.replica.number == 2
    envoy.catch_up("attempt 1")
    assert not envoy.exchange.committed
    envoy.replica.answers(WHOLE, end=True)
    assert_one_whole_answer(envoy, attempts=2)


@pytest.mark.parametrize("status", [200, 404, 503])
def test_headers_that_the_log_has_overtaken_are_the_answer_of_nobody(status):
    envoy = Envoy(late=("attempt 1",))
    envoy.catch_up("attempt 1")
    envoy.late = {"attempt 1"}
    envoy.replica.answers(status=status, type=JSON)
    envoy.replica.is_lost()
    before = len(envoy.replies)
    envoy.catch_up("attempt 1")
    assert len(envoy.replies) == before
    envoy.replica.answers(WHOLE, end=True)
    assert_one_whole_answer(envoy, attempts=2)


def test_a_released_token_that_reached_nobody_is_not_computed_again():
    """The release crossed the replica's loss: the journal says sent, so the gate refuses; and the
    client, who has nothing, is not told that a repeat is forbidden."""
    envoy = Envoy(manual=True)
    envoy.deliver("attempt 1")
    hop = envoy.replica.answers(role(), delta("Hel"))
    hop.is_lost()
    for _ in range(3):
        envoy.deliver("attempt 1")  # headers, role, delta: released, too late
    assert envoy.exchange.committed
    envoy.manual = False
    envoy.pump()
    assert envoy.started == 1
    assert_refused(envoy, "upstream_unavailable", 503, Reason.REPLICA_DIED)
    assert_nothing_delivered(envoy)


def crossing(cause, **options):
    """A release that crossed the loss of its replica; the attempt's log entry is late."""
    envoy = Envoy(manual=True, **options)
    envoy.deliver("attempt 1")
    envoy.replica.answers(role(), delta("Hel")).is_lost(cause)
    for _ in range(3):
        envoy.deliver("attempt 1")
    assert envoy.exchange.committed
    envoy.manual, envoy.late = False, {ATTEMPT_LOG}
    envoy.pump()
    return envoy


def test_the_gate_waits_for_the_log_before_it_tells_a_client_that_its_answer_was_lost():
    envoy = crossing(LogCause.UPSTREAM_TIMEOUT)
    assert envoy.replica.at is At.GATE
    assert envoy.client.error is None
    envoy.catch_up(ATTEMPT_LOG)
    assert_refused(envoy, "upstream_unavailable", 503, Reason.NETWORK_PARTITION)
    assert envoy.outcomes[0] == "network_partition"
    assert envoy.started == 1


def test_the_gate_does_not_wait_for_a_log_that_does_not_come():
    envoy = crossing(LogCause.UPSTREAM_RESET)
    envoy.wait(1.1)
    assert (envoy.client.code, envoy.client.error.reason) == ("upstream_unavailable", None)
    assert envoy.started == 1
    envoy.catch_up(ATTEMPT_LOG)
    envoy.wait(4)
    assert envoy.outcomes[0] == "replica_died"


@pytest.mark.parametrize("passes", [0, 1, 2])
def test_a_released_answer_that_is_lost_before_its_first_delta_arrives_is_an_error_with_a_status(passes):
    """The replica dies while its answer is on the way from hop to hop: headers, a ping and a role arrive."""
    envoy = Envoy()
    envoy.replica.passes = passes
    envoy.replica.answers(ping(), role(), delta("Hel"))
    assert envoy.exchange.committed
    assert_refused(envoy, "upstream_unavailable", 503, Reason.REPLICA_DIED)
    assert_nothing_delivered(envoy)


def test_a_released_answer_that_is_lost_without_its_last_bytes_is_given_up_after_a_grace():
    envoy = Envoy(late=("delivery",))
    envoy.replica.passes = 2
    envoy.replica.answers(ping(), role(), delta("Hel"))
    envoy.deliver("delivery")  # headers
    envoy.wait(0.4)
    assert envoy.client.error is None
    envoy.wait(0.2)
    envoy.catch_up("delivery")
    assert_refused(envoy, "upstream_unavailable", 503, Reason.REPLICA_DIED)


@pytest.mark.parametrize("held", [(), (role(),)])
def test_the_mark_of_a_lost_attempt_says_why_when_its_log_is_late(held):
    envoy = Envoy(late=(ATTEMPT_LOG, "attempt 1"), retries=0)
    envoy.catch_up("attempt 1")
    envoy.replica.answers(*held)
    envoy.replica.is_lost(LogCause.UPSTREAM_TIMEOUT)
    assert envoy.client.error.reason is Reason.NETWORK_PARTITION
    envoy.catch_up(ATTEMPT_LOG)
    envoy.wait(4)
    assert envoy.outcomes == ["network_partition"]


def test_the_mark_says_why_also_when_a_release_crossed_the_loss():
    envoy = crossing(LogCause.UPSTREAM_TIMEOUT, retries=0)
    assert envoy.client.error.reason is Reason.NETWORK_PARTITION
    envoy.catch_up(ATTEMPT_LOG)
    envoy.wait(4)
    assert envoy.outcomes == ["network_partition"]


@pytest.mark.parametrize("last", [ping(), role(), usage(0), finish(), b"data: {"])
def test_nothing_that_is_no_delta_releases_an_answer(last):
    envoy = Envoy()
    envoy.replica.answers(role(), last)
    assert envoy.replica.at is At.HELD
    assert not envoy.exchange.committed


def test_the_held_part_is_released_with_the_first_delta_and_recorded_before():
    envoy = Envoy()
    envoy.replica.answers(ping(), role())
    assert bytes(envoy.client.body) == b""
    envoy.replica.sends(delta("Hel"))
    assert bytes(envoy.client.body) == ping() + role() + delta("Hel")
    release = next(s for s in envoy.steps if any(isinstance(r, step.ReleaseAttempt) for r in s.replies))
    assert [type(record) for record in release.records] == [FirstDeltaSent]


@pytest.mark.parametrize("event_bytes", [4 << 10, 1 << 20, 8 << 20])
def test_no_more_is_held_than_envoy_sends_while_it_waits(event_bytes):
    """Its buffer for one connection is 1 MiB: a first delta behind that would never be seen."""
    comment = b": " + b"x" * 1_000 + b"\n\n"
    envoy = Envoy(policy=Policy(max_event_bytes=event_bytes))
    envoy.replica.answers(comment)
    sent = len(comment)
    while sent + len(comment) <= 1 << 20:
        envoy.replica.sends(comment)
        sent += len(comment)
    assert not envoy.exchange.committed
    envoy.replica.sends(comment)
    assert envoy.exchange.committed
    assert len(envoy.client.body) == sent + len(comment)
    envoy.replica.sends(WHOLE, end=True)
    assert envoy.client.ended
    assert envoy.end.ending is Ending.FINISHED


def test_envoy_is_asked_for_patience_with_each_message_that_is_held():
    """Its time for an answer begins anew with each that it sends."""
    envoy = Envoy(policy=Policy(hold_limit_s=77.0))
    envoy.replica.answers(ping(), role())
    asked = [step.AskPatience("att_1", 77.0)]
    assert [r for r in envoy.replies if isinstance(r, step.AskPatience)] == asked * 3
    envoy.replica.sends(delta("Hel"), delta("lo"))
    assert [r for r in envoy.replies if isinstance(r, step.AskPatience)] == asked * 3


# --- where a replay goes ------------------------------------------------------------------------


def test_a_first_attempt_is_sent_where_envoys_weights_say_or_to_the_best_when_they_cannot_know():
    for named in (None, target("b")):
        envoy = Envoy(manual=True)
        taken = envoy.exchange.receive(AttemptArrived(AttemptId("att_1"), named), envoy.now)
        assert [reply.target for reply in taken.replies] == [named]
        assert [record.replica for record in taken.records] == [named and named.replica]


def test_a_replay_is_never_sent_to_a_replica_that_was_tried():
    envoy = Envoy(replicas=("a", "b", "c"), policy=Policy(max_attempts=3))
    envoy.replica.is_lost()
    envoy.replica.is_lost()
    envoy.replica.answers(WHOLE, end=True)
    assert [hop.replica for hop in envoy.hops] == ["a", "b", "c"]
    assert_one_whole_answer(envoy, attempts=3)


def test_a_replay_goes_to_an_equal_of_the_first_attempts_replica_and_to_nobody_else():
    envoy = Envoy(replicas=("a", "b", "c"), policy=Policy(max_attempts=3))
    envoy.equals = {"a", "c"}
    envoy.replica.is_lost()
    assert envoy.replica.replica == "c"
    envoy.replica.is_lost()
    assert_refused(envoy, "upstream_unavailable", 503, Reason.REPLICA_DIED)
    assert envoy.started == 2
    assert refusals(envoy) == ["upstream_unavailable"]


def test_equals_are_looked_for_at_the_moment_of_the_start_and_by_the_first_attempt():
    envoy = Envoy(replicas=("a", "b", "c"), policy=Policy(max_attempts=3, fence_s=7.0))
    started_at = envoy.now
    envoy.wait(1.5)
    envoy.replica.is_lost(LogCause.UPSTREAM_TIMEOUT)
    assert envoy.replica.at is At.GATE
    envoy.equals = {"c"}  # while it waits, b leaves
    envoy.wait(7.1)
    assert envoy.replica.replica == "c"
    envoy.replica.is_lost()
    assert envoy.asked[-1] == Tried(ReplicaId("a"), started_at, frozenset({"a", "c"}))


def test_an_attempt_that_nobody_has_placed_is_not_repeated():
    """Neither its headers nor its log entry came: the replay could go to the same replica."""
    envoy = Envoy(late=(ATTEMPT_LOG, "attempt 1"))
    envoy.catch_up("attempt 1")
    envoy.late.add("attempt 1")
    envoy.replica.is_lost()
    envoy.asks_again()
    envoy.wait(7.1)
    assert envoy.started == 1
    assert refusals(envoy)[-1] == "upstream_unavailable"


def test_an_answer_of_a_replica_that_is_no_equal_is_never_released():
    """Envoy's fallback policy knows nothing of fingerprints."""
    envoy = Envoy(replicas=("a", "b", "c"), policy=Policy(max_attempts=2))
    envoy.equals = {"a", "b"}
    envoy.replica.is_lost()
    envoy.replica.answers(WHOLE, by="c")
    assert bytes(envoy.client.body) == b""
    assert_refused(envoy, "upstream_unavailable", 503)
    assert envoy.outcomes == ["replica_died", "misrouted"]


def test_the_only_replica_of_a_pool_is_not_tried_twice():
    envoy = Envoy(replicas=("a",))
    envoy.replica.is_lost()
    assert_refused(envoy, "upstream_unavailable", 503, Reason.REPLICA_DIED)
    assert envoy.started == 1
    assert refusals(envoy) == ["upstream_unavailable"]
    (refused,) = (note for note in envoy.notes if isinstance(note, ReplayRefused))
    assert refused.detail == "no ready replica of its fingerprint is left that was not tried"


@pytest.mark.parametrize("status", [200, 404, 429])
@pytest.mark.parametrize("by", [None, "a"])
def test_an_answer_of_a_replica_that_may_not_answer_is_never_released(by, status):
    """Envoy's fallback policy may pick any host when the named one is gone."""
    envoy = Envoy(replicas=("a", "b"))
    envoy.replica.is_lost()
    envoy.replica.answers(WHOLE, by=by, status=status)
    assert bytes(envoy.client.body) == b""
    assert_refused(envoy, "upstream_unavailable", 503)
    assert envoy.outcomes == ["replica_died", "misrouted"]
    ended = [record for record in envoy.records if isinstance(record, AttemptEnded)]
    assert ended[-1].detail == "answered by a replica that may not answer"


def test_a_misrouted_answer_is_replayed_where_another_replica_is_left():
    envoy = Envoy(replicas=("a", "b"))
    envoy.replica.answers(WHOLE, by=None)
    envoy.replica.answers(WHOLE, end=True)
    assert_one_whole_answer(envoy, attempts=2)


def test_an_attempt_for_which_envoy_had_no_endpoint_is_replayed_where_there_is_one():
    """The first replica of a pool was on its way to Envoy. Nothing was sent anywhere."""
    envoy = Envoy()
    envoy.replica.is_lost(LogCause.NO_UPSTREAM)
    envoy.replica.answers(WHOLE, end=True)
    assert_one_whole_answer(envoy, attempts=2)
    assert envoy.outcomes == ["no_replica", "completed"]


def test_an_untried_replica_may_answer_in_place_of_the_named_one():
    envoy = Envoy(replicas=("a", "b", "c"))
    envoy.replica.is_lost()
    envoy.replica.answers(WHOLE, by="c", end=True)
    assert_one_whole_answer(envoy, attempts=2)
    assert next(r for r in envoy.records if isinstance(r, FirstDeltaSent)).replica == "c"
