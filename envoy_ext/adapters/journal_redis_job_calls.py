"""`ports.JobStore` of a Redis journal."""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from envoy_ext.adapters import job_codec
from envoy_ext.adapters import journal_redis_archive as archive
from envoy_ext.adapters import journal_redis_jobs as jobs
from envoy_ext.adapters.journal_redis_ledger import read_pairs
from envoy_ext.adapters.journal_redis_scripts import DONE, HELD, HELD_BY_JOB, Script
from envoy_ext.adapters.journal_redis_text import build_digest, decode, encode
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
    decide_cancel,
    decide_claim,
    decide_finish,
    decide_release,
    decide_submit,
    decide_take_over,
)
from envoy_ext.domain.operation import Operation

PAGE: Final = 256
"""Operations or jobs that one call lists: Redis serves nobody else meanwhile."""
FORGOTTEN_AT_ONCE: Final = 64
"""Operations or jobs that one call removes, for the same reason: each may have an answer and tool calls."""
_NO_BOUND: Final = JobBounds(2**62, 2**62)
"""Whether there is room is decided by the script."""


class RedisJobCalls(ABC):
    """For a journal to be."""

    @abstractmethod
    async def _write(self, script: Script, *words: Any) -> Any: ...

    @abstractmethod
    async def _read(self, script: Script, *words: Any) -> Any: ...

    @abstractmethod
    async def _ask(self, command: str, key: bytes, *words: Any) -> Any: ...

    @abstractmethod
    def _fold(self, records: Sequence[bytes]) -> Operation: ...

    async def submit_job(
        self, new: NewJob, request: JobRequest, bounds: JobBounds, after: OperationId | None = None
    ) -> Job | Operation | JobsFull:
        job_codec.refuse_unwritable(new)
        job = decide_submit(new, 0, JobCounts({}, {}, 0), _NO_BOUND)
        assert isinstance(job, Job)
        status, *held = await self._write(
            jobs.SUBMIT,
            encode(new.job_id),
            b"" if new.key_hash is None else build_digest(new.caller, new.path, new.key_hash),
            b"" if after is None else b"=" + encode(after),
            encode(job.ledger_id),
            encode(new.pool),
            str(new.body_bytes),
            str(bounds.max_jobs),
            str(bounds.max_bytes),
            job_codec.encode_job(job),
            job_codec.encode_head(request).encode() + b"\n" + request.body,
        )
        if status in (DONE, HELD_BY_JOB):
            return jobs.read_job(held[0])
        return self._fold(held[0]) if status == HELD else JobsFull(_read_counts(held[0]))

    async def read_job(self, job_id: OperationId) -> Job | None:
        found = await self._ask("HMGET", b"job:" + encode(job_id), "number", "body")
        return None if found[0] is None else jobs.read_job(found)

    async def find_job(self, caller: str, path: str, key_hash: str) -> Job | None:
        found = await self._read(jobs.FIND, build_digest(caller, path, key_hash))
        return jobs.read_job(found) if found else None

    async def read_job_request(self, job_id: OperationId) -> JobRequest | None:
        kept = await self._ask("HGET", b"job:" + encode(job_id), "request")
        if kept is None:
            return None
        head, _, body = kept.partition(b"\n")
        return job_codec.decode_request(head, body)

    async def list_jobs(self, states: frozenset[JobState], limit: int, after: int = 0) -> list[Job]:
        only = next(iter(states)).value if len(states) == 1 and states <= UNFINISHED else None
        found: list[Job] = []
        while states and limit > len(found):
            page = await self._read(jobs.LIST, f"jobs:{only}" if only else "jobs", str(after), str(PAGE))
            read = [jobs.read_job(one) for one in page]
            found += [job for job in read if job.state in states]
            if len(page) < PAGE:
                break
            after = read[-1].number
        return found[: max(0, limit)]

    async def list_orphaned_jobs(self, limit: int) -> list[Job]:
        return [jobs.read_job(one) for one in await self._read(jobs.ORPHANED, str(max(0, limit)))]

    async def claim_job(
        self, job_id: OperationId, seen: FencingToken, seat: SeatId, run_id: OperationId
    ) -> Job:
        return await jobs.change(
            self._read,
            self._write,
            job_id,
            lambda looked: decide_claim(looked.job, seen, seat, run_id),
            seat=seat,
        )

    async def take_over_job(self, job_id: OperationId, seen: FencingToken, seat: SeatId) -> Job:
        return await jobs.change(
            self._read,
            self._write,
            job_id,
            lambda looked: decide_take_over(looked.job, seen, seat, looked.owner_is_there),
            seat=seat,
        )

    async def release_job(self, job_id: OperationId, token: FencingToken, at: float) -> Job:
        job_codec.refuse_time(at)
        return await jobs.change(
            self._read,
            self._write,
            job_id,
            lambda looked: decide_release(looked.job, token, looked.run, at),
        )

    async def finish_job(self, job_id: OperationId, token: FencingToken, end: JobEnd) -> Job:
        job_codec.refuse_time(end.at)
        return await jobs.change(
            self._read,
            self._write,
            job_id,
            lambda looked: decide_finish(looked.job, token, looked.run, end),
        )

    async def cancel_job(self, job_id: OperationId, at: float) -> Job | None:
        job_codec.refuse_time(at)
        if await self.read_job(job_id) is None:
            return None
        return await jobs.change(
            self._read, self._write, job_id, lambda looked: decide_cancel(looked.job, at)
        )

    async def count_jobs(self) -> JobCounts:
        return _read_counts(await self._ask("HGETALL", b"jobs:counts"))

    async def forget_results(self, before: float, limit: int) -> int:
        return await self._forget_by(archive.FORGET_RESULTS, before, limit)

    async def _forget_by(self, script: Script, before: float, limit: int) -> int:
        forgotten = 0
        while (left := min(limit - forgotten, FORGOTTEN_AT_ONCE)) > 0:
            gone: int = await self._write(script, repr(before), str(left), secrets.token_hex(8))
            forgotten += gone
            if gone < left:
                break
        return forgotten


def _read_counts(fields: Any) -> JobCounts:
    held = {decode(name): int(count) for name, count in read_pairs(fields)}
    queued, running = (
        {
            PoolName(name.removeprefix(f"{state} ")): count
            for name, count in held.items()
            if name.startswith(f"{state} ")
        }
        for state in (JobState.QUEUED.value, JobState.RUNNING.value)
    )
    return JobCounts(queued, running, held.get("bytes", 0))
