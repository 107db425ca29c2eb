"""The circuits of all replicas: who is to blame for a failure, who gets a trial, who is out.

Fed by the fleet and by exchanges, on their event loop; nothing waits. A failure that may be the request's
own is held back until it is known what became of the request elsewhere: an answer begun there blames the
replica, a failure there the request, and an end without another try leaves it unclear.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from envoy_ext.domain.circuit import ASKS, CUT, Circuit, CircuitState
from envoy_ext.domain.circuit_evidence import ANSWERED, Blame, Evidence, Failed, read_evidence
from envoy_ext.domain.circuit_policy import CircuitPolicy
from envoy_ext.domain.circuit_share import Member, choose_cut
from envoy_ext.domain.fleet_events import CircuitStanding, CircuitTurned
from envoy_ext.domain.ids import OperationId, PoolName, ReplicaId
from envoy_ext.domain.notes import AttemptFinished
from envoy_ext.domain.outcomes import AttemptOutcome
from envoy_ext.ports import Clock

RETRY_SPAN_S: Final = 30
"""The longest span that a refusal's `Retry-After` is drawn from, however long a circuit stays open."""


@dataclass(slots=True)
class _Seat:
    pool: PoolName
    circuit: Circuit


@dataclass(slots=True)
class _Request:
    """What is known of one operation's failures."""

    waiting: tuple[ReplicaId, Failed] | None = None
    """A failure that nobody is blamed for yet."""
    failed: set[ReplicaId] = field(default_factory=set)
    answered_by: ReplicaId | None = None


