"""Gateways, workers and one store, with an adversarial network between all of them.

Never do two attempts under one key publish, and never does an operation belong to two: whatever calls to the
store are delayed, lost or doubled, and renewals are, however long a gateway stands still, with clocks as far
apart as the margin allows. And every wait is bounded: left alone, one gateway that runs frees every key.

The store is the real one in memory. A call to it happens at once and as a whole when the network delivers it,
which is all that the port promises.
"""

import itertools
from collections.abc import Coroutine, Iterator

import hypothesis.strategies as st
from hypothesis import event, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from envoy_ext.adapters.journal_memory import MemoryJournal
from envoy_ext.domain.errors import SeatLost
from envoy_ext.domain.ids import AttemptId, FencingToken, OperationId, SeatId
from envoy_ext.domain.lease import Lease
from envoy_ext.domain.operation import Operation
from envoy_ext.domain.outcomes import OperationState
from envoy_ext.domain.ownership import FIRST_TOKEN, Seat, read_fence
from envoy_ext.domain.worker_lease import Renewal, WorkerLease
from envoy_ext.ports import Journal
from envoy_ext.services.recovery import build_recovery_records
from tests.support.journals import run_now
from tests.support.records import attempt_started, begun, first_delta_sent
from tests.support.store_network import POLICY, SPREAD, Gateway, Run, StoreNetwork

RATES = st.sampled_from([1.0, 1.05, SPREAD - 1e-3])
KEY = ("caller-hash", "/v1/chat/completions", "key")


