"""The runner: takes jobs from the store when their pool has a slot that nobody waits for, and sends them.

A slot is promised before a job is claimed, so a run never waits in the line and never takes a place of it. A
job is claimed before it is sent, so no other gateway sends it too. What becomes of it after that is
`job_ends`'.

It looks when it is woken (a job came in, a slot came free, a run has ended) and once in `LOOK_S` for all that
nobody wakes it for: what other gateways took in, whom they left behind, what is to be cancelled, what is too
old.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Final

from envoy_ext.domain.api import InvalidRequest
from envoy_ext.domain.availability import Availability
from envoy_ext.domain.boundaries import FORBIDDEN
from envoy_ext.domain.client_errors import ClientError
from envoy_ext.domain.errors import JournalUnavailable, NotOwner, SeatLost
from envoy_ext.domain.ids import OperationId, PoolName
from envoy_ext.domain.job import Job, JobCounts, JobEnd, JobRequest, JobState, is_expired
from envoy_ext.domain.job_choice import Turns
from envoy_ext.domain.job_run import count_attempts
from envoy_ext.domain.notes import BoundaryHeld
from envoy_ext.domain.ticket import Granted, Newcomer
from envoy_ext.ports import Clock, Observer, RunSender, Store
from envoy_ext.services.admission import Admitted, Arrival, Forbidden
from envoy_ext.services.exchanges import Exchanges
from envoy_ext.services.fleet import Fleet
from envoy_ext.services.job_ends import JobEnds
from envoy_ext.services.job_requests import JobsPolicy, build_arrival, list_sent_headers, read_given_up
from envoy_ext.services.job_runs import Runs
from envoy_ext.services.opening import Opening
from envoy_ext.services.queues import Queues
from envoy_ext.services.repeats import RequestKey
from envoy_ext.services.seats import SeatKeeper

LOOK_S: Final = 1.0
"""How late it may be that something is seen which nobody wakes the runner for."""
PAUSE_S: Final = 1.0
"""For a pool whose run could not be sent: Envoy is not there, or does not let it in."""
PAGE: Final = 500
"""Jobs that are read from the store at once."""

Admit = Callable[[Arrival], Admitted | Forbidden | ClientError]


@dataclass(slots=True, eq=False)
class UnderWay:
    """A job that this gateway has in hand, from before its claim until it is settled."""

    job: Job
    pool: PoolName
    """Whose slot it has."""
    task: asyncio.Task[None] | None = None
    sending: asyncio.Task[None] | None = None
    cancelled: bool = False
    runs: bool = True
    """False: its run is over, or another gateway's was, and it is only to be settled."""
    attempts: int | None = None
    """Those that its earlier runs have had; None: not looked up."""

    def cancel(self) -> None:
        """End its request, or do not send it. Its end is settled as any other."""
        self.cancelled = True
        if self.sending is not None:
            self.sending.cancel()


