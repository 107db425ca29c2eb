"""A process that has jobs taken in, run and ended until it is killed, and says each thing it was promised.

Run as `python -m tests.support.jobs_crash_writer PATH SYNCHRONOUS ROUND`. It prints `STATE ID` when the store
has said so: that must survive whatever comes next.
"""

import asyncio
import itertools
import sys

from envoy_ext.adapters.journal_sqlite import SqliteJournal
from envoy_ext.domain.ids import FencingToken, SeatId
from envoy_ext.domain.job import Job
from tests.support.jobs import begin_run, claim, job_end, submit
from tests.support.journals import ANSWER
from tests.support.records import ended

LANES = 6


def say(job: Job) -> None:
    # One write, so that no line is cut in two by another task's.
    sys.stdout.write(f"{job.state.value} {job.job_id}\n")
    sys.stdout.flush()


async def live(journal: SqliteJournal, seat: SeatId, round_: str, lane: int) -> None:
    for number in itertools.count():
        job = await submit(journal, f"op_{round_}_{lane}_{number}")
        say(job)
        running = await claim(journal, job, seat)
        say(running)
        await begin_run(journal, running, seat)
        await journal.append([ended(job.job_id)], FencingToken(1), ANSWER)
        say(await journal.finish_job(job.job_id, running.token, job_end()))


async def main(path: str, synchronous: str, round_: str) -> None:
    assert synchronous in ("normal", "full")
    journal = await SqliteJournal.open(path, synchronous="full" if synchronous == "full" else "normal")
    seat = await journal.take_seat("gw")
    await asyncio.gather(*(live(journal, seat, round_, lane) for lane in range(LANES)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
