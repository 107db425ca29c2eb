"""A journal at a Redis server: for gateways of several machines, and as lasting as that server is.

Each call is one Lua script or one plain command (`journal_redis_scripts`). Calls that write share one lane,
those that look another (`journal_redis_lane`), so that no look waits for replicas.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, Self

from redis.exceptions import RedisClusterException, RedisError

from envoy_ext.adapters import journal_redis_archive as archive
from envoy_ext.adapters import journal_redis_jobs as jobs
from envoy_ext.adapters import journal_redis_ledger as ledger
from envoy_ext.adapters import journal_redis_scripts as scripts
from envoy_ext.adapters.journal_codec import decode_record, encode_record
from envoy_ext.adapters.journal_redis_faults import build_unavailable, explain_probe
from envoy_ext.adapters.journal_redis_job_calls import PAGE, RedisJobCalls
from envoy_ext.adapters.journal_redis_lane import CALL_S, Lane, Replicas
from envoy_ext.adapters.journal_redis_server import (
    ServerFacts,
    derive_guarantees,
    find_eviction,
    list_doubts,
    read_facts,
)
from envoy_ext.adapters.journal_redis_text import build_digest, decode, encode
from envoy_ext.adapters.journal_redis_way import ANSWER_S, RedisPlace, Way, build_way
from envoy_ext.adapters.tool_call_codec import refuse_unwritable
from envoy_ext.domain.errors import JournalUnavailable, NotOwner, SeatLost
from envoy_ext.domain.ids import FencingToken, OperationId, SeatId
from envoy_ext.domain.job import Job
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.operation import Operation, build_operation
from envoy_ext.domain.ownership import FIRST_TOKEN
from envoy_ext.domain.records import OperationBegun, OperationEnded, OwnershipTaken, Record, find_operation
from envoy_ext.domain.tool_calls import CallEnd, CallId, Claim, NewCall, ToolCall, check_end
from envoy_ext.ports import NO_OPERATION, StoreSize

OPEN_S: Final = 5.0
"""How long the look at the server may take when a journal is opened."""


def mint_suffix() -> str:
    """What makes a seat's name its own even where the server has forgotten that its number was given out."""
    return f"-{secrets.token_hex(3)}"


