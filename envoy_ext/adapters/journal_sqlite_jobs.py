"""The jobs of a SQLite journal: rows that hold each as `job_codec` writes it, and what finds them.

Each function runs inside the caller's transaction (`BEGIN IMMEDIATE` where it writes), and raises its refusal
before it has written anything.
"""

import json
import sqlite3
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from envoy_ext.adapters import job_codec
from envoy_ext.adapters import journal_sqlite_codec as codec
from envoy_ext.adapters import journal_sqlite_ledger as ledger
from envoy_ext.adapters import journal_sqlite_seats as seats
from envoy_ext.domain.errors import NotOwner
from envoy_ext.domain.ids import FencingToken, OperationId, PoolName, SeatId
from envoy_ext.domain.job import (
    UNFINISHED,
    Job,
    JobBounds,
    JobCounts,
    JobRequest,
    JobsFull,
    JobState,
    NewJob,
    RunState,
    decide_submit,
    decide_take_over,
)
from envoy_ext.domain.operation import Operation

BY_ID: Final = "SELECT body FROM jobs WHERE job_id = ?"
BY_KEY: Final = "SELECT body FROM jobs WHERE caller = ? AND path = ? AND key_hash = ?"
ORPHANED: Final = (
    "SELECT body FROM jobs WHERE ended_at IS NULL AND state = 'running'"
    " AND NOT EXISTS (SELECT 1 FROM seats WHERE seats.seat = jobs.owner) ORDER BY number LIMIT ?"
)
WITH_RESULTS: Final = (
    "SELECT body FROM jobs WHERE ended_at < ? AND may_have_results = 1 ORDER BY ended_at, number LIMIT ?"
)
COUNT: Final = (
    "SELECT pool, state, count(*), sum(body_bytes) FROM jobs INDEXED BY jobs_counted"
    " WHERE ended_at IS NULL GROUP BY pool, state"
)
_INSERT: Final = (
    "INSERT INTO jobs (job_id, caller, path, key_hash, ledger_id, pool, body_bytes, state, body)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, '')"
)
_UPDATE: Final = "UPDATE jobs SET state = ?, owner = ?, ended_at = ?, body = ? WHERE number = ?"


Decision = Callable[[Job, RunState], Job]
"""From a job and how far its newest run has come to the job from then on; or a refusal."""


def submit(
    connection: sqlite3.Connection,
    new: NewJob,
    request: JobRequest,
    bounds: JobBounds,
    after: OperationId | None,
) -> Job | Operation | JobsFull:
    """`ports.JobStore.submit_job`."""
    known = get(connection, new.job_id)
    if known is not None:
        return known
    if new.key_hash is not None:
        holder = find(connection, new.caller, new.path, new.key_hash)
        if holder is not None:
            return holder
        named = (new.caller, new.path, new.key_hash)
        found = codec.select_operations(connection, codec.SELECT_BY_KEY, named)
        if found and found[0][1].operation_id != after:
            return found[0][1]
    made = decide_submit(new, 1, count(connection), bounds)
    if isinstance(made, JobsFull):
        return made
    return _insert(connection, made, request)


def change(connection: sqlite3.Connection, job_id: OperationId, decide: Decision) -> Job:
    """Make one decision about a job and write it; `NotOwner` when it is not there."""
    job = get(connection, job_id)
    if job is None:
        raise NotOwner(f"there is no job {job_id}")
    return _put(connection, job, decide(job, _read_run(connection, job)))


def claim(
    connection: sqlite3.Connection,
    job_id: OperationId,
    seat: SeatId,
    decide: Decision,
) -> Job:
    """`ports.JobStore.claim_job`."""
    seats.refuse_without(connection, seat)
    return change(connection, job_id, decide)


def take_over(connection: sqlite3.Connection, job_id: OperationId, seen: FencingToken, seat: SeatId) -> Job:
    """`ports.JobStore.take_over_job`."""
    seats.refuse_without(connection, seat)
    return change(
        connection,
        job_id,
        lambda job, _: decide_take_over(job, seen, seat, seats.is_there(connection, job.owner)),
    )


def cancel(connection: sqlite3.Connection, job_id: OperationId, decide: Decision) -> Job | None:
    """`ports.JobStore.cancel_job`."""
    return None if get(connection, job_id) is None else change(connection, job_id, decide)


