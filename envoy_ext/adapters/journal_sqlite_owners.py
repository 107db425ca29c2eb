"""The steps of a SQLite journal that look before they write: who owns an operation.

Each runs inside the caller's transaction, which no other writer can come between (`BEGIN IMMEDIATE`), and
raises its refusal before it has written anything.
"""

import sqlite3
from collections.abc import Sequence
from typing import Final

from envoy_ext.adapters import journal_sqlite_codec as codec
from envoy_ext.adapters import journal_sqlite_jobs as jobs
from envoy_ext.adapters import journal_sqlite_ledger as ledger
from envoy_ext.adapters import journal_sqlite_seats as seats
from envoy_ext.adapters.journal_codec import encode_record
from envoy_ext.domain.errors import JournalUnavailable, NotOwner
from envoy_ext.domain.ids import FencingToken, OperationId, SeatId
from envoy_ext.domain.job import Job
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.operation import Operation
from envoy_ext.domain.ownership import FIRST_TOKEN
from envoy_ext.domain.records import OperationBegun, OwnershipTaken, Record

NEWEST_OF_KEY: Final = (
    "SELECT operation_id FROM operations WHERE caller = ? AND path = ? AND key_hash = ?"
    " AND begun_seq IS NOT NULL ORDER BY begun_seq DESC LIMIT 1"
)
_OWNED: Final = "SELECT owner, token FROM operations WHERE operation_id = ? AND begun_seq IS NOT NULL"


def begin(
    connection: sqlite3.Connection, begun: OperationBegun, owner: SeatId, after: OperationId | None
) -> Operation | Job | None:
    """`ports.Journal.begin`."""
    seats.refuse_without(connection, owner)
    owned = connection.execute(_OWNED, (codec.build_column(begun.operation_id),)).fetchone()
    if owned is not None:
        if owned[0] != owner:
            raise NotOwner(f"{begun.operation_id} belongs to another gateway")
        return None
    if begun.job_id is not None:
        jobs.refuse_run(connection, begun.job_id, begun.operation_id, owner)
    if begun.key_hash is not None:
        job = jobs.find(connection, begun.caller, begun.path, begun.key_hash)
        if job is not None:
            return job
        values = [codec.build_column(one) for one in (begun.caller, begun.path, begun.key_hash)]
        holder = connection.execute(NEWEST_OF_KEY, values).fetchone()
        if holder is not None and holder[0] != after:
            return codec.select_operations(connection, codec.SELECT_BY_ID, holder)[0][1]
    codec.insert_record(connection, begun, encode_record(begun))
    _write_owner(connection, OwnershipTaken(begun.operation_id, begun.at, owner, FIRST_TOKEN))
    return None


def append(
    connection: sqlite3.Connection,
    operation_id: OperationId,
    rows: Sequence[tuple[Record, str]],
    token: FencingToken,
    answer: KeptAnswer | None,
) -> None:
    """`ports.Journal.append`, of records that are encoded already."""
    owned = connection.execute(_OWNED, (codec.build_column(operation_id),)).fetchone()
    if owned is None or owned[1] != token:
        raise NotOwner(f"{operation_id} belongs to another gateway, or to none")
    for record, body in rows:
        codec.insert_record(connection, record, body)
    if answer is not None:
        ledger.keep_answer(connection, operation_id, ledger.OWN_ANSWER, answer)


def take_over(
    connection: sqlite3.Connection, operation_id: OperationId, seen: FencingToken, owner: SeatId, at: float
) -> Operation:
    """`ports.Journal.take_over`."""
    seats.refuse_without(connection, owner)
    owned = connection.execute(_OWNED, (codec.build_column(operation_id),)).fetchone()
    again = owned is not None and tuple(owned) == (owner, seen + 1)
    if not again:
        if owned is None or owned[1] != seen or seats.is_there(connection, owned[0]):
            raise NotOwner(f"{operation_id} is not there to be taken over")
        _write_owner(connection, OwnershipTaken(operation_id, at, owner, FencingToken(seen + 1)))
    found = codec.select_operations(connection, codec.SELECT_BY_ID, (operation_id,))
    if not found:
        raise JournalUnavailable("its index names an operation that is not there")
    return found[0][1]


def _write_owner(connection: sqlite3.Connection, taken: OwnershipTaken) -> None:
    codec.insert_record(connection, taken, encode_record(taken))
    connection.execute(
        "UPDATE operations SET owner = ?, token = ? WHERE operation_id = ?",
        (taken.owner, taken.token, codec.build_column(taken.operation_id)),
    )
