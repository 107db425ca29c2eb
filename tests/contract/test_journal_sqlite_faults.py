"""The SQLite journal on a bad day: a full disk, a lock held by others, cancelled callers."""

import asyncio
import resource
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from envoy_ext.adapters import journal_sqlite_writer
from envoy_ext.adapters.journal_sqlite import SqliteJournal
from envoy_ext.domain.errors import JournalUnavailable
from envoy_ext.domain.ids import OperationId, SeatId
from envoy_ext.domain.ownership import FIRST_TOKEN
from tests.support.journals import keep, leave
from tests.support.records import attempt_ended, begun, ended

BIG = "x" * 200_000
"""A detail that needs fifty pages, so that a small neighbour still fits where it does not."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """Every connection that was opened for writing, the journal's own first."""
    connect, opened = sqlite3.connect, []

    def connect_and_keep(target: str | Path, **options: Any) -> sqlite3.Connection:
        connection = connect(target, **options)
        if str(target).endswith("mode=rw"):
            opened.append(connection)
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_and_keep)
    return opened


@pytest.fixture
async def journal(path: Path, writers: list[sqlite3.Connection]) -> AsyncIterator[SqliteJournal]:
    opened = await SqliteJournal.open(path)
    yield opened
    await opened.close()


@pytest.fixture
async def seat(journal: SqliteJournal) -> SeatId:
    return await journal.take_seat("gw")


@contextmanager
def write_lock_held(path: Path) -> Iterator[None]:
    """Another program in the middle of a write: the journal's writer waits at its BEGIN."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


async def queue(*appends: Any) -> list[asyncio.Task[None]]:
    """Let each append run until it waits for the writer."""
    tasks = [asyncio.create_task(append) for append in appends]
    await asyncio.sleep(0)
    return tasks


async def ids(journal: SqliteJournal) -> set[str]:
    return {operation.operation_id for operation in await journal.list_recent(1_000)}


def statements(connection: sqlite3.Connection) -> list[str]:
    """What the connection executes from here on."""
    seen: list[str] = []
    connection.set_trace_callback(seen.append)
    return seen


async def test_what_queues_during_a_commit_shares_the_next_one(
    journal: SqliteJournal, seat: SeatId, path: Path, writers: list[sqlite3.Connection]
) -> None:
    seen = statements(writers[0])
    with write_lock_held(path):
        tasks = await queue(*(journal.begin(begun(f"op_{n}"), seat) for n in range(100)))
    await asyncio.gather(*tasks)
    # The writer may have woken between two of them, so the first commit may have had a few.
    assert 1 <= seen.count("COMMIT") <= 2
    assert len(await ids(journal)) == 100


async def test_an_append_cancelled_while_it_waits_is_written_and_troubles_nobody(
    journal: SqliteJournal, seat: SeatId, path: Path
) -> None:
    await keep(journal, [begun(f"op_{n}") for n in range(20)], seat)
    with write_lock_held(path):
        tasks = await queue(*(journal.append([ended(f"op_{n}")], FIRST_TOKEN) for n in range(20)))
        for task in tasks[::2]:
            task.cancel()
        await asyncio.sleep(0)
        assert [task.cancelled() for task in tasks] == [True, False] * 10
    await asyncio.gather(*tasks[1::2])
    await journal.begin(begun("op_last"), seat)
    assert await ids(journal) == {f"op_{n}" for n in range(20)} | {"op_last"}
    await leave(journal, seat)
    assert [operation.operation_id async for operation in journal.orphaned()] == ["op_last"]


async def test_a_close_that_is_cancelled_still_closes(
    journal: SqliteJournal, seat: SeatId, path: Path
) -> None:
    with write_lock_held(path):
        tasks = await queue(journal.begin(begun("op_1"), seat))
        (closing,) = await queue(journal.close())
        closing.cancel()
        with suppress(asyncio.CancelledError):
            await closing
        with pytest.raises(JournalUnavailable, match="closed"):
            await journal.begin(begun("op_2"), seat)
    await asyncio.gather(*tasks)
    await journal.close()
    reopened = await SqliteJournal.open(path)
    assert await ids(reopened) == {"op_1"}
    await reopened.close()


async def test_a_lock_that_stays_fails_the_append_and_the_next_one_works(
    journal: SqliteJournal, seat: SeatId, path: Path, writers: list[sqlite3.Connection]
) -> None:
    writers[0].execute("PRAGMA busy_timeout = 20")
    with write_lock_held(path):
        tasks = await queue(*(journal.begin(begun(f"op_{n}"), seat) for n in range(3)))
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        assert isinstance(outcome, JournalUnavailable)
        assert str(path) in str(outcome)
        assert "another program holds a lock" in str(outcome)
    await journal.begin(begun("op_after"), seat)
    assert await ids(journal) == {"op_after"}


@contextmanager
def page_limit(writer: sqlite3.Connection) -> Iterator[None]:
    """SQLite's own "database or disk is full", for whatever needs more than a few more pages."""
    (pages,) = writer.execute("PRAGMA page_count").fetchone()
    writer.execute(f"PRAGMA max_page_count = {pages + 8}")
    try:
        yield
    finally:
        writer.execute("PRAGMA max_page_count = 1000000")


