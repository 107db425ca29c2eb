"""Each decision about a job, in every state that it can be in."""

from dataclasses import replace

import pytest

from envoy_ext.domain.errors import ImpossibleEvent, NotOwner, RunNotOver
from envoy_ext.domain.ids import FencingToken, OperationId, PoolName, SeatId
from envoy_ext.domain.job import (
    ENDED,
    UNFINISHED,
    Job,
    JobBounds,
    JobCounts,
    JobEnd,
    JobsFull,
    JobState,
    RunState,
    decide_cancel,
    decide_claim,
    decide_finish,
    decide_release,
    decide_submit,
    decide_take_over,
    is_expired,
)
from envoy_ext.domain.lease import LeasePolicy
from envoy_ext.domain.ownership import read_fence
from tests.support.jobs import BODY, EMPTY, ROOM, job_end, new_job, queued_job
from tests.support.records import START, attempt_started, begun, first_delta_sent, fold

SEAT, OTHER = SeatId("gw/1"), SeatId("gw/2")
FIRST, SECOND = OperationId("op_1"), OperationId("op_2")
ZERO, ONE, TWO = FencingToken(0), FencingToken(1), FencingToken(2)
QUEUED = queued_job()
RUNNING = replace(QUEUED, state=JobState.RUNNING, owner=SEAT, token=ONE, run_ids=(FIRST,))
DONE = {state: replace(RUNNING, state=state, end=job_end(state)) for state in sorted(ENDED)}
EVERY = [QUEUED, RUNNING, *DONE.values()]
by_state = pytest.mark.parametrize("job", EVERY, ids=lambda job: job.state)


def test_a_job_is_what_was_submitted() -> None:
    job = decide_submit(new_job(key_hash="key", data_class="secret"), 7, EMPTY, ROOM)
    assert isinstance(job, Job)
    assert (job.number, job.key_hash, job.data_class) == (7, "key", "secret")
    assert (job.state, job.owner, job.token, job.run_ids, job.end) == (JobState.QUEUED, None, 0, (), None)
    assert job.ledger_id == job.job_id
    assert queued_job().ledger_id == FIRST
    other = decide_submit(new_job(ledger_id=SECOND), 1, EMPTY, ROOM)
    assert isinstance(other, Job)
    assert other.ledger_id == SECOND


@pytest.mark.parametrize(
    ("counts", "bounds", "full"),
    [
        (EMPTY, JobBounds(1, len(BODY)), False),
        (EMPTY, JobBounds(0, 2**30), True),
        (EMPTY, JobBounds(1, len(BODY) - 1), True),
        (JobCounts({PoolName("a"): 2}, {PoolName("b"): 1}, 10), JobBounds(4, 2**30), False),
        (JobCounts({PoolName("a"): 2}, {PoolName("b"): 1}, 10), JobBounds(3, 2**30), True),
        (JobCounts({}, {PoolName("b"): 1}, 10), JobBounds(4, len(BODY) + 10), False),
        (JobCounts({}, {PoolName("b"): 1}, 11), JobBounds(4, len(BODY) + 10), True),
    ],
)
def test_running_jobs_take_room_as_queued_ones_do(counts: JobCounts, bounds: JobBounds, full: bool) -> None:
    taken = decide_submit(new_job(), 1, counts, bounds)
    assert isinstance(taken, JobsFull) == full
    if isinstance(taken, JobsFull):
        assert taken.counts == counts


@by_state
def test_only_a_queued_job_is_claimed(job: Job) -> None:
    if job.state is JobState.QUEUED:
        claimed = decide_claim(job, ZERO, SEAT, FIRST)
        assert claimed == RUNNING
        with pytest.raises(NotOwner):
            decide_claim(job, ONE, SEAT, FIRST)
    elif job.state is JobState.RUNNING:
        assert decide_claim(job, ZERO, SEAT, FIRST) == job
        for seen, seat, run in ((ZERO, OTHER, FIRST), (ZERO, SEAT, SECOND), (ONE, SEAT, FIRST)):
            with pytest.raises(NotOwner):
                decide_claim(job, seen, seat, run)
    else:
        for seen in (ZERO, ONE):
            with pytest.raises(NotOwner):
                decide_claim(job, seen, SEAT, FIRST)


def test_an_id_is_that_of_one_run() -> None:
    released = replace(RUNNING, state=JobState.QUEUED, owner=None)
    with pytest.raises(ImpossibleEvent):
        decide_claim(released, ONE, OTHER, FIRST)
    assert decide_claim(released, ONE, OTHER, SECOND).run_ids == (FIRST, SECOND)


