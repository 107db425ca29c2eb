"""The tool ledger and the kept answers of a Redis journal.

Whether a call may be made is decided here, by the core's own function, from what one script has read;
another writes the decision if nothing has changed since, and otherwise it is made anew. So nothing comes
between the look and the write, and the decision stands in one place for every store.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from envoy_ext.adapters import tool_call_codec
from envoy_ext.adapters.journal_codec import UnreadableRecord, decode_record
from envoy_ext.adapters.journal_redis_scripts import DONE, Script, build_script
from envoy_ext.adapters.journal_redis_text import encode
from envoy_ext.domain.errors import JournalUnavailable
from envoy_ext.domain.ids import OperationId
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.operation import build_operation
from envoy_ext.domain.tool_calls import (
    CallEnd,
    CallRefusal,
    CallRefused,
    Claim,
    NewCall,
    ToolCall,
    decide_claim,
    end_call,
    may_begin_calls,
)

MOST_TRIES: Final = 100
"""Of one decision. Each that is made anew was overtaken by another, of the same few calls."""

LOOK: Final = build_script(
    "look_at_ledger",
    """
local id = ARGV[2]
local ledger = call('HGET', op_of(id), 'ledger') or id
return {read_records(id), call('HGETALL', calls_of(ledger))}
""",
)
"""The id of an operation; its records, and the ledger it has its calls in."""

PUT: Final = build_script(
    "put_call",
    f"""
local id, count, ledger, version, place, by, body, name, result = unpack(ARGV, 2)
if call('HGET', calls_of(ledger), place .. ' by') == by then return '{DONE.decode()}' end
if (call('HGET', calls_of(ledger), 'version') or '0') ~= version then return 'changed' end
if count ~= '' and call('LLEN', records_of(id)) ~= tonumber(count) then return 'changed' end
call('HLEN', results_of(ledger))
call('HINCRBY', calls_of(ledger), 'version', 1)
call('HSET', calls_of(ledger), place, body, place .. ' by', by)
if result ~= '' then call('HSET', results_of(ledger), name, result) end
return '{DONE.decode()}'
""",
)
"""An operation and how many records it had ("" where that does not matter), the ledger and its version, the
place of the call, the name of this write, the call; its id, and its result ("" for none)."""


class Asking(Protocol):
    """Runs a script at the server."""

    async def __call__(self, script: Script, *words: Any) -> Any:
        """Its answer."""


async def begin_call(read: Asking, write: Asking, wanted: NewCall) -> Claim:
    """`ports.ToolLedger.begin_call`."""
    by = secrets.token_hex(8)
    for _ in range(MOST_TRIES):
        records, fields = await read(LOOK, encode(wanted.operation_id))
        operation = build_operation(decode_record(record) for record in records)
        if operation is None or not may_begin_calls(operation, wanted.attempt_id):
            return CallRefused(CallRefusal.FENCED)
        ledger = read_ledger(fields)
        claim = decide_claim(operation.ledger_id, ledger.calls, wanted)
        if isinstance(claim, CallRefused):
            return claim
        put = [encode(wanted.operation_id), str(len(records)), encode(operation.ledger_id)]
        if await write(PUT, *put, *ledger.build_write(claim.call, by), b"", b"") == DONE:
            return claim
    raise JournalUnavailable("a tool's call was overtaken again and again by others of its operation")


async def write_end(
    read: Asking, write: Asking, ledger_id: OperationId, end: CallEnd, result: KeptAnswer | None
) -> bool:
    """`ports.ToolLedger.end_call`."""
    by = secrets.token_hex(8)
    kept = b"" if result is None else encode_answer(result)
    for _ in range(MOST_TRIES):
        _, fields = await read(LOOK, encode(ledger_id))
        ledger = read_ledger(fields)
        call = next((one for one in ledger.calls if one.call_id == end.call_id), None)
        if call is None or (ended := end_call(call, end)) == call:
            return False
        put = [b"", b"", encode(ledger_id), *ledger.build_write(ended, by)]
        if await write(PUT, *put, encode(end.call_id), kept) == DONE:
            return True
    raise JournalUnavailable("the end of a tool's call was overtaken again and again by others")


@dataclass(frozen=True, slots=True)
class Ledger:
    """The calls of a ledger as they were read."""

    calls: tuple[ToolCall, ...]
    version: bytes

    def build_write(self, call: ToolCall, by: str) -> tuple[bytes | str, ...]:
        """What `PUT` needs to write this call in its place, or behind the others."""
        known = [one.call_id for one in self.calls]
        place = known.index(call.call_id) if call.call_id in known else len(known)
        return self.version, str(place + 1), by, tool_call_codec.encode_call(call)


def read_ledger(fields: Sequence[bytes] | Mapping[bytes, bytes]) -> Ledger:
    """The ledger that a hash holds; empty for one that is not there."""
    held = dict(read_pairs(fields))
    places = sorted(int(name) for name in held if name.isdigit())
    calls = tuple(tool_call_codec.decode_call(held[b"%d" % place]) for place in places)
    return Ledger(calls, held.get(b"version", b"0"))


def read_pairs(fields: Sequence[bytes] | Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """The fields of a hash: from a script a list, from a command what the client makes of it."""
    if isinstance(fields, Mapping):
        return list(fields.items())
    return list(zip(fields[::2], fields[1::2], strict=True))


def encode_answer(answer: KeptAnswer) -> bytes:
    """A kept answer as one value: a line with its status and its headers, and its body."""
    return f"{answer.status} {tool_call_codec.encode_headers(answer.headers)}\n".encode() + answer.body


def decode_answer(value: bytes) -> KeptAnswer:
    """The answer that a value holds, or `UnreadableRecord`."""
    head, line, body = value.partition(b"\n")
    status, blank, headers = head.partition(b" ")
    if not line or not blank or not status.isdigit():
        raise UnreadableRecord("a kept answer cannot be read")
    return KeptAnswer(int(status), tool_call_codec.decode_headers(headers), body)
