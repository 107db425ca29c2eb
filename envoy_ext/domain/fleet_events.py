"""What can happen to a replica, and what follows from it.

Events come from five sources, in no promised order between them: discovery, the scraper, control
calls, our own streams, and orders of people. What follows is a tuple of changes: for EDS, metrics,
logs and the status page.
"""

from dataclasses import dataclass

from envoy_ext.domain.circuit import CircuitState
from envoy_ext.domain.circuit_evidence import FailureClass
from envoy_ext.domain.discovery import Standing
from envoy_ext.domain.fingerprint import Difference
from envoy_ext.domain.ids import PoolName, ReplicaId
from envoy_ext.domain.outcomes import AttemptOutcome
from envoy_ext.domain.readiness_reasons import Finding, ReadinessReason
from envoy_ext.domain.replica_life import ReplicaState
from envoy_ext.domain.sample import Sample, ScrapeFailure
from envoy_ext.domain.slots import CancelBegan, CancelOver

# --- events -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Discovered:
    """Discovery lists it. Repeating this of a replica that is listed changes nothing."""


@dataclass(frozen=True, slots=True)
class Removed:
    """Discovery does not list it any more: gone at once, by the orchestrator's word."""


@dataclass(frozen=True, slots=True)
class StandingChanged:
    """Discovery lists it, and says this of it."""

    standing: Standing


@dataclass(frozen=True, slots=True)
class Scraped:
    """A look gave a page."""

    sample: Sample
    asked_at: float | None = None
    """When it was asked for, monotonic seconds; None where nobody has told."""


@dataclass(frozen=True, slots=True)
class ScrapeFailed:
    """A look gave nothing."""

    failure: ScrapeFailure


@dataclass(frozen=True, slots=True)
class ControlCallPassed:
    """The model gave a token. `incarnation` is the one that was asked."""

    incarnation: int
    declined: str = ""
    """Not empty: there is no token to be had, because the engine declines our calls for this reason, and
    its server is well."""


@dataclass(frozen=True, slots=True)
class ControlCallFailed:
    """The model gave no token. `detail` is for people."""

    incarnation: int
    detail: str
    unanswered: bool = False
    """It had no time, or was told to come later: the model may be as well as it is busy."""


@dataclass(frozen=True, slots=True)
class OwnAttemptEnded:
    """An attempt of ours at this replica is over."""

    outcome: AttemptOutcome


@dataclass(frozen=True, slots=True)
class StreamBytes:
    """Bytes came on a stream of ours from this replica. Once a second is enough."""


@dataclass(frozen=True, slots=True)
class InflightChanged:
    """So many attempts of our own are there: their streams are open, or they may still be computed."""

    inflight: int
    cancelling: int = 0
    """Those of them that we have dropped."""


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """Take it out, and let its streams end until `deadline` (monotonic)."""

    deadline: float


@dataclass(frozen=True, slots=True)
class Undrained:
    """The order to drain is taken back."""


@dataclass(frozen=True, slots=True)
class DependencyChanged:
    """Something the replica needs (a weights store, an adapter registry) can be reached, or not."""

    name: str
    reachable: bool


@dataclass(frozen=True, slots=True)
class CircuitStanding:
    """What its circuit says of a replica that is not simply closed."""

    out: bool
    """It gets no work but trials."""
    cut: bool
    """The circuit is open or half open; without `out`, the replica serves on all the same."""
    asks: bool
    """The control call is wanted."""
    text: str


@dataclass(frozen=True, slots=True)
class CircuitMoved:
    """The circuit says this from now on; None: nothing, it is closed."""

    standing: CircuitStanding | None


@dataclass(frozen=True, slots=True)
class LoopLate:
    """The sidecar's own loop stood still for so long; nobody looked at any replica meanwhile."""

    seconds: float


Order = Discovered | Removed | StandingChanged | DrainRequested | Undrained
"""Somebody's word: the orchestrator's, the configuration's, an operator's."""

Sign = (
    Scraped
    | ScrapeFailed
    | ControlCallPassed
    | ControlCallFailed
    | OwnAttemptEnded
    | StreamBytes
    | InflightChanged
    | DependencyChanged
    | CircuitMoved
    | LoopLate
)
"""What a replica, or the way to it, shows of itself."""

FleetEvent = Order | Sign

# --- changes ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReplicaChanged:
    """A replica's state, its reasons or its incarnation are others than before."""

    replica: ReplicaId
    pool: PoolName
    at: float
    before: ReplicaState
    after: ReplicaState
    findings: tuple[Finding, ...]
    """All that stand after the change."""
    closed: tuple[ReadinessReason, ...]
    """Reasons that stood before it and do not any more."""
    incarnation: int


@dataclass(frozen=True, slots=True)
class DrainEnded:
    """A drain is over: the last stream of our own has ended (`inflight` is 0), or its deadline came."""

    replica: ReplicaId
    pool: PoolName
    at: float
    inflight: int


@dataclass(frozen=True, slots=True)
class FingerprintContradicted:
    """An engine tells of its model something else than the configuration; told once for each difference."""

    replica: ReplicaId
    pool: PoolName
    at: float
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """A replica's page shows by its start time that the process before it is gone."""

    replica: ReplicaId
    pool: PoolName
    at: float
    last_seen_at: float
    """When that process gave its last page."""


@dataclass(frozen=True, slots=True)
class CircuitTurned:
    """A replica's circuit is in another state."""

    replica: ReplicaId
    pool: PoolName
    at: float
    before: CircuitState
    after: CircuitState
    kind: FailureClass | None
    """The class of failure that opened it last."""
    why: str
    """For people."""


Change = (
    ReplicaChanged
    | DrainEnded
    | FingerprintContradicted
    | ProcessEnded
    | CircuitTurned
    | CancelBegan
    | CancelOver
)
