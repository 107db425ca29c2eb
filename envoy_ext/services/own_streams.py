"""Our own attempts as the fleet counts them: where each is, its slot, its bytes, its end and whose fault."""

import math
from collections.abc import Callable, Mapping
from typing import Final, assert_never

from envoy_ext.domain.fleet_events import (
    FleetEvent,
    InflightChanged,
    OwnAttemptEnded,
    Scraped,
    StreamBytes,
)
from envoy_ext.domain.ids import AttemptId, PoolName, ReplicaId
from envoy_ext.domain.notes import AttemptFinished, AttemptLetGo, AttemptPlaced, AttemptProved
from envoy_ext.domain.signals import read_known
from envoy_ext.domain.slots import CancelBegan, CancelOver, CancelProof, SlotCount, Slots, SlotStep
from envoy_ext.ports import Clock

BYTES_EVERY_S: Final = 1.0
"""How often a stream's bytes are told to a gate: it judges silence in minutes."""


class OwnStreams:
    """Runs on the event loop of its fleet; nothing waits."""

    def __init__(
        self,
        clock: Clock,
        tell: Callable[[ReplicaId, FleetEvent], None],
        read_incarnation: Callable[[ReplicaId], int],
        on_cancel: Callable[[CancelBegan | CancelOver], None],
        on_end: Callable[[AttemptFinished, ReplicaId], None],
    ) -> None:
        """`on_end` hears of the ends that say something of the process that is there."""
        self._clock = clock
        self._tell = tell
        self._read_incarnation = read_incarnation
        self._on_cancel = on_cancel
        self._on_end = on_end
        self._slots = Slots()
        self._lives: dict[AttemptId, tuple[ReplicaId, int]] = {}
        """In which incarnation of its replica each of them began."""
        self._bytes_told: dict[ReplicaId, float] = {}
        self._placed: dict[ReplicaId, int] = {}
        self._chosen: dict[AttemptId, ReplicaId] = {}
        """Where attempts will go whose start is being recorded."""
        self._count_listeners: list[Callable[[ReplicaId, SlotCount], None]] = []

    @property
    def placed(self) -> Mapping[ReplicaId, int]:
        """How many were sent to each replica since weights were computed, or are to go there."""
        return self._placed

    def on_count(self, listener: Callable[[ReplicaId, SlotCount], None]) -> None:
        """Call it whenever what a replica holds of ours is another count."""
        self._count_listeners.append(listener)

    def count(self, replica: ReplicaId) -> SlotCount:
        """What a replica holds of ours."""
        return self._slots.count(replica)

    def count_unplaced(self, pool: PoolName) -> int:
        """Slots that are taken at some replica of a pool, and nobody has told at which."""
        return self._slots.count_unplaced(pool)

    def note(self, note: AttemptLetGo | AttemptPlaced | AttemptProved | AttemptFinished) -> None:
        """What exchanges tell of their attempts."""
        now = self._clock.now()
        match note:
            case AttemptLetGo():
                self._slots.start(note.attempt_id, note.pool, now)
            case AttemptPlaced():
                self._place(note.attempt_id, note.replica)
            case AttemptProved():
                self._follow(self._slots.prove(note.attempt_id, CancelProof(note.proof), now))
            case AttemptFinished():
                self._finish(note, now)
            case _:
                assert_never(note)

    def prove_stopped(self, attempt_id: AttemptId) -> bool:
        """A worker says so of an attempt whose exchange is over; False when nothing was waited for."""
        if not self.is_dropped(attempt_id):
            return False
        self._follow(self._slots.prove(attempt_id, CancelProof.CANCEL_ACK, self._clock.now()))
        return True

    def is_dropped(self, attempt_id: AttemptId) -> bool:
        """Whether an attempt's stream has ended, and nobody has said that its generation has."""
        return self._slots.is_dropped(attempt_id)

    def note_bytes(self, attempt_id: AttemptId) -> None:
        """Bytes came on a stream of ours: its replica moves."""
        now = self._clock.now()
        replica = self._slots.find_replica(attempt_id)
        if replica is None or now - self._bytes_told.get(replica, -math.inf) < BYTES_EVERY_S:
            return
        self._bytes_told[replica] = now
        self._tell(replica, StreamBytes())

    def read_heard_at(self, replica: ReplicaId | None) -> float:
        """When bytes last came from a replica on a stream of ours, to the second; -inf: never."""
        return -math.inf if replica is None else self._bytes_told.get(replica, -math.inf)

    # --- for the fleet ------------------------------------------------------------------------

    def note_page(self, replica: ReplicaId, scraped: Scraped) -> None:
        """A look gave a page: fewer requests on it than are being cancelled there free the rest."""
        running, waiting = read_known(scraped.sample.running), read_known(scraped.sample.waiting)
        if scraped.asked_at is None or running is None or waiting is None:
            return  # one figure alone may leave out just the one that is meant
        now = self._clock.now()
        self._follow(self._slots.note_page(replica, scraped.asked_at, running + waiting, now))

    def note_process_end(self, replica: ReplicaId, started_by: float) -> None:
        """A process has ended there, which every attempt had reached that started by then."""
        self._follow(self._slots.note_death(replica, started_by, self._clock.now()))

    def expire(self) -> None:
        """Let time pass."""
        self._follow(self._slots.expire(self._clock.now()))

    def note_chosen(self, attempt_id: AttemptId, replica: ReplicaId) -> None:
        """An attempt will go there once its start is recorded: who is chosen for next is to know of it."""
        self._chosen[attempt_id] = replica
        self._placed[replica] = self._placed.get(replica, 0) + 1

    def forget_chosen(self, attempt_id: AttemptId) -> None:
        """An attempt's exchange is over, whether or not it ever went there."""
        self._chosen.pop(attempt_id, None)

    def note_weighed(self) -> None:
        """Weights were computed: from here on they know what was sent before."""
        self._placed.clear()
        for replica in self._chosen.values():
            self._placed[replica] = self._placed.get(replica, 0) + 1

    def forget(self, replica: ReplicaId) -> None:
        """It is a replica no more, and none of ours runs there."""
        self._bytes_told.pop(replica, None)
        self._placed.pop(replica, None)

    # --- inside -------------------------------------------------------------------------------

    def _place(self, attempt_id: AttemptId, replica: ReplicaId) -> None:
        step = self._slots.place(attempt_id, replica)
        chosen = self._chosen.pop(attempt_id, None)
        if step.counted:
            if chosen != replica:
                self._placed[replica] = self._placed.get(replica, 0) + 1
            self._lives[attempt_id] = replica, self._read_incarnation(replica)
            self._follow(step)

    def _finish(self, finished: AttemptFinished, now: float) -> None:
        """One stream less, and whose fault it was. Where it ran may be told with its end."""
        attempt_id, replica = finished.attempt_id, finished.replica
        life = self._lives.pop(attempt_id, None)
        if finished.acts_until is None:
            self._follow(self._slots.end(attempt_id, now))
        else:
            if replica is not None:
                self._follow(self._slots.place(attempt_id, replica))
            self._follow(self._slots.drop(attempt_id, now, finished.acts_until))
        if replica is None or (life is not None and life != (replica, self._read_incarnation(replica))):
            return  # what an earlier life did is not held against this one
        self._tell(replica, OwnAttemptEnded(finished.outcome))
        self._on_end(finished, replica)

    def _follow(self, step: SlotStep) -> None:
        for replica in step.counted:
            count = self._slots.count(replica)
            for listener in self._count_listeners:
                listener(replica, count)
            self._tell(replica, InflightChanged(count.inflight, count.cancelling))
        for cancel in step.cancels:
            self._on_cancel(cancel)
