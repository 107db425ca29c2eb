"""One file for several sidecars of a machine, and files of the release that knew no owners."""

import asyncio
import shutil
import sqlite3
from pathlib import Path

import pytest

from envoy_ext.adapters.journal_codec import encode_record, read_kind
from envoy_ext.adapters.journal_sqlite import SqliteJournal, SqliteJournalReader
from envoy_ext.adapters.journal_sqlite_codec import SCHEMA_VERSION
from envoy_ext.domain.errors import JournalUnavailable, NotOwner
from envoy_ext.domain.ids import AttemptId, OperationId
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.operation import NO_TOKEN
from envoy_ext.domain.ownership import FIRST_TOKEN
from envoy_ext.domain.records import OperationBegun, OperationEnded
from envoy_ext.domain.tool_calls import CallGranted, CallId, NewCall
from tests.support.jobs import begin_run, end_run, job_end, submit
from tests.support.jobs import claim as claim_job
from tests.support.journals import keep
from tests.support.records import START, attempt_started, begun, ended, fold, owned, whole_life

VERSION_1 = (
    "CREATE TABLE records (seq INTEGER PRIMARY KEY, operation_id TEXT NOT NULL, kind TEXT NOT NULL,"
    " body TEXT NOT NULL)",
    "CREATE INDEX records_by_operation ON records (operation_id)",
    "CREATE TABLE operations (operation_id TEXT PRIMARY KEY, begun_seq INTEGER, caller TEXT, path TEXT,"
    " key_hash TEXT, state TEXT NOT NULL, created_at REAL, ended_at REAL)",
    "CREATE INDEX operations_by_age ON operations (begun_seq)",
    "CREATE INDEX operations_by_key ON operations (caller, path, key_hash, begun_seq)"
    " WHERE key_hash IS NOT NULL",
    "CREATE INDEX operations_unfinished ON operations (begun_seq) WHERE ended_at IS NULL",
    "PRAGMA application_id = 1701738090",
    "PRAGMA user_version = 1",
)
"""What the release before wrote, word for word."""
VERSION_2 = (
    "ALTER TABLE operations ADD COLUMN owner TEXT",
    "ALTER TABLE operations ADD COLUMN token INTEGER NOT NULL DEFAULT 0",
    "CREATE TABLE seats (number INTEGER PRIMARY KEY AUTOINCREMENT, seat TEXT UNIQUE, beat INTEGER NOT NULL)",
    "PRAGMA user_version = 2",
)
"""What the one after it made of that."""
VERSION_3 = (
    "CREATE TABLE answers (operation_id TEXT NOT NULL, name TEXT NOT NULL, status INTEGER NOT NULL,"
    " headers TEXT NOT NULL, body BLOB NOT NULL, PRIMARY KEY (operation_id, name))",
    "CREATE TABLE tool_calls (seq INTEGER PRIMARY KEY, ledger_id TEXT NOT NULL, call_id TEXT NOT NULL,"
    " body TEXT NOT NULL, UNIQUE (ledger_id, call_id))",
    "ALTER TABLE operations ADD COLUMN ledger_id TEXT",
    "CREATE INDEX operations_by_ledger ON operations (ledger_id) WHERE ledger_id IS NOT NULL",
    "CREATE INDEX operations_by_end ON operations (ended_at, begun_seq) WHERE ended_at IS NOT NULL",
    "CREATE INDEX operations_by_begin ON operations (created_at, operation_id)",
    "PRAGMA user_version = 3",
)
"""And the one after that."""

