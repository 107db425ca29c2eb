"""Which places at replicas our own attempts take: from the start until generation is known to be over.

    RUNNING ─── dropped ───> CANCELLING ─── proved ───> FREE
     │   └───── proved ────> DELIVERING ─── dropped, ended ───> FREE
     └── ended ──> FREE

Two things end, in either order: our stream, and the engine's generation. A stream that ended with the
whole answer, or by the engine's own word, ends both. A stream that was *dropped* (its client left, its
connection was lost or reset) says nothing of the engine: a cancel that was sent is not a cancel that was
proved. Its slot stays taken until the first of

* the word of its worker,
* the death of its process,
* the end of its lease (`acts_until`): longer than that no worker believes in it, and without a worker it
  is what an engine is given to notice a closed connection,
* the engine's own count: a page that was asked for after the drop and shows fewer requests, running and
  waiting, than are being cancelled there.

The count is of requests and tells no names: of C that are being cancelled at most P can be there where the
page shows P in all, so C - P are over, whoever else sends requests there. What others run there, and what
we do, keeps slots taken: it errs to the safe side. Which of them are over stays unknown, so a later word
about one by its name may be about one that was counted already, and frees no second slot. How far a page
lags behind its engine is not known here.

Generation can be over before its stream is: a worker says so, and the client still reads. That takes no
slot, and a drain waits for it.
"""

import math
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from envoy_ext.domain.ids import AttemptId, PoolName, ReplicaId


class SlotState(StrEnum):
    """Where an attempt stands with the replica that it was sent to."""

    RUNNING = "running"
    """Its stream is open."""
    DELIVERING = "delivering"
    """Its generation is over, and its stream still open."""
    CANCELLING = "cancelling"
    """Its stream is gone, and nobody has said that its generation is over."""
    FREE = "free"


class SlotSignal(StrEnum):
    """What moves it from state to state."""

    ENDED = "ended"
    """The stream has ended, and the generation with it."""
    DROPPED = "dropped"
    """The stream has ended, and that is all that is known."""
    PROVED = "proved"
    """The generation is over."""


_S, _T = SlotState, SlotSignal
TRANSITIONS: Final[dict[SlotState, dict[SlotSignal, SlotState]]] = {
    _S.RUNNING: {_T.ENDED: _S.FREE, _T.DROPPED: _S.CANCELLING, _T.PROVED: _S.DELIVERING},
    _S.DELIVERING: {_T.ENDED: _S.FREE, _T.DROPPED: _S.FREE, _T.PROVED: _S.DELIVERING},
    _S.CANCELLING: {_T.ENDED: _S.FREE, _T.DROPPED: _S.CANCELLING, _T.PROVED: _S.FREE},
    _S.FREE: {},
}


class CancelProof(StrEnum):
    """By what the slot of a dropped attempt became free. Those of `lease.FenceProof`, and one more."""

    NEVER_STARTED = "never_started"
    CANCEL_ACK = "cancel_ack"
    DEATH = "death"
    ENDED = "ended"
    EXPIRY = "lease_expiry"
    ENGINE_COUNT = "engine_count"
    """The engine's page shows fewer requests than are being cancelled there."""


@dataclass(frozen=True, slots=True)
class SlotCount:
    """What one replica holds of ours."""

    inflight: int = 0
    """Attempts whose stream or generation is not over: all of them."""
    taken: int = 0
    """Those whose generation is not known to be over."""
    cancelling: int = 0
    """Those of them that we have dropped."""


@dataclass(frozen=True, slots=True)
class CancelBegan:
    """An attempt was dropped, and may still be computed."""

    attempt_id: AttemptId
    pool: PoolName
    replica: ReplicaId | None
    """None where nobody has told."""


@dataclass(frozen=True, slots=True)
class CancelOver:
    """The slot of a dropped attempt is free again, after so many seconds. A count knows no names."""

    pool: PoolName
    replica: ReplicaId | None
    proof: CancelProof
    seconds: float


@dataclass(frozen=True, slots=True)
class SlotStep:
    """What follows from a change."""

    counted: frozenset[ReplicaId] = frozenset()
    """Replicas whose count is another one."""
    cancels: tuple[CancelBegan | CancelOver, ...] = ()


