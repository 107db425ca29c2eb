"""One try at one replica: gate, hold, release.

    GATED ── start ──> STARTED ── answer ──> HOLDING ── first delta / end ──> RELEASED
      │                ↑  │                     ├── failed, may be repeated ──> FAILED_OVER
      ├─ check ─> CHECKING│ lose                └── failed for good ──────────> WITHHELD
      │ refuse      │     └──> LOST
      └──> REFUSED <┘ refuse

CHECKING: its start is recorded, so earlier attempts can begin no call of a tool any more, and it is looked
up what they began. LOST: Envoy answered in the replica's place, or the replica's machine answers nothing.
FAILED_OVER: the ingress hop replays. WITHHELD and REFUSED: the client gets our error.

The machine knows nothing of other attempts; whether a replay is allowed is its exchange's
question. Two kinds of evidence end an attempt, in any order: its stream's end and its log entry.
The outcome is set once, by whoever knows it first and best: our own decision about an answer we
read, then the log.
"""

from dataclasses import dataclass
from enum import StrEnum

from envoy_ext.domain.api import ApiFamily
from envoy_ext.domain.errors import ImpossibleEvent
from envoy_ext.domain.events import AttemptAnswered, AttemptBody, AttemptLogged, LogCause, Target
from envoy_ext.domain.ids import AttemptId, ReplicaId
from envoy_ext.domain.inspection import (
    MAX_HELD_BYTES,
    BodyKind,
    Inspector,
    Verdict,
    choose_body_kind,
)
from envoy_ext.domain.lease import Lease
from envoy_ext.domain.outcomes import AttemptOutcome, Fault


class AttemptState(StrEnum):
    """Where an attempt stands with its filter."""

    GATED = "gated"
    CHECKING = "checking"
    STARTED = "started"
    HOLDING = "holding"
    RELEASED = "released"
    FAILED_OVER = "failed_over"
    WITHHELD = "withheld"
    REFUSED = "refused"
    LOST = "lost"


class Trigger(StrEnum):
    """What moves an attempt from state to state."""

    CHECK = "check"
    START = "start"
    REFUSE = "refuse"
    ANSWER = "answer"
    RELEASE = "release"
    FAIL_OVER = "fail_over"
    WITHHOLD = "withhold"
    LOSE = "lose"


_S, _T = AttemptState, Trigger
TRANSITIONS: dict[AttemptState, dict[Trigger, AttemptState]] = {
    _S.GATED: {_T.START: _S.STARTED, _T.CHECK: _S.CHECKING, _T.REFUSE: _S.REFUSED},
    _S.CHECKING: {_T.START: _S.STARTED, _T.REFUSE: _S.REFUSED},
    _S.STARTED: {_T.ANSWER: _S.HOLDING, _T.LOSE: _S.LOST},
    _S.HOLDING: {_T.RELEASE: _S.RELEASED, _T.FAIL_OVER: _S.FAILED_OVER, _T.WITHHOLD: _S.WITHHELD},
    _S.RELEASED: {},
    _S.FAILED_OVER: {},
    _S.WITHHELD: {},
    _S.REFUSED: {},
    _S.LOST: {},
}


_OPEN = frozenset({_S.GATED, _S.CHECKING, _S.STARTED, _S.HOLDING})


class Judgement(StrEnum):
    """What the held part of an answer is worth."""

    KEEP_HOLDING = "keep_holding"
    COMMIT = "commit"
    """Release it: it holds a first delta, or a whole answer, or as much as can be held."""
    PASS_ERROR = "pass_error"
    """Release it: the replica's own refusal of the client's mistake."""
    FAILED = "failed"
    """The engine's fault: replay it elsewhere or withhold it."""