class OwnershipMachine(StoreNetwork, RuleBasedStateMachine):
    @initialize(
        rates=st.tuples(RATES, RATES, RATES),
        offsets=st.tuples(*[st.floats(0, 1e6)] * 3),
    )
    def start(self, rates: tuple[float, ...], offsets: tuple[float, ...]) -> None:
        self.real = 0.0
        self.store = self.build_store()
        self.gateways = [Gateway(f"gw{n}", rates[n], offsets[n]) for n in range(3)]
        self.calls = []
        self.worker_words: list[tuple[Run, Renewal | int]] = []
        self.runs: dict[OperationId, Run] = {}
        self.numbers = itertools.count(1)
        self.tokens: dict[OperationId, FencingToken] = {}
        for gateway in self.gateways:
            self.take_seat(gateway)

    def build_store(self) -> Journal:
        """A fresh one, whose calls do not wait."""
        return MemoryJournal(exclusive=False)

    # --- the gateways -------------------------------------------------------------------------

    def take_seat(self, gateway: Gateway) -> None:
        asked_at = gateway.now(self.real)

        def taken(seat: object) -> None:
            if gateway.seat is None or gateway.seat.lost:
                gateway.seat = Seat(SeatId(str(seat)), POLICY, asked_at)

        self.send(gateway, lambda: self.store.take_seat(gateway.name), taken)

    @rule(which=st.integers(0, 2))
    def beat(self, which: int) -> None:
        gateway = self.gateways[which]
        seat = gateway.seat
        if seat is None or seat.lost:
            self.take_seat(gateway)
            return
        number = seat.build_beat(gateway.now(self.real))
        if number is not None:

            def answered(answer: object) -> None:
                if isinstance(answer, SeatLost):
                    seat.receive_lost()
                else:
                    seat.receive_kept(number)

            self.send(gateway, lambda: self.store.beat(seat.id, number), answered)

    @rule(which=st.integers(0, 2))
    def ask_for_the_key(self, which: int) -> None:
        """A client sends the key: it runs if nothing speaks against it, as the services decide."""
        gateway = self.gateways[which]
        seat = gateway.seat
        if seat is None or not seat.may_act(gateway.now(self.real)):
            return
        earlier = run_now(self.store.find_by_key(*KEY))
        if earlier is not None and (earlier.state is not OperationState.FAILED or earlier.partly_delivered):
            return
        operation_id = OperationId(f"op_{next(self.numbers)}")
        after = None if earlier is None else earlier.operation_id

        def answered(answer: object) -> None:
            if answer is None and operation_id not in self.runs:
                self.runs[operation_id] = Run(operation_id, gateway, seat.id)

        record = begun(operation_id, key_hash="key")
        self.send(gateway, lambda: self.store.begin(record, seat.id, after), answered)

    @rule(choice=st.integers(0, 9), worker_rate=RATES)
    def start_the_attempt(self, choice: int, worker_rate: float) -> None:
        run = self.pick(choice)
        if run is None or run.lease is not None or not self.holds(run):
            return
        attempt = f"att_of_{run.operation_id}"

        def answered(answer: object) -> None:
            if answer is None and run.lease is None:
                run.lease = Lease(run.operation_id, AttemptId(attempt), FIRST_TOKEN, POLICY)
                run.worker_clock = worker_rate
                run.worker = WorkerLease(
                    run.operation_id,
                    AttemptId(attempt),
                    FIRST_TOKEN,
                    POLICY.ttl_s,
                    POLICY.renew_s,
                    self.real * run.worker_clock,
                )

        records = [attempt_started(run.operation_id, attempt)]
        self.send(run.gateway, lambda: self.store.append(records, FIRST_TOKEN), answered)

    @rule(choice=st.integers(0, 9))
    def let_the_first_delta_out(self, choice: int) -> None:
        """However late it is: the store's word is all that this waits for."""
        run = self.pick(choice)
        if run is None or run.lease is None:
            return

        def answered(answer: object) -> None:
            run.committed = run.committed or answer is None

        records = [first_delta_sent(run.operation_id, run.lease.attempt_id)]
        self.send(run.gateway, lambda: self.store.append(records, FIRST_TOKEN), answered)

    @rule(which=st.integers(0, 2))
    def look_for_the_gone(self, which: int) -> None:
        gateway = self.gateways[which]
        if gateway.seat is None or not gateway.seat.may_act(gateway.now(self.real)):
            return

        def seen(seats: object) -> None:
            assert isinstance(seats, dict)
            for seat, number in gateway.watch.receive(seats, gateway.now(self.real)):
                if gateway.seat is None or seat != gateway.seat.id:
                    self.send(gateway, lambda s=seat, n=number: self.store.remove_seat(s, n), lambda _: None)

        self.send(gateway, lambda: self.store.read_seats(), seen)

    @rule(which=st.integers(0, 2))
    def take_over(self, which: int) -> None:
        gateway = self.gateways[which]
        seat = gateway.seat
        if seat is None or not seat.may_act(gateway.now(self.real)):
            return
        for orphan in self.orphans():

            def taken(answer: object, orphan: Operation = orphan) -> None:
                if isinstance(answer, Operation):
                    # From when the answer is there: later than from when it happened.
                    fence = read_fence(answer, gateway.now(self.real), POLICY)
                    gateway.fences[answer.operation_id] = (fence, answer)

            def work(orphan: Operation = orphan) -> Coroutine[object, object, object]:
                return self.store.take_over(orphan.operation_id, orphan.token, seat.id, 0.0)

            self.send(gateway, work, taken)

    @rule(which=st.integers(0, 2))
    def end_the_fenced(self, which: int) -> None:
        gateway = self.gateways[which]
        for operation_id, (fenced_at, operation) in list(gateway.fences.items()):
            if gateway.now(self.real) < fenced_at:
                continue
            del gateway.fences[operation_id]
            records = build_recovery_records(operation, 0.0)
            self.send(
                gateway,
                lambda r=records, t=operation.token: self.store.append(r, t),
                lambda _: None,
            )

    @rule(which=st.integers(0, 2), patience=st.integers(1, 5))
    def run_for_a_while(self, which: int, patience: int) -> None:
        """One gateway does all that it should in time, and is heard; of the others nothing moves."""
        for _ in range(patience):
            self.real += POLICY.renew_s
            for work in (self.beat, self.look_for_the_gone, self.take_over, self.end_the_fenced):
                work(which)
                self.deliver_calls_of(self.gateways[which])

    @rule(which=st.integers(0, 2), worker_rate=RATES)
    def serve_the_key_at_two_at_once(self, which: int, worker_rate: float) -> None:
        """Both have looked for it before either has begun it."""
        both = (which, (which + 1) % 3)
        for work in (self.beat, self.ask_for_the_key):
            for one in both:
                work(one)
            for one in both:
                self.deliver_calls_of(self.gateways[one])
        for number, run in enumerate(list(self.runs.values())):
            self.start_the_attempt(number, worker_rate)
            self.deliver_calls_of(run.gateway)
            self.renew_in_time(number)

    @rule(
        which=st.integers(0, 2),
        rates=st.tuples(RATES, RATES),
        slack=st.tuples(*[st.sampled_from([-0.01, 0.01, 0.01, 0.01])] * 2),
        other_beats=st.sampled_from(["never", "at the last moment", "too late"]),
        other_wakes=st.booleans(),
    )
    def replace_whoever_runs_the_key(
        self,
        which: int,
        rates: tuple[float, float],
        slack: tuple[float, float],
        other_beats: str,
        other_wakes: bool,
    ) -> None:
        """As fast as one gateway's clock allows, while the other renews its worker's lease to the last."""
        gateway, patience = self.gateways[which], POLICY.ttl_s + POLICY.margin_s
        self.serve((which + 1) % 3, rates[0])
        run = next((one for one in reversed(self.runs.values()) if one.gateway is not gateway), None)
        if run is None or run.gateway.seat is None:
            return
        for work in (self.beat, self.look_for_the_gone):
            work(which)
            self.deliver_calls_of(gateway)
        gone_at = self.real + patience / gateway.rate
        self.wait_beating(which, until=run.gateway.real(run.gateway.seat.kept_until) - 0.01)
        self.wait_beating(which, until=gone_at + slack[0])
        self.look_for_the_gone(which)
        self.deliver_next_call_of(gateway)
        other = self.gateways.index(run.gateway)
        if other_beats == "at the last moment":  # between that look and the removal that follows from it
            self.wait_beating(other, until=self.real + 1e-6)
        self.deliver_calls_of(gateway)
        self.take_over(which)
        self.deliver_calls_of(gateway)
        event("taken over" if gateway.fences else "kept")
        fenced_at = self.real + patience / gateway.rate
        beating = (which, other) if other_beats == "too late" else (which,)
        for until in (self.real, fenced_at + slack[1]):
            self.wait_beating(*beating, until=until)
            self.end_the_fenced(which)
            self.deliver_calls_of(gateway)
            self.serve(which, rates[1])
        if other_wakes:  # and goes on where it was
            self.let_the_first_delta_out(list(self.runs.values()).index(run))
            self.deliver_calls_of(run.gateway)

    def wait_beating(self, *which: int, until: float) -> None:
        """Some gateways beat in time, and the workers renew; that is all that happens."""
        while self.real < until:
            self.real = min(until, self.real + POLICY.renew_s / 2)
            for one in which:
                self.beat(one)
                self.deliver_calls_of(self.gateways[one])
            for number in range(len(self.runs)):
                self.renew_in_time(number)
            self.check()

    @rule(which=st.integers(0, 2), worker_rate=RATES)
    def serve(self, which: int, worker_rate: float) -> None:
        """A client sends the key, and its attempt starts with a worker that renews its lease."""
        gateway = self.gateways[which]
        self.beat(which)
        self.deliver_calls_of(gateway)
        self.ask_for_the_key(which)
        self.deliver_calls_of(gateway)
        newest = len(self.runs) - 1
        if newest >= 0:
            self.start_the_attempt(newest, worker_rate)
            self.deliver_calls_of(gateway)
            self.renew_in_time(newest)

    # --- the workers --------------------------------------------------------------------------

    @rule(choice=st.integers(0, 9))
    def renew(self, choice: int) -> None:
        run = self.pick(choice)
        if run is None or run.worker is None:
            return
        renewal = run.worker.build_renewal(self.real * run.worker_clock)
        if renewal is not None:
            self.worker_words.append((run, renewal))

    @rule(choice=st.integers(0, 9))
    def renew_in_time(self, choice: int) -> None:
        """A renewal and its answer, without a delay."""
        before = len(self.worker_words)
        self.renew(choice)
        while len(self.worker_words) > before:
            self.deliver_lose_or_double_a_workers_word(len(self.worker_words) - 1, 1)

    @rule(choice=st.integers(0, 99), copies=st.integers(0, 2))
    def deliver_lose_or_double_a_workers_word(self, choice: int, copies: int) -> None:
        if not self.worker_words:
            return
        run, word = self.worker_words.pop(choice % len(self.worker_words))
        self.worker_words += [(run, word)] * (copies - 1)
        if not copies or run.worker is None or run.lease is None:
            return
        if isinstance(word, int):
            run.worker.receive_grant(word, self.real * run.worker_clock)
        elif self.holds(run) and run.lease.renew(word.token, run.gateway.now(self.real)):
            self.worker_words.append((run, word.number))

    # --- the network and time -----------------------------------------------------------------

    @rule(choice=st.integers(0, 99), copies=st.sampled_from([0, 1, 1, 1, 1, 2]), answered=st.booleans())
    def deliver_lose_or_double_a_call(self, choice: int, copies: int, answered: bool) -> None:
        if self.calls:
            call = self.calls.pop(choice % len(self.calls))
            self.calls += [call] * (copies - 1)
            if copies:
                self.deliver(call, answered=answered)

    @rule()
    def deliver_all_calls(self) -> None:
        while self.calls:
            self.deliver(self.calls.pop(0), answered=True)

    @rule(seconds=st.sampled_from([0.1, 1.0, 2.0, 3.5, 7.0, 30.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.real += seconds

    @rule(choice=st.integers(0, 9), late=st.booleans())
    def let_time_pass_until_just(self, choice: int, late: bool) -> None:
        """Before or behind a moment at which something may end."""
        moments = sorted(moment for moment in self.moments() if moment > self.real + 2e-3)
        if moments:
            self.real = moments[choice % len(moments)] + (1e-3 if late else -1e-3)

    def moments(self) -> Iterator[float]:
        patience = POLICY.ttl_s + POLICY.margin_s
        for gateway in self.gateways:
            local = [fenced_at for fenced_at, _ in gateway.fences.values()]
            local += [since + patience for _, since in gateway.watch._seen.values()]
            if gateway.seat is not None:
                local.append(gateway.seat.kept_until)
            yield from map(gateway.real, local)
        for run in self.runs.values():
            if run.worker is not None:
                yield run.worker.expires_at / run.worker_clock

    # --- what is asked ------------------------------------------------------------------------

    def pick(self, choice: int) -> Run | None:
        runs = list(self.runs.values())
        return runs[choice % len(runs)] if runs else None

    def holds(self, run: Run) -> bool:
        seat = run.gateway.seat
        return seat is not None and seat.id == run.seat and seat.may_act(run.gateway.now(self.real))

    def operations(self) -> list[Operation]:
        return run_now(self.store.list_recent(1_000))

    def orphans(self) -> list[Operation]:
        seats = run_now(self.store.read_seats())
        return [one for one in self.operations() if one.ending is None and one.owner not in seats]

    # --- what always holds --------------------------------------------------------------------

    @invariant()
    def at_most_one_attempt_may_publish(self) -> None:
        able = [run.operation_id for run in self.runs.values() if run.may_publish(self.real)]
        assert len(able) <= 1, able

    @invariant()
    def what_may_publish_is_the_newest_of_its_key(self) -> None:
        newest = run_now(self.store.find_by_key(*KEY))
        for run in self.runs.values():
            if run.may_publish(self.real):
                assert newest is not None
                assert newest.operation_id == run.operation_id

    @invariant()
    def no_gateway_believes_in_a_seat_that_was_removed(self) -> None:
        seats = run_now(self.store.read_seats())
        for gateway in self.gateways:
            if gateway.seat is not None and gateway.seat.may_act(gateway.now(self.real)):
                assert gateway.seat.id in seats

    @invariant()
    def tokens_only_grow(self) -> None:
        for operation in self.operations():
            assert operation.token >= self.tokens.get(operation.operation_id, FencingToken(1))
            self.tokens[operation.operation_id] = operation.token

    def check(self) -> None:
        """All of these, in the middle of a rule."""
        self.at_most_one_attempt_may_publish()
        self.what_may_publish_is_the_newest_of_its_key()
        self.no_gateway_believes_in_a_seat_that_was_removed()

    def teardown(self) -> None:
        """Left alone with one gateway that runs, every key becomes free, in bounded time."""
        if not hasattr(self, "store"):
            return
        self.calls.clear()
        began = self.real
        patience = 2 * (POLICY.ttl_s + POLICY.margin_s + POLICY.renew_s) + POLICY.renew_s
        gateway = self.gateways[0]
        while any(one.ending is None and not self.is_run_by(one, gateway) for one in self.operations()):
            for work in (self.beat, self.look_for_the_gone, self.take_over, self.end_the_fenced):
                work(0)
                self.deliver_all_calls()
            self.real += POLICY.renew_s / gateway.rate
            assert self.real - began <= patience

    def is_run_by(self, operation: Operation, gateway: Gateway) -> bool:
        return gateway.seat is not None and not gateway.seat.lost and operation.owner == gateway.seat.id


TestOwnership = OwnershipMachine.TestCase
TestOwnership.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
