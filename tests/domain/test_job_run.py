"""What becomes of a job after its run: every answer ends it, and another run has what forbids a replay."""

from dataclasses import replace

import pytest

from envoy_ext.domain.ids import AttemptId, FencingToken, OperationId
from envoy_ext.domain.job import JobEnd, JobState
from envoy_ext.domain.job_run import AwaitRun, Finish, RunAgain, decide_after_run
from envoy_ext.domain.operation import AttemptView, Operation
from envoy_ext.domain.outcomes import AttemptOutcome, Ending, OperationState
from envoy_ext.domain.retry import FailoverPolicy, GiveUp
from envoy_ext.domain.tool_calls import CallId
from envoy_ext.domain.tool_verdict import Obstacle
from tests.support.jobs import queued_job
from tests.support.records import START, begun, fold

FIRST, SECOND = OperationId("op_1"), OperationId("op_2")
RUNNING = replace(queued_job(), state=JobState.RUNNING, token=FencingToken(1), run_ids=(FIRST,))
POLICY = FailoverPolicy(max_attempts=2, fence_s=7.0)
ENDED = START + 5
NOW = ENDED + 1


def run(
    *outcomes: AttemptOutcome | None,
    ending: Ending | None = Ending.UPSTREAM_BROKE,
    state: OperationState = OperationState.FAILED,
    status: int | None = None,
    code: str | None = "upstream_unavailable",
    operation_id: OperationId = FIRST,
) -> Operation:
    """One that has ended, with attempts that did so."""
    attempts = tuple(
        AttemptView(AttemptId(f"att_{n}"), n, START, outcome=one) for n, one in enumerate(outcomes, 1)
    )
    return replace(
        fold(begun()),
        operation_id=operation_id,
        attempts=attempts,
        ending=ending,
        state=state,
        status=status,
        error_code=code,
        ended_at=None if ending is None else ENDED,
    )


def decide(
    *runs: Operation, kept: bool = False, obstacle: Obstacle | None = None, **changes: object
) -> object:
    job = replace(RUNNING, run_ids=tuple(one.operation_id for one in runs) or RUNNING.run_ids)
    effects = bool(changes.pop("side_effects", False))
    job = replace(job, **changes)  # type: ignore[arg-type]
    return decide_after_run(job, runs, kept, obstacle, POLICY, NOW, side_effects=effects)


DIED, WHOLE = AttemptOutcome.REPLICA_DIED, AttemptOutcome.COMPLETED
ANSWERED = {"ending": Ending.FINISHED, "state": OperationState.COMPLETED, "status": 200, "code": None}
REFUSED = {"ending": Ending.FINISHED, "status": 400, "code": None}


@pytest.mark.parametrize("changes", [{}, {"cancel_requested_at": START}, {"expires_at": START + 1}])
def test_an_answer_is_an_answer_also_to_who_did_not_want_it_any_more(changes: dict[str, object]) -> None:
    assert decide(run(WHOLE, **ANSWERED), kept=True, **changes) == Finish(  # type: ignore[arg-type]
        JobEnd(JobState.SUCCEEDED, NOW, status=200)
    )


def test_a_replicas_own_refusal_is_the_result_and_no_reason_to_ask_again() -> None:
    refused = run(AttemptOutcome.CLIENT_ERROR, **REFUSED)  # type: ignore[arg-type]
    assert decide(refused, kept=True) == Finish(JobEnd(JobState.FAILED, NOW, status=400))


def test_a_busy_engine_is_asked_another_time() -> None:
    busy = run(AttemptOutcome.OVERLOADED, **{**REFUSED, "status": 429})  # type: ignore[arg-type]
    assert decide(busy, kept=True) == RunAgain(NOW)


def test_an_answer_that_was_too_long_to_be_kept_is_told_as_such() -> None:
    assert decide(run(WHOLE, **ANSWERED)) == Finish(  # type: ignore[arg-type]
        JobEnd(JobState.FAILED, NOW, "operation_complete")
    )


def test_what_has_not_ended_is_waited_for() -> None:
    open_run = run(None, ending=None, state=OperationState.RUNNING)
    assert decide(open_run) == AwaitRun(open_run)


@pytest.mark.parametrize(
    ("outcome", "not_before"),
    [
        (DIED, NOW),
        (AttemptOutcome.TRUNCATED, NOW),
        (AttemptOutcome.CANCELLED, ENDED + 7),
        (AttemptOutcome.NETWORK_PARTITION, ENDED + 7),
        (AttemptOutcome.UNKNOWN, ENDED + 7),
        (None, ENDED + 7),
    ],
)
def test_another_run_waits_until_the_one_before_can_act_no_more(
    outcome: AttemptOutcome | None, not_before: float
) -> None:
    assert decide(run(outcome)) == RunAgain(not_before)


def test_what_recovery_ended_has_been_waited_for() -> None:
    ended = run(AttemptOutcome.UNKNOWN, ending=Ending.UNKNOWN, code=None)
    assert decide(replace(ended, token=FencingToken(2))) == RunAgain(NOW)


@pytest.mark.parametrize(
    ("runs", "options", "code"),
    [
        ((run(DIED, DIED),), {}, "upstream_unavailable"),
        ((run(DIED), run(DIED, operation_id=SECOND)), {}, "upstream_unavailable"),
        ((run(DIED),), {"side_effects": True}, "replay_not_allowed"),
        ((replace(run(DIED), prompt_tokens_estimate=32_001),), {}, "replay_not_allowed"),
        ((run(DIED, code="data_class_forbidden"),), {}, "data_class_forbidden"),
    ],
)
def test_what_forbids_a_replay_ends_the_job(
    runs: tuple[Operation, ...], options: dict[str, object], code: str
) -> None:
    assert decide(*runs, **options) == Finish(JobEnd(JobState.FAILED, NOW, code))


def test_what_no_replica_was_asked_for_costs_no_attempt() -> None:
    shed = run(ending=Ending.REFUSED, code="no_ready_replica")
    assert decide(shed, run(DIED, operation_id=SECOND), side_effects=False) == RunAgain(NOW)
    assert decide(shed, side_effects=True) == RunAgain(NOW)


def test_what_envoy_had_no_replica_for_was_not_tried() -> None:
    nowhere = AttemptOutcome.NO_REPLICA
    assert decide(run(nowhere, nowhere), run(nowhere, operation_id=SECOND)) == RunAgain(NOW)
    assert decide(run(nowhere, DIED)) == RunAgain(NOW)
    assert isinstance(decide(run(nowhere, DIED), run(DIED, operation_id=SECOND)), Finish)


def test_a_tool_that_may_have_acted_ends_the_job_and_is_named() -> None:
    obstacle = Obstacle(GiveUp("tool_outcome_unknown", "…"), CallId("call_1"))
    assert decide(run(DIED), obstacle=obstacle) == Finish(
        JobEnd(JobState.FAILED, NOW, "tool_outcome_unknown", tool_call_id="call_1")
    )


def test_who_does_not_want_it_any_more_or_came_too_late_is_told_so() -> None:
    assert decide(run(DIED), cancel_requested_at=START) == Finish(JobEnd(JobState.CANCELLED, NOW))
    assert decide(run(DIED), expires_at=NOW) == Finish(JobEnd(JobState.EXPIRED, NOW, "deadline_exceeded"))
