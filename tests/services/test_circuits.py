"""Circuits in a fleet: who is to blame, who is out, who is tried, and what the fleet makes of it."""

import pytest

from envoy_ext.config import Circuit, Pool, Readiness
from envoy_ext.domain.availability import Availability, ServingReason
from envoy_ext.domain.capacity import read_replica_load
from envoy_ext.domain.circuit import CircuitState
from envoy_ext.domain.circuit_evidence import FailureClass
from envoy_ext.domain.circuit_policy import CircuitPolicy
from envoy_ext.domain.discovery import MemberChanges
from envoy_ext.domain.events import LogCause
from envoy_ext.domain.fingerprint import Fingerprint
from envoy_ext.domain.fleet_events import (
    Change,
    CircuitTurned,
    ControlCallFailed,
    ControlCallPassed,
    ReplicaChanged,
    Scraped,
    ScrapeFailed,
)
from envoy_ext.domain.fleet_view import Offer, ReplicaView, ViewPolicy, choose_replay_candidates
from envoy_ext.domain.ids import AttemptId, OperationId, PoolName, ReplicaId
from envoy_ext.domain.notes import AttemptFinished
from envoy_ext.domain.outcomes import AttemptOutcome
from envoy_ext.domain.readiness_reasons import ReadinessReason
from envoy_ext.domain.replica_life import ReplicaState
from envoy_ext.domain.sample import Sample, ScrapeFailure
from envoy_ext.services.exchange_replicas import ExchangeReplicas
from envoy_ext.services.fleet import TICK_S, Fleet, FleetPool
from envoy_ext.services.rooms import Rooms
from envoy_ext.wiring.fleet import build_circuit, build_readiness
from tests.support.clock import ManualClock
from tests.support.members import list_members, place

POOL = PoolName("chat")
W, S = AttemptOutcome, CircuitState
POLICY = CircuitPolicy()


class Played:
    """A pool whose replicas are looked at each second; their models answer unless they are `broken`."""

    def __init__(self, names: str, policy: CircuitPolicy | None = POLICY) -> None:
        self.clock = ManualClock()
        self.names = [ReplicaId(name) for name in names]
        self.broken: set[str] = set()
        self.number = 0
        self.changes: list[Change] = []
        readiness = build_readiness(Readiness(), Circuit())
        pool = FleetPool(POOL, Fingerprint(POOL), readiness, True, True, ViewPolicy(), policy)
        self.fleet = Fleet([pool], self.clock, lambda view: None, self.changes.append)
        list_members(self.fleet, POOL, tuple(names))
        for name in self.names:
            self.fleet.receive(name, ControlCallPassed(1))
        self.pass_time(60)
        assert self.serving() == set(names)

    # --- what happens -------------------------------------------------------------------------

    def look(self, name: ReplicaId, started_at: float = 1.0) -> None:
        page = Sample(
            self.clock.now(),
            running=1,
            waiting=0,
            kv_cache_usage=0.1,
            progress=self.clock.now(),
            process_started_at=started_at,
        )
        self.fleet.receive(name, Scraped(page))

    def pass_time(self, seconds: float) -> None:
        for number in range(round(seconds / TICK_S)):
            self.clock.advance(TICK_S)
            for name in self.names if number % 4 == 0 else ():
                self.look(name)
                if self.fleet.is_control_call_due(name):
                    self.answer_control_call(name)
            self.fleet.tick()

    def answer_control_call(self, name: ReplicaId) -> None:
        life = self.fleet.incarnation(name)
        call = ControlCallFailed(life, "HTTP 500") if name in self.broken else ControlCallPassed(life)
        self.fleet.receive(name, call)

    def begin(self, name: str, operation_id: str = "") -> AttemptFinished:
        """An attempt, with the end that it would have if its replica answered."""
        self.number += 1
        attempt_id = AttemptId(f"att_{self.number}")
        operation = OperationId(operation_id or f"op_{self.number}")
        place(self.fleet, attempt_id, ReplicaId(name))
        self.fleet.circuits.begin(operation, ReplicaId(name))
        return AttemptFinished(operation, attempt_id, POOL, ReplicaId(name), W.COMPLETED, "", answered=True)

    def end(
        self, begun: AttemptFinished, outcome: AttemptOutcome = W.COMPLETED, *, over: bool = True
    ) -> None:
        answered = outcome is W.COMPLETED
        self.clock.advance(0.001)
        self.fleet.streams.note(
            AttemptFinished(
                begun.operation_id, begun.attempt_id, POOL, begun.replica, outcome, "", answered=answered
            )
        )
        if over:
            self.fleet.circuits.note_exchange_ended(begun.operation_id)
            self.fleet.circuits.note_over(begun.operation_id)

    def fail(self, name: str, times: int = 5, outcome: AttemptOutcome = W.ENGINE_ERROR) -> None:
        """Requests that fail at a replica, and are answered by another one."""
        for _ in range(times):
            begun = self.begin(name)
            self.end(begun, outcome, over=False)
            other = next((str(one) for one in self.names if one != name), None)
            if other is not None:
                self.fleet.circuits.note_first_delta(begun.operation_id, ReplicaId(other))
            self.fleet.circuits.note_over(begun.operation_id)
        self.clock.advance(0.001)
        self.fleet.tick()

    def fail_everywhere(self, times: int, names: str = "ab") -> None:
        """Requests that no replica survives."""
        for _ in range(times):
            self.number += 1
            operation_id = f"both_{self.number}"
            for name in names:
                self.end(self.begin(name, operation_id), W.ENGINE_ERROR, over=False)
            self.fleet.circuits.note_over(OperationId(operation_id))
        self.clock.advance(0.001)
        self.fleet.tick()

    # --- what is seen -------------------------------------------------------------------------

    def state(self, name: str = "a") -> CircuitState | None:
        return self.fleet.circuits.read_state(ReplicaId(name))

    def find(self, name: str = "a") -> ReplicaView:
        view = self.fleet.view.find(POOL)
        found = None if view is None else view.find(ReplicaId(name))
        assert found is not None
        return found

    def serving(self) -> set[str]:
        (pool,) = self.fleet.view.pools
        return {one.id for one in pool.replicas if one.offer is Offer.SERVING}

    def candidates(self, tried: str = "") -> str:
        (pool,) = self.fleet.view.pools
        return "".join(one.replica for one in choose_replay_candidates(pool, None, set(tried)))

    def choose_trial(self, operation_id: str, *, replayable: bool = True) -> str | None:
        replicas = ExchangeReplicas(self.fleet, POOL, self.clock)
        target = replicas.choose_trial(OperationId(operation_id), replayable=replayable)
        return None if target is None else str(target.replica)

    def wait_state(self, state: CircuitState, names: str = "a") -> str:
        """Until a circuit is so, and whose; each waits for a time that is drawn."""
        for _ in range(400):
            found = [name for name in names if self.state(name) is state]
            if found:
                return found[0]
            self.pass_time(TICK_S)
        raise AssertionError(f"never {state}")


