"""Jobs as their clients see them: taken in, looked at, fetched, cancelled. Who runs them is `job_runner`."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from envoy_ext.domain import step
from envoy_ext.domain.api import InvalidRequest
from envoy_ext.domain.client_errors import ClientError
from envoy_ext.domain.errors import JournalUnavailable
from envoy_ext.domain.ids import OperationId, PoolName
from envoy_ext.domain.job import Job, JobEnd, JobsFull, JobState, NewJob
from envoy_ext.domain.ladder import BECOMES_JOB
from envoy_ext.domain.notes import JobSubmitted, RequestDegraded
from envoy_ext.domain.operation import Operation
from envoy_ext.domain.outcomes import RungName
from envoy_ext.domain.traffic_class import TrafficClasses
from envoy_ext.ports import Clock, Observer, Store
from envoy_ext.services.admission import Arrival
from envoy_ext.services.job_requests import JobsPolicy, Submission, build_job_request
from envoy_ext.services.job_runner import JobRunner
from envoy_ext.services.opening import Opening
from envoy_ext.services.repeat_rules import build_running_error

LOOK_AGAIN_S: Final = (1, 3)
"""`Retry-After` of a job that has not ended is spread over these seconds."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What a cancel came to."""

    job: Job
    in_vain: bool
    """It had ended before, and not by a cancel."""


