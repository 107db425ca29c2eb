"""What is reported of an exchange, when its step has been carried out: for logs, metrics and the fleet.

Nothing waits for a note, and none is a decision.
"""

from dataclasses import dataclass

from envoy_ext.domain.events import LogCause
from envoy_ext.domain.ids import AttemptId, OperationId, PoolName, ReplicaId
from envoy_ext.domain.job import JobState
from envoy_ext.domain.lease import FenceProof
from envoy_ext.domain.outcomes import AttemptOutcome, Ending, Phase, Reason, RungName
from envoy_ext.domain.tool_calls import CallId, CallState
from envoy_ext.domain.tool_errors import CallOutcome


@dataclass(frozen=True, slots=True)
class PhaseChanged:
    """The exchange moved between phases; None is "not in flight"."""

    pool: PoolName
    before: Phase | None
    after: Phase | None


@dataclass(frozen=True, slots=True)
class FirstDelta:
    """The first delta is about to leave, this long after the request arrived."""

    pool: PoolName
    ttft_s: float
    replica: ReplicaId | None = None
    """Who has computed it."""
    attempt_s: float | None = None
    """How long after its attempt was started; None for an answer in one piece, which comes when all of it
    is computed."""


@dataclass(frozen=True, slots=True)
class ReplayStarted:
    """An attempt after the first one was let go, because of this outcome of the one before."""

    pool: PoolName
    replica: ReplicaId
    reason: AttemptOutcome


@dataclass(frozen=True, slots=True)
class FenceAwaited:
    """A replay waits until this attempt, whose end nobody has confirmed, can act no more.

    Whoever can prove that sooner answers with `events.AttemptFenced`.
    """

    attempt_id: AttemptId
    pool: PoolName
    replica: ReplicaId


@dataclass(frozen=True, slots=True)
class FenceReached:
    """What a replay waited for has come, after so many seconds at the gate."""

    pool: PoolName
    waited_s: float


@dataclass(frozen=True, slots=True)
class ReplayRefused:
    """A replay was asked for and not allowed; `code` is the contract's error code."""

    operation_id: OperationId
    pool: PoolName
    code: str
    detail: str
    """Why, for people; holds nothing of a request."""


@dataclass(frozen=True, slots=True)
class LedgerAwaited:
    """An attempt waits until it is known what earlier ones have called.

    Whoever can read this ledger answers with `events.LedgerRead`.
    """

    attempt_id: AttemptId
    ledger_id: OperationId


@dataclass(frozen=True, slots=True)
class AttemptLetGo:
    """An attempt may go to a replica; which one it is, Envoy may choose."""

    attempt_id: AttemptId
    pool: PoolName


@dataclass(frozen=True, slots=True)
class AttemptPlaced:
    """It is known at which replica an attempt runs."""

    attempt_id: AttemptId
    pool: PoolName
    replica: ReplicaId


@dataclass(frozen=True, slots=True)
class AttemptFinished:
    """An attempt's outcome is known."""

    operation_id: OperationId
    attempt_id: AttemptId
    pool: PoolName
    replica: ReplicaId | None
    outcome: AttemptOutcome
    detail: str
    acts_until: float | None = None
    """Its stream is over, and its generation may last until then, monotonic seconds; None: it is over too."""
    cause: LogCause | None = None
    """Envoy's own word on its end, where there is one."""
    answered: bool = False
    """Part of its answer, or all of it, was released."""
    computes: bool = True
    """A model had to compute something for it."""


@dataclass(frozen=True, slots=True)
class AttemptProved:
    """An attempt is known to act no more, whatever its stream does."""

    attempt_id: AttemptId
    pool: PoolName
    proof: FenceProof


@dataclass(frozen=True, slots=True)
class StreamInterrupted:
    """A stream was ended by a typed event or a reset after its first delta."""

    pool: PoolName
    reason: Reason


