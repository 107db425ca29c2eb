"""A store whose calls are bounded in time, and that is known to be down while it is.

    UP ── a write fails ──> REFUSING ── a write is done ──> UP
    UP, REFUSING ── a call is not answered soon ──> SILENT ── any answer ──> UP

A store that refuses is asked again by each call: its word comes at once. One that is silent, or takes its
time to refuse, would make each caller wait as long as the first one did: it is asked by this gateway's beats
and by the probe alone, and every other call is told `StoreSilent`. The probe is a beat of this gateway's seat
with the number that it has anyway, which changes nothing and needs a write.

A call that was given up may have reached the store, and may still be done there. Its caller is told
`JournalUnavailable`, as for an answer that was lost.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from envoy_ext.domain.errors import JournalUnavailable, NotOwner, RunNotOver, SeatLost, StoreSilent
from envoy_ext.domain.ids import FencingToken, OperationId, SeatId
from envoy_ext.domain.job import Job, JobBounds, JobCounts, JobEnd, JobRequest, JobsFull, JobState, NewJob
from envoy_ext.domain.kept_answer import KeptAnswer
from envoy_ext.domain.loop_health import LATE_S
from envoy_ext.domain.notes import StoreBack, StoreLost
from envoy_ext.domain.operation import Operation
from envoy_ext.domain.records import OperationBegun, Record
from envoy_ext.domain.tool_calls import CallEnd, CallId, Claim, NewCall, ToolCall
from envoy_ext.ports import NO_OPERATION, Clock, Observer, Store, StoreSize

MOMENT_S: Final = 0.5
"""How long a store is waited for behind the end of patience, when this process itself was stopped."""
PROBE_EVERY_S: Final = 1.0
"""From the end of one probe to the next: how late it may be noticed that the store is back."""

SLOW_REFUSAL_S: Final = 0.5
"""A store that is asked over a network may try for some time before it says that nobody is there. Its refusal
costs its callers as much as no answer then."""
OWN_WORDS_S: Final = 0.25
"""How much longer than a store's own bound, which is the same, its answer is waited for: it knows why."""

_Result = TypeVar("_Result")
_Work = Callable[[], Awaitable[_Result]]


class _Patience:
    """With one answer of the store: when it ends, the task that waits is cancelled.

    As `asyncio.timeout`, but for a process that has not run itself: what was answered meanwhile is yet to be
    heard, and the store is given a moment more.
    """

    __slots__ = ("_due", "_expired", "_handle", "_loop", "_task")

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._expired = False
        self._wait(seconds)

    def end(self) -> None:
        """The answer has come, or is waited for no more."""
        self._handle.cancel()

    def is_the_cause(self) -> bool:
        """Whether the task was cancelled for this, and for nothing else."""
        return self._expired and self._task is not None and not self._task.uncancel()

    def _wait(self, seconds: float) -> None:
        self._due = self._loop.time() + seconds
        self._handle = self._loop.call_at(self._due, self._expire)

    def _expire(self) -> None:
        if self._loop.time() - self._due > LATE_S:
            self._wait(MOMENT_S)
        elif self._task is not None:
            self._expired = True
            self._task.cancel()


