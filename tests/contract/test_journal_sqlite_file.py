"""The journal's file: who may open it, what is refused, and what the refusal says."""

import os
import re
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from envoy_ext.adapters import (
    journal_sqlite_archive,
    journal_sqlite_codec,
    journal_sqlite_jobs,
    journal_sqlite_ledger,
    journal_sqlite_owners,
)
from envoy_ext.adapters.journal_sqlite import SqliteJournal, SqliteJournalReader
from envoy_ext.domain.errors import JournalUnavailable
from envoy_ext.domain.ids import OperationId
from envoy_ext.domain.job import UNFINISHED, JobState
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.ownership import FIRST_TOKEN
from tests.support.journals import keep
from tests.support.records import START, begun, ended, interrupted, whole_life


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


async def make_journal(path: Path) -> None:
    journal = await SqliteJournal.open(path)
    await keep(journal, [begun("op_1", key_hash="key")])
    await journal.close()


async def refusal(path: Path, opener: type[SqliteJournal | SqliteJournalReader] = SqliteJournal) -> str:
    with pytest.raises(JournalUnavailable) as caught:
        await opener.open(path)
    return str(caught.value)


async def test_each_durability_says_what_it_survives(tmp_path: Path) -> None:
    normal = await SqliteJournal.open(tmp_path / "normal.db")
    full = await SqliteJournal.open(tmp_path / "full.db", synchronous="full")
    assert normal.guarantees == {"process_death"}
    assert full.guarantees == {"process_death", "power_loss"}
    await normal.close()
    await full.close()


async def test_the_writer_runs_with_wal_and_the_durability_that_was_asked_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, opened = sqlite3.connect, []
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **o: opened.append(connect(*a, **o)) or opened[-1])
    # https://www.sqlite.org/pragma.html#pragma_synchronous: 1 is NORMAL, 2 is FULL
    for number, synchronous in ((1, "normal"), (2, "full")):
        opened.clear()
        journal = await SqliteJournal.open(path, synchronous=synchronous)
        assert opened[0].execute("PRAGMA synchronous").fetchone() == (number,)
        assert opened[0].execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert opened[0].execute("PRAGMA secure_delete").fetchone() == (1,)
        await journal.close()


async def test_what_was_removed_stands_nowhere_in_the_file(path: Path) -> None:
    journal = await SqliteJournal.open(path)
    *life, end = whole_life("op_1")
    await keep(journal, life)
    await journal.append([end], FIRST_TOKEN, KeptAnswer(200, (), b"SECRET " * 10_000))
    await keep(journal, [begun("op_2")])
    assert await journal.forget(START + 100, 5) == 1
    await journal.close()
    held = path.read_bytes()
    assert b"op_2" in held
    assert b"SECRET" not in held
    assert b"op_1" not in held


async def test_only_the_owner_can_read_the_files(path: Path) -> None:
    before = os.umask(0o000)
    try:
        journal = await SqliteJournal.open(path)
        await keep(journal, [begun()])
    finally:
        os.umask(before)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    names = ("journal.db", "journal.db-shm", "journal.db-wal", "journal.db.lock")
    assert modes == dict.fromkeys(names, 0o600)
    await journal.close()


async def test_a_closed_journal_is_one_file_with_everything_in_it(path: Path) -> None:
    await make_journal(path)
    assert sorted(file.name for file in path.parent.iterdir()) == ["journal.db", "journal.db.lock"]


async def test_a_file_has_one_owner_at_a_time(path: Path) -> None:
    journal = await SqliteJournal.open(path)
    said = await refusal(path)
    assert f"in use by process {os.getpid()}" in said
    assert str(path) in said
    await keep(journal, [begun("op_1")])
    await journal.close()
    again = await SqliteJournal.open(path)
    assert await again.get(OperationId("op_1")) is not None
    await again.close()


async def test_the_owner_is_found_under_every_name_of_the_file(path: Path) -> None:
    journal = await SqliteJournal.open(path)
    alias = path.with_name("alias.db")
    alias.symlink_to(path)
    assert "in use by process" in await refusal(alias)
    await journal.close()


async def test_an_open_that_failed_leaves_the_file_free(path: Path) -> None:
    path.write_bytes(b"not a database, long enough for a header" * 40)
    await refusal(path)
    path.unlink()
    await make_journal(path)


