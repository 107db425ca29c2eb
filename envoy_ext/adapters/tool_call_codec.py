"""Calls of the tool ledger, and kept answers' headers, as stores write them: lines of ASCII JSON.

Every reader refuses what it does not know, as `journal_codec` does.
"""

import dataclasses
import json
from typing import Final

from envoy_ext.adapters.journal_codec import UnreadableRecord
from envoy_ext.domain.ids import AttemptId, OperationId
from envoy_ext.domain.tool_calls import CallId, CallState, ToolCall

VERSION: Final = 1


def encode_call(call: ToolCall) -> str:
    """The call as one line. A number that JSON has no word for raises ValueError."""
    return json.dumps({"v": VERSION, **dataclasses.asdict(call)}, separators=(",", ":"), allow_nan=False)


def decode_call(text: str | bytes) -> ToolCall:
    """The call that a line holds, or `UnreadableRecord`."""
    try:
        fields = json.loads(text)
        if fields["v"] != VERSION:
            raise UnreadableRecord(
                f"a tool call has version {fields['v']!s:.20}, this program reads {VERSION}"
            )
        return ToolCall(
            call_id=CallId(_text(fields["call_id"])),
            tool=_text(fields["tool"]),
            fingerprint=_text(fields["fingerprint"]),
            arguments_sha256=_text(fields["arguments_sha256"]),
            ordinal=int(fields["ordinal"]),
            idempotent=_flag(fields["idempotent"]),
            attempts=tuple(AttemptId(_text(one)) for one in fields["attempts"]),
            operation_id=OperationId(_text(fields["operation_id"])),
            state=CallState(fields["state"]),
            begun_at=float(fields["begun_at"]),
            ended_at=None if fields["ended_at"] is None else float(fields["ended_at"]),
            status=None if fields["status"] is None else int(fields["status"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UnreadableRecord("a tool call in the ledger cannot be read") from error


def encode_headers(headers: tuple[tuple[str, str], ...]) -> str:
    """An answer's headers as one line."""
    return json.dumps(headers, separators=(",", ":"))


def decode_headers(text: str | bytes) -> tuple[tuple[str, str], ...]:
    """The headers that a line holds, or `UnreadableRecord`."""
    try:
        return tuple((_text(name), _text(value)) for name, value in json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise UnreadableRecord("the headers of a kept answer cannot be read") from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a string expected")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError("true or false expected")
    return value