# --- out, and back ----------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [W.ENGINE_ERROR, W.TRUNCATED, W.REPLICA_DIED, W.NETWORK_PARTITION])
def test_a_replica_that_fails_is_out_is_tried_and_warms_up_again(outcome: AttemptOutcome) -> None:
    played = Played("ab")
    played.fail("a", 5, outcome)
    assert played.state() is S.OPEN
    assert played.serving() == {"b"}
    assert played.find().status.reasons == (ReadinessReason.CIRCUIT_OPEN,)
    assert (played.find().offer, played.find().weight) == (Offer.WITHHELD, 1)
    assert played.candidates() == "b", "it is no target of a replay"
    played.wait_state(S.HALF_OPEN)
    assert played.serving() == {"b"}, "and none but trials go there"
    assert played.candidates() == "b"
    trials = [played.choose_trial(f"try_{number}") for number in range(5)]
    assert trials == ["a", "a", None, None, None]
    assert played.choose_trial("try_0") == "a", "one request has one trial, however often it is asked"
    for number in range(3):
        name = f"try_{number}"
        assert played.choose_trial(name) == "a"
        played.end(played.begin("a", name))
    assert played.state() is S.CLOSED
    played.fleet.tick()
    assert played.serving() == {"a", "b"}
    assert played.find().status.state is ReplicaState.WARMING
    assert played.fleet.circuits.idle


def test_readiness_counts_nothing_of_what_a_circuit_judges() -> None:
    played = Played("a")
    played.fail("a", 50)
    assert ReadinessReason.JUST_FAILED not in played.find().status.reasons
    assert played.find().status.failures > 1.0, "weights and the order of replays still know"


def test_how_often_a_circuit_opened_makes_no_other_way_back_longer() -> None:
    played = Played("ab")
    for _ in range(3):
        played.fail("a")
        played.wait_state(S.HALF_OPEN)
        for number in range(3):
            played.choose_trial(f"t_{number}")
            played.end(played.begin("a", f"t_{number}"))
        played.fleet.tick()
    played.fleet.receive(ReplicaId("a"), ScrapeFailed(ScrapeFailure(played.clock.now(), "engine_dead")))
    assert "a" not in played.serving()
    played.pass_time(8)
    assert "a" in played.serving(), "its hold is the first one: 5 s"


