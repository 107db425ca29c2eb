"""The SQL form of a journal: its tables, records into rows, rows into operations, faults into words.

`records` is append-only and is the truth; `operations` is an index over it, kept in the same
transaction, for lookups by key, by age and by "not ended". Operations are ordered by the place of
their OperationBegun in the journal, because the wall clock may jump. The functions here run inside
the caller's transaction and leave its exceptions alone.
"""

import itertools
import sqlite3
from collections.abc import Sequence
from typing import Final

from envoy_ext.adapters.journal_codec import decode_record, read_kind
from envoy_ext.domain.errors import JournalUnavailable
from envoy_ext.domain.operation import Operation, build_operation
from envoy_ext.domain.records import OperationBegun, OperationEnded, Record

SCHEMA_VERSION: Final = 4
"""2 knows who owns an operation; 3 keeps answers and the tool ledger, and finds what has ended; 4 has
jobs."""
APPLICATION_ID: Final = 0x656E766A
"""`envj` in the file's header: keeps us from writing into some other program's database."""

_SCHEMA: Final = (
    "CREATE TABLE records (seq INTEGER PRIMARY KEY, operation_id TEXT NOT NULL, kind TEXT NOT NULL,"
    " body TEXT NOT NULL)",
    "CREATE INDEX records_by_operation ON records (operation_id)",
    "CREATE TABLE operations (operation_id TEXT PRIMARY KEY, begun_seq INTEGER, caller TEXT, path TEXT,"
    " key_hash TEXT, state TEXT NOT NULL, created_at REAL, ended_at REAL)",
    "CREATE INDEX operations_by_age ON operations (begun_seq)",
    "CREATE INDEX operations_by_key ON operations (caller, path, key_hash, begun_seq)"
    " WHERE key_hash IS NOT NULL",
    "CREATE INDEX operations_unfinished ON operations (begun_seq) WHERE ended_at IS NULL",
)
"""As version 1 was made; `_STEPS` lead from there on."""
_STEPS: Final = {
    1: (
        "ALTER TABLE operations ADD COLUMN owner TEXT",
        "ALTER TABLE operations ADD COLUMN token INTEGER NOT NULL DEFAULT 0",
        "CREATE TABLE seats (number INTEGER PRIMARY KEY AUTOINCREMENT, seat TEXT UNIQUE,"
        " beat INTEGER NOT NULL)",
    ),
    2: (
        "CREATE TABLE answers (operation_id TEXT NOT NULL, name TEXT NOT NULL, status INTEGER NOT NULL,"
        " headers TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (operation_id, name))",
        "CREATE TABLE tool_calls (seq INTEGER PRIMARY KEY, ledger_id TEXT NOT NULL, call_id TEXT NOT NULL,"
        " body TEXT NOT NULL, UNIQUE (ledger_id, call_id))",
        "ALTER TABLE operations ADD COLUMN ledger_id TEXT",
        "CREATE INDEX operations_by_ledger ON operations (ledger_id) WHERE ledger_id IS NOT NULL",
        "CREATE INDEX operations_by_end ON operations (ended_at, begun_seq) WHERE ended_at IS NOT NULL",
        "CREATE INDEX operations_by_begin ON operations (created_at, operation_id)",
    ),
    3: (
        # AUTOINCREMENT: no number is given twice, also not after the last row has gone.
        "CREATE TABLE jobs (number INTEGER PRIMARY KEY AUTOINCREMENT, job_id TEXT NOT NULL UNIQUE,"
        " caller TEXT NOT NULL, path TEXT NOT NULL, key_hash TEXT, ledger_id TEXT NOT NULL,"
        " pool TEXT NOT NULL, body_bytes INTEGER NOT NULL, state TEXT NOT NULL, owner TEXT, ended_at REAL,"
        " may_have_results INTEGER NOT NULL DEFAULT 1, body TEXT NOT NULL)",
        "CREATE UNIQUE INDEX jobs_by_key ON jobs (caller, path, key_hash) WHERE key_hash IS NOT NULL",
        "CREATE INDEX jobs_unfinished ON jobs (number, state, owner) WHERE ended_at IS NULL",
        "CREATE INDEX jobs_counted ON jobs (pool, state, body_bytes) WHERE ended_at IS NULL",
        "CREATE INDEX jobs_by_ledger ON jobs (ledger_id) WHERE ended_at IS NULL",
        "CREATE INDEX jobs_by_end ON jobs (ended_at, number) WHERE ended_at IS NOT NULL",
        "CREATE INDEX jobs_with_results ON jobs (ended_at, number)"
        " WHERE ended_at IS NOT NULL AND may_have_results = 1",
        "CREATE TABLE job_requests (job_id TEXT PRIMARY KEY, head TEXT NOT NULL, body BLOB NOT NULL)",
        "ALTER TABLE operations ADD COLUMN job_id TEXT",
    ),
}
"""From each version to the next."""
_INSERT_RECORD: Final = "INSERT INTO records (operation_id, kind, body) VALUES (?, ?, ?)"
# Each writes its half of the row once: repeated records change nothing, and either may come first.
_INDEX_BEGIN: Final = (
    "INSERT INTO operations (operation_id, begun_seq, caller, path, key_hash, created_at, ledger_id, job_id,"
    " state) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'running') ON CONFLICT (operation_id) DO UPDATE SET"
    " begun_seq = excluded.begun_seq, caller = excluded.caller, path = excluded.path,"
    " key_hash = excluded.key_hash, created_at = excluded.created_at, ledger_id = excluded.ledger_id,"
    " job_id = excluded.job_id"
    " WHERE begun_seq IS NULL"
)
_INDEX_END: Final = (
    "INSERT INTO operations (operation_id, state, ended_at) VALUES (?, ?, ?)"
    " ON CONFLICT (operation_id) DO UPDATE SET state = excluded.state, ended_at = excluded.ended_at"
    " WHERE ended_at IS NULL"
)