class GuardedStore:
    """`ports.Store` around another. Used from one event loop, with `run` beside it."""

    def __init__(self, store: Store, clock: Clock, observer: Observer, *, timeout_s: float) -> None:
        self._store = store
        self._clock = clock
        self._observer = observer
        self._timeout_s = timeout_s + OWN_WORDS_S
        self._down_since: float | None = None
        self._silent = False
        self._worked_at = -math.inf
        """When a write was last done, or refused by what the store holds."""
        self._is_down = asyncio.Event()
        self._beat: tuple[SeatId, int] | None = None
        """The seat of this gateway, and the last number it was to be kept with."""
        self._listeners: list[Callable[[], None]] = []

    @property
    def down(self) -> bool:
        """Whether its last word, or its silence, was that it takes no writes."""
        return self._down_since is not None

    def on_back(self, listener: Callable[[], None]) -> None:
        """Call it each time when the store works again."""
        self._listeners.append(listener)

    async def run(self) -> None:
        """Probe the store while it is down, until cancelled."""
        while True:
            await self._is_down.wait()
            await self.probe()
            await asyncio.sleep(PROBE_EVERY_S)

    async def probe(self) -> None:
        """Ask once whether it works again."""
        if self._beat is not None:
            with contextlib.suppress(JournalUnavailable, SeatLost):  # the state has changed, or stands
                await self._write_always(partial(self._store.beat, *self._beat))

    # --- the bound, and what it tells ---------------------------------------------------------

    async def _write(self, work: _Work[_Result]) -> _Result:
        self._refuse_while_silent()
        return await self._write_always(work)

    async def _write_always(self, work: _Work[_Result]) -> _Result:
        asked_at = self._clock.now()
        try:
            result = await self._bound(work)
        except JournalUnavailable as fault:
            self._note_lost(fault, asked_at)
            raise
        except (NotOwner, SeatLost, RunNotOver):
            self._note_back()
            raise
        self._note_back()
        return result

    async def _read(self, work: _Work[_Result]) -> _Result:
        """A look that a request waits for. Reads may work where writes do not: an answer tells nothing."""
        self._refuse_while_silent()
        return await self._bound(work)

    async def _bound(self, work: _Work[_Result]) -> _Result:
        asked_at = self._clock.now()
        patience = _Patience(self._timeout_s)
        try:
            return await work()
        except asyncio.CancelledError:
            if not patience.is_the_cause():
                raise
            fault = JournalUnavailable(f"the store has not answered within {self._timeout_s:g} s")
            self._note_silent(fault, asked_at)
            raise fault from None
        except JournalUnavailable as fault:
            if self._clock.now() - asked_at > SLOW_REFUSAL_S:
                self._note_silent(fault, asked_at)
            raise
        finally:
            patience.end()

    async def _look(self, work: _Work[_Result]) -> _Result:
        """A look of people's or recovery's, or upkeep: large, and its time says nothing of the store."""
        self._refuse_while_silent()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await work()
        except TimeoutError:
            raise JournalUnavailable(f"the store has not answered within {self._timeout_s:g} s") from None

    def _refuse_while_silent(self) -> None:
        if self._silent:
            raise StoreSilent("the store gives no answers")

    def _note_silent(self, fault: JournalUnavailable, asked_at: float) -> None:
        self._silent |= asked_at >= self._worked_at
        self._note_lost(fault, asked_at)

    def _note_lost(self, fault: JournalUnavailable, asked_at: float) -> None:
        # What was asked before the last answer came is of an outage that is over.
        if self._down_since is None and asked_at >= self._worked_at:
            self._down_since = self._clock.now()
            self._is_down.set()
            self._observer.note(StoreLost(str(fault)))

    def _note_back(self) -> None:
        self._worked_at = self._clock.now()
        self._silent = False
        if self._down_since is None:
            return
        seconds = self._clock.now() - self._down_since
        self._down_since = None
        self._is_down.clear()
        self._observer.note(StoreBack(seconds))
        for listener in self._listeners:
            listener()

    # --- ports.Journal ------------------------------------------------------------------------

    @property
    def exclusive(self) -> bool:
        return self._store.exclusive

    @property
    def guarantees(self) -> frozenset[str]:
        return self._store.guarantees

    async def begin(
        self, begun: OperationBegun, owner: SeatId, after: OperationId | None = None
    ) -> Operation | Job | None:
        return await self._write(partial(self._store.begin, begun, owner, after))

    async def append(
        self, records: Sequence[Record], token: FencingToken, answer: KeptAnswer | None = None
    ) -> None:
        await self._write(partial(self._store.append, records, token, answer))

    async def read_answer(self, operation_id: OperationId) -> KeptAnswer | None:
        return await self._read(partial(self._store.read_answer, operation_id))

    async def take_over(
        self, operation_id: OperationId, seen: FencingToken, owner: SeatId, at: float
    ) -> Operation:
        return await self._write(partial(self._store.take_over, operation_id, seen, owner, at))

    async def take_seat(self, gateway: str) -> SeatId:
        seat = await self._write_always(partial(self._store.take_seat, gateway))
        self._beat = seat, 1
        return seat

    async def beat(self, seat: SeatId, number: int) -> None:
        self._beat = seat, number
        await self._write_always(partial(self._store.beat, seat, number))

    async def read_seats(self) -> Mapping[SeatId, int]:
        return await self._read(self._store.read_seats)

    async def remove_seat(self, seat: SeatId, number: int) -> bool:
        return await self._write(partial(self._store.remove_seat, seat, number))

    async def get(self, operation_id: OperationId) -> Operation | None:
        return await self._read(partial(self._store.get, operation_id))

    async def find_by_key(self, caller: str, path: str, key_hash: str) -> Operation | None:
        return await self._read(partial(self._store.find_by_key, caller, path, key_hash))

    async def list_recent(self, limit: int, before: OperationId | None = None) -> list[Operation]:
        return await self._look(partial(self._store.list_recent, limit, before))

    async def orphaned(self) -> AsyncIterator[Operation]:
        found = aiter(self._store.orphaned())
        while (operation := await self._look(lambda: _next(found))) is not None:
            yield operation

    async def close(self) -> None:
        await self._store.close()

    # --- ports.ToolLedger ---------------------------------------------------------------------

    async def begin_call(self, wanted: NewCall) -> Claim:
        return await self._write(partial(self._store.begin_call, wanted))

    async def end_call(self, ledger_id: OperationId, end: CallEnd, result: KeptAnswer | None = None) -> bool:
        return await self._write(partial(self._store.end_call, ledger_id, end, result))

    async def read_calls(self, ledger_id: OperationId) -> tuple[ToolCall, ...]:
        return await self._read(partial(self._store.read_calls, ledger_id))

    async def read_result(self, ledger_id: OperationId, call_id: CallId) -> KeptAnswer | None:
        return await self._read(partial(self._store.read_result, ledger_id, call_id))

    # --- ports.Archive ------------------------------------------------------------------------

    async def forget(self, before: float, limit: int) -> int:
        return await self._look(partial(self._store.forget, before, limit))

    async def measure(self) -> StoreSize:
        return await self._look(self._store.measure)

    async def list_since(self, at: float, limit: int, after: OperationId = NO_OPERATION) -> list[Operation]:
        return await self._look(partial(self._store.list_since, at, limit, after))

    # --- ports.JobStore -----------------------------------------------------------------------

    async def submit_job(
        self, new: NewJob, request: JobRequest, bounds: JobBounds, after: OperationId | None = None
    ) -> Job | Operation | JobsFull:
        return await self._write(partial(self._store.submit_job, new, request, bounds, after))

    async def read_job(self, job_id: OperationId) -> Job | None:
        return await self._read(partial(self._store.read_job, job_id))

    async def find_job(self, caller: str, path: str, key_hash: str) -> Job | None:
        return await self._read(partial(self._store.find_job, caller, path, key_hash))

    async def read_job_request(self, job_id: OperationId) -> JobRequest | None:
        return await self._read(partial(self._store.read_job_request, job_id))

    async def list_jobs(self, states: frozenset[JobState], limit: int, after: int = 0) -> list[Job]:
        return await self._look(partial(self._store.list_jobs, states, limit, after))

    async def list_orphaned_jobs(self, limit: int) -> list[Job]:
        return await self._look(partial(self._store.list_orphaned_jobs, limit))

    async def claim_job(
        self, job_id: OperationId, seen: FencingToken, seat: SeatId, run_id: OperationId
    ) -> Job:
        return await self._write(partial(self._store.claim_job, job_id, seen, seat, run_id))

    async def take_over_job(self, job_id: OperationId, seen: FencingToken, seat: SeatId) -> Job:
        return await self._write(partial(self._store.take_over_job, job_id, seen, seat))

    async def release_job(self, job_id: OperationId, token: FencingToken, at: float) -> Job:
        return await self._write(partial(self._store.release_job, job_id, token, at))

    async def finish_job(self, job_id: OperationId, token: FencingToken, end: JobEnd) -> Job:
        return await self._write(partial(self._store.finish_job, job_id, token, end))

    async def cancel_job(self, job_id: OperationId, at: float) -> Job | None:
        return await self._write(partial(self._store.cancel_job, job_id, at))

    async def count_jobs(self) -> JobCounts:
        return await self._look(self._store.count_jobs)

    async def forget_results(self, before: float, limit: int) -> int:
        return await self._look(partial(self._store.forget_results, before, limit))


async def _next(found: AsyncIterator[Operation]) -> Operation | None:
    return await anext(found, None)
