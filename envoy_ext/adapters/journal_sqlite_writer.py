"""The thread that writes a journal's file: what is queued while it commits shares its next transaction."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from envoy_ext.adapters import journal_sqlite_codec as codec
from envoy_ext.adapters.journal_sqlite_file import (
    Synchronous,
    build_unavailable,
    connect_for_writing,
    identify,
)
from envoy_ext.domain.errors import ImpossibleEvent, JournalUnavailable, NotOwner, RunNotOver, SeatLost

_Result = TypeVar("_Result")
_REFUSALS: Final = (NotOwner, SeatLost, RunNotOver, ImpossibleEvent)
"""What a step raises before it has written anything."""

MAX_QUEUED_CALLS: Final = 10_000
"""Calls that may wait for the writer. Each belongs to an exchange in flight, and Envoy's own
default lets 1,024 of them through at once: ten times that means the disk has stopped."""

Work = Callable[[sqlite3.Connection], _Result]
"""One atomic step, within the writer's transaction. It may refuse before it writes anything."""


@dataclass(slots=True, eq=False)
class _Call:
    """One step on its way through the writer."""

    work: Work[Any]
    done: asyncio.Future[Any]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What became of a call: its result, its refusal, or the fault that kept it from being written."""

    result: object = None
    refusal: Exception | None = None
    fault: Exception | None = None


class Writer:
    """The thread that writes. `submit` and `stop` are called from outside; the rest runs inside it."""

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        synchronous: Synchronous,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._path = path
        self._synchronous: Synchronous = synchronous
        self._loop = loop
        self._connection: sqlite3.Connection | None = connection
        self._file = identify(path)
        self._condition = threading.Condition()
        self._queued: list[_Call] = []
        self._stopping = False
        # A daemon: a program that ends without closing its journal must end, and a transaction it
        # cuts short is rolled back by the next reader.
        self._thread = threading.Thread(target=self._run, name="journal-writer", daemon=True)
        self._thread.start()

    def submit(self, work: Work[_Result]) -> asyncio.Future[_Result]:
        """Queue one step; the future ends after its commit, with `JournalUnavailable` if there is none."""
        done: asyncio.Future[_Result] = self._loop.create_future()
        with self._condition:
            if len(self._queued) >= MAX_QUEUED_CALLS:
                raise JournalUnavailable(f"the journal {self._path} is {MAX_QUEUED_CALLS} calls behind")
            self._queued.append(_Call(work, done))
            self._condition.notify()
        return done

    def stop(self) -> None:
        """Write what is queued, close the connection and end the thread."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        self._thread.join()

    def _run(self) -> None:
        while calls := self._take():
            self._write(calls)
        if self._connection is not None:
            self._connection.close()

    def _take(self) -> list[_Call]:
        """Everything that was queued since the last time; empty only when the writer is to end."""
        with self._condition:
            self._condition.wait_for(lambda: self._queued or self._stopping)
            calls, self._queued = self._queued, []
            return calls

    def _write(self, calls: list[_Call]) -> None:
        outcomes = self._commit(calls)
        fault = outcomes[0].fault
        # A lock held by someone else is no call's fault, and each try would wait for it again.
        if fault is not None and len(calls) > 1 and not codec.is_busy(fault):
            outcomes = [outcome for call in calls for outcome in self._commit([call])]
        # A closed loop has nobody left who waits.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(_settle, self._path, list(zip(calls, outcomes, strict=True)))

    def _commit(self, calls: list[_Call]) -> list[_Outcome]:
        """Do the calls in one transaction; the same fault for all, and nothing written, when that fails."""
        try:
            # A file that was moved away can still be written, and nobody would ever read it again.
            if identify(self._path) != self._file:
                raise FileNotFoundError("it was moved or replaced while in use: restart the sidecar")
            if self._connection is None:
                self._connection = connect_for_writing(self._path, self._synchronous)
            self._connection.execute("BEGIN IMMEDIATE")
            outcomes = [_do(call.work, self._connection) for call in calls]
            self._connection.execute("COMMIT")
        except Exception as fault:
            # Anything: this is the only writer, and callers wait for its word.
            self._roll_back()
            return [_Outcome(fault=fault)] * len(calls)
        return outcomes

    def _roll_back(self) -> None:
        if self._connection is None or not self._connection.in_transaction:
            return  # SQLite rolls back by itself after some errors, a full disk for one
        try:
            self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            # A connection that cannot leave its transaction is of no use; the next call gets a fresh one.
            self._connection.close()
            self._connection = None


def _do(work: Work[Any], connection: sqlite3.Connection) -> _Outcome:
    try:
        return _Outcome(work(connection))
    except _REFUSALS as refusal:
        return _Outcome(refusal=refusal)


def _settle(path: Path, results: list[tuple[_Call, _Outcome]]) -> None:
    """Tell the callers, in the event loop; a caller that was cancelled is not told."""
    for call, outcome in results:
        if call.done.done():
            continue
        if outcome.fault is not None:
            call.done.set_exception(build_unavailable(path, "written", outcome.fault))
        elif outcome.refusal is not None:
            call.done.set_exception(outcome.refusal)
        else:
            call.done.set_result(outcome.result)
