"""The seats of a SQLite journal: which gateways there are.

Each function runs inside the caller's transaction (`BEGIN IMMEDIATE` where it writes).
"""

import sqlite3
from collections.abc import Mapping

from envoy_ext.domain.errors import SeatLost
from envoy_ext.domain.ids import SeatId


def take(connection: sqlite3.Connection, gateway: str) -> SeatId:
    """`ports.Journal.take_seat`. AUTOINCREMENT never gives a number twice, also not of a removed row."""
    number = connection.execute("INSERT INTO seats (beat) VALUES (1)").lastrowid
    seat = SeatId(f"{gateway}/{number}")
    connection.execute("UPDATE seats SET seat = ? WHERE number = ?", (seat, number))
    return seat


def beat(connection: sqlite3.Connection, seat: SeatId, number: int) -> None:
    """`ports.Journal.beat`."""
    refuse_without(connection, seat)
    connection.execute("UPDATE seats SET beat = max(beat, ?) WHERE seat = ?", (number, seat))


def remove(connection: sqlite3.Connection, seat: SeatId, number: int) -> bool:
    """`ports.Journal.remove_seat`."""
    connection.execute("DELETE FROM seats WHERE seat = ? AND beat = ?", (seat, number))
    return not is_there(connection, seat)


def clear(connection: sqlite3.Connection) -> None:
    """Remove every seat."""
    connection.execute("DELETE FROM seats")


def read(connection: sqlite3.Connection) -> Mapping[SeatId, int]:
    """`ports.Journal.read_seats`."""
    return {SeatId(seat): number for seat, number in connection.execute("SELECT seat, beat FROM seats")}


def is_there(connection: sqlite3.Connection, seat: str | None) -> bool:
    """Whether a gateway holds this seat."""
    return connection.execute("SELECT 1 FROM seats WHERE seat = ?", (seat,)).fetchone() is not None


def refuse_without(connection: sqlite3.Connection, seat: SeatId) -> None:
    """Raise `SeatLost` unless a gateway holds this seat."""
    if not is_there(connection, seat):
        raise SeatLost(f"{seat} has no seat")
