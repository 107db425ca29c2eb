"""What the SQLite journal said it wrote is there after kill -9, at whatever moment that came."""

import asyncio
import random
import signal
import sqlite3
import sys
from collections import Counter
from pathlib import Path

import pytest

from envoy_ext.adapters.journal_codec import decode_record, encode_record
from envoy_ext.adapters.journal_sqlite import SqliteJournal, SqliteJournalReader
from envoy_ext.domain.errors import JournalUnavailable
from envoy_ext.domain.ids import OperationId
from envoy_ext.domain.outcomes import Ending
from envoy_ext.domain.records import AttemptEnded, OperationEnded
from tests.support.journals import keep
from tests.support.records import begun, fold, owned
from tests.support.recovering import recover

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 5


async def start_writer(path: Path, synchronous: str, round_: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.support.journal_crash_writer", str(path), synchronous, str(round_)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )


async def kill_after(process: asyncio.subprocess.Process, lines: int) -> list[str]:
    """Read that many promises, kill -9, and read what else was promised before the kill arrived."""
    assert process.stdout is not None
    promised = [await process.stdout.readline() for _ in range(lines)]
    process.kill()
    rest = await process.stdout.read()
    assert await process.wait() == -signal.SIGKILL
    text = b"".join(promised) + rest
    # The kill may cut the last line in two; a whole line ends with its newline.
    return text.decode().split("\n")[:-1]


@pytest.mark.parametrize("synchronous", ["normal", "full"])
async def test_nothing_that_was_promised_is_lost_and_recovery_ends_what_was_open(
    tmp_path: Path, synchronous: str
) -> None:
    path = tmp_path / "journal.db"
    moments = random.Random(f"kill {synchronous}")
    promised: list[str] = []
    for round_ in range(ROUNDS):
        process = await start_writer(path, synchronous, round_)
        promised += await kill_after(process, lines=moments.randrange(1, 800))

        reader = await SqliteJournalReader.open(path)
        stored = await read_stored(path)
        assert [line for line in promised if stored[line] != 1] == []
        assert cut_in_two(stored, f"op_{round_}_") == set()
        open_before = {one.operation_id for one in await reader.list_recent(2**40) if one.ending is None}
        await reader.close()

        journal = await SqliteJournal.open(path)
        lost = await recover(journal)
        assert {operation.operation_id for operation in lost} == open_before
        assert {operation.ending for operation in lost} <= {Ending.UNKNOWN}
        assert [operation async for operation in journal.orphaned()] == []
        for operation_id in {decode_record(line).operation_id for line in promised}:
            operation = await journal.get(operation_id)
            assert operation is not None
            assert operation.ending is not None
        await journal.close()
        assert (await quick_check(path)) == "ok"


def cut_in_two(stored: Counter[str], operations: str) -> set[str]:
    """Operations of which only one of the two records is there that the writer appends in one call."""
    told = [decode_record(body) for body in stored]
    of_round = [record for record in told if record.operation_id.startswith(operations)]
    attempts = {record.operation_id for record in of_round if isinstance(record, AttemptEnded)}
    ends = {record.operation_id for record in of_round if isinstance(record, OperationEnded)}
    return attempts ^ ends


async def read_stored(path: Path) -> Counter[str]:
    """How often each record stands in the file, read past all our own code."""

    def read() -> Counter[str]:
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
        try:
            return Counter(body for (body,) in connection.execute("SELECT body FROM records"))
        finally:
            connection.close()

    return await asyncio.to_thread(read)


async def quick_check(path: Path) -> str:
    connection = sqlite3.connect(path)
    try:
        return str(connection.execute("PRAGMA quick_check").fetchone()[0])
    finally:
        connection.close()


async def test_while_a_writer_runs_others_may_read_and_none_may_write(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    process = await start_writer(path, "normal", 0)
    assert process.stdout is not None
    promised = [decode_record(await process.stdout.readline()) for _ in range(20)]
    with pytest.raises(JournalUnavailable, match=rf"in use by process {process.pid}\b"):
        await SqliteJournal.open(path)

    reader = await SqliteJournalReader.open(path)
    for record in promised:
        operation = await reader.get(record.operation_id)
        assert operation is not None
    assert len(await reader.list_recent(5)) == 5

    # The reader stays open over the writer's death, and sees all that was promised.
    more = await kill_after(process, lines=50)
    for line in more:
        assert await reader.get(decode_record(line).operation_id) is not None
    await reader.close()

    # The kernel gave the lock back: the next owner needs nobody's help.
    journal = await SqliteJournal.open(path)
    seat = await keep(journal, [begun("op_next")])
    assert await journal.get(OperationId("op_next")) == fold(begun("op_next"), owned(seat, "op_next"))
    await journal.close()


def test_the_writer_promises_records_in_the_form_in_which_they_are_stored() -> None:
    line = encode_record(begun())
    assert encode_record(decode_record(line)) == line
