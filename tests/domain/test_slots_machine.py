"""Engines that stop when they like, and pages that come when they like: no slot is free before its time.

An engine holds what it was sent until it has answered, until it has noticed that nobody reads, until its
process ends, or until the end of the lease: that is all it promises. Others send requests to it too. A page
shows what it holds at one moment between the question and the answer, and answers come late and in any
order. In every moment:

1. A replica's taken slots are at least as many as its engine holds of ours.
2. Its cancelled slots are at least as many as its engine holds of those we dropped.
3. Its inflight are at least our open streams there; nothing is ever below 0.

And when all is over, all is free.
"""

import math
from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from envoy_ext.domain.ids import AttemptId, PoolName, ReplicaId
from envoy_ext.domain.slots import CancelProof, SlotCount, Slots

POOL = PoolName("chat")
REPLICAS = [ReplicaId("a"), ReplicaId("b")]
FENCE_S = 7.0
somewhere = st.sampled_from([*REPLICAS[:1] * 3, *REPLICAS])
"""Mostly at one of them: what is counted there must meet."""


@dataclass
class Ours:
    """One attempt as it really is."""

    at: ReplicaId
    started_at: float
    held: bool = True
    """The engine works on it."""
    open: bool = True
    """Its stream."""
    told: bool = False
    """Where it runs."""
    acts_until: float = math.inf


@dataclass
class Engine:
    others: int = 0


@dataclass
class Page:
    replica: ReplicaId
    asked_at: float
    shown: int | None
    """None: it shows the moment in which it is read."""


@dataclass
class World:
    now: float = 1_000.0
    ours: dict[AttemptId, Ours] = field(default_factory=dict)
    pages: list[Page] = field(default_factory=list)


class SlotsMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.slots = Slots()
        self.world = World()
        self.engines = {replica: Engine() for replica in REPLICAS}
        self.begun = 0

    def held(self, replica, **facts):
        """Attempts that the engine of a replica holds."""
        return [
            attempt
            for attempt, one in self.world.ours.items()
            if one.held and one.at == replica and all(getattr(one, k) == v for k, v in facts.items())
        ]

    def draw(self, data, **facts):
        fitting = [
            attempt
            for attempt, one in self.world.ours.items()
            if all(getattr(one, k) == v for k, v in facts.items())
        ]
        return data.draw(st.sampled_from(fitting)) if fitting else None

    # --- our streams ------------------------------------------------------------------------------

    @rule(replica=somewhere, told=st.booleans())
    def starts(self, replica, told):
        self.start(replica, told)

    def start(self, replica, told):
        self.begun += 1
        attempt = AttemptId(f"att_{self.begun}")
        self.world.ours[attempt] = Ours(replica, self.world.now)
        self.slots.start(attempt, POOL, self.world.now)
        if told:
            self.tell(attempt)
        return attempt

    def tell(self, attempt):
        one = self.world.ours[attempt]
        one.told = True
        self.slots.place(attempt, one.at)

    @rule(data=st.data())
    def is_told_where(self, data):
        attempt = self.draw(data, told=False, open=True)
        if attempt is not None:
            self.tell(attempt)

    @rule(data=st.data())
    def ends(self, data):
        attempt = self.draw(data, open=True)
        if attempt is not None:
            one = self.world.ours[attempt]
            one.open = one.held = False
            self.slots.end(attempt, self.world.now)

    @rule(data=st.data(), told=st.booleans())
    def is_dropped(self, data, told):
        attempt = self.draw(data, open=True)
        if attempt is not None:
            one = self.world.ours[attempt]
            if told and not one.told:
                self.tell(attempt)
            self.drop(attempt)

    def drop(self, attempt):
        one = self.world.ours[attempt]
        one.open, one.acts_until = False, self.world.now + FENCE_S
        self.slots.drop(attempt, self.world.now, one.acts_until)

    @rule(replica=somewhere)
    def starts_and_is_dropped(self, replica):
        self.drop(self.start(replica, told=True))

    @rule(replica=somewhere)
    def many_are_dropped_and_one_is_computed_on(self, replica):
        for _ in range(3):
            self.starts_and_is_dropped(replica)
            self.world.ours[AttemptId(f"att_{self.begun}")].held = self.begun % 3 == 0

    # --- what engines do --------------------------------------------------------------------------

    @rule(data=st.data())
    def is_computed_no_more(self, data):
        """Finished with its tail on the way to a slow reader, or dropped and noticed."""
        attempt = self.draw(data, held=True)
        if attempt is not None:
            self.world.ours[attempt].held = False

    @rule(data=st.data())
    def is_acknowledged(self, data):
        attempt = self.draw(data, held=False)
        if attempt is not None:
            self.slots.prove(attempt, CancelProof.CANCEL_ACK, self.world.now)

    @rule(replica=somewhere, others=st.sampled_from([0, 0, 1, 3]))
    def others_come_and_go(self, replica, others):
        self.engines[replica].others = others

    @rule(replica=somewhere)
    def its_process_ends(self, replica):
        """What starts afterwards is in another one."""
        for attempt in self.held(replica):
            self.world.ours[attempt].held = False
        self.world.now += 0.01
        self.slots.note_death(replica, self.world.now - 0.01, self.world.now)

    # --- pages ------------------------------------------------------------------------------------

    @rule(replica=somewhere, written=st.sampled_from(["at once", "when it is read"]))
    def is_asked_for_a_page(self, replica, written):
        shown = self.write_page(replica) if written == "at once" else None
        self.world.pages.append(Page(replica, self.world.now, shown))

    def write_page(self, replica):
        return len(self.held(replica)) + self.engines[replica].others

    @precondition(lambda self: self.world.pages)
    @rule(data=st.data())
    def its_page_comes(self, data):
        page = data.draw(st.sampled_from(self.world.pages))
        self.world.pages.remove(page)
        shown = self.write_page(page.replica) if page.shown is None else page.shown
        self.slots.note_page(page.replica, page.asked_at, shown, self.world.now)

    @rule(replica=somewhere)
    def a_page_comes_at_once(self, replica):
        self.world.now += 0.01
        self.slots.note_page(replica, self.world.now, self.write_page(replica), self.world.now)

    @rule(replica=somewhere, between=st.sampled_from([0.0, 0.01]))
    def a_page_crosses_a_cancel(self, replica, between):
        asked_at, shown = self.world.now, self.write_page(replica)
        self.world.now += between
        self.starts_and_is_dropped(replica)
        self.slots.note_page(replica, asked_at, shown, self.world.now)

    # --- time -------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.25, 1.0, 3.0, 7.0]))
    def passes(self, seconds):
        self.world.now += seconds
        for one in self.world.ours.values():
            if one.acts_until <= self.world.now:
                one.held = False
        self.slots.expire(self.world.now)

    # --- what holds -------------------------------------------------------------------------------

    @invariant()
    def no_slot_is_free_before_its_generation_is_over(self):
        for replica in REPLICAS:
            count = self.slots.count(replica)
            assert count.inflight >= count.taken >= count.cancelling >= 0
            assert count.taken >= len(self.held(replica, told=True))
            assert count.cancelling >= len(self.held(replica, told=True, open=False))
            streams = [one for one in self.world.ours.values() if one.open and one.told and one.at == replica]
            assert count.inflight >= len(streams)
        untold = [one for one in self.world.ours.values() if one.held and not one.told]
        assert self.slots.count_unplaced(POOL) >= len(untold)

    def teardown(self):
        for attempt, one in self.world.ours.items():
            if one.open:
                self.slots.end(attempt, self.world.now)
        self.slots.expire(self.world.now + FENCE_S)
        assert [self.slots.count(replica) for replica in REPLICAS] == [SlotCount(), SlotCount()]
        assert (self.slots.count_unplaced(POOL), len(self.slots)) == (0, 0)


TestSlots = SlotsMachine.TestCase
TestSlots.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