async def test_odd_characters_in_the_path_are_only_characters(tmp_path: Path) -> None:
    path = tmp_path / "a?b#c%20d ü.db"
    await make_journal(path)
    assert path.exists()
    reader = await SqliteJournalReader.open(path)
    assert await reader.get(OperationId("op_1")) is not None
    await reader.close()


async def test_the_index_keeps_the_first_begin_and_the_first_end_for_people_with_a_shell(path: Path) -> None:
    journal = await SqliteJournal.open(path)
    await keep(journal, [begun("op_1", key_hash="key", at=1.0), begun("op_1", caller="other", at=2.0)])
    await keep(journal, [interrupted("op_1", at=3.0), ended("op_1", at=4.0), begun("op_2", at=5.0)])
    await journal.close()
    other = sqlite3.connect(path)
    rows = other.execute(
        "SELECT operation_id, caller, path, key_hash, state, created_at, ended_at FROM operations"
    ).fetchall()
    other.close()
    assert rows == [
        ("op_1", "caller-hash", "/v1/chat/completions", "key", "failed", 1.0, 3.0),
        ("op_2", "caller-hash", "/v1/chat/completions", None, "running", 5.0, None),
    ]


async def test_a_reader_leaves_the_file_as_it_is(path: Path) -> None:
    await make_journal(path)
    reader = await SqliteJournalReader.open(path)
    before = path.read_bytes()
    assert [operation.operation_id for operation in await reader.list_recent(5)] == ["op_1"]
    await reader.close()
    assert path.read_bytes() == before


async def test_a_reader_sees_what_a_live_owner_appends(path: Path) -> None:
    journal = await SqliteJournal.open(path)
    reader = await SqliteJournalReader.open(path)
    for number in range(5):
        await keep(journal, whole_life(f"op_{number}", key_hash="key"))
        found = await reader.find_by_key("caller-hash", "/v1/chat/completions", "key")
        assert found == await journal.get(OperationId(f"op_{number}"))
    await journal.close()
    assert len(await reader.list_recent(10)) == 5
    await reader.close()


async def test_a_reader_says_that_there_is_no_journal_or_nothing_in_it(path: Path) -> None:
    assert "No such file" in await refusal(path, SqliteJournalReader)
    assert not path.exists()
    path.touch()
    assert "no sidecar has written to it" in await refusal(path, SqliteJournalReader)


@pytest.mark.parametrize("opener", [SqliteJournal, SqliteJournalReader])
async def test_a_later_schema_is_refused_and_left_as_it_is(path: Path, opener: type) -> None:
    await make_journal(path)
    other = sqlite3.connect(path)
    other.execute("PRAGMA user_version = 5")
    other.close()
    said = await refusal(path, opener)
    assert "schema 5, this program knows up to 4" in said
    assert str(path) in said
    other = sqlite3.connect(path)
    assert other.execute("PRAGMA user_version").fetchone() == (5,)
    other.close()


@pytest.mark.parametrize("opener", [SqliteJournal, SqliteJournalReader])
async def test_another_programs_database_is_refused_and_left_as_it_is(path: Path, opener: type) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE users (name TEXT)")
    other.close()
    before = path.read_bytes()
    assert "another program's database" in await refusal(path, opener)
    assert path.read_bytes() == before


@pytest.mark.parametrize("opener", [SqliteJournal, SqliteJournalReader])
async def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(path: Path, opener: type) -> None:
    path.write_text("prompts: none\n" * 100)
    before = path.read_bytes()
    said = await refusal(path, opener)
    assert "not a database" in said
    assert "name another file" in said
    assert path.read_bytes() == before


@pytest.mark.parametrize("opener", [SqliteJournal, SqliteJournalReader])
async def test_a_path_that_cannot_be_a_file_is_refused(tmp_path: Path, opener: type) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").touch()
    for path in (tmp_path / "directory", tmp_path / "missing" / "j.db", tmp_path / "file" / "j.db"):
        assert str(path) in await refusal(path, opener)


