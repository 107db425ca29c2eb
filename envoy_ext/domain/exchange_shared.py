"""What both sides of an exchange read and write: who it is for, its limits, its evidence, its step.

Held by one `Exchange` and handed to its two sides; nothing outside the three touches it.
"""

from dataclasses import dataclass, field, replace
from typing import Protocol

from envoy_ext.domain import step
from envoy_ext.domain.attempt import Attempt
from envoy_ext.domain.boundaries import DEFAULT
from envoy_ext.domain.ending import Evidence, Resolution
from envoy_ext.domain.events import RequestArrived, RequestMoved, Target
from envoy_ext.domain.ids import ExchangeId, OperationId, PoolName, ReplicaId
from envoy_ext.domain.lease import LeasePolicy
from envoy_ext.domain.notes import PhaseChanged
from envoy_ext.domain.outcomes import Phase, RungName
from envoy_ext.domain.retry import FailoverPolicy, GiveUp
from envoy_ext.domain.tool_calls import CallId


@dataclass(frozen=True, slots=True)
class Identity:
    """Who and what an exchange is for."""

    exchange_id: ExchangeId
    operation_id: OperationId
    request_id: str
    pool: PoolName
    allowed_pools: frozenset[PoolName]
    """All that its data class may reach, by the configuration alone: no attempt goes elsewhere."""
    data_class: str = DEFAULT
    """As the configuration names it."""
    caller: str = ""
    """Hash of the credential the request came with."""
    key_hash: str | None = None
    """Hash of the idempotency key, None when there was none."""
    ledger_id: OperationId | None = None
    """Whose ledger its tool calls stand in, when that is an earlier operation's."""
    job_id: OperationId | None = None
    """The job that it is a run of. Nothing of a run reaches a client: its answer is kept, and given later."""
    keeps_answer: bool = False
    """Whether its answer may be kept: then it is asked for in a form that can be read."""


@dataclass(frozen=True, slots=True)
class ExchangePolicy:
    """The limits an exchange works with; times in seconds, sizes in bytes."""

    failover: FailoverPolicy = field(default_factory=FailoverPolicy)
    max_event_bytes: int = 1 << 20
    lease: LeasePolicy = field(default_factory=LeasePolicy)
    hold_limit_s: float = 3600.0
    """How long Envoy may wait for us while an answer is held; a prefill can take minutes."""
    inject_grace_s: float = 0.5
    """How long logged bytes are waited for before the terminal event goes out without them."""
    settle_s: float = 3.0
    """How long end evidence is waited for after the client's side has closed."""
    watches_tools: bool = False
    """Whether an attempt that repeats what another may have done waits for a look at the tool ledger."""
    client_stall_s: float = 60.0
    """How long a client may take nothing of what waits for it."""


@dataclass(frozen=True, slots=True)
class Tried:
    """Where the earlier attempts of an exchange ran, as far as that is known."""

    first: ReplicaId | None
    """The replica of the earliest attempt whose place is known: a replay must be its equal."""
    first_at: float
    """When that attempt started, monotonic seconds: its replica may have become another since."""
    replicas: frozenset[ReplicaId]


class Replicas(Protocol):
    """The pool's replicas at the moment of asking: a look at the fleet's picture, no IO and no wait."""

    def find_targets(self, tried: Tried) -> tuple[Target, ...]:
        """Where a replay could go, best first."""

    def move(self, pool: PoolName) -> None:
        """Another pool is asked from here on."""

    def find_revision(self, replica: ReplicaId, at: float) -> str | None:
        """What a replica served at that time, None when nobody has told."""


@dataclass(slots=True)
class Shared:
    """The common ground of an exchange's client side and attempt side."""

    identity: Identity
    request: RequestArrived
    policy: ExchangePolicy
    opened_at: float
    opened_wall: float
    deadline: float | None
    replicas: Replicas
    out: step.StepBuilder = field(default_factory=step.StepBuilder)
    evidence: Evidence = field(default_factory=Evidence)
    learned: bool = False
    """The evidence has grown since it was last asked for an ending."""
    resolution: Resolution | None = None
    released: Attempt | None = None
    """The one attempt whose bytes the client gets; set once."""
    refusal: GiveUp | None = None
    """Why the last attempt was refused or withheld."""
    blocked_by: CallId | None = None
    """The tool call for which it was, if it was one."""
    started_attempts: int = 0
    recorded: bool = True
    """Whether the journal has been told all that has happened, before it happened."""
    phase: Phase | None = None
    degraded: tuple[RungName, ...] = ()
    """All that has been given up of the request."""
    degraded_later: bool = False
    """More has been given up than the record of the begin tells."""
    moved: bool = False
    """It has gone to another pool since it began."""

    def __post_init__(self) -> None:
        self.degraded = self.request.degraded

    def learn(self, **facts: object) -> None:
        """Add facts to the evidence."""
        for name, value in facts.items():
            setattr(self.evidence, name, value)
        self.learned = True

    def enter(self, phase: Phase | None) -> None:
        """Note a phase change; None takes the exchange out of flight."""
        if phase is not self.phase:
            self.out.notes.append(PhaseChanged(self.identity.pool, self.phase, phase))
            self.phase = phase

    def move(self, event: RequestMoved) -> None:
        """Another pool is asked, for what is left of the request."""
        self.identity = replace(self.identity, pool=event.pool)
        self.request = replace(self.request, facts=event.facts, changed_body=event.changed_body)
        self.replicas.move(event.pool)
        self.degraded, self.degraded_later, self.moved = event.degraded, True, True

    def drop_body(self) -> None:
        """A changed body is with Envoy, which has it for replays too."""
        if self.request.changed_body is not None:
            self.request = replace(self.request, changed_body=None)

    def wall(self, now: float) -> float:
        """Unix time of a monotonic instant, by the one reading taken when the exchange opened."""
        return self.opened_wall + (now - self.opened_at)
