"""One circuit: every signal in every state, what opens it, what does not, and its way back."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from envoy_ext.domain.circuit import CUT, JITTER, TRANSITIONS, Circuit, CircuitSignal, CircuitState
from envoy_ext.domain.circuit_evidence import ANSWERED, Blame, Evidence, Failed, FailureClass
from envoy_ext.domain.circuit_policy import IN_A_ROW, CircuitPolicy
from envoy_ext.domain.ids import OperationId

S, T, K = CircuitState, CircuitSignal, FailureClass
POLICY = CircuitPolicy()
INSTANT_S = 0.001
REPLICAS = {kind: Failed(kind, Blame.REPLICA) for kind in K}
REQUESTS = Failed(K.ENGINE_ERROR, Blame.REQUEST)
UNCLEAR = Failed(K.ENGINE_ERROR)


class Driven:
    """A circuit on a simulated clock. Attempts end one behind the other, unless they end `together`."""

    def __init__(self, policy: CircuitPolicy = POLICY, draw: float = 0.0) -> None:
        self.now = 1_000.0
        self.ended = 0
        self.circuit = Circuit(policy, lambda: draw)

    @property
    def state(self) -> CircuitState:
        return self.circuit.state

    def wait(self, seconds: float) -> None:
        self.now += seconds
        while (due := self.circuit.next_deadline()) is not None and due <= self.now:
            before = (self.state, due)
            self.circuit.expire(self.now)
            if (self.state, self.circuit.next_deadline()) == before:
                break

    def begin(self) -> OperationId:
        self.ended += 1
        operation_id = OperationId(f"op_{self.ended}")
        self.circuit.begin(operation_id)
        return operation_id

    def together(self, *evidence: Evidence | None) -> None:
        begun = [(self.begin(), one) for one in evidence]
        for operation_id, one in begun:
            self.circuit.finish(operation_id, one, self.now)

    def end(self, *evidence: Evidence | None, every_s: float = INSTANT_S) -> None:
        for one in evidence:
            self.together(one)
            self.wait(every_s)

    def fail(self, times: int, kind: FailureClass = K.ENGINE_ERROR) -> None:
        self.end(*[REPLICAS[kind]] * times)

    def probe(self, passed: bool) -> None:
        self.circuit.note_probe(passed, self.now)

    def open(self) -> None:
        self.fail(5)
        assert self.state is S.OPEN

    def half_open(self) -> None:
        self.open()
        self.wait(POLICY.open_s)
        self.probe(True)
        assert self.state is S.HALF_OPEN


# --- the table --------------------------------------------------------------------------------


def test_only_these_moves_are_there():
    moves = {(before, after) for before, row in TRANSITIONS.items() for after in row.values()}
    assert moves == {
        (S.CLOSED, S.OPEN),
        (S.CLOSED, S.SUSPECTED),
        (S.SUSPECTED, S.OPEN),
        (S.SUSPECTED, S.CLOSED),
        (S.OPEN, S.PROBING),
        (S.OPEN, S.HALF_OPEN),
        (S.PROBING, S.HALF_OPEN),
        (S.PROBING, S.OPEN),
        (S.HALF_OPEN, S.OPEN),
        (S.HALF_OPEN, S.CLOSED),
    }
    assert set(TRANSITIONS) == set(S)
    assert {signal for row in TRANSITIONS.values() for signal in row} == set(T)


def reach(state: CircuitState) -> Driven:
    driven = Driven()
    match state:
        case S.SUSPECTED:
            driven.end(*[REQUESTS] * 5)
        case S.OPEN:
            driven.open()
        case S.PROBING:
            driven.open()
            driven.wait(POLICY.open_s)
        case S.HALF_OPEN:
            driven.half_open()
    assert driven.state is state
    return driven


EVENTS: Mapping[str, tuple[object, dict[CircuitState, CircuitState]]] = {
    "a failure": (lambda d: d.end(REPLICAS[K.CONNECT]), {S.HALF_OPEN: S.OPEN}),
    "failures": (
        lambda d: d.fail(5),
        {S.CLOSED: S.OPEN, S.SUSPECTED: S.OPEN, S.HALF_OPEN: S.OPEN},
    ),
    "failures of requests": (lambda d: d.end(*[REQUESTS] * 5), {S.CLOSED: S.SUSPECTED}),
    "nothing known": (lambda d: d.end(*[None] * 9), {}),
    "answers": (lambda d: d.end(*[ANSWERED] * 3), {S.HALF_OPEN: S.CLOSED}),
    "a control call passed": (lambda d: d.probe(True), {S.SUSPECTED: S.CLOSED, S.PROBING: S.HALF_OPEN}),
    "a control call failed": (lambda d: d.probe(False), {S.SUSPECTED: S.OPEN, S.PROBING: S.OPEN}),
    "it has to serve on": (lambda d: d.circuit.hurry(d.now), {S.OPEN: S.PROBING}),
    "its time": (lambda d: d.wait(POLICY.open_s), {S.OPEN: S.PROBING}),
    "a window without anything": (
        lambda d: d.wait(POLICY.window_s),
        {S.OPEN: S.PROBING, S.HALF_OPEN: S.CLOSED},
    ),
}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", list(S))
def test_every_state_with_every_event(state, event):
    driven = reach(state)
    happen, moves = EVENTS[event]
    happen(driven)
    assert driven.state is moves.get(state, state)


# --- what opens it ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", K)
def test_so_many_in_a_row_of_one_class_open_it_and_one_fewer_does_not(kind):
    driven = Driven()
    driven.fail(IN_A_ROW[kind] - 1, kind)
    assert driven.state is S.CLOSED
    driven.end(ANSWERED)
    driven.fail(IN_A_ROW[kind] - 1, kind)
    assert driven.state is S.CLOSED, "an answer between them begins the count anew"
    driven.fail(1, kind)
    assert (driven.state, driven.circuit.kind) == (S.OPEN, kind)


def test_failures_of_several_classes_open_it_together_by_the_longest_count():
    driven = Driven()
    mixed = [REPLICAS[kind] for kind in (K.CONNECT, K.SILENCE, K.RESET, K.CONNECT)]
    driven.end(*mixed)
    assert driven.state is S.CLOSED
    driven.end(REPLICAS[K.SILENCE])
    assert (driven.state, driven.circuit.kind) == (S.OPEN, K.CONNECT), "the first of those that are most"


def test_what_says_nothing_is_between_failures_and_takes_none_away():
    driven = Driven()
    for _ in range(5):
        driven.end(None, REPLICAS[K.RESET], None)
    assert driven.state is S.OPEN


def test_a_share_of_the_window_opens_it_with_enough_attempts_only():
    driven = Driven()
    driven.end(*[REPLICAS[K.RESET], ANSWERED] * 4)
    assert driven.state is S.CLOSED, "8 are too few for a share"
    driven.end(ANSWERED, REPLICAS[K.RESET])
    assert (driven.state, driven.circuit.kind) == (S.OPEN, K.RESET)
    assert driven.circuit.why == "5 of 10 attempts in 30 s failed (most: reset)"


def test_less_than_the_share_never_opens_it():
    driven = Driven()
    driven.end(*[REPLICAS[K.RESET], ANSWERED, ANSWERED] * 500)
    assert driven.state is S.CLOSED


def test_failures_that_left_the_window_count_for_no_share():
    driven = Driven()
    driven.end(*[REPLICAS[K.RESET], ANSWERED, ANSWERED] * 6)
    driven.wait(POLICY.window_s * 1.1)
    driven.end(*[REPLICAS[K.RESET], ANSWERED] * 4)
    assert driven.state is S.CLOSED
    driven.end(ANSWERED, REPLICAS[K.RESET])
    assert driven.state is S.OPEN


def test_one_failure_on_a_quiet_replica_is_nothing():
    driven = Driven()
    for _ in range(50):
        driven.end(REPLICAS[K.CONNECT], ANSWERED, every_s=600.0)
    assert driven.state is S.CLOSED


def test_an_answer_excuses_only_the_failures_before_its_instant():
    for first in (0, 2, 4):
        driven = Driven()
        failure = REPLICAS[K.RESET]
        driven.together(*[failure] * first, ANSWERED, *[failure] * (4 - first))
        driven.wait(INSTANT_S)
        assert driven.state is S.CLOSED
        driven.end(failure)
        assert driven.state is S.OPEN


def test_a_class_that_never_counts_is_neither_failure_nor_answer():
    policy = replace(POLICY, in_a_row={K.CONNECT: 3})
    driven = Driven(policy)
    driven.fail(50)
    assert driven.state is S.CLOSED
    driven.end(REPLICAS[K.CONNECT], REPLICAS[K.ENGINE_ERROR], *[REPLICAS[K.CONNECT]] * 2)
    assert driven.state is S.OPEN


# --- whose fault ------------------------------------------------------------------------------


def test_failures_of_requests_have_the_model_asked_and_its_answer_clears_it():
    driven = Driven()
    driven.end(*[REQUESTS] * 5)
    assert driven.state is S.SUSPECTED
    assert driven.state not in CUT, "it serves on meanwhile"
    driven.probe(True)
    assert driven.state is S.CLOSED
    driven.wait(POLICY.open_s)
    driven.end(*[REQUESTS] * 4)
    assert driven.state is S.CLOSED, "those of before are forgiven"
    driven.end(REQUESTS)
    assert driven.state is S.SUSPECTED


def test_a_model_is_not_asked_all_the_time_for_the_sake_of_bad_requests():
    driven = Driven()
    asked = 0
    for _ in range(1_000):
        driven.end(REQUESTS, every_s=0.01)
        if driven.state is S.SUSPECTED:
            asked += 1
            driven.probe(True)
    assert driven.state is S.CLOSED
    assert asked <= 10.0 / POLICY.open_s + 1


def test_a_model_that_fails_too_opens_it_and_condemns_it():
    driven = Driven()
    driven.end(*[REQUESTS] * 5)
    driven.probe(False)
    assert (driven.state, driven.circuit.condemned) == (S.OPEN, True)


def test_untried_failures_are_like_the_tried_ones():
    """Half of the requests make an engine fail; a few of them are tried elsewhere, and fail there too."""
    driven = Driven()
    driven.end(REQUESTS)
    for _ in range(200):
        driven.end(UNCLEAR, UNCLEAR, UNCLEAR, ANSWERED)
        driven.probe(True)
        driven.end(REQUESTS)
    assert driven.state in (S.CLOSED, S.SUSPECTED)
    driven = Driven()
    driven.end(REPLICAS[K.ENGINE_ERROR])
    driven.end(*[UNCLEAR] * 4)
    assert driven.state is S.OPEN


def test_without_control_calls_bad_requests_open_it_only_when_nothing_is_answered():
    policy = replace(POLICY, probes=False)
    driven = Driven(policy)
    driven.end(ANSWERED, *[REQUESTS] * 50)
    assert driven.state is S.CLOSED
    driven.wait(policy.window_s * 1.1)
    driven.end(*[REQUESTS] * 5)
    assert driven.state is S.OPEN


def test_a_trial_that_fails_elsewhere_too_is_no_failed_trial_and_makes_room_for_the_next():
    driven = Driven()
    driven.half_open()
    for _ in range(20):
        driven.end(REQUESTS)
    assert driven.state is S.HALF_OPEN
    assert driven.circuit.count_free_trials() == POLICY.trial_requests
    driven.end(UNCLEAR)
    assert driven.state is S.OPEN


# --- open, and back ---------------------------------------------------------------------------


def test_nothing_counts_while_it_is_open():
    driven = Driven()
    driven.open()
    driven.end(*[ANSWERED] * 50, *[REPLICAS[K.CONNECT]] * 50)
    assert driven.state is S.OPEN
    driven.wait(POLICY.open_s)
    driven.end(*[ANSWERED] * 50, *[REPLICAS[K.CONNECT]] * 50)
    assert driven.state is S.PROBING


def read_wait(driven: Driven) -> float:
    return driven.circuit.open_until - driven.now


def test_the_time_doubles_with_each_opening_up_to_its_bound_and_is_forgotten_after_a_quiet_time():
    driven = Driven()
    waits = []
    driven.fail(4)
    driven.together(REPLICAS[K.ENGINE_ERROR])
    driven.circuit.expire(driven.now + INSTANT_S)
    for _ in range(6):
        waits.append(round(read_wait(driven)))
        driven.wait(read_wait(driven) + INSTANT_S)
        driven.probe(False)
    assert waits == [5, 10, 20, 40, 60, 60]
    driven.wait(60.1)
    driven.probe(True)
    driven.end(*[ANSWERED] * 3)
    assert driven.state is S.CLOSED
    driven.wait(POLICY.open_max_s - 1)
    driven.fail(5)
    assert read_wait(driven) > 59.0, "it opened again too soon to be another trouble"
    driven.wait(60.1)
    driven.probe(True)
    driven.end(*[ANSWERED] * 3)
    driven.wait(POLICY.open_max_s + 1)
    driven.fail(5)
    assert 4.9 < read_wait(driven) <= 5.0


@pytest.mark.parametrize(("draw", "shortest"), [(0.0, 1.0), (0.5, 1.0 - JITTER / 2), (1.0, 1.0 - JITTER)])
def test_the_time_is_drawn_a_little_shorter_never_longer(draw, shortest):
    driven = Driven(draw=draw)
    driven.fail(4)
    driven.together(REPLICAS[K.ENGINE_ERROR])
    driven.circuit.expire(driven.now + INSTANT_S)
    assert read_wait(driven) == pytest.approx(POLICY.open_s * shortest + INSTANT_S)


def test_it_is_tried_by_as_many_as_it_needs_and_few_at_a_time():
    driven = Driven()
    driven.half_open()
    circuit = driven.circuit
    assert circuit.count_free_trials() == 2
    first, second = driven.begin(), driven.begin()
    assert circuit.count_free_trials() == 0
    circuit.finish(first, ANSWERED, driven.now)
    assert circuit.count_free_trials() == 1
    third = driven.begin()
    assert circuit.count_free_trials() == 0
    circuit.finish(second, ANSWERED, driven.now)
    assert circuit.count_free_trials() == 0, (
        "one more success is all that it needs, and that one is under way"
    )
    circuit.finish(third, ANSWERED, driven.now)
    assert driven.state is S.CLOSED


def test_a_first_delta_is_a_success_and_keeps_its_place_until_its_end():
    driven = Driven()
    driven.half_open()
    first, second = driven.begin(), driven.begin()
    driven.circuit.note_first_delta(first, driven.now)
    driven.circuit.note_first_delta(first, driven.now)
    driven.circuit.note_first_delta(second, driven.now)
    assert (driven.state, driven.circuit.count_free_trials()) == (S.HALF_OPEN, 0)
    driven.circuit.finish(first, ANSWERED, driven.now)
    assert (driven.state, driven.circuit.count_free_trials()) == (S.HALF_OPEN, 1)
    driven.circuit.note_first_delta(driven.begin(), driven.now)
    assert driven.state is S.CLOSED


def test_an_answer_that_breaks_behind_its_first_delta_fails_its_trial():
    driven = Driven()
    driven.half_open()
    trial = driven.begin()
    driven.circuit.note_first_delta(trial, driven.now)
    driven.circuit.finish(trial, REPLICAS[K.RESET], driven.now)
    assert (driven.state, driven.circuit.kind) == (S.OPEN, K.RESET)


def test_a_silent_trial_keeps_it_half_open_and_a_long_answer_does_not():
    driven = Driven()
    driven.half_open()
    trial = driven.begin()
    driven.wait(POLICY.window_s * 10)
    assert driven.state is S.HALF_OPEN
    driven.circuit.note_first_delta(trial, driven.now)
    driven.wait(INSTANT_S)
    assert driven.state is S.CLOSED


def test_what_began_before_is_no_trial_and_a_trial_of_before_counts_for_nothing_but_its_place():
    driven = Driven()
    old = driven.begin()
    driven.half_open()
    driven.circuit.finish(old, REPLICAS[K.RESET], driven.now)
    assert driven.state is S.HALF_OPEN
    stuck = driven.begin()
    driven.end(REPLICAS[K.RESET])
    driven.wait(POLICY.open_s * 2)
    driven.probe(True)
    assert (driven.state, driven.circuit.count_free_trials()) == (S.HALF_OPEN, 1)
    driven.circuit.finish(stuck, REPLICAS[K.RESET], driven.now)
    assert (driven.state, driven.circuit.count_free_trials()) == (S.HALF_OPEN, 2)


def test_a_trial_that_fails_behind_a_control_call_that_passed_is_the_word_of_a_request_alone():
    driven = Driven()
    driven.end(*[REQUESTS] * 5)
    driven.probe(False)
    driven.wait(POLICY.open_s)
    driven.probe(True)
    assert driven.circuit.condemned, "until trials have shown it"
    driven.end(REPLICAS[K.RESET])
    assert (driven.state, driven.circuit.condemned) == (S.OPEN, False)


def test_without_control_calls_its_time_makes_it_half_open():
    driven = Driven(replace(POLICY, probes=False))
    driven.open()
    driven.circuit.hurry(driven.now)
    assert driven.state is S.OPEN
    driven.wait(POLICY.open_s)
    assert driven.state is S.HALF_OPEN


def test_one_that_has_to_serve_on_is_asked_once_at_once_and_then_in_its_time():
    driven = Driven()
    driven.open()
    driven.circuit.hurry(driven.now)
    assert driven.state is S.PROBING
    driven.probe(False)
    driven.circuit.hurry(driven.now)
    assert driven.state is S.OPEN
