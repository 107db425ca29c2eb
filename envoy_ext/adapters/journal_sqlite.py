"""A journal in one SQLite file: survives the death of the process, and of the machine when asked to.

Three parts, three owners:

* the writer, a thread with its own connection. Everything queued while it commits goes into its
  next transaction, so a hundred exchanges that append at once pay for one commit;
* the reads, a connection in a thread of its own. WAL lets them go on beside the writer;
* the lock on a side file, held as long as the journal is open: one sidecar owns the file, or several
  that were all told to share it. Readers in other processes (`SqliteJournalReader`) need no lock, and
  work on what a kill -9 left behind.
"""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, Self, TypeVar

from envoy_ext.adapters import journal_sqlite_archive as archive
from envoy_ext.adapters import journal_sqlite_codec as codec
from envoy_ext.adapters import journal_sqlite_ledger as ledger
from envoy_ext.adapters import journal_sqlite_owners as owners
from envoy_ext.adapters import journal_sqlite_seats as seats
from envoy_ext.adapters.journal_codec import encode_record
from envoy_ext.adapters.journal_sqlite_file import (
    FileLock,
    Synchronous,
    connect_for_reading,
    connect_for_writing,
    explained,
)
from envoy_ext.adapters.journal_sqlite_job_calls import SqliteJobCalls
from envoy_ext.adapters.journal_sqlite_writer import Work, Writer
from envoy_ext.adapters.tool_call_codec import refuse_unwritable
from envoy_ext.domain.errors import JournalUnavailable
from envoy_ext.domain.ids import FencingToken, OperationId, SeatId
from envoy_ext.domain.job import Job
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.operation import Operation
from envoy_ext.domain.records import OperationBegun, Record, find_operation
from envoy_ext.domain.tool_calls import CallEnd, CallId, Claim, NewCall, ToolCall, check_end
from envoy_ext.ports import NO_OPERATION, StoreSize

GUARANTEES: Final[dict[Synchronous, frozenset[str]]] = {
    # https://www.sqlite.org/pragma.html#pragma_synchronous: in WAL mode NORMAL syncs at checkpoints
    # only, so a power cut may roll the last commits back; FULL syncs the WAL after each commit.
    "normal": frozenset({"process_death"}),
    "full": frozenset({"process_death", "power_loss"}),
}
_Result = TypeVar("_Result")

ORPHANS_PAGE: Final = 256
"""Operations folded at a time while recovery walks over them."""