def _select(chosen: str, order: str) -> str:
    return (
        "SELECT chosen.begun_seq, records.body"
        f" FROM (SELECT operation_id, begun_seq, created_at FROM operations WHERE {chosen}) AS chosen"
        f" JOIN records USING (operation_id) ORDER BY {order}, records.seq"
    )


_OLDEST_FIRST: Final = "chosen.begun_seq"
_NEWEST_FIRST: Final = "chosen.begun_seq DESC"


SELECT_BY_ID: Final = _select("operation_id = ? AND begun_seq IS NOT NULL", _OLDEST_FIRST)
SELECT_BY_KEY: Final = _select(
    "caller = ? AND path = ? AND key_hash = ? AND begun_seq IS NOT NULL ORDER BY begun_seq DESC LIMIT 1",
    _OLDEST_FIRST,
)
SELECT_NEWEST: Final = _select("begun_seq IS NOT NULL ORDER BY begun_seq DESC LIMIT ?", _NEWEST_FIRST)
SELECT_OLDER_THAN: Final = _select(
    "begun_seq < (SELECT begun_seq FROM operations WHERE operation_id = ?) ORDER BY begun_seq DESC LIMIT ?",
    _NEWEST_FIRST,
)
SELECT_ORPHANED: Final = _select(
    "ended_at IS NULL AND begun_seq > ?"
    " AND NOT EXISTS (SELECT 1 FROM seats WHERE seats.seat = operations.owner)"
    " ORDER BY begun_seq LIMIT ?",
    _OLDEST_FIRST,
)
SELECT_SINCE: Final = _select(
    "(created_at, operation_id) > (?, ?) ORDER BY created_at, operation_id LIMIT ?",
    "chosen.created_at, chosen.operation_id",
)


def bring_up_to_date(connection: sqlite3.Connection) -> None:
    """Make an empty database, or a journal of an earlier release, one of this release."""
    version = read_schema_version(connection)
    if version == 0:
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        version = 1
    for step in range(version, SCHEMA_VERSION):
        for statement in _STEPS[step]:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


_SELECT_STATE: Final = (
    "SELECT user_version, application_id, (SELECT count(*) FROM sqlite_master)"
    " FROM pragma_user_version, pragma_application_id"
)