class RedisJournal(RedisJobCalls):
    """`ports.Store` at a Redis server, for any number of gateways.

    To be used from the event loop it was opened in.
    A call that is cancelled while it waits is done all the same: what it records may already have happened.
    """

    exclusive: Final = False

    def __init__(
        self,
        place: RedisPlace,
        way: Way,
        prefix: str,
        facts: ServerFacts,
        replicas: Replicas | None,
        suffix: Callable[[], str],
        call_s: float,
    ) -> None:
        self._place = place.shown
        self._way = way
        self._base = f"{{{prefix}}}:"
        self._suffix = suffix
        self._writes = Lane(way, place.shown, "written", replicas, call_s)
        self._reads = Lane(way, place.shown, "read", None, call_s)
        self._closing: asyncio.Task[None] | None = None
        count = 0 if replicas is None else replicas.count
        self.facts: Final = facts
        self.guarantees: Final = derive_guarantees(facts, count)
        """What appended records survive: `process_death` of this gateway, `power_loss`, `store_failover`."""
        self.doubts: Final = list_doubts(facts, count)
        """What the server does not tell, or what keeps a promise from being made; for people."""

    @classmethod
    async def open(
        cls,
        place: RedisPlace,
        prefix: str = "envoy-ext",
        replicas: Replicas | None = None,
        *,
        suffix: Callable[[], str] = mint_suffix,
        call_s: float = CALL_S,
    ) -> Self:
        """Look at the server, and make sure that a journal can be kept there.

        `JournalUnavailable` says what is wrong and how to mend it: when it cannot be reached or logged in to,
        lacks a right, takes no writes, could drop records, or has the journal of a later release.
        """
        base = f"{{{prefix}}}:"
        way = build_way(place, f"{base}journal", ANSWER_S + (replicas.timeout_s if replicas else 0.0))
        try:
            facts = await _look_at(way, place.shown)
            await cls._probe(way, place.shown, base)
            return cls(place, way, prefix, facts, replicas, suffix, call_s)
        except BaseException:  # whatever it was, nothing stays open
            await way.close()
            raise

    @staticmethod
    async def _probe(way: Way, place: str, base: str) -> None:
        lane = Lane(way, place, "opened")
        failed = await lane.submit(scripts.PROBE, f"{base}journal", base)
        if failed:
            command, answer = (one.decode() for one in failed)
            raise JournalUnavailable(
                f"the journal at {place} cannot be opened: {explain_probe(command, answer)}"
            )

    # --- operations ---------------------------------------------------------------------------

    async def begin(
        self, begun: OperationBegun, owner: SeatId, after: OperationId | None = None
    ) -> Operation | Job | None:
        self._refuse_when_closed()
        taken = OwnershipTaken(begun.operation_id, begun.at, owner, FIRST_TOKEN)
        digest = b"" if begun.key_hash is None else build_digest(begun.caller, begun.path, begun.key_hash)
        status, *held = await self._write(
            scripts.BEGIN,
            encode(begun.operation_id),
            encode(owner),
            b"" if after is None else b"=" + encode(after),
            repr(begun.at),
            digest,
            encode(begun.operation_id if begun.ledger_id is None else begun.ledger_id),
            b"" if begun.job_id is None else encode(begun.job_id),
            encode_record(begun),
            encode_record(taken),
        )
        if status == scripts.SEAT_LOST:
            raise SeatLost(f"{owner} has no seat")
        if status == scripts.NOT_OWNER:
            raise NotOwner(f"{begun.operation_id} belongs to another gateway, or its job may not begin it")
        if status == scripts.HELD_BY_JOB:
            return jobs.read_job(held[0])
        return self._fold(held[0]) if status == scripts.HELD else None

    async def append(
        self, records: Sequence[Record], token: FencingToken, answer: KeptAnswer | None = None
    ) -> None:
        self._refuse_when_closed()
        operation_id = find_operation(records)
        if operation_id is None:
            return
        ends = next((repr(record.at) for record in records if isinstance(record, OperationEnded)), "")
        bodies = [encode_record(record) for record in records]
        kept = b"" if answer is None else ledger.encode_answer(answer)
        status, *_ = await self._write(scripts.APPEND, encode(operation_id), str(token), ends, kept, *bodies)
        if status == scripts.NOT_OWNER:
            raise NotOwner(f"{operation_id} belongs to another gateway, or to none")

    async def take_over(
        self, operation_id: OperationId, seen: FencingToken, owner: SeatId, at: float
    ) -> Operation:
        self._refuse_when_closed()
        taken = OwnershipTaken(operation_id, at, owner, FencingToken(seen + 1))
        status, *records = await self._write(
            scripts.TAKE_OVER, encode(operation_id), str(seen), encode(owner), encode_record(taken)
        )
        if status == scripts.SEAT_LOST:
            raise SeatLost(f"{owner} has no seat")
        if status == scripts.NOT_OWNER:
            raise NotOwner(f"{operation_id} is not there to be taken over")
        return self._fold(records[0])

    async def read_answer(self, operation_id: OperationId) -> KeptAnswer | None:
        return await self._read_kept(b"op:" + encode(operation_id), "answer")

    async def _read_kept(self, key: bytes, name: str) -> KeptAnswer | None:
        self._refuse_when_closed()
        kept = await self._reads.submit(None, "HGET", self._base.encode() + key, encode(name))
        return None if kept is None else ledger.decode_answer(kept)

    # --- the tool ledger ----------------------------------------------------------------------

    async def begin_call(self, wanted: NewCall) -> Claim:
        self._refuse_when_closed()
        refuse_unwritable(wanted.at)
        return await ledger.begin_call(self._read, self._write, wanted)

    async def end_call(self, ledger_id: OperationId, end: CallEnd, result: KeptAnswer | None = None) -> bool:
        self._refuse_when_closed()
        check_end(end, result)
        refuse_unwritable(end.at)
        return await ledger.write_end(self._read, self._write, ledger_id, end, result)

    async def read_calls(self, ledger_id: OperationId) -> tuple[ToolCall, ...]:
        self._refuse_when_closed()
        key = self._base.encode() + b"calls:" + encode(ledger_id)
        return ledger.read_ledger(await self._reads.submit(None, "HGETALL", key)).calls

    async def read_result(self, ledger_id: OperationId, call_id: CallId) -> KeptAnswer | None:
        return await self._read_kept(b"results:" + encode(ledger_id), call_id)

    # --- seats --------------------------------------------------------------------------------

    async def take_seat(self, gateway: str) -> SeatId:
        self._refuse_when_closed()
        seat: bytes = await self._write(scripts.TAKE_SEAT, encode(gateway), self._suffix())
        return SeatId(decode(seat))

    async def beat(self, seat: SeatId, number: int) -> None:
        self._refuse_when_closed()
        status, *_ = await self._write(scripts.BEAT, encode(seat), str(number))
        if status == scripts.SEAT_LOST:
            raise SeatLost(f"{seat} has no seat")

    async def read_seats(self) -> Mapping[SeatId, int]:
        self._refuse_when_closed()
        answer = await self._reads.submit(None, "HGETALL", f"{self._base}seats")
        return {SeatId(decode(seat)): int(number) for seat, number in ledger.read_pairs(answer)}

    async def remove_seat(self, seat: SeatId, number: int) -> bool:
        self._refuse_when_closed()
        gone: int = await self._write(scripts.REMOVE_SEAT, encode(seat), str(number))
        return gone == 1

    # --- what has been --------------------------------------------------------------------------

    async def forget(self, before: float, limit: int) -> int:
        return await self._forget_by(archive.FORGET, before, limit)

    async def measure(self) -> StoreSize:
        return StoreSize(await self._read(archive.COUNT))

    async def list_since(self, at: float, limit: int, after: OperationId = NO_OPERATION) -> list[Operation]:
        self._refuse_when_closed()
        found: list[Operation] = []
        while (left := min(limit - len(found), PAGE)) > 0:
            page = await self._read(archive.SINCE, repr(at), encode(after), str(left))
            found += [self._fold(records) for records in page]
            if len(page) < left:
                break
            at, after = found[-1].created_at, found[-1].operation_id
        return found

    # --- lookups ------------------------------------------------------------------------------

    async def get(self, operation_id: OperationId) -> Operation | None:
        self._refuse_when_closed()
        key = self._base.encode() + b"records:" + encode(operation_id)
        records = await self._reads.submit(None, "LRANGE", key, 0, -1)
        return self._fold(records) if records else None

    async def find_by_key(self, caller: str, path: str, key_hash: str) -> Operation | None:
        self._refuse_when_closed()
        records = await self._read(scripts.FIND, build_digest(caller, path, key_hash))
        return self._fold(records) if records else None

    async def list_recent(self, limit: int, before: OperationId | None = None) -> list[Operation]:
        self._refuse_when_closed()
        found: list[Operation] = []
        bound: tuple[str, bytes] = ("all", b"") if before is None else ("id", encode(before))
        while (left := min(limit - len(found), PAGE)) > 0:
            page = await self._read(scripts.LIST, *bound, str(left))
            found += [self._fold(records) for _, records in page]
            if len(page) < left:
                break
            bound = ("seq", page[-1][0])
        return found

    async def orphaned(self) -> AsyncIterator[Operation]:
        """Page by page: each operation is as it stood when its page was read."""
        self._refuse_when_closed()
        after = b"0"
        while page := await self._read(scripts.ORPHANED, after, str(PAGE)):
            for _, records in page:
                yield self._fold(records)
            after = page[-1][0]

    # ------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Send what was accepted and drop the connections; goes on to the end even when cancelled."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await asyncio.gather(self._writes.flush(), self._reads.flush())
        await self._way.close()

    def _refuse_when_closed(self) -> None:
        if self._closing is not None:
            raise JournalUnavailable(f"the journal at {self._place} is closed")

    async def _write(self, script: scripts.Script, *words: Any) -> Any:
        self._refuse_when_closed()
        return await self._writes.submit(script, f"{self._base}journal", self._base, *words)

    async def _read(self, script: scripts.Script, *words: Any) -> Any:
        self._refuse_when_closed()
        return await self._reads.submit(script, f"{self._base}journal", self._base, *words)

    async def _ask(self, command: str, key: bytes, *words: Any) -> Any:
        self._refuse_when_closed()
        return await self._reads.submit(None, command, self._base.encode() + key, *words)

    def _fold(self, records: Sequence[bytes]) -> Operation:
        operation = build_operation(decode_record(record) for record in records)
        if operation is None:
            raise JournalUnavailable(
                f"the journal at {self._place} cannot be read: its index names an operation that is not there"
            )
        return operation


async def look_at_server(place: RedisPlace, prefix: str = "envoy-ext") -> ServerFacts:
    """What the server says of itself, and nothing is written there.

    `JournalUnavailable` when it cannot be asked, or could drop records.
    """
    way = build_way(place, f"{{{prefix}}}:journal")
    try:
        return await _look_at(way, place.shown)
    finally:
        await way.close()


async def _look_at(way: Way, place: str) -> ServerFacts:
    try:
        async with asyncio.timeout(OPEN_S):
            facts = await read_facts(await way.find())
    except (RedisError, RedisClusterException, OSError) as fault:
        raise build_unavailable(place, "opened", fault) from fault
    eviction = find_eviction(facts)
    if eviction is not None:
        raise JournalUnavailable(f"the journal at {place} cannot be opened: {eviction}")
    return facts
