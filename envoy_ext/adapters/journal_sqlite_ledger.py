"""What a SQLite journal keeps beside its records: whole answers, and the ledger of tool calls.

Each function runs inside the caller's transaction (`BEGIN IMMEDIATE` where it writes).
"""

import sqlite3
from typing import Final

from envoy_ext.adapters import journal_sqlite_codec as codec
from envoy_ext.adapters import tool_call_codec
from envoy_ext.domain.ids import OperationId
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.tool_calls import (
    CallEnd,
    CallId,
    CallRefusal,
    CallRefused,
    Claim,
    NewCall,
    ToolCall,
    decide_claim,
    end_call,
    may_begin_calls,
)

_CALLS: Final = "SELECT body FROM tool_calls WHERE ledger_id = ? ORDER BY seq"
_CALL: Final = "SELECT body FROM tool_calls WHERE ledger_id = ? AND call_id = ?"
_PUT_CALL: Final = (
    "INSERT INTO tool_calls (ledger_id, call_id, body) VALUES (?, ?, ?)"
    " ON CONFLICT (ledger_id, call_id) DO UPDATE SET body = excluded.body"
)
IN_USE: Final = (
    "SELECT 1 FROM operations WHERE ledger_id = ?1"
    " UNION ALL SELECT 1 FROM operations WHERE operation_id = ?1 AND ledger_id IS NULL"
    " UNION ALL SELECT 1 FROM jobs WHERE ledger_id = ?1 AND ended_at IS NULL LIMIT 1"
)
OWN_ANSWER: Final = ""
"""The name of an operation's own answer among the kept ones; a tool's result is named after its call."""


def is_there(connection: sqlite3.Connection) -> bool:
    """Whether the file has tables for all this: one that only earlier releases wrote has none."""
    found = connection.execute("SELECT count(*) FROM sqlite_master WHERE name IN ('answers', 'tool_calls')")
    return bool(found.fetchone()[0] == 2)


def keep_answer(connection: sqlite3.Connection, of: OperationId, name: str, answer: KeptAnswer) -> None:
    """Keep an answer, unless one of this name is there."""
    headers = tool_call_codec.encode_headers(answer.headers)
    connection.execute(
        "INSERT INTO answers (operation_id, name, status, headers, body) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (operation_id, name) DO NOTHING",
        (codec.build_column(of), codec.build_column(name), answer.status, headers, answer.body),
    )


def read_answer(connection: sqlite3.Connection, of: OperationId, name: str) -> KeptAnswer | None:
    """`ports.Journal.read_answer` and `ports.ToolLedger.read_result`."""
    row = connection.execute(
        "SELECT status, headers, body FROM answers WHERE operation_id = ? AND name = ?",
        (codec.build_column(of), codec.build_column(name)),
    ).fetchone()
    return None if row is None else KeptAnswer(row[0], tool_call_codec.decode_headers(row[1]), row[2])


def begin_call(connection: sqlite3.Connection, wanted: NewCall) -> Claim:
    """`ports.ToolLedger.begin_call`."""
    found = codec.select_operations(connection, codec.SELECT_BY_ID, (wanted.operation_id,))
    operation = found[0][1] if found else None
    if operation is None or not may_begin_calls(operation, wanted.attempt_id):
        return CallRefused(CallRefusal.FENCED)
    claim = decide_claim(operation.ledger_id, read_calls(connection, operation.ledger_id), wanted)
    if not isinstance(claim, CallRefused):
        _put(connection, operation.ledger_id, claim.call)
    return claim


def write_end(
    connection: sqlite3.Connection, ledger_id: OperationId, end: CallEnd, result: KeptAnswer | None
) -> bool:
    """`ports.ToolLedger.end_call`."""
    named = (codec.build_column(ledger_id), codec.build_column(end.call_id))
    row = connection.execute(_CALL, named).fetchone()
    if row is None:
        return False
    call = tool_call_codec.decode_call(row[0])
    ended = end_call(call, end)
    if ended == call:
        return False
    _put(connection, ledger_id, ended)
    if result is not None:
        keep_answer(connection, ledger_id, _name_result(end.call_id), result)
    return True


def read_calls(connection: sqlite3.Connection, ledger_id: OperationId) -> tuple[ToolCall, ...]:
    """`ports.ToolLedger.read_calls`."""
    rows = connection.execute(_CALLS, (codec.build_column(ledger_id),)).fetchall()
    return tuple(tool_call_codec.decode_call(body) for (body,) in rows)


def read_result(connection: sqlite3.Connection, ledger_id: OperationId, call_id: CallId) -> KeptAnswer | None:
    """`ports.ToolLedger.read_result`."""
    return read_answer(connection, ledger_id, _name_result(call_id))


def forget_unused(connection: sqlite3.Connection, ledger_id: str) -> None:
    """Remove a ledger, named as its column has it, that no operation and no unfinished job has."""
    if connection.execute(IN_USE, (ledger_id,)).fetchone() is None:
        connection.execute("DELETE FROM tool_calls WHERE ledger_id = ?", (ledger_id,))
        # What is left there under its name are results: its own answer went with the operation.
        connection.execute(
            f"DELETE FROM answers WHERE operation_id = ? AND name <> '{OWN_ANSWER}'", (ledger_id,)
        )


def _name_result(call_id: CallId) -> str:
    return f"of {call_id}"


def _put(connection: sqlite3.Connection, ledger_id: OperationId, call: ToolCall) -> None:
    body = tool_call_codec.encode_call(call)
    connection.execute(_PUT_CALL, (codec.build_column(ledger_id), call.call_id, body))
