"""The fleet in this process: every replica's gate, and the one picture that all others read.

Signals come in (`receive`), changes and the passing of time make a new `FleetView`, and whoever needs
it is told: Envoy's endpoints, metrics, logs. A change is in the picture for the next one who reads it,
and is told at the next turn of `run`; changes that come in a crowd, as at a start, are told as one.
Everything runs on one event loop and nothing waits, except `run`, which ticks.
"""

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from envoy_ext.domain.availability import Availability, ServingReason
from envoy_ext.domain.circuit_policy import CircuitPolicy
from envoy_ext.domain.discovery import Member, MemberChanges
from envoy_ext.domain.fingerprint import Fingerprint
from envoy_ext.domain.fleet_events import (
    Change,
    CircuitTurned,
    ControlCallFailed,
    ControlCallPassed,
    Discovered,
    DrainEnded,
    DrainRequested,
    FingerprintContradicted,
    FleetEvent,
    LoopLate,
    ProcessEnded,
    Removed,
    ReplicaChanged,
    Scraped,
    ScrapeFailed,
    StandingChanged,
    Undrained,
)
from envoy_ext.domain.fleet_view import FleetView, ViewPolicy
from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.domain.loop_health import LoopHealth
from envoy_ext.domain.places import Places
from envoy_ext.domain.readiness import ReplicaGate
from envoy_ext.domain.readiness_policy import ReadinessPolicy
from envoy_ext.domain.replica_life import ReplicaState
from envoy_ext.domain.sample import ScrapeFailure
from envoy_ext.ports import Clock
from envoy_ext.services.experience import Experience
from envoy_ext.services.fleet_circuits import FleetCircuits
from envoy_ext.services.fleet_members import FleetMembers
from envoy_ext.services.fleet_picture import FleetPicture
from envoy_ext.services.own_streams import OwnStreams

NO_READY_REPLICA: Final = "no_ready_replica"
CUT_OFF: Final = "upstream_unavailable"
"""The client's code while a pool is cut off: replicas are there, and none of them could answer."""
TICK_S: Final = 0.25
"""How often time alone is looked at: a quarter of the default scrape interval."""
REST_S: Final = 0.05
"""From one telling to the next: a picture of 500 replicas takes milliseconds of the loop that streams run
on, and a start or a lost node changes hundreds within a second."""
READ_AT_ONCE: Final = 64
"""Statuses that are read between two turns of the loop, in less than a millisecond."""
JUDGED_AT_ONCE: Final = 1024
"""Gates that are asked for what fell due between two turns of the loop; most have nothing."""


@dataclass(frozen=True, slots=True)
class FleetPool:
    """One pool as the configuration gives it; its replicas come and go (`change_members`)."""

    name: PoolName
    fingerprint: Fingerprint
    """What the configuration says that all its replicas have in common."""
    readiness: ReadinessPolicy
    watched: bool
    """Whether anybody looks at the replicas; else they count as proven."""
    over_xds: bool
    """Whether Envoy hears of health and weights; else what must not serve is kept out at the gate."""
    view: ViewPolicy
    circuit: CircuitPolicy | None = None
    """None: no circuits, and readiness alone judges our own failures."""