class _Reads:
    """The lookups, over a connection that one thread owns."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal-reads")
        self._closing: asyncio.Future[None] | None = None

    async def get(self, operation_id: OperationId) -> Operation | None:
        found = await self._select(codec.SELECT_BY_ID, operation_id)
        return found[0][1] if found else None

    async def find_by_key(self, caller: str, path: str, key_hash: str) -> Operation | None:
        found = await self._select(codec.SELECT_BY_KEY, caller, path, key_hash)
        return found[0][1] if found else None

    async def list_recent(self, limit: int, before: OperationId | None = None) -> list[Operation]:
        # SQLite reads a negative LIMIT as "all", and has no larger number than 2**63 - 1.
        limit = min(max(limit, 0), 2**63 - 1)
        if before is None:
            found = await self._select(codec.SELECT_NEWEST, limit)
        else:
            found = await self._select(codec.SELECT_OLDER_THAN, before, limit)
        return [operation for _, operation in found]

    async def orphaned(self) -> AsyncIterator[Operation]:
        """Page by page: each operation is as it stood when its page was read."""
        after = 0
        while page := await self._select(codec.SELECT_ORPHANED, after, ORPHANS_PAGE):
            for _, operation in page:
                yield operation
            after = page[-1][0]

    async def list_since(self, at: float, limit: int, after: OperationId = NO_OPERATION) -> list[Operation]:
        limit = min(max(limit, 0), 2**63 - 1)
        return [operation for _, operation in await self._select(codec.SELECT_SINCE, at, after, limit)]

    async def measure(self) -> StoreSize:
        return await self._read(archive.measure)

    async def read_answer(self, operation_id: OperationId) -> KeptAnswer | None:
        return await self._read(partial(ledger.read_answer, of=operation_id, name=ledger.OWN_ANSWER))

    async def read_calls(self, ledger_id: OperationId) -> tuple[ToolCall, ...]:
        return await self._read(partial(ledger.read_calls, ledger_id=ledger_id))

    async def read_result(self, ledger_id: OperationId, call_id: CallId) -> KeptAnswer | None:
        return await self._read(partial(ledger.read_result, ledger_id=ledger_id, call_id=call_id))

    async def close(self) -> None:
        """Flush what was accepted and release the file; goes on to the end even when cancelled."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().run_in_executor(None, self._close_blocking)
        await asyncio.shield(self._closing)

    def _close_blocking(self) -> None:
        self._thread.shutdown(wait=True)
        self._connection.close()

    def _refuse_when_closed(self) -> None:
        if self._closing is not None:
            raise JournalUnavailable(f"the journal {self._path} is closed")

    async def _select(self, select: str, *values: str | int | float) -> list[tuple[int, Operation]]:
        return await self._read(partial(codec.select_operations, select=select, values=values))

    async def read_seats(self) -> Mapping[SeatId, int]:
        return await self._read(seats.read)

    async def _read(self, look: Callable[[sqlite3.Connection], _Result]) -> _Result:
        self._refuse_when_closed()

        def read() -> _Result:
            with explained(self._path, "read"):
                return look(self._connection)

        return await asyncio.get_running_loop().run_in_executor(self._thread, read)


