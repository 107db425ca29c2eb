"""`operations export`: all operations of a time as lines, from a sidecar's port and from the file itself."""

import asyncio
import io
import json
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from envoy_ext.adapters.journal_sqlite import SqliteJournal
from envoy_ext.adapters.operation_codec import build_operator_json, format_time
from envoy_ext.cli.commands import cli
from envoy_ext.cli.export import read_file, write_lines
from envoy_ext.domain.errors import EnvoyExtError
from envoy_ext.domain.ids import AttemptId, OperationId
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.ownership import FIRST_TOKEN
from envoy_ext.domain.tool_calls import CallEnd, CallGranted, CallState, NewCall
from envoy_ext.operations_client import EXPORT_PAGE, stream_operations
from tests.contract.test_journal_sqlite_crash import kill_after, start_writer
from tests.support.commands import run_command
from tests.support.journals import keep
from tests.support.ops_port import OpsPort
from tests.support.records import START, attempt_started, begun, ended, interrupted, whole_life

COUNT = EXPORT_PAGE + 7
"""More than a page."""
SECRET = "sk-secret"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
async def journal(path: Path) -> AsyncIterator[SqliteJournal]:
    """Of a sidecar that runs: COUNT operations, a second apart, every third one failed."""
    opened = await SqliteJournal.open(path)
    seat = await opened.take_seat("gw")
    for number in range(COUNT):
        operation_id = f"op_{number:04}"
        first, *life = whole_life(operation_id, key_hash=SECRET, caller=SECRET, body_sha256=SECRET)
        await keep(opened, [replace(first, at=START + number), *life[:-1]], seat)
        await opened.append([ended(operation_id) if number % 3 else interrupted(operation_id)], FIRST_TOKEN)
    yield opened
    await opened.close()


def at(second: float) -> str:
    return format_time(START + second) or ""


async def lines_of(
    source: AsyncGenerator[dict[str, Any], None], until: float | None = None
) -> list[dict[str, Any]]:
    out = io.StringIO()
    await write_lines(source, until, out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def ids(lines: list[dict[str, Any]]) -> list[str]:
    return [line["operation_id"] for line in lines]


async def test_every_operation_is_a_line_oldest_first_as_it_is_shown(
    journal: SqliteJournal, path: Path
) -> None:
    status, output, errors = await run_command(
        *("operations", "export", "--since", at(0), "--until", "1h", "--file", str(path))
    )
    assert (status, errors) == (0, "")
    lines = [json.loads(line) for line in output.splitlines()]
    assert ids(lines) == [f"op_{number:04}" for number in range(COUNT)]
    shown = await journal.get(OperationId("op_0003"))
    assert shown is not None
    assert lines[3] == build_operator_json(shown, ())


async def test_the_port_and_the_file_give_the_same_lines(journal: SqliteJournal, path: Path) -> None:
    async with OpsPort(journal=journal).serving() as ops:
        for since, until, state, expected in (
            (START, None, None, range(COUNT)),
            (START + 1, START + 4, None, range(1, 4)),
            (START, None, "failed", range(0, COUNT, 3)),
            (START - 1e6, START, None, ()),
            (START + COUNT, None, None, ()),
        ):
            by_port = await lines_of(stream_operations(ops.url, since, state), until)
            assert ids(by_port) == [f"op_{number:04}" for number in expected]
            assert by_port == await lines_of(read_file(path, since, state), until)


async def test_nothing_of_what_was_asked_answered_or_called_is_in_it(
    journal: SqliteJournal, path: Path
) -> None:
    await keep(journal, [begun("op_tools", at=START + COUNT), attempt_started("op_tools", "att_tools")])
    claim = await journal.begin_call(
        NewCall(OperationId("op_tools"), AttemptId("att_tools"), START, "mail", SECRET, SECRET, False, False)
    )
    assert isinstance(claim, CallGranted)
    secret = KeptAnswer(200, (("set-cookie", SECRET),), SECRET.encode())
    await journal.end_call(
        OperationId("op_tools"), CallEnd(claim.call.call_id, 1, START, CallState.RECORDED, 200), secret
    )
    await journal.append([ended("op_tools")], FIRST_TOKEN, secret)
    lines = await lines_of(read_file(path, START, None))
    assert lines[-1]["operation_id"] == "op_tools"
    assert [(call["tool"], call["state"]) for call in lines[-1]["tool_calls"]] == [("mail", "recorded")]
    async with OpsPort(journal=journal).serving() as ops:
        assert await lines_of(stream_operations(ops.url, START, None)) == lines
        reply = await ops.ask("/v1/operations/op_tools")
        assert reply.json == lines[-1]
    assert SECRET not in json.dumps(lines)


async def test_the_file_of_a_sidecar_that_was_killed_is_exported(path: Path) -> None:
    writer = await start_writer(path, "normal", 0)
    promised = await kill_after(writer, 200)
    exported = await lines_of(read_file(path, START, None))
    assert set(ids(exported)) >= {json.loads(line)["operation_id"] for line in promised}


async def test_whoever_reads_a_few_lines_only_ends_it_without_a_word(
    journal: SqliteJournal, path: Path
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "envoy_ext", "operations", "export", "--since", at(0), "--file", str(path)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    line = await process.stdout.readline()
    assert json.loads(line)["operation_id"] == "op_0000"
    process.stdout._transport.close()  # type: ignore[attr-defined]
    errors = await process.stderr.read()
    assert (await process.wait(), errors) == (0, b"")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--since", "yesterday"], "--since: not a moment"),
        (["--since", "1h", "--until", "soon"], "--until: not a moment"),
        (["--since", "1h", "--state", "lost"], "'lost' is not one of"),
        (["--since", "1h", "--file", "x", "--url", "http://y"], "--url and --file: give one of the two"),
        ([], "Missing option '--since'"),
    ],
)
def test_bad_usage_is_exit_status_2_and_told(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(cli, ["operations", "export", *arguments])
    assert result.exit_code == 2
    assert said in " ".join(result.output.replace("│", " ").split())


def test_a_source_that_cannot_be_read_is_told_by_its_own_words(tmp_path: Path) -> None:
    for arguments, said in (
        (["--file", str(tmp_path / "missing.db")], r"missing\.db cannot be opened: No such file"),
        (["--url", "http://127.0.0.1:1"], "Connection refused; does a sidecar run there"),
    ):
        result = CliRunner().invoke(cli, ["operations", "export", "--since", "1h", *arguments])
        assert isinstance(result.exception, EnvoyExtError), "main makes a line of it, and exit status 1"
        assert re.search(said, str(result.exception))
        assert result.output == ""