NOTHING: Final = SlotStep()


@dataclass(slots=True)
class _Place:
    """A replica, or a pool for what is at one of its replicas and nobody has told at which."""

    pool: PoolName
    replica: ReplicaId | None = None
    states: Counter[SlotState] = field(default_factory=Counter)
    dropped: dict[AttemptId, "_Slot"] = field(default_factory=dict)
    """Those being cancelled, in the order in which they were dropped."""
    over: int = 0
    """So many of them are over by the engine's count; which ones, nobody knows."""

    def count(self) -> SlotCount:
        running, dropped = self.states[SlotState.RUNNING], len(self.dropped) - self.over
        return SlotCount(running + self.states[SlotState.DELIVERING] + dropped, running + dropped, dropped)

    def build_step(self, *cancels: CancelBegan | CancelOver) -> SlotStep:
        return SlotStep(frozenset() if self.replica is None else frozenset({self.replica}), cancels)

    def build_over(self, slot: "_Slot", proof: CancelProof, now: float) -> CancelOver:
        return CancelOver(self.pool, self.replica, proof, now - slot.dropped_at)


@dataclass(slots=True)
class _Slot:
    place: _Place
    started_at: float
    state: SlotState = SlotState.RUNNING
    dropped_at: float = 0.0
    acts_until: float = math.inf


