"""The queues of all pools: each asks its core, and tells the exchanges what came of it.

A request asks once, before it becomes an exchange; one that waits is told its one word later, by an
event. Slots are looked for whenever some may have come free: an attempt has ended, a request has left, the
fleet's picture has changed. Everything runs on one event loop, and nothing waits here but a timer.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from envoy_ext.domain.admission_queue import AdmissionQueue, QueuePolicy
from envoy_ext.domain.availability import Availability
from envoy_ext.domain.events import Event, RequestAdmitted, RequestShed
from envoy_ext.domain.ids import AttemptId, OperationId, PoolName, ReplicaId
from envoy_ext.domain.ladder import Outlook
from envoy_ext.domain.notes import SlotGiven
from envoy_ext.domain.ticket import Granted, Newcomer, Outcome, Shed
from envoy_ext.domain.traffic_class import TrafficClasses
from envoy_ext.ports import Clock, Observer
from envoy_ext.services.fleet import CUT_OFF, NO_READY_REPLICA, Fleet
from envoy_ext.services.rooms import Rooms

NO_REPLICA_SPAN_S: Final = 3
"""In which those are to come back that found no replica."""

Tell = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class QueueView:
    """One pool's queue as people see it; None is "not known", or "no limit" of slots."""

    waiting: int
    length: int
    deepest: int
    """The most that waited at once, since the sidecar runs."""
    classes: dict[str, int]
    slots: int | None
    free: int | None
    drain_per_s: float | None


@dataclass(slots=True)
class _Pool:
    queue: AdmissionQueue
    timer: asyncio.TimerHandle | None = None
    timer_at: float | None = None
    tells: dict[OperationId, Tell] = field(default_factory=dict)
    """Where the word goes that a request waits for."""


