"""Thirty simulated seconds of ten times too much, in mixed classes, with clients that come back.

What a pool promises then: its slots are never idle and never over-full, each class and each caller gets
its share however much it sends, whoever is let in is so within its time, and behind it all counts are 0.
Whoever has a deadline is cut there, whole or not: what was computed for it until then was for nothing.
"""

import heapq
import itertools
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from envoy_ext.domain.ids import AttemptId, OperationId, ReplicaId
from envoy_ext.domain.room import ReplicaRoom, Room
from envoy_ext.domain.ticket import Granted, Newcomer, Shed
from envoy_ext.domain.traffic_class import TrafficClass
from tests.support.queue_builders import Queue

SLOTS = {ReplicaId("a"): 4, ReplicaId("b"): 4}
HOLD_S = 0.5
END_S = 30.0


@dataclass
class Sender:
    """Somebody who sends so many requests a second and comes back when told."""

    name: str
    class_name: str
    per_s: float
    deadline_s: float | None = None


@dataclass
class World:
    senders: list[Sender]
    length: int
    spread: float = 0.5
    """How much longer or shorter than `HOLD_S` an answer may take."""
    dice: random.Random = field(default_factory=lambda: random.Random(11))
    now: float = 0.0

    def __post_init__(self) -> None:
        self.queue = Queue(
            TrafficClass("chat", weight=6, max_wait_s=10.0),
            TrafficClass("batch", weight=2, max_wait_s=10.0),
            TrafficClass("alarm", priority=5, max_wait_s=10.0),
            length=self.length,
            max_wait_s=10.0,
        )
        self.taken: Counter[ReplicaId] = Counter()
        self.agenda: list[tuple[float, int, str, object]] = []
        self.order = itertools.count()
        self.who: dict[OperationId, tuple[Sender, float]] = {}
        self.served: Counter[str] = Counter()
        self.answered = self.cut = 0
        self.waits: list[float] = []
        self.late = self.deepest = 0
        self.refused: Counter[str] = Counter()
        self.busy_s = 0.0

    @property
    def room(self) -> Room:
        return Room([ReplicaRoom(one, limit, self.taken[one]) for one, limit in SLOTS.items()])

    def plan(self, at: float, what: str, whom: object) -> None:
        heapq.heappush(self.agenda, (at, next(self.order), what, whom))

    def run(self) -> None:
        for sender in self.senders:
            self.plan(self.dice.random() / sender.per_s, "send", sender)
        while self.agenda or self.queue.next_deadline() is not None:
            due = self.queue.next_deadline()
            at = min(self.agenda[0][0] if self.agenda else END_S * 9, due if due is not None else END_S * 9)
            if self.now < END_S:
                self.busy_s += (min(at, END_S) - self.now) * sum(self.taken.values())
            self.now = at
            if self.agenda and self.agenda[0][0] <= self.now:
                _, _, what, whom = heapq.heappop(self.agenda)
                getattr(self, what)(whom)
            self.take_in(self.queue.expire(self.room, self.now))
            self.take_in(self.queue.fill(self.room, self.now))
            self.deepest = max(self.deepest, self.queue.depth)
            assert all(self.taken[one] <= limit for one, limit in SLOTS.items())

    def send(self, sender: Sender) -> None:
        if self.now < END_S:
            self.plan(self.now + self.dice.expovariate(sender.per_s), "send", sender)
            self.arrive(sender)

    def arrive(self, sender: Sender) -> None:
        if self.now >= END_S:
            return
        operation_id = OperationId(f"op_{next(self.order)}")
        self.who[operation_id] = sender, self.now
        deadline = None if sender.deadline_s is None else self.now + sender.deadline_s
        newcomer = Newcomer(operation_id, sender.class_name, sender.name, deadline)
        self.take_in(self.queue.arrive(newcomer, self.room, self.now))

    def take_in(self, outcomes) -> None:
        for one in outcomes:
            if isinstance(one, Granted):
                sender, arrived = self.who[one.operation_id]
                self.waits.append(one.waited_s)
                self.late += sender.deadline_s is not None and self.now > arrived + sender.deadline_s
                self.served[sender.name] += self.now < END_S
                replica = self.queue.choose_replica(one.operation_id, self.room)
                self.taken[replica] += 1
                self.queue.start(one.operation_id)
                self.queue.begin_answer(one.operation_id, AttemptId(one.operation_id), self.now)
                ends_at = self.now + HOLD_S * self.dice.uniform(1 - self.spread, 1 + self.spread)
                until = ends_at if sender.deadline_s is None else arrived + sender.deadline_s
                self.plan(min(ends_at, until), "end", (one.operation_id, replica, ends_at <= until))
            elif isinstance(one, Shed):
                sender, _ = self.who.pop(one.operation_id)
                self.refused[sender.name] += 1
                self.plan(self.now + self.dice.randint(1, one.retry_within_s), "arrive", sender)

    def end(self, whom) -> None:
        operation_id, replica, whole = whom
        self.answered += whole and self.now < END_S
        self.cut += not whole
        self.taken[replica] -= 1
        self.queue.end_answer(AttemptId(operation_id), self.now, whole=whole)
        self.queue.leave(operation_id, self.now)
        del self.who[operation_id]


