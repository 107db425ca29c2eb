"""The sidecar's log: what is set up once, and what the core's notes become.

One line for each exchange, at its end, with ids and its ending. Besides it only what an operator
may have to act on. Never a body, a credential or a header's value; ids are the exception.
"""

import logging
import sys
from typing import Final, TextIO, assert_never

from envoy_ext.domain.boundaries import FORBIDDEN
from envoy_ext.domain.notes import (
    AnswerReplayed,
    AttemptFinished,
    AttemptLetGo,
    AttemptPlaced,
    AttemptProved,
    BoundaryHeld,
    ExchangeEnded,
    FenceAwaited,
    FenceReached,
    FirstDelta,
    HandOffFailed,
    JobEnded,
    JobSubmitted,
    LedgerAwaited,
    MalformedEvents,
    Note,
    PhaseChanged,
    ReplayRefused,
    ReplayStarted,
    RequestDegraded,
    RequestRefused,
    SlotGiven,
    StoreBack,
    StoreLost,
    StreamInterrupted,
    ToolCallDecided,
    ToolCallEnded,
    WentUnrecorded,
)
from envoy_ext.domain.outcomes import AttemptOutcome
from envoy_ext.domain.tool_calls import CallState
from envoy_ext.domain.tool_errors import CallOutcome
from envoy_ext.observability.log_format import JsonFormatter
from envoy_ext.observability.log_writer import LineWriter

LEVELS: Final = ("debug", "info", "warning", "error")

_OWN: Final = "envoy_ext"
_REPLICA_FAULTS: Final = frozenset(
    {
        AttemptOutcome.REPLICA_DIED,
        AttemptOutcome.NETWORK_PARTITION,
        AttemptOutcome.ENGINE_ERROR,
        AttemptOutcome.TRUNCATED,
        AttemptOutcome.MISROUTED,
        AttemptOutcome.NO_REPLICA,
        AttemptOutcome.UNKNOWN,
    }
)
"""Outcomes that somebody should look into; the others are how clients and busy engines behave."""

_COUNTED_CALLS: Final = frozenset({CallOutcome.GRANTED, CallOutcome.UNWATCHED, CallOutcome.PASSED})
"""Nothing but the everyday: the operation lists its calls."""


def configure_logging(level: str = "info", stream: TextIO | None = None) -> LineWriter:
    """Send every logger's records to `stream` (stderr) as JSON lines; the returned handler's `close`
    writes what waits. `level` is for our own loggers: libraries speak from `warning` on.

    Raises:
        ValueError: `level` is not one of `LEVELS`.
    """
    if level not in LEVELS:
        raise ValueError(f"the log level must be one of {', '.join(LEVELS)}")
    root = logging.getLogger()
    for earlier in [handler for handler in root.handlers if isinstance(handler, LineWriter)]:
        root.removeHandler(earlier)
        earlier.close()
    writer = LineWriter(stream if stream is not None else sys.stderr)
    writer.setFormatter(JsonFormatter())
    root.addHandler(writer)
    root.setLevel(logging.ERROR if level == "error" else logging.WARNING)
    logging.getLogger(_OWN).setLevel(level.upper())
    return writer