@dataclass(slots=True)
class Attempt:
    """One attempt's state; changed only by its exchange."""

    id: AttemptId
    number: int
    family: ApiFamily
    choices: int
    max_event_bytes: int
    state: AttemptState = AttemptState.GATED
    arrived_at: float = 0.0
    recorded_at: float | None = None
    """When the record of its start was written: before it is let go."""
    started_at: float | None = None
    """When it was let go."""
    first_byte_at: float | None = None
    heard_at: float | None = None
    """When it was started, or something of its held answer came last."""
    target: Target | None = None
    repeats_after: AttemptOutcome | None = None
    """How the attempt ended that it follows; None for a first one."""
    replica: ReplicaId | None = None
    address: str = ""
    """The `ip:port` that it went to, by Envoy's word on its end."""
    outcome: AttemptOutcome | None = None
    cause: LogCause | None = None
    """Envoy's first word on its end."""
    detail: str = ""
    log: AttemptLogged | None = None
    left_bytes: int = 0
    """Of its answer, from the egress hop towards the client, as far as Envoy has told."""
    stream_closed: bool = False
    end_recorded: bool = False
    status: int = 0
    kind: BodyKind = BodyKind.OPAQUE
    inspector: Inspector | None = None
    headers_only: bool = False
    lease: Lease | None = None
    """Granted at its start."""

    def move(self, trigger: Trigger) -> None:
        """Follow the table; an impossible move is a bug of ours."""
        try:
            self.state = TRANSITIONS[self.state][trigger]
        except KeyError:
            raise ImpossibleEvent(f"attempt {self.number} is {self.state} and cannot {trigger}") from None
        if self.state not in _OPEN:
            self.inspector = None  # what more there is of its answer is the delivery's to read

    @property
    def open(self) -> bool:
        """Whether its filter still waits for a word from us."""
        return self.state in _OPEN

    @property
    def holding(self) -> bool:
        """Whether its answer is held."""
        return self.state is AttemptState.HOLDING

    @property
    def over(self) -> bool:
        """Whether its filter has gone or its hop has logged its end: no word of ours can reach it."""
        return self.stream_closed or self.log is not None

    @property
    def settled(self) -> bool:
        """Whether all evidence of its end is in. An attempt that was not started is logged without its id."""
        if self.started_at is None:
            return self.stream_closed or not self.open
        return self.log is not None and (self.stream_closed or not self.open)

    def judge_answer(self, answer: AttemptAnswered) -> Judgement:
        """Take in the response headers and judge them."""
        self.status = answer.status
        self.headers_only = answer.end
        if answer.replica is not None:
            self.replica = answer.replica
        failure = read_status_failure(answer.status)
        if failure is not None:
            self.outcome = failure
            return Judgement.FAILED
        if answer.status >= 400:
            self.outcome = AttemptOutcome.CLIENT_ERROR
            return Judgement.PASS_ERROR
        self.kind = choose_body_kind(self.family, answer.content_type, answer.content_encoding)
        self.inspector = Inspector(self.family, self.kind, self.max_event_bytes, choices=self.choices)
        if not answer.end:
            return Judgement.KEEP_HOLDING
        if self.kind in (BodyKind.SSE, BodyKind.NDJSON) or answer.status == 200:
            return self._judge_end(self.inspector)
        return Judgement.COMMIT  # 204 and 3xx have no body, and say so

    def judge_body(self, body: AttemptBody) -> Judgement:
        """Take in held bytes and judge all that was held so far."""
        inspector = self.inspector
        if inspector is None:
            raise ImpossibleEvent("body before headers")
        inspector.feed(body.data)
        error = inspector.error
        if error is not None and inspector.error_before_delta:
            if error.fault is Fault.CLIENT:
                self.outcome = AttemptOutcome.CLIENT_ERROR
                return Judgement.PASS_ERROR
            overloaded = error.fault is Fault.ENGINE_OVERLOADED
            self.outcome = AttemptOutcome.OVERLOADED if overloaded else AttemptOutcome.ENGINE_ERROR
            self.detail = f"error event {error.type} {error.code}".rstrip()
            return Judgement.FAILED
        if inspector.first_delta_seen or inspector.received > MAX_HELD_BYTES:
            return Judgement.COMMIT
        if not (body.end or inspector.done_marker):
            return Judgement.KEEP_HOLDING
        return self._judge_end(inspector)

    def _judge_end(self, inspector: Inspector) -> Judgement:
        verdict = inspector.verdict_at_eof()
        if verdict in (Verdict.COMPLETE, Verdict.UNKNOWN):
            return Judgement.COMMIT
        # An orderly end with nothing to read and no terminal mark: nothing was lost by holding it.
        aborted = verdict is Verdict.ABORTED
        self.outcome = AttemptOutcome.ENGINE_ERROR if aborted else AttemptOutcome.TRUNCATED
        self.detail = f"ended {verdict} before the first delta"
        return Judgement.FAILED

    def note_log(self, log: AttemptLogged) -> None:
        """Take in the log entry."""
        self.log = log
        self.cause = self.cause or log.cause
        self.left_bytes = log.body_bytes
        if self.replica is None:
            self.replica = log.replica
        self.address = self.address or log.address
        if not self.detail:
            self.detail = log.detail


PASSED_5XX = frozenset({501, 505})
"""Not implemented and HTTP version: they say something about the request, not about the replica."""


def read_status_failure(status: int) -> AttemptOutcome | None:
    """Whether an HTTP status is a failure of the replica, and which.

    429 and 503 are how vLLM, SGLang, TGI and llama.cpp say busy or loading; the other 5xx are
    engine failures. What 4xx says is the client's own.
    """
    if status in (429, 503):
        return AttemptOutcome.OVERLOADED
    if status < 200:
        return AttemptOutcome.ENGINE_ERROR  # 101: nobody asks a replica to switch protocols
    if status >= 500 and status not in PASSED_5XX:
        return AttemptOutcome.ENGINE_ERROR
    return None
