"""Calls of the tool ledger, and kept answers' headers, as stores write them: lines of ASCII JSON.

Every reader is as strict, and as lenient, as those of `journal_codec`.
"""

import dataclasses
import json
import math
from functools import lru_cache
from typing import Final

from envoy_ext.adapters.journal_codec import Fields, UnreadableRecord, read_object
from envoy_ext.domain.ids import AttemptId, OperationId
from envoy_ext.domain.tool_calls import CallId, CallState, ToolCall

VERSION: Final = 1
_REMEMBERED: Final = 4096
"""Lines whose calls are remembered, at about 1 KB each. A claim reads the whole of its ledger, of which one
line has changed since the last claim: 300 calls of one operation at once kept a store busy for seconds."""
_WHAT: Final = "a tool call of the ledger"


def encode_call(call: ToolCall) -> str:
    """The call as one line. A number that JSON has no word for raises ValueError."""
    return json.dumps({"v": VERSION, **dataclasses.asdict(call)}, separators=(",", ":"), allow_nan=False)


@lru_cache(_REMEMBERED)
def decode_call(text: str | bytes) -> ToolCall:
    """The call that a line holds, or `UnreadableRecord`."""
    fields = Fields(_WHAT, read_object(text, _WHAT, VERSION))
    attempts = tuple(AttemptId(one) for one in fields.texts("attempts"))
    if not attempts:
        raise UnreadableRecord(f"{_WHAT} was made by no attempt")
    return ToolCall(
        call_id=CallId(fields.text("call_id")),
        tool=fields.text("tool"),
        fingerprint=fields.text("fingerprint"),
        arguments_sha256=fields.text("arguments_sha256"),
        ordinal=fields.count("ordinal"),
        idempotent=fields.flag("idempotent"),
        attempts=attempts,
        operation_id=OperationId(fields.text("operation_id")),
        state=fields.word("state", CallState),
        begun_at=fields.time("begun_at"),
        ended_at=fields.time_or_none("ended_at"),
        status=fields.count_or_none("status"),
        grants=fields.count("grants"),
    )


def encode_headers(headers: tuple[tuple[str, str], ...]) -> str:
    """An answer's headers as one line."""
    return json.dumps(headers, separators=(",", ":"))


def decode_headers(text: str | bytes) -> tuple[tuple[str, str], ...]:
    """The headers that a line holds, or `UnreadableRecord`."""
    try:
        decoded: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableRecord("the headers of a kept message are not JSON") from error
    return read_headers(decoded)


def read_headers(decoded: object) -> tuple[tuple[str, str], ...]:
    """The headers that a list of pairs holds, or `UnreadableRecord`."""
    if not isinstance(decoded, list):
        raise UnreadableRecord("the headers of a kept message are no list")
    return tuple(_read_header(one) for one in decoded)


def refuse_unwritable(at: float) -> None:
    """A time that JSON has no word for raises ValueError, as `encode_call` would when it is too late."""
    if not math.isfinite(at):
        raise ValueError("not a finite float: a call has no such time")


def _read_header(pair: object) -> tuple[str, str]:
    if isinstance(pair, list) and len(pair) == 2:
        name, value = pair
        if isinstance(name, str) and isinstance(value, str):
            return name, value
    raise UnreadableRecord("the headers of a kept message are no pairs of a name and a value")