class LoggingObserver:
    """`ports.Observer` that writes log lines."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._log = logging.getLogger(_OWN) if logger is None else logger

    def note(self, note: Note) -> None:
        """Log one note of the core, if it is one that the log is for."""
        match note:
            case ExchangeEnded():
                self._log_exchange(note)
            case AttemptFinished():
                self._log_attempt(note)
            case ReplayStarted():
                self._log_event(
                    logging.INFO,
                    "replay_started",
                    pool=note.pool,
                    replica=note.replica,
                    reason=note.reason,
                )
            case PhaseChanged() | FirstDelta() | MalformedEvents():
                pass  # counted only: one line for each exchange is enough
            case AttemptLetGo() | AttemptPlaced() | AttemptProved():
                pass  # counted only: one line for each exchange is enough
            case AnswerReplayed():
                self._log_event(
                    logging.INFO,
                    "answer_replayed",
                    operation_id=note.operation_id,
                    request_id=note.request_id,
                    pool=note.pool,
                )
            case JobSubmitted():
                self._log_event(
                    logging.INFO,
                    "job_submitted",
                    job_id=note.job_id,
                    request_id=note.request_id,
                    pool=note.pool,
                    by="ladder" if note.rung else "client",
                )
            case JobEnded():
                self._log_event(
                    logging.INFO,
                    "job_ended",
                    job_id=note.job_id,
                    request_id=note.request_id,
                    pool=note.pool,
                    state=note.state,
                    code=note.code,
                    runs=note.runs,
                )
            case RequestRefused() | SlotGiven() | RequestDegraded():
                pass  # counted only: one line for each exchange is enough
            case FenceAwaited() | FenceReached() | LedgerAwaited():
                pass  # counted only; the replay's line follows
            case HandOffFailed():
                self._log_event(
                    logging.WARNING, "hand_off_failed", operation_id=note.operation_id, pool=note.pool
                )
            case BoundaryHeld():
                self._log_event(
                    logging.WARNING,
                    FORBIDDEN,
                    operation_id=note.operation_id,
                    request_id=note.request_id,
                    pool=note.pool,
                    data_class=note.data_class,
                )
            case ReplayRefused():
                self._log_event(
                    logging.INFO,
                    "replay_refused",
                    operation_id=note.operation_id,
                    pool=note.pool,
                    code=note.code,
                    why=note.detail,
                )
            case StoreLost():
                self._log_event(logging.ERROR, "store_lost", why=note.why)
            case StoreBack():
                self._log_event(logging.WARNING, "store_back", seconds=round(note.seconds, 3))
            case WentUnrecorded():
                pass  # the exchange's own line says it, with ids
            case ToolCallDecided():
                self._log_call(note)
            case ToolCallEnded():
                self._log_call_end(note)
            case StreamInterrupted():
                pass  # the exchange's own line says it, with ids
            case _:
                assert_never(note)

    def note_bug(self, where: str, error: BaseException) -> None:
        """Log an exception that should not be, with its traceback."""
        exc_info = (type(error), error, error.__traceback__)
        self._log.error("bug", exc_info=exc_info, extra={"where": where})

    def note_journal(self, seconds: float, failed: bool) -> None:
        """Counted only: a store that is down is told once, and not for each request."""

    def _log_exchange(self, note: ExchangeEnded) -> None:
        unrecorded = {} if note.recorded else {"recorded": False}
        self._log_event(
            logging.INFO,
            "exchange_ended",
            operation_id=note.operation_id,
            request_id=note.request_id,
            pool=note.pool,
            ending=note.ending,
            reason=note.reason,
            code=note.code,
            attempts=note.attempts,
            delivered_deltas=note.delivered_deltas,
            duration_s=round(note.duration_s, 6),
            **unrecorded,
            **({"degraded": ",".join(note.degraded)} if note.degraded else {}),
        )

    def _log_attempt(self, note: AttemptFinished) -> None:
        if note.outcome is AttemptOutcome.COMPLETED:
            return
        self._log_event(
            logging.WARNING if note.outcome in _REPLICA_FAULTS else logging.INFO,
            "attempt_failed",
            operation_id=note.operation_id,
            attempt_id=note.attempt_id,
            pool=note.pool,
            replica=note.replica,
            outcome=note.outcome,
            detail=note.detail,
        )

    def _log_call(self, note: ToolCallDecided) -> None:
        if note.outcome in _COUNTED_CALLS:
            return
        answered = note.outcome is CallOutcome.ANSWERED
        self._log_event(
            logging.INFO,
            "tool_call_replayed" if answered else "tool_call_refused",
            tool=note.tool,
            outcome=note.outcome,
            operation_id=note.operation_id,
            attempt_id=note.attempt_id,
            call_id=note.call_id,
        )

    def _log_call_end(self, note: ToolCallEnded) -> None:
        if note.recorded and note.state is not CallState.UNKNOWN:
            return
        self._log_event(
            logging.WARNING,
            "tool_call_outcome_unknown" if note.recorded else "tool_call_not_recorded",
            tool=note.tool,
            state=note.state,
            operation_id=note.operation_id,
            call_id=note.call_id,
        )

    def _log_event(self, level: int, event: str, **fields: str | int | float | None) -> None:
        self._log.log(level, event, extra=fields)