FAIR = SLOTS[ReplicaId("a")] * 2 / HOLD_S
"""Requests a second that the pool serves: the load is ten times that."""


@pytest.mark.parametrize("length", [32, 128])
def test_every_class_and_caller_gets_its_share_of_a_pool_that_is_asked_for_ten_times_too_much(length):
    world = World(
        [
            Sender("chat-flood", "chat", 6 * FAIR),
            Sender("chat-calm", "chat", FAIR),
            Sender("batch", "batch", 2 * FAIR),
            Sender("nobody", "unheard-of", FAIR),
        ],
        length,
    )
    world.run()
    total = sum(world.served.values())
    assert total == pytest.approx(FAIR * END_S, rel=0.05)
    assert world.busy_s >= 0.99 * 8 * END_S
    shares = {name: count / total for name, count in world.served.items()}
    expected = {"chat-flood": 3 / 9, "chat-calm": 3 / 9, "batch": 2 / 9, "nobody": 1 / 9}
    assert shares == pytest.approx(expected, rel=0.1)
    assert world.deepest <= length
    assert max(world.waits) <= 10.0
    assert world.refused.total() > 5 * total
    assert world.queue.idle
    assert sum(world.taken.values()) == 0


def test_a_caller_that_sends_little_is_not_refused_for_one_that_sends_much():
    world = World([Sender("flood", "chat", 9 * FAIR), Sender("calm", "chat", 2.0)], 64)
    world.run()
    assert world.served["calm"] > 30
    assert world.refused["calm"] == 0
    assert world.refused["flood"] > 1000


def test_a_higher_priority_is_not_slowed_down_by_all_the_others():
    world = World([Sender("batch", "batch", 10 * FAIR), Sender("alarm", "alarm", FAIR / 4)], 64)
    world.run()
    assert world.served["alarm"] == pytest.approx(FAIR / 4 * END_S, rel=0.25)


def test_whoever_has_a_deadline_is_let_in_within_it_or_refused():
    world = World([Sender("x", "chat", 5 * FAIR, 2.0), Sender("y", "batch", 5 * FAIR, 8.0)], 128)
    world.run()
    assert world.late == 0
    assert world.served["x"] > world.served["y"] > 0
    assert world.queue.idle


@pytest.mark.parametrize("load", [1.4, 5.0])
@pytest.mark.parametrize(("spread", "share"), [(0.0, 0.98), (0.5, 0.7), (0.9, 0.7)])
def test_a_pool_that_is_asked_for_too_much_gives_the_answers_that_it_can(load, spread, share):
    """Where a deadline leaves time for two answers, a line that fills to its brim would be served too late:
    without a look at how long answers take it is a quarter of them at the first of these loads."""
    world = World([Sender("x", "chat", load * FAIR, 2 * HOLD_S)], 256, spread)
    world.run()
    assert world.answered >= share * FAIR * END_S
    assert world.late == 0
    assert world.queue.idle


@pytest.mark.parametrize("load", [1.1, 1.4, 10.0])
@pytest.mark.parametrize("spread", [0.2, 0.9])
def test_what_is_let_in_is_answered_within_its_deadline(load, spread):
    """Of a hundred, one may take longer than could be known."""
    senders = [Sender("x", "chat", 0.8 * load * FAIR, 4 * HOLD_S), Sender("y", "chat", 0.2 * load * FAIR)]
    world = World(senders, 64, spread)
    world.run()
    assert world.cut <= 0.01 * world.answered
    assert world.answered >= 0.9 * FAIR * END_S
