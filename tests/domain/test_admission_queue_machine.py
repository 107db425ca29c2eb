"""A pool under arbitrary traffic and arbitrary trouble: every request is let in once, or refused once, or
leaves; no replica is promised more than it has; nobody waits longer than it may; and all is 0 at the end.

Replicas come, go and change their limit; attempts end before or after their requests do; what an attempt
left behind keeps its slot until somebody says otherwise.
"""

from collections import Counter, deque

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from envoy_ext.domain.admission_queue import AdmissionQueue, QueuePolicy
from envoy_ext.domain.ids import OperationId, ReplicaId
from envoy_ext.domain.room import ReplicaRoom, Room
from envoy_ext.domain.ticket import Granted, Newcomer, Shed, Waits
from envoy_ext.domain.traffic_class import TrafficClass, TrafficClasses

CLASSES = TrafficClasses(
    [TrafficClass("chat", weight=4, max_wait_s=8.0), TrafficClass("alarm", priority=1, max_wait_s=3.0)],
    max_wait_s=20.0,
)
REPLICAS = tuple(ReplicaId(name) for name in "abc")
SERVED_OUT = {"queue_full", "queue_deadline_exceeded", "deadline_exceeded", "draining"}


class QueueMachine(RuleBasedStateMachine):
    @initialize(length=st.integers(0, 6))
    def start(self, length: int) -> None:
        self.queue = AdmissionQueue(QueuePolicy(length, CLASSES))
        self.length = length
        self.now = 100.0
        self.limits: dict[ReplicaId, int | None] = {ReplicaId("a"): 1}
        self.taken: Counter[ReplicaId] = Counter()
        self.numbers = 0
        self.waiting: dict[OperationId, tuple[float, str, str]] = {}
        self.order: dict[tuple[str, str], deque[OperationId]] = {}
        self.promised: dict[OperationId, ReplicaId | None] = {}
        self.placed: dict[OperationId, ReplicaId | None] = {}
        self.ended: set[OperationId] = set()

    @property
    def room(self) -> Room:
        return Room([ReplicaRoom(one, limit, self.taken[one]) for one, limit in self.limits.items()])

    # --- what the queue says ------------------------------------------------------------------

    def take_in(self, outcomes: tuple[Granted | Waits | Shed, ...]) -> None:
        for one in outcomes:
            match one:
                case Granted():
                    self.let_in(one.operation_id)
                case Shed():
                    assert one.code in SERVED_OUT
                    assert 1 <= one.retry_within_s <= 30
                    self.forget(one.operation_id)
                case Waits():
                    assert one.until > self.now

    def let_in(self, operation_id: OperationId) -> None:
        assert operation_id not in self.promised
        assert operation_id not in self.placed
        assert operation_id not in self.ended
        if operation_id in self.waiting:
            _, class_name, caller = self.waiting.pop(operation_id)
            assert self.order[class_name, caller].popleft() == operation_id, "a caller's own come in order"
        room = self.room
        replica = self.queue.choose_replica(operation_id, room)
        self.promised[operation_id] = replica
        if room.limited:
            assert replica is not None
            used = self.taken[replica] + sum(one == replica for one in self.promised.values())
            limit = self.limits[replica]
            assert limit is not None
            assert used <= limit, "no slot is given twice"

    def forget(self, operation_id: OperationId) -> None:
        assert operation_id not in self.ended, "nobody is told twice"
        assert operation_id not in self.promised
        assert operation_id not in self.placed
        self.ended.add(operation_id)
        waited = self.waiting.pop(operation_id, None)
        if waited is not None:
            self.order[waited[1], waited[2]].remove(operation_id)

    def settle(self) -> None:
        """What the owner does after every change: time first, then slots."""
        self.take_in(self.queue.expire(self.room, self.now))
        self.take_in(self.queue.fill(self.room, self.now))

    # --- requests -----------------------------------------------------------------------------

    def foresee(self, newcomer: Newcomer) -> str | None:
        """What the queue says that a request would be told, after which it is as it was."""
        line, room = self.queue._line, self.room
        before = line.list_in_order(), len(self.queue._tickets)
        sheds = [self.queue.foresee_refusal(newcomer, room, self.now) for _ in range(2)]
        codes = {None if one is None else one.code for one in sheds}
        assert (line.list_in_order(), len(self.queue._tickets)) == before
        (code,) = codes
        return code

    @rule(
        class_name=st.sampled_from([None, "chat", "alarm", "what"]),
        caller=st.sampled_from("xy"),
        deadline_s=st.none() | st.floats(0.5, 30.0),
    )
    def arrive(self, class_name: str | None, caller: str, deadline_s: float | None) -> None:
        self.numbers += 1
        operation_id = OperationId(f"op_{self.numbers}")
        deadline = None if deadline_s is None else self.now + deadline_s
        known = class_name if class_name in ("chat", "alarm") else "default"
        longest = {"chat": 8.0, "alarm": 3.0, "default": 20.0}[known]
        until = min(self.now + longest, self.now + longest if deadline is None else deadline)
        newcomer = Newcomer(operation_id, class_name, caller, deadline)
        foreseen = self.foresee(newcomer)
        outcomes = self.queue.arrive(newcomer, self.room, self.now)
        own = next(one for one in outcomes if one.operation_id == operation_id)
        assert (own.code if isinstance(own, Shed) else None) == foreseen
        if any(isinstance(one, Waits) and one.operation_id == operation_id for one in outcomes):
            self.waiting[operation_id] = until, known, caller
            self.order.setdefault((known, caller), deque()).append(operation_id)
        self.take_in(outcomes)
        assert sum(one.operation_id == operation_id for one in outcomes) == 1
        self.settle()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def a_client_leaves_the_line(self, data: st.DataObject) -> None:
        operation_id = data.draw(st.sampled_from(sorted(self.waiting)))
        self.queue.leave(operation_id, self.now)
        self.forget(operation_id)
        self.settle()

    @precondition(lambda self: self.promised)
    @rule(data=st.data(), replay=st.booleans())
    def an_attempt_is_placed(self, data: st.DataObject, replay: bool) -> None:
        operation_id = data.draw(st.sampled_from(sorted(self.promised)))
        replica = self.queue.choose_replica(operation_id, self.room) or data.draw(st.sampled_from(REPLICAS))
        del self.promised[operation_id]
        self.taken[replica] += 1
        self.queue.start(operation_id)
        if replay:
            other = data.draw(st.sampled_from(REPLICAS))
            self.taken[replica] -= 1
            self.taken[other] += 1
            self.queue.start(operation_id)
            replica = other
        self.placed[operation_id] = replica
        self.settle()

    @precondition(lambda self: self.promised)
    @rule(data=st.data())
    def a_request_leaves_before_its_attempt(self, data: st.DataObject) -> None:
        operation_id = data.draw(st.sampled_from(sorted(self.promised)))
        del self.promised[operation_id]
        self.queue.leave(operation_id, self.now)
        self.ended.add(operation_id)
        self.settle()

    @precondition(lambda self: self.placed)
    @rule(data=st.data(), slot_stays=st.booleans())
    def a_request_ends(self, data: st.DataObject, slot_stays: bool) -> None:
        operation_id = data.draw(st.sampled_from(sorted(self.placed)))
        replica = self.placed.pop(operation_id)
        if not slot_stays and replica is not None:
            self.taken[replica] -= 1
        self.queue.leave(operation_id, self.now)
        self.queue.leave(operation_id, self.now)
        self.ended.add(operation_id)
        self.settle()

    @rule()
    def what_was_left_behind_is_gone(self) -> None:
        running = Counter(replica for replica in self.placed.values() if replica is not None)
        self.taken = running
        self.settle()

    # --- trouble ------------------------------------------------------------------------------

    @rule(replica=st.sampled_from(REPLICAS), limit=st.none() | st.integers(1, 3))
    def a_replica_comes_or_changes(self, replica: ReplicaId, limit: int | None) -> None:
        self.limits[replica] = limit
        self.settle()

    @rule(replica=st.sampled_from(REPLICAS))
    def a_replica_takes_no_more(self, replica: ReplicaId) -> None:
        self.limits.pop(replica, None)
        for operation_id, promised in list(self.promised.items()):
            if promised == replica:
                self.promised[operation_id] = self.queue.choose_replica(operation_id, self.room)
        self.settle()

    @rule(seconds=st.floats(0.01, 10.0))
    def time_passes(self, seconds: float) -> None:
        due = self.queue.next_deadline()
        target = self.now + seconds
        while due is not None and due <= target:
            self.now = max(self.now, due)
            self.settle()
            again = self.queue.next_deadline()
            assert again is None or again > self.now, "a deadline that was served is not due again"
            due = again
        self.now = target
        self.settle()

    @rule()
    def the_sidecar_drains(self) -> None:
        shed = self.queue.shed_all("draining", self.room, self.now)
        assert len(shed) == len(self.waiting)
        self.take_in(shed)

    # --- what always holds --------------------------------------------------------------------

    @invariant()
    def the_line_is_bounded_and_known(self) -> None:
        if hasattr(self, "queue"):
            assert self.queue.depth == len(self.waiting) <= self.length
            assert sum(self.queue.count_waiting().values()) == self.queue.depth

    @invariant()
    def nobody_waits_longer_than_it_may(self) -> None:
        if hasattr(self, "queue"):
            assert all(until > self.now for until, _, _ in self.waiting.values())

    @invariant()
    def nobody_waits_beside_a_free_slot(self) -> None:
        if hasattr(self, "queue") and self.waiting:
            assert self.room.limited
            assert self.queue.count_free(self.room) == 0

    def teardown(self) -> None:
        if not hasattr(self, "queue"):
            return
        for operation_id in [*self.waiting, *self.promised, *self.placed]:
            self.queue.leave(operation_id, self.now)
        empty = Room([ReplicaRoom(ReplicaId("a"), 3, 0)])
        assert self.queue.depth == 0
        assert self.queue.count_free(empty) == 3
        assert self.queue.next_deadline() is None
        assert self.queue.idle


QueueMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestQueueMachine = QueueMachine.TestCase