def test_a_circuit_that_is_switched_off_is_none_and_readiness_judges() -> None:
    replicas = [{"url": "http://10.0.0.1:8000"}]
    given = {"name": "chat", "models": ["m"], "replicas": replicas}
    on, off = (Pool.model_validate({**given, "circuit": {"enabled": one}}) for one in (True, False))
    assert build_circuit(off) is None
    assert build_circuit(on) == CircuitPolicy()
    assert build_readiness(off.readiness, off.circuit).own_failures.leave_at == 3
    assert build_readiness(on.readiness, on.circuit).own_failures.leave_at == float("inf")
    played = Played("ab", policy=None)
    played.fail("a", 50)
    assert (played.state(), played.serving()) == (None, {"a", "b"})
    assert played.fleet.circuits.idle


def test_configured_classes_that_never_count_are_not_counted() -> None:
    pool = Pool.model_validate(
        {
            "name": "chat",
            "models": ["m"],
            "replicas": [{"url": "http://10.0.0.1:8000"}],
            "circuit": {"in_a_row": {"reset": "never", "connect": 7}},
            "readiness": {"warmup": False},
        }
    )
    policy = build_circuit(pool)
    assert policy is not None
    assert policy.in_a_row == {
        FailureClass.CONNECT: 7,
        FailureClass.ENGINE_ERROR: 5,
        FailureClass.SILENCE: 3,
    }
    assert not policy.probes, "where no control call proves a replica, none is asked of it"


# --- whose fault ------------------------------------------------------------------------------


def test_requests_that_no_replica_survives_take_nobody_out_while_the_models_answer() -> None:
    played = Played("ab")
    for _ in range(20):
        played.fail_everywhere(5)
        played.pass_time(2)
        assert played.serving() == {"a", "b"}
    assert not [one for one in played.changes if isinstance(one, CircuitTurned) and one.after is S.OPEN]


def test_a_mistake_that_one_engine_names_and_another_falls_over_is_the_requests() -> None:
    played = Played("ab")
    for number in range(20):
        played.end(played.begin("a", f"bad_{number}"), W.ENGINE_ERROR, over=False)
        played.end(played.begin("b", f"bad_{number}"), W.CLIENT_ERROR)
        played.end(played.begin("a"))
    played.pass_time(1)
    assert played.serving() == {"a", "b"}


def test_a_failure_waits_for_what_becomes_of_its_request_and_no_longer() -> None:
    played = Played("ab")
    begun = [played.begin("a") for _ in range(5)]
    for one in begun:
        played.end(one, W.ENGINE_ERROR, over=False)
    played.pass_time(1)
    assert played.state() is S.CLOSED, "their replays have not begun to answer"
    for one in begun:
        played.fleet.circuits.note_exchange_ended(one.operation_id)
    played.pass_time(1)
    assert played.state() is S.OPEN
    for one in begun:
        played.fleet.circuits.note_over(one.operation_id)
    assert played.fleet.circuits.idle


def test_the_first_word_of_the_replay_is_enough_to_blame_the_replica() -> None:
    played = Played("ab")
    for _ in range(5):
        begun = played.begin("a")
        played.end(begun, W.ENGINE_ERROR, over=False)
        played.fleet.circuits.note_first_delta(begun.operation_id, ReplicaId("b"))
    played.pass_time(TICK_S)
    assert played.state() is S.OPEN


def test_an_end_that_is_told_behind_the_answer_of_the_replay_blames_its_replica() -> None:
    played = Played("ab")
    begun = [played.begin("a") for _ in range(5)]
    for one in begun:
        played.fleet.circuits.note_first_delta(one.operation_id, ReplicaId("b"))
        played.end(one, W.ENGINE_ERROR, over=False)
    played.pass_time(TICK_S)
    assert played.state() is S.OPEN


def test_a_failed_connection_waits_for_nothing() -> None:
    played = Played("ab")
    for _ in range(3):
        begun = played.begin("a")
        note = AttemptFinished(
            begun.operation_id,
            begun.attempt_id,
            POOL,
            ReplicaId("a"),
            W.REPLICA_DIED,
            "",
            cause=LogCause.CONNECT_REFUSED,
        )
        played.fleet.streams.note(note)
    played.pass_time(TICK_S)
    assert played.state() is S.OPEN
    (turned,) = [one for one in played.changes if isinstance(one, CircuitTurned)]
    assert (turned.kind, turned.why) == (FailureClass.CONNECT, "3 failures in a row (connect)")


