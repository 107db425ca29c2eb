"""A circuit against whatever clients, replicas and time do, checked after each step.

* Client errors never open it, however many there are.
* In half-open no more trials are under way than may be, and the first that fails opens it.
* When failures stop, it is closed within `open_max_s`, a window and the answers that it takes.
* Evidence of one instant may come in any order.
"""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from envoy_ext.domain.circuit import CUT, Circuit, CircuitState
from envoy_ext.domain.circuit_evidence import ANSWERED, Answered, Blame, Failed, FailureClass, read_evidence
from envoy_ext.domain.circuit_policy import CircuitPolicy
from envoy_ext.domain.events import LogCause
from envoy_ext.domain.ids import OperationId
from envoy_ext.domain.outcomes import AttemptOutcome

W = AttemptOutcome
POLICY = CircuitPolicy(window_s=10.0, min_attempts=4, open_s=2.0, open_max_s=8.0)
FAILURES = st.builds(Failed, st.sampled_from(FailureClass), st.sampled_from(Blame))
EVIDENCE = st.one_of(st.none(), st.just(ANSWERED), FAILURES)
MISTAKES = st.sampled_from(
    [W.CLIENT_ERROR, W.CANCELLED, W.OVERLOADED, W.REFUSED, W.MISROUTED, W.NO_REPLICA, W.UNKNOWN]
)
"""Of clients, of the gateway, and of a replica that is full."""
STEPS_S = st.sampled_from([0.0, 0.01, 0.3, 2.0, 9.0])


def build(draw: float = 0.0, **changes: object) -> Circuit:
    return Circuit(replace(POLICY, **changes), lambda: draw)


@given(
    st.lists(st.tuples(MISTAKES, st.sampled_from([None, *LogCause]), st.booleans(), STEPS_S), max_size=200),
    st.booleans(),
)
def test_nothing_that_clients_do_opens_it(ends, probes):
    circuit, now = build(probes=probes), 0.0
    for number, (outcome, cause, answered, wait_s) in enumerate(ends):
        circuit.finish(OperationId(f"op_{number}"), read_evidence(outcome, cause, answered=answered), now)
        now += wait_s
        circuit.expire(now)
        assert circuit.state is CircuitState.CLOSED


@given(st.lists(st.tuples(EVIDENCE, st.booleans()), max_size=300), st.booleans(), st.floats(0, 1))
def test_once_failures_stop_it_closes_within_its_bound(ends, probes, draw):
    circuit, now = build(draw, probes=probes), 0.0
    for number, (evidence, passed) in enumerate(ends):
        operation_id = OperationId(f"op_{number}")
        circuit.begin(operation_id)
        circuit.finish(operation_id, evidence, now)
        now += 0.3
        circuit.expire(now)
        circuit.note_probe(passed, now)
    healed_at = now
    number, busy = 0, draw > 0.5
    while circuit.state is not CircuitState.CLOSED:
        now += 0.1
        circuit.expire(now)
        circuit.note_probe(True, now)
        if busy and circuit.count_free_trials():
            operation_id, number = OperationId(f"trial_{number}"), number + 1
            circuit.begin(operation_id)
            circuit.finish(operation_id, ANSWERED, now)
        assert now <= healed_at + POLICY.open_max_s + POLICY.window_s + 1.0


