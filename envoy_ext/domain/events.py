"""What happened to one exchange, in its own words; adapters translate Envoy's messages into these.

Nine sources, in no promised order between them:

* the delivery stream (ingress ext_proc): `RequestArrived`, `ResponseStarted`, `ResponseBody`,
  `DeliveryClosed`
* each attempt's stream (egress ext_proc): `AttemptArrived`, `AttemptAnswered`, `AttemptUnanswered`,
  `AttemptBody`, `AttemptClosed`
* the attempt log (egress access log): `AttemptProgressed`, `AttemptLogged`
* the exchange log (ingress access log): `ExchangeProgressed`, `ExchangeLogged`
* the attempt's worker, where the replica has one: `AttemptStopped`
* whoever looks whether the replica is dead: `AttemptFenced`
* the ledger of tool calls, where there are tools: `LedgerRead`
* its pool's queue, where the request waits in it: `RequestAdmitted`, `RequestShed`
* its class's ladder, before it is refused: `RequestMoved`, `AnsweredHere`
* the sidecar itself: `DrainExpired`, `JournalFailed`, `RecordingLost`, `OwnershipLost`

Log entries may come before, after, twice or never.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from envoy_ext.domain.api import RequestFacts
from envoy_ext.domain.ids import AttemptId, FencingToken, OperationId, PoolName, ReplicaId
from envoy_ext.domain.job import Job
from envoy_ext.domain.lease import FenceProof
from envoy_ext.domain.outcomes import RungName
from envoy_ext.domain.tool_calls import ToolCall


class LogCause(StrEnum):
    """How one hop's exchange ended by Envoy's own word (response code details and flags)."""

    COMPLETED = "completed"
    """The hop passed a whole response."""
    UPSTREAM_RESET = "upstream_reset"
    """The connection to the replica was closed or reset after the request was sent."""
    UPSTREAM_TIMEOUT = "upstream_timeout"
    """The connection to the replica timed out: nobody said that it is gone."""
    CONNECT_REFUSED = "connect_refused"
    """No connection was made, by the host's own word: nobody listens there."""
    UNREACHABLE = "unreachable"
    """No connection was made, and nobody said why: it took too long, or there was no way there."""
    NO_UPSTREAM = "no_upstream"
    """Envoy had no endpoint, no route, or no room (circuit breaker): no replica was asked."""
    DOWNSTREAM_GONE = "downstream_gone"
    """The side that asked closed first."""
    SIDECAR = "sidecar"
    """Ended by a reply of the sidecar."""
    OTHER = "other"


NEVER_SENT = frozenset({LogCause.CONNECT_REFUSED, LogCause.UNREACHABLE, LogCause.NO_UPSTREAM})
"""Causes with which no replica saw the request: whatever runs there, it is not this attempt."""


@dataclass(frozen=True, slots=True)
class Target:
    """A replica an attempt may be sent to, with the `ip:port` that Envoy knows it by."""

    replica: ReplicaId
    address: str


@dataclass(frozen=True, slots=True)
class RequestArrived:
    """The whole request is in Envoy's buffer and was read; nothing has left for a replica."""

    facts: RequestFacts
    path: str
    body_sha256: str
    body_bytes: int
    deadline_s: float | None
    """The client's own limit, seconds from this event; None when it named none."""
    degraded: tuple[RungName, ...] = ()
    """What was given up of it on arrival. `facts` are of what is left, under the model that the client asked
    for; hash and size are of the client's own body."""
    changed_body: bytes | None = field(default=None, repr=False)
    """What goes to the replica in place of the client's own; None: that one."""


@dataclass(frozen=True, slots=True)
class ResponseStarted:
    """Response headers reached the delivery filter."""

    status: int
    content_type: str
    content_encoding: str
    replay_mark: bool
    """The egress hop marked this answer as one to replay, and Envoy did not (limit or budget)."""
    refusal: str | None
    """The gate's or hold's refusal mark, an error code."""
    end: bool
    lost: LogCause | None = None
    """How the attempt was lost, by the mark of an answer that Envoy gave in the replica's place. The
    attempt's log entry says the same, and may come later."""
    headers: tuple[tuple[str, str], ...] = ()
    """Those that belong to the answer; none where it is not kept."""


@dataclass(frozen=True, slots=True)
class ResponseBody:
    """Bytes of the response reached the delivery filter. `trailers`: the end came as trailers."""

    data: bytes
    end: bool
    trailers: bool = False


@dataclass(frozen=True, slots=True)
class DeliveryClosed:
    """The delivery stream is over; evidence, not a verdict."""


@dataclass(frozen=True, slots=True)
class AttemptArrived:
    """The egress hop asks whether an attempt may start."""

    attempt_id: AttemptId
    steer_to: Target | None = None
    """Where a first attempt must go, when Envoy could choose a replica that must not serve."""
    pool: PoolName | None = None
    """The pool that the egress hop will route it to; None where nobody tells."""


@dataclass(frozen=True, slots=True)
class AttemptAnswered:
    """A replica's response headers arrived and are held. `replica` is None when its address is not ours."""

    attempt_id: AttemptId
    status: int
    content_type: str
    content_encoding: str
    replica: ReplicaId | None
    end: bool