@contextmanager
def file_size_limit(writer: sqlite3.Connection) -> Iterator[None]:
    """The kernel refuses to let any file of this process grow beyond 100 kB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    ("no_room", "said"), [(page_limit, "free space on its disk"), (file_size_limit, "disk I/O error")]
)
async def test_a_disk_without_room_fails_the_call_that_needs_it_and_leaves_nothing_of_it(
    journal: SqliteJournal,
    seat: SeatId,
    path: Path,
    writers: list[sqlite3.Connection],
    no_room: Callable[[sqlite3.Connection], Any],
    said: str,
) -> None:
    # The WAL starts from nothing, so that the limit on file sizes leaves room for small calls.
    await keep(journal, [begun("op_big")], seat)
    writers[0].execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with no_room(writers[0]):
        with write_lock_held(path):
            tasks = await queue(
                journal.begin(begun("op_before"), seat),
                journal.append([attempt_ended("op_big", detail=BIG)], FIRST_TOKEN),
                journal.begin(begun("op_after"), seat),
            )
        before, big, after = await asyncio.gather(*tasks, return_exceptions=True)
        assert (before, after) == (None, None), (before, after)
        assert isinstance(big, JournalUnavailable)
        assert said in str(big)
        assert str(path) in str(big)
        assert BIG not in str(big)
        assert await ids(journal) == {"op_before", "op_after", "op_big"}
        unchanged = await journal.get(OperationId("op_big"))
        assert unchanged is not None
        assert unchanged.attempts == ()
        await journal.begin(begun("op_still_small"), seat)
    await journal.append([attempt_ended("op_big", detail=BIG)], FIRST_TOKEN)
    operation = await journal.get(OperationId("op_big"))
    assert operation is not None
    assert operation.attempts[0].detail == BIG
    assert await ids(journal) == {"op_before", "op_after", "op_still_small", "op_big"}


async def test_a_connection_that_cannot_roll_back_is_replaced(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stuck(sqlite3.Connection):
        broken = False

        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            if Stuck.broken and sql.startswith(("INSERT", "ROLLBACK")):
                raise sqlite3.OperationalError("disk I/O error")
            return super().execute(sql, *parameters)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **options: connect(*a, factory=Stuck, **options))
    journal = await SqliteJournal.open(path)
    seat = await journal.take_seat("gw")
    Stuck.broken = True
    for operation_id in ("op_1", "op_2"):
        with pytest.raises(JournalUnavailable, match="disk I/O error"):
            await journal.begin(begun(operation_id), seat)
    Stuck.broken = False
    # With a connection opened for it, which must not take anybody's seat away.
    await journal.begin(begun("op_3"), seat)
    assert await ids(journal) == {"op_3"}
    await journal.close()


async def test_a_file_that_was_moved_away_takes_no_appends_until_it_is_back(
    journal: SqliteJournal, seat: SeatId, path: Path
) -> None:
    await journal.begin(begun("op_1"), seat)
    moved = path.with_name("moved.db")
    path.rename(moved)
    with pytest.raises(JournalUnavailable, match="No such file"):
        await journal.begin(begun("op_2"), seat)
    shutil.copy(moved, path)
    with pytest.raises(JournalUnavailable, match="moved or replaced"):
        await journal.begin(begun("op_3"), seat)
    moved.replace(path)
    await journal.begin(begun("op_4"), seat)
    assert await ids(journal) == {"op_1", "op_4"}


async def test_appends_are_refused_when_the_writer_is_too_far_behind(
    journal: SqliteJournal, seat: SeatId, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_sqlite_writer, "MAX_QUEUED_CALLS", 5)
    with write_lock_held(path):
        tasks = await queue(*(journal.begin(begun(f"op_{n}"), seat) for n in range(30)))
        refused = [task for task in tasks if task.done()]
        for task in refused:
            assert isinstance(task.exception(), JournalUnavailable)
            assert "5 calls behind" in str(task.exception())
    accepted = [task for task in tasks if task not in refused]
    await asyncio.gather(*accepted)
    # Five in the queue, and those that the writer had taken before its BEGIN had to wait.
    assert 5 <= len(accepted) <= 10
    assert len(await ids(journal)) == len(accepted)


async def test_a_damaged_file_makes_lookups_unavailable_and_says_which_file(path: Path) -> None:
    journal = await SqliteJournal.open(path)
    seat = await journal.take_seat("gw")
    await asyncio.gather(*(journal.begin(begun(f"op_{number}"), seat) for number in range(200)))
    await journal.close()
    with path.open("r+b") as file:
        file.seek(4096 * 32)  # behind what an open looks at
        file.write(b"\xff" * 4096 * 8)
    journal = await SqliteJournal.open(path)
    with pytest.raises(JournalUnavailable, match="cannot be read") as caught:
        await journal.list_recent(1_000)
    assert str(path) in str(caught.value)
    await journal.close()


@pytest.mark.parametrize("body", ['{"v":2,"kind":"operation_begun"}', '{"v":1,"kind":"moved"}', "not json"])
async def test_a_record_that_cannot_be_read_is_never_passed_over(
    journal: SqliteJournal, seat: SeatId, path: Path, body: str
) -> None:
    await journal.begin(begun("op_1"), seat)
    other = sqlite3.connect(path)
    other.execute("INSERT INTO records (operation_id, kind, body) VALUES ('op_1', 'any', ?)", (body,))
    other.commit()
    other.close()
    with pytest.raises(JournalUnavailable, match="a journal record"):
        await journal.get(OperationId("op_1"))
