"""What a SQLite journal has kept, how much of it, and how it goes.

A removed row leaves its room to later ones: the file stays as large as it once was. Each function runs inside
the caller's transaction (`BEGIN IMMEDIATE` where it writes).
"""

import sqlite3
from typing import Final

from envoy_ext.adapters import journal_sqlite_ledger as ledger
from envoy_ext.ports import StoreSize

MAX_FREED_BYTES: Final = 2 * 1024 * 1024
"""Of kept answers in one transaction: each page of theirs is overwritten, while others wait."""

OLDEST: Final = (
    "SELECT operation_id, coalesce(ledger_id, operation_id), ("
    "  SELECT coalesce(sum(length(body)), 0) FROM answers"
    "  WHERE answers.operation_id = operations.operation_id)"
    " FROM operations WHERE ended_at < ? ORDER BY ended_at, begun_seq LIMIT ?"
)
IN_USE: Final = (
    "SELECT 1 FROM operations WHERE ledger_id = ?1"
    " UNION ALL SELECT 1 FROM operations WHERE operation_id = ?1 AND ledger_id IS NULL LIMIT 1"
)


def forget(connection: sqlite3.Connection, before: float, limit: int) -> int:
    """`ports.Archive.forget`. Less than the limit goes where what goes is large."""
    ids: list[str] = []
    ledgers: set[str] = set()
    freed = 0
    # SQLite reads a negative LIMIT as "all", and has no larger number than 2**63 - 1.
    oldest = connection.execute(OLDEST, (before, min(max(limit, 0), 2**63 - 1)))
    for operation_id, ledger_id, answers_bytes in oldest:
        if ids and freed + answers_bytes > MAX_FREED_BYTES:
            break
        ids.append(operation_id)
        ledgers.add(ledger_id)
        freed += answers_bytes
    oldest.close()
    of_each = [(operation_id,) for operation_id in ids]
    connection.executemany("DELETE FROM records WHERE operation_id = ?", of_each)
    connection.executemany("DELETE FROM operations WHERE operation_id = ?", of_each)
    own = f"DELETE FROM answers WHERE operation_id = ? AND name = '{ledger.OWN_ANSWER}'"
    connection.executemany(own, of_each)
    for ledger_id in ledgers:
        if connection.execute(IN_USE, (ledger_id,)).fetchone() is None:
            connection.execute("DELETE FROM tool_calls WHERE ledger_id = ?", (ledger_id,))
            # What is left there under its name are results: its own answer went with the operation.
            connection.execute(
                f"DELETE FROM answers WHERE operation_id = ? AND name <> '{ledger.OWN_ANSWER}'", (ledger_id,)
            )
    return len(ids)


def measure(connection: sqlite3.Connection) -> StoreSize:
    """`ports.Archive.measure`."""
    (operations,) = connection.execute("SELECT count(*) FROM operations WHERE begun_seq > 0").fetchone()
    pages = connection.execute(
        "SELECT (page_count - freelist_count) * page_size"
        " FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
    )
    return StoreSize(operations, pages.fetchone()[0])
