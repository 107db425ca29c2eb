"""The steps of a SQLite journal that look before they write: who owns an operation, and who has a seat.

Each runs inside the caller's transaction, which no other writer can come between (`BEGIN IMMEDIATE`), and
raises its refusal before it has written anything.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Final

from envoy_ext.adapters import journal_sqlite_codec as codec
from envoy_ext.adapters import journal_sqlite_ledger as ledger
from envoy_ext.adapters.journal_codec import encode_record
from envoy_ext.domain.errors import JournalUnavailable, NotOwner, SeatLost
from envoy_ext.domain.ids import FencingToken, OperationId, SeatId
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
) -> Operation | None:
    """`ports.Journal.begin`."""
    _refuse_without_seat(connection, owner)
    owned = connection.execute(_OWNED, (codec.build_column(begun.operation_id),)).fetchone()
    if owned is not None:
        if owned[0] != owner:
            raise NotOwner(f"{begun.operation_id} belongs to another gateway")
        return None
    if begun.key_hash is not None:
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
    _refuse_without_seat(connection, owner)
    owned = connection.execute(_OWNED, (codec.build_column(operation_id),)).fetchone()
    again = owned is not None and tuple(owned) == (owner, seen + 1)
    if not again:
        if owned is None or owned[1] != seen or _has_seat(connection, owned[0]):
            raise NotOwner(f"{operation_id} is not there to be taken over")
        _write_owner(connection, OwnershipTaken(operation_id, at, owner, FencingToken(seen + 1)))
    found = codec.select_operations(connection, codec.SELECT_BY_ID, (operation_id,))
    if not found:
        raise JournalUnavailable("its index names an operation that is not there")
    return found[0][1]


def take_seat(connection: sqlite3.Connection, gateway: str) -> SeatId:
    """`ports.Journal.take_seat`. AUTOINCREMENT never gives a number twice, also not of a removed row."""
    number = connection.execute("INSERT INTO seats (beat) VALUES (1)").lastrowid
    seat = SeatId(f"{gateway}/{number}")
    connection.execute("UPDATE seats SET seat = ? WHERE number = ?", (seat, number))
    return seat


def beat(connection: sqlite3.Connection, seat: SeatId, number: int) -> None:
    """`ports.Journal.beat`."""
    _refuse_without_seat(connection, seat)
    connection.execute("UPDATE seats SET beat = max(beat, ?) WHERE seat = ?", (number, seat))


def remove_seat(connection: sqlite3.Connection, seat: SeatId, number: int) -> bool:
    """`ports.Journal.remove_seat`."""
    connection.execute("DELETE FROM seats WHERE seat = ? AND beat = ?", (seat, number))
    return not _has_seat(connection, seat)


def clear_seats(connection: sqlite3.Connection) -> None:
    """Remove every seat."""
    connection.execute("DELETE FROM seats")


def read_seats(connection: sqlite3.Connection) -> Mapping[SeatId, int]:
    """`ports.Journal.read_seats`."""
    return {SeatId(seat): number for seat, number in connection.execute("SELECT seat, beat FROM seats")}


def _write_owner(connection: sqlite3.Connection, taken: OwnershipTaken) -> None:
    codec.insert_record(connection, taken, encode_record(taken))
    connection.execute(
        "UPDATE operations SET owner = ?, token = ? WHERE operation_id = ?",
        (taken.owner, taken.token, codec.build_column(taken.operation_id)),
    )


def _has_seat(connection: sqlite3.Connection, seat: str | None) -> bool:
    return connection.execute("SELECT 1 FROM seats WHERE seat = ?", (seat,)).fetchone() is not None


def _refuse_without_seat(connection: sqlite3.Connection, seat: SeatId) -> None:
    if not _has_seat(connection, seat):
        raise SeatLost(f"{seat} has no seat")
