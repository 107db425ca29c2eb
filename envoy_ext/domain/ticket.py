"""A request's ticket at its pool's queue, and the words for what becomes of it.

    arrive ── a slot is free ─────────────────────┐
       │                                          ▼
       └── none ──> WAITING ── its turn ──────> PROMISED ── its attempt starts ─────> STARTED
                       │                          │                                     │
                       └─ refused, gone ──────────┴─ gone ──────────────────────────────┴──> (no ticket)

PROMISED: it was given a slot of a replica, and no attempt is there yet that would be counted. From
STARTED on the slot is counted by whoever counts attempts (`room`), for as long as that one may still run, so
the ticket says only how long the slot was held.
"""

from dataclasses import dataclass
from enum import StrEnum

from envoy_ext.domain.errors import ImpossibleEvent
from envoy_ext.domain.ids import OperationId, ReplicaId


class TicketState(StrEnum):
    """Where a request stands with its pool's slots."""

    WAITING = "waiting"
    PROMISED = "promised"
    STARTED = "started"


class Turn(StrEnum):
    """What moves a ticket from state to state; leaving ends it in each."""

    PROMISE = "promise"
    START = "start"


_S, _T = TicketState, Turn
TRANSITIONS: dict[TicketState, dict[Turn, TicketState]] = {
    _S.WAITING: {_T.PROMISE: _S.PROMISED},
    _S.PROMISED: {_T.START: _S.STARTED},
    # A replay is placed where no slot was promised: its replica may hold more than it should for a while.
    _S.STARTED: {_T.START: _S.STARTED},
}


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A request that asks for a slot."""

    operation_id: OperationId
    request_class: str | None
    """What it says of itself."""
    caller: str
    """Hash of its credential: whose turn it is."""
    deadline: float | None = None
    """Its own, monotonic seconds."""
    shortened: bool = False
    """It asks for less than its client did."""


@dataclass(frozen=True, slots=True)
class Granted:
    """Go on. In a pool with a limit the request has a slot from this moment."""

    operation_id: OperationId
    waited_s: float


@dataclass(frozen=True, slots=True)
class Waits:
    """Wait for a slot, until this time at the longest."""

    operation_id: OperationId
    until: float


@dataclass(frozen=True, slots=True)
class Shed:
    """Refused; `code` is the contract's."""

    operation_id: OperationId
    code: str
    retry_within_s: int
    """How wide to spread the returns of those that are refused."""


Outcome = Granted | Waits | Shed


@dataclass(slots=True)
class Ticket:
    """One request between its arrival and its end."""

    newcomer: Newcomer
    class_name: str
    arrived_at: float
    until: float
    state: TicketState = TicketState.WAITING
    replica: ReplicaId | None = None
    """Whose slot it was given."""
    promised_at: float = 0.0

    def move(self, turn: Turn) -> None:
        """Follow the table; an impossible move is a bug of ours."""
        after = TRANSITIONS[self.state].get(turn)
        if after is None:
            raise ImpossibleEvent(f"ticket is {self.state} and cannot {turn}")
        self.state = after
