"""Jobs: requests whose clients do not wait for the answer, as every store keeps them. A pure fold.

    QUEUED ── claimed ──> RUNNING ── finished ──> SUCCEEDED, FAILED, CANCELLED, EXPIRED
      ^  └─ cancelled, expired, given up ────────────^
      └──── released: its run is over, or never began

A job is not an operation: it has runs, each of which is one, begun by the gateway that has claimed the job.
The first has the job's own id; a later one has another, and the job's ledger. What a client may see of a job
is decided by one call that looks and writes, so the first end stays and nothing runs after it.

A claim gives the job an owner (a gateway's seat) and a greater token than every owner before had, as with
operations (`ownership`). The store lets the newest run of a running job begin, in the seat of its owner, and
no other: a run that was sent and has not begun may be forgotten by whoever comes next. A job goes back into
the queue only when its run cannot act any more (`RunState`).

Each decision that changes a job returns it as it is from then on. Done again, as by a caller whose answer was
lost, it changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from envoy_ext.domain.errors import ImpossibleEvent, NotOwner, RunNotOver
from envoy_ext.domain.ids import FencingToken, OperationId, PoolName, SeatId

UNCLAIMED: Final = FencingToken(0)
"""Of a job that nobody has claimed yet."""


class JobState(StrEnum):
    """How far a job has come."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    """There is an answer; it is that of the last run's operation."""
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    """It had not ended when it was to be finished."""


UNFINISHED: Final = frozenset({JobState.QUEUED, JobState.RUNNING})
ENDED: Final = frozenset(JobState) - UNFINISHED


class RunState(StrEnum):
    """How far the newest run of a job has come, as the journal tells it."""

    NONE = "none"
    """It has not begun. As long as it is the newest of a running job, it may."""
    OPEN = "open"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What is to be run: kept until the job has ended, and nowhere else. No log or listing shows it."""

    path: str
    """As the client asked for it, with its query."""
    headers: tuple[tuple[str, str], ...]
    """Those that say what the body is, and those that the gateway reads itself; never a credential."""
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be submitted. Times are unix seconds."""

    job_id: OperationId
    """Also the id of its first run."""
    request_id: str
    caller: str
    """Hash of the credential the request came with; "" when it had none."""
    path: str
    """Without its query, as in an operation's records."""
    key_hash: str | None
    body_sha256: str
    """Of the body as the client sent it."""
    body_bytes: int
    pool: PoolName
    model: str | None
    request_class: str
    """As the configuration names it."""
    data_class: str | None
    submitted_at: float
    expires_at: float
    ledger_id: OperationId | None = None
    """Whose ledger the tool calls of its runs stand in; None: its own. That of an earlier operation under its
    key which delivered nothing."""


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended."""

    state: JobState
    """One of those that end it."""
    at: float
    error_code: str | None = None
    """The contract's error code. None with `FAILED`: the answer that is kept says why."""
    status: int | None = None
    """HTTP status of the answer that is kept; None where none is."""
    tool_call_id: str | None = None
    """The tool call that kept it from being run again, if one did."""

    def __post_init__(self) -> None:
        if self.state not in ENDED:
            raise ImpossibleEvent(f"a job's end that leaves it {self.state}")


@dataclass(frozen=True, slots=True)
class Job:
    """What a store knows of one job, without its request."""

    job_id: OperationId
    number: int
    """Its place in the order in which jobs were submitted, from 1; kept when it goes back into the queue."""
    request_id: str
    caller: str
    path: str
    key_hash: str | None
    body_sha256: str
    body_bytes: int
    pool: PoolName
    model: str | None
    request_class: str
    data_class: str | None
    submitted_at: float
    expires_at: float
    ledger_id: OperationId
    state: JobState = JobState.QUEUED
    owner: SeatId | None = None
    """Of the gateway that runs it, or ran it last."""
    token: FencingToken = UNCLAIMED
    run_ids: tuple[OperationId, ...] = ()
    """Its runs, in order: those that have begun, and while it runs also the newest one."""
    cancel_requested_at: float | None = None
    """Its client does not want it any more; its owner is to end it."""
    end: JobEnd | None = None

    @property
    def ended(self) -> bool:
        return self.end is not None

    @property
    def run_id(self) -> OperationId | None:
        """The newest run."""
        return self.run_ids[-1] if self.run_ids else None

    def may_begin(self, run_id: OperationId, owner: SeatId) -> bool:
        """Whether an operation may begin as a run of this job, in this seat."""
        return self.state is JobState.RUNNING and self.run_id == run_id and self.owner == owner


@dataclass(frozen=True, slots=True)
class JobCounts:
    """The jobs of a store that have not ended."""

    queued: Mapping[PoolName, int]
    running: Mapping[PoolName, int]
    request_bytes: int
    """Of the bodies that are kept for them."""

    @property
    def unfinished(self) -> int:
        return sum(self.queued.values()) + sum(self.running.values())