# --- what is no fault of a replica's ----------------------------------------------------------


@pytest.mark.parametrize(
    "outcome",
    [W.CLIENT_ERROR, W.CANCELLED, W.OVERLOADED, W.MISROUTED, W.NO_REPLICA, W.REFUSED, W.UNKNOWN],
)
def test_a_thousand_ends_that_are_not_its_fault_move_nothing(outcome: AttemptOutcome) -> None:
    played = Played("ab")
    for _ in range(1_000):
        played.end(played.begin("a"), outcome)
    played.pass_time(1)
    assert (played.state(), played.serving()) == (S.CLOSED, {"a", "b"})


def test_what_ends_at_a_replica_that_drains_is_not_held_against_it() -> None:
    played = Played("ab")
    begun = [played.begin("a") for _ in range(20)]
    played.fleet.drain(ReplicaId("a"), limit_s=600)
    for one in begun:
        played.end(one, W.REPLICA_DIED)
    played.fleet.undrain(ReplicaId("a"))
    played.pass_time(1)
    assert (played.state(), played.serving()) == (S.CLOSED, {"a", "b"})
    assert played.fleet.circuits.idle


def test_another_process_has_a_circuit_of_its_own_and_the_losses_of_the_last_one_are_not_its() -> None:
    played = Played("ab")
    lost = [played.begin("a") for _ in range(20)]
    played.fail("a")
    assert played.state() is S.OPEN
    played.look(ReplicaId("a"), started_at=5_000.0)
    for one in lost:
        played.end(one, W.REPLICA_DIED)
    assert played.fleet.incarnation(ReplicaId("a")) == 2
    assert played.state() is S.CLOSED
    assert played.find().status.state is ReplicaState.STARTING, "it has its own proof to give"
    assert played.fleet.circuits.idle


def test_a_trial_that_ends_at_a_replica_which_drains_gives_its_place_back() -> None:
    played = Played("ab")
    played.fail("a")
    played.wait_state(S.HALF_OPEN)
    assert played.choose_trial("x") == "a"
    begun = played.begin("a", "x")
    assert played.choose_trial("y") == "a"
    played.fleet.drain(ReplicaId("a"), limit_s=600)
    played.end(begun, W.REPLICA_DIED, over=False)
    played.fleet.undrain(ReplicaId("a"))
    assert played.choose_trial("z") == "a"
    assert played.state() is S.HALF_OPEN


def test_a_failure_that_nobody_is_blamed_for_yet_goes_with_its_process() -> None:
    played = Played("ab")
    begun = [played.begin("a") for _ in range(5)]
    for one in begun:
        played.end(one, W.REPLICA_DIED, over=False)
    played.look(ReplicaId("a"), started_at=5_000.0)
    for one in begun:
        played.fleet.circuits.note_over(one.operation_id)
    played.clock.advance(TICK_S)
    played.fleet.tick()
    assert played.state() is S.CLOSED


# --- how many may be out ----------------------------------------------------------------------


def test_the_last_one_serves_on_while_its_model_answers_and_is_asked_at_once() -> None:
    played = Played("ab")
    played.fail("a")
    played.fail("b")
    assert (played.state("b"), played.serving()) == (S.PROBING, {"b"})
    assert ReadinessReason.CIRCUIT_OVERRULED in played.find("b").status.reasons
    assert played.find("b").weight >= 1
    for _ in range(10):
        played.fail("b")
        played.pass_time(5)
        assert played.serving(), "somebody serves, whatever requests say"
    assert played.fleet.availability(POOL) is Availability.NORMAL


def test_a_pool_whose_models_all_fail_is_cut_off_and_comes_back_by_trials() -> None:
    played = Played("ab")
    played.broken = {"a", "b"}
    played.fail_everywhere(6)
    played.pass_time(3)
    assert (played.state("a"), played.state("b"), played.serving()) == (S.OPEN, S.OPEN, set())
    (pool,) = played.fleet.view.pools
    assert (pool.availability, pool.reason) == (Availability.EMPTY, ServingReason.CIRCUITS_OPEN)
    assert played.fleet.is_cut_off(POOL)
    assert 1 <= played.fleet.circuits.read_wait_s(POOL) <= 30
    assert played.choose_trial("early") is None
    played.pass_time(120)
    assert played.fleet.is_cut_off(POOL), "its control calls go on, and fail"
    played.broken = set()
    first = played.wait_state(S.HALF_OPEN, "ab")
    assert played.fleet.is_cut_off(POOL)
    for number in range(3):
        name = f"try_{number}"
        assert played.choose_trial(name, replayable=False) == first, "nobody serves, so anybody may be one"
        played.end(played.begin(first, name))
    played.fleet.tick()
    assert first in played.serving()
    assert not played.fleet.is_cut_off(POOL)


