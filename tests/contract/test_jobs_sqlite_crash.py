"""What the SQLite journal said of jobs is so after kill -9, at whatever moment that came."""

import asyncio
import random
import signal
import sys
from pathlib import Path

import pytest

from envoy_ext.adapters.journal_sqlite import SqliteJournal
from envoy_ext.domain.ids import OperationId
from envoy_ext.domain.job import ENDED, UNFINISHED, Job, JobState
from tests.support.jobs import REQUEST
from tests.support.journals import ANSWER

ROOT = Path(__file__).resolve().parents[2]
ORDER = [JobState.QUEUED, JobState.RUNNING, JobState.SUCCEEDED]


async def run_and_kill(path: Path, synchronous: str, round_: int, lines: int) -> list[str]:
    """What was promised by a writer that was killed after so many promises, and a few more."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.support.jobs_crash_writer", str(path), synchronous, str(round_)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    promised = [await process.stdout.readline() for _ in range(lines)]
    process.kill()
    rest = await process.stdout.read()
    assert await process.wait() == -signal.SIGKILL
    # The kill may cut the last line in two; a whole line ends with its newline.
    return (b"".join(promised) + rest).decode().split("\n")[:-1]


@pytest.mark.parametrize("synchronous", ["normal", "full"])
async def test_no_job_that_was_promised_is_lost_or_goes_back(tmp_path: Path, synchronous: str) -> None:
    path = tmp_path / "journal.db"
    moments = random.Random(f"kill {synchronous}")
    told: dict[str, JobState] = {}
    for round_ in range(3):
        for line in await run_and_kill(path, synchronous, round_, moments.randrange(1, 200)):
            state, job_id = line.split(" ")
            told[job_id] = JobState(state)
        journal = await SqliteJournal.open(path)
        jobs = {job.job_id: job for job in await journal.list_jobs(UNFINISHED | ENDED, 10_000)}
        for job_id, state in told.items():
            job = jobs[OperationId(job_id)]
            assert ORDER.index(job.state) >= ORDER.index(state)
        for job in jobs.values():
            await check(journal, job)
        orphans = [job for job in jobs.values() if job.state is JobState.RUNNING]
        assert await journal.list_orphaned_jobs(10_000) == orphans, "their gateway is gone"
        counts = await journal.count_jobs()
        assert counts.unfinished == sum(not job.ended for job in jobs.values())
        assert counts.request_bytes == counts.unfinished * len(REQUEST.body)
        await journal.close()
    assert JobState.SUCCEEDED in told.values()


async def check(journal: SqliteJournal, job: Job) -> None:
    """A request is there whole, or its job has ended; an answer is there where the job says so."""
    assert await journal.read_job_request(job.job_id) == (None if job.ended else REQUEST)
    if job.ended:
        assert await journal.read_answer(job.job_id) == ANSWER
    if job.state is JobState.QUEUED:
        assert await journal.get(job.job_id) is None
