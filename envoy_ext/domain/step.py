"""What follows from an event: records to append, replies to send after that, notes to report.

The order is in the type. Whoever carries out a step appends `records` to the journal, then sends
`replies`, then hands on `notes`; a step without records never touches the journal. Only the record
of a whole answer may come behind its replies: before its last bytes are out it would be untrue.
"""

from dataclasses import dataclass, field

from envoy_ext.domain.client_errors import ClientError
from envoy_ext.domain.events import Target
from envoy_ext.domain.ids import AttemptId, ExchangeId, FencingToken, OperationId, PoolName
from envoy_ext.domain.job import Job
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.notes import Note
from envoy_ext.domain.outcomes import AttemptOutcome, RungName
from envoy_ext.domain.records import Record

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
    job: Job | None = None
    """What the request has become; the answer says so, in place of `data`."""


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
class AcceptJob:
    """Answer that the request will run, or runs, as a job, and where to look for it."""

    job: Job
    request_id: str
    retry_after_s: int
    """When a look may be worth while."""
    asked: bool = False
    """Its client asked for that."""
    degraded: tuple[RungName, ...] = ()


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
    repeated: bool = True
    """Somebody may have been given it before; False for the result of a job, whose client was not."""


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
    | AcceptJob
    | AnswerHere
    | ForwardResponse
    | ForwardBody
    | ResetDelivery
)
AttemptReply = (
    StartAttempt | RefuseAttempt | AskPatience | ReleaseAttempt | PassLocalReply | FailOver | WithholdAnswer
)
Reply = DeliveryReply | AttemptReply


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