@by_state
def test_only_a_running_job_without_an_owner_is_taken_over(job: Job) -> None:
    if job.state is JobState.RUNNING:
        taken = decide_take_over(job, ONE, OTHER, owner_is_there=False)
        assert taken == replace(job, owner=OTHER, token=TWO)
        assert decide_take_over(taken, ONE, OTHER, owner_is_there=True) == taken
        with pytest.raises(NotOwner):
            decide_take_over(taken, ONE, SEAT, owner_is_there=True)
    for seen, there in ((job.token, True), (TWO, False)):
        with pytest.raises(NotOwner):
            decide_take_over(job, seen, OTHER, there)
    if job.state is not JobState.RUNNING:
        with pytest.raises(NotOwner):
            decide_take_over(job, job.token, OTHER, owner_is_there=False)


@by_state
@pytest.mark.parametrize("run", RunState)
def test_a_running_job_goes_back_when_its_run_cannot_act(job: Job, run: RunState) -> None:
    with pytest.raises(NotOwner):
        decide_release(job, TWO, run, START)
    if job.state is not JobState.RUNNING:
        assert decide_release(job, job.token, run, START) == job
    elif run is RunState.OPEN:
        with pytest.raises(RunNotOver):
            decide_release(job, ONE, run, START)
    else:
        released = decide_release(job, ONE, run, START)
        runs = (FIRST,) if run is RunState.OVER else ()
        assert released == replace(job, state=JobState.QUEUED, run_ids=runs)
        assert decide_release(released, ONE, RunState.OVER, START) == released


def test_what_is_to_be_cancelled_does_not_go_back() -> None:
    asked = decide_cancel(RUNNING, START + 1)
    released = decide_release(asked, ONE, RunState.OVER, START + 2)
    assert released.end == JobEnd(JobState.CANCELLED, START + 2)
    assert released.state is JobState.CANCELLED
    with pytest.raises(NotOwner):
        decide_claim(released, ONE, OTHER, SECOND)


@by_state
@pytest.mark.parametrize("run", RunState)
def test_the_first_end_stays(job: Job, run: RunState) -> None:
    end = job_end(JobState.EXPIRED, at=START + 9)
    if job.ended:
        assert decide_finish(job, TWO, run, end) == job
        return
    with pytest.raises(NotOwner):
        decide_finish(job, TWO, run, end)
    ended = decide_finish(job, job.token, run, end)
    assert (ended.state, ended.end) == (JobState.EXPIRED, end)
    dropped = job.state is JobState.RUNNING and run is RunState.NONE
    assert ended.run_ids == (() if dropped else job.run_ids)


def test_a_job_that_was_given_back_keeps_its_runs_when_it_ends() -> None:
    released = replace(RUNNING, state=JobState.QUEUED)
    assert decide_finish(released, ONE, RunState.NONE, job_end()).run_ids == (FIRST,)


@by_state
def test_a_cancel_ends_what_waits_and_asks_who_runs(job: Job) -> None:
    cancelled = decide_cancel(job, START + 3)
    if job.state is JobState.QUEUED:
        assert cancelled.end == JobEnd(JobState.CANCELLED, START + 3)
    elif job.state is JobState.RUNNING:
        assert cancelled == replace(job, cancel_requested_at=START + 3)
    else:
        assert cancelled == job
    assert decide_cancel(cancelled, START + 4) == cancelled


@by_state
def test_only_what_has_not_ended_is_too_old(job: Job) -> None:
    assert not is_expired(job, job.expires_at - 0.001)
    assert is_expired(job, job.expires_at) == (job.state in UNFINISHED)


@by_state
def test_only_the_newest_run_of_a_running_job_may_begin(job: Job) -> None:
    assert job.may_begin(FIRST, SEAT) == (job.state is JobState.RUNNING)
    assert not job.may_begin(FIRST, OTHER)
    assert not job.may_begin(SECOND, SEAT)
    later = replace(job, run_ids=(FIRST, SECOND))
    assert later.may_begin(SECOND, SEAT) == (job.state is JobState.RUNNING)
    assert not later.may_begin(FIRST, SEAT)


def test_an_end_ends() -> None:
    for state in UNFINISHED:
        with pytest.raises(ImpossibleEvent):
            JobEnd(state, START)


def test_a_run_of_a_job_is_fenced_whatever_it_has_sent() -> None:
    policy = LeasePolicy()
    run = fold(begun(job_id=FIRST), attempt_started(), first_delta_sent())
    assert read_fence(run, 100.0, policy) == 100.0 + policy.ttl_s + policy.margin_s
    assert read_fence(fold(begun(job_id=FIRST)), 100.0, policy) == 100.0
    assert read_fence(replace(run, job_id=None), 100.0, policy) == 100.0
