"""May another attempt start? One decision, from values that can be printed.

Order of the questions: has anything been delivered, is anybody waiting, is the policy willing, is
there time, is the previous attempt fenced, is it known where it ran, is there another replica of the
same fingerprint. The first "no" decides, and a
replay that is too dear is refused at once rather than after a wait that could not help.
"""

from dataclasses import dataclass

from envoy_ext.domain.events import Target
from envoy_ext.domain.ids import ReplicaId
from envoy_ext.domain.outcomes import AttemptOutcome


@dataclass(frozen=True, slots=True)
class FailoverPolicy:
    """`on_upstream_failure`, reduced to what the core decides with."""

    replay: bool = True
    """False for `before_first_delta.action: fail`."""
    max_attempts: int = 2
    max_replay_prompt_tokens: int = 32_000
    max_replay_delay_s: float = 20.0
    """The longest that a lost attempt may have held up the client when its replay starts."""
    fence_s: float = 7.0
    """How long an attempt whose end is not confirmed may still act: lease time to live plus margin."""
    log_grace_s: float = 1.0
    """How long the access log's word on a lost attempt is waited for before it counts as unconfirmed.

    Envoy writes the entry before it starts the retry back-off, so a second is ample.
    """


@dataclass(frozen=True, slots=True)
class PreviousAttempt:
    """What is known of an earlier attempt of the same exchange."""

    outcome: AttemptOutcome | None
    """None while no evidence of its end has arrived."""
    replica: ReplicaId | None
    fenced_at: float | None = None
    """From when on it surely acts no more, by the lease that its worker holds or by a proof of its end.
    None: no worker has told."""

    @property
    def could_be_anywhere(self) -> bool:
        """Whether it may have run at any replica of the pool."""
        return self.replica is None and self.outcome not in _RAN_NOWHERE


@dataclass(frozen=True, slots=True)
class RetryView:
    """The facts the decision rests on. Times are monotonic seconds."""

    now: float
    committed: bool
    client_waiting: bool
    attempts: tuple[PreviousAttempt, ...]
    prompt_tokens: int
    first_started_at: float
    asked_at: float
    """When the replay was asked for: the earliest sign that the attempt before it is over."""
    deadline: float | None
    candidates: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class Retry:
    """Start an attempt at this replica."""

    target: Target
    reason: AttemptOutcome


@dataclass(frozen=True, slots=True)
class WaitForFence:
    """Ask again when evidence arrives, or at `until` at the latest."""

    until: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No attempt may start. `code` is the contract's error code for the client."""

    code: str
    detail: str


RETRIABLE = frozenset(
    {
        AttemptOutcome.REPLICA_DIED,
        AttemptOutcome.NETWORK_PARTITION,
        AttemptOutcome.ENGINE_ERROR,
        AttemptOutcome.OVERLOADED,
        AttemptOutcome.TRUNCATED,
        AttemptOutcome.MISROUTED,
        AttemptOutcome.NO_REPLICA,
        AttemptOutcome.UNKNOWN,
    }
)
"""Outcomes after which the same computation may give an answer elsewhere."""


_RAN_NOWHERE = frozenset({AttemptOutcome.MISROUTED, AttemptOutcome.NO_REPLICA})
"""Outcomes of attempts that ran at no replica of the pool. Envoy may have no endpoint for the moment in
which the first one of a pool is on its way to it."""

LIVENESS_UNKNOWN = frozenset({None, AttemptOutcome.UNKNOWN, AttemptOutcome.NETWORK_PARTITION})
"""Outcomes after which the replica may still compute."""

Decision = Retry | WaitForFence | GiveUp


def decide_retry(view: RetryView, policy: FailoverPolicy) -> Decision:
    """Whether, when and where the next attempt may start."""
    refusal = _decide_refusal(view, policy)
    if refusal is not None:
        return refusal
    fence_at = _fence_at(view, policy)
    if fence_at > view.now:
        dear = _too_late(view, policy, fence_at)
        return dear if dear is not None else WaitForFence(fence_at)
    if any(attempt.could_be_anywhere for attempt in view.attempts):
        return GiveUp("upstream_unavailable", "nobody has told where an earlier attempt ran")
    tried = {attempt.replica for attempt in view.attempts}
    target = next((target for target in view.candidates if target.replica not in tried), None)
    if target is None:
        return GiveUp(
            "upstream_unavailable", "no ready replica of its fingerprint is left that was not tried"
        )
    return Retry(target, view.attempts[-1].outcome or AttemptOutcome.UNKNOWN)


def _decide_refusal(view: RetryView, policy: FailoverPolicy) -> GiveUp | None:
    if view.committed:
        return GiveUp("replay_not_allowed", "part of an answer was delivered")
    if not view.client_waiting:
        return GiveUp("upstream_unavailable", "the client has gone")
    if not policy.replay or len(view.attempts) >= policy.max_attempts:
        return GiveUp("upstream_unavailable", "no more attempts are allowed")
    if not view.attempts:
        return GiveUp("upstream_unavailable", "no attempt was started")
    last = view.attempts[-1].outcome
    if last is not None and last not in RETRIABLE:
        return GiveUp("upstream_unavailable", f"nothing to gain after {last}")
    if view.prompt_tokens > policy.max_replay_prompt_tokens:
        return GiveUp("replay_not_allowed", "the prompt is too long to compute again")
    return _too_late(view, policy, view.now)


def _too_late(view: RetryView, policy: FailoverPolicy, start_at: float) -> GiveUp | None:
    if view.deadline is not None and start_at >= view.deadline:
        return GiveUp("deadline_exceeded", "the request's deadline comes first")
    if start_at - view.first_started_at > policy.max_replay_delay_s:
        return GiveUp("replay_not_allowed", "the replay would start too late")
    return None


def _fence_at(view: RetryView, policy: FailoverPolicy) -> float:
    """When every earlier attempt is surely over.

    An attempt whose end is confirmed is fenced already. One without evidence is given
    `log_grace_s` for its log entry; after that its liveness counts as not known, and only the
    expiry of the time it may act fences it.
    """
    return max((view.now, *(_attempt_fence_at(attempt, view, policy) for attempt in view.attempts)))


def _attempt_fence_at(attempt: PreviousAttempt, view: RetryView, policy: FailoverPolicy) -> float:
    if attempt.fenced_at is not None:
        # Its worker speaks for it: whatever became of the connection, the attempt ends when the worker says.
        fenced_at = attempt.fenced_at
    elif attempt.outcome in LIVENESS_UNKNOWN:
        fenced_at = view.asked_at + policy.fence_s
    else:
        return view.now
    log_due = view.asked_at + policy.log_grace_s
    if attempt.outcome is None and view.now < log_due:
        return min(fenced_at, log_due)
    return fenced_at
