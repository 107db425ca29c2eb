"""Between gates and circuits: each process has a circuit of its own, and each gate is told what it says.

A gate's own signals never depend on its circuit, so who is out follows in one step from both.
"""

import random
from collections.abc import Callable, Mapping

from envoy_ext.domain.circuit_policy import CircuitPolicy
from envoy_ext.domain.fleet_events import (
    CircuitMoved,
    CircuitStanding,
    CircuitTurned,
    ControlCallFailed,
    ControlCallPassed,
    FleetEvent,
    ReplicaChanged,
)
from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.domain.notes import AttemptFinished
from envoy_ext.domain.readiness import ReplicaGate
from envoy_ext.domain.replica_life import ReplicaState
from envoy_ext.ports import Clock
from envoy_ext.services.circuits import Circuits


class FleetCircuits:
    """Part of the fleet, and changed only by it."""

    def __init__(
        self,
        policies: Mapping[PoolName, CircuitPolicy],
        clock: Clock,
        gates: Mapping[ReplicaId, ReplicaGate],
        tell: Callable[[ReplicaId, FleetEvent], None],
        on_turn: Callable[[CircuitTurned], None],
    ) -> None:
        self.circuits = Circuits(policies, clock, random.random, self._note_turn)
        self._gates = gates
        self._tell = tell
        self._on_turn = on_turn
        self._standings: dict[ReplicaId, CircuitStanding | None] = {}
        """What each gate was told of its circuit."""
        self._lives: dict[ReplicaId, int] = {}
        """The incarnation that each circuit is of."""
        self._unsettled: set[PoolName] = set()
        """Pools in which it has to be looked at who is out."""

    def note_end(self, finished: AttemptFinished, replica: ReplicaId) -> None:
        """An attempt is over. Who was taken out by somebody may be ending streams for that."""
        gate = self._gates.get(replica)
        if gate is None or gate.ordered_out:
            self.circuits.note_excused(finished, replica)
        else:
            self.circuits.note_end(finished, replica)

    def note_control_call(self, gate: ReplicaGate, call: ControlCallPassed | ControlCallFailed) -> None:
        """A control call has ended. A model that had no time for it may be busy, and is asked again."""
        if call.incarnation != gate.incarnation:
            return
        if isinstance(call, ControlCallPassed):
            self.circuits.note_probe(gate.replica, passed=True)
        elif not call.unanswered:
            self.circuits.note_probe(gate.replica, passed=False)

    def follow(self, change: ReplicaChanged) -> None:
        """Another process has another circuit, and who is able to serve decides who may be out."""
        replica = change.replica
        if change.after is ReplicaState.GONE:
            self._lives.pop(replica, None)
            self._standings.pop(replica, None)
            self.circuits.forget(replica)
        elif self._lives.get(replica) != change.incarnation:
            self._lives[replica] = change.incarnation
            self._standings.pop(replica, None)
            self.circuits.add(change.pool, replica)
        if self.circuits.is_troubled(change.pool):
            self._unsettled.add(change.pool)

    def settle(self) -> None:
        """Tell each gate what its circuit says, where that is something else than before."""
        while self._unsettled:
            pool = self._unsettled.pop()
            gates = [gate for gate in self._gates.values() if gate.pool == pool]
            sound = {gate.replica: gate.sound for gate in gates if not gate.ordered_out}
            for replica, standing in self.circuits.list_standings(pool, sound).items():
                if self._standings.get(replica) != standing:
                    self._standings[replica] = standing
                    self._tell(replica, CircuitMoved(standing))

    def _note_turn(self, turned: CircuitTurned) -> None:
        self._unsettled.add(turned.pool)
        self._on_turn(turned)
