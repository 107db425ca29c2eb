"""What the end of an attempt says of its replica, for the replica's circuit: closed words.

Only what the replica itself, or the way to it, has failed in is a failure. Never one: a validation error,
a client that left or stopped reading, our own deadline on a slow replica, a stop of the gateway, an
attempt that no replica was asked for. Nor is *overload* (429, 503): slow or full is not dead, and who takes
a full replica out sends its work to the next one until that is full too. It costs weight and the place in
the line of replays (`own_failures`), and nothing here.

A failure has a *blame*. Engines answer 500 to some mistakes of clients
(https://github.com/vllm-project/vllm/issues/35438), and a prompt can be one that no engine survives. What
became of the same request at another replica tells the two apart. A connection that was not made, and one
that went silent, cannot be the request's fault.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from envoy_ext.domain.events import LogCause
from envoy_ext.domain.outcomes import AttemptOutcome


class FailureClass(StrEnum):
    """How a replica failed an attempt."""

    CONNECT = "connect"
    """No connection was made: refused, or not in time."""
    RESET = "reset"
    """The connection was lost before the answer's end."""
    ENGINE_ERROR = "engine_error"
    """5xx, an error event, an abort, or an answer that is cut short in good order."""
    SILENCE = "silence"
    """The connection timed out: nobody said that it is gone."""


class Blame(StrEnum):
    """Whose fault a failure is."""

    REPLICA = "replica"
    """Another replica has answered the same request, or it cannot be the request's."""
    REQUEST = "request"
    """The same request failed at another replica too."""
    UNCLEAR = "unclear"
    """It was tried nowhere else."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The replica answered, or had begun to when nobody waited any more."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The replica failed."""

    kind: FailureClass
    blame: Blame = Blame.UNCLEAR


Evidence = Answered | Failed

ANSWERED: Final = Answered()
MAY_BE_THE_REQUEST: Final = frozenset({FailureClass.RESET, FailureClass.ENGINE_ERROR})
"""Classes in which a request can be to blame."""

_NOT_MADE: Final = frozenset({LogCause.CONNECT_REFUSED, LogCause.UNREACHABLE})
_FAILURES: Final[dict[AttemptOutcome, FailureClass]] = {
    AttemptOutcome.REPLICA_DIED: FailureClass.RESET,
    AttemptOutcome.NETWORK_PARTITION: FailureClass.SILENCE,
    AttemptOutcome.ENGINE_ERROR: FailureClass.ENGINE_ERROR,
    AttemptOutcome.TRUNCATED: FailureClass.ENGINE_ERROR,
}
_SAYS_NOTHING_BAD: Final = frozenset(
    {AttemptOutcome.COMPLETED, AttemptOutcome.CANCELLED, AttemptOutcome.UNKNOWN}
)


def read_evidence(
    outcome: AttemptOutcome, cause: LogCause | None, *, answered: bool, computes: bool = True
) -> Evidence | None:
    """What an attempt's end says; None for nothing.

    `cause` is Envoy's own word on the end, where there is one. `answered`: part of an answer had come, and
    it was no refusal. `computes`: a model had to compute something for it; the list of models, and a path
    that nobody knows, show no more than a server.
    """
    kind = _FAILURES.get(outcome)
    if kind is None:
        return ANSWERED if answered and computes and outcome in _SAYS_NOTHING_BAD else None
    if kind is FailureClass.ENGINE_ERROR:
        return Failed(kind) if computes else None
    if cause in _NOT_MADE:
        kind = FailureClass.CONNECT
    return Failed(kind, Blame.UNCLEAR if kind in MAY_BE_THE_REQUEST else Blame.REPLICA)
