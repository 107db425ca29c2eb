"""What follows from an event: records to append, replies to send after that, notes to report.

The order is in the type. Whoever carries out a step appends `records` to the journal, then sends
`replies`, then hands on `notes`; a step without records never touches the journal. Only the record
of a whole answer may come behind its replies: before its last bytes are out it would be untrue.
"""

from dataclasses import dataclass, field

from envoy_ext.domain.client_errors import ClientError
from envoy_ext.domain.events import Target
from envoy_ext.domain.ids import AttemptId, ExchangeId, FencingToken, OperationId, PoolName, ReplicaId
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.lease import FenceProof
from envoy_ext.domain.outcomes import AttemptOutcome, Ending, Phase, Reason, RungName
from envoy_ext.domain.records import Record
from envoy_ext.domain.tool_calls import CallId, CallState
from envoy_ext.domain.tool_errors import CallOutcome

# --- replies to the delivery filter ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ForwardRequest:
    """Let the request go on to the egress hop, as this exchange, for this pool."""

    exchange_id: ExchangeId
    operation_id: OperationId
    """For what Envoy answers by itself, should this sidecar be gone by then."""
    pool: PoolName
    changed_body: bytes | None = field(default=None, repr=False)
    """What goes on in place of the client's own body; None: that one."""


@dataclass(frozen=True, slots=True)
class HoldRequest:
    """Keep the request, which waits, and tell Envoy that it may take this long."""

    seconds: float
    preference: str | None = None
    """What of the client's own `Prefer` it waits by; whatever the answer will be, it says so."""


@dataclass(frozen=True, slots=True)
class RespondLocally:
    """Answer the client with an error of ours; nothing else has been sent to it."""

    error: ClientError


@dataclass(frozen=True, slots=True)
class AnswerHere:
    """Answer the client with a fixed text of ours; no replica is asked for it."""

    request_id: str
    operation_id: OperationId
    content_type: str
    data: bytes = field(repr=False)
    degraded: tuple[RungName, ...]
    recorded: bool = True


@dataclass(frozen=True, slots=True)
class ForwardResponse:
    """Let the response headers go to the client. `attempts` is how many were started."""

    request_id: str
    operation_id: OperationId
    attempts: int
    may_append: bool
    """Bytes may be added or dropped, so a content-length must not be promised."""
    recorded: bool = True
    """False tells the client that the journal has not been told all of its operation."""
    status: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    """Those that belong to the answer, where it may be kept; they go on by themselves."""
    streams: bool = False
    """The body is a stream of events or lines."""
    end: bool = False
    """There is no body."""
    degraded: tuple[RungName, ...] = ()
    """What was given up of the request."""


@dataclass(frozen=True, slots=True)
class GiveAnswer:
    """Answer the repeat of a completed operation with what its client was given."""

    answer: KeptAnswer
    request_id: str
    """Of the repeat."""
    operation_id: OperationId
    attempts: int
    """How many were started for the operation."""
    degraded: tuple[RungName, ...] = ()


@dataclass(frozen=True, slots=True)
class ForwardBody:
    """Let these bytes go to the client; `end` closes the body."""

    data: bytes
    end: bool
    trailers: bool = False


@dataclass(frozen=True, slots=True)
class ResetDelivery:
    """Break the client's stream off: part of an answer is out and nothing truthful can be added."""


# --- replies to an attempt filter -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """Let the attempt go to a replica: the named one, or the one Envoy's weights choose."""

    attempt_id: AttemptId
    operation_id: OperationId
    token: FencingToken
    lease_ttl_s: float
    """What its worker is offered: how long each renewal lasts."""
    target: Target | None
    keep_encoding: bool
    """False removes accept-encoding, so that the stream stays readable for us."""


@dataclass(frozen=True, slots=True)
class RefuseAttempt:
    """End the attempt before any byte reaches a replica; final for the ingress hop."""

    attempt_id: AttemptId
    code: str


@dataclass(frozen=True, slots=True)
class AskPatience:
    """Tell Envoy that the answer to its message may take this long (once for each message)."""

    attempt_id: AttemptId
    seconds: float


@dataclass(frozen=True, slots=True)
class ReleaseAttempt:
    """Let the held headers and chunks go, and leave the stream."""

    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class PassLocalReply:
    """Let Envoy's own failure answer go on as it is, with its replay mark if it has one, and leave."""

    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class FailOver:
    """In place of an answer that is held, or waited for, send one that the ingress hop replays."""

    attempt_id: AttemptId
    outcome: AttemptOutcome


@dataclass(frozen=True, slots=True)
class WithholdAnswer:
    """Replace the held answer by a refusal that is final for the ingress hop."""

    attempt_id: AttemptId
    code: str


DeliveryReply = (
    ForwardRequest
    | HoldRequest
    | RespondLocally
    | GiveAnswer
    | AnswerHere
    | ForwardResponse
    | ForwardBody
    | ResetDelivery
)
AttemptReply = (
    StartAttempt | RefuseAttempt | AskPatience | ReleaseAttempt | PassLocalReply | FailOver | WithholdAnswer
)
Reply = DeliveryReply | AttemptReply

# --- notes for metrics and logs -------------------------------------------------------------


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
    | SlotGiven
    | MalformedEvents
    | ToolCallDecided
    | ToolCallEnded
)


@dataclass(frozen=True, slots=True)
class Step:
    """All that follows from one event."""

    records: tuple[Record, ...] = ()
    replies: tuple[Reply, ...] = ()
    notes: tuple[Note, ...] = ()


NOTHING = Step()


@dataclass(slots=True)
class StepBuilder:
    """Collects a step while one event is worked on; reused by its exchange, never shared."""

    records: list[Record] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def take(self) -> Step:
        """The collected step; the builder is empty afterwards."""
        if not (self.records or self.replies or self.notes):
            return NOTHING
        step = Step(tuple(self.records), tuple(self.replies), tuple(self.notes))
        self.records.clear()
        self.replies.clear()
        self.notes.clear()
        return step