class Circuits:
    """Changed by its fleet, and by exchanges through `fleet`; `on_turn` hears of every state."""

    def __init__(
        self,
        policies: Mapping[PoolName, CircuitPolicy],
        clock: Clock,
        draw: Callable[[], float],
        on_turn: Callable[[CircuitTurned], None],
    ) -> None:
        """Pools without a policy have no circuits."""
        self._policies = policies
        self._clock = clock
        self._draw = draw
        self._on_turn = on_turn
        self._seats: dict[ReplicaId, _Seat] = {}
        self._requests: dict[OperationId, _Request] = {}
        self._trials: dict[OperationId, ReplicaId] = {}
        """Promised, and not yet over."""
        self._troubled: dict[PoolName, set[ReplicaId]] = {pool: set() for pool in policies}
        """Whose circuits are not closed."""

    # --- members ------------------------------------------------------------------------------

    def add(self, pool: PoolName, replica: ReplicaId) -> None:
        """A process is there that nothing is known of; forget the one before."""
        policy = self._policies.get(pool)
        if policy is None:
            return
        before = self._seats.get(replica)
        self.forget(replica)
        self._seats[replica] = _Seat(pool, Circuit(policy, self._draw))
        if before is not None and before.circuit.state is not CircuitState.CLOSED:
            self._tell(replica, self._seats[replica], before.circuit.state, "another process is there")

    def forget(self, replica: ReplicaId) -> None:
        """It is there no more, and what was to be held against it is held against nobody."""
        seat = self._seats.pop(replica, None)
        if seat is None:
            return
        self._troubled[seat.pool].discard(replica)
        for request in self._requests.values():
            if request.waiting is not None and request.waiting[0] == replica:
                request.waiting = None
        for operation_id in [one for one, where in self._trials.items() if where == replica]:
            del self._trials[operation_id]

    # --- what exchanges tell ------------------------------------------------------------------

    def begin(self, operation_id: OperationId, replica: ReplicaId) -> None:
        """An attempt goes to a replica."""
        seat = self._seats.get(replica)
        if seat is not None:
            seat.circuit.begin(operation_id)

    def note_first_delta(self, operation_id: OperationId, replica: ReplicaId) -> None:
        """A replica has begun to answer: whoever failed the same request before is to blame."""
        if replica not in self._seats:
            return
        self._requests.setdefault(operation_id, _Request()).answered_by = replica
        self._settle_blame(operation_id, Blame.REPLICA, but=replica)
        self._do(replica, lambda circuit, now: circuit.note_first_delta(operation_id, now))

    def note_end(self, finished: AttemptFinished, replica: ReplicaId) -> None:
        """An attempt is over that says something of the process at its replica."""
        if replica not in self._seats:
            return
        operation_id = finished.operation_id
        evidence = read_evidence(
            finished.outcome, finished.cause, answered=finished.answered, computes=finished.computes
        )
        if isinstance(evidence, Failed) and evidence.blame is Blame.UNCLEAR:
            self._hold_back(operation_id, replica, evidence)
            return
        if evidence == ANSWERED:
            self._settle_blame(operation_id, Blame.REPLICA, but=replica)
        elif finished.outcome is AttemptOutcome.CLIENT_ERROR:
            # One engine calls the client's mistake by its name, and the other one failed over it.
            self._settle_blame(operation_id, Blame.REQUEST, but=replica)
        self._finish(operation_id, replica, evidence)

    def note_excused(self, finished: AttemptFinished, replica: ReplicaId) -> None:
        """An attempt is over at a replica that somebody has taken out: it says nothing."""
        self._finish(finished.operation_id, replica, None)

    def note_exchange_ended(self, operation_id: OperationId) -> None:
        """The request is tried nowhere else."""
        self._settle_blame(operation_id, Blame.UNCLEAR, but=None)

    def note_over(self, operation_id: OperationId) -> None:
        """Nothing more will be heard of the request."""
        self._settle_blame(operation_id, Blame.UNCLEAR, but=None)
        self._requests.pop(operation_id, None)
        promised = self._trials.pop(operation_id, None)
        if promised is not None:
            self._finish(operation_id, promised, None)

    def _hold_back(self, operation_id: OperationId, replica: ReplicaId, failure: Failed) -> None:
        request = self._requests.setdefault(operation_id, _Request())
        if request.answered_by not in (None, replica):  # its end is told late
            self._finish(operation_id, replica, replace(failure, blame=Blame.REPLICA))
        elif request.failed - {replica}:
            self._settle_blame(operation_id, Blame.REQUEST, but=None)
            self._finish(operation_id, replica, replace(failure, blame=Blame.REQUEST))
        else:
            request.waiting = replica, failure
        request.failed.add(replica)

    def _settle_blame(self, operation_id: OperationId, blame: Blame, but: ReplicaId | None) -> None:
        request = self._requests.get(operation_id)
        if request is None or request.waiting is None or request.waiting[0] == but:
            return
        (replica, failure), request.waiting = request.waiting, None
        self._finish(operation_id, replica, replace(failure, blame=blame))

    def _finish(self, operation_id: OperationId, replica: ReplicaId, evidence: Evidence | None) -> None:
        if self._trials.get(operation_id) == replica:
            del self._trials[operation_id]
        self._do(replica, lambda circuit, now: circuit.finish(operation_id, evidence, now))

    # --- trials -------------------------------------------------------------------------------

    def promise_trial(
        self, pool: PoolName, operation_id: OperationId, among: Iterable[ReplicaId]
    ) -> ReplicaId | None:
        """The replica at which a request is to be the trial, None when none is due there."""
        if operation_id in self._trials:
            return self._trials[operation_id]
        for replica in among:
            seat = self._seats.get(replica)
            if seat is not None and seat.pool == pool and seat.circuit.count_free_trials():
                seat.circuit.begin(operation_id)
                self._trials[operation_id] = replica
                return replica
        return None

    # --- control calls and time ---------------------------------------------------------------

    def note_probe(self, replica: ReplicaId, passed: bool) -> None:
        """A control call has been answered, or has failed."""
        self._do(replica, lambda circuit, now: circuit.note_probe(passed, now))

    def expire(self) -> None:
        """Let time pass."""
        now = self._clock.now()
        for replica, seat in self._seats.items():
            due = seat.circuit.next_deadline()
            if due is not None and due <= now:
                self._do(replica, lambda circuit, at: circuit.expire(at))

    # --- what follows -------------------------------------------------------------------------

    def list_standings(
        self, pool: PoolName, sound: Mapping[ReplicaId, bool]
    ) -> dict[ReplicaId, CircuitStanding | None]:
        """What each circuit of a pool says; `sound` are those that nobody has taken out by order, and whether
        they could serve."""
        policy = self._policies.get(pool)
        if policy is None:
            return {}
        seats = {one: seat.circuit for one, seat in self._seats.items() if seat.pool == pool}
        out: frozenset[ReplicaId] = frozenset()
        if self.is_troubled(pool):
            members = [
                Member(one, sound[one], seats[one].state in CUT, seats[one].condemned, seats[one].opened_at)
                for one in sound.keys() & seats.keys()
            ]
            out = choose_cut(members, policy.max_open)
            for one in sound.keys() & seats.keys() - out:
                self._do(one, lambda circuit, now: circuit.hurry(now))
        # Whoever is out by order is no exception to a rule about those that serve.
        return {
            one: self._describe(circuit, one in out or one not in sound, sound.get(one, False))
            for one, circuit in seats.items()
        }

    def read_wait_s(self, pool: PoolName) -> int:
        """The span within which a request that is refused may come again."""
        now = self._clock.now()
        waits = [
            seat.circuit.open_until - now if seat.circuit.state is CircuitState.OPEN else 0.0
            for seat in self._seats.values()
            if seat.pool == pool and seat.circuit.state in CUT
        ]
        return max(1, min(RETRY_SPAN_S, math.ceil(min(waits, default=0.0)) + 1))

    def read_state(self, replica: ReplicaId) -> CircuitState | None:
        """One replica's circuit; None where there is none."""
        seat = self._seats.get(replica)
        return None if seat is None else seat.circuit.state

    def is_troubled(self, pool: PoolName) -> bool:
        """Whether any circuit of a pool is not closed."""
        return bool(self._troubled.get(pool))

    @property
    def idle(self) -> bool:
        """Whether nothing is kept of any request."""
        return not self._requests and not self._trials

    # --- inside -------------------------------------------------------------------------------

    def _describe(self, circuit: Circuit, out: bool, sound: bool) -> CircuitStanding | None:
        if circuit.state is CircuitState.CLOSED:
            return None
        cut = circuit.state in CUT
        text = f"its circuit is {circuit.state} ({circuit.why})"
        if cut and not out:
            text += ", and it serves on" if sound else ", and its own signals decide"
        return CircuitStanding(out and cut, cut, circuit.state in ASKS, text)

    def _do(self, replica: ReplicaId, change: Callable[[Circuit, float], None]) -> None:
        seat = self._seats.get(replica)
        if seat is None:
            return
        before = seat.circuit.state
        change(seat.circuit, self._clock.now())
        if seat.circuit.state is not before:
            self._tell(replica, seat, before, seat.circuit.why)

    def _tell(self, replica: ReplicaId, seat: _Seat, before: CircuitState, why: str) -> None:
        circuit = seat.circuit
        closed = circuit.state is CircuitState.CLOSED
        (self._troubled[seat.pool].discard if closed else self._troubled[seat.pool].add)(replica)
        turned = CircuitTurned(
            replica, seat.pool, self._clock.now(), before, circuit.state, circuit.kind, why
        )
        self._on_turn(turned)