@given(st.lists(st.lists(EVIDENCE, max_size=8), max_size=8), st.randoms(use_true_random=False), st.booleans())
def test_evidence_of_one_instant_may_come_in_any_order(instants, order, half_open):
    told, shuffled = build(), build()
    for circuit in (told, shuffled) if half_open else ():
        for number in range(5):
            circuit.finish(OperationId(f"old_{number}"), Failed(FailureClass.RESET, Blame.REPLICA), -10.0)
        circuit.expire(-9.0)
        circuit.expire(-5.0)
        circuit.note_probe(True, -1.0)
        assert circuit.state is CircuitState.HALF_OPEN
    now = 0.0
    for together in instants:
        for circuit in (told, shuffled):
            cut = circuit.state in CUT
            ends = [
                (OperationId(f"op_{now}_{number}"), evidence)
                for number, evidence in enumerate(together)
                if not cut or number < circuit.count_free_trials()
            ]
            for operation_id, _ in ends:
                circuit.begin(operation_id)
            if circuit is shuffled:
                order.shuffle(ends)
            for operation_id, evidence in ends:
                circuit.finish(operation_id, evidence, now)
        now += 1.0
        for circuit in (told, shuffled):
            circuit.expire(now)
        assert (told.state, told.open_until) == (shuffled.state, shuffled.open_until)
        for circuit in (told, shuffled):
            circuit.note_probe(True, now)


class CircuitMachine(RuleBasedStateMachine):
    """Attempts begin and end as they like; a model counts the trials."""

    running = Bundle("running")

    def __init__(self) -> None:
        super().__init__()
        self.circuit = build()
        self.now = 0.0
        self.number = 0
        self.trials: set[OperationId] = set()

    def mint(self) -> OperationId:
        self.number += 1
        return OperationId(f"op_{self.number}")

    @rule(target=running)
    @precondition(lambda self: self.circuit.state not in CUT)
    def begin(self):
        operation_id = self.mint()
        self.circuit.begin(operation_id)
        return operation_id

    @rule(target=running)
    @precondition(lambda self: self.circuit.count_free_trials())
    def try_it(self):
        assert self.circuit.state is CircuitState.HALF_OPEN
        operation_id = self.mint()
        self.circuit.begin(operation_id)
        self.trials.add(operation_id)
        return operation_id

    @rule(operation_id=consumes(running), evidence=EVIDENCE)
    def end(self, operation_id, evidence):
        before, trial = self.circuit.state, operation_id in self.trials
        self.circuit.finish(operation_id, evidence, self.now)
        self.trials.discard(operation_id)
        if before in CUT and not trial:
            assert self.circuit.state is before, "what began before it was open says nothing"

    @rule(operation_id=running)
    def give_first_delta(self, operation_id):
        self.circuit.note_first_delta(operation_id, self.now)

    @rule(passed=st.booleans())
    def ask_model(self, passed):
        self.circuit.note_probe(passed, self.now)

    @rule(seconds=STEPS_S)
    def wait(self, seconds):
        self.now += seconds
        self.circuit.expire(self.now)

    @rule()
    def serve_on(self):
        self.circuit.hurry(self.now)

    @invariant()
    def no_more_trials_than_may_be(self):
        if self.circuit.state is CircuitState.CLOSED:
            self.trials.clear()
        assert len(self.trials) <= POLICY.trial_requests
        if self.circuit.state is not CircuitState.HALF_OPEN:
            assert self.circuit.count_free_trials() == 0

    @invariant()
    def an_open_time_has_its_bound(self):
        assert self.circuit.open_until <= self.now + POLICY.open_max_s


TestCircuitMachine = CircuitMachine.TestCase
TestCircuitMachine.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


@given(st.lists(EVIDENCE, max_size=40))
def test_a_trial_that_fails_by_its_replica_opens_it_at_once(ends):
    circuit = build(probes=False)
    for number in range(3):
        circuit.finish(OperationId(f"old_{number}"), Failed(FailureClass.CONNECT, Blame.REPLICA), 0.0)
    circuit.expire(0.1)
    circuit.expire(2.1)
    for number, evidence in enumerate(ends):
        if not circuit.count_free_trials():
            return
        circuit.begin(OperationId(f"op_{number}"))
        circuit.finish(OperationId(f"op_{number}"), evidence, 2.2)
        failed = isinstance(evidence, Failed) and evidence.blame is not Blame.REQUEST
        assert (circuit.state is CircuitState.OPEN) == failed
        if isinstance(evidence, Answered) and circuit.state is CircuitState.CLOSED:
            return
