"""What a SQLite journal has kept, how much of it, and how it goes.

A removed row leaves its room to later ones: the file stays as large as it once was. Each function runs inside
the caller's transaction (`BEGIN IMMEDIATE` where it writes).
"""

import sqlite3
from typing import Final

from envoy_ext.adapters import journal_sqlite_codec as codec
from envoy_ext.adapters import journal_sqlite_jobs as jobs
from envoy_ext.adapters import journal_sqlite_ledger as ledger
from envoy_ext.ports import StoreSize

MAX_FREED_BYTES: Final = 2 * 1024 * 1024
"""Of kept answers in one transaction: each page of theirs is overwritten, while others wait."""

FORGET_ANSWER: Final = f"DELETE FROM answers WHERE operation_id = ? AND name = '{ledger.OWN_ANSWER}'"
ANSWER_SIZE: Final = (
    f"SELECT length(body) FROM answers WHERE operation_id = ? AND name = '{ledger.OWN_ANSWER}'"
)
OLDEST: Final = (
    "SELECT ended_at, 0 AS is_job, begun_seq AS place, operation_id, coalesce(ledger_id, operation_id), ("
    "  SELECT coalesce(sum(length(body)), 0) FROM answers"
    "  WHERE answers.operation_id = operations.operation_id)"
    " FROM operations WHERE ended_at < ?1 AND NOT EXISTS (SELECT 1 FROM jobs"
    "  WHERE jobs.job_id = operations.job_id AND jobs.ended_at IS NULL)"
    " UNION ALL SELECT ended_at, 1, number, job_id, NULL, 0 FROM jobs WHERE ended_at < ?1"
    " ORDER BY ended_at, is_job, place LIMIT ?2"
)
"""Operations that no job needs, and jobs: those have no ledger here."""


def forget(connection: sqlite3.Connection, before: float, limit: int) -> int:
    """`ports.Archive.forget`. Less than the limit goes where what goes is large."""
    ids: list[str] = []
    job_ids: list[str] = []
    ledgers: set[str] = set()
    freed = 0
    # SQLite reads a negative LIMIT as "all", and has no larger number than 2**63 - 1.
    oldest = connection.execute(OLDEST, (before, min(max(limit, 0), 2**63 - 1)))
    for _, is_job, _, found_id, ledger_id, answers_bytes in oldest:
        if ids and freed + answers_bytes > MAX_FREED_BYTES:
            break
        if is_job:
            job_ids.append(found_id)
            continue
        ids.append(found_id)
        ledgers.add(ledger_id)
        freed += answers_bytes
    oldest.close()
    of_each = [(operation_id,) for operation_id in ids]
    connection.executemany("DELETE FROM records WHERE operation_id = ?", of_each)
    connection.executemany("DELETE FROM operations WHERE operation_id = ?", of_each)
    connection.executemany(FORGET_ANSWER, of_each)
    connection.executemany("DELETE FROM jobs WHERE job_id = ?", [(job_id,) for job_id in job_ids])
    for ledger_id in ledgers:
        ledger.forget_unused(connection, ledger_id)
    return len(ids) + len(job_ids)


def forget_results(connection: sqlite3.Connection, before: float, limit: int) -> int:
    """`ports.JobStore.forget_results`. Less than the limit goes where what goes is large."""
    found = jobs.select(connection, jobs.WITH_RESULTS, before, min(max(limit, 0), 2**63 - 1))
    forgotten, freed = 0, 0
    for job in found:
        runs = [(codec.build_column(run_id),) for run_id in job.run_ids]
        sizes = [connection.execute(ANSWER_SIZE, run).fetchone() for run in runs]
        size = sum(one[0] for one in sizes if one is not None)
        if forgotten and freed + size > MAX_FREED_BYTES:
            break
        connection.executemany(FORGET_ANSWER, runs)
        connection.execute("UPDATE jobs SET may_have_results = 0 WHERE number = ?", (job.number,))
        forgotten, freed = forgotten + 1, freed + size
    return forgotten


def measure(connection: sqlite3.Connection) -> StoreSize:
    """`ports.Archive.measure`."""
    (operations,) = connection.execute("SELECT count(*) FROM operations WHERE begun_seq > 0").fetchone()
    pages = connection.execute(
        "SELECT (page_count - freelist_count) * page_size"
        " FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
    )
    return StoreSize(operations, pages.fetchone()[0])
