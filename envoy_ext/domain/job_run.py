"""What becomes of a job after a run of it: one decision, from values that can be printed.

A job has no client that a part of its answer could have reached, so a run that broke after its first delta
may be made again as one that broke before it. All else that forbids a replay forbids it here too: tool calls,
the number of attempts, the price of the prompt, an attempt that may still act.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from envoy_ext.domain.job import Job, JobEnd, JobState, is_expired
from envoy_ext.domain.operation import AttemptView, Operation
from envoy_ext.domain.outcomes import AttemptOutcome, Ending
from envoy_ext.domain.ownership import FIRST_TOKEN
from envoy_ext.domain.retry import LIVENESS_UNKNOWN, FailoverPolicy
from envoy_ext.domain.tool_verdict import Obstacle

PASSING: Final = frozenset(
    {
        None,
        "upstream_unavailable",
        "upstream_decode_interrupted",
        "retry_budget_exhausted",
        "no_ready_replica",
        "queue_full",
        "queue_deadline_exceeded",
        "deadline_exceeded",
        "draining",
    }
)
"""The codes of runs that may end otherwise at another moment; None: nobody knows how it ended. A run's own
deadline is not the job's: it is looked at for itself."""


_BUSY: Final = frozenset({429})
"""Statuses of an answer that is no answer: the engine would rather be asked another time."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The job has ended."""

    end: JobEnd


@dataclass(frozen=True, slots=True)
class RunAgain:
    """The job goes back into the queue."""

    not_before: float
    """Unix seconds: until then an attempt of its last run may still act."""


@dataclass(frozen=True, slots=True)
class AwaitRun:
    """Its run has begun and not ended: its owner, or recovery after its owner, ends it first."""

    operation: Operation


AfterRun = Finish | RunAgain | AwaitRun


def decide_after_run(
    job: Job,
    runs: Sequence[Operation],
    answer_kept: bool,
    obstacle: Obstacle | None,
    policy: FailoverPolicy,
    now: float,
    *,
    side_effects: bool = False,
) -> AfterRun:
    """What a running job's owner does with it once no request of its newest run is on its way any more.

    `runs`: those operations of its runs that have begun. `answer_kept`: whether the newest run's answer is.
    `obstacle`: what its ledger says. `side_effects`: whether the class says that it acts on the world without
    calling a tool. `now`: unix seconds.
    """
    newest = next((run for run in runs if run.operation_id == job.run_id), None)
    if newest is not None and newest.ending is None:
        return AwaitRun(newest)
    if newest is not None and newest.ending is Ending.FINISHED and newest.status not in _BUSY:
        return Finish(_end_answered(newest, answer_kept, now))
    if job.cancel_requested_at is not None:
        return Finish(JobEnd(JobState.CANCELLED, now))
    if is_expired(job, now):
        return Finish(JobEnd(JobState.EXPIRED, now, "deadline_exceeded"))
    if newest is None:
        return RunAgain(now)
    refusal = _decide_refusal(runs, newest, obstacle, policy, side_effects)
    if refusal is not None:
        call_id = None if obstacle is None else obstacle.call_id
        return Finish(JobEnd(JobState.FAILED, now, refusal, tool_call_id=call_id))
    fenced_at = _read_fence(newest, policy)
    return RunAgain(max(now, fenced_at))


def count_attempts(runs: Sequence[Operation]) -> int:
    """How many attempts of these runs may have reached a replica.

    Where Envoy had none to try, as after a start of both, none did: no client waits, so that is not held
    against the job.
    """
    return sum(
        attempt.started_at is not None and attempt.outcome is not AttemptOutcome.NO_REPLICA
        for run in runs
        for attempt in run.attempts
    )


def _end_answered(run: Operation, answer_kept: bool, now: float) -> JobEnd:
    if not answer_kept:
        return JobEnd(JobState.FAILED, now, "operation_complete")
    # What a replica answers to a request that it takes for wrong is the client's answer too.
    failed = run.status is not None and run.status >= 400
    return JobEnd(JobState.FAILED if failed else JobState.SUCCEEDED, now, status=run.status)


def _decide_refusal(
    runs: Sequence[Operation],
    newest: Operation,
    obstacle: Obstacle | None,
    policy: FailoverPolicy,
    side_effects: bool,
) -> str | None:
    """The code that ends a job whose newest run gave no answer; None where it may run again."""
    if newest.error_code not in PASSING:
        return newest.error_code
    if obstacle is not None:
        return obstacle.refusal.code
    started = count_attempts(runs)
    if started == 0:
        return None  # no replica was asked: nothing has been tried, or spent
    if side_effects or newest.prompt_tokens_estimate > policy.max_replay_prompt_tokens:
        return "replay_not_allowed"
    if not policy.replay or started >= policy.max_attempts:
        return newest.error_code or "upstream_unavailable"
    return None


def _read_fence(run: Operation, policy: FailoverPolicy) -> float:
    """From when on no attempt of a run that has ended acts any more."""
    assert run.ended_at is not None
    if run.ending is Ending.UNKNOWN and run.token > FIRST_TOKEN:
        return run.ended_at  # ended by recovery, which has waited for that
    open_ended = any(_may_still_act(attempt) for attempt in run.attempts)
    return run.ended_at + policy.fence_s if open_ended else run.ended_at


def _may_still_act(attempt: AttemptView) -> bool:
    """Of one that was broken off by the gateway nobody says when its engine has noticed."""
    unknown = attempt.outcome in LIVENESS_UNKNOWN or attempt.outcome is AttemptOutcome.CANCELLED
    return attempt.started_at is not None and unknown