def refuse_run(
    connection: sqlite3.Connection, job_id: OperationId, run_id: OperationId, owner: SeatId
) -> None:
    """Raise `NotOwner` unless the run of a job may begin in this seat."""
    job = get(connection, job_id)
    if job is None or not job.may_begin(run_id, owner):
        raise NotOwner(f"{run_id} is a run of a job that may not begin it")


def get(connection: sqlite3.Connection, job_id: OperationId) -> Job | None:
    """`ports.JobStore.read_job`."""
    found = select(connection, BY_ID, job_id)
    return found[0] if found else None


def find(connection: sqlite3.Connection, caller: str, path: str, key_hash: str) -> Job | None:
    """`ports.JobStore.find_job`."""
    found = select(connection, BY_KEY, caller, path, key_hash)
    return found[0] if found else None


def read_request(connection: sqlite3.Connection, job_id: OperationId) -> JobRequest | None:
    """`ports.JobStore.read_job_request`."""
    named = (codec.build_column(job_id),)
    row = connection.execute("SELECT head, body FROM job_requests WHERE job_id = ?", named).fetchone()
    return None if row is None else job_codec.decode_request(row[0], row[1])


def list_jobs(
    connection: sqlite3.Connection, states: frozenset[JobState], limit: int, after: int
) -> list[Job]:
    """`ports.JobStore.list_jobs`."""
    return select(connection, build_list(states), *(state.value for state in states), after, limit)


def build_list(states: frozenset[JobState]) -> str:
    """The statement that lists jobs in these states: of them, a number and a limit."""
    marks = ", ".join("?" * len(states))
    # Said in so many words, the index of those that have not ended can be used.
    unfinished = " AND ended_at IS NULL" if states <= UNFINISHED else ""
    return (
        f"SELECT body FROM jobs WHERE state IN ({marks}){unfinished} AND number > ? ORDER BY number LIMIT ?"
    )


def count(connection: sqlite3.Connection) -> JobCounts:
    """`ports.JobStore.count_jobs`."""
    found: dict[str, dict[PoolName, int]] = defaultdict(dict)
    request_bytes = 0
    for pool, state, jobs, body_bytes in connection.execute(COUNT):
        found[state][PoolName(json.loads(pool))] = jobs
        request_bytes += body_bytes
    return JobCounts(found[JobState.QUEUED.value], found[JobState.RUNNING.value], request_bytes)


def select(connection: sqlite3.Connection, statement: str, *values: str | int | float) -> list[Job]:
    """The jobs that a statement finds; it selects their bodies."""
    parameters = [codec.build_column(value) if isinstance(value, str) else value for value in values]
    return [job_codec.decode_job(body) for (body,) in connection.execute(statement, parameters)]


def _insert(connection: sqlite3.Connection, made: Job, request: JobRequest) -> Job:
    key_hash = None if made.key_hash is None else codec.build_column(made.key_hash)
    named = [codec.build_column(one) for one in (made.job_id, made.caller, made.path)]
    values = (codec.build_column(made.ledger_id), json.dumps(made.pool), made.body_bytes, made.state.value)
    number = connection.execute(_INSERT, (*named, key_hash, *values)).lastrowid
    assert number is not None
    job = replace(made, number=number)
    _update(connection, job)
    connection.execute(
        "INSERT INTO job_requests (job_id, head, body) VALUES (?, ?, ?)",
        (named[0], job_codec.encode_head(request), request.body),
    )
    return job


def _put(connection: sqlite3.Connection, before: Job, job: Job) -> Job:
    if job == before:
        return job
    _update(connection, job)
    if job.ended:
        connection.execute("DELETE FROM job_requests WHERE job_id = ?", (codec.build_column(job.job_id),))
        ledger.forget_unused(connection, codec.build_column(job.ledger_id))
    return job


def _update(connection: sqlite3.Connection, job: Job) -> None:
    ended_at = None if job.end is None else job.end.at
    body = job_codec.encode_job(job)
    connection.execute(_UPDATE, (job.state.value, job.owner, ended_at, body, job.number))


def _read_run(connection: sqlite3.Connection, job: Job) -> RunState:
    if job.run_id is None:
        return RunState.NONE
    row = connection.execute(
        "SELECT ended_at IS NULL FROM operations WHERE operation_id = ? AND begun_seq IS NOT NULL",
        (codec.build_column(job.run_id),),
    ).fetchone()
    if row is None:
        return RunState.NONE
    return RunState.OPEN if row[0] else RunState.OVER
