"""The jobs of a memory journal: what `ports.JobStore` needs beside its operations."""

import builtins
import heapq
import itertools
import sys
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import replace

from envoy_ext.adapters import job_codec
from envoy_ext.adapters.job_codec import encode_job
from envoy_ext.domain.errors import NotOwner
from envoy_ext.domain.ids import FencingToken, OperationId, PoolName, SeatId
from envoy_ext.domain.job import (
    UNFINISHED,
    Job,
    JobBounds,
    JobCounts,
    JobEnd,
    JobRequest,
    JobsFull,
    JobState,
    NewJob,
    RunState,
    decide_cancel,
    decide_claim,
    decide_finish,
    decide_release,
    decide_submit,
    decide_take_over,
)
from envoy_ext.domain.operation import Operation


class MemoryJobStore(ABC):
    """`ports.JobStore`, for a journal to be; the rest of that journal is told of what concerns it."""

    def __init__(self) -> None:
        self._jobs = MemoryJobs()

    @abstractmethod
    def _refuse_when_closed(self) -> None: ...

    @abstractmethod
    def _has_seat(self, seat: SeatId | None) -> bool: ...

    @abstractmethod
    def _refuse_without_seat(self, seat: SeatId) -> None: ...

    @abstractmethod
    def _find_newest(self, caller: str, path: str, key_hash: str) -> Operation | None: ...

    @abstractmethod
    def _read_run(self, job: Job) -> RunState: ...

    @abstractmethod
    def _end_job(self, job: Job, at: float) -> None: ...

    @abstractmethod
    def _forget_answer(self, operation_id: OperationId) -> None: ...

    async def submit_job(
        self, new: NewJob, request: JobRequest, bounds: JobBounds, after: OperationId | None = None
    ) -> Job | Operation | JobsFull:
        self._refuse_when_closed()
        job_codec.refuse_unwritable(new)
        known = self._jobs.get(new.job_id)
        if known is not None:
            return known
        if new.key_hash is not None:
            named = (new.caller, new.path, new.key_hash)
            holder = self._jobs.find(*named) or self._find_newest(*named)
            if isinstance(holder, Job) or (holder is not None and holder.operation_id != after):
                return holder
        return self._jobs.submit(new, request, bounds)

    async def read_job(self, job_id: OperationId) -> Job | None:
        self._refuse_when_closed()
        return self._jobs.get(job_id)

    async def find_job(self, caller: str, path: str, key_hash: str) -> Job | None:
        self._refuse_when_closed()
        return self._jobs.find(caller, path, key_hash)

    async def read_job_request(self, job_id: OperationId) -> JobRequest | None:
        self._refuse_when_closed()
        return self._jobs.get_request(job_id)

    async def list_jobs(self, states: frozenset[JobState], limit: int, after: int = 0) -> list[Job]:
        self._refuse_when_closed()
        return self._jobs.list(states, limit, after)

    async def list_orphaned_jobs(self, limit: int) -> list[Job]:
        self._refuse_when_closed()
        running = self._jobs.list(frozenset({JobState.RUNNING}), sys.maxsize, 0)
        return [job for job in running if not self._has_seat(job.owner)][: max(0, limit)]

    async def claim_job(
        self, job_id: OperationId, seen: FencingToken, seat: SeatId, run_id: OperationId
    ) -> Job:
        self._refuse_when_closed()
        self._refuse_without_seat(seat)
        return self._put_job(decide_claim(self._jobs.read(job_id), seen, seat, run_id))

    async def take_over_job(self, job_id: OperationId, seen: FencingToken, seat: SeatId) -> Job:
        self._refuse_when_closed()
        self._refuse_without_seat(seat)
        job = self._jobs.read(job_id)
        return self._put_job(decide_take_over(job, seen, seat, self._has_seat(job.owner)))

    async def release_job(self, job_id: OperationId, token: FencingToken, at: float) -> Job:
        self._refuse_when_closed()
        job_codec.refuse_time(at)
        job = self._jobs.read(job_id)
        return self._put_job(decide_release(job, token, self._read_run(job), at))

    async def finish_job(self, job_id: OperationId, token: FencingToken, end: JobEnd) -> Job:
        self._refuse_when_closed()
        job_codec.refuse_time(end.at)
        job = self._jobs.read(job_id)
        return self._put_job(decide_finish(job, token, self._read_run(job), end))

    async def cancel_job(self, job_id: OperationId, at: float) -> Job | None:
        self._refuse_when_closed()
        job_codec.refuse_time(at)
        job = self._jobs.get(job_id)
        return None if job is None else self._put_job(decide_cancel(job, at))

    async def count_jobs(self) -> JobCounts:
        self._refuse_when_closed()
        return self._jobs.count()

    async def forget_results(self, before: float, limit: int) -> int:
        self._refuse_when_closed()
        forgotten = 0
        while forgotten < limit and (job := self._jobs.pop_with_results(before)) is not None:
            for run_id in job.run_ids:
                self._forget_answer(run_id)
            forgotten += 1
        return forgotten

    def _put_job(self, job: Job) -> Job:
        ends = not self._jobs.read(job.job_id).ended
        self._jobs.put(job)
        if ends and job.end is not None:
            self._end_job(job, job.end.at)
        return job