@dataclass(frozen=True, slots=True)
class AttemptUnanswered:
    """Envoy itself answered in the replica's place: the attempt is lost, by this cause."""

    attempt_id: AttemptId
    cause: LogCause
    replica: ReplicaId | None
    detail: str
    address: str = ""
    """The `ip:port` that it went to; "" where none was chosen."""


@dataclass(frozen=True, slots=True)
class AttemptUnconfirmed:
    """The replica's machine confirms nothing of what it is sent, and Envoy waits on: the attempt is lost."""

    attempt_id: AttemptId
    cause: LogCause
    replica: ReplicaId | None
    address: str
    """The `ip:port` that it went to."""


@dataclass(frozen=True, slots=True)
class AttemptBody:
    """Bytes of a held response arrived."""

    attempt_id: AttemptId
    data: bytes
    end: bool


@dataclass(frozen=True, slots=True)
class AttemptClosed:
    """An attempt's stream is over; evidence, not a verdict."""

    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class AttemptStopped:
    """An attempt's worker says that generation has stopped: the acknowledgement of a cancel."""

    attempt_id: AttemptId
    token: FencingToken


@dataclass(frozen=True, slots=True)
class AttemptFenced:
    """An attempt is known to act no more, by somebody other than its worker."""

    attempt_id: AttemptId
    proof: FenceProof


@dataclass(frozen=True, slots=True)
class LedgerRead:
    """The answer to `step.LedgerAwaited`."""

    attempt_id: AttemptId
    calls: tuple[ToolCall, ...] | None
    """None: it cannot be read."""


@dataclass(frozen=True, slots=True)
class AttemptProgressed:
    """The egress hop tells of an attempt that goes on: so many bytes have left the hop."""

    attempt_id: AttemptId
    body_bytes: int


@dataclass(frozen=True, slots=True)
class AttemptLogged:
    """The egress hop logged the end of an attempt. `body_bytes` left the hop towards the client."""

    attempt_id: AttemptId
    cause: LogCause
    replica: ReplicaId | None
    body_bytes: int
    detail: str
    address: str = ""
    """The `ip:port` that it went to; "" where none was chosen."""


@dataclass(frozen=True, slots=True)
class ExchangeProgressed:
    """The ingress hop tells of an exchange that goes on: its client's connection has taken so much."""

    taken_bytes: int
    """Of the body, with its framing."""
    acked_bytes: int | None = None
    """Those that the client's machine has confirmed over the connection's whole life; None is not known."""


@dataclass(frozen=True, slots=True)
class ExchangeLogged:
    """The ingress hop logged the end of the exchange."""

    cause: LogCause
    detail: str


@dataclass(frozen=True, slots=True)
class RequestAdmitted:
    """What the request waited for has come: it has a slot."""


@dataclass(frozen=True, slots=True)
class RequestShed:
    """The request is to wait no longer. `code` is the contract's."""

    code: str
    retry_after_s: int


@dataclass(frozen=True, slots=True)
class RequestMoved:
    """The request, which waits, has a slot of another pool. `RequestAdmitted` follows."""

    pool: PoolName
    facts: RequestFacts
    degraded: tuple[RungName, ...]
    """All that has been given up of it by now."""
    changed_body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class AnsweredHere:
    """The request, which waits, gets a fixed answer of the gateway's instead of a model's."""

    content_type: str
    data: bytes = field(repr=False)
    degraded: tuple[RungName, ...]
    code: str
    """What it would have been refused with."""
    settled: bool
    """Whether its operation is done with: somebody has taken it over. Else it was not, and may run again."""
    job: Job | None = None
    """What it has become, which runs under another id; then `data` says nothing."""


@dataclass(frozen=True, slots=True)
class DrainExpired:
    """The sidecar is stopping and the time for in-flight streams is used up."""


@dataclass(frozen=True, slots=True)
class JournalFailed:
    """The records of an earlier step could not be written; its replies were not sent."""


@dataclass(frozen=True, slots=True)
class RecordingLost:
    """The exchange goes on although not all of it can be recorded: the policy allows that for its class."""


@dataclass(frozen=True, slots=True)
class OwnershipLost:
    """The operation is another gateway's, or may be so at any moment."""

    refused: bool = False
    """Learnt from the records of an earlier step, which were not written; its replies were not sent."""


@dataclass(frozen=True, slots=True)
class BeginRefused:
    """Nothing has begun: another gateway has begun this operation under the same idempotency key."""

    holder: OperationId


DeliveryEvent = RequestArrived | ResponseStarted | ResponseBody | DeliveryClosed
AttemptEvent = (
    AttemptArrived | AttemptAnswered | AttemptUnanswered | AttemptUnconfirmed | AttemptBody | AttemptClosed
)
Event = (
    DeliveryEvent
    | AttemptEvent
    | AttemptStopped
    | AttemptFenced
    | LedgerRead
    | AttemptProgressed
    | AttemptLogged
    | ExchangeProgressed
    | ExchangeLogged
    | RequestAdmitted
    | RequestShed
    | RequestMoved
    | AnsweredHere
    | DrainExpired
    | JournalFailed
    | RecordingLost
    | OwnershipLost
    | BeginRefused
)