async def test_a_file_that_another_program_has_locked_is_refused_with_the_mend(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_journal(path)
    monkeypatch.setattr("envoy_ext.adapters.journal_sqlite_file.BUSY_TIMEOUT_S", 0.02)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    said = await refusal(path)
    assert "another program holds a lock on it: close that program" in said
    other.close()
    await (await SqliteJournal.open(path)).close()


@pytest.fixture
def someone_else() -> Iterator[None]:
    """The rest of the test runs as a user with no special rights, also when root started it."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every user can enter; pytest's own are private."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
async def read_only_file(open_directory: Path) -> Path:
    path = open_directory / "journal.db"
    await make_journal(path)
    path.chmod(0o444)
    path.with_name("journal.db.lock").chmod(0o666)
    return path


@pytest.fixture
def unwritable(open_directory: Path) -> Iterator[Path]:
    open_directory.chmod(0o555)
    yield open_directory / "journal.db"
    open_directory.chmod(0o755)


async def test_a_file_that_may_not_be_written_is_refused_with_the_mend(
    read_only_file: Path, someone_else: None
) -> None:
    said = await refusal(read_only_file)
    assert str(read_only_file) in said
    assert "let the sidecar's user write the file and its directory" in said


async def test_a_directory_that_may_not_be_written_is_refused_with_the_mend(
    unwritable: Path, someone_else: None
) -> None:
    said = await refusal(unwritable)
    assert "permission denied (let the sidecar's user write the file and its directory)" in said


@pytest.mark.parametrize(
    ("select", "values"),
    [
        (journal_sqlite_codec.SELECT_BY_ID, ["op_1"]),
        (journal_sqlite_codec.SELECT_BY_KEY, ["caller", "/path", "key"]),
        (journal_sqlite_owners.NEWEST_OF_KEY, ["caller", "/path", "key"]),
        (journal_sqlite_codec.SELECT_NEWEST, [5]),
        (journal_sqlite_codec.SELECT_OLDER_THAN, ["op_1", 5]),
        (journal_sqlite_codec.SELECT_ORPHANED, [0, 5]),
        (journal_sqlite_codec.SELECT_SINCE, [1.0, "op_1", 5]),
        (journal_sqlite_archive.OLDEST, [1.0, 5]),
        (journal_sqlite_archive.ANSWER_SIZE, ["op_1"]),
        (journal_sqlite_ledger.IN_USE, ["op_1"]),
        (journal_sqlite_jobs.BY_ID, ["op_1"]),
        (journal_sqlite_jobs.BY_KEY, ["caller", "/path", "key"]),
        (journal_sqlite_jobs.WITH_RESULTS, [1.0, 5]),
        (journal_sqlite_jobs.build_list(frozenset({JobState.FAILED})), ["failed", 0, 5]),
    ],
    ids=[
        *("get", "find_by_key", "begin", "list", "list before", "orphaned", "since", "forget", "answer"),
        *("ledger", "job", "job of a key", "results", "list jobs"),
    ],
)
def test_no_lookup_reads_a_whole_table(select: str, values: list[object]) -> None:
    connection = sqlite3.connect(":memory:")
    journal_sqlite_codec.bring_up_to_date(connection)
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {select}", values)]
    connection.close()
    scans = [step for step in plan if step.startswith("SCAN")]
    assert [scan for scan in scans if re.search("records|operations|jobs", scan)] == [], plan


@pytest.mark.parametrize(
    ("select", "values"),
    [
        (journal_sqlite_jobs.COUNT, []),
        (journal_sqlite_jobs.ORPHANED, [5]),
        (journal_sqlite_jobs.build_list(frozenset({JobState.QUEUED})), ["queued", 0, 5]),
        (journal_sqlite_jobs.build_list(UNFINISHED), ["queued", "running", 0, 5]),
    ],
    ids=["count", "orphaned", "queued", "unfinished"],
)
def test_what_is_asked_of_unfinished_jobs_reads_those_alone(select: str, values: list[object]) -> None:
    connection = sqlite3.connect(":memory:")
    journal_sqlite_codec.bring_up_to_date(connection)
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {select}", values)]
    connection.close()
    of_jobs = [step for step in plan if re.match("(SCAN|SEARCH) jobs", step)]
    assert len(of_jobs) == 1, plan
    assert re.search("jobs_(unfinished|counted)", of_jobs[0]), plan
    assert not any("TEMP" in step for step in plan), plan
