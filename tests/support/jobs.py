"""Builders for jobs: a test names what it is about, the rest is filled in."""

from dataclasses import replace

from envoy_ext.domain.ids import FencingToken, OperationId, PoolName, SeatId
from envoy_ext.domain.job import (
    Job,
    JobBounds,
    JobCounts,
    JobEnd,
    JobRequest,
    JobState,
    NewJob,
    decide_submit,
)
from envoy_ext.ports import JobStore, Journal
from tests.support.records import START, attempt_started, begun, ended

BODY = b'{"model":"llama-3.1-8b","messages":[{"role":"user","content":"\xff\x00"}]}'
REQUEST = JobRequest(
    "/v1/chat/completions?beta=true", (("content-type", "application/json"), ("x-request-class", "a")), BODY
)
ROOM = JobBounds(max_jobs=1000, max_bytes=2**28)
NAMED = ("caller-hash", "/v1/chat/completions")
EMPTY = JobCounts({}, {}, 0)


def new_job(job: str = "op_1", **changes: object) -> NewJob:
    new = NewJob(
        job_id=OperationId(job),
        request_id="req-1",
        caller="caller-hash",
        path="/v1/chat/completions",
        key_hash=None,
        body_sha256="ab" * 32,
        body_bytes=len(BODY),
        pool=PoolName("chat"),
        model="llama-3.1-8b",
        request_class="default",
        data_class=None,
        submitted_at=START,
        expires_at=START + 3600,
    )
    return replace(new, **changes)  # type: ignore[arg-type]


def queued_job(job: str = "op_1", number: int = 1, **changes: object) -> Job:
    """As it stands after its submission."""
    made = decide_submit(new_job(job), number, EMPTY, ROOM)
    assert isinstance(made, Job)
    return replace(made, **changes)  # type: ignore[arg-type]


def job_end(state: JobState = JobState.SUCCEEDED, **changes: object) -> JobEnd:
    end = JobEnd(state, START + 5, status=200 if state is JobState.SUCCEEDED else None)
    return replace(end, **changes)  # type: ignore[arg-type]


async def submit(store: JobStore, job: str = "op_1", **changes: object) -> Job:
    """A job that is taken in."""
    taken = await store.submit_job(new_job(job, **changes), REQUEST, ROOM)
    assert isinstance(taken, Job)
    assert taken.job_id == job
    return taken


async def claim(store: JobStore, job: Job, seat: SeatId, run: str | None = None) -> Job:
    run_id = job.job_id if run is None else OperationId(run)
    return await store.claim_job(job.job_id, job.token, seat, run_id)


async def begin_run(journal: Journal, job: Job, seat: SeatId) -> None:
    """The newest run of a job begins, and starts an attempt."""
    assert job.run_id is not None
    record = begun(
        job.run_id,
        job_id=job.job_id,
        ledger_id=None if job.ledger_id == job.run_id else job.ledger_id,
    )
    assert await journal.begin(record, seat) is None
    started = attempt_started(job.run_id, f"att_of_{job.run_id}")
    await journal.append([started], FencingToken(1))


async def end_run(journal: Journal, job: Job, **changes: object) -> None:
    """The newest run of a job ends; with an answer, unless something else is said."""
    assert job.run_id is not None
    operation = await journal.get(job.run_id)
    assert operation is not None
    await journal.append([ended(job.run_id, **changes)], operation.token)