@dataclass(frozen=True, slots=True)
class JobBounds:
    """How many jobs that have not ended a store may have, over all gateways, and how large their bodies."""

    max_jobs: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class JobsFull:
    """As many jobs wait as may, or as large ones: nothing was written."""

    counts: JobCounts


def decide_submit(new: NewJob, number: int, counts: JobCounts, bounds: JobBounds) -> Job | JobsFull:
    """May a job be taken in that nothing under its key stands against?"""
    too_many = counts.unfinished >= bounds.max_jobs
    if too_many or counts.request_bytes + new.body_bytes > bounds.max_bytes:
        return JobsFull(counts)
    return Job(
        job_id=new.job_id,
        number=number,
        request_id=new.request_id,
        caller=new.caller,
        path=new.path,
        key_hash=new.key_hash,
        body_sha256=new.body_sha256,
        body_bytes=new.body_bytes,
        pool=new.pool,
        model=new.model,
        request_class=new.request_class,
        data_class=new.data_class,
        submitted_at=new.submitted_at,
        expires_at=new.expires_at,
        ledger_id=new.job_id if new.ledger_id is None else new.ledger_id,
    )


def decide_claim(job: Job, seen: FencingToken, seat: SeatId, run_id: OperationId) -> Job:
    """Run a queued job as this operation. `NotOwner`: somebody else was faster, or it has ended."""
    again = (JobState.RUNNING, seat, seen + 1, run_id)
    if (job.state, job.owner, job.token, job.run_id) == again:
        return job
    if job.state is not JobState.QUEUED or job.token != seen:
        raise NotOwner(f"{job.job_id} is not there to be claimed")
    if run_id in job.run_ids:
        raise ImpossibleEvent(f"a run of {job.job_id} under the id of an earlier one")
    runs = (*job.run_ids, run_id)
    token = FencingToken(seen + 1)
    return replace(job, state=JobState.RUNNING, owner=seat, token=token, run_ids=runs)


def decide_take_over(job: Job, seen: FencingToken, seat: SeatId, owner_is_there: bool) -> Job:
    """Become the owner of a running job whose owner has no seat any more; its newest run stays that.

    `NotOwner`: it has another token than the one seen, its owner is there, or it does not run.
    """
    if job.state is JobState.RUNNING and (job.owner, job.token) == (seat, seen + 1):
        return job
    if job.state is not JobState.RUNNING or job.token != seen or owner_is_there:
        raise NotOwner(f"{job.job_id} is not there to be taken over")
    return replace(job, owner=seat, token=FencingToken(seen + 1))


def decide_release(job: Job, token: FencingToken, run: RunState, at: float) -> Job:
    """Give a job back into the queue, after its run. One that is to be cancelled is so by this.

    A run that never began is none. A job that does not run stays as it is. `NotOwner`: another gateway has
    it. `RunNotOver`: its run may still act.
    """
    if job.token != token:
        raise NotOwner(f"{job.job_id} belongs to another gateway")
    if job.state is not JobState.RUNNING:
        return job
    if run is RunState.OPEN:
        raise RunNotOver(f"{job.run_id} has begun, and not ended")
    released = replace(_drop_unbegun(job, run), state=JobState.QUEUED)
    if job.cancel_requested_at is not None:
        return _end(released, JobEnd(JobState.CANCELLED, at))
    return released


def decide_finish(job: Job, token: FencingToken, run: RunState, end: JobEnd) -> Job:
    """End a job. The first end stays, whoever gives it.

    `NotOwner`: its token is another one. Of a queued job it is the token seen: whoever claims it is faster.
    """
    if job.ended:
        return job
    if job.token != token:
        raise NotOwner(f"{job.job_id} belongs to another gateway")
    return _end(_drop_unbegun(job, run), end)


def decide_cancel(job: Job, at: float) -> Job:
    """What becomes of a job that its client does not want any more: a queued one ends, a running one will."""
    if job.state is JobState.QUEUED:
        return _end(job, JobEnd(JobState.CANCELLED, at))
    if job.ended or job.cancel_requested_at is not None:
        return job
    return replace(job, cancel_requested_at=at)


def is_expired(job: Job, now: float) -> bool:
    """Whether a job that has not ended should have, by this time (unix seconds)."""
    return not job.ended and now >= job.expires_at


def _drop_unbegun(job: Job, run: RunState) -> Job:
    """Without a run that never began, and by what is about to be written never will."""
    if job.state is JobState.RUNNING and run is RunState.NONE:
        return replace(job, run_ids=job.run_ids[:-1])
    return job


def _end(job: Job, end: JobEnd) -> Job:
    return replace(job, state=end.state, end=end)