class Queues:
    """Changed by arrivals, by exchanges and by time."""

    def __init__(
        self,
        policy: QueuePolicy,
        pools: Sequence[PoolName],
        *,
        rooms: Rooms,
        fleet: Fleet,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self._policy = policy
        self._pools = {pool: _Pool(AdmissionQueue(policy)) for pool in pools}
        self._rooms = rooms
        self._fleet = fleet
        self._clock = clock
        self._observer = observer
        self._listeners: list[Callable[[], None]] = []

    def on_free(self, listener: Callable[[], None]) -> None:
        """Call it whenever a slot may have come free that nobody waits for."""
        self._listeners.append(listener)

    # --- requests -----------------------------------------------------------------------------

    def ask(self, pool: PoolName, newcomer: Newcomer) -> Outcome:
        """What becomes of a request; one that waits is to `listen` before anything else happens."""
        self.look(pool)
        room = self._rooms.read(pool)
        outcomes = self._pools[pool].queue.arrive(newcomer, room, self._clock.now())
        own = next(outcome for outcome in outcomes if outcome.operation_id == newcomer.operation_id)
        self._refuse(pool, [one for one in outcomes if isinstance(one, Shed) and one is not own])
        if isinstance(own, Granted) and room.limited:
            self._observer.note(SlotGiven(pool, 0.0))
        self._arm(pool)
        return own

    @property
    def classes(self) -> TrafficClasses:
        """What requests may say of themselves."""
        return self._policy.classes

    def foresee(self, pool: PoolName, request_class: str | None, caller: str) -> Outlook:
        """What a request would find that asked at this moment."""
        self.look(pool)
        return self._pools[pool].queue.foresee(request_class, caller, self._rooms.read(pool))

    def foresee_refusal(self, pool: PoolName, newcomer: Newcomer) -> Shed | None:
        """What a request would be told that asked at this moment; None where it would be let in, or wait."""
        if self._fleet.availability(pool) is Availability.EMPTY:
            return self.build_empty(pool, newcomer.operation_id)
        self.look(pool)
        queue, room = self._pools[pool].queue, self._rooms.read(pool)
        return queue.foresee_refusal(newcomer, room, self._clock.now())

    def build_empty(self, pool: PoolName, operation_id: OperationId) -> Shed:
        """What a request is told whose pool has nobody to send it to."""
        if self._fleet.is_cut_off(pool):
            return Shed(operation_id, CUT_OFF, self._fleet.circuits.read_wait_s(pool))
        return Shed(operation_id, NO_READY_REPLICA, NO_REPLICA_SPAN_S)

    def has_room(self, pool: PoolName) -> bool:
        """Whether a request that asked at this moment would be let in at once."""
        self.look(pool)
        return self._pools[pool].queue.has_room(self._rooms.read(pool))

    def listen(self, pool: PoolName, operation_id: OperationId, tell: Tell) -> None:
        """Where a request that waits hears its word."""
        self._pools[pool].tells[operation_id] = tell

    def start(self, pool: PoolName, operation_id: OperationId, attempt_id: AttemptId) -> None:
        """An attempt of the request is counted: its slot is taken, and promised no longer."""
        queue = self._pools[pool].queue
        queue.start(operation_id)
        queue.begin_answer(operation_id, attempt_id, self._clock.now())

    def end(self, pool: PoolName, attempt_id: AttemptId, *, whole: bool, heard_at: float) -> None:
        """An attempt is over, with a whole answer or without; when its replica was last heard of."""
        queue = self._pools[pool].queue
        queue.end_answer(attempt_id, self._clock.now(), whole=whole, heard_at=heard_at)

    def choose_replica(self, pool: PoolName, operation_id: OperationId) -> ReplicaId | None:
        """Where a first attempt goes, None where Envoy may choose."""
        return self._pools[pool].queue.choose_replica(operation_id, self._rooms.read(pool))

    def leave(self, pool: PoolName, operation_id: OperationId) -> None:
        """The request is over; what it was promised is free for the next one."""
        one = self._pools[pool]
        one.tells.pop(operation_id, None)
        one.queue.leave(operation_id, self._clock.now())
        self.note_free(pool)

    def draw_full(self, pool: PoolName) -> int:
        """A `Retry-After` for a request that is refused there without having asked for a slot."""
        queue = self._pools[pool].queue
        return random.randint(1, queue.note_refusal(self._rooms.read(pool), self._clock.now()))

    def read_longest_wait_s(self, request_class: str | None) -> float:
        """How long a request of this class may have to wait in the line."""
        return self._policy.classes.find(request_class).max_wait_s

    # --- slots, replicas and time -------------------------------------------------------------

    def note_free(self, pool: PoolName) -> None:
        """A slot may have come free: for those that wait, and else for whoever listens."""
        self.look(pool)
        for listener in self._listeners:
            listener()

    def look(self, pool: PoolName) -> None:
        """Slots may have come free, or all replicas have gone."""
        one = self._pools[pool]
        if one.queue.depth == 0:
            return
        now, room = self._clock.now(), self._rooms.read(pool)
        if self._fleet.availability(pool) is Availability.EMPTY:
            code = CUT_OFF if self._fleet.is_cut_off(pool) else NO_READY_REPLICA
            self._refuse(pool, one.queue.shed_all(code, room, now))
        else:
            self._let_in(pool, one.queue.fill(room, now))
        self._arm(pool)

    def look_at_all(self) -> None:
        """The fleet's picture has changed."""
        for pool in self._pools:
            self.look(pool)
        for listener in self._listeners:
            listener()

    def refuse_all(self, code: str) -> None:
        """Nobody will be let in any more."""
        for pool, one in self._pools.items():
            self._refuse(pool, one.queue.shed_all(code, self._rooms.read(pool), self._clock.now()))
            self._arm(pool)

    def _expire(self, pool: PoolName) -> None:
        one = self._pools[pool]
        one.timer = one.timer_at = None
        self._refuse(pool, one.queue.expire(self._rooms.read(pool), self._clock.now()))
        self._arm(pool)

    # --- for people ---------------------------------------------------------------------------

    def count_waiting(self, pool: PoolName) -> int:
        """How many wait."""
        return self._pools[pool].queue.depth

    @property
    def idle(self) -> bool:
        """Whether no request waits, holds a slot or is to be told anything."""
        return all(one.queue.idle and not one.tells for one in self._pools.values())

    def show(self, pool: PoolName) -> QueueView:
        """One pool's queue at this moment."""
        queue, room = self._pools[pool].queue, self._rooms.read(pool)
        return QueueView(
            waiting=queue.depth,
            length=self._policy.length,
            deepest=queue.deepest,
            classes=queue.count_waiting(),
            slots=room.slots if room.limited else None,
            free=queue.count_free(room),
            drain_per_s=queue.read_rate(room),
        )

    # --- inside -------------------------------------------------------------------------------

    def _let_in(self, pool: PoolName, outcomes: Iterable[Granted | Shed]) -> None:
        for one in outcomes:
            if isinstance(one, Shed):
                self._refuse(pool, [one])
                continue
            tell = self._pools[pool].tells.pop(one.operation_id)
            self._observer.note(SlotGiven(pool, one.waited_s))
            tell(RequestAdmitted())

    def _refuse(self, pool: PoolName, shed: Iterable[Shed]) -> None:
        for one in shed:
            tell = self._pools[pool].tells.pop(one.operation_id)
            tell(RequestShed(one.code, draw_retry_after(one)))

    def _arm(self, pool: PoolName) -> None:
        one = self._pools[pool]
        deadline = one.queue.next_deadline()
        if deadline == one.timer_at:
            return
        if one.timer is not None:
            one.timer.cancel()
            one.timer = None
        one.timer_at = deadline
        if deadline is not None:
            delay = max(0.0, deadline - self._clock.now())
            one.timer = asyncio.get_running_loop().call_later(delay, self._expire, pool)


def draw_retry_after(shed: Shed) -> int:
    """A second within the span: those that were refused together do not come back together."""
    return random.randint(1, shed.retry_within_s)