OLD = [*whole_life("op_1", key_hash="key"), begun("op_2"), attempt_started("op_2", "att_2")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def write_version_1(path: Path) -> None:
    connection = sqlite3.connect(path)
    for statement in VERSION_1:
        connection.execute(statement)
    for record in OLD:
        values = (record.operation_id, read_kind(record), encode_record(record))
        insert = "INSERT INTO records (operation_id, kind, body) VALUES (?, ?, ?)"
        seq = connection.execute(insert, values).lastrowid
        if isinstance(record, OperationBegun):
            connection.execute(
                "INSERT INTO operations VALUES (?, ?, ?, ?, ?, 'running', ?, NULL)",
                (record.operation_id, seq, record.caller, record.path, record.key_hash, record.at),
            )
        elif isinstance(record, OperationEnded):
            connection.execute(
                "UPDATE operations SET state = ?, ended_at = ? WHERE operation_id = ?",
                (record.state.value, record.at, record.operation_id),
            )
    connection.commit()
    connection.close()


def bring_to(path: Path, statements: tuple[str, ...]) -> None:
    """As the next release left a file."""
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def read_version(path: Path) -> int:
    connection = sqlite3.connect(path)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    connection.close()
    return int(version)


# --- files of an earlier release ------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True])
async def test_a_journal_of_the_release_before_is_taken_on_with_all_that_is_in_it(
    path: Path, shared: bool
) -> None:
    write_version_1(path)
    journal = await SqliteJournal.open(path, shared=shared)
    assert read_version(path) == SCHEMA_VERSION
    assert await journal.get(OperationId("op_1")) == fold(*OLD[:5])
    assert await journal.find_by_key("caller-hash", "/v1/chat/completions", "key") == fold(*OLD[:5])
    (orphan,) = [operation async for operation in journal.orphaned()]
    assert (orphan.operation_id, orphan.owner, orphan.token) == ("op_2", None, NO_TOKEN)

    seat = await journal.take_seat("gw")
    taken = await journal.take_over(orphan.operation_id, orphan.token, seat, START)
    assert (taken.owner, taken.token) == (seat, FIRST_TOKEN)
    with pytest.raises(NotOwner):
        await journal.append([ended("op_2")], NO_TOKEN)
    await journal.append([ended("op_2")], FIRST_TOKEN)
    await keep(journal, whole_life("op_3"), seat)
    await journal.close()

    reopened = await SqliteJournal.open(path, shared=shared)
    assert [one.operation_id for one in await reopened.list_recent(5)] == ["op_3", "op_2", "op_1"]
    await reopened.close()


async def test_several_may_take_an_old_file_on_at_once(path: Path) -> None:
    write_version_1(path)
    journals = await asyncio.gather(*(SqliteJournal.open(path, shared=True) for _ in range(4)))
    assert read_version(path) == SCHEMA_VERSION
    for journal in journals:
        assert await journal.get(OperationId("op_1")) == fold(*OLD[:5])
        await journal.close()


async def test_an_old_file_is_read_as_it_is(path: Path) -> None:
    write_version_1(path)
    reader = await SqliteJournalReader.open(path)
    assert [one.operation_id for one in await reader.list_recent(5)] == ["op_2", "op_1"]
    assert await reader.read_answer(OperationId("op_1")) is None
    assert await reader.read_calls(OperationId("op_1")) == ()
    assert await reader.read_calls_of([OperationId("op_1"), OperationId("op_2")]) == [(), ()]
    assert await reader.read_result(OperationId("op_1"), CallId("call_1")) is None
    await reader.close()
    assert read_version(path) == 1


async def test_a_file_of_each_release_before_keeps_answers_calls_and_jobs_from_here_on(path: Path) -> None:
    write_version_1(path)
    steps: tuple[tuple[int, tuple[str, ...]], ...] = ((1, ()), (2, VERSION_2), (3, VERSION_3))
    for version, statements in steps:
        bring_to(path, statements)
        assert read_version(path) == version
        copy = path.with_name(f"of_version_{version}.db")
        shutil.copy(path, copy)
        journal = await SqliteJournal.open(copy)
        reader = await SqliteJournalReader.open(copy)
        assert read_version(copy) == SCHEMA_VERSION
        assert await journal.get(OperationId("op_1")) == fold(*OLD[:5])
        await keep(journal, [begun("op_3"), attempt_started("op_3", "att_3")])
        claim = await journal.begin_call(
            NewCall(OperationId("op_3"), AttemptId("att_3"), START, "mail", "fp", "ab", False, False)
        )
        assert isinstance(claim, CallGranted)
        answer = KeptAnswer(200, (), b"{}")
        await journal.append([ended("op_3")], FIRST_TOKEN, answer)
        assert await reader.read_calls(OperationId("op_3")) == (claim.call,)
        assert await reader.read_calls_of([OperationId("op_1"), OperationId("op_3")]) == [(), (claim.call,)]
        assert await reader.read_answer(OperationId("op_3")) == answer
        seat = await journal.take_seat("gw")
        job = await claim_job(journal, await submit(journal, "op_4"), seat)
        await begin_run(journal, job, seat)
        await end_run(journal, job)
        assert await journal.forget(START + 1e6, 9) == 2, "not what the job needs"
        assert await journal.get(OperationId("op_4")) is not None
        await journal.finish_job(job.job_id, job.token, job_end())
        assert await journal.forget(START + 1e6, 9) == 2
        await reader.close()
        await journal.close()


# --- who may open it ------------------------------------------------------------------------


async def test_a_file_that_is_shared_has_no_single_owner(path: Path) -> None:
    for number in range(10):
        fresh = path.with_name(f"{number}.db")
        journals = await asyncio.gather(*(SqliteJournal.open(fresh, shared=True) for _ in range(4)))
        assert {journal.exclusive for journal in journals} == {False}
        await keep(journals[0], [begun()])
        for journal in journals:
            assert await journal.get(OperationId("op_1")) is not None
            await journal.close()


class Refused(sqlite3.Connection):
    """SQLite's word to one of two that switch a fresh file at once; the second try succeeds."""

    refusals = 1

    def execute(self, sql: str, *values: object) -> sqlite3.Cursor:  # type: ignore[override]
        if "journal_mode" in sql and self.refusals:
            self.refusals -= 1
            refusal = sqlite3.OperationalError("database is locked")
            refusal.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise refusal
        return super().execute(sql, *values)


async def test_a_switch_to_wal_that_another_one_crosses_is_tried_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **more: connect(*args, factory=Refused, **more))
    journal = await SqliteJournal.open(path, shared=True)
    await keep(journal, [begun()])
    await journal.close()


async def test_a_shared_file_is_not_for_one_that_wants_it_alone_nor_the_other_way_round(path: Path) -> None:
    for first, second, said in (
        (True, False, "sidecars that share it: set journal.shared"),
        (False, True, "in use by process"),
    ):
        journal = await SqliteJournal.open(path, shared=first)
        with pytest.raises(JournalUnavailable, match=said):
            await SqliteJournal.open(path, shared=second)
        await journal.close()
    await (await SqliteJournal.open(path)).close()


async def test_whoever_has_the_file_alone_finds_every_earlier_seat_empty(path: Path) -> None:
    before = await SqliteJournal.open(path)
    first = await keep(before, [begun()])
    await before.close()
    journal = await SqliteJournal.open(path)
    assert await journal.read_seats() == {}
    assert [operation.operation_id async for operation in journal.orphaned()] == ["op_1"]
    assert await journal.take_seat("gw") != first
    await journal.close()


async def test_whoever_shares_it_leaves_the_seats_of_others_alone(path: Path) -> None:
    one = await SqliteJournal.open(path, shared=True)
    seat = await keep(one, [begun()])
    other = await SqliteJournal.open(path, shared=True)
    assert await other.read_seats() == {seat: 1}
    assert [operation async for operation in other.orphaned()] == []
    assert await one.get(OperationId("op_1")) == fold(begun(), owned(seat))
    await one.close()
    await other.close()