class MemoryJobs:
    """Jobs and their requests, by id, by key and in order. Nothing here waits."""

    def __init__(self) -> None:
        self._jobs: dict[OperationId, Job] = {}
        """In the order of their submission."""
        self._unfinished: dict[OperationId, None] = {}
        """In the same order: what is asked often is asked of these."""
        self._requests: dict[OperationId, JobRequest] = {}
        self._by_key: dict[tuple[str, str, str], OperationId] = {}
        self._numbers = itertools.count(1)
        self._with_results: list[tuple[float, int, OperationId]] = []
        """A heap: when a job ended whose results have not been forgotten, and its number."""

    @property
    def bytes(self) -> int:
        requests = sum(_measure(request) for request in self._requests.values())
        return requests + sum(len(encode_job(job)) for job in self._jobs.values())

    def get(self, job_id: OperationId | None) -> Job | None:
        return None if job_id is None else self._jobs.get(job_id)

    def get_request(self, job_id: OperationId) -> JobRequest | None:
        return self._requests.get(job_id)

    def find(self, caller: str, path: str, key_hash: str) -> Job | None:
        return self.get(self._by_key.get((caller, path, key_hash)))

    def list(self, states: frozenset[JobState], limit: int, after: int) -> list[Job]:
        among = self._list_unfinished() if states <= UNFINISHED else self._jobs.values()
        found = (job for job in among if job.state in states and job.number > after)
        return list(itertools.islice(found, max(0, limit)))

    def count(self) -> JobCounts:
        unfinished = self._list_unfinished()
        queued: Counter[PoolName] = Counter(job.pool for job in unfinished if job.state is JobState.QUEUED)
        running: Counter[PoolName] = Counter(job.pool for job in unfinished if job.state is JobState.RUNNING)
        return JobCounts(dict(queued), dict(running), sum(job.body_bytes for job in unfinished))

    def submit(self, new: NewJob, request: JobRequest, bounds: JobBounds) -> Job | JobsFull:
        """Take in a job that nothing stands against but the bounds."""
        made = decide_submit(new, 1, self.count(), bounds)
        if isinstance(made, JobsFull):
            return made
        job = self._jobs[new.job_id] = replace(made, number=next(self._numbers))
        self._unfinished[new.job_id] = None
        self._requests[new.job_id] = request
        if job.key_hash is not None:
            self._by_key[job.caller, job.path, job.key_hash] = job.job_id
        return job

    def read(self, job_id: OperationId) -> Job:
        """One that is to be changed; `NotOwner` when it is not there."""
        job = self._jobs.get(job_id)
        if job is None:
            raise NotOwner(f"there is no job {job_id}")
        return job

    def put(self, job: Job) -> None:
        """The job as it is from now on."""
        ends = job.ended and not self._jobs[job.job_id].ended
        self._jobs[job.job_id] = job
        if ends and job.end is not None:
            del self._requests[job.job_id]
            del self._unfinished[job.job_id]
            heapq.heappush(self._with_results, (job.end.at, job.number, job.job_id))

    def pop_with_results(self, before: float) -> Job | None:
        """The next job whose results are to be forgotten, if there still is one."""
        while self._with_results and self._with_results[0][0] < before:
            job = self._jobs.get(heapq.heappop(self._with_results)[2])
            if job is not None:
                return job
        return None

    def forget(self, job_id: OperationId) -> None:
        job = self._jobs.pop(job_id)
        if job.key_hash is not None:
            del self._by_key[job.caller, job.path, job.key_hash]

    def uses_ledger(self, ledger_id: OperationId) -> bool:
        """Whether a job that has not ended has this ledger."""
        return any(job.ledger_id == ledger_id for job in self._list_unfinished())

    def _list_unfinished(self) -> builtins.list[Job]:
        return [self._jobs[job_id] for job_id in self._unfinished]


def _measure(request: JobRequest) -> int:
    heads = sum(len(name) + len(value) for name, value in request.headers)
    return len(request.path) + heads + len(request.body)