class SqliteJournalReader(_Reads):
    """A journal file opened for looking only: beside a running sidecar, or after one was killed."""

    @classmethod
    async def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open the file read-only, or raise `JournalUnavailable` saying what is wrong with it."""
        real = Path(os.path.realpath(path))
        return cls(real, await asyncio.to_thread(connect_for_reading, real))

    # A file of an earlier release has no tables for these, and nobody but its next owner may make them.
    # Once they are there, they stay.
    _found_ledger = False

    async def _has_ledger(self) -> bool:
        if not self._found_ledger:
            self._found_ledger = await self._read(ledger.is_there)
        return self._found_ledger

    async def read_answer(self, operation_id: OperationId) -> KeptAnswer | None:
        return await super().read_answer(operation_id) if await self._has_ledger() else None

    async def read_calls(self, ledger_id: OperationId) -> tuple[ToolCall, ...]:
        return await super().read_calls(ledger_id) if await self._has_ledger() else ()

    async def read_calls_of(self, ledger_ids: Sequence[OperationId]) -> list[tuple[ToolCall, ...]]:
        """Those of each ledger, by one look: for whoever reads a whole journal."""
        if not await self._has_ledger():
            return [()] * len(ledger_ids)
        return await self._read(lambda connection: [ledger.read_calls(connection, one) for one in ledger_ids])

    async def read_result(self, ledger_id: OperationId, call_id: CallId) -> KeptAnswer | None:
        there = await self._has_ledger()
        return await super().read_result(ledger_id, call_id) if there else None


class SqliteJournal(_Reads, SqliteJobCalls):
    """`ports.Store` on one SQLite file that this process owns, or shares with others.

    Those others are on its machine. To be used from the event loop it was opened in. A call that is
    cancelled while it waits is done all the same: what it records may already have happened. A call is
    within one transaction; when that transaction fails, the calls that shared it are tried again one by one,
    so that a call nobody can write takes no other with it.
    """

    def __init__(
        self,
        path: Path,
        reads: sqlite3.Connection,
        writer: Writer,
        lock: FileLock,
        synchronous: Synchronous,
    ) -> None:
        super().__init__(path, reads)
        self._writer = writer
        self._lock = lock
        self.exclusive: Final = not lock.shared
        self.guarantees: Final = GUARANTEES[synchronous]
        """What appended records survive: `process_death`, and `power_loss` when synchronous is full."""

    @classmethod
    async def open(
        cls, path: str | os.PathLike[str], synchronous: Synchronous = "normal", *, shared: bool = False
    ) -> Self:
        """Open or create the file (mode 0600) and own it; `shared`: beside others that share it.

        `JournalUnavailable` says what is wrong and how to mend it when the file cannot be written,
        belongs to another sidecar, to another program, or to a later release.
        """
        loop = asyncio.get_running_loop()
        real = Path(os.path.realpath(path))
        return await asyncio.to_thread(cls._open_blocking, real, synchronous, shared, loop)

    @classmethod
    def _open_blocking(
        cls, path: Path, synchronous: Synchronous, shared: bool, loop: asyncio.AbstractEventLoop
    ) -> Self:
        lock = FileLock(path, shared=shared)
        try:
            connection = connect_for_writing(path, synchronous)
            try:
                if not shared:
                    # Whoever had a seat here is gone: this process has the file for itself.
                    with explained(path, "written"):
                        seats.clear(connection)
                reads = connect_for_reading(path)
            except BaseException:  # whatever it was, nothing stays open
                connection.close()
                raise
        except BaseException:  # whatever it was, nothing stays open
            lock.release()
            raise
        return cls(path, reads, Writer(path, connection, synchronous, loop), lock, synchronous)

    async def begin(
        self, begun: OperationBegun, owner: SeatId, after: OperationId | None = None
    ) -> Operation | Job | None:
        self._refuse_when_closed()
        encode_record(begun)  # what cannot be written is the caller's mistake, and not the file's
        return await self._writer.submit(partial(owners.begin, begun=begun, owner=owner, after=after))

    async def append(
        self, records: Sequence[Record], token: FencingToken, answer: KeptAnswer | None = None
    ) -> None:
        self._refuse_when_closed()
        operation_id = find_operation(records)
        if operation_id is None:
            return
        rows = [(record, encode_record(record)) for record in records]
        work = partial(owners.append, operation_id=operation_id, rows=rows, token=token, answer=answer)
        await self._writer.submit(work)

    async def begin_call(self, wanted: NewCall) -> Claim:
        self._refuse_when_closed()
        refuse_unwritable(wanted.at)
        return await self._writer.submit(partial(ledger.begin_call, wanted=wanted))

    async def end_call(self, ledger_id: OperationId, end: CallEnd, result: KeptAnswer | None = None) -> bool:
        self._refuse_when_closed()
        check_end(end, result)
        refuse_unwritable(end.at)
        work = partial(ledger.write_end, ledger_id=ledger_id, end=end, result=result)
        return await self._writer.submit(work)

    async def forget(self, before: float, limit: int) -> int:
        self._refuse_when_closed()
        return await self._writer.submit(partial(archive.forget, before=before, limit=limit))

    async def take_over(
        self, operation_id: OperationId, seen: FencingToken, owner: SeatId, at: float
    ) -> Operation:
        self._refuse_when_closed()
        work = partial(owners.take_over, operation_id=operation_id, seen=seen, owner=owner, at=at)
        return await self._writer.submit(work)

    async def take_seat(self, gateway: str) -> SeatId:
        self._refuse_when_closed()
        return await self._writer.submit(partial(seats.take, gateway=gateway))

    async def beat(self, seat: SeatId, number: int) -> None:
        self._refuse_when_closed()
        await self._writer.submit(partial(seats.beat, seat=seat, number=number))

    async def remove_seat(self, seat: SeatId, number: int) -> bool:
        self._refuse_when_closed()
        return await self._writer.submit(partial(seats.remove, seat=seat, number=number))

    async def _write(self, work: Work[_Result]) -> _Result:
        self._refuse_when_closed()
        return await self._writer.submit(work)

    def _close_blocking(self) -> None:
        try:
            super()._close_blocking()
            # The writer's connection closes last: the last one moves the WAL into the file.
            self._writer.stop()
        finally:
            self._lock.release()