class Fleet:
    """All replicas of all pools. One event loop feeds it."""

    def __init__(
        self,
        pools: Sequence[FleetPool],
        clock: Clock,
        on_view: Callable[[FleetView], None],
        on_change: Callable[[Change], None],
    ) -> None:
        self._pools = {pool.name: pool for pool in pools}
        self._clock = clock
        self._on_view = on_view
        self._on_change = on_change
        self._health = LoopHealth(TICK_S)
        self._members = FleetMembers()
        self._gates = self._members.gates
        self.experience = Experience()
        """What exchanges have learned of replicas; they write it, and weights are read from it."""
        policies = {pool.name: pool.circuit for pool in pools if pool.circuit is not None}
        self._breaker = FleetCircuits(policies, clock, self._gates, self.receive, self._note_turn)
        self.circuits = self._breaker.circuits
        """Whether our own requests may go to a replica; exchanges tell of that too."""
        self.streams = OwnStreams(clock, self.receive, self.incarnation, on_change, self._breaker.note_end)
        """Our own attempts; exchanges tell of them."""
        self._drains: dict[ReplicaId, asyncio.Event] = {}
        views = {pool.name: pool.view for pool in pools}
        self._picture = FleetPicture(views, self._gates, self._members.profiles, self.experience)
        self._view = self._picture.take(None, clock.now())
        self._dirty = True
        """Something was heard since the picture was taken."""
        self._changed = False
        """And it made a difference."""
        self._told: FleetView | None = None
        self._members_told_at = -math.inf
        self._news = asyncio.Event()
        self._serving = asyncio.Event()

    # --- the picture --------------------------------------------------------------------------

    @property
    def view(self) -> FleetView:
        """The picture of this moment: every change is in it, and figures are at most one tick old."""
        self._breaker.settle()
        if self._changed:
            self._refresh(self._clock.now())
        return self._view

    def availability(self, pool: PoolName) -> Availability:
        """What a pool can do for a request. One that was empty opens when Envoy has been told, not before."""
        view = self.view.find(pool)
        if view is None:
            return Availability.EMPTY
        if self._pools[pool].over_xds:
            told = None if self._told is None else self._told.find(pool)
            if told is None or told.availability is Availability.EMPTY:
                return Availability.EMPTY
        return view.availability

    def is_cut_off(self, pool: PoolName) -> bool:
        """Whether circuits are what leaves a pool nobody to send work to."""
        view = self.view.find(pool)
        return view is not None and view.reason is ServingReason.CIRCUITS_OPEN

    async def wait_serving(self) -> None:
        """Until every pool has somebody to send work to."""
        await self._serving.wait()

    def find_fingerprint(self, replica: ReplicaId, at: float) -> Fingerprint | None:
        """What a replica was at that time, None when it is not known (any more)."""
        return self._members.find_fingerprint(replica, at)

    def is_over_xds(self, pool: PoolName) -> bool:
        """Whether Envoy hears of a pool's health and weights."""
        return self._pools[pool].over_xds

    @property
    def placed(self) -> Mapping[ReplicaId, int]:
        """How many attempts of ours were sent to each replica since weights were computed."""
        return self.streams.placed

    def find_replica(self, pool: PoolName, replica: str, address: str) -> ReplicaId | None:
        """The replica of a pool by the id in its endpoint's metadata, or else by the `ip:port` Envoy used."""
        gate = self._gates.get(ReplicaId(replica))
        if gate is None or gate.pool != pool:
            return self._members.find_at(pool, address)
        if gate.state is not ReplicaState.GONE:
            return gate.replica
        # Another one may be there, of which Envoy has not heard yet.
        return self._members.find_at(pool, address) or gate.replica

    # --- members ------------------------------------------------------------------------------

    @property
    def places(self) -> Places:
        """Who stands where, and whose process has ended there."""
        return self._members.places

    def change_members(self, pool: PoolName, changes: MemberChanges) -> None:
        """Replicas have come, gone or moved: one change of the picture, however many they are, and told at
        once, for whoever is being ended may refuse connections from this moment on.

        Whoever is removed is gone at once. Its streams are Envoy's to end; it is forgotten, with all that
        was known of it, when the last of our own has ended.
        """
        for replica in (*changes.removed, *(member.replica for member in changes.replaced)):
            self.receive(replica, Removed())
        for member in (*changes.replaced, *changes.added):
            self._add(self._pools[pool], member)
        for member in changes.changed:
            self._members.place(pool, member, self._clock.now())
            self._picture.touch(member.replica)
            self.receive(member.replica, StandingChanged(member.standing))
        self._changed = True
        now = self._clock.now()
        if now < self._members_told_at + REST_S:
            self._news.set()  # many pods change one after the other when they are rolled over
            return
        self._members_told_at = now
        self._show()

    def _add(self, pool: FleetPool, member: Member) -> None:
        replica, now = member.replica, self._clock.now()
        gate = self._gates.get(replica)
        if gate is not None and gate.pool != pool.name:
            self._members.forget(replica, now)  # gone there, and not yet forgotten
            gate = None
        if gate is None:
            self._gates[replica] = ReplicaGate(replica, pool.name, pool.readiness, now)
        self._members.declare(replica, pool.fingerprint, now)
        self._members.place(pool.name, member, now)
        self._picture.list_anew()
        self._picture.touch(replica)
        self.receive(replica, Discovered())
        self.receive(replica, StandingChanged(member.standing))
        if not pool.watched:
            self.receive(replica, ControlCallPassed(self.incarnation(replica)))

    def _forget_gone(self, now: float) -> None:
        """Whoever is gone and has none of our streams leaves the picture."""
        self._members.forget_the_past(now)
        for replica in self._members.list_gone():
            if self.streams.count(replica).inflight:
                continue
            self._members.forget(replica, now)
            self._picture.list_anew()
            self.streams.forget(replica)
            drained = self._drains.pop(replica, None)
            if drained is not None:
                drained.set()
            self._dirty = True

    # --- signals ------------------------------------------------------------------------------

    def receive(self, replica: ReplicaId, event: FleetEvent) -> None:
        """Take in one event of one replica."""
        gate = self._gates.get(replica)
        if gate is None:
            return
        self._dirty = True
        self._picture.touch(replica)
        now = self._clock.now()
        self._note_lateness(self._health.look(now), now)
        self._tell(gate.receive(event, now))
        match event:
            case Scraped():
                self.streams.note_page(replica, event)
            case ControlCallPassed() | ControlCallFailed():
                self._breaker.note_control_call(gate, event)

    def note_refusal(self, pool: PoolName, address: str) -> None:
        """Nothing listens where requests go, by a look between those of the watcher. In a pool that nobody
        looks at it changes nothing: nobody would hear of its return."""
        replica = self._members.find_at(pool, address)
        if replica is not None and self._pools[pool].watched:
            refused = ScrapeFailure(self._clock.now(), "refused", f"nothing listens at {address}")
            self.receive(replica, ScrapeFailed(refused))

    def is_control_call_due(self, replica: ReplicaId) -> bool:
        """Whether to ask the model for a token; nobody asks one that is not known (any more)."""
        gate = self._gates.get(replica)
        return gate is not None and gate.is_control_call_due(self._clock.now())

    def is_listed(self, replica: ReplicaId) -> bool:
        """Whether discovery lists it: the last streams of one that is gone may still run."""
        gate = self._gates.get(replica)
        return gate is not None and gate.state is not ReplicaState.GONE

    def incarnation(self, replica: ReplicaId) -> int:
        """Which life of the replica this is, from 1; 0 for one that is not known."""
        gate = self._gates.get(replica)
        return 0 if gate is None else gate.incarnation

    def is_fingerprint_due(self, replica: ReplicaId) -> bool:
        """Whether to ask a replica's engine what it serves."""
        return self._members.is_fingerprint_due(replica, self._clock.now())

    def note_fingerprint(self, replica: ReplicaId, incarnation: int, told: Fingerprint) -> None:
        """What an engine told of itself; it is believed before the configuration is."""
        gate = self._gates.get(replica)
        if gate is None or gate.incarnation != incarnation:
            return  # it says nothing of the process that is there
        now = self._clock.now()
        before = self._members.profiles[replica]
        differences = self._members.observe(replica, incarnation, told, now)
        if self._members.profiles[replica] != before:
            self._picture.touch(replica)
            self._changed = True
            self._news.set()
        if differences:
            self._on_change(FingerprintContradicted(replica, gate.pool, now, differences))

    # --- orders: told before they are answered ------------------------------------------------

    def drain(self, replica: ReplicaId, limit_s: float) -> asyncio.Event | None:
        """Take a replica out; the event is set when its own streams are done, or the limit has passed."""
        if replica not in self._gates:
            return None
        done = self._drains.setdefault(replica, asyncio.Event())
        done.clear()
        self.receive(replica, DrainRequested(self._clock.now() + limit_s))
        self._show()
        return done

    def undrain(self, replica: ReplicaId) -> bool:
        """Take the order back; False for a replica that is not known."""
        if replica not in self._gates:
            return False
        self.receive(replica, Undrained())
        self._show()
        return True

    # --- time ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look at what time alone changes, until cancelled.

        Steps of a tick, with a turn of the loop between them for the streams that it carries.
        """
        while True:
            for _ in self._judge():
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            if self._dirty:
                await self._read_in_steps()
                self._refresh(self._clock.now())
                await asyncio.sleep(0)
            self._show()
            await asyncio.sleep(REST_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S - REST_S):
                    await self._news.wait()

    async def _read_in_steps(self) -> None:
        for _ in range(len(self._gates) // READ_AT_ONCE + 1):
            if not self._picture.read_some(self._clock.now(), READ_AT_ONCE):
                return
            await asyncio.sleep(0)

    def tick(self) -> None:
        """All steps at once, for a moment at which nothing else runs."""
        for _ in self._judge():
            pass
        if self._dirty:
            self._refresh(self._clock.now())
        self._show()

    def _judge(self) -> Iterator[None]:
        """What fell due, with pauses. Lateness is handed in before any of it."""
        now = self._clock.now()
        self._note_lateness(self._health.tick(now), now)
        gates = list(self._gates.values())
        for begin in range(0, len(gates), JUDGED_AT_ONCE):
            if begin:
                yield
                now = self._clock.now()
                self._note_lateness(self._health.look(now), now)
            for gate in gates[begin : begin + JUDGED_AT_ONCE]:
                due = gate.next_deadline()
                if due is not None and due <= now and self._gates.get(gate.replica) is gate:
                    self._dirty = True
                    self._picture.touch(gate.replica)
                    self._tell(gate.expire(now))
        self._picture.look_for_movement()
        self.streams.expire()
        self.circuits.expire()
        self._breaker.settle()
        self._forget_gone(now)

    def _note_lateness(self, late: LoopLate | None, now: float) -> None:
        """Before anything else is judged, whoever it is that runs first after a pause."""
        if late is not None:
            self._dirty = True
            self._picture.touch_all()
            # Weights rest until pages of this side of the pause can be there.
            self._view = FleetView(tuple(replace(pool, weighed_at=now) for pool in self._view.pools))
            self._tell(tuple(change for gate in self._gates.values() for change in gate.receive(late, now)))

    def _tell(self, changes: tuple[Change, ...]) -> None:
        for change in changes:
            self._changed = True
            self._news.set()
            if isinstance(change, DrainEnded) and change.replica in self._drains:
                self._drains[change.replica].set()
            if isinstance(change, ReplicaChanged):
                self.experience.note_change(change)
                self._breaker.follow(change)
            if isinstance(change, ProcessEnded):
                self.places.note_process_end(change.replica, change.last_seen_at)
                self.streams.note_process_end(change.replica, self.places.find_end(change.replica))
            self._on_change(change)

    def _note_turn(self, turned: CircuitTurned) -> None:
        self._news.set()
        self._on_change(turned)

    def _show(self) -> None:
        """Tell whoever needs it of a picture that they have not seen."""
        self._news.clear()
        view = self.view
        if self._told is not view:
            self._told = view
            self._on_view(view)

    def _refresh(self, now: float) -> None:
        self._note_lateness(self._health.look(now), now)
        self._dirty = self._changed = False
        self._view = self._picture.take(self._view, now)
        if any(view.weighed_at == now for view in self._view.pools):
            self.streams.note_weighed()
        if all(view.availability is not Availability.EMPTY for view in self._view.pools):
            self._serving.set()
        else:
            self._serving.clear()
