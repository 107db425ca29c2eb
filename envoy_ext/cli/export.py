"""`operations export`: every operation of a time as lines of JSON, from a sidecar or from its file."""

import json
import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, TextIO

from envoy_ext.adapters.journal_sqlite import SqliteJournalReader
from envoy_ext.adapters.moment_codec import parse_moment
from envoy_ext.adapters.operation_codec import build_operator_json
from envoy_ext.operations_client import EXPORT_PAGE
from envoy_ext.ports import NO_OPERATION


async def read_file(path: Path, since: float, state: str | None) -> AsyncGenerator[dict[str, Any], None]:
    """Operations of a SQLite journal, oldest first, page by page: beside a sidecar, or without.

    Raises:
        JournalUnavailable: it cannot be read; the message says why.
    """
    reader = await SqliteJournalReader.open(path)
    try:
        at, after = since, NO_OPERATION
        while page := await reader.list_since(at, EXPORT_PAGE, after):
            chosen = [one for one in page if state is None or one.state == state]
            calls = await reader.read_calls_of([one.ledger_id for one in chosen])
            for operation, its_calls in zip(chosen, calls, strict=True):
                yield build_operator_json(operation, its_calls)
            at, after = page[-1].created_at, page[-1].operation_id
    finally:
        await reader.close()


async def write_lines(
    operations: AsyncGenerator[dict[str, Any], None], until: float | None, out: TextIO | None = None
) -> None:
    """One line for each operation that began before `until`. Ends without a word where nobody reads on."""
    out = sys.stdout if out is None else out
    try:
        async for operation in operations:
            if until is not None and parse_moment(operation["created_at"]) >= until:
                break
            out.write(json.dumps(operation, separators=(",", ":")) + "\n")
        out.flush()
    except BrokenPipeError:
        # Python flushes once more at its end: into nothing, and not into the pipe that is gone.
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
    finally:
        await operations.aclose()
