"""The closed sets of words for how things go and end; low-cardinality, safe as metric labels."""

from enum import StrEnum
from typing import Final


class Phase(StrEnum):
    """How far an operation's answer has come. One that failed stays in the phase in which it did: that it
    failed is its state."""

    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    COMPLETED = "completed"


INFLIGHT_PHASES: Final = (Phase.QUEUED, Phase.PREFILL, Phase.DECODE)
"""The phases an exchange can be in flight in."""


class OperationState(StrEnum):
    """What may be said about an operation as a whole."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    """The client left before the end, or stopped reading."""


class Ending(StrEnum):
    """How an exchange ended, as far as the evidence goes."""

    FINISHED = "finished"
    """The client was given one whole answer (a replica's 4xx counts: it is the client's own answer)."""
    CLIENT_GONE = "client_gone"
    """The client left, or took nothing for so long that it was ended (`Reason.CLIENT_STALLED`)."""
    UPSTREAM_BROKE = "upstream_broke"
    """No whole answer: a replica or the way to it failed, before or after the first delta."""
    REFUSED = "refused"
    """The gateway itself said no before any replica was asked."""
    UNKNOWN = "unknown"
    """The evidence does not say; never read as success."""


class Reason(StrEnum):
    """Why an answer was not finished; the `reason` of client errors and journal entries."""

    REPLICA_DIED = "replica_died"
    NETWORK_PARTITION = "network_partition"
    ENGINE_ERROR = "engine_error"
    TRUNCATED = "truncated"
    DEADLINE = "deadline"
    CLIENT_STALLED = "client_stalled"
    DRAIN_DEADLINE = "drain_deadline"
    TAKEN_OVER = "taken_over"
    """Another gateway found this one gone and has taken its operation over."""


class AttemptOutcome(StrEnum):
    """How one attempt ended."""

    COMPLETED = "completed"
    """The replica sent a whole answer."""
    REPLICA_DIED = "replica_died"
    """Its connection was refused, closed or reset by the replica's host."""
    NETWORK_PARTITION = "network_partition"
    """Its connection timed out or became unreachable: liveness is not known."""
    ENGINE_ERROR = "engine_error"
    """The replica answered that it failed (HTTP 5xx, or an error event)."""
    OVERLOADED = "overloaded"
    """The replica answered that it is busy or still loading (429, 503, an overload event)."""
    CLIENT_ERROR = "client_error"
    """The replica refused the request as the client's own mistake (4xx, validation)."""
    TRUNCATED = "truncated"
    """An orderly end without the API's terminal mark."""
    CANCELLED = "cancelled"
    """Ended by us: the client left, a deadline passed, or the sidecar drained."""
    MISROUTED = "misrouted"
    """Answered by a replica that may not answer; nothing of it was released."""
    NO_REPLICA = "no_replica"
    """Envoy had no endpoint to try."""
    REFUSED = "refused"
    """The attempt gate refused to start it."""
    UNKNOWN = "unknown"


class Fault(StrEnum):
    """Whose fault an error answer of a replica is."""

    ENGINE_OVERLOADED = "engine_overloaded"
    ENGINE_FAILED = "engine_failed"
    CLIENT = "client"


class RungName(StrEnum):
    """The rungs of a ladder, by which a request was stepped down before it was refused (`ladder`)."""

    SHORTEN_GENERATION = "shorten_generation"
    SHORTEN_CONTEXT = "shorten_context"
    POOL = "pool"
    JOB = "job"
    """It runs later, and its client comes back for the answer."""
    TEMPLATE = "template"
    HAND_OFF = "hand_off"
    REFUSE = "refuse"
    """Never told as a rung: a refusal has its code."""