class Slots:
    """Every attempt of ours that may take a slot. Times are monotonic seconds of one clock."""

    def __init__(self) -> None:
        self._slots: dict[AttemptId, _Slot] = {}
        self._replicas: dict[ReplicaId, _Place] = {}
        self._pools: dict[PoolName, _Place] = {}

    # --- what there is ------------------------------------------------------------------------

    def count(self, replica: ReplicaId) -> SlotCount:
        """What a replica holds of ours."""
        place = self._replicas.get(replica)
        return SlotCount() if place is None else place.count()

    def count_unplaced(self, pool: PoolName) -> int:
        """Slots that are taken at some replica of a pool, and nobody has told at which."""
        place = self._pools.get(pool)
        return 0 if place is None else place.count().taken

    def find_replica(self, attempt_id: AttemptId) -> ReplicaId | None:
        """Where an attempt is, as far as that is known."""
        slot = self._slots.get(attempt_id)
        return None if slot is None else slot.place.replica

    def is_dropped(self, attempt_id: AttemptId) -> bool:
        """Whether an attempt was dropped, and nobody has said of it that it is over."""
        slot = self._slots.get(attempt_id)
        return slot is not None and slot.state is SlotState.CANCELLING

    def __len__(self) -> int:
        """Attempts that are remembered."""
        return len(self._slots)

    # --- our own streams ----------------------------------------------------------------------

    def start(self, attempt_id: AttemptId, pool: PoolName, now: float) -> None:
        """An attempt was let go. Envoy may choose its replica, and tells with the answer.

        Repeating this changes nothing.
        """
        if attempt_id not in self._slots:
            place = self._pools.setdefault(pool, _Place(pool))
            place.states[SlotState.RUNNING] += 1
            self._slots[attempt_id] = _Slot(place, now)

    def place(self, attempt_id: AttemptId, replica: ReplicaId) -> SlotStep:
        """It is known at which replica an attempt is."""
        slot = self._slots.get(attempt_id)
        if slot is None or slot.place.replica == replica or slot.state is SlotState.CANCELLING:
            return NOTHING
        before = slot.place
        before.states[slot.state] -= 1
        slot.place = self._replicas.setdefault(replica, _Place(before.pool, replica))
        slot.place.states[slot.state] += 1
        self._forget_if_empty(before)
        return SlotStep(before.build_step().counted | {replica})

    def end(self, attempt_id: AttemptId, now: float) -> SlotStep:
        """Its stream has ended, and so has its generation: a whole answer, or the engine's own word."""
        return self._move(attempt_id, SlotSignal.ENDED, CancelProof.ENDED, now)

    def drop(self, attempt_id: AttemptId, now: float, acts_until: float) -> SlotStep:
        """Its stream has ended, and nobody says that its generation has; it has surely at `acts_until`."""
        slot = self._slots.get(attempt_id)
        if slot is None or slot.state is SlotState.CANCELLING:
            return NOTHING
        slot.dropped_at, slot.acts_until = now, acts_until
        return self._move(attempt_id, SlotSignal.DROPPED, CancelProof.ENDED, now)

    # --- proofs -------------------------------------------------------------------------------

    def prove(self, attempt_id: AttemptId, proof: CancelProof, now: float) -> SlotStep:
        """Its generation is over, whatever its stream does."""
        return self._move(attempt_id, SlotSignal.PROVED, proof, now)

    def note_death(self, replica: ReplicaId, started_by: float, now: float) -> SlotStep:
        """A process has ended there, and had every attempt that started by then: they are over."""
        dead = [
            attempt_id
            for attempt_id, slot in self._slots.items()
            if slot.place.replica == replica and slot.started_at <= started_by
        ]
        return self._prove_all(dead, CancelProof.DEATH, now)

    def note_page(self, replica: ReplicaId, asked_at: float, requests: float, now: float) -> SlotStep:
        """The engine's page, asked for at that moment, shows so many requests running and waiting."""
        place = self._replicas.get(replica)
        if place is None or not place.dropped:
            return NOTHING
        older = [slot for slot in place.dropped.values() if slot.dropped_at < asked_at]
        over = len(older) - math.ceil(requests)
        if over <= place.over:
            return NOTHING
        counted = older[place.over : over]
        place.over = over
        cancels = [place.build_over(slot, CancelProof.ENGINE_COUNT, now) for slot in counted]
        if over == len(place.dropped):  # all of them: their names are known again
            for attempt_id in place.dropped:
                del self._slots[attempt_id]
            place.dropped.clear()
            place.over = 0
            self._forget_if_empty(place)
        return place.build_step(*cancels)

    def expire(self, now: float) -> SlotStep:
        """Let time pass."""
        late = [
            attempt_id
            for places in (self._replicas, self._pools)
            for place in places.values()
            for attempt_id, slot in place.dropped.items()
            if now >= slot.acts_until
        ]
        return self._prove_all(late, CancelProof.EXPIRY, now)

    # --- inside -------------------------------------------------------------------------------

    def _prove_all(self, attempt_ids: list[AttemptId], proof: CancelProof, now: float) -> SlotStep:
        steps = [self._move(attempt_id, SlotSignal.PROVED, proof, now) for attempt_id in attempt_ids]
        if not steps:
            return NOTHING
        counted = frozenset().union(*(step.counted for step in steps))
        return SlotStep(counted, tuple(cancel for step in steps for cancel in step.cancels))

    def _move(self, attempt_id: AttemptId, signal: SlotSignal, proof: CancelProof, now: float) -> SlotStep:
        """Follow the table. An attempt that is not known has been free before: news of it change nothing."""
        slot = self._slots.get(attempt_id)
        if slot is None:
            return NOTHING
        before, place = slot.state, slot.place
        slot.state = TRANSITIONS[before][signal]
        if slot.state is before:
            return NOTHING
        place.states[before] -= 1
        place.states[slot.state] += 1
        cancels: tuple[CancelBegan | CancelOver, ...] = ()
        if slot.state is SlotState.CANCELLING:
            place.dropped[attempt_id] = slot
            cancels = (CancelBegan(attempt_id, place.pool, place.replica),)
        if before is SlotState.CANCELLING:
            del place.dropped[attempt_id]
            if place.over:
                place.over -= 1  # it may be one that was counted, and a slot is free once
            else:
                cancels = (place.build_over(slot, proof, now),)
        if slot.state is SlotState.FREE:
            del self._slots[attempt_id]
            self._forget_if_empty(place)
        return place.build_step(*cancels)

    def _forget_if_empty(self, place: _Place) -> None:
        if place.count().inflight or place.dropped:
            return
        if place.replica is None:
            self._pools.pop(place.pool, None)
        else:
            self._replicas.pop(place.replica, None)