@dataclass(frozen=True, slots=True)
class ExchangeEnded:
    """The exchange's ending is known and recorded."""

    operation_id: OperationId
    request_id: str
    pool: PoolName
    ending: Ending
    reason: Reason | None
    code: str | None
    attempts: int
    delivered_deltas: int
    duration_s: float
    recorded: bool = True
    """Whether the journal was told of all that happened, before it happened."""
    degraded: tuple[RungName, ...] = ()


@dataclass(frozen=True, slots=True)
class WentUnrecorded:
    """An exchange goes on although the journal cannot be told of it."""

    pool: PoolName


@dataclass(frozen=True, slots=True)
class StoreLost:
    """The store of the journal takes no writes, or gives no answers, from here on."""

    why: str
    """In the store's own words, which hold nothing of a request."""


@dataclass(frozen=True, slots=True)
class StoreBack:
    """The store works again, after so long."""

    seconds: float


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """A request was answered with an error of ours before it was let in; `code` is the contract's.

    It became no exchange, or its exchange has waited for a slot.
    """

    pool: PoolName | None
    """None when none was found for it."""
    code: str


@dataclass(frozen=True, slots=True)
class RequestDegraded:
    """A request goes on, or is answered, with less than it asked for."""

    pool: PoolName
    """Where it goes on, or that had no room for it."""
    rungs: tuple[RungName, ...]


@dataclass(frozen=True, slots=True)
class HandOffFailed:
    """Nobody has taken a request that was to be handed to a person."""

    operation_id: OperationId
    pool: PoolName


@dataclass(frozen=True, slots=True)
class BoundaryHeld:
    """A request was not let go to a pool, because the class of its data may not go there."""

    pool: PoolName
    request_id: str
    operation_id: OperationId | None
    """None before there is one."""
    data_class: str
    """As the configuration names it."""


@dataclass(frozen=True, slots=True)
class AnswerReplayed:
    """A repeat was given the kept answer of its operation. It became no exchange."""

    pool: PoolName
    operation_id: OperationId
    request_id: str
    """Of the repeat."""


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A request was taken in as a job."""

    job_id: OperationId
    request_id: str
    pool: PoolName
    rung: bool
    """By its class's ladder; its client did not ask for that."""


@dataclass(frozen=True, slots=True)
class JobEnded:
    """A job has ended, by a word of this gateway."""

    job_id: OperationId
    request_id: str
    pool: PoolName
    state: JobState
    code: str | None
    runs: int
    """Those that have begun."""


@dataclass(frozen=True, slots=True)
class SlotGiven:
    """A request was given a slot of a pool with a limit, after so long; 0 where one was free."""

    pool: PoolName
    waited_s: float


@dataclass(frozen=True, slots=True)
class MalformedEvents:
    """Events that were not JSON were passed on unread."""

    pool: PoolName
    count: int


@dataclass(frozen=True, slots=True)
class ToolCallDecided:
    """It was decided about a request to a tool."""

    tool: str | None
    """None where its path leads to none."""
    outcome: CallOutcome
    operation_id: OperationId | None
    attempt_id: AttemptId | None
    call_id: CallId | None
    """In the ledger: of the call, or of the one that stands in its way."""


@dataclass(frozen=True, slots=True)
class ToolCallEnded:
    """A call that was let out has an end."""

    tool: str
    state: CallState
    recorded: bool
    """False: the store could not be asked, and the ledger calls it begun."""
    operation_id: OperationId
    call_id: CallId


Note = (
    PhaseChanged
    | FirstDelta
    | ReplayStarted
    | FenceAwaited
    | FenceReached
    | ReplayRefused
    | LedgerAwaited
    | AttemptLetGo
    | AttemptPlaced
    | AttemptFinished
    | AttemptProved
    | StreamInterrupted
    | ExchangeEnded
    | WentUnrecorded
    | StoreLost
    | StoreBack
    | RequestRefused
    | RequestDegraded
    | HandOffFailed
    | BoundaryHeld
    | AnswerReplayed
    | JobSubmitted
    | JobEnded
    | SlotGiven
    | MalformedEvents
    | ToolCallDecided
    | ToolCallEnded
)
