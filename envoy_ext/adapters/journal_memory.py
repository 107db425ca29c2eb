"""A journal in the process's memory: complete in behaviour, and gone with the process."""

import heapq
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from operator import itemgetter
from typing import Final

from envoy_ext.adapters.journal_codec import encode_record
from envoy_ext.adapters.journal_memory_jobs import MemoryJobStore
from envoy_ext.adapters.tool_call_codec import refuse_unwritable
from envoy_ext.domain.errors import JournalUnavailable, NotOwner, SeatLost
from envoy_ext.domain.ids import FencingToken, OperationId, SeatId
from envoy_ext.domain.job import Job, RunState
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.operation import Operation, apply_record
from envoy_ext.domain.ownership import FIRST_TOKEN
from envoy_ext.domain.records import OperationBegun, OwnershipTaken, Record, find_operation
from envoy_ext.domain.tool_calls import (
    CallEnd,
    CallId,
    CallRefusal,
    CallRefused,
    Claim,
    NewCall,
    ToolCall,
    check_end,
    decide_claim,
    end_call,
    may_begin_calls,
)
from envoy_ext.ports import NO_OPERATION, StoreSize


class MemoryJournal(MemoryJobStore):
    """`ports.Store` for tests and for people who want no file.

    To be used from one event loop; nothing here waits, so a call cannot be interrupted half way. Several
    gateways share one only within a process, and say so.
    """

    guarantees: Final[frozenset[str]] = frozenset()
    """What records survive: nothing."""

    def __init__(self, *, exclusive: bool = True) -> None:
        super().__init__()
        self.exclusive: Final = exclusive
        self._closed = False
        self._records: dict[OperationId, list[tuple[int, Record]]] = {}
        """Each with its place among all of them."""
        self._places = itertools.count()
        self._operations: dict[OperationId, Operation] = {}
        """In the order in which they began."""
        self._ended: list[tuple[float, bool, int, OperationId]] = []
        """A heap of what may be forgotten: when it ended, whether it is a job, and the place of its begin."""
        self._by_key: dict[tuple[str, str, str], list[OperationId]] = {}
        """The newest one last."""
        self._uses: Counter[OperationId] = Counter()
        """How many operations have a ledger."""
        self._bytes = 0
        self._answers: dict[OperationId, KeptAnswer] = {}
        self._calls: dict[OperationId, dict[CallId, ToolCall]] = {}
        """By ledger; each in the order in which its calls were first begun."""
        self._results: dict[tuple[OperationId, CallId], KeptAnswer] = {}
        self._seats: dict[SeatId, int] = {}
        self._seat_numbers = itertools.count(1)

    @property
    def records(self) -> tuple[Record, ...]:
        """Every record, in the order of its append."""
        all_of_them = itertools.chain.from_iterable(self._records.values())
        return tuple(record for _, record in sorted(all_of_them, key=itemgetter(0)))

    async def begin(
        self, begun: OperationBegun, owner: SeatId, after: OperationId | None = None
    ) -> Operation | Job | None:
        self._refuse_when_closed()
        self._refuse_without_seat(owner)
        known = self._operations.get(begun.operation_id)
        if known is not None:
            if known.owner != owner:
                raise NotOwner(f"{begun.operation_id} belongs to another gateway")
            return None
        if begun.job_id is not None:
            job = self._jobs.get(begun.job_id)
            if job is None or not job.may_begin(begun.operation_id, owner):
                raise NotOwner(f"{begun.operation_id} is a run of a job that may not begin it")
        if begun.key_hash is not None:
            holding_job = self._jobs.find(begun.caller, begun.path, begun.key_hash)
            if holding_job is not None:
                return holding_job
            holder = self._find_newest(begun.caller, begun.path, begun.key_hash)
            if holder is not None and holder.operation_id != after:
                return holder
        self._keep([begun, OwnershipTaken(begun.operation_id, begun.at, owner, FIRST_TOKEN)])
        self._uses[self._operations[begun.operation_id].ledger_id] += 1
        if begun.key_hash is not None:
            key = (begun.caller, begun.path, begun.key_hash)
            self._by_key.setdefault(key, []).append(begun.operation_id)
        return None

    async def append(
        self, records: Sequence[Record], token: FencingToken, answer: KeptAnswer | None = None
    ) -> None:
        self._refuse_when_closed()
        operation_id = find_operation(records)
        if operation_id is None:
            return
        known = self._operations.get(operation_id)
        if known is None or known.token != token:
            raise NotOwner(f"{operation_id} belongs to another gateway, or to none")
        self._keep(records)
        if answer is not None and operation_id not in self._answers:
            self._answers[operation_id] = answer
            self._bytes += len(answer.body)

    async def read_answer(self, operation_id: OperationId) -> KeptAnswer | None:
        self._refuse_when_closed()
        return self._answers.get(operation_id)

    async def begin_call(self, wanted: NewCall) -> Claim:
        self._refuse_when_closed()
        refuse_unwritable(wanted.at)
        operation = self._operations.get(wanted.operation_id)
        if operation is None or not may_begin_calls(operation, wanted.attempt_id):
            return CallRefused(CallRefusal.FENCED)
        calls = self._calls.setdefault(operation.ledger_id, {})
        claim = decide_claim(operation.ledger_id, tuple(calls.values()), wanted)
        if not isinstance(claim, CallRefused):
            calls[claim.call.call_id] = claim.call
        return claim

    async def end_call(self, ledger_id: OperationId, end: CallEnd, result: KeptAnswer | None = None) -> bool:
        self._refuse_when_closed()
        check_end(end, result)
        refuse_unwritable(end.at)
        call = self._calls.get(ledger_id, {}).get(end.call_id)
        if call is None or (ended := end_call(call, end)) == call:
            return False
        self._calls[ledger_id][end.call_id] = ended
        if result is not None:
            self._results[ledger_id, end.call_id] = result
            self._bytes += len(result.body)
        return True

    async def read_calls(self, ledger_id: OperationId) -> tuple[ToolCall, ...]:
        self._refuse_when_closed()
        return tuple(self._calls.get(ledger_id, {}).values())

    async def read_result(self, ledger_id: OperationId, call_id: CallId) -> KeptAnswer | None:
        self._refuse_when_closed()
        return self._results.get((ledger_id, call_id))

    async def take_over(
        self, operation_id: OperationId, seen: FencingToken, owner: SeatId, at: float
    ) -> Operation:
        self._refuse_when_closed()
        self._refuse_without_seat(owner)
        known = self._operations.get(operation_id)
        if known is not None and (known.owner, known.token) == (owner, seen + 1):
            return known
        if known is None or known.token != seen or known.owner in self._seats:
            raise NotOwner(f"{operation_id} is not there to be taken over")
        self._keep([OwnershipTaken(operation_id, at, owner, FencingToken(seen + 1))])
        return self._operations[operation_id]

    async def take_seat(self, gateway: str) -> SeatId:
        self._refuse_when_closed()
        seat = SeatId(f"{gateway}/{next(self._seat_numbers)}")
        self._seats[seat] = 1
        return seat

    async def beat(self, seat: SeatId, number: int) -> None:
        self._refuse_when_closed()
        self._refuse_without_seat(seat)
        self._seats[seat] = max(number, self._seats[seat])

    async def read_seats(self) -> Mapping[SeatId, int]:
        self._refuse_when_closed()
        return dict(self._seats)

    async def remove_seat(self, seat: SeatId, number: int) -> bool:
        self._refuse_when_closed()
        if self._seats.get(seat) == number:
            del self._seats[seat]
        return seat not in self._seats

    async def get(self, operation_id: OperationId) -> Operation | None:
        self._refuse_when_closed()
        return self._operations.get(operation_id)

    async def find_by_key(self, caller: str, path: str, key_hash: str) -> Operation | None:
        self._refuse_when_closed()
        return self._find_newest(caller, path, key_hash)

    async def list_recent(self, limit: int, before: OperationId | None = None) -> list[Operation]:
        self._refuse_when_closed()
        newest_first = list(reversed(self._operations))
        if before is not None:
            if before not in self._operations:
                return []
            newest_first = newest_first[newest_first.index(before) + 1 :]
        return [self._operations[operation_id] for operation_id in newest_first[: max(0, limit)]]

    async def orphaned(self) -> AsyncIterator[Operation]:
        self._refuse_when_closed()
        # A copy of the ids: the caller may take them over while it iterates, as recovery does.
        for operation_id in list(self._operations):
            operation = self._operations[operation_id]
            if operation.ending is None and operation.owner not in self._seats:
                yield operation

    async def forget(self, before: float, limit: int) -> int:
        self._refuse_when_closed()
        forgotten = 0
        while forgotten < limit and self._ended and self._ended[0][0] < before:
            _, is_job, _, entry_id = heapq.heappop(self._ended)
            if is_job:
                self._jobs.forget(entry_id)
            else:
                self._forget(entry_id)
            forgotten += 1
        return forgotten

    async def measure(self) -> StoreSize:
        self._refuse_when_closed()
        return StoreSize(len(self._operations), self._bytes + self._jobs.bytes)

    async def list_since(self, at: float, limit: int, after: OperationId = NO_OPERATION) -> list[Operation]:
        self._refuse_when_closed()
        later = [one for one in self._operations.values() if (one.created_at, one.operation_id) > (at, after)]
        later.sort(key=lambda one: (one.created_at, one.operation_id))
        return later[: max(0, limit)]

    async def close(self) -> None:
        self._closed = True

    def _read_run(self, job: Job) -> RunState:
        run = None if job.run_id is None else self._operations.get(job.run_id)
        if run is None:
            return RunState.NONE
        return RunState.OPEN if run.ending is None else RunState.OVER

    def _end_job(self, job: Job, at: float) -> None:
        """What a job has held may be forgotten, and so may the job."""
        heapq.heappush(self._ended, (at, True, job.number, job.job_id))
        for run_id in job.run_ids:
            self._let_go(run_id)
        if not self._uses[job.ledger_id]:
            self._forget_ledger(job.ledger_id)

    def _let_go(self, operation_id: OperationId) -> None:
        """An operation that has ended may be forgotten, unless its job needs it."""
        operation = self._operations.get(operation_id)
        if operation is None or operation.ended_at is None:
            return
        job = self._jobs.get(operation.job_id)
        if job is None or job.ended:
            place = self._records[operation_id][0][0]
            heapq.heappush(self._ended, (operation.ended_at, False, place, operation_id))

    def _find_newest(self, caller: str, path: str, key_hash: str) -> Operation | None:
        found = self._by_key.get((caller, path, key_hash))
        return self._operations[found[-1]] if found else None

    def _keep(self, records: Sequence[Record]) -> None:
        # What no store could write is refused here too, before any record of the call is kept.
        sizes = [len(encode_record(record)) for record in records]
        self._bytes += sum(sizes)
        for record in records:
            known = self._operations.get(record.operation_id)
            after = self._operations[record.operation_id] = apply_record(known, record)
            kept = self._records.setdefault(record.operation_id, [])
            kept.append((next(self._places), record))
            if after.ended_at is not None and (known is None or known.ended_at is None):
                self._let_go(record.operation_id)

    def _forget(self, operation_id: OperationId) -> None:
        operation = self._operations.pop(operation_id)
        self._bytes -= sum(len(encode_record(record)) for _, record in self._records.pop(operation_id))
        self._forget_answer(operation_id)
        if operation.key_hash is not None:
            key = (operation.caller, operation.path, operation.key_hash)
            self._by_key[key].remove(operation_id)
            if not self._by_key[key]:
                del self._by_key[key]
        self._uses[operation.ledger_id] -= 1
        if not self._uses[operation.ledger_id]:
            del self._uses[operation.ledger_id]
            if not self._jobs.uses_ledger(operation.ledger_id):
                self._forget_ledger(operation.ledger_id)

    def _forget_answer(self, operation_id: OperationId) -> None:
        answer = self._answers.pop(operation_id, None)
        self._bytes -= 0 if answer is None else len(answer.body)

    def _forget_ledger(self, ledger_id: OperationId) -> None:
        for call_id in self._calls.pop(ledger_id, {}):
            result = self._results.pop((ledger_id, call_id), None)
            self._bytes -= 0 if result is None else len(result.body)

    def _has_seat(self, seat: SeatId | None) -> bool:
        return seat in self._seats

    def _refuse_without_seat(self, seat: SeatId) -> None:
        if not self._has_seat(seat):
            raise SeatLost(f"{seat} has no seat")

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise JournalUnavailable("the journal is closed")
