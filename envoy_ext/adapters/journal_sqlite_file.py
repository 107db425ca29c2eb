"""A journal's file: its lock, its connections, its schema's steps, and its faults in words."""

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal

from envoy_ext.adapters import journal_sqlite_codec as codec
from envoy_ext.domain.errors import JournalUnavailable

Synchronous = Literal["normal", "full"]
BUSY_TIMEOUT_S: Final = 2.0
"""How long to wait for a lock on the file: another sidecar's commit takes milliseconds, a person's `sqlite3`
shell may hold it for longer."""
SWITCH_AGAIN_S: Final = 0.02
"""From one try to switch a fresh file to WAL to the next."""
WAL_SIZE_LIMIT_BYTES: Final = 16 * 1024 * 1024
"""What a checkpoint cuts the WAL back to; SQLite starts one at about 4 MB."""


class FileLock:
    """The right to write a journal file, alone or beside others that share it: an flock, which the kernel
    takes back however a process ends.

    It is on a file of its own because closing any descriptor of the database would drop the locks
    SQLite holds on it. The side file stays when the lock is released: removing it would let two
    processes lock two files of one name.
    """

    def __init__(self, path: Path, *, shared: bool) -> None:
        self.shared: Final = shared
        with explained(path, "opened"):
            self._descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with explained(path, "opened"):
                self._take(path)
        except JournalUnavailable:
            os.close(self._descriptor)
            raise
        # For people who meet the lock; on a full disk it is missing and the lock holds.
        with suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.write(self._descriptor, b"shared\n" if shared else f"{os.getpid()}\n".encode())

    def _take(self, path: Path) -> None:
        try:
            fcntl.flock(self._descriptor, (fcntl.LOCK_SH if self.shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.read(self._descriptor, 32).decode("ascii", "replace").strip() or "unknown"
            if owner == "shared":
                raise JournalUnavailable(
                    "it is in use by sidecars that share it: set journal.shared, or name another file"
                ) from error
            raise JournalUnavailable(
                f"it is in use by process {owner}: stop it, give each sidecar a file of its own, or set "
                "journal.shared for all of them"
            ) from error

    def release(self) -> None:
        os.close(self._descriptor)


def connect_for_writing(path: Path, synchronous: Synchronous) -> sqlite3.Connection:
    with explained(path, "opened"):
        with suppress(FileExistsError):
            # SQLite gives its WAL the mode of the file, so creating the file ourselves settles both.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        connection = _connect(path, "rw")
        try:
            _prepare(connection, synchronous)
        except BaseException:  # whatever it was, nothing stays open
            connection.close()
            raise
    return connection


def _prepare(connection: sqlite3.Connection, synchronous: Synchronous) -> None:
    # The look comes before the first write: another program's database must stay as it is.
    codec.read_schema_version(connection)
    if _switch_to_wal(connection) != "wal":
        raise JournalUnavailable("its file system does not support SQLite's WAL: use a local disk")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    # Removed answers are a client's: they shall not stand in free pages of the file. Debian's SQLite does
    # this by itself, others do not; to remove a hundred operations with answers of 20 KB takes 20 ms so.
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_SIZE_LIMIT_BYTES}")
    # On a complete file too: one that cannot be written shows here and not in the first request.
    connection.execute("BEGIN IMMEDIATE")
    codec.bring_up_to_date(connection)
    connection.execute("COMMIT")


def _switch_to_wal(connection: sqlite3.Connection) -> str:
    """The journal mode after the switch.

    Of two that switch a fresh file at once SQLite refuses one without a wait, since each would wait for the
    other: that one tries again.
    """
    give_up_at = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.Error as fault:
            if not codec.is_busy(fault) or time.monotonic() >= give_up_at:
                raise
            time.sleep(SWITCH_AGAIN_S)
        else:
            return str(mode)


def connect_for_reading(path: Path) -> sqlite3.Connection:
    with explained(path, "opened"):
        identify(path)
        connection = _connect(path, "ro")
        try:
            if codec.read_schema_version(connection) == 0:
                raise JournalUnavailable("it is empty: no sidecar has written to it yet")
        except BaseException:  # whatever it was, nothing stays open
            connection.close()
            raise
    return connection


def _connect(path: Path, mode: Literal["rw", "ro"]) -> sqlite3.Connection:
    # No isolation level: transactions begin and end where this module says so. Each connection is
    # used by one thread at a time, but opened in another.
    return sqlite3.connect(
        f"{path.as_uri()}?mode={mode}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )


def identify(path: Path) -> tuple[int, int]:
    """Which file stands under this name."""
    found = os.stat(path)
    return found.st_dev, found.st_ino


@contextmanager
def explained(path: Path, what: str) -> Iterator[None]:
    """Faults of the file become `JournalUnavailable` with the path and, where one is known, the mend."""
    try:
        yield
    except (OSError, sqlite3.Error, JournalUnavailable) as fault:
        raise build_unavailable(path, what, fault) from fault


def build_unavailable(path: Path, what: str, fault: Exception) -> JournalUnavailable:
    unavailable = JournalUnavailable(f"the journal {path} cannot be {what}: {codec.explain_fault(fault)}")
    unavailable.__cause__ = fault
    return unavailable