def read_schema_version(connection: sqlite3.Connection) -> int:
    """The version of our schema, 0 in an empty database; `JournalUnavailable` for every other one."""
    version: int
    # One statement sees one state of the file: another sidecar may be making its tables at this moment.
    version, application_id, tables = connection.execute(_SELECT_STATE).fetchone()
    if (version, application_id, tables) == (0, 0, 0):
        return 0
    if application_id != APPLICATION_ID:
        raise JournalUnavailable("it is another program's database: name another file for the journal")
    if version > SCHEMA_VERSION:
        raise JournalUnavailable(
            f"it has schema {version}, this program knows up to {SCHEMA_VERSION}: "
            "run the later release that wrote it, or name another file"
        )
    return version


def insert_record(connection: sqlite3.Connection, record: Record, body: str) -> None:
    """Add one record, encoded as `body`, and what it changes in the index."""
    operation_id = build_column(record.operation_id)
    seq = connection.execute(_INSERT_RECORD, (operation_id, read_kind(record), body)).lastrowid
    if isinstance(record, OperationBegun):
        key_hash = None if record.key_hash is None else build_column(record.key_hash)
        caller, path = build_column(record.caller), build_column(record.path)
        ledger_id = None if record.ledger_id is None else build_column(record.ledger_id)
        job_id = None if record.job_id is None else build_column(record.job_id)
        values = (operation_id, seq, caller, path, key_hash, record.at, ledger_id, job_id)
        connection.execute(_INDEX_BEGIN, values)
    elif isinstance(record, OperationEnded):
        connection.execute(_INDEX_END, (operation_id, record.state.value, record.at))


def select_operations(
    connection: sqlite3.Connection, select: str, values: Sequence[str | int | float]
) -> list[tuple[int, Operation]]:
    """The operations one of the SELECT_ statements finds, each with its place in the journal."""
    parameters = [build_column(value) if isinstance(value, str) else value for value in values]
    rows: list[tuple[int, str]] = connection.execute(select, parameters).fetchall()
    found = []
    for begun_seq, group in itertools.groupby(rows, key=lambda row: row[0]):
        operation = build_operation(decode_record(body) for _, body in group)
        if operation is None:
            raise JournalUnavailable("its index names an operation whose begin is not there")
        found.append((begun_seq, operation))
    return found


def build_column(text: str) -> str:
    """Text as SQLite takes it: a lone surrogate (from bytes that are not UTF-8) is spelled out."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def explain_fault(fault: Exception) -> str:
    """What went wrong with the file and, where one is known, the mend; never what a record holds."""
    if isinstance(fault, sqlite3.Error):
        mend = _MENDS.get(_primary_code(fault))
        return f"{fault} ({mend})" if mend else str(fault)
    if isinstance(fault, PermissionError):
        return f"permission denied ({_LET_WRITE})"
    if isinstance(fault, OSError):
        return fault.strerror or str(fault)
    return str(fault) if isinstance(fault, JournalUnavailable) else type(fault).__name__


_LET_WRITE: Final = "let the sidecar's user write the file and its directory"
_MENDS: Final = {
    sqlite3.SQLITE_FULL: "free space on its disk",
    sqlite3.SQLITE_BUSY: "another program holds a lock on it: close that program",
    sqlite3.SQLITE_READONLY: _LET_WRITE,
    sqlite3.SQLITE_CANTOPEN: _LET_WRITE,
    sqlite3.SQLITE_NOTADB: "name another file, or move this one away",
    sqlite3.SQLITE_CORRUPT: "move it away and keep it: `sqlite3 FILE .recover` may read it",
}


def is_busy(fault: Exception) -> bool:
    """Whether someone else's lock was in the way for longer than we wait."""
    return isinstance(fault, sqlite3.Error) and _primary_code(fault) == sqlite3.SQLITE_BUSY


def _primary_code(fault: sqlite3.Error) -> int:
    # The low byte is the primary code: https://www.sqlite.org/rescode.html#pve. An error raised by
    # Python's own wrapper (a closed connection) carries none.
    return getattr(fault, "sqlite_errorcode", 0) & 0xFF
