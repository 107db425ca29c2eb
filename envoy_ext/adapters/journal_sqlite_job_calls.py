"""`ports.JobStore` of a SQLite journal: each call is one step of its writer, or one look."""

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from envoy_ext.adapters import job_codec
from envoy_ext.adapters import journal_sqlite_archive as archive
from envoy_ext.adapters import journal_sqlite_jobs as jobs
from envoy_ext.domain.ids import FencingToken, OperationId, SeatId
from envoy_ext.domain.job import (
    Job,
    JobBounds,
    JobCounts,
    JobEnd,
    JobRequest,
    JobsFull,
    JobState,
    NewJob,
    decide_cancel,
    decide_claim,
    decide_finish,
    decide_release,
)
from envoy_ext.domain.operation import Operation

_Result = TypeVar("_Result")
_MOST = 2**63 - 1
"""SQLite has no larger number, and reads a negative LIMIT as "all"."""


class SqliteJobCalls(ABC):
    """For a journal to be."""

    @abstractmethod
    async def _read(self, look: Callable[[sqlite3.Connection], _Result]) -> _Result: ...

    @abstractmethod
    async def _write(self, work: Callable[[sqlite3.Connection], _Result]) -> _Result: ...

    async def submit_job(
        self, new: NewJob, request: JobRequest, bounds: JobBounds, after: OperationId | None = None
    ) -> Job | Operation | JobsFull:
        job_codec.refuse_unwritable(new)
        return await self._write(partial(jobs.submit, new=new, request=request, bounds=bounds, after=after))

    async def read_job(self, job_id: OperationId) -> Job | None:
        return await self._read(partial(jobs.get, job_id=job_id))

    async def find_job(self, caller: str, path: str, key_hash: str) -> Job | None:
        return await self._read(partial(jobs.find, caller=caller, path=path, key_hash=key_hash))

    async def read_job_request(self, job_id: OperationId) -> JobRequest | None:
        return await self._read(partial(jobs.read_request, job_id=job_id))

    async def list_jobs(self, states: frozenset[JobState], limit: int, after: int = 0) -> list[Job]:
        limit = min(max(limit, 0), _MOST)
        return await self._read(partial(jobs.list_jobs, states=states, limit=limit, after=after))

    async def list_orphaned_jobs(self, limit: int) -> list[Job]:
        limit = min(max(limit, 0), _MOST)
        return await self._read(lambda connection: jobs.select(connection, jobs.ORPHANED, limit))

    async def claim_job(
        self, job_id: OperationId, seen: FencingToken, seat: SeatId, run_id: OperationId
    ) -> Job:
        return await self._write(
            partial(
                jobs.claim,
                job_id=job_id,
                seat=seat,
                decide=lambda job, _: decide_claim(job, seen, seat, run_id),
            )
        )

    async def take_over_job(self, job_id: OperationId, seen: FencingToken, seat: SeatId) -> Job:
        return await self._write(partial(jobs.take_over, job_id=job_id, seen=seen, seat=seat))

    async def release_job(self, job_id: OperationId, token: FencingToken, at: float) -> Job:
        job_codec.refuse_time(at)
        return await self._write(
            partial(jobs.change, job_id=job_id, decide=lambda job, run: decide_release(job, token, run, at))
        )

    async def finish_job(self, job_id: OperationId, token: FencingToken, end: JobEnd) -> Job:
        job_codec.refuse_time(end.at)
        return await self._write(
            partial(jobs.change, job_id=job_id, decide=lambda job, run: decide_finish(job, token, run, end))
        )

    async def cancel_job(self, job_id: OperationId, at: float) -> Job | None:
        job_codec.refuse_time(at)
        return await self._write(
            partial(jobs.cancel, job_id=job_id, decide=lambda job, _: decide_cancel(job, at))
        )

    async def count_jobs(self) -> JobCounts:
        return await self._read(jobs.count)

    async def forget_results(self, before: float, limit: int) -> int:
        return await self._write(partial(archive.forget_results, before=before, limit=limit))
