"""How an exchange ended, resolved from evidence that may come in any order, twice or never.

`Evidence` only ever grows: each field is set once and never taken back, so the same set of facts
gives equal evidence, and `resolve` is a function of that object alone. It answers None while
facts that could still change the answer may be on their way; `resolve_at_deadline` turns silence
into `unknown`.
"""

from dataclasses import dataclass

from envoy_ext.domain.events import LogCause
from envoy_ext.domain.inspection import Verdict
from envoy_ext.domain.outcomes import AttemptOutcome, Ending, OperationState, Phase, Reason

BROKE = frozenset(
    {
        LogCause.UPSTREAM_RESET,
        LogCause.UPSTREAM_TIMEOUT,
        LogCause.CONNECT_REFUSED,
        LogCause.UNREACHABLE,
    }
)
"""Log causes that say the replica's side of an attempt failed."""


@dataclass(slots=True)
class Evidence:
    """What is known of the end. `None` and `False` mean "no word yet", never "no"."""

    refused: bool = False
    """The gateway answered by itself, and no replica had been asked."""
    failed: bool = False
    """The gateway answered by itself, after the replicas it asked had failed."""
    interrupted: Reason | None = None
    """Why the gateway ended the exchange by itself; alone, it means in mid-answer."""
    passed_end: Verdict | None = None
    """The replica's own end was passed to the client; this is what it was worth."""
    last_word: Verdict | None = None
    """What the replica's last word was worth, when it was passed without the end of the body."""
    client_error: bool = False
    """The replica refused the request as the client's mistake, and that answer was passed."""
    asked: bool = False
    """A replica was asked: an attempt was started."""
    released: bool = False
    """An attempt was released: the first downstream write is behind us."""
    closed: bool = False
    """The delivery stream is over."""
    attempt_cause: LogCause | None = None
    """The attempt log's word on the released attempt, or on the last one when none was released."""
    exchange_cause: LogCause | None = None
    """The exchange log's word."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """An ending and, when it was not a whole answer, why."""

    ending: Ending
    reason: Reason | None = None


def resolve(evidence: Evidence) -> Resolution | None:
    """The ending, None while it is open. The rules are in order of weight; the first that fits decides."""
    certain = _resolve_certain(evidence)
    if certain is not None:
        return certain
    if not evidence.closed:
        return None
    if evidence.released:
        # A replica that broke before its client left is the first cause; Envoy logs an attempt
        # that was dropped because the client left as DOWNSTREAM_GONE, never as broken.
        if evidence.attempt_cause in BROKE:
            return Resolution(Ending.UPSTREAM_BROKE, read_reason(evidence.attempt_cause))
        if evidence.attempt_cause is None:
            return None
    if evidence.exchange_cause is LogCause.DOWNSTREAM_GONE:
        return Resolution(Ending.CLIENT_GONE)
    return None


def resolve_at_deadline(evidence: Evidence) -> Resolution:
    """The ending when no more evidence is waited for."""
    resolution = resolve(evidence)
    if resolution is not None:
        return resolution
    if evidence.released and evidence.attempt_cause in BROKE:
        return Resolution(Ending.UPSTREAM_BROKE, read_reason(evidence.attempt_cause))
    if evidence.closed and LogCause.DOWNSTREAM_GONE in (evidence.exchange_cause, evidence.attempt_cause):
        return Resolution(Ending.CLIENT_GONE)
    return Resolution(Ending.UNKNOWN)


def _resolve_certain(evidence: Evidence) -> Resolution | None:
    """Endings that we brought about or passed on ourselves: no log can change them."""
    if evidence.refused:
        return Resolution(Ending.REFUSED, evidence.interrupted)
    if evidence.failed:
        return Resolution(Ending.UPSTREAM_BROKE, evidence.interrupted)
    if evidence.interrupted is Reason.CLIENT_STALLED:
        return Resolution(Ending.CLIENT_GONE, evidence.interrupted)
    if evidence.interrupted is not None:
        return Resolution(Ending.UPSTREAM_BROKE, evidence.interrupted)
    verdict = evidence.passed_end
    if verdict is None and evidence.closed:
        # SDKs close the connection at the terminal mark or at an error, without reading to the end.
        verdict = evidence.last_word
    if verdict is None:
        return None
    return Resolution(Ending.FINISHED) if evidence.client_error else _READ_VERDICT[verdict]


_READ_VERDICT = {
    Verdict.COMPLETE: Resolution(Ending.FINISHED),
    Verdict.TRUNCATED: Resolution(Ending.UPSTREAM_BROKE, Reason.TRUNCATED),
    Verdict.NO_FINISH: Resolution(Ending.UPSTREAM_BROKE, Reason.TRUNCATED),
    Verdict.ABORTED: Resolution(Ending.UPSTREAM_BROKE, Reason.ENGINE_ERROR),
    Verdict.ERRORED: Resolution(Ending.UPSTREAM_BROKE, Reason.ENGINE_ERROR),
    Verdict.UNKNOWN: Resolution(Ending.UNKNOWN),
}


def read_reason(cause: LogCause | None) -> Reason:
    """The client's word for a broken attempt."""
    silent = cause in (LogCause.UPSTREAM_TIMEOUT, LogCause.UNREACHABLE)
    return Reason.NETWORK_PARTITION if silent else Reason.REPLICA_DIED


def read_outcome(cause: LogCause) -> AttemptOutcome:
    """The outcome that a log entry by itself gives an attempt which nothing else was known of."""
    return _OUTCOMES[cause]


_OUTCOMES = {
    LogCause.COMPLETED: AttemptOutcome.COMPLETED,
    LogCause.UPSTREAM_RESET: AttemptOutcome.REPLICA_DIED,
    LogCause.CONNECT_REFUSED: AttemptOutcome.REPLICA_DIED,
    LogCause.UNREACHABLE: AttemptOutcome.NETWORK_PARTITION,
    LogCause.UPSTREAM_TIMEOUT: AttemptOutcome.NETWORK_PARTITION,
    LogCause.NO_UPSTREAM: AttemptOutcome.NO_REPLICA,
    LogCause.DOWNSTREAM_GONE: AttemptOutcome.CANCELLED,
    # An attempt that the gate refused is logged without its id: this one was withheld.
    LogCause.SIDECAR: AttemptOutcome.CANCELLED,
    LogCause.OTHER: AttemptOutcome.UNKNOWN,
}


def read_state(resolution: Resolution, evidence: Evidence) -> tuple[OperationState, Phase]:
    """What the journal says of an operation whose exchange ended like this.

    The phase of an answer that is not whole is the one it had reached.
    """
    if resolution.ending is Ending.FINISHED and not evidence.client_error:
        return OperationState.COMPLETED, Phase.COMPLETED
    reached = Phase.PREFILL if evidence.asked else Phase.QUEUED
    if evidence.released and not evidence.client_error:
        reached = Phase.DECODE
    if resolution.ending is Ending.CLIENT_GONE:
        return OperationState.CANCELLED, reached
    return OperationState.FAILED, reached