def test_a_control_call_that_had_no_time_condemns_nobody() -> None:
    played = Played("a")
    played.fail("a", 10)
    assert played.state() is S.PROBING
    played.fleet.receive(ReplicaId("a"), ControlCallFailed(1, "timeout", unanswered=True))
    assert (played.state(), played.serving()) == (S.PROBING, {"a"})
    played.fleet.receive(ReplicaId("a"), ControlCallFailed(1, "HTTP 500"))
    assert (played.state(), played.serving()) == (S.OPEN, set())


def test_who_is_left_when_others_are_drained_serves_on() -> None:
    played = Played("ab")
    played.fail("a")
    assert played.serving() == {"b"}
    played.fleet.drain(ReplicaId("b"), limit_s=600)
    assert played.serving() == {"a"}, "on the word of requests alone the last one is never out"
    assert ReadinessReason.CIRCUIT_OVERRULED in played.find("a").status.reasons
    played.fleet.undrain(ReplicaId("b"))
    assert played.serving() == {"b"}


def test_of_four_two_are_out_on_the_word_of_requests_and_all_whose_models_fail() -> None:
    played = Played("abcd")
    for name in "abc":
        played.fail(name)
    assert played.serving() == {"c", "d"}
    played.broken = {"c"}
    played.pass_time(2)
    assert played.serving() == {"b", "d"}, "half of the pool is out, and on the word of one model more"
    played.broken = {"a", "b", "c"}
    played.fail("b")
    played.pass_time(20)
    assert played.serving() == {"d"}


# --- capacity ---------------------------------------------------------------------------------


def test_the_slots_of_a_replica_that_is_out_are_none() -> None:
    played = Played("ab")
    rooms = Rooms(played.fleet, {POOL: 4})
    assert rooms.read(POOL).slots == 8
    assert read_replica_load(played.find(), 4).able
    played.fail("a")
    assert rooms.read(POOL).slots == 4
    assert not read_replica_load(played.find(), 4).able, "nor is there room when the other one goes"
    played.wait_state(S.HALF_OPEN)
    assert rooms.read(POOL).slots == 4


def test_a_request_that_could_not_be_replayed_is_no_trial_while_others_serve() -> None:
    played = Played("ab")
    played.fail("a")
    played.wait_state(S.HALF_OPEN)
    assert played.choose_trial("long", replayable=False) is None
    assert played.choose_trial("short", replayable=True) == "a"


def test_a_trial_that_never_ran_gives_its_place_back() -> None:
    played = Played("ab")
    played.fail("a")
    played.wait_state(S.HALF_OPEN)
    assert [played.choose_trial(name) for name in ("x", "y", "z")] == ["a", "a", None]
    played.fleet.circuits.note_over(OperationId("x"))
    assert played.choose_trial("z") == "a"


def test_one_that_its_own_signals_keep_out_is_tried_by_nobody() -> None:
    played = Played("ab")
    played.fail("a")
    played.wait_state(S.HALF_OPEN)
    now = played.clock.now()
    played.fleet.receive(ReplicaId("a"), ScrapeFailed(ScrapeFailure(now, "engine_dead")))
    assert played.choose_trial("x") is None


def test_a_replica_that_goes_takes_its_circuit_along() -> None:
    played = Played("ab")
    played.fail("a")
    played.fleet.change_members(POOL, MemberChanges(removed=(ReplicaId("a"),)))
    assert played.state() is None
    played.fleet.tick()
    assert played.serving() == {"b"}


def test_each_state_is_told_once_and_a_replicas_change_with_it() -> None:
    played = Played("ab")
    played.changes.clear()
    played.fail("a")
    played.wait_state(S.HALF_OPEN)
    turns = [(one.before, one.after) for one in played.changes if isinstance(one, CircuitTurned)]
    assert turns == [(S.CLOSED, S.OPEN), (S.OPEN, S.PROBING), (S.PROBING, S.HALF_OPEN)]
    moved = [one for one in played.changes if isinstance(one, ReplicaChanged)]
    assert [one.after for one in moved if one.replica == "a"] == [ReplicaState.UNREADY]