class Jobs:
    """Asked by arrivals. Used from one event loop."""

    def __init__(
        self,
        *,
        store: Store,
        runner: JobRunner,
        policy: JobsPolicy,
        classes: TrafficClasses,
        draw_full: Callable[[PoolName], int],
        clock: Clock,
        observer: Observer,
    ) -> None:
        """`draw_full`: in how many seconds a pool may have taken in what was refused there."""
        self._store = store
        self._runner = runner
        self._policy = policy
        self._classes = classes
        self._draw_full = draw_full
        self._clock = clock
        self._observer = observer

    def fits(self, arrival: Arrival) -> bool:
        """Whether this kind of request can be run later."""
        return arrival.family in BECOMES_JOB

    async def submit(self, wanted: Submission) -> step.AcceptJob | ClientError:
        """Take a request in. What is said of it is in the store by then.

        Raises:
            JournalUnavailable: it is not known whether it was taken in.
        """
        arrival, admitted = wanted.arrival, wanted.admitted
        traffic = self._classes.find(arrival.request_class)
        try:
            request = build_job_request(
                arrival,
                self._policy.max_request_bytes,
                by_ladder=wanted.by_ladder,
                side_effects=traffic.ladder.side_effects,
            )
        except InvalidRequest as mistake:
            return ClientError("invalid_request", arrival.request_id, message=str(mistake))
        at = self._clock.wall()
        age_s = self._policy.max_age_s
        new = NewJob(
            job_id=wanted.job_id,
            request_id=arrival.request_id,
            caller=arrival.caller,
            path=admitted.request.path,
            key_hash=wanted.key_hash,
            body_sha256=admitted.request.body_sha256,
            body_bytes=len(request.body),
            pool=admitted.pool,
            model=admitted.request.facts.model,
            request_class=traffic.name,
            data_class=arrival.data_class,
            submitted_at=at,
            expires_at=at + (age_s if arrival.deadline_s is None else arrival.deadline_s),
            ledger_id=wanted.ledger_id,
        )
        held = await self._store.submit_job(new, request, self._policy.bounds, wanted.after)
        match held:
            case JobsFull():
                retry_after_s = self._draw_full(admitted.pool)
                return ClientError("queue_full", arrival.request_id, retry_after_s=retry_after_s)
            case Operation():
                # Another gateway has begun it under the same key, a moment ago.
                return build_running_error(arrival.request_id, held.operation_id)
            case Job():
                if held.job_id != wanted.job_id:
                    return self.accept(held, arrival, new.body_sha256)
        self._runner.note_submitted(held)
        self._observer.note(JobSubmitted(held.job_id, held.request_id, held.pool, wanted.by_ladder))
        return self._accept(held, arrival, by_ladder=wanted.by_ladder)

    async def take_in(self, opening: Opening, *, by_ladder: bool) -> step.AcceptJob | ClientError:
        """Take in a request that has not begun, under the id that it would have had."""
        wanted = Submission(
            opening.arrival,
            opening.admitted,
            opening.operation_id,
            opening.key_hash,
            after=opening.after,
            ledger_id=opening.ledger_id,
            by_ladder=by_ladder,
        )
        try:
            accepted = await self.submit(wanted)
        except JournalUnavailable:
            message = "The gateway cannot store the job, so it does not take it in."
            return ClientError("upstream_unavailable", opening.arrival.request_id, message=message)
        if by_ladder and not isinstance(accepted, ClientError):
            self._observer.note(RequestDegraded(opening.admitted.pool, (RungName.JOB,)))
        return accepted

    async def tell_again(
        self, job: Job, arrival: Arrival, body_sha256: str
    ) -> step.AcceptJob | step.GiveAnswer | ClientError:
        """What the repeat of a request is told that became a job: where to look, or what has come of it."""
        if arrival.respond_async:
            return self.accept(job, arrival, body_sha256)
        return await self.read_result(job, arrival.request_id)

    def accept(self, job: Job, arrival: Arrival, body_sha256: str) -> step.AcceptJob | ClientError:
        """Where to look for a job that has been taken in before."""
        if job.body_sha256 != body_sha256:
            return ClientError("idempotency_key_reused", arrival.request_id, job.job_id)
        return self._accept(job, arrival, by_ladder=False)

    async def find(self, job_id: OperationId, caller: str) -> Job | None:
        """A caller's own job; `JournalUnavailable` where nobody can tell."""
        job = await self._store.read_job(job_id)
        return job if job is not None and job.caller == caller else None

    async def find_by_key(self, caller: str, path: str, key_hash: str) -> Job | None:
        """The job that was submitted under an idempotency key."""
        return await self._store.find_job(caller, path, key_hash)

    async def cancel(self, job: Job) -> Cancelled:
        """End a job that waits; have one that runs ended by whoever runs it. Done again, it is the same."""
        at = self._clock.wall()
        cancelled = await self._store.cancel_job(job.job_id, at)
        now = job if cancelled is None else cancelled
        # Whatever it was at the look before: only the cancel that has ended it tells that it has.
        if now.end == JobEnd(JobState.CANCELLED, at):
            self._runner.note_cancelled(now)
        elif not now.ended:
            self._runner.cancel(now.job_id)
        return Cancelled(now, in_vain=now.ended and now.state is not JobState.CANCELLED)

    async def read_result(self, job: Job, request_id: str) -> step.GiveAnswer | step.AcceptJob | ClientError:
        """What a job has come to: its answer, why there is none, or that it is too early to tell."""
        if job.end is None:
            return step.AcceptJob(job, request_id, draw_look_again())
        run = None if job.run_id is None else await self._store.get(job.run_id)
        answers = job.end.status is not None or job.state is JobState.SUCCEEDED
        if answers and job.run_id is not None:
            answer = await self._store.read_answer(job.run_id)
            if answer is None:
                return _build_gone(job, request_id)
            attempts = () if run is None else run.attempts
            started = sum(attempt.started_at is not None for attempt in attempts)
            degraded = () if run is None else run.degraded
            return step.GiveAnswer(answer, request_id, job.job_id, started, degraded, repeated=False)
        return _build_failure(job, request_id)

    def _accept(self, job: Job, arrival: Arrival, *, by_ladder: bool) -> step.AcceptJob:
        return step.AcceptJob(
            job,
            arrival.request_id,
            draw_look_again(),
            asked=arrival.respond_async,
            degraded=(RungName.JOB,) if by_ladder else (),
        )


def draw_look_again() -> int:
    """When a client may look at its job again: soon, and not all at once."""
    return random.randint(*LOOK_AGAIN_S)


def _build_gone(job: Job, request_id: str) -> ClientError:
    message = "The result of this job has been removed: results are kept for a time, and it is over."
    return ClientError("operation_complete", request_id, job.job_id, message=message, status=410)


def _build_failure(job: Job, request_id: str) -> ClientError:
    """Why there is no result. Asking again changes nothing, and another submission may."""
    assert job.end is not None
    match job.state:
        case JobState.CANCELLED:
            return ClientError("operation_cancelled", request_id, job.job_id)
        case JobState.EXPIRED:
            message = "This job was not finished in the time that it had."
            return ClientError("deadline_exceeded", request_id, job.job_id, message=message, status=410)
        case _:
            code = job.end.error_code or "upstream_unavailable"
            headers: tuple[tuple[str, str], ...] = ()
            if job.end.tool_call_id is not None:
                headers = (("location", f"/v1/operations/{job.job_id}"),)
            return ClientError(code, request_id, job.job_id, sdk_retries=False, headers=headers)
