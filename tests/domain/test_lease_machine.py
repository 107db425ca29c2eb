"""Gateway and workers with an adversarial network between them: never two attempts that may publish.

Messages are delayed for as long as the network likes, lost, doubled and reordered; requests lie on their
way for minutes; clocks start anywhere and run at different rates, as far apart as the margin allows.
"""

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from envoy_ext.domain.ids import AttemptId, FencingToken, OperationId
from envoy_ext.domain.lease import Lease, LeasePolicy, LeaseState
from envoy_ext.domain.worker_lease import Renewal, TokenMemory, WorkerLease, WorkerLeaseState

OPERATION = OperationId("op_1")
POLICY = LeasePolicy(ttl_s=6.0, renew_s=2.0, margin_s=1.0)
FASTEST = (POLICY.ttl_s + POLICY.margin_s) / POLICY.ttl_s


@dataclass(frozen=True)
class Clock:
    """A monotonic clock of some host."""

    rate: float
    offset: float

    def read(self, real: float) -> float:
        return self.offset + real * self.rate


@dataclass
class Grant:
    token: FencingToken
    number: int


@dataclass
class Refusal:
    token: FencingToken


@dataclass
class Ack:
    token: FencingToken


@dataclass
class Request:
    """An attempt on its way to its worker."""

    token: FencingToken


@dataclass
class Side:
    """One attempt: its lease at the gateway, and at its worker once the request has come."""

    lease: Lease
    worker: WorkerLease | None = None
    was_fenced: bool = False


@dataclass
class Network:
    """What is on its way. Nothing ever has to arrive."""

    messages: list[Grant | Refusal | Ack | Request | Renewal] = field(default_factory=list)


