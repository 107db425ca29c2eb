"""The store: the journal of operations, their tool calls, jobs, and what has been."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from envoy_ext.domain.ids import FencingToken, OperationId, SeatId
from envoy_ext.domain.job import (
    Job,
    JobBounds,
    JobCounts,
    JobEnd,
    JobRequest,
    JobsFull,
    JobState,
    NewJob,
)
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.operation import Operation
from envoy_ext.domain.records import OperationBegun, Record
from envoy_ext.domain.tool_calls import CallEnd, CallId, Claim, NewCall, ToolCall

NO_OPERATION: Final = OperationId("")
"""Comes before every id."""


class Journal(Protocol):
    """The durable, append-only memory of operations, and of who may act for each.

    Several gateways may share a store. Each holds a seat there, which it keeps by beats; each operation
    has one owner and a token that grows with every change of it (`domain.ownership`).

    Every call that writes is one atomic step: it looks and writes with nothing in between, knows no
    clock, and holds no lock when it has returned. Order: the records of one call become visible
    together, after those of every call that returned before. Durability: when it returns, its records
    survive what the store's `guarantees` names. Failure: what cannot be done raises
    `JournalUnavailable` and leaves nothing of that call behind, unless the answer alone was lost; so
    each may be repeated.
    """

    @property
    def exclusive(self) -> bool:
        """Whether no other process can use the store as long as this one has it open."""

    @property
    def guarantees(self) -> frozenset[str]:
        """What its records survive: `process_death` of the gateway, `power_loss`, `store_failover`."""

    async def begin(
        self, begun: OperationBegun, owner: SeatId, after: OperationId | None = None
    ) -> Operation | Job | None:
        """Begin an operation with the first token there is, owned by the gateway in this seat.

        `after` is the newest operation the caller knows under the idempotency key of this one. When
        the key has another one by now, or a job, nothing is begun and that one is returned.

        Raises:
            SeatLost: the seat is not there.
            NotOwner: it was begun already, and another gateway has taken it over since. Or it is the run of
                a job that may not begin it: `domain.job.Job.may_begin`.
        """

    async def append(
        self, records: Sequence[Record], token: FencingToken, answer: KeptAnswer | None = None
    ) -> None:
        """Write records of one operation, in order, in the name of the owner with this token.

        `answer` is kept with the operation in the same step; the first one stays.

        Raises:
            NotOwner: the operation has another token, or has not begun.
        """

    async def read_answer(self, operation_id: OperationId) -> KeptAnswer | None:
        """The answer kept with an operation; None where there is none."""

    async def take_over(
        self, operation_id: OperationId, seen: FencingToken, owner: SeatId, at: float
    ) -> Operation:
        """Make the gateway in this seat the owner of an operation whose owner is gone; with the next token.

        The returned operation holds all that the owners before have recorded, and ever will. Done again in
        the same seat it changes nothing and returns the operation as it is. `at`: unix seconds, for the
        record.

        Raises:
            NotOwner: it has another token than the one seen, or its owner's seat is there.
            SeatLost: the new owner's seat is not there.
        """

    async def take_seat(self, gateway: str) -> SeatId:
        """A seat that nobody has ever had, with beat number 1; `gateway` is a name for people."""

    async def beat(self, seat: SeatId, number: int) -> None:
        """Keep a seat. A number that is not greater than that of the last beat changes nothing.

        Raises:
            SeatLost: somebody has removed it.
        """

    async def read_seats(self) -> Mapping[SeatId, int]:
        """Every seat, with the number of its last beat."""

    async def remove_seat(self, seat: SeatId, number: int) -> bool:
        """Remove a seat for good if this is still its last beat; whether it is gone."""

    async def get(self, operation_id: OperationId) -> Operation | None:
        """The operation folded from its records, None when it is not known."""

    async def find_by_key(self, caller: str, path: str, key_hash: str) -> Operation | None:
        """The newest operation that a caller began under an idempotency key."""

    async def list_recent(self, limit: int, before: OperationId | None = None) -> list[Operation]:
        """Operations, newest first; `before` continues an earlier listing."""

    def orphaned(self) -> AsyncIterator[Operation]:
        """Every operation that has begun and not ended, and whose owner has no seat; oldest first."""

    async def close(self) -> None:
        """Flush what was accepted and release the store; later calls raise `JournalUnavailable`."""


class ToolLedger(Protocol):
    """The tool calls of operations, in the store of the journal: a call is looked up against both.

    Atomicity, order, durability and failure are as with `Journal`.
    """

    async def begin_call(self, wanted: NewCall) -> Claim:
        """Let a call through, or answer it from the ledger, or refuse it: `domain.tool_calls.decide_claim`.

        The ledger is that of the wanted call's operation. An operation that is not known, or whose attempt
        may begin no calls (`may_begin_calls`), is refused as `CallRefusal.FENCED`; nothing comes between
        that look and the write. A refusal writes nothing.
        """

    async def end_call(self, ledger_id: OperationId, end: CallEnd, result: KeptAnswer | None = None) -> bool:
        """Write what became of a call, and keep its result with it: `domain.tool_calls.end_call`.

        Whether it counted: a call that has an end by now, was let through again since, or is not there, stays
        as it is. A result comes with a `recorded` end and with no other (`domain.tool_calls.check_end`).
        Needs no running operation: what a call did is worth knowing also when its attempt has ended.
        """

    async def read_calls(self, ledger_id: OperationId) -> tuple[ToolCall, ...]:
        """Every call of a ledger, in the order in which they were first begun."""

    async def read_result(self, ledger_id: OperationId, call_id: CallId) -> KeptAnswer | None:
        """The result of a call whose state is `recorded`; None for every other one."""


@dataclass(frozen=True, slots=True)
class StoreSize:
    """How much a store holds."""

    operations: int
    bytes: int | None = None
    """What they take in the store, without room that is free again; None: the store cannot tell."""


class Archive(Protocol):
    """What has been, in the store of the journal: how much of it, since when, and how long it stays.

    Atomicity, order, durability and failure are as with `Journal`.
    """

    async def forget(self, before: float, limit: int) -> int:
        """Remove operations that ended before this time (unix seconds), first those that ended first.

        How many are gone by this call: at most `limit`, and 0 only where there is none to remove. Each goes
        as a whole: its records, its key, its kept answer. A ledger goes, with its results, when no operation
        is left that has it. One that has not ended never goes. Needs no owner: an operation that has ended
        has nothing left to do. What is gone is as if it had never been: its key begins another operation.

        Jobs that have ended go in the same way, and count as one each; those that ended with an operation go
        behind it. Nothing that a job needs that has not ended goes before its end: the operations of its
        runs, and its ledger.
        """

    async def measure(self) -> StoreSize:
        """How much there is. May take some milliseconds for each 100,000 operations."""

    async def list_since(self, at: float, limit: int, after: OperationId = NO_OPERATION) -> list[Operation]:
        """Operations that began at this time (unix seconds) or later, oldest first, by id at one time.

        The next page begins at the time of the last one and after it, which need not be there any more.
        """


class JobStore(Protocol):
    """Jobs, in the store of the journal: what they are to run, who runs them, and how they ended.

    Each call that writes makes one decision of `domain.job` in one step with the look that it rests on. What
    it returns is the job as it is from then on. Atomicity, order, durability and failure are as with
    `Journal`. A job that is not there is nobody's: `NotOwner`, where that can be raised.
    """

    async def submit_job(
        self, new: NewJob, request: JobRequest, bounds: JobBounds, after: OperationId | None = None
    ) -> Job | Operation | JobsFull:
        """Take a job in, with what it is to run (`decide_submit`).

        Returned is what holds its key: the job itself, told by its id; an earlier job under its key, whatever
        has become of it; or the newest operation that began under its key, unless that is `after`, the one
        its caller knows. The last two need no room. Nothing is written but in the first case.
        """

    async def read_job(self, job_id: OperationId) -> Job | None:
        """The job; None when it is not known."""

    async def find_job(self, caller: str, path: str, key_hash: str) -> Job | None:
        """The job that a caller submitted under an idempotency key."""

    async def read_job_request(self, job_id: OperationId) -> JobRequest | None:
        """What a job is to run; None once it has ended."""

    async def list_jobs(self, states: frozenset[JobState], limit: int, after: int = 0) -> list[Job]:
        """Jobs in these states, in the order of their submission; those of a greater number than `after`."""

    async def list_orphaned_jobs(self, limit: int) -> list[Job]:
        """Running jobs whose owner has no seat, in the order of their submission."""

    async def claim_job(
        self, job_id: OperationId, seen: FencingToken, seat: SeatId, run_id: OperationId
    ) -> Job:
        """Run a queued job in the name of the gateway in this seat: `decide_claim`.

        From then on the operation `run_id` may begin, in this seat. No other run of the job may.

        Raises:
            NotOwner: it has another token than the one seen, or is not queued.
            SeatLost: the seat is not there.
        """

    async def take_over_job(self, job_id: OperationId, seen: FencingToken, seat: SeatId) -> Job:
        """Own a running job whose owner is gone; with the next token, and no run of its own:
        `decide_take_over`. What its last run has not begun never begins.

        Raises:
            NotOwner: it has another token than the one seen, does not run, or its owner's seat is there.
            SeatLost: the seat is not there.
        """

    async def release_job(self, job_id: OperationId, token: FencingToken, at: float) -> Job:
        """Give a running job back into the queue: `decide_release`. `at` (unix seconds): of its end, where
        it is to be cancelled.

        Raises:
            NotOwner: it has another token.
            RunNotOver: the operation of its newest run has begun and not ended.
        """

    async def finish_job(self, job_id: OperationId, token: FencingToken, end: JobEnd) -> Job:
        """End a job and remove its request in the same step; the first end stays: `decide_finish`.

        Raises:
            NotOwner: it has another token.
        """

    async def cancel_job(self, job_id: OperationId, at: float) -> Job | None:
        """End a queued job, removing its request in the same step, or ask the owner of a running one to end
        it: `decide_cancel`. None when it is not known."""

    async def count_jobs(self) -> JobCounts:
        """Those that have not ended."""

    async def forget_results(self, before: float, limit: int) -> int:
        """Remove the kept answers of jobs that ended before this time (unix seconds), first of those that
        ended first. Of how many: at most `limit`, and 0 only where there is none to look at. The jobs stay.
        """


class Store(Journal, ToolLedger, Archive, JobStore, Protocol):
    """What a store is."""