class JobRunner:
    """Owned by the composition root: `run` until cancelled, then `stop`. Used from one event loop."""

    def __init__(
        self,
        *,
        store: Store,
        keeper: SeatKeeper,
        exchanges: Exchanges,
        fleet: Fleet,
        queues: Queues,
        pools: Sequence[PoolName],
        admit: Admit,
        runs: Runs,
        ends: JobEnds,
        sender: RunSender,
        policy: JobsPolicy,
        max_attempts: int,
        clock: Clock,
        observer: Observer,
        mint_operation_id: Callable[[], OperationId],
        on_counts: Callable[[JobCounts], None],
    ) -> None:
        self._store = store
        self._keeper = keeper
        self._exchanges = exchanges
        self._fleet = fleet
        self._queues = queues
        self._pools = tuple(pools)
        self._admit = admit
        self._runs = runs
        self._ends = ends
        self._sender = sender
        self._policy = policy
        self._max_attempts = max_attempts
        self._clock = clock
        self._observer = observer
        self._mint_operation_id = mint_operation_id
        self._on_counts = on_counts
        self._waiting: dict[OperationId, Job] = {}
        """As far as it has been seen; the store decides who runs each."""
        self._under_way: dict[OperationId, UnderWay] = {}
        self._turns = Turns()
        self._paused: dict[PoolName, float] = {}
        self._resting: dict[OperationId, float] = {}
        """Jobs that were just given back without anybody having been asked, and until when they rest."""
        self._looked_at = float("-inf")
        self._draining = False
        self._wake = asyncio.Event()
        queues.on_free(self.wake)
        exchanges.on_draining(self.start_no_more)

    # --- from outside -------------------------------------------------------------------------

    async def run(self) -> None:
        """Look whenever there may be something to do, until cancelled."""
        while True:
            self._wake.clear()
            with contextlib.suppress(JournalUnavailable, SeatLost):  # the next look tries again
                await self.look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._wake.wait()

    def wake(self) -> None:
        """There may be something to do."""
        self._wake.set()

    def note_submitted(self, job: Job) -> None:
        """This gateway has taken a job in."""
        self._waiting[job.job_id] = job
        self.wake()

    def cancel(self, job_id: OperationId) -> None:
        """Its client does not want it any more, and the store has been told."""
        self._waiting.pop(job_id, None)
        one = self._under_way.get(job_id)
        if one is not None:
            one.cancel()

    def note_cancelled(self, job: Job) -> None:
        """It waited, and its client did not want it any more."""
        self._waiting.pop(job.job_id, None)
        self._ends.note_end(job)

    def start_no_more(self) -> None:
        """The gateway stops: what runs goes on, as long as it is let."""
        self._draining = True

    async def stop(self, limit_s: float) -> None:
        """Wait until what ran is settled, and let go of what is not: whoever comes next does that."""
        self._draining = True
        tasks = [one.task for one in self._under_way.values() if one.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=limit_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def idle(self) -> bool:
        """Whether no job is in hand."""
        return not self._under_way

    # --- one look -----------------------------------------------------------------------------

    async def look(self) -> None:
        """Start what can be started; now and then look after all that has nobody else to.

        Raises:
            JournalUnavailable: the store could not be asked.
            SeatLost: other gateways have found this one gone.
        """
        if not self._keeper.may_act:
            return
        if self._clock.now() - self._looked_at >= LOOK_S:
            self._looked_at = self._clock.now()
            await self._look_after_all()
        if self._draining:
            return
        while (job := self._turns.choose(self._list_rested(), self._list_open_pools())) is not None:
            self._start(job)

    async def _look_after_all(self) -> None:
        self._waiting = {
            job.job_id: job for job in await self._list(JobState.QUEUED) if job.job_id not in self._under_way
        }
        self._on_counts(await self._store.count_jobs())
        for job in await self._list(JobState.RUNNING):
            one = self._under_way.get(job.job_id)
            if one is not None and job.cancel_requested_at is not None:
                one.cancel()
            elif one is None and job.owner == self._keeper.seat:
                self._settle(job)  # its end could not be told, or the answer to its claim was lost
        if self._draining:
            return
        for job in await self._store.list_orphaned_jobs(PAGE):
            if job.job_id not in self._under_way:
                with contextlib.suppress(NotOwner):  # somebody else was faster
                    self._settle(await self._store.take_over_job(job.job_id, job.token, self._keeper.seat))
        wall = self._clock.wall()
        for job in [job for job in self._waiting.values() if is_expired(job, wall)]:
            self._waiting.pop(job.job_id, None)
            with contextlib.suppress(NotOwner):  # somebody runs it, and stops it
                await self._ends.finish(job, JobEnd(JobState.EXPIRED, wall, "deadline_exceeded"))

    async def _list(self, state: JobState) -> list[Job]:
        found: list[Job] = []
        while True:
            after = found[-1].number if found else 0
            page = await self._store.list_jobs(frozenset({state}), PAGE, after)
            found += page
            if len(page) < PAGE:
                return found

    def _list_open_pools(self) -> frozenset[PoolName]:
        """The pools that a job could be sent to at this moment. One that is not configured any more is open
        for a few at a time: its jobs are another pool's, or have failed, as only their requests tell."""
        known = [pool for pool in self._pools if self._is_open(pool)]
        strange = {job.pool for job in self._waiting.values()} - set(self._pools)
        asked = sum(one.job.pool not in self._pools for one in self._under_way.values())
        if asked >= self._policy.concurrency:
            return frozenset(known)
        return frozenset(known) | {pool for pool in strange if not self._is_paused(pool)}

    def _list_rested(self) -> list[Job]:
        """Those that wait and may be started.

        One that is in hand seems to wait where the store's word came late: it had been found and claimed
        before its submission was answered, or is still being given back. A claim that is made again is the
        same one, so a second start would make a second run.
        """
        now = self._clock.now()
        self._resting = {job_id: until for job_id, until in self._resting.items() if until > now}
        held = self._resting.keys() | self._under_way.keys()
        return [job for job in self._waiting.values() if job.job_id not in held]

    def _is_open(self, pool: PoolName) -> bool:
        if self._is_paused(pool):
            return False
        running = sum(one.runs and one.pool == pool for one in self._under_way.values())
        if running >= self._policy.concurrency or self._fleet.availability(pool) is Availability.EMPTY:
            return False
        return self._queues.has_room(pool)

    def _is_paused(self, pool: PoolName) -> bool:
        return self._paused.get(pool, 0.0) > self._clock.now()

    # --- one job ------------------------------------------------------------------------------

    def _start(self, job: Job) -> None:
        """Take it in hand, with a slot; whatever comes in after this finds that slot taken."""
        del self._waiting[job.job_id]
        run_id = self._mint_operation_id() if job.run_ids else job.job_id
        if job.pool in self._pools and not self._reserve(job, job.pool, run_id):
            return
        one = UnderWay(job, job.pool)
        self._begin(one, self._run_one(one, run_id))

    def _settle(self, job: Job) -> None:
        """Its run is none of this gateway's that is still on its way."""
        one = UnderWay(job, job.pool, runs=False)
        self._begin(one, self._settle_one(one))

    def _begin(self, one: UnderWay, work: Coroutine[object, object, None]) -> None:
        self._under_way[one.job.job_id] = one
        self._turns.begin(one.job.caller)
        one.task = asyncio.get_running_loop().create_task(self._hold(one, work))

    async def _hold(self, one: UnderWay, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except (JournalUnavailable, NotOwner, SeatLost):
            pass  # what the store has of it by now is what counts: the next look sees it
        except Exception as error:
            # A bug with one job must not end the others; nobody else waits for this task.
            self._observer.note_bug("a job", error)
        finally:
            self._under_way.pop(one.job.job_id, None)
            self._turns.end(one.job.caller, self._waiting.values())
            self.wake()

    async def _settle_one(self, one: UnderWay) -> None:
        one.runs = False
        settled = await self._ends.settle(one.job)
        if settled is not None and settled.state is JobState.QUEUED:
            if one.attempts == await self._count_attempts(settled):
                # Nobody was asked, and at this moment would not be by the next run either.
                self._resting[settled.job_id] = self._clock.now() + PAUSE_S
            self._waiting[settled.job_id] = settled

    async def _run_one(self, one: UnderWay, run_id: OperationId) -> None:
        try:
            opened = await self._send(one, run_id)
        finally:
            # Where an exchange has begun it has left by itself; repeating that changes nothing.
            if one.pool in self._pools:
                self._queues.leave(one.pool, run_id)
        if opened is not None:
            if not opened:
                self._paused[one.pool] = self._clock.now() + PAUSE_S
            await self._settle_one(one)

    async def _send(self, one: UnderWay, run_id: OperationId) -> bool | None:
        """Claim a job, send its run, and wait for the end of that.

        Whether its exchange began. None: it is not this gateway's, or has its end.
        """
        request = await self._store.read_job_request(one.job.job_id)
        if request is None or self._exchanges.find_closure(one.job.request_id) is not None:
            return None
        if not self._exchanges.starts_jobs:
            self._paused[one.pool] = self._clock.now() + PAUSE_S
            return None
        one.attempts = await self._count_attempts(one.job)
        arrival, admitted = self._read(one.job, request)
        if isinstance(admitted, Admitted) and not self._move(one, admitted.pool, run_id):
            self._paused[one.job.pool] = self._clock.now() + PAUSE_S  # no need to read the next one's request
            return None
        one.job = job = await self._store.claim_job(one.job.job_id, one.job.token, self._keeper.seat, run_id)
        if arrival is None or not isinstance(admitted, Admitted):
            code = admitted.code if isinstance(admitted, ClientError) else FORBIDDEN
            await self._ends.finish(job, JobEnd(JobState.FAILED, self._clock.wall(), code))
            return None
        if one.cancelled:
            return True
        opening = self._build_opening(job, run_id, arrival, admitted, request)
        # A run that never began is sent again under its id. What Envoy still has of the first, from a
        # sidecar that was killed, must not be taken for the second: each claim has a token of its own.
        name = f"{run_id}.{job.token}"
        run = self._runs.expect(name, opening, job.job_id, max(1, self._max_attempts - one.attempts))
        try:
            await self._send_and_wait(one, name, request, arrival.path)
        finally:
            self._runs.forget(name)
        if run.opened:
            await run.over.wait()
        return run.opened

    async def _send_and_wait(self, one: UnderWay, name: str, request: JobRequest, path: str) -> None:
        """Until the request is over. Cancelled with its job, or with this task: then Envoy hears of it."""
        headers = list_sent_headers(request)
        work = self._sender.send(name, one.job.request_id, path, headers, request.body)
        one.sending = asyncio.get_running_loop().create_task(work)
        try:
            await asyncio.wait({one.sending})
        finally:
            one.sending.cancel()
        if not one.sending.cancelled():
            one.sending.result()

    async def _count_attempts(self, job: Job) -> int:
        """Those that its runs have had."""
        runs = [await self._store.get(run_id) for run_id in job.run_ids]
        return count_attempts([run for run in runs if run is not None])

    def _read(
        self, job: Job, request: JobRequest
    ) -> tuple[Arrival | None, Admitted | Forbidden | ClientError]:
        """What the job's request is by this moment's configuration: it may be another than when it came."""
        try:
            arrival = build_arrival(job, request, self._clock.wall())
        except InvalidRequest as mistake:
            return None, ClientError("invalid_request", job.request_id, message=str(mistake))
        admitted = self._admit(arrival)
        if isinstance(admitted, Forbidden):
            held = BoundaryHeld(admitted.pool, job.request_id, job.job_id, admitted.data_class)
            self._observer.note(held)
        return arrival, admitted

    def _build_opening(
        self, job: Job, run_id: OperationId, arrival: Arrival, admitted: Admitted, request: JobRequest
    ) -> Opening:
        # The journal calls it by what its client sent.
        read = replace(
            admitted.request, body_sha256=job.body_sha256, path=job.path, degraded=read_given_up(request)
        )
        return Opening(
            arrival=replace(arrival, body=b""),  # Envoy is about to have it
            admitted=replace(admitted, request=read),
            key=RequestKey(job.caller, job.path, job.request_id, job.body_sha256),
            operation_id=run_id,
            key_hash=None,  # the key is the job's
            ledger_id=None if job.ledger_id == run_id else job.ledger_id,
        )

    # --- slots --------------------------------------------------------------------------------

    def _reserve(self, job: Job, pool: PoolName, run_id: OperationId) -> bool:
        """A free slot, if there is one that nobody waits for."""
        if not self._queues.has_room(pool):
            return False
        outcome = self._queues.ask(pool, Newcomer(run_id, job.request_class, job.caller))
        if isinstance(outcome, Granted):
            return True
        self._queues.leave(pool, run_id)
        return False

    def _move(self, one: UnderWay, pool: PoolName, run_id: OperationId) -> bool:
        """Its model is served by another pool than when it was taken in: that one's slot is needed."""
        if pool == one.pool:
            return True
        if one.pool in self._pools:
            self._queues.leave(one.pool, run_id)
        one.pool = pool
        return self._reserve(one.job, pool, run_id)