class LeaseMachine(RuleBasedStateMachine):
    @initialize(
        worker_rate=st.floats(0.9, 1.1),
        spread=st.sampled_from([0.86, 0.95, 0.999]),
        offsets=st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)),
    )
    def start(self, worker_rate: float, spread: float, offsets: tuple[float, float]) -> None:
        self.real = 0.0
        self.worker_clock = Clock(worker_rate, offsets[0])
        self.gateway_clock = Clock(worker_rate * FASTEST * spread, offsets[1])
        self.sides: dict[FencingToken, Side] = {}
        self.network = Network()
        self.tokens = TokenMemory()  # all attempts may meet at one worker
        self.begin()

    def begin(self) -> None:
        token = FencingToken(len(self.sides) + 1)
        self.sides[token] = Side(Lease(OPERATION, AttemptId(f"att_{token}"), token, POLICY))
        self.network.messages.append(Request(token))

    @property
    def gateway_now(self) -> float:
        return self.gateway_clock.read(self.real)

    @property
    def worker_now(self) -> float:
        return self.worker_clock.read(self.real)

    @property
    def newest(self) -> Side:
        return self.sides[FencingToken(len(self.sides))]

    # --- the gateway --------------------------------------------------------------------------

    @rule()
    def revoke(self) -> None:
        self.newest.lease.revoke(self.gateway_now)

    @precondition(lambda self: self.newest.lease.state is LeaseState.FENCED and len(self.sides) < 6)
    @rule()
    def start_the_next_attempt(self) -> None:
        self.begin()

    # --- the workers --------------------------------------------------------------------------

    @rule()
    def tick_workers(self) -> None:
        for side in self.sides.values():
            if side.worker is None:
                continue
            renewal = side.worker.build_renewal(self.worker_now)
            if renewal is not None:
                self.network.messages.append(renewal)

    @rule(which=st.integers(1, 6))
    def stop_generating(self, which: int) -> None:
        """A worker stops once its lease is lost, at a moment of its own; then it says so."""
        side = self.sides.get(FencingToken(which))
        if side is None or side.worker is None:
            return
        side.worker.expire(self.worker_now)
        if side.worker.state is WorkerLeaseState.LOST:
            side.worker.note_stopped()
            self.network.messages.append(Ack(side.worker.token))

    # --- the network and time -----------------------------------------------------------------

    @rule(seconds=st.floats(0.01, 4.0))
    def let_time_pass(self, seconds: float) -> None:
        self.real += seconds
        for side in self.sides.values():
            side.lease.expire(self.gateway_now)

    @precondition(lambda self: self.newest.lease.next_deadline() is not None)
    @rule()
    def let_the_wait_end_just_now(self) -> None:
        deadline = self.newest.lease.next_deadline()
        assert deadline is not None
        left = max(0.0, deadline - self.gateway_now) / self.gateway_clock.rate
        self.let_time_pass(left + 1e-6)

    @rule(there=st.sampled_from([0.0, 0.5, 3.0]), back=st.sampled_from([0.0, 0.5, 3.0, 5.5]))
    def renew_on_the_newest_attempt(self, there: float, back: float) -> None:
        """A renewal and its answer, both slow."""
        side = self.newest
        if side.worker is None:
            self.deliver(Request(side.lease.token))
            assert side.worker is not None
        renewal = side.worker.build_renewal(self.worker_now)
        if renewal is None:
            return
        self.let_time_pass(there)
        self.deliver(renewal)
        self.let_time_pass(back)
        self.deliver(self.network.messages.pop())

    @rule(choice=st.integers(0, 1_000), copies=st.integers(0, 2))
    def deliver_lose_or_double(self, choice: int, copies: int) -> None:
        messages = self.network.messages
        if not messages:
            return
        message = messages.pop(choice % len(messages))
        if copies == 2:
            messages.append(message)
        if copies:
            self.deliver(message)

    def deliver(self, message: Grant | Refusal | Ack | Request | Renewal) -> None:
        side = self.sides[message.token]
        match message:
            case Request():
                if side.worker is None and self.tokens.admit(OPERATION, message.token):
                    side.worker = WorkerLease(
                        OPERATION,
                        side.lease.attempt_id,
                        message.token,
                        POLICY.ttl_s,
                        POLICY.renew_s,
                        self.worker_now,
                    )
            case Renewal():
                granted = side.lease.renew(message.token, self.gateway_now)
                answer = Grant(message.token, message.number) if granted else Refusal(message.token)
                self.network.messages.append(answer)
            case Grant():
                assert side.worker is not None
                side.worker.receive_grant(message.number, self.worker_now)
            case Refusal():
                assert side.worker is not None
                side.worker.receive_refusal()
            case Ack():
                side.lease.note_stopped(message.token, self.gateway_now)

    # --- what always holds --------------------------------------------------------------------

    @invariant()
    def at_most_one_attempt_may_publish(self) -> None:
        able = [
            token
            for token, side in self.sides.items()
            if side.worker is not None and side.worker.may_publish(self.worker_now)
        ]
        assert able in ([], [len(self.sides)])

    @invariant()
    def what_is_fenced_stays_fenced_and_publishes_nothing(self) -> None:
        for side in self.sides.values():
            fenced = side.lease.state is LeaseState.FENCED
            assert fenced or not side.was_fenced
            side.was_fenced = fenced
            if fenced and side.worker is not None:
                assert not side.worker.may_publish(self.worker_now)

    @invariant()
    def every_wait_is_bounded(self) -> None:
        for side in self.sides.values():
            lease = side.lease
            if lease.revoked_at is not None:
                assert lease.expires_at is not None
                assert lease.expires_at <= lease.revoked_at + POLICY.ttl_s + POLICY.margin_s


TestLeases = LeaseMachine.TestCase
TestLeases.settings = settings(max_examples=300, stateful_step_count=30, deadline=None)


def test_a_gateway_whose_clock_runs_faster_than_the_margin_allows_is_not_safe() -> None:
    """The bound is a real one: beyond it, two may publish."""
    worker, lease = Clock(1.0, 0.0), Lease(OPERATION, AttemptId("att_1"), FencingToken(1), POLICY)
    gateway = Clock(FASTEST * 1.02, 0.0)
    held = WorkerLease(OPERATION, lease.attempt_id, lease.token, POLICY.ttl_s, POLICY.renew_s, 0.0)
    renewal = held.build_renewal(worker.read(0.0))
    assert renewal is not None
    assert lease.renew(renewal.token, gateway.read(0.0))
    held.receive_grant(renewal.number, worker.read(0.0))
    lease.revoke(gateway.read(0.0))
    real = (POLICY.ttl_s + POLICY.margin_s) / gateway.rate
    lease.expire(gateway.read(real))
    assert lease.state is LeaseState.FENCED
    assert held.may_publish(worker.read(real))
